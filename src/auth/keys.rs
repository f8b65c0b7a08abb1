//! API keys, as callers present them.
//!
//! A key that was found good is believed for a few seconds without asking the database again, or until the store says that
//! one was revoked or erased. Where the store cannot say so, every key is looked up every time. While the database is away a
//! key is believed longer: it cannot be looked up, and the contexts that this replica holds go on. An expired key is never
//! believed. Looking up an unknown key costs its address one of its budget, which is returned when the key is valid: this
//! bounds what unknown keys cost the database.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::Rates;
use crate::domain::{Clock, Principal, lock};
use crate::execution::{Credentials, Starting, Startup};
use crate::telemetry::chain;

/// How long a good key is believed.
const BELIEVED: Duration = Duration::from_secs(15);
/// How long it is believed while the database is away.
const BELIEVED_WHILE_AWAY: Duration = Duration::from_secs(10 * 60);
/// Keys that are believed at a time.
const MAX_BELIEVED: usize = 10_000;
/// How long a request waits for a server that is still starting.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Why a key is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// Unknown, expired or revoked.
    Invalid,
    /// The database does not say.
    Unavailable,
    /// Too many credentials that were not good came from this address.
    TooMany {
        /// When to try again.
        after: Duration,
    },
}

/// Checks API keys.
#[derive(Debug)]
pub struct Keys {
    credentials: Starting<Credentials>,
    clock: Clock,
    failures: Failures,
    believed: Mutex<HashMap<[u8; 32], Believed>>,
}

/// A key that was found good.
#[derive(Debug, Clone)]
struct Believed {
    principal: Principal,
    found: Instant,
    /// [`Credentials::keys_gone`] before it was looked up.
    gone: Option<u64>,
    expires_at: Option<DateTime<Utc>>,
}

impl Keys {
    /// Checks keys against the service's store, within the budget of each address.
    pub fn new(credentials: Starting<Credentials>, clock: Clock, failures: Failures) -> Self {
        Self { credentials, clock, failures, believed: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Believed>> {
        lock(&self.believed)
    }

    fn believed(&self, digest: &[u8; 32], holds: impl Fn(&Believed) -> bool) -> Option<Principal> {
        let now = self.clock.now();
        let believed = self.lock();
        let key = believed.get(digest).filter(|key| holds(key))?;
        key.expires_at.is_none_or(|at| now < at).then(|| key.principal.clone())
    }

    /// Whose key it is; `id` is its public part. `from`: the address that pays for looking up an unknown key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub async fn principal(
        &self,
        id: &str,
        presented: &str,
        from: Option<IpAddr>,
    ) -> Result<Principal, KeyError> {
        let digest: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let gone = match self.credentials.now() {
            Startup::Ready(known) => known.keys_gone(),
            Startup::Starting | Startup::Failed(_) => None,
        };
        let holds = |key: &Believed| gone.is_some() && key.gone == gone && key.found.elapsed() < BELIEVED;
        if let Some(principal) = self.believed(&digest, holds) {
            return Ok(principal);
        }
        // A key that was good before is looked up whatever else comes from its address.
        let is_known = self.lock().contains_key(&digest);
        let lookup = from.filter(|_| !is_known).map(|from| self.failures.begin(from)).transpose()?;
        let known = self.credentials.service(START_PATIENCE).await.map_err(|_| KeyError::Unavailable)?;
        let key = match known.api_key(id).await {
            Ok(key) => key,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "an API key could not be looked up");
                let holds = |key: &Believed| key.found.elapsed() < BELIEVED_WHILE_AWAY;
                let known = self.believed(&digest, holds).filter(|_| error.is_retryable());
                if let Some(lookup) = lookup {
                    lookup.was_good();
                }
                return known.ok_or(KeyError::Unavailable);
            }
        };
        let expires_at = key.as_ref().and_then(|key| key.expires_at);
        let opened = key.and_then(|key| key.opens(presented, self.clock.now()));
        let mut believed = self.lock();
        let Some(principal) = opened else {
            // What is known to be revoked or expired is not believed either when the database goes away.
            believed.remove(&digest);
            return Err(KeyError::Invalid);
        };
        if let Some(lookup) = lookup {
            lookup.was_good();
        }
        if believed.len() >= MAX_BELIEVED {
            believed.retain(|_, key| key.found.elapsed() < BELIEVED);
        }
        let found = Instant::now();
        believed.insert(digest, Believed { principal: principal.clone(), found, gone, expires_at });
        Ok(principal)
    }
}

/// How many credentials that are not good may come from an address. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Failures(Arc<Rates<IpAddr>>);

impl Failures {
    /// How many a minute per address, and as the burst; 0 switches counting off.
    pub fn new(per_minute: u32) -> Self {
        Self(Arc::new(Rates::new(per_minute)))
    }

    /// A credential of unknown worth is about to be looked at.
    ///
    /// # Errors
    /// [`KeyError::TooMany`].
    pub fn begin(&self, from: IpAddr) -> Result<Lookup<'_>, KeyError> {
        let from = network(from);
        self.0.take(&from).map_err(|after| KeyError::TooMany { after })?;
        Ok(Lookup { failures: self, from })
    }
}

/// A look at a credential that counts as a failure unless it turns out to be good.
#[derive(Debug)]
pub struct Lookup<'a> {
    failures: &'a Failures,
    from: IpAddr,
}

impl Lookup<'_> {
    /// It was, or it could not be found out: it does not count.
    fn was_good(self) {
        self.failures.0.give_back(&self.from);
    }
}

/// Of an IPv6 address the network, for a host has as many addresses there as it likes.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_addresses_is_one_address() {
        let failures = Failures::new(2);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        failures.begin(address("2001:db8:0:1::1")).unwrap();
        failures.begin(address("2001:db8:0:1:ffff::2")).unwrap().was_good();
        failures.begin(address("2001:db8:0:1::3")).unwrap();
        assert!(matches!(failures.begin(address("2001:db8:0:1::4")), Err(KeyError::TooMany { .. })));
        failures.begin(address("2001:db8:0:2::1")).unwrap();
        failures.begin(address("::ffff:192.0.2.1")).unwrap();
        failures.begin(address("192.0.2.1")).unwrap();
        assert!(failures.begin(address("192.0.2.1")).is_err());
    }
}
