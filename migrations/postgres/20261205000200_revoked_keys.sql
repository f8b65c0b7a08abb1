-- Servers hear at once that an API key was revoked, or erased with its tenant or its user.
--
-- Each believes a good key for some seconds; a signal ends that.
--
-- Serves programs from 0.1.0 on: they pass over signals that they do not know.

CREATE FUNCTION pathbox.tell_keys() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NOTIFY pathbox, 'keys';
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION pathbox.tell_keys() FROM PUBLIC;

CREATE TRIGGER tell_keys AFTER UPDATE OR DELETE ON pathbox.api_keys
  FOR EACH STATEMENT EXECUTE FUNCTION pathbox.tell_keys();
