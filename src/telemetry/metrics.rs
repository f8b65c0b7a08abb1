//! Every instrument, named once, and their text for Prometheus (exposition format 0.0.4, or OpenMetrics 1.0). A name has dots, as
//! OpenTelemetry's have; Prometheus gets it as its own collectors would spell it, so that both ways in lead to one series.
//!
//! Instruments are statics, as log lines are: a number is counted where it arises, and no caller passes a registry
//! around. A label's value is a `&'static str`: it can only come out of the program's own closed sets, so that no
//! identifier, however it is spelled, can become a label.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

/// Contexts whose sandbox came to be.
pub static CONTEXTS_CREATED: Counter =
    Counter::new("execution_context.created", "Contexts whose sandbox was made.", &[]);
/// Contexts whose sandbox was ended, by why.
pub static CONTEXTS_TERMINATED: Counter =
    Counter::new("execution_context.terminated", "Contexts whose sandbox was ended, by reason.", &["reason"]);
/// Contexts of all tenants that live, as the database knows them when it is asked.
pub static CONTEXTS_ACTIVE: Gauge =
    Gauge::new("execution_context.active", "Live contexts of the whole deployment.");
/// Runs that ended, by language and by how.
pub static CODE_EXECUTIONS: Counter = Counter::new(
    "code_execution.total",
    "Runs that ended: completed, failed (the program), timed_out, cancelled, died, refused (it did not run).",
    &["language", "outcome"],
);
/// How long runs took in their sandbox.
pub static CODE_DURATION: Histogram =
    Histogram::new("code_execution.duration_ms", "Milliseconds of a run in its sandbox.", &["language"]);
/// Runs that could not be carried out, by error code.
pub static CODE_ERRORS: Counter =
    Counter::new("code_execution.errors", "Runs that could not be carried out, by error code.", &["kind"]);
/// How long runs waited for their context.
pub static QUEUE_WAIT: Histogram =
    Histogram::new("code_execution.queue_wait_ms", "Milliseconds that a run waited for its context.", &[]);
/// How long a sandbox took to be made.
pub static SANDBOX_CREATE: Histogram =
    Histogram::new("sandbox.create.duration_ms", "Milliseconds to make a sandbox.", &["outcome"]);
/// How long it took to reach a sandbox that was there.
pub static SANDBOX_RECONNECT: Histogram = Histogram::new(
    "sandbox.reconnect.duration_ms",
    "Milliseconds to connect to a sandbox again.",
    &["outcome"],
);
/// Sandboxes of this process's host that stand ready.
pub static POOL_SIZE: Gauge =
    Gauge::new("sandbox.pool_size", "Sandboxes of this process's own host that wait in the pool.");
/// Sandboxes of this process's host that live.
pub static HOST_LIVE: Gauge = Gauge::new(
    "host.sandboxes.live",
    "Sandboxes of this process's own host that live, paused ones included.",
);
/// Those that are paused.
pub static HOST_PAUSED: Gauge =
    Gauge::new("host.sandboxes.paused", "Sandboxes of this process's own host that are paused.");
/// How long the host took to make a sandbox.
pub static HOST_BIRTHS: Histogram = Histogram::new(
    "host.sandbox.birth.duration_ms",
    "Milliseconds in which this process's own host made a sandbox, those for the pool included.",
    &["outcome"],
);
/// Sandboxes of this process's host that ended, by why.
pub static HOST_ENDS: Counter = Counter::new(
    "host.sandbox.ends",
    "Sandboxes of this process's own host that ended: killed (on request), expired, oom, died (on its own), spawner (the spawner ended).",
    &["cause"],
);
/// Limits that were met.
pub static HOST_LIMITS: Counter = Counter::new(
    "host.sandbox.limits_met",
    "Limits of this process's own host that were met: sandboxes (a create was refused), ports (a request to a sandbox's \
     port), connections (an idle one was closed for a new one).",
    &["limit"],
);
/// Bytes that sandboxes exchanged with the network.
pub static HOST_EGRESS: Counter = Counter::new(
    "host.network.bytes",
    "Bytes between this process's own sandboxes and the network, both directions together.",
    &[],
);
/// Whether the process that makes sandboxes runs.
pub static HOST_SPAWNER_UP: Gauge =
    Gauge::new("host.spawner.up", "1 while the spawner runs, 0 while it is restarted.");
