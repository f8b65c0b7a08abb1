-- The same tables as on Postgres, for one machine and its user (migrations/postgres explains the columns).
--
-- Times are whole milliseconds since 1970 (UTC), ids are text. There is no row-level security: whoever can open the
-- file can read it, so the file is for its owner alone. Tokens are sealed here as well.

CREATE TABLE execution_contexts (
    id                  TEXT    PRIMARY KEY,
    tenant_id           TEXT    NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    conversation_id     TEXT    NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id             TEXT    NOT NULL CHECK (length(path_id)         BETWEEN 1 AND 128),

    status              TEXT    NOT NULL DEFAULT 'creating'
                        CHECK (status IN ('creating', 'ready', 'terminated', 'error')),
    end_reason          TEXT
                        CHECK (end_reason IN ('expired', 'error', 'manual', 'merged', 'archived', 'deleted',
                                              'rotated', 'lost')),

    lease_owner         TEXT    NOT NULL,
    lease_epoch         INTEGER NOT NULL DEFAULT 1,
    lease_expires_at    INTEGER,
    creator_execution   TEXT    NOT NULL,

    sandbox_id          TEXT,
    sandbox_domain      TEXT,
    host_url            TEXT,
    host_key_enc        BLOB,
    envd_token_enc      BLOB,
    traffic_token_enc   BLOB,
    mcp_url             TEXT,
    mcp_token_enc       BLOB,
    provider_ends_at    INTEGER,

    created_at          INTEGER NOT NULL,
    ready_at            INTEGER,
    last_used_at        INTEGER NOT NULL,
    expires_at          INTEGER,
    updated_at          INTEGER NOT NULL,
    ended_at            INTEGER,

    execution_count     INTEGER NOT NULL DEFAULT 0,
    total_execution_ms  INTEGER NOT NULL DEFAULT 0,
    last_error          TEXT,
    resource_usage      TEXT    NOT NULL DEFAULT '{}',

    CONSTRAINT creating_has_lease CHECK (status <> 'creating' OR lease_expires_at IS NOT NULL),
    CONSTRAINT ready_has_sandbox  CHECK (status <> 'ready' OR (sandbox_id IS NOT NULL AND ready_at IS NOT NULL
                                                               AND expires_at IS NOT NULL)),
    CONSTRAINT ended_iff_frozen   CHECK ((status IN ('terminated', 'error')) = (ended_at IS NOT NULL)
                                         AND (ended_at IS NULL) = (end_reason IS NULL)),
    CONSTRAINT error_iff_error    CHECK ((status = 'error') = (end_reason IS 'error')),
    CONSTRAINT no_secrets_at_rest CHECK (ended_at IS NULL OR (host_key_enc IS NULL AND envd_token_enc IS NULL
                                         AND traffic_token_enc IS NULL AND mcp_token_enc IS NULL))
) STRICT;

-- THE invariant: one live context a key
CREATE UNIQUE INDEX execution_contexts_live ON execution_contexts (tenant_id, conversation_id, path_id)
    WHERE status IN ('creating', 'ready');
CREATE UNIQUE INDEX execution_contexts_sandbox ON execution_contexts (sandbox_id, coalesce(host_url, ''))
    WHERE sandbox_id IS NOT NULL;
CREATE INDEX execution_contexts_history ON execution_contexts (tenant_id, conversation_id, path_id, ended_at DESC)
    WHERE ended_at IS NOT NULL;
