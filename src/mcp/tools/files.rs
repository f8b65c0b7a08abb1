//! `files`: files into a context's sandbox, and out of it through the guard.
//!
//! Large contents do not belong into arguments or results, where they cost a model its context: they come in by
//! reference to what an earlier result linked, and go out as links.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::HOST;
use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::domain::{ContextKey, Scope};
use crate::execution::files::{Content, FileAction, FileAnswer, FileEntry, FilePath, Filed};
use crate::execution::transfers::Way;
use crate::execution::{Artifact, Call, Reads, Requester};
use crate::mcp::caller::{Caller, Door};
use crate::mcp::resources::{is_text, resource};
use crate::mcp::{McpServer, Service, ToolError, caller, schema, trace};

use super::get_execution::whole_characters;
use super::run_code::{OutputGuard, served_by};

/// The tool's name.
pub const NAME: &str = "files";

/// The largest content in an argument, in bytes.
const MAX_INLINE: usize = 256 * 1024;
/// The largest content that goes in by reference, in bytes.
const MAX_REFERRED: usize = 8 * 1024 * 1024;
/// Bytes of a text that a result shows beside its link.
const SHOWN: usize = 8 * 1024;

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// `put` writes a file, `list` shows a directory, `get` links what a file holds now; for a person with a large file
    /// `upload` and `download` give a one-time URL or command.
    action: Action,
    /// The path in the sandbox, from the user's home unless it begins with `/`; for `list` the home when left out.
    #[serde(default)]
    path: Option<String>,
    /// `put`: the content as text, at most 256 KiB.
    #[serde(default)]
    text: Option<String>,
    /// `put`: the content as base64, at most 256 KiB before encoding.
    #[serde(default)]
    base64: Option<String>,
    /// `put`: the content by reference: the `uri` of an artifact of an earlier result, at most 8 MiB.
    #[serde(default)]
    from: Option<String>,
    /// `put`: the `version` that must be there now, or `none` for no file; then nothing is overwritten unseen.
    #[serde(default)]
    if_version: Option<String>,
    /// A context handle from an earlier result's `context`; leave it out for this conversation's own context.
    #[serde(default)]
    context: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
    Put,
    List,
    Get,
    Upload,
    Download,
}

/// The tool as it is listed.
pub fn tool() -> Tool {
    let description = "Files of this conversation's sandbox: put one in, list a directory, get one out as a link. What goes \
        out passes the same guard as output. The same content has the same `version`.";
    schema::tool::<Input>(NAME, "Files in and out", description).with_annotations(
        ToolAnnotations::new().read_only(false).destructive(true).idempotent(true).open_world(false),
    )
}

impl McpServer {
    pub(in crate::mcp) async fn files(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let input: Input = self.parse(NAME, arguments)?;
        let caller = self.caller(&context)?;
        caller.needs(Scope::Run)?;
        let path = match (&input.path, input.action) {
            (Some(path), _) => path.clone(),
            (None, Action::List) => ".".to_owned(),
            (None, _) => return Err(ToolError::argument("argument `path`: is missing")),
        };
        let path = FilePath::parse(path)
            .map_err(|problem| ToolError::argument(format!("argument `path`: {problem}")))?;
        let (service, requester) = (self.service().await?, caller.requester());
        let action = match input.action {
            Action::Put => {
                let content = content(&service.reads, &requester, &input).await?;
                // An empty text is what a client fills in that sends every argument.
                let expected = input
                    .if_version
                    .clone()
                    .map(|version| if version == "none" { String::new() } else { version });
                FileAction::Put { path, content: Content::Bytes(content), expected }
            }
            Action::List => FileAction::List { path },
            Action::Get | Action::Download => FileAction::Get { path },
            // For a command beside this process the sandbox must be there.
            Action::Upload => FileAction::List { path: FilePath::parse(".").unwrap_or(path) },
        };
        let key = self.key(&caller, input.context.as_deref()).await?;
        let by_hand = match input.action {
            Action::Upload => true,
            Action::Download => !self.is_http(),
            _ => false,
        };
        if by_hand && self.is_http() {
            return self.moved_by_hand(&service, &caller, &key, &input, &context);
        }
        let guard = caller::overlay(&context.meta.0, service.policies.call_may_loosen(&key))?;
        let call = Call { trace: trace(&context), guard, ..Call::on(key, requester.clone()) };
        let key = call.key.clone();
        let filed = service.files.run(call, action, context.ct.clone()).await?;
        if by_hand {
            return self.moved_by_hand(&service, &caller, &key, &input, &context);
        }
        let mut result = result(&service.reads, &requester, &filed).await?;
        if let (Action::Download, FileAnswer::Got { artifact, .. }) = (input.action, &filed.answer) {
            let way = Way::Out(artifact.uri.clone());
            let (url, until) = self.one_time_url(&service, &caller, &key, way, &context)?;
            add_url(&mut result, url, until);
        }
        Ok(result)
    }

    fn is_http(&self) -> bool {
        matches!(self.0.options.door, Door::Http(_))
    }

