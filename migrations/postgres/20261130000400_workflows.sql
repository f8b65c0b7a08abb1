-- Workflows: a log of events for each, and the results of its tasks (docs/adr/0053).
--
-- What a workflow's state is follows from its events alone, and only the program folds them. The database keeps three
-- promises: events of a workflow have the numbers 1, 2, 3, ... and each number is written once (`seq` of the workflow's row
-- is compared and set); whoever drives a workflow holds its lease, and a report under a lease that another has taken
-- (`lease_epoch`) is refused; results are written with the event that says that they are there.
--
-- Bodies and results are text: JSON of the program's own, which may hold what jsonb refuses (a NUL as an escape).
--
-- Serves programs from 0.1.0 on: tables of their own.

CREATE TABLE pathbox.workflows (
    id               uuid        PRIMARY KEY,
    tenant_id        text        NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 128),
    owner_principal  text        NOT NULL,
    principal        text        NOT NULL,
    sees_tenant      boolean     NOT NULL,
    conversation_id  text        NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id          text        NOT NULL CHECK (length(path_id) BETWEEN 1 AND 128),
    purpose          text,
    trace_id         text,
    idempotency_key  text        CHECK (length(idempotency_key) <= 300),
    args_sha256      text        NOT NULL,
    status           text        NOT NULL DEFAULT 'running'
                                 CHECK (status IN ('running', 'paused', 'aborting', 'completed', 'failed', 'aborted')),
    seq              bigint      NOT NULL DEFAULT 1,
    lease_owner      text,
    lease_epoch      bigint      NOT NULL DEFAULT 0,
    lease_expires_at timestamptz,
    wake_at          timestamptz,                   -- when somebody has to look at it; NULL: when something is written
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,
    CONSTRAINT over_iff_finished CHECK ((status IN ('completed', 'failed', 'aborted')) = (finished_at IS NOT NULL)),
    CONSTRAINT leased_iff_owned  CHECK ((lease_owner IS NULL) = (lease_expires_at IS NULL)),
    CONSTRAINT over_has_no_lease CHECK (finished_at IS NULL OR lease_owner IS NULL)
);

CREATE UNIQUE INDEX workflows_idempotency ON pathbox.workflows (tenant_id, owner_principal, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX workflows_of_tenant ON pathbox.workflows (tenant_id, created_at);
CREATE INDEX workflows_due       ON pathbox.workflows (wake_at) WHERE finished_at IS NULL AND lease_owner IS NULL;
CREATE INDEX workflows_leased    ON pathbox.workflows (lease_expires_at) WHERE lease_owner IS NOT NULL;
CREATE INDEX workflows_finished  ON pathbox.workflows (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE pathbox.workflow_events (
    workflow_id uuid        NOT NULL REFERENCES pathbox.workflows ON DELETE CASCADE,
    seq         bigint      NOT NULL,
    tenant_id   text        NOT NULL,
    at          timestamptz NOT NULL,
    format      int         NOT NULL DEFAULT 1,
    body        text        NOT NULL,
    PRIMARY KEY (workflow_id, seq)
);

CREATE TABLE pathbox.workflow_results (
    workflow_id uuid   NOT NULL REFERENCES pathbox.workflows ON DELETE CASCADE,
    task        text   NOT NULL CHECK (length(task) BETWEEN 1 AND 100),
    generation  int    NOT NULL,
    tenant_id   text   NOT NULL,
    body        text,                               -- NULL: it is an object (too large for a row)
    bytes       bigint NOT NULL,
    PRIMARY KEY (workflow_id, task, generation)
);

-- Results of hermetic tasks. The key is a hash of all that a result depends on, of tenant and owner too.
CREATE TABLE pathbox.task_cache (
    tenant_id       text        NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 128),
    key             text        NOT NULL CHECK (length(key) = 64),
    owner_principal text        NOT NULL,
    execution_id    uuid        NOT NULL,           -- the run that computed it
    language        text        NOT NULL,
    body            text        NOT NULL,
    bytes           bigint      NOT NULL CHECK (bytes >= 0),
    hits            bigint      NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, key)
);

CREATE INDEX task_cache_used ON pathbox.task_cache (tenant_id, used_at);
CREATE INDEX task_cache_age  ON pathbox.task_cache (created_at);

