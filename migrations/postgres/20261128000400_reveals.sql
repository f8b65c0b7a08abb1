-- Who opened, or tried to open, which kind of sealed token of the guard. Neither the token nor its value is here. Rows are
-- only ever added: no role may change or remove one.

CREATE TABLE pathbox.reveals (
    id              text        PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),    -- random: sent twice is written once
    tenant_id       text        NOT NULL,
    conversation_id text        NOT NULL,
    path_id         text        NOT NULL,
    kind            text,                                                           -- EMAIL, ...; NULL: it did not open
    principal       text        NOT NULL,                                           -- who asked: key:<id>, cli, ...
    opened          boolean     NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT opened_has_kind CHECK (opened = (kind IS NOT NULL))
);

CREATE INDEX reveals_of_tenant ON pathbox.reveals (tenant_id, at);

ALTER TABLE pathbox.reveals ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.reveals FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.reveals TO pathbox_worker USING (true) WITH CHECK (true);
CREATE POLICY tenant_reads_own ON pathbox.reveals FOR SELECT TO pathbox_tenant
  USING (tenant_id = (SELECT pathbox.bound_tenant()));
GRANT SELECT, INSERT ON pathbox.reveals TO pathbox_worker;
GRANT SELECT ON pathbox.reveals TO pathbox_tenant;

CREATE FUNCTION pathbox.record_reveal_v1(p_id text, p_tenant text, p_conversation text, p_path text, p_kind text,
                                         p_principal text, p_opened boolean) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO pathbox.reveals (id, tenant_id, conversation_id, path_id, kind, principal, opened)
  VALUES (p_id, p_tenant, p_conversation, p_path, p_kind, p_principal, p_opened) ON CONFLICT (id) DO NOTHING;
$$;

-- NULL: every tenant's, newest first
CREATE FUNCTION pathbox.reveals_v1(p_tenant text, p_limit bigint) RETURNS SETOF pathbox.reveals
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.* FROM pathbox.reveals r WHERE p_tenant IS NULL OR r.tenant_id = p_tenant
  ORDER BY r.at DESC, r.id LIMIT p_limit;
$$;

DO $$
DECLARE
  f regprocedure;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_worker;                     -- an owner needs it for a moment
  FOREACH f IN ARRAY ARRAY['pathbox.record_reveal_v1(text, text, text, text, text, text, boolean)',
                           'pathbox.reveals_v1(text, bigint)']::regprocedure[] LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_worker;
END $$;
