//! Spans and metrics to a collector, by OTLP over HTTP (<https://opentelemetry.io/docs/specs/otlp/>).
//!
//! Ending a span only puts it into a queue of bounded length: what the collector does can cost a span, never a call. One
//! task sends what is in the queue, and every so often what the instruments say. Only spans of this program go out, with
//! the fields that they name; log lines do not.

use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1 as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource as OtlpResource;
use opentelemetry_proto::transform::common::tonic::{Attributes, ResourceAttributesWithSchema};
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SdkTracerProvider, Span, SpanData, SpanProcessor,
};
use prost::Message;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Client, StatusCode};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use super::metrics::{self, BOUNDS, Data, Durations, Reading, SPANS_DROPPED};

/// Where spans and metrics go, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where spans go; nowhere when left out.
    pub traces: Option<Target>,
    /// Where metrics go; nowhere when left out.
    pub metrics: Option<Target>,
    /// Whether what goes out is compressed by gzip.
    pub gzip: bool,
    /// The name that this service goes by.
    pub service: String,
    /// How long a request may take.
    pub timeout: Duration,
    /// Between two reports of the metrics.
    pub metric_interval: Duration,
}

/// Where one kind of data goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The whole address.
    pub url: String,
    /// Headers of each request. Their values are marked as sensitive.
    pub headers: HeaderMap,
}

impl Options {
    /// Where anything goes.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.traces.iter().chain(&self.metrics)
    }
}

/// Spans that wait at most; the next ones are dropped and counted.
const QUEUE: usize = 2048;
/// Spans in one request.
const BATCH: usize = 512;
/// How long a batch that is not full waits for more.
const GATHERING: Duration = Duration::from_secs(1);
/// Between the attempts to send one batch.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// A collector that asks for a longer pause waits in vain.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long the last spans and metrics may take at the end of the process.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Between two log lines about a collector that does not take what it should.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes of a collector's answer that are read.
const MAX_ANSWER: usize = 64 * 1024;

/// The one exporter of the process, as there is one subscriber.
static RUNNING: OnceLock<Running> = OnceLock::new();

struct Running {
    closing: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// Starts the task that sends, on the runtime at hand, and gives the layer that feeds it.
///
/// # Errors
/// In words, when the machine's certificates cannot be loaded.
pub(super) fn start<S>(options: &Options) -> Result<impl Layer<S> + use<S>, String>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let resource = resource(options);
    let (sender, queue) = mpsc::channel(QUEUE);
    let collector = Collector::new(options.clone(), &resource)?;
    let closing = CancellationToken::new();
    let running = Running { closing: closing.clone(), task: Mutex::new(None) };
    if RUNNING.set(running).is_ok() {
        let task = tokio::spawn(async move {
            tokio::join!(collector.send_spans(queue, &closing), collector.send_metrics(&closing));
        });
        if let Some(running) = RUNNING.get() {
            *running.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
    }
    let provider =
        SdkTracerProvider::builder().with_resource(resource).with_span_processor(Queue(sender)).build();
    // Without a limit on the level, each crate's debug lines would be looked at.
    let ours = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("pathbox"))
        .with_max_level_hint(LevelFilter::DEBUG);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("pathbox"))
        .with_location(false)
        .with_target(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false);
    Ok(layer.with_filter(ours))
}

/// Sends what is left, within a second. Nothing is exported after it.
pub async fn finish() {
    let Some(running) = RUNNING.get() else { return };
    running.closing.cancel();
    let task = running.task.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(task) = task
        && timeout(LAST_WORDS, task).await.is_err()
    {
        tracing::warn!("the collector did not take the last spans and metrics in time");
    }
}

/// Asks the collector to take nothing, both as spans and as metrics. Gives how long its answers took.
///
/// # Errors
/// What is wrong with its answer, in words.
pub async fn probe(options: &Options) -> Result<Duration, String> {
    let collector = Collector::new(options.clone(), &resource(options))?;
    let began = Instant::now();
    for target in options.targets() {
        let asked = collector.post(target, Vec::new()).await;
        asked.map_err(|refusal| format!("{}: {}", target.url, refusal.problem))?;
    }
    Ok(began.elapsed())
}

/// Makes a span that has not begun yet the child of a span elsewhere.
pub(super) fn adopt(
    span: &tracing::Span,
    (trace, parent): (u128, u64),
    is_sampled: bool,
    state: Option<&str>,
) {
    if RUNNING.get().is_none() {
        return;
    }
    let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    let flags = TraceFlags::default().with_sampled(is_sampled);
    let remote = SpanContext::new(TraceId::from(trace), SpanId::from(parent), flags, true, state);
    // Fails where no one watches the span, and then there is nothing to be said of it.
    let _ = span.set_parent(Context::new().with_remote_span_context(remote));
}

/// The trace that a span is in, and whether it is recorded.
pub(super) fn trace_of(span: &tracing::Span) -> Option<(u128, bool)> {
    let context = context_of(span)?;
    Some((u128::from_be_bytes(context.trace_id().to_bytes()), context.is_sampled()))
}