/// How often it was started again.
pub static HOST_SPAWNER_RESTARTS: Counter = Counter::new(
    "host.spawner.restarts",
    "How often the spawner ended and was restarted; all sandboxes end with it.",
    &[],
);
/// Which control groups hold the limits.
pub static HOST_CGROUPS: Gauge = Gauge::new(
    "host.control_groups",
    "The version of control groups that enforces the limits of sandboxes: 1, 2, or 0 for none.",
);
/// Open descriptors of the machine.
pub static HOST_FILES: Gauge =
    Gauge::new("host.machine.open_files", "Open files of the whole machine, as the kernel counts them.");
/// Sandboxes that no context owned, found and killed.
pub static SANDBOXES_LEAKED: Counter =
    Counter::new("sandbox.leaked", "Sandboxes without an owner that were found and killed.", &[]);
/// Contexts whose sandbox was gone.
pub static CONTEXTS_LOST: Counter =
    Counter::new("execution_context.lost", "Contexts whose sandbox was found to be gone.", &[]);
/// Sandboxes that could not be killed yet.
pub static KILLS_FAILED: Counter =
    Counter::new("sandbox.kill_failures", "Attempts to end a sandbox that failed and are repeated.", &[]);
/// Results that were not kept with their records while the database was away.
pub static RESULTS_DROPPED: Counter = Counter::new(
    "execution.results_dropped",
    "Results that were not kept because too many bytes waited for the database; their records were.",
    &[],
);
/// Requests to the object store that failed after all tries.
pub static OBJECTS_FAILED: Counter =
    Counter::new("objects.failures", "Requests to the object store that failed after all tries.", &[]);
/// Requests whose caller was not let in, by why.
pub static AUTH_REFUSED: Counter = Counter::new(
    "auth.refused",
    "Requests whose caller was refused, by what was wrong with the credential.",
    &["reason"],
);
/// Fetches of the OAuth issuer's keys, by outcome.
pub static AUTH_KEY_FETCHES: Counter =
    Counter::new("auth.key_fetches", "Fetches of the OAuth issuer's keys.", &["outcome"]);
/// What the guard found in results, by kind.
pub static GUARD_FINDINGS: Counter =
    Counter::new("guard.findings", "Findings of the egress guard, by kind.", &["kind"]);
/// What the guard let pass.
pub static GUARD_BYTES: Counter =
    Counter::new("guard.bytes", "Bytes of output that came through the egress guard.", &[]);
/// Changed policy files.
pub static GUARD_POLICY_RELOADS: Counter = Counter::new(
    "guard.policy_reloads",
    "Changes of the guard's policy file: loaded, refused (it is invalid, and the previous one stays in use).",
    &["outcome"],
);
/// Spans that no collector has got.
pub static SPANS_DROPPED: Counter = Counter::new(
    "otlp.spans_dropped",
    "Spans that were not exported: queue_full (the collector is too slow), not_taken (it is away or refuses them).",
    &["reason"],
);
/// How long the database took.
pub static DB_CLIENT: Histogram =
    Histogram::new("db.client.duration_ms", "Milliseconds of a call of the store.", &["operation"]);
/// Calls of the store that the database's state kept from being done.
pub static STORE_STATES: Counter = Counter::new(
    "store.not_done",
    "Calls of the store that were not carried out, by the database's state: away, busy, slow, read_only, full.",
    &["state"],
);
/// Runs that went without the store.
pub static RUNS_OFFLINE: Counter = Counter::new(
    "execution.offline",
    "Runs that began while the database was away, under an unexpired lease on their context.",
    &[],
);
/// Whether the database serves.
pub static DATABASE_UP: Gauge =
    Gauge::new("store.up", "1 while the database serves, 0 while it is away or takes no writes.");
/// How long the sandbox provider took.
pub static E2B_CLIENT: Histogram = Histogram::new(
    "e2b.client.duration_ms",
    "Milliseconds of a request to the sandbox provider: its control plane, or a sandbox's files and processes.",
    &["operation"],
);

