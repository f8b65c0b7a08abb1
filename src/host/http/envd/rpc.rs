//! Connect RPC over JSON, the server's side: unary calls and streams, without compression.
//!
//! A stream answers 200 whatever happens; its outcome is in its last envelope.

use std::pin::Pin;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::host::agent::AgentError;
use crate::host::http::read_body;
use crate::wire::connect::{Code, Envelope, EnvelopeReader, RpcError, STREAM_CONTENT_TYPE};
use crate::wire::header::{CONNECT_TIMEOUT, KEEPALIVE_INTERVAL};

/// The largest message a client may send. Input to a process comes in base64 and whole.
pub(super) const MESSAGE_LIMIT: usize = 8 * 1024 * 1024;
/// Between two keepalives on a stream, when the client names no interval (envd's own default).
const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(90);

/// The result of a unary handler.
pub(super) type Answer<T> = Result<Json<T>, Failed>;

/// A call that failed, as an HTTP answer.
#[derive(Debug)]
pub(super) struct Failed(pub(super) RpcError);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

impl From<RpcError> for Failed {
    fn from(error: RpcError) -> Self {
        Self(error)
    }
}

/// Reads the message of a unary call.
pub(super) async fn message<T: DeserializeOwned>(body: Body) -> Result<T, RpcError> {
    let bytes = read_body(body, MESSAGE_LIMIT)
        .await
        .map_err(|error| RpcError::new(Code::ResourceExhausted, error.to_string()))?;
    parse(if bytes.is_empty() { b"{}" } else { &bytes })
}

/// Reads the one envelope that opens a server stream.
pub(super) async fn only_envelope<T: DeserializeOwned>(body: Body) -> Result<T, RpcError> {
    Envelopes::new(body)
        .next()
        .await?
        .ok_or_else(|| RpcError::new(Code::InvalidArgument, "the request holds no message"))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RpcError> {
    serde_json::from_slice(bytes)
        .map_err(|error| RpcError::new(Code::InvalidArgument, format!("the message does not parse: {error}")))
}

/// The messages of a client's stream, one by one.
pub(super) struct Envelopes {
    body: axum::body::BodyDataStream,
    reader: EnvelopeReader,
}

impl Envelopes {
    pub(super) fn new(body: Body) -> Self {
        Self { body: body.into_data_stream(), reader: EnvelopeReader::new(MESSAGE_LIMIT) }
    }

    /// The next message; `None` at the end of the stream.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RpcError> {
        loop {
            match self.reader.next() {
                Ok(Some(Envelope::Message(bytes))) => return parse(&bytes).map(Some),
                Ok(Some(Envelope::End(_))) => return Ok(None),
                Ok(None) => {}
                Err(error) => return Err(RpcError::new(Code::InvalidArgument, error.to_string())),
            }
            match self.body.next().await {
                Some(Ok(chunk)) => self.reader.push(&chunk),
                Some(Err(_)) => return Err(RpcError::new(Code::Canceled, "the client left")),
                None if self.reader.is_empty() => return Ok(None),
                None => return Err(RpcError::new(Code::InvalidArgument, "the last message is cut off")),
            }
        }
    }
}

/// Messages of a server stream; an `Err` is its end.
pub(super) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, RpcError>> + Send>>;

/// A server stream: its messages, a keepalive in every silence, and the end envelope.
pub(super) fn stream_answer<T: Serialize + Send + 'static>(
    messages: Result<Messages<T>, RpcError>,
    keepalive: T,
    interval: Duration,
) -> Response {
    let (first_error, messages) = match messages {
        Ok(messages) => (None, Some(messages)),
        Err(error) => (Some(error), None),
    };
    let keepalive = encode(&keepalive);
    let body =
        stream::unfold((messages, first_error, keepalive), move |(messages, error, keepalive)| async move {
            if let Some(error) = error {
                return Some((Envelope::end(Some(error)).encode(), (None, None, keepalive)));
            }
            let mut messages = messages?;
            let (bytes, rest) = match tokio::time::timeout(interval, messages.next()).await {
                Err(_) => (keepalive.clone(), Some(messages)),
                Ok(Some(Ok(message))) => (encode(&message), Some(messages)),
                Ok(Some(Err(error))) => (Envelope::end(Some(error)).encode(), None),
                Ok(None) => (Envelope::end(None).encode(), None),
            };
            Some((bytes, (rest, None, keepalive)))
        });
    let body = Body::from_stream(body.map(Ok::<_, std::convert::Infallible>));
    ([(header::CONTENT_TYPE, STREAM_CONTENT_TYPE)], body).into_response()
}

fn encode(message: &impl Serialize) -> Bytes {
    match Envelope::message(message) {
        Ok(envelope) => envelope.encode(),
        // Messages have text keys only, so this is a fault of ours; the client sees it as one.
        Err(error) => Envelope::end(Some(RpcError::new(Code::Internal, error.to_string()))).encode(),
    }
}

/// The deadline of a call; absent, or 0, means none.
pub(super) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let millis: u64 = headers.get(CONNECT_TIMEOUT)?.to_str().ok()?.parse().ok()?;
    (millis > 0).then(|| Duration::from_millis(millis))
}

/// How often the client wants a keepalive.
pub(super) fn keepalive_interval(headers: &HeaderMap) -> Duration {
    let asked = headers.get(KEEPALIVE_INTERVAL).and_then(|value| value.to_str().ok()?.parse().ok());
    asked.filter(|secs| *secs > 0).map_or(KEEPALIVE_DEFAULT, Duration::from_secs)
}

/// The sandbox's refusal, as a Connect error.
pub(super) fn refused(error: AgentError) -> RpcError {
    use std::io::ErrorKind;
    match error {
        AgentError::Gone => sandbox_gone(),
        AgentError::TooLarge => RpcError::new(Code::ResourceExhausted, error.to_string()),
        AgentError::Refused { doing, source } => {
            let code = match source.kind() {
                ErrorKind::NotFound => Code::NotFound,
                ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => Code::AlreadyExists,
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::WouldBlock => {
                    Code::ResourceExhausted
                }
                ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::InvalidInput
                | ErrorKind::InvalidFilename => Code::InvalidArgument,
                _ if source.raw_os_error() == Some(libc::EIO) => Code::Internal,
                // A loop of links, a pipe without a reader, a busy directory: what the sandbox put at the path.
                _ => Code::FailedPrecondition,
            };
            RpcError::new(code, format!("{doing}: {source}"))
        }
    }
}

/// The error of a call whose sandbox ends under it; clients then ask whether it still runs.
pub(super) fn sandbox_gone() -> RpcError {
    RpcError::new(Code::Unavailable, crate::wire::error::SANDBOX_NOT_FOUND)
}
