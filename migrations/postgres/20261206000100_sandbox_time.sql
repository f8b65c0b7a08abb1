-- A sandbox counts until it would have ended by itself, at most.
--
-- The row of a context ends when a server finds that it is over. After a night without a server, the sandbox counted for the
-- whole night, although its time to live and its provider's had ended it long before.
--
-- Serves programs from 0.1.0 on: two functions count less, and their forms stay.

CREATE OR REPLACE FUNCTION pathbox.guard_ended_context() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  v_from timestamp := NEW.ready_at AT TIME ZONE 'UTC';
  v_end  timestamp := least(NEW.ended_at, greatest(NEW.expires_at, NEW.provider_ends_at)) AT TIME ZONE 'UTC';
  v_to   timestamp;
  lane   smallint;
BEGIN
  IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL OR NEW.ready_at IS NULL THEN
    RETURN NULL;
  END IF;
  lane := pathbox.take_lane(NEW.tenant_id, NULL);
  WHILE v_from < v_end LOOP
    v_to := least(v_end, date_trunc('day', v_from) + interval '1 day');
    PERFORM pathbox.add_usage(NEW.tenant_id, lane, NEW.owner_principal, NEW.conversation_id, NEW.path_id, v_from::date, 0, 0,
        (extract(epoch FROM v_to - v_from) * 1000)::bigint, 0);
    v_from := v_to;
  END LOOP;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pathbox.all_usage_v1(p_tenant text, p_owner text, p_from date, p_to date)
RETURNS TABLE (tenant_id text, owner_principal text, conversation_id text, path_id text, day date,
               executions bigint, run_ms bigint, sandbox_ms bigint, output_bytes bigint, since timestamptz, read_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT u.tenant_id, u.owner_principal, u.conversation_id, u.path_id, u.day, sum(u.executions)::bigint,
         sum(u.run_ms)::bigint, sum(u.sandbox_ms)::bigint, sum(u.output_bytes)::bigint, NULL::timestamptz, clock_timestamp()
    FROM pathbox.usage_days u
   WHERE u.day BETWEEN p_from AND p_to AND (p_tenant IS NULL OR u.tenant_id = p_tenant)
     AND (p_owner IS NULL OR u.owner_principal = p_owner)
   GROUP BY 1, 2, 3, 4, 5
  UNION ALL
  SELECT e.tenant_id, e.owner_principal, e.conversation_id, e.path_id, NULL, 0, 0, 0, 0, e.ready_at,
         least(clock_timestamp(), greatest(e.expires_at, e.provider_ends_at))
    FROM pathbox.execution_contexts e
   WHERE e.status = 'ready' AND (p_tenant IS NULL OR e.tenant_id = p_tenant)
     AND (p_owner IS NULL OR e.owner_principal = p_owner)
$$;
