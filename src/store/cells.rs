//! A row of either database that knows its table and key, so that the error about an invalid value says where it is.

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::StoreError;
use crate::domain::{ContextKey, ConversationKey, Owner};

/// A row, for reading it column by column.
pub(super) struct Cells<'r, R> {
    row: &'r R,
    table: &'static str,
    id: String,
}

impl<'r, R> Cells<'r, R>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    &'r str: Decode<'r, R::Database> + Type<R::Database>,
{
    /// A row of a table; errors name it by `id`.
    pub(super) fn named(row: &'r R, table: &'static str, id: String) -> Self {
        Self { row, table, id }
    }

    pub(super) fn corrupt(&self, problem: impl ToString) -> StoreError {
        StoreError::Corrupt { table: self.table, id: self.id.clone(), problem: problem.to_string() }
    }

    /// A column as its SQL type.
    pub(super) fn get<T>(&self, column: &'static str) -> Result<T, StoreError>
    where
        T: Decode<'r, R::Database> + Type<R::Database>,
    {
        self.row.try_get(column).map_err(|error| self.corrupt(error))
    }

    /// A text column as a value that can be read from text.
    pub(super) fn parse<T>(&self, column: &'static str) -> Result<T, StoreError>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
    {
        let text: &str = self.get(column)?;
        text.parse().map_err(|error| self.corrupt(format_args!("{column}: {error}")))
    }

    /// The same, where NULL is `None`.
    pub(super) fn parse_optional<T>(&self, column: &'static str) -> Result<Option<T>, StoreError>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
    {
        match self.get::<Option<&str>>(column)? {
            None => Ok(None),
            Some(_) => self.parse(column).map(Some),
        }
    }

    /// A text column that holds JSON.
    pub(super) fn json(&self, column: &'static str) -> Result<Option<serde_json::Value>, StoreError> {
        let text: Option<&str> = self.get(column)?;
        text.map(|text| serde_json::from_str(text).map_err(|error| self.corrupt(error))).transpose()
    }

    /// Tenant, owner, conversation and path.
    pub(super) fn key(&self) -> Result<ContextKey, StoreError> {
        Ok(ContextKey {
            tenant: self.parse("tenant_id")?,
            owner: self.parse("owner_principal")?,
            conversation: self.parse("conversation_id")?,
            path: self.parse("path_id")?,
        })
    }

    /// The same of a table that names no owner.
    pub(super) fn key_of_tenant(&self) -> Result<ContextKey, StoreError> {
        Ok(ContextKey {
            tenant: self.parse("tenant_id")?,
            owner: Owner::tenant(),
            conversation: self.parse("conversation_id")?,
            path: self.parse("path_id")?,
        })
    }

    /// Tenant, owner and conversation.
    pub(super) fn conversation(&self) -> Result<ConversationKey, StoreError> {
        Ok(ConversationKey {
            tenant: self.parse("tenant_id")?,
            owner: self.parse("owner_principal")?,
            conversation: self.parse("conversation_id")?,
        })
    }
}
