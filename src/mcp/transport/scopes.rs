//! What a message needs of its sender's credential, found before the message goes on: over HTTP a client learns of a missing
//! scope by status 403 and a challenge, and may then ask for another token (MCP, authorization, "insufficient scope").

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};

use crate::domain::principal::MissingScope;
use crate::domain::{Principal, Scope};
use crate::mcp::tools;

/// The refusal of a message, or of one of a batch, whose sender lacks a scope.
pub(super) fn refusal(principal: &Principal, body: &[u8]) -> Option<Response> {
    if principal.may(Scope::Run) && principal.may(Scope::Read) {
        return None;
    }
    let missing = match serde_json::from_slice::<Vec<ClientJsonRpcMessage>>(body) {
        Ok(batch) => batch.iter().find_map(|message| missing(principal, message)),
        Err(_) => missing(principal, &serde_json::from_slice(body).ok()?),
    }?;
    let text = format!("this credential has no scope `{missing}`");
    let mut response = (StatusCode::FORBIDDEN, text).into_response();
    response.extensions_mut().insert(MissingScope(missing));
    Some(response)
}

fn missing(principal: &Principal, message: &ClientJsonRpcMessage) -> Option<Scope> {
    let JsonRpcMessage::Request(request) = message else { return None };
    needed(&request.request).filter(|scope| !principal.may(*scope))
}

fn needed(request: &ClientRequest) -> Option<Scope> {
    match request {
        ClientRequest::CallToolRequest(call) => {
            Some(tools::scope_of(&call.params.name, call.params.arguments.as_ref()))
        }
        ClientRequest::ReadResourceRequest(_)
        | ClientRequest::ListResourcesRequest(_)
        | ClientRequest::GetTaskRequest(_) => Some(Scope::Read),
        ClientRequest::CancelTaskRequest(_) => Some(Scope::Run),
        _ => None,
    }
}
