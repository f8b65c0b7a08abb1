//! What the store costs: `cargo bench --bench store`.
//!
//! Medians of single calls for 1, 8 and 64 callers, each as a ratio to `SELECT 1` of the same run, on Postgres (durable
//! commits, over its socket) and on SQLite (durable commits). Beside the store's own calls, in turns with them, stands the
//! usual way of doing the same: a transaction of single statements, one round trip each, on tables without row-level security,
//! guard, queue or ledger. On one machine that is less work and may be faster; with a network between, round trips decide.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops at the first failure and prints"
)]

#[path = "../tests/it/support/database.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod database;
#[path = "../tests/it/support/runs.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod runs;

use std::future::Future;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use database::{Cluster, TEST_KEY};
use pathbox::domain::{Clock, ContextKey, Entropy};
use pathbox::store::{
    ContextLimits, DynStore, Keyring, PgOptions, PgStore, Secret, SqliteOptions, SqliteStore,
};
use runs::{ask, claim, finished, first_run, key, ready};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::SqlitePool;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// The store's calls and the usual way's are made in turns, so often.
const ROUNDS: usize = 10;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // `cargo bench --bench store -- sqlite` measures that one alone.
    let only = |name: &str| std::env::args().any(|argument| argument == name);
    runtime.block_on(async {
        if !only("sqlite") {
            postgres().await;
        }
        if !only("postgres") {
            sqlite().await;
        }
    });
}

