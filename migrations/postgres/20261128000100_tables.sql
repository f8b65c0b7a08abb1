-- Tables, who may see which rows, and the guard that keeps ended rows as they were.
--
-- Runs on PostgreSQL 15 and later, as a superuser or as an owner with CREATEROLE (Supabase's `postgres`). Everything
-- lives in schema "pathbox", never "public": Supabase publishes that over PostgREST. The schema itself is made by the
-- migrator, which keeps its own table there.

REVOKE ALL ON SCHEMA pathbox FROM PUBLIC;

-- Roles without login, and without BYPASSRLS:
--   pathbox_app     owns the functions that act for one tenant; row-level security binds it to that tenant
--   pathbox_worker  owns the functions that act over all tenants (clean-up, operators)
--   pathbox_server  may call those functions, and nothing else: granted to a login that serves and owns nothing
--   pathbox_tenant  for people and reports: granted to a login, it reads its tenant's rows and writes nothing
-- Whoever connects only calls functions, and inside them the *owner* counts. So row-level security holds even when
-- the connection is a superuser or has BYPASSRLS.
DO $$
DECLARE
  r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['pathbox_app', 'pathbox_worker', 'pathbox_tenant', 'pathbox_server'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = r);
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', r);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;                                     -- another database of this cluster made it a moment ago
    END;
  END LOOP;
  IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
    EXECUTE format('GRANT pathbox_app, pathbox_worker TO %I', current_user);     -- to hand functions over
  END IF;
END $$;

-- ---- execution contexts: a row is one life; ended rows stay for audit ---------------------------

CREATE TABLE pathbox.execution_contexts (
    id                  uuid        PRIMARY KEY,                    -- UUIDv7 from the server
    tenant_id           text        NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    conversation_id     text        NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id             text        NOT NULL CHECK (length(path_id)         BETWEEN 1 AND 128),

    status              text        NOT NULL DEFAULT 'creating'
                        CHECK (status IN ('creating', 'ready', 'terminated', 'error')),
    end_reason          text
                        CHECK (end_reason IN ('expired', 'error', 'manual', 'merged', 'archived', 'deleted',
                                              'rotated', 'lost')),

    -- the creator's lease; lease_epoch is the fencing token and never goes back
    lease_owner         text        NOT NULL,
    lease_epoch         bigint      NOT NULL DEFAULT 1,
    lease_expires_at    timestamptz,
    creator_execution   uuid        NOT NULL,                       -- the run that the sandbox is being made for

    -- the sandbox; what ends in _enc is sealed by the server (src/store/secrets.rs)
    sandbox_id          text,
    sandbox_domain      text,
    host_url            text,
    host_key_enc        bytea,
    envd_token_enc      bytea,
    traffic_token_enc   bytea,
    mcp_url             text,
    mcp_token_enc       bytea,
    provider_ends_at    timestamptz,

    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    ready_at            timestamptz,
    last_used_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at          timestamptz,                                -- slides; not indexed, so that updates stay HOT
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at            timestamptz,

    execution_count     bigint      NOT NULL DEFAULT 0,
    total_execution_ms  bigint      NOT NULL DEFAULT 0,
    last_error          text,                                       -- the platform's failures only
    resource_usage      jsonb       NOT NULL DEFAULT '{}',          -- sums over all runs: output_bytes, queued_ms

    CONSTRAINT creating_has_lease CHECK (status <> 'creating' OR lease_expires_at IS NOT NULL),
    CONSTRAINT ready_has_sandbox  CHECK (status <> 'ready' OR (sandbox_id IS NOT NULL AND ready_at IS NOT NULL
                                                               AND expires_at IS NOT NULL)),
    CONSTRAINT ended_iff_frozen   CHECK ((status IN ('terminated', 'error')) = (ended_at IS NOT NULL)
                                         AND (ended_at IS NULL) = (end_reason IS NULL)),
    CONSTRAINT error_iff_error    CHECK ((status = 'error') = (end_reason IS NOT DISTINCT FROM 'error')),
    CONSTRAINT no_secrets_at_rest CHECK (ended_at IS NULL OR (host_key_enc IS NULL AND envd_token_enc IS NULL
                                         AND traffic_token_enc IS NULL AND mcp_token_enc IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- THE invariant: one live context a key. Also finds it, and counts a tenant's.
CREATE UNIQUE INDEX execution_contexts_live ON pathbox.execution_contexts (tenant_id, conversation_id, path_id)
    WHERE status IN ('creating', 'ready');
-- a sandbox belongs to one row, for ever
CREATE UNIQUE INDEX execution_contexts_sandbox ON pathbox.execution_contexts (sandbox_id, host_url) NULLS NOT DISTINCT
    WHERE sandbox_id IS NOT NULL;
-- how a key's last context ended
CREATE INDEX execution_contexts_history ON pathbox.execution_contexts
    (tenant_id, conversation_id, path_id, ended_at DESC) WHERE ended_at IS NOT NULL;
-- retention
CREATE INDEX execution_contexts_ended ON pathbox.execution_contexts (ended_at) WHERE ended_at IS NOT NULL;

-- ---- executions: a row a run; the queue of each key and the ledger of idempotency keys ----------

CREATE TABLE pathbox.executions (
    id                  uuid        PRIMARY KEY,
    seq                 bigint      GENERATED BY DEFAULT AS IDENTITY,   -- order of arrival, over all replicas
    tenant_id           text        NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    conversation_id     text        NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id             text        NOT NULL CHECK (length(path_id)         BETWEEN 1 AND 128),
    context_id          uuid,                                       -- no foreign key: retention may take it first
    owner               text        NOT NULL,                       -- which replica runs it

    tool                text        NOT NULL,
    language            text        NOT NULL,
    purpose             text,
    code_sha256         text        NOT NULL,
    principal           text,
    trace_id            text,
    idempotency_key     text        CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    args_sha256         text,

    status              text        NOT NULL
                        CHECK (status IN ('queued', 'running', 'completed', 'timed_out', 'cancelled', 'died',
                                          'failed', 'interrupted')),
    run_lease_ms        bigint      NOT NULL,                       -- how long a run may hold its context
    lease_expires_at    timestamptz,                                -- queued: keeps its place until; running: is alive until
    stop_asked_at       timestamptz,                                -- another replica was asked to stop it

    exit_code           integer,
    error               text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at          timestamptz,
    finished_at         timestamptz,
    duration_ms         bigint,
    queued_ms           bigint,
    output_bytes        bigint,
    -- json, not jsonb: kept as written, and program output may hold \u0000, which jsonb refuses
    findings            json        NOT NULL DEFAULT '{}',
    result              json,

    CONSTRAINT live_has_lease     CHECK ((status IN ('queued', 'running')) = (lease_expires_at IS NOT NULL)),
    CONSTRAINT finished_iff_over  CHECK ((status IN ('queued', 'running')) = (finished_at IS NULL)),
    CONSTRAINT running_on_context CHECK (status <> 'running' OR (context_id IS NOT NULL AND started_at IS NOT NULL)),
    CONSTRAINT key_has_arguments  CHECK ((idempotency_key IS NULL) = (args_sha256 IS NULL))
) WITH (fillfactor = 70);

-- one run at a time on a context
CREATE UNIQUE INDEX executions_running ON pathbox.executions (context_id) WHERE status = 'running';
-- the queue of a key
CREATE INDEX executions_queue ON pathbox.executions (tenant_id, conversation_id, path_id, seq)
    WHERE status IN ('queued', 'running');
-- at most one run a key
CREATE UNIQUE INDEX executions_idempotency ON pathbox.executions (tenant_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
-- lists, newest first; retention
CREATE INDEX executions_by_tenant  ON pathbox.executions (tenant_id, conversation_id, created_at DESC);
CREATE INDEX executions_by_context ON pathbox.executions (context_id);
CREATE INDEX executions_finished   ON pathbox.executions (finished_at) WHERE finished_at IS NOT NULL;

-- ---- the outbox: sandboxes that must die ---------------------------------------------------------

-- Written in the transaction that ends or fences off a context, deleted when the provider says that the sandbox is
-- gone. Without a sandbox_id it means "whatever carries the tag <context_id>/<epoch>": the creator died before it
-- could say.
CREATE TABLE pathbox.doomed_sandboxes (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id       text        NOT NULL,
    context_id      uuid        NOT NULL,
    epoch           bigint      NOT NULL,
    sandbox_id      text,
    sandbox_domain  text,
    host_url        text,                                           -- a local host is reached with these two
    host_key_enc    bytea,
    reason          text        NOT NULL,
    not_before      timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts        integer     NOT NULL DEFAULT 0,
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX doomed_sandboxes_due ON pathbox.doomed_sandboxes (not_before);

-- ---- the host application's conversation tree ----------------------------------------------------

CREATE TABLE pathbox.conversation_paths (
    tenant_id           text        NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    conversation_id     text        NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id             text        NOT NULL CHECK (length(path_id)         BETWEEN 1 AND 128),
    parent_id           text        CHECK (parent_id <> path_id),
    branched_at_message text,
    merged_into         text        CHECK (merged_into <> path_id),
    status              text        NOT NULL DEFAULT 'active'
                        CHECK (status IN ('active', 'merged', 'archived', 'deleted')),
    version             bigint      NOT NULL DEFAULT 1,             -- the ETag
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, conversation_id, path_id),
    FOREIGN KEY (tenant_id, conversation_id, parent_id)   REFERENCES pathbox.conversation_paths,
    FOREIGN KEY (tenant_id, conversation_id, merged_into) REFERENCES pathbox.conversation_paths,
    CONSTRAINT merged_has_target CHECK (status <> 'merged' OR merged_into IS NOT NULL)
);

-- ---- small things --------------------------------------------------------------------------------

-- Which limits differ from the configured ones; NULL is the configured one.
CREATE TABLE pathbox.tenant_limits (
    tenant_id        text    PRIMARY KEY CHECK (length(tenant_id) BETWEEN 1 AND 128),
    per_tenant       integer CHECK (per_tenant >= 0),
    per_conversation integer CHECK (per_conversation >= 0)
);

-- The guard's numbering: [EMAIL_1] stays the same address in a key's conversation path. The value itself is not
-- here, only a keyed hash of it.
CREATE TABLE pathbox.placeholders (
    tenant_id       text        NOT NULL,
    conversation_id text        NOT NULL,
    path_id         text        NOT NULL,
    kind            text        NOT NULL,
    value_hash      text        NOT NULL,
    number          integer     NOT NULL CHECK (number > 0),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, conversation_id, path_id, kind, value_hash),
    UNIQUE (tenant_id, conversation_id, path_id, kind, number)
);

-- A login listed here is bound to its tenant, whatever it sets. One that has pathbox_tenant and is not listed is
-- bound to the tenant that its application names in the setting "pathbox.tenant_id".
CREATE TABLE pathbox.tenant_logins (
    login     name PRIMARY KEY,
    tenant_id text NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 128)
);

-- ---- row-level security --------------------------------------------------------------------------

-- session_user, because inside a SECURITY DEFINER function current_user is the function's owner.
CREATE FUNCTION pathbox.bound_tenant() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN coalesce((SELECT l.tenant_id FROM pathbox.tenant_logins l WHERE l.login = session_user),
                nullif(current_setting('pathbox.tenant_id', true), ''));

-- (SELECT ...) makes the tenant an InitPlan: evaluated once a statement, and the index is used. nullif(): a setting that
-- was once SET LOCAL reads back as '' for the rest of the session. The expression stands here and not in a function
-- because a call costs 60 µs, on each of the ten statements of a warm acquire.
DO $$
DECLARE
  t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['execution_contexts', 'executions', 'doomed_sandboxes', 'conversation_paths',
                           'tenant_limits', 'placeholders', 'tenant_logins'] LOOP
    EXECUTE format('ALTER TABLE pathbox.%I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE pathbox.%I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY worker_all ON pathbox.%I TO pathbox_worker USING (true) WITH CHECK (true)', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.%I TO pathbox_worker', t);
  END LOOP;
  FOREACH t IN ARRAY ARRAY['execution_contexts', 'executions', 'doomed_sandboxes', 'conversation_paths',
                           'tenant_limits', 'placeholders'] LOOP
    EXECUTE format('CREATE POLICY app_own_tenant ON pathbox.%I TO pathbox_app '
                   'USING (tenant_id = (SELECT nullif(current_setting(''pathbox.tenant_id'', true), ''''))) '
                   'WITH CHECK (tenant_id = (SELECT nullif(current_setting(''pathbox.tenant_id'', true), '''')))', t);
  END LOOP;
  FOREACH t IN ARRAY ARRAY['execution_contexts', 'executions', 'conversation_paths'] LOOP
    EXECUTE format('CREATE POLICY tenant_reads_own ON pathbox.%I FOR SELECT TO pathbox_tenant '
                   'USING (tenant_id = (SELECT pathbox.bound_tenant()))', t);
  END LOOP;
END $$;

GRANT USAGE ON SCHEMA pathbox TO pathbox_app, pathbox_worker, pathbox_tenant;
GRANT SELECT, INSERT, UPDATE ON pathbox.execution_contexts, pathbox.conversation_paths TO pathbox_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pathbox.executions TO pathbox_app;      -- a refused ask leaves no row
GRANT INSERT ON pathbox.doomed_sandboxes TO pathbox_app;
GRANT SELECT ON pathbox.tenant_limits TO pathbox_app;
GRANT SELECT, INSERT ON pathbox.placeholders TO pathbox_app;

-- What a tenant may read. No sandbox, no address, no token, no key.
GRANT SELECT (id, tenant_id, conversation_id, path_id, status, end_reason, created_at, ready_at, last_used_at,
              expires_at, updated_at, ended_at, execution_count, total_execution_ms, last_error, resource_usage)
    ON pathbox.execution_contexts TO pathbox_tenant;
GRANT SELECT (id, seq, tenant_id, conversation_id, path_id, context_id, tool, language, purpose, code_sha256,
              principal, trace_id, status, exit_code, error, created_at, started_at, finished_at, duration_ms,
              queued_ms, output_bytes, findings, result)
    ON pathbox.executions TO pathbox_tenant;
GRANT SELECT ON pathbox.conversation_paths TO pathbox_tenant;

-- ---- the guard: legal steps only, ended rows frozen, secrets wiped -------------------------------

CREATE FUNCTION pathbox.guard_context() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.ended_at IS NOT NULL THEN
    RAISE EXCEPTION 'context % has ended (%)', OLD.id, OLD.end_reason USING ERRCODE = 'check_violation';
  END IF;
  IF (NEW.id, NEW.tenant_id, NEW.conversation_id, NEW.path_id, NEW.created_at)
     IS DISTINCT FROM (OLD.id, OLD.tenant_id, OLD.conversation_id, OLD.path_id, OLD.created_at) THEN
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
    NEW.host_key_enc      := NULL;
    NEW.envd_token_enc    := NULL;
    NEW.traffic_token_enc := NULL;
    NEW.mcp_token_enc     := NULL;
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER guard_context BEFORE UPDATE ON pathbox.execution_contexts
    FOR EACH ROW EXECUTE FUNCTION pathbox.guard_context();

CREATE FUNCTION pathbox.guard_new_context() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.status <> 'creating' THEN
    RAISE EXCEPTION 'context % begins as %, not as creating', NEW.id, NEW.status USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER guard_new_context BEFORE INSERT ON pathbox.execution_contexts
    FOR EACH ROW EXECUTE FUNCTION pathbox.guard_new_context();

-- ---- for people ----------------------------------------------------------------------------------

-- security_invoker: the reader's row-level security and column grants count, not the view owner's.
CREATE VIEW pathbox.contexts WITH (security_invoker = true) AS
SELECT c.id, c.tenant_id, c.conversation_id, c.path_id, c.status, c.end_reason, c.created_at, c.ready_at,
       c.last_used_at, c.expires_at, c.ended_at, c.execution_count, c.total_execution_ms, c.last_error,
       c.resource_usage, r.id AS running_execution,
       -- a run keeps its context alive past the deadline
       c.status = 'ready' AND c.expires_at <= clock_timestamp() AND r.id IS NULL AS is_expired,
       CASE WHEN c.status = 'ready'
            THEN greatest(0, extract(epoch FROM c.expires_at - clock_timestamp()))::bigint
       END AS seconds_until_expiry
  FROM pathbox.execution_contexts c
  LEFT JOIN pathbox.executions r ON r.context_id = c.id AND r.status = 'running';
GRANT SELECT ON pathbox.contexts TO pathbox_tenant;
