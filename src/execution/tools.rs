//! Calls from programs to tools of other servers: each is authorised here, whatever language or door it came through.
//!
//! A run that may call tools is given a secret; its calls carry it. What is checked, in this order: that the run is in progress
//! (the relay), the tenant's servers and the settings' patterns (the catalog), the budget of the run, the arguments against
//! the tool's schema, the guard unless the server is trusted, and a person where the tool asks for one. The boundary is the
//! context, not the run: all programs of a sandbox are one user there, so the secret says which run pays, and refuses what
//! an earlier one left behind; it does not keep programs in the sandbox from calling what this context may call.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use tracing::field::Empty;

use crate::bridge::types::{Style, documentation, signature, type_of};
use crate::bridge::{self, Bridge, BridgeError, Catalog, Content, Need, Problem, Tool, is_of};
use crate::domain::{CodeRequest, ExecutionId, Language, TenantId, ToolsWanted, lock};
use crate::guard::{Guard, Mode, Numbering, Report};
use crate::store::ToolPermit;
use crate::telemetry::{chain, metrics};

use super::acquire::Held;
use super::attempts::Fault;
use super::relay::{Frame, Relay};
use super::{Call, Core};

/// Calls of one run.
const MAX_CALLS: usize = 200;
/// Of them at a time.
const MAX_PARALLEL: usize = 16;
/// Messages of one run that are still arriving or being answered.
const MAX_OPEN: usize = 1024;
/// Bytes of arguments and results of one run.
const MAX_BYTES: u64 = 128 << 20;
/// Bytes of the arguments of one call.
const MAX_ARGUMENTS: usize = 16 << 20;
/// What is left of the run's time when the last call has to be over, so that the program can tell what happened.
const MARGIN: Duration = Duration::from_millis(500);
/// How long a person may take.
const PATIENCE: Duration = Duration::from_secs(240);
/// Bytes of a catalog that is put into a sandbox whole; of a larger one, what is not named has its signature on request.
const MAX_CATALOG: usize = 2 << 20;
/// Signatures in a result.
const MAX_SIGNATURES: usize = 20;

/// One call of a run, for its record: never what was in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// `server.tool`.
    pub tool: String,
    /// Milliseconds, a person's included.
    pub ms: u64,
    /// Bytes of arguments and result.
    pub bytes: u64,
    /// `ok`, `error` (the tool said so), `arguments`, `refused`, `not_confirmed`, `timeout`, `cancelled`, `unavailable`.
    pub outcome: String,
}

/// Where a person can be asked. A door that can ask gives one along.
#[derive(Debug, Clone)]
pub struct Person(pub mpsc::Sender<Question>);

/// What a person is asked.
#[derive(Debug)]
pub struct Question {
    /// Which tool, in words, with the arguments as they go out, guarded and cut.
    pub text: String,
    /// Takes the answer. Dropping it is a no.
    pub answer: oneshot::Sender<Decision>,
}

/// What a person said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// No, or nothing.
    No,
    /// The client cannot ask a person.
    CannotAsk,
    /// Yes, this once.
    Once,
    /// Yes, for this tool in this run.
    Run,
    /// Yes, for this tool in this conversation.
    Conversation,
}

/// Relays of contexts. In memory: another replica starts another relay.
#[derive(Debug, Default)]
pub(super) struct ToolRooms {
    /// By sandbox: a context may get another one.
    relays: Mutex<HashMap<String, Arc<Relay>>>,
}

impl ToolRooms {
    /// The sandbox ends now, and its relay is not missed.
    pub(super) fn leave(&self, sandbox: &str) {
        if let Some(relay) = lock(&self.relays).remove(sandbox) {
            relay.close();
        }
    }

    /// The same for all of them.
    pub(super) fn leave_all(&self) {
        lock(&self.relays).drain().for_each(|(_, relay)| relay.close());
    }
}

/// The tools of a run that is in progress.
pub(super) struct ToolRun {
    relay: Arc<Relay>,
    task: AbortOnDropHandle<()>,
    calls: Arc<Mutex<Vec<ToolCall>>>,
    stop: CancellationToken,
    /// What a program finds in `PATHBOX_TOOLS`.
    pub(super) variable: String,
}

/// What a run with tools began with.
pub(super) struct Prepared {
    pub(super) run: Option<ToolRun>,
    /// Signatures that were asked for.
    pub(super) signatures: Vec<String>,
}

