//! Databases for tests: a SQLite directory, or a database of its own in a private Postgres cluster.
//!
//! The cluster lives in a temporary directory, listens on a socket there and nowhere else, and dies with the test
//! process however that ends: a shell waits on a pipe that only this process holds.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pathbox::domain::{Clock, Entropy};
use pathbox::store::{DynStore, Keyring, PgOptions, PgStore, Secret, SqliteOptions, SqliteStore};
use sqlx::{Connection, PgConnection};
use tokio::sync::OnceCell;

/// 32 bytes that are not secret.
pub(crate) const TEST_KEY: &str = "1:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// A fresh database, the time in it, and as many stores on it as a test wants.
pub(crate) struct World {
    place: Place,
    clock: Clock,
}

enum Place {
    Sqlite(tempfile::TempDir),
    Postgres(Database),
}

impl World {
    /// An empty SQLite directory, with a clock that stands still.
    pub(crate) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { place: Place::Sqlite(dir), clock: Clock::manual(Clock::system().now()) }
    }

    /// A migrated Postgres database.
    pub(crate) async fn postgres() -> Self {
        Self { place: Place::Postgres(cluster().await.database().await), clock: Clock::system() }
    }

    /// A store of its own, as another process would have it.
    pub(crate) async fn store(&self) -> DynStore {
        self.store_with_keys(TEST_KEY).await
    }

    /// The same, with other keys for tokens.
    pub(crate) async fn store_with_keys(&self, keys: &str) -> DynStore {
        let keyring = Keyring::parse(keys, &Entropy::system()).unwrap();
        match &self.place {
            Place::Sqlite(dir) => Arc::new(
                SqliteStore::open(dir.path(), &SqliteOptions::default(), keyring, self.clock.clone())
                    .await
                    .unwrap(),
            ),
            Place::Postgres(database) => {
                Arc::new(PgStore::connect(&database.url(), &PgOptions::default(), keyring).await.unwrap())
            }
        }
    }

    /// Lets time pass: SQLite's clock is moved, and on Postgres, whose clock is the machine's, all rows get older.
    pub(crate) async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        if let Place::Postgres(database) = &self.place {
            database.age(by).await;
        }
    }

    /// Runs SQL beside the store, as an operator would. Returns how many rows it touched.
    ///
    /// # Errors
    /// What the database says.
    pub(crate) async fn sql(&self, sql: &str) -> Result<u64, sqlx::Error> {
        match &self.place {
            Place::Sqlite(dir) => {
                let path = dir.path().join("pathbox.db");
                let mut connection = sqlx::SqliteConnection::connect_with(
                    &sqlx::sqlite::SqliteConnectOptions::new().filename(path),
                )
                .await?;
                Ok(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?.rows_affected())
            }
            Place::Postgres(database) => {
                let mut connection = database.connect().await;
                sqlx::raw_sql("set search_path = pathbox").execute(&mut connection).await?;
                Ok(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?.rows_affected())
            }
        }
    }

    /// The first column of the first row, as a number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        match &self.place {
            Place::Sqlite(dir) => {
                let path = dir.path().join("pathbox.db");
                let mut connection = sqlx::SqliteConnection::connect_with(
                    &sqlx::sqlite::SqliteConnectOptions::new().filename(path),
                )
                .await
                .unwrap();
                sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap()
            }
            Place::Postgres(database) => {
                let mut connection = database.connect().await;
                sqlx::raw_sql("set search_path = pathbox").execute(&mut connection).await.unwrap();
                sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap()
            }
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.place, Place::Postgres(_))
    }

    /// The database of a Postgres world.
    pub(crate) fn database(&self) -> &Database {
        match &self.place {
            Place::Postgres(database) => database,
            Place::Sqlite(_) => panic!("a SQLite world has no server"),
        }
    }
}

/// A database in the cluster; dropped with the value.
pub(crate) struct Database {
    cluster: &'static Cluster,
    name: String,
}

impl Database {
    /// Its URL, as the superuser of the cluster.
    pub(crate) fn url(&self) -> Secret {
        self.url_as("postgres")
    }

    /// Its URL as another login.
    pub(crate) fn url_as(&self, login: &str) -> Secret {
        Secret::new(self.cluster.url(&self.name, login))
    }