DO $$
DECLARE
  t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['workflows', 'workflow_events', 'workflow_results', 'task_cache'] LOOP
    EXECUTE format('ALTER TABLE pathbox.%I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE pathbox.%I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY worker_all ON pathbox.%I TO pathbox_worker USING (true) WITH CHECK (true)', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.%I TO pathbox_worker', t);
    EXECUTE format('CREATE POLICY tenant_reads_own ON pathbox.%I FOR SELECT TO pathbox_tenant '
                   'USING (tenant_id = (SELECT pathbox.bound_tenant()))', t);
  END LOOP;
END $$;

-- What a tenant may read: neither keys nor who drives it.
GRANT SELECT (id, tenant_id, owner_principal, principal, conversation_id, path_id, purpose, trace_id, status, seq, created_at,
              updated_at, finished_at)
    ON pathbox.workflows TO pathbox_tenant;
GRANT SELECT ON pathbox.workflow_events, pathbox.workflow_results, pathbox.task_cache TO pathbox_tenant;

-- ---- what is written stays as it is --------------------------------------------------------------

CREATE FUNCTION pathbox.guard_workflow() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.finished_at IS NOT NULL THEN
    RAISE EXCEPTION 'workflow % is over (%)', OLD.id, OLD.status USING ERRCODE = 'check_violation';
  END IF;
  IF (NEW.id, NEW.tenant_id, NEW.owner_principal, NEW.principal, NEW.sees_tenant, NEW.conversation_id, NEW.path_id, NEW.purpose,
      NEW.trace_id, NEW.idempotency_key, NEW.args_sha256, NEW.created_at)
     IS DISTINCT FROM
     (OLD.id, OLD.tenant_id, OLD.owner_principal, OLD.principal, OLD.sees_tenant, OLD.conversation_id, OLD.path_id, OLD.purpose,
      OLD.trace_id, OLD.idempotency_key, OLD.args_sha256, OLD.created_at)
     OR NEW.seq < OLD.seq OR NEW.lease_epoch < OLD.lease_epoch THEN
    RAISE EXCEPTION 'workflow % cannot change what it was', OLD.id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER guard_workflow BEFORE UPDATE ON pathbox.workflows
    FOR EACH ROW EXECUTE FUNCTION pathbox.guard_workflow();

-- Events and results go with their workflow, and not before.
CREATE FUNCTION pathbox.guard_workflow_log() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT FROM pathbox.workflows w WHERE w.id = OLD.workflow_id) THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION 'what is written of workflow % stays', OLD.workflow_id USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER guard_workflow_event BEFORE UPDATE OR DELETE ON pathbox.workflow_events
    FOR EACH ROW EXECUTE FUNCTION pathbox.guard_workflow_log();
CREATE TRIGGER guard_workflow_result BEFORE UPDATE OR DELETE ON pathbox.workflow_results
    FOR EACH ROW EXECUTE FUNCTION pathbox.guard_workflow_log();
REVOKE ALL ON FUNCTION pathbox.guard_workflow(), pathbox.guard_workflow_log() FROM PUBLIC;

-- A workflow and its first event; or the one of the same key (outcome `known`, or `conflict` for other arguments); or
-- `limit`, when the tenant has that many that are not over.
CREATE FUNCTION pathbox.create_workflow_v1(
    p_id uuid, p_tenant text, p_owner text, p_principal text, p_sees_tenant boolean, p_conversation text, p_path text,
    p_purpose text, p_trace text, p_key text, p_args text, p_event text, p_most int,
    OUT outcome text, OUT id uuid)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  known pathbox.workflows;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('pathbox workflows ' || p_tenant, 0));
  SELECT * INTO known FROM pathbox.workflows w
   WHERE w.id = p_id OR w.tenant_id = p_tenant AND w.owner_principal = p_owner AND w.idempotency_key = p_key;
  IF FOUND THEN
    id := known.id;
    outcome := CASE WHEN known.id = p_id OR known.args_sha256 = p_args THEN 'known' ELSE 'conflict' END;
    RETURN;
  END IF;
  IF (SELECT count(*) FROM pathbox.workflows w WHERE w.tenant_id = p_tenant AND w.finished_at IS NULL) >= p_most THEN
    outcome := 'limit';
    RETURN;
  END IF;
  INSERT INTO pathbox.workflows (id, tenant_id, owner_principal, principal, sees_tenant, conversation_id, path_id, purpose,
                                 trace_id, idempotency_key, args_sha256, wake_at)
  VALUES (p_id, p_tenant, p_owner, p_principal, p_sees_tenant, p_conversation, p_path, p_purpose, p_trace, p_key, p_args,
          clock_timestamp());
  INSERT INTO pathbox.workflow_events (workflow_id, seq, tenant_id, at, body)
  VALUES (p_id, 1, p_tenant, clock_timestamp(), p_event);
  id := p_id;
  outcome := 'created';
END $$;