impl Core {
    /// Makes ready what the run needs to call tools: nothing for a run that names none.
    pub(super) async fn prepare_tools(
        self: &Arc<Self>,
        held: &Held,
        call: &Call,
        request: &CodeRequest,
        execution: ExecutionId,
        guard: &Guard,
        cancel: &CancellationToken,
    ) -> Result<Prepared, Fault> {
        let none = Prepared { run: None, signatures: Vec::new() };
        let Some(bridge) = self.parts.bridge.as_ref().filter(|bridge| bridge.serves(&call.key.tenant)) else {
            return Ok(none);
        };
        let known = self.known_relay(held);
        if request.inputs.tools.is_none() && known.is_none() && !mentions_tools(request) {
            return Ok(none);
        }
        let needs = Needs::of(request, bridge, &call.key.tenant);
        let catalog = tokio::select! {
            catalog = bridge.catalog_for(&call.key.tenant, Some(bridge::PATIENCE), |server, _| needs.need(server)) => catalog,
            // The run itself tells that it was cancelled.
            () = cancel.cancelled() => return Ok(none),
        };
        let (wanted, mut signatures) =
            signatures(bridge, &catalog, request.inputs.tools.as_ref(), request.language, guard).await;
        let missing = catalog.down_by_module().map(|(_, problem)| problem);
        let missing = missing.filter(|problem| needs.need(&problem.server) != Need::Nothing);
        signatures.extend(missing.map(|problem| guard.line(&not_available(problem)).into_inner()));
        let Some(relay) = self.relay(held, known).await? else {
            signatures.push(
                "tools cannot be called in this sandbox: it needs python3 (a template without it?)"
                    .to_owned(),
            );
            return Ok(Prepared { run: None, signatures });
        };
        self.put_catalog(&relay, &catalog, &wanted).await;
        let secret = self.parts.entropy.hex::<16>();
        let version = lock(&relay.catalog).clone();
        let variable = format!("{}|{secret}|{version}", relay.home);
        let frames = relay.attach(secret);
        let stop = CancellationToken::new();
        let deadline = Instant::now() + request.timeout.get() - MARGIN;
        let desk = Desk::new(self, bridge, catalog, call, guard.clone(), execution.to_string(), deadline);
        let calls = Arc::clone(&desk.calls);
        let task = AbortOnDropHandle::new(tokio::spawn(serve(
            Arc::new(desk),
            Arc::clone(&relay),
            frames,
            stop.clone(),
        )));
        Ok(Prepared { run: Some(ToolRun { relay, task, calls, stop, variable }), signatures })
    }

    /// The sandbox's relay: the one that is known, else a new one. `None`: it has not what a relay needs, and still runs code.
    async fn relay(&self, held: &Held, known: Option<Arc<Relay>>) -> Result<Option<Arc<Relay>>, Fault> {
        if known.is_some() {
            return Ok(known);
        }
        let started = Relay::start(&held.client, &held.access, &self.parts.entropy).await;
        let relay = match started.map_err(|error| Fault::of(held, error)) {
            Ok(relay) => Arc::new(relay),
            Err(Fault::Sandbox(error)) => {
                tracing::warn!(error = %chain(&error), "programs cannot call tools in this sandbox");
                return Ok(None);
            }
            Err(fault) => return Err(fault),
        };
        lock(&self.tools.relays).insert(held.access.id.to_string(), Arc::clone(&relay));
        Ok(Some(relay))
    }

    fn known_relay(&self, held: &Held) -> Option<Arc<Relay>> {
        let mut relays = lock(&self.tools.relays);
        relays.retain(|_, relay| !relay.is_closed());
        relays.get(held.access.id.as_str()).cloned()
    }