/// The exported span that the calling task is in.
pub(super) fn current_span() -> Option<[u8; 8]> {
    id_of(&tracing::Span::current())
}

/// The exported id of a span.
pub(super) fn id_of(span: &tracing::Span) -> Option<[u8; 8]> {
    context_of(span).map(|context| context.span_id().to_bytes())
}

fn context_of(span: &tracing::Span) -> Option<SpanContext> {
    RUNNING.get()?;
    let context = span.context().span().span_context().clone();
    context.is_valid().then_some(context)
}

/// Who reports: the service, its version, and an id of this process, so that the numbers of two do not mix.
fn resource(options: &Options) -> Resource {
    let instance = RandomIdGenerator::default().new_trace_id().to_string();
    Resource::builder()
        .with_service_name(options.service.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", instance))
        .build()
}

/// Where ended spans are put.
#[derive(Debug)]
struct Queue(Sender<SpanData>);

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        // The database is also asked in the background, every second; that is not part of anyone's trace.
        if span.parent_span_id == SpanId::INVALID && span.name.starts_with("db.") {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = self.0.try_send(span) {
            SPANS_DROPPED.add(&["queue_full"], 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The collector, as seen from here.
struct Collector {
    options: Options,
    client: Client,
    resource: ResourceAttributesWithSchema,
    began: u64,
    /// When its failures were last complained about, and how many spans were dropped until then.
    complained: Mutex<Option<Instant>>,
    warned: AtomicU64,
}

/// Why the collector has not taken something.
struct Refusal {
    problem: String,
    /// It may take it later; after this pause, if it says so.
    later: Option<Option<Duration>>,
}

impl Collector {
    fn new(options: Options, resource: &Resource) -> Result<Self, String> {
        // Fails when one is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .http1_only()
            .timeout(options.timeout)
            // A redirect would carry the headers to wherever it points.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("pathbox/", env!("CARGO_PKG_VERSION")));
        if !options.targets().any(|target| target.url.starts_with("https:")) {
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| {
            format!("certificates cannot be loaded ({error}); install the package ca-certificates")
        })?;
        Ok(Self {
            options,
            client,
            resource: resource.into(),
            began: now(),
            complained: Mutex::new(None),
            warned: AtomicU64::new(0),
        })
    }

    /// Sends spans until the end, and then those that are left.
    async fn send_spans(&self, mut queue: Receiver<SpanData>, closing: &CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                () = closing.cancelled(), if !queue.is_closed() => queue.close(),
                ended = queue.recv_many(&mut batch, BATCH) => {
                    if ended == 0 {
                        return;
                    }
                    if ended < BATCH && !queue.is_closed() {
                        tokio::select! {
                            () = sleep(GATHERING) => {}
                            () = closing.cancelled() => {}
                        }
                    }
                    while batch.len() < BATCH && let Ok(span) = queue.try_recv() {
                        batch.push(span);
                    }
                    self.send_batch(std::mem::take(&mut batch), closing).await;
                }
            }
        }
    }

    async fn send_batch(&self, batch: Vec<SpanData>, closing: &CancellationToken) {
        let Some(target) = &self.options.traces else { return };
        let spans = batch.len() as u64;
        let request = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(batch, &self.resource),
        };
        let bytes = request.encode_to_vec();
        let mut pauses = PAUSES.into_iter();
        let refusal = loop {
            let refusal = match self.post(target, bytes.clone()).await {
                Ok(answer) => {
                    let partial = ExportTraceServiceResponse::decode(answer.as_slice()).unwrap_or_default();
                    let rejected = partial.partial_success.map_or(0, |part| part.rejected_spans);
                    match u64::try_from(rejected).unwrap_or(0).min(spans) {
                        0 => break None,
                        rejected => break Some(("it rejects some spans".to_owned(), rejected)),
                    }
                }
                Err(refusal) => refusal,
            };
            let (Some(asked), Some(pause)) = (refusal.later, pauses.next()) else {
                break Some((refusal.problem, spans));
            };
            tokio::select! {
                () = sleep(asked.unwrap_or_default().clamp(pause, LONGEST_PAUSE)) => {}
                () = closing.cancelled() => {}
            }
        };
        if let Some((problem, dropped)) = refusal {
            SPANS_DROPPED.add(&["not_taken"], dropped);
            self.complain(&problem);
        } else if self.dropped() > self.warned.load(Ordering::Relaxed) {
            self.complain("it is too slow");
        }
    }

    /// Sends what the instruments say, every so often and at the end. Numbers add up, so what was not taken is in the
    /// next report.
    async fn send_metrics(&self, closing: &CancellationToken) {
        let Some(target) = &self.options.metrics else { return };
        let every = self.options.metric_interval;
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_last = false;
        while !is_last {
            tokio::select! {
                _ = ticks.tick() => {}
                () = closing.cancelled() => is_last = true,
            }
            if let Err(refusal) = self.post(target, self.report().encode_to_vec()).await {
                self.complain(&refusal.problem);
            }
        }
    }

    fn report(&self) -> ExportMetricsServiceRequest {
        let now = now();
        let readings = metrics::read().into_iter();
        let scope = InstrumentationScope { name: "pathbox".into(), ..InstrumentationScope::default() };
        let metrics = otlp::ScopeMetrics {
            scope: Some(scope),
            metrics: readings.map(|reading| metric(reading, self.began, now)).collect(),
            ..otlp::ScopeMetrics::default()
        };
        let resource =
            OtlpResource { attributes: self.resource.attributes.0.clone(), ..OtlpResource::default() };
        ExportMetricsServiceRequest {
            resource_metrics: vec![otlp::ResourceMetrics {
                resource: Some(resource),
                scope_metrics: vec![metrics],
                ..otlp::ResourceMetrics::default()
            }],
        }
    }

    /// One request; its answer's body.
    async fn post(&self, target: &Target, bytes: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let request = self
            .client
            .post(&target.url)
            .headers(target.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf");
        let request = match self.options.gzip.then(|| gzip(&bytes)) {
            Some(Ok(packed)) => request.header(CONTENT_ENCODING, "gzip").body(packed),
            _ => request.body(bytes),
        };
        let broke = |error: reqwest::Error| Refusal {
            problem: super::chain(&error.without_url()),
            later: Some(None),
        };
        let mut response = request.send().await.map_err(broke)?;
        let status = response.status();
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut answer = Vec::new();
        while let Some(part) = response.chunk().await.map_err(broke)? {
            answer.extend_from_slice(&part);
            if answer.len() > MAX_ANSWER {
                answer.clear();
                break;
            }
        }
        if status.is_success() {
            return Ok(answer);
        }
        // https://opentelemetry.io/docs/specs/otlp/#failures-1: these four, and no others, are worth another attempt.
        let later = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(Refusal {
            problem: format!("it answers {}", status.as_u16()),
            later: later.then(|| asked.map(Duration::from_secs)),
        })
    }

    fn dropped(&self) -> u64 {
        ["queue_full", "not_taken"].iter().map(|reason| SPANS_DROPPED.get(&[reason])).sum()
    }

    /// Says what is wrong, at most once in a while.
    fn complain(&self, problem: &str) {
        let mut last = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < SILENCE) {
            return;
        }
        *last = Some(Instant::now());
        let dropped = self.dropped();
        self.warned.store(dropped, Ordering::Relaxed);
        tracing::warn!(problem, dropped, "the collector does not accept spans and metrics");
    }
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// An instrument in OTLP's terms. It has no unit: the name says it, and Prometheus would add it to the name once more.
fn metric(reading: Reading, began: u64, now: u64) -> otlp::Metric {
    let attributes = |values: metrics::Values| {
        let pairs = reading.labels.iter().zip(values);
        Attributes::from(pairs.map(|(name, value)| KeyValue::new(*name, value))).0
    };
    let number = |values, value: u64| otlp::NumberDataPoint {
        attributes: attributes(values),
        start_time_unix_nano: began,
        time_unix_nano: now,
        value: Some(otlp::number_data_point::Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX))),
        ..otlp::NumberDataPoint::default()
    };
    let cumulative = otlp::AggregationTemporality::Cumulative as i32;
    let data = match reading.data {
        Data::Counter(cells) => otlp::metric::Data::Sum(otlp::Sum {
            data_points: cells.into_iter().map(|(values, count)| number(values, count)).collect(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        Data::Gauge(value) => otlp::metric::Data::Gauge(otlp::Gauge {
            data_points: value.into_iter().map(|value| number(Vec::new(), value)).collect(),
        }),
        Data::Histogram(cells) => otlp::metric::Data::Histogram(otlp::Histogram {
            data_points: cells
                .into_iter()
                .map(|Durations { values, counts, sum, .. }| otlp::HistogramDataPoint {
                    attributes: attributes(values),
                    start_time_unix_nano: began,
                    time_unix_nano: now,
                    count: counts.iter().sum(),
                    sum: Some(sum),
                    bucket_counts: counts,
                    explicit_bounds: BOUNDS.map(f64::from).to_vec(),
                    ..otlp::HistogramDataPoint::default()
                })
                .collect(),
            aggregation_temporality: cumulative,
        }),
    };
    otlp::Metric {
        name: reading.name.to_owned(),
        description: reading.help.to_owned(),
        data: Some(data),
        ..otlp::Metric::default()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this floor is below the clock; nothing is decided by this time"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Tracer, TracerProvider};

    use super::*;

    #[test]
    fn a_full_queue_drops_spans_and_counts_them_and_the_databases_own_spans_take_no_place() {
        let (sender, mut queue) = mpsc::channel(2);
        let provider = SdkTracerProvider::builder().with_span_processor(Queue(sender)).build();
        let tracer = provider.tracer("test");
        let end = |name: &'static str| drop(tracer.start(name));
        let before = SPANS_DROPPED.get(&["queue_full"]);
        ["db.ping", "a", "db.ping", "b", "c", "d"].into_iter().for_each(end);
        assert_eq!(SPANS_DROPPED.get(&["queue_full"]) - before, 2);
        let names: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).map(|span| span.name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
