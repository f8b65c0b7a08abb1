//! Numbers and texts that are already in range: built at a door, trusted inside.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A value outside its range; names the value, its unit and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {got}; allowed is {allowed}")]
pub struct OutOfRange {
    /// The argument's name as the caller wrote it.
    pub what: &'static str,
    /// What was given, as text.
    pub got: String,
    /// The range, with its unit.
    pub allowed: &'static str,
}

/// How long one run may take: 1,000 to 600,000 ms, 60,000 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timeout(Duration);

impl Timeout {
    /// The shortest time-out in milliseconds.
    pub const MIN_MS: u64 = 1_000;
    /// The longest time-out in milliseconds.
    pub const MAX_MS: u64 = 600_000;
    /// The time-out when the caller names none.
    pub const DEFAULT_MS: u64 = 60_000;

    /// A time-out of this many milliseconds.
    ///
    /// # Errors
    /// [`OutOfRange`] outside [`Timeout::MIN_MS`] to [`Timeout::MAX_MS`].
    pub fn from_millis(millis: u64) -> Result<Self, OutOfRange> {
        if (Self::MIN_MS..=Self::MAX_MS).contains(&millis) {
            return Ok(Self(Duration::from_millis(millis)));
        }
        Err(OutOfRange {
            what: "timeout_ms",
            got: millis.to_string(),
            allowed: "1000 to 600000 milliseconds",
        })
    }

    /// The time-out as a duration.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl Default for Timeout {
    fn default() -> Self {
        Self(Duration::from_millis(Self::DEFAULT_MS))
    }
}

/// How long a context lives after its last use: 1 minute to 24 hours, 30 minutes by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ttl(Duration);

impl Ttl {
    /// A time to live of this many seconds.
    ///
    /// # Errors
    /// [`OutOfRange`] outside one minute to one day.
    pub fn from_secs(secs: u64) -> Result<Self, OutOfRange> {
        if (60..=86_400).contains(&secs) {
            return Ok(Self(Duration::from_secs(secs)));
        }
        Err(OutOfRange { what: "ttl", got: format!("{secs} s"), allowed: "60 to 86400 seconds" })
    }

    /// The time to live as a duration.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self(Duration::from_secs(30 * 60))
    }
}

/// Source text to run: 1 byte to 100 KB (102,400 bytes) of UTF-8, not only white space.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(String);

impl Code {
    /// The largest accepted source in bytes.
    pub const MAX_BYTES: usize = 100 * 1024;

    /// Takes a source text.
    ///
    /// # Errors
    /// [`OutOfRange`] when it is empty, white space only, or larger than [`Code::MAX_BYTES`].
    pub fn parse(text: impl Into<String>) -> Result<Self, OutOfRange> {
        let text = text.into();
        let allowed = "1 to 102400 bytes of UTF-8, not only white space";
        if text.len() > Self::MAX_BYTES {
            return Err(OutOfRange { what: "code", got: format!("{} bytes", text.len()), allowed });
        }
        if text.trim().is_empty() {
            return Err(OutOfRange { what: "code", got: "empty".to_owned(), allowed });
        }
        Ok(Self(text))
    }

    /// Takes the source of a program of ours. It carries a caller's data, whose size was checked, so
    /// [`Code::MAX_BYTES`], which is about what a caller writes, does not apply.
    pub fn of_program(text: String) -> Self {
        Self(text)
    }

    /// The source.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Code may hold anything, so its debug form says only how long it is.
impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Code({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
        assert!(Code::parse("x".repeat(Code::MAX_BYTES)).is_ok());
        let error = Code::parse("x".repeat(Code::MAX_BYTES + 1)).unwrap_err().to_string();
        assert_eq!(
            error,
            "code is 102401 bytes; allowed is 1 to 102400 bytes of UTF-8, not only white space"
        );
        for blank in ["", " ", "\n\t\r\n"] {
            assert!(Code::parse(blank).is_err());
        }
    }

    #[test]
    fn a_timeout_outside_its_range_names_the_range() {
        for bad in [0, 999, 600_001, u64::MAX] {
            let error = Timeout::from_millis(bad).unwrap_err().to_string();
            assert!(error.contains("1000 to 600000 milliseconds"), "{error}");
        }
        assert_eq!(Timeout::from_millis(1_000).unwrap().get(), Duration::from_secs(1));
    }
}
