//! Analyses from a client's message to its answer: through MCP, the execution layer, a sandbox and the guard.

use serde_json::{Value, json};

use crate::support::server::Server;

fn analysis(server: &mut Server, arguments: Value) -> Value {
    let answer = server.request("tools/call", json!({"name": "run_analysis", "arguments": arguments}));
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

#[test]
fn each_analysis_answers_with_text_and_figures() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let levies = json!([{"id": "tax", "source": "Act, s. 1", "bands": [{"up_to": "500", "rate": "10%"}, {"rate": "20%"}]}]);
    let size = json!({"fact": "staff", "op": "ge", "value": 20});
    let tax = json!({"income": "1000", "levies": levies});
    for (kind, parameters, pointer, expected) in [
        ("tax_calculation", tax.clone(), "/totals/tax", json!("150.00")),
        (
            "compliance_check",
            json!({"facts": {}, "rules": [{"id": "r", "requires": size}]}),
            "/overall",
            json!("unknown"),
        ),
        (
            "eligibility",
            json!({"facts": {"staff": 20}, "schemes": [{"id": "s", "criteria": [{"id": "c", "requires": size}]}]}),
            "/eligible",
            json!(["s"]),
        ),
        (
            "timeline",
            json!({"events": [{"id": "a", "date": "2024-01-31"}, {"id": "b", "date": "2024-03-01"}], "constraints": [
            {"id": "c", "type": "max_gap", "from": "a", "to": "b", "amount": 1, "unit": "months"}]}),
            "/constraints/0/slack_days",
            json!(-1),
        ),
        (
            "comparison",
            json!({"analysis": "tax_calculation", "common": tax, "rule_sets": [{"id": "A", "parameters": {}}, {"id": "B", "parameters": {"income": 10}}]}),
            "/best/0/best",
            json!(["B"]),
        ),
        (
            "scenario",
            json!({"analysis": "tax_calculation", "base": tax, "scenarios": [{"id": "s", "set": [{"path": "income", "value": 2000}]}]}),
            "/scenarios/0/differences/tax/absolute",
            json!("200.00"),
        ),
        ("data_analysis", json!({"csv": "a\n0.1\n0.2\n"}), "/results/0/columns/0/sum", json!("0.3")),
        (
            "custom",
            json!({"code": "print('seen')\nparams['x'] * 2", "params": {"x": 21}}),
            "/result",
            json!(42),
        ),
    ] {
        for format in ["json", "table", "summary"] {
            let result = analysis(
                &mut server,
                json!({"analysis_type": kind, "parameters": parameters, "output_format": format}),
            );
            let content = &result["structuredContent"];
            assert!(result.get("isError").is_none() && content["success"] == true, "{result}");
            assert_eq!(content["output"].pointer(pointer), Some(&expected), "{kind}: {content}");
            assert!(content["disclaimer"].as_str().unwrap().contains("not advice"));
            let block = result["content"][0]["text"].as_str().unwrap();
            let written = match content.get("text") {
                Some(text) => text.as_str().unwrap().to_owned(),
                None => format!("{:#}", content["output"]), // once as data, once for a reader of text
            };
            assert!(block.contains(written.trim_end()), "one block says it all: {result}");
            assert_eq!(content.get("text").is_none(), format == "json", "{content}");
            for said in content["notes"].as_array().unwrap().iter().chain([&content["disclaimer"]]) {
                assert!(block.contains(said.as_str().unwrap()), "{kind}, {format}: {said} in {block}");
            }
            assert!(
                result["content"][0]["text"].as_str().unwrap().starts_with(&format!("{kind} finished in "))
            );
            if kind == "custom" {
                assert_eq!(content["run"]["stdout"], "seen\n");
            }
        }
    }
}

#[test]
fn the_contexts_variables_stay_and_are_not_seen() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("params = 'mine'; import decimal; decimal.getcontext().prec = 3");
    let tax = json!({"analysis_type": "tax_calculation", "parameters": {"income": "123456.78", "levies": [{"id": "t", "bands": [{"rate": "10%"}]}]}});
    let report = analysis(&mut server, tax);
    assert_eq!(report["structuredContent"]["output"]["totals"]["tax"], "12345.68", "{report}");
    assert_eq!(report["structuredContent"]["run"]["state"], "kept");
    let seen = analysis(&mut server, json!({"analysis_type": "custom", "parameters": {"code": "params"}}));
    assert_eq!(seen["structuredContent"]["output"]["result"], json!({}));
    assert_eq!(
        server.python("params, decimal.getcontext().prec")["structuredContent"]["output"],
        "('mine', 3)"
    );
}

