//! `/files/{token}`: one file in or out, once, for the holder of the address.
//!
//! `PUT` sends a whole file; `PUT` with `?part=N` sends a part of it and `POST` with `?parts=N` ends an upload in parts; `GET`
//! reads. Nothing is held in memory: uploads go to disk first, downloads are read page by page.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures::StreamExt;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use serde::Deserialize;
use serde_json::json;

use crate::domain::{ErrorCode, TenantId, lock};
use crate::execution::files::{FileProblem, MAX_FILE_BYTES};
use crate::execution::transfers::{MAX_PARTS, MAX_UPLOADING, Stored, Ticket, Way};
use crate::execution::{Artifact, Execution, ExecutionError, Reads, Starting, Transfers};

use super::connections::Holding;
use super::shares::{Share, Shares};
use super::v1::Problem;

/// How long a sender may say nothing.
const STILL: Duration = Duration::from_secs(60);
/// How long a request waits for a server that is still starting.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are read of an artifact in one go.
const PAGE: usize = 1024 * 1024;

/// What of the running service the route uses.
#[derive(Debug, Clone)]
pub struct Service {
    transfers: Transfers,
    reads: Reads,
}

impl Service {
    /// Its parts of a running service.
    pub fn of(execution: &Execution) -> Self {
        Self { transfers: execution.transfers.clone(), reads: execution.reads.clone() }
    }
}

#[derive(Debug)]
struct Inner {
    execution: Starting<Service>,
    shares: Shares,
    coming: Coming,
}

/// Bytes of uploads that are under way on this replica, by tenant.
type Coming = Arc<Mutex<HashMap<TenantId, u64>>>;

/// What one request has brought so far, until it is a part, in a sandbox, or refused.
struct Brought {
    tenant: TenantId,
    bytes: u64,
    coming: Coming,
}

impl Brought {
    /// Counts more bytes. Gives what the tenant has under way.
    fn add(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes;
        let mut coming = lock(&self.coming);
        let all = coming.entry(self.tenant.clone()).or_default();
        *all += bytes;
        *all
    }
}

impl Drop for Brought {
    fn drop(&mut self) {
        let mut coming = lock(&self.coming);
        if let Some(all) = coming.get_mut(&self.tenant) {
            *all -= self.bytes;
            if *all == 0 {
                coming.remove(&self.tenant);
            }
        }
    }
}

type Door = State<Arc<Inner>>;

/// The route. It needs no credential: the token is one. `shares`: open requests of one caller.
pub fn router(execution: Starting<Service>, shares: Shares) -> Router {
    let inner = Arc::new(Inner { execution, shares, coming: Coming::default() });
    // A `HEAD` is answered by itself: it does not use the address up.
    Router::new()
        .route("/files/{token}", get(read).head(look).put(write).post(end))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(inner)
}

/// A presented address.
struct Presented {
    service: Service,
    ticket: Ticket,
    share: Share,
}

impl Inner {
    async fn present(&self, token: &str) -> Result<Presented, Problem> {
        let service = self.execution.service(PATIENCE).await?;
        let ticket = service.transfers.ticket(token).ok_or_else(gone)?;
        let Some(share) = self.shares.take(&ticket.requester.principal) else {
            let text = "this caller has too many open requests (`http.max_requests_per_principal`): try again in a moment";
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::LimitReached, text));
        };
        Ok(Presented { service, ticket, share })
    }
}

impl Presented {
    async fn is_new(&self) -> Result<(), Problem> {
        if self.service.transfers.is_used(&self.ticket).await? { Err(gone()) } else { Ok(()) }
    }

    async fn use_up(&self) -> Result<(), Problem> {
        if self.service.transfers.use_up(&self.ticket).await? { Ok(()) } else { Err(gone()) }
    }

    /// The URI that may be read.
    async fn artifact(&self) -> Result<&str, Problem> {
        match &self.ticket.way {
            Way::Out(uri) => self.is_new().await.map(|()| uri.as_str()),
            Way::In(_) => Err(wrong_way("this address takes a file: send it with PUT")),
        }
    }

    fn takes_a_file(&self) -> Result<(), Problem> {
        match &self.ticket.way {
            Way::In(_) => Ok(()),
            Way::Out(_) => Err(wrong_way("this address gives a file: read it with GET")),
        }
    }
}

fn gone() -> Problem {
    let text = "this address was used, has expired, or was not made here; request a new one";
    Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, text)
}

fn wrong_way(text: &str) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::InvalidArgument, text)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parts {
    part: Option<usize>,
    parts: Option<usize>,
}

fn parts_of(uri: &Uri) -> Result<Parts, Problem> {
    let parts = Query::<Parts>::try_from_uri(uri);
    Ok(parts.map_err(|error| Problem::argument(error.body_text()))?.0)
}

async fn look(State(door): Door, Path(token): Path<String>) -> Result<Response, Problem> {
    let presented = door.present(&token).await?;
    let (artifact, _) = presented
        .service
        .reads
        .artifact(&presented.ticket.requester, presented.artifact().await?, 0, 1)
        .await?;
    Ok(headers_of(&artifact).into_response())
}

async fn read(State(door): Door, Path(token): Path<String>) -> Result<Response, Problem> {
    let presented = door.present(&token).await?;
    let uri = presented.artifact().await?.to_owned();
    let (artifact, first) =
        presented.service.reads.artifact(&presented.ticket.requester, &uri, 0, PAGE).await?;
    presented.use_up().await?;
    let headers = headers_of(&artifact);
    let Presented { service, ticket, share } = presented;
    let from = first.len() as u64;
    let rest = futures::stream::try_unfold(from, move |at| {
        let (reads, requester, uri, total) =
            (service.reads.clone(), ticket.requester.clone(), uri.clone(), artifact.bytes);
        async move {
            if at >= total {
                return Ok(None);
            }
            let page = reads.artifact(&requester, &uri, at, PAGE).await.map_err(std::io::Error::other)?.1;
            match page.len() {
                // It ends before its end: the answer breaks off rather than passing for whole.
                0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => Ok(Some((Bytes::from(page), at + read as u64))),
            }
        }
    });
    let body = futures::stream::once(async { Ok::<_, std::io::Error>(Bytes::from(first)) }).chain(rest);
    Ok((headers, Holding::body(Body::from_stream(body), share)).into_response())
}

