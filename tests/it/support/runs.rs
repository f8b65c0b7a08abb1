//! Asks, sandboxes and records for tests of the store, and a caller that plays the whole protocol.

use std::time::Duration;

use chrono::{DateTime, Utc};
use pathbox::domain::{
    Clock, ContextId, ContextKey, ConversationId, EndReason, Entropy, ExecutionId, Language, Owner, PathId,
    SandboxId, TenantId,
};
use pathbox::store::{
    Acquire, Acquired, Claim, ContextLimits, ContextRow, DynStore, End, ExecutionStatus, FinishedExecution,
    Idempotency, NewExecution, SandboxRef, Secret,
};
use serde_json::json;

/// A context key.
pub(crate) fn key(tenant: &str, conversation: &str, path: &str) -> ContextKey {
    ContextKey {
        tenant: TenantId::parse(tenant).unwrap(),
        owner: Owner::tenant(),
        conversation: ConversationId::parse(conversation).unwrap(),
        path: PathId::parse(path).unwrap(),
    }
}

/// A new run on a key.
pub(crate) fn ask(key: &ContextKey) -> Acquire {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    Acquire {
        key: key.clone(),
        new_context: ContextId::mint(&clock, &entropy),
        owner: "replica-1".to_owned(),
        template: None,
        sees_tenant: false,
        execution: NewExecution {
            id: ExecutionId::mint(&clock, &entropy),
            tool: "run_code".to_owned(),
            language: Language::Python,
            purpose: Some("adds two numbers".to_owned()),
            code_sha256: "c0de".repeat(16),
            principal: Some("key:ci".to_owned()),
            trace_id: None,
            idempotency: None,
            lease: Duration::from_secs(90),
        },
    }
}

/// The same with an idempotency key and a hash of the arguments.
pub(crate) fn ask_once(key: &ContextKey, idempotency_key: &str, arguments: &str) -> Acquire {
    let mut ask = ask(key);
    ask.execution.idempotency =
        Some(Idempotency { key: idempotency_key.to_owned(), args_sha256: arguments.to_owned() });
    ask
}

/// A sandbox with every token set.
pub(crate) fn sandbox(name: &str) -> SandboxRef {
    SandboxRef {
        sandbox_id: SandboxId::parse(name).unwrap(),
        domain: Some("e2b.example".to_owned()),
        host_url: Some("http://127.0.0.1:40001".to_owned()),
        host_key: Some(Secret::new(format!("host-key-of-{name}"))),
        envd_token: Some(Secret::new(format!("envd-token-of-{name}"))),
        traffic_token: Some(Secret::new(format!("traffic-token-of-{name}"))),
        mcp_url: Some("https://mcp.example/mcp".to_owned()),
        mcp_token: Some(Secret::new(format!("mcp-token-of-{name}"))),
        provider_ends_at: DateTime::<Utc>::from_timestamp(2_000_000_000, 0),
    }
}

/// A sandbox that no other test or context has.
pub(crate) fn any_sandbox() -> SandboxRef {
    sandbox(&format!("sb-{}", Entropy::system().hex::<8>()))
}

/// The record of a run that went well.
pub(crate) fn finished(ask: &Acquire, context: ContextId) -> FinishedExecution {
    FinishedExecution {
        id: ask.execution.id,
        tenant: ask.key.tenant.clone(),
        context,
        status: ExecutionStatus::Completed,
        exit_code: Some(0),
        error: None,
        duration_ms: 12,
        queued_ms: 3,
        output_bytes: 5,
        findings: json!({"email": 1}),
        result: Some(json!({"stdout": "2\n"})),
        provider_ends_at: None,
        ended_at: None,
        offline: None,
        asked: None,
    }
}

/// An end of a context.
pub(crate) fn end(key: &ContextKey, context: ContextId, epoch: Option<i64>, reason: EndReason) -> End {
    End { tenant: key.tenant.clone(), context, epoch, reason, error: None }
}

/// What an ask must have been answered with.
pub(crate) fn claim(acquired: Acquired) -> Claim {
    match acquired {
        Acquired::Create(claim) => claim,
        other => panic!("expected a claim, got {other:?}"),
    }
}

/// What an ask must have been answered with.
pub(crate) fn ready(acquired: Acquired) -> ContextRow {
    match acquired {
        Acquired::Ready(context, _) => *context,
        other => panic!("expected a context, got {other:?}"),
    }
}

/// Makes a key's first context: acquire, ready, record.
pub(crate) async fn first_run(store: &DynStore, key: &ContextKey, limits: &ContextLimits) -> ContextRow {
    let ask = ask(key);
    let claim = claim(store.acquire(&ask, limits).await.unwrap());
    let context = store.ready(&claim, ask.execution.id, &any_sandbox(), limits).await.unwrap().unwrap();
    assert!(store.record(&finished(&ask, context.id), limits).await.unwrap());
    context
}
