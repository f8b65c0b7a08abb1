//! One suite for every store: what `pathbox::store` promises, on SQLite and on Postgres.

use std::time::Duration;

use pathbox::domain::{
    ApiKey, Clock, ContextKey, ContextStatus, ConversationKey, EndReason, Entropy, KeyText, Owner, PathId,
    PrincipalKind, Scope, TenantId, Tenants,
};
use pathbox::store::{
    Acquire, Acquired, ContextFilter, ContextLimits, DynStore, End, ExecutionFilter, ExecutionStatus,
    FinishedExecution, MAX_RESULT_BYTES, NewReveal, PathChange, PathError, PathStatus, QUEUE_LEASE,
    RevealRow, StoreError,
};
use serde_json::json;

use crate::support::database::World;
use crate::support::on_every_store;
use crate::support::runs::{
    any_sandbox, ask, ask_once, claim, end, finished, first_run, key, ready, sandbox,
};

on_every_store! {
    a_new_key_is_created_once_and_then_reused,
    a_creator_that_was_too_slow_learns_it_and_its_sandbox_is_killed,
    tokens_come_back_to_runs_and_never_to_lists,
    the_same_key_and_arguments_replay_the_record,
    runs_wait_in_order_of_arrival,
    a_caller_that_stops_asking_loses_its_place,
    asking_again_gives_the_same_answer,
    waiters_take_over_in_order_when_the_creator_fails,
    a_dead_replicas_run_is_interrupted_and_the_context_goes_on,
    a_late_record_replaces_interrupted,
    an_expired_context_is_replaced_by_the_next_call,
    a_context_in_use_is_neither_expired_nor_rotated,
    a_context_that_served_its_number_is_rotated,
    a_lost_context_is_replaced_for_the_run_that_lost_it,
    limits_name_their_holders_and_free_again,
    expired_contexts_do_not_count_against_a_limit,
    a_tenants_limits_can_be_set,
    a_refused_ask_leaves_no_row_and_may_come_again,
    a_run_that_never_started_leaves_its_key_free,
    a_request_to_stop_a_run_reaches_the_process_that_has_it,
    a_claim_that_is_abandoned_is_the_next_ones_at_once,
    a_run_cut_off_in_the_middle_is_not_repeated,
    keys_expire_and_belong_to_a_tenant,
    a_run_without_an_ask_is_recorded_afterwards,
    ending_is_fenced_and_happens_once,
    an_illegal_end_is_refused,
    a_sweep_ends_what_is_due_and_retention_removes_it,
    the_outbox_gives_an_entry_to_one_worker_and_again_after_a_failure,
    only_tags_without_a_live_row_are_unowned,
    paths_are_registered_and_changed_by_version,
    closing_a_path_ends_its_context_and_no_other,
    an_impossible_path_change_gives_the_reason,
    placeholders_keep_their_number,
    every_opening_of_a_token_is_recorded_once_with_its_caller,
    an_api_key_is_kept_without_its_text_and_can_be_revoked,
    one_tenant_never_sees_anothers_rows,
    equal_names_of_two_owners_are_two_things,
    a_template_stays_with_its_key_until_another_is_named,
    a_refusal_names_only_what_the_caller_may_enter,
    a_conversation_is_shared_and_taken_back,
    a_replica_keeps_its_contexts_until_it_lets_go_or_dies,
    a_dead_replicas_work_is_interrupted_and_free,
    any_text_and_large_results_are_kept_as_they_were,
    tokens_that_do_not_open_mean_lost,
    the_view_shows_what_is_expired,
}

fn limits() -> ContextLimits {
    ContextLimits::default()
}

async fn a_new_key_is_created_once_and_then_reused(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let first = ask(&key);
    let claim = claim(store.acquire(&first, &limits()).await.unwrap());
    assert_eq!((claim.context, claim.epoch, claim.previous), (first.new_context, 1, None));

    let second = ask(&key);
    match store.acquire(&second, &limits()).await.unwrap() {
        Acquired::WaitForCreator { lease_left } => assert!(lease_left <= limits().create_lease),
        other => panic!("{other:?}"),
    }

    let sandbox = any_sandbox();
    let context = store.ready(&claim, first.execution.id, &sandbox, &limits()).await.unwrap().unwrap();
    assert_eq!(context.status, ContextStatus::Ready);
    let running = store.execution(&key.tenant, first.execution.id).await.unwrap().unwrap();
    assert_eq!(running.status, ExecutionStatus::Running);
    assert!(matches!(store.acquire(&second, &limits()).await.unwrap(), Acquired::Queued { position: 1 }));

    assert!(store.record(&finished(&first, context.id), &limits()).await.unwrap());
    assert!(!store.record(&finished(&first, context.id), &limits()).await.unwrap(), "recorded once");
    let reused = ready(store.acquire(&second, &limits()).await.unwrap());
    assert_eq!(reused.id, context.id);
    assert_eq!(reused.sandbox.as_ref(), Some(&sandbox));
    assert_eq!((reused.execution_count, reused.total_execution_ms), (1, 12));
}

async fn a_creator_that_was_too_slow_learns_it_and_its_sandbox_is_killed(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let slow = ask(&key);
    let old = claim(store.acquire(&slow, &limits()).await.unwrap());
    world.advance(limits().create_lease + Duration::from_secs(1)).await;

    let other = ask(&key);
    let new = claim(store.acquire(&other, &limits()).await.unwrap());
    assert_eq!((new.context, new.epoch), (old.context, 2), "the same row, one epoch on");
    assert!(!store.renew(&old, &limits()).await.unwrap());
    assert!(store.renew(&new, &limits()).await.unwrap());

    let late = sandbox("sb-late");
    assert!(store.ready(&old, slow.execution.id, &late, &limits()).await.unwrap().is_none());
    let good = sandbox("sb-good");
    assert!(store.ready(&new, other.execution.id, &good, &limits()).await.unwrap().is_some());

    let pending = store.claim_kills(10, Duration::from_secs(60)).await.unwrap();
    let [fenced] = pending.as_slice() else { panic!("{pending:?}") };
    let known = fenced.sandbox.as_ref().unwrap();
    assert_eq!((fenced.context, fenced.epoch), (old.context, 1));
    assert_eq!(known.sandbox_id, late.sandbox_id);
    assert_eq!((&known.host_url, &known.host_key), (&late.host_url, &late.host_key));

    world.advance(limits().create_timeout + Duration::from_secs(1)).await;
    let pending = store.claim_kills(10, Duration::from_secs(600)).await.unwrap();
    assert!(pending.iter().any(|entry| entry.sandbox.is_none() && entry.epoch == 1), "the tag: {pending:?}");
    for entry in pending {
        store.kill_done(entry.id).await.unwrap();
    }
    world.advance(Duration::from_secs(3600)).await;
    assert!(store.claim_kills(10, Duration::from_secs(60)).await.unwrap().is_empty());
}

async fn tokens_come_back_to_runs_and_never_to_lists(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    assert!(store.context(&key.tenant, context.id).await.unwrap().unwrap().sandbox.is_none());
    assert!(store.live(&key).await.unwrap().unwrap().sandbox.is_none());
    let listed = store.contexts(&ContextFilter::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].sandbox.is_none());
    let owned = store.owned(None, Duration::ZERO, None, 10).await.unwrap();
    assert_eq!(owned[0].sandbox, context.sandbox);
    assert!(store.owned(None, Duration::from_secs(60), None, 10).await.unwrap().is_empty(), "too young");
    assert!(
        store.owned(None, Duration::ZERO, Some(context.id), 10).await.unwrap().is_empty(),
        "the next page"
    );

    assert!(store.end(&end(&key, context.id, None, EndReason::Manual), &limits()).await.unwrap());
    let wiped = world
        .number(
            "select count(*) from execution_contexts where host_key_enc is null and envd_token_enc is null
                and traffic_token_enc is null and mcp_token_enc is null",
        )
        .await;
    assert_eq!(wiped, 1);
}

