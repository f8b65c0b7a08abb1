-- What several callers ask for at the same time goes in one transaction (docs/adr/0077), and a run on a warm context in a
-- sandbox of the replica's own machine is begun without waiting for the disk (docs/adr/0078).
--
-- A statement costs the same start whether it writes one row or thirty, and that start is most of a warm call. So these
-- two functions take arrays: an element is a call. Both leave out what somebody else is busy with or what is not the usual
-- case; the caller asks for those one by one, as before.
--
-- Serves programs from 0.1.0 on: the functions that they call stay, and the triggers count for them.

-- ---- acquire -------------------------------------------------------------------------------------

-- What acquire_v3 gives, flat. A type of its own: a function with so many OUT columns has them looked up at each call.
CREATE TYPE pathbox.acquired AS (
    outcome text, run uuid, ahead integer, wait_ms bigint, previous text, detail jsonb, read_at timestamptz,
    kinds text[], hashes text[], numbers integer[],
    id uuid, tenant_id text, owner_principal text, conversation_id text, path_id text, status text, end_reason text,
    lease_owner text, lease_epoch bigint, created_at timestamptz, ready_at timestamptz, last_used_at timestamptz,
    expires_at timestamptz, ended_at timestamptz, execution_count bigint, total_execution_ms bigint, last_error text,
    template text, sandbox_id text, sandbox_domain text, host_url text, host_key_enc bytea, envd_token_enc bytea,
    traffic_token_enc bytea, mcp_url text, mcp_token_enc bytea, provider_ends_at timestamptz,
    durability text                                                  -- set to "off" in passing, else NULL
);

-- Runs of one tenant whose contexts are ready, idle and held by p_replica: a row each, with the run's id. A run that is not
-- among them has left nothing behind; with one element it is then asked for by acquire_v3, and its answer is the row.
-- p_quota: as in acquire_v3, as text, so that the usual case does not read it. p_is_limited: it has a limit.
CREATE FUNCTION pathbox.acquire_v4(
    p_tenant text, p_replica text, p_owners text[], p_conversations text[], p_paths text[],
    p_ids uuid[], p_tools text[], p_languages text[], p_purposes text[], p_code_sha256s text[], p_principals text[],
    p_trace_ids text[], p_keys text[], p_args_sha256s text[], p_run_leases_ms bigint[], p_max_executions bigint,
    p_is_limited boolean,
    p_context uuid, p_sees_tenant boolean, p_per_tenant integer, p_per_conversation integer, p_create_lease_ms bigint,
    p_create_timeout_ms bigint, p_key_ttl_ms bigint, p_queue_lease_ms bigint, p_ttl_ms bigint, p_quota text
) RETURNS SETOF pathbox.acquired
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_bound text        := set_config('pathbox.tenant_id', p_tenant, true);
  v_now   timestamptz := clock_timestamp();
