-- Refresh tokens of other servers have a table of their own (migrations/postgres explains it).
--
-- Serves programs from 0.1.0 on: what an older program keeps where it used to comes here as well.

CREATE TABLE refresh_tokens (
    name   TEXT    NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 128),
    sealed TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO refresh_tokens (name, sealed, at)
SELECT substr(scope, 7), pins, at FROM tool_pins WHERE server = 'refresh_token' AND scope LIKE 'oauth/%';
DELETE FROM tool_pins WHERE server = 'refresh_token' AND scope LIKE 'oauth/%';

CREATE TRIGGER refresh_token_kept AFTER INSERT ON tool_pins WHEN NEW.server = 'refresh_token' AND NEW.scope LIKE 'oauth/%'
BEGIN
  INSERT INTO refresh_tokens (name, sealed, at) VALUES (substr(NEW.scope, 7), NEW.pins, NEW.at)
  ON CONFLICT DO UPDATE SET sealed = excluded.sealed, at = excluded.at;
END;
CREATE TRIGGER refresh_token_replaced AFTER UPDATE ON tool_pins WHEN NEW.server = 'refresh_token' AND NEW.scope LIKE 'oauth/%'
BEGIN
  INSERT INTO refresh_tokens (name, sealed, at) VALUES (substr(NEW.scope, 7), NEW.pins, NEW.at)
  ON CONFLICT DO UPDATE SET sealed = excluded.sealed, at = excluded.at;
END;
