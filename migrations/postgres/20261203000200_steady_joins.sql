-- What goes together finds its rows one by one (docs/adr/0097).
--
-- A join may begin at either side. Beside runs that wait or contexts that are being made, on whichever paths, the two functions
-- for several calls began there: an acquire read all live contexts and a record all runs that wait, at each call. So each of
-- them asks for the rows of its own paths now, in a subquery that the planner leaves as it is.
--
-- Serves programs from 0.1.0 on: the functions take and give what they did.

CREATE OR REPLACE FUNCTION pathbox.acquire_v4(
    p_tenant text, p_replica text, p_owners text[], p_conversations text[], p_paths text[],
    p_ids uuid[], p_tools text[], p_languages text[], p_purposes text[], p_code_sha256s text[], p_principals text[],
    p_trace_ids text[], p_keys text[], p_args_sha256s text[], p_run_leases_ms bigint[], p_max_executions bigint,
    p_is_limited boolean,
    p_context uuid, p_sees_tenant boolean, p_per_tenant integer, p_per_conversation integer, p_create_lease_ms bigint,
    p_create_timeout_ms bigint, p_key_ttl_ms bigint, p_queue_lease_ms bigint, p_ttl_ms bigint, p_quota text
) RETURNS SETOF pathbox.acquired
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
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
        FROM f,
             -- A subquery that locks is executed for each ask, by the key of its path.
             LATERAL (SELECT e.* FROM pathbox.execution_contexts e
                       WHERE e.tenant_id = p_tenant AND e.owner_principal = f.owner AND e.conversation_id = f.conversation
                         AND e.path_id = f.path
                         AND e.status = 'ready' AND e.expires_at > v_now AND e.execution_count < p_max_executions
                         AND e.lease_owner = p_replica
                         AND NOT EXISTS (SELECT FROM pathbox.executions q
                                          WHERE q.tenant_id = p_tenant AND q.owner_principal = f.owner
                                            AND q.conversation_id = f.conversation AND q.path_id = f.path
                                            AND q.status IN ('queued', 'running'))
                         AND NOT EXISTS (SELECT FROM pathbox.conversation_paths p
                                          WHERE p.tenant_id = p_tenant AND p.owner_principal = f.owner
                                            AND p.conversation_id = f.conversation AND p.path_id = f.path
                                            AND p.status <> 'active')
                         FOR NO KEY UPDATE OF e SKIP LOCKED) e
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
  -- OFFSET keeps it a question that is asked for each context, by the key of its path.
  PERFORM pathbox.wake(p_tenant, k.owner_principal, k.conversation_id, k.path_id)
     FROM (SELECT DISTINCT e.owner_principal, e.conversation_id, e.path_id
             FROM pathbox.execution_contexts e
            WHERE e.id = ANY (v_held) AND e.tenant_id = p_tenant COLLATE "C"
              AND EXISTS (SELECT FROM pathbox.executions q
                           WHERE q.tenant_id = p_tenant AND q.owner_principal = e.owner_principal
                             AND q.conversation_id = e.conversation_id AND q.path_id = e.path_id AND q.status = 'queued'
                          OFFSET 0)) k;
  RETURN v_done;
END $$;
