//! Whether a client keeps its session from call to call, and so whether the session is a conversation.
//!
//! A client that keeps its session has listed the tools in it before it calls one: how else would it know them. A client
//! that opens a session for each call has listed them in another one; its calls belong to the caller's default
//! conversation. Only two sessions of one caller that are open side by side without a call in progress are not of such a
//! client, whatever they have listed.

use std::time::Duration;

use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};

/// A session that was called once and then not for this long was forgotten by its client.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// What a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chat {
    /// A conversation of its own.
    Own,
    /// Part of the caller's default conversation.
    Default,
}

impl Chat {
    /// As it is written for other replicas.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Default => "default",
        }
    }

    /// The other way.
    pub(super) fn read(text: &str) -> Option<Self> {
        [Self::Own, Self::Default].into_iter().find(|chat| chat.as_str() == text)
    }
}

/// Another open session of the same caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Other {
    pub(super) chat: Option<Chat>,
    /// Whether a request of it is in progress.
    pub(super) is_running: bool,
    pub(super) calls: u64,
    pub(super) unused_for: Duration,
}

/// What a message says about its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// The tools are listed.
    Lists,
    /// A tool is called.
    Calls,
}

/// The sign in a message of a session that has not been decided yet.
pub(super) fn sign(body: &[u8]) -> Option<Sign> {
    let message = serde_json::from_slice::<ClientJsonRpcMessage>(body).ok()?;
    let JsonRpcMessage::Request(request) = message else { return None };
    match request.request {
        ClientRequest::ListToolsRequest(_) => Some(Sign::Lists),
        ClientRequest::CallToolRequest(_) => Some(Sign::Calls),
        _ => None,
    }
}

/// What a session is after its first sign.
pub(super) fn decide(sign: Sign, others: impl IntoIterator<Item = Other>) -> Chat {
    let is_beside_another = || {
        others.into_iter().any(|other| {
            let is_kept = other.calls > 1 || other.unused_for < FORGOTTEN;
            other.chat == Some(Chat::Default) && !other.is_running && is_kept
        })
    };
    if sign == Sign::Lists || is_beside_another() { Chat::Own } else { Chat::Default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_lists_first_keeps_its_session_and_one_that_only_calls_does_not() {
        let other =
            Other { chat: Some(Chat::Default), is_running: false, calls: 1, unused_for: Duration::ZERO };
        assert_eq!(decide(Sign::Lists, []), Chat::Own);
        assert_eq!(decide(Sign::Calls, []), Chat::Default);
        assert_eq!(decide(Sign::Calls, [other]), Chat::Own, "two are open side by side");
        assert_eq!(
            decide(Sign::Calls, [Other { is_running: true, ..other }]),
            Chat::Default,
            "parallel calls"
        );
        assert_eq!(decide(Sign::Calls, [Other { chat: Some(Chat::Own), ..other }]), Chat::Default);
        assert_eq!(decide(Sign::Calls, [Other { chat: None, ..other }]), Chat::Default);
        let forgotten = Other { unused_for: FORGOTTEN, ..other };
        assert_eq!(decide(Sign::Calls, [forgotten]), Chat::Default);
        assert_eq!(decide(Sign::Calls, [Other { calls: 2, ..forgotten }]), Chat::Own);
    }
}
