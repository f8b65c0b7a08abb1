//! No answer beside the question: a name that is not there is an error that names it and the nearest that is; what
//! cannot be compared is not ranked; what is shown can be read.

use pathbox::analysis::{Kind, OutputFormat};
use serde_json::{Value, json};

use crate::analysis_run::{answers, each, golden, output, refusal};

fn text(kind: Kind, parameters: Value, format: OutputFormat) -> String {
    answers(&[(kind, parameters, format)]).remove(0).unwrap().text
}

#[test]
fn a_name_that_is_not_there_is_an_error_with_the_nearest_that_is() {
    let salary = json!([{"kind": "salary", "amount": 100}]);
    let band = json!([{"rate": "10%"}]);
    let facts = json!({"age": 30});
    let old = json!({"fact": "age", "op": "ge", "value": 18});
    for (kind, parameters, said) in [
        (
            Kind::TaxCalculation,
            json!({"incomes": salary, "levies": [{"id": "t", "incomes": ["salry"], "bands": band}]}),
            "levies[0].incomes[0]: there is no income 'salry'; the nearest is 'salary'",
        ),
        (
            Kind::TaxCalculation,
            json!({"incomes": salary, "levies": [{"id": "est", "bands": band}, {"id": "soli", "on_top_of": ["est"], "bands": band}]}),
            "levies[1].on_top_of[0]: 'est' is a levy and not an income; a levy on another levy names it in on_levies",
        ),
        (
            Kind::TaxCalculation,
            json!({"incomes": salary, "levies": [{"id": "t", "bands": band, "credits": [{"id": "c", "amount": 1, "persons": ["persn"]}]}]}),
            "levies[0].credits[0].persons[0]: there is no person 'persn'; the nearest is 'person'",
        ),
        (
            Kind::ComplianceCheck,
            json!({"facts": facts, "rules": [{"id": "adult", "requires": old}, {"id": "s", "requires": {"result": "adlt"}}]}),
            "rules[1].requires.result: there is no earlier result 'adlt'; the nearest is 'adult'",
        ),
        (
            Kind::ComplianceCheck,
            json!({"facts": facts, "rules": [{"id": "adult", "requires": old}, {"id": "s", "requires": {"result": "adult", "status": "passed"}}]}),
            "rules[1].requires.status: there is no status 'passed'; the nearest is 'pass'",
        ),
        (
            Kind::Timeline,
            json!({"events": [{"id": "filed"}], "constraints": [{"id": "c", "type": "deadline", "event": "filled", "date": "2024-01-01"}]}),
            "constraints[0].event: there is no event 'filled'; the nearest is 'filed'",
        ),
        (
            Kind::Timeline,
            json!({"events": [{"id": "filed"}], "calendars": [{"id": "IE"}], "constraints": [{"id": "c", "type": "working_day", "event": "filed", "calendar": "UK"}]}),
            "constraints[0].calendar: there is no calendar 'UK'; there are: IE",
        ),
        (
            Kind::Comparison,
            json!({"analysis": "formula", "common": {"values": {"rate": 1}, "formulas": [{"id": "due", "expression": "rat * 2"}]},
                "rule_sets": [{"id": "a", "parameters": {}}, {"id": "b", "parameters": {}}]}),
            "there is no value 'rat'; the nearest is 'rate'",
        ),
        (
            Kind::DataAnalysis,
            json!({"csv": "amount\n1\n", "operations": [{"do": "outliers", "column": "amuont"}]}),
            "operations[0].column: there is no column 'amuont'; the nearest is 'amount'",
        ),
        (
            Kind::DataAnalysis,
            json!({"csv": "id\n1\n", "join": {"csv": "id,v\n1,2\n", "on": ["ID"]}}),
            "join.on[0]: there is no column of the first table 'ID'",
        ),
    ] {
        let problem = refusal(kind, parameters.clone());
        assert!(problem.contains(said), "{parameters}: {problem}");
    }
}

