//! How a call to the provider fails, distinguished by what the caller can do about it.
//!
//! The provider reports "gone", "busy" and "no" in many wordings and on three layers (control plane, proxy, sandbox); this
//! file is the one place that reads them. No text here ever holds a key, a token, a sandbox id or a host.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use super::{Endpoint, SandboxAccess};
use crate::wire::connect::{Code, RpcError};
use crate::wire::error::{ApiError, NOT_FOUND_MARK, PORT_MARK, ProxyError, error_code};

/// A call to the provider did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum E2bError {
    /// A setting or an argument cannot work. Nothing was sent.
    #[error("`{what}` {problem}")]
    Setting {
        /// Which one.
        what: &'static str,
        /// The error in it.
        problem: String,
    },
    /// The key or token is missing or wrong. Check `E2B_API_KEY`.
    #[error("the sandbox provider did not accept the credentials: {0}")]
    Unauthenticated(ProviderText),
    /// The key is right and does not allow this.
    #[error("the sandbox provider forbids this: {0}")]
    Forbidden(ProviderText),
    /// The request makes no sense to the provider; the same one will fail again.
    #[error("the sandbox provider refused the request (status {status}): {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its message.
        message: ProviderText,
    },
    /// The life time is beyond the tier's. The client has learned the cap and uses it from now on.
    #[error("the sandbox provider allows a life time of at most {} s", cap.as_secs())]
    TimeoutTooLong {
        /// The longest that is allowed.
        cap: Duration,
    },
    /// The thing that was named does not exist.
    #[error("{what} not found: {message}")]
    NotFound {
        /// The kind of object.
        what: Subject,
        /// The provider's message.
        message: ProviderText,
    },
    /// The state of the thing does not allow this, now or at all.
    #[error("conflict with the state of the {what}: {message}")]
    Conflict {
        /// The kind of object.
        what: Subject,
        /// The provider's code for it, see [`crate::wire::error::error_code`].
        error_code: Option<String>,
        /// Its message.
        message: ProviderText,
    },
    /// Too many requests, or as many sandboxes as the plan allows. Nothing was done.
    #[error("the sandbox provider's limit is reached: {message}")]
    RateLimited {
        /// How long to wait, where the provider said so.
        retry_after: Option<Duration>,
        /// Its message.
        message: ProviderText,
    },
    /// The provider is there and cannot serve now. Retry later.
    #[error("the sandbox provider is busy (status {status}): {message}")]
    Busy {
        /// The HTTP status.
        status: u16,
        /// The provider's code for it. Without one the answer may come from something in front of it.
        error_code: Option<String>,
        /// How long to wait, where the provider said so.
        retry_after: Option<Duration>,
        /// Its message.
        message: ProviderText,
    },
    /// The provider failed in itself.
    #[error("the sandbox provider failed (status {status}): {message}")]
    Failed {
        /// The HTTP status.
        status: u16,
        /// Its message.
        message: ProviderText,
    },
    /// The sandbox is not there: killed, expired, crashed or paused. [`E2bClient::liveness`](super::E2bClient::liveness)
    /// says which.
    #[error("the sandbox is gone{}", if *.may_have_run { ", in the middle of a request" } else { "" })]
    Lost {
        /// Whether what was asked may have happened before.
        may_have_run: bool,
    },
    /// The sandbox runs and nothing listens on the port: still starting, or a template without that service.
    #[error("the sandbox runs and nothing listens on its port {port}")]
    PortClosed {
        /// The port.
        port: u16,
    },
    /// No connection came about; the request was never sent.
    #[error("the sandbox provider cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// The connection broke after the request was sent.
    #[error("the connection to the sandbox provider broke")]
    Broken {
        /// How.
        #[source]
        source: reqwest::Error,
        /// Whether what was asked may have happened.
        may_have_run: bool,
    },
    /// One of our clocks ended.
    #[error("{clock} ended after {:.1} s{}", after.as_secs_f64(), clock.advice())]
    TimedOut {
        /// Which clock.
        clock: Deadline,
        /// How long it ran.
        after: Duration,
        /// Whether what was asked may have happened, or may still happen.
        may_have_run: bool,
    },
    /// A stream ended without the event that ends every complete one: the interpreter crashed, or could not start.
    #[error("the interpreter's answer broke off after {events} events")]
    Incomplete {
        /// How many events came before.
        events: u64,
    },
    /// The interpreter was cut off by the platform in mid-run; side effects are unknown.
    #[error("the platform lost the interpreter in the middle of the run")]
    Interrupted,
    /// The interpreter of this language does not exist in the template.
    #[error("the sandbox has no interpreter for this language: {0}")]
    UnknownLanguage(ProviderText),
    /// An answer does not follow the protocol.
    #[error("the sandbox provider's answer does not parse: {what}")]
    Protocol {
        /// Which answer.
        what: &'static str,
        /// Why not.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// An answer is larger than allowed.
    #[error("{what} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// Which answer.
        what: &'static str,
        /// The limit.
        limit_bytes: usize,
    },
    /// envd refused a call.
    #[error("envd refused the call ({code}): {message}")]
    Rpc {
        /// Connect's code.
        code: Code,
        /// Its message.
        message: ProviderText,
    },
    /// A program that had to succeed in the sandbox did not.
    #[error("{what} failed in the sandbox with status {exit_code}: {message}")]
    Command {
        /// Which program.
        what: &'static str,
        /// Its exit status.
        exit_code: i32,
        /// What it wrote on standard error.
        message: ProviderText,
    },
    /// The provider failed so often that nothing is sent for a while.
    #[error("the sandbox provider is down; the next attempt is in {:.1} s", retry_after.as_secs_f64())]
    CircuitOpen {
        /// When it will be tried again.
        retry_after: Duration,
    },
    /// Too many creates wait already.
    #[error("the queue for new sandboxes is longer than {:.1} s", wait.as_secs_f64())]
    CreateQueueFull {
        /// How long this one would have waited.
        wait: Duration,
    },
}

