-- One path by its name, and a workflow that looks at its path in the transaction that makes it.
--
-- Before, the whole conversation was read to find one path, and a closed path was said as a limit of no workflows.
--
-- Serves programs from 0.1.0 on: functions are added, and none changes.

CREATE FUNCTION pathbox.path_v1(p_tenant text, p_owner text, p_conversation text, p_path text)
RETURNS SETOF pathbox.conversation_paths
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN QUERY SELECT p.* FROM pathbox.conversation_paths p
    WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation AND p.path_id = p_path;
END $$;

-- As create_workflow_v1; `path_closed` with the path's status where nothing may be begun on it. A workflow that was made
-- earlier under the same key is found whatever has become of its path.
CREATE FUNCTION pathbox.create_workflow_v2(
    p_id uuid, p_tenant text, p_owner text, p_principal text, p_sees_tenant boolean, p_conversation text, p_path text,
    p_purpose text, p_trace text, p_key text, p_args text, p_event text, p_most int,
    OUT outcome text, OUT id uuid, OUT path_status text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('pathbox workflows ' || p_tenant, 0));
  SELECT p.status INTO path_status FROM pathbox.conversation_paths p
   WHERE p.tenant_id = p_tenant AND p.owner_principal = p_owner AND p.conversation_id = p_conversation
     AND p.path_id = p_path AND p.status <> 'active'
     AND NOT EXISTS (SELECT FROM pathbox.workflows w
                      WHERE w.id = p_id OR w.tenant_id = p_tenant AND w.owner_principal = p_owner AND w.idempotency_key = p_key);
  IF FOUND THEN
    outcome := 'path_closed';
    RETURN;
  END IF;
  SELECT w.outcome, w.id INTO outcome, id
    FROM pathbox.create_workflow_v1(p_id, p_tenant, p_owner, p_principal, p_sees_tenant, p_conversation, p_path, p_purpose,
                                    p_trace, p_key, p_args, p_event, p_most) w;
END $$;

DO $$
DECLARE
  f record;
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app, pathbox_worker;        -- an owner needs it for a moment
  FOR f IN SELECT * FROM (VALUES
      ('pathbox.path_v1(text, text, text, text)'::regprocedure, 'pathbox_app'),
      ('pathbox.create_workflow_v2(uuid, text, text, text, boolean, text, text, text, text, text, text, text, int)', 'pathbox_worker')
    ) AS v(name, owner) LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pathbox_server', f.name);
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f.name, f.owner);
  END LOOP;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app, pathbox_worker;
END $$;
