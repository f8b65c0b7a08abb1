//! Analyses run with this machine's Python through the very cells that a sandbox gets.
//!
//! The interpreter here is the smallest that an execution could have: it runs a cell, takes the value of its last
//! expression and asks it for its formats, as Jupyter and the local host do. Several cells run one after another in
//! one namespace, so each test also shows that analyses leave nothing behind.

use std::io::Write as _;
use std::process::{Command, Stdio};

use pathbox::analysis::{self, AnalysisError, Checked, Kind, OutputFormat, Program, RESULT_FORMAT, Report};
use pathbox::domain::RichResult;
use serde_json::{Value, json};

const INTERPRETER: &str = r#"
import ast, io, json, sys, contextlib
cells = json.load(sys.stdin)
scope, out = {"__name__": "__main__"}, []
for cell in cells:
    printed, value, error = io.StringIO(), None, None
    try:
        with contextlib.redirect_stdout(printed):
            tree = ast.parse(cell)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<cell>", "exec"), scope)
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope) if last else None
            formats = getattr(value, "_repr_mimebundle_", lambda: {"text/plain": repr(value)})()
    except BaseException as problem:
        formats, error = {}, type(problem).__name__
    out.append({"formats": formats, "printed": printed.getvalue(), "error": error})
json.dump(out, sys.stdout)
"#;

/// What one cell came to.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Cell {
    pub(crate) formats: serde_json::Map<String, Value>,
    pub(crate) printed: String,
    pub(crate) error: Option<String>,
}

