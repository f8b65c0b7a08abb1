-- Where a replica's sandboxes are, and runs that may still be under way in a sandbox (docs/adr/0044, docs/adr/0045).
--
-- Serves programs from 0.1.0 on: a replica of an older program has no place and stands in nobody's way.

-- provider: `local` for a sandbox host inside the replica's process, `remote` for one that every replica reaches.
-- place: the machine's boot and the network namespace, hashed: where such a host's address means something.
ALTER TABLE pathbox.replicas ADD COLUMN provider text NOT NULL DEFAULT '' CHECK (length(provider) <= 20);
ALTER TABLE pathbox.replicas ADD COLUMN place    text NOT NULL DEFAULT '' CHECK (length(place) <= 200);

-- A replica begins, unless another is in the way: of two places with living replicas, none may have sandboxes in a host
-- of its own. One after the other, so that of two that begin at once the first is let in. is_alone: every living replica
-- is known to be of this place, so that no local host of another place is in use.
CREATE FUNCTION pathbox.join_v1(p_replica text, p_version text, p_provider text, p_place text, p_lease_ms bigint,
                                OUT in_the_way text, OUT is_alone boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('pathbox.replicas', 0));
  SELECT min(r.id) FILTER (WHERE r.place <> '' AND 'local' IN (p_provider, r.provider)), count(*) = 0
    INTO in_the_way, is_alone
    FROM pathbox.replicas r
   WHERE r.id <> p_replica AND r.alive_until > clock_timestamp() AND r.place <> p_place;
  IF in_the_way IS NULL THEN
    INSERT INTO pathbox.replicas AS r (id, version, provider, place, alive_until)
    VALUES (p_replica, p_version, p_provider, p_place, clock_timestamp() + p_lease_ms * interval '1 ms')
    ON CONFLICT (id) DO UPDATE
       SET version = excluded.version, provider = excluded.provider, place = excluded.place, alive_until = excluded.alive_until;
  END IF;
END $$;

-- Whether a run on this context was given up because its replica was gone, and no run has been recorded since: its code
-- may go on in the sandbox.
CREATE FUNCTION pathbox.left_running_v1(p_tenant text, p_context uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('pathbox.tenant_id', p_tenant, true);
  RETURN EXISTS (SELECT FROM pathbox.execution_contexts e JOIN pathbox.executions x ON x.context_id = e.id
                  WHERE e.id = p_context AND e.tenant_id = p_tenant AND x.status = 'interrupted'
                    AND x.started_at IS NOT NULL AND x.finished_at > e.last_used_at);
END $$;

DO $$
BEGIN
  GRANT CREATE ON SCHEMA pathbox TO pathbox_app, pathbox_worker;        -- an owner needs it for a moment
  REVOKE ALL ON FUNCTION pathbox.join_v1(text, text, text, text, bigint), pathbox.left_running_v1(text, uuid) FROM PUBLIC;
  GRANT EXECUTE ON FUNCTION pathbox.join_v1(text, text, text, text, bigint), pathbox.left_running_v1(text, uuid)
     TO pathbox_server;
  ALTER FUNCTION pathbox.join_v1(text, text, text, text, bigint) OWNER TO pathbox_worker;
  ALTER FUNCTION pathbox.left_running_v1(text, uuid) OWNER TO pathbox_app;
  REVOKE CREATE ON SCHEMA pathbox FROM pathbox_app, pathbox_worker;
END $$;