CREATE INDEX execution_contexts_ended ON execution_contexts (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE executions (
    seq                 INTEGER PRIMARY KEY AUTOINCREMENT,
    id                  TEXT    NOT NULL UNIQUE,
    tenant_id           TEXT    NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    conversation_id     TEXT    NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id             TEXT    NOT NULL CHECK (length(path_id)         BETWEEN 1 AND 128),
    context_id          TEXT,
    owner               TEXT    NOT NULL,

    tool                TEXT    NOT NULL,
    language            TEXT    NOT NULL,
    purpose             TEXT,
    code_sha256         TEXT    NOT NULL,
    principal           TEXT,
    trace_id            TEXT,
    idempotency_key     TEXT    CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    args_sha256         TEXT,

    status              TEXT    NOT NULL
                        CHECK (status IN ('queued', 'running', 'completed', 'timed_out', 'cancelled', 'died',
                                          'failed', 'interrupted')),
    run_lease_ms        INTEGER NOT NULL,
    lease_expires_at    INTEGER,
    stop_asked_at       INTEGER,

    exit_code           INTEGER,
    error               TEXT,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER,
    duration_ms         INTEGER,
    queued_ms           INTEGER,
    output_bytes        INTEGER,
    findings            TEXT    NOT NULL DEFAULT '{}',
    result              TEXT,

    CONSTRAINT live_has_lease     CHECK ((status IN ('queued', 'running')) = (lease_expires_at IS NOT NULL)),
    CONSTRAINT finished_iff_over  CHECK ((status IN ('queued', 'running')) = (finished_at IS NULL)),
    CONSTRAINT running_on_context CHECK (status <> 'running' OR (context_id IS NOT NULL AND started_at IS NOT NULL)),
    CONSTRAINT key_has_arguments  CHECK ((idempotency_key IS NULL) = (args_sha256 IS NULL))
) STRICT;

CREATE UNIQUE INDEX executions_running ON executions (context_id) WHERE status = 'running';
CREATE INDEX executions_queue ON executions (tenant_id, conversation_id, path_id, seq)
    WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX executions_idempotency ON executions (tenant_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_by_tenant  ON executions (tenant_id, conversation_id, created_at DESC);
CREATE INDEX executions_by_context ON executions (context_id);
CREATE INDEX executions_finished   ON executions (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE doomed_sandboxes (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant_id       TEXT    NOT NULL,
    context_id      TEXT    NOT NULL,
    epoch           INTEGER NOT NULL,
    sandbox_id      TEXT,
    sandbox_domain  TEXT,
    host_url        TEXT,
    host_key_enc    BLOB,
    reason          TEXT    NOT NULL,
    not_before      INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    last_error      TEXT,
    created_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX doomed_sandboxes_due ON doomed_sandboxes (not_before);

CREATE TABLE conversation_paths (
    tenant_id           TEXT    NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    conversation_id     TEXT    NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id             TEXT    NOT NULL CHECK (length(path_id)         BETWEEN 1 AND 128),
    parent_id           TEXT    CHECK (parent_id <> path_id),
    branched_at_message TEXT,
    merged_into         TEXT    CHECK (merged_into <> path_id),
    status              TEXT    NOT NULL DEFAULT 'active'
                        CHECK (status IN ('active', 'merged', 'archived', 'deleted')),
    version             INTEGER NOT NULL DEFAULT 1,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, conversation_id, path_id),
    FOREIGN KEY (tenant_id, conversation_id, parent_id)   REFERENCES conversation_paths,
    FOREIGN KEY (tenant_id, conversation_id, merged_into) REFERENCES conversation_paths,
    CONSTRAINT merged_has_target CHECK (status <> 'merged' OR merged_into IS NOT NULL)
) STRICT;

CREATE TABLE tenant_limits (
    tenant_id        TEXT    PRIMARY KEY CHECK (length(tenant_id) BETWEEN 1 AND 128),
    per_tenant       INTEGER CHECK (per_tenant >= 0),
    per_conversation INTEGER CHECK (per_conversation >= 0)
) STRICT;

CREATE TABLE placeholders (
    tenant_id       TEXT    NOT NULL,
    conversation_id TEXT    NOT NULL,
    path_id         TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    value_hash      TEXT    NOT NULL,
    number          INTEGER NOT NULL CHECK (number > 0),
    created_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, conversation_id, path_id, kind, value_hash),
    UNIQUE (tenant_id, conversation_id, path_id, kind, number)
) STRICT;

-- ---- the guard: legal steps only, ended rows frozen ----------------------------------------------
-- (A trigger of SQLite cannot change the row that is written; so ending a row wipes the secrets itself, and
-- no_secrets_at_rest refuses the one that forgets.)

CREATE TRIGGER guard_context BEFORE UPDATE ON execution_contexts
BEGIN
  SELECT RAISE(ABORT, 'this context has ended') WHERE OLD.ended_at IS NOT NULL;
  SELECT RAISE(ABORT, 'a context cannot change what it belongs to')
   WHERE (NEW.id, NEW.tenant_id, NEW.conversation_id, NEW.path_id, NEW.created_at)
      <> (OLD.id, OLD.tenant_id, OLD.conversation_id, OLD.path_id, OLD.created_at);
  SELECT RAISE(ABORT, 'a context cannot take this step')
   WHERE (OLD.status = 'ready' AND NEW.status IN ('creating', 'error'))
      OR NEW.lease_epoch < OLD.lease_epoch
      OR (OLD.status = 'ready' AND NEW.lease_epoch <> OLD.lease_epoch)
      OR (OLD.sandbox_id IS NOT NULL AND NEW.sandbox_id IS NOT OLD.sandbox_id);
END;

CREATE TRIGGER guard_new_context BEFORE INSERT ON execution_contexts WHEN NEW.status <> 'creating'
BEGIN
  SELECT RAISE(ABORT, 'a context begins as creating');
END;

-- ---- for people ----------------------------------------------------------------------------------

CREATE VIEW contexts AS
SELECT c.id, c.tenant_id, c.conversation_id, c.path_id, c.status, c.end_reason, c.created_at, c.ready_at,
       c.last_used_at, c.expires_at, c.ended_at, c.execution_count, c.total_execution_ms, c.last_error,
       c.resource_usage, r.id AS running_execution,
       c.status = 'ready' AND c.expires_at <= unixepoch('subsec') * 1000 AND r.id IS NULL AS is_expired,
       CASE WHEN c.status = 'ready' THEN max(0, c.expires_at / 1000 - unixepoch()) END AS seconds_until_expiry
  FROM execution_contexts c
  LEFT JOIN executions r ON r.context_id = c.id AND r.status = 'running';
