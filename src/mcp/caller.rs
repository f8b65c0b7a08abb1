//! Who is calling, for which conversation and path.
//!
//! Each of the three parts is taken from the first source that speaks. An MCP session is among them only where its client
//! keeps it: newer revisions have none, and some clients open one for each call. Calls that name nothing then share the
//! caller's default conversation. A part that does not parse is an error that names it.

use std::ops::RangeInclusive;

use http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::domain::{
    ContextKey, ConversationId, Entropy, ErrorCode, InvalidId, Owner, PathId, Principal, PrincipalKind,
    Scope, SharingRules, TenantId, TenantRefused, hex,
};
use crate::execution::Requester;
use crate::guard::{AllowList, Overlay};

/// What the process says when a call is silent.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// The tenant of every caller of this door.
    pub tenant: TenantId,
    /// The conversation of a call that names none.
    pub conversation: ConversationId,
    /// The path of a call that names none.
    pub path: PathId,
}

/// The door of a handler.
#[derive(Debug, Clone)]
pub enum Door {
    /// This process's own: standard input, the command line.
    Process(Defaults),
    /// HTTP: every request says who sends it. A service that names no conversation gets a new one for each call.
    Http(Entropy),
}

impl Door {
    /// What a model and its host have to know of conversations at this door.
    pub fn of_conversations(&self) -> &'static str {
        match self {
            Self::Process(_) => {
                "Calls that name no conversation share one for as long as this server process runs. A second chat in the same \
                 process takes a handle from `manage_context` (action `branch`) and passes it as `context` in each call, or its \
                 host sends `_meta` `dev.pathbox/conversationId`."
            }
            Self::Http(_) => {
                "Calls that name no conversation share the caller's default one, unless the host keeps an MCP session for each \
                 chat. A second chat takes a handle from `manage_context` (action `branch`) and passes it as `context` in each \
                 call, or its host sends the header X-Conversation-Id or `_meta` `dev.pathbox/conversationId`."
            }
        }
    }
}

/// The protocol session that a request came in, put into its parts by a transport that has sessions.
#[derive(Debug, Clone)]
pub struct ProtocolSession {
    /// Its id, which is a secret of the client's.
    pub id: String,
    /// Whether its client keeps it from call to call.
    pub is_kept: bool,
}

/// Why a caller cannot be identified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerError {
    /// A value does not parse.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where it stands: a `_meta` key or a header.
        place: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// The caller may not act for this tenant.
    #[error(transparent)]
    Tenant(#[from] TenantRefused),
    /// The caller may not do this.
    #[error("this credential has no scope `{0}`")]
    Scope(Scope),
    /// No one has checked who sends this: a fault of ours.
    #[error("the caller was not checked")]
    Unchecked,
}

impl CallerError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid { .. } => ErrorCode::InvalidArgument,
            Self::Tenant(_) | Self::Scope(_) => ErrorCode::Forbidden,
            Self::Unchecked => ErrorCode::Internal,
        }
    }

    /// What the caller should do next.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "Correct the value or leave it out.",
            Self::Tenant(TenantRefused::Foreign) => {
                "Leave it out, or use a credential that lists the tenant."
            }
            Self::Tenant(TenantRefused::Missing) => {
                "Name it in `_meta` (`dev.pathbox/tenantId`) or in the header X-Tenant-Id."
            }
            Self::Scope(_) => "Use a credential that has it.",
            Self::Unchecked => "This is a fault of the server; its log has the cause.",
        }
    }
}

/// A caller, as far as a call says it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who it is.
    pub principal: Principal,
    /// The tenant that the call is for.
    pub tenant: TenantId,
    /// Whom the contexts that it makes belong to.
    pub owner: Owner,
    named: Named,
    last: (ConversationId, PathId),
    /// Whether the conversation in `last` was made up for the call, its session or its process.
    is_made_up: bool,
}

/// Parts that the call itself names, apart from a handle.
#[derive(Debug, Clone)]
struct Named {
    conversation: Option<ConversationId>,
    path: Option<PathId>,
}