async fn the_same_key_and_arguments_replay_the_record(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let first = ask_once(&key, "pay-1", "a1");
    let claim = claim(store.acquire(&first, &limits()).await.unwrap());
    let retry = ask_once(&key, "pay-1", "a1");
    match store.acquire(&retry, &limits()).await.unwrap() {
        Acquired::InFlight(id) => assert_eq!(id, first.execution.id),
        other => panic!("{other:?}"),
    }
    store.ready(&claim, first.execution.id, &any_sandbox(), &limits()).await.unwrap().unwrap();
    store.record(&finished(&first, claim.context), &limits()).await.unwrap();
    match store.acquire(&retry, &limits()).await.unwrap() {
        Acquired::Replay(run) => {
            assert_eq!(run.id, first.execution.id);
            assert_eq!(run.result, finished(&first, claim.context).result);
        }
        other => panic!("{other:?}"),
    }
    match store.acquire(&ask_once(&key, "pay-1", "a2"), &limits()).await.unwrap() {
        Acquired::KeyConflict(id) => assert_eq!(id, first.execution.id),
        other => panic!("{other:?}"),
    }
    let runs = store.executions(&ExecutionFilter::default()).await.unwrap();
    assert_eq!(runs.len(), 1, "retries leave no rows");
}

/// Acquires again and again until the run is on its context.
async fn until_ready(store: &DynStore, ask: &Acquire) -> pathbox::store::ContextRow {
    for _ in 0..100 {
        match store.acquire(ask, &limits()).await.unwrap() {
            Acquired::Ready(context, _) => return *context,
            Acquired::Queued { .. } | Acquired::WaitForCreator { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("never ready")
}

async fn queued(store: &DynStore, ask: &Acquire) -> u32 {
    match store.acquire(ask, &limits()).await.unwrap() {
        Acquired::Queued { position } => position,
        other => panic!("expected a place in the queue, got {other:?}"),
    }
}

async fn runs_wait_in_order_of_arrival(world: World) {
    // three replicas, one key
    let (one, two, three) = (world.store().await, world.store().await, world.store().await);
    let key = key("acme", "c1", "main");
    let context = first_run(&one, &key, &limits()).await;
    let asks = [ask(&key), ask(&key), ask(&key), ask(&key)];
    ready(one.acquire(&asks[0], &limits()).await.unwrap());
    assert_eq!(queued(&two, &asks[1]).await, 1);
    assert_eq!(queued(&three, &asks[2]).await, 2);
    assert_eq!(queued(&one, &asks[3]).await, 3);
    assert_eq!(queued(&three, &asks[2]).await, 2, "asking again keeps the place");

    one.record(&finished(&asks[0], context.id), &limits()).await.unwrap();
    assert_eq!(queued(&one, &asks[3]).await, 2, "the last does not overtake");
    assert_eq!(queued(&three, &asks[2]).await, 1);
    assert_eq!(queued(&three, &ask(&key)).await, 3, "nor does a newcomer");
    ready(two.acquire(&asks[1], &limits()).await.unwrap());

    // a caller that leaves the queue lets the others move up
    assert!(
        three
            .abandon(&key.tenant, asks[2].execution.id, ExecutionStatus::Cancelled, Some("cancelled"))
            .await
            .unwrap()
    );
    assert_eq!(queued(&one, &asks[3]).await, 1);
    let run = one.execution(&key.tenant, asks[2].execution.id).await.unwrap().unwrap();
    assert_eq!((run.status, run.started_at), (ExecutionStatus::Cancelled, None));
    assert_eq!(run.error.as_deref(), Some("cancelled"));
}

async fn a_caller_that_stops_asking_loses_its_place(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let (running, gone, patient) = (ask(&key), ask(&key), ask(&key));
    ready(store.acquire(&running, &limits()).await.unwrap());
    assert_eq!(queued(&store, &gone).await, 1);
    assert_eq!(queued(&store, &patient).await, 2);
    world.advance(QUEUE_LEASE / 2 + Duration::from_secs(1)).await;
    assert_eq!(queued(&store, &patient).await, 2, "and keeps its own place for longer by asking");
    world.advance(QUEUE_LEASE / 2).await;
    assert_eq!(queued(&store, &patient).await, 1);
    store.record(&finished(&running, context.id), &limits()).await.unwrap();
    ready(store.acquire(&patient, &limits()).await.unwrap());

    store.reap(50, Duration::from_secs(3600), &limits()).await.unwrap();
    let left = store.execution(&key.tenant, gone.execution.id).await.unwrap().unwrap();
    assert_eq!((left.status, left.started_at), (ExecutionStatus::Interrupted, None));
    assert_eq!(queued(&store, &gone).await, 1, "it may come back, at the end");
}

async fn asking_again_gives_the_same_answer(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let first = ask(&key);
    let claimed = claim(store.acquire(&first, &limits()).await.unwrap());
    let again = claim(store.acquire(&first, &limits()).await.unwrap());
    assert_eq!((again.context, again.epoch), (claimed.context, claimed.epoch), "the claim is still its own");
    let sandbox = any_sandbox();
    let once = store.ready(&claimed, first.execution.id, &sandbox, &limits()).await.unwrap().unwrap();
    let twice = store.ready(&claimed, first.execution.id, &sandbox, &limits()).await.unwrap().unwrap();
    assert_eq!(once.id, twice.id);
    assert!(store.claim_kills(10, Duration::ZERO).await.unwrap().is_empty(), "and its sandbox lives");
    assert_eq!(ready(store.acquire(&first, &limits()).await.unwrap()).id, once.id);
    store.record(&finished(&first, once.id), &limits()).await.unwrap();
    match store.acquire(&first, &limits()).await.unwrap() {
        Acquired::Replay(run) => assert_eq!(run.status, ExecutionStatus::Completed),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.live(&key).await.unwrap().unwrap().execution_count, 1);

    let mut elsewhere = first.clone();
    elsewhere.key.path = PathId::parse("other").unwrap();
    assert!(matches!(store.acquire(&elsewhere, &limits()).await, Err(StoreError::NotFound)));
}

async fn waiters_take_over_in_order_when_the_creator_fails(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let (creator, second, third) = (ask(&key), ask(&key), ask(&key));
    let claimed = claim(store.acquire(&creator, &limits()).await.unwrap());
    for waiter in [&second, &third] {
        assert!(matches!(store.acquire(waiter, &limits()).await.unwrap(), Acquired::WaitForCreator { .. }));
    }
    let failed = End {
        error: Some("the provider is full".to_owned()),
        ..end(&key, claimed.context, Some(claimed.epoch), EndReason::Error)
    };
    assert!(store.end(&failed, &limits()).await.unwrap());
    let row = store.context(&key.tenant, claimed.context).await.unwrap().unwrap();
    assert_eq!((row.status, row.end_reason), (ContextStatus::Error, Some(EndReason::Error)));
    assert_eq!(row.last_error.as_deref(), Some("the provider is full"));

    assert_eq!(queued(&store, &third).await, 2, "the creator and the second come first");
    store
        .abandon(&key.tenant, creator.execution.id, ExecutionStatus::Failed, Some("no sandbox"))
        .await
        .unwrap();
    assert_eq!(queued(&store, &third).await, 1);
    let next = claim(store.acquire(&second, &limits()).await.unwrap());
    assert_eq!(next.previous, None, "there never was a sandbox whose state could be gone");
    assert_ne!(next.context, claimed.context);
}

async fn a_dead_replicas_run_is_interrupted_and_the_context_goes_on(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let dead = ask(&key);
    ready(store.acquire(&dead, &limits()).await.unwrap());
    world.advance(dead.execution.lease - Duration::from_secs(2)).await;
    let next = ask(&key);
    assert_eq!(queued(&store, &next).await, 1, "it may still be alive");
    world.advance(Duration::from_secs(3)).await;
    assert_eq!(ready(store.acquire(&next, &limits()).await.unwrap()).id, context.id);
    let run = store.execution(&key.tenant, dead.execution.id).await.unwrap().unwrap();
    assert_eq!(run.status, ExecutionStatus::Interrupted);
    assert!(run.started_at.is_some() && run.finished_at.is_some());
}

async fn a_late_record_replaces_interrupted(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let cut_off = ask(&key);
    ready(store.acquire(&cut_off, &limits()).await.unwrap());
    world.advance(cut_off.execution.lease + Duration::from_secs(1)).await;
    assert_eq!(store.reap(50, Duration::from_secs(1 << 20), &limits()).await.unwrap().interrupted, 1);
    assert!(store.record(&finished(&cut_off, context.id), &limits()).await.unwrap());
    let run = store.execution(&key.tenant, cut_off.execution.id).await.unwrap().unwrap();
    assert_eq!(run.status, ExecutionStatus::Completed);
    assert_eq!(store.live(&key).await.unwrap().unwrap().execution_count, 2);
}

async fn an_expired_context_is_replaced_by_the_next_call(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let old = first_run(&store, &key, &limits()).await;
    world.advance(limits().ttl - Duration::from_secs(10)).await;
    let again = ask(&key);
    ready(store.acquire(&again, &limits()).await.unwrap());
    store.record(&finished(&again, old.id), &limits()).await.unwrap();
    world.advance(limits().ttl - Duration::from_secs(10)).await;
    let kept = ask(&key);
    assert_eq!(ready(store.acquire(&kept, &limits()).await.unwrap()).id, old.id, "use slides the deadline");
    store.record(&finished(&kept, old.id), &limits()).await.unwrap();

    world.advance(limits().ttl + Duration::from_secs(1)).await;
    let late = ask(&key);
    let new = claim(store.acquire(&late, &limits()).await.unwrap());
    assert_eq!(new.previous, Some(EndReason::Expired));
    assert_ne!(new.context, old.id);
    let ended = store.context(&key.tenant, old.id).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.end_reason), (ContextStatus::Terminated, Some(EndReason::Expired)));
    assert!(ended.ended_at.is_some());
    let pending = store.claim_kills(10, Duration::from_secs(60)).await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].sandbox.as_ref().unwrap().sandbox_id, old.sandbox.unwrap().sandbox_id);
    assert_eq!(pending[0].reason, "expired");

    // a creator that is replaced still knows what was there before
    world.advance(limits().create_lease + Duration::from_secs(1)).await;
    let taken = claim(store.acquire(&ask(&key), &limits()).await.unwrap());
    assert_eq!((taken.epoch, taken.previous), (2, Some(EndReason::Expired)));
}

