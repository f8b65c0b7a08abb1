//! The control plane: make, find, extend, pause and end sandboxes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use reqwest::Method;

use super::endpoint::check_id;
use super::send::{Answer, Call, Repeat};
use super::{E2bClient, E2bError, McpServers, Subject};
use crate::domain::SandboxId;
use crate::telemetry::metrics;
use crate::wire::control::{self, ListedSandbox, Metric, SandboxDetail, State};
use crate::wire::header;
use crate::wire::{Secret, Version};

/// What a new sandbox should be. The default is the safe one: no network, no public traffic, killed at its end.
#[derive(Debug, Clone)]
pub struct CreateSandbox {
    /// Template id, alias or snapshot; the client's own when left out.
    pub template: Option<String>,
    /// Life time. Above the provider's cap it is cut, and [`Sandbox::timeout`] has the value.
    pub timeout: Duration,
    /// Free pairs, for [`ListFilter::metadata`].
    pub metadata: BTreeMap<String, String>,
    /// Environment of every process. The hosted interpreter pastes these into source text, so keep them plain.
    pub envs: BTreeMap<String, Secret>,
    /// The network access from inside.
    pub network: NetworkPolicy,
    /// At the end of its life time: pause instead of kill.
    pub pause_on_timeout: bool,
    /// MCP servers; start them with [`E2bClient::start_mcp_gateway`]. Without a template, [`control::MCP_TEMPLATE`] is
    /// taken, as the official SDKs do it.
    pub mcp: Option<McpServers>,
    /// Makes the create safe to repeat by the caller: 1 to 255 of `a-z 0-9 -`. The client makes one up when left out.
    pub idempotency_key: Option<String>,
}

impl Default for CreateSandbox {
    fn default() -> Self {
        Self {
            template: None,
            timeout: Duration::from_secs(control::DEFAULT_TIMEOUT_V2_S),
            metadata: BTreeMap::new(),
            envs: BTreeMap::new(),
            network: NetworkPolicy::Closed,
            pause_on_timeout: false,
            mcp: None,
            idempotency_key: None,
        }
    }
}

/// The network access of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NetworkPolicy {
    /// Nothing.
    #[default]
    Closed,
    /// These IP addresses, CIDR ranges and domains only.
    AllowList(Vec<String>),
    /// Everything, which is E2B's own default.
    Open,
}

impl NetworkPolicy {
    /// The complete policy. The provider's update replaces everything, so a part would open the rest.
    fn egress(&self) -> control::UpdateNetwork {
        let deny_all = Some(vec!["0.0.0.0/0".to_owned()]);
        match self {
            Self::Closed => control::UpdateNetwork {
                allow_internet_access: Some(false),
                deny_out: deny_all,
                ..Default::default()
            },
            Self::AllowList(allowed) => control::UpdateNetwork {
                allow_out: Some(allowed.clone()),
                deny_out: deny_all,
                ..Default::default()
            },
            Self::Open => control::UpdateNetwork { allow_internet_access: Some(true), ..Default::default() },
        }
    }

    fn for_create(&self) -> (Option<bool>, control::Network) {
        let egress = self.egress();
        let network = control::Network {
            allow_public_traffic: Some(false),
            allow_out: egress.allow_out,
            deny_out: egress.deny_out,
            ..Default::default()
        };
        (egress.allow_internet_access, network)
    }
}

/// What it takes to talk to a sandbox: keep it with whatever remembers the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxAccess {
    /// Which sandbox.
    pub id: SandboxId,
    /// The domain of its hosts, when it is not the endpoint's.
    pub domain: Option<String>,
    /// For envd, and for the interpreter's own use of envd.
    pub envd_token: Option<Secret>,
    /// For every port but envd's.
    pub traffic_token: Option<Secret>,
    /// What its envd can do; the newest when unknown.
    pub envd_version: Option<Version>,
}

/// A sandbox that was just made or connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// The domain of its hosts, when it is not the endpoint's.
    pub domain: Option<String>,
    /// For envd.
    pub envd_token: Option<Secret>,
    /// For every port but envd's.
    pub traffic_token: Option<Secret>,
    /// The version of its envd.
    pub envd_version: Option<Version>,
    /// The template's id.
    pub template_id: String,
    /// The life time that was asked for, cut to the provider's cap.
    pub timeout: Duration,
    /// Whether it was paused and runs again; memory is as it was.
    pub resumed: bool,
}