    /// Its name in the cluster.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A connection as the superuser.
    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(self.url().expose()).await.unwrap()
    }

    /// Moves every time in every row back. As a replica, so that no trigger looks on.
    async fn age(&self, by: Duration) {
        let sql = format!(
            "set session_replication_role = replica;
             do $$
             declare t record;
             begin
               for t in
                 select c.table_name, string_agg(format('%1$I = %1$I - interval ''{} ms''', c.column_name), ', ') as sets
                   from information_schema.columns c
                   join information_schema.tables b using (table_schema, table_name)
                  where c.table_schema = 'pathbox' and c.data_type = 'timestamp with time zone'
                    and b.table_type = 'BASE TABLE'
                  group by c.table_name
               loop
                 execute format('update pathbox.%I set %s', t.table_name, t.sets);
               end loop;
             end $$;",
            by.as_millis()
        );
        let mut connection = self.connect().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = Command::new(self.cluster.bin.join("dropdb"))
            .args(["--force", "--if-exists", "-U", "postgres", "-h"])
            .arg(&self.cluster.dir)
            .arg(&self.name)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// A private Postgres server.
pub(crate) struct Cluster {
    bin: PathBuf,
    dir: PathBuf,
    next: AtomicU32,
    account: Option<(u32, u32)>,
    settings: Vec<String>,
    /// One for each time that the server was started.
    keepers: Mutex<Vec<Child>>,
}

const TEMPLATE: &str = "pathbox_template";

/// The cluster of this test process, started on first use, with a migrated template.
pub(crate) async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    static MIGRATED: OnceCell<()> = OnceCell::const_new();
    let cluster = CLUSTER
        .get_or_init(async || Cluster::start(&["-c", "fsync=off", "-c", "synchronous_commit=off"]))
        .await;
    MIGRATED
        .get_or_init(async || {
            cluster.create(TEMPLATE, "template1");
            let url = Secret::new(cluster.url(TEMPLATE, "postgres"));
            PgStore::migrate(&url, &PgOptions::default()).await.unwrap();
        })
        .await;
    cluster
}

