//! Values and states that every floor shares. No I/O, and no clock or randomness of its own: both are arguments.

pub mod clock;
pub mod context;
pub mod display;
pub mod entropy;
pub mod error_code;
pub mod execution;
pub mod ids;
pub mod json;
pub mod kept;
pub mod limits;
mod own_url;
pub mod principal;
pub mod secret;
mod session;
pub mod terminal;
pub mod usage;

pub use clock::Clock;
pub use context::{
    ContextEvent, ContextKey, ContextStatus, ConversationKey, EndReason, IllegalTransition, SandboxState,
};
pub use display::{Attachment, Reading};
pub use entropy::{Entropy, hex};
pub use error_code::ErrorCode;
pub use execution::{
    Capture, CodeError, CodeRequest, EXIT_STATUS, Ended, Inputs, Language, Outcome, OutputChunk, RichResult,
    StopReason, ToolsWanted,
};
pub use ids::{ContextId, ConversationId, ExecutionId, InvalidId, PathId, SandboxId, TenantId};
pub use json::{Misfit, from_value};
pub use kept::{Kept, KeptError, check_form, from_kept, to_kept};
pub use limits::{Code, OutOfRange, Timeout, Ttl};
pub use own_url::OwnUrl;
pub use principal::{
    ApiKey, KeyText, MAX_PRINCIPAL, Owner, Principal, PrincipalKind, Scope, Sharing, SharingRules,
    TenantRefused, Tenants,
};
pub use secret::{Secret, derive_key, same_bytes};
pub use session::SessionFact;
pub use usage::{OwnQuota, Period, Prices, Quota, QuotaKind, QuotaReached};

/// Locks a mutex for a few lines. Data is consistent after a panic: each of these regions changes one thing.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
