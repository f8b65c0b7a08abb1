//! What only SQLite has: a file, a directory, a disk that fills, and processes that open it at the same moment.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use pathbox::domain::{Clock, Entropy, ExecutionId};
use pathbox::store::sqlite::DATABASE_FILE;
use pathbox::store::*;
use sqlx::Connection;

use crate::support::database::{Disk, TEST_KEY, World, fill};
use crate::support::runs::{any_sandbox, ask, claim, finished, first_run, key, ready};

fn keyring() -> Keyring {
    Keyring::parse(TEST_KEY, &Entropy::system()).unwrap()
}

async fn open(dir: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(dir, &SqliteOptions::default(), keyring(), Clock::system()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_is_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("a/b");
    let store = open(&home).await.unwrap();
    store.acquire(&ask(&key("acme", "c1", "main")), &ContextLimits::default()).await.unwrap();
    assert_eq!(fs::metadata(&home).unwrap().permissions().mode() & 0o777, 0o700);
    let mut files = 0;
    for entry in fs::read_dir(&home).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
        files += 1;
    }
    assert!(files >= 2, "the database and its log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_cannot_hold_a_database_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = open(&file).await.unwrap_err();
    assert!(matches!(&error, StoreError::DataDir { problem, .. } if problem.contains("/file")), "{error:?}");
    let error = open(&file.join("below")).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::DataDir { problem, .. } if problem.contains("/file/below")),
        "{error:?}"
    );
    let error = Keyring::open(&file, &Entropy::system()).unwrap_err();
    assert!(matches!(error, StoreError::DataDir { .. }), "{error:?}");

    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join(DATABASE_FILE), "this is a letter to my aunt, and no database at all\n".repeat(50))
        .unwrap();
    let error = open(&other).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::DataDir { problem, .. } if problem.contains("this is not a database")),
        "{error:?}"
    );
    let text = fs::read_to_string(other.join(DATABASE_FILE)).unwrap();
    assert!(text.starts_with("this is a letter"), "and it is left as it was");

    let taken = dir.path().join("taken");
    fs::create_dir_all(taken.join(DATABASE_FILE)).unwrap();
    let error = open(&taken).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::DataDir { problem, .. } if problem.contains(DATABASE_FILE)),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_this_programs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let no_auto = SqliteOptions { auto_migrate: false, ..SqliteOptions::default() };
    let error = SqliteStore::open(dir.path(), &no_auto, keyring(), Clock::system()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotMigrated(_)), "{error:?}");
    let before = SqliteStore::migration_status(dir.path(), &no_auto).await.unwrap();
    assert!(before.iter().all(|migration| !migration.applied));
    let after = SqliteStore::migrate(dir.path(), &no_auto, &Clock::system()).await.unwrap();
    assert!(after.iter().all(|migration| migration.applied));
    SqliteStore::open(dir.path(), &no_auto, keyring(), Clock::system()).await.unwrap();

    let mut connection = raw(dir.path()).await;
    sqlx::raw_sql("INSERT INTO migrations VALUES (99991231000000, 'from the future', x'00', 0, NULL)")
        .execute(&mut connection)
        .await
        .unwrap();
    let error = open(dir.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::TooNew { found: 99_991_231_000_000, .. }), "{error:?}");
    sqlx::raw_sql(
        "DELETE FROM migrations WHERE version > 90000000000000; UPDATE migrations SET checksum = x'00'",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    assert!(matches!(open(dir.path()).await.unwrap_err(), StoreError::Edited(_)));
}

async fn raw(dir: &Path) -> sqlx::SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.join(DATABASE_FILE));
    sqlx::SqliteConnection::connect_with(&options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_stores_that_open_a_new_directory_at_once_all_work() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let opening: Vec<_> = (0..12)
            .map(|_| {
                let home = dir.path().join("new");
                tokio::spawn(async move { open(&home).await.map(drop) })
            })
            .collect();
        for one in opening {
            one.await.unwrap().unwrap();
        }
    }
}

