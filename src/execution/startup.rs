//! A service that is still starting: a protocol door answers at once, and its first call waits here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{ExecutionError, ExecutionService};

/// How far the start has come.
#[derive(Debug, Clone)]
pub enum Startup {
    /// Database and sandbox provider are being reached.
    Starting,
    /// It is there.
    Ready(ExecutionService),
    /// It is not there; the start is tried again in the background.
    Failed(Arc<str>),
}

/// A view on a starting service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Starting(watch::Receiver<Startup>);

impl Starting {
    /// A view, and the end that reports progress.
    pub fn channel() -> (watch::Sender<Startup>, Self) {
        let (sender, receiver) = watch::channel(Startup::Starting);
        (sender, Self(receiver))
    }

    /// A service that has started.
    pub fn ready(service: ExecutionService) -> Self {
        Self(watch::channel(Startup::Ready(service)).1)
    }

    /// The service, once it has started; waits at most `patience`.
    ///
    /// # Errors
    /// [`ExecutionError::NotStarted`] with the reason. Try again.
    pub async fn service(&self, patience: Duration) -> Result<ExecutionService, ExecutionError> {
        let mut view = self.0.clone();
        let came = view.wait_for(|state| !matches!(state, Startup::Starting));
        let state = match tokio::time::timeout(patience, came).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => return Err(ExecutionError::NotStarted("the server is shutting down".into())),
            Err(_) => Startup::Starting,
        };
        match state {
            Startup::Ready(service) => Ok(service),
            Startup::Failed(why) => Err(ExecutionError::NotStarted(why.to_string())),
            Startup::Starting => Err(ExecutionError::NotStarted("it is still starting".into())),
        }
    }

    /// The service if it has started, without waiting.
    pub fn now(&self) -> Startup {
        self.0.borrow().clone()
    }
}