#[test]
fn a_file_of_the_sandbox_is_analysed() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("open('rows.csv', 'w').write('n;v\\na;1,5\\nb;2,5\\n')");
    let report =
        analysis(&mut server, json!({"analysis_type": "data_analysis", "parameters": {"file": "rows.csv"}}));
    assert_eq!(report["structuredContent"]["output"]["results"][0]["columns"][1]["sum"], "4.0", "{report}");
}

#[test]
fn wrong_parameters_are_tool_errors_that_name_the_place() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let tax = |levy: Value| json!({"analysis_type": "tax_calculation", "parameters": {"income": 1, "levies": [levy]}});
    for (arguments, said) in [
        (json!({"analysis_type": "astrology", "parameters": {}}), "argument `analysis_type`"),
        (json!({"analysis_type": "timeline"}), "argument `parameters` is missing"),
        (json!({"analysis_type": "timeline", "parameters": []}), "argument `parameters`"),
        (
            tax(json!({"id": "t", "bands": [{"rate": 20}]})),
            "argument `parameters`: levies[0].bands[0].rate: expected a share from 0 to 1",
        ),
        (
            tax(json!({"id": "t", "bands": [{"up_to": 5, "rate": 0}, {"from": 4, "rate": 0}]})),
            "argument `parameters`: levies[0].bands[1].from: 4 is below 5, where the band before ends: the bands overlap",
        ),
    ] {
        let result = analysis(&mut server, arguments);
        assert_eq!(result["isError"], true, "{result}");
        assert!(result["content"][0]["text"].as_str().unwrap().contains(said), "{result}");
        assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], "invalid_argument");
    }
}

#[test]
fn code_that_fails_or_does_not_end_is_a_normal_result() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let custom =
        |code: &str| json!({"analysis_type": "custom", "parameters": {"code": code}, "timeout_ms": 2000});
    let failed = analysis(&mut server, custom("1 / 0"));
    let content = &failed["structuredContent"];
    assert_eq!(
        (&content["success"], &content["output"]["error"]["name"]),
        (&json!(false), &json!("ZeroDivisionError")),
        "{failed}"
    );
    assert!(failed.get("isError").is_none());
    let endless = analysis(&mut server, custom("while True: pass"));
    let content = &endless["structuredContent"];
    assert_eq!(
        (&content["success"], &content["run"]["error"]["name"]),
        (&json!(false), &json!("timeout")),
        "{endless}"
    );
    assert!(endless.get("isError").is_none());
}

#[test]
fn personal_data_in_a_report_does_not_leave() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let parameters = json!({"csv": "who,n\nmaeve.byrne@example.com,1\n"});
    let result = analysis(
        &mut server,
        json!({"analysis_type": "data_analysis", "parameters": parameters, "output_format": "table"}),
    );
    assert!(!result.to_string().contains("maeve.byrne"), "{result}");
    assert_eq!(
        result["structuredContent"]["output"]["results"][0]["columns"][0]["top"][0]["value"],
        "[EMAIL_1]"
    );
    assert_eq!(result["structuredContent"]["run"]["guard"]["mode"], "enforce");
}

#[test]
fn sentences_of_a_report_are_not_taken_for_secrets() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let requires = json!({"fact": "staff", "op": "ge", "value": 20});
    let parameters = json!({"facts": {"staff": 12}, "rules": [{"id": "officer", "requires": requires}]});
    for format in ["json", "table", "summary"] {
        let arguments =
            json!({"analysis_type": "compliance_check", "parameters": parameters, "output_format": format});
        let result = analysis(&mut server, arguments);
        assert_eq!(result["structuredContent"]["run"]["guard"]["findings"], json!({}), "{result}");
    }
}

#[test]
fn ten_thousand_rules_come_back_as_counts_and_a_file() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let rules: Vec<_> = (0..10_000)
        .map(|n| json!({"id": n.to_string(), "requires": {"fact": "n", "op": "ge", "value": n}}))
        .collect();
    let result = analysis(
        &mut server,
        json!({"analysis_type": "compliance_check", "parameters": {"facts": {"n": 4_999}, "rules": rules}, "output_format": "summary"}),
    );
    let content = &result["structuredContent"];
    assert!(
        content["text"]
            .as_str()
            .unwrap()
            .starts_with("Overall: fail. Of 10000 rules: 5000 passed, 5000 failed"),
        "{content}"
    );
    let link =
        result["content"].as_array().unwrap().iter().find(|block| block["type"] == "resource_link").unwrap();
    assert_eq!(link["name"], "report.json");
    let read = server.request("resources/read", json!({"uri": link["uri"]}));
    assert!(read["result"]["contents"][0]["text"].as_str().unwrap().starts_with('{'), "{read}");
    assert!(result.to_string().len() < 200_000);
}
