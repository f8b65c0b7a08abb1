//! A sandbox that its data plane does not know: gone, or only paused or out of sight for a moment?
//!
//! The data plane answers "was not found" for all of these, so before a context's state is given up the control plane is
//! asked. Only when nothing of the run's code was sent: the code is never sent twice.

use std::time::Duration;

use super::acquire::{Held, Sandboxes};
use crate::e2b::{E2bError, Liveness};
use crate::telemetry::chain;

/// How often a sandbox that its provider says is running is looked at again.
const LOOKS: u32 = 4;

impl Sandboxes {
    /// Whether the run can be tried again on the same sandbox; a paused one is resumed for it.
    ///
    /// # Errors
    /// When the provider cannot be asked: nothing is known then, so nothing is given up.
    #[tracing::instrument(level = "debug", name = "sandbox.revive", skip_all, fields(context.id = %held.row.id))]
    pub(super) async fn revive(&self, held: &mut Held) -> Result<bool, E2bError> {
        // A local host pauses only when asked, and one that does not answer took its sandboxes with it.
        if held.row.sandbox.as_ref().is_none_or(|sandbox| sandbox.host_url.is_some()) {
            return Ok(false);
        }
        let mut pause = Duration::from_millis(250);
        for _ in 0..LOOKS {
            match held.client.liveness(&held.access).await? {
                Liveness::Gone => return Ok(false),
                Liveness::Running { .. } | Liveness::NoInterpreter { .. } => return Ok(true),
                Liveness::Paused => return Ok(self.resume(held).await),
                Liveness::Unreachable { .. } => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
        Ok(false)
    }

    async fn resume(&self, held: &mut Held) -> bool {
        let (life, now) = (self.0.sandbox_life(), held.now());
        match held.client.connect(&held.access.id, life).await {
            // Other tokens than those in the row would have to be kept for the next replica too.
            Ok(sandbox) if sandbox.envd_token != held.access.envd_token => false,
            Ok(sandbox) => {
                tracing::info!(context.id = %held.row.id, "a paused sandbox was resumed");
                if let Some(reference) = &mut held.row.sandbox {
                    reference.provider_ends_at = Some(now + sandbox.timeout);
                }
                true
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), context.id = %held.row.id, "a paused sandbox cannot be resumed");
                false
            }
        }
    }
}
