//! Snapshots: the files of a sandbox, for others to begin with. Memory is not kept: no variable, no process.
//!
//! The files belong to programs that are not trusted, so the host never looks into them: `tar` packs and unpacks them inside
//! the sandboxes, as their user, under their limits, and what it writes is kept as bytes. They are in files without a name,
//! so that nothing is left of them when the host ends, however it ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::agent::{AgentError, AgentHandle, Process, ProcessEvent, ProcessSpec, Stdin};
use super::jail::policy;
use super::registry::Cursor;
use super::sandbox::Sandbox;
use crate::domain::lock;

/// Snapshots at a time, those being made and those that forks are made from included.
const MOST: usize = 200;
/// For packing or unpacking one.
const PATIENCE: Duration = Duration::from_secs(120);

/// No snapshot was made, or none could be unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error("there is no such sandbox")]
    NoSandbox,
    #[error("the sandbox is paused; connect to it first")]
    Paused,
    #[error("this host has no snapshots or forks: they need full isolation, and a size in host.snapshots_mb")]
    Unsupported,
    #[error("{0}")]
    Name(String),
    #[error(
        "the host's space for snapshots is used up ({MOST} in all, host.snapshots_mb; a half of each for one tenant); delete some"
    )]
    Full,
    #[error("the host's disk did not take the snapshot")]
    Disk(#[source] io::Error),
    #[error("the files of the sandbox cannot be {doing}: {why}")]
    Tar { doing: &'static str, why: String },
}

/// The files of a sandbox as they were.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    /// The sandbox that it was made of.
    pub(crate) sandbox: String,
    pub(crate) made_at: DateTime<Utc>,
    /// What that sandbox was made from: `base`, or a template.
    pub(crate) template: String,
    /// What every process of that sandbox found in its environment.
    pub(crate) env: BTreeMap<String, String>,
    /// An archive that only sandboxes read.
    archive: Arc<File>,
    _share: Share,
}

/// The entries, oldest first.
#[derive(Debug)]
pub(crate) struct Snapshots {
    kept: Mutex<Vec<Arc<Snapshot>>>,
    room: Arc<Room>,
}

/// Which snapshots a list call wants.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) sandbox: Option<String>,
    pub(crate) name: Option<String>,
    /// 1 to 100.
    pub(crate) limit: usize,
    pub(crate) after: Option<Cursor>,
}

impl Snapshots {
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { kept: Mutex::default(), room: Arc::new(Room { most_bytes, used: Mutex::default() }) }
    }

    /// Whether there may be any.
    pub(crate) fn exist(&self) -> bool {
        self.room.most_bytes > 0
    }

    /// Packs the files of a sandbox while its programs are frozen. Nothing is kept of it unless it is [added](Self::add).
    /// Must not be dropped before its end: the programs would stay frozen forever.
    pub(crate) async fn take(
        &self,
        sandbox: &Sandbox,
        tenant: Option<String>,
        (id, name): (String, Option<String>),
    ) -> Result<Arc<Snapshot>, SnapshotError> {
        let mut share = Room::open(&self.room, tenant)?;
        let made = tokio::task::spawn_blocking(tempfile::tempfile).await.unwrap_or_else(|e| Err(e.into()));
        let mut file = tokio::fs::File::from_std(made.map_err(SnapshotError::Disk)?);
        let gone = |_: AgentError| SnapshotError::NoSandbox;
        sandbox.agent.halt(true).await.map_err(gone)?;
        let packed = pack(&sandbox.agent, &mut file, &mut share).await;
        sandbox.agent.halt(false).await.map_err(gone)?;
        packed?;
        Ok(Arc::new(Snapshot {
            id,
            name,
            sandbox: sandbox.id.clone(),
            made_at: sandbox.now(),
            template: sandbox.made_from.clone(),
            env: sandbox.own_env().clone(),
            archive: Arc::new(file.into_std().await),
            _share: share,
        }))
    }

    /// Keeps a snapshot; one of the same name is replaced.
    pub(crate) fn add(&self, snapshot: Arc<Snapshot>) {
        let mut kept = lock(&self.kept);
        kept.retain(|other| other.name.is_none() || other.name != snapshot.name);
        kept.push(snapshot);
    }

    /// By its id or name.
    pub(crate) fn find(&self, key: &str) -> Option<Arc<Snapshot>> {
        lock(&self.kept).iter().find(|snapshot| snapshot.is_called(key)).cloned()
    }

    /// Forgets one. Its room is free when no sandbox is being made from it any more.
    pub(crate) fn remove(&self, key: &str) -> bool {
        let mut kept = lock(&self.kept);
        let before = kept.len();
        kept.retain(|snapshot| !snapshot.is_called(key));
        kept.len() < before
    }

    /// One page, newest first, and where the next begins.
    pub(crate) fn list(&self, wanted: &Wanted) -> (Vec<Arc<Snapshot>>, Option<Cursor>) {
        let mut found: Vec<Arc<Snapshot>> = lock(&self.kept)
            .iter()
            .filter(|snapshot| wanted.sandbox.as_ref().is_none_or(|id| *id == snapshot.sandbox))
            .filter(|snapshot| wanted.name.as_ref().is_none_or(|name| snapshot.is_called(name)))
            .filter(|snapshot| wanted.after.as_ref().is_none_or(|after| snapshot.cursor() < *after))
            .cloned()
            .collect();
        found.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.cursor()));
        let more = found.len() > wanted.limit;
        found.truncate(wanted.limit);
        let next = found.last().filter(|_| more).map(|snapshot| snapshot.cursor());
        (found, next)
    }
}