    /// What a person does to move a file: over HTTP a URL, else a command on the machine of the server.
    fn moved_by_hand(
        &self,
        service: &Service,
        caller: &Caller,
        key: &ContextKey,
        input: &Input,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let path = input.path.clone().unwrap_or_default();
        let shown = self.guard_of(context).line(&path);
        let (structured, text) = if self.is_http() {
            let (url, until) = self.one_time_url(service, caller, key, Way::In(path), context)?;
            let text =
                format!("PUT the file to this one-time URL, until {until}: {url}\ne.g. curl -T FILE '{url}'");
            (json!({ "path": shown, "url": url, "expiresAt": until, "method": "PUT" }), text)
        } else {
            let handle = service.contexts.mint_handle(key, &caller.principal.name);
            let quoted = format!("'{}'", shown.replace('\'', "'\\''"));
            let command = match input.action {
                Action::Upload => format!("pathbox files put FILE {quoted} --context {handle}"),
                _ => format!("pathbox files get {quoted} FILE --context {handle}"),
            };
            let text =
                format!("a person runs, on the machine of this server and with its settings: {command}");
            (json!({ "path": shown, "command": command, "context": handle }), text)
        };
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.is_error = None;
        result.structured_content = Some(structured);
        Ok(result)
    }

    fn one_time_url(
        &self,
        service: &Service,
        caller: &Caller,
        key: &ContextKey,
        way: Way,
        context: &RequestContext<RoleServer>,
    ) -> Result<(String, String), ToolError> {
        let parts = context.extensions.get::<http::request::Parts>();
        let host = parts.and_then(|parts| {
            let named = parts.headers.get(HOST).and_then(|value| value.to_str().ok());
            named.or_else(|| parts.uri.authority().map(|host| host.as_str()))
        });
        let address = service.transfers.address(&caller.requester(), key, way);
        let url = self.0.options.own_url.of(host, &format!("/files/{}", address.token));
        let url = url.ok_or_else(|| ToolError::argument("the request names no host"))?;
        Ok((url, address.until.to_rfc3339()))
    }
}

/// The content of a `put`, from the one place that names it.
async fn content(reads: &Reads, requester: &Requester, input: &Input) -> Result<Bytes, ToolError> {
    let inline = |bytes: Vec<u8>| match bytes.len() {
        0..=MAX_INLINE => Ok(Bytes::from(bytes)),
        _ => Err(ToolError::argument(format!(
            "the content has more than {MAX_INLINE} bytes: make it in the sandbox with run_code, or put it by reference"
        ))),
    };
    match (&input.text, &input.base64, &input.from) {
        (Some(text), None, None) => inline(text.clone().into_bytes()),
        (None, Some(base64), None) => {
            let bytes = STANDARD.decode(base64.trim());
            inline(bytes.map_err(|_| ToolError::argument("argument `base64`: is not standard base64"))?)
        }
        (None, None, Some(uri)) => {
            let (artifact, bytes) = reads.artifact(requester, uri, 0, MAX_REFERRED).await?;
            if artifact.bytes > bytes.len() as u64 {
                let text = format!("argument `from`: names more than {MAX_REFERRED} bytes");
                return Err(ToolError::argument(text));
            }
            Ok(Bytes::from(bytes))
        }
        _ => Err(ToolError::argument("`put` takes exactly one of the arguments `text`, `base64` and `from`")),
    }
}

async fn result(reads: &Reads, requester: &Requester, filed: &Filed) -> Result<CallToolResult, ToolError> {
    let Filed { path, finished, .. } = filed;
    let mut structured = json!({
        "path": path,
        "context": finished.handle,
        "state": finished.record.state,
        "executionId": finished.execution.to_string(),
    });
    let mut content = Vec::new();
    match &filed.answer {
        FileAnswer::Put { version, replaced } => {
            structured["version"] = json!(version);
            structured["replaced"] = json!(replaced);
            let what = match replaced {
                None => "new".to_owned(),
                Some(old) if old == version => "unchanged".to_owned(),
                Some(old) => format!("in place of version {old}"),
            };
            content.push(ContentBlock::text(format!("put {path}: version {version}, {what}")));
        }
        FileAnswer::Listed(entries, total) => {
            let listed: Vec<Value> = entries.iter().map(FileEntry::shown).collect();
            let mut text = format!("{path}: {total} entries");
            for entry in entries {
                let mark = if entry.is_dir { "/" } else { "" };
                text.push_str(&format!("\n{}{mark}  {}", entry.name.get(), entry.bytes));
            }
            if *total > entries.len() {
                text.push_str(&format!("\n[{} more]", total - entries.len()));
            }
            structured["entries"] = json!(listed);
            structured["total"] = json!(total);
            content.push(ContentBlock::text(text));
        }
        FileAnswer::Got { version, artifact } => {
            let Artifact { uri, name, mime_type, bytes, .. } = artifact;
            structured["version"] = json!(version);
            structured["artifact"] =
                json!({ "uri": uri, "name": name, "mimeType": mime_type, "bytes": bytes });
            let guard = OutputGuard::of(&finished.record.guard);
            let line = format!("{path}: version {version}, {bytes} bytes, linked as {name}{}", guard.note());
            structured["guard"] = json!(guard);
            content.push(ContentBlock::text(line));
            if is_text(mime_type) {
                let (_, start) = reads.artifact(requester, uri, 0, SHOWN).await?;
                let (text, taken) = whole_characters(&start);
                structured["text"] = json!(text);
                structured["truncated"] = json!((taken as u64) < *bytes);
                content.push(ContentBlock::text(text));
            }
            content.push(ContentBlock::resource_link(resource(artifact)));
        }
    }
    let mut result = CallToolResult::success(content);
    result.is_error = None;
    result.structured_content = Some(structured);
    result.meta = Some(served_by(finished));
    Ok(result)
}

/// Adds a one-time address to a result, for who reads text and for who reads data.
fn add_url(result: &mut CallToolResult, url: String, until: String) {
    result.content.push(ContentBlock::text(format!("one-time URL, until {until}: {url}")));
    if let Some(Value::Object(structured)) = &mut result.structured_content {
        structured.insert("url".into(), url.into());
        structured.insert("expiresAt".into(), until.into());
    }
}
