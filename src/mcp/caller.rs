//! Who is calling, for which conversation and path (SPEC section 3).
//!
//! Each of the three parts is taken from the first source that speaks. An MCP session is not among them: newer
//! revisions have none and clients open a new one per call. A part that does not parse is an error that names it.

use serde_json::{Map, Value};

use crate::domain::{ContextKey, ConversationId, ErrorCode, InvalidId, PathId, TenantId};

/// What the process or the connection says when a call is silent.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// The tenant of every caller of this door.
    pub tenant: TenantId,
    /// The conversation of a call that names none.
    pub conversation: ConversationId,
    /// The path of a call that names none.
    pub path: PathId,
}

/// Why a caller cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerError {
    /// A `_meta` value does not parse.
    #[error("`_meta` key `{key}`: {problem}")]
    Invalid {
        /// The key as sent.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// The tenant in `_meta` is not the caller's.
    #[error("`_meta` names another tenant than this connection's")]
    ForeignTenant,
}

impl CallerError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid { .. } => ErrorCode::InvalidArgument,
            Self::ForeignTenant => ErrorCode::Forbidden,
        }
    }
}

/// Finds one of our values in `_meta`: the full name first, then the plain one.
fn meta_text<'a>(
    meta: &'a Map<String, Value>,
    full: &'static str,
    plain: &'static str,
) -> Result<Option<(&'static str, &'a str)>, CallerError> {
    for key in [full, plain] {
        match meta.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => return Ok(Some((key, text))),
            Some(_) => {
                return Err(CallerError::Invalid { key: key.to_owned(), problem: "is not a string".into() });
            }
        }
    }
    Ok(None)
}

fn meta_id<T: std::str::FromStr<Err = InvalidId>>(
    meta: &Map<String, Value>,
    full: &'static str,
    plain: &'static str,
) -> Result<Option<T>, CallerError> {
    match meta_text(meta, full, plain)? {
        None => Ok(None),
        Some((key, text)) => text.parse().map(Some).map_err(|error: InvalidId| CallerError::Invalid {
            key: key.to_owned(),
            problem: error.to_string(),
        }),
    }
}

/// The key of a call. `handle` is one that was opened already, under this tenant.
///
/// # Errors
/// [`CallerError`] when a value does not parse, or names a tenant that is not this caller's.
pub fn resolve(
    meta: &Map<String, Value>,
    handle: Option<ContextKey>,
    defaults: &Defaults,
) -> Result<ContextKey, CallerError> {
    let tenant: Option<TenantId> = meta_id(meta, "dev.pathbox/tenantId", "tenantId")?;
    if tenant.is_some_and(|tenant| tenant != defaults.tenant) {
        return Err(CallerError::ForeignTenant);
    }
    let conversation = meta_id(meta, "dev.pathbox/conversationId", "conversationId")?;
    let path = meta_id(meta, "dev.pathbox/pathId", "pathId")?;
    let (handle_conversation, handle_path) = match handle {
        Some(key) => (Some(key.conversation), Some(key.path)),
        None => (None, None),
    };
    Ok(ContextKey {
        tenant: defaults.tenant.clone(),
        conversation: conversation.or(handle_conversation).unwrap_or_else(|| defaults.conversation.clone()),
        path: path.or(handle_path).unwrap_or_else(|| defaults.path.clone()),
    })
}

/// The idempotency key of a call: the argument, else `_meta`.
///
/// # Errors
/// [`CallerError::Invalid`] when it is not 1 to 255 characters of text.
pub fn idempotency_key(
    argument: Option<&str>,
    meta: &Map<String, Value>,
) -> Result<Option<String>, CallerError> {
    let found = match argument {
        Some(text) => Some(("idempotency_key", text)),
        None => meta_text(meta, "dev.pathbox/idempotencyKey", "idempotencyKey")?,
    };
    match found {
        None => Ok(None),
        Some((_, text)) if (1..=255).contains(&text.chars().count()) => Ok(Some(text.to_owned())),
        Some((key, _)) => {
            Err(CallerError::Invalid { key: key.to_owned(), problem: "must have 1 to 255 characters".into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Defaults {
        Defaults {
            tenant: TenantId::parse("local").unwrap(),
            conversation: ConversationId::parse("process").unwrap(),
            path: PathId::main(),
        }
    }

    fn meta(json: Value) -> Map<String, Value> {
        json.as_object().unwrap().clone()
    }

    #[test]
    fn meta_wins_over_a_handle_and_a_handle_over_the_process() {
        let handle = ContextKey {
            tenant: defaults().tenant,
            conversation: ConversationId::parse("from-handle").unwrap(),
            path: PathId::parse("branch").unwrap(),
        };
        let key = resolve(&meta(serde_json::json!({})), None, &defaults()).unwrap();
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("process", "main"));
        let key = resolve(&meta(serde_json::json!({})), Some(handle.clone()), &defaults()).unwrap();
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("from-handle", "branch"));
        let both = meta(serde_json::json!({"conversationId": "plain", "dev.pathbox/conversationId": "full"}));
        let key = resolve(&both, Some(handle), &defaults()).unwrap();
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("full", "branch"));
    }

    #[test]
    fn a_value_that_does_not_parse_is_named() {
        let error = resolve(&meta(serde_json::json!({"pathId": 7})), None, &defaults()).unwrap_err();
        assert_eq!(error.to_string(), "`_meta` key `pathId`: is not a string");
        let error =
            resolve(&meta(serde_json::json!({"dev.pathbox/pathId": "a/b"})), None, &defaults()).unwrap_err();
        assert!(
            error.to_string().starts_with("`_meta` key `dev.pathbox/pathId`: path id holds '/'"),
            "{error}"
        );
    }

    #[test]
    fn another_tenant_is_refused_and_its_own_is_not() {
        let own = meta(serde_json::json!({"tenantId": "local"}));
        assert!(resolve(&own, None, &defaults()).is_ok());
        let other = meta(serde_json::json!({"tenantId": "acme"}));
        assert_eq!(resolve(&other, None, &defaults()).unwrap_err(), CallerError::ForeignTenant);
    }
}
