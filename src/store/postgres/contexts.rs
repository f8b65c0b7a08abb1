//! Contexts: acquire, the creator's calls, lists.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::rows::{self, Cells, context_columns, sandbox_columns};
use super::{PgStore, failure};
use crate::domain::{ContextId, ContextKey, ConversationId, EndReason, ExecutionId, PathId, TenantId};
use crate::store::{
    Acquire, Acquired, Claim, ContextFilter, ContextRow, End, LimitReached, Limits, Placeholders,
    QUEUE_LEASE, SandboxRef, StoreError, millis, storable,
};

const ACQUIRE: &str = concat!(
    "select a.outcome, a.run, a.ahead, a.wait_ms, a.previous, a.detail, a.read_at, a.kinds, a.hashes, a.numbers, ",
    context_columns!("(a.ctx)."),
    ", ",
    sandbox_columns!("(a.ctx)."),
    " from pathbox.acquire_v1($1,$2,$3,$4,$5, $6,$7,$8,$9,$10,$11,$12, $13,$14,$15, $16,$17,$18, $19,$20,$21,$22) a"
);
const READY: &str = concat!(
    "select r.read_at, ",
    context_columns!("(r.ctx)."),
    " from pathbox.ready_v1($1,$2,$3,$4, $5,$6,$7,$8,$9,$10,$11,$12,$13,$14) r"
);
const CONTEXT: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.context_v1($1, $2) c"
);
const LIVE: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.live_v1($1, $2, $3) c"
);
const CONTEXTS: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.contexts_v1($1, $2, $3, $4) c"
);
const ALL_CONTEXTS: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    " from pathbox.all_contexts_v1($1, $2, $3) c"
);
const OWNED: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    ", ",
    sandbox_columns!("c."),
    " from pathbox.owned_v1($1, $2, $3) c"
);

/// How often `acquire` starts over when somebody is in the way; each time somebody else has got on.
const AGAIN: u32 = 50;

impl PgStore {
    pub(super) async fn acquire_context(
        &self,
        ask: &Acquire,
        limits: &Limits,
    ) -> Result<Acquired, StoreError> {
        for tries in 0..AGAIN {
            let row = self.call_acquire(ask, limits).await?;
            match self.decode_acquired(&row, ask).await? {
                Some(acquired) => return Ok(acquired),
                None => tokio::time::sleep(Duration::from_millis(u64::from(tries.min(20)))).await,
            }
        }
        Err(StoreError::Unavailable(sqlx::Error::PoolTimedOut))
    }

