//! Landlock: a second lock in the full tier, and the only one in the tier for machines without namespaces. Which files
//! can be opened, and no signals to the outside. It does not hide that files exist, and sockets are closed only because
//! the system call filter allows none at all. [`missing`] lists what an older kernel's version lacks.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

use super::policy;

/// The first version that keeps signals in (Linux 6.12); all before it is used as far as it goes.
const REQUIRED: ABI = ABI::V6;

/// The version whose domains keep signals in.
pub(crate) const SCOPES: u32 = 6;

/// What this kernel's version of Landlock does not stop in the tier of that name. `own_user`: sandboxes run as the host's
/// user, to whom other processes belong.
pub(crate) fn missing(version: u32, own_user: bool) -> Vec<&'static str> {
    let mut missing = Vec::new();
    if version < SCOPES && own_user {
        missing.push("signals reach this user's other processes (Linux 6.12 keeps them in)");
    }
    if version < 5 {
        missing.push("devices that can be opened can be controlled (Linux 6.10)");
    }
    missing
}

/// Binds this process and its descendants for good: `writable` directories and the public parts of the system.
///
/// # Errors
/// When the kernel has no Landlock.
pub(crate) fn restrict(read_only: &[PathBuf], writable: &[&Path]) -> Result<(), RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(REQUIRED))?
        .handle_access(AccessNet::from_all(REQUIRED))?
        .scope(Scope::from_all(REQUIRED))?
        .create()?
        // Rules on files take fewer rights than rules on directories.
        .set_compatibility(CompatLevel::BestEffort);
    let public = policy::SYSTEM_DIRS.iter().chain(policy::ETC).map(Path::new);
    for path in public.chain(read_only.iter().map(PathBuf::as_path)) {
        rules = allow(rules, path, AccessFs::from_read(REQUIRED))?;
    }
    for (path, _) in policy::DEVICES {
        rules = allow(rules, Path::new(path), AccessFs::ReadFile | AccessFs::WriteFile)?;
    }
    for path in writable {
        rules = allow(rules, path, AccessFs::from_all(REQUIRED))?;
    }
    rules.restrict_self().map(drop)
}

/// Where programs of the full tier may write, should a mount that is meant to be read-only ever not be. Of reading it says
/// nothing: what is there may be read, and the agent also reads a `/proc` that is attached nowhere, which no rule on paths
/// reaches. A kernel without Landlock goes without: the mounts are the wall.
///
/// # Errors
/// When a kernel that has it refuses.
pub(crate) fn second_lock() -> Result<(), RulesetError> {
    let all = AccessFs::from_write(REQUIRED);
    // What is opened for writing below these exists already.
    let open = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()?
        .set_compatibility(CompatLevel::BestEffort);
    for path in ["/dev", "/proc"] {
        rules = allow(rules, Path::new(path), open)?;
    }
    for path in [policy::HOME, "/tmp", "/dev/shm"].iter().chain(policy::WORK_DIRS) {
        rules = allow(rules, Path::new(path), all)?;
    }
    rules.restrict_self().map(drop)
}

fn allow(
    rules: landlock::RulesetCreated,
    path: &Path,
    access: landlock::BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(fd) => rules.add_rule(PathBeneath::new(fd, access)),
        Err(_) => Ok(rules), // not on this machine
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::jail::sys;

    /// It binds the thread that takes it.
    #[test]
    fn the_second_lock_leaves_reading_alone_and_writing_to_few_places() {
        let allowed = tempfile::tempdir_in("/tmp").unwrap();
        let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
        let (inside, outside) = (allowed.path().join("x"), elsewhere.path().join("x"));
        fs::write(&outside, "before").unwrap();
        std::thread::scope(|scope| {
            let locked = scope.spawn(|| {
                sys::no_new_privileges().unwrap();
                second_lock().unwrap();
                fs::write(&inside, "x").unwrap();
                fs::write("/dev/null", "x").unwrap();
                assert_eq!(fs::read_to_string(&outside).unwrap(), "before");
                let refused = [
                    fs::write(&outside, "after"),
                    fs::remove_file(&outside),
                    fs::create_dir(elsewhere.path().join("y")),
                    fs::rename(&inside, elsewhere.path().join("y")),
                    std::os::unix::fs::symlink("x", elsewhere.path().join("y")),
                ];
                for (attempt, outcome) in refused.into_iter().enumerate() {
                    assert!(outcome.is_err(), "attempt {attempt}");
                }
            });
            locked.join().unwrap();
        });
        assert_eq!(fs::read_to_string(&outside).unwrap(), "before");
        fs::write(&outside, "other threads are free").unwrap();
    }
}
