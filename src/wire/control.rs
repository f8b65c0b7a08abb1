//! The control plane: making, finding and ending sandboxes.
//!
//! Two versions of create live side by side. v2 (`POST /v2/sandboxes`, current SDKs) lives 300 s by default and is
//! always secured; v1 (`POST /sandboxes`, older SDKs) lives 15 s and is secured on request only.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ApiError;
use super::{Secret, nullable};

/// The life time of a sandbox made or connected by v2 without a `timeout`, in seconds.
pub const DEFAULT_TIMEOUT_V2_S: u64 = 300;
/// The life time of a sandbox made by v1 without a `timeout`, in seconds.
pub const DEFAULT_TIMEOUT_V1_S: u64 = 15;
/// The template of the code interpreter SDKs.
pub const CODE_INTERPRETER_TEMPLATE: &str = "code-interpreter-v1";
/// The template that the SDKs take for a sandbox with MCP servers.
pub const MCP_TEMPLATE: &str = "mcp-gateway";

/// `POST /v2/sandboxes` and `POST /sandboxes`.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateSandbox {
    /// Template id, alias or `namespace/name`, with an optional `:tag`.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Life time in seconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// At the end of the life time: pause instead of kill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    /// With [`auto_pause`](Self::auto_pause): false keeps the file system only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause_memory: Option<bool>,
    /// Whether traffic to a paused sandbox resumes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<AutoResume>,
    /// v1 only: whether envd asks for a token. v2 always does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
    /// False: no traffic out of the sandbox. Snake case on the wire, unlike its neighbours.
    #[serde(default, rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// Who may talk to whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Free pairs, for the list filter.
    #[serde(default, deserialize_with = "nullable")]
    pub metadata: BTreeMap<String, String>,
    /// Environment of every process in the sandbox.
    #[serde(default, deserialize_with = "nullable")]
    pub env_vars: BTreeMap<String, String>,
    /// MCP servers that the caller will start in the sandbox. Only stored by the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Value>,
    /// Workload identity tokens, passed through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iam: Option<Value>,
    /// Persistent volumes.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
}

/// Environment and MCP settings may hold keys, so the debug form leaves them out.
impl fmt::Debug for CreateSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateSandbox")
            .field("template_id", &self.template_id)
            .field("timeout", &self.timeout)
            .field("auto_pause", &self.auto_pause)
            .field("allow_internet_access", &self.allow_internet_access)
            .field("metadata", &self.metadata)
            .field("env_vars", &self.env_vars.len())
            .field("mcp", &self.mcp.is_some())
            .finish_non_exhaustive()
    }
}

/// Whether traffic resumes a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoResume {
    /// It does.
    pub enabled: bool,
}

/// A persistent volume and where it appears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The volume's name.
    pub name: String,
    /// An absolute directory in the sandbox.
    pub path: String,
}

/// The network policy of a sandbox. Allow wins over deny; a domain in [`allow_out`](Self::allow_out) needs
/// `0.0.0.0/0` in [`deny_out`](Self::deny_out), else the API answers 400.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// False: every port but envd's asks for the traffic token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// IP addresses, CIDR ranges or domains that may be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// IP addresses or CIDR ranges that may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// The `Host` header that a service in the sandbox sees; `${PORT}` is substituted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// Headers added on the way out, by domain; passed through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Value>,
    /// A proxy for traffic out of the sandbox; passed through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<Value>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    /// Ports that speak TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_ports: Option<Vec<u16>>,
}

/// `PUT /sandboxes/{id}/network`. Replaces the egress settings: what is left out is opened again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateNetwork {
    /// False: no traffic out of the sandbox.
    #[serde(default, rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// IP addresses, CIDR ranges or domains that may be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// IP addresses or CIDR ranges that may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// Headers added on the way out, by domain; passed through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Value>,
    /// A proxy for traffic out of the sandbox; passed through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<Value>,
}

/// The answer of create (201) and connect (200 was running, 201 was paused).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The template's id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The sandbox's id: `[a-z0-9]+`. Old servers append `-<client id>`; cut at the first `-`.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Deprecated, any text.
    #[serde(rename = "clientID", default)]
    pub client_id: String,
    /// The template's name.
    #[serde(default)]
    pub alias: Option<String>,
    /// The version of envd in the sandbox; the SDKs switch features on by it.
    #[serde(default)]
    pub envd_version: String,
    /// Needed on every envd request of a secured sandbox.
    #[serde(default)]
    pub envd_access_token: Option<Secret>,
    /// Needed on every other port when public traffic is off.
    #[serde(default)]
    pub traffic_access_token: Option<Secret>,
    /// The domain of this sandbox's hosts, when it is not the configured one.
    #[serde(default)]
    pub domain: Option<String>,
}

