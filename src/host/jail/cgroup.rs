//! Control groups, where the machine gives us some: version 1 (as root), version 2 (a delegated subtree), or none.
//!
//! Whether it does is found by making a group, not by asking. Groups are children of our own, so whatever bounds
//! the host bounds its sandboxes too.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{SandboxLimits, Usage, claim, sys};

const MOUNT: &str = "/sys/fs/cgroup";
const PERIOD_MICROS: u64 = 100_000;
/// A sandbox's weight against the host and the rest of the machine, which have 1024 each: when all want the processors,
/// those that serve get on, and sandboxes share what is left.
const SHARES: u64 = 128;

/// In version 2: the group of the host itself, beside those of its sandboxes.
const LEAF: &str = "pathbox-host";

/// Where groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cgroups {
    /// Version 1: one tree per kind of limit.
    V1 {
        /// Memory.
        memory: PathBuf,
        /// Processes.
        pids: PathBuf,
        /// CPU time: its limit.
        cpu: PathBuf,
        /// CPU time: its account; often the same tree.
        cpuacct: PathBuf,
        /// Standing still; a machine may lack it.
        freezer: Option<PathBuf>,
    },
    /// Version 2: one tree.
    V2(PathBuf),
    /// Nowhere.
    None,
}

/// Which control groups hold the limits of sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Version 1.
    V1,
    /// Version 2.
    V2,
    /// None.
    None,
}

impl std::fmt::Display for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V1 => "version 1",
            Self::V2 => "version 2",
            Self::None => "none",
        })
    }
}

/// The group of one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Group {
    v2: bool,
    /// Those for memory, processes, the CPU's limit and the CPU's account; several of them, or all, may be one.
    dirs: [PathBuf; 4],
    /// In version 1 the one for standing still.
    freezer: Option<PathBuf>,
}