impl Caller {
    /// Who calls through `door`. `parts` is the HTTP request that the call came in, if it did.
    ///
    /// # Errors
    /// [`CallerError`] when a value does not parse or the tenant is not the caller's.
    pub fn of(
        door: &Door,
        sharing: &SharingRules,
        meta: &Map<String, Value>,
        parts: Option<&Parts>,
    ) -> Result<Self, CallerError> {
        let (principal, tenant) = Self::identity(door, meta, parts)?;
        let tenant = tenant.ok_or(TenantRefused::Missing)?;
        let conversation = meta_id(meta, "dev.pathbox/conversationId", "conversationId")?;
        let path = meta_id(meta, "dev.pathbox/pathId", "pathId")?;
        let (named, last, is_made_up) = match door {
            Door::Process(defaults) => {
                let last = (defaults.conversation.clone(), defaults.path.clone());
                (Named { conversation, path }, last, true)
            }
            Door::Http(entropy) => {
                let parts = parts.ok_or(CallerError::Unchecked)?;
                let conversation =
                    conversation.map_or_else(|| header_id(parts, "x-conversation-id"), |id| Ok(Some(id)))?;
                let path = path.map_or_else(|| header_id(parts, "x-path-id"), |id| Ok(Some(id)))?;
                let is_service = principal.kind == PrincipalKind::Service;
                let (last, is_made_up) = match parts.extensions.get::<ProtocolSession>() {
                    Some(session) if session.is_kept || is_service => (of_session(&session.id), true),
                    _ if is_service => (ConversationId::of_one_call(entropy), true),
                    _ => (default_of(&principal), false),
                };
                (Named { conversation, path }, (last, PathId::main()), is_made_up)
            }
        };
        let owner = principal.owner(sharing.of(&tenant));
        Ok(Self { principal, tenant, owner, named, last, is_made_up })
    }

    /// Who asks through `door`, and for which tenant: none where a service names none, which is enough to learn what there is.
    ///
    /// # Errors
    /// As [`Caller::of`].
    pub fn identity(
        door: &Door,
        meta: &Map<String, Value>,
        parts: Option<&Parts>,
    ) -> Result<(Principal, Option<TenantId>), CallerError> {
        let mut named: Option<TenantId> = meta_id(meta, "dev.pathbox/tenantId", "tenantId")?;
        let principal = match door {
            Door::Process(defaults) => Principal::local(defaults.tenant.clone()),
            Door::Http(_) => {
                let parts = parts.ok_or(CallerError::Unchecked)?;
                named = named.map_or_else(|| header_id(parts, "x-tenant-id"), |id| Ok(Some(id)))?;
                parts.extensions.get::<Principal>().ok_or(CallerError::Unchecked)?.clone()
            }
        };
        match principal.tenant_for(named.as_ref()) {
            Ok(tenant) => Ok((principal, Some(tenant))),
            Err(TenantRefused::Missing) => Ok((principal, None)),
            Err(refused) => Err(refused.into()),
        }
    }

    /// The key of a call. `handle` is one that was opened already, under this caller's tenant. Its path and its owner are
    /// those of its conversation: they count only where the call names no other.
    pub fn key(&self, handle: Option<ContextKey>) -> ContextKey {
        let named = self.named.conversation.as_ref();
        let handle = handle.filter(|key| named.is_none_or(|named| *named == key.conversation));
        let path = self.named.path.clone();
        match handle {
            Some(key) => ContextKey { path: path.unwrap_or(key.path), ..key },
            None => ContextKey {
                tenant: self.tenant.clone(),
                owner: self.owner.clone(),
                conversation: named.unwrap_or(&self.last.0).clone(),
                path: path.unwrap_or_else(|| self.last.1.clone()),
            },
        }
    }

    /// Whether the conversation of a call without a handle was made up, so that the same call again is in another one.
    pub fn is_made_up(&self) -> bool {
        self.named.conversation.is_none() && self.is_made_up
    }

    /// Who asks about contexts and runs; a service acts for its whole tenant.
    pub fn requester(&self) -> Requester {
        Requester {
            tenant: self.tenant.clone(),
            owner: self.owner.clone(),
            principal: self.principal.name.clone(),
            sees_tenant: self.principal.sees_tenant(),
        }
    }

