//! Which trace the work at hand belongs to, handed down with the task and out with each request to a provider.
//!
//! W3C Trace Context, level 1 (<https://www.w3.org/TR/trace-context/>). The trace travels beside the call and not through
//! its arguments; a task that is spawned is on its own until [`within`] says otherwise.

use std::fmt;
use std::sync::Arc;

use super::export;

/// A trace that a call belongs to, and the caller's span in it. Neither id is secret or a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    id: u128,
    /// The caller's span; 0 when the trace began here.
    caller: u64,
    /// Whether the caller records it.
    is_sampled: bool,
    /// What tracing systems along the way have added, passed on as it came.
    state: Option<Arc<str>>,
}

/// Bytes of a `tracestate` that are passed on; the specification asks for as many at least.
const MAX_STATE: usize = 512;

tokio::task_local! {
    static CURRENT: Trace;
}

impl Trace {
    /// Reads a `traceparent`. One that is not well formed is none, as the specification has it; of a later version,
    /// what this one knows is read.
    ///
    /// ```
    /// use pathbox::telemetry::trace::Trace;
    /// let trace = Trace::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
    /// assert_eq!(trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    /// assert_eq!(
    ///     trace.parent_of([0, 0, 0, 0, 0, 0, 0, 9]),
    ///     "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000009-01"
    /// );
    /// assert_eq!(Trace::read("00-00000000000000000000000000000000-00f067aa0ba902b7-01"), None);
    /// ```
    pub fn read(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let mut next = |digits: usize| {
            let part = parts.next()?;
            let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (part.len() == digits && is_hex).then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let (version, id, caller, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        let has_more = parts.next().is_some();
        if version == 0xff || (version == 0 && has_more) || id == 0 || caller == 0 {
            return None;
        }
        Some(Self { id, caller: u64::try_from(caller).ok()?, is_sampled: flags & 1 == 1, state: None })
    }

    /// With the `tracestate` that came along. One that is too long or not well formed is left out, as the specification has
    /// it.
    #[must_use]
    pub fn with_state(mut self, tracestate: Option<&str>) -> Self {
        let is_member = |member: &str| member.trim().is_empty() || member.contains('=');
        let is_state = |text: &&str| {
            (1..=MAX_STATE).contains(&text.len())
                && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
                && text.split(',').all(is_member)
        };
        self.state = tracestate.map(str::trim).filter(is_state).map(Arc::from);
        self
    }

    /// The `tracestate` of requests in this trace.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// A new trace of random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self { id: u128::from_be_bytes(random).max(1), caller: 0, is_sampled: true, state: None }
    }

    /// Makes `span` the first span of a call: a child of its caller's. Without a caller a trace begins, and is the one
    /// that the span is exported in, if it is; `random` is for when it is not.
    pub fn begin(span: &tracing::Span, caller: Option<Self>, random: [u8; 16]) -> Self {
        match caller {
            Some(trace) => {
                export::adopt(span, (trace.id, trace.caller), trace.is_sampled, trace.state());
                trace
            }
            None => export::trace_of(span).map_or_else(
                || Self::new(random),
                |(id, is_sampled)| Self { id, caller: 0, is_sampled, state: None },
            ),
        }
    }

    /// The same trace, for what happens below `span`; `random` names the span where it is not exported.
    pub fn below(&self, span: &tracing::Span, random: [u8; 8]) -> Self {
        let id = u64::from_be_bytes(export::id_of(span).unwrap_or(random)).max(1);
        Self { caller: id, ..self.clone() }
    }

    /// The `traceparent` for what happens below its caller's span.
    pub fn parent(&self) -> String {
        self.parent_of(self.caller.to_be_bytes())
    }

    /// The `traceparent` of a request of the calling task: it names the span at hand where spans are exported, else one of
    /// the request's own, from `random`.
    pub fn at_hand(&self, random: [u8; 8]) -> String {
        self.parent_of(export::current_span().unwrap_or(random))
    }

    /// The `traceparent` of a request that is the span `span` of this trace.
    pub fn parent_of(&self, span: [u8; 8]) -> String {
        let flags = u8::from(self.is_sampled);
        format!("00-{self}-{:016x}-{flags:02x}", u64::from_be_bytes(span).max(1))
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.id)
    }
}

/// Does work as part of a trace.
pub async fn within<T>(trace: Trace, work: impl Future<Output = T>) -> T {
    CURRENT.scope(trace, work).await
}

/// The trace that the calling task works in.
pub fn current() -> Option<Trace> {
    CURRENT.try_with(Clone::clone).ok()
}

/// The `traceparent` and the `tracestate` for a request of the calling task: see [`Trace::at_hand`].
pub fn outgoing(random: [u8; 8]) -> Option<(String, Option<String>)> {
    current().map(|trace| (trace.at_hand(random), trace.state().map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_traceparent_is_read() {
        const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        let good = format!("00-{ID}-00f067aa0ba902b7-00");
        assert_eq!(Trace::read(&good).unwrap().parent_of([1; 8]), format!("00-{ID}-0101010101010101-00"));
        assert!(Trace::read(&format!("cc-{ID}-00f067aa0ba902b7-01-what-comes")).is_some(), "a later version");
        for bad in [
            String::new(),
            "4bf9".into(),
            ID.into(),
            format!("00-{ID}"),
            format!("00-{ID}-00f067aa0ba902b7"),
            format!("00-{ID}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", ID.to_uppercase()),
            format!("00-+{}-00f067aa0ba902b7-01", &ID[1..]),
            format!("00-{}-00f067aa0ba902b7-01", "é".repeat(16)),
            format!("00-{ID}-00f067aa0ba902b7-01-more"),
            format!("ff-{ID}-00f067aa0ba902b7-01"),
        ] {
            assert_eq!(Trace::read(&bad), None, "{bad}");
        }
        assert_eq!(Trace::new([0; 16]).to_string(), "00000000000000000000000000000001", "zero means none");
    }

    #[test]
    fn only_a_well_formed_tracestate_is_passed_on() {
        let read = |state: &str| Trace::new([1; 16]).with_state(Some(state)).state().map(str::to_owned);
        assert_eq!(
            read("congo=t61rcWkgMzE, rojo=00f067aa0ba902b7,").as_deref(),
            Some("congo=t61rcWkgMzE, rojo=00f067aa0ba902b7,")
        );
        for bad in
            [String::new(), "a".into(), "a=1\nb=2".into(), "a=é".into(), format!("a={}", "x".repeat(511))]
        {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_trace_is_known_inside_and_nowhere_else() {
        let trace = Trace::new([7; 16]);
        assert_eq!(within(trace.clone(), async { current() }).await, Some(trace));
        assert_eq!(current(), None);
    }
}