/// Whether the provider's circuit is closed.
pub static PROVIDER_UP: Gauge = Gauge::new(
    "provider.up",
    "1 while requests are sent to the sandbox provider, 0 while its circuit is open, or there is none.",
);

/// Whether the guard works by its policy file.
pub static GUARD_POLICY_CURRENT: Gauge = Gauge::new(
    "guard.policy_current",
    "1 while the guard uses its current policy file, 0 after an invalid change of it.",
);

/// Connections of the HTTP listener.
pub static HTTP_CONNECTIONS: Gauge = Gauge::new("http.connections", "Open connections of the HTTP listener.");
/// Connections that it has room for.
pub static HTTP_CONNECTION_LIMIT: Gauge =
    Gauge::new("http.connections.limit", "Connections that the HTTP listener has room for.");
/// Connections that the listener closed, by why.
pub static HTTP_CONNECTIONS_CLOSED: Counter = Counter::new(
    "http.connections.closed",
    "Connections that the server closed: idle (no request for a minute), crowded (they made room for others).",
    &["reason"],
);
/// Requests that were refused before any handler saw them, by which limit.
pub static HTTP_REFUSED: Counter = Counter::new(
    "http.requests.refused",
    "Requests refused by a limit: connections (all in use), principal (too many open requests), rate (too many a minute).",
    &["limit"],
);
/// Calls from programs to tools of other servers.
pub static TOOL_CALLS: Counter = Counter::new(
    "tool_calls.total",
    "Calls from programs to tools of other servers, by outcome.",
    &["outcome"],
);

/// Workflows that have ended.
pub static WORKFLOWS: Counter =
    Counter::new("workflows.total", "Workflows that ended, by outcome.", &["status"]);
/// Runs of tasks of workflows.
pub static WORKFLOW_TASKS: Counter =
    Counter::new("workflow_tasks.total", "Runs of tasks of workflows, by outcome.", &["outcome"]);
/// Looks for kept results of hermetic tasks.
pub static WORKFLOW_CACHE: Counter = Counter::new(
    "workflow_cache.total",
    "Hermetic tasks that were looked for in the cache: hit (the kept result is used), miss (it is run).",
    &["outcome"],
);
/// From a workflow's begin to its end.
pub static WORKFLOW_DURATION: Histogram =
    Histogram::new("workflow.duration_ms", "Milliseconds of a workflow, waiting included.", &["status"]);
/// One run of a task.
pub static WORKFLOW_TASK_DURATION: Histogram = Histogram::new(
    "workflow_task.duration_ms",
    "Milliseconds of one run of a task, waiting for a sandbox included, by its type.",
    &["type"],
);
/// Workflows that this process drives.
pub static WORKFLOWS_DRIVEN: Gauge =
    Gauge::new("workflows.driven", "Workflows that this process drives at the moment.");

/// All of them, in the order in which they are written.
static COUNTERS: &[&Counter] = &[
    &CONTEXTS_CREATED,
    &CONTEXTS_TERMINATED,
    &CODE_EXECUTIONS,
    &CODE_ERRORS,
    &SANDBOXES_LEAKED,
    &CONTEXTS_LOST,
    &KILLS_FAILED,
    &RESULTS_DROPPED,
    &OBJECTS_FAILED,
    &AUTH_REFUSED,
    &AUTH_KEY_FETCHES,
    &GUARD_FINDINGS,
    &GUARD_BYTES,
    &GUARD_POLICY_RELOADS,
    &SPANS_DROPPED,
    &STORE_STATES,
    &RUNS_OFFLINE,
    &HTTP_CONNECTIONS_CLOSED,
    &HTTP_REFUSED,
    &TOOL_CALLS,
    &WORKFLOWS,
    &WORKFLOW_TASKS,
    &WORKFLOW_CACHE,
    &HOST_ENDS,
    &HOST_LIMITS,
    &HOST_EGRESS,
    &HOST_SPAWNER_RESTARTS,
];
static GAUGES: &[&Gauge] = &[
    &CONTEXTS_ACTIVE,
    &POOL_SIZE,
    &DATABASE_UP,
    &PROVIDER_UP,
    &GUARD_POLICY_CURRENT,
    &HTTP_CONNECTIONS,
    &HTTP_CONNECTION_LIMIT,
    &WORKFLOWS_DRIVEN,
    &HOST_LIVE,
    &HOST_PAUSED,
    &HOST_SPAWNER_UP,
    &HOST_CGROUPS,
    &HOST_FILES,
];
static HISTOGRAMS: &[&Histogram] = &[
    &CODE_DURATION,
    &QUEUE_WAIT,
    &SANDBOX_CREATE,
    &SANDBOX_RECONNECT,
    &WORKFLOW_DURATION,
    &WORKFLOW_TASK_DURATION,
    &HOST_BIRTHS,
    &DB_CLIENT,
    &E2B_CLIENT,
];

