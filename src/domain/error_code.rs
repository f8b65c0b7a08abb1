//! The stable codes that a client may decide by. `docs/errors.md` has a paragraph for each.

use super::context::text_enum;

text_enum! {
    /// What kind of thing went wrong, for programs. Codes are only added, never renamed.
    ErrorCode {
        /// An argument is missing, of the wrong type or out of range.
        InvalidArgument = "invalid_argument",
        /// A handle, execution or artifact that this caller cannot see or that never was.
        NotFound = "not_found",
        /// The caller may not do this, or not for this tenant.
        Forbidden = "forbidden",
        /// The tenant or the conversation holds as many contexts as it may.
        LimitReached = "limit_reached",
        /// The tenant has used and reserved as much as its quota gives it in this period.
        QuotaReached = "quota_reached",
        /// The path is merged, archived or deleted.
        PathClosed = "path_closed",
        /// The context's sandbox was made from another template than the call names.
        TemplateConflict = "template_conflict",
        /// A placeholder in the code cannot become the value that it replaced.
        PlaceholderUnresolved = "placeholder_unresolved",
        /// The same idempotency key came with other arguments.
        IdempotencyConflict = "idempotency_conflict",
        /// An earlier run under this key was cut off by a crash; nothing is repeated by itself.
        Interrupted = "interrupted",
        /// The caller cancelled the run.
        Cancelled = "cancelled",
        /// The server ends, and nothing was run.
        ShuttingDown = "shutting_down",
        /// The run's turn did not come before the caller's deadline.
        QueueTimeout = "queue_timeout",
        /// No sandbox can be made here or now.
        SandboxUnavailable = "sandbox_unavailable",
        /// The sandbox provider answered with something it should not.
        SandboxFailed = "sandbox_failed",
        /// The database does not answer.
        StoreUnavailable = "store_unavailable",
        /// The database answers, but not to this call in its time.
        StoreBusy = "store_busy",
        /// The database takes no writes.
        StoreReadOnly = "store_read_only",
        /// The disk under the database is full.
        StoreFull = "store_full",
        /// A workflow or one of its tasks is in a state that this does not fit.
        WorkflowState = "workflow_state",
        /// Code execution is switched off.
        Disabled = "disabled",
        /// A policy withholds the whole result.
        Blocked = "blocked",
        /// A fault of Pathbox itself.
        Internal = "internal",
    }
}

impl ErrorCode {
    /// Whether the same call meets the same again until someone changes something: the call, the path, the quota.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            Self::InvalidArgument
                | Self::NotFound
                | Self::Forbidden
                | Self::QuotaReached
                | Self::PathClosed
                | Self::TemplateConflict
                | Self::PlaceholderUnresolved
                | Self::IdempotencyConflict
        )
    }

    /// Whether the same call may succeed a little later without any change.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::LimitReached
                | Self::QueueTimeout
                | Self::ShuttingDown
                | Self::SandboxUnavailable
                | Self::StoreUnavailable
                | Self::StoreBusy
                | Self::StoreReadOnly
        )
    }
}
