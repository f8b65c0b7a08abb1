-- Contexts belong to principals, and a replica holds them by a lease (docs/adr/0020, docs/adr/0021).
--
-- owner_principal is whom a row belongs to: the principal whose call made it, or '' for the tenant as a whole, which is
-- what a service credential stands for. It is a part of each key: an equal conversation id, path or idempotency key of
-- two principals names two things.
--
-- Rows from before: a context belongs to the principal whose run it was made for, a run to the principal that asked for
-- it, and to the tenant when that was a service's key or nobody is known. Whoever else had used such a context finds a
-- fresh one in its place. Paths were registered for the tenant; each principal with contexts in a conversation gets a
-- copy of its paths, so that a closed path stays closed for it. Placeholder numbers go with the latest context.
--
-- Serves programs from 0.1.0 on: _v1 functions stay, and acquire_v1 finds the owner by the caller's name.

-- ---- whom a row belongs to -----------------------------------------------------------------------

ALTER TABLE pathbox.execution_contexts ADD COLUMN owner_principal text NOT NULL DEFAULT '';
ALTER TABLE pathbox.executions         ADD COLUMN owner_principal text NOT NULL DEFAULT '';
ALTER TABLE pathbox.conversation_paths ADD COLUMN owner_principal text NOT NULL DEFAULT '';
ALTER TABLE pathbox.placeholders       ADD COLUMN owner_principal text NOT NULL DEFAULT '';

-- A replica asks another for a context that it needs by setting lease_wanted_at.
ALTER TABLE pathbox.execution_contexts ADD COLUMN lease_wanted_at timestamptz;

-- What the sandbox was made from, where a call named it; NULL: the tenant's own template.
ALTER TABLE pathbox.execution_contexts ADD COLUMN template text CHECK (length(template) BETWEEN 1 AND 256);
-- A lower bound of when the row is due, for the clean-up: moved only when it has passed, so that a call that slides
-- expires_at touches no index.
ALTER TABLE pathbox.execution_contexts ADD COLUMN due_at timestamptz NOT NULL DEFAULT clock_timestamp();

DROP INDEX pathbox.execution_contexts_live, pathbox.execution_contexts_history, pathbox.executions_queue,
           pathbox.executions_idempotency;

ALTER TABLE pathbox.conversation_paths DROP CONSTRAINT conversation_paths_tenant_id_conversation_id_parent_id_fkey;
ALTER TABLE pathbox.conversation_paths DROP CONSTRAINT conversation_paths_tenant_id_conversation_id_merged_into_fkey;
ALTER TABLE pathbox.conversation_paths DROP CONSTRAINT conversation_paths_pkey;
ALTER TABLE pathbox.conversation_paths ADD PRIMARY KEY (tenant_id, owner_principal, conversation_id, path_id);
ALTER TABLE pathbox.conversation_paths
    ADD CONSTRAINT conversation_paths_parent FOREIGN KEY (tenant_id, owner_principal, conversation_id, parent_id)
        REFERENCES pathbox.conversation_paths,
    ADD CONSTRAINT conversation_paths_merged FOREIGN KEY (tenant_id, owner_principal, conversation_id, merged_into)
        REFERENCES pathbox.conversation_paths;
ALTER TABLE pathbox.placeholders DROP CONSTRAINT placeholders_pkey;
ALTER TABLE pathbox.placeholders DROP CONSTRAINT placeholders_tenant_id_conversation_id_path_id_kind_number_key;

-- Ended rows are frozen, and this is the one change that they take.
ALTER TABLE pathbox.execution_contexts DISABLE TRIGGER guard_context;

