//! `/files`: contents of files, up and down, as a stream of pieces through the agent.
//!
//! A download that its reader abandons and an upload that breaks off cost nothing but what was done so far; neither
//! is ever whole in the host's memory.

use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use flate2::write::MultiGzDecoder;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;

use super::multipart::{Malformed, Multipart, Piece};
use super::{check_user, check_user_name, filesystem, home_path, rpc};
use crate::host::agent::{AgentError, AgentHandle, FileKind, READ_MAX};
use crate::host::http::{api_error, read_body};
use crate::host::sandbox::Sandbox;
use crate::wire::connect::{Code, RpcError};
use crate::wire::envd::{WrittenFile, file_signature};

type Box = Extension<Arc<Sandbox>>;

/// Bytes written to a file in one message to the agent.
const WRITE_PIECE: usize = 64 * 1024;
/// Compressed bytes unpacked at a time: gzip grows a thousandfold at most, so this bounds memory.
const GZIP_PIECE: usize = 4 * 1024;
/// Between two pieces of an upload.
const UPLOAD_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// How much is still read of an upload that does not fit, in bytes and in time.
const REST_MAX: usize = 1 << 30;
const REST_PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);
/// Parts that one compose may join.
const MAX_SOURCES: usize = 10_000;

pub(super) fn router() -> Router {
    Router::new().route("/files", get(download).post(upload)).route("/files/compose", post(compose))
}

/// The query of `/files`.
#[derive(Debug, Default)]
pub(crate) struct Address {
    path: Option<String>,
    user: String,
    operation: &'static str,
    signature: Option<String>,
    expires_unix: Option<String>,
}

impl Address {
    /// Reads the address of a request for `/files`; `None` for any other.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let operation = match *request.method() {
            Method::GET | Method::HEAD => "read",
            Method::POST => "write",
            _ => return None,
        };
        (request.uri().path() == "/files")
            .then(|| Self::parse(request.uri().query().unwrap_or(""), operation))
    }

    fn parse(query: &str, operation: &'static str) -> Self {
        let mut address = Self { operation, ..Self::default() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "path" => address.path = Some(value.into_owned()),
                "username" => address.user = value.into_owned(),
                "signature" => address.signature = Some(value.into_owned()),
                "signature_expiration" => address.expires_unix = Some(value.into_owned()),
                _ => {}
            }
        }
        address
    }

    /// Whether it carries a signature at all.
    pub(crate) fn is_signed(&self) -> bool {
        self.signature.is_some()
    }

    /// Whether it reports itself that its time is up.
    pub(crate) fn has_expired(&self, now: DateTime<Utc>) -> bool {
        let expires = self.expires_unix.as_deref().map(str::parse::<i64>);
        self.is_signed() && expires.is_some_and(|expires| expires.is_ok_and(|at| at < now.timestamp()))
    }

    /// Whether the holder of the sandbox's token signed this address. Whether it still holds is another question.
    pub(crate) fn is_signed_by(&self, sandbox: &Sandbox) -> bool {
        let (Some(signature), Some(token)) = (&self.signature, &sandbox.access_token) else { return false };
        let expires = match self.expires_unix.as_deref().map(str::parse) {
            None => None,
            Some(Ok(seconds)) => Some(seconds),
            Some(Err(_)) => return false,
        };
        let path = self.path.as_deref().unwrap_or("");
        let expected = file_signature(path, self.operation, &self.user, token.expose(), expires);
        crate::wire::Secret::new(expected).matches(signature)
    }
}

/// A call that failed, in envd's plain HTTP.
#[derive(Debug)]
struct Failed(StatusCode, String);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        api_error(self.0, self.1)
    }
}

impl Failed {
    fn invalid(message: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, message.into())
    }
}

impl From<RpcError> for Failed {
    fn from(error: RpcError) -> Self {
        let status =
            StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self(status, error.message)
    }
}

impl From<Malformed> for Failed {
    fn from(error: Malformed) -> Self {
        Self::invalid(error.to_string())
    }
}

