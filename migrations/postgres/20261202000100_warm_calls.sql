-- A warm call in fewer and smaller steps (docs/adr/0090).
--
-- What a warm call costs is the start of its statements, and of each function with settings of its own (6 to 8 µs: the
-- search path is set and set back). So the one call of a caller that is alone has functions without arrays, helpers and guards
-- are without settings, and policies name the tenant without a query of their own.
--
-- Serves programs from 0.1.0 on: the functions that they call stay.

-- ---- policies ------------------------------------------------------------------------------------

-- The setting stands for itself: the planner compares it once a statement with the tenant that the statement names, as it did
-- with the query that stood here before; such a query has every plan walked through at each execution. A tenant that is not
-- set reads as NULL or '', which no tenant is called.
DO $$
DECLARE
  p record;
BEGIN
  FOR p IN SELECT c.relname, o.polcmd FROM pg_policy o JOIN pg_class c ON c.oid = o.polrelid
            WHERE o.polname = 'app_own_tenant' AND c.relnamespace = 'pathbox'::regnamespace LOOP
    EXECUTE format('ALTER POLICY app_own_tenant ON pathbox.%I USING (tenant_id = current_setting(''pathbox.tenant_id'', true))%s',
                   p.relname, CASE p.polcmd WHEN 'r' THEN ''
                              ELSE ' WITH CHECK (tenant_id = current_setting(''pathbox.tenant_id'', true))' END);
  END LOOP;
END $$;

-- ---- guards --------------------------------------------------------------------------------------

-- A check's text is read for each statement: the guard below looks at the template, and an entry of the chain that is not as
-- it should be does not verify.
ALTER TABLE pathbox.execution_contexts DROP CONSTRAINT execution_contexts_template_check;
ALTER TABLE pathbox.audit_log DROP CONSTRAINT audit_log_n_check, DROP CONSTRAINT audit_log_body_sha256_check,
                              DROP CONSTRAINT audit_log_hash_check;

