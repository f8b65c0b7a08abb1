//! Binds the columns that name a context or a conversation, in the order in which the statements of both stores have them.

use sqlx::query::{Query, QueryAs, QueryScalar};
use sqlx::{Database, Encode, Type};

use crate::domain::{ContextKey, ConversationKey};

/// A query that takes texts.
pub(super) trait BindKey<'q>: Sized {
    fn bind_text(self, text: &'q str) -> Self;

    /// Tenant, owner and conversation.
    fn bind_conversation(self, key: &'q ConversationKey) -> Self {
        let key = [key.tenant.as_str(), key.owner.as_str(), key.conversation.as_str()];
        key.into_iter().fold(self, Self::bind_text)
    }

    /// Tenant, owner, conversation and path.
    fn bind_key(self, key: &'q ContextKey) -> Self {
        let key = [key.tenant.as_str(), key.owner.as_str(), key.conversation.as_str(), key.path.as_str()];
        key.into_iter().fold(self, Self::bind_text)
    }
}

impl<'q, DB: Database> BindKey<'q> for Query<'q, DB, DB::Arguments>
where
    &'q str: Encode<'q, DB> + Type<DB>,
{
    fn bind_text(self, text: &'q str) -> Self {
        self.bind(text)
    }
}

impl<'q, DB: Database, O> BindKey<'q> for QueryAs<'q, DB, O, DB::Arguments>
where
    &'q str: Encode<'q, DB> + Type<DB>,
{
    fn bind_text(self, text: &'q str) -> Self {
        self.bind(text)
    }
}

impl<'q, DB: Database, O> BindKey<'q> for QueryScalar<'q, DB, O, DB::Arguments>
where
    &'q str: Encode<'q, DB> + Type<DB>,
{
    fn bind_text(self, text: &'q str) -> Self {
        self.bind(text)
    }
}