/// The sandbox's refusal, for a file at `path`.
fn refused(path: &str, error: AgentError) -> Failed {
    use std::io::ErrorKind;
    match error {
        AgentError::Refused { source, .. } => match source.kind() {
            ErrorKind::NotFound => Failed(StatusCode::NOT_FOUND, format!("path '{path}' does not exist")),
            ErrorKind::IsADirectory => Failed::invalid(format!("path '{path}' is a directory")),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Failed(
                StatusCode::INSUFFICIENT_STORAGE,
                format!("not enough disk space for '{path}': {source}"),
            ),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                Failed(StatusCode::FORBIDDEN, format!("'{path}': {source}"))
            }
            _ => Failed::invalid(format!("'{path}': {source}")),
        },
        AgentError::Gone | AgentError::TooLarge => rpc::refused(error).into(),
    }
}

async fn download(Extension(sandbox): Box, request: Request) -> Result<Response, Failed> {
    let address = Address::of(&request).unwrap_or_default();
    check_user(request.headers())?;
    check_user_name(&address.user)?;
    let asked = address.path.unwrap_or_default();
    let path = home_path(sandbox.agent.home(), &asked);
    let info = match filesystem::follow(&sandbox, &path).await {
        Err(error) if error.code == Code::NotFound => {
            return Err(Failed(StatusCode::NOT_FOUND, format!("path '{asked}' does not exist")));
        }
        found => found?,
    };
    match info.kind {
        FileKind::File => {}
        FileKind::Dir => return Err(Failed::invalid(format!("path '{asked}' is a directory"))),
        // Reading a pipe could block forever.
        FileKind::Other | FileKind::Link => {
            return Err(Failed::invalid(format!("path '{asked}' is not a regular file")));
        }
    }

    let mut headers = HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("inline")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ]);
    let range = request.headers().get(header::RANGE).and_then(|value| value.to_str().ok());
    let (status, range) = match range.map(|text| byte_range(text, info.size)) {
        Some(Asked::Part(range)) => {
            let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, info.size);
            insert(&mut headers, header::CONTENT_RANGE, shown);
            (StatusCode::PARTIAL_CONTENT, range)
        }
        Some(Asked::Outside) => {
            let shown = [(header::CONTENT_RANGE, format!("bytes */{}", info.size))];
            let error = api_error(StatusCode::RANGE_NOT_SATISFIABLE, "the range is outside of the file");
            return Ok((shown, error).into_response());
        }
        Some(Asked::Whole) | None => (StatusCode::OK, 0..info.size),
    };
    insert(&mut headers, header::CONTENT_LENGTH, (range.end - range.start).to_string());
    // The first piece is read before the answer begins, so that a refusal is an answer of its own.
    let first =
        read_piece(&sandbox.agent, &info.path, &range).await.map_err(|error| refused(&asked, error))?;
    let rest = range.start + first.len() as u64..range.end;
    let rest = contents(sandbox.agent.clone(), info.path, rest);
    let body = Body::from_stream(stream::once(async { Ok(first) }).chain(rest));
    Ok((status, headers, body).into_response())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = value.parse() {
        headers.insert(name, value);
    }
}

/// The bytes of a file, read piece by piece as the client takes them. A file that became shorter meanwhile breaks the
/// answer off rather than ending it as if all were there.
fn contents(
    agent: AgentHandle,
    path: String,
    range: Range<u64>,
) -> impl stream::Stream<Item = Result<Bytes, std::io::Error>> {
    stream::unfold(Some((agent, path, range)), async |state| {
        let (agent, path, mut range) = state.filter(|(_, _, range)| !range.is_empty())?;
        match read_piece(&agent, &path, &range).await {
            Ok(bytes) if bytes.is_empty() => Some((Err(std::io::ErrorKind::UnexpectedEof.into()), None)),
            Ok(bytes) => {
                range.start += bytes.len() as u64;
                Some((Ok(bytes), Some((agent, path, range))))
            }
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    })
}

async fn read_piece(agent: &AgentHandle, path: &str, range: &Range<u64>) -> Result<Bytes, AgentError> {
    let len = usize::try_from(range.end - range.start).unwrap_or(READ_MAX).min(READ_MAX);
    agent.read_file(path, range.start, len).await
}

/// The parts of a `Range` header.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Part(Range<u64>),
    /// Several ranges, other units, nonsense: RFC 9110 lets a server send the whole.
    Whole,
    Outside,
}

fn byte_range(text: &str, size: u64) -> Asked {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Asked::Whole;
    };
    let range = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.trim().is_empty() => first..size,
        (Err(_), Ok(last)) if first.trim().is_empty() => size.saturating_sub(last)..size,
        _ => return Asked::Whole,
    };
    if range.is_empty() { Asked::Outside } else { Asked::Part(range) }
}

