-- API keys of HTTP callers: a hash, and what the key is good for (migrations/postgres explains the columns).

CREATE TABLE api_keys (
    id          TEXT    PRIMARY KEY CHECK (length(id) = 12),
    hash        BLOB    NOT NULL CHECK (length(hash) = 32),
    key         TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    revoked_at  INTEGER
) STRICT;