-- They run as whoever writes the row, within functions that have set the search path.
CREATE OR REPLACE FUNCTION pathbox.guard_context() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  -- The usual case: a ready context is used.
  IF TG_OP = 'UPDATE' AND OLD.status = 'ready' AND NEW.status = 'ready'
     AND (NEW.id, NEW.tenant_id, NEW.owner_principal, NEW.conversation_id, NEW.path_id, NEW.created_at)
       = (OLD.id, OLD.tenant_id, OLD.owner_principal, OLD.conversation_id, OLD.path_id, OLD.created_at)
     AND (NEW.lease_epoch, NEW.sandbox_id) = (OLD.lease_epoch, OLD.sandbox_id)
     AND NEW.expires_at >= OLD.expires_at AND NEW.lease_expires_at IS NULL AND NEW.ready_at IS NOT NULL
     AND NEW.ended_at IS NULL AND NEW.end_reason IS NULL AND NEW.template IS NOT DISTINCT FROM OLD.template THEN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
  END IF;
  IF TG_OP = 'INSERT' THEN
    IF NEW.status <> 'creating' THEN
      RAISE EXCEPTION 'context % begins as %, not as creating', NEW.id, NEW.status USING ERRCODE = 'check_violation';
    END IF;
  ELSE
    IF OLD.ended_at IS NOT NULL THEN
      RAISE EXCEPTION 'context % has ended (%)', OLD.id, OLD.end_reason USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.id, NEW.tenant_id, NEW.owner_principal, NEW.conversation_id, NEW.path_id, NEW.created_at)
       IS DISTINCT FROM (OLD.id, OLD.tenant_id, OLD.owner_principal, OLD.conversation_id, OLD.path_id, OLD.created_at) THEN
      RAISE EXCEPTION 'context % cannot change what it belongs to', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.status = 'ready' AND NEW.status IN ('creating', 'error'))
       OR NEW.lease_epoch < OLD.lease_epoch
       OR (OLD.status = 'ready' AND NEW.lease_epoch <> OLD.lease_epoch)
       OR (OLD.sandbox_id IS NOT NULL AND NEW.sandbox_id IS DISTINCT FROM OLD.sandbox_id) THEN
      RAISE EXCEPTION 'context % cannot go from % to %', OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.status IN ('terminated', 'error') THEN
      NEW.ended_at          := coalesce(NEW.ended_at, clock_timestamp());
      NEW.lease_expires_at  := NULL;
      NEW.lease_wanted_at   := NULL;
      NEW.host_key_enc      := NULL;
      NEW.envd_token_enc    := NULL;
      NEW.traffic_token_enc := NULL;
      NEW.mcp_token_enc     := NULL;
    END IF;
    IF NEW.expires_at < OLD.expires_at OR NEW.lease_expires_at < OLD.lease_expires_at THEN
      NEW.due_at := least(NEW.due_at, CASE NEW.status WHEN 'ready' THEN NEW.expires_at ELSE NEW.lease_expires_at END);
    END IF;
    NEW.updated_at := clock_timestamp();
  END IF;
  IF NOT (length(NEW.tenant_id) BETWEEN 1 AND 128 AND length(NEW.conversation_id) BETWEEN 1 AND 128
          AND length(NEW.path_id) BETWEEN 1 AND 128
          AND NEW.status IN ('creating', 'ready', 'terminated', 'error')
          AND (NEW.template IS NULL OR length(NEW.template) BETWEEN 1 AND 256)
          AND (NEW.end_reason IS NULL OR NEW.end_reason IN ('expired', 'error', 'manual', 'merged', 'archived',
                                                            'deleted', 'rotated', 'lost'))
          AND (NEW.status <> 'creating' OR NEW.lease_expires_at IS NOT NULL)
          AND (NEW.status <> 'ready' OR (NEW.sandbox_id IS NOT NULL AND NEW.ready_at IS NOT NULL
                                         AND NEW.expires_at IS NOT NULL))
          AND (NEW.status IN ('terminated', 'error')) = (NEW.ended_at IS NOT NULL)
          AND (NEW.ended_at IS NULL) = (NEW.end_reason IS NULL)
          AND (NEW.status = 'error') = (NEW.end_reason IS NOT DISTINCT FROM 'error')) THEN
    RAISE EXCEPTION 'context % violates row invariants', NEW.id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION pathbox.guard_execution() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL THEN
    DECLARE
      was pathbox.executions := OLD;
    BEGIN
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
    END;
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

-- A condition of a trigger is read for each statement as well. A context ends by its status, which the guard sees to.
DROP TRIGGER context_forgets ON pathbox.execution_contexts;
CREATE OR REPLACE FUNCTION pathbox.forget_values() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL THEN
    DELETE FROM pathbox.placeholder_values v WHERE v.context_id = NEW.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER context_forgets AFTER UPDATE OF status ON pathbox.execution_contexts
    FOR EACH ROW EXECUTE FUNCTION pathbox.forget_values();

-- ---- the chain -----------------------------------------------------------------------------------

ALTER FUNCTION pathbox.audit_body(pathbox.executions) RESET search_path;
ALTER FUNCTION pathbox.has_run(pathbox.executions) RESET search_path;
ALTER FUNCTION pathbox.take_lane(text, smallint) RESET search_path;
ALTER FUNCTION pathbox.chain(text, smallint, uuid, text) RESET search_path;
ALTER FUNCTION pathbox.add_usage(text, smallint, text, text, text, date, bigint, bigint, bigint, bigint) RESET search_path;
ALTER FUNCTION pathbox.wake(text, text, text, text) RESET search_path;