/// The median of single calls while `callers` of them are at it.
async fn median<F: Future<Output = ()> + Send>(
    callers: usize,
    calls: usize,
    call: impl Fn(usize, usize) -> F + Send + Sync + 'static + Clone,
) -> Duration {
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut times = Vec::with_capacity(calls);
                for number in 0..calls {
                    let started = Instant::now();
                    call(caller, number).await;
                    times.push(started.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    times.sort();
    times[times.len() / 2]
}

fn limits() -> ContextLimits {
    ContextLimits {
        per_tenant: 1_000_000,
        per_conversation: 1_000_000,
        max_executions: 1_000_000,
        ..ContextLimits::default()
    }
}

/// The key of one caller: callers do not queue behind each other.
fn caller_key(caller: usize) -> ContextKey {
    key("acme", "c", &format!("p{caller}"))
}

fn print(what: &str, median: Duration, base: Duration) {
    let ratio = median.as_secs_f64() / base.as_secs_f64();
    println!("  {what:<44} {:>8.0} µs   {ratio:>5.1} x", median.as_secs_f64() * 1e6);
}

/// Makes what the warm calls of these callers need.
async fn warm_up(store: &DynStore, callers: usize) {
    for caller in 0..callers {
        if store.live(&caller_key(caller)).await.unwrap().is_none() {
            first_run(store, &caller_key(caller), &limits()).await;
        }
    }
}

type Times = Vec<Duration>;

fn middle(times: &mut Times) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// What both take in one call: the time that is promised.
fn print_calls(times: &(Times, Times)) {
    let mut calls: Times = times.0.iter().zip(&times.1).map(|(acquire, record)| *acquire + *record).collect();
    calls.sort();
    let at = |share: f64| calls[((calls.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("  acquire and record of one warm call: p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99));
}

/// Acquires and records of `callers` that are at it, each timed by itself by `call`: both are added to what was measured before.
async fn timed_calls<F: Future<Output = (Duration, Duration)> + Send>(
    callers: usize,
    count: usize,
    times: &mut (Times, Times),
    call: impl Fn(usize) -> F + Send + Sync + 'static + Clone,
) {
    let kept = Arc::new(std::sync::Mutex::new((Vec::new(), Vec::new())));
    let calls = kept.clone();
    median(callers, count, move |caller, _| {
        let (call, calls) = (call(caller), calls.clone());
        async move {
            let (acquired, recorded) = call.await;
            let mut times = calls.lock().unwrap();
            times.0.push(acquired);
            times.1.push(recorded);
        }
    })
    .await;
    let kept = kept.lock().unwrap();
    times.0.extend(&kept.0);
    times.1.extend(&kept.1);
}

async fn warm_calls(store: &DynStore, callers: usize, count: usize, times: &mut (Times, Times)) {
    let store = store.clone();
    timed_calls(callers, count, times, move |caller| {
        let store = store.clone();
        async move {
            let ask = ask(&caller_key(caller));
            let started = Instant::now();
            let context = ready(store.acquire(&ask, &limits()).await.unwrap());
            let acquired = started.elapsed();
            let started = Instant::now();
            store.record(&finished(&ask, context.id), &limits()).await.unwrap();
            (acquired, started.elapsed())
        }
    })
    .await;
}

async fn cold_calls(store: &DynStore, callers: usize, count: usize, base: Duration) {
    let (store, round) = (store.clone(), Entropy::system().hex::<4>());
    let cold = median(callers, count, move |caller, number| {
        let store = store.clone();
        let key = key(&format!("cold-{caller}"), &round, &number.to_string());
        async move {
            claim(store.acquire(&ask(&key), &limits()).await.unwrap());
        }
    })
    .await;
    print("cold acquire, without the provider", cold, base);
}

/// Times the store's calls, and returns acquire and record of a warm call.
async fn calls(store: &DynStore, callers: usize, count: usize, base: Duration) -> (Duration, Duration) {
    warm_up(store, callers).await;
    let mut times = (Vec::new(), Vec::new());
    warm_calls(store, callers, count, &mut times).await;
    print_calls(&times);
    let (warm, records) = (middle(&mut times.0), middle(&mut times.1));
    print("warm acquire", warm, base);
    print("record", records, base);
    cold_calls(store, callers, count / 4, base).await;
    (warm, records)
}

async fn postgres() {
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(&[])));
    let database = cluster.empty_database();
    let here = database.url();
    prepare_usual_way(&connect(&here).await).await;
    for callers in [1, 8, 64] {
        println!("postgres on this machine, {callers} caller(s)");
        compare(&here, callers, 2000 / callers.min(16)).await;
    }
    for contexts in [1_000, 100_000] {
        fill(&connect(&here).await, contexts).await;
        for callers in [1, 64] {
            println!("postgres on this machine beside {contexts} live contexts, {callers} caller(s)");
            compare(&here, callers, 2000 / callers.min(16)).await;
        }
    }
    // What round trips cost: the same server behind a wire that holds everything for a millisecond each way.
    let wire = tempfile::tempdir().unwrap();
    // It listens before anybody connects.
    let listener = UnixListener::bind(wire.path().join(".s.PGSQL.5432")).unwrap();
    tokio::spawn(slow_wire(listener, cluster.socket()));
    let away = here
        .expose()
        .replace(cluster.socket().parent().unwrap().to_str().unwrap(), wire.path().to_str().unwrap());
    for callers in [1, 8, 64] {
        println!("postgres a network away, {callers} caller(s)");
        compare(&Secret::new(away.clone()), callers, 200 / callers.min(8)).await;
    }
}

async fn connect(url: &Secret) -> PgPool {
    PgPoolOptions::new().max_connections(64).test_before_acquire(false).connect(url.expose()).await.unwrap()
}

/// So many live contexts of other tenants, ten each.
async fn fill(pool: &PgPool, contexts: i32) {
    let mut connection = pool.acquire().await.unwrap();
    sqlx::raw_sql("set session_replication_role = replica").execute(&mut *connection).await.unwrap();
    sqlx::query(
        "insert into pathbox.execution_contexts (id, tenant_id, conversation_id, path_id, status, lease_owner,
             creator_execution, sandbox_id, ready_at, expires_at, due_at)
         select gen_random_uuid(), 'filler-' || n / 10, 'c' || n, 'main', 'ready', 'replica', gen_random_uuid(),
                gen_random_uuid()::text, clock_timestamp(), clock_timestamp() + interval '1 hour',
                clock_timestamp() + interval '1 hour'
           from generate_series((select count(*) from pathbox.execution_contexts)::int, $1) n",
    )
    .bind(contexts)
    .execute(&mut *connection)
    .await
    .unwrap();
    sqlx::raw_sql("analyze pathbox.execution_contexts").execute(&mut *connection).await.unwrap();
    connection.close().await.unwrap();
}

/// The store's calls, and the usual way's, over one URL.
async fn compare(url: &Secret, callers: usize, count: usize) {
    let keyring = Keyring::parse(TEST_KEY, &Entropy::system()).unwrap();
    let options = PgOptions { max_connections: 64, ..PgOptions::default() };
    let store: DynStore = Arc::new(PgStore::connect(url, &options, keyring).await.unwrap());
    let pool = connect(url).await;
    let base = {
        let pool = pool.clone();
        median(callers, count, move |_, _| {
            let pool = pool.clone();
            async move {
                sqlx::query("select 1").execute(&pool).await.unwrap();
            }
        })
        .await
    };
    print("select 1", base, base);
    warm_up(&store, callers).await;
    // In turns, so that both meet the same machine.
    let (mut times, mut usual) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for _ in 0..ROUNDS {
        warm_calls(&store, callers, count.div_ceil(ROUNDS), &mut times).await;
        usual_calls(&pool, callers, count.div_ceil(ROUNDS), &mut usual).await;
    }
    print_calls(&times);
    let (warm, record) = (middle(&mut times.0), middle(&mut times.1));
    print("warm acquire", warm, base);
    print("record", record, base);
    cold_calls(&store, callers, count / 4, base).await;
    let (usual_acquire, usual_record) = (middle(&mut usual.0), middle(&mut usual.1));
    print("the usual way: acquire in 5 round trips", usual_acquire, base);
    print("the usual way: record in 4 round trips", usual_record, base);
    let ratio = (warm + record).as_secs_f64() / (usual_acquire + usual_record).as_secs_f64();
    println!("  a warm call takes {ratio:.2} of the usual way\n");
}

/// The usual way's acquires and records.
async fn usual_calls(pool: &PgPool, callers: usize, count: usize, times: &mut (Times, Times)) {
    let pool = pool.clone();
    timed_calls(callers, count, times, move |caller| {
        let pool = pool.clone();
        async move {
            let started = Instant::now();
            usual_acquire(pool.clone(), caller).await;
            let acquired = started.elapsed();
            let started = Instant::now();
            usual_record(pool, caller).await;
            (acquired, started.elapsed())
        }
    })
    .await;
}

/// Passes bytes on to the server's socket, each way a millisecond late.
async fn slow_wire(listener: UnixListener, to: PathBuf) {
    async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if to.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
    }
    while let Ok((client, _)) = listener.accept().await {
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = UnixStream::connect(&to).await.unwrap().into_split();
        tokio::spawn(pass(client_reads, server_writes));
        tokio::spawn(pass(server_reads, client_writes));
    }
}

/// Tables without row-level security, guards or ledger: the least that the usual way could do with.
async fn prepare_usual_way(pool: &PgPool) {
    sqlx::raw_sql(
        "create schema usual;
         create table usual.contexts (key text primary key, status text not null, sandbox text not null,
             runs bigint not null default 0, expires_at timestamptz not null);
         create table usual.runs (id uuid primary key, key text not null, status text not null,
             started_at timestamptz not null, finished_at timestamptz);
         create index on usual.runs (key) where status = 'running';
         insert into usual.contexts select 'p' || n, 'ready', 'sb', 0, now() + interval '1 day'
             from generate_series(0, 63) n;",
    )
    .execute(pool)
    .await
    .unwrap();
}

async fn usual_acquire(pool: PgPool, caller: usize) {
    let key = format!("p{caller}");
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("select sandbox, runs, expires_at from usual.contexts where key = $1 for update")
        .bind(&key)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    sqlx::query("select count(*) from usual.runs where key = $1 and status = 'running'")
        .bind(&key)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    sqlx::query("insert into usual.runs values ($1, $2, 'running', now(), null)")
        .bind(Entropy::system().uuid_v7(&Clock::system()))
        .bind(&key)
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
}

async fn usual_record(pool: PgPool, caller: usize) {
    let key = format!("p{caller}");
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query(
        "update usual.runs set status = 'done', finished_at = now() where key = $1 and status = 'running'",
    )
    .bind(&key)
    .execute(&mut *transaction)
    .await
    .unwrap();
    sqlx::query(
        "update usual.contexts set runs = runs + 1, expires_at = now() + interval '30 min' where key = $1",
    )
    .bind(&key)
    .execute(&mut *transaction)
    .await
    .unwrap();
    transaction.commit().await.unwrap();
}

async fn sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = Keyring::parse(TEST_KEY, &Entropy::system()).unwrap();
    let store: DynStore = Arc::new(
        SqliteStore::open(dir.path(), &SqliteOptions::default(), keyring, Clock::system()).await.unwrap(),
    );
    let path = dir.path().join(pathbox::store::sqlite::DATABASE_FILE);
    let url = Secret::new(format!("sqlite:{}", path.display()));
    let pool = SqlitePool::connect(url.expose()).await.unwrap();
    for callers in [1, 8, 64] {
        let count = 2000 / callers.min(64);
        println!("sqlite, {callers} caller(s)");
        let base = {
            let pool = pool.clone();
            median(callers, count, move |_, _| {
                let pool = pool.clone();
                async move {
                    sqlx::query("SELECT 1").execute(&pool).await.unwrap();
                }
            })
            .await
        };
        print("SELECT 1", base, base);
        let sync = bare_sync(dir.path());
        print("fdatasync of 8 KiB, alone", sync, base);
        let (warm, record) = calls(&store, callers, count, base).await;
        let per_second = callers as f64 / (warm + record).as_secs_f64();
        let ratio = (warm + record).as_secs_f64() / sync.as_secs_f64();
        println!("  acquire and record cost {ratio:.1} fdatasyncs; {per_second:.0} calls/s");
        println!();
    }
}

/// What the disk asks for one durable write.
fn bare_sync(dir: &std::path::Path) -> Duration {
    let mut file = std::fs::File::create(dir.join("bare")).unwrap();
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            let started = Instant::now();
            file.write_all(&[7; 8192]).unwrap();
            file.sync_data().unwrap();
            started.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}
