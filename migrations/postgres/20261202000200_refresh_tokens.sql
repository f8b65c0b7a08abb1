-- Refresh tokens of other servers have a table of their own. Before, they were kept as the tools of a server called
-- "refresh_token", in scopes that no tenant has.
--
-- Serves programs from 0.1.0 on: through the functions of pins, an older program reads and writes this table.

-- name: the digest of the settings that the first token stood in; sealed: the last one given since, in base64.
CREATE TABLE pathbox.refresh_tokens (
    name   text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 128),
    sealed text        NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE pathbox.refresh_tokens ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.refresh_tokens FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.refresh_tokens TO pathbox_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.refresh_tokens TO pathbox_worker;

SET LOCAL ROLE pathbox_worker;
INSERT INTO pathbox.refresh_tokens (name, sealed, at)
SELECT substr(t.scope, 7), t.pins, t.at FROM pathbox.tool_pins t WHERE t.server = 'refresh_token' AND t.scope LIKE 'oauth/%';
DELETE FROM pathbox.tool_pins t WHERE t.server = 'refresh_token' AND t.scope LIKE 'oauth/%';
RESET ROLE;

CREATE FUNCTION pathbox.refresh_token_v1(p_name text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT t.sealed FROM pathbox.refresh_tokens t WHERE t.name = p_name
$$;

CREATE FUNCTION pathbox.keep_refresh_token_v1(p_name text, p_sealed text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO pathbox.refresh_tokens (name, sealed) VALUES (p_name, p_sealed)
  ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed, at = excluded.at
$$;

CREATE OR REPLACE FUNCTION pathbox.tool_pins_v1(p_scope text, p_server text, p_known text) RETURNS TABLE (digest text, pins text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT t.digest, CASE WHEN t.digest IS DISTINCT FROM p_known THEN t.pins END
    FROM pathbox.tool_pins t WHERE t.scope = p_scope AND t.server = p_server
  UNION ALL
  SELECT encode(sha256(convert_to(r.sealed, 'UTF8')), 'hex'), r.sealed
    FROM pathbox.refresh_tokens r WHERE p_server = 'refresh_token' AND r.name = substr(p_scope, 7) AND p_scope LIKE 'oauth/%';
$$;

CREATE OR REPLACE FUNCTION pathbox.pin_tools_v1(p_scope text, p_server text, p_digest text, p_pins text, p_replace boolean) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_server = 'refresh_token' AND p_scope LIKE 'oauth/%' THEN
    PERFORM pathbox.keep_refresh_token_v1(substr(p_scope, 7), p_pins);
    RETURN p_pins;
  END IF;
  INSERT INTO pathbox.tool_pins AS t (scope, server, digest, pins) VALUES (p_scope, p_server, p_digest, p_pins)
  ON CONFLICT (scope, server) DO UPDATE SET digest = excluded.digest, pins = excluded.pins, at = excluded.at WHERE p_replace;
  RETURN (SELECT t.pins FROM pathbox.tool_pins t WHERE t.scope = p_scope AND t.server = p_server);
END $$;

DO $$
DECLARE
  f record;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_worker;                     -- an owner needs it for a moment
  FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'pathbox'::regnamespace
              AND p.proname IN ('refresh_token_v1', 'keep_refresh_token_v1') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f.name);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_worker;
END $$;
