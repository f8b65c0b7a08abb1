//! Asking a person whether a program, or a task of a workflow, may call a tool: by elicitation where the protocol has
//! requests of servers, and by a result that asks for input where it has not (2026-07-28). In the second case the run goes on
//! while no one is connected: the program waits in its sandbox until the client calls again with the answer, or until its
//! patience is over.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequests,
    InputRequiredResult, InputResponses, JsonObject, ProtocolVersion,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::{Entropy, lock};
use crate::execution::{Begun, Decision, Flow, Person, Question, WorkflowError};

use super::{McpServer, ToolError};

type Context = RequestContext<RoleServer>;

/// How long a run waits for its client to come back.
const KEPT: Duration = Duration::from_secs(900);
/// Runs that wait for their clients, at most.
const MOST: usize = 256;
/// The one input that is asked for.
const KEY: &str = "confirm";

/// Calls whose client was sent away with a question.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<HashMap<String, Asked>>);

/// What goes on while its client is away.
#[derive(Debug)]
pub(super) enum Pending {
    /// A run, whose program waits.
    Run { begun: Begun, cancel: CancellationToken, questions: mpsc::Receiver<Question> },
    /// The approval of a workflow's task.
    Approval(JoinHandle<Result<Flow, WorkflowError>>),
}

impl Pending {
    /// Ends it: its client does not come back for it. An approval ends with its question.
    fn end(self) {
        if let Self::Run { cancel, .. } = self {
            cancel.cancel();
        }
    }
}

/// A call that goes on, and what it waits for.
#[derive(Debug)]
struct Asked {
    pending: Pending,
    tool: &'static str,
    arguments: JsonObject,
    answer: Option<oneshot::Sender<Decision>>,
    /// Tenant and principal: no one else answers.
    whose: String,
    since: Instant,
}

/// Who can be asked in this request, and the questions if this side has to put them.
pub(super) fn person(context: &Context) -> (Option<Person>, Option<mpsc::Receiver<Question>>) {
    let can = context.client_capabilities().is_some_and(|capabilities| capabilities.elicitation.is_some());
    if !can {
        return (None, None);
    }
    let (sender, mut questions) = mpsc::channel::<Question>(1);
    let is_stateless =
        context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
    if is_stateless {
        return (Some(Person(sender)), Some(questions));
    }
    let peer = context.peer.clone();
    tokio::spawn(async move {
        while let Some(question) = questions.recv().await {
            let decision = match serde_json::from_value::<ElicitRequestParams>(form(&question.text)) {
                Ok(ask) => match peer.create_elicitation(ask).await {
                    Ok(said) => decision(&said),
                    Err(error) => {
                        tracing::warn!(error = %error, "a person could not be asked");
                        Decision::CannotAsk
                    }
                },
                Err(_) => Decision::CannotAsk,
            };
            let _ = question.answer.send(decision);
        }
    });
    (Some(Person(sender)), None)
}

fn form(message: &str) -> Value {
    json!({"mode": "form", "message": message, "requestedSchema": {"type": "object", "required": ["allow"], "properties": {
        "allow": {"type": "boolean", "title": "Allow this call?"},
        "remember": {"type": "string", "title": "For how long?", "enum": ["this call", "this run", "this conversation"]}
    }}})
}

/// Only an explicit yes is one.
fn decision(said: &ElicitResult) -> Decision {
    let content = said.content.as_ref();
    let field = |name: &str| content.and_then(|content| content.get(name));
    if said.action != ElicitationAction::Accept || field("allow") != Some(&Value::Bool(true)) {
        return Decision::No;
    }
    match field("remember").and_then(Value::as_str) {
        Some("this run") => Decision::Run,
        Some("this conversation") => Decision::Conversation,
        _ => Decision::Once,
    }
}

impl McpServer {
    /// Sends the client away with a question. What it is about goes on.
    pub(super) fn ask_for_input(
        &self,
        question: Question,
        pending: Pending,
        (tool, arguments): (&'static str, JsonObject),
        context: &Context,
    ) -> Result<CallToolResponse, ToolError> {
        let ask = json!({KEY: {"method": "elicitation/create", "params": form(&question.text)}});
        let ask: InputRequests =
            serde_json::from_value(ask).map_err(|error| ToolError::internal(error.to_string()))?;
        let state = Entropy::system().hex::<16>();
        let whose = self.whose(context)?;
        let mut waiting = lock(&self.0.waiting.0);
        waiting.retain(|_, asked| asked.since.elapsed() < KEPT);
        if waiting.len() >= MOST {
            drop(waiting);
            pending.end();
            return Err(ToolError::full(format!(
                "{MOST} calls wait for a person here; this one was cancelled"
            )));
        }
        let (answer, since) = (Some(question.answer), Instant::now());
        waiting.insert(state.clone(), Asked { pending, tool, arguments, answer, whose, since });
        drop(waiting);
        Ok(CallToolResponse::InputRequired(InputRequiredResult::new(Some(ask), Some(state))))
    }

    /// Takes a client's answer, and gives back what waits for it. Another call than the one that asked ends that.
    pub(super) fn take_input(
        &self,
        state: &str,
        responses: &InputResponses,
        (tool, arguments): (&'static str, &JsonObject),
        context: &Context,
    ) -> Result<Pending, ToolError> {
        let whose = self.whose(context)?;
        let mut waiting = lock(&self.0.waiting.0);
        let is_mine = waiting.get(state).is_some_and(|asked| asked.whose == whose);
        let Some(mut asked) = is_mine.then(|| waiting.remove(state)).flatten() else {
            return Err(ToolError::not_found(
                "No call with this requestState is waiting here",
                "It was answered before, is too old, or is waiting at another replica. Call the tool again without it.",
            ));
        };
        if (asked.tool, &asked.arguments) != (tool, arguments) {
            asked.pending.end();
            return Err(ToolError::argument(format!(
                "the requestState is that of another call ({}, or with other arguments); that call was cancelled",
                asked.tool
            )));
        }
        let said =
            responses.get(KEY).and_then(|said| serde_json::from_value::<ElicitResult>(said.clone()).ok());
        if let Some(answer) = asked.answer.take() {
            let _ = answer.send(said.as_ref().map_or(Decision::No, decision));
        }
        Ok(asked.pending)
    }

    fn whose(&self, context: &Context) -> Result<String, ToolError> {
        let caller = self.caller(context)?;
        Ok(format!("{}\0{}", caller.tenant, caller.principal.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_yes_is_a_yes() {
        let said = |value: Value| decision(&serde_json::from_value(value).unwrap());
        let yes =
            |remember: &str| json!({"action": "accept", "content": {"allow": true, "remember": remember}});
        assert_eq!(said(json!({"action": "accept", "content": {"allow": true}})), Decision::Once);
        assert_eq!(said(yes("this run")), Decision::Run);
        assert_eq!(said(yes("this conversation")), Decision::Conversation);
        assert_eq!(said(yes("for ever")), Decision::Once);
        for no in [
            json!({"action": "accept"}),
            json!({"action": "accept", "content": {}}),
            json!({"action": "accept", "content": {"allow": "true"}}),
            json!({"action": "accept", "content": {"allow": false}}),
            json!({"action": "decline", "content": {"allow": true}}),
            json!({"action": "cancel"}),
        ] {
            assert_eq!(said(no.clone()), Decision::No, "{no}");
        }
    }
}