/// Upper bounds of the buckets, in milliseconds: from a warm call to the longest run.
pub(super) const BOUNDS: [u32; 14] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 120_000, 600_000];

/// The values of an instrument's labels, in the labels' order.
pub(super) type Values = Vec<&'static str>;

/// An instrument at a moment.
pub(super) struct Reading {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) data: Data,
}

/// What an instrument says, for each value of its labels.
pub(super) enum Data {
    /// A number that only grows.
    Counter(Vec<(Values, u64)>),
    /// A number that goes up and down.
    Gauge(Option<u64>),
    /// How many durations fell into each bucket, and their sum in milliseconds.
    Histogram(Vec<Durations>),
}

/// Durations under one set of label values.
pub(super) struct Durations {
    pub(super) values: Values,
    pub(super) counts: Vec<u64>,
    pub(super) sum: f64,
    exemplars: Vec<Option<Exemplar>>,
}

/// The latest duration of a bucket that belongs to a trace.
#[derive(Debug, Clone)]
struct Exemplar {
    trace: String,
    took: Duration,
    at: DateTime<Utc>,
}

/// Everything, as it is now.
pub(super) fn read() -> Vec<Reading> {
    let counters = COUNTERS.iter().map(|counter| counter.read());
    let gauges = GAUGES.iter().map(|gauge| gauge.read());
    counters.chain(gauges).chain(HISTOGRAMS.iter().map(|histogram| histogram.read())).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that only grows, for each value of its labels.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    cells: Mutex<BTreeMap<Values, u64>>,
}

impl Counter {
    const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, labels, cells: Mutex::new(BTreeMap::new()) }
    }

    /// Adds `n` under these label values, one for each label.
    pub fn add(&self, values: &[&'static str], n: u64) {
        debug_assert_eq!(values.len(), self.labels.len(), "{}", self.name);
        *lock(&self.cells).entry(values.to_vec()).or_default() += n;
    }

    /// What was counted under these values.
    pub fn get(&self, values: &[&'static str]) -> u64 {
        lock(&self.cells).get(values).copied().unwrap_or_default()
    }

    fn read(&self) -> Reading {
        let mut cells: Vec<_> =
            lock(&self.cells).iter().map(|(values, count)| (values.clone(), *count)).collect();
        if cells.is_empty() && self.labels.is_empty() {
            cells.push((Values::new(), 0));
        }
        Reading { name: self.name, help: self.help, labels: self.labels, data: Data::Counter(cells) }
    }
}

/// A number that goes up and down. Not written before it is set.
#[derive(Debug)]
pub struct Gauge {
    name: &'static str,
    help: &'static str,
    value: Mutex<Option<u64>>,
}

impl Gauge {
    const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, value: Mutex::new(None) }
    }

    /// Its current value; `None` when it is unknown.
    pub fn set(&self, value: impl Into<Option<u64>>) {
        *lock(&self.value) = value.into();
    }

    fn read(&self) -> Reading {
        Reading { name: self.name, help: self.help, labels: &[], data: Data::Gauge(*lock(&self.value)) }
    }
}

/// How long things took, in buckets.
#[derive(Debug)]
pub struct Histogram {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    cells: Mutex<BTreeMap<Values, Buckets>>,
}

#[derive(Debug, Default)]
struct Buckets {
    /// Not cumulative; the last one has no bound.
    counts: [u64; BOUNDS.len() + 1],
    exemplars: [Option<Exemplar>; BOUNDS.len() + 1],
    sum_us: u64,
}