-- Single statements: for one row they cost less than one that does the same in four steps, and less than in functions of
-- their own.
CREATE OR REPLACE FUNCTION pathbox.guard_ended_execution() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_lane  smallint;
  v_n     bigint;
  v_hash  text;
  v_text  text;
  v_body  text;
  v_day   date;
  v_runs  bigint := 1;
  v_ms    bigint := coalesce(NEW.duration_ms, 0);
  v_bytes bigint := coalesce(NEW.output_bytes, 0);
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
  UPDATE pathbox.audit_heads a
     SET n = a.n + 1, hash = encode(sha256(convert_to(
           a.hash || E'\n' || NEW.tenant_id || E'\n' || v_lane || E'\n' || (a.n + 1) || E'\n' || v_body, 'UTF8')), 'hex')
   WHERE a.tenant_id = NEW.tenant_id AND a.lane = v_lane RETURNING a.n, a.hash INTO v_n, v_hash;
  IF FOUND THEN
    INSERT INTO pathbox.audit_log (tenant_id, lane, n, at, execution_id, body, body_sha256, hash)
    VALUES (NEW.tenant_id, v_lane, v_n, clock_timestamp(), NEW.id, v_text, v_body, v_hash);
  ELSE
    PERFORM pathbox.chain(NEW.tenant_id, v_lane, NEW.id, v_text);
  END IF;
  IF NEW.started_at IS NULL OR NEW.duration_ms IS NULL AND NOT pathbox.has_run(NEW) THEN
    RETURN NULL;
  END IF;
  UPDATE pathbox.usage_totals u SET executions = u.executions + v_runs
   WHERE u.tenant_id = NEW.tenant_id AND u.day = v_day AND u.lane = v_lane;
  IF NOT FOUND THEN
    INSERT INTO pathbox.usage_totals (tenant_id, day, lane, executions) VALUES (NEW.tenant_id, v_day, v_lane, v_runs);
  END IF;
  UPDATE pathbox.usage_days u
     SET executions = u.executions + v_runs, run_ms = u.run_ms + v_ms, output_bytes = u.output_bytes + v_bytes
   WHERE u.tenant_id = NEW.tenant_id AND u.day = v_day AND u.owner_principal = NEW.owner_principal
     AND u.conversation_id = NEW.conversation_id AND u.path_id = NEW.path_id AND u.lane = v_lane;
  IF NOT FOUND THEN
    INSERT INTO pathbox.usage_days (tenant_id, owner_principal, conversation_id, path_id, day, lane, executions, run_ms,
        output_bytes)
    VALUES (NEW.tenant_id, NEW.owner_principal, NEW.conversation_id, NEW.path_id, v_day, v_lane, v_runs, v_ms, v_bytes);
  END IF;
  RETURN NULL;
END $$;

-- ---- a call alone --------------------------------------------------------------------------------

-- What acquire_v4 gives for one ask.
CREATE FUNCTION pathbox.acquire_v5(
    p_tenant text, p_replica text, p_owner text, p_conversation text, p_path text,
    p_id uuid, p_tool text, p_language text, p_purpose text, p_code_sha256 text, p_principal text,
    p_trace_id text, p_key text, p_args_sha256 text, p_run_lease_ms bigint, p_max_executions bigint, p_is_limited boolean,
    p_context uuid, p_sees_tenant boolean, p_per_tenant integer, p_per_conversation integer, p_create_lease_ms bigint,
    p_create_timeout_ms bigint, p_key_ttl_ms bigint, p_queue_lease_ms bigint, p_ttl_ms bigint, p_quota text
) RETURNS pathbox.acquired
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bound text        := set_config('pathbox.tenant_id', p_tenant, true);
  v_now   timestamptz := clock_timestamp();
  v_until timestamptz := v_now + p_run_lease_ms * interval '1 ms';
  a       pathbox.acquired;
