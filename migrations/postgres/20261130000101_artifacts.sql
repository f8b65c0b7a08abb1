-- What runs left to be read, without the results beside it, which may be megabytes each.
--
-- Serves programs from 0.1.0 on: adds one function.

-- As executions_v2, of the latest runs those that have a result: its form and the list of artifacts in its record. A result
-- that holds \u0000 comes whole: no function of Postgres looks into such JSON.
CREATE FUNCTION pathbox.artifacts_v1(p_tenant text, p_owner text, p_principal text, p_conversation text, p_limit integer)
RETURNS TABLE (id uuid, kept text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY
    SELECT l.id, CASE WHEN position('\u0000' IN l.result::text) > 0 THEN l.result ELSE json_build_object(
             'format', coalesce(l.result->'format', '1'),
             'record', json_build_object('artifacts', coalesce(l.result->'record'->'artifacts', '[]'))) END::text
      FROM (SELECT x.id, x.result, x.created_at, x.seq FROM pathbox.executions x
             WHERE x.tenant_id = p_tenant AND (p_owner IS NULL OR x.owner_principal = p_owner OR x.principal = p_principal)
               AND (p_conversation IS NULL OR x.conversation_id = p_conversation)
             ORDER BY x.created_at DESC, x.seq DESC LIMIT p_limit) l
     WHERE l.result IS NOT NULL
     ORDER BY l.created_at DESC, l.seq DESC;
END $$;

DO $$
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app;                        -- an owner needs it for a moment
  REVOKE ALL ON FUNCTION pathbox.artifacts_v1(text, text, text, text, integer) FROM PUBLIC;
  GRANT EXECUTE ON FUNCTION pathbox.artifacts_v1(text, text, text, text, integer) TO pathbox_server;
  ALTER FUNCTION pathbox.artifacts_v1(text, text, text, text, integer) OWNER TO pathbox_app;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app;
END $$;
