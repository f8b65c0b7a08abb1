//! The way out of a sandbox: a proxy on its loopback, which this host carries on to what an allow list permits.
//!
//! A sandbox has no network. Its agent opens one port; what arrives there comes here over the agent's socket, and this
//! host looks names up, judges the *address* that came out, and connects to exactly that address. So a name that
//! changes its mind after it was judged (DNS rebinding) gains nothing, and every request counts as hostile.

mod client_hello;
mod policy;
mod proxy;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::domain::lock;
use crate::telemetry::metrics::HOST_EGRESS;

pub(crate) use self::policy::{Asked, Policy};
use super::agent::{AgentError, AgentHandle};

/// How sandboxes reach the network, those that ask for it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether a sandbox reaches every public address unless it asks for less, as at E2B. If not, it reaches what
    /// its allow list names.
    pub open: bool,
    /// Connections of one sandbox at a time, 1 to 512; more wait.
    pub connections: usize,
    /// Bytes of one sandbox in both directions together; then its connections break off.
    pub max_bytes: u64,
    /// A connection over which nothing goes for this long is closed.
    pub idle: Duration,
    /// For looking a name up and connecting, together.
    pub dial: Duration,
    /// The resolver for names.
    pub resolver: Resolver,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            open: false,
            connections: 64,
            max_bytes: 4 << 30,
            idle: Duration::from_secs(120),
            dial: Duration::from_secs(15),
            resolver: Resolver::System,
        }
    }
}

/// Looks up one name.
pub type LookUp = dyn Fn(&str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync;

/// The resolver for names.
#[derive(Clone)]
pub enum Resolver {
    /// This machine.
    System,
    /// A function.
    Function(Arc<LookUp>),
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Function(_) => "Function",
        })
    }
}

impl Resolver {
    async fn look_up(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        match self {
            Self::System => {
                // The trailing dot keeps this machine's search domains out of it.
                let asked = (format!("{name}."), 0);
                let looked_up = tokio::task::spawn_blocking(move || asked.to_socket_addrs());
                Ok(looked_up.await.map_err(io::Error::other)??.map(|address| address.ip()).collect())
            }
            Self::Function(look_up) => look_up(name).await,
        }
    }
}

/// Look-ups of all sandboxes at a time. Each holds a thread of those that the whole host shares.
const LOOK_UPS: usize = 128;
/// Those of one sandbox. Names can be made so that no one ever answers for them.
const LOOK_UPS_OF_ONE: usize = 4;

/// Looks names up for one sandbox, within what it and all of them together may have in progress.
#[derive(Debug)]
struct LookUps {
    resolver: Resolver,
    /// Of all, then its own.
    places: [Arc<Semaphore>; 2],
}

impl LookUps {
    async fn look_up(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let [all, own] = &self.places;
        // Its own first: who waits for that holds up no one else.
        let own = Arc::clone(own).acquire_owned().await.map_err(io::Error::other)?;
        let all = Arc::clone(all).acquire_owned().await.map_err(io::Error::other)?;
        let (resolver, name) = (self.resolver.clone(), name.to_owned());
        // A system's look-up goes on when no one waits for it any more, and so keeps its places.
        let looked_up = tokio::spawn(async move {
            let _places = (own, all);
            resolver.look_up(&name).await
        });
        looked_up.await.map_err(io::Error::other)?
    }
}

/// Places for look-ups, shared by the sandboxes of a host.
#[derive(Debug, Clone)]
pub(crate) struct LookUpPlaces(Arc<Semaphore>);

impl Default for LookUpPlaces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOK_UPS)))
    }
}

/// One sandbox's way out.
#[derive(Debug, Clone)]
pub(crate) struct Egress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sandbox_id: String,
    options: Options,
    look_ups: LookUps,
    agent: AgentHandle,
    state: Mutex<State>,
    /// Bytes in both directions so far.
    bytes: AtomicU64,
    journal: Arc<Journal>,
    /// Ends with the sandbox.
    ending: CancellationToken,
}

#[derive(Debug)]
struct State {
    policy: Arc<Policy>,
    /// Cancelled when the policy is replaced: what it permitted breaks off.
    replaced: CancellationToken,
    port: Option<u16>,
}

impl Egress {
    /// Nothing is open until [`Egress::set`].
    pub(crate) fn new(
        sandbox_id: String,
        options: Options,
        LookUpPlaces(places): LookUpPlaces,
        agent: AgentHandle,
        ending: CancellationToken,
    ) -> Self {
        let places = [places, Arc::new(Semaphore::new(LOOK_UPS_OF_ONE))];
        let look_ups = LookUps { resolver: options.resolver.clone(), places };
        let state =
            State { policy: Arc::new(Policy::closed()), replaced: CancellationToken::new(), port: None };
        let (state, bytes) = (Mutex::new(state), AtomicU64::new(0));
        let journal = Arc::new(Journal::new(sandbox_id.clone()));
        Self(Arc::new(Inner { sandbox_id, options, look_ups, agent, state, bytes, journal, ending }))
    }

    /// Replaces the whole policy. Connections that are open break off, since the new one may not permit them. The proxy
    /// opens with the first policy that permits anything, and stays.
    ///
    /// # Errors
    /// When the proxy cannot be opened; the policy is in place all the same.
    pub(crate) async fn set(&self, policy: Policy) -> Result<(), AgentError> {
        let opens = !policy.is_closed();
        let before = {
            let mut state = self.state();
            state.policy = Arc::new(policy);
            std::mem::replace(&mut state.replaced, CancellationToken::new())
        };
        before.cancel();
        if !opens || self.state().port.is_some() {
            return Ok(());
        }
        let port = self.0.agent.listen().await?;
        let first = self.state().port.replace(port).is_none();
        if first {
            tokio::spawn(self.clone().serve());
        }
        Ok(())
    }

