//! The file under a store: that it is still the one that was opened, and that its file system can carry it.

use std::io;
use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// Which file was opened. SQLite goes on writing into one that was deleted or replaced, and no one ever sees that again.
#[derive(Debug, Clone)]
pub(super) struct OpenFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl OpenFile {
    pub(super) fn at(path: PathBuf) -> Self {
        let identity = identity(&path).ok().flatten();
        Self { path, identity }
    }

    /// # Errors
    /// [`StoreError::DataDir`]: another file is there now, or none.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let now = identity(&self.path);
        if self.identity.is_none() || now.as_ref().is_ok_and(|now| *now == self.identity) {
            return Ok(());
        }
        let what = if now.is_ok() { "replaced" } else { "deleted or moved" };
        let problem = format!(
            "{} was {what} while it was in use; put it back, or restart the server on the one that is there",
            self.path.display()
        );
        Err(StoreError::DataDir {
            problem,
            source: now.err().unwrap_or_else(|| io::Error::other("another inode")),
        })
    }
}

/// Device and inode, where there are such.
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    #[cfg(unix)]
    let of = |found: std::fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        Some((found.dev(), found.ino()))
    };
    #[cfg(not(unix))]
    let of = |_| None;
    std::fs::metadata(path).map(of)
}

/// Types of file systems that are shared over a network or with another kernel: locks and shared memory of SQLite's log
/// do not hold there.
const SHARED: [&str; 12] =
    ["9p", "afs", "ceph", "cifs", "fuse", "gfs2", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"];

/// # Errors
/// [`StoreError::DataDir`]: the directory is on a file system that cannot carry a database.
pub(super) fn check_file_system(dir: &Path) -> Result<(), StoreError> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let Ok(metadata) = std::fs::metadata(dir) else { return Ok(()) };
        let device = metadata.dev();
        let number = format!("{}:{}", libc::major(device), libc::minor(device));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if let Some(kind) = shared(&mounts, &number) {
            let problem = format!(
                "{} is on a file system of type {kind}, where SQLite's locks do not hold: use a directory of this machine \
                 (data_dir), Postgres (database_url), or set database.allow_network_file_system = true",
                dir.display()
            );
            return Err(StoreError::DataDir { problem, source: io::ErrorKind::Unsupported.into() });
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = dir;
    Ok(())
}

/// The type of the mount with this device number, when it is a shared one. A line is `id parent major:minor root point
/// options [tags] - type source options` (proc_pid_mountinfo(5)).
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "other systems have no such list"))]
fn shared<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    let of_device = |line: &&str| line.split(' ').nth(2) == Some(device);
    let line = mounts.lines().rfind(of_device)?;
    let kind = line.split_once(" - ")?.1.split(' ').next()?;
    // `fuse.sshfs` and its like; `fuseblk` is a disk.
    let family = kind.split('.').next().unwrap_or(kind);
    SHARED.contains(&family).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_other_machines_are_known_by_their_type() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      40 22 0:40 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2\n\
                      41 22 0:41 / /mnt/a rw - fuse.sshfs me@there:/ rw\n\
                      42 22 0:42 / /mnt/b rw - fuseblk /dev/sdb1 rw\n\
                      43 22 0:43 / /mnt/c rw - 9p C:\\134 rw\n\
                      44 22 0:44 / /tmp rw - tmpfs tmpfs rw\n\
                      45 22 0:45 / /mnt/d rw - cifs //there/d rw\n";
        let found =
            ["8:1", "0:40", "0:41", "0:42", "0:43", "0:44", "0:45", "9:9"].map(|it| shared(mounts, it));
        let expected = [None, Some("nfs4"), Some("fuse.sshfs"), None, Some("9p"), None, Some("cifs"), None];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_that_was_replaced_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        std::fs::write(&path, "a").unwrap();
        let open = OpenFile::at(path.clone());
        std::fs::write(&path, "longer").unwrap();
        open.check().unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        assert!(open.check().unwrap_err().to_string().contains("deleted or moved"));
        std::fs::write(&path, "longer").unwrap();
        assert!(open.check().unwrap_err().to_string().contains("replaced"));
        std::fs::rename(dir.path().join("old"), &path).unwrap();
        open.check().unwrap();
    }
}