    /// Says whether the caller may do this. Over HTTP the door has said so already, with a challenge (`scopes`).
    ///
    /// # Errors
    /// [`CallerError::Scope`] when it may not.
    pub fn needs(&self, scope: Scope) -> Result<(), CallerError> {
        if self.principal.may(scope) { Ok(()) } else { Err(CallerError::Scope(scope)) }
    }
}

/// The conversation of a principal that names none, on whatever replica and over whatever revision of the protocol.
fn default_of(principal: &Principal) -> ConversationId {
    let digest = Sha256::digest(format!("default conversation\n{}", principal.name));
    conversation(format!("default-{}", hex(&digest[..8])))
}

/// The conversation of a protocol session: the same one for the whole session, and no one guesses another's.
fn of_session(session: &str) -> ConversationId {
    let digest = Sha256::digest(session.as_bytes());
    let hex = hex(&digest[..12]);
    conversation(format!("session-{hex}"))
}

fn conversation(name: String) -> ConversationId {
    #[expect(clippy::expect_used, reason = "a fixed prefix and hex digits are within the set")]
    ConversationId::parse(name).expect("a valid conversation id")
}

fn header_id<T: std::str::FromStr<Err = InvalidId>>(
    parts: &Parts,
    name: &'static str,
) -> Result<Option<T>, CallerError> {
    let invalid = |problem: String| CallerError::Invalid { place: format!("header `{name}`"), problem };
    let mut sent = parts.headers.get_all(name).iter();
    match (sent.next(), sent.next()) {
        (None, _) => Ok(None),
        // A proxy and a client who disagree must not be read differently by two of us.
        (Some(_), Some(_)) => Err(invalid("is there twice".into())),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| invalid("is not text".into()))?;
            text.trim().parse().map(Some).map_err(|error: InvalidId| invalid(error.to_string()))
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
                return Err(CallerError::Invalid {
                    place: format!("`_meta` key `{key}`"),
                    problem: "is not a string".into(),
                });
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
            place: format!("`_meta` key `{key}`"),
            problem: error.to_string(),
        }),
    }
}

/// The most entries in each allow-list of a call.
const MAX_LISTED: usize = 100;

fn has_long_list(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.len() > MAX_LISTED || items.iter().any(has_long_list),
        Value::Object(fields) => fields.values().any(has_long_list),
        _ => false,
    }
}

/// What a call requests of the guard: `dev.pathbox/guard` in `_meta`, in the form of a level of a policy file. Where it may not
/// loosen, an allow-list is noted and not read: each of its patterns would be compiled, for nothing.
///
/// # Errors
/// [`CallerError::Invalid`] when it is none.
pub fn overlay(meta: &Map<String, Value>, may_loosen: bool) -> Result<Option<Overlay>, CallerError> {
    const KEY: &str = "dev.pathbox/guard";
    let invalid = |problem| CallerError::Invalid { place: format!("`_meta` key `{KEY}`"), problem };
    let read = |value: &Value| {
        // Before it is read, for each pattern is compiled then.
        if has_long_list(value) {
            return Err(invalid(format!("it has a list of more than {MAX_LISTED} entries")));
        }
        // A list of the fields' values would be read as well.
        let Value::Object(mut fields) = value.clone() else {
            return Err(invalid("it is not an object".into()));
        };
        let unread = if may_loosen { None } else { fields.remove("allow") };
        let mut overlay =
            Overlay::deserialize(Value::Object(fields)).map_err(|error| invalid(error.to_string()))?;
        if unread.is_some_and(|allow| allow.as_object().is_none_or(|lists| !lists.is_empty())) {
            overlay.allow = AllowList::unread();
        }
        Ok(overlay)
    };
    meta.get(KEY).map(read).transpose()
}

/// How many characters an idempotency key may have.
pub const IDEMPOTENCY_KEY: RangeInclusive<usize> = 1..=255;