async fn a_context_in_use_is_neither_expired_nor_rotated(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let limits = ContextLimits { max_executions: 2, ..limits() };
    let context = first_run(&store, &key, &limits).await;
    let mut long = ask(&key);
    long.execution.lease = Duration::from_secs(4 * 3600);
    ready(store.acquire(&long, &limits).await.unwrap());
    world.advance(limits.ttl + Duration::from_secs(60)).await;
    let reaped = store.reap(50, Duration::from_secs(1 << 20), &limits).await.unwrap();
    assert_eq!((reaped.expired, reaped.abandoned, reaped.interrupted), (0, 0, 0));
    let next = ask(&key);
    assert!(matches!(store.acquire(&next, &limits).await.unwrap(), Acquired::Queued { position: 1 }));
    assert_eq!(ready(store.acquire(&long, &limits).await.unwrap()).id, context.id);
    store.record(&finished(&long, context.id), &limits).await.unwrap();
    let new = claim(store.acquire(&next, &limits).await.unwrap());
    assert_eq!(new.previous, Some(EndReason::Rotated), "now it has served its two");
}

async fn a_context_that_served_its_number_is_rotated(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let limits = ContextLimits { max_executions: 3, per_conversation: 1, ..limits() };
    let context = first_run(&store, &key, &limits).await;
    for _ in 0..2 {
        let ask = ask(&key);
        assert_eq!(ready(store.acquire(&ask, &limits).await.unwrap()).id, context.id);
        store.record(&finished(&ask, context.id), &limits).await.unwrap();
    }
    let new = claim(store.acquire(&ask(&key), &limits).await.unwrap());
    assert_eq!(new.previous, Some(EndReason::Rotated), "and it needs no second place in the limit");
    let pending = store.claim_kills(10, Duration::from_secs(60)).await.unwrap();
    assert_eq!((pending.len(), pending[0].reason.as_str()), (1, "rotated"));
}

async fn a_lost_context_is_replaced_for_the_run_that_lost_it(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let (run, waiter) = (ask(&key), ask(&key));
    ready(store.acquire(&run, &limits()).await.unwrap());
    assert_eq!(queued(&store, &waiter).await, 1);
    assert!(store.end(&end(&key, context.id, Some(1), EndReason::Lost), &limits()).await.unwrap());
    let claimed = claim(store.acquire(&run, &limits()).await.unwrap());
    assert_eq!(claimed.previous, Some(EndReason::Lost));
    let new = store.ready(&claimed, run.execution.id, &any_sandbox(), &limits()).await.unwrap().unwrap();
    assert_eq!(queued(&store, &waiter).await, 1);
    assert!(store.record(&finished(&run, new.id), &limits()).await.unwrap());
    assert_eq!(ready(store.acquire(&waiter, &limits()).await.unwrap()).id, new.id);
    let recorded = store.execution(&key.tenant, run.execution.id).await.unwrap().unwrap();
    assert_eq!((recorded.context, recorded.status), (Some(new.id), ExecutionStatus::Completed));
}

async fn limits_name_their_holders_and_free_again(world: World) {
    let store = world.store().await;
    let mut held = Vec::new();
    for (conversation, paths) in [("c1", 5), ("c2", 5)] {
        for path in 0..paths {
            let key = key("acme", conversation, &format!("p{path}"));
            held.push((key.clone(), first_run(&store, &key, &limits()).await));
        }
    }
    match store.acquire(&ask(&key("acme", "c1", "one-more")), &limits()).await.unwrap() {
        Acquired::Limit(reached) => {
            assert_eq!((reached.scope, reached.limit, reached.holders.len()), ("conversation", 5, 5));
            assert!(reached.holders.iter().all(|holder| holder.conversation.as_str() == "c1"));
            let frees_in = reached.frees_in.unwrap();
            assert!(frees_in <= limits().ttl && frees_in > limits().ttl - Duration::from_secs(60));
        }
        other => panic!("{other:?}"),
    }
    let eleventh = ask(&key("acme", "c3", "main"));
    match store.acquire(&eleventh, &limits()).await.unwrap() {
        Acquired::Limit(reached) => {
            assert_eq!((reached.scope, reached.limit, reached.holders.len()), ("tenant", 10, 10));
        }
        other => panic!("{other:?}"),
    }
    claim(store.acquire(&ask(&key("bolt", "c1", "main")), &limits()).await.unwrap());
    let again = ask(&held[0].0);
    ready(store.acquire(&again, &limits()).await.unwrap());
    let (key, context) = &held[9];
    store.end(&end(key, context.id, None, EndReason::Manual), &limits()).await.unwrap();
    claim(store.acquire(&eleventh, &limits()).await.unwrap());
}

async fn expired_contexts_do_not_count_against_a_limit(world: World) {
    let store = world.store().await;
    let limits = ContextLimits { per_tenant: 2, ..limits() };
    let (one, two) = (key("acme", "c1", "a"), key("acme", "c1", "b"));
    first_run(&store, &one, &limits).await;
    world.advance(limits.ttl / 2).await;
    first_run(&store, &two, &limits).await;
    let third = ask(&key("acme", "c1", "c"));
    assert!(matches!(store.acquire(&third, &limits).await.unwrap(), Acquired::Limit(_)));
    world.advance(limits.ttl / 2 + Duration::from_secs(1)).await;
    claim(store.acquire(&third, &limits).await.unwrap());
    assert!(store.live(&one).await.unwrap().is_none(), "it was swept to make room");
    assert!(store.live(&two).await.unwrap().is_some());
    assert_eq!(store.claim_kills(10, Duration::from_secs(60)).await.unwrap().len(), 1);
}

