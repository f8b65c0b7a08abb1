-- What placeholders of a context stand for, where a policy says `placeholders = "resolve"` (docs/adr/0082).
--
-- A value is sealed by the server under the tenant's key, bound to context, kind and number, so that it opens in its own row
-- only. It ends with its context, whoever ends that. Nobody but the server reads it: a tenant's own login has no right here.
--
-- Serves programs from 0.1.0 on: what they end loses its values here too.

CREATE TABLE pathbox.placeholder_values (
    tenant_id  text    NOT NULL,
    context_id uuid    NOT NULL REFERENCES pathbox.execution_contexts ON DELETE CASCADE,
    kind       text    NOT NULL CHECK (length(kind) BETWEEN 1 AND 64),
    number     integer NOT NULL CHECK (number > 0),
    sealed     bytea   NOT NULL CHECK (octet_length(sealed) <= 1024),
    resolved   integer NOT NULL DEFAULT 0,                  -- how many calls have had it put into their code
    PRIMARY KEY (context_id, kind, number)
);

ALTER TABLE pathbox.placeholder_values ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.placeholder_values FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.placeholder_values TO pathbox_worker USING (true) WITH CHECK (true);
CREATE POLICY app_own_tenant ON pathbox.placeholder_values TO pathbox_app
  USING (tenant_id = (SELECT nullif(current_setting('pathbox.tenant_id', true), '')))
  WITH CHECK (tenant_id = (SELECT nullif(current_setting('pathbox.tenant_id', true), '')));
GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.placeholder_values TO pathbox_worker;
GRANT SELECT, INSERT, UPDATE ON pathbox.placeholder_values TO pathbox_app;

-- Keeps values of a context that has not ended, at most p_most; the first of each number stays.
CREATE FUNCTION pathbox.keep_values_v1(p_tenant text, p_context uuid, p_kinds text[], p_numbers integer[], p_sealed bytea[],
                                       p_most integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  -- locked, so that it does not end meanwhile
  PERFORM FROM pathbox.execution_contexts e
    WHERE e.id = p_context AND e.tenant_id = p_tenant AND e.ended_at IS NULL FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  INSERT INTO pathbox.placeholder_values (tenant_id, context_id, kind, number, sealed)
  SELECT p_tenant, p_context, t.kind, t.number, t.sealed
    FROM unnest(p_kinds, p_numbers, p_sealed) t(kind, number, sealed)
   WHERE NOT EXISTS (SELECT FROM pathbox.placeholder_values v
                      WHERE v.context_id = p_context AND v.kind = t.kind AND v.number = t.number)
   ORDER BY t.kind, t.number
   LIMIT greatest(0, p_most - (SELECT count(*) FROM pathbox.placeholder_values v WHERE v.context_id = p_context))
  ON CONFLICT DO NOTHING;
END $$;

-- The values that a call's code is given, counted. A row of NULLs: the context has been given p_most.
CREATE FUNCTION pathbox.take_values_v1(p_tenant text, p_context uuid, p_kinds text[], p_numbers integer[], p_most integer)
RETURNS TABLE (kind text, number integer, sealed bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  IF cardinality(p_kinds) + (SELECT coalesce(sum(v.resolved), 0) FROM pathbox.placeholder_values v
                              WHERE v.context_id = p_context AND v.tenant_id = p_tenant) > p_most THEN
    RETURN QUERY SELECT NULL::text, NULL::integer, NULL::bytea;
    RETURN;
  END IF;
  RETURN QUERY
  UPDATE pathbox.placeholder_values v SET resolved = v.resolved + 1
    FROM unnest(p_kinds, p_numbers) t(kind, number)
   WHERE v.context_id = p_context AND v.tenant_id = p_tenant AND v.kind = t.kind AND v.number = t.number
  RETURNING v.kind, v.number, v.sealed;
END $$;

CREATE FUNCTION pathbox.forget_values() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM pathbox.placeholder_values v WHERE v.context_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER context_forgets AFTER UPDATE ON pathbox.execution_contexts
    FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION pathbox.forget_values();

DO $$
DECLARE
  f record;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app, pathbox_worker;        -- an owner needs it for a moment
  FOR f IN SELECT p.oid::regprocedure AS name, p.proname FROM pg_proc p WHERE p.pronamespace = 'pathbox'::regnamespace
              AND p.proname IN ('keep_values_v1', 'take_values_v1', 'forget_values') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    IF f.proname = 'forget_values' THEN
      EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f.name);
    ELSE
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
      EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_app', f.name);
    END IF;
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app, pathbox_worker;
END $$;
