//! Namespaces: who the sandbox's user is outside, what each new namespace wants set, and how much of the kernel's own
//! objects it may hold.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::{claim, policy, sys};

/// The first of the users that sandboxes of a privileged host run as, where the machine has all users. Above what
/// `useradd` hands out as subordinate ids, and what systemd takes for containers.
const FIRST_ID: u32 = 1_900_000_000;
/// Behind the last of them.
const BEHIND_LAST_ID: u32 = 2_100_000_000;
/// Users of one spawner.
const BLOCK: u32 = 1000;

/// The outer users of one spawner's sandboxes. No other spawner of the machine has the same while this exists, since limits
/// and counters that the kernel keeps for each user would be shared.
#[derive(Debug)]
pub(crate) enum Users {
    /// A range of users that own nothing.
    Range {
        /// The first.
        first: u32,
        /// How many.
        count: u32,
        /// Holds the range, as long as it is open.
        _held: Option<UnixListener>,
    },
    /// The host's own: an ordinary user has no other, nor has user 0 in a container that maps one id only.
    Own(u32, u32),
}

impl Users {
    /// Takes a range that is free.
    pub(crate) fn claim() -> Result<Self> {
        let (uid, gid) = sys::ids();
        if uid != 0 {
            return Ok(Self::Own(uid, gid));
        }
        let maps = ["uid_map", "gid_map"].map(|map| fs::read_to_string(format!("/proc/self/{map}")));
        let [users, groups] = maps;
        let (users, groups) = (extents(&users?), extents(&groups?));
        let fits = |(first, behind): (u32, u32)| {
            let within = |extents: &[(u32, u32)]| extents.iter().any(|(a, b)| *a <= first && behind <= *b);
            within(&users) && within(&groups)
        };
        if fits((FIRST_ID, BEHIND_LAST_ID)) {
            return Self::take(FIRST_ID, (BEHIND_LAST_ID - FIRST_ID) / BLOCK, BLOCK);
        }
        // A container has fewer. The upper half of its largest range is what it is least likely to use itself.
        let largest = users.iter().copied().filter(|extent| fits(*extent)).max_by_key(|(a, b)| b - a);
        match largest {
            Some((first, behind)) if behind - first >= 200 => {
                let half = (behind - first) / 2;
                let size = half.min(BLOCK);
                Self::take(behind - half, half / size, size)
            }
            _ => Ok(Self::Own(uid, gid)),
        }
    }

    fn take(first: u32, blocks: u32, size: u32) -> Result<Self> {
        // Two spawners that do not see each other's sockets (two containers) are unlikely to begin at one place.
        let begin = claim::random()?;
        for n in 0..blocks.min(10_000) {
            let block = begin.wrapping_add(n) % blocks;
            let start = first + block * size;
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("pathbox-users-{start}"))?)
            {
                Ok(held) => return Ok(Self::Range { first: start, count: size, _held: Some(held) }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AddrInUse.into())
    }

    /// The outer user and group of a sandbox.
    pub(crate) fn of(&self, index: u32) -> (u32, u32) {
        match self {
            Self::Range { first, count, .. } => (first + index % count, first + index % count),
            Self::Own(uid, gid) => (*uid, *gid),
        }
    }

    /// How many sandboxes can live with a user each.
    pub(crate) fn count(&self) -> u32 {
        match self {
            Self::Range { count, .. } => *count,
            Self::Own(..) => BLOCK,
        }
    }

    /// Whether sandboxes run as a user to whom other things belong.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Own(..))
    }
}

/// The ids that exist here, first and one past the last, of a `/proc/self/uid_map`.
fn extents(map: &str) -> Vec<(u32, u32)> {
    let extent = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse::<u32>().ok());
        let (first, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some((first, first.saturating_add(count)))
    };
    map.lines().filter_map(extent).collect()
}

