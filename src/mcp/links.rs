//! Resource links in results, for clients that cannot bear them.
//!
//! A client from before 2025-06-18 refuses a whole result over a kind of block that it does not know. Agent frameworks
//! know the block but hand its URI to the model's provider as if it were on the web, and the provider refuses the
//! conversation. Both get the link as a line of text; `get_artifact` and `get_execution` take the URI from there.

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, ProtocolVersion, Resource};
use rmcp::service::RequestContext;

/// The name of a client that gave itself none: the Python SDK's own. Anyone who runs under it is a framework or a script,
/// with no one there to open a link.
const NAMELESS: &str = "mcp";

/// Whether the client of this request takes links as they are.
pub(super) fn are_taken(context: &RequestContext<RoleServer>) -> bool {
    let is_new = context.protocol_version().is_none_or(|version| version >= ProtocolVersion::V_2025_06_18);
    is_new && context.client_info().is_none_or(|client| client.name != NAMELESS)
}

/// Writes out the links of a result.
pub(super) fn write_out(result: &mut CallToolResult) {
    for block in &mut result.content {
        if let ContentBlock::ResourceLink(link) = block {
            *block = ContentBlock::text(line(link));
        }
    }
}

fn line(link: &Resource) -> String {
    let mut line = format!("[{}: {}", link.name, link.uri);
    if let Some(mime_type) = &link.mime_type {
        line.push_str(&format!(", {mime_type}"));
    }
    if let Some(bytes) = link.size {
        line.push_str(&format!(", {bytes} bytes"));
    }
    line.push_str("; get_artifact shows it]");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_written_out_in_its_place_and_the_rest_stays() {
        let mut link = Resource::new("pathbox://executions/1/stdout", "stdout");
        link.mime_type = Some("text/plain".into());
        link.size = Some(7);
        let blocks =
            vec![ContentBlock::text("a"), ContentBlock::resource_link(link), ContentBlock::text("z")];
        let mut result = CallToolResult::success(blocks);
        write_out(&mut result);
        let texts: Vec<&str> =
            result.content.iter().map(|block| block.as_text().unwrap().text.as_str()).collect();
        let written = "[stdout: pathbox://executions/1/stdout, text/plain, 7 bytes; get_artifact shows it]";
        assert_eq!(texts, ["a", written, "z"]);
    }
}