impl Sandbox {
    /// Everything needed to talk to it.
    pub fn access(&self) -> SandboxAccess {
        SandboxAccess {
            id: self.id.clone(),
            domain: self.domain.clone(),
            envd_token: self.envd_token.clone(),
            traffic_token: self.traffic_token.clone(),
            envd_version: self.envd_version,
        }
    }

    fn from_wire(sandbox: control::Sandbox, timeout: Duration, resumed: bool) -> Result<Self, E2bError> {
        Ok(Self {
            id: sandbox_id(&sandbox.sandbox_id)?,
            domain: sandbox.domain.filter(|domain| !domain.is_empty()),
            envd_token: sandbox.envd_access_token.filter(|token| !token.expose().is_empty()),
            traffic_token: sandbox.traffic_access_token.filter(|token| !token.expose().is_empty()),
            envd_version: Version::parse(&sandbox.envd_version),
            template_id: sandbox.template_id,
            timeout,
            resumed,
        })
    }
}

/// An id as the provider gives it. Old servers append `-<client id>`, which is not part of it.
pub(super) fn sandbox_id(text: &str) -> Result<SandboxId, E2bError> {
    let id = text.split('-').next().unwrap_or_default();
    SandboxId::parse(id).map_err(|error| E2bError::protocol("a sandbox id", error))
}

/// Which sandboxes to list. The default is all that the key can see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// All of these pairs must match.
    pub metadata: BTreeMap<String, String>,
    /// Running or paused; both when empty.
    pub states: Vec<State>,
    /// How many at most in all.
    pub limit: Option<usize>,
}

impl E2bClient {
    /// Makes a sandbox.
    ///
    /// Waits for its turn under [`CreateLimits`](super::CreateLimits), cuts the life time to the provider's cap, and
    /// falls back to the first version of the call where the provider knows no other. Repeats only what certainly made
    /// nothing; on E2B's cloud, which keeps idempotency keys, also what may have.
    ///
    /// # Errors
    /// [`E2bError::RateLimited`] at the plan's number of sandboxes, [`E2bError::Busy`] without capacity,
    /// [`E2bError::NotFound`] for the template; after an error with [`may_have_run`](E2bError::may_have_run) a sandbox
    /// may exist, to be found by its metadata.
    #[tracing::instrument(name = "e2b.create", skip_all)]
    pub async fn create(&self, create: &CreateSandbox) -> Result<Sandbox, E2bError> {
        let made_up;
        let key = match &create.idempotency_key {
            Some(key) => key.as_str(),
            None => {
                made_up = self.shared.entropy.hex::<16>();
                &made_up
            }
        };
        let sandbox = match self.create_within_cap(create, key).await {
            Err(E2bError::TimeoutTooLong { cap }) => {
                tracing::info!(cap_s = cap.as_secs(), "learned the longest life time of a sandbox");
                self.state.learn_cap(cap);
                // Other arguments need another key.
                let key = self.shared.entropy.hex::<16>();
                self.create_within_cap(create, &key).await
            }
            other => other,
        }?;
        tracing::info!(
            template = sandbox.template_id,
            timeout_s = sandbox.timeout.as_secs(),
            "sandbox created"
        );
        Ok(sandbox)
    }

    fn template_of<'a>(&'a self, create: &'a CreateSandbox) -> &'a str {
        match (&create.template, &create.mcp) {
            (Some(template), _) => template,
            (None, Some(_)) => control::MCP_TEMPLATE,
            (None, None) => &self.options().template,
        }
    }

