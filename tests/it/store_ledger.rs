//! The audit chain, what was used and quotas, on SQLite and on Postgres.

use std::time::Duration;

use pathbox::domain::usage::{UsageBy, report};
use pathbox::domain::{ContextKey, EndReason, OwnQuota, Owner, Period, Prices, Quota, QuotaKind, TenantId};
use pathbox::store::{
    Acquire, Acquired, Chain, ChainHead, ContextFilter, ContextLimits, ContextRow, DynStore, ExecutionStatus,
    ToolPermit, UsageFilter, verify,
};

use crate::support::database::World;
use crate::support::on_every_store;
use crate::support::runs::{any_sandbox, ask, claim, end, finished, key, ready};

on_every_store! {
    each_end_of_a_run_is_an_entry_of_its_tenants_chain,
    a_run_that_was_given_up_and_ended_well_has_two_entries,
    records_at_the_same_time_make_one_chain,
    a_changed_record_is_found_with_its_place,
    an_ended_run_is_immutable,
    the_chain_still_verifies_after_retention,
    use_counts_by_tenant_conversation_path_and_day,
    a_sandbox_counts_no_longer_than_it_could_live,
    a_quota_of_runs_is_enforced_exactly,
    a_quota_of_sandbox_seconds_reserves_what_a_sandbox_may_take,
    a_quota_of_money_follows_the_price_table,
    a_tenants_own_quota_comes_first,
    an_erasure_leaves_a_chain_that_verifies_and_says_what_went,
    an_erasure_gives_no_quota_back,
}

fn limits() -> ContextLimits {
    ContextLimits::default()
}

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

/// A run from its ask to its record, on the key's context, live or new.
async fn run(store: &DynStore, tenant: &str, path: &str) -> pathbox::domain::ContextId {
    let key = key(tenant, "c1", path);
    let ask = ask(&key);
    let context = match store.acquire(&ask, &limits()).await.unwrap() {
        Acquired::Ready(context, _) => context.id,
        other => {
            let claim = claim(other);
            store.ready(&claim, ask.execution.id, &any_sandbox(), &limits()).await.unwrap().unwrap().id
        }
    };
    assert!(store.record(&finished(&ask, context), &limits()).await.unwrap());
    context
}

/// A run that has begun, on a new context.
async fn begun(store: &DynStore, key: &ContextKey) -> (Acquire, ContextRow) {
    let ask = ask(key);
    let claim = claim(store.acquire(&ask, &limits()).await.unwrap());
    let context = store.ready(&claim, ask.execution.id, &any_sandbox(), &limits()).await.unwrap().unwrap();
    (ask, context)
}

async fn chain(store: &DynStore, name: &str) -> Chain {
    verify(&**store, &tenant(name), |_, _| {}).await.unwrap()
}

/// The faults, each as its place in lane 0 and its words.
async fn faults(store: &DynStore) -> Vec<(Option<i64>, String)> {
    let in_lane_0 = |(lane, n)| {
        assert_eq!(lane, 0, "ends that come one after the other are in one lane");
        n
    };
    let found = chain(store, "acme").await.faults;
    found.into_iter().map(|fault| (fault.place.map(in_lane_0), fault.what)).collect()
}

/// Where the only lane of a chain ends.
fn only_head(chain: &Chain) -> &ChainHead {
    assert_eq!(chain.lanes.len(), 1, "{chain:?}");
    &chain.lanes[0]
}

async fn each_end_of_a_run_is_an_entry_of_its_tenants_chain(world: World) {
    let store = world.store().await;
    run(&store, "acme", "main").await;
    run(&store, "acme", "main").await;
    run(&store, "other", "main").await;
    let queued = ask(&key("acme", "c1", "main"));
    ready(store.acquire(&queued, &limits()).await.unwrap());
    let gone = ExecutionStatus::Cancelled;
    assert!(store.abandon(&queued.key.tenant, queued.execution.id, gone, None).await.unwrap());

    let acme = chain(&store, "acme").await;
    assert_eq!((acme.entries, only_head(&acme).n, acme.faults.len()), (3, 3, 0), "{acme:?}");
    assert_eq!(chain(&store, "other").await.entries, 1);
    let entries = store.chain(&tenant("acme"), 0, 0, 10).await.unwrap();
    let body: serde_json::Value = serde_json::from_str(entries[2].body.as_deref().unwrap()).unwrap();
    assert_eq!((&body["status"], &body["principal"]), (&"cancelled".into(), &"key:ci".into()));
    assert_eq!(entries[2].execution, Some(queued.execution.id));
    assert_eq!(store.chain(&tenant("acme"), 0, 2, 10).await.unwrap().len(), 1);
}

