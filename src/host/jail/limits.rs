//! Limits that need no control group: per-process ones that the kernel holds, and a scan that adds memory up.
//!
//! A per-process limit times the number of processes is far more than the sandbox may have, hence the scan. It
//! cannot see memory that belongs to no process; the system call filter refuses that kind where the scan is all there is.

use std::fs;
use std::io::{BufRead, BufReader, Result};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::sys::{self, Resource};
use super::{SandboxLimits, Usage, policy};

/// Sockets of a sandbox; each can hold a few hundred kilobytes of kernel memory that only a control group counts.
const SOCKETS: u64 = 512;

/// Open descriptors of a sandbox, which bounds what pipes, socket pairs and timers hold where no control group counts it.
const OPEN_FILES: u64 = 4096;

/// Locks of a sandbox. No control group counts them.
const LOCKS: usize = 20_000;

/// Maps of the processes of a sandbox, where no control group counts what the kernel keeps of each: some 200 bytes, and as
/// much again for each process that they were copied to.
const MAPS: usize = 100_000;

/// Growth of the kernel's own memory, of the whole machine, after which locks and maps are counted.
const SLAB_ALARM: u64 = 64 << 20;

/// How long one look may spend on what is shared. Programs decide how many maps there are to walk, and nothing else is
/// watched or carried meanwhile.
const SHARES_BUDGET: Duration = Duration::from_millis(20);

/// Lowers the kernel's per-process limits of this process and its descendants.
/// `others` is how many processes count against the same number without being in the sandbox.
pub(crate) fn apply(limits: &SandboxLimits, others: u32, most_files: u32) -> Result<()> {
    for (resource, value) in [
        (Resource::Processes, u64::from(limits.processes) + u64::from(others)),
        (Resource::FileBytes, limits.file_bytes),
        // With 0 a machine that pipes memory images to a program starts that program, outside and as root, for each crash.
        (Resource::CoreBytes, 1),
        (Resource::OpenFiles, limits.open_files.min(most_files).into()),
        (Resource::LockedBytes, 64 << 10),
        (Resource::QueueBytes, 0),
        (Resource::PendingSignals, 256),
        (Resource::DataBytes, limits.memory_bytes),
    ] {
        sys::limit(resource, value)?;
    }
    Ok(())
}

/// Processes and threads of a user on the whole machine.
pub(crate) fn tasks_of(uid: u32) -> u32 {
    let tasks = |status: String| {
        let own = field(&status, "Uid:").is_some_and(|value| value == u64::from(uid));
        if own { field(&status, "Threads:").unwrap_or(1) as u32 } else { 0 }
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok()).map(tasks).sum()
}

/// Adds up what the processes of a sandbox use.
#[derive(Debug)]
pub(crate) struct Scan {
    /// A `/proc` that hides no process of the sandbox.
    proc: PathBuf,
    /// Memory, where no control group holds it.
    limit: Option<u64>,
    /// File systems in memory.
    disks: &'static [&'static str],
    shares_budget: Duration,
    /// The kernel's own memory at the last count of locks, or since if it was less.
    slab: Option<u64>,
}

/// What a [`Scan`] saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// In all.
    pub(crate) usage: Usage,
    /// Processes to end, largest first, so that the rest is within the limit.
    pub(crate) excess: Vec<i32>,
}

impl Scan {
    /// Looks at the processes in `proc`, the first of which is the agent. Without a `limit` a control group holds memory.
    pub(crate) fn new(proc: PathBuf, limit: Option<u64>) -> Self {
        let disks = &[policy::HOME, "/tmp", "/dev/shm"];
        Self { proc, limit, disks, shares_budget: SHARES_BUDGET, slab: None }
    }

    /// Whether it holds memory, and so must look often.
    pub(crate) fn holds_memory(&self) -> bool {
        self.limit.is_some()
    }

    /// The processes to end because the sandbox has more locks or maps than it may. They are counted only when the kernel's
    /// own memory has grown: a count costs a microsecond or more for each.
    pub(crate) fn look_at_slab(&mut self) -> Vec<i32> {
        let info = fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        let Some(slab) = field(&info, "SUnreclaim:").map(|kib| 1024 * kib) else { return vec![] };
        let before = self.slab.unwrap_or(slab).min(slab);
        self.slab = Some(before);
        if slab - before < SLAB_ALARM {
            return vec![];
        }
        self.slab = Some(slab);
        let mut excess = self.holders(LOCKS, |pid| self.locks_of(pid));
        if self.holds_memory() {
            excess.extend(self.holders(MAPS, |pid| self.maps_of(pid)));
        }
        if !excess.is_empty() {
            // Should ending these not suffice, the next look comes before the memory has grown again.
            self.slab = Some(before);
        }
        excess
    }