impl Snapshot {
    fn is_called(&self, key: &str) -> bool {
        self.id == key || self.name.as_deref() == Some(key)
    }

    fn cursor(&self) -> Cursor {
        (self.made_at, self.id.clone())
    }

    /// Unpacks the files in another sandbox, over what is there.
    pub(crate) async fn unpack(&self, agent: &AgentHandle) -> Result<(), SnapshotError> {
        const ARGV: [&str; 6] = [
            "tar",
            "--extract",
            "--file=-",
            "--directory=/",
            "--preserve-permissions",
            "--delay-directory-restore",
        ];
        let doing = "unpacked";
        let begun = agent
            .start(ProcessSpec {
                argv: ARGV.map(str::to_owned).to_vec(),
                stdin: Stdin::Pipe,
                ..ProcessSpec::default()
            })
            .await;
        let mut process = begun.map_err(|error| not_begun(doing, &error))?;
        let handle = process.handle.clone();
        let feed = async {
            let mut at = 0;
            loop {
                let archive = Arc::clone(&self.archive);
                let read = tokio::task::spawn_blocking(move || read_piece(&archive, at)).await;
                let piece = read.unwrap_or_else(|error| Err(error.into())).map_err(SnapshotError::Disk)?;
                at += piece.len() as u64;
                let fed = if piece.is_empty() {
                    handle.close_stdin().await
                } else {
                    handle.stdin(piece.clone()).await
                };
                // How it ended, if it has, is known elsewhere.
                if piece.is_empty() || fed.is_err() {
                    return std::future::pending::<Result<(), SnapshotError>>().await;
                }
            }
        };
        let done = async {
            tokio::select! {
                said = hear(&mut process.events, None) => said,
                fed = feed => fed.map(|()| Said::default()),
            }
        };
        finish(doing, &process.handle.clone(), tokio::time::timeout(PATIENCE, done).await).await
    }
}

fn read_piece(archive: &File, at: u64) -> io::Result<Bytes> {
    const PIECE: usize = 256 << 10;
    let mut piece = vec![0; PIECE];
    let count = archive.read_at(&mut piece, at)?;
    piece.truncate(count);
    Ok(piece.into())
}

async fn pack(
    agent: &AgentHandle,
    file: &mut tokio::fs::File,
    share: &mut Share,
) -> Result<(), SnapshotError> {
    const ARGV: [&str; 7] =
        ["tar", "--create", "--file=-", "--directory=/", "--format=posix", "--sparse", "--one-file-system"];
    let doing = "packed";
    let places = [policy::HOME, "/tmp"].into_iter().chain(policy::WORK_DIRS.iter().copied());
    let places = places.map(|place| place.trim_start_matches('/'));
    let argv = ARGV.into_iter().chain(places).map(str::to_owned).collect();
    let begun = agent.start(ProcessSpec { argv, ..ProcessSpec::default() }).await;
    let Process { handle, mut events } = begun.map_err(|error| not_begun(doing, &error))?;
    let done = async {
        let said = hear(&mut events, Some((&mut *file, share))).await?;
        file.flush().await.map_err(SnapshotError::Disk)?;
        Ok(said)
    };
    finish(doing, &handle, tokio::time::timeout(PATIENCE, done).await).await
}

/// A program's last output.
#[derive(Debug, Default)]
struct Said {
    /// `None` when a signal ended it, or when it ended with the sandbox.
    code: Option<i32>,
    oom: bool,
    complaints: Vec<u8>,
}