async fn a_run_that_was_given_up_and_ended_well_has_two_entries(world: World) {
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let (ask, context) = begun(&store, &key).await;
    world.advance(Duration::from_secs(3600)).await;
    store.reap(100, Duration::from_secs(1 << 20), &limits()).await.unwrap();
    assert!(store.record(&finished(&ask, context.id), &limits()).await.unwrap());
    let chain = chain(&store, "acme").await;
    assert_eq!((chain.entries, chain.faults.len()), (2, 0), "{chain:?}");
    let rows = store.usage(&this_week(&store).await).await.unwrap();
    // The hour may go over midnight: a row for each day then.
    let total = rows.iter().fold((0, 0), |(count, ms), row| (count + row.executions, ms + row.run_ms));
    assert_eq!(total, (1, 12));
}

async fn records_at_the_same_time_make_one_chain(world: World) {
    let (first, second) = (world.store().await, world.store().await);
    let paths = (0..4).map(|n| {
        let stores = [first.clone(), second.clone()];
        tokio::spawn(async move {
            for store in stores.iter().cycle().take(6) {
                run(store, "acme", &format!("p{n}")).await;
            }
        })
    });
    for path in futures::future::join_all(paths).await {
        path.unwrap();
    }
    let chain = chain(&first, "acme").await;
    let ends: i64 = chain.lanes.iter().map(|head| head.n).sum();
    assert_eq!((chain.entries, ends, chain.faults.len()), (24, 24, 0), "{chain:?}");
}

/// SQL as someone who owns the database and switches the guards off.
async fn tamper(world: &World, sql: &str) {
    let guards = match world.is_postgres() {
        true => "set session_replication_role = replica; ",
        false => {
            "DROP TRIGGER IF EXISTS guard_ended_execution; DROP TRIGGER IF EXISTS guard_audit;
             DROP TRIGGER IF EXISTS guard_audit_delete; DROP TRIGGER IF EXISTS execution_inserted_ended; "
        }
    };
    world.sql(&format!("{guards}{sql}")).await.unwrap();
}

async fn a_changed_record_is_found_with_its_place(world: World) {
    let store = world.store().await;
    for _ in 0..5 {
        run(&store, "acme", "main").await;
    }
    assert_eq!(faults(&store).await, []);
    let id = |n: i64| format!("(SELECT execution_id FROM audit_log WHERE n = {n})");

    tamper(
        &world,
        &format!("UPDATE executions SET exit_code = 1, principal = 'key:else' WHERE id = {}", id(2)),
    )
    .await;
    let row = "the run's row was changed since: exitCode, principal";
    let found = faults(&store).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, Some(2));
    assert!(
        found[0].1.starts_with("the run's row was changed since: ") && found[0].1.len() == row.len(),
        "{found:?}"
    );
    tamper(
        &world,
        &format!("UPDATE executions SET exit_code = 0, principal = 'key:ci' WHERE id = {}", id(2)),
    )
    .await;
    assert_eq!(faults(&store).await, []);

    tamper(&world, "UPDATE audit_log SET body = replace(body, 'key:ci', 'key:no') WHERE n = 3").await;
    let found = faults(&store).await;
    assert_eq!(found[0], (Some(3), "its content was changed".to_owned()));
    tamper(&world, "UPDATE audit_log SET body = replace(body, 'key:no', 'key:ci') WHERE n = 3").await;
    assert_eq!(faults(&store).await, []);

    tamper(&world, "UPDATE audit_log SET body = NULL WHERE n = 4").await;
    let found = faults(&store).await;
    assert!(
        found.iter().any(|(n, what)| *n == Some(4) && what.contains("no erasure entry names it")),
        "{found:?}"
    );

    tamper(&world, "DELETE FROM audit_log WHERE n = 4").await;
    assert_eq!(faults(&store).await[0], (Some(4), "entries 4 to 4 are missing".to_owned()));
    tamper(&world, "DELETE FROM audit_log WHERE n = 5").await;
    let found = faults(&store).await;
    assert_eq!(found[0], (Some(3), "the lane ends here, but its head says 5".to_owned()));
    assert_eq!(found.iter().filter(|(_, what)| what.contains("has no entry")).count(), 2, "{found:?}");
}

