//! Databases that an earlier program wrote: what becomes of their rows, and who serves on which schema.

use std::path::{Path, PathBuf};

use pathbox::domain::{Clock, ContextKey, Entropy, Owner};
use pathbox::store::*;
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::support::database::{TEST_KEY, World};
use crate::support::runs::{ask_once, first_run, key};
use crate::support::server::command;

/// The first migration that knows owners.
const OWNERS: i64 = 20_261_129_000_100;
const SERVICE: &str = "aaaaaaaaaaaa";

/// All migrations, oldest first: version, name, text.
pub(crate) fn migrations(kind: &str) -> Vec<(i64, String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(kind);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &PathBuf| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let (version, name) = stem.split_once('_').unwrap();
        (version.parse().unwrap(), name.to_owned(), std::fs::read_to_string(path).unwrap())
    };
    files.iter().map(read).collect()
}

/// Those before [`OWNERS`].
fn earlier(kind: &str) -> Vec<(i64, String, String)> {
    migrations(kind).into_iter().filter(|(version, ..)| *version < OWNERS).collect()
}

fn keyring() -> Keyring {
    Keyring::parse(TEST_KEY, &Entropy::system()).unwrap()
}

fn of(owner: Owner, conversation: &str) -> ContextKey {
    ContextKey { owner, ..key("acme", conversation, "main") }
}

/// What must hold once the rows of [`write_postgres`] or [`write_sqlite`] have owners.
async fn rows_have_found_their_owners(store: &DynStore) {
    let ann = of(Owner::principal("key:ann"), "c1");
    let live = store.live(&ann).await.unwrap().expect("what her run made is hers");
    assert_eq!(live.execution_count, 1);
    assert!(store.live(&of(Owner::tenant(), "c1")).await.unwrap().is_none());
    let service = of(Owner::tenant(), "c2");
    assert!(store.live(&service).await.unwrap().is_some(), "what a service made is the tenant's");
    assert_eq!(store.placeholders(&ann).await.unwrap(), [("EMAIL".to_owned(), "h".to_owned(), 1)]);
    for conversation in [ann.of_conversation(), of(Owner::tenant(), "c1").of_conversation()] {
        let paths = store.paths(&conversation, true).await.unwrap();
        let seen: Vec<(&str, PathStatus)> = paths.iter().map(|row| (row.path.as_str(), row.status)).collect();
        assert_eq!(seen, [("main", PathStatus::Active), ("old", PathStatus::Archived)]);
    }
    // Her key is hers, and an equal one of another is not.
    let replay = store.acquire(&ask_once(&ann, "k", "args"), &ContextLimits::default()).await.unwrap();
    assert!(matches!(replay, Acquired::Replay(_)), "{replay:?}");
    let bob = of(Owner::principal("key:bob"), "c1");
    let fresh = store.acquire(&ask_once(&bob, "k", "args"), &ContextLimits::default()).await.unwrap();
    assert!(matches!(fresh, Acquired::Create(_)), "{fresh:?}");
}

const CONTEXTS: [(&str, &str, &str, &str); 2] = [
    ("c1", "key:ann", "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-00000000000a"),
    (
        "c2",
        "key:aaaaaaaaaaaa",
        "01900000-0000-7000-8000-000000000002",
        "01900000-0000-7000-8000-00000000000b",
    ),
];

fn acquire_v1(conversation: &str, principal: &str, context: &str, run: &str, once: &str) -> String {
    format!(
        "pathbox.acquire_v1('acme', '{conversation}', 'main', '{context}', 'old-1', '{run}', 'run_code', 'python', \
         null, 'c0de', '{principal}', null, '{once}', 'args', 90000, 10, 5, 100, 90000, 60000, 86400000, 10000)"
    )
}