    async fn create_within_cap(&self, create: &CreateSandbox, key: &str) -> Result<Sandbox, E2bError> {
        let timeout = self.cut(create.timeout);
        let (allow_internet_access, network) = create.network.for_create();
        let mut body = control::CreateSandbox {
            template_id: self.template_of(create).to_owned(),
            timeout: Some(seconds(timeout)),
            auto_pause: create.pause_on_timeout.then_some(true),
            allow_internet_access,
            network: Some(network),
            metadata: create.metadata.clone(),
            env_vars: create
                .envs
                .iter()
                .map(|(name, value)| (name.clone(), value.expose().to_owned()))
                .collect(),
            mcp: create.mcp.as_ref().map(McpServers::to_value),
            ..Default::default()
        };
        if !self.state.is_v1() {
            let answer = self.create_once("/v2/sandboxes", &body, key).await;
            match answer {
                Err(E2bError::NotFound { what: Subject::Route, .. }) => self.state.learn_v1(),
                Err(E2bError::Refused { status: 405, .. }) => self.state.learn_v1(),
                answer => return Sandbox::from_wire(answer?.json("a created sandbox")?, timeout, false),
            }
        }
        body.secure = Some(true);
        let answer = self.create_once("/sandboxes", &body, key).await?;
        Sandbox::from_wire(answer.json("a created sandbox")?, timeout, false)
    }

    async fn create_once(
        &self,
        path: &str,
        body: &control::CreateSandbox,
        key: &str,
    ) -> Result<Answer, E2bError> {
        let keeps_keys = !self.endpoint.is_custom() && path.starts_with("/v2");
        let _turn = self.state.creates.turn().await?;
        let mut call = Call::new(Method::POST, path).json(body)?;
        call.idempotency_key = Some(key);
        call.repeat = if keeps_keys { Repeat::Always } else { Repeat::IfNotDone };
        call.subject = Subject::Template;
        let answer = self.control(call).await;
        if let Err(E2bError::RateLimited { retry_after: Some(pause), .. }) = &answer {
            self.state.creates.pause(*pause, tokio::time::Instant::now());
        }
        answer
    }

    /// Connects to a sandbox that this client did not make, and resumes it if it is paused. Its life becomes at least
    /// `timeout` from now; connect never shortens it.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it is gone for good.
    #[tracing::instrument(name = "e2b.connect", skip_all)]
    pub async fn connect(&self, id: &SandboxId, timeout: Duration) -> Result<Sandbox, E2bError> {
        let began = Instant::now();
        let connected = match self.connect_within_cap(id, timeout).await {
            Err(E2bError::TimeoutTooLong { cap }) => {
                self.state.learn_cap(cap);
                self.connect_within_cap(id, timeout).await
            }
            other => other,
        };
        metrics::SANDBOX_RECONNECT.record(&[metrics::outcome(&connected)], began.elapsed());
        connected
    }

    async fn connect_within_cap(&self, id: &SandboxId, timeout: Duration) -> Result<Sandbox, E2bError> {
        let timeout = self.cut(timeout);
        // The time-out is always said: without it the provider falls back to five minutes whatever was set before.
        let body = control::ConnectSandbox { timeout: Some(seconds(timeout)), ..Default::default() };
        let mut answer = Err(E2bError::NotFound { what: Subject::Route, message: Default::default() });
        if !self.state.is_v1() {
            answer = self.on(id, Method::POST, "/v2/sandboxes/", "/connect", Some(&body)).await;
        }
        if matches!(
            answer,
            Err(E2bError::NotFound { what: Subject::Route, .. } | E2bError::Refused { status: 405, .. })
        ) {
            answer = self.on(id, Method::POST, "/sandboxes/", "/connect", Some(&body)).await;
        }
        let answer = answer?;
        Sandbox::from_wire(answer.json("a connected sandbox")?, timeout, answer.status == 201)
    }

    /// What the provider knows about a sandbox. Works on paused ones.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it knows none.
    pub async fn get(&self, id: &SandboxId) -> Result<SandboxDetail, E2bError> {
        self.on::<()>(id, Method::GET, "/sandboxes/", "", None).await?.json("a sandbox")
    }

