//! Whether this machine can isolate: every primitive tried for real, and what to do about what is missing.

use std::io::{self, Error};
use std::path::Path;
use std::process::Stdio;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use super::cgroup::{self, Cgroups};
use super::namespaces::Users;
use super::sys::{self, Forked};
use super::{JailError, Options, landlock, seccomp};

/// One primitive and whether it works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The probed step.
    pub what: String,
    /// Whether it works.
    pub works: bool,
    /// Whether a sandbox can be made without it.
    pub needed: bool,
    /// The observed result.
    pub seen: String,
    /// What to do about it; empty when it works.
    pub remedy: String,
}

/// Tries everything that sandboxes are made of, in processes of their own.
///
/// # Errors
/// When not even the process that tries can be started.
pub async fn probe(options: &Options) -> Result<Vec<Check>, JailError> {
    let mut process = super::launch(&options.exe, "probe", Stdio::null(), Stdio::piped()).await?;
    let mut text = String::new();
    if let Some(mut stdout) = process.stdout.take() {
        let _ = stdout.read_to_string(&mut text).await;
    }
    let _ = process.wait().await;
    serde_json::from_str(&text).map_err(|_| JailError::SpawnerGone)
}

/// The process that tries; its answer goes to standard output.
pub(crate) fn run() -> io::Result<()> {
    let users = Users::claim()?;
    let mut checks = vec![
        try_out("user namespace", true, || in_namespaces(libc::CLONE_NEWUSER as u64, &users, || Ok(()))),
        try_out("all seven namespaces", true, || {
            in_namespaces(sys::NAMESPACES, &users, sys::new_cgroup_namespace)
        }),
        try_out("a mapped user with rights in its namespace", true, || {
            in_namespaces(sys::NAMESPACES, &users, sys::make_mounts_private)
        }),
        try_out("loopback in a network namespace", true, || {
            in_namespaces(sys::NAMESPACES, &users, sys::loopback_up)
        }),
        try_out("a temporary file system with a quota", true, || {
            in_namespaces(sys::NAMESPACES, &users, || {
                sys::new_filesystem(c"tmpfs", &[(c"size", "1m")], 0).map(drop)
            })
        }),
        try_out("a new /proc", true, || {
            in_namespaces(sys::NAMESPACES, &users, || {
                sys::new_filesystem(c"proc", &[(c"hidepid", "2")], 0).map(drop)
            })
        }),
        try_out("system call filter", true, || {
            in_namespaces(0, &users, || {
                let filters = seccomp::Filters::build(seccomp::Variant::default()).map_err(super::cause)?;
                sys::no_new_privileges()?;
                filters.load().map_err(super::cause)
            })
        }),
        try_out("an overlay of its own for each shared tree (without: no watching of files)", false, || {
            in_namespaces(sys::NAMESPACES, &users, super::mounts::try_overlay)
        }),
        try_out("limits of a user namespace (without: no watching of files)", false, || {
            in_namespaces(sys::NAMESPACES, &users, || super::namespaces::limit_watches(1))
        }),
        try_out("Landlock (only for the tier of that name)", false, || {
            in_namespaces(0, &users, || {
                sys::no_new_privileges()?;
                super::landlock::restrict(&[], &[]).map_err(super::cause)
            })
        }),
    ];
    let version = sys::landlock_version();
    if let Some(check) = checks.iter_mut().find(|check| check.what.starts_with("Landlock") && check.works) {
        let missing = landlock::missing(version, users.is_own());
        check.seen = format!("version {version}");
        if !missing.is_empty() {
            check.seen = format!("version {version}: {}", missing.join("; "));
        }
    }
    let cgroups = Cgroups::find();
    checks.push(match cgroup::describe(&cgroups) {
        Ok(seen) => check("control groups", false, seen, None),
        Err(error) => check("control groups", false, String::new(), Some(error)),
    });
    serde_json::to_writer(io::stdout(), &checks)?;
    Ok(())
}

fn try_out(what: &str, needed: bool, attempt: impl FnOnce() -> io::Result<()>) -> Check {
    match attempt() {
        Ok(()) => check(what, needed, "works".into(), None),
        Err(error) => check(what, needed, String::new(), Some(error)),
    }
}

fn check(what: &str, needed: bool, seen: String, error: Option<Error>) -> Check {
    match error {
        None => Check { what: what.into(), works: true, needed, seen, remedy: String::new() },
        Some(error) => {
            let remedy = remedy(what, error.raw_os_error().unwrap_or(0));
            Check { what: what.into(), works: false, needed, seen: error.to_string(), remedy }
        }
    }
}

