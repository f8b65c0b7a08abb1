//! API keys of HTTP callers.

use async_trait::async_trait;

use super::StoreError;
use crate::domain::ApiKey;

/// API keys of HTTP callers.
#[async_trait]
pub trait Keys: Send + Sync {
    /// Keeps a new API key.
    async fn add_api_key(&self, key: &ApiKey) -> Result<(), StoreError>;

    /// The API key with this public part, revoked ones too.
    async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError>;

    /// All API keys, newest first.
    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Revokes a key, for good. `false`: there is none.
    async fn revoke_api_key(&self, id: &str) -> Result<bool, StoreError>;

    /// A number that is another one as soon as this process can know that a key was revoked or erased. `None`: it cannot, and
    /// has to ask each time.
    fn keys_gone(&self) -> Option<u64>;
}