/// The writer waits its turn after another process's transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_held_elsewhere_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    let mut other = raw(dir.path()).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let run = ask(&key("acme", "c1", "main"));
    let waiting = tokio::spawn({
        let (store, run) = (store.clone(), run.clone());
        async move { store.acquire(&run, &ContextLimits::default()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    claim(waiting.await.unwrap().unwrap());
}

/// A lock that is held for too long is waited for in vain once, not by each call after the other, and noticed when it
/// is free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_held_for_too_long_makes_the_database_busy() {
    let dir = tempfile::tempdir().unwrap();
    let patience = Duration::from_millis(300);
    let options = SqliteOptions { busy_timeout: patience, ..SqliteOptions::default() };
    let store = SqliteStore::open(dir.path(), &options, keyring(), Clock::system()).await.unwrap();
    let mut other = raw(dir.path()).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let store = store.clone();
            let run = ask(&key("acme", "c1", &format!("p{n}")));
            tokio::spawn(async move { store.acquire(&run, &ContextLimits::default()).await })
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(error.state() == Some(DatabaseState::Busy), "{error:?}");
    }
    let error = store.ping().await.unwrap_err();
    assert!(error.state() == Some(DatabaseState::Busy), "{error:?}");
    assert!(store.live(&key("acme", "c1", "main")).await.unwrap().is_none(), "reading goes on");
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    while store.ping().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    claim(store.acquire(&ask(&key("acme", "c1", "main")), &ContextLimits::default()).await.unwrap());
}

/// Drops a call once it was polled so often. Whether it was done before.
async fn cut_off<T>(polls: usize, call: impl Future<Output = T>) -> bool {
    let (mut call, mut left) = (Box::pin(call), polls);
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        call.as_mut().poll(context).map(|_| true)
    })
    .await
}

/// A caller that goes away in the middle leaves no transaction open.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_cut_off_at_any_point_changes_nothing_or_everything() {
    let world = World::sqlite();
    let store = world.store().await;
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &ContextLimits::default()).await;
    let limits = ContextLimits { max_executions: 1000, ..ContextLimits::default() };
    let elsewhere = world.store().await;
    let (mut acquires, mut records) = (0, 0);
    for polls in 0..60 {
        let run = ask(&key);
        acquires += usize::from(!cut_off(polls, store.acquire(&run, &limits)).await);
        // Asking again answers for the same run, whatever became of the first call.
        ready(store.acquire(&run, &limits).await.unwrap());
        let end = finished(&run, context.id);
        records += usize::from(!cut_off(polls, store.record(&end, &limits)).await);
        // Nothing that was left open keeps another process from writing.
        elsewhere.record(&end, &limits).await.unwrap();
    }
    assert!((1..60).contains(&acquires), "{acquires} acquires were cut off, the others not");
    assert!((1..60).contains(&records), "{records} records were cut off, the others not");
    assert_eq!(store.live(&key).await.unwrap().unwrap().execution_count, 61);
    let chain = verify(&*store, &key.tenant, |_, _| {}).await.unwrap();
    assert!(chain.faults.is_empty() && chain.lanes[0].n == 61, "{chain:?}");
}

/// The disk fills up under the database: a clear error, nothing lost, and it goes on when there is space again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the right to mount a small disk: scripts/test as root"]
async fn a_full_disk_is_reported_and_loses_nothing() {
    let disk = Disk::new(4);
    let store = open(&disk.0).await.unwrap();
    fill_until_full(&store, &disk.0.join("filler")).await;
}

async fn fill_until_full(store: &SqliteStore, filler: &Path) {
    let key = key("acme", "c1", "main");
    let limits = ContextLimits { max_executions: 1_000_000, ..ContextLimits::default() };
    let first = ask(&key);
    let claimed = claim(store.acquire(&first, &limits).await.unwrap());
    store.ready(&claimed, first.execution.id, &any_sandbox(), &limits).await.unwrap().unwrap();
    store.record(&finished(&first, claimed.context), &limits).await.unwrap();
    fill(filler);
    let mut done: Vec<ExecutionId> = vec![first.execution.id];
    let error = loop {
        let run = ask(&key);
        match store.acquire(&run, &limits).await {
            Ok(Acquired::Ready(..)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
        match store.record(&finished(&run, claimed.context), &limits).await {
            Ok(recorded) => assert!(recorded),
            Err(error) => break error,
        }
        done.push(run.execution.id);
        assert!(done.len() < 100_000, "the disk never filled");
    };
    assert!(error.state() == Some(DatabaseState::Full), "{error:?}");
    assert!(error.to_string().contains("full"));
    fs::remove_file(filler).unwrap();
    for id in &done {
        assert!(store.execution(&key.tenant, *id).await.unwrap().is_some(), "{id} is lost");
    }
    let live = store.live(&key).await.unwrap().unwrap();
    assert_eq!(usize::try_from(live.execution_count).unwrap(), done.len());
    store.reap(50, Duration::from_secs(3600), &limits).await.unwrap();
}
