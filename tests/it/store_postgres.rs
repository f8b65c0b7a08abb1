//! Features of Postgres alone: row-level security, owners without superuser rights, migrations by several servers at once,
//! and a server that is away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pathbox::domain::Entropy;
use pathbox::store::*;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::support::database::{Cluster, Database, TEST_KEY, World, cluster};
use crate::support::http::HttpServer;
use crate::support::runs::{any_sandbox, ask, claim, finished, first_run, key, ready};
use crate::support::server::command;
use crate::support::wire::Wire;

fn keyring() -> Keyring {
    Keyring::parse(TEST_KEY, &Entropy::system()).unwrap()
}

async fn run(connection: &mut PgConnection, sql: &str) -> Result<u64, sqlx::Error> {
    Ok(sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?.rows_affected())
}

async fn count(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.unwrap()
}

/// Logs in as a role that the test makes.
async fn login(database: &Database, role: &str, how: &str) -> PgConnection {
    let mut admin = database.connect().await;
    run(&mut admin, &format!("create role {role} login; {how}")).await.unwrap();
    PgConnection::connect(database.url_as(role).expose()).await.unwrap()
}

/// A name that no other test has: roles belong to the cluster.
fn role(name: &str) -> String {
    format!("{name}_{}", Entropy::system().hex::<4>())
}

