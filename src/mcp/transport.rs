//! The ways in. Each feeds the same [`super::McpServer`]; here is what they have in common.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorCode, ErrorData, JsonRpcMessage, ProtocolVersion,
    RequestId, ServerResult,
};
use rmcp::service::TxJsonRpcMessage;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::domain::lock;

mod chats;
pub mod legacy_sse;
mod scopes;
pub mod stdio;
pub mod streamable_http;

/// For a whole message to arrive over HTTP.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that one connection may have in flight.
const MAX_IN_FLIGHT: usize = 128;

/// A message that could not be read into memory.
enum BodyError {
    TooLarge,
    Slow,
    /// The client broke off, or framed it wrongly.
    Broken,
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
        };
        status.into_response()
    }
}

/// Reads a whole message, bounded in size and time.
async fn read_body(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, limit).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Ok(Err(_)) => Err(BodyError::Broken),
        Err(_) => Err(BodyError::Slow),
    }
}

/// A JSON-RPC error as a whole HTTP answer.
fn json_rpc_error(status: StatusCode, id: Option<RequestId>, error: ErrorData) -> Response {
    let message = TxJsonRpcMessage::<RoleServer>::error(error, id);
    let json = serde_json::to_vec(&message).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// The one member of a message that is read when the others cannot be.
#[derive(Deserialize)]
struct Named {
    id: Option<RequestId>,
}

/// What to answer to bytes that are not a message: JSON-RPC 2.0 section 5.1 has -32700 for what is not JSON and -32600
/// for JSON of another shape.
fn refusal(bytes: &[u8], error: &serde_json::Error) -> (Option<RequestId>, ErrorData) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
        // JSON can write half a character (`\ud800`), which no text holds. Who sent it waits for an answer to its id.
        if let Ok(Named { id }) = serde_json::from_slice(bytes) {
            let text = "a text holds half a character: a surrogate without its other half";
            return (id, ErrorData::invalid_request(text, Some(json!({ "reason": classify(error) }))));
        }
        let text = format!("not JSON: {}", classify(error));
        return (None, ErrorData::new(ErrorCode::PARSE_ERROR, text, None));
    };
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    let text = match &value {
        Value::Array(_) => "batches exist only in protocol revision 2025-03-26: send one message at a time",
        _ => "not a JSON-RPC 2.0 message",
    };
    (id, ErrorData::invalid_request(text, Some(json!({ "reason": classify(error) }))))
}

/// Says what is wrong with a text without repeating any of it.
fn classify(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        serde_json::error::Category::Io => "it cannot be read",
        serde_json::error::Category::Syntax => "syntax",
        serde_json::error::Category::Data => "wrong shape",
        serde_json::error::Category::Eof => "it ends too early",
    };
    format!("{kind} at column {}", error.column())
}

/// The ids of the requests that run on one connection. Two requests with one id would get one answer.
#[derive(Debug, Clone, Default)]
struct InFlight(Arc<Mutex<Ids>>, Arc<Notify>);

#[derive(Debug, Default)]
struct Ids {
    begun: bool,
    batches: bool,
    running: HashSet<RequestId>,
}

/// The messages of a batch, each as JSON. Only revision 2025-03-26 has batches.
///
/// # Errors
/// When it is none: not an array, an empty one, or one of too many messages.
fn batch(bytes: &[u8]) -> Result<Vec<Box<RawValue>>, &'static str> {
    match serde_json::from_slice::<Vec<Box<RawValue>>>(bytes) {
        Ok(batch) if batch.is_empty() => Err("the batch is empty"),
        Ok(batch) if batch.len() > MAX_IN_FLIGHT => Err("the batch has more than 128 messages"),
        Ok(batch) => Ok(batch),
        Err(_) => Err("not a batch"),
    }
}

/// Whether a message is an array.
fn is_array(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'[')
}

impl InFlight {
    fn lock(&self) -> std::sync::MutexGuard<'_, Ids> {
        lock(&self.0)
    }

    /// Takes note of a client's message. Whether its handler gets it.
    ///
    /// # Errors
    /// The request that may not begin, and what to answer to it.
    fn admit(&self, message: &ClientJsonRpcMessage) -> Result<bool, (RequestId, ErrorData)> {
        match message {
            JsonRpcMessage::Request(request) => {
                let refused = |problem| (request.id.clone(), ErrorData::invalid_request(problem, None));
                self.begin(&request.id).map_err(refused)?;
            }
            // rmcp ends the session on a notification that comes before any request; clients do send them.
            _ if !self.lock().begun => return Ok(false),
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // A cancelled request is not answered, so its id is free again.
                    self.end(id);
                }
            }
            _ => {}
        }
        Ok(true)
    }

    fn begin(&self, id: &RequestId) -> Result<(), &'static str> {
        let mut ids = self.lock();
        if ids.running.len() >= MAX_IN_FLIGHT {
            return Err("too many requests of this connection are running");
        }
        if !ids.running.insert(id.clone()) {
            return Err("a request with this id is still running");
        }
        ids.begun = true;
        Ok(())
    }

    /// Whether the revision that was agreed on has batches.
    fn takes_batches(&self) -> bool {
        self.lock().batches
    }

    /// Whether a request is in progress.
    fn is_running(&self) -> bool {
        !self.lock().running.is_empty()
    }

    fn end(&self, id: &RequestId) {
        let mut ids = self.lock();
        ids.running.remove(id);
        if ids.running.is_empty() {
            self.1.notify_waiters();
        }
    }

    /// Waits until every request has its answer.
    async fn all_answered(&self) {
        loop {
            let none = self.1.notified();
            tokio::pin!(none);
            none.as_mut().enable();
            if self.lock().running.is_empty() {
                return;
            }
            none.await;
        }
    }

    /// Takes note of an answer on its way out.
    fn answered(&self, message: &TxJsonRpcMessage<RoleServer>) {
        match message {
            JsonRpcMessage::Response(response) => {
                if let ServerResult::InitializeResult(result) = &response.result {
                    self.lock().batches = result.protocol_version == ProtocolVersion::V_2025_03_26;
                }
                self.end(&response.id);
            }
            JsonRpcMessage::Error(error) => {
                if let Some(id) = &error.id {
                    self.end(id);
                }
            }
            _ => {}
        }
    }
}
