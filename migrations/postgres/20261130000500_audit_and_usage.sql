-- The audit chain, what was used, and quotas (docs/adr/0056, docs/adr/0057, docs/adr/0065).
--
-- Whoever ends a run does it by writing its row, so triggers on that row are the one place that sees every end: the
-- server's record, a clean-up, another replica's. They are deferred: a lane of the tenant's chain is the last lock that a
-- transaction takes, and so none waits for another in a circle.
--
-- A tenant's chain has up to 64 lanes, each a chain of its own. A transaction takes the first one that no other holds, and
-- keeps it until it has committed: so ends of one tenant commit side by side, and one that is alone writes lane 0.
--
-- Serves programs from 0.1.0 on: they write the same rows, and the triggers count for them.

-- ---- tables --------------------------------------------------------------------------------------

-- A row an end of a run, in order, each with a hash over the one before it in its lane:
-- hash = sha256(previous hash, newline, tenant, newline, lane, newline, n, newline, body_sha256), all as text, lower-case
-- hex. Entries about one run are in one lane.
CREATE TABLE pathbox.audit_log (
    tenant_id    text        NOT NULL,
    lane         smallint    NOT NULL,
    n            bigint      NOT NULL CHECK (n > 0),
    at           timestamptz NOT NULL,
    execution_id uuid,                                               -- NULL: an erasure
    body         text,                                               -- NULL: erased since
    body_sha256  text        NOT NULL CHECK (length(body_sha256) = 64),
    hash         text        NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (tenant_id, lane, n)
);
CREATE INDEX audit_log_execution ON pathbox.audit_log (execution_id);

-- Where a lane ends, and where it begins since retention took what was before.
CREATE TABLE pathbox.audit_heads (
    tenant_id   text        NOT NULL,
    lane        smallint    NOT NULL,
    n           bigint      NOT NULL DEFAULT 0,
    hash        text        NOT NULL DEFAULT repeat('0', 64),
    anchor_n    bigint      NOT NULL DEFAULT 0,
    anchor_hash text        NOT NULL DEFAULT repeat('0', 64),
    anchor_at   timestamptz,                                         -- when the last entry that was taken had been written
    PRIMARY KEY (tenant_id, lane)
) WITH (fillfactor = 50);

-- What a path used on a day (UTC). Runs count when they end, sandboxes when they end, each on the days that they lived.
-- A transaction that counts writes the rows of its lane, so that none waits for a row; a reader adds the lanes up.
CREATE TABLE pathbox.usage_days (
    tenant_id       text    NOT NULL,
    owner_principal text    NOT NULL,
    conversation_id text    NOT NULL,
    path_id         text    NOT NULL,
    day             date    NOT NULL,
    lane            smallint NOT NULL,
    executions      bigint  NOT NULL DEFAULT 0,
    run_ms          bigint  NOT NULL DEFAULT 0,
    sandbox_ms      bigint  NOT NULL DEFAULT 0,
    output_bytes    bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, day, owner_principal, conversation_id, path_id, lane)
) WITH (fillfactor = 70);

-- The same for a whole tenant, which is what a quota looks at.
CREATE TABLE pathbox.usage_totals (
    tenant_id  text     NOT NULL,
    day        date     NOT NULL,
    lane       smallint NOT NULL,
    executions bigint   NOT NULL DEFAULT 0,
    sandbox_ms bigint   NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, day, lane)
) WITH (fillfactor = 50);

-- Which quotas differ from the configured ones; NULL is the configured one.
CREATE TABLE pathbox.tenant_quotas (
    tenant_id       text   PRIMARY KEY CHECK (length(tenant_id) BETWEEN 1 AND 128),
    period          text   CHECK (period IN ('day', 'month')),
    sandbox_seconds bigint CHECK (sandbox_seconds >= 0),
    executions      bigint CHECK (executions >= 0),
    money_micros    bigint CHECK (money_micros >= 0)
);

