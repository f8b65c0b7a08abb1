//! Sealed tokens of the guard: the key that a tenant's tokens are made under, and opening one, which is written down.
//!
//! The surprise: the record comes first. When it cannot be written, nothing is opened.

use std::sync::Arc;

use zeroize::Zeroizing;

use crate::domain::{ApiKey, ContextKey, Entropy, derive_key};
use crate::guard::{Kind, Sealer};
use crate::store::{DynStore, NewReveal, StoreError};

use super::{Core, ExecutionError};

/// The key under which tokens are made; each tenant has one of its own, derived from it.
#[derive(Clone)]
pub struct TokenKey(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

impl TokenKey {
    /// Takes 32 bytes that all replicas share.
    pub fn new(key: [u8; 32]) -> Self {
        Self(Zeroizing::new(key))
    }

    /// What makes and opens the tokens of a context.
    pub fn sealer(&self, key: &ContextKey) -> Sealer {
        let tenant =
            derive_key(self.0.as_slice(), Some(b"pathbox tokens v1"), key.tenant.as_str().as_bytes());
        // No identifier contains a slash. The owner is not part of it: permission to open tokens is for the whole tenant.
        Sealer::new(&tenant, format!("{}/{}/{}", key.tenant, key.conversation, key.path))
    }

    /// Opens a token that is said to be of this context, and writes down that `principal` asked.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownToken`] whatever is wrong with it; the store's, and then nothing was opened.
    pub async fn reveal(
        &self,
        store: &DynStore,
        key: &ContextKey,
        principal: &str,
        token: &str,
        entropy: &Entropy,
    ) -> Result<Revealed, ExecutionError> {
        let opened = self.sealer(key).open(token);
        let kind = opened.as_ref().ok().map(|(kind, _)| kind.as_str().to_owned());
        let record = NewReveal {
            id: entropy.hex::<16>(),
            key: key.clone(),
            opened: kind.is_some(),
            kind,
            principal: principal.to_owned(),
        };
        store.record_reveal(&record).await?;
        tracing::info!(opened = record.opened, by = %record.principal, app.tenant.id = %key.tenant,
            app.conversation.id = %key.conversation, app.path.id = %key.path, "a sealed token was asked for");
        let (kind, value) = opened.map_err(|_| ExecutionError::UnknownToken)?;
        Ok(Revealed { kind, value })
    }
}

/// What a token represents. The one value that leaves unguarded: it was asked for, by someone who may.
pub struct Revealed {
    /// What it is.
    pub kind: Kind,
    /// Itself.
    pub value: Zeroizing<String>,
}

/// Looks up API keys and opens sealed tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Credentials(pub(super) Arc<Core>);

impl Credentials {
    /// An API key by its public part.
    ///
    /// # Errors
    /// The store's.
    pub async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError> {
        self.0.store().api_key(id).await
    }

    /// A number that is another one as soon as this process can know that an API key is gone; `None`: it cannot.
    pub fn keys_gone(&self) -> Option<u64> {
        self.0.store().keys_gone()
    }

    /// Opens a token for a caller who may; see [`TokenKey::reveal`].
    ///
    /// # Errors
    /// As there.
    pub async fn reveal(
        &self,
        key: &ContextKey,
        principal: &str,
        token: &str,
    ) -> Result<Revealed, ExecutionError> {
        let tokens = self.0.parts.tokens.as_ref().ok_or(ExecutionError::UnknownToken)?;
        tokens.reveal(self.0.store(), key, principal, token, &self.0.parts.entropy).await
    }
}