    /// All sandboxes that match, page by page, oldest page first as the provider orders them.
    ///
    /// # Errors
    /// Those of any control-plane call.
    pub async fn list(&self, filter: &ListFilter) -> Result<Vec<ListedSandbox>, E2bError> {
        const PAGE: usize = 100;
        // Far beyond any plan: a list that is longer goes in circles.
        const MOST: usize = 100_000;
        let mut found: Vec<ListedSandbox> = Vec::new();
        let mut next: Option<String> = None;
        let limit = filter.limit.unwrap_or(usize::MAX);
        while found.len() < limit {
            let mut call = Call::new(Method::GET, "/v2/sandboxes");
            call.subject = Subject::Route;
            call.query.push(("limit", PAGE.min(limit - found.len()).to_string()));
            if !filter.metadata.is_empty() {
                call.query.push(("metadata", control::encode_metadata(&filter.metadata)));
            }
            if !filter.states.is_empty() {
                let name = |state: &State| match state {
                    State::Running => "running",
                    State::Paused => "paused",
                };
                call.query.push(("state", filter.states.iter().map(name).collect::<Vec<_>>().join(",")));
            }
            if let Some(token) = next.take() {
                call.query.push(("nextToken", token));
            }
            let answer = self.control(call).await?;
            let page: Vec<ListedSandbox> = answer.json("a list of sandboxes")?;
            let was_empty = page.is_empty();
            found.extend(page);
            if found.len() > MOST {
                return Err(E2bError::Protocol { what: "a list of sandboxes without end", source: None });
            }
            next = answer
                .headers
                .get(header::NEXT_TOKEN)
                .and_then(|token| token.to_str().ok())
                .map(str::to_owned);
            if was_empty || next.as_deref().is_none_or(str::is_empty) {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Sets the end of a sandbox to now plus `timeout`, cut to the provider's cap. May shorten its life. Gives the life
    /// time that was set.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it does not run.
    pub async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<Duration, E2bError> {
        for last in [false, true] {
            let cut = self.cut(timeout);
            let body = control::SetTimeout { timeout: seconds(cut) };
            match self.on(id, Method::POST, "/sandboxes/", "/timeout", Some(&body)).await {
                Err(E2bError::TimeoutTooLong { cap }) if !last => self.state.learn_cap(cap),
                answer => return answer.map(|_| cut),
            }
        }
        Ok(timeout)
    }

    /// Extends the life of a sandbox to at least `duration` (at most an hour) from now; never shortens it.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it does not run.
    pub async fn refresh(&self, id: &SandboxId, duration: Duration) -> Result<(), E2bError> {
        let body = control::Refresh { duration: Some(seconds(duration).min(3600)) };
        self.on(id, Method::POST, "/sandboxes/", "/refreshes", Some(&body)).await.map(drop)
    }

    /// Pauses a sandbox; `false` when it was paused already. Close its streams first: one that stays open is silent for
    /// many minutes after the resume.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it is gone; [`E2bError::Conflict`] when the guest does not answer.
    pub async fn pause(&self, id: &SandboxId) -> Result<bool, E2bError> {
        let body = control::Pause::default();
        match self.on(id, Method::POST, "/sandboxes/", "/pause", Some(&body)).await {
            Ok(_) => Ok(true),
            Err(E2bError::Conflict { error_code: None, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends a sandbox, also a paused one; `false` when there was none.
    ///
    /// # Errors
    /// Those of any control-plane call, but never because the sandbox is gone.
    #[tracing::instrument(name = "e2b.kill", skip_all)]
    pub async fn kill(&self, id: &SandboxId) -> Result<bool, E2bError> {
        match self.on::<()>(id, Method::DELETE, "/sandboxes/", "", None).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_lost() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Replaces the whole egress policy of a running sandbox.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it does not run.
    pub async fn set_network(&self, id: &SandboxId, network: &NetworkPolicy) -> Result<(), E2bError> {
        self.on(id, Method::PUT, "/sandboxes/", "/network", Some(&network.egress())).await.map(drop)
    }

    /// Load, memory and disk, a point about every 5 s; empty right after the create.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when the sandbox is gone.
    pub async fn metrics(
        &self,
        id: &SandboxId,
        from: Option<DateTime<Utc>>,
        to: Option<DateTime<Utc>>,
    ) -> Result<Vec<Metric>, E2bError> {
        let mut call = Call::new(Method::GET, format!("/sandboxes/{}/metrics", check_id(id)?));
        call.id = Some(id.as_str());
        call.query.extend(from.map(|from| ("start", from.timestamp().to_string())));
        call.query.extend(to.map(|to| ("end", to.timestamp().to_string())));
        self.control(call).await?.json("metrics")
    }

    /// Keeps the sandbox as it is now as a template for new ones.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it is gone; [`E2bError::NotFound`] of a route where the provider has none.
    pub async fn snapshot(&self, id: &SandboxId, name: Option<&str>) -> Result<control::Snapshot, E2bError> {
        let body = control::CreateSnapshot { name: name.map(str::to_owned), memory: None };
        let mut call =
            Call::new(Method::POST, format!("/sandboxes/{}/snapshots", check_id(id)?)).json(&body)?;
        call.repeat = Repeat::IfNotDone;
        call.id = Some(id.as_str());
        self.control(call).await?.json("a snapshot")
    }

    /// Copies a running sandbox, memory included. One entry a copy: a sandbox, or the reason for its failure.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it is gone; [`E2bError::NotFound`] of a route where the provider has none.
    pub async fn fork(
        &self,
        id: &SandboxId,
        count: u32,
        timeout: Duration,
    ) -> Result<Vec<Result<Sandbox, E2bError>>, E2bError> {
        let timeout = self.cut(timeout);
        let body = control::Fork { count, timeout: Some(seconds(timeout)) };
        let mut call = Call::new(Method::POST, format!("/sandboxes/{}/fork", check_id(id)?)).json(&body)?;
        call.repeat = Repeat::IfNotDone;
        call.id = Some(id.as_str());
        let _turn = self.state.creates.turn().await?;
        let forks: Vec<control::Forked> = self.control(call).await?.json("forks")?;
        let hide = super::error::Hide::new(&self.endpoint, None, Some(id.as_str()));
        let each = forks.into_iter().map(|fork| match fork {
            control::Forked::Sandbox(sandbox) => Sandbox::from_wire(sandbox, timeout, false),
            control::Forked::Error(error) => {
                let body = serde_json::to_vec(&error).unwrap_or_default();
                Err(E2bError::from_control(error.code, None, &body, Subject::Sandbox, &hide))
            }
        });
        Ok(each.collect())
    }

    async fn on<B: serde::Serialize>(
        &self,
        id: &SandboxId,
        method: Method,
        before: &str,
        after: &str,
        body: Option<&B>,
    ) -> Result<Answer, E2bError> {
        let mut call = Call::new(method, format!("{before}{}{after}", check_id(id)?));
        if let Some(body) = body {
            call = call.json(body)?;
        }
        call.id = Some(id.as_str());
        self.control(call).await
    }

    fn cut(&self, timeout: Duration) -> Duration {
        self.state.cap().map_or(timeout, |cap| timeout.min(cap))
    }
}

/// Whole seconds, rounded up and at least 1: zero would mean "the default" to some and an error to others.
fn seconds(timeout: Duration) -> i64 {
    let up = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
    i64::try_from(up.max(1)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_create_is_closed_in_both_directions() {
        let (internet, network) = CreateSandbox::default().network.for_create();
        assert_eq!((internet, network.allow_public_traffic), (Some(false), Some(false)));
        assert_eq!(network.deny_out.unwrap(), ["0.0.0.0/0"]);
    }

    #[test]
    fn an_allow_list_denies_the_rest_at_create_and_at_update() {
        let policy = NetworkPolicy::AllowList(vec!["pypi.org".to_owned()]);
        let (internet, network) = policy.for_create();
        assert_eq!(
            (internet, network.allow_out.unwrap(), network.deny_out.unwrap()),
            (None, vec!["pypi.org".to_owned()], vec!["0.0.0.0/0".to_owned()])
        );
        assert_eq!(
            serde_json::to_string(&policy.egress()).unwrap(),
            r#"{"allowOut":["pypi.org"],"denyOut":["0.0.0.0/0"]}"#
        );
    }

    #[test]
    fn life_times_are_whole_seconds_and_never_zero() {
        for (millis, secs) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (600_000, 600)] {
            assert_eq!(seconds(Duration::from_millis(millis)), secs);
        }
        assert_eq!(seconds(Duration::MAX), i64::MAX);
    }

    #[test]
    fn an_old_composite_id_is_cut() {
        assert_eq!(sandbox_id("i7c0-6532622b").unwrap().as_str(), "i7c0");
        assert!(sandbox_id("").is_err() && sandbox_id("-x").is_err());
    }
}
