//! Error bodies that are not Connect's: the control plane's, envd's plain HTTP, and the proxy's in front of a sandbox.
//!
//! The official SDKs decide by substrings of the proxy's messages, so those texts are part of the protocol.

use serde::{Deserialize, Serialize};

/// An error of the control plane, and of envd's plain HTTP routes. `code` and `message` are mandatory: the Python SDK
/// dies of a `KeyError` without them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// The HTTP status again. The JavaScript SDK decides by this one, the Python SDK by the status itself.
    pub code: u16,
    /// What went wrong, for people.
    pub message: String,
    /// What went wrong, for programs; see [`error_code`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

impl ApiError {
    /// An error without a machine code.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), error_code: None }
    }
}

/// Known values of [`ApiError::error_code`].
pub mod error_code {
    /// 503: no room for a sandbox now.
    pub const CAPACITY_UNAVAILABLE: &str = "sandbox_capacity_unavailable";
    /// 409: a create or resume of this sandbox is in progress.
    pub const START_IN_FLIGHT: &str = "sandbox_start_in_flight";
    /// 409 family: the same idempotency key came with other arguments.
    pub const IDEMPOTENCY_MISMATCH: &str = "idempotency_request_mismatch";
    /// 409 family: the first request with this idempotency key has not ended.
    pub const IDEMPOTENCY_IN_PROGRESS: &str = "idempotency_request_in_progress";
    /// 409 family: no one knows what became of the first request with this key.
    pub const IDEMPOTENCY_UNKNOWN: &str = "idempotency_outcome_unknown";
}

/// The proxy's answer (status 502) when nothing is behind a sandbox id or a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyError {
    /// The sandbox that was asked for.
    #[serde(rename = "sandboxId", default)]
    pub sandbox_id: String,
    /// [`SANDBOX_NOT_FOUND`] or [`PORT_NOT_OPEN`].
    pub message: String,
    /// The port, when it is the port that is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The HTTP status again: 502.
    pub code: u16,
}

/// The proxy knows no such running sandbox: killed, expired, crashed and paused look alike.
pub const SANDBOX_NOT_FOUND: &str = "The sandbox was not found";
/// The sandbox runs and nothing listens on the port.
pub const PORT_NOT_OPEN: &str = "The sandbox is running but port is not open";
/// What the official SDKs look for in the first message.
pub const NOT_FOUND_MARK: &str = "was not found";
/// What the official SDKs look for in the second.
pub const PORT_MARK: &str = "port is not open";

impl ProxyError {
    /// The answer for a sandbox that is not there.
    pub fn sandbox_not_found(sandbox_id: impl Into<String>) -> Self {
        Self { sandbox_id: sandbox_id.into(), message: SANDBOX_NOT_FOUND.to_owned(), port: None, code: 502 }
    }

    /// The answer for a port that no one listens on.
    pub fn port_not_open(sandbox_id: impl Into<String>, port: u16) -> Self {
        Self { sandbox_id: sandbox_id.into(), message: PORT_NOT_OPEN.to_owned(), port: Some(port), code: 502 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_what_the_official_sdks_match() {
        assert_eq!(
            serde_json::to_string(&ProxyError::sandbox_not_found("i1")).unwrap(),
            r#"{"sandboxId":"i1","message":"The sandbox was not found","code":502}"#
        );
        assert_eq!(
            serde_json::to_string(&ProxyError::port_not_open("i1", 49999)).unwrap(),
            r#"{"sandboxId":"i1","message":"The sandbox is running but port is not open","port":49999,"code":502}"#
        );
        assert!(SANDBOX_NOT_FOUND.contains(NOT_FOUND_MARK) && PORT_NOT_OPEN.contains(PORT_MARK));
        assert_eq!(serde_json::to_string(&ApiError::new(404, "x")).unwrap(), r#"{"code":404,"message":"x"}"#);
    }
}
