-- What every process must know of MCP sessions (migrations/postgres explains it).

CREATE TABLE session_facts (
    session BLOB    NOT NULL CHECK (length(session) = 32),
    fact    TEXT    NOT NULL CHECK (length(fact) BETWEEN 1 AND 300),
    value   TEXT    NOT NULL CHECK (length(value) <= 40),
    at      INTEGER NOT NULL,
    PRIMARY KEY (session, fact)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_facts_at ON session_facts (at);