/// The missing object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A sandbox.
    Sandbox,
    /// A template, or a snapshot to create from.
    Template,
    /// A code context.
    CodeContext,
    /// A file or directory.
    File,
    /// A process.
    Process,
    /// A route: the server is older than the call.
    Route,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sandbox => "sandbox",
            Self::Template => "template",
            Self::CodeContext => "code context",
            Self::File => "file",
            Self::Process => "process",
            Self::Route => "route",
        })
    }
}

/// Which clock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deadline {
    /// From asking for a connection until the answer's headers.
    Connect,
    /// From the headers until the interpreter took the code.
    Start,
    /// Silence: not even the keepalive that comes every 5 s.
    Stall,
    /// The whole execution.
    Overall,
    /// A whole request that is not an execution, with its repetitions.
    Request,
}

impl Deadline {
    fn advice(self) -> &'static str {
        match self {
            Self::Connect => "; the sandbox or its provider did not answer",
            Self::Start => "; the interpreter is still busy with earlier code, or stuck",
            Self::Stall => "; the sandbox stopped answering",
            Self::Overall => "; the code was interrupted",
            Self::Request => "; the provider did not answer in time",
        }
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "the connect deadline",
            Self::Start => "the start deadline",
            Self::Stall => "the silence deadline",
            Self::Overall => "the execution deadline",
            Self::Request => "the request deadline",
        })
    }
}