/// Runs something in a forked child in namespaces of its own, with the user mapped.
pub(crate) fn in_namespaces(
    namespaces: u64,
    users: &Users,
    attempt: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let (mut go, set_go) = io::pipe()?;
    match sys::fork(namespaces, None)? {
        Forked::Child => {
            drop(set_go);
            let waited = io::Read::read_exact(&mut go, &mut [0]);
            let outcome = waited.and_then(|()| {
                if namespaces != 0 {
                    sys::become_user(super::policy::USER, super::policy::USER)?;
                }
                attempt()
            });
            // The exit status has eight bits; the numbers that matter here are small.
            sys::exit_now(outcome.err().map_or(0, |error| error.raw_os_error().unwrap_or(255)))
        }
        Forked::Parent { pid, .. } => {
            if namespaces != 0 {
                super::namespaces::map_ids(pid, users.of(0)).inspect_err(|_| {
                    let _ = sys::kill(pid, libc::SIGKILL);
                    let _ = sys::reap(pid, true);
                })?;
            }
            io::Write::write_all(&mut &set_go, &[1])?;
            match sys::reap(pid, true)? {
                Some((_, 0)) => Ok(()),
                Some((_, status)) if libc::WIFEXITED(status) => {
                    Err(Error::from_raw_os_error(libc::WEXITSTATUS(status)))
                }
                _ => Err(io::ErrorKind::Interrupted.into()),
            }
        }
    }
}

/// A failed step of the first sandbox, as what its owner can do about it.
pub(crate) fn explain(step: String, errno: i32) -> JailError {
    let remedy = remedy(&step, errno);
    JailError::Refused { what: step, remedy, source: Error::from_raw_os_error(errno) }
}

/// One flat list: the first thing that fits what failed is said.
fn remedy(what: &str, errno: i32) -> String {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let none_allowed = file("/proc/sys/user/max_user_namespaces") == "0";
    let debian_switch = file("/proc/sys/kernel/unprivileged_userns_clone") == "0";
    let apparmor = file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1";
    let in_container = Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists();
    let weaker = "or choose the weaker `--isolation=landlock`, which does not hide file names";
    if what.contains("Landlock") {
        return "Linux 5.13 with Landlock is needed for this tier (`lsm=landlock` at boot); a container's filter must let its \
                three calls through, as Docker's does since version 23"
            .into();
    }
    if what.contains("control group") {
        return "not needed: without them memory is watched by scanning and CPU time is only a priority. \
                With systemd: `systemd-run --user --scope -p Delegate=yes pathbox …`"
            .into();
    }
    if what.contains("root file system") || what.contains("/proc") {
        return format!(
            "a container hides parts of its /proc, which forbids a new one: run it with \
             `--security-opt systempaths=unconfined` (Docker) or `--security-opt unmask=ALL` (podman), {weaker}"
        );
    }
    if what.contains("watching of files") {
        return "not needed: programs cannot watch files then. It needs Linux 5.11 with overlayfs (`modprobe overlay`), and \
                in a container a /proc/sys that can be written"
            .into();
    }
    if what.contains("user ids") || what.contains("mapping users") {
        return format!(
            "user 0 of this container has no other user ids to give to sandboxes: run it as an ordinary user, or map a \
             range of ids (`podman run --userns=auto:size=65536`), {weaker}"
        );
    }
    if what.contains("interpreter") {
        return "a configured interpreter directory is missing or not readable by this user".into();
    }
    if none_allowed {
        return format!(
            "user namespaces are switched off: `sysctl user.max_user_namespaces=10000`, {weaker}"
        );
    }
    if debian_switch {
        return format!(
            "user namespaces are switched off: `sysctl kernel.unprivileged_userns_clone=1`, {weaker}"
        );
    }
    if apparmor {
        return format!(
            "AppArmor keeps namespaces from ordinary users: install a profile with `userns,` for this program in \
             /etc/apparmor.d, or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, {weaker}"
        );
    }
    if in_container || errno == libc::ENOSYS || errno == libc::EPERM {
        return format!(
            "a container's system call filter forbids namespaces: run it with `--security-opt seccomp=unconfined \
             --security-opt systempaths=unconfined`, {weaker}"
        );
    }
    format!("Linux 5.12 or newer with user namespaces is needed, {weaker}")
}