/// `POST /v2/sandboxes/{id}/connect` (`timeout` optional), `POST /sandboxes/{id}/connect` and
/// `POST /sandboxes/{id}/resume` (`timeout` required).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectSandbox {
    /// Life time in seconds from now. Connect only ever extends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// False resumes from the file system only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// Resume only, deprecated: `false` here once switched auto-pause off behind the caller's back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
}

/// Whether a sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It serves requests.
    Running,
    /// It is kept on disk; the data plane answers as if it were gone.
    Paused,
}

/// What happens at the end of the life time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// Traffic resumes it.
    #[serde(default)]
    pub auto_resume: bool,
    /// `kill` or `pause`.
    #[serde(default)]
    pub on_timeout: String,
}

/// `GET /sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    /// The template's id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The template's name.
    #[serde(default)]
    pub alias: Option<String>,
    /// The sandbox's id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Deprecated, any text.
    #[serde(rename = "clientID", default)]
    pub client_id: String,
    /// When it was made.
    pub started_at: DateTime<Utc>,
    /// When it will end.
    pub end_at: DateTime<Utc>,
    /// The version of envd.
    #[serde(default)]
    pub envd_version: String,
    /// As in [`Sandbox`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<Secret>,
    /// As in [`Sandbox`].
    #[serde(default)]
    pub domain: Option<String>,
    /// Virtual processors.
    #[serde(default)]
    pub cpu_count: u32,
    /// Memory in MiB.
    #[serde(rename = "memoryMB", default)]
    pub memory_mb: u64,
    /// Disk in MiB.
    #[serde(rename = "diskSizeMB", default)]
    pub disk_size_mb: u64,
    /// Running or paused.
    pub state: State,
    /// The pairs given at create.
    #[serde(default, deserialize_with = "nullable")]
    pub metadata: BTreeMap<String, String>,
    /// Whether traffic out is allowed at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// The network policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What happens at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Persistent volumes.
    #[serde(default, deserialize_with = "nullable")]
    pub volume_mounts: Vec<VolumeMount>,
}

/// One entry of `GET /v2/sandboxes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    /// The template's id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The template's name.
    #[serde(default)]
    pub alias: Option<String>,
    /// The sandbox's id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Deprecated, any text.
    #[serde(rename = "clientID", default)]
    pub client_id: String,
    /// When it was made.
    pub started_at: DateTime<Utc>,
    /// When it will end.
    pub end_at: DateTime<Utc>,
    /// The version of envd.
    #[serde(default)]
    pub envd_version: String,
    /// Virtual processors.
    #[serde(default)]
    pub cpu_count: u32,
    /// Memory in MiB.
    #[serde(rename = "memoryMB", default)]
    pub memory_mb: u64,
    /// Disk in MiB.
    #[serde(rename = "diskSizeMB", default)]
    pub disk_size_mb: u64,
    /// Running or paused.
    pub state: State,
    /// The pairs given at create.
    #[serde(default, deserialize_with = "nullable")]
    pub metadata: BTreeMap<String, String>,
    /// Persistent volumes.
    #[serde(default, deserialize_with = "nullable")]
    pub volume_mounts: Vec<VolumeMount>,
}

/// `POST /sandboxes/{id}/timeout`: the end becomes now plus this, which may shorten the life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetTimeout {
    /// Seconds from now.
    pub timeout: i64,
}

/// `POST /sandboxes/{id}/refreshes`: only ever extends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Refresh {
    /// Seconds from now, at most 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
}

/// `POST /sandboxes/{id}/pause`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// False keeps the file system only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// Refuse (409) when the guest does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_healthy_guest: Option<bool>,
}

/// `POST /sandboxes/{id}/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CreateSnapshot {
    /// A name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// False keeps the file system only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// A snapshot: a template to create sandboxes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its id, `<id>:<tag>`; usable as a template id.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Its names, `team/name:tag`.
    #[serde(default)]
    pub names: Vec<String>,
}

/// `POST /sandboxes/{id}/fork`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// How many, at most 100; 1 when absent.
    #[serde(default = "one")]
    pub count: u32,
    /// Life time of each in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

fn one() -> u32 {
    1
}

/// What became of one fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Forked {
    /// It runs.
    Sandbox(Sandbox),
    /// It could not be made.
    Error(ApiError),
}

/// One point of `GET /sandboxes/{id}/metrics`. All members are mandatory for the SDKs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// When.
    pub timestamp: DateTime<Utc>,
    /// When, in Unix seconds.
    pub timestamp_unix: i64,
    /// Virtual processors.
    pub cpu_count: u32,
    /// Load in percent of all of them.
    pub cpu_used_pct: f64,
    /// Memory used, bytes.
    pub mem_used: u64,
    /// Memory in all, bytes.
    pub mem_total: u64,
    /// Page cache, bytes.
    #[serde(default)]
    pub mem_cache: u64,
    /// Disk used, bytes.
    pub disk_used: u64,
    /// Disk in all, bytes.
    pub disk_total: u64,
}