impl Cgroups {
    /// Finds what this process may use, and removes groups that a killed host left behind.
    pub(crate) fn find() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let found = [Self::v2(&own), Self::v1(&own)].into_iter().flatten().find(|cgroups| {
            cgroups.sweep();
            claim::prefix().is_ok_and(|name| {
                let group = cgroups.create(&format!("{name}-0"), &SandboxLimits::default());
                group.is_ok_and(|(group, _)| group.remove().is_ok())
            })
        });
        found.unwrap_or(Self::None)
    }

    fn v1(own: &str) -> Option<Self> {
        let tree = |controller: &str| {
            let path = own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let names = parts.next()?;
                names.split(',').any(|name| name == controller).then(|| parts.next()).flatten()
            })?;
            // In a container the path may be the one outside; what is mounted is then the group itself.
            let mounted = Path::new(MOUNT).join(controller);
            let inside = mounted.join(path.trim_start_matches('/'));
            Some(if inside.is_dir() { inside } else { mounted })
        };
        let tree = |controller| tree(controller)?.canonicalize().ok();
        Some(Self::V1 {
            memory: tree("memory")?,
            pids: tree("pids")?,
            cpu: tree("cpu")?,
            cpuacct: tree("cpuacct")?,
            freezer: tree("freezer"),
        })
    }

    /// Its version.
    pub(crate) fn control(&self) -> Control {
        match self {
            Self::V1 { .. } => Control::V1,
            Self::V2(_) => Control::V2,
            Self::None => Control::None,
        }
    }

    fn v2(own: &str) -> Option<Self> {
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        // A spawner that is started again, or beside another one, finds itself in the leaf that the first one made.
        let path = path.strip_suffix(LEAF).and_then(|path| path.strip_suffix('/')).unwrap_or(path);
        let parent = Path::new(MOUNT).join(path.trim_start_matches('/'));
        let offered = fs::read_to_string(parent.join("cgroup.controllers")).ok()?;
        if !["memory", "pids", "cpu"]
            .iter()
            .all(|wanted| offered.split_whitespace().any(|name| name == *wanted))
        {
            return None;
        }
        // A group with processes cannot hand controllers down, so the host and this process move into a leaf.
        let leaf = parent.join(LEAF);
        let hand_down = || fs::write(parent.join("cgroup.subtree_control"), "+memory +pids +cpu");
        if hand_down().is_err() {
            match fs::create_dir(&leaf) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return None,
                _ => {}
            }
            for pid in [sys::parent_pid(), std::process::id() as i32] {
                fs::write(leaf.join("cgroup.procs"), pid.to_string()).ok()?;
            }
            hand_down().ok()?;
        }
        Some(Self::V2(parent))
    }

    /// The group of a name, whether it exists or not.
    fn group(&self, name: &str) -> Option<Group> {
        let named = |tree: &PathBuf| tree.join(name);
        match self {
            Self::None => None,
            Self::V1 { memory, pids, cpu, cpuacct, freezer } => Some(Group {
                v2: false,
                dirs: [memory, pids, cpu, cpuacct].map(named),
                freezer: freezer.as_ref().map(named),
            }),
            Self::V2(parent) => Some(Group { v2: true, dirs: [parent; 4].map(named), freezer: None }),
        }
    }

    /// Makes a group with these limits, which is not taken for a left one as long as the file is open.
    pub(crate) fn create(&self, name: &str, limits: &SandboxLimits) -> Result<(Group, File)> {
        let quota = u64::from(limits.cpu_percent) * PERIOD_MICROS / 100;
        let Some(group) = self.group(name) else { return Err(ErrorKind::Unsupported.into()) };
        let [memory, pids, cpu, _] = &group.dirs;
        let settings = match group.v2 {
            false => vec![
                (memory.join("memory.limit_in_bytes"), limits.memory_bytes.to_string()),
                (pids.join("pids.max"), limits.processes.to_string()),
                (cpu.join("cpu.cfs_period_us"), PERIOD_MICROS.to_string()),
                (cpu.join("cpu.cfs_quota_us"), quota.to_string()),
                (cpu.join("cpu.shares"), SHARES.to_string()),
            ],
            // `memory.oom.group` stays off: one program is ended, and the sandbox with its files goes on.
            true => vec![
                (memory.join("memory.max"), limits.memory_bytes.to_string()),
                (pids.join("pids.max"), limits.processes.to_string()),
                (cpu.join("cpu.max"), format!("{quota} {PERIOD_MICROS}")),
                (cpu.join("cpu.weight"), (SHARES * 100 / 1024).to_string()),
            ],
        };
        fs::create_dir(memory)?;
        let made = group.hold().and_then(|held| {
            group.all_dirs().into_iter().filter(|dir| *dir != memory).try_for_each(fs::create_dir)?;
            settings.iter().try_for_each(|(path, value)| fs::write(path, value))?;
            Ok(held)
        });
        let held = match made {
            Ok(held) => held,
            Err(error) => {
                let _ = group.remove();
                return Err(error);
            }
        };
        // Swap would only delay the limit; kernels without swap accounting have no such file.
        let swap = if group.v2 {
            ("memory.swap.max", "0".to_owned())
        } else {
            ("memory.memsw.limit_in_bytes", limits.memory_bytes.to_string())
        };
        let _ = fs::write(group.dirs[0].join(swap.0), swap.1);
        if !group.v2 {
            // Version 1 counts what waits in TCP connections apart, and without a limit nowhere.
            let tcp = (limits.memory_bytes / 8).clamp(4 << 20, 64 << 20);
            let _ = fs::write(group.dirs[0].join("memory.kmem.tcp.limit_in_bytes"), tcp.to_string());
        }
        Ok((group, held))
    }

    /// Removes groups of spawners that no longer run. Frozen processes in one must be thawed before they can be ended.
    fn sweep(&self) {
        let Some(trees) = self.group("") else { return };
        let entries = trees.all_dirs().into_iter().flat_map(fs::read_dir).flatten().flatten();
        let names: BTreeSet<OsString> =
            entries.map(|entry| entry.file_name()).filter(|name| claim::is_name(name)).collect();
        for group in names.iter().filter_map(|name| self.group(name.to_str()?)) {
            let _held = match group.hold() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                held => held,
            };
            for dir in group.all_dirs() {
                let pids = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                // Those of another process namespace have the number 0 here, which would mean this process and its own.
                for pid in pids.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 0) {
                    let _ = sys::kill(pid, libc::SIGKILL);
                }
            }
            let _ = group.freeze(false);
            let _ = group.remove();
        }
    }
}

/// Removes a group. Its last process is counted for an instant after it was reaped.
fn remove_dir(dir: &Path) -> Result<()> {
    for attempt in 0.. {
        match fs::remove_dir(dir) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempt < 100 => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => break,
        }
    }
    Ok(())
}

impl Group {
    fn hold(&self) -> Result<File> {
        claim::hold(&self.dirs[0])
    }

    /// Whether a process can be born in it, by the file that holds it.
    pub(crate) fn can_be_forked_into(&self) -> bool {
        self.v2
    }

    /// Moves a process in.
    pub(crate) fn enter(&self, pid: i32) -> Result<()> {
        self.all_dirs().into_iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }

    /// Each once.
    fn all_dirs(&self) -> BTreeSet<&PathBuf> {
        self.dirs.iter().chain(&self.freezer).collect()
    }