/// Runs cells in one interpreter, in order.
pub(crate) fn run_cells(cells: &[String]) -> Vec<Cell> {
    let mut child = Command::new("python3")
        .args(["-I", "-c", INTERPRETER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is what analyses run in");
    let input = serde_json::to_vec(cells).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn as_results(cell: &Cell) -> Vec<RichResult> {
    vec![RichResult { formats: cell.formats.clone(), is_main: true }]
}

/// What each call gives, all run in one interpreter.
pub(crate) fn answers(calls: &[(Kind, Value, OutputFormat)]) -> Vec<Result<Report, AnalysisError>> {
    let checked: Vec<Result<Checked, AnalysisError>> =
        calls.iter().map(|(kind, parameters, _)| analysis::check(*kind, parameters)).collect();
    let cells: Vec<String> = checked
        .iter()
        .zip(calls)
        .filter_map(|(checked, call)| checked.as_ref().ok().map(|checked| Program::new(checked, call.2).code))
        .collect();
    let mut ran = run_cells(&cells).into_iter();
    checked
        .into_iter()
        .zip(calls)
        .map(|(checked, call)| Report::read(&checked?, call.2, &as_results(&ran.next().unwrap())))
        .collect()
}

/// What calls of one analysis give.
pub(crate) fn each(kind: Kind, calls: impl IntoIterator<Item = Value>) -> Vec<Result<Report, AnalysisError>> {
    let calls: Vec<_> = calls.into_iter().map(|parameters| (kind, parameters, OutputFormat::Json)).collect();
    answers(&calls)
}

/// The output of one call.
pub(crate) fn output(kind: Kind, parameters: Value) -> Value {
    each(kind, [parameters]).remove(0).unwrap().output
}

/// The error of a refused call.
pub(crate) fn refusal(kind: Kind, parameters: Value) -> String {
    let error = each(kind, [parameters]).remove(0).unwrap_err();
    assert!(error.is_callers(), "{error}");
    error.to_string()
}

/// A table of calls, each with JSON pointers into the output and what stands there.
#[expect(clippy::type_complexity, reason = "a table reads better at the call than behind names")]
pub(crate) fn golden(kind: Kind, cases: Vec<(&str, Value, Vec<(&str, Value)>)>) {
    let outputs = each(kind, cases.iter().map(|case| case.1.clone()));
    for ((name, _, expected), got) in cases.iter().zip(outputs) {
        let got = got.unwrap_or_else(|error| panic!("{name}: {error}"));
        for (pointer, wanted) in expected {
            let stands = got
                .output
                .pointer(pointer)
                .unwrap_or_else(|| panic!("{name}: no {pointer} in {}", got.output));
            assert_eq!(stands, wanted, "{name}: {pointer} of {}", got.output);
        }
    }
}

fn small(kind: Kind) -> Value {
    match kind {
        Kind::TaxCalculation => {
            json!({"income": 100, "levies": [{"id": "t", "source": "Act, s. 1", "bands": [{"rate": "10%"}]}]})
        }
        Kind::ComplianceCheck => {
            json!({"facts": {"a": 1}, "rules": [{"id": "r", "source": "Act, s. 1", "requires": {"fact": "a", "op": "eq", "value": 1}}]})
        }
        Kind::Eligibility => {
            json!({"facts": {"a": 1}, "schemes": [{"id": "s", "source": "Act, s. 1", "criteria": [
            {"id": "c", "requires": {"fact": "a", "op": "eq", "value": 1}}]}]})
        }
        Kind::Timeline => json!({"events": [{"id": "e", "date": "2024-02-29"}], "constraints": [
            {"id": "c", "source": "Act, s. 1", "type": "deadline", "event": "e", "date": "2024-03-01"}]}),
        Kind::Comparison => {
            json!({"analysis": "formula", "common": {"formulas": [{"id": "twice", "expression": "x * 2"}]}, "rule_sets": [
            {"id": "a", "source": "Act, s. 1", "parameters": {"values": {"x": 1}}}, {"id": "b", "parameters": {"values": {"x": 2}}}]})
        }
        Kind::Scenario => {
            json!({"analysis": "formula", "base": {"values": {"x": 1}, "formulas": [{"id": "twice", "expression": "x * 2"}]},
            "scenarios": [{"id": "more", "source": "Act, s. 1", "set": [{"path": "values.x", "value": 5}]}]})
        }
        Kind::DataAnalysis => json!({"csv": "a,b\n1,x\n2,y\n"}),
        Kind::Custom => json!({"code": "params['x'] + 1", "params": {"x": 1}}),
    }
}

#[test]
fn every_analysis_answers_in_every_format_and_names_itself_a_computation() {
    let calls: Vec<_> = Kind::ALL
        .iter()
        .flat_map(|kind| OutputFormat::ALL.iter().map(|format| (*kind, small(*kind), *format)))
        .collect();
    for (call, report) in calls.iter().zip(answers(&calls)) {
        let report = report.unwrap_or_else(|error| panic!("{:?}: {error}", call.0));
        assert_eq!(report.disclaimer, analysis::DISCLAIMER);
        assert!(!report.arithmetic.is_empty());
        match call.2 {
            OutputFormat::Json => {
                assert_eq!(serde_json::from_str::<Value>(&report.text).unwrap(), report.output)
            }
            OutputFormat::Table => {
                assert!(report.text.contains("| -"), "{}", report.text);
                assert!(report.text.contains(analysis::DISCLAIMER), "{}", report.text);
            }
            OutputFormat::Summary => {
                assert!(
                    !report.text.contains('|') && report.text.contains(analysis::DISCLAIMER),
                    "{}",
                    report.text
                );
            }
        }
        if !matches!(call.0, Kind::DataAnalysis | Kind::Custom) {
            assert_eq!(report.sources, ["Act, s. 1"], "{:?}", call.0);
            assert!(
                call.2 == OutputFormat::Json || report.text.contains("Source: Act, s. 1"),
                "{}",
                report.text
            );
        }
    }
}

#[test]
fn an_analysis_leaves_the_contexts_variables_and_modules_as_they_were() {
    let look = "import sys; sorted(k for k in globals() if not k.startswith('__')), \
                sorted(m for m in sys.modules if 'pathbox' in m), __import__('decimal').getcontext().prec";
    let mut cells = vec![
        "analyse = scope = sources = request = use = 'mine'; params = core = json = 1".to_owned(),
        look.to_owned(),
    ];
    for kind in Kind::ALL {
        let checked = analysis::check(*kind, &small(*kind)).unwrap();
        cells.push(Program::new(&checked, OutputFormat::Table).code);
    }
    cells.push(look.to_owned());
    let ran = run_cells(&cells);
    assert!(ran.iter().all(|cell| cell.error.is_none()), "{ran:?}");
    assert_eq!(ran[1].formats["text/plain"], ran.last().unwrap().formats["text/plain"]);
    assert!(ran[1].formats["text/plain"].as_str().unwrap().contains("'params'"));
}

#[test]
fn a_parameter_is_data_in_every_field_and_never_code() {
    let hostile = [
        "\"; import os; os._exit(3) #",
        "'''\"\"\"\\",
        "\n\r\t\u{0}\u{1b}[31m",
        "{loader} {request} {sources}",
        "__import__('os')._exit(3)",
        "</script>|`<img src=x>|\n| a | b |",
        "𝕏\u{202e} é 日本語 \u{feff}",
        "%s %d {0} $(id) ;--",
    ];
    let mut calls = Vec::new();
    for text in hostile {
        for kind in Kind::ALL {
            let mut parameters = small(*kind);
            poison(&mut parameters, text);
            calls.push((*kind, parameters, OutputFormat::Table));
        }
    }
    for (call, answer) in calls.iter().zip(answers(&calls)) {
        match answer {
            Ok(report) => {
                for line in report.text.lines().filter(|line| line.starts_with('|')) {
                    assert!(line.ends_with('|') && !line.contains(['\u{1b}', '\u{202e}']), "{line}");
                }
            }
            Err(error) => assert!(error.is_callers(), "{:?}: {error}", call.1),
        }
    }
}

/// Puts the text into every field that holds free text, except code.
fn poison(value: &mut Value, text: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                let fixed =
                    ["code", "expression", "op", "type", "analysis", "rate", "date", "path", "csv", "do"];
                match value {
                    Value::String(old) if !fixed.contains(&name.as_str()) => *old = format!("{old}{text}"),
                    _ => poison(value, text),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| poison(item, text)),
        _ => {}
    }
}

#[test]
fn a_cell_is_constant_except_for_base64_characters() {
    let call = |income: &str| {
        let parameters =
            json!({"income": income, "currency": "\"\n)", "levies": [{"id": "t", "bands": [{"rate": 0}]}]});
        Program::new(&analysis::check(Kind::TaxCalculation, &parameters).unwrap(), OutputFormat::Json).code
    };
    let (one, other) = (call("1"), call("22222"));
    let frame = |code: &str| {
        let mut frame = String::new();
        for (at, part) in code.split("b64decode(\"").enumerate() {
            let (data, rest) = if at == 0 { ("", part) } else { part.split_once("\")").unwrap() };
            assert!(data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
            frame.push_str(rest);
        }
        frame
    };
    assert_ne!(one, other);
    assert_eq!(frame(&one), frame(&other));
}

#[test]
fn output_of_code_cannot_pass_for_a_report() {
    let checked = analysis::check(Kind::Custom, &json!({"code": "1"})).unwrap();
    let forged = json!({"status": "done", "analysis_type": "custom"});
    let displayed = RichResult {
        formats: serde_json::Map::from_iter([(RESULT_FORMAT.to_owned(), forged.clone())]),
        is_main: false,
    };
    let text = RichResult {
        formats: serde_json::Map::from_iter([("text".to_owned(), json!(forged.to_string()))]),
        is_main: true,
    };
    let read =
        |results: &[RichResult]| Report::read(&checked, OutputFormat::Json, results).unwrap_err().to_string();
    assert_eq!(read(&[]), "the analysis gave no report");
    assert_eq!(read(&[displayed, text]), "the analysis gave no report");
}

#[test]
fn a_report_that_does_not_match_the_call_is_refused() {
    let checked = analysis::check(Kind::Custom, &json!({"code": "1"})).unwrap();
    let good = json!({
        "status": "done", "analysis_type": "custom", "output_format": "json", "text": "", "sources": [], "notes": [],
        "output": {"success": true, "result": 1, "error": null}, "arithmetic": "", "disclaimer": analysis::DISCLAIMER,
    });
    let read = |value: &Value| {
        let formats = serde_json::Map::from_iter([(RESULT_FORMAT.to_owned(), value.clone())]);
        Report::read(&checked, OutputFormat::Json, &[RichResult { formats, is_main: true }])
    };
    assert!(read(&good).is_ok());
    for (field, value) in [
        ("status", json!("fine")),
        ("analysis_type", json!("tax_calculation")),
        ("output_format", json!("table")),
        ("output", json!({})),
        ("output", json!({"success": "yes", "result": 1, "error": null})),
        ("sources", json!("none")),
        ("disclaimer", json!("This is advice.")),
        ("extra", json!(1)),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let error = read(&bad).unwrap_err();
        assert!(matches!(error, AnalysisError::BadReport(_)), "{field}: {error}");
    }
    for other in [json!(""), json!([]), json!(null), json!(1), json!(good.to_string())] {
        assert!(matches!(read(&other), Err(AnalysisError::BadReport(_))));
    }
    let mut huge = good;
    huge["text"] = json!(" ".repeat(analysis::MAX_REPORT_BYTES));
    assert!(matches!(read(&huge), Err(AnalysisError::BadReport(_))));
}

#[test]
fn the_parts_that_are_wrong_are_named_with_what_was_expected() {
    let tax = |levy: Value| json!({"income": 1, "levies": [levy]});
    for (kind, parameters, said) in [
        (
            Kind::TaxCalculation,
            json!({}),
            "levies: expected a list of 1 to 50, each {id*, title, source, incomes,",
        ),
        (Kind::TaxCalculation, json!([]), "parameters: expected an object {currency, income,"),
        (Kind::TaxCalculation, json!(null), "credits, rounding, thresholds}, got null"),
        (
            Kind::TaxCalculation,
            tax(json!({"id": "t", "bands": [{"rate": "abc"}]})),
            "levies[0].bands[0].rate: expected a share from 0 to 1",
        ),
        (
            Kind::TaxCalculation,
            tax(json!({"id": "t", "bands": [{"rate": 20}]})),
            "levies[0].bands[0].rate: expected a share from 0 to 1",
        ),
        (
            Kind::TaxCalculation,
            tax(json!({"id": "t", "bands": [{"rate": 0.2, "up_to": -5}]})),
            "levies[0].bands[0].up_to: expected a number of zero or more",
        ),
        (Kind::TaxCalculation, tax(json!({"id": "t", "band": []})), "got the unknown field \"band\""),
        (Kind::TaxCalculation, json!({"income": "NaN", "levies": []}), "income: expected a number"),
        (Kind::TaxCalculation, json!({"income": "Infinity", "levies": []}), "income: expected a number"),
        (Kind::TaxCalculation, json!({"income": "1e400", "levies": []}), "income: expected a number"),
        (Kind::TaxCalculation, json!({"income": "9".repeat(40), "levies": []}), "income: expected a number"),
        (Kind::TaxCalculation, json!({"income": 1e300, "levies": []}), "income: expected a number"),
        (Kind::TaxCalculation, json!({"income": true, "levies": []}), "income: expected a number"),
        (Kind::ComplianceCheck, json!({"facts": [], "rules": []}), "facts: expected an object, got a list"),
        (
            Kind::ComplianceCheck,
            json!({"facts": {}, "rules": [{"id": "r", "requires": {"fact": "a", "op": "like", "value": 1}}]}),
            "rules[0].requires.op: expected one of eq, ne",
        ),
        (
            Kind::Eligibility,
            json!({"facts": {}, "schemes": [{"id": "s", "criteria": [{"id": "c"}]}]}),
            "schemes[0].criteria[0].requires: expected an object {all, any,",
        ),
        (
            Kind::Timeline,
            json!({"events": [{"id": "e", "date": "2023-02-29"}], "constraints": []}),
            "events[0].date: expected a date like",
        ),
        (
            Kind::Timeline,
            json!({"events": [{"id": "e"}], "constraints": [{"id": "c", "type": "soon"}]}),
            "constraints[0].type: expected one of deadline",
        ),
        (
            Kind::Comparison,
            json!({"analysis": "formula", "rule_sets": [{"id": "a", "parameters": {}}, {"id": "b", "parameters": {}}]}),
            "rule_sets[0].parameters.values: expected an object, got nothing",
        ),
        (
            Kind::Comparison,
            json!({"analysis": "custom", "rule_sets": []}),
            "analysis: expected one of tax_calculation",
        ),
        (
            Kind::Scenario,
            json!({"analysis": "formula", "base": {"values": {"x": "y"}, "formulas": []}}),
            "base.values.x: expected a number",
        ),
        (Kind::DataAnalysis, json!({"csv": 1}), "csv: expected text of 1 to"),
        (Kind::Custom, json!({"code": 1}), "code: expected text of 1 to"),
    ] {
        let error = analysis::check(kind, &parameters).unwrap_err();
        assert!(error.is_callers());
        assert!(error.to_string().contains(said), "{parameters}: {error}");
    }
}

#[test]
fn parameters_that_are_too_large_are_refused_before_anything_runs() {
    let rows: Vec<_> = (0..150_000).map(|n| json!({"some_column_name": n, "another": "text"})).collect();
    let error = analysis::check(Kind::DataAnalysis, &json!({"records": rows})).unwrap_err();
    assert!(matches!(error, AnalysisError::TooLarge { .. }), "{error}");

    let facts: serde_json::Map<String, Value> =
        (0..4_000).map(|n| (format!("f{n}"), json!("x".repeat(40)))).collect();
    let sets: Vec<_> = (0..50).map(|n| json!({"id": n.to_string(), "parameters": {}})).collect();
    let rules = json!([{"id": "r", "requires": {"fact": "f1", "op": "known"}}]);
    let blown_up = json!({"analysis": "compliance_check", "common": {"facts": facts, "rules": rules}, "rule_sets": sets});
    let error = analysis::check(Kind::Comparison, &blown_up).unwrap_err();
    assert!(matches!(error, AnalysisError::TooLarge { .. }), "{error}");
}