#[test]
fn a_missing_fact_stays_unknown_and_a_mistyped_one_is_pointed_out() {
    let report = each(
        Kind::ComplianceCheck,
        [json!({"facts": {"salary": 10}, "rules": [{"id": "r", "requires": {"fact": "salry", "op": "ge", "value": 5}}]})],
    )
    .remove(0)
    .unwrap();
    assert_eq!(report.output["overall"], "unknown");
    assert!(
        report.notes.iter().any(|note| note.contains("'salry'; the nearest that was given is 'salary'")),
        "{:?}",
        report.notes
    );
}

#[test]
fn a_rule_may_ask_for_the_result_of_an_earlier_one() {
    let rules = |staff: Value| {
        json!({"facts": {"staff": staff, "audited": true}, "rules": [
            {"id": "small", "requires": {"fact": "staff", "op": "le", "value": 50}},
            {"id": "audit", "requires": {"any": [{"result": "small"}, {"fact": "audited", "op": "is_true"}]}},
            {"id": "large", "requires": {"not": {"result": "small"}}}]})
    };
    golden(
        Kind::ComplianceCheck,
        vec![
            (
                "passed",
                rules(json!(10)),
                vec![("/rules/1/status", json!("pass")), ("/rules/2/status", json!("fail"))],
            ),
            (
                "failed",
                rules(json!(60)),
                vec![("/rules/1/status", json!("pass")), ("/rules/2/status", json!("pass"))],
            ),
            (
                "unknown",
                rules(Value::Null),
                vec![
                    ("/rules/1/status", json!("pass")),
                    ("/rules/2/status", json!("unknown")),
                    ("/rules/2/missing", json!(["staff"])),
                ],
            ),
        ],
    );
}

