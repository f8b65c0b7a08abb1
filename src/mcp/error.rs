//! How a failed tool call looks to a client: one place decides. A model reads the text, a program the code.
//!
//! A text may quote a provider, which may quote a sandbox: so it has been through the guard like any output.

use rmcp::model::{CallToolResult, ContentBlock, ErrorData, MetaObject};
use serde_json::json;

use crate::analysis::AnalysisError;
use crate::domain::{ErrorCode, OutOfRange};
use crate::execution::{ExecutionError, WorkflowError};
use crate::guard::{Sanitized, own_words};

use super::caller::CallerError;

/// What the tool could not do, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    code: ErrorCode,
    message: Sanitized<String>,
    advice: Sanitized<String>,
}

impl ToolError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    fn new(code: ErrorCode, message: &str, advice: &str) -> Self {
        Self { code, message: own_words(message), advice: own_words(advice) }
    }

    /// An argument that does not fit.
    pub fn argument(message: impl AsRef<str>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message.as_ref(), "Correct the argument and call again.")
    }

    /// Something that is not there, or not for this caller.
    pub fn not_found(message: impl AsRef<str>, advice: impl AsRef<str>) -> Self {
        Self::new(ErrorCode::NotFound, message.as_ref(), advice.as_ref())
    }

    /// There is no room for it now.
    pub fn full(message: impl AsRef<str>) -> Self {
        Self::new(ErrorCode::LimitReached, message.as_ref(), "Try again in a few minutes.")
    }

    /// A fault of ours.
    pub fn internal(message: impl AsRef<str>) -> Self {
        let advice = "This is a fault of the server; its log has the cause.";
        Self::new(ErrorCode::Internal, message.as_ref(), advice)
    }

    /// For requests that have no way to say "it failed" in their result: a JSON-RPC error.
    pub fn into_protocol_error(self) -> ErrorData {
        let Self { code, message, advice } = self;
        let data = Some(json!({ "code": code, "retryable": code.is_retryable() }));
        let text = format!("{message}. {advice}");
        match code {
            ErrorCode::Internal => ErrorData::internal_error(text, data),
            ErrorCode::NotFound => ErrorData::resource_not_found(text, data),
            _ => ErrorData::invalid_params(text, data),
        }
    }

    /// `isError: true`, no structured content: clients hold that against the output schema even for errors.
    pub fn into_result(self) -> CallToolResult {
        let Self { code, message, advice } = self;
        let text = format!("{message}. {advice} (code: {code})");
        let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
        let mut meta = serde_json::Map::new();
        let detail = json!({ "code": code, "retryable": code.is_retryable() });
        meta.insert("dev.pathbox/error".into(), detail);
        result.meta = Some(MetaObject(meta));
        result
    }
}

impl From<ExecutionError> for ToolError {
    fn from(error: ExecutionError) -> Self {
        let (code, advice) = (error.code(), error.advice());
        let mut message = error.to_string();
        // The cause is for the log; a caller gets it only where it is about the caller's own doing.
        match &error {
            ExecutionError::Cancelled
            | ExecutionError::ShuttingDown
            | ExecutionError::Limit(_)
            | ExecutionError::UnknownHandle
            | ExecutionError::File(_) => {}
            // The provider's own words may repeat what the caller sent, such as the path of a file.
            ExecutionError::Create(source) | ExecutionError::Sandbox(source) => {
                let (kind, cause) = (source.kind(), source.facts());
                tracing::warn!(error = %error, kind, cause, code = %code, "a call failed");
            }
            error => tracing::warn!(error = %crate::telemetry::chain(error), code = %code, "a call failed"),
        }
        if let Some(first) = message.get(0..1) {
            message.replace_range(0..1, &first.to_uppercase());
        }
        Self::new(code, &message, &advice)
    }
}

impl From<WorkflowError> for ToolError {
    fn from(error: WorkflowError) -> Self {
        match error {
            WorkflowError::Execution(error) => error.into(),
            error => Self::new(error.code(), &error.to_string(), &error.advice()),
        }
    }
}

impl From<AnalysisError> for ToolError {
    fn from(error: AnalysisError) -> Self {
        if matches!(error, AnalysisError::Invalid { .. }) {
            let advice =
                "Correct the argument and call again; get_analysis_help shows every field with an example.";
            let message = format!("argument `parameters`: {error}");
            return Self::new(ErrorCode::InvalidArgument, &message, advice);
        }
        if error.is_callers() {
            return Self::argument(format!("argument `parameters`: {error}"));
        }
        tracing::warn!(error = %error, "an analysis gave no usable report");
        Self::internal("the analysis gave no usable report")
    }
}

impl From<CallerError> for ToolError {
    fn from(error: CallerError) -> Self {
        let mut message = error.to_string();
        if let Some(first) = message.get(0..1) {
            message.replace_range(0..1, &first.to_uppercase());
        }
        Self::new(error.code(), &message, error.advice())
    }
}

impl From<OutOfRange> for ToolError {
    fn from(error: OutOfRange) -> Self {
        Self::argument(error.to_string())
    }
}
