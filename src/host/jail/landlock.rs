//! Landlock: a second lock in the full tier, and the only one in the tier for machines without namespaces. Which files can be opened, no TCP, no signals or abstract
//! sockets to the outside. It does not hide that files exist, and path-name Unix sockets are closed only because
//! the system call filter allows no socket at all.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

use super::policy;

/// The first version that keeps signals and abstract sockets in (Linux 6.12).
const REQUIRED: ABI = ABI::V6;

/// Binds this process and its descendants for good: `writable` directories and the public parts of the system.
///
/// # Errors
/// When the kernel offers less than what is needed; nothing weaker is put in place.
pub(crate) fn restrict(read_only: &[PathBuf], writable: &[&Path]) -> Result<(), RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
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
    for path in policy::DEVICES {
        rules = allow(rules, Path::new(path), AccessFs::ReadFile | AccessFs::WriteFile)?;
    }
    for path in writable {
        rules = allow(rules, path, AccessFs::from_all(REQUIRED))?;
    }
    rules.restrict_self().map(drop)
}

/// Where programs of the full tier may write, should a mount that is meant to be read-only ever not be. A kernel without
/// Landlock goes without: the mounts are the wall.
///
/// # Errors
/// When a kernel that has it refuses.
pub(crate) fn second_lock() -> Result<(), RulesetError> {
    let all = AccessFs::from_all(REQUIRED);
    // What is opened for writing below these exists already.
    let open = AccessFs::from_read(REQUIRED) | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()?
        .set_compatibility(CompatLevel::BestEffort);
    rules = allow(rules, Path::new("/"), AccessFs::from_read(REQUIRED))?;
    for path in ["/dev", "/proc"] {
        rules = allow(rules, Path::new(path), open)?;
    }
    for path in [policy::HOME, "/tmp", "/dev/shm"] {
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