    async fn put_catalog(&self, relay: &Relay, catalog: &Catalog, wanted: &HashSet<String>) {
        let (text, version) = catalog_json(catalog, wanted);
        if *lock(&relay.catalog) == version {
            return;
        }
        relay.file("tools/catalog.json", &text).await;
        relay.file("tools/__init__.py", include_str!("relay/tools.py")).await;
        relay.file("tools/cli.py", include_str!("relay/tools_cli.py")).await;
        relay
            .file("bin/tools", "#!/bin/sh\nexec python3 -S -E \"$(dirname \"$0\")/../tools/cli.py\" \"$@\"\n")
            .await;
        relay.file("tools/package.json", r#"{"name":"tools","main":"index.js","types":"index.d.ts"}"#).await;
        let mut index = include_str!("relay/tools.js").to_owned();
        let mut types = INDEX_TYPES.to_owned();
        let mut room = MAX_CATALOG;
        for (_, module, count) in catalog.servers() {
            // Written out, so that `import { github } from "tools"` finds the name.
            index.push_str(&format!("exports.{module} = servers.{module};\n"));
            types.push_str(&format!("export * as {module} from \"./{module}\";\n"));
            let tools = || catalog.tools.iter().filter(|tool| tool.module == module);
            for (style, extension) in [(Style::Python, "pyi"), (Style::TypeScript, "d.ts")] {
                let text = crate::bridge::types::declarations(tools(), style);
                if text.len() < room {
                    room -= text.len();
                    relay.file(&format!("tools/{module}.{extension}"), &text).await;
                } else {
                    tracing::debug!(
                        tools = count,
                        "declarations of a tool server are too large for a sandbox"
                    );
                }
            }
        }
        relay.file("tools/index.d.ts", &types).await;
        relay.file("tools/index.js", &index).await;
        if relay.settle(&self.parts.entropy).await {
            *lock(&relay.catalog) = version;
        }
    }
}

impl Core {
    /// One call that no program makes: a task of a workflow. It is decided on as a program's call is.
    ///
    /// # Errors
    /// The kind of refusal or failure, and the words for it.
    pub(super) async fn call_tool(
        self: &Arc<Self>,
        call: &Call,
        name: &str,
        arguments: Map<String, Value>,
        key: String,
        confirmed: Option<String>,
        timeout: Duration,
    ) -> Result<Value, (&'static str, String)> {
        let Some(bridge) = self.parts.bridge.as_ref().filter(|bridge| bridge.serves(&call.key.tenant)) else {
            return Err(("refused", "no tool server is configured for this tenant".to_owned()));
        };
        let began = Instant::now();
        let catalog = bridge
            .catalog_for(&call.key.tenant, Some(timeout), |server, module| of_tool(name, server, module))
            .await;
        let mut desk = Desk::new(self, bridge, catalog, call, self.guard_for(call), key, began + timeout);
        desk.confirmed = confirmed;
        let message = json!({"tool": name, "arguments": arguments}).to_string();
        let span = tracing::debug_span!(
            "tools.call",
            otel.kind = "client",
            tool.name = Empty,
            tool.outcome = Empty,
            tool.bytes = Empty
        );
        let mut called = String::new();
        let decided = desk.decide(&message, &mut called).instrument(span.clone()).await;
        let outcome =
            decided.as_ref().map_or_else(|no| if no.kind == "tool" { "error" } else { no.kind }, |_| "ok");
        span.record("tool.name", &called).record("tool.outcome", outcome);
        metrics::TOOL_CALLS.add(&[outcome], 1);
        let (answer, _) = decided.map_err(|no| (no.kind, no.message))?;
        // As programs get it: structured content is a value, a text that is an object or a list is read.
        Ok(match (answer.get("value"), answer["text"].as_str()) {
            (Some(value), _) => value.clone(),
            (None, Some(text)) => match serde_json::from_str::<Value>(text) {
                Ok(read @ (Value::Object(_) | Value::Array(_))) => read,
                _ => Value::String(text.to_owned()),
            },
            (None, None) => Value::Null,
        })
    }
}

impl Core {
    /// Whether the server of a tool has its tools ready, so that nothing has to be waited for.
    pub(super) fn tool_is_at_hand(&self, tenant: &TenantId, name: &str) -> bool {
        self.parts.bridge.as_ref().is_none_or(|bridge| bridge.is_at_hand(tenant, name))
    }

    /// The definition of a task's tool that a person has to confirm, and what to call it. `None`: it asks no one, a person has
    /// allowed it for the conversation, or it cannot be found now. Waits for the tool's server, a caller no longer than `patience`.
    pub(super) async fn to_confirm(
        &self,
        call: &Call,
        name: &str,
        patience: Option<Duration>,
    ) -> Option<(String, String)> {
        let bridge = self.parts.bridge.as_ref().filter(|bridge| bridge.serves(&call.key.tenant))?;
        let need = |server: &str, module: &str| of_tool(name, server, module);
        let catalog = bridge.catalog_for(&call.key.tenant, patience, need).await;
        let tool = catalog.find(name).filter(|tool| tool.asks)?;
        let found = (tool.definition.clone(), tool.callable());
        (!self.was_permitted(&permit(call, tool)).await).then_some(found)
    }