async fn an_ended_run_is_immutable(world: World) {
    let store = world.store().await;
    run(&store, "acme", "main").await;
    for sql in [
        "UPDATE executions SET exit_code = 1",
        "UPDATE executions SET status = 'failed'",
        "UPDATE executions SET code_sha256 = 'else'",
        "UPDATE executions SET idempotency_key = 'k', args_sha256 = 'a'",
        "UPDATE audit_log SET body = 'else'",
        "UPDATE audit_log SET hash = body_sha256",
        "DELETE FROM audit_log",
    ] {
        let refused = world.sql(sql).await;
        assert!(refused.is_err(), "{sql}: {refused:?}");
    }
    if world.is_postgres() {
        for sql in [
            "DELETE FROM executions",
            "INSERT INTO audit_log VALUES ('acme', 0, 2, now(), NULL, '', repeat('0', 64), repeat('0', 64))",
        ] {
            let bound = format!("set role pathbox_app; set pathbox.tenant_id = 'acme'; {sql}");
            let refused = world.sql(&bound).await;
            assert!(refused.is_err(), "{sql}: {refused:?}");
        }
    }
    assert_eq!(faults(&store).await, []);
}

async fn the_chain_still_verifies_after_retention(world: World) {
    let store = world.store().await;
    for _ in 0..3 {
        run(&store, "acme", "main").await;
    }
    assert_eq!(store.prune_chain(Duration::from_secs(3600), 100).await.unwrap(), 0);
    world.advance(Duration::from_secs(7200)).await;
    assert_eq!(store.prune_chain(Duration::from_secs(3600), 2).await.unwrap(), 2, "a batch at a time");
    assert_eq!(store.prune_chain(Duration::from_secs(3600), 2).await.unwrap(), 1);
    assert_eq!(chain(&store, "acme").await.faults, []);
    run(&store, "acme", "main").await;
    let chain = chain(&store, "acme").await;
    assert_eq!((only_head(&chain).anchor_n, chain.entries, chain.faults.len()), (3, 1, 0), "{chain:?}");
}

/// The days around today, by the database's clock.
async fn this_week(store: &DynStore) -> UsageFilter {
    let today = store.now().await.unwrap().date_naive();
    let days = chrono::Days::new(3);
    UsageFilter { tenant: None, owner: None, from: today - days, to: today + days }
}

async fn use_counts_by_tenant_conversation_path_and_day(world: World) {
    let store = world.store().await;
    run(&store, "acme", "main").await;
    let context = run(&store, "acme", "main").await;
    run(&store, "acme", "side").await;
    run(&store, "other", "main").await;
    world.advance(Duration::from_secs(600)).await;
    let at_least = 600_000;
    let lives = store.usage(&this_week(&store).await).await.unwrap();
    let prices = Prices { sandbox_hour_micros: 3_600_000, execution_micros: 10, ..Prices::default() };
    let lines = report(&lives, UsageBy::Tenant, &prices);
    assert_eq!(lines.iter().map(|line| line.executions).collect::<Vec<_>>(), [3, 1]);
    assert!(lines[0].sandbox_ms >= 2 * at_least, "what lives counts: {lines:?}");
    // A sandbox hour costs 3.6, so a millisecond costs one millionth.
    assert_eq!(lines[0].cost_micros, lines[0].sandbox_ms + 30);

    let main = key("acme", "c1", "main");
    assert!(store.end(&end(&main, context, None, EndReason::Manual), &limits()).await.unwrap());
    let filter = UsageFilter { tenant: Some(tenant("acme")), ..this_week(&store).await };
    let rows = store.usage(&filter).await.unwrap();
    let paths = report(&rows, UsageBy::Path, &prices);
    let found: Vec<_> = paths
        .iter()
        .map(|line| (line.path.clone().unwrap().to_string(), line.executions, line.run_ms, line.output_bytes))
        .collect();
    assert_eq!(found, [("main".to_owned(), 2, 24, 10), ("side".to_owned(), 1, 12, 5)]);
    assert!(paths[0].sandbox_ms >= at_least, "what has ended counts: {paths:?}");
    let days: u64 = report(&rows, UsageBy::Day, &prices).iter().map(|line| line.executions).sum();
    assert_eq!(days, 3);
    let nobody = UsageFilter { owner: Some(Owner::principal("key:else")), ..filter };
    assert_eq!(store.usage(&nobody).await.unwrap(), []);
}

