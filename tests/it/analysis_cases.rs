//! Comparison and scenario: each case must be what the inner analysis says alone, and the differences what is left
//! when one is taken from the other.

use pathbox::analysis::{self, Kind, OutputFormat};
use serde_json::{Value, json};

use crate::analysis_run::{answers, each, golden, output, refusal};

fn flat(rate: &str) -> Value {
    json!([{"id": "tax", "bands": [{"rate": rate}]}])
}

fn formula(values: Value, formulas: &[(&str, &str)]) -> Value {
    let formulas: Vec<_> =
        formulas.iter().map(|(id, expression)| json!({"id": id, "expression": expression})).collect();
    json!({"values": values, "formulas": formulas})
}

fn two(analysis: &str, common: Value, a: Value, b: Value) -> Value {
    json!({"analysis": analysis, "common": common, "rule_sets": [{"id": "A", "source": "Act A", "parameters": a}, {"id": "B", "parameters": b}]})
}

fn with(mut parameters: Value, more: Value) -> Value {
    parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    parameters
}

#[test]
fn comparisons_by_hand() {
    let income = json!({"income": "1000"});
    let facts = json!({"facts": {"n": 10}});
    let rule =
        |limit: i64| json!({"rules": [{"id": "r", "requires": {"fact": "n", "op": "ge", "value": limit}}]});
    let scheme = |limit: i64| json!({"schemes": [{"id": "s", "criteria": [{"id": "c", "requires": {"fact": "n", "op": "ge", "value": limit}}]}]});
    let due = |days: i64| json!({"constraints": [{"id": "c", "type": "max_gap", "from": "a", "to": "b", "amount": days}]});
    let events = json!({"events": [{"id": "a", "date": "2024-01-01"}, {"id": "b", "date": "2024-01-11"}]});
    let sum =
        |x: i64| json!({"values": {"x": x, "y": 2}, "formulas": [{"id": "sum", "expression": "x + y"}]});
    golden(
        Kind::Comparison,
        vec![
            (
                "two rates",
                two(
                    "tax_calculation",
                    income.clone(),
                    json!({"levies": flat("20%")}),
                    json!({"levies": flat("30%")}),
                ),
                vec![
                    ("/rule_sets/0/measures/tax", json!("200.00")),
                    ("/rule_sets/1/measures/net", json!("700.00")),
                    ("/best/0/best", json!(["A"])),
                    ("/best/0/differences/B", json!("100.00")),
                    ("/best/1/better", json!("higher")),
                    ("/differing_inputs/0/path", json!("levies[0].bands[0].rate")),
                    ("/differing_inputs/0/values", json!({"A": "0.20", "B": "0.30"})),
                    ("/differing_details/0/path", json!("tax")),
                ],
            ),
            (
                "a tie",
                two(
                    "tax_calculation",
                    income.clone(),
                    json!({"levies": flat("20%")}),
                    json!({"levies": flat("0.2")}),
                ),
                vec![("/best/0/best", json!(["A", "B"])), ("/differing_details", json!([]))],
            ),
            (
                "currencies that differ",
                two(
                    "tax_calculation",
                    income.clone(),
                    json!({"currency": "EUR", "levies": flat("20%")}),
                    json!({"currency": "GBP", "levies": flat("10%")}),
                ),
                vec![
                    ("/best/0/best", json!([])),
                    ("/best/0/reason", json!("the same income figures stand in different currencies")),
                    ("/best/2/best", json!([])),
                ],
            ),
            // 200 EUR of 1000 EUR; 80 GBP of 800 GBP, at 1.25 the same income, are 100 EUR
            (
                "currencies brought together",
                with(
                    two(
                        "tax_calculation",
                        income.clone(),
                        json!({"currency": "EUR", "levies": flat("20%")}),
                        json!({"currency": "GBP", "income": 800, "levies": flat("10%")}),
                    ),
                    json!({"rates_to": {"EUR": 1, "GBP": "1.25"}, "common_currency": "EUR"}),
                ),
                vec![
                    ("/rule_sets/1/measures/tax", json!("100.00")),
                    ("/best/0/differences/A", json!("100.00")),
                    ("/currency", json!("EUR")),
                ],
            ),
            (
                "one levy",
                with(
                    two(
                        "tax_calculation",
                        income.clone(),
                        json!({"levies": flat("20%")}),
                        json!({"levies": flat("30%")}),
                    ),
                    json!({"measures": [{"id": "levy:tax", "better": "higher"}]}),
                ),
                vec![("/best/0/best", json!(["B"]))],
            ),
            (
                "a rate that is not known",
                two(
                    "tax_calculation",
                    json!({"income": "0"}),
                    json!({"levies": flat("20%")}),
                    json!({"levies": flat("30%")}),
                ),
                vec![("/best/2/reason", json!("not known for A, B"))],
            ),
            (
                "rules",
                two("compliance_check", facts.clone(), rule(5), rule(20)),
                vec![
                    ("/best/0/best", json!(["A"])),
                    ("/rule_sets/1/detail/r", json!("fail")),
                    ("/rule_sets/1/measures/failed", json!("1")),
                ],
            ),
            (
                "rules that cannot be answered",
                two("compliance_check", json!({"facts": {}}), rule(5), rule(20)),
                vec![
                    ("/rule_sets/0/measures/unknown", json!("1")),
                    ("/rule_sets/0/measures/passed", json!("0")),
                ],
            ),
            (
                "schemes",
                two("eligibility", facts, scheme(5), scheme(20)),
                vec![
                    ("/best/0/best", json!(["A"])),
                    ("/differing_details/0/values", json!({"A": "eligible", "B": "not_eligible"})),
                ],
            ),
            (
                "deadlines",
                two("timeline", events, due(9), due(14)),
                vec![
                    ("/rule_sets/0/measures/failed", json!("1")),
                    ("/rule_sets/1/measures/least_slack_days", json!("4")),
                    ("/best/0/best", json!(["B"])),
                ],
            ),
            (
                "formulas have no better side",
                two("formula", json!({}), sum(1), sum(5)),
                vec![
                    ("/rule_sets/1/measures/sum", json!("7")),
                    ("/best/0/best", json!([])),
                    ("/best/0/differences/B", json!("4")),
                ],
            ),
            (
                "unless it is said",
                with(
                    two("formula", json!({}), sum(1), sum(5)),
                    json!({"measures": [{"id": "sum", "better": "lower"}]}),
                ),
                vec![("/best/0/best", json!(["A"]))],
            ),
            (
                "objects are joined, lists replaced",
                two(
                    "formula",
                    sum(1),
                    json!({"values": {"x": 3}}),
                    json!({"formulas": [{"id": "sum", "expression": "y"}]}),
                ),
                vec![("/rule_sets/0/measures/sum", json!("5")), ("/rule_sets/1/measures/sum", json!("2"))],
            ),
            (
                "three",
                json!({"analysis": "formula", "common": sum(0), "measures": [{"id": "sum", "better": "higher"}], "rule_sets": [
                {"id": "A", "parameters": {}}, {"id": "B", "parameters": {"values": {"x": 7}}}, {"id": "C", "parameters": {"values": {"x": "7.0"}}}]}),
                vec![("/best/0/best", json!(["B", "C"]))],
            ),
            (
                "a sum of tenths",
                two(
                    "formula",
                    json!({"formulas": [{"id": "s", "expression": "a + b - 0.3"}]}),
                    json!({"values": {"a": 0.1, "b": 0.2}}),
                    json!({"values": {"a": 0.1, "b": 0.3}}),
                ),
                vec![("/rule_sets/0/measures/s", json!("0.0")), ("/rule_sets/1/measures/s", json!("0.1"))],
            ),
        ],
    );
}

