//! Local sandbox hosts, each inside a process: whether one that does not answer is dead.
//!
//! A host listens on loopback, and loopback is another network in another network namespace (a container) and on another
//! machine. So "does not answer" says something only from its own place. Two things settle it. A host's process holds a
//! lock on a file of the data directory as long as it lives, which every process of the machine sees. And the host's key,
//! which stands in the rows of its sandboxes, ends with its place: the machine's boot and the network namespace.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::domain::{Entropy, Secret, hex};

/// Between a key and its place.
const PLACE: &str = "_at-";
/// Lock files of hosts that ended longer ago are removed: no sandbox lives longer.
const KEPT: Duration = Duration::from_secs(48 * 3600);

/// Whether a host lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostState {
    /// Its process lives.
    Alive,
    /// Its process has ended.
    Dead,
    /// It can be judged only by asking it: it is of this place and has no lock file here.
    Ask,
    /// It is of another place and has no lock file here: nothing is known.
    Elsewhere,
}

/// The local hosts whose data directory this is.
#[derive(Debug, Clone)]
pub struct Hosts {
    dir: PathBuf,
    place: String,
    only_here: bool,
}

/// A host's claim on its data directory; it ends no later than the process.
#[derive(Debug)]
pub struct HostClaim {
    _lock: File,
}

/// Why a local host may not be started.
#[derive(Debug, thiserror::Error)]
pub enum HostRefused {
    /// A host of another network namespace, or another boot, lives on this data directory.
    #[error(
        "another process in another network namespace serves this data directory with a sandbox host of its own, and \
         neither could reach the other's sandboxes: run both in one network namespace, let both use one `pathbox host` \
         (E2B_API_URL, E2B_SANDBOX_URL, E2B_API_KEY), or set another PATHBOX_DATA_DIR"
    )]
    OtherPlace,
    /// The lock file cannot be written.
    #[error("the lock file of the sandbox host cannot be written under {}", .0.display())]
    Lock(PathBuf, #[source] std::io::Error),
}

impl Hosts {
    /// Hosts of a data directory, seen from `place`.
    pub fn new(data_dir: &Path, place: impl Into<String>) -> Self {
        Self { dir: data_dir.join("hosts"), place: place.into(), only_here: false }
    }

    /// The same, where no host of another place is in use: the database refuses a start there.
    pub fn only_here(self) -> Self {
        Self { only_here: true, ..self }
    }

    /// A new host's key, which says where it is good.
    pub fn key(&self, entropy: &Entropy) -> Secret {
        Secret::new(format!("e2b_{}{PLACE}{}", entropy.hex::<20>(), self.place))
    }

    fn file(&self, key: &Secret) -> PathBuf {
        self.dir.join(format!("{}.lock", hex(&Sha256::digest(key.expose().as_bytes())[..12])))
    }

    /// Claims the data directory for a host of this place.
    ///
    /// # Errors
    /// [`HostRefused`].
    pub fn claim(&self, key: &Secret) -> Result<HostClaim, HostRefused> {
        let lock = |source| HostRefused::Lock(self.dir.clone(), source);
        std::fs::create_dir_all(&self.dir).map_err(lock)?;
        let mut file =
            File::options().create(true).truncate(true).write(true).open(self.file(key)).map_err(lock)?;
        file.write_all(self.place.as_bytes()).map_err(lock)?;
        file.lock().map_err(lock)?;
        let claim = HostClaim { _lock: file };
        // Looked for after the own claim, so that of two that start at once at least one sees the other.
        match self.others_elsewhere(&self.file(key)).map_err(lock)? {
            0 => Ok(claim),
            _ => {
                drop(claim);
                let _ = std::fs::remove_file(self.file(key));
                Err(HostRefused::OtherPlace)
            }
        }
    }

    /// How many live hosts of other places have claims; claims of hosts that ended long ago are removed.
    fn others_elsewhere(&self, own: &Path) -> std::io::Result<usize> {
        let mut found = 0;
        for entry in std::fs::read_dir(&self.dir)?.flatten() {
            let path = entry.path();
            if path == own || path.extension().is_none_or(|extension| extension != "lock") {
                continue;
            }
            let Ok(mut file) = File::open(&path) else { continue };
            if is_held(&file) {
                let mut place = String::new();
                file.read_to_string(&mut place)?;
                found += usize::from(place != self.place);
            } else if entry.metadata()?.modified()?.elapsed().is_ok_and(|age| age > KEPT) {
                let _ = std::fs::remove_file(&path);
            }
        }
        Ok(found)
    }

    /// Whether the host with this key lives.
    pub(super) fn state(&self, key: &Secret) -> HostState {
        if let Ok(file) = File::open(self.file(key)) {
            return if is_held(&file) { HostState::Alive } else { HostState::Dead };
        }
        match key.expose().rsplit_once(PLACE) {
            Some((_, place)) if place != self.place && self.only_here => HostState::Dead,
            Some((_, place)) if place != self.place => HostState::Elsewhere,
            _ => HostState::Ask,
        }
    }

    /// Whether a host that does not answer is dead.
    pub(super) fn is_dead_when_silent(&self, key: &Secret) -> bool {
        matches!(self.state(key), HostState::Dead | HostState::Ask)
    }
}

/// Whether a live process holds the lock on a file.
fn is_held(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            false
        }
        Err(TryLockError::WouldBlock) => true,
        // A file system without locks: better a host too many than one that is given up alive.
        Err(TryLockError::Error(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_judged_by_its_lock_and_else_only_from_its_own_place() {
        let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let here = Hosts::new(data.path(), "boot1-net1");
        let key = here.key(&Entropy::seeded(1));
        let claim = here.claim(&key).unwrap();
        let beside = Hosts::new(data.path(), "boot1-net2");
        assert_eq!(here.state(&key), HostState::Alive);
        assert_eq!(beside.state(&key), HostState::Alive, "whatever its address says there");
        assert!(matches!(beside.claim(&beside.key(&Entropy::seeded(2))), Err(HostRefused::OtherPlace)));
        here.claim(&here.key(&Entropy::seeded(3))).unwrap();

        // Another data directory has no lock of it.
        assert_eq!(Hosts::new(other.path(), "boot1-net1").state(&key), HostState::Ask);
        assert_eq!(Hosts::new(other.path(), "boot1-net2").state(&key), HostState::Elsewhere);
        assert_eq!(Hosts::new(other.path(), "boot1-net2").only_here().state(&key), HostState::Dead);
        // A key of an earlier version says no place.
        assert_eq!(beside.state(&Secret::new("e2b_0")), HostState::Ask);

        drop(claim);
        assert_eq!(here.state(&key), HostState::Dead);
        beside.claim(&beside.key(&Entropy::seeded(2))).unwrap();
    }
}
