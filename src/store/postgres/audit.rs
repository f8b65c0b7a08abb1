//! Records of runs, the guard's numbering, and who opened which kind of sealed token.

use async_trait::async_trait;
use serde_json::Value;
use sqlx::Row;

use super::rows::{self, Cells};
use super::{PgStore, failure};
use crate::domain::{ContextId, ContextKey, ConversationId, ExecutionId, Owner, TenantId};
use crate::store::audit::{MAX_RESOLVES, MAX_VALUES, value_column};
use crate::store::bind::BindKey;
use crate::store::secrets::Place;
use crate::store::{
    Audit, ExecutionFilter, ExecutionRow, KeptValue, NewReveal, Placeholders, RevealRow, StoreError,
    measure::measure,
};

#[async_trait]
impl Audit for PgStore {
    async fn execution(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionRow>, StoreError> {
        let sql = rows::execution_query!("pathbox.execution_v1($1, $2)", "x.result::text");
        let row = self
            .call(measure!("execution", tenant), || async {
                sqlx::query(sql).bind(tenant.as_str()).bind(id.0).fetch_optional(&self.pool()).await
            })
            .await?;
        row.as_ref().map(rows::execution).transpose()
    }

    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionRow>, StoreError> {
        let found = self
            .call(measure!("executions"), || async {
                match &filter.tenant {
                    Some(tenant) => sqlx::query(rows::execution_query!(
                        "pathbox.executions_v2($1, $2, $3, $4, $5, $6)",
                        "null::text"
                    ))
                    .bind(tenant.as_str())
                    .bind(filter.owner.as_ref().map(Owner::as_str))
                    .bind(&filter.principal),
                    None => sqlx::query(rows::execution_query!(
                        "pathbox.all_executions_v1($1, $2, $3)",
                        "null::text"
                    )),
                }
                .bind(filter.conversation.as_ref().map(ConversationId::as_str))
                .bind(filter.context.map(|id| id.0))
                .bind(i32::try_from(filter.limit.unwrap_or(100)).unwrap_or(i32::MAX))
                .fetch_all(&self.pool())
                .await
            })
            .await?;
        found.iter().map(rows::execution).collect()
    }

    async fn artifacts(&self, tenant: &TenantId, filter: &ExecutionFilter) -> Result<Vec<Value>, StoreError> {
        let found = self
            .call(measure!("artifacts", tenant), || async {
                sqlx::query("select id, kept from pathbox.artifacts_v1($1, $2, $3, $4, $5)")
                    .bind(tenant.as_str())
                    .bind(filter.owner.as_ref().map(Owner::as_str))
                    .bind(&filter.principal)
                    .bind(filter.conversation.as_ref().map(ConversationId::as_str))
                    .bind(i32::try_from(filter.limit.unwrap_or(100)).unwrap_or(i32::MAX))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let read = |row| Cells::new(row, "executions", "kept").json("kept");
        found.iter().filter_map(|row| read(row).transpose()).collect()
    }

    async fn placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError> {
        let found = self
            .call(measure!("placeholders", key.tenant), || async {
                sqlx::query("select kind, value_hash, number from pathbox.placeholders_v2($1, $2, $3, $4)")
                    .bind_key(key)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        found
            .iter()
            .map(|row| {
                let number: i32 = row.try_get("number")?;
                Ok((row.try_get("kind")?, row.try_get("value_hash")?, number.unsigned_abs()))
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(failure)
    }

    async fn save_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError> {
        if new.is_empty() {
            return Ok(());
        }
        let kinds: Vec<&str> = new.iter().map(|(kind, ..)| kind.as_str()).collect();
        let hashes: Vec<&str> = new.iter().map(|(_, hash, _)| hash.as_str()).collect();
        let numbers: Vec<i32> = new.iter().map(|(.., number)| whole(*number)).collect();
        self.call(measure!("save_placeholders", key.tenant), || async {
            sqlx::query("select pathbox.save_placeholders_v2($1, $2, $3, $4, $5, $6, $7)")
                .bind_key(key)
                .bind(&kinds)
                .bind(&hashes)
                .bind(&numbers)
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }

    async fn keep_values(
        &self,
        tenant: &TenantId,
        context: ContextId,
        values: &[KeptValue],
    ) -> Result<(), StoreError> {
        let row = context.to_string();
        let sealed = values.iter().map(|(kind, number, value)| {
            self.keyring.seal(Place { tenant, row: &row, column: &value_column(kind, *number) }, value)
        });
        let sealed: Vec<Vec<u8>> = sealed.collect();
        let kinds: Vec<&str> = values.iter().map(|(kind, ..)| kind.as_str()).collect();
        let numbers: Vec<i32> = values.iter().map(|(_, number, _)| whole(*number)).collect();
        self.call(measure!("keep_values", tenant), || async {
            sqlx::query("select pathbox.keep_values_v1($1, $2, $3, $4, $5, $6)")
                .bind(tenant.as_str())
                .bind(context.0)
                .bind(&kinds)
                .bind(&numbers)
                .bind(&sealed)
                .bind(whole(MAX_VALUES))
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }

    async fn take_values(
        &self,
        tenant: &TenantId,
        context: ContextId,
        wanted: &[(String, u32)],
    ) -> Result<Option<Vec<KeptValue>>, StoreError> {
        let row = context.to_string();
        let kinds: Vec<&str> = wanted.iter().map(|(kind, _)| kind.as_str()).collect();
        let numbers: Vec<i32> = wanted.iter().map(|(_, number)| whole(*number)).collect();
        let found: Vec<(Option<String>, Option<i32>, Option<Vec<u8>>)> = self
            .call(measure!("take_values", tenant), || async {
                sqlx::query_as("select kind, number, sealed from pathbox.take_values_v1($1, $2, $3, $4, $5)")
                    .bind(tenant.as_str())
                    .bind(context.0)
                    .bind(&kinds)
                    .bind(&numbers)
                    .bind(whole(MAX_RESOLVES))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let mut values = Vec::new();
        for found in found {
            let (Some(kind), Some(number), Some(sealed)) = found else { return Ok(None) };
            let number = number.unsigned_abs();
            let place = Place { tenant, row: &row, column: &value_column(&kind, number) };
            // One whose key is gone is as one that was not kept.
            if let Ok(value) = self.keyring.open_sealed(place, &sealed) {
                values.push((kind, number, value));
            }
        }
        Ok(Some(values))
    }

    async fn record_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError> {
        self.call(measure!("record_reveal"), || async {
            sqlx::query("select pathbox.record_reveal_v1($1, $2, $3, $4, $5, $6, $7)")
                .bind(&reveal.id)
                .bind(reveal.key.tenant.as_str())
                .bind(reveal.key.conversation.as_str())
                .bind(reveal.key.path.as_str())
                .bind(&reveal.kind)
                .bind(&reveal.principal)
                .bind(reveal.opened)
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }

    async fn reveals(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<RevealRow>, StoreError> {
        let rows = self
            .call(measure!("reveals"), || async {
                sqlx::query("select * from pathbox.reveals_v1($1, $2)")
                    .bind(tenant.map(TenantId::as_str))
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let read = |row: &sqlx::postgres::PgRow| {
            let id: &str = row.try_get("id").unwrap_or("?");
            let cells = Cells::new(row, "reveals", id);
            Ok(RevealRow {
                reveal: NewReveal {
                    id: cells.get("id")?,
                    key: cells.key_of_tenant()?,
                    kind: cells.get("kind")?,
                    principal: cells.get("principal")?,
                    opened: cells.get("opened")?,
                },
                at: cells.get("at")?,
            })
        };
        rows.iter().map(read).collect()
    }
}

fn whole(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
