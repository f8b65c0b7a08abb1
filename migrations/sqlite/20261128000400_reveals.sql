-- Who opened which kind of sealed token (migrations/postgres explains the columns).

CREATE TABLE reveals (
    id              TEXT    PRIMARY KEY,
    tenant_id       TEXT    NOT NULL,
    conversation_id TEXT    NOT NULL,
    path_id         TEXT    NOT NULL,
    kind            TEXT,
    principal       TEXT    NOT NULL,
    opened          INTEGER NOT NULL CHECK (opened IN (0, 1)),
    at              INTEGER NOT NULL,
    CHECK (opened = (kind IS NOT NULL))
) STRICT;

CREATE INDEX reveals_of_tenant ON reveals (tenant_id, at);
