//! Identifies callers over the network by API keys and OAuth access tokens, and limits their rate.
//!
//! Nothing here waits for what a stranger started. A good key or key set that is at hand serves at once; looking up
//! what is unknown costs budget of the caller's own address, before the database or the issuer is asked.

mod issuer;
pub mod keys;
pub mod rates;
pub mod tokens;

pub use keys::{Failures, KeyError, Keys};
pub use rates::Rates;
pub use tokens::{Reason, TokenError, Tokens};