/// Writes a metadata filter as the value of the query parameter `metadata`. The query's own encoding comes on top.
///
/// ```
/// use pathbox::wire::control::{decode_metadata, encode_metadata};
/// let pairs = std::collections::BTreeMap::from([("a b".to_owned(), "c&d".to_owned())]);
/// assert_eq!(encode_metadata(&pairs), "a%2520b=c%2526d");
/// assert_eq!(decode_metadata("a%2520b=c%2526d"), pairs);
/// ```
pub fn encode_metadata(pairs: &BTreeMap<String, String>) -> String {
    let twice = |text: &str| percent_encode(&percent_encode(text));
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{}={}", twice(key), twice(value))).collect();
    pairs.join("&")
}

/// Reads what [`encode_metadata`] writes, after the query itself has been decoded.
pub fn decode_metadata(value: &str) -> BTreeMap<String, String> {
    let twice = |text: &str| percent_decode(&percent_decode(&text.replace('+', " ")));
    let pairs = value.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (twice(k), twice(v))).collect()
}

/// Percent-encodes everything but `A-Z a-z 0-9 - _ . ~` (RFC 3986, unreserved).
pub fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Undoes [`percent_encode`]. A `%` that no two hex digits follow is literal; a `+` too.
pub fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|byte| char::from(*byte).to_digit(16));
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn create_reads_what_both_sdks_send_and_writes_no_nulls() {
        let python = r#"{"templateID":"code-interpreter-v1","metadata":{},"envVars":{}}"#;
        let javascript = r#"{"templateID":"code-interpreter-v1"}"#;
        let nulls = r#"{"templateID":"code-interpreter-v1","timeout":null,"metadata":null,"envVars":null,"network":null,"future":1}"#;
        let [python, javascript, nulls] =
            [python, javascript, nulls].map(|body| serde_json::from_str::<CreateSandbox>(body).unwrap());
        assert_eq!(python, javascript);
        assert_eq!(python, nulls);
        assert_eq!(
            serde_json::to_string(&python).unwrap(),
            r#"{"templateID":"code-interpreter-v1","metadata":{},"envVars":{}}"#
        );
    }

    #[test]
    fn the_full_create_body_round_trips() {
        let body = serde_json::json!({"templateID":"code-interpreter-v1","timeout":120,"autoPause":true,
            "autoResume":{"enabled":true},"allow_internet_access":false,
            "network":{"allowPublicTraffic":false,"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"]},
            "metadata":{"user":"42"},"envVars":{"TOKEN":"x"}});
        let create: CreateSandbox = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(serde_json::to_value(create).unwrap(), body);
    }

    #[test]
    fn answers_read_as_the_api_writes_them() {
        let sandbox: Sandbox = serde_json::from_str(
            r#"{"templateID":"nlhz","sandboxID":"i7c0","clientID":"6532622b","alias":"code-interpreter-v1",
            "envdVersion":"0.6.13","envdAccessToken":"a-secret","trafficAccessToken":null,"domain":null}"#,
        )
        .unwrap();
        assert_eq!(sandbox.envd_access_token.as_ref().unwrap().expose(), "a-secret");
        assert!(!format!("{sandbox:?}").contains("a-secret"));
        let detail: SandboxDetail = serde_json::from_str(
            r#"{"templateID":"n","alias":"c","sandboxID":"i7c0","clientID":"6","startedAt":"2026-08-20T10:00:00Z",
            "endAt":"2026-08-20T10:05:00.123456789Z","envdVersion":"0.6.13","envdAccessToken":"a-secret","domain":null,
            "cpuCount":2,"memoryMB":512,"diskSizeMB":23456,"state":"paused","metadata":{"user":"42"},
            "allowInternetAccess":true,"network":{"allowPublicTraffic":true},
            "lifecycle":{"autoResume":false,"onTimeout":"kill"},"volumeMounts":[],"pauseMode":"full"}"#,
        )
        .unwrap();
        assert_eq!(detail.state, State::Paused);
        let back: SandboxDetail = serde_json::from_str(&serde_json::to_string(&detail).unwrap()).unwrap();
        assert_eq!(back, detail);
        let forked: Vec<Forked> = serde_json::from_str(
            r#"[{"sandbox":{"templateID":"t","sandboxID":"i1","clientID":"","envdVersion":"0.6.13"}},
            {"error":{"code":429,"message":"m"}}]"#,
        )
        .unwrap();
        assert!(matches!(&forked[..], [Forked::Sandbox(_), Forked::Error(ApiError { code: 429, .. })]));
    }

    proptest! {
        #[test]
        fn any_metadata_survives_its_encoding(pairs in any::<BTreeMap<String, String>>()) {
            let value = encode_metadata(&pairs);
            prop_assert!(value.is_ascii());
            let read = if pairs.is_empty() { BTreeMap::new() } else { decode_metadata(&value) };
            prop_assert_eq!(read, pairs);
        }
    }
}
