//! Sixty tasks in plain words, through MCP in one server process: `tests/fixtures/analysis-tasks.jsonl` has the tasks and
//! the right answers (computed by `analysis-tasks.py` beside it), `analysis-calls.jsonl` the calls and where each answer
//! is in the result. `docs/analysis-first-try.md` describes how the calls were written.

use pathbox::analysis;
use serde_json::{Value, json};

use crate::support::server::Server;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn sixty_tasks_are_answered_rightly_by_the_calls_that_a_reader_of_the_help_writes() {
    let tasks = lines(include_str!("../fixtures/analysis-tasks.jsonl"));
    let calls = lines(include_str!("../fixtures/analysis-calls.jsonl"));
    assert_eq!((tasks.len(), calls.len()), (60, 60));
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let mut wrong = Vec::new();
    for (task, call) in tasks.iter().zip(&calls) {
        assert_eq!(task["id"], call["id"]);
        assert_eq!(task["type"], call["arguments"]["analysis_type"]);
        let answer =
            server.request("tools/call", json!({"name": "run_analysis", "arguments": call["arguments"]}));
        let output = &answer["result"]["structuredContent"]["output"];
        for (name, right) in task["answer"].as_object().unwrap() {
            let place = &call["answer"][name];
            let found = read(output, place);
            if !same(right, &found, place) {
                wrong.push(format!("{}: {name} is {found}, not {right}: {answer}", task["id"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What stands at a place: a JSON pointer, or an object with the pointer `at`, and `as` (words or values to others) or
/// `after` (the text behind these words).
fn read(output: &Value, place: &Value) -> Value {
    let pointer = place["at"].as_str().or(place.as_str()).unwrap_or_default();
    let found = output.pointer(pointer).cloned().unwrap_or_default();
    let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
    if let Some(other) = place["as"].get(&text) {
        return other.clone();
    }
    match place["after"].as_str().and_then(|words| text.split_once(words)) {
        Some((_, rest)) => json!(rest),
        None => found,
    }
}

/// Equal, or the same number at the precision of the right answer (`21 years` is 21), times `times`.
fn same(right: &Value, found: &Value, place: &Value) -> bool {
    if right == found {
        return true;
    }
    let (Some(wanted), Some(number)) = (number(right), number(found)) else { return false };
    let times = place["times"].as_i64().unwrap_or(1);
    let places = wanted.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let Ok(number) = number.parse::<f64>() else { return false };
    #[expect(clippy::cast_precision_loss, reason = "factors are 100 and -1")]
    let scaled = number * times as f64;
    format!("{scaled:.places$}") == wanted
}

/// The number that a value begins with.
fn number(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let end = text.find(|c: char| !(c.is_ascii_digit() || "-.".contains(c))).unwrap_or(text.len());
    let number = text[..end].to_owned();
    number.parse::<f64>().is_ok().then_some(number)
}

#[test]
fn guesses_that_can_mean_one_thing_are_taken_and_the_others_are_shown_the_fields() {
    for guess in lines(include_str!("../fixtures/analysis-guesses.jsonl")) {
        let kind = guess["type"].as_str().unwrap().parse().unwrap();
        match analysis::check(kind, &guess["parameters"]) {
            Ok(_) => assert_eq!(guess["accepted"], true, "{guess}"),
            Err(error) => {
                assert_eq!(guess["accepted"], false, "{guess}: {error}");
                let said = error.to_string();
                assert!(said.contains("expected only the fields ") || said.contains("expected a"), "{said}");
            }
        }
    }
}
