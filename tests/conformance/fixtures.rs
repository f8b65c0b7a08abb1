//! What the official conformance suite wants to find at a server: tools, prompts and resources of fixed names.
//!
//! The names and texts are the suite's (`@modelcontextprotocol/conformance`); nothing here is part of the product.
#![expect(deprecated, reason = "the suite tests what older clients still use: logging, sampling, roots")]

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, ErrorData,
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, InputRequests, InputRequiredResult,
    InputResponses, JsonObject, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
    Prompt, ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Tool,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::TaskManager;
use serde_json::{Value, json};
use sha2::Sha256;

use pathbox::domain::hex;

use crate::tasks;

/// One red pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
/// No sound.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=";

pub(crate) type Context = RequestContext<RoleServer>;

/// A JSON value as a type of the protocol.
pub(crate) fn typed<T: for<'de> serde::Deserialize<'de>>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

pub(crate) fn object(value: Value) -> JsonObject {
    value.as_object().cloned().unwrap_or_default()
}

pub(crate) fn tools() -> Vec<Tool> {
    const PLAIN: [&str; 22] = [
        "test_simple_text",
        "test_image_content",
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_tool_with_logging",
        "test_error_handling",
        "test_tool_with_progress",
        "test_elicitation_sep1034_defaults",
        "test_elicitation_sep1330_enums",
        "test_missing_capability",
        "test_streaming_elicitation",
        "test_logging_tool",
        "test_input_required_result_elicitation",
        "test_input_required_result_sampling",
        "test_input_required_result_list_roots",
        "test_input_required_result_request_state",
        "test_input_required_result_multiple_inputs",
        "test_input_required_result_multi_round",
        "test_input_required_result_tampered_state",
        "test_input_required_result_capabilities",
        "test_reconnection",
    ];
    let mut tools: Vec<Tool> = PLAIN
        .iter()
        .map(|name| {
            Tool::new(*name, "A fixture of the conformance suite.", object(json!({"type": "object"})))
        })
        .collect();
    for (name, argument) in [("test_sampling", "prompt"), ("test_elicitation", "message")] {
        let schema =
            json!({"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]});
        tools.push(Tool::new(name, "A fixture of the conformance suite.", object(schema)));
    }
    let headed = json!({"type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}, "required": ["region"]});
    tools.push(Tool::new("test_x_mcp_header", "A fixture of the conformance suite.", object(headed)));
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"}
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false
    });
    tools.push(Tool::new(
        "json_schema_2020_12_tool",
        "Tool with JSON Schema 2020-12 features",
        object(schema),
    ));
    tools.extend(tasks::tools());
    tools
}

/// Calls a fixture; `None` when the name is none.
pub(crate) async fn call(
    fixtures: &TaskManager,
    request: &CallToolRequestParams,
    context: &Context,
) -> Option<Result<CallToolResponse, ErrorData>> {
    if let Some(answer) = tasks::call(fixtures, request, context).await {
        return Some(answer);
    }
    if !tools().iter().any(|tool| tool.name == request.name) {
        return None;
    }
    Some(answer(request, context).await)
}

pub(crate) fn text(text: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

async fn answer(request: &CallToolRequestParams, context: &Context) -> Result<CallToolResponse, ErrorData> {
    let argument = |name: &str| {
        let found = request.arguments.as_ref().and_then(|all| all.get(name)).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let embedded = |uri: &str, text: &str, mime: &str| {
        ContentBlock::resource(ResourceContents::text(text, uri).with_mime_type(mime))
    };
    let complete = |blocks: Vec<ContentBlock>| Ok(CallToolResult::success(blocks).into());
    match &*request.name {
        "test_simple_text" => Ok(text("This is a simple text response for testing.")),
        "test_image_content" => complete(vec![ContentBlock::image(PNG, "image/png")]),
        "test_audio_content" => {
            complete(vec![typed(json!({"type": "audio", "data": WAV, "mimeType": "audio/wav"}))?])
        }
        "test_embedded_resource" => {
            let text = "This is an embedded resource content.";
            complete(vec![embedded("test://embedded-resource", text, "text/plain")])
        }
        "test_multiple_content_types" => complete(vec![
            ContentBlock::text("Multiple content types test:"),
            ContentBlock::image(PNG, "image/png"),
            embedded(
                "test://mixed-content-resource",
                "{\"test\":\"data\",\"value\":123}",
                "application/json",
            ),
        ]),
        "test_error_handling" => {
            let text = "This tool intentionally returns an error for testing";
            Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
        }
        "test_tool_with_logging" => {
            for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                log(context, line).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(text("logged"))
        }
        "test_logging_tool" => {
            if context.meta.log_level().is_some() {
                log(context, "asked for").await;
            }
            Ok(text("logged if asked for"))
        }
        "test_tool_with_progress" => {
            if let Some(token) = context.meta.get_progress_token() {
                for progress in [0.0, 50.0, 100.0] {
                    let param = ProgressNotificationParam::new(token.clone(), progress).with_total(100.0);
                    drop(context.peer.notify_progress(param).await);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            Ok(text("done"))
        }
        "test_sampling" => {
            let ask = json!({"messages": [{"role": "user", "content": {"type": "text", "text": argument("prompt")}}],
                "maxTokens": 100});
            Ok(match context.peer.create_message(typed(ask)?).await {
                Ok(said) => {
                    text(format!("LLM response: {}", serde_json::to_string(&said).unwrap_or_default()))
                }
                Err(error) => failed(error),
            })
        }
        "test_elicitation" => {
            let properties = json!({"username": {"type": "string", "description": "User's response"},
                "email": {"type": "string", "description": "User's email address"}});
            elicit(context, &argument("message"), properties, json!(["username", "email"])).await
        }
        "test_elicitation_sep1034_defaults" => {
            let properties = json!({
                "name": {"type": "string", "default": "John Doe"},
                "age": {"type": "integer", "default": 30},
                "score": {"type": "number", "default": 95.5},
                "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                "verified": {"type": "boolean", "default": true}
            });
            elicit(context, "Please review the defaults", properties, json!([])).await
        }
        "test_elicitation_sep1330_enums" => {
            let titled = json!([{"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"},
                {"const": "value3", "title": "Third Option"}]);
            let plain = json!(["option1", "option2", "option3"]);
            let properties = json!({
                "untitledSingle": {"type": "string", "enum": plain},
                "titledSingle": {"type": "string", "oneOf": titled},
                "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"]},
                "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
                "titledMulti": {"type": "array", "items": {"anyOf": titled}}
            });
            elicit(context, "Please choose", properties, json!([])).await
        }
        "test_missing_capability" => {
            let has = context.client_capabilities().is_some_and(|all| all.sampling.is_some());
            if has {
                return Ok(text("the client can sample"));
            }
            let needed: ClientCapabilities = typed(json!({"sampling": {}}))?;
            Err(ErrorData::missing_required_client_capability(needed))
        }
        "test_streaming_elicitation" => {
            rounds(request, &[one_name("user_name", "What is your name?")], false)
        }
        "test_input_required_result_elicitation" => {
            rounds(request, &[one_name("user_name", "What is your name?")], false)
        }
        "test_input_required_result_sampling" => {
            rounds(request, &[json!({"capital_question": sampling("What is the capital of France?")})], false)
        }
        "test_input_required_result_list_roots" => {
            rounds(request, &[json!({"client_roots": roots()})], false)
        }
        "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => {
            let confirm = form("Please confirm", json!({"ok": {"type": "boolean"}}), json!(["ok"]));
            rounds(request, &[json!({"confirm": confirm})], true)
        }
        "test_input_required_result_multiple_inputs" => {
            let mut all = one_name("user_name", "What is your name?");
            all["greeting"] = sampling("Generate a greeting");
            all["client_roots"] = roots();
            rounds(request, &[all], true)
        }
        "test_input_required_result_multi_round" => {
            let color = form(
                "Step 2: What is your favorite color?",
                json!({"color": {"type": "string"}}),
                json!(["color"]),
            );
            let steps = [one_name("step1", "Step 1: What is your name?"), json!({"step2": color})];
            rounds(request, &steps, true)
        }
        "test_input_required_result_capabilities" => {
            let can = context.client_capabilities().unwrap_or_default();
            let mut asked = json!({});
            if can.elicitation.is_some() {
                asked = one_name("user_name", "What is your name?");
            }
            if can.sampling.is_some() {
                asked["greeting"] = sampling("Generate a greeting");
            }
            rounds(request, &[asked], false)
        }
        _ => Ok(text("nothing to see")),
    }
}

async fn log(context: &Context, line: &str) {
    let param = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(line));
    drop(context.peer.notify_logging_message(param).await);
}

fn failed(error: impl std::fmt::Display) -> CallToolResponse {
    CallToolResult::error(vec![ContentBlock::text(error.to_string())]).into()
}

async fn elicit(
    context: &Context,
    message: &str,
    properties: Value,
    required: Value,
) -> Result<CallToolResponse, ErrorData> {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    let ask = json!({"mode": "form", "message": message, "requestedSchema": schema});
    Ok(match context.peer.create_elicitation(typed(ask)?).await {
        Ok(said) => text(format!("User response: {}", serde_json::to_string(&said).unwrap_or_default())),
        Err(error) => failed(error),
    })
}

pub(crate) fn form(message: &str, properties: Value, required: Value) -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message,
        "requestedSchema": {"type": "object", "properties": properties, "required": required}}})
}