    /// The environment that points programs to the way out. Empty while there is none.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let Some(port) = self.port() else { return BTreeMap::new() };
        let proxy = format!("http://127.0.0.1:{port}");
        let own = "localhost,127.0.0.1,::1";
        let pairs = [
            ("HTTP_PROXY", proxy.as_str()),
            ("http_proxy", &proxy),
            ("HTTPS_PROXY", &proxy),
            ("https_proxy", &proxy),
            ("NO_PROXY", own),
            ("no_proxy", own),
            ("NODE_USE_ENV_PROXY", "1"),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    /// The proxy's port inside, once it is open.
    pub(crate) fn port(&self) -> Option<u16> {
        self.state().port
    }

    /// The policy in force.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.state().policy)
    }

    /// Takes connections until the sandbox ends.
    async fn serve(self) {
        const AFTER_FAILURE: Duration = Duration::from_millis(100);
        let places = Arc::new(Semaphore::new(self.0.options.connections));
        let accept = async {
            while let Ok(place) = Arc::clone(&places).acquire_owned().await {
                match self.0.agent.accept(place).await {
                    Ok(link) => drop(tokio::spawn(self.clone().connection(link))),
                    Err(AgentError::Gone) => break,
                    // Out of descriptors in there, most likely.
                    Err(error) => {
                        tracing::debug!(%error, "a connection of a sandbox was not accepted");
                        tokio::time::sleep(AFTER_FAILURE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = self.0.ending.cancelled() => {}
        }
    }

    async fn connection(self, link: super::agent::Link) {
        let (policy, replaced) = {
            let state = self.state();
            (Arc::clone(&state.policy), state.replaced.clone())
        };
        let ending = self.0.ending.clone();
        tokio::select! {
            () = proxy::serve(&self, policy, link) => {}
            () = replaced.cancelled() => {}
            () = ending.cancelled() => {}
        }
    }

    /// Bytes in both directions so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes; `false` when there have been too many.
    fn count(&self, bytes: usize) -> bool {
        HOST_EGRESS.add(&[], bytes as u64);
        let before = self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        before.saturating_add(bytes as u64) <= self.0.options.max_bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

/// Requests of one sandbox that get a line each in the log, those that lead nowhere and those that are carried.
const LINES: [u64; 2] = [1000, 100_000];

/// Bounds what one sandbox can write into the log: what exceeds that is counted and logged in one line at its end.
#[derive(Debug)]
struct Journal {
    sandbox_id: String,
    /// In vain, and carried.
    requests: [AtomicU64; 2],
    /// Bytes, in both directions, of those that got no line.
    bytes_left_out: AtomicU64,
}

impl Journal {
    fn new(sandbox_id: String) -> Self {
        Self { sandbox_id, requests: [0, 0].map(AtomicU64::new), bytes_left_out: AtomicU64::new(0) }
    }

    /// Counts a request; returns whether it is logged.
    fn has_line(&self, carried: bool, bytes: u64) -> bool {
        let which = usize::from(carried);
        let has_line = self.requests[which].fetch_add(1, Ordering::Relaxed) < LINES[which];
        if !has_line {
            self.bytes_left_out.fetch_add(bytes, Ordering::Relaxed);
        }
        has_line
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let [in_vain, carried] =
            [0, 1].map(|which: usize| self.requests[which].get_mut().saturating_sub(LINES[which]));
        if in_vain + carried > 0 {
            tracing::info!(
                sandbox.id = %self.sandbox_id,
                in_vain,
                carried,
                bytes = *self.bytes_left_out.get_mut(),
                "a sandbox made {} more requests, which are not logged one by one",
                in_vain + carried,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures::FutureExt;

    use super::*;

    /// Names of look-ups that were begun, by the sandbox that they name.
    type Begun = Arc<Mutex<HashMap<String, usize>>>;

    /// Begins every look-up and answers none.
    fn silent() -> (Resolver, Begun) {
        let begun = Begun::default();
        let notes = Arc::clone(&begun);
        let function = move |name: &str| {
            *notes.lock().unwrap().entry(name.to_owned()).or_default() += 1;
            futures::future::pending().boxed()
        };
        (Resolver::Function(Arc::new(function)), begun)
    }

    #[tokio::test]
    async fn unanswered_look_ups_take_no_more_than_their_places() {
        let (resolver, begun) = silent();
        let LookUpPlaces(all) = LookUpPlaces::default();
        for sandbox in 0..LOOK_UPS / LOOK_UPS_OF_ONE + 2 {
            let places = [Arc::clone(&all), Arc::new(Semaphore::new(LOOK_UPS_OF_ONE))];
            let look_ups = Arc::new(LookUps { resolver: resolver.clone(), places });
            for _ in 0..LOOK_UPS_OF_ONE * 3 {
                let look_ups = Arc::clone(&look_ups);
                // Anyone who asked gives up; what was begun goes on.
                let asked = async move { look_ups.look_up(&format!("{sandbox}.test")).await };
                let given_up = tokio::time::timeout(Duration::from_millis(1), asked).await;
                assert!(given_up.is_err(), "no answer comes");
            }
            assert!(begun.lock().unwrap().values().all(|count| *count <= LOOK_UPS_OF_ONE));
        }
        assert_eq!(begun.lock().unwrap().values().sum::<usize>(), LOOK_UPS);
    }
}