/// Maps the sandbox's user and group, from outside, while its first process waits.
pub(crate) fn map_ids(pid: i32, (uid, gid): (u32, u32)) -> Result<()> {
    fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    fs::write(format!("/proc/{pid}/uid_map"), format!("{} {uid} 1", policy::USER))?;
    fs::write(format!("/proc/{pid}/gid_map"), format!("{} {gid} 1", policy::USER))
}

/// Bounds the queues and segments of the new IPC namespace. Only the machine's root may, and only before it has become the
/// sandbox's user; where that is not so, the system call filter refuses what no control group would count.
pub(crate) fn limit_queues() {
    for (name, value) in policy::QUEUE_LIMITS {
        let _ = fs::write(format!("/proc/sys/{name}"), value);
    }
}

/// Sets what is empty in a new network and UTS namespace, and forgets where its control group is.
///
/// Some container profiles withhold the host name; the machine's own stays then.
pub(crate) fn furnish() -> Result<()> {
    sys::new_cgroup_namespace()?;
    let _ = sys::set_host_name(policy::HOST_NAME);
    for (name, value) in policy::SOCKET_LIMITS {
        let _ = fs::write(format!("/proc/sys/{name}"), value);
    }
    sys::loopback_up()
}

/// Bounds the watches of the new user namespace. The kernel also charges them to the process that made the namespace, so that
/// without a limit one sandbox takes the host's own.
pub(crate) fn limit_watches(instances: u32) -> Result<()> {
    fs::write("/proc/sys/user/max_inotify_instances", instances.to_string())?;
    fs::write("/proc/sys/user/max_inotify_watches", policy::WATCHES.to_string())
}

/// The numbers of namespaces that may be made in the new user namespace, to be set to none once the last of its own is
/// made; opened while the machine's `/proc` is still there.
pub(crate) fn open_namespace_limits() -> Vec<File> {
    let open =
        |kind: &&str| File::options().write(true).open(format!("/proc/sys/user/max_{kind}_namespaces")).ok();
    ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"].iter().filter_map(open).collect()
}

/// From here on none is made.
pub(crate) fn forbid_namespaces(limits: Vec<File>) -> Result<()> {
    for mut limit in limits {
        limit.write_all(b"0").or_else(|error| match error.raw_os_error() {
            // Settings that cannot be written here; the system call filter refuses namespaces as well.
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Ok(()),
            _ => Err(error),
        })?;
    }
    Ok(())
}

/// How many inotify instances each of `sandboxes` may have, so that all together leave the owner of the namespaces some.
pub(crate) fn watch_share(sandboxes: u32) -> u32 {
    const LEFT_FOR_OTHERS: u32 = 32;
    const MOST: u32 = 16;
    const LEAST: u32 = 2;
    let all = fs::read_to_string("/proc/sys/user/max_inotify_instances")
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok())
        .unwrap_or(128);
    (all.saturating_sub(LEFT_FOR_OTHERS) / sandboxes.max(1)).clamp(LEAST, MOST)
}

/// An error that says which id is missing.
pub(crate) fn no_users(error: Error) -> Error {
    Error::new(error.kind(), format!("no range of user ids is free: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_spawners_have_different_users() {
        let (one, two) = (Users::claim().unwrap(), Users::claim().unwrap());
        if one.is_own() {
            assert_eq!(one.of(0), two.of(0)); // an ordinary user has no other
            return;
        }
        let all: std::collections::BTreeSet<u32> =
            (0..one.count()).map(|n| one.of(n).0).chain((0..two.count()).map(|n| two.of(n).0)).collect();
        assert_eq!(all.len() as u32, one.count() + two.count());
    }

    #[test]
    fn ids_of_a_container_are_read_from_its_map() {
        assert_eq!(
            extents("         0       1000          1\n         1     100000      65536\n"),
            [(0, 1), (1, 65537)]
        );
        assert_eq!(extents("         0          0 4294967295\n"), [(0, u32::MAX)]);
        assert!(extents("").is_empty());
    }
}
