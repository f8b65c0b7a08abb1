//! Acquire, the creator's calls, the run's record.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::FutureExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::rows::{self, Cells, context_columns, sandbox_columns};
use super::together::{Calls, Together, Turn};
use crate::domain::{
    ContextId, ContextKey, ConversationId, EndReason, ExecutionId, Owner, PathId, Period, QuotaKind,
    QuotaReached, TenantId,
};
use crate::store::{
    Acquire, Acquired, Audit, Cause, Claim, ContextLimits, ContextRow, Contexts, DatabaseState, End,
    ExecutionStatus, FinishedExecution, Idempotency, Leases, LimitReached, Placeholders, QUEUE_LEASE,
    SandboxPlace, SandboxRef, Signals, StoreError, leases::storable_result, measure::measure, millis,
    storable,
};

/// `acquire_v4` is given one value of each for every call that goes together, `acquire_v5` those of the one that is alone.
macro_rules! acquire_query {
    ($function:literal) => {
        concat!(
            "select a.outcome, a.run, a.ahead, a.wait_ms, a.previous, a.detail, a.read_at, a.kinds, a.hashes, a.numbers, ",
            context_columns!("a."),
            ", ",
            sandbox_columns!("a."),
            " from pathbox.",
            $function,
            "($1,$2,$3,$4,$5, $6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16, $17, $18,$19,$20,$21,$22,$23,$24,$25,$26,$27) a"
        )
    };
}

const READY: &str = concat!(
    "select r.read_at, ",
    context_columns!("(r.ctx)."),
    " from pathbox.ready_v2($1,$2,$3,$4, $5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15) r"
);

/// A result beyond this many bytes is recorded alone.
const MOST_SHARED_BYTES: usize = 64 * 1024;
/// How often `acquire` starts over when someone is in the way; each time someone else has got on.
const AGAIN: u32 = 50;

#[async_trait]
impl Leases for PgStore {
    async fn acquire(&self, ask: &Acquire, limits: &ContextLimits) -> Result<Acquired, StoreError> {
        let mut turn = match self.acquire_together(ask, limits).await {
            Ok(row) => match self.decode_acquired(&row, ask).await? {
                Some(acquired) => return Ok(acquired),
                None => None,
            },
            Err(turn) => turn,
        };
        for tries in 0..AGAIN {
            let asking = self.acquire_alone(ask, limits);
            let row = Turn::during(turn.take(), asking).await?;
            match self.decode_acquired(&row, ask).await? {
                Some(acquired) => return Ok(acquired),
                None => tokio::time::sleep(Duration::from_millis(u64::from(tries.min(20)))).await,
            }
        }
        Err(StoreError::State(DatabaseState::Busy, Cause::Overtaken(AGAIN)))
    }