/// What a browser needs to save the file under its name, and to run nothing that is in it as this server's page.
fn headers_of(artifact: &Artifact) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name: HeaderName, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    set(CONTENT_TYPE, artifact.mime_type.clone());
    set(CONTENT_LENGTH, artifact.bytes.to_string());
    set(CONTENT_DISPOSITION, disposition(&artifact.name));
    set(CACHE_CONTROL, "no-store".to_owned());
    set(CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'".to_owned());
    headers
}

/// A name for saving, in any script (RFC 6266, RFC 8187).
fn disposition(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._- ".contains(c) { c } else { '_' }).collect();
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

async fn write(
    State(door): Door,
    Path(token): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let presented = door.present(&token).await?;
    presented.takes_a_file()?;
    let service = &presented.service.transfers;
    let number = match parts_of(request.uri())? {
        Parts { part: None, parts: None } => None,
        Parts { part: Some(number @ 1..=MAX_PARTS), parts: None } => Some(number),
        _ => return Err(Problem::argument(format!("`part` is a number from 1 to {MAX_PARTS}"))),
    };
    if number.is_some() {
        presented.is_new().await?;
    }
    let file = service.scratch().map_err(not_kept)?;
    let mut brought =
        Brought { tenant: presented.ticket.tenant().clone(), bytes: 0, coming: Arc::clone(&door.coming) };
    let file = receive(request, file, &mut brought).await?;
    let bytes = brought.bytes;
    if let Some(number) = number {
        let coming = brought.add(0);
        service.keep_part(&presented.ticket, number, (file, bytes), coming).await.map_err(refused)?;
        return Ok(Json(json!({ "part": number, "bytes": bytes })).into_response());
    }
    // A transfer that broke off has not used the address.
    Ok(written(&service.put(&presented.ticket, (file, bytes), 0).await.map_err(refused)?))
}

async fn end(State(door): Door, Path(token): Path<String>, uri: Uri) -> Result<Response, Problem> {
    let presented = door.present(&token).await?;
    presented.takes_a_file()?;
    let count = match parts_of(&uri)? {
        Parts { parts: Some(count @ 1..=MAX_PARTS), part: None } => count,
        _ => return Err(Problem::argument(format!("`parts` is the number of parts, from 1 to {MAX_PARTS}"))),
    };
    let service = &presented.service.transfers;
    // The parts of an upload go with its end, so it is known by their number.
    match service.stored(&presented.ticket).await? {
        Some(stored) if stored.parts == count => return Ok(written(&stored)),
        Some(_) => return Err(refused(ExecutionError::File(FileProblem::Taken))),
        None => {}
    }
    let joined = service.joined(&presented.ticket, count).await.map_err(refused)?.map_err(|number| {
        Problem::new(StatusCode::CONFLICT, ErrorCode::InvalidArgument, format!("part {number} is missing"))
    })?;
    let stored = service.put(&presented.ticket, joined, count).await.map_err(refused)?;
    service.remove_parts(&presented.ticket).await;
    Ok(written(&stored))
}

/// Takes a request's body to disk.
async fn receive(request: Request<Body>, mut file: File, brought: &mut Brought) -> Result<File, Problem> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if announced.and_then(|text| text.parse::<u64>().ok()).is_some_and(|bytes| bytes > MAX_FILE_BYTES) {
        return Err(too_large());
    }
    let mut body = request.into_body().into_data_stream();
    loop {
        let piece = match tokio::time::timeout(STILL, body.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(None) => return Ok(file),
            Ok(Some(Err(_))) => return Err(Problem::argument("the transfer broke off; send it again")),
            Err(_) => {
                let text = "the transfer stalled; send it again";
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::InvalidArgument, text));
            }
        };
        let coming = brought.add(piece.len() as u64);
        if brought.bytes > MAX_FILE_BYTES {
            return Err(too_large());
        }
        if coming > MAX_UPLOADING {
            return Err(refused(ExecutionError::File(FileProblem::Uploads)));
        }
        file.write_all(&piece).map_err(not_kept)?;
    }
}

fn refused(error: ExecutionError) -> Problem {
    match error {
        ExecutionError::File(FileProblem::TooLarge) => too_large(),
        ExecutionError::File(FileProblem::Taken) => {
            let text = format!("{}. {}", FileProblem::Taken, FileProblem::Taken.advice());
            Problem::new(StatusCode::CONFLICT, ErrorCode::InvalidArgument, text)
        }
        error => error.into(),
    }
}

fn too_large() -> Problem {
    let text = format!("{}. {}", FileProblem::TooLarge, FileProblem::TooLarge.advice());
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::InvalidArgument, text)
}

fn not_kept(error: std::io::Error) -> Problem {
    tracing::warn!(%error, "a file that came in could not be kept");
    let text = "the server's disk does not take the file; try again later";
    Problem::new(StatusCode::INSUFFICIENT_STORAGE, ErrorCode::StoreUnavailable, text)
}

fn written(stored: &Stored) -> Response {
    let Stored { path, bytes, version, replaced, .. } = stored;
    let answer = json!({ "path": path, "bytes": bytes, "version": version, "replaced": replaced });
    (StatusCode::CREATED, Json(answer)).into_response()
}
