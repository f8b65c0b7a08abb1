//! Names of what a spawner makes outside of its sandboxes (control groups, directories in `/tmp`), and whether its maker lives.
//!
//! The maker holds a lock on each. A process number would not do: containers that share a directory have numbers of their
//! own, and a container that is started again has the same ones.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What the names of one spawner begin with; the next part is the number of one sandbox.
pub(crate) fn prefix() -> Result<String> {
    Ok(format!("pathbox-{}-{:08x}", std::process::id(), random()?))
}

/// Whether a name is one of these.
pub(crate) fn is_name(name: &OsStr) -> bool {
    let parts =
        name.to_str().and_then(|name| name.strip_prefix("pathbox-")).map(|rest| rest.split('-').count());
    parts == Some(3)
}

/// Holds a directory as long as the result is open.
///
/// # Errors
/// When it is held already.
pub(crate) fn hold(dir: &Path) -> Result<File> {
    // Anyone may put something else there meanwhile.
    let held = File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(dir)?;
    held.try_lock().map_err(Error::from)?;
    // Its maker may have removed it just before.
    if dir.exists() { Ok(held) } else { Err(ErrorKind::NotFound.into()) }
}

/// A number that no one can guess.
pub(crate) fn random() -> Result<u32> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}