async fn write_postgres(admin: &mut PgConnection) {
    let mut sql = String::from(
        "drop schema if exists pathbox cascade; create schema pathbox;
         create table pathbox.migrations (version bigint primary key, name text not null, checksum bytea not null,
             applied_at timestamptz not null default clock_timestamp());",
    );
    for (version, name, text) in earlier("postgres") {
        let checksum: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        sql.push_str(&text);
        sql.push_str(&format!(
            "insert into pathbox.migrations values ({version}, '{name}', '\\x{checksum}');"
        ));
    }
    sql.push_str(&format!(
        "select pathbox.add_api_key_v1('{SERVICE}', sha256('x'), '{{\"kind\": \"service\"}}');
         select pathbox.change_path_v1('acme', 'c1', 'main', 'register', null, null, null, 0);
         select pathbox.change_path_v1('acme', 'c1', 'old', 'register', 'main', null, null, 0);
         select pathbox.change_path_v1('acme', 'c1', 'old', 'archive', null, null, null, 0);
         select pathbox.save_placeholders_v1('acme', 'c1', 'main', '{{EMAIL}}', '{{h}}', '{{1}}');"
    ));
    for (conversation, principal, context, run) in CONTEXTS {
        sql.push_str(&format!(
            "select outcome from {};
             select pathbox.ready_v1('acme', '{context}', 1, '{run}', 'sb-{conversation}', null, null, null, null, null,
                 null, null, null, 1800000);
             select pathbox.record_v1('acme', '{run}', '{context}', 'completed', 0, null, 5, 0, 1, '{{}}',
                 '{{\"v\": 1}}', true, null, 1800000, null, null);",
            acquire_v1(conversation, principal, context, run, if conversation == "c1" { "k" } else { "k2" })
        ));
    }
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn rows_without_owners_find_them_on_postgres_and_the_older_program_goes_on() {
    let world = World::postgres().await;
    let mut admin = world.database().connect().await;
    write_postgres(&mut admin).await;
    let store: DynStore = std::sync::Arc::new(
        PgStore::connect(&world.database().url(), &PgOptions::default(), keyring()).await.unwrap(),
    );
    rows_have_found_their_owners(&store).await;

    // A replica of the older program, which is still there during a rolling deployment, finds its caller's context.
    let (run, other) = ("01900000-0000-7000-8000-00000000000c", "01900000-0000-7000-8000-00000000000d");
    let ask = |principal, run| {
        let sql =
            format!("select outcome || ' ' || (ctx).id from {}", acquire_v1("c1", principal, run, run, run));
        AssertSqlSafe(sql)
    };
    let hers: String = sqlx::query_scalar(ask("key:ann", run)).fetch_one(&mut admin).await.unwrap();
    assert_eq!(hers, format!("ready {}", CONTEXTS[0].2));
    let his: String = sqlx::query_scalar(ask("key:eve", other)).fetch_one(&mut admin).await.unwrap();
    assert_eq!(his, format!("create {other}"));
}

/// Everyone calls it so: then Postgres prints the schema's functions without their schema.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_login_with_the_name_of_the_schema_serves_and_cleans_up() {
    let world = World::postgres().await;
    let mut admin = world.database().connect().await;
    let prepare = "drop schema pathbox cascade;
        do $$ begin create role pathbox login createrole; exception when duplicate_object then null; end $$;
        grant pathbox_app, pathbox_worker to pathbox;
        do $$ begin execute format('grant create on database %I to pathbox', current_database()); end $$;";
    sqlx::raw_sql(prepare).execute(&mut admin).await.unwrap();
    let url = world.database().url_as("pathbox");
    let store: DynStore =
        std::sync::Arc::new(PgStore::connect(&url, &PgOptions::default(), keyring()).await.unwrap());
    let here = of(Owner::tenant(), "c1");
    let context = first_run(&store, &here, &ContextLimits::default()).await;
    assert_eq!(store.executions(&ExecutionFilter::default()).await.unwrap().len(), 1);
    sqlx::raw_sql("update pathbox.execution_contexts set expires_at = clock_timestamp() - interval '1 s'")
        .execute(&mut admin)
        .await
        .unwrap();
    let reaped =
        store.reap(50, std::time::Duration::from_secs(3600), &ContextLimits::default()).await.unwrap();
    assert_eq!(reaped.expired, 1);
    let outbox = store.claim_kills(10, std::time::Duration::ZERO).await.unwrap();
    assert_eq!(outbox.len(), 1);
    assert_eq!(outbox[0].context, context.id);
}