impl E2bError {
    /// The sandbox is gone, in any of the provider's wordings. What it held is lost, unless it is only paused.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::NotFound { what: Subject::Sandbox, .. })
    }

    /// Nothing answers at the other end: for a local host in another process this means that it is gone.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }

    /// The same call may succeed a little later. Look at [`may_have_run`](Self::may_have_run) before repeating code.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Busy { .. }
            | Self::PortClosed { .. }
            | Self::Unreachable(_)
            | Self::Broken { .. }
            | Self::CircuitOpen { .. }
            | Self::CreateQueueFull { .. } => true,
            Self::TimedOut { clock, .. } => matches!(clock, Deadline::Connect | Deadline::Request),
            Self::Failed { status, .. } => *status >= 500,
            Self::Rpc { code, .. } => matches!(code, Code::Unavailable | Code::ResourceExhausted),
            Self::Conflict { error_code, .. } => matches!(
                error_code.as_deref(),
                Some(error_code::START_IN_FLIGHT | error_code::IDEMPOTENCY_IN_PROGRESS)
            ),
            _ => false,
        }
    }

    /// What was asked for may have happened, in part or whole, or may still happen. Code must not be sent again then.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Lost { may_have_run } => *may_have_run,
            Self::Broken { may_have_run, .. } | Self::TimedOut { may_have_run, .. } => *may_have_run,
            Self::Incomplete { .. }
            | Self::Interrupted
            | Self::Protocol { .. }
            | Self::TooLarge { .. }
            | Self::Failed { .. }
            | Self::Command { .. } => true,
            // A gateway's 502, 503 or 504 may hide a server that did the work.
            Self::Busy { status, .. } => *status != 503,
            Self::Rpc { code, .. } => matches!(
                code,
                Code::Unknown
                    | Code::Internal
                    | Code::Unavailable
                    | Code::DeadlineExceeded
                    | Code::DataLoss
                    | Code::Canceled
                    | Code::Aborted
            ),
            _ => false,
        }
    }

    /// Which clock ended, for a time-out.
    pub fn clock(&self) -> Option<Deadline> {
        match self {
            Self::TimedOut { clock, .. } => Some(*clock),
            _ => None,
        }
    }

    /// How long the provider asks to wait before the next attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Busy { retry_after, .. } => *retry_after,
            Self::CircuitOpen { retry_after } => Some(*retry_after),
            _ => None,
        }
    }

    /// What the caller's operator can do about it, in a sentence.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Setting { .. } => "Correct the setting.",
            Self::Unauthenticated(_) => "Check E2B_API_KEY.",
            Self::Forbidden(_) => "Check what the key of E2B_API_KEY may do.",
            Self::NotFound { what: Subject::Template, .. } => {
                "Set `e2b.template` to a template that this key can see."
            }
            Self::NotFound { what: Subject::Route, .. } => {
                "The server is older than the call, or is not an E2B server: check E2B_DOMAIN and E2B_API_URL."
            }
            Self::PortClosed { port: crate::wire::INTERPRETER_PORT } => {
                "The sandbox runs without a code interpreter: set `e2b.template` to a template that was built with its \
                 start command, as `code-interpreter-v1` is."
            }
            // The local host names the Debian package of what its machine lacks.
            Self::UnknownLanguage(said) => match said.as_str().split("install Debian's package ").nth(1) {
                Some(package) if package.starts_with("python3") => {
                    "The host's machine has no Python that can be used: install Debian's package python3, or correct \
                     `host.python`, and restart the host."
                }
                Some(package) if package.starts_with("nodejs") => {
                    "The host's machine has no Node.js that can be used: install Debian's package nodejs and restart the host."
                }
                Some(package) if package.starts_with("bash") => {
                    "The host's machine has no Bash: install Debian's package bash and restart the host."
                }
                _ => "Use a language that the template has, or another template.",
            },
            Self::RateLimited { .. } => {
                "Try again later, end sandboxes that are not needed, or raise the plan's limit."
            }
            Self::CreateQueueFull { .. } => "Try again later; too many sandboxes are asked for at once.",
            Self::CircuitOpen { .. } | Self::Unreachable(_) => {
                "Try again in a few seconds; if it persists, check E2B_DOMAIN, E2B_API_URL and the provider's status."
            }
            Self::Command { .. } => "Look at the message; the sandbox's template may lack the program.",
            error if error.is_lost() => "Make a new sandbox; the contents of this one are lost.",
            error if error.is_retryable() && !error.may_have_run() => "Try again in a few seconds.",
            error if error.may_have_run() => "Check its effects before trying again.",
            _ => "The same request will fail again.",
        }
    }

    /// A short name for the kind, for metric labels and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Setting { .. } => "setting",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Forbidden(_) => "forbidden",
            Self::Refused { .. } => "refused",
            Self::TimeoutTooLong { .. } => "timeout_too_long",
            Self::NotFound { .. } => "not_found",
            Self::Conflict { .. } => "conflict",
            Self::RateLimited { .. } => "rate_limited",
            Self::Busy { .. } => "busy",
            Self::Failed { .. } => "failed",
            Self::Lost { .. } => "lost",
            Self::PortClosed { .. } => "port_closed",
            Self::Unreachable(_) => "unreachable",
            Self::Broken { .. } => "broken",
            Self::TimedOut { .. } => "timed_out",
            Self::Incomplete { .. } => "incomplete",
            Self::Interrupted => "interrupted",
            Self::UnknownLanguage(_) => "unknown_language",
            Self::Protocol { .. } => "protocol",
            Self::TooLarge { .. } => "too_large",
            Self::Rpc { .. } => "rpc",
            Self::Command { .. } => "command",
            Self::CircuitOpen { .. } => "circuit_open",
            Self::CreateQueueFull { .. } => "create_queue_full",
        }
    }

    /// The known cause without the provider's own words, for a log that must not repeat what a caller sent.
    pub fn facts(&self) -> String {
        match self {
            Self::Busy { status, .. } | Self::Failed { status, .. } => {
                format!("{} (status {status})", self.kind())
            }
            Self::Rpc { code, .. } => format!("{} ({code})", self.kind()),
            Self::Command { what, exit_code, .. } => format!("{what} failed with status {exit_code}"),
            Self::Unauthenticated(_)
            | Self::Forbidden(_)
            | Self::Refused { .. }
            | Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::RateLimited { .. }
            | Self::UnknownLanguage(_) => self.kind().to_owned(),
            other => crate::telemetry::chain(other),
        }
    }

    /// A failure of the transport. The address is taken out of the error: it names the sandbox.
    pub(super) fn transport(source: reqwest::Error, may_have_run: bool) -> Self {
        let source = source.without_url();
        if source.is_connect() { Self::Unreachable(source) } else { Self::Broken { source, may_have_run } }
    }

    pub(super) fn protocol(
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Protocol { what, source: Some(source.into()) }
    }

    /// Reads an error of the control plane.
    pub(super) fn from_control(
        status: u16,
        retry_after: Option<Duration>,
        body: &[u8],
        what: Subject,
        hide: &Hide<'_>,
    ) -> Self {
        let api = serde_json::from_slice::<ApiError>(body).ok();
        let code = api.as_ref().and_then(|api| api.error_code.clone());
        let raw = api.as_ref().map(|api| api.message.as_str());
        let message = hide.text(raw.map_or(body, str::as_bytes));
        match status {
            400 if let Some(cap) = raw.and_then(learn_cap) => Self::TimeoutTooLong { cap },
            401 => Self::Unauthenticated(message),
            403 => Self::Forbidden(message),
            // A body that is not the API's own comes from something in front of it that knows no such route.
            404 if api.is_none() => Self::NotFound { what: Subject::Route, message },
            404 => Self::NotFound { what, message },
            409 => Self::Conflict { what, error_code: code, message },
            429 => Self::RateLimited { retry_after, message },
            502..=504 => Self::Busy { status, error_code: code, retry_after, message },
            500.. => Self::Failed { status, message },
            _ => Self::Refused { status, message },
        }
    }

    /// Reads an error that the proxy, envd's plain HTTP or the interpreter gave to a data-plane request.
    pub(super) fn from_data(
        status: u16,
        retry_after: Option<Duration>,
        body: &[u8],
        port: u16,
        what: Subject,
        hide: &Hide<'_>,
    ) -> Self {
        let proxy = serde_json::from_slice::<ProxyError>(body).ok();
        let said =
            proxy.as_ref().map_or_else(|| String::from_utf8_lossy(body), |p| p.message.as_str().into());
        let message = hide.text(said.as_bytes());
        match status {
            502 if said.contains(PORT_MARK) => Self::PortClosed { port },
            502 if said.contains(NOT_FOUND_MARK) => Self::Lost { may_have_run: false },
            401 => Self::Unauthenticated(message),
            403 => Self::Forbidden(message),
            404 => Self::NotFound { what, message },
            409 => Self::Conflict { what: Subject::Sandbox, error_code: None, message },
            429 => Self::RateLimited { retry_after, message },
            500 if said.starts_with("Failed to create context") && said.contains("not available") => {
                Self::UnknownLanguage(message)
            }
            502..=504 => Self::Busy { status, error_code: None, retry_after, message },
            500.. => Self::Failed { status, message },
            _ => Self::Refused { status, message },
        }
    }

    /// Reads a Connect error. `unavailable` is also what a proxy's answer becomes, so its words decide.
    pub(super) fn from_rpc(error: &RpcError, what: Subject, hide: &Hide<'_>) -> Self {
        let message = hide.text(error.message.as_bytes());
        match error.code {
            Code::Unavailable if error.message.contains(NOT_FOUND_MARK) => Self::Lost { may_have_run: false },
            Code::NotFound => Self::NotFound { what, message },
            Code::Unauthenticated => Self::Unauthenticated(message),
            Code::PermissionDenied => Self::Forbidden(message),
            Code::ResourceExhausted => Self::RateLimited { retry_after: None, message },
            code => Self::Rpc { code, message },
        }
    }
}