async fn upload(Extension(sandbox): Box, request: Request) -> Result<Json<Vec<WrittenFile>>, Failed> {
    let address = Address::of(&request).unwrap_or_default();
    let headers = request.headers();
    check_user(headers)?;
    check_user_name(&address.user)?;
    if headers.keys().any(|name| name.as_str().starts_with("x-metadata-")) {
        return Err(Failed::invalid("this host keeps no metadata with files; leave it out"));
    }
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or("");
    let content_type = text(header::CONTENT_TYPE).to_owned();
    let gzip = match text(header::CONTENT_ENCODING) {
        "" | "identity" => false,
        "gzip" => true,
        other => return Err(Failed::invalid(format!("content encoding {other:?} is not supported"))),
    };
    let mut body = Incoming(request.into_body().into_data_stream());
    let written = if content_type.starts_with("multipart/form-data") {
        if gzip {
            return Err(Failed::invalid("a form cannot be compressed; send application/octet-stream"));
        }
        upload_form(&sandbox, address.path, Multipart::new(&content_type)?, &mut body).await
    } else {
        let path = address.path.ok_or_else(|| Failed::invalid("the path is missing"))?;
        upload_one(&sandbox, &path, &mut body, gzip).await.map(|written| vec![written])
    };
    if matches!(written, Err(Failed(StatusCode::INSUFFICIENT_STORAGE, _))) {
        body.read_rest().await;
    }
    written.map(Json)
}

/// A request's body, bounded in the time between two pieces.
struct Incoming(axum::body::BodyDataStream);

impl Incoming {
    async fn next(&mut self) -> Result<Option<Bytes>, Failed> {
        match tokio::time::timeout(UPLOAD_PATIENCE, self.0.next()).await {
            Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
            Ok(None) => Ok(None),
            Ok(Some(Err(_))) => Err(Failed::invalid("the upload broke off")),
            Err(_) => Err(Failed(StatusCode::REQUEST_TIMEOUT, "the upload stood still".to_owned())),
        }
    }

    /// Takes what is left of an upload that has failed. Clients read the answer when they have sent all; one whose connection
    /// is closed before learns of a broken pipe and not of a full disk.
    async fn read_rest(&mut self) {
        let mut left = REST_MAX;
        let reading = async {
            while left > 0
                && let Ok(Some(bytes)) = self.next().await
            {
                left = left.saturating_sub(bytes.len());
            }
        };
        // A client that takes longer than that has to do without the reason.
        let _ = tokio::time::timeout(REST_PATIENCE, reading).await;
    }
}

async fn upload_one(
    sandbox: &Sandbox,
    path: &str,
    body: &mut Incoming,
    gzip: bool,
) -> Result<WrittenFile, Failed> {
    let mut file = Target::create(sandbox, path).await?;
    if !gzip {
        while let Some(bytes) = body.next().await? {
            file.write(bytes).await?;
        }
        return Ok(file.done());
    }
    let broken = |_| Failed::invalid("the upload is not gzip");
    let mut unpacked = MultiGzDecoder::new(Vec::new());
    while let Some(bytes) = body.next().await? {
        for piece in bytes.chunks(GZIP_PIECE) {
            unpacked.write_all(piece).map_err(broken)?;
            file.write(std::mem::take(unpacked.get_mut()).into()).await?;
        }
    }
    file.write(unpacked.finish().map_err(broken)?.into()).await?;
    Ok(file.done())
}

/// Every part named `file` is one; `path` names the only one, else each brings its own.
async fn upload_form(
    sandbox: &Sandbox,
    path: Option<String>,
    mut form: Multipart,
    body: &mut Incoming,
) -> Result<Vec<WrittenFile>, Failed> {
    let mut written = Vec::new();
    let mut file: Option<Target> = None;
    loop {
        let Some(piece) = form.next()? else {
            match body.next().await? {
                Some(bytes) => form.push(&bytes),
                None => return Err(Malformed::Cut.into()),
            }
            continue;
        };
        match piece {
            Piece::Part { name, filename } => {
                written.extend(file.take().map(Target::done));
                if name != "file" {
                    continue;
                }
                let path = match (&path, filename) {
                    (Some(_), _) if !written.is_empty() => {
                        return Err(Failed::invalid("several files came for one path; leave the path out"));
                    }
                    (Some(path), _) => path.clone(),
                    (None, Some(filename)) if !filename.is_empty() => filename,
                    (None, _) => return Err(Failed::invalid("a file has no name")),
                };
                file = Some(Target::create(sandbox, &path).await?);
            }
            // Parts of other names are read over.
            Piece::Data(bytes) => {
                if let Some(file) = &mut file {
                    file.write(bytes).await?;
                }
            }
            Piece::End => {
                written.extend(file.take().map(Target::done));
                break;
            }
        }
    }
    // Bytes after the end are ignored, but a client may not read its answer before it has sent them.
    while body.next().await?.is_some() {}
    Ok(written)
}

