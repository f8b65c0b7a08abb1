//! Which trace the work at hand belongs to, handed down with the task and out with each request to a provider.
//!
//! W3C Trace Context, level 1 (<https://www.w3.org/TR/trace-context/>). The trace travels beside the call and not through
//! its arguments; a task that is spawned is on its own until [`within`] says otherwise.

use std::fmt;

/// A trace. Its id is neither secret nor a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace(u128);

tokio::task_local! {
    static CURRENT: Trace;
}

impl Trace {
    /// Reads a trace id: 32 digits of hex, not all zero.
    ///
    /// ```
    /// use pathbox::telemetry::trace::Trace;
    /// let trace = Trace::parse("4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
    /// assert_eq!(
    ///     trace.parent_of([0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]),
    ///     "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    /// );
    /// assert_eq!(Trace::parse("00000000000000000000000000000000"), None);
    /// ```
    pub fn parse(id: &str) -> Option<Self> {
        let hex = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(id, 16).ok().filter(|id| hex && *id != 0).map(Self)
    }

    /// A new trace of random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(random).max(1))
    }

    /// The `traceparent` of a request that is the span `span` of this trace.
    pub fn parent_of(self, span: [u8; 8]) -> String {
        format!("00-{self}-{:016x}-01", u64::from_be_bytes(span).max(1))
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Does work as part of a trace.
pub async fn within<T>(trace: Trace, work: impl Future<Output = T>) -> T {
    CURRENT.scope(trace, work).await
}

/// The trace that the calling task works in.
pub fn current() -> Option<Trace> {
    CURRENT.try_with(|trace| *trace).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_is_an_id() {
        for bad in [
            "",
            "4bf9",
            "+bf92f3577b34da6a3ce929d0e0e4736",
            "4bf92f3577b34da6a3ce929d0e0e473g",
            "é".repeat(16).as_str(),
        ] {
            assert_eq!(Trace::parse(bad), None, "{bad}");
        }
        assert_eq!(Trace::new([0; 16]).to_string(), "00000000000000000000000000000001", "zero means none");
    }

    #[tokio::test]
    async fn a_trace_is_known_inside_and_nowhere_else() {
        let trace = Trace::new([7; 16]);
        assert_eq!(within(trace, async { current() }).await, Some(trace));
        assert_eq!(current(), None);
    }
}
