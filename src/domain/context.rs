//! An execution context: one tenant's conversation path, tied to a sandbox. Its states change here and nowhere else.

use serde::{Deserialize, Serialize};

use super::{ConversationId, Owner, PathId, TenantId};

/// What a context belongs to. At most one live context a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContextKey {
    /// Whose data it is.
    pub tenant: TenantId,
    /// Whom of the tenant it belongs to.
    #[serde(default)]
    pub owner: Owner,
    /// Which of the owner's conversations.
    pub conversation: ConversationId,
    /// Which path of the conversation.
    pub path: PathId,
}

impl ContextKey {
    /// The conversation that the path is of.
    pub fn of_conversation(&self) -> ConversationKey {
        ConversationKey {
            tenant: self.tenant.clone(),
            owner: self.owner.clone(),
            conversation: self.conversation.clone(),
        }
    }
}

/// A conversation: what its owner may share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationKey {
    /// Whose data it is.
    pub tenant: TenantId,
    /// Whom of the tenant it belongs to.
    pub owner: Owner,
    /// Which of the owner's conversations.
    pub conversation: ConversationId,
}

impl ConversationKey {
    /// One of its paths.
    pub fn path(&self, path: PathId) -> ContextKey {
        ContextKey {
            tenant: self.tenant.clone(),
            owner: self.owner.clone(),
            conversation: self.conversation.clone(),
            path,
        }
    }
}

macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The value as it appears in the database and in results.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    other => Err(format!("`{other}` is not one of {}", [$($text),+].join(", "))),
                }
            }
        }
    };
}
pub(crate) use text_enum;

text_enum! {
    /// Where a context is in its life.
    ContextStatus {
        /// A replica holds the lease and is making the sandbox.
        Creating = "creating",
        /// The sandbox exists and serves calls.
        Ready = "ready",
        /// Ended; [`EndReason`] says why. Frozen.
        Terminated = "terminated",
        /// The sandbox could not be made. Frozen.
        Error = "error",
    }
}

text_enum! {
    /// Why a context ended. A column of its own, not a status.
    EndReason {
        /// Not used for its time to live.
        Expired = "expired",
        /// The sandbox could not be made.
        Error = "error",
        /// A caller or an operator ended it.
        Manual = "manual",
        /// Its path was merged into another.
        Merged = "merged",
        /// Its path was archived.
        Archived = "archived",
        /// Its path was deleted.
        Deleted = "deleted",
        /// It had served its number of executions.
        Rotated = "rotated",
        /// The provider no longer knows the sandbox.
        Lost = "lost",
    }
}

text_enum! {
    /// What a call found of the state that earlier calls left.
    SandboxState {
        /// A new sandbox for a key that had none before.
        Fresh = "fresh",
        /// The same sandbox: variables and files are there.
        Kept = "kept",
        /// A new sandbox instead of an ended one: earlier variables and files are gone. Or a new interpreter in the same
        /// sandbox: earlier variables are gone.
        Reset = "reset",
        /// The same sandbox, whose interpreter died in this call: variables are what they were before it; files are as
        /// it left them.
        RolledBack = "rolled_back",
    }
}

/// What happens to a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextEvent {
    /// The creator reports its sandbox.
    SandboxReady,
    /// The creator could not make one.
    CreateFailed,
    /// The context has ended.
    End(EndReason),
}

/// A step that the table of states does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a context that is {from} cannot take {event:?}")]
pub struct IllegalTransition {
    /// Where the context was.
    pub from: ContextStatus,
    /// What was asked of it.
    pub event: ContextEvent,
}

impl ContextStatus {
    /// The status after an event.
    ///
    /// ```
    /// use pathbox::domain::{ContextEvent, ContextStatus, EndReason};
    /// let ready = ContextStatus::Creating.after(ContextEvent::SandboxReady).unwrap();
    /// assert_eq!(ready, ContextStatus::Ready);
    /// assert!(ContextStatus::Terminated.after(ContextEvent::End(EndReason::Manual)).is_err());
    /// ```
    ///
    /// # Errors
    /// [`IllegalTransition`] for a step that does not exist; the caller has found a bug or lost a race.
    pub fn after(self, event: ContextEvent) -> Result<Self, IllegalTransition> {
        match (self, event) {
            (Self::Creating, ContextEvent::SandboxReady) => Ok(Self::Ready),
            (Self::Creating, ContextEvent::CreateFailed | ContextEvent::End(EndReason::Error)) => {
                Ok(Self::Error)
            }
            (Self::Ready, ContextEvent::End(EndReason::Error)) => {
                Err(IllegalTransition { from: self, event })
            }
            (Self::Creating | Self::Ready, ContextEvent::End(_)) => Ok(Self::Terminated),
            (from, event) => Err(IllegalTransition { from, event }),
        }
    }

    /// Whether the key is taken: creating or ready.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Creating | Self::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No sequence of events leaves an ended context, goes back to creating, or is ready twice.
    #[test]
    fn every_sequence_of_four_events_stays_in_the_table() {
        let mut events = vec![ContextEvent::SandboxReady, ContextEvent::CreateFailed];
        events.extend(EndReason::ALL.iter().map(|reason| ContextEvent::End(*reason)));
        let mut frontier = vec![ContextStatus::Creating];
        for _ in 0..4 {
            let mut next = Vec::new();
            for status in &frontier {
                for event in &events {
                    if let Ok(after) = status.after(*event) {
                        assert!(status.is_live(), "{status} is frozen but took {event:?}");
                        assert_ne!(after, ContextStatus::Creating);
                        next.push(after);
                    }
                }
            }
            frontier = next;
        }
    }

    #[test]
    fn texts_round_trip() {
        for status in ContextStatus::ALL {
            assert_eq!(status.as_str().parse::<ContextStatus>().unwrap(), *status);
        }
        for reason in EndReason::ALL {
            assert_eq!(reason.as_str().parse::<EndReason>().unwrap(), *reason);
        }
        assert!("gone".parse::<EndReason>().is_err());
    }
}