/// No server saw it end, for instance in the nights after a desktop's server was killed.
async fn a_sandbox_counts_no_longer_than_it_could_live(world: World) {
    let store = world.store().await;
    let context = run(&store, "acme", "main").await;
    world.sql("UPDATE execution_contexts SET provider_ends_at = NULL").await.unwrap();
    world.advance(Duration::from_secs(2 * 86_400)).await;
    let counted = async || -> u64 {
        let rows = store.usage(&this_week(&store).await).await.unwrap();
        rows.iter().map(|row| row.sandbox_ms).sum()
    };
    // The time to live is 30 minutes after the run.
    let lives = counted().await;
    assert!((1_800_000..1_860_000).contains(&lives), "{lives}");
    let main = key("acme", "c1", "main");
    assert!(store.end(&end(&main, context, None, EndReason::Expired), &limits()).await.unwrap());
    // Postgres rounds the milliseconds of a day that has ended, and what lives is cut.
    assert!(counted().await.abs_diff(lives) <= 1, "{lives}");
}

async fn a_quota_of_runs_is_enforced_exactly(world: World) {
    let store = world.store().await;
    let quota = Quota { executions: Some(2), period: Period::Day, ..Quota::default() };
    let limits = ContextLimits { quota, ..limits() };
    let key = key("acme", "c1", "main");
    let (first, context) = begun(&store, &key).await;
    // The second waits, and its place is what it has reserved.
    let second = ask(&key);
    assert!(matches!(store.acquire(&second, &limits).await.unwrap(), Acquired::Queued { position: 1 }));
    let third = ask(&key);
    match store.acquire(&third, &limits).await.unwrap() {
        Acquired::Quota(reached) => {
            assert_eq!((reached.kind, reached.limit), (QuotaKind::Executions, 2));
            assert_eq!((reached.used, reached.reserved, reached.period), (0, 3, Period::Day));
            assert!(!reached.resets_in.is_zero() && reached.resets_in <= Duration::from_secs(86_400));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.execution(&key.tenant, third.execution.id).await.unwrap(), None, "it leaves no row");
    store.record(&finished(&first, context.id), &limits).await.unwrap();
    ready(store.acquire(&second, &limits).await.unwrap());
    ready(store.acquire(&second, &limits).await.unwrap());
    store.record(&finished(&second, context.id), &limits).await.unwrap();
    match store.acquire(&third, &limits).await.unwrap() {
        Acquired::Quota(reached) => assert_eq!((reached.used, reached.reserved), (2, 1)),
        other => panic!("{other:?}"),
    }
    // What never ran is given back.
    let more =
        ContextLimits { quota: Quota { executions: Some(3), ..limits.quota.clone() }, ..limits.clone() };
    ready(store.acquire(&third, &more).await.unwrap());
    let gone = ExecutionStatus::Cancelled;
    assert!(store.abandon(&key.tenant, third.execution.id, gone, None).await.unwrap());
    match store.acquire(&ask(&key), &limits).await.unwrap() {
        Acquired::Quota(reached) => assert_eq!((reached.used, reached.reserved), (2, 1)),
        other => panic!("{other:?}"),
    }
    // Another tenant has one of its own.
    let elsewhere = crate::support::runs::key("other", "c1", "main");
    claim(store.acquire(&ask(&elsewhere), &limits).await.unwrap());
}

async fn a_quota_of_sandbox_seconds_reserves_what_a_sandbox_may_take(world: World) {
    let store = world.store().await;
    // One sandbox may take 90 s of run and 600 s of life after it.
    let quota = Quota { sandbox_seconds: Some(1000), ..Quota::default() };
    let limits = ContextLimits { quota, ttl: Duration::from_secs(600), ..limits() };
    let (main, side) = (key("acme", "c1", "main"), key("acme", "c1", "side"));
    let first = ask(&main);
    let claimed = claim(store.acquire(&first, &limits).await.unwrap());
    let second = ask(&side);
    match store.acquire(&second, &limits).await.unwrap() {
        Acquired::Quota(reached) => {
            assert_eq!((reached.kind, reached.limit, reached.used), (QuotaKind::SandboxSeconds, 1000, 0));
            assert_eq!(reached.reserved, 2 * 690);
        }
        other => panic!("{other:?}"),
    }
    let live = ContextFilter { tenant: Some(main.tenant.clone()), ..ContextFilter::default() };
    assert_eq!(store.contexts(&live).await.unwrap().len(), 1, "the refused one left no context");
    let context = store.ready(&claimed, first.execution.id, &any_sandbox(), &limits).await.unwrap().unwrap();
    store.record(&finished(&first, context.id), &limits).await.unwrap();
    assert!(matches!(store.acquire(&second, &limits).await.unwrap(), Acquired::Quota(_)));
    // It ends before its time: what it did not take is free.
    assert!(store.end(&end(&main, context.id, None, EndReason::Manual), &limits).await.unwrap());
    claim(store.acquire(&second, &limits).await.unwrap());
}

async fn a_quota_of_money_follows_the_price_table(world: World) {
    let store = world.store().await;
    let prices = Prices { execution_micros: 400_000, ..Prices::default() };
    let quota = Quota { money_micros: Some(1_000_000), ..Quota::default() };
    let limits = ContextLimits { quota, prices, ..limits() };
    for _ in 0..2 {
        let ask = ask(&key("acme", "c1", "main"));
        let context = match store.acquire(&ask, &limits).await.unwrap() {
            Acquired::Ready(context, _) => context.id,
            other => {
                let claim = claim(other);
                store.ready(&claim, ask.execution.id, &any_sandbox(), &limits).await.unwrap().unwrap().id
            }
        };
        store.record(&finished(&ask, context), &limits).await.unwrap();
    }
    match store.acquire(&ask(&key("acme", "c1", "main")), &limits).await.unwrap() {
        Acquired::Quota(reached) => assert_eq!(
            (reached.kind, reached.limit, reached.used, reached.reserved),
            (QuotaKind::Money, 1_000_000, 800_000, 400_000)
        ),
        other => panic!("{other:?}"),
    }
}

async fn a_tenants_own_quota_comes_first(world: World) {
    let store = world.store().await;
    let acme = tenant("acme");
    assert_eq!(store.own_quota(&acme).await.unwrap(), OwnQuota::default());
    let own = OwnQuota { executions: Some(0), period: Some(Period::Day), ..OwnQuota::default() };
    store.set_own_quota(&acme, &own).await.unwrap();
    assert_eq!(store.own_quota(&acme).await.unwrap(), own);
    let refused = store.acquire(&ask(&key("acme", "c1", "main")), &limits()).await.unwrap();
    assert!(
        matches!(refused, Acquired::Quota(reached) if reached.limit == 0 && reached.period == Period::Day)
    );
    // An empty row means the configured quota.
    store.set_own_quota(&acme, &OwnQuota::default()).await.unwrap();
    claim(store.acquire(&ask(&key("acme", "c1", "main")), &limits()).await.unwrap());
}

async fn an_erasure_leaves_a_chain_that_verifies_and_says_what_went(world: World) {
    let store = world.store().await;
    run(&store, "acme", "main").await;
    let mut theirs = key("acme", "c2", "main");
    theirs.owner = Owner::principal("key:them");
    let mut other = ask(&theirs);
    other.execution.principal = Some("key:them".to_owned());
    let claimed = claim(store.acquire(&other, &limits()).await.unwrap());
    let context =
        store.ready(&claimed, other.execution.id, &any_sandbox(), &limits()).await.unwrap().unwrap();
    store.record(&finished(&other, context.id), &limits()).await.unwrap();
    store.save_placeholders(&theirs, &[("EMAIL".into(), "hash".into(), 1)]).await.unwrap();
    store.end(&end(&theirs, context.id, None, EndReason::Manual), &limits()).await.unwrap();
    run(&store, "acme", "main").await;

    let permit = ToolPermit {
        conversation: theirs.of_conversation(),
        principal: "key:them".to_owned(),
        tool: "kit.echo".to_owned(),
        definition: "a".repeat(64),
    };
    store.permit_tool(&permit).await.unwrap();

    let said = store.erase(&theirs.tenant, Some("key:them")).await.unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let said = &said["erasure"];
    assert_eq!(
        (&said["executions"], &said["contexts"], &said["placeholders"], &said["toolPermits"]),
        (&1.into(), &1.into(), &1.into(), &1.into())
    );
    assert!(!store.tool_permitted(&permit).await.unwrap());
    assert_eq!(said["entries"], serde_json::json!([[0, 2, 2]]));
    assert!(!said.to_string().contains("them"), "{said}");
    let chain_now = chain(&store, "acme").await;
    assert_eq!((chain_now.entries, chain_now.erased, chain_now.faults.len()), (4, 1, 0), "{chain_now:?}");
    assert_eq!(store.execution(&theirs.tenant, other.execution.id).await.unwrap(), None);
    let left = world.number("SELECT count(*) FROM audit_log WHERE body LIKE '%key:them%'").await;
    assert_eq!(left, 0);

    store.erase(&theirs.tenant, None).await.unwrap();
    let chain_now = chain(&store, "acme").await;
    assert_eq!((chain_now.erased, chain_now.faults.len()), (3, 0), "{chain_now:?}");
    assert_eq!(world.number("SELECT count(*) FROM executions").await, 0);
}

async fn an_erasure_gives_no_quota_back(world: World) {
    let store = world.store().await;
    let quota = Quota { executions: Some(2), period: Period::Day, ..Quota::default() };
    let limits = ContextLimits { quota, ..limits() };
    let ours = key("acme", "c1", "main");
    for _ in 0..2 {
        run(&store, "acme", "main").await;
    }
    let context = store.live(&ours).await.unwrap().unwrap().id;
    store.end(&end(&ours, context, None, EndReason::Manual), &limits).await.unwrap();
    for who in [Some(ours.owner.as_str()), None, None] {
        store.erase(&ours.tenant, who).await.unwrap();
        match store.acquire(&ask(&ours), &limits).await.unwrap() {
            Acquired::Quota(reached) => assert_eq!((reached.used, reached.reserved), (2, 1), "{who:?}"),
            other => panic!("{who:?}: {other:?}"),
        }
        assert_eq!(store.usage(&this_week(&store).await).await.unwrap(), [], "{who:?}");
    }
}

/// SQL that ends a run as another program would.
fn ended_as(status: &str, ask: &Acquire) -> String {
    format!(
        "update pathbox.executions set status = '{status}', finished_at = clock_timestamp(), lease_expires_at = null
          where id = '{}'",
        ask.execution.id
    )
}

/// A transaction that has ended a run, up to its commit.
async fn ended_but_not_committed(world: &World, ask: &Acquire) -> sqlx::PgConnection {
    let mut open = world.database().connect().await;
    let sql = format!("begin; {}; set constraints all immediate", ended_as("failed", ask));
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut open).await.unwrap();
    open
}