#[test]
fn a_comparison_says_what_each_analysis_says_alone() {
    let sets: Vec<Value> = (1..6).map(|n| json!({"levies": [{"id": "tax", "bands": [{"up_to": n * 100, "rate": "10%"}, {"rate": "35%"}]}]})).collect();
    let alone =
        each(Kind::TaxCalculation, sets.iter().map(|set| with(set.clone(), json!({"income": "777.77"}))));
    let rule_sets: Vec<_> =
        sets.iter().enumerate().map(|(n, set)| json!({"id": n.to_string(), "parameters": set})).collect();
    let together = output(
        Kind::Comparison,
        json!({"analysis": "tax_calculation", "common": {"income": "777.77"}, "rule_sets": rule_sets}),
    );
    for (alone, compared) in alone.into_iter().zip(together["rule_sets"].as_array().unwrap()) {
        assert_eq!(alone.unwrap().output["totals"]["tax"], compared["measures"]["tax"]);
    }
}

#[test]
fn scenarios_by_hand() {
    let business = formula(
        json!({"price": "10", "units": "100", "fixed": "300", "cost": "6.5"}),
        &[("profit", "(price - cost) * units - fixed")],
    );
    let case = |more: Value| with(json!({"analysis": "formula", "base": business}), more);
    let set = |path: &str, value: Value| json!({"scenarios": [{"id": "s", "set": [{"path": path, "value": value}]}]});
    let search = |low: &str, high: &str, target: &str, tolerance: &str| json!({"break_even": {"path": "values.price", "low": low, "high": high, "measure": "profit", "target": target, "tolerance": tolerance}});
    let tax = json!({"income": "1000", "levies": [{"id": "tax", "bands": [{"up_to": "500", "rate": "10%"}, {"rate": "30%"}]}]});
    let tax_case = |more: Value| with(json!({"analysis": "tax_calculation", "base": tax}), more);
    golden(
        Kind::Scenario,
        vec![
            (
                "base",
                case(json!({})),
                vec![
                    ("/base/measures/profit", json!("50")),
                    ("/scenarios", json!([])),
                    ("/break_even", json!(null)),
                ],
            ),
            (
                "no change",
                case(json!({"scenarios": [{"id": "s", "set": []}]})),
                vec![
                    ("/scenarios/0/differences/profit/absolute", json!("0")),
                    ("/scenarios/0/differences/profit/relative", json!("0.000000")),
                    ("/scenarios/0/detail_changes", json!([])),
                ],
            ),
            // (11 - 6.5) × 100 - 300 = 150: 100 more, which is 200 %
            (
                "a higher price",
                case(set("values.price", json!("11"))),
                vec![
                    ("/scenarios/0/measures/profit", json!("150")),
                    ("/scenarios/0/differences/profit/absolute", json!("100")),
                    ("/scenarios/0/differences/profit/relative", json!("2.000000")),
                ],
            ),
            (
                "a new value",
                case(
                    json!({"scenarios": [{"id": "s", "set": [{"path": "values.tax", "value": "5"}, {"path": "formulas[0].expression", "value": "price - tax"}]}]}),
                ),
                vec![("/scenarios/0/measures/profit", json!("5"))],
            ),
            (
                "one on another",
                case(json!({"scenarios": [
                {"id": "s", "based_on": "t", "set": [{"path": "values.units", "value": 200}]}, {"id": "t", "set": [{"path": "values.price", "value": 11}]}]})),
                vec![
                    ("/scenarios/0/measures/profit", json!("600")),
                    ("/scenarios/0/based_on", json!("t")),
                    ("/scenarios/1/measures/profit", json!("150")),
                    ("/scenarios/1/based_on", json!("base")),
                ],
            ),
            // (p - 6.5) × 100 = 300 at 9.50
            (
                "break even",
                case(search("0", "50", "0", "0.01")),
                vec![
                    ("/break_even/found", json!(true)),
                    ("/break_even/at/0/at", json!("9.5")),
                    ("/break_even/at/0/exact", json!(true)),
                ],
            ),
            (
                "never",
                case(search("0", "9", "0", "0.01")),
                vec![
                    ("/break_even/found", json!(false)),
                    ("/break_even/at_high", json!("-50")),
                    ("/break_even/nearest/at", json!("9")),
                ],
            ),
            (
                "at the low end",
                case(search("9.5", "20", "0", "0.01")),
                vec![("/break_even/at/0/at", json!("9.5"))],
            ),
            (
                "at the high end",
                case(search("1", "9.5", "0", "0.01")),
                vec![("/break_even/at/0/exact", json!(true))],
            ),
            // x² = 4 twice
            (
                "two places",
                json!({"analysis": "formula", "base": formula(json!({"x": 0}), &[("y", "x ** 2")]), "break_even": {"path": "values.x", "low": "-5.3", "high": 5, "measure": "y", "target": 4, "tolerance": "0.001"}}),
                vec![("/break_even/at/0/at", json!("-2")), ("/break_even/at/1/at", json!("2"))],
            ),
            // nothing up to 10, and the whole range where it never changes
            (
                "a figure that stays",
                json!({"analysis": "formula", "base": formula(json!({"x": 0}), &[("y", "max(x - 10, 0)")]), "break_even": {"path": "values.x", "low": "0", "high": "40", "measure": "y", "target": "0"}}),
                vec![(
                    "/break_even/at",
                    json!([{"at": "0", "value": "0", "exact": true, "between": ["0", "10"], "values": ["0", "0"]}]),
                )],
            ),
            (
                "a figure that never changes",
                json!({"analysis": "formula", "base": formula(json!({"x": 0}), &[("y", "0 * x + 7")]), "break_even": {"path": "values.x", "low": "-1", "high": "1", "measure": "y", "target": "7"}}),
                vec![(
                    "/break_even/at",
                    json!([{"at": "-1", "value": "7", "exact": true, "between": ["-1", "1"], "values": ["7", "7"]}]),
                )],
            ),
            // 50 + 30 % of what is above 500 is 200 at 1,000; the whole is tax = 230 at 1,100
            (
                "income for a tax",
                tax_case(
                    json!({"break_even": {"path": "income", "low": "0", "high": "5000", "measure": "tax", "target": "230"}}),
                ),
                vec![("/break_even/at/0/value", json!("230.00"))],
            ),
            (
                "rate for a net",
                tax_case(
                    json!({"break_even": {"path": "levies[0].bands[1].rate", "low": "0", "high": "1", "measure": "net", "target": "700", "tolerance": "0.0001"}}),
                ),
                vec![("/break_even/at/0/at", json!("0.5")), ("/break_even/at/0/exact", json!(true))],
            ),
            // 3 × 2 cells: (p - 6.5) × u - 300
            (
                "a grid",
                case(
                    json!({"grid": {"rows": {"path": "values.price", "values": ["6.5", "10", "12.5"]}, "columns": {"path": "values.units", "values": [0, 100]}, "measure": "profit"}}),
                ),
                vec![("/grid/cells", json!([["-300", "-300"], ["-300", "50"], ["-300", "300"]]))],
            ),
            (
                "whole numbers only",
                json!({"analysis": "timeline", "base": {"events": [{"id": "a", "date": "2024-01-01"}, {"id": "b", "date": "2024-01-11"}],
                "constraints": [{"id": "c", "type": "max_gap", "from": "a", "to": "b", "amount": 5}]}, "break_even": {"path": "constraints[0].amount", "low": 0, "high": 40, "measure": "least_slack_days", "target": 0}}),
                vec![("/break_even/at/0/at", json!("10")), ("/base/measures/failed", json!("1"))],
            ),
            (
                "facts",
                json!({"analysis": "compliance_check", "base": {"facts": {"a.b": 3}, "rules": [{"id": "r", "requires": {"fact": "a.b", "op": "ge", "value": 5}}]},
                "scenarios": [{"id": "s", "set": [{"path": "facts.a.b", "value": 5}]}]}),
                vec![
                    ("/base/detail/r", json!("fail")),
                    (
                        "/scenarios/0/detail_changes/0",
                        json!({"detail": "r", "base": "fail", "scenario": "pass"}),
                    ),
                ],
            ),
        ],
    );
}

