//! The sandbox's file system: an empty root of its own into which read-only pieces of the machine are bound.
//!
//! The pieces are located while this process is still the host's user, and bound after it has become the
//! sandbox's: so an interpreter below `/root` can be shown without `/root` being readable to anyone inside.

use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::sys::{self, attr};
use super::{SandboxLimits, policy};

/// Where the new root is put together; what is there on the machine is only covered in our namespace.
const BUILD: &str = "/tmp";

/// Below the home directory's mount, what the work directories lead to. No program can reach it by this name.
const HIDDEN: &str = ".work";

/// The pieces of the machine, located.
#[derive(Debug)]
pub(crate) struct Sources {
    trees: Vec<Tree>,
    links: Vec<(PathBuf, PathBuf)>,
    /// Files: where they go, and what is in them.
    files: Vec<(PathBuf, Vec<u8>)>,
    devices: Vec<Tree>,
    null: OwnedFd,
    /// Whether trees are shown through an overlay of the sandbox's own.
    overlay: bool,
}

#[derive(Debug)]
struct Tree {
    path: PathBuf,
    fd: OwnedFd,
    is_dir: bool,
}

impl Tree {
    fn locate(path: &Path) -> Result<Self> {
        Self::locate_as(path, path)
    }

    fn locate_as(path: &Path, source: &Path) -> Result<Self> {
        let fd = sys::locate(source)?;
        let is_dir = fs::File::from(fd.try_clone()?).metadata()?.is_dir();
        Ok(Self { path: path.to_owned(), fd, is_dir })
    }
}

/// Finds everything. Call in the new mount namespace, before the user changes.
///
/// With `overlay`, what others do to the same files cannot be watched, and a lock or lease on one ends at the sandbox.
///
/// # Errors
/// When one of `read_only` is not there; what the system may lack is skipped.
pub(crate) fn locate(read_only: &[PathBuf], overlay: bool) -> Result<Sources> {
    const FILE_MAX: u64 = 1 << 20;
    let mut trees = Vec::new();
    let mut links = Vec::new();
    let mut files = Vec::new();
    for path in policy::SYSTEM_DIRS.iter().chain(policy::ETC).map(Path::new) {
        match fs::read_link(path) {
            Ok(target) if path.parent() == Some(Path::new("/")) => links.push((path.to_owned(), target)),
            _ => match fs::metadata(path) {
                // A file is small and copied; a bind would be a shared one.
                Ok(file) if file.is_file() && file.len() <= FILE_MAX => {
                    files.extend(fs::read(path).map(|content| (path.to_owned(), content)));
                }
                _ => trees.extend(Tree::locate(path)),
            },
        }
    }
    for path in read_only {
        trees.push(Tree::locate(path)?);
    }
    if overlay {
        // An overlay shows one file system; those that are mounted below it are put on top of it again.
        let mounted = mount_points();
        let below: Vec<PathBuf> = trees
            .iter()
            .flat_map(|tree| {
                mounted.iter().filter(|path| path.starts_with(&tree.path) && **path != tree.path)
            })
            .cloned()
            .collect();
        trees.extend(below.iter().flat_map(|path| Tree::locate(path)).filter(|tree| tree.is_dir));
    }
    let device = |(path, source): &(&str, &str)| Tree::locate_as(Path::new(path), Path::new(source));
    let devices = policy::DEVICES.iter().map(device).collect::<Result<_>>()?;
    let null = sys::locate(Path::new("/dev/null"))?;
    Ok(Sources { trees, links, files, devices, null, overlay })
}

/// Where something is mounted, in the order in which it was.
fn mount_points() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = |line: &str| line.split(' ').nth(4).map(|path| path.replace("\\040", " ").into());
    text.lines().filter_map(path).collect()
}

/// Whether an overlay can be mounted here, in namespaces of one's own.
pub(crate) fn try_overlay() -> Result<()> {
    sys::make_mounts_private()?;
    mount(sys::new_filesystem(c"tmpfs", &[(c"size", "64k")], 0)?, "")?;
    let tree = Tree::locate(Path::new("/usr"))?;
    fs::create_dir(inside("/sys"))?;
    show(&tree)
}