DO $$
DECLARE
  t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['audit_log', 'audit_heads', 'usage_days', 'usage_totals', 'tenant_quotas'] LOOP
    EXECUTE format('ALTER TABLE pathbox.%I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE pathbox.%I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY worker_all ON pathbox.%I TO pathbox_worker USING (true) WITH CHECK (true)', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.%I TO pathbox_worker', t);
    EXECUTE format('CREATE POLICY tenant_reads_own ON pathbox.%I FOR SELECT TO pathbox_tenant '
                   'USING (tenant_id = (SELECT pathbox.bound_tenant()))', t);
    EXECUTE format('GRANT SELECT ON pathbox.%I TO pathbox_tenant', t);
  END LOOP;
  -- The tenant-bound role reads what a quota needs and writes none of it.
  FOREACH t IN ARRAY ARRAY['usage_totals', 'tenant_quotas'] LOOP
    EXECUTE format('CREATE POLICY app_own_tenant ON pathbox.%I FOR SELECT TO pathbox_app '
                   'USING (tenant_id = (SELECT nullif(current_setting(''pathbox.tenant_id'', true), '''')))', t);
    EXECUTE format('GRANT SELECT ON pathbox.%I TO pathbox_app', t);
  END LOOP;
END $$;

-- ---- what has ended stays as it is ---------------------------------------------------------------

-- The chain only grows; what retention or an erasure takes, it takes openly.
CREATE FUNCTION pathbox.guard_audit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF OLD.n > (SELECT h.anchor_n FROM pathbox.audit_heads h WHERE h.tenant_id = OLD.tenant_id AND h.lane = OLD.lane) THEN
      RAISE EXCEPTION 'entry % of lane % of the audit chain of % stays', OLD.n, OLD.lane, OLD.tenant_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN OLD;
  END IF;
  IF NEW.body IS NOT NULL
     OR (NEW.tenant_id, NEW.lane, NEW.n, NEW.at, NEW.execution_id, NEW.body_sha256, NEW.hash)
        IS DISTINCT FROM (OLD.tenant_id, OLD.lane, OLD.n, OLD.at, OLD.execution_id, OLD.body_sha256, OLD.hash) THEN
    RAISE EXCEPTION 'entry % of lane % of the audit chain of % stays', OLD.n, OLD.lane, OLD.tenant_id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER guard_audit BEFORE UPDATE OR DELETE ON pathbox.audit_log
    FOR EACH ROW EXECUTE FUNCTION pathbox.guard_audit();

CREATE OR REPLACE FUNCTION pathbox.guard_execution() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was pathbox.executions;
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL THEN
    was := OLD;
    IF OLD.status = NEW.status THEN
      -- its idempotency key may be used anew, and that is all
      was.idempotency_key := NEW.idempotency_key;
      was.args_sha256     := NEW.args_sha256;
      IF NEW.idempotency_key IS NOT NULL AND NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key OR was *<> NEW THEN
        RAISE EXCEPTION 'execution % has ended', OLD.id USING ERRCODE = 'check_violation';
      END IF;
    ELSIF OLD.status <> 'interrupted' OR NEW.finished_at IS NULL THEN     -- one given up may turn out to have ended well
      RAISE EXCEPTION 'execution % has ended as %', OLD.id, OLD.status USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.id, OLD.tenant_id, OLD.owner_principal, OLD.conversation_id, OLD.path_id, OLD.code_sha256, OLD.principal)
       IS DISTINCT FROM
       (NEW.id, NEW.tenant_id, NEW.owner_principal, NEW.conversation_id, NEW.path_id, NEW.code_sha256, NEW.principal) THEN
      RAISE EXCEPTION 'execution % cannot change what it was', OLD.id USING ERRCODE = 'check_violation';
    END IF;
  END IF;
  IF NOT (length(NEW.tenant_id) BETWEEN 1 AND 128 AND length(NEW.conversation_id) BETWEEN 1 AND 128
          AND length(NEW.path_id) BETWEEN 1 AND 128
          AND (NEW.idempotency_key IS NULL) = (NEW.args_sha256 IS NULL)
          AND (NEW.idempotency_key IS NULL OR length(NEW.idempotency_key) BETWEEN 1 AND 255)
          AND NEW.status IN ('queued', 'running', 'completed', 'timed_out', 'cancelled', 'died', 'failed',
                             'interrupted')
          AND (NEW.status IN ('queued', 'running')) = (NEW.lease_expires_at IS NOT NULL)
          AND (NEW.status IN ('queued', 'running')) = (NEW.finished_at IS NULL)
          AND (NEW.status <> 'running' OR (NEW.context_id IS NOT NULL AND NEW.started_at IS NOT NULL))) THEN
    RAISE EXCEPTION 'execution % violates row invariants', NEW.id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;

-- The tenant-bound role takes back an ask that never ran, and no more.
CREATE FUNCTION pathbox.guard_execution_delete() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_user = 'pathbox_app' AND OLD.started_at IS NOT NULL THEN
    RAISE EXCEPTION 'execution % stays', OLD.id USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER guard_execution_delete BEFORE DELETE ON pathbox.executions
    FOR EACH ROW EXECUTE FUNCTION pathbox.guard_execution_delete();

-- ---- the triggers --------------------------------------------------------------------------------

-- A run as the chain has it. Times in microseconds since 1970, which no setting of a session changes. In plpgsql, as
-- what follows: a session plans it once.
CREATE FUNCTION pathbox.audit_body(x pathbox.executions) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN json_build_object(
    'execution', x.id, 'owner', x.owner_principal, 'conversation', x.conversation_id, 'path', x.path_id,
    'context', x.context_id, 'tool', x.tool, 'language', x.language, 'purpose', x.purpose,
    'codeSha256', x.code_sha256, 'principal', x.principal, 'traceId', x.trace_id, 'status', x.status,
    'exitCode', x.exit_code, 'error', x.error,
    'createdAt', (extract(epoch FROM x.created_at) * 1000000)::bigint,
    'startedAt', (extract(epoch FROM x.started_at) * 1000000)::bigint,
    'finishedAt', (extract(epoch FROM x.finished_at) * 1000000)::bigint,
    'durationMs', x.duration_ms, 'queuedMs', x.queued_ms, 'outputBytes', x.output_bytes, 'findings', x.findings,
    'resultSha256', encode(sha256(convert_to(x.result::text, 'UTF8')), 'hex'))::text;
END $$;

-- A lane for this transaction until its end: the first that no other holds, and when all are held, the one it waits for.
-- p_lane: this one and no other.
CREATE FUNCTION pathbox.take_lane(p_tenant text, p_lane smallint) RETURNS smallint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_base bigint := hashtextextended('pathbox.lane:' || p_tenant, 0);
  v_wait bigint := coalesce(p_lane, pg_backend_pid() % 64);
BEGIN
  IF p_lane IS NULL THEN
    FOR k IN 0..63 LOOP
      IF pg_try_advisory_xact_lock(v_base # k::bigint) THEN
        RETURN k;
      END IF;
    END LOOP;
  END IF;
  PERFORM pg_advisory_xact_lock(v_base # v_wait);
  RETURN v_wait;
END $$;

-- The next entry of a lane that this transaction has taken.
CREATE FUNCTION pathbox.chain(p_tenant text, p_lane smallint, p_execution uuid, p_body text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_body text := encode(sha256(convert_to(p_body, 'UTF8')), 'hex');
  v_n    bigint;
  v_hash text;
BEGIN
  LOOP
    UPDATE pathbox.audit_heads a
       SET n = a.n + 1, hash = encode(sha256(convert_to(
             a.hash || E'\n' || p_tenant || E'\n' || p_lane || E'\n' || (a.n + 1) || E'\n' || v_body, 'UTF8')), 'hex')
     WHERE a.tenant_id = p_tenant AND a.lane = p_lane RETURNING a.n, a.hash INTO v_n, v_hash;
    EXIT WHEN FOUND;
    INSERT INTO pathbox.audit_heads (tenant_id, lane) VALUES (p_tenant, p_lane);
  END LOOP;
  INSERT INTO pathbox.audit_log (tenant_id, lane, n, at, execution_id, body, body_sha256, hash)
  VALUES (p_tenant, p_lane, v_n, clock_timestamp(), p_execution, p_body, v_body, v_hash);
END $$;

CREATE FUNCTION pathbox.add_usage(p_tenant text, p_lane smallint, p_owner text, p_conversation text, p_path text, p_day date,
    p_executions bigint, p_run_ms bigint, p_sandbox_ms bigint, p_output_bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE pathbox.usage_days u
     SET executions = u.executions + p_executions, run_ms = u.run_ms + p_run_ms, sandbox_ms = u.sandbox_ms + p_sandbox_ms,
         output_bytes = u.output_bytes + p_output_bytes
   WHERE u.tenant_id = p_tenant AND u.day = p_day AND u.owner_principal = p_owner AND u.conversation_id = p_conversation
     AND u.path_id = p_path AND u.lane = p_lane;
  IF NOT FOUND THEN
    INSERT INTO pathbox.usage_days (tenant_id, owner_principal, conversation_id, path_id, day, lane, executions, run_ms,
        sandbox_ms, output_bytes)
    VALUES (p_tenant, p_owner, p_conversation, p_path, p_day, p_lane, p_executions, p_run_ms, p_sandbox_ms, p_output_bytes);
  END IF;
  UPDATE pathbox.usage_totals u SET executions = u.executions + p_executions, sandbox_ms = u.sandbox_ms + p_sandbox_ms
   WHERE u.tenant_id = p_tenant AND u.day = p_day AND u.lane = p_lane;
  IF NOT FOUND THEN
    INSERT INTO pathbox.usage_totals (tenant_id, day, lane, executions, sandbox_ms)
    VALUES (p_tenant, p_day, p_lane, p_executions, p_sandbox_ms);
  END IF;
END $$;

-- Whether an ended run reached its sandbox, as far as anybody knows: one that was abandoned did not, and costs nothing.
CREATE FUNCTION pathbox.has_run(x pathbox.executions) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN x.started_at IS NOT NULL AND (x.duration_ms IS NOT NULL OR x.status = 'interrupted');
END $$;

-- SECURITY DEFINER, because a deferred trigger runs as whoever commits.
CREATE FUNCTION pathbox.guard_ended_execution() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was  pathbox.executions;
  lane smallint;
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL THEN
    was := OLD;
    lane := (SELECT a.lane FROM pathbox.audit_log a WHERE a.execution_id = NEW.id AND a.tenant_id = NEW.tenant_id LIMIT 1);
  END IF;
  lane := pathbox.take_lane(NEW.tenant_id, lane);
  PERFORM pathbox.chain(NEW.tenant_id, lane, NEW.id, pathbox.audit_body(NEW));
  IF pathbox.has_run(NEW) THEN
    PERFORM pathbox.add_usage(NEW.tenant_id, lane, NEW.owner_principal, NEW.conversation_id, NEW.path_id,
        (coalesce(was.finished_at, NEW.finished_at) AT TIME ZONE 'UTC')::date, CASE WHEN was.id IS NOT NULL AND pathbox.has_run(was) THEN 0 ELSE 1 END,
        coalesce(NEW.duration_ms, 0) - coalesce(was.duration_ms, 0), 0,
        coalesce(NEW.output_bytes, 0) - coalesce(was.output_bytes, 0));
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER execution_ended AFTER UPDATE ON pathbox.executions
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.finished_at IS NOT NULL AND (OLD.finished_at IS NULL OR OLD.status <> NEW.status))
    EXECUTE FUNCTION pathbox.guard_ended_execution();
CREATE CONSTRAINT TRIGGER execution_inserted_ended AFTER INSERT ON pathbox.executions
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL)
    EXECUTE FUNCTION pathbox.guard_ended_execution();

CREATE FUNCTION pathbox.guard_ended_context() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_from timestamp := NEW.ready_at AT TIME ZONE 'UTC';
  v_end  timestamp := NEW.ended_at AT TIME ZONE 'UTC';
  v_to   timestamp;
  lane   smallint := pathbox.take_lane(NEW.tenant_id, NULL);
BEGIN
  WHILE v_from < v_end LOOP
    v_to := least(v_end, date_trunc('day', v_from) + interval '1 day');
    PERFORM pathbox.add_usage(NEW.tenant_id, lane, NEW.owner_principal, NEW.conversation_id, NEW.path_id, v_from::date, 0, 0,
        (extract(epoch FROM v_to - v_from) * 1000)::bigint, 0);
    v_from := v_to;
  END LOOP;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER context_ended AFTER UPDATE ON pathbox.execution_contexts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.ready_at IS NOT NULL)
    EXECUTE FUNCTION pathbox.guard_ended_context();

-- Rows from before: they join the chain and the counts in the order in which they ended.
SET LOCAL ROLE pathbox_worker;
DO $$
DECLARE
  x pathbox.executions;
BEGIN
  FOR x IN SELECT e.* FROM pathbox.executions e WHERE e.finished_at IS NOT NULL ORDER BY e.finished_at, e.seq LOOP
    PERFORM pathbox.chain(x.tenant_id, 0::smallint, x.id, pathbox.audit_body(x));
    IF pathbox.has_run(x) THEN
      PERFORM pathbox.add_usage(x.tenant_id, 0::smallint, x.owner_principal, x.conversation_id, x.path_id,
          (x.finished_at AT TIME ZONE 'UTC')::date, 1, coalesce(x.duration_ms, 0), 0, coalesce(x.output_bytes, 0));
    END IF;
  END LOOP;
END $$;
INSERT INTO pathbox.usage_days AS u (tenant_id, owner_principal, conversation_id, path_id, day, lane, sandbox_ms)
SELECT e.tenant_id, e.owner_principal, e.conversation_id, e.path_id, (e.ended_at AT TIME ZONE 'UTC')::date, 0,
       sum((extract(epoch FROM e.ended_at - e.ready_at) * 1000)::bigint)
  FROM pathbox.execution_contexts e WHERE e.ended_at > e.ready_at GROUP BY 1, 2, 3, 4, 5
ON CONFLICT (tenant_id, day, owner_principal, conversation_id, path_id, lane) DO UPDATE
   SET sandbox_ms = u.sandbox_ms + excluded.sandbox_ms;
INSERT INTO pathbox.usage_totals AS u (tenant_id, day, lane, sandbox_ms)
SELECT d.tenant_id, d.day, 0, sum(d.sandbox_ms) FROM pathbox.usage_days d GROUP BY 1, 2
ON CONFLICT (tenant_id, day, lane) DO UPDATE SET sandbox_ms = u.sandbox_ms + excluded.sandbox_ms;
RESET ROLE;

-- ---- reading the chain, and what retention takes of it -------------------------------------------

-- Entries of a lane after one, with what the run's row says now, if this is the last entry about it and the row is there.
CREATE FUNCTION pathbox.all_chain_v1(p_tenant text, p_lane smallint, p_after bigint, p_limit integer)
RETURNS TABLE (n bigint, at timestamptz, execution_id uuid, body text, body_sha256 text, hash text, row_now text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT a.n, a.at, a.execution_id, a.body, a.body_sha256, a.hash,
         CASE WHEN x.id IS NOT NULL THEN pathbox.audit_body(x) END
    FROM (SELECT l.* FROM pathbox.audit_log l WHERE l.tenant_id = p_tenant AND l.lane = p_lane AND l.n > p_after
           ORDER BY l.n LIMIT p_limit) a
    LEFT JOIN pathbox.executions x
      ON x.id = a.execution_id AND x.finished_at IS NOT NULL
     AND NOT EXISTS (SELECT FROM pathbox.audit_log b
                      WHERE b.execution_id = a.execution_id AND b.tenant_id = a.tenant_id AND b.lane = a.lane AND b.n > a.n)
   ORDER BY a.n
$$;

CREATE FUNCTION pathbox.all_chain_heads_v1() RETURNS SETOF pathbox.audit_heads
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT h.* FROM pathbox.audit_heads h ORDER BY h.tenant_id, h.lane
$$;

-- Ended runs that no entry of a lane with a head speaks of.
CREATE FUNCTION pathbox.all_unchained_v1(p_tenant text) RETURNS SETOF uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.id FROM pathbox.executions x
   WHERE x.tenant_id = p_tenant AND x.finished_at IS NOT NULL
     AND NOT EXISTS (SELECT FROM pathbox.audit_log a JOIN pathbox.audit_heads h USING (tenant_id, lane)
                      WHERE a.execution_id = x.id AND a.tenant_id = x.tenant_id)
     -- an entry that retention took came with its row's end, and the row may be kept longer for its idempotency key
     AND x.finished_at > coalesce((SELECT max(h.anchor_at) FROM pathbox.audit_heads h WHERE h.tenant_id = p_tenant),
                                  '-infinity')
   ORDER BY x.seq LIMIT 1000
$$;

-- Takes the beginning of each lane that is older than that; the rest still verifies, from its anchor on. All lanes of a
-- tenant go up to one moment, so that an erasure's entry is not gone before those that it names.
CREATE FUNCTION pathbox.all_prune_chain_v1(p_retention_ms bigint, p_batch integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_old   timestamptz := clock_timestamp() - p_retention_ms * interval '1 ms';
  v_until timestamptz;
  t       text;
  n       bigint;
  gone    bigint := 0;
BEGIN
  FOR t IN SELECT DISTINCT h.tenant_id FROM pathbox.audit_heads h JOIN pathbox.audit_log l USING (tenant_id, lane)
            WHERE l.n = h.anchor_n + 1 AND l.at < v_old ORDER BY 1 LOOP
    PERFORM FROM pathbox.audit_heads h WHERE h.tenant_id = t ORDER BY h.lane FOR NO KEY UPDATE;
    v_until := least(v_old, (SELECT min(l.at) FROM pathbox.audit_heads h JOIN pathbox.audit_log l USING (tenant_id, lane)
                              WHERE h.tenant_id = t AND l.n = h.anchor_n + p_batch + 1));
    UPDATE pathbox.audit_heads h SET anchor_n = cut.n, anchor_hash = cut.hash, anchor_at = cut.at
      FROM (SELECT DISTINCT ON (l.lane) l.lane, l.n, l.hash, l.at
              FROM pathbox.audit_heads o JOIN pathbox.audit_log l USING (tenant_id, lane)
             WHERE o.tenant_id = t AND l.n <= o.anchor_n + p_batch AND l.at < v_until ORDER BY l.lane, l.n DESC) cut
     WHERE h.tenant_id = t AND h.lane = cut.lane;
    DELETE FROM pathbox.audit_log l USING pathbox.audit_heads h
     WHERE h.tenant_id = t AND l.tenant_id = t AND l.lane = h.lane AND l.n <= h.anchor_n;
    GET DIAGNOSTICS n = ROW_COUNT;
    gone := gone + n;
  END LOOP;
  RETURN gone;
END $$;

-- ---- usage ---------------------------------------------------------------------------------------

-- What days say, and what lives: those rows have a since instead of a day, and no sums.
CREATE FUNCTION pathbox.all_usage_v1(p_tenant text, p_owner text, p_from date, p_to date)
RETURNS TABLE (tenant_id text, owner_principal text, conversation_id text, path_id text, day date,
               executions bigint, run_ms bigint, sandbox_ms bigint, output_bytes bigint, since timestamptz, read_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT u.tenant_id, u.owner_principal, u.conversation_id, u.path_id, u.day, sum(u.executions)::bigint,
         sum(u.run_ms)::bigint, sum(u.sandbox_ms)::bigint, sum(u.output_bytes)::bigint, NULL::timestamptz, clock_timestamp()
    FROM pathbox.usage_days u
   WHERE u.day BETWEEN p_from AND p_to AND (p_tenant IS NULL OR u.tenant_id = p_tenant)
     AND (p_owner IS NULL OR u.owner_principal = p_owner)
   GROUP BY 1, 2, 3, 4, 5
  UNION ALL
  SELECT e.tenant_id, e.owner_principal, e.conversation_id, e.path_id, NULL, 0, 0, 0, 0, e.ready_at, clock_timestamp()
    FROM pathbox.execution_contexts e
   WHERE e.status = 'ready' AND (p_tenant IS NULL OR e.tenant_id = p_tenant)
     AND (p_owner IS NULL OR e.owner_principal = p_owner)
$$;

CREATE FUNCTION pathbox.all_quota_v1(p_tenant text) RETURNS SETOF pathbox.tenant_quotas
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT q.* FROM pathbox.tenant_quotas q WHERE q.tenant_id = p_tenant
$$;

CREATE FUNCTION pathbox.all_set_quota_v1(p_tenant text, p_period text, p_seconds bigint, p_executions bigint, p_money bigint)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO pathbox.tenant_quotas (tenant_id, period, sandbox_seconds, executions, money_micros)
  VALUES (p_tenant, p_period, p_seconds, p_executions, p_money)
  ON CONFLICT (tenant_id) DO UPDATE SET period = excluded.period, sandbox_seconds = excluded.sandbox_seconds,
      executions = excluded.executions, money_micros = excluded.money_micros
$$;

-- ---- quotas --------------------------------------------------------------------------------------

-- What a tenant has used in its period, with what is reserved: each run that has asked, and of each sandbox all the time
-- that it may still take. NULL: within the quota. The first that is not: what, limit, used, reserved, period, resets_in_ms.
-- p_quota: period, sandbox_seconds, executions, money_micros (the configured ones), hour_micros, execution_micros (prices)
CREATE FUNCTION pathbox.over_quota(p_tenant text, p_quota jsonb, p_own pathbox.tenant_quotas, p_ttl_ms bigint) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_period text := coalesce(p_own.period, p_quota->>'period');
  v_now    timestamp := clock_timestamp() AT TIME ZONE 'UTC';
  v_start  timestamp := date_trunc(v_period, v_now);
  v_from   timestamptz := v_start AT TIME ZONE 'UTC';
  q        record;
  r        record;
BEGIN
  SELECT coalesce((SELECT sum(u.executions) FROM pathbox.usage_totals u
                    WHERE u.tenant_id = p_tenant AND u.day >= v_start::date), 0) AS runs,
         (SELECT count(*) FROM pathbox.executions x
           WHERE x.tenant_id = p_tenant AND x.status IN ('queued', 'running')) AS asked,
         coalesce((SELECT sum(u.sandbox_ms) FROM pathbox.usage_totals u
                    WHERE u.tenant_id = p_tenant AND u.day >= v_start::date), 0) AS ms,
         coalesce((SELECT sum(CASE e.status
                       WHEN 'ready' THEN greatest(0, extract(epoch FROM
                           greatest(e.expires_at, x.lease_expires_at + p_ttl_ms * interval '1 ms')
                           - greatest(e.ready_at, v_from)) * 1000)
                       ELSE p_ttl_ms + coalesce(x.run_lease_ms, 0) END)
                     FROM pathbox.execution_contexts e
                     LEFT JOIN pathbox.executions x
                       ON x.id = CASE e.status WHEN 'creating' THEN e.creator_execution ELSE
                          (SELECT y.id FROM pathbox.executions y WHERE y.context_id = e.id AND y.status = 'running') END
                    WHERE e.tenant_id = p_tenant AND e.status IN ('creating', 'ready')), 0)::bigint AS held_ms
    INTO q;
  FOR r IN SELECT * FROM (VALUES
      ('executions', coalesce(p_own.executions, (p_quota->>'executions')::bigint), q.runs::numeric, q.asked::numeric),
      ('sandbox_seconds', coalesce(p_own.sandbox_seconds, (p_quota->>'sandbox_seconds')::bigint),
       q.ms / 1000.0, q.held_ms / 1000.0),
      ('money', coalesce(p_own.money_micros, (p_quota->>'money_micros')::bigint),
       q.ms * (p_quota->>'hour_micros')::numeric / 3600000 + q.runs * (p_quota->>'execution_micros')::numeric,
       q.held_ms * (p_quota->>'hour_micros')::numeric / 3600000 + q.asked * (p_quota->>'execution_micros')::numeric)
    ) AS v (what, most, used, reserved) LOOP
    IF r.used + r.reserved > r.most THEN
      RETURN jsonb_build_object('what', r.what, 'limit', r.most, 'used', ceil(r.used)::bigint,
          'reserved', ceil(r.reserved)::bigint, 'period', v_period, 'resets_in_ms',
          (extract(epoch FROM v_start + ('1 ' || v_period)::interval - v_now) * 1000)::bigint);
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- As acquire_v2, within the tenant's quota. Callers of a tenant that has one take turns, so that what one reserves the
-- next one sees. Outcome "quota" has what over_quota says as its detail, and leaves nothing behind.
CREATE FUNCTION pathbox.acquire_v3(
    p_tenant text, p_owner text, p_conversation text, p_path text, p_context uuid, p_replica text, p_sees_tenant boolean,
    p_id uuid, p_tool text, p_language text, p_purpose text, p_code_sha256 text, p_principal text, p_trace_id text,
    p_key text, p_args_sha256 text, p_run_lease_ms bigint,
    p_per_tenant integer, p_per_conversation integer, p_max_executions bigint,
    p_create_lease_ms bigint, p_create_timeout_ms bigint, p_key_ttl_ms bigint, p_queue_lease_ms bigint,
    p_ttl_ms bigint, p_quota jsonb,
    OUT outcome text, OUT ctx pathbox.execution_contexts, OUT run uuid, OUT ahead integer, OUT wait_ms bigint,
    OUT previous text, OUT detail jsonb, OUT read_at timestamptz,
    OUT kinds text[], OUT hashes text[], OUT numbers integer[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_own  pathbox.tenant_quotas;
  v_over jsonb;
  v_runs boolean;
  a      record;
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  SELECT q.* INTO v_own FROM pathbox.tenant_quotas q WHERE q.tenant_id = p_tenant;
  IF NOT FOUND AND p_quota IS NULL
     OR coalesce(v_own.executions, v_own.sandbox_seconds, v_own.money_micros, (p_quota->>'executions')::bigint,
                 (p_quota->>'sandbox_seconds')::bigint, (p_quota->>'money_micros')::bigint) IS NULL THEN
    SELECT * INTO a FROM pathbox.acquire_v2(p_tenant, p_owner, p_conversation, p_path, p_context, p_replica,
        p_sees_tenant, p_id, p_tool, p_language, p_purpose, p_code_sha256, p_principal, p_trace_id, p_key, p_args_sha256,
        p_run_lease_ms, p_per_tenant, p_per_conversation, p_max_executions, p_create_lease_ms, p_create_timeout_ms,
        p_key_ttl_ms, p_queue_lease_ms);
  ELSE
    PERFORM pg_advisory_xact_lock(hashtextextended('pathbox.quota:' || p_tenant, 0));
    -- one that runs already was admitted, and its caller only did not hear it
    v_runs := EXISTS (SELECT FROM pathbox.executions x WHERE x.id = p_id AND x.status = 'running');
    BEGIN
      SELECT * INTO a FROM pathbox.acquire_v2(p_tenant, p_owner, p_conversation, p_path, p_context, p_replica,
          p_sees_tenant, p_id, p_tool, p_language, p_purpose, p_code_sha256, p_principal, p_trace_id, p_key,
          p_args_sha256, p_run_lease_ms, p_per_tenant, p_per_conversation, p_max_executions, p_create_lease_ms,
          p_create_timeout_ms, p_key_ttl_ms, p_queue_lease_ms);
      IF a.outcome IN ('ready', 'create', 'wait', 'queued') AND NOT v_runs THEN
        v_over := pathbox.over_quota(p_tenant, p_quota, v_own, p_ttl_ms);
        IF v_over IS NOT NULL THEN
          RAISE EXCEPTION 'over quota' USING ERRCODE = 'PBQ01';
        END IF;
      END IF;
    EXCEPTION WHEN SQLSTATE 'PBQ01' THEN                              -- what acquire_v2 wrote is taken back
      DELETE FROM pathbox.executions x WHERE x.id = p_id AND x.status = 'queued' AND x.started_at IS NULL;
      outcome := 'quota';
      detail := v_over;
      read_at := clock_timestamp();
      RETURN;
    END;
  END IF;
  outcome := a.outcome; ctx := a.ctx; run := a.run; ahead := a.ahead; wait_ms := a.wait_ms; previous := a.previous;
  detail := a.detail; read_at := a.read_at; kinds := a.kinds; hashes := a.hashes; numbers := a.numbers;
END $$;

-- ---- erasure -------------------------------------------------------------------------------------

-- Takes what a tenant, or one principal of it, has left behind, as far as nothing of it lives. Of the chain it takes the
-- bodies; hashes stay, so that it verifies, and an entry about the erasure says which. That entry is the answer.
CREATE FUNCTION pathbox.all_erase_v1(p_tenant text, p_principal text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n_executions bigint;
  n_contexts   bigint;
  n_paths      bigint;
  n_numbers    bigint;
  n_shares     bigint;
  n_reveals    bigint;
  n_workflows  bigint;
  n_permits    bigint;
  n_cached     bigint;
  n_keys       bigint;
  n_usage      bigint;
  v_entries    json;
  v_body       text;
BEGIN
  SET CONSTRAINTS ALL IMMEDIATE;
  FOR lane IN 0..63 LOOP                                               -- no run of the tenant ends meanwhile
    PERFORM pathbox.take_lane(p_tenant, lane::smallint);
  END LOOP;
  DELETE FROM pathbox.executions x WHERE x.tenant_id = p_tenant AND x.finished_at IS NOT NULL
     AND (p_principal IS NULL OR x.owner_principal = p_principal OR x.principal = p_principal);
  GET DIAGNOSTICS n_executions = ROW_COUNT;
  DELETE FROM pathbox.execution_contexts e WHERE e.tenant_id = p_tenant AND e.ended_at IS NOT NULL
     AND (p_principal IS NULL OR e.owner_principal = p_principal);
  GET DIAGNOSTICS n_contexts = ROW_COUNT;
  DELETE FROM pathbox.conversation_paths p WHERE p.tenant_id = p_tenant AND (p_principal IS NULL OR p.owner_principal = p_principal);
  GET DIAGNOSTICS n_paths = ROW_COUNT;
  DELETE FROM pathbox.placeholders p WHERE p.tenant_id = p_tenant AND (p_principal IS NULL OR p.owner_principal = p_principal);
  GET DIAGNOSTICS n_numbers = ROW_COUNT;
  DELETE FROM pathbox.conversation_shares s WHERE s.tenant_id = p_tenant
     AND (p_principal IS NULL OR s.owner_principal = p_principal OR s.principal = p_principal);
  GET DIAGNOSTICS n_shares = ROW_COUNT;
  DELETE FROM pathbox.reveals r WHERE r.tenant_id = p_tenant AND (p_principal IS NULL OR r.principal = p_principal);
  GET DIAGNOSTICS n_reveals = ROW_COUNT;
  -- those under way too: whoever drives one finds it gone, and what it has begun ends as any run does
  DELETE FROM pathbox.workflows w WHERE w.tenant_id = p_tenant
     AND (p_principal IS NULL OR w.owner_principal = p_principal OR w.principal = p_principal);
  GET DIAGNOSTICS n_workflows = ROW_COUNT;
  DELETE FROM pathbox.tool_permits t WHERE t.tenant_id = p_tenant
     AND (p_principal IS NULL OR t.owner_principal = p_principal OR t.principal = p_principal);
  GET DIAGNOSTICS n_permits = ROW_COUNT;
  DELETE FROM pathbox.task_cache c WHERE c.tenant_id = p_tenant AND (p_principal IS NULL OR c.owner_principal = p_principal);
  GET DIAGNOSTICS n_cached = ROW_COUNT;
  DELETE FROM pathbox.api_keys k WHERE k.key->>'tenant' = p_tenant AND (p_principal IS NULL OR 'key:' || k.id = p_principal);
  GET DIAGNOSTICS n_keys = ROW_COUNT;
  DELETE FROM pathbox.usage_days u WHERE u.tenant_id = p_tenant AND (p_principal IS NULL OR u.owner_principal = p_principal);
  GET DIAGNOSTICS n_usage = ROW_COUNT;
  WITH gone AS (
    UPDATE pathbox.audit_log a SET body = NULL
     WHERE a.tenant_id = p_tenant AND a.body IS NOT NULL AND a.execution_id IS NOT NULL
       AND (p_principal IS NULL OR a.body::json->>'owner' = p_principal OR a.body::json->>'principal' = p_principal)
    RETURNING a.lane, a.n
  )
  SELECT json_agg(json_build_array(r.lane, r.lo, r.hi) ORDER BY r.lane, r.lo) INTO v_entries
    FROM (SELECT g.lane, min(g.n) AS lo, max(g.n) AS hi
            FROM (SELECT gone.lane, gone.n, gone.n - row_number() OVER (PARTITION BY gone.lane ORDER BY gone.n) AS island
                    FROM gone) g GROUP BY g.lane, g.island) r;
  v_body := json_build_object('erasure', json_build_object(
    'principalSha256', encode(sha256(convert_to(p_principal, 'UTF8')), 'hex'),
    'entries', coalesce(v_entries, '[]'), 'executions', n_executions, 'contexts', n_contexts, 'paths', n_paths,
    'placeholders', n_numbers, 'shares', n_shares, 'reveals', n_reveals, 'workflows', n_workflows, 'toolPermits', n_permits,
    'cached', n_cached, 'keys', n_keys, 'usageRows', n_usage))::text;
  PERFORM pathbox.chain(p_tenant, 0::smallint, NULL, v_body);
  RETURN v_body;
END $$;
GRANT DELETE ON pathbox.reveals, pathbox.conversation_paths, pathbox.placeholders, pathbox.api_keys TO pathbox_worker;

-- ---- owners --------------------------------------------------------------------------------------

DO $$
DECLARE
  f record;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app, pathbox_worker;        -- an owner needs it for a moment
  FOR f IN SELECT p.oid::regprocedure AS name, p.proname FROM pg_proc p
            WHERE p.pronamespace = 'pathbox'::regnamespace
              AND p.proname IN ('guard_audit', 'guard_execution_delete', 'audit_body', 'take_lane', 'has_run', 'chain', 'add_usage',
                                'guard_ended_execution', 'guard_ended_context', 'all_chain_v1', 'all_chain_heads_v1',
                                'all_unchained_v1', 'all_prune_chain_v1', 'all_usage_v1', 'all_quota_v1',
                                'all_set_quota_v1', 'all_erase_v1', 'over_quota', 'acquire_v3') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    IF f.proname IN ('audit_body', 'take_lane', 'chain', 'add_usage', 'has_run') THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_worker', f.name);
    ELSIF f.proname = 'over_quota' THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_app', f.name);
    ELSIF f.proname IN ('guard_ended_execution', 'guard_ended_context') THEN
      EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f.name);
    ELSIF f.proname NOT LIKE 'guard\_%' THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
      EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f.name,
                     CASE WHEN f.proname LIKE 'all\_%' THEN 'pathbox_worker' ELSE 'pathbox_app' END);
    END IF;
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app, pathbox_worker;
END $$;