async fn a_tenants_limits_can_be_set(world: World) {
    let store = world.store().await;
    let acme = TenantId::parse("acme").unwrap();
    store.set_tenant_limits(&acme, Some(1), None).await.unwrap();
    claim(store.acquire(&ask(&key("acme", "c1", "a")), &limits()).await.unwrap());
    let second = ask(&key("acme", "c1", "b"));
    match store.acquire(&second, &limits()).await.unwrap() {
        Acquired::Limit(reached) => assert_eq!((reached.scope, reached.limit), ("tenant", 1)),
        other => panic!("{other:?}"),
    }
    store.set_tenant_limits(&acme, None, Some(1)).await.unwrap();
    match store.acquire(&second, &limits()).await.unwrap() {
        Acquired::Limit(reached) => assert_eq!((reached.scope, reached.limit), ("conversation", 1)),
        other => panic!("{other:?}"),
    }
    store.set_tenant_limits(&acme, None, None).await.unwrap();
    claim(store.acquire(&second, &limits()).await.unwrap());
    store.set_tenant_limits(&TenantId::parse("none").unwrap(), Some(0), None).await.unwrap();
    assert!(matches!(
        store.acquire(&ask(&key("none", "c", "p")), &limits()).await.unwrap(),
        Acquired::Limit(_)
    ));
}

async fn a_refused_ask_leaves_no_row_and_may_come_again(world: World) {
    let store = world.store().await;
    let limits = ContextLimits { per_tenant: 1, ..limits() };
    let holder = key("acme", "c1", "a");
    let context = first_run(&store, &holder, &limits).await;
    let refused = ask_once(&key("acme", "c1", "b"), "k", "a");
    for _ in 0..3 {
        assert!(matches!(store.acquire(&refused, &limits).await.unwrap(), Acquired::Limit(_)));
    }
    assert!(store.execution(&holder.tenant, refused.execution.id).await.unwrap().is_none());
    store.end(&end(&holder, context.id, None, EndReason::Manual), &limits).await.unwrap();
    claim(store.acquire(&refused, &limits).await.unwrap());
}

async fn a_run_that_never_started_leaves_its_key_free(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let first = ask_once(&key, "k", "a");
    let claimed = claim(store.acquire(&first, &limits()).await.unwrap());
    store.end(&end(&key, claimed.context, Some(1), EndReason::Error), &limits()).await.unwrap();
    assert!(
        store.abandon(&key.tenant, first.execution.id, ExecutionStatus::Failed, Some("no")).await.unwrap()
    );
    assert!(!store.abandon(&key.tenant, first.execution.id, ExecutionStatus::Failed, None).await.unwrap());
    let second = ask_once(&key, "k", "other arguments");
    claim(store.acquire(&second, &limits()).await.unwrap());

    // the second's replica dies before the sandbox is there
    world.advance(limits().create_lease + Duration::from_secs(1)).await;
    let third = ask_once(&key, "k", "a");
    claim(store.acquire(&third, &limits()).await.unwrap());
    let left = store.execution(&key.tenant, second.execution.id).await.unwrap().unwrap();
    assert_eq!((left.status, left.started_at), (ExecutionStatus::Interrupted, None));
}

async fn a_request_to_stop_a_run_reaches_the_process_that_has_it(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let (running, queued) = (ask(&key), ask(&key));
    let (running_id, queued_id) = (running.execution.id, queued.execution.id);
    store.acquire(&running, &limits()).await.unwrap();
    store.acquire(&queued, &limits()).await.unwrap();
    let (tenant, bolt) = (&key.tenant, TenantId::parse("bolt").unwrap());
    assert!(!store.ask_to_stop(&bolt, running_id).await.unwrap(), "another tenant's");
    assert_eq!(store.stops(&[running_id, queued_id]).await.unwrap(), []);
    assert!(store.ask_to_stop(tenant, queued_id).await.unwrap());
    assert_eq!(store.stops(&[running_id, queued_id]).await.unwrap(), [queued_id]);
    assert!(store.ask_to_stop(tenant, running_id).await.unwrap());
    assert!(store.ask_to_stop(tenant, running_id).await.unwrap(), "asked twice");
    assert_eq!(store.stops(&[running_id]).await.unwrap(), [running_id]);
    assert_eq!(store.stops(&[]).await.unwrap(), []);
    store.record(&finished(&running, context.id), &limits()).await.unwrap();
    assert!(!store.ask_to_stop(tenant, running_id).await.unwrap(), "it is over");
}

async fn a_claim_that_is_abandoned_is_the_next_ones_at_once(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let (first, second) = (ask(&key), ask(&key));
    let lost = claim(store.acquire(&first, &limits()).await.unwrap());
    assert!(matches!(store.acquire(&second, &limits()).await.unwrap(), Acquired::WaitForCreator { .. }));
    store.abandon(&key.tenant, first.execution.id, ExecutionStatus::Failed, Some("no answer")).await.unwrap();
    let taken = claim(store.acquire(&second, &limits()).await.unwrap());
    assert_eq!((taken.context, taken.epoch), (lost.context, lost.epoch + 1));
    let late = store.ready(&lost, first.execution.id, &any_sandbox(), &limits()).await.unwrap();
    assert!(late.is_none(), "the first is fenced off");
}

