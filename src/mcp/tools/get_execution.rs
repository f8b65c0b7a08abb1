//! `get_execution`: follows a run that was handed over, pages through its output, stops it.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::domain::terminal::shown;
use crate::domain::{Capture, ExecutionId, OutputChunk, Scope};
use crate::execution::{ExecutionError, Outputs, Reads, Recalled, Requester};
use crate::mcp::long_runs::left_nothing;
use crate::mcp::{McpServer, Service, ToolError, schema};

/// The tool's name.
pub const NAME: &str = "get_execution";

/// Between two looks at a run.
const LOOK: Duration = Duration::from_millis(150);
/// The longest wait in one call: below every client's patience that is known.
const MAX_WAIT_MS: u64 = 50_000;
/// Bytes of a page by default, and at most.
const PAGE: usize = 20_000;
const MAX_PAGE: usize = 200_000;

/// Characters that are shown of what a run has printed so far.
const SO_FAR: usize = 10_000;

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// `executionId` of a result.
    execution_id: String,
    /// Milliseconds to wait for the end.
    #[serde(default)]
    #[schemars(range(min = 0, max = 50_000))]
    wait_ms: u64,
    /// Stops the run; variables survive where possible.
    #[serde(default)]
    cancel: bool,
    /// A page of this output instead of the result.
    #[serde(default)]
    stream: Option<Stream>,
    /// Byte where the page begins.
    #[serde(default)]
    offset: u64,
    /// Bytes of the page; 20000 when absent.
    #[serde(default)]
    #[schemars(range(min = 1, max = 200_000))]
    limit: Option<usize>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Stream {
    Stdout,
    Stderr,
}

/// The tool as it is listed.
pub fn tool() -> Tool {
    let description = "Follow a run: wait for one that was handed over as still running and see what it has printed so far, \
        read its whole output page by page (stream, offset), or stop it (cancel).";
    schema::tool::<Input>(NAME, "Follow a run", description).with_annotations(
        ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(false),
    )
}

impl McpServer {
    pub(in crate::mcp) async fn get_execution(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let input: Input = self.parse(NAME, arguments)?;
        if input.wait_ms > MAX_WAIT_MS {
            return Err(ToolError::argument(format!(
                "argument `wait_ms`: allowed is 0 to {MAX_WAIT_MS} milliseconds"
            )));
        }
        let id: ExecutionId = input
            .execution_id
            .parse()
            .map_err(|_| ToolError::argument("argument `execution_id`: is not an execution id"))?;
        let caller = self.caller(&context)?;
        caller.needs(Scope::Read)?;
        let (service, requester) = (self.service().await?, caller.requester());
        let limit = input.limit.unwrap_or(PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(ToolError::argument(format!("argument `limit`: allowed is 1 to {MAX_PAGE} bytes")));
        }
        // A place in an output asks for a page of it, and a page stops nothing.
        if let Some(stream) = input.stream.or((input.offset > 0).then_some(Stream::Stdout)) {
            if input.cancel {
                return Err(ToolError::argument(
                    "argument `cancel`: does not go with a page (`stream`, `offset`)",
                ));
            }
            return page(&service.reads, &requester, id, stream, input.offset, limit).await;
        }
        if input.cancel {
            caller.needs(Scope::Run)?;
            service.runs.stop_run(&requester, id).await?;
        }
        // A run that is being stopped ends within moments.
        let patience =
            Duration::from_millis(if input.cancel { input.wait_ms.max(5_000) } else { input.wait_ms });
        let until = Instant::now() + patience;
        loop {
            let known = service.reads.recall(&requester, id).await;
            match known {
                Ok(Recalled::Finished(finished, _)) => return self.recalled(*finished, &context).await,
                Ok(Recalled::Over(row)) => return Err(left_nothing(&row)),
                Ok(Recalled::Running(row)) if Instant::now() >= until => {
                    return Ok(going_on(&service, &requester, id, row.status.as_str()));
                }
                // It was begun a moment ago and is not written down yet.
                Err(ExecutionError::UnknownExecution(_)) if service.runs.runs_here(&requester, id) => {
                    if Instant::now() >= until {
                        return Ok(going_on(&service, &requester, id, "queued"));
                    }
                }
                Err(error) => return Err(error.into()),
                Ok(Recalled::Running(_)) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = context.ct.cancelled() => return Err(ExecutionError::Cancelled.into()),
            }
        }
    }
}

