-- API keys of HTTP callers. They belong to no tenant: a service's key may name several. So only the functions that act
-- over all tenants touch them, and pathbox_tenant does not see the table.

CREATE TABLE pathbox.api_keys (
    id          text        PRIMARY KEY CHECK (length(id) = 12),        -- the public part, which stands in the key
    hash        bytea       NOT NULL CHECK (length(hash) = 32),         -- SHA-256 of the whole key: 256 random bits
    key         jsonb       NOT NULL,                                   -- name, kind, tenants, scopes, expiry
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at  timestamptz
);

ALTER TABLE pathbox.api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.api_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.api_keys TO pathbox_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON pathbox.api_keys TO pathbox_worker;

-- NULL: all of them, newest first
CREATE FUNCTION pathbox.api_keys_v1(p_id text) RETURNS SETOF pathbox.api_keys
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT k.* FROM pathbox.api_keys k WHERE p_id IS NULL OR k.id = p_id ORDER BY k.created_at DESC, k.id;
$$;

CREATE FUNCTION pathbox.add_api_key_v1(p_id text, p_hash bytea, p_key jsonb) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO pathbox.api_keys (id, hash, key) VALUES (p_id, p_hash, p_key);
$$;

-- whether there was such a key; one that was revoked before stays as it is
CREATE FUNCTION pathbox.revoke_api_key_v1(p_id text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pathbox.api_keys k SET revoked_at = coalesce(k.revoked_at, clock_timestamp()) WHERE k.id = p_id
  RETURNING true;
$$;

DO $$
DECLARE
  f regprocedure;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_worker;                     -- an owner needs it for a moment
  FOREACH f IN ARRAY ARRAY['pathbox.api_keys_v1(text)', 'pathbox.add_api_key_v1(text, bytea, jsonb)',
                           'pathbox.revoke_api_key_v1(text)']::regprocedure[] LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_worker;
END $$;