/// Finds the cap in `Timeout cannot be greater than 1 hours`.
fn learn_cap(message: &str) -> Option<Duration> {
    let (_, rest) = message.split_once("cannot be greater than ")?;
    let mut words = rest.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let unit = match words.next()?.trim_end_matches(|c: char| !c.is_ascii_alphabetic()) {
        "hour" | "hours" => 3600,
        "minute" | "minutes" => 60,
        "second" | "seconds" => 1,
        _ => return None,
    };
    Some(Duration::from_secs(number.checked_mul(unit)?)).filter(|cap| !cap.is_zero())
}

/// What a provider said, made fit to be repeated: one line, at most 300 characters, no page of HTML, and none of the
/// keys, tokens, ids and hosts that the request knew.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct ProviderText(String);

impl ProviderText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a kind of failure, which holds nothing to hide.
    pub(super) fn from_kind(kind: &str) -> Self {
        Self(kind.to_owned())
    }
}

impl fmt::Display for ProviderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "no reason given" } else { &self.0 })
    }
}

impl fmt::Debug for ProviderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Text that must not appear in a provider's message.
#[derive(Default)]
pub(super) struct Hide<'a> {
    secrets: Vec<&'a str>,
    ids: Vec<&'a str>,
}

impl<'a> Hide<'a> {
    pub(super) fn new(
        endpoint: &'a Endpoint,
        access: Option<&'a SandboxAccess>,
        id: Option<&'a str>,
    ) -> Self {
        let mut hide = Self { secrets: vec![endpoint.api_key.expose()], ids: id.into_iter().collect() };
        if let Some(access) = access {
            hide.secrets
                .extend(access.envd_token.iter().chain(&access.traffic_token).map(|token| token.expose()));
            hide.ids.push(access.id.as_str());
        }
        hide.secrets.retain(|secret| !secret.is_empty());
        hide
    }