BEGIN
  IF NOT p_is_limited THEN
    -- The usual case, as in acquire_v4: whoever waits is in the queue and so finds no row here.
    SELECT 'ready', p_id, NULL::integer, NULL::bigint, NULL::text, NULL::jsonb, v_now, n.kinds, n.hashes, n.numbers,
           c.id, c.tenant_id, c.owner_principal, c.conversation_id, c.path_id, c.status, c.end_reason, c.lease_owner,
           c.lease_epoch, c.created_at, c.ready_at, c.last_used_at, c.expires_at, c.ended_at, c.execution_count,
           c.total_execution_ms, c.last_error, c.template, c.sandbox_id, c.sandbox_domain, c.host_url, c.host_key_enc,
           c.envd_token_enc, c.traffic_token_enc, c.mcp_url, c.mcp_token_enc, c.provider_ends_at, NULL::text
      INTO a
      FROM pathbox.execution_contexts c,
           LATERAL (SELECT array_agg(p.kind) AS kinds, array_agg(p.value_hash) AS hashes, array_agg(p.number) AS numbers
                      FROM pathbox.placeholders p
                     WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner
                       AND p.conversation_id = p_conversation AND p.path_id = p_path) n
     WHERE c.tenant_id = p_tenant AND c.owner_principal = p_owner AND c.conversation_id = p_conversation AND c.path_id = p_path
       AND c.status = 'ready' AND c.expires_at > v_now AND c.execution_count < p_max_executions AND c.lease_owner = p_replica
       AND NOT EXISTS (SELECT FROM pathbox.executions q
                        WHERE q.tenant_id = p_tenant AND q.owner_principal = p_owner AND q.conversation_id = p_conversation
                          AND q.path_id = p_path AND q.status IN ('queued', 'running'))
       AND NOT EXISTS (SELECT FROM pathbox.conversation_paths p
                        WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
                          AND p.path_id = p_path AND p.status <> 'active')
       AND NOT EXISTS (SELECT FROM pathbox.tenant_quotas t WHERE t.tenant_id = p_tenant)
       FOR NO KEY UPDATE OF c SKIP LOCKED;
    IF FOUND THEN
      INSERT INTO pathbox.executions (id, tenant_id, owner_principal, conversation_id, path_id, context_id, owner, tool,
          language, purpose, code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms,
          lease_expires_at, created_at, started_at, queued_ms)
      VALUES (p_id, p_tenant, p_owner, p_conversation, p_path, a.id, p_replica, p_tool, p_language, p_purpose, p_code_sha256,
          p_principal, p_trace_id, p_key, p_args_sha256, 'running', p_run_lease_ms, v_until, v_now, v_now, 0)
      ON CONFLICT DO NOTHING;
      IF FOUND THEN
        -- What a crash of the database may take back: see acquire_v4.
        IF p_key IS NULL AND a.host_url IS NOT NULL AND a.expires_at > v_until THEN
          a.durability := set_config('synchronous_commit', 'off', true);
        END IF;
        RETURN a;
      END IF;
    END IF;
  END IF;
  SELECT r.outcome, r.run, r.ahead, r.wait_ms, r.previous, r.detail, r.read_at, r.kinds, r.hashes, r.numbers,
         (r.ctx).id, (r.ctx).tenant_id, (r.ctx).owner_principal, (r.ctx).conversation_id, (r.ctx).path_id, (r.ctx).status,
         (r.ctx).end_reason, (r.ctx).lease_owner, (r.ctx).lease_epoch, (r.ctx).created_at, (r.ctx).ready_at,
         (r.ctx).last_used_at, (r.ctx).expires_at, (r.ctx).ended_at, (r.ctx).execution_count, (r.ctx).total_execution_ms,
         (r.ctx).last_error, (r.ctx).template, (r.ctx).sandbox_id, (r.ctx).sandbox_domain, (r.ctx).host_url,
         (r.ctx).host_key_enc, (r.ctx).envd_token_enc, (r.ctx).traffic_token_enc, (r.ctx).mcp_url, (r.ctx).mcp_token_enc,
         (r.ctx).provider_ends_at, NULL::text
    INTO a
    FROM pathbox.acquire_v3(p_tenant, p_owner, p_conversation, p_path, p_context, p_replica, p_sees_tenant, p_id, p_tool,
         p_language, p_purpose, p_code_sha256, p_principal, p_trace_id, p_key, p_args_sha256, p_run_lease_ms, p_per_tenant,
         p_per_conversation, p_max_executions, p_create_lease_ms, p_create_timeout_ms, p_key_ttl_ms, p_queue_lease_ms,
         p_ttl_ms, p_quota::jsonb) r;
  RETURN a;