BEGIN
  IF NOT p_is_limited THEN
    -- Whoever waits is in the queue and so finds no row here. A context's row is locked, so that nobody ends it before the
    -- run is there; one that somebody else has locked is left to be asked for alone. What the insert meets (the run has
    -- asked before, its idempotency key is used, another run was quicker) is decided there, too.
    RETURN QUERY
    WITH f AS MATERIALIZED (
      SELECT f.* FROM unnest(p_owners, p_conversations, p_paths, p_ids, p_tools, p_languages, p_purposes, p_code_sha256s,
                             p_principals, p_trace_ids, p_keys, p_args_sha256s, p_run_leases_ms)
               AS f (owner, conversation, path, id, tool, language, purpose, code_sha256, principal, trace_id, key,
                     args_sha256, lease_ms)
       WHERE NOT EXISTS (SELECT FROM pathbox.tenant_quotas t WHERE t.tenant_id = p_tenant)
    ), c AS (
      SELECT e.*, f.id AS run,
             -- What a crash of the database may take back, because the replica knows of the run and writes it again at
             -- its end: no key can ask for it, its sandbox ends with the replica's machine, nobody else may take the
             -- context while the replica lives, and clean-up does not before the run's lease is over.
             f.key IS NULL AND e.host_url IS NOT NULL AND e.expires_at > v_now + f.lease_ms * interval '1 ms' AS may_be_lost
        FROM f JOIN pathbox.execution_contexts e
          ON e.tenant_id = p_tenant AND e.owner_principal = f.owner AND e.conversation_id = f.conversation AND e.path_id = f.path
       WHERE e.status = 'ready' AND e.expires_at > v_now AND e.execution_count < p_max_executions AND e.lease_owner = p_replica
         AND NOT EXISTS (SELECT FROM pathbox.executions q
                          WHERE q.tenant_id = p_tenant AND q.owner_principal = f.owner AND q.conversation_id = f.conversation
                            AND q.path_id = f.path AND q.status IN ('queued', 'running'))
         AND NOT EXISTS (SELECT FROM pathbox.conversation_paths p
                          WHERE p.tenant_id = p_tenant AND p.owner_principal = f.owner AND p.conversation_id = f.conversation
                            AND p.path_id = f.path AND p.status <> 'active')
         FOR NO KEY UPDATE OF e SKIP LOCKED
    ), x AS (
      INSERT INTO pathbox.executions (id, tenant_id, owner_principal, conversation_id, path_id, context_id, owner, tool,
          language, purpose, code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms,
          lease_expires_at, created_at, started_at, queued_ms)
      SELECT f.id, p_tenant, f.owner, f.conversation, f.path, c.id, p_replica, f.tool, f.language, f.purpose, f.code_sha256,
             f.principal, f.trace_id, f.key, f.args_sha256, 'running', f.lease_ms, v_now + f.lease_ms * interval '1 ms',
             v_now, v_now, 0
        FROM c JOIN f ON f.id = c.run
      ON CONFLICT DO NOTHING RETURNING executions.id
    )
    SELECT 'ready', x.id, NULL::integer, NULL::bigint, NULL::text, NULL::jsonb, v_now, n.kinds, n.hashes, n.numbers,
           c.id, c.tenant_id, c.owner_principal, c.conversation_id, c.path_id, c.status, c.end_reason, c.lease_owner,
           c.lease_epoch, c.created_at, c.ready_at, c.last_used_at, c.expires_at, c.ended_at, c.execution_count,
           c.total_execution_ms, c.last_error, c.template, c.sandbox_id, c.sandbox_domain, c.host_url, c.host_key_enc,
           c.envd_token_enc, c.traffic_token_enc, c.mcp_url, c.mcp_token_enc, c.provider_ends_at,
           CASE WHEN NOT EXISTS (SELECT FROM c WHERE NOT c.may_be_lost)
                THEN set_config('synchronous_commit', 'off', true) END
      FROM x JOIN c ON c.run = x.id,
           LATERAL (SELECT array_agg(p.kind) AS kinds, array_agg(p.value_hash) AS hashes, array_agg(p.number) AS numbers
                      FROM pathbox.placeholders p
                     WHERE p.tenant_id = p_tenant AND p.owner_principal = c.owner_principal
                       AND p.conversation_id = c.conversation_id AND p.path_id = c.path_id) n;
    IF FOUND OR cardinality(p_ids) > 1 THEN
      RETURN;
    END IF;
  END IF;
  RETURN QUERY
  SELECT a.outcome, a.run, a.ahead, a.wait_ms, a.previous, a.detail, a.read_at, a.kinds, a.hashes, a.numbers,
         (a.ctx).id, (a.ctx).tenant_id, (a.ctx).owner_principal, (a.ctx).conversation_id, (a.ctx).path_id, (a.ctx).status,
         (a.ctx).end_reason, (a.ctx).lease_owner, (a.ctx).lease_epoch, (a.ctx).created_at, (a.ctx).ready_at,
         (a.ctx).last_used_at, (a.ctx).expires_at, (a.ctx).ended_at, (a.ctx).execution_count, (a.ctx).total_execution_ms,
         (a.ctx).last_error, (a.ctx).template, (a.ctx).sandbox_id, (a.ctx).sandbox_domain, (a.ctx).host_url,
         (a.ctx).host_key_enc, (a.ctx).envd_token_enc, (a.ctx).traffic_token_enc, (a.ctx).mcp_url, (a.ctx).mcp_token_enc,
         (a.ctx).provider_ends_at, NULL::text
    FROM pathbox.acquire_v3(p_tenant, p_owners[1], p_conversations[1], p_paths[1], p_context, p_replica, p_sees_tenant,
         p_ids[1], p_tools[1], p_languages[1], p_purposes[1], p_code_sha256s[1], p_principals[1], p_trace_ids[1], p_keys[1],
         p_args_sha256s[1], p_run_leases_ms[1], p_per_tenant, p_per_conversation, p_max_executions, p_create_lease_ms,
         p_create_timeout_ms, p_key_ttl_ms, p_queue_lease_ms, p_ttl_ms, p_quota::jsonb) a;
END $$;

-- ---- the runs' records ---------------------------------------------------------------------------