    /// Those to end, largest first, so that the others have no more than `limit` together, as far as they were counted:
    /// once there are too many, the rest is left to the next look.
    fn holders(&self, limit: usize, count: impl Fn(i32) -> usize) -> Vec<i32> {
        let mut counts = Vec::new();
        let mut all = 0_usize;
        for pid in self.processes().filter(|pid| *pid != 1) {
            let own = count(pid);
            counts.push((own as u64, pid));
            all = all.saturating_add(own);
            if all > limit {
                break;
            }
        }
        over(&mut counts, limit as u64)
    }

    fn locks_of(&self, pid: i32) -> usize {
        let entries = match fs::read_dir(self.proc.join(format!("{pid}/fdinfo"))) {
            Ok(entries) => entries,
            Err(error) => return self.hidden(pid, &error, LOCKS),
        };
        let mut count = 0;
        for entry in entries.flatten() {
            let Ok(file) = fs::File::open(entry.path()) else { continue };
            let lines = BufReader::new(file).lines().map_while(Result::ok);
            count += lines.filter(|line| line.starts_with("lock:")).take(LOCKS + 1).count();
            if count > LOCKS {
                break;
            }
        }
        count
    }

    fn maps_of(&self, pid: i32) -> usize {
        let maps = match fs::File::open(self.proc.join(format!("{pid}/maps"))) {
            Ok(maps) => maps,
            Err(error) => return self.hidden(pid, &error, MAPS),
        };
        BufReader::with_capacity(64 << 10, maps).split(b'\n').map_while(Result::ok).take(MAPS + 1).count()
    }

    /// What a process that hides from inspection counts as: the whole `limit` for each second of processor time that it has had.
    fn hidden(&self, pid: i32, error: &std::io::Error, limit: usize) -> usize {
        if error.kind() != std::io::ErrorKind::PermissionDenied {
            return 0; // it is gone
        }
        let stat = fs::read_to_string(self.proc.join(format!("{pid}/stat")));
        let micros = stat.map_or(0, |stat| cpu_micros(&stat));
        usize::try_from(micros / (1_000_000 / limit as u64).max(1)).unwrap_or(usize::MAX)
    }

    fn processes(&self) -> impl Iterator<Item = i32> {
        let entries = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    /// Looks once; costs some 20 µs a process, and near the limit not much more than [`SHARES_BUDGET`].
    pub(crate) fn look(&self) -> Seen {
        let mut sizes = Vec::new();
        let mut files = Vec::new();
        let mut seen = Seen::default();
        for pid in self.processes() {
            let dir = self.proc.join(pid.to_string());
            let Ok(status) = fs::read_to_string(dir.join("status")) else { continue };
            seen.usage.processes += 1;
            let kib = |name| field(&status, name).unwrap_or(0);
            let tables = 1024 * kib("VmPTE:");
            let bytes = 1024 * (kib("RssAnon:") + kib("RssShmem:")) + tables;
            seen.usage.memory_bytes += bytes;
            seen.usage.cpu_micros += fs::read_to_string(dir.join("stat")).map_or(0, |stat| cpu_micros(&stat));
            if pid != 1 {
                sizes.push((bytes, pid, tables));
                // Its size is how many there are, since Linux 6.2.
                files.push((fs::metadata(dir.join("fd")).map_or(0, |fds| fds.len()), pid));
            }
        }
        // Files in memory are someone's too; mapped ones are counted twice, which errs on the safe side.
        let used = |path: &&str| sys::used_bytes(path.as_ref()).ok();
        seen.usage.memory_bytes += self.disks.iter().filter_map(used).sum::<u64>();

        let Some(limit) = self.limit else { return seen };
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let sockets = fs::read_to_string(self.proc.join("1/net/sockstat")).unwrap_or_default();
        if field(&sockets, "sockets: used").is_some_and(|used| used > SOCKETS) {
            seen.excess = sizes.into_iter().map(|(_, pid, _)| pid).collect();
            return seen;
        }
        seen.excess = over(&mut files, OPEN_FILES);
        if seen.usage.memory_bytes > limit {
            // Processes that were copied from each other share memory, which the sum counts once for each. Who
            // comes too late to be looked at is counted in full: that ends too much rather than too little.
            let until = Instant::now() + self.shares_budget;
            for (bytes, pid, tables) in &mut sizes {
                if seen.usage.memory_bytes <= limit || Instant::now() >= until {
                    break;
                }
                let share = self.share(*pid).map_or(*bytes, |share| (share + *tables).min(*bytes));
                seen.usage.memory_bytes -= *bytes - share;
                *bytes = share;
            }
            sizes.sort_unstable_by(|a, b| b.cmp(a));
        }
        let mut excess = seen.usage.memory_bytes.saturating_sub(limit);
        for (bytes, pid, _) in sizes {
            if excess == 0 {
                break;
            }
            seen.excess.push(pid);
            excess = excess.saturating_sub(bytes);
        }
        seen
    }

    /// A process's memory with what it shares counted by share. Costs milliseconds for one that is large or has many maps.
    fn share(&self, pid: i32) -> Option<u64> {
        let rollup = fs::read_to_string(self.proc.join(pid.to_string()).join("smaps_rollup")).ok()?;
        Some(1024 * (field(&rollup, "Pss_Anon:")? + field(&rollup, "Pss_Shmem:")?))
    }
}

/// Those to end, largest first, so that the rest together has no more than `limit`.
fn over(counts: &mut [(u64, i32)], limit: u64) -> Vec<i32> {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut excess = counts
        .iter()
        .map(|(count, _)| count)
        .fold(0_u64, |sum, count| sum.saturating_add(*count))
        .saturating_sub(limit);
    let mut found = Vec::new();
    for (count, pid) in counts.iter() {
        if excess == 0 {
            break;
        }
        found.push(*pid);
        excess = excess.saturating_sub(*count);
    }
    found
}

/// The number after `name` at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// CPU time in a `/proc/<pid>/stat`, children that were waited for included. A program can name itself anything, so
/// fields are counted after the last parenthesis.
fn cpu_micros(stat: &str) -> u64 {
    const MICROS_PER_TICK: u64 = 10_000; // USER_HZ is 100 on every architecture that we know
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0 };
    rest.split_ascii_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()
        * MICROS_PER_TICK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_names_itself_like_a_field_does_not_count_less() {
        let stat = "7 (a) 1 2 3) R 1 7 7 0 -1 0 0 0 0 0 30 20 4 6 25 5 1 0 0";
        assert_eq!(cpu_micros(stat), 600_000);
        assert_eq!(cpu_micros("nothing"), 0);
    }

