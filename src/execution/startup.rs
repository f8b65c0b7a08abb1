//! A service that is still starting: a protocol door answers at once, and its first call waits here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Execution, ExecutionError};

/// How far the start has come.
#[derive(Debug, Clone)]
pub enum Startup<T = Execution> {
    /// Database and sandbox provider are being reached.
    Starting,
    /// It is there.
    Ready(T),
    /// It is not there; the start is tried again in the background.
    Failed(Arc<str>),
}

/// A view on a starting service, or on the part of it that a door uses. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Starting<T = Execution> {
    view: watch::Receiver<Startup>,
    part: fn(&Execution) -> T,
}

impl Starting {
    /// A view, and the end that reports progress.
    pub fn channel() -> (watch::Sender<Startup>, Self) {
        let (sender, receiver) = watch::channel(Startup::Starting);
        (sender, Self { view: receiver, part: Execution::clone })
    }

    /// A service that has started.
    pub fn ready(service: Execution) -> Self {
        Self { view: watch::channel(Startup::Ready(service)).1, part: Execution::clone }
    }

    /// The same view for a door that uses only a part.
    pub fn part<T>(&self, part: fn(&Execution) -> T) -> Starting<T> {
        Starting { view: self.view.clone(), part }
    }
}

impl<T> Starting<T> {
    /// The service, once it has started; waits at most `patience`.
    ///
    /// # Errors
    /// [`ExecutionError::NotStarted`] with the reason. Try again.
    pub async fn service(&self, patience: Duration) -> Result<T, ExecutionError> {
        let mut view = self.view.clone();
        let came = view.wait_for(|state| !matches!(state, Startup::Starting));
        let state = match tokio::time::timeout(patience, came).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => return Err(ExecutionError::NotStarted("the server is shutting down".into())),
            Err(_) => Startup::Starting,
        };
        match state {
            Startup::Ready(service) => Ok((self.part)(&service)),
            Startup::Failed(why) => Err(ExecutionError::NotStarted(why.to_string())),
            Startup::Starting => Err(ExecutionError::NotStarted("it is still starting".into())),
        }
    }

    /// The service if it has started, without waiting.
    pub fn now(&self) -> Startup<T> {
        match &*self.view.borrow() {
            Startup::Starting => Startup::Starting,
            Startup::Ready(service) => Startup::Ready((self.part)(service)),
            Startup::Failed(why) => Startup::Failed(Arc::clone(why)),
        }
    }
}
