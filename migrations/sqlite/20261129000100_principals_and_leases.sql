-- Contexts belong to principals, and a process holds them by a lease (the same step on Postgres explains both).
--
-- Rows from before: a context belongs to the principal whose run it was made for, a run to the principal that asked for
-- it, and to the tenant when that was a service's key or nobody is known. Each principal with contexts in a conversation
-- gets a copy of its paths. Placeholder numbers go with the latest context.
--
-- Serves programs from 0.1.0 on: what they write belongs to the tenant.

ALTER TABLE execution_contexts ADD COLUMN owner_principal TEXT NOT NULL DEFAULT '';
ALTER TABLE execution_contexts ADD COLUMN lease_wanted_at INTEGER;
-- what the sandbox was made from, where a call named it; NULL: the tenant's own template
ALTER TABLE execution_contexts ADD COLUMN template TEXT CHECK (length(template) BETWEEN 1 AND 256);
-- a lower bound of when the row is due; moved only when it has passed
ALTER TABLE execution_contexts ADD COLUMN due_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE executions ADD COLUMN owner_principal TEXT NOT NULL DEFAULT '';

DROP TRIGGER guard_context;
DROP INDEX execution_contexts_live;
DROP INDEX execution_contexts_history;
DROP INDEX executions_queue;
DROP INDEX executions_idempotency;

UPDATE executions SET owner_principal = principal
 WHERE principal IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM api_keys k
                    WHERE 'key:' || k.id = executions.principal AND k.key->>'kind' = 'service');
UPDATE execution_contexts SET owner_principal = coalesce(
    (SELECT x.owner_principal FROM executions x WHERE x.id = execution_contexts.creator_execution), '');

CREATE UNIQUE INDEX execution_contexts_live ON execution_contexts
    (tenant_id, owner_principal, conversation_id, path_id) WHERE status IN ('creating', 'ready');
CREATE INDEX execution_contexts_history ON execution_contexts
    (tenant_id, owner_principal, conversation_id, path_id, ended_at DESC) WHERE ended_at IS NOT NULL;
CREATE INDEX execution_contexts_due ON execution_contexts (due_at) WHERE status IN ('creating', 'ready');
CREATE INDEX execution_contexts_wanted ON execution_contexts (lease_owner) WHERE lease_wanted_at IS NOT NULL;
CREATE INDEX executions_queue ON executions (tenant_id, owner_principal, conversation_id, path_id, seq)
    WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX executions_idempotency ON executions (tenant_id, owner_principal, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE new_paths (
    tenant_id           TEXT    NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    owner_principal     TEXT    NOT NULL DEFAULT '',
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
    PRIMARY KEY (tenant_id, owner_principal, conversation_id, path_id),
    FOREIGN KEY (tenant_id, owner_principal, conversation_id, parent_id)   REFERENCES new_paths,
    FOREIGN KEY (tenant_id, owner_principal, conversation_id, merged_into) REFERENCES new_paths,
    CONSTRAINT merged_has_target CHECK (status <> 'merged' OR merged_into IS NOT NULL)
) STRICT;
INSERT INTO new_paths (tenant_id, owner_principal, conversation_id, path_id, parent_id, branched_at_message, merged_into,
    status, version, created_at, updated_at)
SELECT p.tenant_id, o.owner_principal, p.conversation_id, p.path_id, p.parent_id, p.branched_at_message, p.merged_into,
       p.status, p.version, p.created_at, p.updated_at
  FROM conversation_paths p
  JOIN (SELECT tenant_id, conversation_id, '' AS owner_principal FROM conversation_paths
        UNION SELECT tenant_id, conversation_id, owner_principal FROM execution_contexts) o
    ON o.tenant_id = p.tenant_id AND o.conversation_id = p.conversation_id
 ORDER BY p.rowid;
DROP TABLE conversation_paths;
ALTER TABLE new_paths RENAME TO conversation_paths;

CREATE TABLE new_placeholders (
    tenant_id       TEXT    NOT NULL,
    owner_principal TEXT    NOT NULL DEFAULT '',
    conversation_id TEXT    NOT NULL,
    path_id         TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    value_hash      TEXT    NOT NULL,
    number          INTEGER NOT NULL CHECK (number > 0),
    created_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, owner_principal, conversation_id, path_id, kind, value_hash),
    UNIQUE (tenant_id, owner_principal, conversation_id, path_id, kind, number)
) STRICT;
INSERT INTO new_placeholders (tenant_id, owner_principal, conversation_id, path_id, kind, value_hash, number, created_at)
SELECT p.tenant_id,
       coalesce((SELECT c.owner_principal FROM execution_contexts c
                  WHERE c.tenant_id = p.tenant_id AND c.conversation_id = p.conversation_id AND c.path_id = p.path_id
                  ORDER BY c.created_at DESC LIMIT 1), ''),
       p.conversation_id, p.path_id, p.kind, p.value_hash, p.number, p.created_at
  FROM placeholders p;
DROP TABLE placeholders;
ALTER TABLE new_placeholders RENAME TO placeholders;

CREATE TABLE conversation_shares (
    tenant_id       TEXT    NOT NULL CHECK (length(tenant_id)       BETWEEN 1 AND 128),
    owner_principal TEXT    NOT NULL,
    conversation_id TEXT    NOT NULL CHECK (length(conversation_id) BETWEEN 1 AND 128),
    principal       TEXT    NOT NULL CHECK (length(principal)       BETWEEN 1 AND 1024),
    created_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, principal, owner_principal, conversation_id)
) STRICT;

CREATE TABLE replicas (
    id          TEXT    PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    version     TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    alive_until INTEGER NOT NULL
) STRICT;

CREATE TRIGGER guard_context BEFORE UPDATE ON execution_contexts
BEGIN
  SELECT RAISE(ABORT, 'this context has ended') WHERE OLD.ended_at IS NOT NULL;
  SELECT RAISE(ABORT, 'a context cannot change what it belongs to')
   WHERE (NEW.id, NEW.tenant_id, NEW.owner_principal, NEW.conversation_id, NEW.path_id, NEW.created_at)
      <> (OLD.id, OLD.tenant_id, OLD.owner_principal, OLD.conversation_id, OLD.path_id, OLD.created_at);
  SELECT RAISE(ABORT, 'a context cannot take this step')
   WHERE (OLD.status = 'ready' AND NEW.status IN ('creating', 'error'))
      OR NEW.lease_epoch < OLD.lease_epoch
      OR (OLD.status = 'ready' AND NEW.lease_epoch <> OLD.lease_epoch)
      OR (OLD.sandbox_id IS NOT NULL AND NEW.sandbox_id IS NOT OLD.sandbox_id);
END;