    /// Asks a person about the tool of a task. Gives the definition that was confirmed; `None`: there is nothing to confirm.
    ///
    /// # Errors
    /// The words of a no, or that no person can be asked.
    pub(super) async fn ask_about_task(
        self: &Arc<Self>,
        call: &Call,
        name: &str,
        arguments: &Value,
        who: String,
    ) -> Result<Option<String>, String> {
        let bridge = self.parts.bridge.as_ref().filter(|bridge| bridge.serves(&call.key.tenant));
        let Some((bridge, (definition, _))) =
            bridge.zip(self.to_confirm(call, name, Some(bridge::PATIENCE)).await)
        else {
            return Ok(None);
        };
        let need = |server: &str, module: &str| of_tool(name, server, module);
        let catalog = bridge.catalog_for(&call.key.tenant, Some(bridge::PATIENCE), need).await;
        let Some(tool) = catalog.find(name).filter(|tool| tool.definition == definition) else {
            return Err(format!("{name} has changed meanwhile; approve the task again"));
        };
        let (guard, deadline) = (self.guard_for(call), Instant::now() + PATIENCE);
        let mut desk = Desk::new(self, bridge, Arc::clone(&catalog), call, guard, String::new(), deadline);
        desk.who = who;
        desk.confirm(tool, arguments).await.map_err(|no| no.message)?;
        Ok(Some(definition))
    }
}

/// What a call of one tool needs of a server.
fn of_tool(tool: &str, server: &str, module: &str) -> Need {
    if is_of(tool, server, module) { Need::Named } else { Need::Nothing }
}

/// What a person who allows a tool for the conversation allows.
fn permit(call: &Call, tool: &Tool) -> ToolPermit {
    ToolPermit {
        conversation: call.key.of_conversation(),
        principal: call.requester.principal.clone(),
        tool: tool.full_name(),
        definition: tool.definition.clone(),
    }
}

const INDEX_TYPES: &str = "export class ToolError extends Error { tool: string; kind: string }\n\
    export function search(query: string, limit?: number): Promise<Array<{ tool: string; signature: string; description: string }>>;\n\
    export function call(tool: string, args?: object): Promise<unknown>;\n";

impl ToolRun {
    /// Where the programs' libraries are.
    pub(super) fn library(&self) -> &str {
        &self.relay.library
    }

    /// Ends it: calls in progress are cancelled, later ones refused. Gives what was called.
    pub(super) async fn finish(self) -> Vec<ToolCall> {
        self.relay.detach();
        self.stop.cancel();
        let _ = self.task.await;
        std::mem::take(&mut *lock(&self.calls))
    }
}

/// Whether code looks as if it called tools. Wrong in doubt costs little: the relay is made ready.
fn mentions_tools(request: &CodeRequest) -> bool {
    let code = request.code.as_str();
    match request.language {
        Language::Python => ["import tools", "from tools", "\"tools\"", "'tools'", "tools call", "tools."]
            .iter()
            .any(|word| code.contains(word)),
        Language::Javascript | Language::Typescript => {
            ["\"tools\"", "'tools'", "`tools`", "tools/", "tools call"].iter().any(|word| code.contains(word))
        }
        Language::Bash => {
            code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').any(|word| word == "tools")
        }
    }
}

/// The tools that a call names or describes, and their signatures for the result.
async fn signatures(
    bridge: &Bridge,
    catalog: &Arc<Catalog>,
    wanted: Option<&ToolsWanted>,
    language: Language,
    guard: &Guard,
) -> (HashSet<String>, Vec<String>) {
    let style = if language == Language::Python { Style::Python } else { Style::TypeScript };
    let Some(wanted) = wanted else { return (HashSet::new(), Vec::new()) };
    let mut lines = Vec::new();
    let mut found: Vec<&Tool> = Vec::new();
    for name in &wanted.names {
        match catalog.find(name) {
            Some(tool) => found.push(tool),
            None if catalog.tools.iter().any(|tool| tool.server == *name || tool.module == *name) => {
                found
                    .extend(catalog.tools.iter().filter(|tool| tool.server == *name || tool.module == *name));
            }
            None if catalog.down(name).is_some() => {}
            None => lines.push(unknown(catalog, name)),
        }
    }
    if let Some((intent, limit)) = &wanted.intent {
        found.extend(bridge.search(catalog, intent, *limit).await);
    }
    let mut names = HashSet::new();
    found.retain(|tool| names.insert(tool.full_name()));
    lines.extend(found.iter().take(MAX_SIGNATURES).map(|tool| line(tool, style)));
    if found.len() > MAX_SIGNATURES {
        lines
            .push(format!("… and {} more; `search_tools` finds what you need", found.len() - MAX_SIGNATURES));
    }
    (names, lines.iter().map(|line| guard.line(line).into_inner()).collect())
}

/// The tool servers that a run needs. It waits for those that it names, and where it names none for any that has not failed.
struct Needs {
    named: HashSet<String>,
    others: Need,
}

impl Needs {
    fn of(request: &CodeRequest, bridge: &Bridge, tenant: &TenantId) -> Self {
        let (code, wanted) = (request.code.as_str(), request.inputs.tools.as_ref());
        let is_used = mentions_tools(request);
        let is_named = |server: &str, module: &str| {
            let is_wanted = |name: &String| is_of(name, server, module);
            wanted.is_some_and(|wanted| wanted.names.iter().any(is_wanted))
                || code.contains(module)
                || code.contains(server)
        };
        let servers = bridge.modules(tenant).into_iter();
        let named: HashSet<String> =
            servers.filter(|(server, module)| is_named(server, module)).map(|(server, _)| server).collect();
        let searches =
            wanted.is_some_and(|wanted| wanted.intent.is_some()) || is_used && code.contains("search");
        let others = if searches || is_used && named.is_empty() { Need::Any } else { Need::Nothing };
        Self { named, others }
    }