pub(crate) fn one_name(key: &str, message: &str) -> Value {
    json!({key: form(message, json!({"name": {"type": "string"}}), json!(["name"]))})
}

fn sampling(question: &str) -> Value {
    json!({"method": "sampling/createMessage", "params": {"maxTokens": 100,
        "messages": [{"role": "user", "content": {"type": "text", "text": question}}]}})
}

fn roots() -> Value {
    json!({"method": "roots/list", "params": {}})
}

/// Asks in rounds until the client has answered every one; `stateful` carries the round in sealed request state.
pub(crate) fn rounds(
    request: &CallToolRequestParams,
    steps: &[Value],
    stateful: bool,
) -> Result<CallToolResponse, ErrorData> {
    let said = request.input_responses.clone().unwrap_or_default();
    let reached = match (&request.request_state, stateful) {
        (Some(state), true) => {
            unseal(state).ok_or_else(|| ErrorData::invalid_params("the request state was changed", None))?
        }
        _ => 0,
    };
    let step = steps.get(reached).ok_or_else(|| ErrorData::invalid_params("no such round", None))?;
    if !has_all(step, &said) {
        return ask(step, stateful.then_some(reached)).map(Into::into);
    }
    match steps.get(reached + 1) {
        Some(next) => ask(next, stateful.then_some(reached + 1)).map(Into::into),
        None => {
            let name = said.values().find_map(|value| value["content"]["name"].as_str()).unwrap_or("there");
            let all = serde_json::to_string(&said).unwrap_or_default();
            Ok(text(format!("Hello, {name}! state-ok {all}")))
        }
    }
}

