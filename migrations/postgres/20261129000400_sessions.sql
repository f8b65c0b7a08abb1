-- What every replica must know of sessions of the MCP revisions that have them: `ended` (a DELETE), `cancelled:<request id>`,
-- and `chat` (whether the session is a conversation of its own). A session is known by the SHA-256 of its id, which is a
-- secret of its client's. Session ids are good for 24 hours, so facts are kept a little longer.

CREATE TABLE pathbox.session_facts (
    session bytea       NOT NULL CHECK (length(session) = 32),
    fact    text        NOT NULL CHECK (length(fact) BETWEEN 1 AND 300),
    value   text        NOT NULL CHECK (length(value) <= 40),
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session, fact)
);

CREATE INDEX session_facts_at ON pathbox.session_facts (at);

ALTER TABLE pathbox.session_facts ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.session_facts FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.session_facts TO pathbox_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.session_facts TO pathbox_worker;      -- UPDATE: to lock what is removed

-- The first value of a fact stays. Each new fact removes two that are too old, so nothing piles up.
CREATE FUNCTION pathbox.note_session_v1(p_session bytea, p_fact text, p_value text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO pathbox.session_facts (session, fact, value) VALUES (p_session, p_fact, p_value)
  ON CONFLICT (session, fact) DO NOTHING;
  IF NOT FOUND THEN
    RETURN (SELECT f.value FROM pathbox.session_facts f WHERE f.session = p_session AND f.fact = p_fact);
  END IF;
  DELETE FROM pathbox.session_facts f
   WHERE (f.session, f.fact) IN (SELECT o.session, o.fact FROM pathbox.session_facts o
                                  WHERE o.at < now() - interval '25 hours' ORDER BY o.at LIMIT 2
                                  FOR UPDATE SKIP LOCKED);
  RETURN p_value;
END $$;

CREATE FUNCTION pathbox.session_facts_v1(p_session bytea) RETURNS SETOF pathbox.session_facts
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT f.* FROM pathbox.session_facts f WHERE f.session = p_session;
$$;

-- What other replicas have to act on.
CREATE FUNCTION pathbox.recent_session_facts_v1(p_age_ms bigint) RETURNS SETOF pathbox.session_facts
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT f.* FROM pathbox.session_facts f
   WHERE f.at > now() - p_age_ms * interval '1 millisecond' AND f.fact <> 'chat';
$$;

DO $$
DECLARE
  f regprocedure;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_worker;                     -- an owner needs it for a moment
  FOREACH f IN ARRAY ARRAY['pathbox.note_session_v1(bytea, text, text)', 'pathbox.session_facts_v1(bytea)',
                           'pathbox.recent_session_facts_v1(bigint)']::regprocedure[] LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_worker;
END $$;