/// Puts the new root together and makes it the root. Returns a second `/proc` that is attached nowhere and
/// hides nothing, for the agent alone.
pub(crate) fn enter(sources: &Sources, limits: &SandboxLimits) -> Result<OwnedFd> {
    sys::make_mounts_private()?;
    let plain = attr::NO_SUID | attr::NO_DEV;
    let root = [(c"size", "8m"), (c"nr_inodes", "1024"), (c"mode", "755")];
    mount(sys::new_filesystem(c"tmpfs", &root, plain)?, "")?;

    fill(sources)?;
    let files = limits.files.to_string();
    let quota = |bytes: u64, mode| {
        let size = bytes.to_string();
        sys::new_filesystem(c"tmpfs", &[(c"size", &size), (c"nr_inodes", &files), (c"mode", mode)], plain)
    };
    show_home(quota(limits.home_bytes, "700")?, plain)?;
    mount(quota(limits.tmp_bytes, "1777")?, "/tmp")?;
    for tree in &sources.trees {
        match sources.overlay && tree.is_dir {
            true => show(tree)?,
            false => bind(tree, plain | attr::READ_ONLY)?,
        }
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
    let terminals = [(c"ptmxmode", "0666"), (c"mode", "620"), (c"max", policy::TERMINALS)];
    mount(sys::new_filesystem(c"devpts", &terminals, attr::NO_SUID | attr::NO_EXEC)?, "/dev/pts")?;
    sys::add_mount_attributes(&inside("/dev"), attr::READ_ONLY)?;

    let hidden = plain | attr::NO_EXEC;
    let watched = sys::new_filesystem(c"proc", &[], hidden)?;
    mount(sys::new_filesystem(c"proc", &[(c"hidepid", "2")], hidden)?, "/proc")?;
    mask_proc(&sources.null)?;
    sys::add_mount_attributes(&inside("/proc"), attr::READ_ONLY)?;

    std::env::set_current_dir(BUILD)?;
    sys::enter_root()?;
    sys::add_mount_attributes(Path::new("/"), attr::READ_ONLY)?;
    std::env::set_current_dir(policy::HOME)?;
    Ok(watched)
}

/// Links, files and empty directories of the new root.
fn fill(sources: &Sources) -> Result<()> {
    for (path, target) in &sources.links {
        std::os::unix::fs::symlink(target, inside(path))?;
    }
    fs::create_dir(inside("/etc"))?;
    for (path, content) in policy::MADE_UP {
        fs::write(inside(path), content)?;
    }
    for (path, content) in &sources.files {
        fs::create_dir_all(inside(path).parent().ok_or(Error::from_raw_os_error(libc::EINVAL))?)?;
        fs::write(inside(path), content)?;
    }
    for dir in ["/proc", "/dev", "/tmp", "/home", policy::HOME, "/run", "/sys", "/var", "/var/tmp", "/mnt"] {
        fs::create_dir(inside(dir))?;
    }
    Ok(())
}

/// The home directory and the work directories: directories of one file system with one quota, each bound to its place.
fn show_home(disk: OwnedFd, attributes: u64) -> Result<()> {
    mount(disk, policy::HOME)?;
    let work = Path::new(policy::HOME).join(HIDDEN);
    let places: Vec<(PathBuf, PathBuf)> = policy::WORK_DIRS
        .iter()
        .map(|place| (PathBuf::from(place), work.join(place.trim_start_matches('/').replace('/', "-"))))
        .collect();
    let home = work.join("home");
    for dir in places.iter().map(|(_, dir)| dir).chain([&home]) {
        fs::create_dir_all(inside(dir))?;
    }
    for (place, dir) in &places {
        let tree = Tree::locate_as(place, &inside(dir))?;
        bind(&tree, attributes)?;
    }
    // Last, over the mount itself: what the file system's own root holds is then out of sight.
    let tree = Tree::locate_as(Path::new(policy::HOME), &inside(&home))?;
    bind(&tree, attributes)
}

/// Shows a directory through a read-only overlay of the sandbox's own. It costs .04 ms and copies nothing.
fn show(tree: &Tree) -> Result<()> {
    let target = inside(&tree.path);
    fs::create_dir_all(&target)?;
    // By descriptor, since the sandbox's user may not walk to it; the second layer is there because one is not enough.
    let layers = format!("/proc/self/fd/{}:{}", tree.fd.as_raw_fd(), inside("/sys").display());
    let attributes = attr::NO_SUID | attr::NO_DEV | attr::READ_ONLY;
    let overlay = sys::new_filesystem(c"overlay", &[(c"lowerdir", &layers)], attributes)?;
    sys::attach_mount(overlay.as_fd(), &target)
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