fn has_all(step: &Value, said: &InputResponses) -> bool {
    step.as_object().is_some_and(|asked| asked.keys().all(|key| said.get(key).is_some_and(Value::is_object)))
}

fn ask(step: &Value, round: Option<usize>) -> Result<InputRequiredResult, ErrorData> {
    let asked: InputRequests = typed(step.clone())?;
    Ok(match round {
        Some(round) => InputRequiredResult::new(Some(asked), Some(seal(round))),
        None => InputRequiredResult::new(Some(asked), None),
    })
}

fn mac(round: &str) -> String {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(b"conformance fixtures").expect("any length");
    mac.update(round.as_bytes());
    hex(&mac.finalize().into_bytes())
}

fn seal(round: usize) -> String {
    format!("{round}.{}", mac(&round.to_string()))
}

fn unseal(state: &str) -> Option<usize> {
    let (round, tag) = state.split_once('.')?;
    if tag == mac(round) { round.parse().ok() } else { None }
}

pub(crate) fn prompts() -> Result<Vec<Prompt>, ErrorData> {
    typed(json!([
        {"name": "test_simple_prompt", "description": "A fixture"},
        {"name": "test_prompt_with_arguments", "description": "A fixture", "arguments": [
            {"name": "arg1", "description": "First", "required": true},
            {"name": "arg2", "description": "Second", "required": true}]},
        {"name": "test_prompt_with_embedded_resource", "description": "A fixture", "arguments": [
            {"name": "resourceUri", "description": "What to embed", "required": true}]},
        {"name": "test_prompt_with_image", "description": "A fixture"},
        {"name": "test_input_required_result_prompt", "description": "A fixture"}
    ]))
}