/// Listens until a program has ended. Its output goes to a file, for as much as there is room.
async fn hear(
    events: &mut mpsc::Receiver<ProcessEvent>,
    mut output: Option<(&mut tokio::fs::File, &mut Share)>,
) -> Result<Said, SnapshotError> {
    const COMPLAINTS_MAX: usize = 16 << 10;
    let mut said = Said::default();
    while let Some(event) = events.recv().await {
        match event {
            ProcessEvent::Stdout(bytes) => {
                if let Some((file, share)) = &mut output {
                    share.grow(bytes.len() as u64)?;
                    file.write_all(&bytes).await.map_err(SnapshotError::Disk)?;
                }
            }
            ProcessEvent::Stderr(bytes) => {
                let room = COMPLAINTS_MAX - said.complaints.len();
                said.complaints.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            ProcessEvent::Exited { code, oom, .. } => return Ok(Said { code, oom, ..said }),
            _ => {}
        }
    }
    Ok(said)
}

/// How a program ended; one that has not ended is killed.
async fn finish(
    doing: &'static str,
    program: &super::agent::ProcessHandle,
    done: Result<Result<Said, SnapshotError>, tokio::time::error::Elapsed>,
) -> Result<(), SnapshotError> {
    let failed = |why: String| Err(SnapshotError::Tar { doing, why });
    let result = match done {
        // 1: a file changed meanwhile.
        Ok(Ok(Said { code: Some(0 | 1), .. })) => return Ok(()),
        Ok(Ok(Said { oom: true, .. })) => return failed("the sandbox's memory is full".to_owned()),
        Ok(Ok(said)) => return failed(first_line(&said.complaints)),
        Ok(Err(error)) => Err(error),
        Err(_) => failed(format!("it took longer than {} s", PATIENCE.as_secs())),
    };
    // Of one that has ended nothing needs to be killed.
    let _ = program.signal(libc::SIGKILL, true).await;
    result
}

/// `tar`'s first error, made fit to be shown: a name in it is the sandbox's, and of any length.
fn first_line(complaints: &[u8]) -> String {
    const SHOWN: usize = 150;
    let text = String::from_utf8_lossy(complaints);
    let line = text.lines().next().unwrap_or("tar did not exit normally");
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let line: Vec<char> = line.chars().map(shown).collect();
    match line.len() > 2 * SHOWN {
        true => line[..SHOWN].iter().chain(&['…']).chain(&line[line.len() - SHOWN..]).collect(),
        false => line.into_iter().collect(),
    }
}

fn not_begun(doing: &'static str, error: &AgentError) -> SnapshotError {
    use std::error::Error;
    let why = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    SnapshotError::Tar { doing, why }
}

/// The space for all snapshots, and the share of each owner.
#[derive(Debug)]
struct Room {
    most_bytes: u64,
    /// Snapshots and their bytes, by tenant.
    used: Mutex<BTreeMap<Option<String>, (usize, u64)>>,
}

/// The part of one snapshot; given back on drop.
#[derive(Debug)]
struct Share {
    room: Arc<Room>,
    tenant: Option<String>,
    bytes: u64,
}

impl Room {
    fn open(room: &Arc<Self>, tenant: Option<String>) -> Result<Share, SnapshotError> {
        room.add(&tenant, 1, 0)?;
        Ok(Share { room: Arc::clone(room), tenant, bytes: 0 })
    }

    /// A tenant that was named has no more than a half, so that it cannot keep the others out.
    fn add(&self, tenant: &Option<String>, count: usize, bytes: u64) -> Result<(), SnapshotError> {
        let mut used = lock(&self.used);
        let sum = |of: &(usize, u64), with: &(usize, u64)| (of.0 + with.0, of.1 + with.1);
        let all = used.values().fold((count, bytes), |all, one| sum(&all, one));
        let own = sum(&used.get(tenant).copied().unwrap_or_default(), &(count, bytes));
        let fits = |(count, bytes): (usize, u64), part: usize| {
            count <= MOST / part && bytes <= self.most_bytes / part as u64
        };
        if !fits(all, 1) || tenant.is_some() && !fits(own, 2) {
            return Err(SnapshotError::Full);
        }
        used.insert(tenant.clone(), own);
        Ok(())
    }
}

impl Share {
    fn grow(&mut self, bytes: u64) -> Result<(), SnapshotError> {
        self.room.add(&self.tenant, 0, bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = lock(&self.room.used);
        if let Some(own) = used.get_mut(&self.tenant) {
            *own = (own.0 - 1, own.1 - self.bytes);
            if own.0 == 0 {
                used.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_half_of_the_space_and_freed_space_is_returned() {
        let room = Arc::new(Room { most_bytes: 1000, used: Mutex::default() });
        let tenant = |name: &str| Some(name.to_owned());
        let mut greedy = Room::open(&room, tenant("greedy")).unwrap();
        greedy.grow(500).unwrap();
        assert!(greedy.grow(1).is_err(), "the other half is not its own");
        let mut other = Room::open(&room, tenant("other")).unwrap();
        other.grow(400).unwrap();
        let mut unnamed = Room::open(&room, None).unwrap();
        unnamed.grow(100).unwrap();
        assert!(unnamed.grow(1).is_err() && other.grow(1).is_err(), "all of it is used");
        drop(greedy);
        unnamed.grow(500).unwrap();
        drop((other, unnamed));
        assert!(lock(&room.used).is_empty());
        let many: Vec<Share> = std::iter::from_fn(|| Room::open(&room, tenant("greedy")).ok()).collect();
        assert_eq!(many.len(), MOST / 2);
        assert!(Room::open(&room, tenant("other")).is_ok());
    }
}