    async fn ready(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &ContextLimits,
    ) -> Result<Option<ContextRow>, StoreError> {
        let sealed = self.keyring.seal_tokens(&claim.key.tenant, claim.context, sandbox);
        let row = self
            .call(measure!("ready"), || async {
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
                    .bind(claim.template.as_deref())
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(rows::context(&row)?.map(|context| ContextRow { sandbox: Some(sandbox.clone()), ..context }))
    }

    async fn renew(&self, claim: &Claim, limits: &ContextLimits) -> Result<bool, StoreError> {
        self.call(measure!("renew"), || async {
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

    async fn record(&self, finished: &FinishedExecution, limits: &ContextLimits) -> Result<bool, StoreError> {
        let ending = Arc::new(Ending::new(finished, limits));
        let offline = finished.offline.as_deref();
        let turn = match self.record_together(&ending, offline.is_some()).await {
            Ok(()) => return Ok(true),
            Err(turn) => turn,
        };
        let recorded = Turn::during(turn, self.record_alone(&ending, offline)).await?;
        match &finished.asked {
            // A crash of the database took the row, which was not on its disk yet.
            Some(ask) if !recorded && offline.is_none() => self.record_alone(&ending, Some(ask)).await,
            _ => Ok(recorded),
        }
    }

    async fn abandon(
        &self,
        tenant: &TenantId,
        execution: ExecutionId,
        status: ExecutionStatus,
        error: Option<&str>,
    ) -> Result<bool, StoreError> {
        self.call(measure!("abandon", tenant), || async {
            sqlx::query_scalar("select pathbox.abandon_v2($1, $2, $3, $4)")
                .bind(tenant.as_str())
                .bind(execution.0)
                .bind(status.as_str())
                .bind(error.map(storable))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn ask_to_stop(&self, tenant: &TenantId, id: ExecutionId) -> Result<bool, StoreError> {
        self.call(measure!("ask_to_stop", tenant), || async {
            sqlx::query_scalar("select pathbox.ask_to_stop_v1($1, $2)")
                .bind(tenant.as_str())
                .bind(id.0)
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn renew_run(&self, tenant: &TenantId, execution: ExecutionId) -> Result<bool, StoreError> {
        self.call(measure!("renew_run", tenant), || async {
            sqlx::query_scalar("select pathbox.renew_run_v1($1, $2)")
                .bind(tenant.as_str())
                .bind(execution.0)
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn join(&self, replica: &str, place: &SandboxPlace, lease: Duration) -> Result<bool, StoreError> {
        let (in_the_way, is_alone): (Option<String>, bool) = self
            .call(measure!("join"), || async {
                sqlx::query_as("select in_the_way, is_alone from pathbox.join_v1($1, $2, $3, $4, $5)")
                    .bind(storable(replica))
                    .bind(env!("CARGO_PKG_VERSION"))
                    .bind(if place.is_local { "local" } else { "remote" })
                    .bind(&place.place)
                    .bind(millis(lease))
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        in_the_way.map_or(Ok(is_alone), |replica| Err(StoreError::OtherPlace { replica }))
    }

    async fn left_running(&self, tenant: &TenantId, context: ContextId) -> Result<bool, StoreError> {
        self.call(measure!("left_running", tenant), || async {
            sqlx::query_scalar("select pathbox.left_running_v1($1, $2)")
                .bind(tenant.as_str())
                .bind(context.0)
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn heartbeat(
        &self,
        replica: &str,
        lease: Duration,
    ) -> Result<Vec<(ContextId, ContextKey)>, StoreError> {
        self.listen_as(replica);
        let wanted = self
            .call(measure!("heartbeat"), || async {
                sqlx::query("select * from pathbox.heartbeat_v1($1, $2, $3)")
                    .bind(storable(replica))
                    .bind(env!("CARGO_PKG_VERSION"))
                    .bind(millis(lease))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let read = |row: &PgRow| {
            let cells = Cells::new(row, "execution_contexts", "?");
            Ok((ContextId(cells.get("id")?), cells.key()?))
        };
        wanted.iter().map(read).collect()
    }

    async fn release(
        &self,
        tenant: &TenantId,
        context: ContextId,
        replica: &str,
    ) -> Result<bool, StoreError> {
        self.call(measure!("release", tenant), || async {
            sqlx::query_scalar("select pathbox.release_v1($1, $2, $3)")
                .bind(tenant.as_str())
                .bind(context.0)
                .bind(storable(replica))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    async fn stops(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionId>, StoreError> {
        let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
        let found = self
            .call(measure!("stops"), || async {
                sqlx::query_scalar("select pathbox.all_stops_v1($1)").bind(&ids).fetch_all(&self.pool()).await
            })
            .await?;
        Ok(found.into_iter().map(ExecutionId).collect())
    }
}

impl PgStore {
    /// Asks for a run that may be one of several; one under a quota takes turns with its tenant's others in the database.
    async fn acquire_together(
        &self,
        ask: &Acquire,
        limits: &ContextLimits,
    ) -> Result<PgRow, Option<Turn<Asks>>> {
        if limits.quota.is_limited() {
            return Err(None);
        }
        let group = (ask.key.tenant.clone(), ask.owner.clone(), limits.max_executions);
        let (store, limits) = (self.clone(), limits.clone());
        let go = move |asks: Vec<Acquire>| {
            let (store, limits) = (store.clone(), limits.clone());
            async move { store.acquire_all(&asks, &limits).await }.boxed()
        };
        self.acquires.join(group, ask.clone(), Arc::new(go)).await
    }

    /// Several runs in one transaction; those that are not ready at once have to be asked for alone.
    async fn acquire_all(&self, asks: &[Acquire], limits: &ContextLimits) -> Vec<Option<PgRow>> {
        let mut answers: Vec<Option<PgRow>> = asks.iter().map(|_| None).collect();
        let tenant = &asks[0].key.tenant;
        let asking = async { bind_together(asks, limits).fetch_all(&self.pool()).await };
        match self.once(measure!("acquire", tenant), asking).await {
            Ok(rows) => {
                for row in rows {
                    let Ok(run) = row.try_get::<uuid::Uuid, _>("run") else { continue };
                    if let Some(at) = asks.iter().position(|ask| ask.execution.id.0 == run) {
                        answers[at] = Some(row);
                    }
                }
            }
            Err(error) => tracing::debug!(error = %error, "calls could not be made together"),
        }
        answers
    }

    async fn acquire_alone(&self, ask: &Acquire, limits: &ContextLimits) -> Result<PgRow, StoreError> {
        self.call(measure!("acquire", ask.key.tenant), || async {
            bind_alone(ask, limits).fetch_one(&self.pool()).await
        })
        .await
    }

    /// Records a run that may be one of several. A large result goes alone, and so does a run without a row.
    async fn record_together(
        &self,
        ending: &Arc<Ending>,
        is_offline: bool,
    ) -> Result<(), Option<Turn<Ends>>> {
        if is_offline || ending.result.as_ref().is_some_and(|result| result.len() > MOST_SHARED_BYTES) {
            return Err(None);
        }
        let store = self.clone();
        let go = move |endings: Vec<Arc<Ending>>| {
            let store = store.clone();
            async move { store.record_all(&endings).await }.boxed()
        };
        self.records.join(ending.tenant.clone(), ending.clone(), Arc::new(go)).await
    }

    /// Several records in one transaction; those that are not among them have to be made alone.
    async fn record_all(&self, endings: &[Arc<Ending>]) -> Vec<Option<()>> {
        // One of a context: the statement adds one to each.
        let mut contexts = HashSet::new();
        let shared: Vec<&Ending> =
            endings.iter().map(Arc::as_ref).filter(|ending| contexts.insert(ending.context)).collect();
        let recording = async {
            sqlx::query_scalar::<_, Option<Vec<uuid::Uuid>>>(
                "select pathbox.records_v1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)",
            )
            .bind(endings[0].tenant.as_str())
            .bind(column(&shared, |it| it.id.0))
            .bind(column(&shared, |it| it.context.0))
            .bind(column(&shared, |it| it.status.as_str()))
            .bind(column(&shared, |it| it.exit_code))
            .bind(column(&shared, |it| it.error.as_deref()))
            .bind(column(&shared, |it| it.duration_ms))
            .bind(column(&shared, |it| it.queued_ms))
            .bind(column(&shared, |it| it.output_bytes))
            .bind(column(&shared, |it| it.findings.as_str()))
            .bind(column(&shared, |it| it.result.as_deref()))
            .bind(column(&shared, |it| it.is_small))
            .bind(column(&shared, |it| it.provider_ends_at))
            .bind(column(&shared, |it| it.ended_at))
            .bind(column(&shared, |it| it.ttl_ms))
            .fetch_one(&self.pool())
            .await
        };
        let recorded = match self.once(measure!("record", endings[0].tenant), recording).await {
            Ok(recorded) => recorded.unwrap_or_default(),
            Err(error) => {
                tracing::debug!(error = %error, "calls could not be made together");
                Vec::new()
            }
        };
        endings.iter().map(|ending| recorded.contains(&ending.id.0).then_some(())).collect()
    }

    async fn record_alone(&self, ending: &Ending, offline: Option<&Acquire>) -> Result<bool, StoreError> {
        let offline = offline.map(offline_as_json);
        self.call(measure!("record", ending.tenant), || async {
            let sql = match offline {
                None => {
                    "select pathbox.record_v3($1,$2,$3,$4,$5,$6,$7,$8,$9,$10::text::json,$11::text::json,$12,$13,$14,$15)"
                }
                Some(_) => {
                    "select pathbox.record_v2($1,$2,$3,$4,$5,$6,$7,$8,$9,$10::text::json,$11::text::json,$12,$13,$14,\
                     $15,$16::text::jsonb)"
                }
            };
            let query = sqlx::query_scalar(sql)
                .bind(ending.tenant.as_str())
                .bind(ending.id.0)
                .bind(ending.context.0)
                .bind(ending.status.as_str())
                .bind(ending.exit_code)
                .bind(&ending.error)
                .bind(ending.duration_ms)
                .bind(ending.queued_ms)
                .bind(ending.output_bytes)
                .bind(&ending.findings)
                .bind(&ending.result)
                .bind(ending.is_small)
                .bind(ending.provider_ends_at)
                .bind(ending.ttl_ms)
                .bind(ending.ended_at);
            match &offline {
                None => query.fetch_one(&self.pool()).await,
                Some(offline) => query.bind(offline).fetch_one(&self.pool()).await,
            }
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
                    read_at: context.read_at,
                    epoch: context.epoch,
                    template: context.template,
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
            "quota" => Acquired::Quota(quota_reached(&cells)?),
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
                match self.execution(&ask.key.tenant, id).await? {
                    Some(run) if replay => Acquired::Replay(Box::new(run)),
                    Some(run) => Acquired::Interrupted(Box::new(run)),
                    None => return Ok(None), // retention took it a moment ago
                }
            }
            other => return Err(cells.corrupt(format_args!("outcome `{other}`"))),
        }))
    }

    /// Tokens that do not open mean that the sandbox cannot be reached any more: it is lost, and replaced.
    pub(super) async fn give_up_unreadable(&self, row: &PgRow, why: &StoreError) -> Result<(), StoreError> {
        let Some(context) = rows::context(row)? else { return Ok(()) };
        tracing::warn!(context.id = %context.id, error = %why, "a context's tokens do not open; it is replaced");
        let end = End {
            tenant: context.key.tenant,
            context: context.id,
            epoch: Some(context.epoch),
            reason: EndReason::Lost,
            error: Some("its tokens do not open with the keys of this server".to_owned()),
        };
        self.end(&end, &ContextLimits::default()).await.map(|_| ())
    }
}

/// A run's end as the functions of the schema take it.
#[derive(Debug)]
pub(super) struct Ending {
    id: ExecutionId,
    tenant: TenantId,
    context: ContextId,
    status: ExecutionStatus,
    exit_code: Option<i32>,
    error: Option<String>,
    duration_ms: i64,
    queued_ms: i64,
    output_bytes: i64,
    findings: String,
    result: Option<String>,
    is_small: bool,
    provider_ends_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
    ttl_ms: i64,
}

impl Ending {
    fn new(finished: &FinishedExecution, limits: &ContextLimits) -> Self {
        let (result, is_small) = storable_result(finished);
        Self {
            id: finished.id,
            tenant: finished.tenant.clone(),
            context: finished.context,
            status: finished.status,
            exit_code: finished.exit_code,
            error: finished.error.as_deref().map(|error| storable(error).into_owned()),
            duration_ms: finished.duration_ms,
            queued_ms: finished.queued_ms,
            output_bytes: finished.output_bytes,
            findings: finished.findings.to_string(),
            result,
            is_small,
            provider_ends_at: finished.provider_ends_at,
            ended_at: finished.ended_at,
            ttl_ms: millis(limits.ttl),
        }
    }
}

/// Asks of one tenant by one replica under one limit of runs a context.
pub(super) struct Asks;

impl Calls for Asks {
    type Group = (TenantId, String, u32);
    type Ask = Acquire;
    type Answer = PgRow;
}

/// Ends of runs of one tenant.
pub(super) struct Ends;

impl Calls for Ends {
    type Group = TenantId;
    type Ask = Arc<Ending>;
    type Answer = ();
}

pub(super) type Acquires = Together<Asks>;
pub(super) type Records = Together<Ends>;

/// One value of each, which is an argument of a function for several calls.
fn column<'a, T, V>(calls: &[&'a T], value: impl Fn(&'a T) -> V) -> Vec<V> {
    calls.iter().map(|call| value(call)).collect()
}

type Bound<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Asks that have tenant, replica and limits in common; what only one alone can have is the first one's.
fn bind_together<'q>(asks: &'q [Acquire], limits: &ContextLimits) -> Bound<'q> {
    let (asks, first): (Vec<&'q Acquire>, _) = (asks.iter().collect(), &asks[0]);
    let query = sqlx::query(acquire_query!("acquire_v4"))
        .bind(first.key.tenant.as_str())
        .bind(storable(&first.owner))
        .bind(column(&asks, |ask| ask.key.owner.as_str()))
        .bind(column(&asks, |ask| ask.key.conversation.as_str()))
        .bind(column(&asks, |ask| ask.key.path.as_str()))
        .bind(column(&asks, |ask| ask.execution.id.0))
        .bind(column(&asks, |ask| storable(&ask.execution.tool)))
        .bind(column(&asks, |ask| ask.execution.language.as_str()))
        .bind(column(&asks, |ask| ask.execution.purpose.as_deref().map(storable)))
        .bind(column(&asks, |ask| storable(&ask.execution.code_sha256)))
        .bind(column(&asks, |ask| ask.execution.principal.as_deref().map(storable)))
        .bind(column(&asks, |ask| ask.execution.trace_id.as_deref().map(storable)))
        .bind(column(&asks, |ask| once(ask).map(|once| storable(&once.key))))
        .bind(column(&asks, |ask| once(ask).map(|once| storable(&once.args_sha256))))
        .bind(column(&asks, |ask| millis(ask.execution.lease)));
    bind_limits(query, first, limits)
}

fn bind_alone<'q>(ask: &'q Acquire, limits: &ContextLimits) -> Bound<'q> {
    let run = &ask.execution;
    let query = sqlx::query(acquire_query!("acquire_v5"))
        .bind(ask.key.tenant.as_str())
        .bind(storable(&ask.owner))
        .bind(ask.key.owner.as_str())
        .bind(ask.key.conversation.as_str())
        .bind(ask.key.path.as_str())
        .bind(run.id.0)
        .bind(storable(&run.tool))
        .bind(run.language.as_str())
        .bind(run.purpose.as_deref().map(storable))
        .bind(storable(&run.code_sha256))
        .bind(run.principal.as_deref().map(storable))
        .bind(run.trace_id.as_deref().map(storable))
        .bind(once(ask).map(|once| storable(&once.key)))
        .bind(once(ask).map(|once| storable(&once.args_sha256)))
        .bind(millis(run.lease));
    bind_limits(query, ask, limits)
}

fn once(ask: &Acquire) -> Option<&Idempotency> {
    ask.execution.idempotency.as_ref()
}

/// What follows the run in the arguments of both functions.
fn bind_limits<'q>(query: Bound<'q>, first: &Acquire, limits: &ContextLimits) -> Bound<'q> {
    query
        .bind(i64::from(limits.max_executions))
        .bind(limits.quota.is_limited())
        .bind(first.new_context.0)
        .bind(first.sees_tenant)
        .bind(i32::try_from(limits.per_tenant).unwrap_or(i32::MAX))
        .bind(i32::try_from(limits.per_conversation).unwrap_or(i32::MAX))
        .bind(millis(limits.create_lease))
        .bind(millis(limits.create_timeout))
        .bind(millis(limits.idempotency_ttl))
        .bind(millis(QUEUE_LEASE))
        .bind(millis(limits.ttl))
        .bind(quota_as_json(limits))
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
        holders: Vec<(ConversationId, PathId, Owner)>,
        others: u32,
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
            .map(|(conversation, path, owner)| ContextKey {
                tenant: tenant.clone(),
                owner,
                conversation,
                path,
            })
            .collect(),
        others: detail.others,
        frees_in: detail.frees_in_ms.map(Duration::from_millis),
    })
}

/// The configured quota and the prices.
fn quota_as_json(limits: &ContextLimits) -> String {
    let ContextLimits { quota, prices, .. } = limits;
    json!({
        "period": quota.period,
        "sandbox_seconds": quota.sandbox_seconds,
        "executions": quota.executions,
        "money_micros": quota.money_micros,
        "hour_micros": prices.sandbox_hour_micros,
        "execution_micros": prices.execution_micros,
    })
    .to_string()
}

fn quota_reached(cells: &Cells<'_>) -> Result<QuotaReached, StoreError> {
    #[derive(Deserialize)]
    struct Detail {
        what: QuotaKind,
        limit: u64,
        used: u64,
        reserved: u64,
        period: Period,
        resets_in_ms: u64,
    }
    let detail: Value = cells.get("detail")?;
    let detail: Detail = serde_json::from_value(detail).map_err(|error| cells.corrupt(error))?;
    Ok(QuotaReached {
        kind: detail.what,
        limit: detail.limit,
        used: detail.used,
        reserved: detail.reserved,
        period: detail.period,
        resets_in: Duration::from_millis(detail.resets_in_ms),
    })
}

/// The ask of a run that was never acquired, as `record_v1` reads it.
fn offline_as_json(ask: &Acquire) -> String {
    let run = &ask.execution;
    json!({
        "owner_principal": ask.key.owner,
        "conversation": ask.key.conversation,
        "path": ask.key.path,
        "owner": storable(&ask.owner),
        "tool": storable(&run.tool),
        "language": run.language.as_str(),
        "purpose": run.purpose.as_deref().map(storable),
        "code_sha256": storable(&run.code_sha256),
        "principal": run.principal.as_deref().map(storable),
        "trace_id": run.trace_id.as_deref().map(storable),
        "key": run.idempotency.as_ref().map(|once| storable(&once.key)),
        "args_sha256": run.idempotency.as_ref().map(|once| storable(&once.args_sha256)),
        "run_lease_ms": millis(run.lease),
    })
    .to_string()
}
