//! Opens the HTTP doors: which routes there are, who may pass, and how they close.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use rmcp::ServerHandler;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{App, keyring, mcp_options, own_url};
use crate::auth::{Failures, Keys, Rates, Tokens};
use crate::console::{self, Console};
use crate::domain::{Clock, Entropy, Principal};
use crate::http::transfers;
use crate::http::v1::{self, V1};
use crate::http::{
    Authenticator, Options, Places, Serving, Shares, Unauthenticated, health, metrics, router, serve,
};
use crate::mcp::caller::Door;
use crate::mcp::transport::{legacy_sse, streamable_http};
use crate::mcp::{self, McpServer};
use crate::store::Secret;

/// How long clients may take to learn that their connections close, once no run goes on.
const SETTLING: Duration = Duration::from_secs(3);
/// Between the end of the runs and the end of the streams that carry their results.
const LAST_EVENTS: Duration = Duration::from_millis(200);
/// How long connections may take to end after that.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Open HTTP doors.
#[derive(Debug)]
pub struct HttpDoors {
    serving: Serving,
    /// Ends the accepting of connections.
    listening: CancellationToken,
    /// Ends streams that would go on for ever.
    streams: CancellationToken,
}

impl App {
    /// Listens and serves. Answers at once, also while the rest is still starting. It is wiring, one piece after the other.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn open_http(&self, listen: SocketAddr) -> anyhow::Result<HttpDoors> {
        self.open_http_with(listen, |server| server).await
    }

    /// The same with another handler at `/mcp`, made of the server's own.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn open_http_with<H: ServerHandler + Clone>(
        &self,
        listen: SocketAddr,
        handler: impl FnOnce(McpServer) -> H,
    ) -> anyhow::Result<HttpDoors> {
        let settings = &self.config.http;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen} (`http.listen`)"))?;
        let (clock, entropy) = (Clock::system(), Entropy::system());
        let (listening, streams) = (CancellationToken::new(), CancellationToken::new());

        let shares = Shares::new(settings.max_requests_per_principal);
        let (auth, metadata) = self.authenticator(listener.local_addr()?, &clock, &shares)?;
        let server = McpServer::new(
            mcp_options(&self.config, Door::Http(entropy.clone())),
            self.execution.part(mcp::Service::of),
        );
        let paths = V1::new(
            self.execution.part(v1::Service::of),
            self.config.cron_secret.as_ref().map(Secret::expose),
            self.config.sharing.clone(),
            own_url(&self.config),
        );
        let health = self.execution.part(|execution| execution.health.clone());
        let mut known = self
            .known_routes(server.clone(), handler(server), &clock, &entropy, (&listening, &streams))
            .merge(metrics::router(health.clone()))
            .merge(paths.known());
        let files = transfers::router(self.execution.part(transfers::Service::of), shares);
        let mut open = paths.open().merge(metadata).merge(files);
        if settings.console {
            let console = Console::new(self.execution.part(console::Service::of), streams.clone());
            known = known.merge(console.known());
            open = open.merge(console.open());
        }
        let health = health::router(health);
        let options = Options {
            base_path: settings.base_path.clone(),
            max_connections: settings.max_connections,
            ..Options::default()
        };
        let places = Places::new(&settings.allowed_hosts, &settings.allowed_origins);
        if let Some(address) = settings.health_listen {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot listen on {address} (`http.health_listen`)"))?;
            tracing::info!("serving health at http://{}", listener.local_addr()?);
            let served = axum::serve(listener, health.clone());
            tokio::spawn(listening.clone().run_until_cancelled_owned(served.into_future()));
        }
        let routes = router(&options, places, auth, known, open, health);
        let serving = serve(listener, routes, &options, listening.clone())?;
        Ok(HttpDoors { serving, listening, streams })
    }

    /// Who may pass at this address, and the routes that say how to sign in.
    fn authenticator(
        &self,
        address: SocketAddr,
        clock: &Clock,
        shares: &Shares,
    ) -> anyhow::Result<(Authenticator, Router)> {
        let settings = &self.config.http;
        let unauthenticated = match settings.needs_credential(address) {
            true => Unauthenticated::Refused,
            false => Unauthenticated::Local(Principal::local(self.config.tenant.clone())),
        };
        let rates = Rates::new(settings.requests_per_minute);
        let tokens = settings.oauth.clone().map(Tokens::new).transpose().context("OAuth cannot be used")?;
        if let Some(tokens) = tokens.clone() {
            let shutdown = self.shutdown.clone();
            self.tasks.spawn(async move { tokens.keep_fresh(&shutdown).await });
        }
        let metadata = tokens.as_ref().map(Tokens::metadata).unwrap_or_default();
        let credentials = self.execution.part(|execution| execution.credentials.clone());
        let failures = Failures::new(settings.failed_credentials_per_minute);
        let keys = Keys::new(credentials, clock.clone(), failures.clone());
        let proxies = settings.trusted_proxies.clone();
        let auth =
            Authenticator::new(unauthenticated, tokens, keys, failures, proxies, rates, shares.clone());
        Ok((auth, metadata))
    }

    /// Routes that need a caller.
    fn known_routes<H: ServerHandler + Clone>(
        &self,
        server: McpServer,
        handler: H,
        clock: &Clock,
        entropy: &Entropy,
        (listening, streams): (&CancellationToken, &CancellationToken),
    ) -> Router {
        let settings = &self.config.http;
        // Without the installation's key, session ids are good for this process only.
        let key = match keyring(&self.config, entropy) {
            Ok(keyring) => keyring.derive("sessions"),
            Err(error) => {
                tracing::warn!(error = %crate::telemetry::chain(error.as_ref()), "session ids will not outlive this process");
                entropy.bytes()
            }
        };
        let options = streamable_http::Options {
            max_body_bytes: settings.max_body_bytes,
            max_sessions: settings.max_sessions,
            session_idle: settings.session_idle,
        };
        let mut known =
            streamable_http::router(handler, server.execution(), key, &options, clock, entropy, streams);
        if settings.legacy_sse {
            let options = legacy_sse::Options {
                max_body_bytes: settings.max_body_bytes,
                base_path: settings.base_path.clone(),
                ..legacy_sse::Options::default()
            };
            let ends = legacy_sse::Ends { listening: listening.clone(), streams: streams.clone() };
            known = known.merge(legacy_sse::router(server, options, entropy.clone(), ends));
        }
        known
    }
}

impl HttpDoors {
    /// Where they are.
    pub fn address(&self) -> SocketAddr {
        self.serving.address
    }

    /// Ends everything in order: readiness fails, no connection is accepted, clients learn that theirs close, runs may
    /// finish within `grace` and their results go out, then the streams end.
    pub async fn close(self, app: App, grace: Duration) {
        app.leave();
        self.listening.cancel();
        let until = Instant::now() + grace;
        // Runs are taken until clients have had time to learn it: after the end of one its client may send the next.
        let settled = async {
            app.drained().await;
            drop(tokio::time::timeout(SETTLING, self.serving.settled()).await);
        };
        drop(tokio::time::timeout_at(until, settled).await);
        app.stop(until - Instant::now()).await;
        tokio::time::sleep(LAST_EVENTS).await;
        self.streams.cancel();
        if tokio::time::timeout(LAST_ANSWERS, self.serving.ended()).await.is_err() {
            tracing::warn!("connections were still open at the end");
        }
    }
}