/// The idempotency key of a call: the argument, else `_meta`.
///
/// # Errors
/// [`CallerError::Invalid`] when it is not text of a length in [`IDEMPOTENCY_KEY`].
pub fn idempotency_key(
    argument: Option<&str>,
    meta: &Map<String, Value>,
) -> Result<Option<String>, CallerError> {
    let (place, text) = match argument {
        Some(text) => ("argument `idempotency_key`".to_owned(), text),
        None => match meta_text(meta, "dev.pathbox/idempotencyKey", "idempotencyKey")? {
            Some((key, text)) => (format!("`_meta` key `{key}`"), text),
            None => return Ok(None),
        },
    };
    if IDEMPOTENCY_KEY.contains(&text.chars().count()) {
        return Ok(Some(text.to_owned()));
    }
    Err(CallerError::Invalid { place, problem: "must have 1 to 255 characters".into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::PolicyFile;
    use serde_json::json;

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

    fn resolve(json: Value, handle: Option<ContextKey>) -> Result<ContextKey, CallerError> {
        Ok(Caller::of(&Door::Process(defaults()), &SharingRules::default(), &meta(json), None)?.key(handle))
    }

    #[test]
    fn an_allow_list_of_a_call_is_short() {
        let wish = |list: &str, len: usize| {
            overlay(&meta(json!({"dev.pathbox/guard": {"allow": {list: vec!["10.0.0.1"; len]}}})), true)
        };
        for list in ["exact", "patterns", "domains", "networks"] {
            assert!(wish(list, MAX_LISTED).is_ok(), "{list}");
            let error = wish(list, MAX_LISTED + 1).unwrap_err().to_string();
            assert!(error.contains("a list of more than 100 entries"), "{error}");
        }
        // A structure may not come as a list of its fields.
        let fields = json!([null, false, {}, [[], ["x"], [], []]]);
        assert!(overlay(&meta(json!({"dev.pathbox/guard": fields})), true).is_err());
    }

    #[test]
    fn an_allow_list_that_cannot_count_is_not_read() {
        let wish = |allow: Value, may_loosen| {
            overlay(&meta(json!({"dev.pathbox/guard": {"mode": "off", "allow": allow}})), may_loosen)
        };
        // A pattern like this takes too much memory when it is compiled, and this one is none at all.
        for pattern in ["((\\w{99}){99}){99}", "("] {
            let allow = json!({"patterns": [pattern], "networks": ["nowhere"]});
            assert!(wish(allow.clone(), true).is_err());
            let unread = wish(allow, false).unwrap().unwrap();
            assert_eq!(unread.allow, AllowList::unread());
            let policy = PolicyFile::default().resolve(None, None, Some(&unread));
            assert_eq!(policy.allow, AllowList::default());
            assert_eq!(policy.refused.len(), 2, "the mode and the allow-list: {:?}", policy.refused);
        }
        assert_eq!(wish(json!({}), false).unwrap().unwrap().allow, AllowList::default());
    }

    fn from_handle() -> ContextKey {
        ContextKey {
            tenant: defaults().tenant,
            owner: Owner::principal("other"),
            conversation: ConversationId::parse("from-handle").unwrap(),
            path: PathId::parse("branch").unwrap(),
        }
    }

    #[test]
    fn meta_wins_over_a_handle_and_a_handle_over_the_process() {
        let key = resolve(json!({}), None).unwrap();
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("process", "main"));
        let key = resolve(json!({}), Some(from_handle())).unwrap();
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("from-handle", "branch"));
        assert_eq!(key.owner.as_str(), "other");
        let both = json!({"conversationId": "plain", "dev.pathbox/conversationId": "full"});
        let key = resolve(both, Some(from_handle())).unwrap();
        // The handle's path is a path of its own conversation, and so is its owner.
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("full", "main"));
        assert_eq!(key.owner.as_str(), "local");
        let same = json!({"conversationId": "from-handle"});
        let key = resolve(same, Some(from_handle())).unwrap();
        assert_eq!((key.path.as_str(), key.owner.as_str()), ("branch", "other"));
    }

    #[test]
    fn a_value_that_does_not_parse_is_named() {
        let error = resolve(json!({"pathId": 7}), None).unwrap_err();
        assert_eq!(error.to_string(), "`_meta` key `pathId`: is not a string");
        let error = resolve(json!({"dev.pathbox/pathId": "a/b"}), None).unwrap_err().to_string();
        assert!(error.starts_with("`_meta` key `dev.pathbox/pathId`: path id holds '/'"), "{error}");
        let error = over_http(json!({}), &[("x-path-id", "a/b")], None).unwrap_err().to_string();
        assert!(error.starts_with("header `x-path-id`: path id holds '/'"), "{error}");
        let twice = [("x-conversation-id", "a"), ("x-conversation-id", "b")];
        let error = over_http(json!({}), &twice, None).unwrap_err().to_string();
        assert_eq!(error, "header `x-conversation-id`: is there twice");
    }

    #[test]
    fn another_tenant_is_refused_and_its_own_is_not() {
        assert!(resolve(json!({"tenantId": "local"}), None).is_ok());
        let refused = CallerError::Tenant(TenantRefused::Foreign);
        assert_eq!(resolve(json!({"tenantId": "acme"}), None).unwrap_err(), refused);
        assert_eq!(over_http(json!({}), &[("x-tenant-id", "acme")], None).unwrap_err(), refused);
        assert_eq!(over_http(json!({"tenantId": "acme"}), &[], None).unwrap_err(), refused);
    }

    fn request(headers: &[(&'static str, &'static str)], session: Option<&str>) -> Parts {
        let mut request = http::Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        parts.extensions.insert(Principal::local(defaults().tenant));
        if let Some(session) = session {
            let is_kept = !session.starts_with("once");
            parts.extensions.insert(ProtocolSession { id: session.to_owned(), is_kept });
        }
        parts
    }

    fn over_http(
        json: Value,
        headers: &[(&'static str, &'static str)],
        session: Option<&str>,
    ) -> Result<ContextKey, CallerError> {
        let door = Door::Http(Entropy::seeded(7));
        Ok(Caller::of(&door, &SharingRules::default(), &meta(json), Some(&request(headers, session)))?
            .key(Some(from_handle())))
    }

    #[test]
    fn over_http_meta_wins_over_headers_and_headers_over_a_handle() {
        let headers = [("x-conversation-id", "from-header"), ("x-path-id", "header-path")];
        let key = over_http(json!({"conversationId": "meta"}), &headers, Some("s")).unwrap();
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("meta", "header-path"));
        let key = over_http(json!({}), &[], Some("s")).unwrap();
        assert_eq!((key.conversation.as_str(), key.path.as_str()), ("from-handle", "branch"));
    }

    #[test]
    fn a_kept_session_is_one_conversation_and_all_else_of_a_person_another() {
        let door = Door::Http(Entropy::seeded(7));
        let silent = |parts: &Parts| {
            Caller::of(&door, &SharingRules::default(), &Map::new(), Some(parts)).unwrap().key(None)
        };
        let of = |session| silent(&request(&[], session));
        assert_eq!(of(Some("s")), of(Some("s")));
        assert_ne!(of(Some("s")), of(Some("t")));
        assert!(of(Some("secret")).conversation.as_str().starts_with("session-"));
        assert_eq!(of(None), of(None));
        assert_eq!(of(None), of(Some("once-1")));
        assert_eq!(of(None), of(Some("once-2")));
        // Another person's is another one, and a service has none.
        let mut parts = request(&[], None);
        parts.extensions.get_mut::<Principal>().unwrap().name = "key:b".into();
        assert_ne!(silent(&parts), of(None));
        let mut parts = request(&[], None);
        parts.extensions.get_mut::<Principal>().unwrap().kind = PrincipalKind::Service;
        assert_ne!(silent(&parts), silent(&parts));
        let mut parts = request(&[], Some("once"));
        parts.extensions.get_mut::<Principal>().unwrap().kind = PrincipalKind::Service;
        assert_eq!(silent(&parts), silent(&parts));
    }

    #[test]
    fn a_request_without_a_checked_caller_has_no_caller() {
        let (parts, ()) = http::Request::new(()).into_parts();
        let door = Door::Http(Entropy::seeded(7));
        assert_eq!(
            Caller::of(&door, &SharingRules::default(), &Map::new(), Some(&parts)).unwrap_err(),
            CallerError::Unchecked
        );
        assert_eq!(
            Caller::of(&door, &SharingRules::default(), &Map::new(), None).unwrap_err(),
            CallerError::Unchecked
        );
    }
}