#[test]
fn everything_that_matters_is_in_the_table_and_in_the_summary() {
    let compliance = json!({"facts": {"staff": 60, "waiver": false}, "rules": [{"id": "r", "title": "Small company", "remedy": "Split the company",
        "source": "Act, s. 3", "requires": {"any": [{"fact": "staff", "op": "le", "value": 50}, {"fact": "waiver", "op": "is_true"}]}}]});
    let eligibility = json!({"facts": {"age": 17}, "schemes": [{"id": "s", "benefit": "EUR 500 a year", "criteria": [
        {"id": "c", "title": "Adult", "requires": {"fact": "age", "op": "ge", "value": 18}}]}]});
    let excess = json!({"facts": {"cash": 120}, "rules": [{"id": "r", "requires": {"fact": "cash", "op": "le", "value": 100}}]});
    for format in [OutputFormat::Table, OutputFormat::Summary] {
        let shown = text(Kind::ComplianceCheck, compliance.clone(), format);
        for part in
            ["Small company", "Split the company", "Act, s. 3", "staff at most 50, over by 10 or waiver true"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let shown = text(Kind::Eligibility, eligibility.clone(), format);
        for part in ["EUR 500 a year", "Adult", "age at least 18, short by 1"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let shown = text(Kind::ComplianceCheck, excess.clone(), format);
        assert!(shown.contains("over by 20") && !shown.contains("short by"), "{shown}");
    }
    let timeline = json!({"events": [{"id": "start", "date": "31 January 2024"}, {"id": "filed", "date": "01.03.2024"}], "constraints": [
        {"id": "c", "title": "Filing", "type": "max_gap", "from": "start", "to": "filed", "amount": 1, "unit": "months"}]});
    let said = text(Kind::Timeline, timeline, OutputFormat::Summary);
    assert!(
        said.starts_with(
            "Of 1 constraint: 0 satisfied, 1 violated, 0 unknown.\nLast allowed day by Filing: 2024-02-29."
        ),
        "{said}"
    );
    assert!(said.contains("filed is on 2024-03-01, 1 day later"), "{said}");
}

#[test]
fn unambiguous_names_are_accepted_and_noted() {
    let old = json!({"facts": {"age": 45}, "schemes": [{"name": "pension", "criteria": [{"fact": "age", "operator": ">=", "value": 66}]}]});
    let tax = json!({"income": 85000, "levies": [{"name": "tax", "bands": [{"min": 0, "max": 42000, "rate": 0.2}, {"min": 42000, "rate": 0.4}]}]});
    let data = json!({"data": [{"v": 1}, {"v": 3}], "operations": ["describe"]});
    let code = json!({"code": "params['n'] * 2", "inputs": {"n": 4}});
    let text = json!({"records": "[{\"v\": 1}, {\"v\": 3}]", "csv": "", "operations": [{"do": "describe", "date": ""}]});
    for (kind, parameters, pointer, value, note) in [
        (Kind::Eligibility, old, "/schemes/0/status", json!("not_eligible"), "\">=\" was read as \"ge\"."),
        (Kind::TaxCalculation, tax, "/totals/tax", json!("25600.00"), "`max` was read as `up_to`."),
        (Kind::DataAnalysis, data, "/results/0/columns/0/mean", json!("2"), "`data` was read as `records`."),
        (Kind::DataAnalysis, text, "/results/0/columns/0/mean", json!("2"), "`records` was read as JSON."),
        (Kind::Custom, code, "/result", json!(8), "`inputs` was read as `params`."),
    ] {
        let report = each(kind, [parameters]).remove(0).unwrap();
        assert_eq!(report.output.pointer(pointer), Some(&value), "{}", report.output);
        assert!(report.notes.iter().any(|said| said == note), "{:?}", report.notes);
    }
    let empty = refusal(Kind::DataAnalysis, json!({"csv": ""}));
    assert!(empty.contains("exactly one of records, csv or file is needed, not none"), "{empty}");
    assert!(refusal(Kind::DataAnalysis, json!({"records": "[1"})).contains("records: expected a list"));
    // a rate of 20 has no certain meaning
    let twenty = json!({"income": 1, "levies": [{"id": "t", "bands": [{"rate": 20}]}]});
    assert!(refusal(Kind::TaxCalculation, twenty).contains("a percentage as text like \"20%\""));
}

#[test]
fn one_column_has_one_format_and_a_search_has_no_more_digits_than_it_found() {
    let tax = json!({"income": "20000.5", "levies": [{"id": "t", "bands": [{"up_to": 1001, "rate": "6%"}, {"rate": "44%"}]}]});
    let table = text(Kind::TaxCalculation, tax.clone(), OutputFormat::Table);
    assert!(table.contains("|   60.06 |") && table.contains("| 8359.78 |"), "{table}");
    let search = json!({"analysis": "tax_calculation", "base": tax, "break_even":
        {"path": "income", "low": 0, "high": 50000, "measure": "tax", "target": "1000", "tolerance": "0.01"}});
    let found = output(Kind::Scenario, search)["break_even"]["at"][0].clone();
    let at = found["at"].as_str().unwrap();
    assert!(at.split_once('.').is_none_or(|(_, fraction)| fraction.len() <= 2), "{found}");
}

#[test]
fn incomes_that_are_equal_figures_in_different_currencies_are_not_ranked() {
    let levies = json!([{"id": "t", "bands": [{"rate": "20%"}]}]);
    let sets = |euros: i64, pounds: i64| {
        json!({"analysis": "tax_calculation", "common": {"levies": levies}, "rates_to": {"EUR": 1, "GBP": "1.2"}, "common_currency": "EUR",
            "rule_sets": [{"id": "IE", "parameters": {"currency": "EUR", "income": euros}}, {"id": "UK", "parameters": {"currency": "GBP", "income": pounds}}]})
    };
    golden(
        Kind::Comparison,
        vec![
            (
                "the same figure",
                sets(60_000, 60_000),
                vec![
                    ("/best/0/best", json!([])),
                    ("/best/2/reason", json!("the same income figures stand in different currencies")),
                ],
            ),
            (
                "each in its own currency",
                sets(60_000, 50_000),
                vec![("/best/0/best", json!(["IE", "UK"])), ("/best/0/value", json!("12000.00"))],
            ),
        ],
    );
}

#[test]
fn dates_are_read_where_their_order_is_certain() {
    let column = |csv: &str, more: Value| {
        let mut parameters = json!({"csv": csv, "operations": [{"do": "describe"}]});
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        parameters
    };
    let first = "/results/0/columns/0/min";
    golden(
        Kind::DataAnalysis,
        vec![
            (
                "German",
                column("d\n31.12.2024\n1.2.2025\n", json!({})),
                vec![("/columns/0/type", json!("date")), (first, json!("2024-12-31"))],
            ),
            (
                "a day above 12",
                column("d\n3/4/2024\n13/4/2024\n", json!({})),
                vec![(first, json!("2024-04-03"))],
            ),
            ("American", column("d\n3/4/2024\n3/14/2024\n", json!({})), vec![(first, json!("2024-03-04"))]),
            (
                "stated",
                column("d\n3/4/2024\n", json!({"date_order": "mdy"})),
                vec![(first, json!("2024-03-04"))],
            ),
            (
                "not certain",
                column("d\n3/4/2024\n5/6/2024\n", json!({})),
                vec![("/columns/0/type", json!("text"))],
            ),
        ],
    );
    golden(
        Kind::Eligibility,
        vec![(
            "a fact",
            json!({"facts": {"born": "31.12.1990", "moved": "1 May 2020"}, "as_of": "30.12.2020", "schemes": [{"id": "s", "criteria": [
                {"id": "a", "requires": {"fact": "born", "op": "age_at_most", "value": 29}},
                {"id": "b", "requires": {"fact": "moved", "op": "eq", "value": "2020-05-01"}}]}]}),
            vec![("/eligible", json!(["s"]))],
        )],
    );
}

#[test]
fn tables_are_joined_filled_and_grouped_by_period() {
    let sales =
        "day;shop;amount\n2024-12-31;1;10,50\n2025-01-02;2;20,00\n2025-03-01;1;\n2025-03-09;3;40,00\n";
    let with = |more: Value| {
        let mut parameters = json!({"csv": sales, "decimal": ","});
        parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        parameters
    };
    let shops = json!({"csv": "shop,town\n1,Cork\n2,Galway\n", "on": ["shop"]});
    let by_town = json!([{"do": "group_by", "by": ["town"], "measures": [{"function": "sum", "column": "amount"}, {"function": "percentile", "percent": 50, "column": "amount"}]}]);
    let months = json!([{"do": "time_series", "date": "day", "period": "month", "measures": [{"function": "sum", "column": "amount"}]}]);
    golden(
        Kind::DataAnalysis,
        vec![
            (
                "an inner join",
                with(json!({"join": shops, "operations": by_town})),
                vec![
                    ("/rows", json!(3)),
                    ("/results/0/groups/0/group", json!(["Cork"])),
                    ("/results/0/groups/1/values", json!(["20.00", "20"])),
                ],
            ),
            (
                "a left join",
                with(
                    json!({"join": {"csv": "shop,town\n1,Cork\n", "on": ["shop"], "how": "left"}, "operations": by_town}),
                ),
                vec![
                    ("/rows", json!(4)),
                    ("/results/0/groups/1/group", json!([null])),
                    ("/results/0/groups/1/values/0", json!("60.00")),
                ],
            ),
            (
                "filled with the row before",
                with(json!({"fill": [{"column": "amount", "with": "previous"}]})),
                vec![("/results/0/columns/2/sum", json!("90.50")), ("/results/1/complete_rows", json!(4))],
            ),
            (
                "months, the empty one too",
                with(json!({"operations": months})),
                vec![
                    ("/results/0/groups_in_all", json!(4)),
                    ("/results/0/groups/2/group", json!(["2025-02"])),
                    ("/results/0/groups/2/rows", json!(0)),
                    ("/results/0/groups/3/values", json!(["40.00"])),
                ],
            ),
            (
                "quarters",
                with(
                    json!({"operations": [{"do": "group_by", "by": ["day"], "period": "quarter", "measures": [{"function": "count"}]}]}),
                ),
                vec![
                    ("/results/0/groups/1/group", json!(["2025-Q1"])),
                    ("/results/0/groups/1/values", json!([3])),
                ],
            ),
        ],
    );
}
