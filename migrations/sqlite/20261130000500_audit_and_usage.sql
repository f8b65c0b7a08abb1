-- The audit chain, what was used, and quotas (the same step on Postgres explains them).
--
-- SQLite has no SHA-256, so a trigger only notes what has ended, and whoever commits (src/store/sqlite/ended.rs) takes the
-- notes up in the same transaction. Rows from before join in the first one.
--
-- Serves programs from 0.1.0 on: the notes of one that does not know them are taken up by the next one that does.

CREATE TABLE audit_log (
    tenant_id    TEXT    NOT NULL,
    n            INTEGER NOT NULL CHECK (n > 0),
    at           INTEGER NOT NULL,
    execution_id TEXT,
    body         TEXT,
    body_sha256  TEXT    NOT NULL CHECK (length(body_sha256) = 64),
    hash         TEXT    NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (tenant_id, n)
) STRICT;
CREATE INDEX audit_log_execution ON audit_log (execution_id);

CREATE TABLE audit_heads (
    tenant_id   TEXT    PRIMARY KEY,
    n           INTEGER NOT NULL,
    hash        TEXT    NOT NULL,
    anchor_n    INTEGER NOT NULL DEFAULT 0,
    anchor_hash TEXT    NOT NULL DEFAULT '0000000000000000000000000000000000000000000000000000000000000000'
) STRICT;

CREATE TABLE usage_days (
    tenant_id       TEXT    NOT NULL,
    owner_principal TEXT    NOT NULL,
    conversation_id TEXT    NOT NULL,
    path_id         TEXT    NOT NULL,
    day             TEXT    NOT NULL,                               -- YYYY-MM-DD, UTC
    executions      INTEGER NOT NULL DEFAULT 0,
    run_ms          INTEGER NOT NULL DEFAULT 0,
    sandbox_ms      INTEGER NOT NULL DEFAULT 0,
    output_bytes    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, day, owner_principal, conversation_id, path_id)
) STRICT;

CREATE TABLE tenant_quotas (
    tenant_id       TEXT    PRIMARY KEY CHECK (length(tenant_id) BETWEEN 1 AND 128),
    period          TEXT    CHECK (period IN ('day', 'month')),
    sandbox_seconds INTEGER CHECK (sandbox_seconds >= 0),
    executions      INTEGER CHECK (executions >= 0),
    money_micros    INTEGER CHECK (money_micros >= 0)
) STRICT;

-- What has ended and is not in the chain and the counts yet; empty between two transactions.
CREATE TABLE ended (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id TEXT,
    context_id   TEXT,
    executions   INTEGER NOT NULL DEFAULT 0,
    run_ms       INTEGER NOT NULL DEFAULT 0,
    output_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO ended (execution_id, executions, run_ms, output_bytes)
SELECT id, started_at IS NOT NULL AND (duration_ms IS NOT NULL OR status = 'interrupted'), coalesce(duration_ms, 0), coalesce(output_bytes, 0)
  FROM executions WHERE finished_at IS NOT NULL ORDER BY finished_at, seq;
INSERT INTO ended (context_id) SELECT id FROM execution_contexts WHERE ended_at IS NOT NULL AND ready_at IS NOT NULL;

CREATE TRIGGER execution_ended AFTER UPDATE ON executions
WHEN NEW.finished_at IS NOT NULL AND (OLD.finished_at IS NULL OR OLD.status <> NEW.status)
BEGIN
  INSERT INTO ended (execution_id, executions, run_ms, output_bytes)
  VALUES (NEW.id, NEW.started_at IS NOT NULL AND (NEW.duration_ms IS NOT NULL OR NEW.status = 'interrupted')
          AND (OLD.finished_at IS NULL OR OLD.started_at IS NULL),
          coalesce(NEW.duration_ms, 0) - CASE WHEN OLD.finished_at IS NULL THEN 0 ELSE coalesce(OLD.duration_ms, 0) END,
          coalesce(NEW.output_bytes, 0) - CASE WHEN OLD.finished_at IS NULL THEN 0 ELSE coalesce(OLD.output_bytes, 0) END);
END;

CREATE TRIGGER execution_inserted_ended AFTER INSERT ON executions WHEN NEW.finished_at IS NOT NULL
BEGIN
  INSERT INTO ended (execution_id, executions, run_ms, output_bytes)
  VALUES (NEW.id, NEW.started_at IS NOT NULL AND (NEW.duration_ms IS NOT NULL OR NEW.status = 'interrupted'), coalesce(NEW.duration_ms, 0), coalesce(NEW.output_bytes, 0));
END;

CREATE TRIGGER context_ended AFTER UPDATE ON execution_contexts
WHEN OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.ready_at IS NOT NULL
BEGIN
  INSERT INTO ended (context_id) VALUES (NEW.id);
END;

-- ---- what has ended stays as it is ---------------------------------------------------------------

CREATE TRIGGER guard_ended_execution BEFORE UPDATE ON executions WHEN OLD.finished_at IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'this execution has ended')
   WHERE CASE WHEN OLD.status = NEW.status
         THEN (NEW.idempotency_key IS NOT NULL AND NEW.idempotency_key IS NOT OLD.idempotency_key)
              OR NEW.finished_at IS NOT OLD.finished_at OR NEW.started_at IS NOT OLD.started_at
              OR NEW.created_at IS NOT OLD.created_at OR NEW.exit_code IS NOT OLD.exit_code OR NEW.error IS NOT OLD.error
              OR NEW.duration_ms IS NOT OLD.duration_ms OR NEW.output_bytes IS NOT OLD.output_bytes
              OR NEW.findings IS NOT OLD.findings OR NEW.result IS NOT OLD.result OR NEW.purpose IS NOT OLD.purpose
         ELSE OLD.status <> 'interrupted' OR NEW.finished_at IS NULL END;
  SELECT RAISE(ABORT, 'an execution cannot change what it was')
   WHERE OLD.id IS NOT NEW.id OR OLD.tenant_id IS NOT NEW.tenant_id OR OLD.owner_principal IS NOT NEW.owner_principal
      OR OLD.conversation_id IS NOT NEW.conversation_id OR OLD.path_id IS NOT NEW.path_id
      OR OLD.code_sha256 IS NOT NEW.code_sha256 OR OLD.principal IS NOT NEW.principal;
END;

CREATE TRIGGER guard_audit BEFORE UPDATE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'the audit chain stays')
   WHERE NEW.body IS NOT NULL OR NEW.tenant_id IS NOT OLD.tenant_id OR NEW.n IS NOT OLD.n OR NEW.at IS NOT OLD.at
      OR NEW.execution_id IS NOT OLD.execution_id OR NEW.body_sha256 IS NOT OLD.body_sha256 OR NEW.hash IS NOT OLD.hash;
END;

CREATE TRIGGER guard_audit_delete BEFORE DELETE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'the audit chain stays')
   WHERE OLD.n > (SELECT h.anchor_n FROM audit_heads h WHERE h.tenant_id = OLD.tenant_id);
END;
