-- Plans that are right whatever the statistics say (docs/adr/0097).
--
-- A session keeps the plan that it made when a table was small, until statistics tell it better: up to a minute on a store that
-- has just begun, and for every caller.
--
-- - A row that is named by its id and its tenant looks as cheap by an index over tenants as by the primary key. Then each
--   record read all rows of the tenant. Here the tenant is compared in another collation, which says the same of two texts,
--   byte for byte, and which no index has: so it is looked at in the row that the id has found.
-- - A table that was analysed with a few rows is read from end to end, whatever it has grown to since. The functions of a warm
--   call find each row by an index, so they do without (2 µs a call).
--
-- Serves programs from 0.1.0 on: the functions take and give what they did.

-- ---- policies ------------------------------------------------------------------------------------

-- The functions name the tenant themselves where an index over tenants is wanted.
DO $$
DECLARE
  p record;
BEGIN
  FOR p IN SELECT c.relname, o.polcmd FROM pg_policy o JOIN pg_class c ON c.oid = o.polrelid
            WHERE o.polname = 'app_own_tenant' AND c.relnamespace = 'pathbox'::regnamespace LOOP
    EXECUTE format('ALTER POLICY app_own_tenant ON pathbox.%I USING (tenant_id = current_setting(''pathbox.tenant_id'', true) COLLATE "C")%s',
                   p.relname, CASE p.polcmd WHEN 'r' THEN ''
                              ELSE ' WITH CHECK (tenant_id = current_setting(''pathbox.tenant_id'', true) COLLATE "C")' END);
  END LOOP;
END $$;

-- ---- a record alone ------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION pathbox.record_v3(
    p_tenant text, p_id uuid, p_context uuid, p_status text, p_exit_code integer, p_error text,
    p_duration_ms bigint, p_queued_ms bigint, p_output_bytes bigint, p_findings json, p_result json,
    p_always_keep boolean, p_provider_ends_at timestamptz, p_ttl_ms bigint, p_ended_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  v_bound text := set_config('pathbox.tenant_id', p_tenant, true);
  v_ended timestamptz;
  v_owner text;
  v_conversation text;
  v_path  text;
  v_waits boolean;
BEGIN
  PERFORM FROM pathbox.execution_contexts e WHERE e.id = p_context AND e.tenant_id = p_tenant COLLATE "C" FOR NO KEY UPDATE;
  v_ended := coalesce(p_ended_at, clock_timestamp());
  -- After the lock, so that whoever has queued up before is seen.
  UPDATE pathbox.executions x
     SET status = p_status, context_id = p_context, exit_code = p_exit_code, error = p_error,
         duration_ms = p_duration_ms, queued_ms = p_queued_ms, output_bytes = p_output_bytes, findings = p_findings,
         result = CASE WHEN p_always_keep OR x.idempotency_key IS NOT NULL THEN p_result END,
         lease_expires_at = NULL, finished_at = v_ended, started_at = coalesce(x.started_at, v_ended)
   WHERE x.id = p_id AND x.tenant_id = p_tenant COLLATE "C"
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
   WHERE e.id = p_context AND e.tenant_id = p_tenant COLLATE "C" AND e.status = 'ready';
  IF v_waits THEN
    PERFORM pathbox.wake(p_tenant, v_owner, v_conversation, v_path);
  END IF;
  RETURN true;
END $$;

-- ---- several -------------------------------------------------------------------------------------

-- Arrays of two or four elements look so cheap to the planner that it planned the statement anew for each call, which took
-- twice as long as the call.
CREATE OR REPLACE FUNCTION pathbox.records_v1(
    p_tenant text, p_ids uuid[], p_contexts uuid[], p_statuses text[], p_exit_codes integer[], p_errors text[],
    p_durations_ms bigint[], p_queued_ms bigint[], p_output_bytes bigint[], p_findings text[], p_results text[],
    p_always_keep boolean[], p_provider_ends_at timestamptz[], p_ended_at timestamptz[], p_ttls_ms bigint[]
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_bound text := set_config('pathbox.tenant_id', p_tenant, true);
  v_now   timestamptz;
  v_held  uuid[];
  v_done  uuid[];
BEGIN
  v_held := ARRAY(SELECT e.id FROM pathbox.execution_contexts e
                   WHERE e.id = ANY (p_contexts) AND e.tenant_id = p_tenant COLLATE "C" FOR NO KEY UPDATE SKIP LOCKED);
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
     WHERE x.id = f.id AND x.tenant_id = p_tenant COLLATE "C"
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
            WHERE e.id = ANY (v_held) AND e.tenant_id = p_tenant COLLATE "C" AND q.status = 'queued') k;
  RETURN v_done;
END $$;

-- ---- the others ----------------------------------------------------------------------------------

DO $$
DECLARE
  f record;
BEGIN
  FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p
            WHERE p.pronamespace = 'pathbox'::regnamespace
              AND p.proname IN ('acquire_v3', 'acquire_v4', 'acquire_v5', 'record_v2', 'guard_ended_execution', 'guard_ended_context')
  LOOP
    EXECUTE format('ALTER FUNCTION %s SET enable_seqscan = off', f.name);
  END LOOP;
END $$;