/// A fixture's prompt; `None` when the name is none.
pub(crate) fn prompt(request: &GetPromptRequestParams) -> Option<Result<GetPromptResponse, ErrorData>> {
    let argument = |name: &str| {
        let found = request.arguments.as_ref().and_then(|all| all.get(name)).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let user = |content: Value| json!({"role": "user", "content": content});
    let say = |text: String| user(json!({"type": "text", "text": text}));
    let messages = match request.name.as_str() {
        "test_simple_prompt" => json!([say("This is a simple prompt for testing.".into())]),
        "test_prompt_with_arguments" => {
            json!([say(format!(
                "Prompt with arguments: arg1='{}', arg2='{}'",
                argument("arg1"),
                argument("arg2")
            ))])
        }
        "test_prompt_with_embedded_resource" => {
            let resource = json!({"uri": argument("resourceUri"), "mimeType": "text/plain",
                "text": "Embedded resource content for testing."});
            let embedded = user(json!({"type": "resource", "resource": resource}));
            json!([embedded, say("Please process the embedded resource above.".into())])
        }
        "test_prompt_with_image" => {
            let image = user(json!({"type": "image", "data": PNG, "mimeType": "image/png"}));
            json!([image, say("Please analyze the image above.".into())])
        }
        "test_input_required_result_prompt" => {
            let asked = form(
                "What context should the prompt use?",
                json!({"context": {"type": "string"}}),
                json!(["context"]),
            );
            let step = json!({"user_context": asked});
            let said = request.input_responses.clone().unwrap_or_default();
            if !has_all(&step, &said) {
                return Some(ask(&step, None).map(Into::into));
            }
            json!([say(format!("With context: {}", said["user_context"]["content"]["context"]))])
        }
        _ => return None,
    };
    Some(typed(messages).map(|messages| GetPromptResult::new(messages).into()))
}

pub(crate) fn resources() -> Vec<Resource> {
    let listed = [
        ("test://static-text", "text/plain"),
        ("test://static-binary", "image/png"),
        ("test://watched-resource", "text/plain"),
    ];
    listed
        .map(|(uri, mime)| Resource::new(uri, uri.trim_start_matches("test://")).with_mime_type(mime))
        .to_vec()
}

pub(crate) fn template() -> ResourceTemplate {
    ResourceTemplate::new("test://template/{id}/data", "test_template").with_mime_type("application/json")
}

/// A fixture's resource; `None` when the URI is none.
pub(crate) fn resource(uri: &str) -> Option<ReadResourceResult> {
    let contents = match uri {
        "test://static-text" => {
            ResourceContents::text("This is the content of the static text resource.", uri)
        }
        "test://static-binary" => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        "test://watched-resource" => ResourceContents::text("Watched.", uri),
        _ => {
            let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
            let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            ResourceContents::text(data.to_string(), uri).with_mime_type("application/json")
        }
    };
    Some(ReadResourceResult::new(vec![contents]))
}
