-- Workflows: a log of events for each, and the results of its tasks (migrations/postgres explains it).
--
-- Serves programs from 0.1.0 on: tables of their own.

CREATE TABLE workflows (
    id               TEXT    NOT NULL PRIMARY KEY,
    tenant_id        TEXT    NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 128),
    owner_principal  TEXT    NOT NULL,
    principal        TEXT    NOT NULL,
    sees_tenant      INTEGER NOT NULL,
    conversation_id  TEXT    NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    path_id          TEXT    NOT NULL CHECK (length(path_id) BETWEEN 1 AND 128),
    purpose          TEXT,
    trace_id         TEXT,
    idempotency_key  TEXT    CHECK (length(idempotency_key) <= 300),
    args_sha256      TEXT    NOT NULL,
    status           TEXT    NOT NULL DEFAULT 'running'
                             CHECK (status IN ('running', 'paused', 'aborting', 'completed', 'failed', 'aborted')),
    seq              INTEGER NOT NULL DEFAULT 1,
    lease_owner      TEXT,
    lease_epoch      INTEGER NOT NULL DEFAULT 0,
    lease_expires_at INTEGER,
    wake_at          INTEGER,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    finished_at      INTEGER,
    CONSTRAINT over_iff_finished CHECK ((status IN ('completed', 'failed', 'aborted')) = (finished_at IS NOT NULL)),
    CONSTRAINT leased_iff_owned  CHECK ((lease_owner IS NULL) = (lease_expires_at IS NULL)),
    CONSTRAINT over_has_no_lease CHECK (finished_at IS NULL OR lease_owner IS NULL)
) STRICT;

CREATE UNIQUE INDEX workflows_idempotency ON workflows (tenant_id, owner_principal, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX workflows_of_tenant ON workflows (tenant_id, created_at);
CREATE INDEX workflows_live      ON workflows (wake_at) WHERE finished_at IS NULL;
CREATE INDEX workflows_finished  ON workflows (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE workflow_events (
    workflow_id TEXT    NOT NULL REFERENCES workflows ON DELETE CASCADE,
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    format      INTEGER NOT NULL DEFAULT 1,
    body        TEXT    NOT NULL,
    PRIMARY KEY (workflow_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE workflow_results (
    workflow_id TEXT    NOT NULL REFERENCES workflows ON DELETE CASCADE,
    task        TEXT    NOT NULL CHECK (length(task) BETWEEN 1 AND 100),
    generation  INTEGER NOT NULL,
    body        TEXT,
    bytes       INTEGER NOT NULL,
    PRIMARY KEY (workflow_id, task, generation)
) STRICT;

-- Results of hermetic tasks. The key is a hash of all that a result depends on, of tenant and owner too.
CREATE TABLE task_cache (
    tenant_id       TEXT    NOT NULL CHECK (length(tenant_id) BETWEEN 1 AND 128),
    key             TEXT    NOT NULL CHECK (length(key) = 64),
    owner_principal TEXT    NOT NULL,
    execution_id    TEXT    NOT NULL,
    language        TEXT    NOT NULL,
    body            TEXT    NOT NULL,
    bytes           INTEGER NOT NULL CHECK (bytes >= 0),
    hits            INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL,
    used_at         INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, key)
) STRICT;

CREATE INDEX task_cache_used ON task_cache (tenant_id, used_at);
CREATE INDEX task_cache_age  ON task_cache (created_at);

-- ---- what is written stays as it is --------------------------------------------------------------

CREATE TRIGGER guard_workflow BEFORE UPDATE ON workflows
BEGIN
  SELECT RAISE(ABORT, 'this workflow is over') WHERE OLD.finished_at IS NOT NULL;
  SELECT RAISE(ABORT, 'a workflow cannot change what it was')
   WHERE NEW.id IS NOT OLD.id OR NEW.tenant_id IS NOT OLD.tenant_id OR NEW.owner_principal IS NOT OLD.owner_principal
      OR NEW.principal IS NOT OLD.principal OR NEW.sees_tenant IS NOT OLD.sees_tenant
      OR NEW.conversation_id IS NOT OLD.conversation_id OR NEW.path_id IS NOT OLD.path_id OR NEW.purpose IS NOT OLD.purpose
      OR NEW.trace_id IS NOT OLD.trace_id OR NEW.idempotency_key IS NOT OLD.idempotency_key
      OR NEW.args_sha256 IS NOT OLD.args_sha256 OR NEW.created_at IS NOT OLD.created_at
      OR NEW.seq < OLD.seq OR NEW.lease_epoch < OLD.lease_epoch;
END;

CREATE TRIGGER guard_workflow_event BEFORE UPDATE ON workflow_events
BEGIN
  SELECT RAISE(ABORT, 'what is written of a workflow stays');
END;

CREATE TRIGGER guard_workflow_result BEFORE UPDATE ON workflow_results
BEGIN
  SELECT RAISE(ABORT, 'what is written of a workflow stays');
END;

-- Events and results go with their workflow, and not before.
CREATE TRIGGER guard_workflow_event_delete BEFORE DELETE ON workflow_events
BEGIN
  SELECT RAISE(ABORT, 'what is written of a workflow stays') FROM workflows w WHERE w.id = OLD.workflow_id;
END;

CREATE TRIGGER guard_workflow_result_delete BEFORE DELETE ON workflow_results
BEGIN
  SELECT RAISE(ABORT, 'what is written of a workflow stays') FROM workflows w WHERE w.id = OLD.workflow_id;
END;