    pub(super) fn text(&self, raw: &[u8]) -> ProviderText {
        const MAX_CHARS: usize = 300;
        // Enough to hold what will be kept, so that a huge body costs nothing.
        let text = String::from_utf8_lossy(&raw[..raw.len().min(16 * MAX_CHARS)]);
        if text.trim_start().starts_with('<') {
            return ProviderText("an HTML page".to_owned());
        }
        let mut text = text.into_owned();
        for secret in &self.secrets {
            text = text.replace(secret, "[secret]");
        }
        for id in &self.ids {
            text = text.replace(id, "[sandbox]");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let clean: String = words.chars().filter(|c| !c.is_control()).collect();
        let mut text = hide_ids(&clean);
        if let Some((at, _)) = text.char_indices().nth(MAX_CHARS) {
            text.truncate(at);
            text.push('…');
        }
        ProviderText(text)
    }
}

/// Replaces what has the shape of a sandbox id (`i` and 20 of `a-z 0-9`), also of sandboxes that we never named.
fn hide_ids(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let is_id = word.len() == 21
            && word.starts_with('i')
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        out.push_str(if is_id { "[sandbox]" } else { word });
        let Some(separator) = after.chars().next() else { break };
        out.push(separator);
        rest = &after[separator.len_utf8()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Secret;

    #[test]
    fn the_cap_is_learned_from_the_message() {
        for (message, secs) in [
            ("Timeout cannot be greater than 1 hours", Some(3600)),
            ("400: Timeout cannot be greater than 24 hours.", Some(86_400)),
            ("Timeout cannot be greater than 90 minutes", Some(5_400)),
            ("Timeout must be greater than 0", None),
            ("cannot be greater than 0 hours", None),
            ("cannot be greater than 99999999999999999999 hours", None),
            ("cannot be greater than 18446744073709551615 hours", None),
        ] {
            assert_eq!(learn_cap(message), secs.map(Duration::from_secs), "{message}");
        }
    }

    #[test]
    fn a_provider_text_holds_no_secret_no_id_and_no_page() {
        let endpoint = Endpoint { api_key: Secret::new("e2b_secret"), ..Endpoint::default() };
        let hide = Hide::new(&endpoint, None, Some("ibx7"));
        let said = hide.text(
            b"Sandbox \"ibx7\" and i7c0q2m5x9d1k4w8t3r6u\n\x1b[31m at https://49999-i7c0q2m5x9d1k4w8t3r6u.e2b.app: e2b_secret",
        );
        assert_eq!(
            said.to_string(),
            "Sandbox \"[sandbox]\" and [sandbox] [31m at https://49999-[sandbox].e2b.app: [secret]"
        );
        assert_eq!(hide.text(b" <!doctype html><html>").to_string(), "an HTML page");
        assert_eq!(hide.text("é".repeat(1000).as_bytes()).as_str().chars().count(), 301);
        assert_eq!(hide.text(b"\n").to_string(), "no reason given");
    }

    #[test]
    fn one_status_in_different_wordings_is_different_errors() {
        let endpoint = Endpoint::default();
        let hide = Hide::new(&endpoint, None, None);
        let data = |status, body: &str| {
            E2bError::from_data(status, None, body.as_bytes(), 49999, Subject::CodeContext, &hide)
        };
        assert!(data(502, r#"{"sandboxId":"i","message":"The sandbox was not found","code":502}"#).is_lost());
        assert!(matches!(
            data(
                502,
                r#"{"sandboxId":"i","message":"The sandbox is running but port is not open","port":49999,"code":502}"#
            ),
            E2bError::PortClosed { port: 49999 }
        ));
        assert!(matches!(data(502, "<html>nginx</html>"), E2bError::Busy { status: 502, .. }));
        assert!(matches!(
            data(404, "Context x not found"),
            E2bError::NotFound { what: Subject::CodeContext, .. }
        ));
        let control = |status, body: &str| {
            E2bError::from_control(status, None, body.as_bytes(), Subject::Sandbox, &hide)
        };
        assert!(control(404, r#"{"code":404,"message":"Sandbox \"i\" doesn't exist"}"#).is_lost());
        assert!(!control(404, "404 page not found").is_lost());
        let error = RpcError::new(Code::Unavailable, "The sandbox was not found");
        assert!(E2bError::from_rpc(&error, Subject::Process, &hide).is_lost());
    }
}
