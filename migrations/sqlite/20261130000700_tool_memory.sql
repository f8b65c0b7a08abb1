-- What is remembered of the tools of other servers (migrations/postgres explains it).
--
-- Serves programs from 0.1.0 on.

CREATE TABLE tool_pins (
    scope  TEXT    NOT NULL CHECK (length(scope) <= 128),
    server TEXT    NOT NULL CHECK (length(server) BETWEEN 1 AND 32),
    digest TEXT    NOT NULL CHECK (length(digest) = 64),
    pins   TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (scope, server)
) STRICT, WITHOUT ROWID;

CREATE TABLE tool_permits (
    tenant_id       TEXT    NOT NULL,
    owner_principal TEXT    NOT NULL,
    conversation_id TEXT    NOT NULL,
    principal       TEXT    NOT NULL,
    tool            TEXT    NOT NULL,
    definition      TEXT    NOT NULL CHECK (length(definition) = 64),
    at              INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, owner_principal, conversation_id, principal, tool)
) STRICT, WITHOUT ROWID;

CREATE INDEX tool_permits_at ON tool_permits (at);
