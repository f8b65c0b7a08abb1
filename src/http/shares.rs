//! How many requests of one principal may be open at a time on this replica, streams included. So one principal's streams
//! leave room for everyone else's requests.

use crate::domain::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Counts open requests by principal. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max: usize,
    open: Mutex<HashMap<String, usize>>,
}

impl Shares {
    /// `max` open requests for each principal.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Inner { max, open: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        lock(&self.0.open)
    }

    /// One more open request of this principal, until the value is dropped; `None` when it has its share.
    pub fn take(&self, principal: &str) -> Option<Share> {
        let mut all = self.lock();
        let open = all.entry(principal.to_owned()).or_default();
        if *open >= self.0.max {
            return None;
        }
        *open += 1;
        Some(Share { shares: self.clone(), principal: principal.to_owned() })
    }
}

/// An open request.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    principal: String,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = self.shares.lock();
        if let Some(open) = all.get_mut(&self.principal) {
            *open -= 1;
            if *open == 0 {
                all.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_has_its_share_and_gets_it_back() {
        let shares = Shares::new(2);
        let (one, _two) = (shares.take("a").unwrap(), shares.take("a").unwrap());
        assert!(shares.take("a").is_none());
        assert!(shares.take("b").is_some());
        drop(one);
        assert!(shares.take("a").is_some());
        assert_eq!(shares.lock().len(), 1, "who has nothing open is forgotten");
    }
}