-- Writes events behind number p_seq. `stale`: others were written there. `fenced`: p_holder does not hold the lease p_epoch;
-- a caller that drives nothing gives no holder. p_wake_ms: when to look again if the lease is let go of (p_release), NULL: not
-- by time. Without a holder the workflow is due at once.
CREATE FUNCTION pathbox.append_workflow_v1(
    p_id uuid, p_seq bigint, p_holder text, p_epoch bigint, p_status text, p_release boolean, p_wake_ms bigint,
    p_events text[], p_tasks text[], p_generations int[], p_bodies text[], p_bytes bigint[]) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  w    pathbox.workflows;
  over boolean := p_status IN ('completed', 'failed', 'aborted');
  now_ timestamptz;
BEGIN
  SELECT * INTO w FROM pathbox.workflows x WHERE x.id = p_id FOR UPDATE;
  now_ := clock_timestamp();
  IF NOT FOUND OR p_holder IS NOT NULL AND (w.lease_owner IS DISTINCT FROM p_holder OR w.lease_epoch <> p_epoch) THEN
    RETURN 'fenced';
  END IF;
  IF w.seq <> p_seq OR w.finished_at IS NOT NULL THEN
    RETURN 'stale';
  END IF;
  INSERT INTO pathbox.workflow_events (workflow_id, seq, tenant_id, at, body)
  SELECT p_id, p_seq + e.n, w.tenant_id, now_, e.body FROM unnest(p_events) WITH ORDINALITY AS e(body, n);
  INSERT INTO pathbox.workflow_results (workflow_id, task, generation, tenant_id, body, bytes)
  SELECT p_id, r.task, r.generation, w.tenant_id, r.body, r.bytes
    FROM unnest(p_tasks, p_generations, p_bodies, p_bytes) AS r(task, generation, body, bytes);
  UPDATE pathbox.workflows x
     SET seq = p_seq + cardinality(p_events), status = p_status, updated_at = now_,
         finished_at = CASE WHEN over THEN now_ END,
         lease_owner = CASE WHEN over OR p_release THEN NULL ELSE x.lease_owner END,
         lease_expires_at = CASE WHEN over OR p_release THEN NULL ELSE x.lease_expires_at END,
         wake_at = CASE WHEN over THEN NULL WHEN p_holder IS NULL THEN now_
                        WHEN p_release THEN now_ + p_wake_ms * interval '1 millisecond' ELSE x.wake_at END
   WHERE x.id = p_id;
  RETURN 'done';
END $$;

-- Takes workflows that are due and that nobody drives, or whose driver's lease is over.
CREATE FUNCTION pathbox.claim_workflows_v1(p_holder text, p_lease_ms bigint, p_most int) RETURNS SETOF pathbox.workflows
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pathbox.workflows w
     SET lease_owner = p_holder, lease_epoch = w.lease_epoch + 1,
         lease_expires_at = clock_timestamp() + p_lease_ms * interval '1 millisecond'
   WHERE w.id IN (SELECT d.id FROM pathbox.workflows d
                   WHERE d.finished_at IS NULL
                     AND (d.lease_owner IS NULL AND d.wake_at <= clock_timestamp() OR d.lease_expires_at <= clock_timestamp())
                   ORDER BY d.wake_at LIMIT p_most FOR UPDATE SKIP LOCKED)
     AND w.finished_at IS NULL
  RETURNING w.*;
$$;