/// Ends of one tenant commit side by side, each in a lane of its own, and what is about one run stays together.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn an_end_does_not_wait_for_the_commit_of_another() {
    let world = World::postgres().await;
    let store = world.store().await;
    let (slow, _) = begun(&store, &key("acme", "c1", "slow")).await;
    let (quick, quick_context) = begun(&store, &key("acme", "c1", "quick")).await;
    let (given_up, given_up_context) = begun(&store, &key("acme", "c1", "given-up")).await;

    let mut open = ended_but_not_committed(&world, &slow).await;
    assert!(store.record(&finished(&quick, quick_context.id), &limits()).await.unwrap());
    let manual = end(&quick.key, quick_context.id, None, EndReason::Manual);
    assert!(store.end(&manual, &limits()).await.unwrap());
    world.sql(&ended_as("interrupted", &given_up)).await.unwrap();
    sqlx::raw_sql("commit").execute(&mut open).await.unwrap();

    // It had ended well, and both entries about it are in one lane, although the first one is free again.
    assert!(store.record(&finished(&given_up, given_up_context.id), &limits()).await.unwrap());
    run(&store, "acme", "later").await;
    let lanes = |chain: &Chain| chain.lanes.iter().map(|head| (head.lane, head.n)).collect::<Vec<_>>();
    let found = chain(&store, "acme").await;
    assert_eq!((lanes(&found), found.faults.as_slice()), (vec![(0, 2), (1, 3)], [].as_slice()), "{found:?}");
    let rows = store.usage(&this_week(&store).await).await.unwrap();
    let runs: Vec<(&str, u64)> = rows.iter().map(|row| (row.key.path.as_str(), row.executions)).collect();
    for path in ["quick", "given-up", "later"] {
        assert!(runs.contains(&(path, 1)), "one row a path and day, whichever lanes counted it: {runs:?}");
    }

    tamper(&world, "UPDATE audit_log SET body = replace(body, 'key:ci', 'key:no') WHERE lane = 1 AND n = 2")
        .await;
    let fault = &chain(&store, "acme").await.faults[0];
    assert_eq!((fault.place, fault.what.as_str()), (Some((1, 2)), "its content was changed"));
    tamper(&world, "UPDATE audit_log SET body = replace(body, 'key:no', 'key:ci') WHERE lane = 1 AND n = 2")
        .await;
    tamper(
        &world,
        "UPDATE audit_log SET lane = 2 WHERE lane = 1; UPDATE audit_heads SET lane = 2 WHERE lane = 1",
    )
    .await;
    let fault = &chain(&store, "acme").await.faults[0];
    assert_eq!(fault.place, Some((2, 1)), "a lane stays what it was written as: {}", fault.what);
    tamper(&world, "DELETE FROM audit_heads WHERE lane = 2").await;
    let found = chain(&store, "acme").await.faults;
    let lost = found.iter().filter(|fault| fault.what.contains("has no entry")).count();
    assert_eq!(lost, 2, "a lane without its head counts for nothing: {found:?}");
}