    async fn call_acquire(&self, ask: &Acquire, limits: &Limits) -> Result<PgRow, StoreError> {
        let run = &ask.execution;
        self.call(|| async {
            sqlx::query(ACQUIRE)
                .bind(ask.key.tenant.as_str())
                .bind(ask.key.conversation.as_str())
                .bind(ask.key.path.as_str())
                .bind(ask.new_context.0)
                .bind(storable(&ask.owner))
                .bind(run.id.0)
                .bind(storable(&run.tool))
                .bind(run.language.as_str())
                .bind(run.purpose.as_deref().map(storable))
                .bind(storable(&run.code_sha256))
                .bind(run.principal.as_deref().map(storable))
                .bind(run.trace_id.as_deref().map(storable))
                .bind(run.idempotency.as_ref().map(|once| storable(&once.key)))
                .bind(run.idempotency.as_ref().map(|once| storable(&once.args_sha256)))
                .bind(millis(run.lease))
                .bind(i32::try_from(limits.per_tenant).unwrap_or(i32::MAX))
                .bind(i32::try_from(limits.per_conversation).unwrap_or(i32::MAX))
                .bind(i64::from(limits.max_executions))
                .bind(millis(limits.create_lease))
                .bind(millis(limits.create_timeout))
                .bind(millis(limits.idempotency_ttl))
                .bind(millis(QUEUE_LEASE))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    /// `None`: ask again.
    async fn decode_acquired(&self, row: &PgRow, ask: &Acquire) -> Result<Option<Acquired>, StoreError> {
        let cells = Cells::new(row, "executions", ask.execution.id);
        let outcome: &str = cells.get("outcome")?;
        Ok(Some(match outcome {
            "again" => return Ok(None),
            "not_found" => return Err(StoreError::NotFound),
            "ready" => match rows::context_with_sandbox(row, &self.keyring) {
                Ok(Some(context)) => Acquired::Ready(Box::new(context), placeholders(&cells)?),
                Ok(None) => return Err(cells.corrupt("ready without a context")),
                Err(error) => {
                    self.give_up_unreadable(row, &error).await?;
                    return Ok(None);
                }
            },
            "create" => {
                let context = rows::context(row)?.ok_or_else(|| cells.corrupt("create without a context"))?;
                Acquired::Create(Claim {
                    context: context.id,
                    key: context.key,
                    epoch: context.epoch,
                    previous: cells.parse_optional::<EndReason>("previous")?,
                })
            }
            "wait" => {
                let left = u64::try_from(cells.get::<i64>("wait_ms")?).unwrap_or(0);
                Acquired::WaitForCreator { lease_left: Duration::from_millis(left) }
            }
            "queued" => {
                let position = u32::try_from(cells.get::<i32>("ahead")?).unwrap_or(1);
                Acquired::Queued { position }
            }
            "limit" => Acquired::Limit(limit_reached(&cells, &ask.key.tenant)?),
            "path_closed" => {
                let detail: Value = cells.get("detail")?;
                let status = detail["status"].as_str().unwrap_or_default();
                Acquired::PathClosed(status.parse().map_err(|error: String| cells.corrupt(error))?)
            }
            "in_flight" => Acquired::InFlight(ExecutionId(cells.get("run")?)),
            "key_conflict" => Acquired::KeyConflict(ExecutionId(cells.get("run")?)),
            "replay" | "interrupted" => {
                let replay = outcome == "replay";
                let id = ExecutionId(cells.get("run")?);
                match self.one_execution(&ask.key.tenant, id).await? {
                    Some(run) if replay => Acquired::Replay(Box::new(run)),
                    Some(run) => Acquired::Interrupted(Box::new(run)),
                    None => return Ok(None), // retention took it a moment ago
                }
            }
            other => return Err(cells.corrupt(format_args!("outcome `{other}`"))),
        }))
    }

    /// Tokens that do not open mean that the sandbox cannot be reached any more: it is lost, and replaced.
    async fn give_up_unreadable(&self, row: &PgRow, why: &StoreError) -> Result<(), StoreError> {
        let Some(context) = rows::context(row)? else { return Ok(()) };
        tracing::warn!(context.id = %context.id, error = %why, "a context's tokens do not open; it is replaced");
        let end = End {
            tenant: context.key.tenant,
            context: context.id,
            epoch: Some(context.epoch),
            reason: EndReason::Lost,
            error: Some("its tokens do not open with the keys of this server".to_owned()),
        };
        self.end_context(&end, &Limits::default()).await.map(|_| ())
    }

    pub(super) async fn ready_context(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &Limits,
    ) -> Result<Option<ContextRow>, StoreError> {
        let sealed = self.keyring.seal_tokens(&claim.key.tenant, claim.context, sandbox);
        let row = self
            .call(|| async {
                sqlx::query(READY)
                    .bind(claim.key.tenant.as_str())
                    .bind(claim.context.0)
                    .bind(claim.epoch)
                    .bind(execution.0)
                    .bind(sandbox.sandbox_id.as_str())
                    .bind(sandbox.domain.as_deref())
                    .bind(sandbox.host_url.as_deref())
                    .bind(sealed.host_key.as_deref())
                    .bind(sealed.envd_token.as_deref())
                    .bind(sealed.traffic_token.as_deref())
                    .bind(sandbox.mcp_url.as_deref())
                    .bind(sealed.mcp_token.as_deref())
                    .bind(sandbox.provider_ends_at)
                    .bind(millis(limits.ttl))
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(rows::context(&row)?.map(|context| ContextRow { sandbox: Some(sandbox.clone()), ..context }))
    }

    pub(super) async fn renew_claim(&self, claim: &Claim, limits: &Limits) -> Result<bool, StoreError> {
        self.call(|| async {
            sqlx::query_scalar("select pathbox.renew_v1($1, $2, $3, $4)")
                .bind(claim.key.tenant.as_str())
                .bind(claim.context.0)
                .bind(claim.epoch)
                .bind(millis(limits.create_lease))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    pub(super) async fn end_context(&self, end: &End, limits: &Limits) -> Result<bool, StoreError> {
        self.call(|| async {
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

    pub(super) async fn one_context(
        &self,
        tenant: &TenantId,
        id: ContextId,
    ) -> Result<Option<ContextRow>, StoreError> {
        let row = self
            .call(|| async {
                sqlx::query(CONTEXT).bind(tenant.as_str()).bind(id.0).fetch_optional(&self.pool()).await
            })
            .await?;
        row.as_ref().map_or(Ok(None), rows::context)
    }

    pub(super) async fn live_context(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError> {
        let row = self
            .call(|| async {
                sqlx::query(LIVE)
                    .bind(key.tenant.as_str())
                    .bind(key.conversation.as_str())
                    .bind(key.path.as_str())
                    .fetch_optional(&self.pool())
                    .await
            })
            .await?;
        row.as_ref().map_or(Ok(None), rows::context)
    }

    pub(super) async fn list_contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError> {
        let conversation = filter.conversation.as_ref().map(ConversationId::as_str);
        let limit = i32::try_from(filter.limit.unwrap_or(100)).unwrap_or(i32::MAX);
        let found = self
            .call(|| async {
                match &filter.tenant {
                    Some(tenant) => sqlx::query(CONTEXTS).bind(tenant.as_str()),
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

    pub(super) async fn count_live_contexts(&self) -> Result<u64, StoreError> {
        let count: i64 = self
            .call(|| async {
                sqlx::query_scalar("select pathbox.all_live_v1()").fetch_one(&self.pool()).await
            })
            .await?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    pub(super) async fn owned_contexts(
        &self,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError> {
        let found = self
            .call(|| async {
                sqlx::query(OWNED)
                    .bind(millis(min_age))
                    .bind(after.map(|id| id.0))
                    .bind(i32::try_from(limit).unwrap_or(i32::MAX))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let mut owned = Vec::with_capacity(found.len());
        for row in &found {
            match rows::context_with_sandbox(row, &self.keyring) {
                Ok(context) => owned.extend(context),
                Err(error) => self.give_up_unreadable(row, &error).await?,
            }
        }
        Ok(owned)
    }

    pub(super) async fn unowned_tags(
        &self,
        tags: &[(ContextId, i64)],
    ) -> Result<Vec<(ContextId, i64)>, StoreError> {
        let (ids, epochs): (Vec<Uuid>, Vec<i64>) = tags.iter().map(|(id, epoch)| (id.0, *epoch)).unzip();
        let found = self
            .call(|| async {
                sqlx::query("select id, epoch from pathbox.unowned_v1($1, $2)")
                    .bind(&ids)
                    .bind(&epochs)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        found
            .iter()
            .map(|row| Ok((ContextId(row.try_get("id")?), row.try_get("epoch")?)))
            .collect::<Result<_, sqlx::Error>>()
            .map_err(failure)
    }

    pub(super) async fn override_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError> {
        let number = |limit: Option<u32>| limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
        self.call(|| async {
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

/// The three columns of numbers; NULL when the key has none.
fn placeholders(cells: &Cells<'_>) -> Result<Placeholders, StoreError> {
    let kinds: Vec<String> = cells.get::<Option<_>>("kinds")?.unwrap_or_default();
    let hashes: Vec<String> = cells.get::<Option<_>>("hashes")?.unwrap_or_default();
    let numbers: Vec<i32> = cells.get::<Option<_>>("numbers")?.unwrap_or_default();
    let numbers = numbers.into_iter().map(i32::unsigned_abs);
    Ok(kinds
        .into_iter()
        .zip(hashes)
        .zip(numbers)
        .map(|((kind, hash), number)| (kind, hash, number))
        .collect())
}

fn limit_reached(cells: &Cells<'_>, tenant: &TenantId) -> Result<LimitReached, StoreError> {
    #[derive(Deserialize)]
    struct Detail {
        scope: String,
        limit: u32,
        holders: Vec<(ConversationId, PathId)>,
        frees_in_ms: Option<u64>,
    }
    let detail: Value = cells.get("detail")?;
    let detail: Detail = serde_json::from_value(detail).map_err(|error| cells.corrupt(error))?;
    Ok(LimitReached {
        scope: if detail.scope == "tenant" { "tenant" } else { "conversation" },
        limit: detail.limit,
        holders: detail
            .holders
            .into_iter()
            .map(|(conversation, path)| ContextKey { tenant: tenant.clone(), conversation, path })
            .collect(),
        frees_in: detail.frees_in_ms.map(Duration::from_millis),
    })
}
