//! Prompts, so that a person can ask for a tool by name, and completion of what they fill in.

use rmcp::model::{
    CompleteRequestParams, CompleteResult, CompletionInfo, ErrorData, GetPromptRequestParams,
    GetPromptResult, ListPromptsResult, Prompt, PromptArgument, PromptMessage, Reference, Role,
};
use serde_json::Value;

use crate::domain::Language;
use crate::guard::{Guard, own_words};

use super::resources::templates;

/// Analyses that the second prompt knows by name.
const ANALYSES: [&str; 8] = [
    "tax_calculation",
    "compliance_check",
    "eligibility",
    "timeline",
    "comparison",
    "scenario",
    "data_analysis",
    "custom",
];

/// The prompts, in their fixed order.
pub(super) fn list() -> ListPromptsResult {
    let argument = |name: &str, text: &str, required: bool| {
        let mut argument = PromptArgument::new(name);
        argument.description = Some(text.to_owned());
        argument.required = Some(required);
        argument
    };
    let mut run = Prompt::new(
        "run_code",
        Some("Run code in this conversation's sandbox"),
        Some(vec![
            argument("task", "What to compute, or the code itself", true),
            argument("language", "python, javascript, typescript or bash", false),
        ]),
    );
    run.title = Some("Run code".into());
    let mut analyse = Prompt::new(
        "run_analysis",
        Some("Answer a question by one of the built-in analyses"),
        Some(vec![
            argument("question", "What to find out, with the facts", true),
            argument("analysis_type", "Which analysis; the model chooses when not set", false),
        ]),
    );
    analyse.title = Some("Run an analysis".into());
    let mut tools = Prompt::new(
        "use_tools",
        Some("Do a task with the tools of the connected servers, in one program"),
        Some(vec![argument("task", "What is to be done", true)]),
    );
    tools.title = Some("Use tools in a program".into());
    ListPromptsResult::with_all_items(vec![run, analyse, tools])
}

/// A prompt, filled in. What it goes out with to a model passes the caller's guard.
pub(super) fn get(request: &GetPromptRequestParams, guard: &Guard) -> Result<GetPromptResult, ErrorData> {
    let given = |name: &str| request.arguments.as_ref().and_then(|all| all.get(name)).and_then(Value::as_str);
    let needed = |name: &str| {
        given(name)
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| ErrorData::invalid_params(format!("argument `{name}` is missing"), None))
    };
    let text = match request.name.as_str() {
        "run_code" => format!(
            "Use the tool `run_code` (language: {}) to do this, and report the result:\n\n{}",
            given("language").unwrap_or("python"),
            needed("task")?
        ),
        "use_tools" => format!(
            "Find what you need with `search_tools` (one search for each step), then write one program for `run_code` that calls the \
             tools (`from tools import <server>`), works on the results in the sandbox and prints only what answers this:\n\n{}",
            needed("task")?
        ),
        "run_analysis" => {
            let which = match given("analysis_type") {
                Some(name) => format!(" with analysis_type `{name}`"),
                None => ", choosing the analysis_type that fits,".to_owned(),
            };
            format!(
                "Use the tool `run_analysis`{which} to answer this, and say what it rests on:\n\n{}",
                needed("question")?
            )
        }
        other => {
            let text = own_words(&format!("unknown prompt {other:?}"));
            return Err(ErrorData::invalid_params(text.into_inner(), None));
        }
    };
    Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, guard.line(&text).into_inner())]))
}

/// What an argument may become.
///
/// # Errors
/// When there is no such prompt, no such argument of it, or no such resource template.
pub(super) fn complete(
    request: &CompleteRequestParams,
    known: &[Prompt],
) -> Result<CompleteResult, ErrorData> {
    let argument = request.argument.name.as_str();
    let unknown = |what: &str| {
        let text = own_words(&format!("there is no {what} to complete: look at the list"));
        Err(ErrorData::invalid_params(text.into_inner(), None))
    };
    let choices: Vec<&str> = match &request.r#ref {
        Reference::Prompt(prompt) => {
            let Some(known) = known.iter().find(|known| known.name == prompt.name) else {
                return unknown(&format!("prompt {:?}", prompt.name));
            };
            if !known.arguments.iter().flatten().any(|known| known.name == argument) {
                return unknown(&format!("argument {argument:?} of the prompt {:?}", prompt.name));
            }
            match argument {
                "language" => Language::ALL.iter().map(|language| language.as_str()).collect(),
                "analysis_type" => ANALYSES.to_vec(),
                _ => Vec::new(),
            }
        }
        Reference::Resource(resource) => {
            let templates = templates().resource_templates;
            if !templates.iter().any(|known| known.uri_template == resource.uri) {
                return unknown(&format!("resource template {:?}", resource.uri));
            }
            match argument {
                "name" => vec!["stdout", "stderr", "result-1.png"],
                "id" | "offset" | "limit" => Vec::new(),
                _ => return unknown(&format!("argument {argument:?} of the resource template")),
            }
        }
        _ => return unknown("reference of that type"),
    };
    let typed = request.argument.value.to_ascii_lowercase();
    let fitting: Vec<String> =
        choices.into_iter().filter(|choice| choice.starts_with(&typed)).map(str::to_owned).collect();
    Ok(CompleteResult::new(CompletionInfo::with_all_values(fitting).unwrap_or_default()))
}
