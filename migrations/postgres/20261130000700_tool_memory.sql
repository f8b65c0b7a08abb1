-- What is remembered of the tools of other servers, for every replica and past a restart: what they said of themselves when
-- they were accepted, and which of them a person allowed for a conversation.
--
-- Serves programs from 0.1.0 on.

-- A row a server that was ever listed: the SHA-256 of each of its tools' definitions, as a JSON object. `digest` is the SHA-256
-- of that text. `scope` is empty for a server that every tenant has, else the tenant: each accepts for itself.
CREATE TABLE pathbox.tool_pins (
    scope  text        NOT NULL CHECK (length(scope) <= 128),
    server text        NOT NULL CHECK (length(server) BETWEEN 1 AND 32),
    digest text        NOT NULL CHECK (length(digest) = 64),
    pins   text        NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, server)
);

-- A row a "yes, for this conversation": who said it, where, to which tool, and to which definition of it.
CREATE TABLE pathbox.tool_permits (
    tenant_id       text        NOT NULL,
    owner_principal text        NOT NULL,
    conversation_id text        NOT NULL,
    principal       text        NOT NULL,
    tool            text        NOT NULL,                                 -- server.tool
    definition      text        NOT NULL CHECK (length(definition) = 64),
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, owner_principal, conversation_id, principal, tool)
);
CREATE INDEX tool_permits_at ON pathbox.tool_permits (at);

ALTER TABLE pathbox.tool_pins ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.tool_pins FORCE ROW LEVEL SECURITY;
ALTER TABLE pathbox.tool_permits ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.tool_permits FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.tool_pins TO pathbox_worker USING (true) WITH CHECK (true);
CREATE POLICY worker_all ON pathbox.tool_permits TO pathbox_worker USING (true) WITH CHECK (true);
CREATE POLICY tenant_reads_own ON pathbox.tool_permits FOR SELECT TO pathbox_tenant
  USING (tenant_id = (SELECT pathbox.bound_tenant()));
GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.tool_pins, pathbox.tool_permits TO pathbox_worker;
GRANT SELECT ON pathbox.tool_permits TO pathbox_tenant;

-- What was accepted of a server; `pins` is NULL where the caller has it already. No row: it was never listed.
CREATE FUNCTION pathbox.tool_pins_v1(p_scope text, p_server text, p_known text) RETURNS TABLE (digest text, pins text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT t.digest, CASE WHEN t.digest IS DISTINCT FROM p_known THEN t.pins END
    FROM pathbox.tool_pins t WHERE t.scope = p_scope AND t.server = p_server;
$$;

-- The first list of a server stays; one that a person accepts replaces it. Gives what holds then.
CREATE FUNCTION pathbox.pin_tools_v1(p_scope text, p_server text, p_digest text, p_pins text, p_replace boolean) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO pathbox.tool_pins AS t (scope, server, digest, pins) VALUES (p_scope, p_server, p_digest, p_pins)
  ON CONFLICT (scope, server) DO UPDATE SET digest = excluded.digest, pins = excluded.pins, at = excluded.at WHERE p_replace;
  RETURN (SELECT t.pins FROM pathbox.tool_pins t WHERE t.scope = p_scope AND t.server = p_server);
END $$;

-- A permit is good for 30 days, and each new one removes two that are older.
CREATE FUNCTION pathbox.permit_tool_v1(p_tenant text, p_owner text, p_conversation text, p_principal text, p_tool text,
                                       p_definition text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO pathbox.tool_permits (tenant_id, owner_principal, conversation_id, principal, tool, definition)
  VALUES (p_tenant, p_owner, p_conversation, p_principal, p_tool, p_definition)
  ON CONFLICT (tenant_id, owner_principal, conversation_id, principal, tool)
  DO UPDATE SET definition = excluded.definition, at = excluded.at;
  DELETE FROM pathbox.tool_permits t
   WHERE (t.tenant_id, t.owner_principal, t.conversation_id, t.principal, t.tool) IN (
     SELECT o.tenant_id, o.owner_principal, o.conversation_id, o.principal, o.tool FROM pathbox.tool_permits o
      WHERE o.at < now() - interval '30 days' ORDER BY o.at LIMIT 2 FOR UPDATE SKIP LOCKED);
END $$;

CREATE FUNCTION pathbox.tool_permitted_v1(p_tenant text, p_owner text, p_conversation text, p_principal text, p_tool text,
                                          p_definition text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pathbox.tool_permits t
    WHERE t.tenant_id = p_tenant AND t.owner_principal = p_owner AND t.conversation_id = p_conversation
      AND t.principal = p_principal AND t.tool = p_tool AND t.definition = p_definition AND t.at > now() - interval '30 days');
$$;

DO $$
DECLARE
  f record;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_worker;                     -- an owner needs it for a moment
  FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'pathbox'::regnamespace
              AND p.proname IN ('tool_pins_v1', 'pin_tools_v1', 'permit_tool_v1', 'tool_permitted_v1') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f.name);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_worker;
END $$;