impl Histogram {
    const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, labels, cells: Mutex::new(BTreeMap::new()) }
    }

    /// Takes note of one duration.
    pub fn record(&self, values: &[&'static str], took: Duration) {
        self.note(values, took, None);
    }

    /// Takes note of one duration, and of the trace in which it was, for its bucket.
    pub fn record_in(&self, values: &[&'static str], took: Duration, trace: String, at: DateTime<Utc>) {
        self.note(values, took, Some(Exemplar { trace, took, at }));
    }

    fn note(&self, values: &[&'static str], took: Duration, exemplar: Option<Exemplar>) {
        debug_assert_eq!(values.len(), self.labels.len(), "{}", self.name);
        let bucket = BOUNDS.iter().position(|bound| took <= Duration::from_millis(u64::from(*bound)));
        let bucket = bucket.unwrap_or(BOUNDS.len());
        let mut cells = lock(&self.cells);
        let cell = cells.entry(values.to_vec()).or_default();
        cell.counts[bucket] += 1;
        if exemplar.is_some() {
            cell.exemplars[bucket] = exemplar;
        }
        cell.sum_us = cell.sum_us.saturating_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Takes note of how long the returned value lives.
    pub fn time(&'static self, values: &'static [&'static str]) -> Timed {
        Timed { histogram: self, values, began: Instant::now() }
    }

    fn read(&self) -> Reading {
        let cell = |(values, buckets): (&Values, &Buckets)| {
            #[expect(
                clippy::cast_precision_loss,
                reason = "a sum of durations; microseconds of 285 years fit"
            )]
            let sum = buckets.sum_us as f64 / 1e3;
            Durations {
                values: values.clone(),
                counts: buckets.counts.to_vec(),
                sum,
                exemplars: buckets.exemplars.to_vec(),
            }
        };
        let cells = lock(&self.cells).iter().map(cell).collect();
        Reading { name: self.name, help: self.help, labels: self.labels, data: Data::Histogram(cells) }
    }
}

/// A duration that is being measured.
#[derive(Debug)]
#[must_use = "it measures until it is dropped"]
pub struct Timed {
    histogram: &'static Histogram,
    values: &'static [&'static str],
    began: Instant,
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.histogram.record(self.values, self.began.elapsed());
    }
}

/// The label of how something went.
pub fn outcome<T, E>(result: &Result<T, E>) -> &'static str {
    if result.is_ok() { "ok" } else { "error" }
}

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0, which has exemplars besides.
    OpenMetrics,
}

