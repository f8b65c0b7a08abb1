-- What placeholders of a context stand for, sealed, where a policy says `placeholders = "resolve"` (migrations/postgres
-- explains it).
--
-- Serves programs from 0.1.0 on: what they end loses its values here too.

CREATE TABLE placeholder_values (
    tenant_id  TEXT    NOT NULL,
    context_id TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    number     INTEGER NOT NULL CHECK (number > 0),
    sealed     BLOB    NOT NULL CHECK (length(sealed) <= 1024),
    resolved   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (context_id, kind, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER context_forgets AFTER UPDATE OF ended_at ON execution_contexts WHEN NEW.ended_at IS NOT NULL
BEGIN
  DELETE FROM placeholder_values WHERE context_id = NEW.id;
END;
