//! Several processes on one database, as replicas and desktop hosts are: limits, the queue, claims and the ledger
//! hold between them, also when they are killed.
//!
//! The test binary starts itself; [`worker`] is what such a process does. The sandbox provider is a directory: a
//! sandbox is a file whose name carries the context's tag. It represents the real one because only that lets a test
//! count every sandbox that ever was.
//!
//! `PATHBOX_TEST_EFFORT=20` makes each test that many times as long, for a soak by hand.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pathbox::domain::Prices;
use pathbox::domain::usage::{UsageBy, report};
use pathbox::domain::{Clock, ContextId, EndReason, Entropy, Quota, SandboxId, TenantId};
use pathbox::store::sqlite::DATABASE_FILE;
use pathbox::store::{
    Acquired, Claim, ContextFilter, ContextLimits, DynStore, Keyring, PendingKill, PgOptions, PgStore,
    SandboxRef, Secret, SqliteOptions, SqliteStore, UsageFilter, verify,
};
use serde::{Deserialize, Serialize};
use sqlx::Connection;

use crate::support::database::{TEST_KEY, cluster};
use crate::support::runs::{any_sandbox, ask, ask_once, end, finished, key};

const JOB: &str = "PATHBOX_TEST_JOB";

/// How often a process is killed on each store.
const ROUNDS: u32 = 100;

/// How many times as long as usual.
fn effort() -> u32 {
    #[expect(clippy::disallowed_methods, reason = "said on the command line of a test")]
    std::env::var("PATHBOX_TEST_EFFORT").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// What a process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    /// `sqlite:<dir>` or a Postgres URL.
    store: String,
    /// The provider, the marks of runs and the effects.
    dir: PathBuf,
    seed: u64,
    callers: u32,
    calls: u32,
    /// Leases so short that a killed process is noticed within the test; runs then have idempotency keys.
    is_killed: bool,
    /// What each tenant may use.
    quota: Option<Ration>,
}

/// How much of what.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Ration {
    Runs(u64),
    /// Money for this number of runs.
    MoneyFor(u64),
    Seconds(u64),
}

/// The price of a run in millionths.
const PRICE: u64 = 10_000;

impl Job {
    async fn open(&self) -> DynStore {
        let keyring = Keyring::parse(TEST_KEY, &Entropy::system()).unwrap();
        match self.store.strip_prefix("sqlite:") {
            Some(dir) => Arc::new(
                SqliteStore::open(Path::new(dir), &SqliteOptions::default(), keyring, Clock::system())
                    .await
                    .unwrap(),
            ),
            None => Arc::new(
                PgStore::connect(&Secret::new(self.store.clone()), &PgOptions::default(), keyring)
                    .await
                    .unwrap(),
            ),
        }
    }

    fn limits(&self) -> ContextLimits {
        if self.is_killed {
            let lease = Duration::from_millis(400);
            ContextLimits {
                create_lease: lease,
                create_timeout: Duration::from_millis(100),
                ..ContextLimits::default()
            }
        } else if let Some(ration) = self.quota {
            let quota = match ration {
                Ration::Runs(runs) => Quota { executions: Some(runs), ..Quota::default() },
                Ration::MoneyFor(runs) => Quota { money_micros: Some(runs * PRICE), ..Quota::default() },
                Ration::Seconds(seconds) => Quota { sandbox_seconds: Some(seconds), ..Quota::default() },
            };
            let prices = Prices { execution_micros: PRICE, ..Prices::default() };
            let ttl = Duration::from_secs(600);
            ContextLimits {
                quota,
                prices,
                ttl,
                per_tenant: 100,
                per_conversation: 100,
                ..ContextLimits::default()
            }
        } else {
            ContextLimits::default()
        }
    }