fn search(expression: &str, low: &str, high: &str, target: &str) -> Value {
    json!({"analysis": "formula", "base": formula(json!({"x": 99}), &[("y", expression)]),
        "break_even": {"path": "values.x", "low": low, "high": high, "measure": "y", "target": target}})
}

fn place(at: &str, value: &str) -> Value {
    json!({"at": at, "value": value, "exact": true, "between": [at, at], "values": [value, value]})
}

#[test]
fn a_search_goes_around_numbers_without_a_value_and_through_no_pole() {
    let zero = |at: &str| json!([{"between": [at, at], "reason": "division by zero"}]);
    let infinite = |low: &str, high: &str| json!([{"between": [low, high], "reason": "it goes to infinity between them"}]);
    golden(
        Kind::Scenario,
        vec![
            (
                "a pole among the samples",
                search("1 / (x - 3)", "0", "40", "1"),
                vec![("/break_even/at", json!([place("4", "1")])), ("/break_even/without_value", zero("3"))],
            ),
            (
                "a pole that the halving meets",
                search("1 / (x - 3)", "0", "41", "0"),
                vec![("/break_even/at", json!([])), ("/break_even/without_value", zero("3"))],
            ),
            (
                "a pole that no number meets",
                search("1 / (3 * x - 10)", "0", "41", "0"),
                vec![
                    ("/break_even/found", json!(false)),
                    ("/break_even/without_value", infinite("3.33125", "3.3392578125")),
                ],
            ),
            (
                "a jump that is not a pole",
                search("100 if x > 10 / 3 else 2", "0", "40", "8"),
                vec![
                    ("/break_even/at/0/values", json!(["2", "100"])),
                    ("/break_even/without_value", json!([])),
                ],
            ),
            (
                "a root of negative numbers, and the target where it begins",
                search("(x - 0.7) ** 0.5", "-1.3", "41", "0"),
                vec![
                    ("/break_even/at", json!([place("0.7", "0")])),
                    ("/break_even/at_low", json!(null)),
                    ("/break_even/without_value/0/between", json!(["-1.3", "0.69999"])),
                ],
            ),
            (
                "the place of 0 / 0 is none, whichever way it is met",
                search("(x ** 2 - 9) / (x - 3)", "0", "41", "6"),
                vec![("/break_even/at", json!([])), ("/break_even/without_value", zero("3"))],
            ),
            (
                "another formula without a value",
                with(
                    search("x - 3", "0", "40", "0"),
                    json!({"base": formula(json!({"x": 99}), &[("y", "x - 3"), ("z", "1 / (x - 3)")])}),
                ),
                vec![("/break_even/at", json!([place("3", "0")])), ("/break_even/without_value", json!([]))],
            ),
            (
                "a grid",
                json!({"analysis": "formula", "base": formula(json!({"x": 99, "n": 1}), &[("each", "x / n"), ("more", "each + 1")]),
                    "grid": {"rows": {"path": "values.x", "values": [1, 6]}, "columns": {"path": "values.n", "values": [0, 2]}, "measure": "more"}}),
                vec![
                    ("/grid/cells", json!([[null, "1.5"], [null, "4"]])),
                    (
                        "/grid/without_value/1",
                        json!({"row": "6", "column": "0", "reason": "division by zero"}),
                    ),
                ],
            ),
            (
                "a figure that a timeline has in some cells only",
                json!({"analysis": "timeline", "base": {"events": [{"id": "a", "date": "2024-01-01"}, {"id": "b"}], "constraints": [
                    {"id": "c", "type": "max_gap", "from": "a", "to": "b", "amount": 9}, {"id": "d", "type": "min_gap", "from": "a", "to": "b", "amount": 5}]},
                    "grid": {"rows": {"path": "constraints[0].amount", "values": [4, 6]}, "columns": {"path": "constraints[1].amount", "values": [5]}, "measure": "latest:b"}}),
                vec![
                    ("/grid/cells", json!([[null], ["2024-01-07"]])),
                    ("/grid/without_value/0/reason", json!("it is not known there")),
                ],
            ),
        ],
    );
    let mut said = search("1 / (x - 3)", "0", "40", "0");
    said["base"]["values"]["n"] = json!(1);
    said["grid"] = json!({"rows": {"path": "values.x", "values": [3]}, "columns": {"path": "values.n", "values": [3]}, "measure": "y"});
    let report = answers(&[(Kind::Scenario, said, OutputFormat::Summary)]).remove(0).unwrap();
    assert_eq!(
        report.notes,
        [
            "y has no value at values.x = 3: division by zero.",
            "y has no value at values.x = 3, values.n = 3: division by zero."
        ]
    );
    let outside = refusal(
        Kind::Scenario,
        json!({"analysis": "tax_calculation", "base": {"income": 1, "levies": [{"id": "t", "bands": [{"up_to": 10, "rate": 0}, {"up_to": 20, "rate": 1}]}]},
            "break_even": {"path": "levies[0].bands[0].up_to", "low": 15, "high": 20.5, "measure": "tax", "target": 1}}),
    );
    assert!(outside.contains("20 is not above 20"), "{outside}");
}

