-- A run that began while the database was away has one entry in the audit chain.
--
-- Its row was written as one that was interrupted, and then its end: two ends, so two entries. Now it is written as one that
-- waits, and ends in the same transaction.
--
-- Serves programs from 0.1.0 on: the function takes and gives what it did.

CREATE OR REPLACE FUNCTION pathbox.record_v2(
    p_tenant text, p_id uuid, p_context uuid, p_status text, p_exit_code integer, p_error text,
    p_duration_ms bigint, p_queued_ms bigint, p_output_bytes bigint, p_findings json, p_result json,
    p_always_keep boolean, p_provider_ends_at timestamptz, p_ttl_ms bigint, p_ended_at timestamptz,
    p_unasked jsonb
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  v_ended timestamptz;
  k       record;
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  PERFORM FROM pathbox.execution_contexts e WHERE e.id = p_context AND e.tenant_id = p_tenant FOR NO KEY UPDATE;
  v_ended := coalesce(p_ended_at, clock_timestamp());
  IF p_unasked IS NOT NULL THEN
    INSERT INTO pathbox.executions (id, tenant_id, owner_principal, conversation_id, path_id, context_id, owner, tool, language, purpose,
        code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, lease_expires_at,
        created_at, started_at)
    VALUES (p_id, p_tenant, p_unasked->>'owner_principal', p_unasked->>'conversation', p_unasked->>'path', p_context, p_unasked->>'owner',
        p_unasked->>'tool', p_unasked->>'language', p_unasked->>'purpose', p_unasked->>'code_sha256',
        p_unasked->>'principal', p_unasked->>'trace_id', p_unasked->>'key', p_unasked->>'args_sha256',
        'queued', (p_unasked->>'run_lease_ms')::bigint, v_ended,
        v_ended - (p_duration_ms + p_queued_ms) * interval '1 ms', v_ended - p_duration_ms * interval '1 ms')
    ON CONFLICT DO NOTHING;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM pathbox.executions x WHERE x.id = p_id) THEN
      -- Its idempotency key is another run's: the record is kept without it.
      p_unasked := p_unasked - 'key' - 'args_sha256';
      RETURN pathbox.record_v2(p_tenant, p_id, p_context, p_status, p_exit_code, p_error, p_duration_ms, p_queued_ms,
          p_output_bytes, p_findings, p_result, p_always_keep, p_provider_ends_at, p_ttl_ms, p_ended_at, p_unasked);
    END IF;
  END IF;
  UPDATE pathbox.executions x
     SET status = p_status, context_id = p_context, exit_code = p_exit_code, error = p_error,
         duration_ms = p_duration_ms, queued_ms = p_queued_ms, output_bytes = p_output_bytes, findings = p_findings,
         result = CASE WHEN p_always_keep OR x.idempotency_key IS NOT NULL THEN p_result END,
         lease_expires_at = NULL, finished_at = v_ended,
         -- an ask that a frozen database takes up much later says nothing about when the run was asked for
         created_at = CASE WHEN p_unasked IS NULL THEN x.created_at
                           ELSE v_ended - (p_duration_ms + p_queued_ms) * interval '1 ms' END,
         started_at = CASE WHEN p_unasked IS NULL THEN coalesce(x.started_at, v_ended)
                           ELSE v_ended - p_duration_ms * interval '1 ms' END
   WHERE x.id = p_id AND x.tenant_id = p_tenant
     AND (x.status IN ('queued', 'running') OR x.status = 'interrupted' AND p_status <> 'interrupted')
  RETURNING x.tenant_id, x.owner_principal, x.conversation_id, x.path_id INTO k;
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
   WHERE e.id = p_context AND e.status = 'ready';
  PERFORM pathbox.wake(k.tenant_id, k.owner_principal, k.conversation_id, k.path_id);
  RETURN true;
END $$;