impl Cluster {
    /// Starts a server with extra settings and waits until it answers.
    ///
    /// # Panics
    /// When there are no server binaries, or the server does not start: the message has its log.
    pub(crate) fn start(settings: &[&str]) -> Self {
        let bin = server_binaries();
        let dir = tempfile::Builder::new().prefix("pathbox-pg-").tempdir_in("/tmp").unwrap().keep();
        let account = unprivileged_account();
        if let Some((uid, gid)) = account {
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).unwrap();
        }
        let data = dir.join("data");
        let mut initdb = Command::new(bin.join("initdb"));
        initdb
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data);
        let done = run_as(&mut initdb, account).output().unwrap();
        assert!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));

        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        let keepers = Mutex::default();
        let cluster = Self { bin, dir, next: AtomicU32::new(1), account, settings, keepers };
        cluster.serve();
        cluster
    }

    /// A standby that streams from this cluster, once it does.
    pub(crate) fn standby(&self) -> Self {
        let (bin, account, settings) = (self.bin.clone(), self.account, self.settings.clone());
        let dir = tempfile::Builder::new().prefix("pathbox-pg-").tempdir_in("/tmp").unwrap().keep();
        if let Some((uid, gid)) = account {
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).unwrap();
        }
        let mut copy = Command::new(bin.join("pg_basebackup"));
        copy.args(["-U", "postgres", "-R", "-c", "fast", "-X", "stream", "--no-sync", "-h"]).arg(&self.dir);
        copy.arg("-D").arg(dir.join("data"));
        let done = run_as(&mut copy, account).output().unwrap();
        assert!(done.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&done.stderr));
        let standby =
            Self { bin, dir, next: AtomicU32::new(1), account, settings, keepers: Mutex::default() };
        standby.serve();
        standby
    }

    /// Makes a standby the primary, and waits until it is.
    pub(crate) fn promote(&self) {
        let mut promote = Command::new(self.bin.join("pg_ctl"));
        promote.args(["promote", "-w", "-D"]).arg(self.dir.join("data"));
        let done = run_as(&mut promote, self.account).output().unwrap();
        assert!(done.status.success(), "pg_ctl promote: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// The URL of a database that is on this cluster or on another, whichever takes writes.
    pub(crate) fn url_with(&self, other: &Self, database: &Database) -> String {
        let (name, here, there) = (&database.name, self.dir.display(), other.dir.display());
        format!("postgres://postgres@localhost/{name}?host={here},{there}&target_session_attrs=read-write")
    }

    /// Starts the server, or starts it again after [`Cluster::stop`], and waits until it answers.
    pub(crate) fn serve(&self) {
        let mut keeper = Command::new("sh");
        keeper
            .arg("-c")
            .arg(
                "dir=$1; shift; exec 3<&0; \"$@\" </dev/null 3<&- >>\"$dir/log\" 2>&1 & server=$!
                 read -r _ <&3; kill -CONT $server; kill -INT $server; wait $server; rm -rf \"$dir\"",
            )
            .arg("sh")
            .arg(&self.dir)
            .arg(self.bin.join("postgres"))
            .arg("-D")
            .arg(self.dir.join("data"))
            .arg("-k")
            .arg(&self.dir)
            .args(["-c", "listen_addresses=", "-c", "max_connections=300", "-c", "shared_buffers=64MB"])
            .args(&self.settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let keeper = run_as(&mut keeper, self.account).spawn().unwrap();
        self.keepers.lock().unwrap().push(keeper);
        self.wait();
    }

    /// The server's process and its children.
    fn processes(&self) -> Vec<String> {
        let file = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap();
        let postmaster = file.lines().next().unwrap().to_owned();
        let children = Command::new("ps").args(["-o", "pid=", "--ppid", &postmaster]).output().unwrap();
        let children = String::from_utf8(children.stdout).unwrap();
        std::iter::once(postmaster).chain(children.split_whitespace().map(str::to_owned)).collect()
    }

    fn signal(&self, signal: &str, processes: &[String]) {
        // A child may have gone in between; the server itself is the first and must be there.
        let _ = Command::new("kill").arg(signal).args(processes).stderr(Stdio::null()).status().unwrap();
    }

    /// Lets the server neither answer nor refuse.
    pub(crate) fn freeze(&self) {
        // The server first, so that it starts no more children.
        self.signal("-STOP", &self.processes()[..1]);
        self.signal("-STOP", &self.processes()[1..]);
    }

    /// Ends a freeze.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT", &self.processes());
    }

    /// Shuts the server down and waits until it is gone.
    pub(crate) fn stop(&self) {
        self.signal("-INT", &self.processes()[..1]);
        while self.dir.join("data/postmaster.pid").exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the server at once, as a fault of it would: what it had not written yet is lost.
    pub(crate) fn crash(&self) {
        self.signal("-QUIT", &self.processes()[..1]);
        while self.dir.join("data/postmaster.pid").exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Moves the write-ahead log to a disk of its own. The server must be stopped.
    pub(crate) fn log_on(&self, disk: &Disk) {
        let (log, there) = (self.dir.join("data/pg_wal"), disk.0.join("pg_wal"));
        let copied = Command::new("cp").arg("-a").arg(&log).arg(&there).status().unwrap();
        assert!(copied.success(), "cp {} {}", log.display(), there.display());
        std::fs::remove_dir_all(&log).unwrap();
        std::os::unix::fs::symlink(&there, &log).unwrap();
    }

    /// Starts the server again if a fault has ended it.
    pub(crate) fn serve_again(&self) {
        let ended = |keeper: &mut Child| matches!(keeper.try_wait(), Ok(Some(_)));
        let is_up = self.dir.join("data/postmaster.pid").exists()
            && !self.keepers.lock().unwrap().iter_mut().all(ended);
        match is_up {
            true => self.wait(),
            false => self.serve(),
        }
    }

    fn wait(&self) {
        for _ in 0..600 {
            let ready = self.socket().exists()
                && Command::new(self.bin.join("pg_isready"))
                    .arg("-q")
                    .arg("-h")
                    .arg(&self.dir)
                    .status()
                    .is_ok_and(|status| status.success());
            if ready {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("postgres: {}", std::fs::read_to_string(self.dir.join("log")).unwrap_or_default());
    }

    /// A database of its own, copied from the template.
    pub(crate) async fn database(&'static self) -> Database {
        let name = format!("test_{}", self.next.fetch_add(1, Ordering::Relaxed));
        self.create(&name, TEMPLATE);
        Database { cluster: self, name }
    }

    /// A database of its own with nothing in it.
    pub(crate) fn empty_database(&'static self) -> Database {
        let name = format!("test_{}", self.next.fetch_add(1, Ordering::Relaxed));
        self.create(&name, "template1");
        Database { cluster: self, name }
    }

    /// An empty database whose tables lie on a disk of their own.
    pub(crate) async fn database_on(&'static self, disk: &Disk) -> Database {
        if let Some((uid, gid)) = self.account {
            std::os::unix::fs::chown(&disk.0, Some(uid), Some(gid)).unwrap();
        }
        let name = format!("test_{}", self.next.fetch_add(1, Ordering::Relaxed));
        let mut admin = PgConnection::connect(&self.url("postgres", "postgres")).await.unwrap();
        for sql in [
            format!("create tablespace {name} location '{}'", disk.0.display()),
            format!("create database {name} tablespace {name}"),
        ] {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
        }
        Database { cluster: self, name }
    }

    fn create(&self, name: &str, template: &str) {
        let done = Command::new(self.bin.join("createdb"))
            .args(["-U", "postgres", "-T", template, "-h"])
            .arg(&self.dir)
            .arg(name)
            .output()
            .unwrap();
        assert!(done.status.success(), "createdb: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// One of the server's own programs, such as `pg_dump`.
    pub(crate) fn tool(&self, name: &str) -> Command {
        Command::new(self.bin.join(name))
    }

    /// The socket that the server listens on.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join(".s.PGSQL.5432")
    }

    /// The URL of a database of this cluster.
    pub(crate) fn url(&self, database: &str, login: &str) -> String {
        format!("postgres://{login}@localhost/{database}?host={}", self.dir.display())
    }
}

/// A mounted file system of some MiB, unmounted when dropped.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    pub(crate) fn new(mib: u32) -> Self {
        Self::mounted(mib).unwrap_or_else(|why| panic!("mount: {why}"))
    }

    /// The same where this account may mount; else why it may not.
    pub(crate) fn mounted(mib: u32) -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap().keep();
        let size = format!("size={mib}m");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&dir).output().unwrap();
        match mount.status.success() {
            true => Ok(Self(dir)),
            false => Err(String::from_utf8_lossy(&mount.stderr).into_owned()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Takes all space that is left with a file of zeros.
pub(crate) fn fill(filler: &Path) {
    let mut file = std::fs::File::create(filler).unwrap();
    for size in [1 << 16, 1 << 12, 1 << 9] {
        while file.write_all(&vec![0_u8; size]).is_ok() {}
    }
}

/// The newest server at hand.
fn server_binaries() -> PathBuf {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|dirs| dirs.flatten().map(|dir| dir.path().join("bin")).collect())
        .unwrap_or_default();
    found.sort();
    #[expect(clippy::disallowed_methods, reason = "a test looks for its tools")]
    if let Some(path) = std::env::var_os("PATH") {
        found.splice(0..0, std::env::split_paths(&path));
    }
    let complete = |bin: &PathBuf| {
        ["postgres", "initdb", "createdb", "dropdb", "pg_isready"].iter().all(|tool| bin.join(tool).is_file())
    };
    found
        .into_iter()
        .rfind(complete)
        .expect("no PostgreSQL server binaries: run scripts/test, which installs them")
}

/// Postgres does not run as root: the account that it gets then.
pub(crate) fn unprivileged_account() -> Option<(u32, u32)> {
    let id = |args: &[&str]| -> Option<u32> {
        let out = Command::new("id").args(args).output().ok()?;
        String::from_utf8(out.stdout).ok()?.trim().parse().ok()
    };
    if id(&["-u"]) != Some(0) {
        return None;
    }
    let account =
        ["postgres", "nobody"].iter().find_map(|name| Some((id(&["-u", name])?, id(&["-g", name])?)));
    Some(account.expect("root needs an account `postgres` or `nobody` to run the server as"))
}

/// Lets a command run as an account, when there is one.
pub(crate) fn run_as(command: &mut Command, account: Option<(u32, u32)>) -> &mut Command {
    if let Some((uid, gid)) = account {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/")
}