END $$;

-- As record_v2, of a run that was asked for.
CREATE FUNCTION pathbox.record_v3(
    p_tenant text, p_id uuid, p_context uuid, p_status text, p_exit_code integer, p_error text,
    p_duration_ms bigint, p_queued_ms bigint, p_output_bytes bigint, p_findings json, p_result json,
    p_always_keep boolean, p_provider_ends_at timestamptz, p_ttl_ms bigint, p_ended_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bound text := set_config('pathbox.tenant_id', p_tenant, true);
  v_ended timestamptz;
  v_owner text;
  v_conversation text;
  v_path  text;
  v_waits boolean;
BEGIN
  PERFORM FROM pathbox.execution_contexts e WHERE e.id = p_context AND e.tenant_id = p_tenant FOR NO KEY UPDATE;
  v_ended := coalesce(p_ended_at, clock_timestamp());
  -- After the lock, so that whoever has queued up before is seen.
  UPDATE pathbox.executions x
     SET status = p_status, context_id = p_context, exit_code = p_exit_code, error = p_error,
         duration_ms = p_duration_ms, queued_ms = p_queued_ms, output_bytes = p_output_bytes, findings = p_findings,
         result = CASE WHEN p_always_keep OR x.idempotency_key IS NOT NULL THEN p_result END,
         lease_expires_at = NULL, finished_at = v_ended, started_at = coalesce(x.started_at, v_ended)
   WHERE x.id = p_id AND x.tenant_id = p_tenant
     AND (x.status IN ('queued', 'running') OR x.status = 'interrupted' AND p_status <> 'interrupted')
  RETURNING x.owner_principal, x.conversation_id, x.path_id,
            EXISTS (SELECT FROM pathbox.executions q
                     WHERE q.tenant_id = p_tenant AND q.owner_principal = x.owner_principal
                       AND q.conversation_id = x.conversation_id AND q.path_id = x.path_id AND q.status = 'queued') AS waits
       INTO v_owner, v_conversation, v_path, v_waits;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE pathbox.execution_contexts e
     SET execution_count = e.execution_count + 1, total_execution_ms = e.total_execution_ms + p_duration_ms,
         last_used_at = greatest(e.last_used_at, v_ended),
         expires_at = greatest(e.expires_at, v_ended + p_ttl_ms * interval '1 ms'),
         provider_ends_at = coalesce(p_provider_ends_at, e.provider_ends_at),
         last_error = CASE WHEN p_status = 'failed' THEN coalesce(p_error, e.last_error) ELSE e.last_error END,
         resource_usage = jsonb_build_object(
           'output_bytes', coalesce((e.resource_usage->>'output_bytes')::bigint, 0) + p_output_bytes,
           'queued_ms',    coalesce((e.resource_usage->>'queued_ms')::bigint, 0) + p_queued_ms)
   WHERE e.id = p_context AND e.tenant_id = p_tenant AND e.status = 'ready';
  IF v_waits THEN
    PERFORM pathbox.wake(p_tenant, v_owner, v_conversation, v_path);
  END IF;
  RETURN true;
END $$;

-- ---- owners --------------------------------------------------------------------------------------

DO $$
DECLARE
  f record;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app;                        -- an owner needs it for a moment
  FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p
            WHERE p.pronamespace = 'pathbox'::regnamespace AND p.proname IN ('acquire_v5', 'record_v3') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_app', f.name);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app;
END $$;