    /// Freezes every process, or thaws it. `false` when this machine's groups cannot.
    ///
    /// In version 1 a frozen process cannot be ended; it must be thawed first.
    pub(crate) fn freeze(&self, yes: bool) -> Result<bool> {
        let (file, value) = match (self.v2, &self.freezer) {
            (true, _) => (self.dirs[0].join("cgroup.freeze"), if yes { "1" } else { "0" }),
            (false, Some(dir)) => (dir.join("freezer.state"), if yes { "FROZEN" } else { "THAWED" }),
            (false, None) => return Ok(false),
        };
        match fs::write(file, value) {
            // The group is removed with its last process: there is nothing left to hold.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// The peak of memory in use, in bytes; 0 when the kernel does not report it.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.number(0, if self.v2 { "memory.peak" } else { "memory.max_usage_in_bytes" }, "")
    }

    /// How many processes the kernel has ended because the memory limit was met.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.number(0, if self.v2 { "memory.events" } else { "memory.oom_control" }, "oom_kill ")
    }

    /// The group's current usage.
    pub(crate) fn usage(&self) -> Usage {
        let cpu_micros =
            if self.v2 { self.number(0, "cpu.stat", "usage_usec ") } else { self.cpuacct_micros() };
        Usage {
            memory_bytes: self.number(
                0,
                if self.v2 { "memory.current" } else { "memory.usage_in_bytes" },
                "",
            ),
            cpu_micros,
            processes: self.number(1, "pids.current", "") as u32,
        }
    }

    /// Removes the group, whose processes must be gone.
    pub(crate) fn remove(&self) -> Result<()> {
        let outcomes: Vec<Result<()>> = self.all_dirs().into_iter().map(|dir| remove_dir(dir)).collect();
        outcomes.into_iter().collect()
    }

    fn number(&self, dir: usize, file: &str, before: &str) -> u64 {
        let text = fs::read_to_string(self.dirs[dir].join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix(before)?.trim().parse().ok()).unwrap_or(0)
    }

    fn cpuacct_micros(&self) -> u64 {
        self.number(3, "cpuacct.usage", "") / 1000
    }
}

/// What `doctor` says about control groups.
pub(crate) fn describe(cgroups: &Cgroups) -> std::result::Result<String, Error> {
    match cgroups {
        Cgroups::V1 { freezer: None, .. } => Ok("version 1, without a freezer".to_owned()),
        Cgroups::V1 { .. } => Ok("version 1".to_owned()),
        Cgroups::V2(parent) => Ok(format!("version 2 at {}", parent.display())),
        Cgroups::None => Err(ErrorKind::PermissionDenied.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_settings_go_into_one_directory() {
        let tree = tempfile::tempdir().expect("temporary directory");
        let limits = SandboxLimits {
            memory_bytes: 7 << 20,
            processes: 9,
            cpu_percent: 150,
            ..SandboxLimits::default()
        };
        let (group, _held) =
            Cgroups::V2(tree.path().to_owned()).create("pathbox-1-1", &limits).expect("group");
        let read = |name| fs::read_to_string(tree.path().join("pathbox-1-1").join(name)).expect(name);
        assert_eq!(read("memory.max"), "7340032");
        assert_eq!(read("pids.max"), "9");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("cpu.weight"), "12");
        fs::write(tree.path().join("pathbox-1-1/memory.events"), "low 0\noom 3\noom_kill 2\n")
            .expect("events");
        assert_eq!(group.oom_kills(), 2);
    }

    #[test]
    fn version_1_may_have_all_its_trees_in_one() {
        let tree = tempfile::tempdir().expect("temporary directory");
        let one = || tree.path().to_owned();
        let all =
            Cgroups::V1 { memory: one(), pids: one(), cpu: one(), cpuacct: one(), freezer: Some(one()) };
        let (group, _held) = all.create("pathbox-1-0-1", &SandboxLimits::default()).expect("group");
        fs::write(tree.path().join("pathbox-1-0-1/pids.current"), "3\n").expect("writes");
        assert_eq!(group.usage().processes, 3);
    }

    /// Directories, as they are where containers have process numbers of their own.
    #[test]
    fn a_group_that_someone_holds_is_left_alone_whatever_its_number() {
        let tree = tempfile::tempdir().expect("temporary directory");
        let one = || tree.path().to_owned();
        let cgroups = Cgroups::V1 { memory: one(), pids: one(), cpu: one(), cpuacct: one(), freezer: None };
        for name in ["pathbox-4000000-0-1", "pathbox-4000000-0-2"] {
            fs::create_dir(tree.path().join(name)).expect("makes");
        }
        let _held = claim::hold(&tree.path().join("pathbox-4000000-0-1")).expect("held");
        cgroups.sweep();
        assert!(tree.path().join("pathbox-4000000-0-1").exists());
        assert!(!tree.path().join("pathbox-4000000-0-2").exists());
    }

    #[test]
    fn a_tree_is_found_by_its_controller_also_when_two_share_it() {
        let own = "4:memory:/\n3:cpu,cpuacct:/\n2:pids:/\n0::/\n";
        assert!(matches!(Cgroups::v1(own), Some(Cgroups::V1 { .. })));
        assert_eq!(Cgroups::v1("4:memory:/\n0::/\n"), None);
    }
}
