//! The guard's policy file: read at the start, and again when it has changed.
//!
//! A file that cannot be loaded does not stop the server: new calls run under the policy that was loaded last, and the log,
//! `/readyz` and the metrics say so.

use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::execution::Policies;
use crate::telemetry::{chain, metrics};

/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(2);
/// How long a changed file must look the same before it is read: it may be half written, or emptied to be written.
const SETTLED: Duration = Duration::from_millis(500);

/// How a file looks from outside: when it was changed, its length, and which file of its disk it is. `None`: it is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stamp(Option<(Option<SystemTime>, u64, u64)>);

impl Stamp {
    /// Of the policy's file; a link is followed, as a mounted set of settings is exchanged by one.
    pub(super) fn of(file: Option<&Path>) -> Self {
        let facts = file.and_then(|file| std::fs::metadata(file).ok());
        #[cfg(unix)]
        let number = std::os::unix::fs::MetadataExt::ino;
        #[cfg(not(unix))]
        let number = |_: &std::fs::Metadata| 0;
        Self(facts.map(|facts| (facts.modified().ok(), facts.len(), number(&facts))))
    }
}

/// Takes a changed policy file for all that begins after, until the end. On Unix SIGHUP asks for it at once.
pub(super) async fn follow(config: Config, policies: Policies, mut seen: Stamp, end: CancellationToken) {
    let Some(file) = config.guard_policy.clone() else { return };
    metrics::GUARD_POLICY_CURRENT.set(Some(1));
    let mut asked = Asked::new();
    let mut changed: Option<Stamp> = None;
    loop {
        let at_once = tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(if changed.is_some() { SETTLED } else { EVERY }) => false,
            () = asked.next() => true,
        };
        let (file, config) = (file.clone(), config.clone());
        let looked = tokio::task::spawn_blocking(move || {
            // First how it looks: what changes while it is read is seen the next time.
            let stamp = Stamp::of(Some(&file));
            let due = at_once || stamp != seen && changed == Some(stamp);
            (stamp, due.then(|| super::policies(&config)))
        });
        let Ok((stamp, loaded)) = looked.await else { continue };
        if loaded.is_some() {
            seen = stamp;
        }
        changed = (stamp != seen).then_some(stamp);
        match loaded {
            None => {}
            Some(Ok(fresh)) => {
                policies.swap(&fresh);
                metrics::GUARD_POLICY_CURRENT.set(Some(1));
                metrics::GUARD_POLICY_RELOADS.add(&["loaded"], 1);
                tracing::info!(policy = %policies.version(), "the guard policy was loaded again");
            }
            Some(Err(error)) => {
                policies.keep();
                metrics::GUARD_POLICY_CURRENT.set(Some(0));
                metrics::GUARD_POLICY_RELOADS.add(&["refused"], 1);
                tracing::error!(
                    policy = %policies.version(), error = %chain(error.as_ref()),
                    "the changed guard policy is invalid, and the previous one is still in use; correct the file: `pathbox guard check` with `--policy` tests it"
                );
            }
        }
    }
}

/// SIGHUP, where there is one.
struct Asked(#[cfg(unix)] Option<tokio::signal::unix::Signal>);

impl Asked {
    #[cfg(unix)]
    fn new() -> Self {
        Self(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok())
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        match &mut self.0 {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }

    #[cfg(not(unix))]
    fn new() -> Self {
        Self()
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        std::future::pending().await
    }
}