fn refused(result: Result<u64, sqlx::Error>) -> String {
    let error = result.expect_err("this must be refused");
    error.as_database_error().expect("by the database").message().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_reader_sees_its_tenants_rows_and_no_credential_and_writes_nothing() {
    let world = World::postgres().await;
    let store = world.store().await;
    first_run(&store, &key("acme", "c1", "main"), &ContextLimits::default()).await;
    first_run(&store, &key("bolt", "c1", "main"), &ContextLimits::default()).await;
    for (id, tenant) in [(1, "acme"), (2, "bolt")] {
        let workflow = crate::workflows::new(id, None, "x");
        let workflow = pathbox::store::workflows::NewWorkflow { key: key(tenant, "c1", "main"), ..workflow };
        store.create_workflow(&workflow).await.unwrap();
    }
    let name = role("reader");
    let mut reader = login(world.database(), &name, &format!("grant pathbox_tenant to {name}")).await;

    let contexts = "select count(*) from pathbox.contexts";
    assert_eq!(count(&mut reader, contexts).await, 0, "no tenant named, nothing seen");
    run(&mut reader, "begin; set local pathbox.tenant_id = 'acme'").await.unwrap();
    assert_eq!(count(&mut reader, contexts).await, 1);
    assert_eq!(count(&mut reader, "select count(*) from pathbox.executions").await, 1);
    for table in ["workflows", "workflow_events"] {
        assert_eq!(
            count(&mut reader, &format!("select count(tenant_id) from pathbox.{table}")).await,
            1,
            "{table}"
        );
    }
    assert_eq!(count(&mut reader, "select count(body) from pathbox.workflow_results").await, 0);
    assert_eq!(count(&mut reader, "select count(*) from pathbox.contexts where tenant_id = 'bolt'").await, 0);
    run(&mut reader, "rollback").await.unwrap();
    assert_eq!(count(&mut reader, contexts).await, 0, "the setting is gone with its transaction");

    run(&mut reader, "set pathbox.tenant_id = 'acme'").await.unwrap();
    for column in [
        "sandbox_id",
        "host_url",
        "host_key_enc",
        "envd_token_enc",
        "traffic_token_enc",
        "mcp_url",
        "mcp_token_enc",
        "lease_owner",
        "*",
    ] {
        let message =
            refused(run(&mut reader, &format!("select {column} from pathbox.execution_contexts")).await);
        assert!(message.contains("permission denied"), "{column}: {message}");
    }
    for sql in [
        "update pathbox.execution_contexts set last_error = 'x'",
        "update pathbox.execution_contexts set sandbox_id = 'sb-of-bolt'",
        "delete from pathbox.execution_contexts",
        "insert into pathbox.tenant_limits values ('acme', 1000, 1000)",
        "insert into pathbox.conversation_paths (tenant_id, conversation_id, path_id) values ('acme', 'c', 'p')",
        "update pathbox.contexts set last_error = 'x'",
        "select idempotency_key from pathbox.executions",
        "select idempotency_key from pathbox.workflows",
        "select lease_owner from pathbox.workflows",
        "update pathbox.workflows set status = 'aborted'",
        "delete from pathbox.workflow_events",
        "update pathbox.workflow_results set body = 'null'",
        "select pathbox.workflow_events_v1(gen_random_uuid(), 0, 10)",
        "select count(*) from pathbox.doomed_sandboxes",
        "select count(*) from pathbox.tenant_logins",
        "select count(*) from pathbox.placeholders",
        "select count(*) from pathbox.migrations",
        "select pathbox.end_v1('bolt', gen_random_uuid(), null, 'manual', null, 0)",
        "select count(*) from pathbox.all_contexts_v1(null, true, 10)",
        "select count(*) from pathbox.owned_v1(0, null, 10)",
        "select count(*) from pathbox.doomed_v1(10, 0)",
        "select pathbox.set_tenant_limits_v1('acme', 1000, 1000)",
        "select pathbox.end_context(gen_random_uuid(), 'manual', null, '0')",
        "set role pathbox_worker",
        "set role pathbox_app",
        "create function pathbox.mine() returns int language sql as 'select 1'",
        "create table pathbox.mine ()",
        "truncate pathbox.executions",
    ] {
        let message = refused(run(&mut reader, sql).await);
        assert!(
            message.contains("permission denied") || message.contains("cannot update view"),
            "{sql}: {message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_listed_login_is_bound_to_its_tenant_whatever_it_sets() {
    let world = World::postgres().await;
    let store = world.store().await;
    first_run(&store, &key("acme", "c1", "main"), &ContextLimits::default()).await;
    first_run(&store, &key("bolt", "c1", "main"), &ContextLimits::default()).await;
    let name = role("acme_reports");
    let how = format!(
        "grant pathbox_tenant to {name}; insert into pathbox.tenant_logins values ('{name}', 'acme')"
    );
    let mut reader = login(world.database(), &name, &how).await;
    for trick in ["select 1", "set pathbox.tenant_id = 'bolt'", "set pathbox.tenant_id = ''"] {
        run(&mut reader, trick).await.unwrap();
        assert_eq!(count(&mut reader, "select count(*) from pathbox.contexts").await, 1, "{trick}");
        let theirs = "select count(*) from pathbox.executions where tenant_id <> 'acme'";
        assert_eq!(count(&mut reader, theirs).await, 0, "{trick}");
    }
}

/// What a mistake in a function could do: even inside, the function's owner sees one tenant.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn the_functions_owner_is_bound_although_a_superuser_calls() {
    let world = World::postgres().await;
    let store = world.store().await;
    first_run(&store, &key("acme", "c1", "main"), &ContextLimits::default()).await;
    first_run(&store, &key("bolt", "c1", "main"), &ContextLimits::default()).await;
    let mut admin = world.database().connect().await;
    run(&mut admin, "begin; set local role pathbox_app").await.unwrap();
    let contexts = "select count(*) from pathbox.execution_contexts";
    assert_eq!(count(&mut admin, contexts).await, 0);
    run(&mut admin, "set local pathbox.tenant_id = 'acme'").await.unwrap();
    assert_eq!(count(&mut admin, contexts).await, 1);
    assert_eq!(run(&mut admin, "update pathbox.execution_contexts set last_error = 'x'").await.unwrap(), 1);
    assert!(
        refused(run(&mut admin, "delete from pathbox.execution_contexts").await)
            .contains("permission denied")
    );
    run(&mut admin, "rollback; begin; set local role pathbox_app; set local pathbox.tenant_id = 'acme'")
        .await
        .unwrap();
    let foreign = "insert into pathbox.placeholders values ('bolt', 'c', 'p', 'EMAIL', 'h', 1)";
    assert!(refused(run(&mut admin, foreign).await).contains("row-level security"));
    run(&mut admin, "rollback").await.unwrap();

    let owners = "select count(*) from pg_proc p join pg_roles r on r.oid = p.proowner
                   where p.pronamespace = 'pathbox'::regnamespace and p.prosecdef
                     and (r.rolsuper or r.rolbypassrls or r.rolcanlogin)";
    assert_eq!(count(&mut admin, owners).await, 0, "no definer could bypass row-level security");
    let open = "select count(*) from pg_class where relnamespace = 'pathbox'::regnamespace and relkind = 'r'
                   and relname <> 'migrations' and not (relrowsecurity and relforcerowsecurity)";
    assert_eq!(count(&mut admin, open).await, 0, "every table has it");
    let public = "select count(*) from pg_proc p where p.pronamespace = 'pathbox'::regnamespace
                    and has_function_privilege('public', p.oid, 'execute')";
    assert_eq!(count(&mut admin, public).await, 0, "nothing is for everybody");
}

/// Plays the protocol once.
async fn works(store: &PgStore) {
    let key = key("acme", "c1", "main");
    let limits = ContextLimits::default();
    let first = ask(&key);
    let claimed = claim(store.acquire(&first, &limits).await.unwrap());
    let context = store.ready(&claimed, first.execution.id, &any_sandbox(), &limits).await.unwrap().unwrap();
    store.record(&finished(&first, context.id), &limits).await.unwrap();
    ready(store.acquire(&ask(&key), &limits).await.unwrap());
    assert_eq!(store.contexts(&ContextFilter::default()).await.unwrap().len(), 1);
    assert_eq!(store.owned(None, Duration::ZERO, None, 10).await.unwrap().len(), 1);
    store.reap(50, Duration::from_secs(3600), &limits).await.unwrap();
    store.claim_kills(10, Duration::ZERO).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn an_owner_without_superuser_rights_can_migrate_and_serve() {
    // What Supabase's `postgres` is: makes roles, bypasses row-level security, owns its database. In a cluster where
    // no one has made our roles yet.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(&[])));
    let database = cluster.empty_database();
    let owner = role("supabase");
    let mut admin = database.connect().await;
    run(&mut admin, &format!("create role {owner} login")).await.unwrap();
    let name: String =
        sqlx::query_scalar("select current_database()::text").fetch_one(&mut admin).await.unwrap();
    run(&mut admin, &format!("alter database {name} owner to {owner}")).await.unwrap();

    let url = database.url_as(&owner);
    let denied = PgStore::connect(&url, &PgOptions::default(), keyring()).await.unwrap_err();
    assert!(denied.remedy().contains("createrole"), "{denied:?}: {}", denied.remedy());
    run(&mut admin, &format!("alter role {owner} createrole bypassrls")).await.unwrap();
    let store = PgStore::connect(&url, &PgOptions::default(), keyring()).await.unwrap();
    works(&store).await;

    // And a login of its own for the server, which owns nothing.
    let server = role("server");
    run(&mut admin, &format!("create role {server} login; grant pathbox_server to {server}")).await.unwrap();
    let served = PgStore::connect(&database.url_as(&server), &PgOptions::default(), keyring()).await.unwrap();
    assert_eq!(served.contexts(&ContextFilter::default()).await.unwrap().len(), 1);
    served.acquire(&ask(&key("acme", "c2", "main")), &ContextLimits::default()).await.unwrap();
    let mut direct = PgConnection::connect(database.url_as(&server).expose()).await.unwrap();
    for sql in ["select * from pathbox.execution_contexts", "select * from pathbox.doomed_sandboxes"] {
        assert!(refused(run(&mut direct, sql).await).contains("permission denied"), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn many_servers_that_start_at_once_migrate_once() {
    let database = cluster().await.empty_database();
    let url = database.url();
    let before = PgStore::migration_status(&url, &PgOptions::default()).await.unwrap();
    assert!(before.iter().all(|migration| !migration.applied));
    let no_auto = PgOptions { auto_migrate: false, ..PgOptions::default() };
    let error = PgStore::connect(&url, &no_auto, keyring()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotMigrated(n) if n == before.len()), "{error:?}");

    let starts: Vec<_> = (0..8)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(
                async move { PgStore::connect(&url, &PgOptions::default(), keyring()).await.map(drop) },
            )
        })
        .collect();
    for start in starts {
        start.await.unwrap().unwrap();
    }
    let mut admin = database.connect().await;
    let rows = count(&mut admin, "select count(*) from pathbox.migrations").await;
    assert_eq!(usize::try_from(rows).unwrap(), before.len());
    let after = PgStore::migrate(&url, &PgOptions::default()).await.unwrap();
    assert!(after.iter().all(|migration| migration.applied));
    works(&PgStore::connect(&url, &no_auto, keyring()).await.unwrap()).await;

    run(&mut admin, "insert into pathbox.migrations values (99991231000000, 'from the future', '')")
        .await
        .unwrap();
    let error = PgStore::connect(&url, &PgOptions::default(), keyring()).await.unwrap_err();
    assert!(matches!(error, StoreError::TooNew { found: 99_991_231_000_000, .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_failed_migration_leaves_the_database_as_it_was() {
    let database = cluster().await.empty_database();
    let mut admin = database.connect().await;
    // Someone has a schema of that name already.
    run(&mut admin, "create schema pathbox; create table pathbox.executions (mine int)").await.unwrap();
    let error = PgStore::connect(&database.url(), &PgOptions::default(), keyring()).await.unwrap_err();
    assert!(matches!(error, StoreError::Migrate { .. }), "{error:?}");
    let tables = "select count(*) from information_schema.tables where table_schema = 'pathbox'";
    assert_eq!(count(&mut admin, tables).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn an_address_that_does_not_serve_says_why_and_soon() {
    let database = cluster().await.empty_database();
    let good = database.url().expose().to_owned();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("postgres://u:hunter2@{}/db", silent.local_addr().unwrap());
    let options = PgOptions { connect_timeout: Duration::from_secs(1), ..PgOptions::default() };
    let unused = format!("postgres://u:hunter2@127.0.0.1:{}/db", 1);
    let no_database = good.replace("/test_", "/missing_");
    let no_user = good.replace("postgres@", "nobody-here:hunter2@");
    type Expected = fn(&StoreError) -> bool;
    let several = format!("{unused},{}", silent.rsplit('@').next().unwrap()).replace("/db,", ",");
    let cases: [(&str, Expected); 8] = [
        ("mysql://u:hunter2@localhost/db", |error| matches!(error, StoreError::Url(_))),
        ("not a url hunter2", |error| matches!(error, StoreError::Url(_))),
        (&unused, |error| error.state() == Some(DatabaseState::Away)),
        (&silent, |error| error.state() == Some(DatabaseState::Away)),
        (&several, |error| error.state() == Some(DatabaseState::Away)),
        ("postgres://u:hunter2@localhost/db?target_session_attrs=any", |error| {
            matches!(error, StoreError::Address(_))
        }),
        (&no_database, |error| matches!(error, StoreError::Login(_))),
        (&no_user, |error| matches!(error, StoreError::Login(_))),
    ];
    for (url, expected) in cases {
        let started = Instant::now();
        let error = PgStore::connect(&Secret::new(url), &options, keyring()).await.unwrap_err();
        assert!(expected(&error), "{url}: {error:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "{url}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "the password is told: {error:?}");
    }
}

/// A store goes on when its connections were cut off.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn broken_connections_are_replaced_without_the_caller_seeing_it() {
    let world = World::postgres().await;
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &ContextLimits::default()).await;
    let mut admin = world.database().connect().await;
    for _ in 0..5 {
        let killed = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                       where datname = current_database() and pid <> pg_backend_pid()";
        assert!(count(&mut admin, killed).await > 0);
        let ask = ask(&key);
        ready(store.acquire(&ask, &ContextLimits::default()).await.unwrap());
        store.record(&finished(&ask, context.id), &ContextLimits::default()).await.unwrap();
    }
    assert_eq!(store.live(&key).await.unwrap().unwrap().execution_count, 6);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_waiting_call_holds_no_connection_in_a_transaction() {
    let world = World::postgres().await;
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    first_run(&store, &key, &ContextLimits::default()).await;
    ready(store.acquire(&ask(&key), &ContextLimits::default()).await.unwrap());
    let waiting = ask(&key);
    assert!(matches!(
        store.acquire(&waiting, &ContextLimits::default()).await.unwrap(),
        Acquired::Queued { .. }
    ));
    let mut admin = world.database().connect().await;
    let open =
        "select count(*) from pg_stat_activity where datname = current_database() and xact_start is not null
                   and pid <> pg_backend_pid()";
    assert_eq!(count(&mut admin, open).await, 0);
    let locks = "select count(*) from pg_locks where locktype = 'advisory'
                   and database = (select oid from pg_database where datname = current_database())";
    assert_eq!(count(&mut admin, locks).await, 0);
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_warm_run_makes_two_round_trips() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let wire = Wire::to(&database);
    let data = tempfile::tempdir().unwrap();
    let mut command = command(data.path());
    command.env("DATABASE_URL", wire.url()).env("PATHBOX_SECRET_KEYS", TEST_KEY);
    let server = HttpServer::start_with(&mut command);
    let run = || {
        let before = wire.round_trips();
        let arguments = json!({"code": "print('x@example.com', 'y@example.com')", "language": "python"});
        let meta = json!({"dev.pathbox/conversationId": "c"});
        let result = server.stateless(&[], "run_code", arguments, meta).answer()["result"].take();
        assert_eq!(result["structuredContent"]["stdout"], "[EMAIL_1] [EMAIL_2]\n", "{result}");
        wire.round_trips() - before
    };
    // Once to make the sandbox; a few times until each connection knows the statements. Background tasks ask too, now
    // and then, so the smallest number is the run's own.
    run();
    let least = (0..10).map(|_| run()).min();
    assert_eq!(least, Some(2), "acquire and record");
}

/// After the machine slept, or the database was away for all, everyone's time has run out: no one is dead by that.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_replica_whose_own_lease_expired_does_not_take_another_for_dead() {
    let world = World::postgres().await;
    let store = world.store().await;
    let (limits, lease, key) = (ContextLimits::default(), Duration::from_secs(60), key("acme", "c1", "main"));
    for replica in ["replica-1", "replica-2"] {
        store.heartbeat(replica, lease).await.unwrap();
    }
    let context = first_run(&store, &key, &limits).await;
    let running = ask(&key);
    ready(store.acquire(&running, &limits).await.unwrap());
    let status = async || store.execution(&key.tenant, running.execution.id).await.unwrap().unwrap().status;

    world.advance(Duration::from_secs(61)).await;
    let next = Acquire { owner: "replica-2".to_owned(), ..ask(&key) };
    assert!(matches!(store.acquire(&next, &limits).await.unwrap(), Acquired::Queued { position: 1 }));
    store.heartbeat("replica-2", lease).await.unwrap();
    assert_eq!(status().await, ExecutionStatus::Running, "it was not alive itself a moment ago");

    store.heartbeat("replica-2", lease).await.unwrap();
    assert_eq!(status().await, ExecutionStatus::Interrupted);
    assert_eq!(ready(store.acquire(&next, &limits).await.unwrap()).id, context.id);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn replicas_of_two_places_begin_only_where_each_reaches_the_others_sandboxes() {
    let world = World::postgres().await;
    let store = world.store().await;
    let lease = Duration::from_secs(600);
    let at = |is_local, place: &str| SandboxPlace { is_local, place: place.to_owned() };
    let refused = |result: Result<bool, StoreError>, by: &str| {
        let error = result.unwrap_err();
        assert!(matches!(&error, StoreError::OtherPlace { replica } if replica == by), "{error:?}");
        assert!(error.to_string().contains("pathbox host"), "{error}");
    };
    // One that runs an older program does not report where it is.
    store.heartbeat("old", lease).await.unwrap();
    assert!(!store.join("cloud-a", &at(false, "a"), lease).await.unwrap());
    store.join("cloud-b", &at(false, "b"), lease).await.unwrap();
    refused(store.join("local-a", &at(true, "a"), lease).await, "cloud-b");
    for gone in ["cloud-a", "cloud-b"] {
        store.heartbeat(gone, Duration::ZERO).await.unwrap();
    }
    store.join("local-a", &at(true, "a"), lease).await.unwrap();
    store.join("local-a", &at(true, "a"), lease).await.unwrap();
    assert!(!store.join("local-a2", &at(true, "a"), lease).await.unwrap(), "the old one may be anywhere");
    refused(store.join("local-b", &at(true, "b"), lease).await, "local-a");
    refused(store.join("cloud-b", &at(false, "b"), lease).await, "local-a");
    // A refused one has left nothing that would be in the way of others.
    store.heartbeat("local-a", Duration::ZERO).await.unwrap();
    refused(store.join("local-b", &at(true, "b"), lease).await, "local-a2");
    for gone in ["local-a2", "old"] {
        store.heartbeat(gone, Duration::ZERO).await.unwrap();
    }
    assert!(store.join("local-b", &at(true, "b"), lease).await.unwrap(), "nobody else is there");

    // Of two that begin at once, one is let in.
    store.heartbeat("local-b", Duration::ZERO).await.unwrap();
    let other = world.store().await;
    let (c, d) = (at(true, "c"), at(true, "d"));
    let both = tokio::join!(store.join("c", &c, lease), other.join("d", &d, lease));
    assert!(both.0.is_ok() != both.1.is_ok(), "{both:?}");
}

fn roomy() -> ContextLimits {
    ContextLimits {
        per_tenant: 1_000,
        per_conversation: 1_000,
        max_executions: 1_000,
        ..ContextLimits::default()
    }
}

/// Calls that arrive at once go together: each gets its own answer, and there are fewer transactions than calls.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_crowd_shares_transactions_and_each_call_gets_its_own_answer() {
    const CALLERS: usize = 40;
    let world = World::postgres().await;
    let store = world.store().await;
    let mut contexts = Vec::new();
    for caller in 0..CALLERS {
        let key = key("acme", "c1", &format!("p{caller}"));
        contexts.push((first_run(&store, &key, &roomy()).await.id, key));
    }
    let calls = contexts.iter().cloned().map(|(id, key)| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..5 {
                let ask = ask(&key);
                let context = ready(store.acquire(&ask, &roomy()).await.unwrap());
                assert_eq!((context.id, &context.key), (id, &key));
                let sandbox = context.sandbox.unwrap();
                assert!(sandbox.envd_token.is_some(), "its tokens open");
                assert!(store.record(&finished(&ask, id), &roomy()).await.unwrap());
                assert!(!store.record(&finished(&ask, id), &roomy()).await.unwrap(), "once");
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let mut admin = world.database().connect().await;
    let all = "select count(*) from pathbox.executions where status = 'completed'";
    assert_eq!(count(&mut admin, all).await, 6 * CALLERS as i64);
    let transactions = "select count(distinct xmin::text) from pathbox.executions";
    assert!(count(&mut admin, transactions).await < 6 * CALLERS as i64);
    let uncounted = "select count(*) from pathbox.execution_contexts where execution_count <> 6";
    assert_eq!(count(&mut admin, uncounted).await, 0);
    let counted = "select sum(executions)::bigint from pathbox.usage_days";
    assert_eq!(count(&mut admin, counted).await, 6 * CALLERS as i64);
    let chain = verify(&*store, &contexts[0].1.tenant, |_, _| {}).await.unwrap();
    assert_eq!((chain.entries, chain.faults.as_slice()), (6 * CALLERS as u64, [].as_slice()));
}

/// One call after the other uses one session: its plans and its memory stay warm.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn calls_one_after_the_other_use_one_session() {
    let world = World::postgres().await;
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &roomy()).await;
    for _ in 0..200 {
        let ask = ask(&key);
        ready(store.acquire(&ask, &roomy()).await.unwrap());
        assert!(store.record(&finished(&ask, context.id), &roomy()).await.unwrap());
    }
    // One that was found too old by a machine that stood still may take a moment to close.
    let mut admin = world.database().connect().await;
    let sessions = "select count(*) from pg_stat_activity
        where datname = current_database() and (query like '%pathbox.acquire%' or query like '%pathbox.record%')
          and pid <> pg_backend_pid()";
    let asked = Instant::now();
    while count(&mut admin, sessions).await != 1 {
        assert!(asked.elapsed() < Duration::from_secs(60), "there are {}", count(&mut admin, sessions).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A session that stays with the store is given to a waiting caller of the pool, and replaced when the server ends it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn callers_of_many_tenants_share_the_sessions_that_there_are() {
    let world = World::postgres().await;
    let options = PgOptions { max_connections: 2, ..PgOptions::default() };
    let store: DynStore =
        Arc::new(PgStore::connect(&world.database().url(), &options, keyring()).await.unwrap());
    let mut keys = Vec::new();
    for tenant in 0..12 {
        let key = key(&format!("tenant-{tenant}"), "c1", "main");
        keys.push((first_run(&store, &key, &roomy()).await.id, key));
    }
    let mut admin = world.database().connect().await;
    for _ in 0..3 {
        let callers = keys.iter().cloned().map(|(id, key)| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    let ask = ask(&key);
                    ready(store.acquire(&ask, &roomy()).await.unwrap());
                    assert!(store.record(&finished(&ask, id), &roomy()).await.unwrap());
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        let ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()";
        assert!(count(&mut admin, ended).await > 0);
    }
}

/// On a store that began empty, what a record costs does not grow with its tenant's runs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_record_finds_its_run_by_its_id_before_there_are_statistics() {
    const RUNS: i64 = 200;
    let world = World::postgres().await;
    let options = PgOptions::default();
    let postgres = Arc::new(PgStore::connect(&world.database().url(), &options, keyring()).await.unwrap());
    let store: DynStore = postgres.clone();
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &roomy()).await;
    for _ in 0..RUNS {
        let ask = ask(&key);
        ready(store.acquire(&ask, &roomy()).await.unwrap());
        assert!(store.record(&finished(&ask, context.id), &roomy()).await.unwrap());
    }
    // A session says what it has read when it ends.
    postgres.close().await;
    let mut admin = world.database().connect().await;
    let read = |index: &str| {
        format!(
            "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where indexrelname like '{index}'"
        )
    };
    let asked = Instant::now();
    while count(&mut admin, &read("executions_pkey")).await < RUNS {
        assert!(asked.elapsed() < Duration::from_secs(60), "the runs were not found by their ids");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let others = count(&mut admin, &read("executions_by_%")).await;
    assert!(others < RUNS, "{others} rows of the tenant were read");
}

/// A run on a warm context begins without waiting for the disk where a crash of the database may take its row back, and
/// nowhere else.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_run_waits_for_the_disk_unless_a_crash_may_take_it_back() {
    let world = World::postgres().await;
    let store = world.store().await;
    let (here, there) = (key("acme", "c1", "here"), key("acme", "c1", "there"));
    first_run(&store, &here, &ContextLimits::default()).await;
    let away = first_run(&store, &there, &ContextLimits::default()).await;
    let mut admin = world.database().connect().await;
    run(&mut admin, "set synchronous_commit = on").await.unwrap();
    let remote = format!("update pathbox.execution_contexts set host_url = null where id = '{}'", away.id);
    assert_eq!(run(&mut admin, &remote).await.unwrap(), 1);
    for (what, path, once, lease_ms, expected) in [
        ("a local sandbox", "here", "null", 90_000_i64, "off"),
        ("an idempotency key", "here", "'k'", 90_000, "on"),
        ("a sandbox elsewhere", "there", "null", 90_000, "on"),
        ("a lease that the context does not outlive", "here", "null", 360_000_000, "on"),
    ] {
        let call = format!(
            "begin; create temporary table answer on commit drop as select outcome from pathbox.acquire_v4('acme',
             'replica-1', array[''], array['c1'], array['{path}'], array[gen_random_uuid()], array['run_code'],
             array['python'], array[null]::text[], array['c0de'], array[null]::text[], array[null]::text[],
             array[{once}]::text[], array[{once}]::text[], array[{lease_ms}]::bigint[], 1000, false,
             gen_random_uuid(), false, 10, 10, 90000, 60000, 86400000, 10000, 1800000, null)"
        );
        run(&mut admin, &call).await.unwrap();
        assert_eq!(
            count(&mut admin, "select count(*) from answer where outcome = 'ready'").await,
            1,
            "{what}"
        );
        let durability: String = sqlx::query_scalar("select current_setting('synchronous_commit')")
            .fetch_one(&mut admin)
            .await
            .unwrap();
        assert_eq!(durability, expected, "{what}");
        run(&mut admin, "rollback").await.unwrap();
    }
}

/// The server of the database dies at once after a run has begun: the run's record is there all the same.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_run_whose_row_was_lost_in_a_crash_is_still_recorded() {
    // The writer of the log sleeps for as long as it may.
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(&["-c", "wal_writer_delay=10s"])));
    let database = cluster.empty_database();
    let store: DynStore =
        Arc::new(PgStore::connect(&database.url(), &PgOptions::default(), keyring()).await.unwrap());
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &ContextLimits::default()).await;
    let ask = ask(&key);
    ready(store.acquire(&ask, &ContextLimits::default()).await.unwrap());
    cluster.crash();
    cluster.serve();
    let mut admin = database.connect().await;
    // Should the writer have been quicker all the same.
    let lost = format!("delete from pathbox.executions where id = '{}'", ask.execution.id);
    run(&mut admin, &lost).await.unwrap();
    let record = FinishedExecution { asked: Some(Box::new(ask.clone())), ..finished(&ask, context.id) };
    assert!(store.record(&record, &ContextLimits::default()).await.unwrap());
    assert!(!store.record(&record, &ContextLimits::default()).await.unwrap(), "once");
    let found = store.execution(&key.tenant, ask.execution.id).await.unwrap().unwrap();
    assert_eq!((found.status, found.purpose), (ExecutionStatus::Completed, ask.execution.purpose));
    assert_eq!(store.live(&key).await.unwrap().unwrap().execution_count, 2);
    assert_eq!(verify(&*store, &key.tenant, |_, _| {}).await.unwrap().faults, []);
}
