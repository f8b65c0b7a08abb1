//! Namespaces: who the sandbox's user is outside, and the small things each new namespace wants set.

use std::io::Result;

use super::{policy, sys};

/// The first of the users that sandboxes of a privileged host run as.
const FIRST_UID: u32 = 100_000;

/// The outer user and group of a sandbox: for a privileged host one that owns nothing and that no other
/// live sandbox has, else the host's own.
///
/// Never user 0: limits on processes do not bind it, and it owns the machine's files.
pub(crate) fn outer_ids(spawner: u32, index: u32) -> (u32, u32) {
    match sys::ids() {
        (0, _) => {
            let id = FIRST_UID + spawner % 1000 * 1000 + index % 1000;
            (id, id)
        }
        own => own,
    }
}

/// Maps the sandbox's user and group, from outside, while its first process waits.
pub(crate) fn map_ids(pid: i32, (uid, gid): (u32, u32)) -> Result<()> {
    std::fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    std::fs::write(format!("/proc/{pid}/uid_map"), format!("{} {uid} 1", policy::USER))?;
    std::fs::write(format!("/proc/{pid}/gid_map"), format!("{} {gid} 1", policy::USER))
}

/// Sets what is empty in a new network and UTS namespace, and forgets where its control group is.
pub(crate) fn furnish() -> Result<()> {
    sys::new_cgroup_namespace()?;
    sys::set_host_name(policy::HOST_NAME)?;
    sys::loopback_up()
}
