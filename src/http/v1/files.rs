//! Files of a path's sandbox: listed here, moved by one-time addresses (`/files/...`).

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Query};
use axum::response::{IntoResponse, Response};
use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::domain::principal::Scope;
use crate::domain::{ContextKey, ErrorCode, OwnUrl};
use crate::execution::files::{FileAction, FileAnswer, FileEntry, FilePath, Filed, Files};
use crate::execution::transfers::{Address, Way};
use crate::execution::{Call, Requester, Transfers};

use super::super::layers::host_of;
use super::{Place, Problem, V1, body, caller, requester};

/// Who asks for files, and of which path.
pub(super) struct Ask {
    files: Files,
    transfers: Transfers,
    requester: Requester,
    key: ContextKey,
    own_url: OwnUrl,
    host: Option<String>,
}

impl FromRequestParts<V1> for Ask {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, v1: &V1) -> Result<Self, Problem> {
        let (principal, tenant) = caller(parts, Scope::Run)?;
        let requester = requester(v1, principal, tenant);
        let host = host_of(&parts.headers, &parts.uri).map(|host| host.to_string());
        let Path(place) = Path::<Place>::from_request_parts(parts, v1)
            .await
            .map_err(|error| Problem::argument(error.body_text()))?;
        let path = place.path.ok_or_else(|| Problem::argument("the path is missing"))?.parse()?;
        let key = ContextKey {
            tenant: requester.tenant.clone(),
            owner: requester.owner.clone(),
            conversation: place.conversation.parse()?,
            path,
        };
        let service = v1.service().await?;
        let (files, transfers, own_url) = (service.files, service.transfers, v1.0.own_url.clone());
        Ok(Self { files, transfers, requester, key, own_url, host })
    }
}

impl Ask {
    async fn run(&self, action: FileAction) -> Result<Filed, Problem> {
        let call = Call::on(self.key.clone(), self.requester.clone());
        Ok(self.files.run(call, action, CancellationToken::new()).await?)
    }

    fn address(&self, way: Way) -> Result<(String, Address), Problem> {
        let address = self.transfers.address(&self.requester, &self.key, way);
        let url = self.own_url.of(self.host.as_deref(), &format!("/files/{}", address.token));
        Ok((url.ok_or_else(|| Problem::argument("the request names no host"))?, address))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ListQuery {
    directory: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Upload,
    Download,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    action: Action,
    file: String,
}

fn file_path(name: &str, text: &str) -> Result<FilePath, Problem> {
    FilePath::parse(text).map_err(|problem| Problem::argument(format!("`{name}` {problem}")))
}

/// The entries of a directory.
pub(super) async fn list(ask: Ask, uri: Uri) -> Result<Response, Problem> {
    let query =
        Query::<ListQuery>::try_from_uri(&uri).map_err(|error| Problem::argument(error.body_text()))?;
    let path = file_path("directory", query.directory.as_deref().unwrap_or("."))?;
    let filed = ask.run(FileAction::List { path }).await?;
    let FileAnswer::Listed(entries, total) = &filed.answer else {
        return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, "no list came"));
    };
    let entries: Vec<Value> = entries.iter().map(FileEntry::shown).collect();
    Ok(Json(json!({ "directory": filed.path, "entries": entries, "total": total })).into_response())
}

/// An address for one file, in or out.
pub(super) async fn address(ask: Ask, bytes: Bytes) -> Result<Response, Problem> {
    let Wanted { action, file } = body(&bytes)?;
    let path = file_path("file", &file)?;
    let answer = match action {
        Action::Upload => {
            let (url, address) = ask.address(Way::In(file))?;
            json!({ "url": url, "method": "PUT", "expiresAt": address.until.to_rfc3339() })
        }
        Action::Download => {
            let filed = ask.run(FileAction::Get { path }).await?;
            let FileAnswer::Got { version, artifact } = &filed.answer else {
                return Err(Problem::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    ErrorCode::Internal,
                    "no file came",
                ));
            };
            let (url, address) = ask.address(Way::Out(artifact.uri.clone()))?;
            json!({ "url": url, "method": "GET", "expiresAt": address.until.to_rfc3339(), "version": version,
                "name": artifact.name, "mimeType": artifact.mime_type, "bytes": artifact.bytes,
                "redacted": filed.finished.record.guard.total() })
        }
    };
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(answer)).into_response())
}

/// These routes in the OpenAPI document; `refusals` adds those that every route has.
pub(super) fn openapi(parameters: &Value, refusals: impl Fn(Value, &[(&str, &str)]) -> Value) -> Value {
    let path = json!({ "type": "string", "minLength": 1, "maxLength": 1024,
        "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]+$" });
    let more = [
        ("404", "There is no such file or directory, or its context has ended."),
        ("409", "The conversation's path is merged, archived or deleted."),
        ("422", "The file may not leave the sandbox, is too large, or is of the wrong kind."),
        ("500", "The sandbox failed, or this server."),
    ];
    let directory = json!({ "name": "directory", "in": "query", "required": false, "schema": path });
    let mut list = parameters.clone();
    if let Some(list) = list.as_array_mut() {
        list.push(directory);
    }
    let answer = |what: &str, required: Value, properties: Value| {
        json!({ "description": what, "content": { "application/json": { "schema": {
            "type": "object", "required": required, "properties": properties } } } })
    };
    let entry = json!({ "type": "object", "required": ["name", "type", "bytes"], "properties": {
        "name": { "type": "string" }, "type": { "type": "string", "enum": ["file", "directory"] },
        "bytes": { "type": "integer" }, "modifiedAt": { "type": ["string", "null"], "format": "date-time" } } });
    json!({
        "get": { "operationId": "listFiles", "summary": "The entries of a directory in the sandbox; of the home directory when none is named",
            "parameters": list, "security": [{ "bearer": [] }],
            "responses": refusals(json!({ "200": answer("What there is.", json!(["directory", "entries", "total"]), json!({
                "directory": { "type": "string" }, "entries": { "type": "array", "items": entry },
                "total": { "type": "integer" } })) }), &more) },
        "post": { "operationId": "addressFile",
            "summary": "An address that accepts (`upload`: PUT) or returns (`download`: GET) one file once, without a credential",
            "parameters": parameters, "security": [{ "bearer": [] }],
            "requestBody": { "required": true, "content": { "application/json": { "schema": {
                "type": "object", "additionalProperties": false, "required": ["action", "file"], "properties": {
                    "action": { "type": "string", "enum": ["upload", "download"] }, "file": path } } } } },
            "responses": refusals(json!({ "201": answer("The address.", json!(["url", "method", "expiresAt"]), json!({
                "url": { "type": "string" }, "method": { "type": "string", "enum": ["PUT", "GET"] },
                "expiresAt": { "type": "string", "format": "date-time" }, "version": { "type": "string" },
                "name": { "type": "string" }, "mimeType": { "type": "string" }, "bytes": { "type": "integer" },
                "redacted": { "type": "integer" } })) }), &more) },
    })
}
