//! The state machine, in SQL: the table of steps is the one of `ContextStatus::after`, and no sequence of calls
//! reaches a state that must not be.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pathbox::domain::{ContextEvent, ContextStatus, EndReason, Entropy};
use pathbox::store::{
    Acquire, Acquired, Claim, ContextFilter, ContextLimits, ContextRow, PathChange, QUEUE_LEASE,
};

use crate::support::database::World;
use crate::support::runs::{any_sandbox, ask, claim, end, finished, first_run, key};

/// Writes every status with every reason over every status, past the store, and compares with Rust.
async fn every_step_is_allowed_in_sql_iff_it_is_in_rust(world: World) {
    let store = world.store().await;
    let limits = ContextLimits { per_tenant: 1000, per_conversation: 1000, ..ContextLimits::default() };
    let mut events = vec![ContextEvent::SandboxReady, ContextEvent::CreateFailed];
    events.extend(EndReason::ALL.iter().map(|reason| ContextEvent::End(*reason)));
    let reasons: Vec<Option<EndReason>> =
        EndReason::ALL.iter().map(|reason| Some(*reason)).chain([None]).collect();
    let mut number = 0;
    let mut allowed_steps = 0;
    for from in ContextStatus::ALL {
        for to in ContextStatus::ALL {
            for reason in &reasons {
                number += 1;
                let key = key("acme", "c1", &format!("p{number}"));
                let id = row_in(&world, &store, &key, *from, &limits).await;
                let legal = events.iter().any(|event| {
                    let means = match event {
                        ContextEvent::SandboxReady => None,
                        ContextEvent::CreateFailed => Some(EndReason::Error),
                        ContextEvent::End(reason) => Some(*reason),
                    };
                    from.after(*event) == Ok(*to) && means == *reason
                });
                let unchanged = from == to && from.is_live() && reason.is_none();
                let reason_sql = reason.map_or("null".to_owned(), |reason| format!("'{reason}'"));
                let ended = if to.is_live() { "null" } else { "created_at" };
                let sql = format!(
                    "update execution_contexts
                        set status = '{to}', end_reason = {reason_sql}, ended_at = {ended},
                            sandbox_id = coalesce(sandbox_id, 'sb-{number}'), ready_at = created_at,
                            expires_at = created_at, host_key_enc = null, envd_token_enc = null,
                            traffic_token_enc = null, mcp_token_enc = null,
                            lease_expires_at = case when '{to}' = 'creating' then created_at end
                      where id = '{id}'"
                );
                let done = world.sql(&sql).await;
                assert_eq!(done.is_ok(), legal || unchanged, "{from} -> {to} with {reason:?}: {done:?}");
                allowed_steps += usize::from(legal);
            }
        }
    }
    assert_eq!(allowed_steps, 1 + 1 + 7 + 7, "ready, error, and seven reasons from each live status");
}

async fn row_in(
    world: &World,
    store: &pathbox::store::DynStore,
    key: &pathbox::domain::ContextKey,
    status: ContextStatus,
    limits: &ContextLimits,
) -> String {
    let id = match status {
        ContextStatus::Creating => claim(store.acquire(&ask(key), limits).await.unwrap()).context,
        ContextStatus::Ready => first_run(store, key, limits).await.id,
        ContextStatus::Terminated => {
            let context = first_run(store, key, limits).await;
            assert!(store.end(&end(key, context.id, None, EndReason::Manual), limits).await.unwrap());
            context.id
        }
        ContextStatus::Error => {
            let claim = claim(store.acquire(&ask(key), limits).await.unwrap());
            assert!(store.end(&end(key, claim.context, Some(1), EndReason::Error), limits).await.unwrap());
            claim.context
        }
    };
    let found = format!("select count(*) from execution_contexts where id = '{id}' and status = '{status}'");
    assert_eq!(world.number(&found).await, 1);
    id.to_string()
}

/// What must be true after every call.
const NEVER: &[(&str, &str)] = &[
    (
        "two live contexts of a key",
        "select count(*) from (select 1 from execution_contexts where status in ('creating', 'ready')
           group by tenant_id, conversation_id, path_id having count(*) > 1) x",
    ),
    (
        "two runs on a context",
        "select count(*) from (select 1 from executions where status = 'running' group by context_id
           having count(*) > 1) x",
    ),
    (
        "a secret in an ended row",
        "select count(*) from execution_contexts where ended_at is not null
            and (host_key_enc is not null or envd_token_enc is not null or traffic_token_enc is not null
                 or mcp_token_enc is not null)",
    ),
    (
        "a live context on a closed path",
        "select count(*) from execution_contexts e join conversation_paths p using (tenant_id, conversation_id, path_id)
          where e.status in ('creating', 'ready') and p.status <> 'active'",
    ),
    (
        "a tenant over its limit",
        "select count(*) from (select 1 from execution_contexts where status in ('creating', 'ready')
           group by tenant_id having count(*) > 2) x",
    ),
];

