//! Creates that may be sent again: which idempotency key made which sandbox. Pure: the time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

/// How long a key is remembered.
const MEMORY: Duration = Duration::from_secs(24 * 3600);
/// Keys remembered; beyond it the oldest are forgotten early.
const MAX_KEYS: usize = 10_000;

/// What has become of the creates with a key.
#[derive(Debug, Default)]
pub(super) struct Repeats(BTreeMap<String, Known>);

#[derive(Debug)]
struct Known {
    /// A digest of the request.
    request: [u8; 32],
    at: DateTime<Utc>,
    /// `None` while it is being made.
    sandbox: Option<String>,
}

/// What a create with a key is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// This key is new: create one, then report it by [`Repeats::made`] or [`Repeats::forget`].
    First,
    /// It made this one already.
    Made(String),
    /// It is being made.
    UnderWay,
    /// The key came with another request.
    Other,
}

impl Repeats {
    pub(super) fn turn(&mut self, key: &str, request: [u8; 32], now: DateTime<Utc>) -> Turn {
        self.0.retain(|_, known| known.at + MEMORY > now);
        if let Some(known) = self.0.get(key) {
            return match &known.sandbox {
                _ if known.request != request => Turn::Other,
                Some(id) => Turn::Made(id.clone()),
                None => Turn::UnderWay,
            };
        }
        if self.0.len() >= MAX_KEYS
            && let Some(oldest) = self.0.iter().min_by_key(|(_, known)| known.at).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(key.to_owned(), Known { request, at: now, sandbox: None });
        Turn::First
    }

    pub(super) fn made(&mut self, key: &str, id: &str) {
        if let Some(known) = self.0.get_mut(key) {
            known.sandbox = Some(id.to_owned());
        }
    }

    /// Nothing was made: the key is free again.
    pub(super) fn forget(&mut self, key: &str) {
        if self.0.get(key).is_some_and(|known| known.sandbox.is_none()) {
            self.0.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_makes_one_sandbox_and_belongs_to_one_request() {
        let at = |hours: i64| DateTime::from_timestamp(1_700_000_000 + hours * 3600, 0).unwrap();
        let mut repeats = Repeats::default();
        assert_eq!(repeats.turn("k", [1; 32], at(0)), Turn::First);
        assert_eq!(repeats.turn("k", [1; 32], at(0)), Turn::UnderWay);
        repeats.forget("k");
        assert_eq!(repeats.turn("k", [1; 32], at(0)), Turn::First);
        repeats.made("k", "i1");
        repeats.forget("k");
        assert_eq!(repeats.turn("k", [1; 32], at(1)), Turn::Made("i1".into()));
        assert_eq!(repeats.turn("k", [2; 32], at(1)), Turn::Other);
        assert_eq!(repeats.turn("k", [2; 32], at(25)), Turn::First);
    }

    #[test]
    fn memory_of_keys_is_bounded() {
        let mut repeats = Repeats::default();
        for n in 0..MAX_KEYS as i64 + 10 {
            repeats.turn(&n.to_string(), [0; 32], DateTime::from_timestamp(1_700_000_000 + n, 0).unwrap());
        }
        assert_eq!(repeats.0.len(), MAX_KEYS);
        assert!(!repeats.0.contains_key("9") && repeats.0.contains_key("10"));
    }
}
