//! Logs and spans: destinations and names. Logs go to standard error only, because standard
//! output carries the protocol; spans and metrics to a collector, if one is named. None of them ever holds code, output,
//! parameters, headers or tokens. What a panic says is not logged: only where it was, and its words if they are a
//! constant of the program.

pub mod export;
pub mod metrics;
pub mod trace;

use std::io::Write;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// A line for a person.
    #[default]
    Text,
    /// One JSON object a line, for a collector.
    Json,
}

/// What to log and how, and where spans and metrics go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The form of a line.
    pub format: LogFormat,
    /// A filter in `tracing`'s syntax: `info`, `pathbox=debug,sqlx=warn`.
    pub filter: String,
    /// The collector of spans and metrics, if there is one.
    pub export: Option<export::Options>,
}

impl Default for Options {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned(), export: None }
    }
}

/// rmcp logs whole requests and results at debug and parts of them at warn, and the HTTP and database crates log
/// addresses and statements: whatever the filter says, these stay at errors and warnings.
const QUIET: [&str; 6] =
    ["rmcp=error", "sqlx=warn", "hyper=warn", "hyper_util=warn", "reqwest=warn", "rustls=warn"];

/// What a line of the log goes through before it is written.
pub type Sieve = fn(&str) -> String;

/// Standard error after a filter.
struct Sieved(Sieve);

impl Write for Sieved {
    /// Takes one whole line: that is how the subscriber writes.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        std::io::stderr().lock().write_all((self.0)(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Whether a text is a filter of log lines.
pub fn is_filter(text: &str) -> bool {
    EnvFilter::try_new(text).is_ok()
}

/// Starts logging, and exporting, for the life of the process. Later calls do nothing. Each line goes through `sieve`:
/// an error may quote a provider, and a provider a sandbox.
///
/// # Errors
/// Which setting cannot be used and why, in words.
pub fn start(options: &Options, sieve: Sieve) -> Result<(), String> {
    let mut filter =
        EnvFilter::try_new(&options.filter).map_err(|error| format!("setting `log.filter`: {error}"))?;
    for directive in QUIET {
        filter = filter.add_directive(directive.parse().map_err(|_| format!("bad directive {directive}"))?);
    }
    let lines = tracing_subscriber::fmt::layer().with_writer(move || Sieved(sieve)).with_ansi(false);
    let lines = match options.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let registry = tracing_subscriber::registry().with(lines.with_filter(filter));
    let started = match &options.export {
        None => registry.try_init(),
        Some(export) => {
            let spans =
                export::start(export).map_err(|problem| format!("setting `otel.endpoint`: {problem}"))?;
            registry.with(spans).try_init()
        }
    };
    drop(started);
    Ok(())
}

/// Logs where a panic was. Its own words go along only when they are a constant: others may quote what was at hand.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let words =
            panic.payload().downcast_ref::<&'static str>().copied().unwrap_or("its words are not shown");
        tracing::error!(place = %place, words, "a panic");
    }));
}

/// An error with its causes, for a log line. Libraries repeat a cause in the words of the error that has it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}
