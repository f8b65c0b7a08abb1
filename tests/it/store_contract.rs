//! One suite for every store: what `pathbox::store` promises, on SQLite and on Postgres.

use std::time::Duration;

use pathbox::domain::{ContextStatus, EndReason};
use pathbox::store::{Acquired, ContextFilter, ExecutionFilter, ExecutionStatus, Limits};

use crate::support::database::World;
use crate::support::runs::{
    any_sandbox, ask, ask_once, claim, end, finished, first_run, key, ready, sandbox,
};

/// Each test twice, once a store.
macro_rules! on_every_store {
    ($($name:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::World::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL: scripts/test installs it"]
            async fn $name() {
                super::$name(super::World::postgres().await).await;
            })+
        }
    };
}

on_every_store! {
    a_new_key_is_created_once_and_then_reused,
    a_creator_that_was_too_slow_is_told_and_its_sandbox_dies,
    tokens_come_back_to_runs_and_never_to_lists,
    the_same_key_and_arguments_replay_the_record,
}

fn limits() -> Limits {
    Limits::default()
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

async fn a_creator_that_was_too_slow_is_told_and_its_sandbox_dies(world: World) {
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

    let doomed = store.doomed(10, Duration::from_secs(60)).await.unwrap();
    let [fenced] = doomed.as_slice() else { panic!("{doomed:?}") };
    let known = fenced.sandbox.as_ref().unwrap();
    assert_eq!((fenced.context, fenced.epoch), (old.context, 1));
    assert_eq!(known.sandbox_id, late.sandbox_id);
    assert_eq!((&known.host_url, &known.host_key), (&late.host_url, &late.host_key));

    world.advance(limits().create_timeout + Duration::from_secs(1)).await;
    let doomed = store.doomed(10, Duration::from_secs(600)).await.unwrap();
    assert!(doomed.iter().any(|entry| entry.sandbox.is_none() && entry.epoch == 1), "the tag: {doomed:?}");
    for entry in doomed {
        store.buried(entry.id).await.unwrap();
    }
    world.advance(Duration::from_secs(3600)).await;
    assert!(store.doomed(10, Duration::from_secs(60)).await.unwrap().is_empty());
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
    let owned = store.owned(Duration::ZERO, None, 10).await.unwrap();
    assert_eq!(owned[0].sandbox, context.sandbox);
    assert!(store.owned(Duration::from_secs(60), None, 10).await.unwrap().is_empty(), "too young");
    assert!(store.owned(Duration::ZERO, Some(context.id), 10).await.unwrap().is_empty(), "the next page");

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