/// Random calls by several replicas on a few keys, with time passing; after each, nothing is as it must never be.
async fn no_sequence_of_calls_reaches_a_state_that_must_not_be(world: World) {
    let replicas = [world.store().await, world.store().await];
    let limits = ContextLimits { per_tenant: 2, max_executions: 3, ..ContextLimits::default() };
    let keys = [key("acme", "c1", "a"), key("acme", "c1", "b"), key("acme", "c2", "a")];
    let entropy = Entropy::seeded(2026);
    let all: Vec<String> = NEVER.iter().map(|(_, sql)| format!("({sql})")).collect();
    let any = format!("select {}", all.join(" + "));
    let mut asks: Vec<Acquire> = Vec::new();
    let mut claims: Vec<(Claim, Acquire)> = Vec::new();
    let mut running: Vec<(ContextRow, Acquire)> = Vec::new();
    let mut made: HashSet<String> = HashSet::new();
    let mut ended: HashMap<String, String> = HashMap::new();
    let mut recorded = 0;
    for step in 0..400 {
        let store = &replicas[step % 2];
        let pick = |len: usize| entropy.below(len as u64) as usize;
        match entropy.below(12) {
            0..=2 => asks.push(ask(&keys[pick(3)])),
            3..=5 if !asks.is_empty() => {
                let at = pick(asks.len());
                match store.acquire(&asks[at], &limits).await.unwrap() {
                    Acquired::Ready(context, _) => running.push((*context, asks.swap_remove(at))),
                    Acquired::Create(claim) => claims.push((claim, asks.swap_remove(at))),
                    Acquired::Limit(_) | Acquired::PathClosed(_) => drop(asks.swap_remove(at)),
                    Acquired::Interrupted(_) => drop(asks.swap_remove(at)),
                    Acquired::Queued { .. } | Acquired::WaitForCreator { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            6 | 7 if !claims.is_empty() => {
                let (claim, ask) = claims.swap_remove(pick(claims.len()));
                let sandbox = any_sandbox();
                made.insert(sandbox.sandbox_id.to_string());
                match store.ready(&claim, ask.execution.id, &sandbox, &limits).await.unwrap() {
                    Some(context) => running.push((context, ask)),
                    None => asks.push(ask),
                }
            }
            8 | 9 if !running.is_empty() => {
                let (context, ask) = running.swap_remove(pick(running.len()));
                recorded += usize::from(store.record(&finished(&ask, context.id), &limits).await.unwrap());
            }
            10 => {
                let live = store.contexts(&ContextFilter::default()).await.unwrap();
                if !live.is_empty() {
                    let row = &live[pick(live.len())];
                    let reason = [EndReason::Manual, EndReason::Lost][pick(2)];
                    store.end(&end(&row.key, row.id, Some(row.epoch), reason), &limits).await.unwrap();
                }
            }
            _ => {
                let by = [QUEUE_LEASE, limits.create_lease, limits.ttl, Duration::from_secs(2)][pick(4)];
                world.advance(by / 2).await;
                store.reap(50, Duration::from_secs(1 << 30), &limits).await.unwrap();
            }
        }
        if step == 300 {
            let key = &keys[2];
            for change in [PathChange::Register { parent: None, message: None }, PathChange::Archive] {
                store.change_path(key, &change, None, &limits).await.unwrap();
            }
        }
        if world.number(&any).await > 0 {
            for (what, sql) in NEVER {
                assert_eq!(world.number(sql).await, 0, "{what} after step {step}");
            }
        }
        let all = ContextFilter { ended: true, limit: Some(10_000), ..ContextFilter::default() };
        for row in store.contexts(&all).await.unwrap() {
            if let Some(reason) = row.end_reason {
                let before = ended.entry(row.id.to_string()).or_insert_with(|| reason.to_string());
                assert_eq!(*before, reason.to_string(), "an ended row changed");
            }
        }
    }
    assert!(
        made.len() > 10 && ended.len() > 10 && recorded > 20,
        "{} {} {recorded}",
        made.len(),
        ended.len()
    );

    // Everything that was made is owned or was in the outbox.
    let store = &replicas[0];
    let owned = store.owned(None, Duration::ZERO, None, 100).await.unwrap();
    let mut known: HashSet<String> =
        owned.into_iter().map(|row| row.sandbox.unwrap().sandbox_id.to_string()).collect();
    let pending = store.claim_kills(10_000, Duration::from_secs(60)).await.unwrap();
    known.extend(pending.into_iter().filter_map(|entry| Some(entry.sandbox?.sandbox_id.to_string())));
    assert_eq!(known, made);
}

mod sqlite {
    use super::World;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_step_is_allowed_in_sql_iff_it_is_in_rust() {
        super::every_step_is_allowed_in_sql_iff_it_is_in_rust(World::sqlite()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_sequence_of_calls_reaches_a_state_that_must_not_be() {
        super::no_sequence_of_calls_reaches_a_state_that_must_not_be(World::sqlite()).await;
    }
}

mod postgres {
    use super::World;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs PostgreSQL: scripts/test installs it"]
    async fn every_step_is_allowed_in_sql_iff_it_is_in_rust() {
        super::every_step_is_allowed_in_sql_iff_it_is_in_rust(World::postgres().await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs PostgreSQL: scripts/test installs it"]
    async fn no_sequence_of_calls_reaches_a_state_that_must_not_be() {
        super::no_sequence_of_calls_reaches_a_state_that_must_not_be(World::postgres().await).await;
    }
}
