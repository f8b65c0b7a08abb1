//! Identifiers. Each kind is its own type, so that a tenant can never stand where a conversation is meant.
//!
//! Names that come from outside (tenant, conversation, path) are text of 1 to [`MAX_LEN`] characters out of
//! `A-Z a-z 0-9 - _ . : @`; UUIDs fit. Ids that Pathbox mints are UUIDv7, so that they sort by age.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Clock, Entropy};

/// The longest accepted name, in characters.
pub const MAX_LEN: usize = 128;

/// A name that does not parse; says which one and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {problem}; allowed are 1 to {MAX_LEN} characters of A-Z a-z 0-9 - _ . : @")]
pub struct InvalidId {
    /// Which identifier: "tenant id", "conversation id", "path id", "sandbox id".
    pub kind: &'static str,
    /// What is wrong with it. Never holds the value itself: it comes from a stranger.
    pub problem: String,
}

fn check(kind: &'static str, text: &str) -> Result<(), InvalidId> {
    let problem = match text.chars().count() {
        0 => "is empty".to_owned(),
        n if n > MAX_LEN => format!("has {n} characters"),
        _ => match text.char_indices().find(|(_, c)| !(c.is_ascii_alphanumeric() || "-_.:@".contains(*c))) {
            Some((at, c)) => format!("holds {:?} at byte {at}", c),
            None => return Ok(()),
        },
    };
    Err(InvalidId { kind, problem })
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Reads a name that came from outside.
            ///
            /// # Errors
            /// [`InvalidId`] when it is empty, longer than [`MAX_LEN`] or holds a character outside the set.
            pub fn parse(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                check($kind, &text)?;
                Ok(Self(text))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

name! {
    /// Who owns the data: the outermost wall.
    TenantId, "tenant id"
}
name! {
    /// One conversation of a tenant.
    ConversationId, "conversation id"
}
name! {
    /// One path (branch) of a conversation. Not a file path: files are `file` and `dir`.
    PathId, "path id"
}
name! {
    /// The provider's name for a sandbox. Never shown to a model or in a result.
    SandboxId, "sandbox id"
}

/// What the conversation of a single call begins with; 24 hexadecimal digits follow.
const OF_ONE_CALL: &str = "call-";

impl ConversationId {
    /// A new conversation for a call that names none.
    pub fn of_one_call(entropy: &Entropy) -> Self {
        Self(format!("{OF_ONE_CALL}{}", entropy.hex::<12>()))
    }

    /// Whether it was made for one call.
    pub fn is_of_one_call(&self) -> bool {
        self.0.strip_prefix(OF_ONE_CALL).is_some_and(|digits| {
            digits.len() == 24 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    }
}

impl PathId {
    /// The path that a call takes when it names none.
    pub fn main() -> Self {
        Self("main".to_owned())
    }
}

macro_rules! minted {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id (UUIDv7: sorts by age).
            pub fn mint(clock: &Clock, entropy: &Entropy) -> Self {
                Self(entropy.uuid_v7(clock))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

minted! {
    /// One life of a context: a row. A key gets a new one each time its sandbox is replaced.
    ContextId
}
minted! {
    /// One run of a tool.
    ExecutionId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_and_plain_names_are_identifiers() {
        for good in ["local", "0198f3c0-1111-7000-8000-000000000000", "a.b_c:d@e-1", &"x".repeat(128)] {
            assert_eq!(TenantId::parse(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn a_bad_identifier_is_named_and_its_value_is_not_repeated() {
        for bad in ["", "a b", "a/b", "é", "a\n", &"x".repeat(129), "../etc"] {
            let error = PathId::parse(bad).unwrap_err().to_string();
            assert!(error.starts_with("path id "), "{error}");
            assert!(bad.len() < 5 || !error.contains(bad), "{error}");
        }
    }
}