CREATE FUNCTION pathbox.owner_of(p_principal text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN p_principal IS NULL THEN ''
              WHEN EXISTS (SELECT FROM pathbox.api_keys k
                            WHERE 'key:' || k.id = p_principal AND k.key->>'kind' = 'service') THEN ''
              ELSE p_principal END
$$;
GRANT EXECUTE ON FUNCTION pathbox.owner_of(text) TO pathbox_worker;

SET LOCAL ROLE pathbox_worker;
UPDATE pathbox.executions x SET owner_principal = pathbox.owner_of(x.principal) WHERE x.principal IS NOT NULL;
UPDATE pathbox.execution_contexts e SET owner_principal = x.owner_principal
  FROM pathbox.executions x WHERE x.id = e.creator_execution AND x.owner_principal <> '';
UPDATE pathbox.execution_contexts e SET due_at = coalesce(e.expires_at, e.lease_expires_at, e.due_at)
 WHERE e.ended_at IS NULL;
UPDATE pathbox.placeholders p SET owner_principal = coalesce(
    (SELECT e.owner_principal FROM pathbox.execution_contexts e
      WHERE e.tenant_id = p.tenant_id AND e.conversation_id = p.conversation_id AND e.path_id = p.path_id
      ORDER BY e.created_at DESC LIMIT 1), '');
INSERT INTO pathbox.conversation_paths (tenant_id, owner_principal, conversation_id, path_id, parent_id,
    branched_at_message, merged_into, status, version, created_at, updated_at)
SELECT p.tenant_id, o.owner_principal, p.conversation_id, p.path_id, p.parent_id, p.branched_at_message, p.merged_into,
       p.status, p.version, p.created_at, p.updated_at
  FROM pathbox.conversation_paths p
  JOIN (SELECT DISTINCT e.tenant_id, e.conversation_id, e.owner_principal FROM pathbox.execution_contexts e
         WHERE e.owner_principal <> '') o USING (tenant_id, conversation_id);
RESET ROLE;
ALTER TABLE pathbox.execution_contexts ENABLE TRIGGER guard_context;

ALTER TABLE pathbox.placeholders
    ADD PRIMARY KEY (tenant_id, owner_principal, conversation_id, path_id, kind, value_hash),
    ADD CONSTRAINT placeholders_number UNIQUE (tenant_id, owner_principal, conversation_id, path_id, kind, number);

-- THE invariant: one live context a key
CREATE UNIQUE INDEX execution_contexts_live ON pathbox.execution_contexts
    (tenant_id, owner_principal, conversation_id, path_id) WHERE status IN ('creating', 'ready');
CREATE INDEX execution_contexts_history ON pathbox.execution_contexts
    (tenant_id, owner_principal, conversation_id, path_id, ended_at DESC) WHERE ended_at IS NOT NULL;
CREATE INDEX execution_contexts_due ON pathbox.execution_contexts (due_at) WHERE status IN ('creating', 'ready');
-- what other replicas want of one
CREATE INDEX execution_contexts_wanted ON pathbox.execution_contexts (lease_owner) WHERE lease_wanted_at IS NOT NULL;
CREATE INDEX executions_queue ON pathbox.executions (tenant_id, owner_principal, conversation_id, path_id, seq)
    WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX executions_idempotency ON pathbox.executions (tenant_id, owner_principal, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- ---- conversations that their owner shares -------------------------------------------------------

CREATE TABLE pathbox.conversation_shares (
    tenant_id       text        NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 128),
    owner_principal text        NOT NULL,
    conversation_id text        NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    principal       text        NOT NULL CHECK (length(principal) BETWEEN 1 AND 1024),  -- who may enter besides
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, principal, owner_principal, conversation_id)
);
ALTER TABLE pathbox.conversation_shares ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.conversation_shares FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.conversation_shares TO pathbox_worker USING (true) WITH CHECK (true);
CREATE POLICY app_own_tenant ON pathbox.conversation_shares TO pathbox_app
    USING (tenant_id = (SELECT nullif(current_setting('pathbox.tenant_id', true), '')))
    WITH CHECK (tenant_id = (SELECT nullif(current_setting('pathbox.tenant_id', true), '')));
GRANT SELECT, INSERT, DELETE ON pathbox.conversation_shares TO pathbox_app, pathbox_worker;

-- ---- replicas ------------------------------------------------------------------------------------

-- One row a process that serves. While alive_until lies ahead, the contexts whose lease_owner it is are its own: it may
-- go on with them when it cannot reach the database, and no other takes them. Once it has passed, its runs are
-- interrupted and its contexts free. A replica without a row (an older program) holds nothing.
CREATE TABLE pathbox.replicas (
    id          text        PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    version     text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    alive_until timestamptz NOT NULL
);
ALTER TABLE pathbox.replicas ENABLE ROW LEVEL SECURITY;
ALTER TABLE pathbox.replicas FORCE ROW LEVEL SECURITY;
CREATE POLICY worker_all ON pathbox.replicas TO pathbox_worker USING (true) WITH CHECK (true);
CREATE POLICY app_reads ON pathbox.replicas FOR SELECT TO pathbox_app USING (true);
GRANT SELECT ON pathbox.replicas TO pathbox_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.replicas TO pathbox_worker;

GRANT SELECT (owner_principal) ON pathbox.execution_contexts, pathbox.executions TO pathbox_tenant;

CREATE OR REPLACE FUNCTION pathbox.guard_context() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
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

-- ---- helpers -------------------------------------------------------------------------------------

-- Whether a replica is known and its time has run out, as another may say that is alive itself: one that slept or was cut
-- off sees everybody's time run out, its own too.
CREATE FUNCTION pathbox.is_dead(p_replica text, p_by text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pathbox.replicas r WHERE r.id = p_replica AND r.alive_until <= clock_timestamp())
     AND NOT EXISTS (SELECT FROM pathbox.replicas r WHERE r.id = p_by AND r.alive_until <= clock_timestamp())
$$;