impl Format {
    /// What an `Accept` header asks for. Prometheus' own names OpenMetrics first.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Everything, as Prometheus reads it.
pub fn render(format: Format) -> String {
    let mut out = String::new();
    read().iter().for_each(|reading| reading.write(format, &mut out));
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

impl Reading {
    fn write(&self, format: Format, out: &mut String) {
        let mut name = self.name.replace('.', "_");
        let kind = match &self.data {
            Data::Counter(_) => "counter",
            Data::Gauge(_) => "gauge",
            Data::Histogram(_) => "histogram",
        };
        if kind == "counter" && !name.ends_with("_total") {
            name.push_str("_total");
        }
        // In OpenMetrics the samples of a counter end in `_total` and its name does not.
        let family = match format {
            Format::Prometheus => &name,
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(&name),
        };
        let _ = writeln!(out, "# HELP {family} {}\n# TYPE {family} {kind}", self.help);
        match &self.data {
            Data::Counter(cells) => {
                for (values, count) in cells {
                    let _ = writeln!(out, "{name}{} {count}", labels(self.labels, values, None));
                }
            }
            Data::Gauge(value) => {
                if let Some(value) = value {
                    let _ = writeln!(out, "{name} {value}");
                }
            }
            Data::Histogram(cells) => {
                for Durations { values, counts, sum, exemplars } in cells {
                    let mut below = 0;
                    for (at, (count, exemplar)) in counts.iter().zip(exemplars).enumerate() {
                        below += count;
                        let bound = BOUNDS.get(at).map_or("+Inf".to_owned(), |bound| match format {
                            Format::Prometheus => bound.to_string(),
                            Format::OpenMetrics => format!("{bound}.0"),
                        });
                        let labels = labels(self.labels, values, Some(&bound));
                        let _ = write!(out, "{name}_bucket{labels} {below}");
                        if let (Format::OpenMetrics, Some(Exemplar { trace, took, at })) = (format, exemplar)
                        {
                            let (ms, at) = (took.as_secs_f64() * 1e3, at.timestamp());
                            let _ = write!(out, " # {{trace_id=\"{trace}\"}} {ms} {at}");
                        }
                        out.push('\n');
                    }
                    let labels = labels(self.labels, values, None);
                    let _ = writeln!(out, "{name}_sum{labels} {sum}\n{name}_count{labels} {below}");
                }
            }
        }
    }
}

/// Label values are words of the program, so there is nothing in them to escape.
fn labels(names: &[&str], values: &[&'static str], bound: Option<&str>) -> String {
    let pairs = names.iter().copied().zip(values.iter().copied()).chain(bound.map(|bound| ("le", bound)));
    let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_a_line_for_each_value_and_a_histogram_cumulative_buckets() {
        static C: Counter = Counter::new("c.d", "Help.", &["kind"]);
        static H: Histogram = Histogram::new("h_ms", "Help.", &["op"]);
        C.add(&["b"], 2);
        C.add(&["a"], 1);
        C.add(&["b"], 1);
        let mut out = String::new();
        C.read().write(Format::Prometheus, &mut out);
        assert_eq!(
            out,
            "# HELP c_d_total Help.\n# TYPE c_d_total counter\nc_d_total{kind=\"a\"} 1\nc_d_total{kind=\"b\"} 3\n"
        );
        for ms in [1, 3, 3, 700_000] {
            H.record(&["x"], Duration::from_millis(ms));
        }
        let mut out = String::new();
        H.read().write(Format::Prometheus, &mut out);
        for line in [
            "h_ms_bucket{op=\"x\",le=\"1\"} 1",
            "h_ms_bucket{op=\"x\",le=\"5\"} 3",
            "h_ms_bucket{op=\"x\",le=\"600000\"} 3",
            "h_ms_bucket{op=\"x\",le=\"+Inf\"} 4",
            "h_ms_sum{op=\"x\"} 700007",
            "h_ms_count{op=\"x\"} 4",
        ] {
            assert!(out.contains(&format!("{line}\n")), "{line}:\n{out}");
        }
    }

    #[test]
    fn openmetrics_has_the_latest_trace_of_a_bucket() {
        static C: Counter = Counter::new("e.c", "Help.", &[]);
        static H: Histogram = Histogram::new("e_ms", "Help.", &["op"]);
        let at = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        H.record_in(&["x"], Duration::from_millis(3), "a".repeat(32), at);
        H.record_in(&["x"], Duration::from_micros(4_500), "b".repeat(32), at);
        H.record(&["x"], Duration::from_millis(4));
        let mut out = String::new();
        C.read().write(Format::OpenMetrics, &mut out);
        H.read().write(Format::OpenMetrics, &mut out);
        for line in [
            "# TYPE e_c counter",
            "e_c_total 0",
            "e_ms_bucket{op=\"x\",le=\"2.0\"} 0",
            "e_ms_bucket{op=\"x\",le=\"5.0\"} 3 # {trace_id=\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"} 4.5 1800000000",
            "e_ms_bucket{op=\"x\",le=\"+Inf\"} 3",
        ] {
            assert!(out.contains(&format!("{line}\n")), "{line}:\n{out}");
        }
        let mut plain = String::new();
        H.read().write(Format::Prometheus, &mut plain);
        assert!(!plain.contains("trace_id"), "{plain}");
        assert!(render(Format::OpenMetrics).ends_with("\n# EOF\n"));
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
    }

    #[test]
    fn every_instrument_is_written_once_also_before_it_counts_anything() {
        let text = render(Format::Prometheus);
        let mut names: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(names.len(), COUNTERS.len() + GAUGES.len() + HISTOGRAMS.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNTERS.len() + GAUGES.len() + HISTOGRAMS.len());
    }
}