    fn need(&self, server: &str) -> Need {
        if self.named.contains(server) { Need::Named } else { self.others }
    }
}

/// A tool in one line: what a program writes, and the first sentence of what it does.
pub(super) fn line(tool: &Tool, style: Style) -> String {
    let about = tool.description.lines().next().unwrap_or_default();
    let about: String = about.chars().take(160).collect();
    let asks = if tool.asks { " (asks a person first)" } else { "" };
    format!("{}  # {about}{asks}", signature(tool, style))
}

fn not_available(down: &Problem) -> String {
    format!("the tool server {} is not available: {}", down.server, down.problem)
}

fn unknown(catalog: &Catalog, name: &str) -> String {
    let near: Vec<String> = catalog.search(name, 3).into_iter().map(Tool::callable).collect();
    let servers: Vec<&str> = catalog.servers().into_iter().map(|(_, module, _)| module).collect();
    match (near.is_empty(), servers.is_empty()) {
        (false, _) => format!("there is no tool {name:?}; similar names: {}", near.join(", ")),
        (true, false) => format!("there is no tool {name:?}; there are the servers {}", servers.join(", ")),
        (true, true) => format!("there is no tool {name:?}: no tool server can be reached"),
    }
}

/// What the wrappers are made of. Of a catalog that is too large, tools that are not named have no signature there.
fn catalog_json(catalog: &Catalog, wanted: &HashSet<String>) -> (String, String) {
    let made = |whole: &dyn Fn(&Tool) -> bool| {
        let servers: Vec<Value> = catalog
            .servers()
            .into_iter()
            .map(|(server, module, _)| {
                let tools = catalog.tools.iter().filter(|tool| tool.server == server);
                let tools: Vec<Value> = tools.map(|tool| wrapper(tool, whole(tool))).collect();
                json!({"server": server, "module": module, "tools": tools})
            })
            .collect();
        json!({"version": catalog.version, "servers": servers}).to_string()
    };
    let all = made(&|_| true);
    if all.len() <= MAX_CATALOG {
        return (all, catalog.version.clone());
    }
    let mut names: Vec<&String> = wanted.iter().collect();
    names.sort();
    let version = format!(
        "{}-{:x}",
        catalog.version,
        names
            .iter()
            .flat_map(|name| name.bytes())
            .fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
    );
    (made(&|tool| wanted.contains(&tool.full_name())), version)
}

fn wrapper(tool: &Tool, whole: bool) -> Value {
    if !whole {
        return json!({"name": tool.name, "identifier": tool.identifier, "module": tool.module, "parameters": [],
            "signature": format!("{}(**arguments)", tool.callable()), "typescript": format!("{}(args)", tool.callable()),
            "returns": "Any", "doc": "`tools.search` says what it takes."});
    }
    let parameters: Vec<Value> = tool
        .parameters
        .iter()
        .map(|parameter| {
            let mut made =
                json!({"name": parameter.name, "type": parameter.python, "required": parameter.required});
            if let (Some(default), Some(made)) = (&parameter.default, made.as_object_mut()) {
                made.insert("default".to_owned(), default.clone());
            }
            made
        })
        .collect();
    let returns = tool
        .output
        .as_ref()
        .map_or_else(|| "Any".to_owned(), |schema| type_of(schema, schema, Style::Python));
    json!({"name": tool.name, "identifier": tool.identifier, "module": tool.module, "parameters": parameters,
        "signature": signature(tool, Style::Python), "typescript": signature(tool, Style::TypeScript), "returns": returns,
        "doc": documentation(tool)})
}

/// Where the calls of one run are decided.
struct Desk {
    core: Arc<Core>,
    bridge: Bridge,
    catalog: Arc<Catalog>,
    call: Call,
    /// Of the run; with a call's number, the key of that call.
    key: String,
    guard: Guard,
    deadline: Instant,
    calls: Arc<Mutex<Vec<ToolCall>>>,
    count: AtomicUsize,
    bytes: AtomicU64,
    places: Semaphore,
    /// Tools that a person allowed for this run.
    allowed: Mutex<HashSet<String>>,
    /// The definition of the one tool that a person has confirmed before.
    confirmed: Option<String>,
    /// Who wants to call, in the words of a question.
    who: String,
    /// The run's span, whose children the calls are.
    span: tracing::Span,
    /// One question at a time.
    asking: tokio::sync::Mutex<()>,
}

impl Desk {
    fn new(
        core: &Arc<Core>,
        bridge: &Bridge,
        catalog: Arc<Catalog>,
        call: &Call,
        guard: Guard,
        key: String,
        deadline: Instant,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            bridge: bridge.clone(),
            catalog,
            call: call.clone(),
            key,
            guard,
            deadline,
            calls: Arc::default(),
            count: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            places: Semaphore::new(MAX_PARALLEL),
            allowed: Mutex::default(),
            confirmed: None,
            who: "A program".into(),
            span: tracing::Span::current(),
            asking: tokio::sync::Mutex::new(()),
        }
    }
}