    fn spawn(&self) -> Child {
        let exe = std::env::current_exe().unwrap();
        Command::new(exe)
            .args(["--exact", "store_processes::worker", "--include-ignored", "--nocapture"])
            .env(JOB, serde_json::to_string(self).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// The provider that is a directory.
struct Provider(PathBuf);

impl Provider {
    fn create(&self, claim: &Claim) -> SandboxRef {
        let name = format!("{}.{}.{}", claim.context, claim.epoch, Entropy::system().hex::<4>());
        fs::write(self.0.join("sandboxes").join(&name), "").unwrap();
        SandboxRef { sandbox_id: SandboxId::parse(name).unwrap(), ..any_sandbox() }
    }

    fn list(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.join("sandboxes")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Kills what an entry of the outbox names; a sandbox that is not there is as good.
    fn kill(&self, pending: &PendingKill) {
        match &pending.sandbox {
            Some(sandbox) => {
                let _ = fs::remove_file(self.0.join("sandboxes").join(sandbox.sandbox_id.as_str()));
            }
            None => {
                let tag = format!("{}.{}.", pending.context, pending.epoch);
                for name in self.list().iter().filter(|name| name.starts_with(&tag)) {
                    let _ = fs::remove_file(self.0.join("sandboxes").join(name));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the others start it as a process of its own"]
async fn worker() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells the child what to do")]
    let Ok(job) = std::env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    let store = job.open().await;
    let callers: Vec<_> =
        (0..job.callers).map(|number| tokio::spawn(caller(job.clone(), store.clone(), number))).collect();
    for caller in callers {
        caller.await.unwrap();
    }
}

async fn caller(job: Job, store: DynStore, number: u32) {
    let provider = Provider(job.dir.clone());
    let entropy = Entropy::seeded(job.seed * 1000 + u64::from(number));
    let limits = job.limits();
    for call in 0..job.calls {
        let (tenant, conversation, path) = (entropy.below(2), entropy.below(4), entropy.below(4));
        let key = key(&format!("t{tenant}"), &format!("c{conversation}"), &format!("p{path}"));
        let mut ask = if job.is_killed {
            // few keys: every one is used again and again, in every process
            ask_once(&key, &format!("{tenant}-{conversation}-{path}-{}", entropy.below(3)), "same")
        } else {
            ask(&key)
        };
        ask.owner = format!("{}-{number}-{call}", job.seed);
        if job.is_killed {
            ask.execution.lease = Duration::from_millis(400);
        }
        let context = loop {
            match store.acquire(&ask, &limits).await.unwrap() {
                Acquired::Ready(context, _) => break context.id,
                Acquired::Create(claim) => {
                    let sandbox = provider.create(&claim);
                    if let Some(context) =
                        store.ready(&claim, ask.execution.id, &sandbox, &limits).await.unwrap()
                    {
                        break context.id;
                    }
                }
                Acquired::Queued { .. } | Acquired::WaitForCreator { .. } => {}
                Acquired::InFlight(_) | Acquired::Replay(_) | Acquired::Interrupted(_) if job.is_killed => {
                    break ContextId(uuid::Uuid::nil());
                }
                Acquired::Limit(_) => break ContextId(uuid::Uuid::nil()),
                Acquired::Quota(_) if job.quota.is_some() => break ContextId(uuid::Uuid::nil()),
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(2 + entropy.below(20))).await;
        };
        if context.0.is_nil() {
            continue;
        }
        run(&job, &ask.execution.idempotency.as_ref().map(|once| once.key.clone()), context).await;
        store.record(&finished(&ask, context), &limits).await.unwrap();
        if entropy.below(20) == 0 {
            store.end(&end(&key, context, None, EndReason::Manual), &limits).await.unwrap();
        }
    }
}

/// What a run does: it is alone on its context, or it leaves an effect.
async fn run(job: &Job, idempotency_key: &Option<String>, context: ContextId) {
    if let Some(idempotency_key) = idempotency_key {
        // A file of its own for each effect: a process that is killed here has made it or has not.
        let name = format!("{idempotency_key}.{}", Entropy::system().hex::<8>());
        fs::File::create_new(job.dir.join("effects").join(name)).unwrap();
        return;
    }
    let mark = job.dir.join("running").join(context.to_string());
    fs::OpenOptions::new().write(true).create_new(true).open(&mark).expect("one run at a time on a context");
    tokio::time::sleep(Duration::from_micros(500)).await;
    fs::remove_file(&mark).unwrap();
}

/// Kills everything in the outbox, as the clean-up of any replica does.
async fn kill_all(store: &DynStore, provider: &Provider) {
    loop {
        let pending = store.claim_kills(100, Duration::from_secs(60)).await.unwrap();
        if pending.is_empty() {
            return;
        }
        for entry in pending {
            provider.kill(&entry);
            store.kill_done(entry.id).await.unwrap();
        }
    }
}

/// A place for the provider and the marks.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["sandboxes", "running", "effects"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    dir
}

async fn three_processes_keep_the_promises(store: String, calls: u32) {
    let dir = place();
    let job = |seed, callers| Job {
        store: store.clone(),
        dir: dir.path().to_owned(),
        seed,
        callers,
        calls,
        is_killed: false,
        quota: None,
    };
    // All three start on a database that no one has migrated.
    let mut processes = three_processes(&job);
    let store = job(0, 0).open().await;
    let (mut most_of_tenant, mut most_of_conversation) = (0, 0);
    while processes.iter_mut().any(|process| process.try_wait().unwrap().is_none()) {
        let mut tenants: HashMap<String, u32> = HashMap::new();
        let mut conversations: HashMap<String, u32> = HashMap::new();
        for row in store.contexts(&ContextFilter::default()).await.unwrap() {
            *tenants.entry(row.key.tenant.to_string()).or_default() += 1;
            *conversations.entry(format!("{}/{}", row.key.tenant, row.key.conversation)).or_default() += 1;
        }
        most_of_tenant = most_of_tenant.max(tenants.values().copied().max().unwrap_or(0));
        most_of_conversation = most_of_conversation.max(conversations.values().copied().max().unwrap_or(0));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for mut process in processes {
        assert!(process.wait().unwrap().success(), "a process failed; its output is above");
    }
    assert_eq!(most_of_tenant, 10, "the limit was reached and never passed");
    assert!(most_of_conversation <= 5, "{most_of_conversation}");

    let provider = Provider(dir.path().to_owned());
    kill_all(&store, &provider).await;
    let mut owned: Vec<String> = store
        .owned(None, Duration::ZERO, None, 1000)
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.sandbox.unwrap().sandbox_id.to_string())
        .collect();
    let mut left = provider.list();
    owned.sort();
    left.sort();
    assert_eq!(left, owned, "each sandbox that is left is a live context's, and each of those has one");
    let all = ContextFilter { ended: true, limit: Some(100_000), ..ContextFilter::default() };
    let rows = store.contexts(&all).await.unwrap();
    assert!(rows.iter().all(|row| row.epoch == 1), "nobody was taken over");
    let queued = store.reap(1000, Duration::from_secs(1 << 20), &ContextLimits::default()).await.unwrap();
    assert_eq!(queued.interrupted, 0, "nobody is left in the queue");
}

/// Jobs that ask for more than a quota has, by seed and callers.
fn under_quota(store: &str, dir: &Path, quota: Ration) -> impl Fn(u64, u32) -> Job {
    let (store, dir) = (store.to_owned(), dir.to_owned());
    move |seed, callers| Job {
        store: store.clone(),
        dir: dir.clone(),
        seed,
        callers,
        calls: 12,
        is_killed: false,
        quota: Some(quota),
    }
}

/// 64 callers in three processes.
fn three_processes(job: &impl Fn(u64, u32) -> Job) -> Vec<Child> {
    [(1, 22), (2, 21), (3, 21)].map(|(seed, callers)| job(seed, callers).spawn()).into()
}

/// 64 callers of three processes ask for more than there is: each tenant gets its quota, and not one run more.
async fn a_quota_is_exact_over_processes(store: String, ration: Ration) {
    let (quota, unit) = match ration {
        Ration::Runs(runs) => (runs, 1),
        Ration::MoneyFor(runs) => (runs, PRICE),
        Ration::Seconds(_) => panic!("sandboxes come back"),
    };
    let dir = place();
    let job = under_quota(&store, dir.path(), ration);
    let mut processes = three_processes(&job);
    for process in &mut processes {
        assert!(process.wait().unwrap().success(), "a process failed; its output is above");
    }
    let store = job(0, 0).open().await;
    let today = store.now().await.unwrap().date_naive();
    let days = UsageFilter { tenant: None, owner: None, from: today.pred_opt().unwrap(), to: today };
    let lines = report(&store.usage(&days).await.unwrap(), UsageBy::Tenant, &Prices::default());
    let runs: Vec<(&str, u64)> = lines.iter().map(|line| (line.tenant.as_str(), line.executions)).collect();
    assert_eq!(runs, [("t0", quota), ("t1", quota)]);
    for tenant in ["t0", "t1"] {
        let chain = verify(&*store, &TenantId::parse(tenant).unwrap(), |_, _| {}).await.unwrap();
        let ends: i64 = chain.lanes.iter().map(|head| head.n).sum();
        assert_eq!((chain.entries, ends.unsigned_abs()), (quota, quota), "an entry a run");
        assert_eq!(chain.faults, []);
    }
    let tenant = TenantId::parse("t0").unwrap();
    let refused = ask(&key(tenant.as_str(), "c0", "p0"));
    match store.acquire(&refused, &job(0, 0).limits()).await.unwrap() {
        Acquired::Quota(reached) => assert_eq!((reached.used, reached.reserved), (quota * unit, unit)),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.execution(&tenant, refused.execution.id).await.unwrap(), None, "it leaves no row");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_exact_over_processes_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    a_quota_is_exact_over_processes(format!("sqlite:{}", dir.path().display()), Ration::Runs(100)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_money_is_exact_over_processes_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    a_quota_is_exact_over_processes(format!("sqlite:{}", dir.path().display()), Ration::MoneyFor(50)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_quota_of_money_is_exact_over_processes_on_postgres() {
    let database = cluster().await.database().await;
    a_quota_is_exact_over_processes(database.url().expose().to_owned(), Ration::MoneyFor(50)).await;
}

/// Sandboxes that live hold what they may take yet: there are as many as the seconds are enough for, and never one more.
async fn a_quota_of_seconds_is_kept_over_processes(store: String) {
    let dir = place();
    // One that runs may take 690, one that rests 600: five of either kind, six of neither, and what those that ended took.
    let job = under_quota(&store, dir.path(), Ration::Seconds(5 * 690 + 200));
    let store = job(0, 0).open().await;
    let mut processes = three_processes(&job);
    let mut most = 0;
    let mut look = async || {
        let mut tenants: HashMap<String, u32> = HashMap::new();
        for row in store.contexts(&ContextFilter::default()).await.unwrap() {
            *tenants.entry(row.key.tenant.to_string()).or_default() += 1;
        }
        most = most.max(tenants.values().copied().max().unwrap_or(0));
        most
    };
    while processes.iter_mut().any(|process| process.try_wait().unwrap().is_none()) {
        look().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for mut process in processes {
        assert!(process.wait().unwrap().success(), "a process failed; its output is above");
    }
    assert_eq!(look().await, 5, "the quota was reached and never passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_seconds_is_kept_over_processes_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    a_quota_of_seconds_is_kept_over_processes(format!("sqlite:{}", dir.path().display())).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_quota_of_seconds_is_kept_over_processes_on_postgres() {
    let database = cluster().await.database().await;
    a_quota_of_seconds_is_kept_over_processes(database.url().expose().to_owned()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_quota_is_exact_over_processes_on_postgres() {
    let database = cluster().await.database().await;
    a_quota_is_exact_over_processes(database.url().expose().to_owned(), Ration::Runs(100)).await;
}

async fn killed_processes_leave_nothing(store: String, rounds: u32) {
    let dir = place();
    let job = |seed| Job {
        store: store.clone(),
        dir: dir.path().to_owned(),
        seed,
        callers: 8,
        calls: 100_000,
        is_killed: true,
        quota: None,
    };
    let store = job(0).open().await;
    let entropy = Entropy::seeded(11);
    let mut processes: Vec<Child> = (1..=3).map(|seed| job(seed).spawn()).collect();
    for round in 0..rounds {
        // Long enough to have begun, short enough to be in the middle of it.
        tokio::time::sleep(Duration::from_millis(50 + entropy.below(200))).await;
        let mut killed =
            std::mem::replace(&mut processes[round as usize % 3], job(u64::from(round) + 4).spawn());
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    for process in &mut processes {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    // Leases run out, one sweep, and the outbox: nothing without an owner, nothing stuck.
    let limits = job(0).limits();
    let provider = Provider(dir.path().to_owned());
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        store.reap(1000, Duration::from_secs(1 << 20), &limits).await.unwrap();
        kill_all(&store, &provider).await;
        let owned: Vec<String> = store
            .owned(None, Duration::ZERO, None, 1000)
            .await
            .unwrap()
            .into_iter()
            .map(|row| row.sandbox.unwrap().sandbox_id.to_string())
            .collect();
        let orphans: Vec<String> = provider.list().into_iter().filter(|name| !owned.contains(name)).collect();
        let making = store.contexts(&ContextFilter::default()).await.unwrap().len() - owned.len();
        if orphans.is_empty() && making == 0 && provider.list().len() == owned.len() {
            break;
        }
        assert!(Instant::now() < deadline, "orphans: {orphans:?}, in the making: {making}");
    }
    let mut effects: HashMap<String, u32> = HashMap::new();
    for entry in fs::read_dir(dir.path().join("effects")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        *effects.entry(name.split('.').next().unwrap().to_owned()).or_default() += 1;
    }
    eprintln!("{rounds} kills, {} runs under a key of their own, orphans 0, double runs 0", effects.len());
    assert!(effects.len() > 5, "runs ran: {}", effects.len());
    assert!(effects.values().all(|times| *times == 1), "no key ran twice: {effects:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_keep_the_promises_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    three_processes_keep_the_promises(format!("sqlite:{}", dir.path().join("data").display()), 10 * effort())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn three_processes_keep_the_promises_on_postgres() {
    let database = cluster().await.empty_database();
    three_processes_keep_the_promises(database.url().expose().to_owned(), 20 * effort()).await;
    let deadlocks: i64 =
        sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()")
            .fetch_one(&mut database.connect().await)
            .await
            .unwrap();
    assert_eq!(deadlocks, 0, "locks are taken in one order");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_killed_at_random_leave_nothing_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    killed_processes_leave_nothing(format!("sqlite:{}", dir.path().display()), ROUNDS * effort()).await;
    let mut connection = sqlx::SqliteConnection::connect_with(
        &sqlx::sqlite::SqliteConnectOptions::new().filename(dir.path().join(DATABASE_FILE)),
    )
    .await
    .unwrap();
    let check: String =
        sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut connection).await.unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn processes_killed_at_random_leave_nothing_on_postgres() {
    let database = cluster().await.empty_database();
    killed_processes_leave_nothing(database.url().expose().to_owned(), ROUNDS * effort()).await;
}
