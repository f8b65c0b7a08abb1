//! The sandbox's file system: an empty root of its own into which read-only pieces of the machine are bound.
//!
//! The pieces are located while this process is still the host's user, and bound after it has become the
//! sandbox's: so an interpreter below `/root` can be shown without `/root` being readable to anyone inside.

use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::sys::{self, attr};
use super::{Limits, policy};

/// Where the new root is put together; what is there on the machine is only covered in our namespace.
const BUILD: &str = "/tmp";

/// The pieces of the machine, located.
#[derive(Debug)]
pub(crate) struct Sources {
    trees: Vec<Tree>,
    links: Vec<(PathBuf, PathBuf)>,
    devices: Vec<Tree>,
    null: OwnedFd,
}

#[derive(Debug)]
struct Tree {
    path: PathBuf,
    fd: OwnedFd,
    is_dir: bool,
}

impl Tree {
    fn locate(path: &Path) -> Result<Self> {
        let fd = sys::locate(path)?;
        let is_dir = fs::File::from(fd.try_clone()?).metadata()?.is_dir();
        Ok(Self { path: path.to_owned(), fd, is_dir })
    }
}

/// Finds everything. Call in the new mount namespace, before the user changes.
///
/// # Errors
/// When one of `read_only` is not there; what the system may lack is skipped.
pub(crate) fn locate(read_only: &[PathBuf]) -> Result<Sources> {
    let mut trees = Vec::new();
    let mut links = Vec::new();
    for path in policy::SYSTEM_DIRS.iter().chain(policy::ETC).map(Path::new) {
        match fs::read_link(path) {
            Ok(target) if path.parent() == Some(Path::new("/")) => links.push((path.to_owned(), target)),
            _ => trees.extend(Tree::locate(path)),
        }
    }
    for path in read_only {
        trees.push(Tree::locate(path)?);
    }
    let devices = policy::DEVICES.iter().map(|path| Tree::locate(Path::new(path))).collect::<Result<_>>()?;
    Ok(Sources { trees, links, devices, null: sys::locate(Path::new("/dev/null"))? })
}

/// Puts the new root together and makes it the root. Returns a second `/proc` that is attached nowhere and
/// hides nothing, for the agent alone.
pub(crate) fn enter(sources: &Sources, limits: &Limits) -> Result<OwnedFd> {
    sys::make_mounts_private()?;
    let plain = attr::NO_SUID | attr::NO_DEV;
    let root = [(c"size", "1m"), (c"nr_inodes", "1024"), (c"mode", "755")];
    mount(sys::new_filesystem(c"tmpfs", &root, plain)?, "")?;

    for (path, target) in &sources.links {
        std::os::unix::fs::symlink(target, inside(path))?;
    }
    fs::create_dir(inside("/etc"))?;
    for (path, content) in policy::MADE_UP {
        fs::write(inside(path), content)?;
    }
    for dir in ["/proc", "/dev", "/tmp", "/home", policy::HOME, "/run", "/sys", "/var", "/var/tmp"] {
        fs::create_dir(inside(dir))?;
    }
    let files = limits.files.to_string();
    let quota = |bytes: u64, mode| {
        let size = bytes.to_string();
        sys::new_filesystem(c"tmpfs", &[(c"size", &size), (c"nr_inodes", &files), (c"mode", mode)], plain)
    };
    mount(quota(limits.home_bytes, "700")?, policy::HOME)?;
    mount(quota(limits.tmp_bytes, "1777")?, "/tmp")?;
    for tree in &sources.trees {
        bind(tree, plain | attr::READ_ONLY)?;
    }

    let devices = [(c"size", "64k"), (c"nr_inodes", "64"), (c"mode", "755")];
    mount(sys::new_filesystem(c"tmpfs", &devices, attr::NO_SUID | attr::NO_EXEC)?, "/dev")?;
    for device in &sources.devices {
        bind(device, attr::NO_SUID | attr::NO_EXEC)?;
    }
    for (path, target) in policy::DEVICE_LINKS {
        std::os::unix::fs::symlink(target, inside(path))?;
    }
    for dir in ["/dev/shm", "/dev/pts"] {
        fs::create_dir(inside(dir))?;
    }
    mount(quota(limits.shm_bytes, "1777")?, "/dev/shm")?;
    let terminals = [(c"ptmxmode", "0666"), (c"mode", "620")];
    mount(sys::new_filesystem(c"devpts", &terminals, attr::NO_SUID | attr::NO_EXEC)?, "/dev/pts")?;
    sys::add_mount_attributes(&inside("/dev"), attr::READ_ONLY)?;

    let hidden = plain | attr::NO_EXEC;
    let watched = sys::new_filesystem(c"proc", &[], hidden)?;
    mount(sys::new_filesystem(c"proc", &[(c"hidepid", "2")], hidden)?, "/proc")?;
    mask_proc(&sources.null)?;

    std::env::set_current_dir(BUILD)?;
    sys::enter_root()?;
    sys::add_mount_attributes(Path::new("/"), attr::READ_ONLY)?;
    std::env::set_current_dir(policy::HOME)?;
    Ok(watched)
}

fn inside(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    Path::new(BUILD).join(path.strip_prefix("/").unwrap_or(path))
}

fn mount(mount: OwnedFd, path: &str) -> Result<()> {
    sys::attach_mount(mount.as_fd(), &inside(path))
}

fn bind(tree: &Tree, attributes: u64) -> Result<()> {
    let target = inside(&tree.path);
    if tree.is_dir {
        fs::create_dir_all(&target)?;
    } else {
        fs::create_dir_all(target.parent().ok_or(Error::from_raw_os_error(libc::EINVAL))?)?;
        fs::File::create(&target)?;
    }
    sys::attach_mount(sys::clone_mount(tree.fd.as_fd(), attributes)?.as_fd(), &target)
}

fn mask_proc(null: &OwnedFd) -> Result<()> {
    let plain = attr::NO_SUID | attr::NO_DEV | attr::NO_EXEC;
    for path in policy::PROC_READ_ONLY.iter().map(inside).filter(|path| path.exists()) {
        let tree = sys::clone_mount(sys::locate(&path)?.as_fd(), plain | attr::READ_ONLY)?;
        sys::attach_mount(tree.as_fd(), &path)?;
    }
    for path in policy::PROC_EMPTY.iter().map(inside).filter(|path| path.exists()) {
        let tree = sys::clone_mount(null.as_fd(), attr::NO_SUID | attr::NO_EXEC | attr::READ_ONLY)?;
        sys::attach_mount(tree.as_fd(), &path)?;
    }
    for path in policy::PROC_EMPTY_DIRS.iter().map(inside).filter(|path| path.exists()) {
        let empty = [(c"size", "4k"), (c"nr_inodes", "1"), (c"mode", "555")];
        let empty = sys::new_filesystem(c"tmpfs", &empty, plain | attr::READ_ONLY)?;
        sys::attach_mount(empty.as_fd(), &path)?;
    }
    Ok(())
}