async fn write_sqlite(dir: &Path) {
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(dir.join("pathbox.db"))
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
    let mut database = SqliteConnection::connect_with(&options).await.unwrap();
    let mut sql = String::from(
        "CREATE TABLE migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum BLOB NOT NULL,
             applied_at INTEGER NOT NULL) STRICT;",
    );
    for (version, name, text) in earlier("sqlite") {
        let checksum: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        sql.push_str(&text);
        sql.push_str(&format!("INSERT INTO migrations VALUES ({version}, '{name}', x'{checksum}', 0);"));
    }
    let now = Clock::system().now().timestamp_millis();
    let later = now + 1_800_000;
    sql.push_str(&format!(
        "INSERT INTO api_keys (id, hash, key, created_at) VALUES ('{SERVICE}', zeroblob(32), '{{\"kind\":\"service\"}}', 0);
         INSERT INTO conversation_paths (tenant_id, conversation_id, path_id, parent_id, status, created_at, updated_at)
             VALUES ('acme', 'c1', 'main', NULL, 'active', 1, 1), ('acme', 'c1', 'old', 'main', 'archived', 2, 2);
         INSERT INTO placeholders VALUES ('acme', 'c1', 'main', 'EMAIL', 'h', 1, {now});"
    ));
    for (conversation, principal, context, run) in CONTEXTS {
        sql.push_str(&format!(
            "INSERT INTO execution_contexts (id, tenant_id, conversation_id, path_id, lease_owner, lease_expires_at,
                 creator_execution, created_at, last_used_at, updated_at)
                 VALUES ('{context}', 'acme', '{conversation}', 'main', 'old-1', {later}, '{run}', {now}, {now}, {now});
             UPDATE execution_contexts SET status = 'ready', sandbox_id = 'sb-{conversation}', ready_at = {now},
                 expires_at = {later}, lease_expires_at = NULL, execution_count = 1 WHERE id = '{context}';
             INSERT INTO executions (id, tenant_id, conversation_id, path_id, context_id, owner, tool, language,
                 code_sha256, principal, idempotency_key, args_sha256, status, run_lease_ms, created_at, started_at,
                 finished_at, result)
                 VALUES ('{run}', 'acme', '{conversation}', 'main', '{context}', 'old-1', 'run_code', 'python', 'c0de',
                     '{principal}', 'k{conversation}', 'args', 'completed', 90000, {now}, {now}, {now}, '{{}}');"
        ));
    }
    sql.push_str("UPDATE executions SET idempotency_key = 'k' WHERE idempotency_key = 'kc1';");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut database).await.unwrap();
    database.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_owners_find_them_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    write_sqlite(dir.path()).await;
    let store: DynStore = std::sync::Arc::new(
        SqliteStore::open(dir.path(), &SqliteOptions::default(), keyring(), Clock::system()).await.unwrap(),
    );
    rows_have_found_their_owners(&store).await;
}

/// The database of a newer program, on which this one still serves, and one on which it does not.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_program_starts_on_a_newer_schema_that_it_serves_on_and_says_both_versions_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions::default();
    let open = || SqliteStore::open(dir.path(), &options, keyring(), Clock::system());
    open().await.unwrap().close().await;
    let file = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.path().join("pathbox.db"));
    let mut database = SqliteConnection::connect_with(&file).await.unwrap();
    let newer = "ALTER TABLE executions ADD COLUMN of_tomorrow TEXT;
                 INSERT INTO migrations VALUES (99991231000000, 'of_tomorrow', x'01', 0, '0.1.0')";
    sqlx::raw_sql(newer).execute(&mut database).await.unwrap();
    let store: DynStore = std::sync::Arc::new(open().await.unwrap());
    first_run(&store, &of(Owner::tenant(), "c1"), &ContextLimits::default()).await;

    sqlx::raw_sql("UPDATE migrations SET serves_from = '7.0.0' WHERE version = 99991231000000")
        .execute(&mut database)
        .await
        .unwrap();
    let error = open().await.unwrap_err().to_string();
    assert!(error.contains("7.0.0") && error.contains(env!("CARGO_PKG_VERSION")), "{error}");
    for words in [["contexts", "ls"], ["run", "1"]] {
        let said = command(dir.path()).args(words).output().unwrap();
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(said.contains("7.0.0") && said.contains("; use a newer Pathbox, or restore"), "{said}");
    }
}
