//! Notifications of the other replicas, over one connection of its own (LISTEN).
//!
//! Behind a pooler in transaction mode none arrive: then waiting tasks poll a little more often.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};

use super::reach::Reach;
use crate::store::Signals;

/// How long to wait for a signal while signals arrive. One can be missed only when a connection breaks.
const HEARD: Duration = Duration::from_secs(1);
/// The same while none may arrive.
pub(super) const UNHEARD: Duration = Duration::from_millis(100);
/// Between two tries to listen.
const RETRY: Duration = Duration::from_secs(2);

/// Passes on what is sent, until it is aborted.
pub(super) async fn listen(reach: Arc<Reach>, signals: Signals, replica: String) {
    if reach.is_pooled() {
        return;
    }
    loop {
        let ended = heed(&reach, &signals, &replica).await;
        signals.set_pace(UNHEARD);
        if let Err(error) = ended {
            tracing::debug!(%error, "notifications of the database do not arrive; polling instead");
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn heed(reach: &Reach, signals: &Signals, replica: &str) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(reach.host());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.ignore_pool_close_event(true);
    listener.listen("pathbox").await?;
    signals.set_pace(HEARD);
    signals.want();
    signals.lose_keys();
    // `None`: the connection broke, and with it what was sent meanwhile
    while let Some(notification) = listener.try_recv().await? {
        let payload = notification.payload();
        match payload.split_once(' ').unwrap_or((payload, "")) {
            ("key", name) => signals.wake(name),
            ("wanted", holder) if holder == replica => signals.want(),
            ("keys", _) => signals.lose_keys(),
            _ => {}
        }
    }
    Ok(())
}
