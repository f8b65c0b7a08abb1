//! Which of the processes that share the data directory live.
//!
//! Each holds a lock on a file of its own, which the kernel releases when the process ends, however it ends. So one
//! that was killed is known at once, and one that only slept, or stands still, is not taken for dead. The locks are
//! those of the machine's kernel: containers that share the directory see them as well.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use crate::domain::{hex, lock};
use crate::store::{StoreError, make_private_dir};

/// The directory of the files, in the data directory.
const DIR: &str = "processes";

/// The locks of this process, and a look at those of the others. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    dir: PathBuf,
    own: Arc<Mutex<HashMap<String, File>>>,
}

impl Processes {
    pub(super) fn new(data: &std::path::Path) -> Self {
        Self { dir: data.join(DIR), own: Arc::default() }
    }

    fn file(&self, process: &str) -> PathBuf {
        self.dir.join(&hex(&Sha256::digest(process.as_bytes()))[..32])
    }

    /// From now on the others see that this process lives.
    ///
    /// # Errors
    /// [`StoreError::DataDir`] when the file cannot be made or locked.
    pub(super) fn begin(&self, process: &str) -> Result<(), StoreError> {
        let mut own = lock(&self.own);
        if own.contains_key(process) {
            return Ok(());
        }
        make_private_dir(&self.dir)?;
        let path = self.file(process);
        let file = File::create(&path).and_then(|file| file.lock().map(|()| file));
        let problem =
            |source| StoreError::DataDir { problem: format!("cannot lock {}", path.display()), source };
        own.insert(process.to_owned(), file.map_err(problem)?);
        Ok(())
    }

    /// This process goes.
    pub(super) fn end(&self, process: &str) {
        lock(&self.own).remove(process);
        let _ = fs::remove_file(self.file(process));
    }

    /// Whether a process has ended. One that cannot be looked at is taken to live.
    pub(super) fn is_dead(&self, process: &str) -> bool {
        match File::open(self.file(process)) {
            Ok(file) => file.try_lock_shared().is_ok(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// What a process that has ended has left here.
    pub(super) fn clear(&self, process: &str) {
        let _ = fs::remove_file(self.file(process));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_dead_before_it_begins_and_after_it_ends() {
        let data = tempfile::tempdir().unwrap();
        let (one, two) = (Processes::new(data.path()), Processes::new(data.path()));
        assert!(two.is_dead("p1"));
        one.begin("p1").unwrap();
        one.begin("p1").unwrap();
        assert!(!two.is_dead("p1") && !one.is_dead("p1"));
        drop(one);
        assert!(two.is_dead("p1"), "the kernel let go of it");
    }
}