/// A file being written.
struct Target {
    agent: AgentHandle,
    path: String,
    offset: u64,
}

impl Target {
    /// Makes the file and its directories, empty.
    async fn create(sandbox: &Sandbox, path: &str) -> Result<Self, Failed> {
        let path = home_path(sandbox.agent.home(), path);
        let target = Self { agent: sandbox.agent.clone(), path, offset: 0 };
        target.put(true, Bytes::new()).await?;
        Ok(target)
    }

    async fn write(&mut self, mut bytes: Bytes) -> Result<(), Failed> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(WRITE_PIECE));
            let len = piece.len() as u64;
            self.put(false, piece).await?;
            self.offset += len;
        }
        Ok(())
    }

    async fn put(&self, truncate: bool, bytes: Bytes) -> Result<(), Failed> {
        let put = self.agent.write_file(&self.path, self.offset, truncate, bytes).await;
        put.map_err(|error| refused(&self.path, error))
    }

    fn done(self) -> WrittenFile {
        let name = self.path.rsplit('/').next().unwrap_or("").to_owned();
        WrittenFile { path: self.path, name, kind: "file".to_owned() }
    }
}

/// Joins parts that were uploaded one by one, and removes them.
#[derive(Debug, Deserialize)]
struct Compose {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

async fn compose(Extension(sandbox): Box, request: Request) -> Result<Json<WrittenFile>, Failed> {
    check_user(request.headers())?;
    let body = read_body(request.into_body(), rpc::MESSAGE_LIMIT)
        .await
        .map_err(|error| Failed::invalid(error.to_string()))?;
    let asked: Compose = serde_json::from_slice(&body)
        .map_err(|error| Failed::invalid(format!("the body does not parse: {error}")))?;
    check_user_name(asked.username.as_deref().unwrap_or(""))?;
    if asked.source_paths.is_empty() || asked.source_paths.len() > MAX_SOURCES {
        return Err(Failed::invalid(format!("1 to {MAX_SOURCES} source paths are joined")));
    }
    let home = sandbox.agent.home().to_owned();
    let sources: Vec<String> = asked.source_paths.iter().map(|path| home_path(&home, path)).collect();
    let mut target = Target::create(&sandbox, &asked.destination).await?;
    if sources.contains(&target.path) {
        return Err(Failed::invalid("the destination is one of the sources"));
    }
    for source in &sources {
        let mut offset = 0;
        loop {
            let read = sandbox.agent.read_file(source, offset, READ_MAX).await;
            let bytes = read.map_err(|error| refused(source, error))?;
            if bytes.is_empty() {
                break;
            }
            offset += bytes.len() as u64;
            target.write(bytes).await?;
        }
    }
    for source in &sources {
        sandbox.agent.remove(source).await.map_err(|error| refused(source, error))?;
    }
    Ok(Json(target.done()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_to_the_file_and_nonsense_gives_the_whole() {
        assert_eq!(byte_range("bytes=0-4", 10), Asked::Part(0..5));
        assert_eq!(byte_range("bytes=5-", 10), Asked::Part(5..10));
        assert_eq!(byte_range("bytes=-3", 10), Asked::Part(7..10));
        assert_eq!(byte_range("bytes=-30", 10), Asked::Part(0..10));
        assert_eq!(byte_range("bytes=8-18446744073709551615", 10), Asked::Part(8..10));
        assert_eq!(byte_range("bytes=10-", 10), Asked::Outside);
        assert_eq!(byte_range("bytes=-0", 10), Asked::Outside);
        for odd in ["bytes=1-2,4-5", "bytes=4-2", "lines=1-2", "bytes=", "bytes=-", "bytes=a-b"] {
            assert_eq!(byte_range(odd, 10), Asked::Whole, "{odd}");
        }
    }
}
