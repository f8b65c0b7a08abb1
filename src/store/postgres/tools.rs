//! What the store remembers about the tools of other servers.

use async_trait::async_trait;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres, Row};

use super::PgStore;
use crate::store::bind::BindKey;
use crate::store::ledger::sha256;
use crate::store::{StoreError, ToolMemory, ToolPermit, ToolPins, measure::measure, storable};

#[async_trait]
impl ToolMemory for PgStore {
    async fn tool_pins(
        &self,
        scope: &str,
        server: &str,
        known: Option<&str>,
    ) -> Result<Option<ToolPins>, StoreError> {
        self.call(measure!("tool_pins"), || async {
            let row = sqlx::query("select digest, pins from pathbox.tool_pins_v1($1, $2, $3)")
                .bind(scope)
                .bind(server)
                .bind(known)
                .fetch_optional(&self.pool())
                .await?;
            row.map(|row| Ok(ToolPins { digest: row.try_get("digest")?, pins: row.try_get("pins")? }))
                .transpose()
        })
        .await
    }

    async fn pin_tools(
        &self,
        scope: &str,
        server: &str,
        pins: &str,
        replace: bool,
    ) -> Result<String, StoreError> {
        self.call(measure!("pin_tools"), || async {
            sqlx::query_scalar("select pathbox.pin_tools_v1($1, $2, $3, $4, $5)")
                .bind(scope)
                .bind(server)
                .bind(sha256(pins))
                .bind(pins)
                .bind(replace)
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn refresh_token(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.call(measure!("refresh_token"), || async {
            sqlx::query_scalar("select pathbox.refresh_token_v1($1)").bind(name).fetch_one(&self.pool()).await
        })
        .await
    }

    async fn keep_refresh_token(&self, name: &str, sealed: &str) -> Result<(), StoreError> {
        self.call(measure!("keep_refresh_token"), || async {
            sqlx::query("select pathbox.keep_refresh_token_v1($1, $2)")
                .bind(name)
                .bind(sealed)
                .execute(&self.pool())
                .await
                .map(drop)
        })
        .await
    }

    async fn permit_tool(&self, permit: &ToolPermit) -> Result<(), StoreError> {
        self.call(measure!("permit_tool", permit.conversation.tenant), || async {
            let query = sqlx::query("select pathbox.permit_tool_v1($1, $2, $3, $4, $5, $6)");
            bound(query, permit).execute(&self.pool()).await.map(drop)
        })
        .await
    }

    async fn tool_permitted(&self, permit: &ToolPermit) -> Result<bool, StoreError> {
        self.call(measure!("tool_permitted", permit.conversation.tenant), || async {
            let query = sqlx::query("select pathbox.tool_permitted_v1($1, $2, $3, $4, $5, $6)");
            bound(query, permit).fetch_one(&self.pool()).await?.try_get(0)
        })
        .await
    }
}

fn bound<'q>(
    query: Query<'q, Postgres, PgArguments>,
    permit: &'q ToolPermit,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind_conversation(&permit.conversation)
        .bind(storable(&permit.principal))
        .bind(storable(&permit.tool))
        .bind(&permit.definition)
}