/// Why a call was not made, or has no value.
struct No {
    kind: &'static str,
    message: String,
}

impl No {
    fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// As the program is given it.
    fn answer(&self) -> Value {
        json!({"ok": false, "kind": self.kind, "message": self.message})
    }
}

/// What a program sends.
#[derive(Debug, Deserialize)]
struct Message {
    tool: Option<String>,
    #[serde(default)]
    arguments: Value,
    search: Option<String>,
    limit: Option<usize>,
}

/// Takes the frames of a run, puts messages together, and answers each on its own.
async fn serve(
    desk: Arc<Desk>,
    relay: Arc<Relay>,
    mut frames: mpsc::Receiver<Frame>,
    stop: CancellationToken,
) {
    let mut parts: HashMap<(String, u64), String> = HashMap::new();
    let mut running: HashMap<(String, u64), (CancellationToken, JoinHandle<()>)> = HashMap::new();
    loop {
        let frame = tokio::select! {
            () = stop.cancelled() => break,
            frame = frames.recv() => frame,
        };
        let Some(frame) = frame else { break };
        running.retain(|_, (_, task)| !task.is_finished());
        match frame {
            Frame::Cancel { program, call } => {
                parts.remove(&(program.clone(), call));
                if let Some((cancel, _)) = running.get(&(program, call)) {
                    cancel.cancel();
                }
            }
            Frame::Gone { program } => {
                parts.retain(|(of, _), _| *of != program);
                running
                    .iter()
                    .filter(|((of, _), _)| *of == program)
                    .for_each(|(_, (cancel, _))| cancel.cancel());
            }
            Frame::Piece { program, call, last, text } => {
                let key = (program, call);
                if parts.len() + running.len() >= MAX_OPEN && !parts.contains_key(&key) {
                    if last {
                        let no = No::new("refused", "too many calls at once; wait for some first").answer();
                        tokio::select! {
                            () = relay.answer(&key.0, key.1, &no) => {}
                            () = stop.cancelled() => break,
                        }
                    }
                    continue;
                }
                add_piece(&mut parts, &key, &text);
                if !last {
                    continue;
                }
                let message = parts.remove(&key).unwrap_or_default();
                let cancel = CancellationToken::new();
                let work =
                    answer(Arc::clone(&desk), Arc::clone(&relay), key.clone(), message, cancel.clone());
                running.insert(key, (cancel, tokio::spawn(work)));
            }
        }
    }
    for (cancel, _) in running.values() {
        cancel.cancel();
    }
    // Each notes how it ended.
    for (_, (_, mut task)) in running {
        if tokio::time::timeout(Duration::from_millis(500), &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// Adds a piece to its message. What is too large is refused at its end, and not kept until then.
fn add_piece(parts: &mut HashMap<(String, u64), String>, key: &(String, u64), text: &str) {
    let waiting: usize = parts.values().map(String::len).sum();
    let message = parts.entry(key.clone()).or_default();
    if message.len() <= MAX_ARGUMENTS && waiting <= 4 * MAX_ARGUMENTS {
        message.push_str(text);
    }
}

async fn answer(
    desk: Arc<Desk>,
    relay: Arc<Relay>,
    (program, call): (String, u64),
    message: String,
    cancel: CancellationToken,
) {
    let began = Instant::now();
    let mut tool = String::new();
    let mut bytes = message.len() as u64;
    let span = tracing::debug_span!(
        parent: &desk.span, "tools.call", otel.kind = "client", tool.name = Empty, tool.outcome = Empty, tool.bytes = Empty);
    let outcome = tokio::select! {
        outcome = desk.decide(&message, &mut tool).instrument(span.clone()) => outcome,
        () = cancel.cancelled() => Err(No::new("cancelled", "the call was cancelled")),
        () = relay.closed() => Err(No::new("unavailable", "the connection to the sandbox broke")),
    };
    let (answer, said) = match outcome {
        Ok((answer, returned)) => {
            bytes += returned;
            (answer, "ok")
        }
        Err(no) => (no.answer(), no.kind),
    };
    if !tool.is_empty() {
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let outcome = if said == "tool" { "error" } else { said };
        span.record("tool.name", &tool).record("tool.outcome", outcome).record("tool.bytes", bytes);
        metrics::TOOL_CALLS.add(&[outcome], 1);
        tracing::debug!(tool.name = %tool, outcome, ms, bytes, execution.id = %desk.key, "a program called a tool");
        lock(&desk.calls).push(ToolCall { tool, ms, bytes, outcome: outcome.to_owned() });
    }
    tokio::select! {
        () = relay.answer(&program, call, &answer) => {}
        () = cancel.cancelled() => {}
    }
}

/// What a tool returned, as the program is given it.
fn answered(is_error: bool, content: Content, name: &str) -> Result<Value, No> {
    if is_error {
        let text = match content {
            Content::Text(text) => text,
            Content::Value(value) => value.to_string(),
            Content::Blocks(blocks) => Value::Array(blocks).to_string(),
        };
        let text: String = text.chars().take(8_000).collect();
        let text = if text.is_empty() { format!("{name} failed and did not say why") } else { text };
        return Err(No::new("tool", text));
    }
    Ok(match content {
        Content::Value(value) => json!({"ok": true, "value": value}),
        Content::Text(text) => json!({"ok": true, "text": text}),
        Content::Blocks(blocks) => json!({"ok": true, "value": blocks}),
    })
}

impl Desk {
    /// Decides on a call and makes it. Gives the answer, and how many bytes the tool returned.
    async fn decide(&self, message: &str, name: &mut String) -> Result<(Value, u64), No> {
        if message.len() > MAX_ARGUMENTS {
            return Err(No::new("arguments", format!("the arguments are larger than {MAX_ARGUMENTS} bytes")));
        }
        let message: Message = serde_json::from_str(message)
            .map_err(|_| No::new("arguments", "the call is malformed; the `tools` library makes calls"))?;
        if let Some(query) = message.search {
            return Ok((self.search(&query, message.limit.unwrap_or(5).clamp(1, 50)).await, 0));
        }
        let asked = message.tool.unwrap_or_default();
        let Some(tool) = self.catalog.find(&asked) else {
            *name = asked.chars().filter(|c| !c.is_control()).take(100).collect();
            if let Some(down) = self.catalog.down(&asked) {
                return Err(No::new("unavailable", self.guard.line(&not_available(down)).into_inner()));
            }
            let mut text = unknown(&self.catalog, &asked);
            if ["search_tools", "run_code", "run_analysis"].iter().any(|ours| asked.ends_with(ours)) {
                text.push_str("; inside a program it is `tools.search(...)`");
            }
            return Err(No::new("refused", text));
        };
        *name = tool.full_name();
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if number > MAX_CALLS {
            return Err(No::new(
                "refused",
                format!("a run may call tools {MAX_CALLS} times; do the rest in another run"),
            ));
        }
        let arguments = self.checked(tool, message.arguments)?;
        let server = self.bridge.server(&self.call.key.tenant, &tool.server);
        if !server.is_some_and(|server| server.trusted) {
            self.look_at(tool, &arguments)?;
        }
        if tool.asks && self.confirmed.as_ref() != Some(&tool.definition) {
            self.confirm(tool, &arguments).await?;
        }
        let _place = self.places.acquire().await.map_err(|_| No::new("cancelled", "the run has ended"))?;
        let Value::Object(arguments) = arguments else {
            return Err(No::new("arguments", "arguments are an object"));
        };
        let meta = self.meta(number);
        let answer = self.bridge.call(&self.call.key.tenant, tool, arguments, meta, self.deadline).await;
        let answer = answer.map_err(|error| self.failed(error))?;
        self.charge(answer.bytes)?;
        Ok((answered(answer.is_error, answer.content, name)?, answer.bytes))
    }

    /// The arguments as an object that fits the tool, counted.
    fn checked(&self, tool: &Tool, arguments: Value) -> Result<Value, No> {
        let arguments = match arguments {
            Value::Object(arguments) => Value::Object(arguments),
            Value::Null => Value::Object(Map::new()),
            _ => {
                let signature = signature(tool, Style::Python);
                let problem = format!("arguments are an object of names and values: {signature}");
                return Err(No::new("arguments", problem));
            }
        };
        self.charge(arguments.to_string().len() as u64)?;
        match tool.check(&arguments) {
            Ok(()) => Ok(arguments),
            Err(problem) => Err(No::new(
                "arguments",
                format!("{}: {problem}\n{}", tool.callable(), signature(tool, Style::Python)),
            )),
        }
    }

    async fn search(&self, query: &str, limit: usize) -> Value {
        let found: Vec<Value> = self
            .bridge
            .search(&self.catalog, query, limit)
            .await
            .into_iter()
            .map(|tool| json!({"tool": tool.callable(), "signature": signature(tool, Style::Python), "description": tool.description}))
            .collect();
        json!({"ok": true, "value": found})
    }

    /// Takes bytes from the run's budget.
    fn charge(&self, bytes: u64) -> Result<(), No> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > MAX_BYTES {
            return Err(No::new(
                "refused",
                format!("a run may move {MAX_BYTES} bytes to and from tools; this call would be more"),
            ));
        }
        Ok(())
    }

    /// What goes to a server that is not trusted is looked at first. Found means refused: an argument that was changed would
    /// do something else than the program says.
    fn look_at(&self, tool: &Tool, arguments: &Value) -> Result<(), No> {
        let mut numbering = Numbering::new([0; 32], Vec::new());
        let (_, report) = self.guard.json(arguments.clone(), &mut numbering);
        let kinds: Vec<String> = found(&report);
        if kinds.is_empty() || report.mode != Mode::Enforce {
            return Ok(());
        }
        Err(No::new(
            "refused",
            format!(
                "the arguments of {} contain data that must not go to the server {} ({}); leave it out, or have the operator set `trusted` for that server",
                tool.callable(),
                tool.server,
                kinds.join(", ")
            ),
        ))
    }

    /// Asks a person, unless one has said yes to this tool before.
    async fn confirm(&self, tool: &Tool, arguments: &Value) -> Result<(), No> {
        let name = tool.full_name();
        let _turn = self.asking.lock().await;
        let permit = permit(&self.call, tool);
        if lock(&self.allowed).contains(&name) || self.core.was_permitted(&permit).await {
            return Ok(());
        }
        let how = self.how_to_allow(tool);
        let cannot = || {
            No::new(
                "not_confirmed",
                format!(
                    "{} needs a person's confirmation, and this client cannot ask; {how}",
                    tool.callable()
                ),
            )
        };
        let Some(Person(questions)) = &self.call.person else { return Err(cannot()) };
        let text = self.question(tool, arguments);
        let (sender, answer) = oneshot::channel();
        if questions.send(Question { text, answer: sender }).await.is_err() {
            return Err(cannot());
        }
        let patience = (Instant::now() + PATIENCE).min(self.deadline);
        let decision = match tokio::time::timeout_at(patience, answer).await {
            Ok(decision) => decision.unwrap_or(Decision::No),
            Err(_) => {
                return Err(No::new(
                    "not_confirmed",
                    format!("the question whether {} may be called was not answered", tool.callable()),
                ));
            }
        };
        match decision {
            Decision::No => {
                return Err(No::new(
                    "not_confirmed",
                    format!("a person did not allow {}; do not ask again", tool.callable()),
                ));
            }
            Decision::CannotAsk => return Err(cannot()),
            Decision::Once => {}
            Decision::Run => {
                lock(&self.allowed).insert(name);
            }
            Decision::Conversation => {
                lock(&self.allowed).insert(name);
                self.core.permit(&permit).await;
            }
        }
        Ok(())
    }

    /// What is to be done where a client cannot ask.
    fn how_to_allow(&self, tool: &Tool) -> String {
        let server = self.bridge.server(&self.call.key.tenant, &tool.server);
        match server.is_some_and(|server| server.confirms(&tool.name)) {
            true => format!(
                "use a client that can ask (elicitation), or have the operator remove it from `confirm` of [[tools.server]] {:?}",
                tool.server
            ),
            false => format!(
                "{} declares itself destructive: use a client that can ask (elicitation), or `pathbox tools call --yes` on \
                 the server's machine",
                tool.server
            ),
        }
    }

    fn question(&self, tool: &Tool, arguments: &Value) -> String {
        let text = arguments.to_string();
        let shown: String = self.guard.line(&text).get().chars().take(1_000).collect();
        let cut = text.chars().count().saturating_sub(1_000);
        let more = if cut > 0 { format!(" … and {cut} more characters") } else { String::new() };
        format!(
            "{} wants to call the tool {} of the server {} with the arguments {shown}{more}",
            self.who, tool.name, tool.server
        )
    }

    fn meta(&self, number: usize) -> Map<String, Value> {
        let mut meta = Map::new();
        meta.insert("dev.pathbox/idempotencyKey".to_owned(), json!(format!("{}:{number}", self.key)));
        if let Some(trace) = &self.call.trace {
            meta.insert("traceparent".to_owned(), json!(trace.at_hand(self.core.parts.entropy.bytes())));
            meta.extend(trace.state().map(|state| ("tracestate".to_owned(), json!(state))));
        }
        meta
    }

    fn failed(&self, error: BridgeError) -> No {
        let kind = match &error {
            BridgeError::TimedOut { .. } => "timeout",
            BridgeError::Refused { .. } => "tool",
            BridgeError::Asks { .. } => "refused",
            _ => "unavailable",
        };
        let text = match &error {
            BridgeError::Start { server, why, retry_in } => format!(
                "the tool server {server} could not be started: {why}; it is tried again in {} s",
                retry_in.as_secs().max(1)
            ),
            other => other.to_string(),
        };
        No::new(kind, text)
    }
}

/// The kinds of what was found.
fn found(report: &Report) -> Vec<String> {
    report
        .by_kind()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, _)| kind.as_str().to_owned())
        .collect()
}