    /// Three copies of a program that share nearly all, as files that a kernel could have written.
    #[test]
    fn shared_memory_is_counted_once_within_the_time_of_a_scan() {
        let proc = tempfile::tempdir().unwrap();
        for pid in [2, 3, 4] {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("status"), "RssAnon:\t  102400 kB\nRssShmem:\t 0 kB\n").unwrap();
            fs::write(dir.join("smaps_rollup"), "Pss_Anon:\t 34133 kB\nPss_Shmem:\t 0 kB\n").unwrap();
        }
        let scan = |limit_mib: u64, shares_budget| {
            let limit = Some(limit_mib << 20);
            Scan { proc: proc.path().into(), limit, disks: &[], shares_budget, slab: None }.look()
        };
        let long = Duration::from_secs(60);
        assert!(scan(400, long).excess.is_empty());
        assert!(scan(110, long).excess.is_empty());
        assert_eq!(scan(90, long).excess.len(), 1);
        assert!(scan(400, Duration::ZERO).excess.is_empty());
        assert_eq!(scan(110, Duration::ZERO).excess.len(), 2);
    }

    /// Files as a kernel could have written them.
    #[test]
    fn locks_are_counted_when_the_kernel_s_memory_has_grown() {
        let proc = tempfile::tempdir().unwrap();
        let slab = |mib: u64| {
            fs::write(proc.path().join("meminfo"), format!("SUnreclaim: {} kB\n", mib << 10)).unwrap()
        };
        for (pid, locks) in [(2, LOCKS / 2), (3, LOCKS)] {
            let dir = proc.path().join(format!("{pid}/fdinfo"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("7"), "lock:\t1: POSIX ADVISORY WRITE\n".repeat(locks)).unwrap();
        }
        let mut scan = Scan::new(proc.path().into(), None);
        slab(100);
        assert_eq!(scan.look_at_slab(), [0; 0]);
        slab(150);
        assert_eq!(scan.look_at_slab(), [0; 0]);
        slab(165);
        assert_eq!(scan.look_at_slab(), [3]);
        fs::remove_dir_all(proc.path().join("3")).unwrap();
        assert_eq!(scan.look_at_slab(), [0; 0]);
        slab(200);
        assert_eq!(scan.look_at_slab(), [0; 0]);
        // Where a control group holds memory it has counted maps.
        for limit in [None, Some(1 << 40)] {
            let maps = proc.path().join("4");
            fs::create_dir_all(&maps).unwrap();
            fs::write(maps.join("maps"), "7f00-7f01 r--p 0 00:00 0\n".repeat(MAPS + 1)).unwrap();
            let mut scan = Scan::new(proc.path().into(), limit);
            slab(300);
            assert_eq!(scan.look_at_slab(), [0; 0]);
            slab(400);
            assert_eq!(scan.look_at_slab(), limit.map(|_| 4).into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn own_memory_is_seen() {
        let seen = Scan::new("/proc".into(), Some(u64::MAX)).look();
        assert!(seen.usage.memory_bytes > 100_000 && seen.usage.processes > 0 && seen.excess.is_empty());
        let seen = Scan::new("/proc".into(), Some(1)).look();
        assert!(!seen.excess.is_empty());
    }
}
