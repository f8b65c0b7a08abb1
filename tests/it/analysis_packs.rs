//! Rule packs prove themselves: the worked examples run with each call, and a pack with one digit changed is refused.

use pathbox::analysis::{AnalysisError, OutputFormat, Pack, Program, Report, pack};
use serde_json::{Map, Value, json};

use crate::analysis_run::{as_results, run_cells};
use crate::support::server::{Server, command};

const TODAY: &str = "2024-06-01";

fn fields(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn answer(pack: &Pack, given: Value) -> Result<Report, AnalysisError> {
    let checked = pack.complete(pack.kind(), &fields(given), TODAY.parse().unwrap())?;
    let cells = run_cells(&[Program::new(&checked, OutputFormat::Summary).code]);
    Report::read(&checked, OutputFormat::Summary, &as_results(&cells[0]))
}

fn built_in(id: &str) -> &'static str {
    pack::built_in().iter().find(|text| text.contains(&format!("\"id\": \"{id}\""))).unwrap()
}

#[test]
fn each_built_in_pack_reproduces_its_examples_and_names_its_sources() {
    for text in pack::built_in() {
        let pack = Pack::parse(text.as_bytes()).unwrap();
        let report = answer(&pack, Value::Object(pack.first_example().clone())).unwrap();
        let info = report.pack.unwrap();
        assert_eq!(info.name, pack.name());
        assert_eq!(info.sha256.len(), 64);
        assert!(info.examples >= 3 && !info.sources.is_empty(), "{info:?}");
    }
}

#[test]
fn a_pack_with_one_digit_changed_is_refused_with_the_example_that_fails() {
    for (id, right, wrong) in [
        ("us-federal-income-tax-single", "\"rate\": \"22%\"", "\"rate\": \"23%\""),
        ("us-federal-income-tax-single", "\"up_to\": \"47150\"", "\"up_to\": \"47151\""),
        ("au-resident-income-tax", "\"rate\": \"32.5%\"", "\"rate\": \"32.6%\""),
        ("de-income-tax", "181.19 *", "181.29 *"),
        ("de-income-tax", "0.42 * x - 10636.31", "0.42 * x - 10626.31"),
        ("eu-schengen-short-stay", "\"max_days\": 90", "\"max_days\": 91"),
        ("eu-schengen-short-stay", "\"amount\": 180", "\"amount\": 190"),
        ("fr-income-tax-gross", "\"up_to\": \"82341\"", "\"up_to\": \"82314\""),
        ("ie-income-tax-single-employee", "\"rate\": \"4%\"", "\"rate\": \"4.5%\""),
    ] {
        let text = built_in(id);
        assert!(text.contains(right), "{id}: {right}");
        let pack = Pack::parse(text.replace(right, wrong).as_bytes()).unwrap();
        let problem = answer(&pack, Value::Object(pack.first_example().clone())).unwrap_err();
        assert!(problem.is_callers(), "{problem}");
        let said = problem.to_string();
        assert!(
            said.starts_with("pack: its example ") && said.ends_with("so the pack is not used"),
            "{wrong}: {said}"
        );
    }
}

#[test]
fn through_mcp_a_pack_answers_is_named_in_the_result_and_cannot_be_bent() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let mut call = |arguments: Value| {
        let answer = server.request("tools/call", json!({"name": "run_analysis", "arguments": arguments}));
        answer["result"].clone()
    };
    let name = "us-federal-income-tax-single@2024";
    let result =
        call(json!({"analysis_type": "tax_calculation", "pack": name, "parameters": {"income": "100000"}}));
    let content = &result["structuredContent"];
    assert_eq!(content["output"]["totals"]["tax"], "17053.00", "{result}");
    assert_eq!(content["pack"]["name"], name);
    assert_eq!(content["pack"]["examples"], 6);
    assert!(content["notes"][0].as_str().unwrap().contains("applies up to 2024-12-31"), "{content}");
    for (arguments, said) in [
        (
            json!({"analysis_type": "tax_calculation", "pack": name, "parameters": {"income": 1, "levies": [{"id": "t", "flat": 0}]}}),
            "levies: us-federal-income-tax-single@2024 sets it",
        ),
        (
            json!({"analysis_type": "timeline", "pack": name, "parameters": {}}),
            "is for tax_calculation, not for timeline",
        ),
        (
            json!({"analysis_type": "tax_calculation", "pack": "../secret.key@1", "parameters": {}}),
            "there is no rule pack \\\"../secret.key@1\\\"; there are: au-resident-income-tax@2023-24",
        ),
    ] {
        let refused = call(arguments);
        assert_eq!(refused["isError"], true, "{refused}");
        assert!(refused.to_string().contains(said), "{said}: {refused}");
    }
    let raised = call(json!({"analysis_type": "custom", "parameters": {"code": "1 / 0"}}));
    assert!(raised["content"][0]["text"].as_str().unwrap().starts_with("custom failed in "), "{raised}");
    assert_eq!(raised["structuredContent"]["success"], false);
}

#[test]
fn packs_are_added_listed_checked_and_removed_from_the_command_line() {
    let data = tempfile::tempdir().unwrap();
    let packs = |arguments: &[&str]| {
        let output = command(data.path()).arg("packs").args(arguments).output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let own = data.path().join("own");
    std::fs::create_dir_all(&own).unwrap();
    let write = |rate: &str| {
        let document = json!({"format": 1, "id": "own-tax", "version": "1", "title": "Own", "analysis_type": "tax_calculation",
            "sources": [{"title": "Act", "retrieved": "2024-01-01"}],
            "parameters": {"levies": [{"id": "t", "bands": [{"rate": rate}]}]},
            "examples": [{"id": "e", "source": "Act, p. 1", "parameters": {"income": 100}, "expect": {"/totals/tax": "10.00"}}]});
        std::fs::write(own.join("pack.json"), document.to_string()).unwrap();
    };
    write("11%");
    let (good, said) = packs(&["add", own.to_str().unwrap()]);
    assert!(!good && said.contains("its example 'e'"), "{said}");
    write("10%");
    assert_eq!(packs(&["add", own.to_str().unwrap()]), (true, "added own-tax@1\n".to_owned()));
    assert!(packs(&["ls"]).1.contains("own-tax@1"));
    let (good, said) = packs(&["ls", "--json"]);
    assert!(good && serde_json::from_str::<Value>(&said).unwrap().as_array().unwrap().len() == 7, "{said}");
    assert!(
        packs(&["check", "own-tax@1"]).1.contains("own-tax@1: 1 worked examples give the published results")
    );
    assert!(packs(&["show", "own-tax@1"]).1.contains("\"sha256\""));
    std::fs::write(
        own.join("pack.json"),
        std::fs::read_to_string(own.join("pack.json")).unwrap().replace("Own", "Other"),
    )
    .unwrap();
    let (good, said) = packs(&["add", own.to_str().unwrap()]);
    assert!(!good && said.contains("give the changed one a new version"), "{said}");
    assert!(packs(&["rm", "own-tax@1"]).0);
    assert!(!packs(&["rm", "own-tax@1"]).0);
}