async fn a_run_cut_off_in_the_middle_is_not_repeated(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    first_run(&store, &key, &limits()).await;
    let cut_off = ask_once(&key, "k", "a");
    ready(store.acquire(&cut_off, &limits()).await.unwrap());
    world.advance(cut_off.execution.lease + Duration::from_secs(1)).await;
    for _ in 0..2 {
        match store.acquire(&ask_once(&key, "k", "a"), &limits()).await.unwrap() {
            Acquired::Interrupted(run) => assert_eq!(run.id, cut_off.execution.id),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(store.acquire(&cut_off, &limits()).await.unwrap(), Acquired::Interrupted(_)));
    assert!(matches!(
        store.acquire(&ask_once(&key, "k", "b"), &limits()).await.unwrap(),
        Acquired::KeyConflict(_)
    ));
    ready(store.acquire(&ask_once(&key, "k2", "a"), &limits()).await.unwrap());
}

async fn keys_expire_and_belong_to_a_tenant(world: World) {
    let store = world.store().await;
    let (acme, bolt) = (key("acme", "c1", "main"), key("bolt", "c1", "main"));
    let first = ask_once(&acme, "k", "a");
    let claimed = claim(store.acquire(&first, &limits()).await.unwrap());
    store.ready(&claimed, first.execution.id, &any_sandbox(), &limits()).await.unwrap().unwrap();
    store.record(&finished(&first, claimed.context), &limits()).await.unwrap();
    claim(store.acquire(&ask_once(&bolt, "k", "a"), &limits()).await.unwrap());

    world.advance(limits().idempotency_ttl - Duration::from_secs(60)).await;
    store.reap(50, Duration::ZERO, &limits()).await.unwrap();
    assert!(matches!(
        store.acquire(&ask_once(&acme, "k", "a"), &limits()).await.unwrap(),
        Acquired::Replay(_)
    ));
    world.advance(Duration::from_secs(120)).await;
    claim(store.acquire(&ask_once(&acme, "k", "b"), &limits()).await.unwrap());
}

async fn a_run_without_an_ask_is_recorded_afterwards(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let ask = ask_once(&key, "k", "a");
    let ended_at = store.now().await.unwrap() - Duration::from_secs(100);
    let late = FinishedExecution {
        offline: Some(Box::new(ask.clone())),
        ended_at: Some(ended_at),
        ..finished(&ask, context.id)
    };
    assert!(store.record(&late, &limits()).await.unwrap());
    assert!(!store.record(&late, &limits()).await.unwrap(), "once");
    let run = store.execution(&key.tenant, ask.execution.id).await.unwrap().unwrap();
    assert_eq!((run.status, run.tool.as_str()), (ExecutionStatus::Completed, "run_code"));
    assert_eq!(run.purpose, ask.execution.purpose);
    let told = store.live(&key).await.unwrap().unwrap();
    assert_eq!(told.execution_count, 2);
    assert!(told.last_used_at >= context.last_used_at, "a late record moves nothing back");
    let (created, started, ended) = (run.created_at, run.started_at.unwrap(), run.finished_at.unwrap());
    assert_eq!(ended.timestamp_millis(), ended_at.timestamp_millis(), "not when it was told");
    assert_eq!(ended - started, chrono::TimeDelta::milliseconds(late.duration_ms));
    assert_eq!(started - created, chrono::TimeDelta::milliseconds(late.queued_ms));
    assert!(matches!(
        store.acquire(&ask_once(&key, "k", "a"), &limits()).await.unwrap(),
        Acquired::Replay(_)
    ));

    // Its idempotency key is another run's by now: the record is kept without it.
    let other = ask_once(&key, "k", "b");
    let late = FinishedExecution { offline: Some(Box::new(other.clone())), ..finished(&other, context.id) };
    assert!(store.record(&late, &limits()).await.unwrap());
    assert_eq!(store.executions(&ExecutionFilter::default()).await.unwrap().len(), 3);
    assert_eq!(world.number("SELECT count(*) FROM audit_log").await, 3, "each has one end");
}

async fn ending_is_fenced_and_happens_once(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let stranger =
        End { tenant: TenantId::parse("bolt").unwrap(), ..end(&key, context.id, None, EndReason::Manual) };
    assert!(!store.end(&stranger, &limits()).await.unwrap());
    assert!(!store.end(&end(&key, context.id, Some(7), EndReason::Lost), &limits()).await.unwrap());
    assert!(store.end(&end(&key, context.id, Some(1), EndReason::Manual), &limits()).await.unwrap());
    assert!(!store.end(&end(&key, context.id, None, EndReason::Manual), &limits()).await.unwrap());
    assert_eq!(store.claim_kills(10, Duration::from_secs(60)).await.unwrap().len(), 1);
    assert!(store.live(&key).await.unwrap().is_none());
    let all = ContextFilter { ended: true, tenant: Some(key.tenant.clone()), ..ContextFilter::default() };
    assert_eq!(store.contexts(&all).await.unwrap()[0].end_reason, Some(EndReason::Manual));
}

async fn an_illegal_end_is_refused(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let refused = store.end(&end(&key, context.id, None, EndReason::Error), &limits()).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    assert_eq!(store.live(&key).await.unwrap().unwrap().status, ContextStatus::Ready);
    assert!(store.claim_kills(10, Duration::ZERO).await.unwrap().is_empty());
}

async fn a_sweep_ends_what_is_due_and_retention_removes_it(world: World) {
    let store = world.store().await;
    let week = Duration::from_secs(7 * 24 * 3600);
    for path in ["a", "b", "c"] {
        first_run(&store, &key("acme", "c1", path), &limits()).await;
    }
    let stuck = ask(&key("acme", "c2", "making"));
    claim(store.acquire(&stuck, &limits()).await.unwrap());
    let cut_off = ask(&key("acme", "c1", "c"));
    ready(store.acquire(&cut_off, &limits()).await.unwrap());
    assert_eq!(store.reap(50, week, &limits()).await.unwrap(), Default::default());

    world.advance(limits().ttl + Duration::from_secs(1)).await;
    let first = store.reap(2, week, &limits()).await.unwrap();
    let second = store.reap(50, week, &limits()).await.unwrap();
    assert_eq!(first.expired + first.abandoned, 2, "a batch is a batch");
    assert_eq!(first.expired + second.expired, 3);
    assert_eq!(first.abandoned + second.abandoned, 1);
    assert_eq!(first.interrupted + second.interrupted, 2, "the run and the creator's own");
    assert_eq!(store.reap(50, week, &limits()).await.unwrap(), Default::default());
    let all = ContextFilter { ended: true, ..ContextFilter::default() };
    assert_eq!(store.contexts(&all).await.unwrap().len(), 4);

    world.advance(week + Duration::from_secs(1)).await;
    let removed = store.reap(50, week, &limits()).await.unwrap();
    assert_eq!(removed.deleted, 4 + 5, "contexts and runs");
    assert!(store.contexts(&all).await.unwrap().is_empty());
    assert!(store.executions(&ExecutionFilter::default()).await.unwrap().is_empty());
    assert_eq!(store.claim_kills(10, Duration::ZERO).await.unwrap().len(), 4, "but not what must still die");
}

async fn the_outbox_gives_an_entry_to_one_worker_and_again_after_a_failure(world: World) {
    let (one, two) = (world.store().await, world.store().await);
    for path in ["a", "b"] {
        let key = key("acme", "c1", path);
        let context = first_run(&one, &key, &limits()).await;
        one.end(&end(&key, context.id, None, EndReason::Manual), &limits()).await.unwrap();
    }
    let visibility = Duration::from_secs(30);
    let mine = one.claim_kills(1, visibility).await.unwrap();
    let theirs = two.claim_kills(10, visibility).await.unwrap();
    assert_eq!((mine.len(), theirs.len()), (1, 1));
    assert_ne!(mine[0].id, theirs[0].id);
    two.kill_done(theirs[0].id).await.unwrap();
    two.kill_done(theirs[0].id).await.unwrap();

    world.advance(visibility + Duration::from_secs(1)).await;
    let again = two.claim_kills(10, visibility).await.unwrap();
    assert_eq!((again[0].id, again[0].attempts), (mine[0].id, 2), "its worker died");
    two.kill_failed(again[0].id, "503 from the provider").await.unwrap();
    world.advance(Duration::from_secs(9)).await;
    assert!(one.claim_kills(10, visibility).await.unwrap().is_empty(), "10 s after the second failure");
    world.advance(Duration::from_secs(2)).await;
    assert_eq!(one.claim_kills(10, visibility).await.unwrap().len(), 1);
}

async fn only_tags_without_a_live_row_are_unowned(world: World) {
    let store = world.store().await;
    let (alive, making) = (key("acme", "c1", "a"), key("acme", "c1", "b"));
    let live = first_run(&store, &alive, &limits()).await;
    let claimed = claim(store.acquire(&ask(&making), &limits()).await.unwrap());
    let dead = first_run(&store, &key("acme", "c1", "c"), &limits()).await;
    store.end(&end(&dead.key, dead.id, None, EndReason::Manual), &limits()).await.unwrap();
    let stranger = ask(&alive).new_context;
    let tags = [(live.id, 1), (live.id, 2), (claimed.context, 1), (dead.id, 1), (stranger, 1)];
    let mut unowned = store.unowned(&tags).await.unwrap();
    unowned.sort();
    let mut expected = vec![(live.id, 2), (dead.id, 1), (stranger, 1)];
    expected.sort();
    assert_eq!(unowned, expected);
    assert!(store.unowned(&[]).await.unwrap().is_empty());
}

fn register(parent: Option<&str>, message: Option<&str>) -> PathChange {
    PathChange::Register {
        parent: parent.map(|parent| PathId::parse(parent).unwrap()),
        message: message.map(str::to_owned),
    }
}

async fn change(
    store: &DynStore,
    path: &str,
    change: &PathChange,
    expected: Option<i64>,
) -> Result<pathbox::store::PathRow, PathError> {
    let key = key("acme", "c1", path);
    store.change_path(&key, change, expected, &limits()).await
}

async fn paths_are_registered_and_changed_by_version(world: World) {
    let store = world.store().await;
    let main = change(&store, "main", &register(None, None), None).await.unwrap();
    assert_eq!((main.status, main.version), (PathStatus::Active, 1));
    let branch = change(&store, "b", &register(Some("main"), Some("m-7")), None).await.unwrap();
    assert_eq!(branch.parent.as_ref().unwrap().as_str(), "main");
    assert_eq!(change(&store, "b", &register(Some("main"), Some("m-7")), None).await.unwrap(), branch);

    let edited = change(&store, "b", &PathChange::Edit, Some(1)).await.unwrap();
    assert_eq!(edited.version, 2);
    assert!(matches!(
        change(&store, "b", &PathChange::Edit, Some(1)).await,
        Err(PathError::Stale { found: 2, expected: 1, .. })
    ));
    let archived = change(&store, "b", &PathChange::Archive, Some(2)).await.unwrap();
    assert_eq!((archived.status, archived.version), (PathStatus::Archived, 3));
    let again = change(&store, "b", &PathChange::Archive, Some(2)).await.unwrap();
    assert_eq!(again, archived, "the same change again is the same answer");
    change(&store, "b", &PathChange::Delete, None).await.unwrap();

    let key = key("acme", "c1", "main");
    let seen = |rows: Vec<pathbox::store::PathRow>| -> Vec<String> {
        rows.into_iter().map(|row| row.path.to_string()).collect()
    };
    assert_eq!(seen(store.paths(&key.of_conversation(), false).await.unwrap()), ["main"]);
    assert_eq!(seen(store.paths(&key.of_conversation(), true).await.unwrap()), ["main", "b"]);
}

async fn closing_a_path_ends_its_context_and_no_other(world: World) {
    let store = world.store().await;
    for path in ["main", "merged", "archived", "deleted"] {
        change(&store, path, &register(None, None), None).await.unwrap();
        first_run(&store, &key("acme", "c1", path), &limits()).await;
    }
    let merge = PathChange::Merge { target: PathId::main() };
    for (path, how, status, reason) in [
        ("merged", &merge, PathStatus::Merged, EndReason::Merged),
        ("archived", &PathChange::Archive, PathStatus::Archived, EndReason::Archived),
        ("deleted", &PathChange::Delete, PathStatus::Deleted, EndReason::Deleted),
    ] {
        let waiting = ask(&key("acme", "c1", path));
        change(&store, path, how, None).await.unwrap();
        assert!(store.live(&key("acme", "c1", path)).await.unwrap().is_none());
        match store.acquire(&waiting, &limits()).await.unwrap() {
            Acquired::PathClosed(found) => assert_eq!(found, status),
            other => panic!("{other:?}"),
        }
        let all = ContextFilter { ended: true, ..ContextFilter::default() };
        let rows = store.contexts(&all).await.unwrap();
        let row = rows.iter().find(|row| row.key.path.as_str() == path).unwrap();
        assert_eq!(row.end_reason, Some(reason));
    }
    assert_eq!(store.claim_kills(10, Duration::from_secs(60)).await.unwrap().len(), 3);
    until_ready(&store, &ask(&key("acme", "c1", "main"))).await;
    claim(store.acquire(&ask(&key("acme", "c1", "never-registered")), &limits()).await.unwrap());
    claim(store.acquire(&ask(&key("acme", "c2", "deleted")), &limits()).await.unwrap());
}

async fn an_impossible_path_change_gives_the_reason(world: World) {
    let store = world.store().await;
    change(&store, "main", &register(None, None), None).await.unwrap();
    change(&store, "old", &register(None, None), None).await.unwrap();
    change(&store, "old", &PathChange::Archive, None).await.unwrap();
    let merge = |target: &str| PathChange::Merge { target: PathId::parse(target).unwrap() };
    let error =
        |result: Result<_, PathError>| result.map(|row: pathbox::store::PathRow| row.version).unwrap_err();

    assert!(
        matches!(error(change(&store, "x", &PathChange::Edit, None).await), PathError::Unknown(p) if p.as_str() == "x")
    );
    assert!(
        matches!(error(change(&store, "x", &register(Some("y"), None), None).await), PathError::Unknown(p) if p.as_str() == "y")
    );
    assert!(matches!(
        error(change(&store, "x", &register(Some("x"), None), None).await),
        PathError::Cycle(_)
    ));
    assert!(matches!(error(change(&store, "main", &merge("main"), None).await), PathError::Cycle(_)));
    assert!(
        matches!(error(change(&store, "main", &merge("y"), None).await), PathError::Unknown(p) if p.as_str() == "y")
    );
    assert!(matches!(
        error(change(&store, "main", &merge("old"), None).await),
        PathError::NotActive { path, status: PathStatus::Archived } if path.as_str() == "old"
    ));
    assert!(matches!(
        error(change(&store, "x", &register(Some("old"), None), None).await),
        PathError::NotActive { path, .. } if path.as_str() == "old"
    ));
    assert!(matches!(
        error(change(&store, "old", &PathChange::Edit, None).await),
        PathError::NotActive { path, .. } if path.as_str() == "old"
    ));
    assert!(matches!(
        error(change(&store, "main", &register(None, Some("m")), None).await),
        PathError::Differs(_)
    ));
    assert!(matches!(
        error(change(&store, "new", &register(None, None), Some(3)).await),
        PathError::Stale { found: 0, expected: 3, .. }
    ));
    let key = key("acme", "c1", "main");
    assert_eq!(store.paths(&key.of_conversation(), true).await.unwrap().len(), 2, "nothing was written");
}

async fn placeholders_keep_their_number(world: World) {
    let store = world.store().await;
    let (here, there) = (key("acme", "c1", "main"), key("acme", "c1", "other"));
    let row = |kind: &str, hash: &str, number| (kind.to_owned(), hash.to_owned(), number);
    store.save_placeholders(&here, &[row("EMAIL", "h1", 1), row("IBAN", "h1", 1)]).await.unwrap();
    store.save_placeholders(&here, &[row("EMAIL", "h1", 9), row("EMAIL", "h2", 2)]).await.unwrap();
    store.save_placeholders(&here, &[row("EMAIL", "h3", 2)]).await.unwrap();
    store.save_placeholders(&here, &[]).await.unwrap();
    assert_eq!(
        store.placeholders(&here).await.unwrap(),
        [row("EMAIL", "h1", 1), row("EMAIL", "h2", 2), row("IBAN", "h1", 1)],
        "a number is one value's"
    );
    assert!(store.placeholders(&there).await.unwrap().is_empty());
}

async fn one_tenant_never_sees_anothers_rows(world: World) {
    let store = world.store().await;
    let acme = key("acme", "c1", "main");
    let bolt = TenantId::parse("bolt").unwrap();
    let context = first_run(&store, &acme, &limits()).await;
    let run = store.executions(&ExecutionFilter::default()).await.unwrap().remove(0);
    store.save_placeholders(&acme, &[("EMAIL".to_owned(), "h".to_owned(), 1)]).await.unwrap();
    change(&store, "main", &register(None, None), None).await.unwrap();

    assert!(store.context(&bolt, context.id).await.unwrap().is_none());
    assert!(store.execution(&bolt, run.id).await.unwrap().is_none());
    let contexts = ContextFilter { tenant: Some(bolt.clone()), ended: true, ..ContextFilter::default() };
    assert!(store.contexts(&contexts).await.unwrap().is_empty());
    let runs = ExecutionFilter { tenant: Some(bolt.clone()), ..ExecutionFilter::default() };
    assert!(store.executions(&runs).await.unwrap().is_empty());
    assert!(
        store
            .paths(&ConversationKey { tenant: bolt.clone(), ..acme.of_conversation() }, true)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(!store.abandon(&bolt, run.id, ExecutionStatus::Failed, None).await.unwrap());
    let theirs = key("bolt", "c1", "main");
    assert!(store.live(&theirs).await.unwrap().is_none());
    assert!(store.placeholders(&theirs).await.unwrap().is_empty());
    claim(store.acquire(&ask(&theirs), &limits()).await.unwrap());
    let stolen = FinishedExecution { tenant: bolt, ..finished(&ask(&acme), context.id) };
    assert!(!store.record(&stolen, &limits()).await.unwrap());
    assert_eq!(store.live(&acme).await.unwrap().unwrap().execution_count, 1);

    // the operator's lists show both
    assert_eq!(store.contexts(&ContextFilter::default()).await.unwrap().len(), 2);
    assert_eq!(store.count_live().await.unwrap(), 2);
    assert_eq!(store.executions(&ExecutionFilter::default()).await.unwrap().len(), 2);
}

/// The same key under another owner.
fn of(owner: &str, key: &ContextKey) -> ContextKey {
    ContextKey { owner: Owner::principal(owner), ..key.clone() }
}

async fn a_template_stays_with_its_key_until_another_is_named(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let mut expected = None;
    for (named, then) in [
        (None, None),
        (Some("science"), Some("science")),
        (None, Some("science")),
        (Some("node"), Some("node")),
    ] {
        let ask = ask(&key);
        let mut claim = claim(store.acquire(&ask, &limits()).await.unwrap());
        assert_eq!(claim.template, expected, "what the sandbox before was made from");
        claim.template = named.map(str::to_owned).or(claim.template);
        let sandbox = any_sandbox();
        let row = store.ready(&claim, ask.execution.id, &sandbox, &limits()).await.unwrap().unwrap();
        let again = store.ready(&claim, ask.execution.id, &sandbox, &limits()).await.unwrap().unwrap();
        assert_eq!((row.template.as_deref(), again.template.as_deref()), (then, then));
        store.record(&finished(&ask, row.id), &limits()).await.unwrap();
        let live = store.live(&key).await.unwrap().unwrap();
        assert_eq!(live.template.as_deref(), then, "for the next caller");
        assert!(store.end(&end(&key, row.id, None, EndReason::Lost), &limits()).await.unwrap());
        world.advance(Duration::from_secs(1)).await;
        expected = then.map(str::to_owned);
    }
}

async fn equal_names_of_two_owners_are_two_things(world: World) {
    let store = world.store().await;
    let (ann, bob) = (of("key:ann", &key("acme", "c1", "main")), of("key:bob", &key("acme", "c1", "main")));
    let first = first_run(&store, &ann, &limits()).await;
    let once = ask_once(&ann, "k", "args");
    ready(store.acquire(&once, &limits()).await.unwrap());
    store.record(&finished(&once, first.id), &limits()).await.unwrap();
    store.save_placeholders(&ann, &[("EMAIL".to_owned(), "h".to_owned(), 1)]).await.unwrap();
    store.change_path(&ann, &register(None, None), None, &limits()).await.unwrap();

    assert!(store.live(&bob).await.unwrap().is_none());
    assert!(store.placeholders(&bob).await.unwrap().is_empty());
    assert!(store.paths(&bob.of_conversation(), true).await.unwrap().is_empty());
    let his = ContextFilter {
        tenant: Some(bob.tenant.clone()),
        owner: Some(bob.owner.clone()),
        ended: true,
        ..ContextFilter::default()
    };
    assert!(store.contexts(&his).await.unwrap().is_empty());
    let his = ExecutionFilter {
        tenant: Some(bob.tenant.clone()),
        owner: Some(bob.owner.clone()),
        principal: Some("key:bob".to_owned()),
        ..ExecutionFilter::default()
    };
    assert!(store.executions(&his).await.unwrap().is_empty());

    // His call under the same conversation, path and idempotency key makes a sandbox and runs.
    let second = ask_once(&bob, "k", "args");
    let claimed = claim(store.acquire(&second, &limits()).await.unwrap());
    assert_ne!(claimed.context, first.id);
    let sandbox = sandbox("sb-bob");
    let context = store.ready(&claimed, second.execution.id, &sandbox, &limits()).await.unwrap().unwrap();
    store.record(&finished(&second, context.id), &limits()).await.unwrap();
    assert_eq!(store.executions(&his).await.unwrap().len(), 1);
    // Hers is replayed still.
    assert!(matches!(
        store.acquire(&ask_once(&ann, "k", "args"), &limits()).await.unwrap(),
        Acquired::Replay(run) if run.id == once.execution.id
    ));
    // An execution id gives no access either.
    let mut forged = ask(&bob);
    forged.execution.id = once.execution.id;
    assert!(matches!(store.acquire(&forged, &limits()).await, Err(StoreError::NotFound)));
    store.change_path(&ann, &PathChange::Archive, None, &limits()).await.unwrap();
    assert!(store.live(&ann).await.unwrap().is_none());
    assert!(store.live(&bob).await.unwrap().is_some());
}

async fn a_refusal_names_only_what_the_caller_may_enter(world: World) {
    let store = world.store().await;
    let limits = ContextLimits { per_tenant: 2, ..limits() };
    let at = |owner: &str, conversation: &str| of(owner, &key("acme", conversation, "main"));
    claim(store.acquire(&ask(&at("key:ann", "a")), &limits).await.unwrap());
    claim(store.acquire(&ask(&at("key:bob", "b")), &limits).await.unwrap());
    let refused = |ask| {
        let (store, limits) = (store.clone(), limits.clone());
        async move {
            match store.acquire(&ask, &limits).await.unwrap() {
                Acquired::Limit(reached) => {
                    let names: Vec<String> =
                        reached.holders.iter().map(|key| key.conversation.to_string()).collect();
                    (names, reached.others)
                }
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(refused(ask(&at("key:ann", "c"))).await, (vec!["a".to_owned()], 1));
    assert_eq!(refused(ask(&at("key:eve", "c"))).await, (vec![], 2));
    let service = Acquire { sees_tenant: true, ..ask(&key("acme", "c", "main")) };
    assert_eq!(refused(service).await, (vec!["a".to_owned(), "b".to_owned()], 0));
}

async fn a_conversation_is_shared_and_taken_back(world: World) {
    let store = world.store().await;
    let shared = of("key:ann", &key("acme", "c1", "main")).of_conversation();
    assert!(store.share(&shared, "key:bob", true).await.unwrap());
    assert!(!store.share(&shared, "key:bob", true).await.unwrap(), "said again");
    assert_eq!(store.shared_with(&shared).await.unwrap(), ["key:bob"]);
    for (principal, is_shared) in [("key:bob", true), ("key:eve", false)] {
        assert_eq!(store.is_shared_with(&shared, principal).await.unwrap(), is_shared, "{principal}");
    }
    assert_eq!(store.shared_to(&shared.tenant, "key:bob").await.unwrap(), std::slice::from_ref(&shared));
    assert!(store.shared_to(&shared.tenant, "key:eve").await.unwrap().is_empty());
    assert!(store.shared_to(&TenantId::parse("bolt").unwrap(), "key:bob").await.unwrap().is_empty());
    assert!(store.share(&shared, "key:bob", false).await.unwrap());
    assert!(store.shared_with(&shared).await.unwrap().is_empty());
}

/// A run that another replica asks for.
fn by(replica: &str, key: &ContextKey) -> Acquire {
    Acquire { owner: replica.to_owned(), ..ask(key) }
}

async fn a_replica_keeps_its_contexts_until_it_lets_go_or_dies(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let lease = Duration::from_secs(600);
    for replica in ["replica-1", "replica-2"] {
        assert!(store.heartbeat(replica, lease).await.unwrap().is_empty());
    }
    let context = first_run(&store, &key, &limits()).await;

    // Idle as it is, the other replica waits, and the holder learns of it.
    let other = by("replica-2", &key);
    assert!(matches!(store.acquire(&other, &limits()).await.unwrap(), Acquired::Queued { position: 1 }));
    let wanted = store.heartbeat("replica-1", lease).await.unwrap();
    assert_eq!(wanted, [(context.id, key.clone())]);
    assert!(matches!(store.acquire(&other, &limits()).await.unwrap(), Acquired::Queued { position: 1 }));
    assert!(!store.release(&key.tenant, context.id, "replica-2").await.unwrap(), "it is not its to give");
    assert!(store.release(&key.tenant, context.id, "replica-1").await.unwrap());
    let taken = ready(store.acquire(&other, &limits()).await.unwrap());
    assert_eq!((taken.id, taken.owner.as_str()), (context.id, "replica-2"));
    store.record(&finished(&other, context.id), &limits()).await.unwrap();
    assert!(store.heartbeat("replica-1", lease).await.unwrap().is_empty());

    // A replica that went, and one that never had a row, hold nothing.
    store.heartbeat("replica-2", Duration::ZERO).await.unwrap();
    let back = by("replica-1", &key);
    assert_eq!(ready(store.acquire(&back, &limits()).await.unwrap()).owner, "replica-1");
}

async fn a_dead_replicas_work_is_interrupted_and_free(world: World) {
    let store = world.store().await;
    let (busy, making) = (key("acme", "c1", "main"), key("acme", "c2", "main"));
    let lease = Duration::from_secs(600);
    store.heartbeat("replica-1", lease).await.unwrap();
    let context = first_run(&store, &busy, &limits()).await;
    let running = ask_once(&busy, "k", "args");
    ready(store.acquire(&running, &limits()).await.unwrap());
    let claimed = claim(store.acquire(&ask(&making), &limits()).await.unwrap());
    store.heartbeat("replica-2", lease).await.unwrap();
    world.advance(Duration::from_secs(1)).await;
    assert!(!store.left_running(&busy.tenant, context.id).await.unwrap(), "it has its replica");

    store.heartbeat("replica-1", Duration::ZERO).await.unwrap();
    store.heartbeat("replica-2", lease).await.unwrap();
    let run = store.execution(&busy.tenant, running.execution.id).await.unwrap().unwrap();
    assert_eq!(run.status, ExecutionStatus::Interrupted);
    let next = by("replica-2", &busy);
    assert_eq!(ready(store.acquire(&next, &limits()).await.unwrap()).id, context.id);
    // Its code may go on in the sandbox, until another run has been recorded.
    assert!(store.left_running(&busy.tenant, context.id).await.unwrap());
    assert!(!store.left_running(&key("bolt", "c1", "main").tenant, context.id).await.unwrap());
    world.advance(Duration::from_secs(1)).await;
    store.record(&finished(&next, context.id), &limits()).await.unwrap();
    assert!(!store.left_running(&busy.tenant, context.id).await.unwrap());
    let taken = claim(store.acquire(&by("replica-2", &making), &limits()).await.unwrap());
    assert_eq!((taken.context, taken.epoch), (claimed.context, claimed.epoch + 1));
    // Its key is not free: the run may have had effects.
    assert!(matches!(
        store.acquire(&ask_once(&busy, "k", "args"), &limits()).await.unwrap(),
        Acquired::Interrupted(_)
    ));
}

async fn any_text_and_large_results_are_kept_as_they_were(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let mut odd = ask_once(&key, "k'\"\u{1F600}", "a");
    odd.execution.purpose = Some("nul \0 and \u{1F600} and '; drop table x; --".to_owned());
    ready(store.acquire(&odd, &limits()).await.unwrap());
    let left = json!([{"uri": "pathbox://a"}]);
    let result = json!({"record": {"artifacts": left}, "stdout": "nul \0, lone \u{fffd}, \u{1F600}, 12345678901234567890.5", "n": 0.1});
    let record = FinishedExecution {
        result: Some(result.clone()),
        error: Some("a \0 b".to_owned()),
        ..finished(&odd, context.id)
    };
    store.record(&record, &limits()).await.unwrap();
    let run = store.execution(&key.tenant, odd.execution.id).await.unwrap().unwrap();
    assert_eq!(run.result, Some(result));
    assert_eq!(run.findings, record.findings);
    assert_eq!(run.purpose.as_deref(), Some("nul \u{fffd} and \u{1F600} and '; drop table x; --"));
    assert_eq!(run.error.as_deref(), Some("a \u{fffd} b"));

    // a large one is kept for a replay, and only for that
    let large = json!({"format": 1, "record": {"artifacts": left}, "stdout": "x".repeat(MAX_RESULT_BYTES)});
    for (ask, kept) in [(ask(&key), false), (ask_once(&key, "large", "a"), true)] {
        ready(store.acquire(&ask, &limits()).await.unwrap());
        let record = FinishedExecution { result: Some(large.clone()), ..finished(&ask, context.id) };
        store.record(&record, &limits()).await.unwrap();
        let run = store.execution(&key.tenant, ask.execution.id).await.unwrap().unwrap();
        assert_eq!(run.result.is_some(), kept);
    }

    // What they left is listed without the rest, the newest first; what was recorded without artifacts left none.
    let listed = store.artifacts(&key.tenant, &ExecutionFilter::default()).await.unwrap();
    let artifacts: Vec<_> = listed.iter().map(|kept| kept["record"]["artifacts"].clone()).collect();
    assert_eq!(artifacts, [left.clone(), left, json!([])]);
    assert_eq!((&listed[0]["format"], listed[0].get("stdout")), (&json!(1), None));
    let filter = ExecutionFilter { owner: Some(Owner::principal("key:other")), ..ExecutionFilter::default() };
    assert!(store.artifacts(&key.tenant, &filter).await.unwrap().is_empty());
}

async fn tokens_that_do_not_open_mean_lost(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits()).await;
    let other_keys = "1:ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";
    let restarted = world.store_with_keys(other_keys).await;
    let claimed = claim(restarted.acquire(&ask(&key), &limits()).await.unwrap());
    assert_eq!(claimed.previous, Some(EndReason::Lost));
    let row = restarted.context(&key.tenant, context.id).await.unwrap().unwrap();
    assert!(row.last_error.unwrap().contains("keys"));
    let pending = restarted.claim_kills(10, Duration::from_secs(60)).await.unwrap();
    let left = pending[0].sandbox.as_ref().unwrap();
    assert_eq!(left.sandbox_id, context.sandbox.unwrap().sandbox_id, "it still dies at the provider");
    assert_eq!(left.host_key, None);
}

async fn the_view_shows_what_is_expired(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    first_run(&store, &key, &limits()).await;
    let expired = "select count(*) from contexts where is_expired";
    let left = "select seconds_until_expiry from contexts";
    assert_eq!(world.number(expired).await, 0);
    assert!((1700..=1800).contains(&world.number(left).await));
    world.sql("update execution_contexts set expires_at = created_at").await.unwrap();
    assert_eq!((world.number(expired).await, world.number(left).await), (1, 0));
}

async fn an_api_key_is_kept_without_its_text_and_can_be_revoked(world: World) {
    let store = world.store().await;
    let clock = Clock::system();
    let mut made = Vec::new();
    for (name, expires_at) in [("router", None), ("notebook", Some(clock.now()))] {
        let text = KeyText::mint(&Entropy::system());
        let key = ApiKey {
            id: text.id().to_owned(),
            name: name.to_owned(),
            hash: text.hash(),
            kind: PrincipalKind::Service,
            tenant: None,
            tenants: Tenants::Only([TenantId::parse("acme").unwrap()].into()),
            scopes: [Scope::Run, Scope::Read].into(),
            created_at: clock.now(),
            expires_at,
            revoked_at: None,
        };
        store.add_api_key(&key).await.unwrap();
        assert_eq!(store.api_key(&key.id).await.unwrap(), Some(key.clone()));
        made.push((text, key));
    }
    assert_eq!(store.api_keys().await.unwrap().len(), 2);
    assert_eq!(store.api_key("000000000000").await.unwrap(), None);
    let (text, key) = &made[0];
    assert!(key.opens(text.expose(), clock.now()).is_some());
    assert!(store.revoke_api_key(&key.id).await.unwrap());
    let revoked = store.api_key(&key.id).await.unwrap().unwrap();
    assert!(revoked.revoked_at.is_some() && revoked.opens(text.expose(), clock.now()).is_none());
    assert!(store.revoke_api_key(&key.id).await.unwrap(), "twice is the same as once");
    assert_eq!(store.api_key(&key.id).await.unwrap().unwrap().revoked_at, revoked.revoked_at);
    assert!(!store.revoke_api_key("000000000000").await.unwrap());
}

async fn every_opening_of_a_token_is_recorded_once_with_its_caller(world: World) {
    let store = world.store().await;
    let reveal = |id: &str, tenant: &str, kind: Option<&str>| NewReveal {
        id: id.to_owned(),
        key: key(tenant, "c", "main"),
        kind: kind.map(str::to_owned),
        principal: "key:0123456789ab".to_owned(),
        opened: kind.is_some(),
    };
    let (first, second, other) =
        (reveal("1", "acme", Some("EMAIL")), reveal("2", "acme", None), reveal("3", "other", Some("SSN")));
    for reveal in [&first, &first, &second, &other] {
        store.record_reveal(reveal).await.unwrap();
    }
    let kept = |rows: Vec<RevealRow>| rows.into_iter().map(|row| row.reveal).collect::<Vec<_>>();
    let acme = TenantId::parse("acme").unwrap();
    assert_eq!(kept(store.reveals(Some(&acme), 10).await.unwrap()), [second.clone(), first.clone()]);
    assert_eq!(kept(store.reveals(None, 2).await.unwrap()), [other, second]);
    let contradicts = NewReveal { opened: false, ..reveal("4", "acme", Some("EMAIL")) };
    assert!(store.record_reveal(&contradicts).await.is_err());
}