-- Renews all leases of a holder. Gives the numbers of their last events: what others wrote shows so.
CREATE FUNCTION pathbox.renew_workflows_v1(p_holder text, p_lease_ms bigint) RETURNS TABLE (id uuid, lease_epoch bigint, seq bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pathbox.workflows w SET lease_expires_at = clock_timestamp() + p_lease_ms * interval '1 millisecond'
   WHERE w.lease_owner = p_holder AND w.lease_expires_at > clock_timestamp()
  RETURNING w.id, w.lease_epoch, w.seq;
$$;

CREATE FUNCTION pathbox.workflow_v1(p_tenant text, p_id uuid) RETURNS SETOF pathbox.workflows
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT w.* FROM pathbox.workflows w WHERE w.tenant_id = p_tenant AND w.id = p_id;
$$;

CREATE FUNCTION pathbox.workflows_v1(p_tenant text, p_owner text, p_live boolean, p_most int) RETURNS SETOF pathbox.workflows
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT w.* FROM pathbox.workflows w
   WHERE (p_tenant IS NULL OR w.tenant_id = p_tenant) AND (p_owner IS NULL OR w.owner_principal = p_owner)
     AND (NOT p_live OR w.finished_at IS NULL)
   ORDER BY w.created_at DESC LIMIT p_most;
$$;

CREATE FUNCTION pathbox.workflow_events_v1(p_id uuid, p_after bigint, p_most int) RETURNS SETOF pathbox.workflow_events
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT e.* FROM pathbox.workflow_events e WHERE e.workflow_id = p_id AND e.seq > p_after ORDER BY e.seq LIMIT p_most;
$$;

CREATE FUNCTION pathbox.workflow_results_v1(p_id uuid, p_tasks text[]) RETURNS SETOF pathbox.workflow_results
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.* FROM pathbox.workflow_results r WHERE r.workflow_id = p_id AND r.task = ANY (p_tasks) ORDER BY r.generation;
$$;

CREATE FUNCTION pathbox.forget_workflows_v1(p_retention_ms bigint, p_batch int) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone int;
BEGIN
  DELETE FROM pathbox.workflows w
   WHERE w.id IN (SELECT o.id FROM pathbox.workflows o
                   WHERE o.finished_at < clock_timestamp() - p_retention_ms * interval '1 millisecond'
                   ORDER BY o.finished_at LIMIT p_batch FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- A result that is young enough; it counts as used.
CREATE FUNCTION pathbox.cached_v1(p_tenant text, p_key text, p_age_ms bigint) RETURNS SETOF pathbox.task_cache
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pathbox.task_cache c SET hits = c.hits + 1, used_at = clock_timestamp()
   WHERE c.tenant_id = p_tenant AND c.key = p_key AND c.created_at > clock_timestamp() - p_age_ms * interval '1 millisecond'
  RETURNING c.*;
$$;

-- Keeps a result, and drops the tenant's least recently used ones beyond p_most bytes.
CREATE FUNCTION pathbox.cache_v1(
    p_tenant text, p_key text, p_owner text, p_execution uuid, p_language text, p_body text, p_bytes bigint, p_most bigint)
    RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO pathbox.task_cache AS c (tenant_id, key, owner_principal, execution_id, language, body, bytes)
  VALUES (p_tenant, p_key, p_owner, p_execution, p_language, p_body, p_bytes)
  ON CONFLICT (tenant_id, key) DO UPDATE
     SET execution_id = excluded.execution_id, body = excluded.body, bytes = excluded.bytes, hits = 0,
         created_at = excluded.created_at, used_at = excluded.used_at;
  DELETE FROM pathbox.task_cache c
   WHERE c.tenant_id = p_tenant
     AND c.key IN (SELECT s.key FROM (SELECT x.key, sum(x.bytes) OVER (ORDER BY x.used_at DESC, x.key) AS upto
                                        FROM pathbox.task_cache x WHERE x.tenant_id = p_tenant) s
                    WHERE s.upto > p_most);
END $$;

CREATE FUNCTION pathbox.cache_entries_v1(p_tenant text, p_most int)
    RETURNS TABLE (key text, owner_principal text, execution_id uuid, language text, bytes bigint, hits bigint,
                   created_at timestamptz, used_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.key, c.owner_principal, c.execution_id, c.language, c.bytes, c.hits, c.created_at, c.used_at
    FROM pathbox.task_cache c WHERE c.tenant_id = p_tenant ORDER BY c.used_at DESC, c.key LIMIT p_most;
$$;

CREATE FUNCTION pathbox.clear_cache_v1(p_tenant text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint;
BEGIN
  DELETE FROM pathbox.task_cache c WHERE c.tenant_id = p_tenant;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

CREATE FUNCTION pathbox.forget_cached_v1(p_age_ms bigint, p_batch int) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone int;
BEGIN
  DELETE FROM pathbox.task_cache c
   WHERE (c.tenant_id, c.key) IN (SELECT o.tenant_id, o.key FROM pathbox.task_cache o
                                   WHERE o.created_at <= clock_timestamp() - p_age_ms * interval '1 millisecond'
                                   ORDER BY o.created_at LIMIT p_batch FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

DO $$
DECLARE
  f regprocedure;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_worker;                     -- an owner needs it for a moment
  FOREACH f IN ARRAY ARRAY[
      'pathbox.create_workflow_v1(uuid, text, text, text, boolean, text, text, text, text, text, text, text, int)',
      'pathbox.append_workflow_v1(uuid, bigint, text, bigint, text, boolean, bigint, text[], text[], int[], text[], bigint[])',
      'pathbox.claim_workflows_v1(text, bigint, int)', 'pathbox.renew_workflows_v1(text, bigint)',
      'pathbox.workflow_v1(text, uuid)', 'pathbox.workflows_v1(text, text, boolean, int)',
      'pathbox.workflow_events_v1(uuid, bigint, int)', 'pathbox.workflow_results_v1(uuid, text[])',
      'pathbox.forget_workflows_v1(bigint, int)', 'pathbox.cached_v1(text, text, bigint)',
      'pathbox.cache_v1(text, text, text, uuid, text, text, bigint, bigint)', 'pathbox.cache_entries_v1(text, int)',
      'pathbox.clear_cache_v1(text)', 'pathbox.forget_cached_v1(bigint, int)']::regprocedure[] LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f);
    EXECUTE format('ALTER FUNCTION %s OWNER TO pathbox_worker', f);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_worker;
END $$;
