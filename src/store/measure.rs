//! One way to measure: each transaction of either store is a span and a duration, both named for the operation.

use std::future::Future;

use tracing::{Instrument, Span};

use crate::telemetry::metrics::Timed;

/// An operation that is in progress; it is measured until this is dropped.
#[derive(Debug)]
pub(super) struct Measured {
    span: Span,
    _timed: Timed,
}

impl Measured {
    pub(super) fn new(span: Span, timed: Timed) -> Self {
        Self { span, _timed: timed }
    }

    /// Waits for a part of the operation, inside its span.
    pub(super) async fn wait<T>(&self, part: impl Future<Output = T>) -> T {
        part.instrument(self.span.clone()).await
    }
}

/// Begins to measure an operation; the tenant that it is for may follow its name.
macro_rules! measure {
    ($operation:literal $(, $tenant:expr)?) => {
        $crate::store::measure::Measured::new(
            tracing::debug_span!(concat!("db.", $operation) $(, app.tenant.id = %$tenant)?),
            $crate::telemetry::metrics::DB_CLIENT.time(&[$operation]),
        )
    };
}
pub(super) use measure;