-- As record_v2, of several runs of one tenant, each on a context of its own. Gives those that are recorded; what somebody
-- else is busy with is left out.
CREATE FUNCTION pathbox.records_v1(
    p_tenant text, p_ids uuid[], p_contexts uuid[], p_statuses text[], p_exit_codes integer[], p_errors text[],
    p_durations_ms bigint[], p_queued_ms bigint[], p_output_bytes bigint[], p_findings text[], p_results text[],
    p_always_keep boolean[], p_provider_ends_at timestamptz[], p_ended_at timestamptz[], p_ttls_ms bigint[]
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bound text := set_config('pathbox.tenant_id', p_tenant, true);
  v_now   timestamptz;
  v_held  uuid[];
  v_done  uuid[];
BEGIN
  v_held := ARRAY(SELECT e.id FROM pathbox.execution_contexts e
                   WHERE e.id = ANY (p_contexts) AND e.tenant_id = p_tenant FOR NO KEY UPDATE SKIP LOCKED);
  v_now := clock_timestamp();
  WITH f AS MATERIALIZED (
    SELECT f.*, coalesce(f.ended_at, v_now) AS ended
      FROM unnest(p_ids, p_contexts, p_statuses, p_exit_codes, p_errors, p_durations_ms, p_queued_ms, p_output_bytes,
                  p_findings, p_results, p_always_keep, p_provider_ends_at, p_ended_at, p_ttls_ms)
        AS f (id, context, status, exit_code, error, duration_ms, queued_ms, output_bytes, findings, result, always_keep,
              provider_ends_at, ended_at, ttl_ms)
     WHERE f.context = ANY (v_held)
  ), x AS (
    UPDATE pathbox.executions x
       SET status = f.status, context_id = f.context, exit_code = f.exit_code, error = f.error,
           duration_ms = f.duration_ms, queued_ms = f.queued_ms, output_bytes = f.output_bytes,
           findings = f.findings::json,
           result = CASE WHEN f.always_keep OR x.idempotency_key IS NOT NULL THEN f.result::json END,
           lease_expires_at = NULL, finished_at = f.ended, started_at = coalesce(x.started_at, f.ended)
      FROM f
     WHERE x.id = f.id AND x.tenant_id = p_tenant
       AND (x.status IN ('queued', 'running') OR x.status = 'interrupted' AND f.status <> 'interrupted')
    RETURNING x.id
  ), u AS (
    UPDATE pathbox.execution_contexts e
       SET execution_count = e.execution_count + 1, total_execution_ms = e.total_execution_ms + f.duration_ms,
           last_used_at = greatest(e.last_used_at, f.ended),
           expires_at = greatest(e.expires_at, f.ended + f.ttl_ms * interval '1 ms'),
           provider_ends_at = coalesce(f.provider_ends_at, e.provider_ends_at),
           last_error = CASE WHEN f.status = 'failed' THEN coalesce(f.error, e.last_error) ELSE e.last_error END,
           resource_usage = jsonb_build_object(
             'output_bytes', coalesce((e.resource_usage->>'output_bytes')::bigint, 0) + f.output_bytes,
             'queued_ms',    coalesce((e.resource_usage->>'queued_ms')::bigint, 0) + f.queued_ms)
      FROM x JOIN f USING (id) WHERE e.id = f.context AND e.status = 'ready'
  )
  SELECT array_agg(x.id) INTO v_done FROM x;
  -- In a statement of its own: whoever has queued up before the contexts were locked is seen here.
  PERFORM pathbox.wake(p_tenant, k.owner_principal, k.conversation_id, k.path_id)
     FROM (SELECT DISTINCT q.owner_principal, q.conversation_id, q.path_id
             FROM pathbox.execution_contexts e
             JOIN pathbox.executions q USING (tenant_id, owner_principal, conversation_id, path_id)
            WHERE e.id = ANY (v_held) AND e.tenant_id = p_tenant AND q.status = 'queued') k;
  RETURN v_done;
END $$;

-- ---- the chain -----------------------------------------------------------------------------------

-- A condition of a trigger is read from its text for each statement, changed row or not; a list of columns is a comparison.
-- So the functions say themselves what concerns them.
DROP TRIGGER execution_ended ON pathbox.executions;
DROP TRIGGER context_ended ON pathbox.execution_contexts;

CREATE OR REPLACE FUNCTION pathbox.guard_ended_execution() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_lane  smallint;
  v_text  text;
  v_body  text;
  v_day   date;
  v_runs  bigint := 1;
  v_ms    bigint := coalesce(NEW.duration_ms, 0);
  v_bytes bigint := coalesce(NEW.output_bytes, 0);
  v_ran   boolean := pathbox.has_run(NEW);
  done    record;
BEGIN
  IF NEW.finished_at IS NULL THEN
    RETURN NULL;
  END IF;
  v_day := (NEW.finished_at AT TIME ZONE 'UTC')::date;
  IF TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL THEN
    IF OLD.status = NEW.status THEN
      RETURN NULL;
    END IF;
    -- What is said later about a run goes into its lane and counts what it adds, on its day.
    v_lane := (SELECT a.lane FROM pathbox.audit_log a WHERE a.execution_id = NEW.id AND a.tenant_id = NEW.tenant_id LIMIT 1);
    v_day := (OLD.finished_at AT TIME ZONE 'UTC')::date;
    v_runs := CASE WHEN pathbox.has_run(OLD) THEN 0 ELSE 1 END;
    v_ms := v_ms - coalesce(OLD.duration_ms, 0);
    v_bytes := v_bytes - coalesce(OLD.output_bytes, 0);
  END IF;
  v_lane := pathbox.take_lane(NEW.tenant_id, v_lane);
  v_text := pathbox.audit_body(NEW);
  v_body := encode(sha256(convert_to(v_text, 'UTF8')), 'hex');
  -- The usual case in one statement: the lane and the counts of the day have rows.
  WITH h AS (
    UPDATE pathbox.audit_heads a
       SET n = a.n + 1, hash = encode(sha256(convert_to(
             a.hash || E'\n' || NEW.tenant_id || E'\n' || v_lane || E'\n' || (a.n + 1) || E'\n' || v_body, 'UTF8')), 'hex')
     WHERE a.tenant_id = NEW.tenant_id AND a.lane = v_lane RETURNING a.n, a.hash
  ), l AS (
    INSERT INTO pathbox.audit_log (tenant_id, lane, n, at, execution_id, body, body_sha256, hash)
    SELECT NEW.tenant_id, v_lane, h.n, clock_timestamp(), NEW.id, v_text, v_body, h.hash FROM h RETURNING 1
  ), t AS (
    UPDATE pathbox.usage_totals u SET executions = u.executions + v_runs
     WHERE v_ran AND u.tenant_id = NEW.tenant_id AND u.day = v_day AND u.lane = v_lane RETURNING 1
  ), d AS (
    UPDATE pathbox.usage_days u
       SET executions = u.executions + v_runs, run_ms = u.run_ms + v_ms, output_bytes = u.output_bytes + v_bytes
     WHERE EXISTS (SELECT FROM t) AND u.tenant_id = NEW.tenant_id AND u.day = v_day
       AND u.owner_principal = NEW.owner_principal AND u.conversation_id = NEW.conversation_id
       AND u.path_id = NEW.path_id AND u.lane = v_lane RETURNING 1
  )
  SELECT EXISTS (SELECT FROM l) AS chained, EXISTS (SELECT FROM t) AS total, EXISTS (SELECT FROM d) AS day INTO done;
  IF NOT done.chained THEN
    PERFORM pathbox.chain(NEW.tenant_id, v_lane, NEW.id, v_text);
  END IF;
  IF v_ran AND NOT done.total THEN
    PERFORM pathbox.add_usage(NEW.tenant_id, v_lane, NEW.owner_principal, NEW.conversation_id, NEW.path_id, v_day, v_runs,
        v_ms, 0, v_bytes);
  ELSIF v_ran AND NOT done.day THEN
    INSERT INTO pathbox.usage_days (tenant_id, owner_principal, conversation_id, path_id, day, lane, executions, run_ms,
        output_bytes)
    VALUES (NEW.tenant_id, NEW.owner_principal, NEW.conversation_id, NEW.path_id, v_day, v_lane, v_runs, v_ms, v_bytes);
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER execution_ended AFTER UPDATE OF finished_at, status ON pathbox.executions
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pathbox.guard_ended_execution();

CREATE OR REPLACE FUNCTION pathbox.guard_ended_context() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_from timestamp := NEW.ready_at AT TIME ZONE 'UTC';
  v_end  timestamp := NEW.ended_at AT TIME ZONE 'UTC';
  v_to   timestamp;
  lane   smallint;
BEGIN
  IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL OR NEW.ready_at IS NULL THEN
    RETURN NULL;
  END IF;
  lane := pathbox.take_lane(NEW.tenant_id, NULL);
  WHILE v_from < v_end LOOP
    v_to := least(v_end, date_trunc('day', v_from) + interval '1 day');
    PERFORM pathbox.add_usage(NEW.tenant_id, lane, NEW.owner_principal, NEW.conversation_id, NEW.path_id, v_from::date, 0, 0,
        (extract(epoch FROM v_to - v_from) * 1000)::bigint, 0);
    v_from := v_to;
  END LOOP;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER context_ended AFTER UPDATE OF status ON pathbox.execution_contexts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pathbox.guard_ended_context();

-- ---- owners --------------------------------------------------------------------------------------

DO $$
DECLARE
  f record;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app;                        -- an owner needs it for a moment
  FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p
            WHERE p.pronamespace = 'pathbox'::regnamespace AND p.proname IN ('acquire_v4', 'records_v1') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_app', f.name);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app;
END $$;
