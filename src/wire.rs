//! The E2B wire protocol as plain values: what the client in `e2b` sends and the local host answers.
//!
//! Every message reads and writes, so both ends share one definition. Unknown members are ignored everywhere,
//! because both sides are newer or older than the other. Nothing here does I/O.
//!
//! | module | speaks of |
//! | --- | --- |
//! | [`control`] | the sandboxes API: create, connect, list, time-out, pause, metrics |
//! | [`interpreter`] | port 49999: `/execute` and its events, code contexts |
//! | [`envd`] | port 49983: processes and files |
//! | [`connect`] | Connect RPC: envelopes, codes, errors |
//! | [`error`] | error bodies of the control plane and of the proxy in front of a sandbox |
//! | [`json`] | JSON the way Python writes it: ASCII only |
//! | [`text`] | bytes cut anywhere -> text |

pub mod connect;
pub mod control;
pub mod envd;
pub mod error;
pub mod interpreter;
pub mod json;
mod output;
pub mod text;

use serde::{Deserialize, Deserializer};

pub use crate::domain::Secret;

/// The port of envd inside a sandbox: files and processes.
pub const ENVD_PORT: u16 = 49983;
/// The port of the code interpreter inside a sandbox.
pub const INTERPRETER_PORT: u16 = 49999;
/// The port of the MCP gateway inside a sandbox.
pub const MCP_PORT: u16 = 50005;
/// The port of the Jupyter server behind the code interpreter.
pub const JUPYTER_PORT: u16 = 8888;
/// The envd version that this implementation follows: every feature gate of the official SDKs is on.
pub const ENVD_VERSION: &str = "0.6.13";

/// Names of the headers, in lower case.
pub mod header {
    /// The team's key, on the control plane.
    pub const API_KEY: &str = "x-api-key";
    /// Makes a create safe to repeat (v2): 1 to 255 characters of `a-z 0-9 -`.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// Which sandbox a data-plane request is for.
    pub const SANDBOX_ID: &str = "e2b-sandbox-id";
    /// Which port of the sandbox. Its presence tells a data-plane request from a control-plane one.
    pub const SANDBOX_PORT: &str = "e2b-sandbox-port";
    /// The sandbox's envd token.
    pub const ACCESS_TOKEN: &str = "x-access-token";
    /// The sandbox's traffic token, needed on every port but envd's when public traffic is off.
    pub const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
    /// Where the next page of a list starts; absent on the last page.
    pub const NEXT_TOKEN: &str = "x-next-token";
    /// How often an envd stream should send a keepalive, in seconds.
    pub const KEEPALIVE_INTERVAL: &str = "keepalive-ping-interval";
    /// Connect's deadline in milliseconds. On `process.Process/Start` it is also the life time of the process.
    pub const CONNECT_TIMEOUT: &str = "connect-timeout-ms";
    /// W3C Trace Context: which trace a request belongs to.
    pub const TRACEPARENT: &str = "traceparent";
    /// What tracing systems along the way have added to it.
    pub const TRACESTATE: &str = "tracestate";
    /// Connect's version, always `1`.
    pub const CONNECT_VERSION: &str = "connect-protocol-version";
}

/// An envd version, comparable. Anything after the third number is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64, pub u64, pub u64);

impl Version {
    /// Reads `0.6.13`, `v0.5`, `1.2.3-rc1`. `None` when no number leads.
    ///
    /// ```
    /// use pathbox::wire::Version;
    /// assert_eq!(Version::parse("0.6.13"), Some(Version(0, 6, 13)));
    /// assert!(Version::parse("0.10.0") > Version::parse("0.9.9"));
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim_start_matches('v').splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse::<u64>().ok()
        });
        Some(Self(parts.next()??, parts.next().flatten().unwrap_or(0), parts.next().flatten().unwrap_or(0)))
    }
}

/// `null` reads as the default: the Python SDK sends nulls where the JavaScript one leaves members out.
pub(crate) fn nullable<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_nothing_and_still_travels() {
        let secret = Secret::new("e2b_0123");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"e2b_0123\"");
        assert!(secret.matches("e2b_0123"));
        for other in ["", "e2b_0124", "e2b_012", "e2b_01234"] {
            assert!(!secret.matches(other), "{other}");
        }
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(Version::parse("0.5.7") < Version::parse("0.5.12"));
        assert_eq!(Version::parse("1"), Some(Version(1, 0, 0)));
        assert_eq!(Version::parse("0.6.2-dev+3"), Some(Version(0, 6, 2)));
        assert_eq!(Version::parse("dev"), None);
    }
}