-- Whether a replica other than this one holds a lease.
CREATE FUNCTION pathbox.is_anothers(p_holder text, p_replica text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT p_holder <> p_replica
     AND EXISTS (SELECT FROM pathbox.replicas r WHERE r.id = p_holder) AND NOT pathbox.is_dead(p_holder, p_replica)
$$;

-- Wakes whoever waits for a key, on any replica. Sent only when somebody does: a notification takes a lock of the whole
-- database at commit. The key goes as a hash, which says nothing to a listener of another tenant.
CREATE FUNCTION pathbox.wake(p_tenant text, p_owner text, p_conversation text, p_path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM pathbox.executions q
              WHERE q.tenant_id = p_tenant AND q.owner_principal = p_owner AND q.conversation_id = p_conversation
                AND q.path_id = p_path AND q.status = 'queued') THEN
    PERFORM pg_notify('pathbox', 'key ' || encode(sha256(convert_to(
        p_tenant || '/' || p_conversation || '/' || p_path || '/' || p_owner, 'UTF8')), 'hex'));
  END IF;
END $$;

-- Ends a live context and puts its sandbox into the outbox. The only place that does either.
CREATE OR REPLACE FUNCTION pathbox.end_context(p_id uuid, p_reason text, p_error text, p_create_timeout interval) RETURNS boolean
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
  PERFORM pathbox.wake(c.tenant_id, c.owner_principal, c.conversation_id, c.path_id);
  RETURN true;
END $$;

-- Ends contexts whose time is over and creators that are gone, a tenant's or (NULL) everybody's. Rows that somebody
-- else holds are left to them.
CREATE OR REPLACE FUNCTION pathbox.end_due(p_tenant text, p_batch integer, p_create_timeout interval,
                                OUT expired integer, OUT abandoned integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  due   record;
  v_now timestamptz := clock_timestamp();
BEGIN
  expired := 0;
  abandoned := 0;
  FOR due IN
    SELECT e.id, e.status,
           CASE e.status WHEN 'ready' THEN e.expires_at ELSE e.lease_expires_at END AS over_at
      FROM pathbox.execution_contexts e
     WHERE e.status IN ('creating', 'ready') AND (p_tenant IS NULL OR e.tenant_id = p_tenant)
       AND e.due_at <= v_now            -- a variable: no index is searched for a volatile function's value
     ORDER BY e.due_at LIMIT p_batch FOR UPDATE SKIP LOCKED
  LOOP
    IF due.over_at > clock_timestamp() THEN
      UPDATE pathbox.execution_contexts e SET due_at = due.over_at WHERE e.id = due.id;
      CONTINUE;
    END IF;
    -- A statement of its own: a run that began between the look above and its lock is seen here.
    IF EXISTS (SELECT FROM pathbox.executions x WHERE x.context_id = due.id AND x.status = 'running') THEN
      UPDATE pathbox.execution_contexts e SET due_at = clock_timestamp() + interval '5 s' WHERE e.id = due.id;
      CONTINUE;
    END IF;
    IF due.status = 'ready' THEN
      PERFORM pathbox.end_context(due.id, 'expired', NULL, p_create_timeout);
      expired := expired + 1;
    ELSE
      PERFORM pathbox.end_context(due.id, 'error', 'the replica that was making the sandbox is gone', p_create_timeout);
      abandoned := abandoned + 1;
    END IF;
  END LOOP;
END $$;

-- ---- acquire -------------------------------------------------------------------------------------

-- As acquire_v1, for one owner. p_replica: who asks. p_sees_tenant: the caller may enter what its tenant owns, so that
-- a refusal names every holder. A context whose lease another living replica holds is waited for like a run: that
-- replica is asked to let go of it, and does so when it has no use for it.
-- limit  detail: scope, limit, holders (those that the caller may enter), others (how many more), frees_in_ms
CREATE FUNCTION pathbox.acquire_v2(
    p_tenant text, p_owner text, p_conversation text, p_path text, p_context uuid, p_replica text, p_sees_tenant boolean,
    p_id uuid, p_tool text, p_language text, p_purpose text, p_code_sha256 text, p_principal text, p_trace_id text,
    p_key text, p_args_sha256 text, p_run_lease_ms bigint,
    p_per_tenant integer, p_per_conversation integer, p_max_executions bigint,
    p_create_lease_ms bigint, p_create_timeout_ms bigint, p_key_ttl_ms bigint, p_queue_lease_ms bigint,
    OUT outcome text, OUT ctx pathbox.execution_contexts, OUT run uuid, OUT ahead integer, OUT wait_ms bigint,
    OUT previous text, OUT detail jsonb, OUT read_at timestamptz,
    OUT kinds text[], OUT hashes text[], OUT numbers integer[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_template    text;
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
   WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
     AND e.status = 'ready' AND e.expires_at > read_at AND e.execution_count < p_max_executions
     AND (e.lease_owner = p_replica
          OR NOT EXISTS (SELECT FROM pathbox.replicas r WHERE r.id = e.lease_owner))
     AND NOT EXISTS (SELECT FROM pathbox.executions q
                      WHERE q.tenant_id = p_tenant AND q.owner_principal = p_owner AND q.conversation_id = p_conversation
     AND q.path_id = p_path
                        AND q.status IN ('queued', 'running'))
     AND NOT EXISTS (SELECT FROM pathbox.conversation_paths p
                      WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path
                        AND p.status <> 'active')
     FOR NO KEY UPDATE OF e;
  IF FOUND THEN
    read_at := clock_timestamp();
    INSERT INTO pathbox.executions (id, tenant_id, owner_principal, conversation_id, path_id, context_id, owner, tool, language, purpose,
        code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, lease_expires_at,
        created_at, started_at, queued_ms)
    VALUES (p_id, p_tenant, p_owner, p_conversation, p_path, ctx.id, p_replica, p_tool, p_language, p_purpose, p_code_sha256,
        p_principal, p_trace_id, p_key, p_args_sha256, 'running', p_run_lease_ms,
        read_at + p_run_lease_ms * interval '1 ms', read_at, read_at, 0)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
      outcome := 'ready';
      IF ctx.lease_owner <> p_replica THEN
        UPDATE pathbox.execution_contexts e SET lease_owner = p_replica, lease_wanted_at = NULL
         WHERE e.id = ctx.id RETURNING e.* INTO ctx;
      END IF;
      SELECT array_agg(p.kind), array_agg(p.value_hash), array_agg(p.number) INTO kinds, hashes, numbers
        FROM pathbox.placeholders p
       WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path;
      RETURN;
    END IF;
    ctx := NULL;
  END IF;

  -- 1. Has this very run been answered before?
  SELECT e.* INTO mine FROM pathbox.executions e WHERE e.id = p_id AND e.tenant_id = p_tenant;
  IF mine.id IS NOT NULL THEN
    IF (mine.owner_principal, mine.conversation_id, mine.path_id)
       IS DISTINCT FROM (p_owner, p_conversation, p_path) THEN
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
    SELECT e.* INTO other FROM pathbox.executions e WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.idempotency_key = p_key;
    IF other.id IS NOT NULL THEN
      run := other.id;
      IF other.finished_at IS NOT NULL AND other.created_at <= read_at - p_key_ttl_ms * interval '1 ms'
         OR other.status = 'queued' AND (other.lease_expires_at <= read_at OR pathbox.is_dead(other.owner, p_replica)) THEN
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
      ELSIF other.status = 'running' AND (other.lease_expires_at <= read_at OR pathbox.is_dead(other.owner, p_replica)) THEN
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
   WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path;
  IF v_path <> 'active' THEN
    DELETE FROM pathbox.executions e WHERE e.id = p_id AND e.status = 'queued';
    outcome := 'path_closed';
    detail := jsonb_build_object('status', v_path);
    RETURN;
  END IF;

  -- 4. Decide.
  SELECT e.* INTO c FROM pathbox.execution_contexts e
   WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
     AND e.status IN ('creating', 'ready');
  <<decide>>
  BEGIN
    IF c.status = 'ready' AND mine.status = 'running' AND mine.context_id = c.id THEN      -- the answer was lost
      outcome := 'ready';
      EXIT decide;
    END IF;
    IF c.status = 'creating' AND c.lease_expires_at > read_at AND NOT pathbox.is_dead(c.lease_owner, p_replica) THEN
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
         WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
           AND e.status IN ('creating', 'ready')
           AND e.id = c.id AND e.status = c.status AND e.lease_epoch = c.lease_epoch FOR NO KEY UPDATE;
        IF NOT FOUND THEN
          outcome := 'again';
          EXIT decide;
        END IF;
        read_at := clock_timestamp();
      END IF;
      SELECT count(*) INTO ahead FROM pathbox.executions q
       WHERE q.tenant_id = p_tenant AND q.owner_principal = p_owner AND q.conversation_id = p_conversation
     AND q.path_id = p_path
         AND q.status = 'queued' AND q.lease_expires_at > read_at AND q.id <> p_id AND NOT pathbox.is_dead(q.owner, p_replica)
         AND (mine.seq IS NULL OR q.seq < mine.seq);
      IF c.status = 'ready' THEN
        -- by the key, so that the small index of the queue is taken and not a context's whole history
        SELECT x.* INTO other FROM pathbox.executions x
         WHERE x.tenant_id = p_tenant AND x.owner_principal = p_owner AND x.conversation_id = p_conversation
     AND x.path_id = p_path
           AND x.status = 'running' AND x.context_id = c.id;
        IF other.lease_expires_at > read_at AND NOT pathbox.is_dead(other.owner, p_replica) THEN
          ahead := ahead + 1;
        ELSIF other.id IS NOT NULL AND v_locked THEN                                       -- its replica died
          UPDATE pathbox.executions x SET status = 'interrupted', finished_at = read_at, lease_expires_at = NULL
           WHERE x.id = other.id AND x.status = 'running' AND x.lease_expires_at = other.lease_expires_at;
        END IF;
      END IF;
      IF c.status = 'ready' AND pathbox.is_anothers(c.lease_owner, p_replica) THEN
        -- Another replica holds the context and may be using it out of our sight: it is asked to let go.
        UPDATE pathbox.execution_contexts e SET lease_wanted_at = read_at
         WHERE e.id = c.id AND e.lease_owner = c.lease_owner AND e.lease_wanted_at IS NULL AND c.lease_wanted_at IS NULL;
        IF FOUND THEN
          PERFORM pg_notify('pathbox', 'wanted ' || c.lease_owner);
        END IF;
        ahead := greatest(ahead, 1);
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
        WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path
          AND p.status = 'active' FOR SHARE SKIP LOCKED;
      IF NOT FOUND THEN
        outcome := 'again';
        EXIT decide;
      END IF;
    END IF;

    IF c.status = 'creating' THEN                                                          -- its creator died
      IF c.lease_expires_at > read_at AND NOT pathbox.is_dead(c.lease_owner, p_replica) THEN
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
                    WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
                      AND e.status IN ('creating', 'ready')) THEN
          outcome := 'again';                                                              -- a racer was first
          EXIT decide;
        END IF;
      END IF;
      SELECT count(*), 
             count(*) FILTER (WHERE e.owner_principal = p_owner AND e.conversation_id = p_conversation) INTO n_tenant, n_conv
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
                  WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
                    AND e.status IN ('creating', 'ready')) THEN
        outcome := 'again';
        EXIT decide;
      END IF;
      outcome := 'limit';
      SELECT jsonb_build_object(
               'scope', v_scope,
               'limit', CASE v_scope WHEN 'tenant' THEN p_per_tenant ELSE p_per_conversation END,
               'holders', coalesce(jsonb_agg(jsonb_build_array(e.conversation_id, e.path_id, e.owner_principal)
                                             ORDER BY e.last_used_at)
                                   FILTER (WHERE e.owner_principal = p_owner OR p_sees_tenant), '[]'),
               'others', count(*) FILTER (WHERE NOT (e.owner_principal = p_owner OR p_sees_tenant)),
               'frees_in_ms', greatest(0, extract(epoch FROM min(coalesce(e.expires_at, e.lease_expires_at)) - read_at) * 1000)::bigint)
        INTO detail
        FROM pathbox.execution_contexts e
       WHERE e.tenant_id = p_tenant AND e.status IN ('creating', 'ready')
         AND (v_scope = 'tenant' OR e.owner_principal = p_owner AND e.conversation_id = p_conversation);
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
    INSERT INTO pathbox.executions (id, tenant_id, owner_principal, conversation_id, path_id, context_id, owner, tool, language, purpose,
        code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, lease_expires_at,
        created_at, started_at, queued_ms)
    VALUES (p_id, p_tenant, p_owner, p_conversation, p_path, v_context, p_replica, p_tool, p_language, p_purpose,
        p_code_sha256, p_principal, p_trace_id, p_key, p_args_sha256, v_status, p_run_lease_ms, read_at + v_lease,
        read_at, CASE v_status WHEN 'running' THEN read_at END, CASE v_status WHEN 'running' THEN 0 END)
    ON CONFLICT DO NOTHING;
  ELSIF v_status = 'queued' AND mine.status = 'queued' AND outcome <> 'create'
        AND mine.lease_expires_at > read_at + v_lease / 2 THEN
    RETURN;                                       -- its place is safe for long enough: nothing to write
  ELSE
    UPDATE pathbox.executions x
       SET status = v_status, context_id = v_context, owner = p_replica, lease_expires_at = read_at + v_lease,
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
    SELECT e.end_reason, e.template INTO previous, v_template FROM pathbox.execution_contexts e
     WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
       AND e.ended_at IS NOT NULL AND e.ready_at IS NOT NULL
     ORDER BY e.ended_at DESC LIMIT 1;
    IF v_takeover THEN
      INSERT INTO pathbox.doomed_sandboxes (tenant_id, context_id, epoch, reason, not_before)
      VALUES (p_tenant, c.id, c.lease_epoch, 'its creator is gone', read_at + v_timeout);
      UPDATE pathbox.execution_contexts e
         SET lease_epoch = e.lease_epoch + 1, lease_owner = p_replica, lease_expires_at = read_at + v_lease,
             creator_execution = p_id
       WHERE e.id = c.id RETURNING e.* INTO c;
    ELSIF c.id IS DISTINCT FROM v_context THEN
      INSERT INTO pathbox.execution_contexts (id, tenant_id, owner_principal, conversation_id, path_id, lease_owner,
          lease_expires_at, due_at, creator_execution)
      VALUES (v_context, p_tenant, p_owner, p_conversation, p_path, p_replica, read_at + v_lease, read_at + v_lease, p_id)
      RETURNING * INTO c;
    END IF;
  END IF;
  IF outcome = 'ready' AND c.lease_owner <> p_replica THEN
    UPDATE pathbox.execution_contexts e SET lease_owner = p_replica, lease_wanted_at = NULL
     WHERE e.id = c.id RETURNING e.* INTO c;
  END IF;
  IF outcome IN ('ready', 'create') THEN
    ctx := c;
  END IF;
  IF outcome = 'create' THEN
    ctx.template := v_template;                   -- what the key's sandbox before was made from
  END IF;
  IF outcome = 'ready' THEN
    SELECT array_agg(p.kind), array_agg(p.value_hash), array_agg(p.number) INTO kinds, hashes, numbers
      FROM pathbox.placeholders p
     WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path;
  END IF;
END $$;

-- For the program before this migration, which does not name the owner.
CREATE OR REPLACE FUNCTION pathbox.acquire_v1(
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
  a record;
BEGIN
  SELECT * INTO a FROM pathbox.acquire_v2(p_tenant, pathbox.all_owner_of_v1(p_principal), p_conversation, p_path,
      p_context, p_owner, false, p_id, p_tool, p_language, p_purpose, p_code_sha256, p_principal, p_trace_id, p_key,
      p_args_sha256, p_run_lease_ms, p_per_tenant, p_per_conversation, p_max_executions, p_create_lease_ms,
      p_create_timeout_ms, p_key_ttl_ms, p_queue_lease_ms);
  outcome := a.outcome; ctx := a.ctx; run := a.run; ahead := a.ahead; wait_ms := a.wait_ms; previous := a.previous;
  read_at := a.read_at; kinds := a.kinds; hashes := a.hashes; numbers := a.numbers;
  -- the older program reads pairs
  detail := CASE WHEN a.outcome = 'limit' THEN jsonb_set(a.detail, '{holders}',
                (SELECT coalesce(jsonb_agg(jsonb_build_array(h->0, h->1)), '[]') FROM jsonb_array_elements(a.detail->'holders') h))
                 ELSE a.detail END;
END $$;

-- (the keys are the worker's to read)
CREATE FUNCTION pathbox.all_owner_of_v1(p_principal text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT pathbox.owner_of(p_principal)
$$;

-- ---- the run -------------------------------------------------------------------------------------

CREATE FUNCTION pathbox.record_v2(
    p_tenant text, p_id uuid, p_context uuid, p_status text, p_exit_code integer, p_error text,
    p_duration_ms bigint, p_queued_ms bigint, p_output_bytes bigint, p_findings json, p_result json,
    p_always_keep boolean, p_provider_ends_at timestamptz, p_ttl_ms bigint, p_ended_at timestamptz,
    p_unasked jsonb
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_ended timestamptz;
  k       record;
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  PERFORM FROM pathbox.execution_contexts e WHERE e.id = p_context AND e.tenant_id = p_tenant FOR NO KEY UPDATE;
  v_ended := coalesce(p_ended_at, clock_timestamp());
  IF p_unasked IS NOT NULL THEN
    INSERT INTO pathbox.executions (id, tenant_id, owner_principal, conversation_id, path_id, context_id, owner, tool, language, purpose,
        code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, finished_at,
        created_at, started_at)
    VALUES (p_id, p_tenant, p_unasked->>'owner_principal', p_unasked->>'conversation', p_unasked->>'path', p_context, p_unasked->>'owner',
        p_unasked->>'tool', p_unasked->>'language', p_unasked->>'purpose', p_unasked->>'code_sha256',
        p_unasked->>'principal', p_unasked->>'trace_id', p_unasked->>'key', p_unasked->>'args_sha256',
        'interrupted', (p_unasked->>'run_lease_ms')::bigint, v_ended,
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

CREATE FUNCTION pathbox.abandon_v2(p_tenant text, p_id uuid, p_status text, p_error text) RETURNS boolean
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
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM pathbox.wake(x.tenant_id, x.owner_principal, x.conversation_id, x.path_id)
     FROM pathbox.executions x WHERE x.id = p_id;
  RETURN true;
END $$;

-- ---- paths, placeholders -------------------------------------------------------------------------

CREATE FUNCTION pathbox.change_path_v2(
    p_tenant text, p_owner text, p_conversation text, p_path text, p_change text, p_other text, p_message text, p_expected bigint,
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
    WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id IN (p_path, p_other)
    ORDER BY p.path_id FOR UPDATE;
  SELECT p.* INTO path FROM pathbox.conversation_paths p
   WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path;
  SELECT p.* INTO other FROM pathbox.conversation_paths p
   WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_other;

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
    INSERT INTO pathbox.conversation_paths (tenant_id, owner_principal, conversation_id, path_id, parent_id, branched_at_message)
    VALUES (p_tenant, p_owner, p_conversation, p_path, p_other, p_message)
    ON CONFLICT DO NOTHING RETURNING * INTO path;
    IF NOT FOUND THEN
      outcome := 'again';                         -- registered a moment ago
    END IF;
    RETURN;
  END IF;
  UPDATE pathbox.conversation_paths p
     SET version = p.version + 1, updated_at = clock_timestamp(),
         status = coalesce(v_closed, p.status), merged_into = coalesce(p_other, p.merged_into)
   WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path
  RETURNING p.* INTO path;
  IF v_closed IS NOT NULL THEN
    SELECT e.id INTO v_live FROM pathbox.execution_contexts e
     WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
       AND e.status IN ('creating', 'ready');
    PERFORM pathbox.end_context(v_live, v_closed, NULL, p_create_timeout_ms * interval '1 ms');
  END IF;
END $$;

CREATE FUNCTION pathbox.paths_v2(p_tenant text, p_owner text, p_conversation text, p_deleted boolean)
RETURNS SETOF pathbox.conversation_paths
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT p.* FROM pathbox.conversation_paths p
    WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation AND (p_deleted OR p.status <> 'deleted')
    ORDER BY p.created_at, p.path_id;
END $$;

CREATE FUNCTION pathbox.placeholders_v2(p_tenant text, p_owner text, p_conversation text, p_path text)
RETURNS SETOF pathbox.placeholders
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT p.* FROM pathbox.placeholders p
    WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path
    ORDER BY p.kind, p.number;
END $$;

CREATE FUNCTION pathbox.save_placeholders_v2(p_tenant text, p_owner text, p_conversation text, p_path text, p_kinds text[],
                                             p_hashes text[], p_numbers integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  INSERT INTO pathbox.placeholders (tenant_id, owner_principal, conversation_id, path_id, kind, value_hash, number)
  SELECT p_tenant, p_owner, p_conversation, p_path, t.kind, t.hash, t.number
    FROM unnest(p_kinds, p_hashes, p_numbers) t(kind, hash, number)
   ORDER BY t.kind, t.hash                        -- one order, so that two savers cannot wait for each other
  ON CONFLICT DO NOTHING;
END $$;

-- ---- reading -------------------------------------------------------------------------------------

CREATE FUNCTION pathbox.live_v2(p_tenant text, p_owner text, p_conversation text, p_path text) RETURNS SETOF pathbox.execution_contexts
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT e.* FROM pathbox.execution_contexts e
    WHERE e.tenant_id = p_tenant AND e.owner_principal = p_owner AND e.conversation_id = p_conversation
     AND e.path_id = p_path
      AND e.status IN ('creating', 'ready');
END $$;

-- p_owner NULL: every principal's of the tenant.
CREATE FUNCTION pathbox.contexts_v2(p_tenant text, p_owner text, p_conversation text, p_ended boolean, p_limit integer)
RETURNS SETOF pathbox.execution_contexts
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT e.* FROM pathbox.execution_contexts e
    WHERE e.tenant_id = p_tenant AND (p_owner IS NULL OR e.owner_principal = p_owner)
      AND (p_conversation IS NULL OR e.conversation_id = p_conversation)
      AND (p_ended OR e.status IN ('creating', 'ready'))
    ORDER BY e.created_at DESC, e.id DESC LIMIT p_limit;
END $$;

-- p_owner NULL: every principal's of the tenant; else what belongs to it, and what p_principal itself asked for.
CREATE FUNCTION pathbox.executions_v2(p_tenant text, p_owner text, p_principal text, p_conversation text,
                                      p_context uuid, p_limit integer)
RETURNS SETOF pathbox.executions
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT x.* FROM pathbox.executions x
    WHERE x.tenant_id = p_tenant AND (p_owner IS NULL OR x.owner_principal = p_owner OR x.principal = p_principal)
      AND (p_conversation IS NULL OR x.conversation_id = p_conversation)
      AND (p_context IS NULL OR x.context_id = p_context)
    ORDER BY x.created_at DESC, x.seq DESC LIMIT p_limit;
END $$;

-- ---- shares --------------------------------------------------------------------------------------

-- Whether a share was given or taken that was not there, or was.
CREATE FUNCTION pathbox.share_v1(p_tenant text, p_owner text, p_conversation text, p_principal text, p_given boolean)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  IF p_given THEN
    INSERT INTO pathbox.conversation_shares (tenant_id, owner_principal, conversation_id, principal)
    VALUES (p_tenant, p_owner, p_conversation, p_principal) ON CONFLICT DO NOTHING;
  ELSE
    DELETE FROM pathbox.conversation_shares s
     WHERE s.tenant_id = p_tenant AND s.owner_principal = p_owner AND s.conversation_id = p_conversation
       AND s.principal = p_principal;
  END IF;
  RETURN FOUND;
END $$;

-- Shares of one owner, or with one principal; NULL is any.
CREATE FUNCTION pathbox.shares_v1(p_tenant text, p_owner text, p_conversation text, p_principal text)
RETURNS SETOF pathbox.conversation_shares
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT s.* FROM pathbox.conversation_shares s
    WHERE s.tenant_id = p_tenant AND (p_owner IS NULL OR s.owner_principal = p_owner)
      AND (p_conversation IS NULL OR s.conversation_id = p_conversation)
      AND (p_principal IS NULL OR s.principal = p_principal)
    ORDER BY s.created_at, s.principal LIMIT 1000;
END $$;

-- ---- replicas ------------------------------------------------------------------------------------

-- A replica is alive for so long, and learns which of its contexts others wait for. Whoever was alive before and still
-- is clears up after those that are not: their runs are interrupted, what they were making is free, and so are their
-- contexts, for a replica without a row holds nothing. p_lease_ms 0: it goes.
CREATE FUNCTION pathbox.heartbeat_v1(p_replica text, p_version text, p_lease_ms bigint)
RETURNS TABLE (tenant_id text, owner_principal text, conversation_id text, path_id text, id uuid)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_alive boolean := EXISTS (SELECT FROM pathbox.replicas r WHERE r.id = p_replica AND r.alive_until > clock_timestamp());
  v_dead  text;
  n       bigint;
BEGIN
  INSERT INTO pathbox.replicas AS r (id, version, alive_until)
  VALUES (p_replica, p_version, clock_timestamp() + p_lease_ms * interval '1 ms')
  ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until, version = excluded.version;
  IF v_alive THEN
    FOR v_dead IN SELECT r.id FROM pathbox.replicas r WHERE r.alive_until <= clock_timestamp() AND r.id <> p_replica
                   LIMIT 10 FOR UPDATE SKIP LOCKED LOOP
      -- Only what still runs: a row that is locked for nothing is one that a clean-up pass skips.
      UPDATE pathbox.execution_contexts e SET lease_expires_at = clock_timestamp()
       WHERE e.status = 'creating' AND e.lease_owner = v_dead AND e.lease_expires_at > clock_timestamp();
      WITH gone AS (
        -- one that never started leaves its key free
        UPDATE pathbox.executions x
           SET status = 'interrupted', finished_at = clock_timestamp(), lease_expires_at = NULL,
               idempotency_key = CASE x.status WHEN 'running' THEN x.idempotency_key END,
               args_sha256     = CASE x.status WHEN 'running' THEN x.args_sha256 END
         WHERE x.status IN ('queued', 'running') AND x.owner = v_dead
        RETURNING x.tenant_id, x.owner_principal, x.conversation_id, x.path_id
      )
      SELECT count(*) FROM (SELECT pathbox.wake(g.tenant_id, g.owner_principal, g.conversation_id, g.path_id)
                              FROM (SELECT DISTINCT * FROM gone) g) w INTO n;
      DELETE FROM pathbox.replicas r WHERE r.id = v_dead;
    END LOOP;
  END IF;
  RETURN QUERY SELECT e.tenant_id, e.owner_principal, e.conversation_id, e.path_id, e.id
    FROM pathbox.execution_contexts e WHERE e.lease_owner = p_replica AND e.lease_wanted_at IS NOT NULL LIMIT 1000;
END $$;

-- A replica lets go of a context; it must have forgotten it before.
CREATE FUNCTION pathbox.release_v1(p_tenant text, p_id uuid, p_replica text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  UPDATE pathbox.execution_contexts e SET lease_owner = '', lease_wanted_at = NULL
   WHERE e.id = p_id AND e.tenant_id = p_tenant AND e.status = 'ready' AND e.lease_owner = p_replica;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM pathbox.wake(e.tenant_id, e.owner_principal, e.conversation_id, e.path_id)
     FROM pathbox.execution_contexts e WHERE e.id = p_id;
  RETURN true;
END $$;

-- A run goes on, or its result is being put away.
CREATE FUNCTION pathbox.renew_run_v1(p_tenant text, p_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  UPDATE pathbox.executions x SET lease_expires_at = greatest(x.lease_expires_at, clock_timestamp() + interval '60 s')
   WHERE x.id = p_id AND x.tenant_id = p_tenant AND x.status = 'running';
  RETURN FOUND;
END $$;

-- ---- clean-up, over all tenants ------------------------------------------------------------------

CREATE FUNCTION pathbox.reap_v2(p_batch integer, p_retention_ms bigint, p_create_timeout_ms bigint, p_key_ttl_ms bigint,
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

  -- with the last context of a key go its placeholder numbers and, once nothing is left of it, nothing else
  WITH old AS (
    DELETE FROM pathbox.execution_contexts e
     WHERE e.id IN (SELECT d.id FROM pathbox.execution_contexts d WHERE d.ended_at < v_old
                     LIMIT p_batch FOR UPDATE SKIP LOCKED)
    RETURNING e.tenant_id, e.owner_principal, e.conversation_id, e.path_id, e.id
  ), numbers AS (
    DELETE FROM pathbox.placeholders p USING old o
     WHERE p.tenant_id = o.tenant_id AND p.owner_principal = o.owner_principal
       AND p.conversation_id = o.conversation_id AND p.path_id = o.path_id
       AND NOT EXISTS (SELECT FROM pathbox.execution_contexts e
                        WHERE e.tenant_id = o.tenant_id AND e.owner_principal = o.owner_principal
                          AND e.conversation_id = o.conversation_id AND e.path_id = o.path_id
                          AND e.id NOT IN (SELECT gone.id FROM old gone))
  )
  SELECT count(*) INTO deleted FROM old;
  DELETE FROM pathbox.executions x
   WHERE x.id IN (SELECT d.id FROM pathbox.executions d
                   WHERE d.finished_at < v_old
                     AND (d.idempotency_key IS NULL OR d.created_at < clock_timestamp() - p_key_ttl_ms * interval '1 ms')
                   LIMIT p_batch FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS n = ROW_COUNT;
  deleted := deleted + n;
END $$;

-- p_tenant NULL: every tenant's.
CREATE FUNCTION pathbox.owned_v2(p_tenant text, p_min_age_ms bigint, p_after uuid, p_limit integer)
RETURNS SETOF pathbox.execution_contexts
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT e.* FROM pathbox.execution_contexts e
   WHERE e.status = 'ready' AND e.ready_at <= clock_timestamp() - p_min_age_ms * interval '1 ms'
     AND (p_tenant IS NULL OR e.tenant_id = p_tenant) AND (p_after IS NULL OR e.id > p_after)
   ORDER BY e.id LIMIT p_limit
$$;

-- ready_v1, with what the sandbox was made from.
CREATE FUNCTION pathbox.ready_v2(
    p_tenant text, p_id uuid, p_epoch bigint, p_execution uuid,
    p_sandbox text, p_domain text, p_host_url text, p_host_key_enc bytea, p_envd_token_enc bytea,
    p_traffic_token_enc bytea, p_mcp_url text, p_mcp_token_enc bytea, p_provider_ends_at timestamptz, p_ttl_ms bigint,
    p_template text,
    OUT ctx pathbox.execution_contexts, OUT read_at timestamptz
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r record;
BEGIN
  SELECT * INTO r FROM pathbox.ready_v1(p_tenant, p_id, p_epoch, p_execution, p_sandbox, p_domain, p_host_url,
      p_host_key_enc, p_envd_token_enc, p_traffic_token_enc, p_mcp_url, p_mcp_token_enc, p_provider_ends_at, p_ttl_ms);
  ctx := r.ctx;
  read_at := r.read_at;
  IF ctx.id IS NOT NULL AND ctx.template IS DISTINCT FROM p_template THEN
    UPDATE pathbox.execution_contexts e SET template = p_template WHERE e.id = p_id RETURNING e.* INTO ctx;
  END IF;
END $$;

-- ---- owners --------------------------------------------------------------------------------------

-- Every function of the schema gets its owner and grants anew, by its own name. Before, functions were told apart by how
-- Postgres prints them, which leaves the schema out for a login named like it: with such a login clean-up had the wrong
-- owner and never worked.
DO $$
DECLARE
  f     record;
  owner text;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app, pathbox_worker;      -- an owner needs it for a moment
  FOR f IN SELECT p.oid::regprocedure AS name, p.proname FROM pg_proc p WHERE p.pronamespace = 'pathbox'::regnamespace LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    IF f.proname LIKE 'guard\_%' THEN
      CONTINUE;
    ELSIF f.proname IN ('end_context', 'end_due', 'is_dead', 'is_anothers', 'wake', 'owner_of') THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_app, pathbox_worker', f.name);
      CONTINUE;
    ELSIF f.proname = 'bound_tenant' THEN
      GRANT EXECUTE ON FUNCTION pathbox.bound_tenant() TO pathbox_tenant;
      owner := 'pathbox_worker';
    ELSE
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
      owner := CASE WHEN f.proname ~ '^(all_|reap_|doomed_|buried_|bury_failed_|unowned_|owned_|set_tenant_limits_|heartbeat_|api_keys_|add_api_key_|revoke_api_key_|record_reveal_|reveals_|note_session_|session_facts_|recent_session_facts_)'
                    THEN 'pathbox_worker' ELSE 'pathbox_app' END;
    END IF;
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f.name, owner);
  END LOOP;
  GRANT EXECUTE ON FUNCTION pathbox.all_owner_of_v1(text) TO pathbox_app;
  GRANT SELECT ON pathbox.api_keys TO pathbox_worker;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app, pathbox_worker;
END $$;