/// What an erasure takes of one lane is named in another.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn an_erasure_names_the_lanes_of_what_it_takes() {
    let world = World::postgres().await;
    let store = world.store().await;
    let (slow, _) = begun(&store, &key("acme", "c1", "slow")).await;
    let mut open = ended_but_not_committed(&world, &slow).await;
    run(&store, "acme", "quick").await;
    sqlx::raw_sql("commit").execute(&mut open).await.unwrap();
    let said = store.erase(&tenant("acme"), None).await.unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["erasure"]["entries"], serde_json::json!([[0, 1, 1], [1, 1, 1]]));
    let found = chain(&store, "acme").await;
    assert_eq!((found.entries, found.erased, found.faults.as_slice()), (3, 2, [].as_slice()), "{found:?}");
    // Retention takes each lane by itself.
    world.advance(Duration::from_secs(7200)).await;
    assert_eq!(store.prune_chain(Duration::from_secs(3600), 1).await.unwrap(), 2);
    assert_eq!(store.prune_chain(Duration::from_secs(3600), 1).await.unwrap(), 1);
    let found = chain(&store, "acme").await;
    // The bodies and the entry that named them are gone together.
    assert_eq!((found.entries, found.faults.as_slice()), (0, [].as_slice()), "{found:?}");
}

