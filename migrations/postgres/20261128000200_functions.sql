-- What the server calls: one function, one transaction, one round trip each (src/store.rs has the contract).
--
-- Functions carry a version. During a rolling deployment old and new servers share the database, so a changed
-- function is added as _v2 and _v1 goes one release later. Helpers without a version are called by these only.
--
-- Locks are taken in this order, so that no two functions can wait for each other:
--   the context's row, the tenant's advisory lock, executions. Anything else is tried and, if somebody holds it,
--   answered with `again`.
-- clock_timestamp(), never now(): inside a function that waited for a lock, now() is stale.

-- ---- helpers -------------------------------------------------------------------------------------

-- Ends a live context and puts its sandbox into the outbox. The only place that does either.
CREATE FUNCTION pathbox.end_context(p_id uuid, p_reason text, p_error text, p_create_timeout interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c pathbox.execution_contexts;
BEGIN
  SELECT e.* INTO c FROM pathbox.execution_contexts e WHERE e.id = p_id AND e.ended_at IS NULL FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  -- A sandbox in the making may still appear for as long as the provider's request may be in flight.
  INSERT INTO pathbox.doomed_sandboxes (tenant_id, context_id, epoch, sandbox_id, sandbox_domain, host_url,
                                        host_key_enc, reason, not_before)
  VALUES (c.tenant_id, c.id, c.lease_epoch, c.sandbox_id, c.sandbox_domain, c.host_url, c.host_key_enc, p_reason,
          clock_timestamp() + CASE WHEN c.sandbox_id IS NULL THEN p_create_timeout ELSE interval '0' END);
  UPDATE pathbox.execution_contexts e
     SET status = CASE p_reason WHEN 'error' THEN 'error' ELSE 'terminated' END,
         end_reason = p_reason, last_error = coalesce(p_error, e.last_error)
   WHERE e.id = c.id;
  -- The creator's run keeps its place only as long as any other in the queue.
  UPDATE pathbox.executions x SET lease_expires_at = least(x.lease_expires_at, clock_timestamp() + interval '10 s')
   WHERE x.context_id = c.id AND x.status = 'queued';
  RETURN true;
END $$;

-- Ends contexts whose time is over and creators that are gone, a tenant's or (NULL) everybody's. Rows that somebody
-- else holds are left to them.
CREATE FUNCTION pathbox.end_due(p_tenant text, p_batch integer, p_create_timeout interval,
                                OUT expired integer, OUT abandoned integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  due record;
BEGIN
  expired := 0;
  abandoned := 0;
  FOR due IN
    SELECT e.id, e.status FROM pathbox.execution_contexts e
     WHERE e.status IN ('creating', 'ready') AND (p_tenant IS NULL OR e.tenant_id = p_tenant)
       AND CASE e.status WHEN 'ready' THEN e.expires_at ELSE e.lease_expires_at END <= clock_timestamp()
     LIMIT p_batch FOR UPDATE SKIP LOCKED
  LOOP
    -- A statement of its own: a run that began between the look above and its lock is seen here.
    CONTINUE WHEN EXISTS (SELECT FROM pathbox.executions x WHERE x.context_id = due.id AND x.status = 'running');
    IF due.status = 'ready' THEN
      PERFORM pathbox.end_context(due.id, 'expired', NULL, p_create_timeout);
      expired := expired + 1;
    ELSE
      PERFORM pathbox.end_context(due.id, 'error', 'the replica that was making the sandbox is gone', p_create_timeout);
      abandoned := abandoned + 1;
    END IF;
  END LOOP;
END $$;

-- ---- acquire: find, claim, queue or refuse -------------------------------------------------------

-- outcome    what is set
-- ready      ctx; the run is recorded as running; kinds, hashes, numbers: the key's placeholders, NULL for none
-- create     ctx (id, epoch), previous
-- wait       wait_ms, until the creator's lease ends
-- queued     ahead
-- limit      detail: scope, limit, holders, frees_in_ms
-- path_closed  detail: status
-- replay, in_flight, key_conflict, interrupted   run
-- not_found  the execution's id is another path's
-- again      somebody else was in the way for a moment; nothing is decided
CREATE FUNCTION pathbox.acquire_v1(
    p_tenant text, p_conversation text, p_path text, p_context uuid, p_owner text,
    p_id uuid, p_tool text, p_language text, p_purpose text, p_code_sha256 text, p_principal text, p_trace_id text,
    p_key text, p_args_sha256 text, p_run_lease_ms bigint,
    p_per_tenant integer, p_per_conversation integer, p_max_executions bigint,
    p_create_lease_ms bigint, p_create_timeout_ms bigint, p_key_ttl_ms bigint, p_queue_lease_ms bigint,
    OUT outcome text, OUT ctx pathbox.execution_contexts, OUT run uuid, OUT ahead integer, OUT wait_ms bigint,
    OUT previous text, OUT detail jsonb, OUT read_at timestamptz,
    OUT kinds text[], OUT hashes text[], OUT numbers integer[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  mine       pathbox.executions;                  -- this run's row, if it has asked before
  other      pathbox.executions;
  c          pathbox.execution_contexts;          -- the key's live context
  v_path     text;
  v_locked   boolean;
  v_status   text := 'queued';                    -- what `mine` becomes
  v_lease    interval := p_queue_lease_ms * interval '1 ms';
  v_context  uuid;
  v_timeout  interval := p_create_timeout_ms * interval '1 ms';
  v_takeover boolean := false;
  v_scope    text;
  v_limits   pathbox.tenant_limits;
  n_tenant   integer;
  n_conv     integer;
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  read_at := clock_timestamp();

  -- 0. The usual case, in few statements: the context is ready and idle, and nobody waits. Whoever waits is in the
  --    queue and so finds no row here, and locks none. When the insert meets a row (the same run has asked before, its
  --    idempotency key is used, another run was quicker), nothing is decided yet.
  SELECT e.* INTO ctx FROM pathbox.execution_contexts e
   WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
     AND e.status = 'ready' AND e.expires_at > read_at AND e.execution_count < p_max_executions
     AND NOT EXISTS (SELECT FROM pathbox.executions q
                      WHERE q.tenant_id = p_tenant AND q.conversation_id = p_conversation AND q.path_id = p_path
                        AND q.status IN ('queued', 'running'))
     AND NOT EXISTS (SELECT FROM pathbox.conversation_paths p
                      WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path
                        AND p.status <> 'active')
     FOR NO KEY UPDATE OF e;
  IF FOUND THEN
    read_at := clock_timestamp();
    INSERT INTO pathbox.executions (id, tenant_id, conversation_id, path_id, context_id, owner, tool, language, purpose,
        code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, lease_expires_at,
        created_at, started_at, queued_ms)
    VALUES (p_id, p_tenant, p_conversation, p_path, ctx.id, p_owner, p_tool, p_language, p_purpose, p_code_sha256,
        p_principal, p_trace_id, p_key, p_args_sha256, 'running', p_run_lease_ms,
        read_at + p_run_lease_ms * interval '1 ms', read_at, read_at, 0)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
      outcome := 'ready';
      SELECT array_agg(p.kind), array_agg(p.value_hash), array_agg(p.number) INTO kinds, hashes, numbers
        FROM pathbox.placeholders p
       WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path;
      RETURN;
    END IF;
    ctx := NULL;
  END IF;

  -- 1. Has this very run been answered before?
  SELECT e.* INTO mine FROM pathbox.executions e WHERE e.id = p_id AND e.tenant_id = p_tenant;
  IF mine.id IS NOT NULL THEN
    IF (mine.conversation_id, mine.path_id) IS DISTINCT FROM (p_conversation, p_path) THEN
      outcome := 'not_found';                     -- the id belongs to another path
      RETURN;
    END IF;
    IF mine.status = 'interrupted' AND mine.started_at IS NULL THEN       -- it lost its place: to the queue's end
      DELETE FROM pathbox.executions e WHERE e.id = p_id AND e.status = 'interrupted' AND e.started_at IS NULL;
      mine := NULL;
    ELSIF mine.finished_at IS NOT NULL THEN
      outcome := CASE mine.status WHEN 'interrupted' THEN 'interrupted' ELSE 'replay' END;
      run := mine.id;
      RETURN;
    END IF;
  END IF;

  -- 2. Has another run used this idempotency key?
  IF p_key IS NOT NULL AND mine.idempotency_key IS NULL THEN
    SELECT e.* INTO other FROM pathbox.executions e WHERE e.tenant_id = p_tenant AND e.idempotency_key = p_key;
    IF other.id IS NOT NULL THEN
      run := other.id;
      IF other.finished_at IS NOT NULL AND other.created_at <= read_at - p_key_ttl_ms * interval '1 ms'
         OR other.status = 'queued' AND other.lease_expires_at <= read_at THEN
        -- Expired, or its caller went away before it began: the key is free. It was the row's lock that we
        -- needed; with it in hand we may not wait for a context, so start over.
        UPDATE pathbox.executions e
           SET idempotency_key = NULL, args_sha256 = NULL, lease_expires_at = NULL,
               status      = CASE e.status WHEN 'queued' THEN 'interrupted' ELSE e.status END,
               finished_at = coalesce(e.finished_at, read_at)
         WHERE e.id = other.id AND e.status = other.status
           AND e.lease_expires_at IS NOT DISTINCT FROM other.lease_expires_at;
        outcome := 'again';
      ELSIF other.args_sha256 <> p_args_sha256 THEN
        outcome := 'key_conflict';
      ELSIF other.status = 'running' AND other.lease_expires_at <= read_at THEN
        UPDATE pathbox.executions e SET status = 'interrupted', finished_at = read_at, lease_expires_at = NULL
         WHERE e.id = other.id AND e.status = 'running' AND e.lease_expires_at = other.lease_expires_at;
        outcome := CASE WHEN FOUND THEN 'interrupted' ELSE 'again' END;
      ELSIF other.finished_at IS NULL THEN
        outcome := 'in_flight';
      ELSE
        outcome := CASE other.status WHEN 'interrupted' THEN 'interrupted' ELSE 'replay' END;
      END IF;
      RETURN;
    END IF;
  END IF;

  -- 3. Is the path open? One that was never registered is.
  SELECT p.status INTO v_path FROM pathbox.conversation_paths p
   WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path;
  IF v_path <> 'active' THEN
    DELETE FROM pathbox.executions e WHERE e.id = p_id AND e.status = 'queued';
    outcome := 'path_closed';
    detail := jsonb_build_object('status', v_path);
    RETURN;
  END IF;

  -- 4. Decide.
  SELECT e.* INTO c FROM pathbox.execution_contexts e
   WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
     AND e.status IN ('creating', 'ready');
  <<decide>>
  BEGIN
    IF c.status = 'ready' AND mine.status = 'running' AND mine.context_id = c.id THEN      -- the answer was lost
      outcome := 'ready';
      EXIT decide;
    END IF;
    IF c.status = 'creating' AND c.lease_expires_at > read_at THEN
      IF c.creator_execution = p_id AND mine.status = 'queued' THEN                        -- the answer was lost
        UPDATE pathbox.execution_contexts e SET lease_expires_at = read_at + p_create_lease_ms * interval '1 ms'
         WHERE e.id = c.id AND e.status = 'creating' AND e.lease_epoch = c.lease_epoch RETURNING e.* INTO c;
        outcome := CASE WHEN FOUND THEN 'create' ELSE 'again' END;
        EXIT decide;
      END IF;
      outcome := 'wait';
      wait_ms := extract(epoch FROM c.lease_expires_at - read_at) * 1000;
      EXIT decide;
    END IF;

    -- Whoever has asked before looks without a lock first: waiting must not slow down the run that is waited for.
    v_locked := c.id IS NULL OR mine.id IS NULL;
    LOOP
      IF v_locked AND c.id IS NOT NULL THEN
        SELECT e.* INTO c FROM pathbox.execution_contexts e
         WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
           AND e.status IN ('creating', 'ready')
           AND e.id = c.id AND e.status = c.status AND e.lease_epoch = c.lease_epoch FOR NO KEY UPDATE;
        IF NOT FOUND THEN
          outcome := 'again';
          EXIT decide;
        END IF;
        read_at := clock_timestamp();
      END IF;
      SELECT count(*) INTO ahead FROM pathbox.executions q
       WHERE q.tenant_id = p_tenant AND q.conversation_id = p_conversation AND q.path_id = p_path
         AND q.status = 'queued' AND q.lease_expires_at > read_at AND q.id <> p_id
         AND (mine.seq IS NULL OR q.seq < mine.seq);
      IF c.status = 'ready' THEN
        -- by the key, so that the small index of the queue is taken and not a context's whole history
        SELECT x.* INTO other FROM pathbox.executions x
         WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation AND x.path_id = p_path
           AND x.status = 'running' AND x.context_id = c.id;
        IF other.lease_expires_at > read_at THEN
          ahead := ahead + 1;
        ELSIF other.id IS NOT NULL AND v_locked THEN                                       -- its replica died
          UPDATE pathbox.executions x SET status = 'interrupted', finished_at = read_at, lease_expires_at = NULL
           WHERE x.id = other.id AND x.status = 'running' AND x.lease_expires_at <= read_at;
        END IF;
      END IF;
      IF ahead > 0 THEN
        outcome := 'queued';
        EXIT decide;
      END IF;
      EXIT WHEN v_locked;
      v_locked := true;
    END LOOP;

    IF c.status = 'ready' AND c.expires_at > read_at AND c.execution_count < p_max_executions THEN
      outcome := 'ready';
      EXIT decide;
    END IF;

    -- 5. A sandbox has to be made, and this run is the first in the queue. The path must stay open until this
    --    transaction ends; whoever is closing it holds the row.
    IF v_path IS NOT NULL THEN
      PERFORM FROM pathbox.conversation_paths p
        WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path
          AND p.status = 'active' FOR SHARE SKIP LOCKED;
      IF NOT FOUND THEN
        outcome := 'again';
        EXIT decide;
      END IF;
    END IF;

    IF c.status = 'creating' THEN                                                          -- its creator died
      IF c.lease_expires_at > read_at THEN
        outcome := 'again';
        EXIT decide;
      END IF;
      v_takeover := true;
      outcome := 'create';
      EXIT decide;
    END IF;
    IF c.status = 'ready' THEN
      PERFORM pathbox.end_context(c.id, CASE WHEN c.expires_at <= read_at THEN 'expired' ELSE 'rotated' END, NULL,
                                  v_timeout);
    END IF;

    -- 6. Limits. First without a lock, so that refusals do not queue up behind each other; then, under the tenant's
    --    lock, for certain. The lock and the count are two statements: one would count from before the lock.
    SELECT l.* INTO v_limits FROM pathbox.tenant_limits l WHERE l.tenant_id = p_tenant;
    p_per_tenant       := coalesce(v_limits.per_tenant, p_per_tenant);
    p_per_conversation := coalesce(v_limits.per_conversation, p_per_conversation);
    FOR pass IN 1..3 LOOP
      IF pass = 2 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('pathbox.live:' || p_tenant, 0));
        IF EXISTS (SELECT FROM pathbox.execution_contexts e
                    WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
                      AND e.status IN ('creating', 'ready')) THEN
          outcome := 'again';                                                              -- a racer was first
          EXIT decide;
        END IF;
      END IF;
      SELECT count(*), count(*) FILTER (WHERE e.conversation_id = p_conversation) INTO n_tenant, n_conv
        FROM pathbox.execution_contexts e
       WHERE e.tenant_id = p_tenant AND e.status IN ('creating', 'ready')
         -- what is over but not yet swept counts only once we know that it cannot be swept
         AND (pass > 1 OR CASE e.status WHEN 'ready' THEN e.expires_at ELSE e.lease_expires_at END > read_at);
      v_scope := CASE WHEN n_conv   >= p_per_conversation THEN 'conversation'
                      WHEN n_tenant >= p_per_tenant       THEN 'tenant' END;
      CONTINUE WHEN pass = 1 AND v_scope IS NULL;
      EXIT WHEN pass = 1 OR v_scope IS NULL;
      IF pass = 2 THEN
        PERFORM pathbox.end_due(p_tenant, 1000, v_timeout);
      END IF;
    END LOOP;
    IF v_scope IS NOT NULL THEN
      -- A racer may have made this very context since the first look; then it is no new one.
      IF EXISTS (SELECT FROM pathbox.execution_contexts e
                  WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
                    AND e.status IN ('creating', 'ready')) THEN
        outcome := 'again';
        EXIT decide;
      END IF;
      outcome := 'limit';
      SELECT jsonb_build_object(
               'scope', v_scope,
               'limit', CASE v_scope WHEN 'tenant' THEN p_per_tenant ELSE p_per_conversation END,
               'holders', coalesce(jsonb_agg(jsonb_build_array(e.conversation_id, e.path_id) ORDER BY e.last_used_at), '[]'),
               'frees_in_ms', greatest(0, extract(epoch FROM min(coalesce(e.expires_at, e.lease_expires_at)) - read_at) * 1000)::bigint)
        INTO detail
        FROM pathbox.execution_contexts e
       WHERE e.tenant_id = p_tenant AND e.status IN ('creating', 'ready')
         AND (v_scope = 'tenant' OR e.conversation_id = p_conversation);
      DELETE FROM pathbox.executions e WHERE e.id = p_id AND e.status = 'queued';
      RETURN;
    END IF;
    outcome := 'create';
  END decide;

  -- 7. Write this run's row: running, or its place in the queue.
  IF outcome = 'again' THEN
    RETURN;
  END IF;
  read_at := clock_timestamp();
  IF outcome = 'ready' THEN
    v_status := 'running';
    v_lease := p_run_lease_ms * interval '1 ms';
    v_context := c.id;
  ELSIF outcome = 'create' THEN
    v_lease := p_create_lease_ms * interval '1 ms';
    v_context := coalesce(c.id, p_context);
    IF c.status = 'ready' OR c.id IS NULL THEN
      -- The same ask may come twice in the life of a key, and an id is used once.
      v_context := p_context;
      IF EXISTS (SELECT FROM pathbox.execution_contexts e WHERE e.id = p_context) THEN
        v_context := gen_random_uuid();
      END IF;
    END IF;
  END IF;
  IF mine.id IS NULL THEN
    INSERT INTO pathbox.executions (id, tenant_id, conversation_id, path_id, context_id, owner, tool, language, purpose,
        code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, lease_expires_at,
        created_at, started_at, queued_ms)
    VALUES (p_id, p_tenant, p_conversation, p_path, v_context, p_owner, p_tool, p_language, p_purpose,
        p_code_sha256, p_principal, p_trace_id, p_key, p_args_sha256, v_status, p_run_lease_ms, read_at + v_lease,
        read_at, CASE v_status WHEN 'running' THEN read_at END, CASE v_status WHEN 'running' THEN 0 END)
    ON CONFLICT DO NOTHING;
  ELSIF v_status = 'queued' AND mine.status = 'queued' AND outcome <> 'create'
        AND mine.lease_expires_at > read_at + v_lease / 2 THEN
    RETURN;                                       -- its place is safe for long enough: nothing to write
  ELSE
    UPDATE pathbox.executions x
       SET status = v_status, context_id = v_context, owner = p_owner, lease_expires_at = read_at + v_lease,
           started_at = CASE v_status WHEN 'running' THEN coalesce(x.started_at, read_at) END,
           queued_ms  = CASE v_status WHEN 'running' THEN extract(epoch FROM read_at - x.created_at) * 1000 END
     WHERE x.id = p_id AND x.status = mine.status;
  END IF;
  IF NOT FOUND THEN                               -- its idempotency key was taken a moment ago, or it was swept
    outcome := 'again';
    RETURN;
  END IF;

  -- 8. The claim itself.
  IF outcome = 'create' THEN
    SELECT e.end_reason INTO previous FROM pathbox.execution_contexts e
     WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
       AND e.ended_at IS NOT NULL AND e.ready_at IS NOT NULL
     ORDER BY e.ended_at DESC LIMIT 1;
    IF v_takeover THEN
      INSERT INTO pathbox.doomed_sandboxes (tenant_id, context_id, epoch, reason, not_before)
      VALUES (p_tenant, c.id, c.lease_epoch, 'its creator is gone', read_at + v_timeout);
      UPDATE pathbox.execution_contexts e
         SET lease_epoch = e.lease_epoch + 1, lease_owner = p_owner, lease_expires_at = read_at + v_lease,
             creator_execution = p_id
       WHERE e.id = c.id RETURNING e.* INTO c;
    ELSIF c.id IS DISTINCT FROM v_context THEN
      INSERT INTO pathbox.execution_contexts (id, tenant_id, conversation_id, path_id, lease_owner, lease_expires_at,
          creator_execution)
      VALUES (v_context, p_tenant, p_conversation, p_path, p_owner, read_at + v_lease, p_id)
      RETURNING * INTO c;
    END IF;
  END IF;
  IF outcome IN ('ready', 'create') THEN
    ctx := c;
  END IF;
  IF outcome = 'ready' THEN
    SELECT array_agg(p.kind), array_agg(p.value_hash), array_agg(p.number) INTO kinds, hashes, numbers
      FROM pathbox.placeholders p
     WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path;
  END IF;
END $$;

-- ---- the creator ---------------------------------------------------------------------------------

-- NULL id: fenced off; the sandbox is in the outbox. Safe to call again: the same sandbox is taken once.
CREATE FUNCTION pathbox.ready_v1(
    p_tenant text, p_id uuid, p_epoch bigint, p_execution uuid,
    p_sandbox text, p_domain text, p_host_url text, p_host_key_enc bytea, p_envd_token_enc bytea,
    p_traffic_token_enc bytea, p_mcp_url text, p_mcp_token_enc bytea, p_provider_ends_at timestamptz, p_ttl_ms bigint,
    OUT ctx pathbox.execution_contexts, OUT read_at timestamptz
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  SELECT e.* INTO ctx FROM pathbox.execution_contexts e WHERE e.id = p_id AND e.tenant_id = p_tenant FOR NO KEY UPDATE;
  read_at := clock_timestamp();
  IF ctx.status = 'ready' AND ctx.lease_epoch = p_epoch AND ctx.sandbox_id = p_sandbox THEN
    RETURN;
  END IF;
  IF ctx.id IS NULL OR ctx.status <> 'creating' OR ctx.lease_epoch <> p_epoch OR ctx.lease_expires_at <= read_at THEN
    INSERT INTO pathbox.doomed_sandboxes (tenant_id, context_id, epoch, sandbox_id, sandbox_domain, host_url,
                                          host_key_enc, reason)
    VALUES (p_tenant, p_id, p_epoch, p_sandbox, p_domain, p_host_url, p_host_key_enc, 'its creator was too slow');
    ctx := NULL;
    RETURN;
  END IF;
  UPDATE pathbox.execution_contexts e
     SET status = 'ready', sandbox_id = p_sandbox, sandbox_domain = p_domain, host_url = p_host_url,
         host_key_enc = p_host_key_enc, envd_token_enc = p_envd_token_enc, traffic_token_enc = p_traffic_token_enc,
         mcp_url = p_mcp_url, mcp_token_enc = p_mcp_token_enc, provider_ends_at = p_provider_ends_at,
         ready_at = read_at, last_used_at = read_at, expires_at = read_at + p_ttl_ms * interval '1 ms',
         lease_expires_at = NULL
   WHERE e.id = p_id RETURNING e.* INTO ctx;
  UPDATE pathbox.executions x
     SET status = 'running', context_id = p_id, started_at = read_at,
         queued_ms = extract(epoch FROM read_at - x.created_at) * 1000,
         lease_expires_at = read_at + x.run_lease_ms * interval '1 ms'
   WHERE x.id = p_execution AND x.tenant_id = p_tenant AND x.status = 'queued';
END $$;

CREATE FUNCTION pathbox.renew_v1(p_tenant text, p_id uuid, p_epoch bigint, p_create_lease_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_until timestamptz := clock_timestamp() + p_create_lease_ms * interval '1 ms';
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  UPDATE pathbox.execution_contexts e SET lease_expires_at = v_until
   WHERE e.id = p_id AND e.tenant_id = p_tenant AND e.status = 'creating' AND e.lease_epoch = p_epoch
     AND e.lease_expires_at > clock_timestamp();
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE pathbox.executions x SET lease_expires_at = v_until WHERE x.context_id = p_id AND x.status = 'queued';
  RETURN true;
END $$;

-- p_epoch NULL: whoever holds it.
CREATE FUNCTION pathbox.end_v1(p_tenant text, p_id uuid, p_epoch bigint, p_reason text, p_error text,
                               p_create_timeout_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  PERFORM FROM pathbox.execution_contexts e
    WHERE e.id = p_id AND e.tenant_id = p_tenant AND e.ended_at IS NULL AND (p_epoch IS NULL OR e.lease_epoch = p_epoch)
    FOR NO KEY UPDATE;
  RETURN FOUND AND pathbox.end_context(p_id, p_reason, p_error, p_create_timeout_ms * interval '1 ms');
END $$;

-- ---- the run -------------------------------------------------------------------------------------

-- p_unasked: the ask of a run that was never acquired, as an object; its row is then written here.
-- p_ended_at: when the run ended, if its record had to wait for the database.
CREATE FUNCTION pathbox.record_v1(
    p_tenant text, p_id uuid, p_context uuid, p_status text, p_exit_code integer, p_error text,
    p_duration_ms bigint, p_queued_ms bigint, p_output_bytes bigint, p_findings json, p_result json,
    p_always_keep boolean, p_provider_ends_at timestamptz, p_ttl_ms bigint, p_ended_at timestamptz,
    p_unasked jsonb
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_ended timestamptz;
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  PERFORM FROM pathbox.execution_contexts e WHERE e.id = p_context AND e.tenant_id = p_tenant FOR NO KEY UPDATE;
  v_ended := coalesce(p_ended_at, clock_timestamp());
  IF p_unasked IS NOT NULL THEN
    INSERT INTO pathbox.executions (id, tenant_id, conversation_id, path_id, context_id, owner, tool, language, purpose,
        code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, finished_at,
        created_at, started_at)
    VALUES (p_id, p_tenant, p_unasked->>'conversation', p_unasked->>'path', p_context, p_unasked->>'owner',
        p_unasked->>'tool', p_unasked->>'language', p_unasked->>'purpose', p_unasked->>'code_sha256',
        p_unasked->>'principal', p_unasked->>'trace_id', p_unasked->>'key', p_unasked->>'args_sha256',
        'interrupted', (p_unasked->>'run_lease_ms')::bigint, v_ended,
        v_ended - (p_duration_ms + p_queued_ms) * interval '1 ms', v_ended - p_duration_ms * interval '1 ms')
    ON CONFLICT DO NOTHING;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM pathbox.executions x WHERE x.id = p_id) THEN
      -- Its idempotency key is another run's: the record is kept without it.
      p_unasked := p_unasked - 'key' - 'args_sha256';
      RETURN pathbox.record_v1(p_tenant, p_id, p_context, p_status, p_exit_code, p_error, p_duration_ms, p_queued_ms,
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
     AND (x.status IN ('queued', 'running') OR x.status = 'interrupted' AND p_status <> 'interrupted');
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
  RETURN true;
END $$;

-- A claim that the run held is over with it: the next in the queue takes it over at once.
CREATE FUNCTION pathbox.abandon_v1(p_tenant text, p_id uuid, p_status text, p_error text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  UPDATE pathbox.execution_contexts e SET lease_expires_at = clock_timestamp()
   WHERE e.id = (SELECT x.context_id FROM pathbox.executions x WHERE x.id = p_id AND x.tenant_id = p_tenant)
     AND e.status = 'creating' AND e.creator_execution = p_id;
  UPDATE pathbox.executions x
     SET status = p_status, error = p_error, finished_at = clock_timestamp(), lease_expires_at = NULL,
         idempotency_key = CASE WHEN p_status = 'interrupted' THEN x.idempotency_key END,
         args_sha256     = CASE WHEN p_status = 'interrupted' THEN x.args_sha256 END
   WHERE x.id = p_id AND x.tenant_id = p_tenant AND x.status IN ('queued', 'running');
  RETURN FOUND;
END $$;

-- The replica that has the run looks every second, see all_stops_v1.
CREATE FUNCTION pathbox.ask_to_stop_v1(p_tenant text, p_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  UPDATE pathbox.executions x SET stop_asked_at = coalesce(x.stop_asked_at, clock_timestamp())
   WHERE x.id = p_id AND x.tenant_id = p_tenant AND x.status IN ('queued', 'running');
  RETURN FOUND;
END $$;

CREATE FUNCTION pathbox.all_stops_v1(p_ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.id FROM pathbox.executions x WHERE x.id = ANY (p_ids) AND x.stop_asked_at IS NOT NULL
$$;

-- ---- reading -------------------------------------------------------------------------------------

CREATE FUNCTION pathbox.context_v1(p_tenant text, p_id uuid) RETURNS SETOF pathbox.execution_contexts
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT e.* FROM pathbox.execution_contexts e WHERE e.id = p_id AND e.tenant_id = p_tenant;
END $$;

CREATE FUNCTION pathbox.live_v1(p_tenant text, p_conversation text, p_path text) RETURNS SETOF pathbox.execution_contexts
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT e.* FROM pathbox.execution_contexts e
    WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
      AND e.status IN ('creating', 'ready');
END $$;

CREATE FUNCTION pathbox.contexts_v1(p_tenant text, p_conversation text, p_ended boolean, p_limit integer)
RETURNS SETOF pathbox.execution_contexts
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT e.* FROM pathbox.execution_contexts e
    WHERE e.tenant_id = p_tenant AND (p_conversation IS NULL OR e.conversation_id = p_conversation)
      AND (p_ended OR e.status IN ('creating', 'ready'))
    ORDER BY e.created_at DESC, e.id DESC LIMIT p_limit;
END $$;

CREATE FUNCTION pathbox.all_contexts_v1(p_conversation text, p_ended boolean, p_limit integer)
RETURNS SETOF pathbox.execution_contexts
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT e.* FROM pathbox.execution_contexts e
   WHERE (p_conversation IS NULL OR e.conversation_id = p_conversation)
     AND (p_ended OR e.status IN ('creating', 'ready'))
   ORDER BY e.created_at DESC, e.id DESC LIMIT p_limit
$$;

CREATE FUNCTION pathbox.all_live_v1() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT count(*) FROM pathbox.execution_contexts e WHERE e.status IN ('creating', 'ready')
$$;

CREATE FUNCTION pathbox.execution_v1(p_tenant text, p_id uuid) RETURNS SETOF pathbox.executions
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT x.* FROM pathbox.executions x WHERE x.id = p_id AND x.tenant_id = p_tenant;
END $$;

CREATE FUNCTION pathbox.executions_v1(p_tenant text, p_conversation text, p_context uuid, p_limit integer)
RETURNS SETOF pathbox.executions
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT x.* FROM pathbox.executions x
    WHERE x.tenant_id = p_tenant AND (p_conversation IS NULL OR x.conversation_id = p_conversation)
      AND (p_context IS NULL OR x.context_id = p_context)
    ORDER BY x.created_at DESC, x.seq DESC LIMIT p_limit;
END $$;

CREATE FUNCTION pathbox.all_executions_v1(p_conversation text, p_context uuid, p_limit integer)
RETURNS SETOF pathbox.executions
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT x.* FROM pathbox.executions x
   WHERE (p_conversation IS NULL OR x.conversation_id = p_conversation)
     AND (p_context IS NULL OR x.context_id = p_context)
   ORDER BY x.created_at DESC, x.seq DESC LIMIT p_limit
$$;

-- ---- clean-up, over all tenants ------------------------------------------------------------------

CREATE FUNCTION pathbox.reap_v1(p_batch integer, p_retention_ms bigint, p_create_timeout_ms bigint, p_key_ttl_ms bigint,
    OUT expired integer, OUT abandoned integer, OUT interrupted integer, OUT deleted integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_old timestamptz := clock_timestamp() - p_retention_ms * interval '1 ms';
  n     integer;
BEGIN
  -- runs whose replica is gone; one that never started leaves its key free
  UPDATE pathbox.executions x
     SET status = 'interrupted', finished_at = clock_timestamp(), lease_expires_at = NULL,
         idempotency_key = CASE x.status WHEN 'running' THEN x.idempotency_key END,
         args_sha256     = CASE x.status WHEN 'running' THEN x.args_sha256 END
   WHERE x.id IN (SELECT d.id FROM pathbox.executions d
                   WHERE d.status IN ('queued', 'running') AND d.lease_expires_at <= clock_timestamp()
                   LIMIT p_batch FOR UPDATE SKIP LOCKED)
     AND x.lease_expires_at <= clock_timestamp();
  GET DIAGNOSTICS interrupted = ROW_COUNT;

  SELECT d.expired, d.abandoned INTO expired, abandoned
    FROM pathbox.end_due(NULL, p_batch, p_create_timeout_ms * interval '1 ms') d;

  DELETE FROM pathbox.execution_contexts e
   WHERE e.id IN (SELECT d.id FROM pathbox.execution_contexts d WHERE d.ended_at < v_old LIMIT p_batch FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  DELETE FROM pathbox.executions x
   WHERE x.id IN (SELECT d.id FROM pathbox.executions d
                   WHERE d.finished_at < v_old
                     AND (d.idempotency_key IS NULL OR d.created_at < clock_timestamp() - p_key_ttl_ms * interval '1 ms')
                   LIMIT p_batch FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS n = ROW_COUNT;
  deleted := deleted + n;
  DELETE FROM pathbox.placeholders p
   WHERE p.created_at < v_old
     AND NOT EXISTS (SELECT FROM pathbox.execution_contexts e
                      WHERE e.tenant_id = p.tenant_id AND e.conversation_id = p.conversation_id
                        AND e.path_id = p.path_id);
END $$;

CREATE FUNCTION pathbox.doomed_v1(p_batch integer, p_visibility_ms bigint) RETURNS SETOF pathbox.doomed_sandboxes
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pathbox.doomed_sandboxes d
     SET attempts = d.attempts + 1, not_before = clock_timestamp() + p_visibility_ms * interval '1 ms'
   WHERE d.id IN (SELECT g.id FROM pathbox.doomed_sandboxes g WHERE g.not_before <= clock_timestamp()
                   ORDER BY g.not_before LIMIT p_batch FOR UPDATE SKIP LOCKED)
  RETURNING d.*
$$;

CREATE FUNCTION pathbox.buried_v1(p_id bigint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM pathbox.doomed_sandboxes d WHERE d.id = p_id
$$;

-- 5 s after the first try, doubling up to 10 minutes
CREATE FUNCTION pathbox.bury_failed_v1(p_id bigint, p_error text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pathbox.doomed_sandboxes d
     SET last_error = p_error,
         not_before = clock_timestamp() + least(interval '10 min', interval '5 s' * 2 ^ least(greatest(d.attempts - 1, 0), 10))
   WHERE d.id = p_id
$$;

CREATE FUNCTION pathbox.unowned_v1(p_ids uuid[], p_epochs bigint[]) RETURNS TABLE (id uuid, epoch bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT t.id, t.epoch FROM unnest(p_ids, p_epochs) t(id, epoch)
   WHERE NOT EXISTS (SELECT FROM pathbox.execution_contexts e
                      WHERE e.id = t.id AND e.lease_epoch = t.epoch AND e.ended_at IS NULL)
$$;

CREATE FUNCTION pathbox.owned_v1(p_min_age_ms bigint, p_after uuid, p_limit integer)
RETURNS SETOF pathbox.execution_contexts
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT e.* FROM pathbox.execution_contexts e
   WHERE e.status = 'ready' AND e.ready_at <= clock_timestamp() - p_min_age_ms * interval '1 ms'
     AND (p_after IS NULL OR e.id > p_after)
   ORDER BY e.id LIMIT p_limit
$$;

CREATE FUNCTION pathbox.set_tenant_limits_v1(p_tenant text, p_per_tenant integer, p_per_conversation integer) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO pathbox.tenant_limits AS l (tenant_id, per_tenant, per_conversation)
  VALUES (p_tenant, p_per_tenant, p_per_conversation)
  ON CONFLICT (tenant_id) DO UPDATE
     SET per_tenant = excluded.per_tenant, per_conversation = excluded.per_conversation
$$;

-- ---- paths ---------------------------------------------------------------------------------------

-- outcome: ok, unknown (problem: which path), not_active (problem, problem_status), differs, cycle, stale
CREATE FUNCTION pathbox.change_path_v1(
    p_tenant text, p_conversation text, p_path text, p_change text, p_other text, p_message text, p_expected bigint,
    p_create_timeout_ms bigint,
    OUT outcome text, OUT path pathbox.conversation_paths, OUT problem text, OUT problem_status text
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  other    pathbox.conversation_paths;
  v_closed text := CASE p_change WHEN 'merge' THEN 'merged' WHEN 'archive' THEN 'archived' WHEN 'delete' THEN 'deleted' END;
  v_live   uuid;
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  IF p_other = p_path THEN
    outcome := 'cycle';
    RETURN;
  END IF;
  -- both rows in one order, so that two changes cannot wait for each other
  PERFORM FROM pathbox.conversation_paths p
    WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id IN (p_path, p_other)
    ORDER BY p.path_id FOR UPDATE;
  SELECT p.* INTO path FROM pathbox.conversation_paths p
   WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path;
  SELECT p.* INTO other FROM pathbox.conversation_paths p
   WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_other;

  -- said before: the same answer, whatever version the caller expects
  IF p_change = 'register' AND path.path_id IS NOT NULL THEN
    outcome := CASE WHEN (path.parent_id, path.branched_at_message) IS NOT DISTINCT FROM (p_other, p_message)
                    THEN 'ok' ELSE 'differs' END;
    RETURN;
  END IF;
  IF path.status = v_closed AND path.merged_into IS NOT DISTINCT FROM coalesce(p_other, path.merged_into) THEN
    outcome := 'ok';
    RETURN;
  END IF;

  IF p_change <> 'register' AND path.path_id IS NULL THEN
    outcome := 'unknown';
    problem := p_path;
    RETURN;
  END IF;
  IF p_expected IS NOT NULL AND p_expected <> coalesce(path.version, 0) THEN
    outcome := 'stale';
    RETURN;
  END IF;
  IF path.status <> 'active' AND p_change <> 'delete' THEN
    outcome := 'not_active';
    problem := p_path;
    problem_status := path.status;
    RETURN;
  END IF;
  IF p_other IS NOT NULL AND other.path_id IS NULL THEN
    outcome := 'unknown';
    problem := p_other;
    RETURN;
  END IF;
  IF other.status <> 'active' THEN
    outcome := 'not_active';
    problem := p_other;
    problem_status := other.status;
    RETURN;
  END IF;

  outcome := 'ok';
  IF p_change = 'register' THEN
    INSERT INTO pathbox.conversation_paths (tenant_id, conversation_id, path_id, parent_id, branched_at_message)
    VALUES (p_tenant, p_conversation, p_path, p_other, p_message)
    ON CONFLICT DO NOTHING RETURNING * INTO path;
    IF NOT FOUND THEN
      outcome := 'again';                         -- registered a moment ago
    END IF;
    RETURN;
  END IF;
  UPDATE pathbox.conversation_paths p
     SET version = p.version + 1, updated_at = clock_timestamp(),
         status = coalesce(v_closed, p.status), merged_into = coalesce(p_other, p.merged_into)
   WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path
  RETURNING p.* INTO path;
  IF v_closed IS NOT NULL THEN
    SELECT e.id INTO v_live FROM pathbox.execution_contexts e
     WHERE e.tenant_id = p_tenant AND e.conversation_id = p_conversation AND e.path_id = p_path
       AND e.status IN ('creating', 'ready');
    PERFORM pathbox.end_context(v_live, v_closed, NULL, p_create_timeout_ms * interval '1 ms');
  END IF;
END $$;

CREATE FUNCTION pathbox.paths_v1(p_tenant text, p_conversation text, p_deleted boolean)
RETURNS SETOF pathbox.conversation_paths
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT p.* FROM pathbox.conversation_paths p
    WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND (p_deleted OR p.status <> 'deleted')
    ORDER BY p.created_at, p.path_id;
END $$;

-- ---- placeholders --------------------------------------------------------------------------------

CREATE FUNCTION pathbox.placeholders_v1(p_tenant text, p_conversation text, p_path text)
RETURNS SETOF pathbox.placeholders
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT p.* FROM pathbox.placeholders p
    WHERE p.tenant_id = p_tenant AND p.conversation_id = p_conversation AND p.path_id = p_path
    ORDER BY p.kind, p.number;
END $$;

CREATE FUNCTION pathbox.save_placeholders_v1(p_tenant text, p_conversation text, p_path text, p_kinds text[],
                                             p_hashes text[], p_numbers integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  INSERT INTO pathbox.placeholders (tenant_id, conversation_id, path_id, kind, value_hash, number)
  SELECT p_tenant, p_conversation, p_path, t.kind, t.hash, t.number
    FROM unnest(p_kinds, p_hashes, p_numbers) t(kind, hash, number)
   ORDER BY t.kind, t.hash                        -- one order, so that two savers cannot wait for each other
  ON CONFLICT DO NOTHING;
END $$;

-- ---- hand the functions to their owners ----------------------------------------------------------

DO $$
DECLARE
  f     regprocedure;
  owner text;
BEGIN
  GRANT USAGE ON SCHEMA pathbox TO pathbox_server;
  GRANT SELECT ON pathbox.migrations TO pathbox_server;
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app, pathbox_worker;      -- an owner needs it for a moment
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pathbox FROM PUBLIC;
  FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'pathbox'::regnamespace LOOP
    IF f::text LIKE 'pathbox.guard\_%' THEN
      CONTINUE;
    ELSIF f::text ~ '^pathbox\.(end_context|end_due)\(' THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_app, pathbox_worker', f);
      CONTINUE;
    ELSIF f::text = 'pathbox.bound_tenant()' THEN
      GRANT EXECUTE ON FUNCTION pathbox.bound_tenant() TO pathbox_tenant;
      owner := 'pathbox_worker';
    ELSE
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f);
      owner := CASE WHEN f::text ~ '^pathbox\.(all_|reap|doomed|buried|bury_failed|unowned|owned|set_tenant_limits)'
                    THEN 'pathbox_worker' ELSE 'pathbox_app' END;
    END IF;
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app, pathbox_worker;
END $$;