/// Where a run is that has not ended, and what it has printed lately if it is here.
fn going_on(service: &Service, requester: &Requester, id: ExecutionId, status: &str) -> CallToolResult {
    let mut text = format!("{status}; ask again, with wait_ms to wait for its end");
    let mut structured = json!({ "executionId": id.to_string(), "status": status });
    let mut printed = String::new();
    for chunk in service.runs.printed(requester, id).unwrap_or_default() {
        if let OutputChunk::Stdout(piece) | OutputChunk::Stderr(piece) = chunk.get() {
            printed.push_str(piece);
        }
    }
    if !printed.is_empty() {
        let mut tail = Capture::new(SO_FAR);
        tail.push(&shown(&printed));
        let printed = tail.text();
        text.push_str(&format!("\n[printed so far]\n{printed}"));
        structured["printedSoFar"] = json!(printed);
    }
    plain(text, structured)
}

fn plain(text: String, structured: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.is_error = None;
    result.structured_content = Some(structured);
    result
}

/// A page of an output: out of its file when it was long, else out of the result.
async fn page(
    reads: &Reads,
    requester: &Requester,
    id: ExecutionId,
    stream: Stream,
    offset: u64,
    limit: usize,
) -> Result<CallToolResult, ToolError> {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let (bytes, total, cut) = match reads.artifact(requester, &Outputs::uri(id, name), offset, limit).await {
        Ok((artifact, bytes)) => (bytes, artifact.bytes, artifact.cut),
        Err(ExecutionError::UnknownArtifact(_)) => match reads.recall(requester, id).await? {
            Recalled::Finished(finished, _) => {
                let kept = match stream {
                    Stream::Stdout => &finished.outcome.stdout,
                    Stream::Stderr => &finished.outcome.stderr,
                };
                if kept.is_truncated() {
                    let advice = "Read those with get_execution without `stream`, or run the code again.";
                    let lacks = "The whole output was not kept; the result has its beginning and its end";
                    return Err(ToolError::not_found(lacks, advice));
                }
                let text = kept.text();
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
                let to = from.saturating_add(limit).min(text.len());
                (text.as_bytes()[from..to].to_vec(), text.len() as u64, false)
            }
            Recalled::Running(_) => {
                let advice = "Wait for it with wait_ms, then read its output.";
                return Err(ToolError::not_found("The run has not ended", advice));
            }
            Recalled::Over(_) => return Err(ToolError::not_found("The run left no output", "Run it again.")),
        },
        Err(error) => return Err(error.into()),
    };
    let (text, taken) = whole_characters(&bytes);
    let next = offset + taken as u64;
    let more = (next < total).then_some(next);
    let mut structured =
        json!({ "stream": name, "offset": offset, "bytes": taken, "totalBytes": total, "text": text });
    let last = match more {
        Some(next) => format!("[bytes {offset} to {next} of {total}; go on with offset {next}]"),
        None if cut => {
            format!("[bytes {offset} to {next} of {total}; the program printed more, which was not kept]")
        }
        None => format!("[bytes {offset} to {next} of {total}; that is all]"),
    };
    if cut {
        structured["cut"] = json!(true);
    }
    if let Some(next) = more {
        structured["nextOffset"] = json!(next);
    }
    Ok(plain(format!("{text}\n{last}"), structured))
}

/// Text that ends with a whole character, and how many bytes of it were taken.
pub(in crate::mcp) fn whole_characters(bytes: &[u8]) -> (String, usize) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), bytes.len()),
        // Cut in the middle of a character: the rest comes with the next page.
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            let valid = error.valid_up_to();
            (String::from_utf8_lossy(&bytes[..valid]).into_owned(), valid)
        }
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_with_a_whole_character() {
        let text = "aé€😀z".as_bytes();
        for cut in 1..=text.len() {
            let (page, taken) = whole_characters(&text[..cut]);
            let (rest, _) = whole_characters(&text[taken..]);
            assert!(taken <= cut);
            assert!(
                taken == 0 || format!("{page}{rest}") == "aé€😀z" || page.contains('\u{fffd}'),
                "{cut}: {page}{rest}"
            );
        }
    }
}