#[test]
fn figures_of_any_size_keep_their_digits() {
    let thirty = "1".repeat(30);
    let long = format!("{thirty}{}", "0".repeat(25));
    let base = |values: Value, rounding: Value| json!({"values": values, "formulas": [{"id": "y", "expression": "x * 10 ** 25"}], "rounding": rounding});
    golden(
        Kind::Scenario,
        vec![
            (
                "rounded to more places than 60 digits have",
                json!({"analysis": "formula", "base": base(json!({"x": thirty}), json!({"places": 8}))}),
                vec![("/base/measures/y", json!(format!("{long}.00000000")))],
            ),
            (
                "more than 50 digits",
                json!({"analysis": "formula", "base": base(json!({"x": format!("{thirty}.{thirty}")}), json!({"places": 2}))}),
                vec![("/base/measures/y", json!(format!("{thirty}{}.11", "1".repeat(25))))],
            ),
            (
                "small beside large",
                json!({"analysis": "formula", "base": formula(json!({"x": 3}), &[("y", "(1 / x) ** 300")]),
                    "scenarios": [{"id": "s", "set": [{"path": "values.x", "value": "0.7"}]}]}),
                vec![(
                    "/scenarios/0/differences/y/absolute",
                    json!("29552076050124080563364456925748123538561044202.043364549774"),
                )],
            ),
        ],
    );
    for (expression, said) in [
        ("(1 / 10) ** 1000 / 10", "nearer to 0 than 10 ** -1000"),
        ("round(2.55, 1.5)", "round takes 0 to 20 places"),
    ] {
        let refused = refusal(
            Kind::Scenario,
            json!({"analysis": "formula", "base": formula(json!({"x": 1}), &[("y", expression)])}),
        );
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn a_scenario_without_a_change_has_no_difference_in_any_analysis() {
    let bases = [
        ("tax_calculation", json!({"income": "1234.56", "levies": flat("12.5%")})),
        (
            "compliance_check",
            json!({"facts": {"a": 1}, "rules": [{"id": "r", "requires": {"fact": "a", "op": "known"}}]}),
        ),
        (
            "eligibility",
            json!({"facts": {"a": 1}, "schemes": [{"id": "s", "criteria": [{"id": "c", "requires": {"fact": "b", "op": "known"}}]}]}),
        ),
        (
            "timeline",
            json!({"events": [{"id": "a", "date": "2024-01-01"}], "constraints": [{"id": "c", "type": "working_day", "event": "a"}]}),
        ),
        ("formula", formula(json!({"x": "0.1"}), &[("y", "x / 3")])),
    ];
    let calls = bases.map(|(analysis, base)| json!({"analysis": analysis, "base": base, "scenarios": [{"id": "same", "set": []}]}));
    for report in each(Kind::Scenario, calls) {
        let output = report.unwrap().output;
        for difference in output["scenarios"][0]["differences"].as_object().unwrap().values() {
            assert!(
                difference["absolute"].is_null()
                    || difference["absolute"].as_str().unwrap().trim_matches(['0', '.']).is_empty(),
                "{output}"
            );
        }
        assert_eq!(output["base"]["measures"], output["scenarios"][0]["measures"]);
    }
}

/// Figures that are shown alike are compared as they are.
#[test]
fn figures_that_differ_behind_the_places_shown_are_not_equal() {
    let tax = |rate: &str| json!({"levies": flat(rate)});
    let sum = |x: &str, more: Value| with(formula(json!({"x": x}), &[("y", "1000 + x / 10 ** 14")]), more);
    golden(
        Kind::Comparison,
        vec![
            (
                "rates",
                two("tax_calculation", json!({"income": "1000000000"}), tax("0.2000001"), tax("0.2000002")),
                vec![
                    ("/best/2/measure", json!("effective_rate")),
                    ("/best/2/best", json!(["A"])),
                    ("/best/2/differences", json!({"A": "0.000000", "B": "0.0000001"})),
                ],
            ),
            (
                "formulas",
                with(
                    two("formula", json!({}), sum("1", json!({})), sum("2", json!({}))),
                    json!({"measures": [{"id": "y", "better": "higher"}]}),
                ),
                vec![
                    ("/best/0/best", json!(["B"])),
                    ("/best/0/differences/A", json!("-0.00000000000001")),
                    ("/best/0/value", json!("1000.00")),
                ],
            ),
            (
                "formulas whose rounding was asked for",
                with(
                    two(
                        "formula",
                        json!({}),
                        sum("1", json!({"rounding": {}})),
                        sum("2", json!({"rounding": {}})),
                    ),
                    json!({"measures": [{"id": "y", "better": "higher"}]}),
                ),
                vec![("/best/0/best", json!(["A", "B"]))],
            ),
            (
                "figures that were converted are compared as they are shown",
                with(
                    two(
                        "formula",
                        json!({"formulas": [{"id": "y", "expression": "x * 1"}]}),
                        json!({"values": {"x": "10.001 EUR"}}),
                        json!({"values": {"x": "8.004 GBP"}}),
                    ),
                    json!({"rates_to": {"EUR": 1, "GBP": "1.25"}, "common_currency": "EUR", "measures": [{"id": "y", "better": "lower"}]}),
                ),
                vec![("/best/0/best", json!(["A"])), ("/best/0/differences/B", json!("0.01"))],
            ),
            (
                "zeros at the end do not differ",
                two("formula", json!({}), sum("1.50", json!({})), sum("1.5", json!({}))),
                vec![("/differing_inputs", json!([])), ("/differing_details", json!([]))],
            ),
            (
                "a figure that only one has",
                two(
                    "formula",
                    json!({"values": {"x": "1"}}),
                    json!({"formulas": [{"id": "y", "expression": "x"}]}),
                    json!({"formulas": [{"id": "y", "expression": "x"}, {"id": "z", "expression": "2 * x"}]}),
                ),
                vec![
                    ("/rule_sets/0/measures", json!({"y": "1", "z": null})),
                    ("/rule_sets/1/measures/z", json!("2")),
                    ("/best/1/reason", json!("not known for A")),
                ],
            ),
        ],
    );
    golden(
        Kind::Scenario,
        vec![(
            "a small change",
            json!({"analysis": "formula", "base": formula(json!({"x": "1000000000"}), &[("y", "x")]),
                "scenarios": [{"id": "s", "set": [{"path": "values.x", "value": "1000000001"}]}]}),
            vec![("/scenarios/0/differences/y", json!({"absolute": "1", "relative": "0.000000001"}))],
        )],
    );
}

#[test]
fn formulas_are_arithmetic_and_nothing_else() {
    let value = |expression: &str| json!({"analysis": "formula", "base": formula(json!({"x": "2", "y": "-3.5"}), &[("out", expression)])});
    let good = [
        ("0.1 + 0.2", "0.3"),
        ("x ** 10", "1024"),
        ("-y", "3.5"),
        ("7 // x", "3"),
        ("-7 // x", "-4"),
        ("-7 % 3", "2"),
        ("1 / 3", "0.333333333333"),
        ("min(x, y, 4)", "-3.5"),
        ("max(x, y)", "2"),
        ("abs(y)", "3.5"),
        ("round(2.345, 2)", "2.35"),
        ("floor(y)", "-4"),
        ("ceil(y)", "-3"),
        ("x if x > 1 and not y > 0 else y", "2"),
        ("1 < x < 3", "1"),
        ("x == 2.0", "1"),
        ("(x + 1) * 2", "6"),
        ("1_000 * x", "2000"),
        // quotients stay whole fractions: what depends on them falls on the right side
        ("floor(100 / 3 * 3)", "100"),
        ("1 / 49 * 49 >= 1", "1"),
        ("abs(1 - 1 / 3 * 3) > 0", "0"),
        ("10 % (10 / 3)", "0"),
        ("round(-2.5)", "-3"),
        ("4 ** 0.5", "2"),
        ("2 ** -2", "0.25"),
        ("(1 / 3) ** 900 * 3 ** 100 * 3 ** 100 > 0", "1"),
        ("0.00000001 ** 2", "0.0000000000000001"),
    ];
    for ((expression, expected), report) in
        good.iter().zip(each(Kind::Scenario, good.iter().map(|(expression, _)| value(expression))))
    {
        assert_eq!(report.unwrap().output["base"]["measures"]["out"], *expected, "{expression}");
    }
    for (expression, said) in [
        ("__import__('os').system('true')", "only arithmetic"),
        ("().__class__", "only arithmetic"),
        ("x.real", "there is no value 'x.real'"),
        ("[1][0]", "only arithmetic"),
        ("lambda: 1", "only arithmetic"),
        ("(lambda: 1)()", "only arithmetic"),
        ("open('/etc/passwd')", "only arithmetic"),
        ("max(*x)", "only arithmetic"),
        ("min(x, key=abs)", "only arithmetic"),
        ("'a' * 9", "not a plain number"),
        ("1e9", "not a plain number"),
        ("0x10", "not a plain number"),
        ("2j", "not a plain number"),
        ("z + 1", "there is no value 'z'"),
        ("x / 0", "division by zero"),
        ("0 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("y ** 0.5", "this has no value"),
        ("9 ** 9 ** 9", "more than"),
        ("10 ** 100", "more than 60 digits"),
        ("x +", "cannot be read as an expression"),
        ("x = 1", "cannot be read as an expression"),
        ("x\n+1; import os", "cannot be read as an expression"),
        ("abs(x, y)", "abs takes 1 to 1"),
        ("x << 2", "only + - * / // % and **"),
    ] {
        let refused = refusal(Kind::Scenario, value(expression));
        assert!(refused.contains(said), "{expression}: {refused}");
    }
    let deep = format!("{}1{}", "(".repeat(900), ")".repeat(900));
    refusal(Kind::Scenario, value(&deep));
    refusal(Kind::Scenario, value(&format!("{}1", "-".repeat(1_900))));
}

#[test]
fn cases_that_make_no_sense_are_refused_with_their_place() {
    let base = formula(json!({"x": 1}), &[("y", "x")]);
    let case = |more: Value| with(json!({"analysis": "formula", "base": base}), more);
    for (parameters, said) in [
        (
            case(
                json!({"scenarios": [{"id": "a", "based_on": "b", "set": []}, {"id": "b", "based_on": "a", "set": []}]}),
            ),
            "based on each other in a cycle",
        ),
        (
            case(json!({"scenarios": [{"id": "a", "based_on": "a", "set": []}]})),
            "scenarios[0].based_on: scenarios are based on each other in a cycle",
        ),
        (
            case(json!({"scenarios": [{"id": "a", "based_on": "z", "set": []}]})),
            "scenarios[0].based_on: there is no scenario of that id",
        ),
        (
            case(json!({"scenarios": [{"id": "base", "set": []}]})),
            "scenarios[0].id: the id occurs twice, or is `base`",
        ),
        (
            case(json!({"scenarios": [{"id": "a", "set": [{"path": "values.x.y", "value": 1}]}]})),
            "scenarios[0].set[0].path: the path leads nowhere",
        ),
        (
            case(json!({"scenarios": [{"id": "a", "set": [{"path": "formulas[7].id", "value": "z"}]}]})),
            "scenarios[0].set[0].path: the path leads nowhere",
        ),
        (
            case(json!({"scenarios": [{"id": "a", "set": [{"path": "values.x", "value": "much"}]}]})),
            "scenarios[0].values.x: expected a number",
        ),
        (
            case(json!({"scenarios": [{"id": "a", "set": [{"path": "extra", "value": 1}]}]})),
            "got the unknown field \"extra\"",
        ),
        (
            case(
                json!({"break_even": {"path": "formulas[0].expression", "low": 0, "high": 1, "measure": "y", "target": 0}}),
            ),
            "break_even.path: its value is not a number",
        ),
        (
            case(
                json!({"break_even": {"path": "values.z", "low": 0, "high": 1, "measure": "y", "target": 0}}),
            ),
            "break_even.path: the path leads nowhere",
        ),
        (
            case(
                json!({"break_even": {"path": "values.x", "low": 1, "high": 1, "measure": "y", "target": 0}}),
            ),
            "break_even.low: the low end is not below",
        ),
        (
            case(
                json!({"break_even": {"path": "values.x", "low": 0, "high": 1, "measure": "q", "target": 0}}),
            ),
            "break_even.measure: there is no figure 'q'; there are: y",
        ),
        (
            case(
                json!({"break_even": {"path": "values.x", "low": 0, "high": 1, "measure": "y", "target": 0, "tolerance": 0}}),
            ),
            "break_even.tolerance: too fine",
        ),
        (case(json!({"measures": [{"id": "q"}]})), "measures[0].id: there is no figure 'q'"),
        (
            case(
                json!({"grid": {"rows": {"path": "values.x", "values": [1]}, "columns": {"path": "values.x", "values": [2]}, "measure": "y"}}),
            ),
            "grid.columns.path: rows and columns change the same number",
        ),
        (
            json!({"analysis": "tax_calculation", "base": {"income": 1, "levies": flat("10%")}, "break_even": {"path": "levies[0].bands[0].rate", "low": 0, "high": 5, "measure": "tax", "target": 0}}),
            "rate: expected a share from 0 to 1",
        ),
        (
            json!({"analysis": "tax_calculation", "base": {"income": 1, "levies": []}}),
            "base.levies: expected a list of 1 to 50",
        ),
        (
            json!({"analysis": "tax_calculation", "base": {"levies": flat("10%")}}),
            "base.parameters: exactly one of income",
        ),
    ] {
        let refused = refusal(Kind::Scenario, parameters.clone());
        assert!(refused.contains(said), "{parameters}: {refused}");
    }
    let refused = refusal(
        Kind::Comparison,
        two(
            "tax_calculation",
            json!({"income": 1}),
            json!({"levies": flat("10%")}),
            json!({"levies": [{"id": "t"}]}),
        ),
    );
    assert!(refused.contains("rule_sets[1].parameters.levies[0]: a levy needs bands"), "{refused}");
}

#[test]
fn tables_and_sentences_carry_the_figures() {
    let parameters = two(
        "tax_calculation",
        json!({"income": "1000"}),
        json!({"levies": flat("20%")}),
        json!({"levies": flat("30%")}),
    );
    let calls = [
        (Kind::Comparison, parameters.clone(), OutputFormat::Table),
        (Kind::Comparison, parameters, OutputFormat::Summary),
    ];
    let mut reports = answers(&calls).into_iter().map(Result::unwrap);
    let table = reports.next().unwrap().text;
    assert!(table.contains("| A        | 200.00 | 800.00 |"), "{table}");
    assert!(table.contains("| Act A"), "{table}");
    let summary = reports.next().unwrap().text;
    assert!(summary.contains("Tax: A 200.00, B 300.00. Best (lower): A."), "{summary}");
    assert!(summary.ends_with(analysis::DISCLAIMER));
}
