//! Outputs and pictures of runs as resources: `pathbox://executions/{id}/{name}`, paged by `?offset=` and `?limit=`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::RoleServer;
use rmcp::model::{
    ErrorData, ListResourceTemplatesResult, ListResourcesResult, MetaObject, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use rmcp::service::RequestContext;
use serde_json::{Map, json};

use crate::analysis::{self, Kind};
use crate::domain::Scope;
use crate::execution::{Artifact, ExecutionError};
use crate::guard::own_words;

use super::tools::get_execution::whole_characters;
use super::{McpServer, ToolError};

/// Where the shapes of analyses are.
const ANALYSIS: &str = "pathbox://analysis/";

/// Bytes of one page, by default and at most: hosts refuse results of 1 MB.
const PAGE: usize = 256 * 1024;
const MAX_PAGE: usize = 700 * 1024;
/// Runs whose artifacts are listed.
const LISTED_RUNS: u32 = 20;

impl McpServer {
    pub(super) async fn resources(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let listed = async {
            let caller = self.caller(context)?;
            caller.needs(Scope::Read)?;
            let conversation = caller.key(None).conversation;
            let service = self.service().await?;
            Ok::<_, ToolError>(
                service.reads.artifacts_of(&caller.requester(), &conversation, LISTED_RUNS).await?,
            )
        };
        let artifacts = listed.await.map_err(ToolError::into_protocol_error)?;
        Ok(ListResourcesResult::with_all_items(artifacts.iter().map(resource).collect()))
    }

    pub(super) async fn read(
        &self,
        uri: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<ReadResourceResult, ErrorData> {
        let unknown =
            || ErrorData::resource_not_found("no such resource", Some(json!({ "uri": own_words(uri) })));
        let (plain, offset, limit) = page_of(uri).ok_or_else(unknown)?;
        if let Some(kind) = plain.strip_prefix(ANALYSIS) {
            let schema = kind.parse().ok().and_then(schema_of).ok_or_else(unknown)?;
            let contents = ResourceContents::text(schema, uri).with_mime_type("application/schema+json");
            return Ok(ReadResourceResult::new(vec![contents]));
        }
        let found = async {
            let caller = self.caller(context)?;
            caller.needs(Scope::Read)?;
            let service = self.service().await?;
            Ok::<_, ToolError>(service.reads.artifact(&caller.requester(), plain, offset, limit).await)
        };
        let (artifact, bytes) = match found.await.map_err(ToolError::into_protocol_error)? {
            Ok(found) => found,
            Err(ExecutionError::UnknownArtifact(_)) => return Err(unknown()),
            Err(error) => return Err(ToolError::from(error).into_protocol_error()),
        };
        let (contents, taken) = if is_text(&artifact.mime_type) {
            let (text, taken) = whole_characters(&bytes);
            (ResourceContents::text(text, uri), taken)
        } else {
            (ResourceContents::blob(STANDARD.encode(&bytes), uri), bytes.len())
        };
        let next = offset + taken as u64;
        let mut meta = Map::new();
        meta.insert("dev.pathbox/offset".into(), json!(offset));
        meta.insert("dev.pathbox/totalBytes".into(), json!(artifact.bytes));
        if next < artifact.bytes && taken > 0 {
            meta.insert("dev.pathbox/next".into(), json!(format!("{plain}?offset={next}")));
        }
        let contents = contents.with_mime_type(artifact.mime_type).with_meta(MetaObject(meta));
        Ok(ReadResourceResult::new(vec![contents]))
    }
}

/// The JSON Schema of what an analysis takes, with a sentence to each field.
fn schema_of(kind: Kind) -> Option<String> {
    let entry = analysis::catalog().iter().find(|entry| entry.kind == kind)?;
    Some(format!("{:#}", entry.schema()))
}

/// Whether what is kept under this media type is text.
pub(super) fn is_text(mime_type: &str) -> bool {
    mime_type.starts_with("text/") || ["image/svg+xml", "application/json"].contains(&mime_type)
}

/// The templates of what can be read.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let mut whole = ResourceTemplate::new("pathbox://executions/{id}/{name}", "artifact");
    whole.title = Some("Output or picture of a run".into());
    whole.description =
        Some("`name` is stdout, stderr or an artifact's name; a long one comes in pages.".into());
    let mut page = ResourceTemplate::new("pathbox://executions/{id}/{name}{?offset,limit}", "artifact_page");
    page.title = Some("A page of an output".into());
    page.description = Some("From `offset`, at most `limit` bytes.".into());
    let mut analysis = ResourceTemplate::new("pathbox://analysis/{type}", "analysis_parameters");
    analysis.title = Some("Parameters of an analysis".into());
    analysis.description = Some("JSON Schema of run_analysis's `parameters` for one analysis_type.".into());
    ListResourceTemplatesResult::with_all_items(vec![whole, page, analysis])
}

/// What is listed of an artifact.
pub(super) fn resource(artifact: &Artifact) -> Resource {
    let mut resource = Resource::new(artifact.uri.clone(), artifact.name.clone());
    resource.mime_type = Some(artifact.mime_type.clone());
    resource.size = Some(artifact.bytes);
    resource
}

/// A resource's own name, and which part of it is meant.
fn page_of(uri: &str) -> Option<(&str, u64, usize)> {
    let (plain, query) = uri.split_once('?').unwrap_or((uri, ""));
    let (mut offset, mut limit) = (0, PAGE);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("offset", value) => offset = value.parse().ok()?,
            ("limit", value) => limit = value.parse().ok()?,
            _ => return None,
        }
    }
    Some((plain, offset, limit.clamp(1, MAX_PAGE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_page() {
        assert_eq!(page_of("pathbox://x"), Some(("pathbox://x", 0, PAGE)));
        assert_eq!(page_of("pathbox://x?offset=5&limit=7"), Some(("pathbox://x", 5, 7)));
        assert_eq!(page_of("pathbox://x?limit=99999999"), Some(("pathbox://x", 0, MAX_PAGE)));
        for bad in ["x?offset=-1", "x?offset", "x?offset=1&other=2", "x?limit=a"] {
            assert_eq!(page_of(bad), None, "{bad}");
        }
    }
}
