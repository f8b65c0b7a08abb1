//! Everything about jails holds for an ordinary user too: the suite starts itself again as one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{EXE, exe, is_root};

/// Debian's `nobody`; any user without files would do.
const NOBODY: u32 = 65_534;

#[test]
fn the_jail_suite_passes_as_an_ordinary_user() {
    if !is_root() {
        return; // then the suite is that already
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        fs::copy(from, &to).expect("copies");
        to
    };
    let suite = copy(&std::env::current_exe().expect("this program"), "suite");
    let program = copy(&exe(), "pathbox");
    for path in [dir.path(), &suite, &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("readable for all");
    }
    // The soft limit of a login; what is in flight over sockets is counted against it.
    let output = Command::new("/bin/sh")
        .args(["-c", "ulimit -Sn 1024; exec \"$0\" \"$@\""])
        .arg(&suite)
        .args(["jail::", "--skip", "jail::user", "--skip", "jail::groups"])
        .env_clear()
        .env(EXE, &program)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("RUST_BACKTRACE", "0")
        .current_dir("/")
        .stdin(Stdio::null())
        .gid(NOBODY)
        .uid(NOBODY)
        .output()
        .expect("starts as another user");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let passed = text.lines().filter(|line| line.starts_with("test jail::") && line.ends_with("ok")).count();
    assert!(passed >= 12, "only {passed} tests ran: {text}");
}
