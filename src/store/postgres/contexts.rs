//! Contexts as rows: looks, lists, the end.

use async_trait::async_trait;

use super::PgStore;
use super::rows::{self, context_columns};
use crate::domain::{ContextId, ContextKey, ConversationId, Owner, TenantId};
use crate::store::bind::BindKey;
use crate::store::{
    ContextFilter, ContextLimits, ContextRow, Contexts, End, StoreError, measure::measure, millis, storable,
};

const CONTEXT: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.context_v1($1, $2) c"
);

const LIVE: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.live_v2($1, $2, $3, $4) c"
);

const CONTEXTS: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.contexts_v2($1, $2, $3, $4, $5) c"
);

const ALL_CONTEXTS: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.all_contexts_v1($1, $2, $3) c"
);

#[async_trait]
impl Contexts for PgStore {
    async fn context(&self, tenant: &TenantId, id: ContextId) -> Result<Option<ContextRow>, StoreError> {
        let row = self
            .call(measure!("context", tenant), || async {
                sqlx::query(CONTEXT).bind(tenant.as_str()).bind(id.0).fetch_optional(&self.pool()).await
            })
            .await?;
        row.as_ref().map_or(Ok(None), rows::context)
    }

    async fn live(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError> {
        let row = self
            .call(measure!("live", key.tenant), || async {
                sqlx::query(LIVE).bind_key(key).fetch_optional(&self.pool()).await
            })
            .await?;
        row.as_ref().map_or(Ok(None), rows::context)
    }

    async fn contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError> {
        let conversation = filter.conversation.as_ref().map(ConversationId::as_str);
        let owner = filter.owner.as_ref().map(Owner::as_str);
        let limit = i32::try_from(filter.limit.unwrap_or(100)).unwrap_or(i32::MAX);
        let found = self
            .call(measure!("contexts"), || async {
                match &filter.tenant {
                    Some(tenant) => sqlx::query(CONTEXTS).bind(tenant.as_str()).bind(owner),
                    None => sqlx::query(ALL_CONTEXTS),
                }
                .bind(conversation)
                .bind(filter.ended)
                .bind(limit)
                .fetch_all(&self.pool())
                .await
            })
            .await?;
        found.iter().filter_map(|row| rows::context(row).transpose()).collect()
    }

    async fn count_live(&self) -> Result<u64, StoreError> {
        let count: i64 = self
            .call(measure!("count_live"), || async {
                sqlx::query_scalar("select pathbox.all_live_v1()").fetch_one(&self.pool()).await
            })
            .await?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    async fn end(&self, end: &End, limits: &ContextLimits) -> Result<bool, StoreError> {
        self.call(measure!("end"), || async {
            sqlx::query_scalar("select pathbox.end_v1($1, $2, $3, $4, $5, $6)")
                .bind(end.tenant.as_str())
                .bind(end.context.0)
                .bind(end.epoch)
                .bind(end.reason.as_str())
                .bind(end.error.as_deref().map(storable))
                .bind(millis(limits.create_timeout))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn set_tenant_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError> {
        let number = |limit: Option<u32>| limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
        self.call(measure!("set_tenant_limits", tenant), || async {
            sqlx::query("select pathbox.set_tenant_limits_v1($1, $2, $3)")
                .bind(tenant.as_str())
                .bind(number(per_tenant))
                .bind(number(per_conversation))
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }
}
