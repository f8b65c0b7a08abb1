//! The HTTP listener and what stands before every route: Host and Origin, who is calling, how often, how much.
//!
//! Routes come from elsewhere as plain routers: those that need a caller, and those that do not (health, metadata).
//! The surprise: the listener is ours and not axum's, which sets no deadline for a request's head and does not switch
//! Nagle's algorithm off, so that each event of a stream waits 40 ms for the client's delayed ACK.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware::{from_fn, from_fn_with_state};
use http::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

pub mod auth;
pub mod health;
pub mod layers;
pub mod metrics;
pub mod oauth;
pub mod rate;
pub mod v1;

pub use auth::{Authenticator, Unauthenticated};
pub use layers::{LocalAddress, Places};
pub use rate::Rates;

/// For the whole head of a request. It also ends a connection that idles between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// Numbers of the listener.
#[derive(Debug, Clone)]
pub struct Options {
    /// What stands before every path, e.g. `/pathbox`; empty when nothing does.
    pub base_path: String,
    /// Connections served at a time; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// How long a client may take for the head of a request.
    pub head_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { base_path: String::new(), max_connections: 4096, head_timeout: HEAD_TIMEOUT }
    }
}

/// All routes behind what every request passes. `known` need a caller and find a [`crate::domain::Principal`] in the
/// request; `open` do not.
pub fn router(options: &Options, places: Places, auth: Authenticator, known: Router, open: Router) -> Router {
    let known = known.route_layer(from_fn_with_state(auth, auth::check_caller));
    let all = known.merge(open);
    let all = if options.base_path.is_empty() { all } else { Router::new().nest(&options.base_path, all) };
    all.layer(from_fn_with_state(Arc::new(places), layers::check_place)).layer(from_fn(layers::catch_panic))
}

/// A listener that serves.
#[derive(Debug)]
pub struct Serving {
    /// Where it listens; the port is the real one.
    pub address: SocketAddr,
    connections: TaskTracker,
    task: tokio::task::JoinHandle<()>,
}

impl Serving {
    /// Waits until every connection has ended; the listener's token must have been cancelled.
    pub async fn ended(self) {
        drop(self.task.await);
        self.connections.close();
        self.connections.wait().await;
    }
}

/// Serves until `stop`; then nothing new is accepted and each connection ends with the answer that it is at.
///
/// # Errors
/// When the listener's own address cannot be told.
pub fn serve(
    listener: TcpListener,
    routes: Router,
    options: &Options,
    stop: CancellationToken,
) -> std::io::Result<Serving> {
    let address = listener.local_addr()?;
    let connections = TaskTracker::new();
    let task = tokio::spawn(accept(listener, routes, options.clone(), stop, connections.clone()));
    Ok(Serving { address, connections, task })
}

async fn accept(
    listener: TcpListener,
    routes: Router,
    options: Options,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let places = Arc::new(Semaphore::new(options.max_connections));
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (routes, stop, timeout) = (routes.clone(), stop.clone(), options.head_timeout);
                connections.spawn(async move {
                    let _place = place;
                    connection(stream, routes, timeout, stop).await;
                });
            }
            // Out of descriptors, most likely. Trying again at once would spin.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Switches Nagle's algorithm off: with it, each event of a stream waits for the client's delayed acknowledgement.
fn send_at_once(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
}

async fn connection(stream: TcpStream, routes: Router, head_timeout: Duration, stop: CancellationToken) {
    send_at_once(&stream);
    let local = stream.local_addr().ok().map(LocalAddress);
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let routes = routes.clone();
        let mut request = request.map(Body::new);
        if let Some(local) = local {
            request.extensions_mut().insert(local);
        }
        async move {
            match routes.oneshot(request).await {
                Ok(response) => Ok::<_, Infallible>(response),
                Err(never) => match never {},
            }
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_that_is_sent_waits_for_an_acknowledgement() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(!accepted.nodelay().unwrap(), "by itself it would");
        send_at_once(&accepted);
        assert!(accepted.nodelay().unwrap());
    }
}
