//! Settings of the export of spans and metrics.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::load::{ConfigError, Values};
use super::settings::{Setting, plain, secret};
use crate::telemetry::export::{Options, Target};
use crate::wire::control::percent_decode;

/// Their rows, in the order of the reference page.
pub(super) const SETTINGS: &[Setting] = &[
    plain(
        "otel.endpoint",
        &["OTEL_EXPORTER_OTLP_ENDPOINT", "PATHBOX_OTEL_ENDPOINT"],
        "",
        "an http or https URL without user, query and fragment",
        "The OpenTelemetry collector that spans and metrics go to, as OTLP over HTTP with protobuf at <endpoint>/v1/traces and /v1/metrics; nothing is exported when not set.",
    ),
    plain(
        "otel.protocol",
        &["OTEL_EXPORTER_OTLP_PROTOCOL", "PATHBOX_OTEL_PROTOCOL"],
        "http/protobuf",
        "http/protobuf",
        "The protocol of the collector; its port is usually 4318.",
    ),
    secret(
        "otel.headers",
        &["OTEL_EXPORTER_OTLP_HEADERS", "PATHBOX_OTEL_HEADERS"],
        "name=value pairs, comma-separated, values percent-encoded",
        "Headers of each request to the collector, such as its key.",
    ),
    plain(
        "otel.traces_endpoint",
        &["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "PATHBOX_OTEL_TRACES_ENDPOINT"],
        "",
        "an http or https URL without user and fragment",
        "The complete address that spans are sent to, instead of <otel.endpoint>/v1/traces.",
    ),
    plain(
        "otel.metrics_endpoint",
        &["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "PATHBOX_OTEL_METRICS_ENDPOINT"],
        "",
        "an http or https URL without user and fragment",
        "The complete address that metrics are sent to, instead of <otel.endpoint>/v1/metrics.",
    ),
    secret(
        "otel.traces_headers",
        &["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "PATHBOX_OTEL_TRACES_HEADERS"],
        "as otel.headers",
        "Headers of the requests with spans, instead of `otel.headers`.",
    ),
    secret(
        "otel.metrics_headers",
        &["OTEL_EXPORTER_OTLP_METRICS_HEADERS", "PATHBOX_OTEL_METRICS_HEADERS"],
        "as otel.headers",
        "Headers of the requests with metrics, instead of `otel.headers`.",
    ),
    plain(
        "otel.compression",
        &["OTEL_EXPORTER_OTLP_COMPRESSION", "PATHBOX_OTEL_COMPRESSION"],
        "none",
        "none or gzip",
        "How requests to the collector are compressed.",
    ),
    plain(
        "otel.service_name",
        &["OTEL_SERVICE_NAME", "PATHBOX_OTEL_SERVICE_NAME"],
        "pathbox",
        "1 to 255 characters",
        "The name under which this service reports.",
    ),
    plain(
        "otel.timeout_ms",
        &["OTEL_EXPORTER_OTLP_TIMEOUT", "PATHBOX_OTEL_TIMEOUT_MS"],
        "10000",
        "1 to 600000 (milliseconds)",
        "How long a request to the collector may take. No call waits for it.",
    ),
    plain(
        "otel.metric_interval_ms",
        &["OTEL_METRIC_EXPORT_INTERVAL", "PATHBOX_OTEL_METRIC_INTERVAL_MS"],
        "60000",
        "100 to 86400000 (milliseconds)",
        "Time between two reports of the metrics.",
    ),
    plain(
        "otel.disabled",
        &["OTEL_SDK_DISABLED", "PATHBOX_OTEL_DISABLED"],
        "false",
        "true or false",
        "Export nothing even if a collector is set.",
    ),
];

impl Values {
    /// Where spans and metrics go. Values are looked at also when nothing is exported.
    pub(super) fn export(&self) -> Result<Option<Options>, ConfigError> {
        let base = self.collector("otel.endpoint")?;
        let target = |endpoint, headers, path: &str| {
            let headers = match self.text(headers) {
                Some(_) => self.headers(headers)?,
                None => self.headers("otel.headers")?,
            };
            let url = self.collector(endpoint)?.or_else(|| base.as_ref().map(|base| format!("{base}{path}")));
            Ok(url.map(|url| Target { url, headers }))
        };
        let options = Options {
            traces: target("otel.traces_endpoint", "otel.traces_headers", "/v1/traces")?,
            metrics: target("otel.metrics_endpoint", "otel.metrics_headers", "/v1/metrics")?,
            gzip: self.one_of("otel.compression", &[("none", false), ("gzip", true)])?,
            service: self.service()?,
            timeout: self.millis("otel.timeout_ms", 1, 600_000)?,
            metric_interval: self.millis("otel.metric_interval_ms", 100, 86_400_000)?,
        };
        // Others on this machine may speak another to theirs.
        let has_target = options.targets().next().is_some();
        if has_target {
            self.one_of("otel.protocol", &[("http/protobuf", ())])?;
        }
        let is_off = self.boolean("otel.disabled")? || !has_target;
        Ok((!is_off).then_some(options))
    }

    fn collector(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(text) = self.url(key)? else { return Ok(None) };
        let url = reqwest::Url::parse(&text).map_err(|error| self.invalid(key, error.to_string()))?;
        // The address is printed and logged.
        let problem = match () {
            () if !url.username().is_empty() || url.password().is_some() => {
                "it names a user; a credential belongs into `otel.headers`"
            }
            () if url.fragment().is_some() || (url.query().is_some() && key == "otel.endpoint") => {
                "paths cannot be added to it"
            }
            () => return Ok(Some(text)),
        };
        Err(self.invalid(key, problem))
    }

    fn service(&self) -> Result<String, ConfigError> {
        let name = self.get("otel.service_name").trim();
        match name.chars().count() {
            1..=255 if !name.chars().any(char::is_control) => Ok(name.to_owned()),
            _ => Err(self.invalid("otel.service_name", "it is not a service name")),
        }
    }

    /// As <https://opentelemetry.io/docs/specs/otel/protocol/exporter/> has it: the form of W3C Baggage. No message
    /// repeats a value.
    fn headers(&self, key: &'static str) -> Result<HeaderMap, ConfigError> {
        let mut headers = HeaderMap::new();
        for (at, pair) in self.list(key).iter().enumerate() {
            let nth = at + 1;
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| self.invalid(key, format!("entry {nth} has no equals sign")))?;
            let name = HeaderName::try_from(name.trim())
                .map_err(|_| self.invalid(key, format!("the name of entry {nth} is not a header name")))?;
            let mut value = HeaderValue::try_from(percent_decode(value.trim()))
                .map_err(|_| self.invalid(key, format!("the value of entry {nth} cannot be sent")))?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Sources;

    fn load(env: &[(&str, &str)]) -> Result<Option<Options>, ConfigError> {
        let environment = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let environment: BTreeMap<_, _> = environment.chain([("HOME".to_owned(), "/h".to_owned())]).collect();
        let sources = Sources { environment, ..Sources::default() };
        Values::read(&sources)?.config(&sources.environment).map(|config| config.telemetry.export)
    }

    #[test]
    fn nothing_is_exported_unless_a_collector_is_named_and_export_is_not_off() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/");
        assert_eq!(load(&[]).unwrap(), None);
        assert_eq!(load(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap(), None);
        assert_eq!(load(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap(), None);
        let options = load(&[endpoint, ("OTEL_SERVICE_NAME", "box")]).unwrap().unwrap();
        let urls: Vec<&str> = options.targets().map(|target| target.url.as_str()).collect();
        assert_eq!(urls, ["http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/metrics"]);
        assert!(!options.gzip);
        assert_eq!((options.service.as_str(), options.timeout), ("box", std::time::Duration::from_secs(10)));
    }

    #[test]
    fn headers_are_decoded_and_shown_nowhere() {
        let headers = "api-key=s3cret%20with%3Dsigns, x-tenant = a";
        let options = load(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector"),
            ("OTEL_EXPORTER_OTLP_HEADERS", headers),
        ]);
        let options = options.unwrap().unwrap();
        for target in options.targets() {
            assert_eq!(target.headers["api-key"], "s3cret with=signs");
            assert_eq!(target.headers["x-tenant"], "a");
        }
        assert!(!format!("{options:?}").contains("s3cret"));
        for bad in ["s3cret", "ok=1,na me=s3cret", "=s3cret", "n=s3cret%0A"] {
            let error = load(&[("OTEL_EXPORTER_OTLP_HEADERS", bad)]).unwrap_err().to_string();
            assert!(error.contains("`otel.headers`") && !error.contains("s3cret"), "{bad}: {error}");
        }
    }

    #[test]
    fn one_kind_of_data_may_go_elsewhere_or_alone() {
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces/api/spans?tenant=1");
        let options = load(&[traces, ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")]).unwrap().unwrap();
        assert_eq!(options.traces.unwrap().url, "https://traces/api/spans?tenant=1");
        assert!(options.metrics.is_none() && options.gzip);
        let options = load(&[
            traces,
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=all"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "key=s3cret"),
        ]);
        let options = options.unwrap().unwrap();
        assert!(!format!("{options:?}").contains("s3cret"));
        assert_eq!(options.traces.unwrap().headers["key"], "s3cret");
        let metrics = options.metrics.unwrap();
        assert_eq!(
            (metrics.url.as_str(), &metrics.headers["key"]),
            ("http://all/v1/metrics", &HeaderValue::from_static("all"))
        );
    }

    #[test]
    fn an_impossible_value_names_the_setting_and_what_is_allowed() {
        for (name, value, key) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "otel.endpoint"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:p4ss@collector", "otel.endpoint"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector?x=1", "otel.endpoint"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://u:p4ss@collector", "otel.traces_endpoint"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "otel.compression"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "otel.protocol"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "otel.timeout_ms"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "otel.metric_interval_ms"),
            ("OTEL_SERVICE_NAME", "a\nb", "otel.service_name"),
            ("OTEL_SDK_DISABLED", "perhaps", "otel.disabled"),
        ] {
            let good = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
            let error = load(&[good, (name, value)]).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}` (environment {name})")), "{error}");
            assert!(error.contains("; allowed: ") && !error.contains("p4ss"), "{error}");
        }
    }
}