/// Retention beside a verification leaves no entry missing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn retention_during_a_verification_is_not_a_fault() {
    let world = World::postgres().await;
    let store = world.store().await;
    let (slow, _) = begun(&store, &key("acme", "c1", "slow")).await;
    let mut open = ended_but_not_committed(&world, &slow).await;
    for _ in 0..3 {
        run(&store, "acme", "quick").await;
    }
    sqlx::raw_sql("commit").execute(&mut open).await.unwrap();
    let (mut taken, acme) = (0, tenant("acme"));
    let verified = verify(&*store, &acme, |_, _| {
        if taken == 0 {
            // Lane 1 loses its first entry after its head was read and before its entries are.
            let pruning = store.prune_chain(Duration::ZERO, 1);
            taken =
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(pruning)).unwrap();
        }
    });
    let found = verified.await.unwrap();
    assert_eq!(taken, 2);
    assert_eq!((found.entries, found.faults.as_slice()), (3, [].as_slice()), "{found:?}");
    // What is taken without saying so is still found.
    tamper(&world, "DELETE FROM audit_log WHERE lane = 1 AND n = 2").await;
    let found = chain(&store, "acme").await.faults;
    assert_eq!((found[0].place, found[0].what.as_str()), (Some((1, 2)), "entries 2 to 2 are missing"));
}
