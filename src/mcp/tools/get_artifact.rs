//! `get_artifact`: one picture or file of a run, and nothing else in the result.
//!
//! Some hosts drop pictures as soon as a result has structured content. So this one has none: a picture is an image
//! block alone.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ResourceContents, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::domain::Scope;
use crate::mcp::resources::is_text;
use crate::mcp::{McpServer, ToolError, images, schema};

use super::get_execution::whole_characters;

/// The tool's name.
pub const NAME: &str = "get_artifact";

/// The largest picture that is read to be scaled down, in bytes.
const MAX_PICTURE: usize = 32 * 1024 * 1024;
/// The largest other file in one result, in bytes: base64 of it stays below what hosts refuse.
const MAX_FILE: usize = 600 * 1024;

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// `uri` of an artifact.
    uri: String,
}

/// The tool as it is listed.
pub fn tool() -> Tool {
    let description = "Show one picture or file that a run left. A picture comes as an image and nothing else; use it when a \
        plot was not shown with the result.";
    schema::tool::<Input>(NAME, "Show an artifact", description).with_annotations(
        ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false),
    )
}

impl McpServer {
    pub(in crate::mcp) async fn get_artifact(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let Input { uri } = self.parse(NAME, arguments)?;
        let caller = self.caller(&context)?;
        caller.needs(Scope::Read)?;
        let service = self.service().await?;
        let (artifact, bytes) = service.reads.artifact(&caller.requester(), &uri, 0, MAX_PICTURE).await?;
        let is_picture = ["image/png", "image/jpeg"].contains(&artifact.mime_type.as_str());
        let block = if is_picture {
            // Decoding is work, and no other call should wait for it.
            let fitted = tokio::task::spawn_blocking(move || {
                images::Fitter::new(usize::MAX).fit(&STANDARD.encode(&bytes))
            });
            let picture = fitted.await.ok().flatten().ok_or_else(|| {
                ToolError::not_found(
                    "The picture cannot be shown: it is too large or broken",
                    "Draw it smaller.",
                )
            })?;
            ContentBlock::image(picture.base64, picture.mime_type)
        } else if bytes.len() > MAX_FILE {
            let text = format!("The file has {} bytes, more than fits one result", artifact.bytes);
            return Err(ToolError::not_found(
                text,
                "Read it page by page: get_execution for output, else as a resource.",
            ));
        } else if is_text(&artifact.mime_type) {
            ContentBlock::text(whole_characters(&bytes).0)
        } else {
            let blob =
                ResourceContents::blob(STANDARD.encode(&bytes), uri).with_mime_type(artifact.mime_type);
            ContentBlock::resource(blob)
        };
        let mut result = CallToolResult::success(vec![block]);
        result.is_error = None;
        Ok(result)
    }
}
