//! What holds for every input: names that are not there never give a number, parts add up to totals, the order of inputs
//! changes nothing, and what is rounded is rounded as stated. Values are drawn by proptest and run in one interpreter.

use std::collections::BTreeSet;

use pathbox::analysis::{AnalysisError, Kind, OutputFormat, Report};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::analysis_run::{answers, each};

const DRAWN: usize = 40;

fn draw<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, many: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..many).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

fn ok(answer: Result<Report, AnalysisError>) -> Value {
    answer.unwrap().output
}

/// Cents as decimal text.
fn money(cents: i64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// Decimal text in units of 10^-12.
fn units(value: &Value) -> i128 {
    let text = value.as_str().unwrap();
    let (whole, fraction) =
        text.trim_start_matches('-').split_once('.').unwrap_or((text.trim_start_matches('-'), ""));
    let number: i128 = format!("{whole}{fraction:0<12}").parse().unwrap();
    if text.starts_with('-') { -number } else { number }
}

const UNIT: i128 = 1_000_000_000_000;

#[derive(Debug, Clone)]
struct Tariff {
    ends: BTreeSet<i64>,
    rates: Vec<u32>,
    incomes: Vec<i64>,
}

fn tariff() -> impl Strategy<Value = Tariff> {
    (
        prop::collection::btree_set(1_i64..200_000, 1..6),
        prop::collection::vec(0_u32..600, 6),
        prop::collection::vec(0_i64..20_000_000, 1..6),
    )
        .prop_map(|(ends, rates, incomes)| Tariff { ends, rates, incomes })
}

impl Tariff {
    fn bands(&self) -> Value {
        let ends = self.ends.iter().map(|end| json!(end)).chain([Value::Null]);
        let rate = |rate: &u32| format!("{}.{}%", rate / 10, rate % 10);
        ends.zip(&self.rates).map(|(end, of)| json!({"up_to": end, "rate": rate(of)})).collect()
    }

    fn call(&self, incomes: &[i64], rounding: Value) -> Value {
        let incomes: Vec<Value> = incomes
            .iter()
            .enumerate()
            .map(|(at, cents)| json!({"kind": format!("k{at}"), "amount": money(*cents)}))
            .collect();
        json!({"incomes": incomes, "rounding": rounding, "levies": [
            {"id": "main", "bands": self.bands()}, {"id": "on top", "on_levies": ["main"], "bands": [{"rate": "5.5%"}]}]})
    }
}

#[test]
fn bands_add_up_to_the_levy_and_levies_to_the_total_whatever_is_rounded() {
    let mut calls = Vec::new();
    for tariff in draw(tariff(), DRAWN) {
        for at in ["band", "levy", "total"] {
            calls.push(tariff.call(&tariff.incomes, json!({"at": at})));
        }
    }
    for (call, answer) in calls.iter().zip(each(Kind::TaxCalculation, calls.clone())) {
        let output = ok(answer);
        let period = &output["periods"][0];
        let mut total = 0;
        for levy in period["levies"].as_array().unwrap() {
            let unit = &levy["units"][0];
            let bands: i128 =
                unit["bands"].as_array().unwrap().iter().map(|band| units(&band["amount"])).sum();
            let base: i128 = unit["bands"].as_array().unwrap().iter().map(|band| units(&band["base"])).sum();
            assert_eq!(base, units(&unit["base"]), "every part of the base is in one band: {call}");
            let slack = if call["rounding"]["at"] == "levy" { UNIT / 200 } else { 0 };
            assert!((bands - units(&levy["amount"])).abs() <= slack, "{call}: {output}");
            total += units(&levy["amount"]);
        }
        let slack = if call["rounding"]["at"] == "total" { UNIT / 200 } else { 0 };
        assert!((total - units(&output["totals"]["tax"])).abs() <= slack, "{call}: {output}");
        assert_eq!(
            units(&output["totals"]["net"]),
            units(&output["totals"]["income"]) - units(&output["totals"]["tax"])
        );
    }
}

#[test]
fn each_rounding_mode_moves_an_amount_as_it_says_and_by_less_than_one_step() {
    let modes = ["half_up", "half_even", "half_down", "up", "down", "ceiling", "floor"];
    let mut calls = Vec::new();
    for tariff in draw(tariff(), DRAWN / 2) {
        for mode in modes {
            for places in [0, 2] {
                calls.push(
                    tariff.call(&tariff.incomes, json!({"mode": mode, "places": places, "at": "total"})),
                );
            }
        }
    }
    for (call, answer) in calls.iter().zip(each(Kind::TaxCalculation, calls.clone())) {
        let report = answer.unwrap();
        let (mode, places) =
            (call["rounding"]["mode"].as_str().unwrap(), call["rounding"]["places"].as_u64().unwrap());
        assert!(
            report.arithmetic.contains(&format!("{places} decimal places, {}", mode.replace('_', " "))),
            "{}",
            report.arithmetic
        );
        let exact: i128 = report.output["periods"][0]["levies"]
            .as_array()
            .unwrap()
            .iter()
            .map(|levy| units(&levy["amount"]))
            .sum();
        let rounded = units(&report.output["totals"]["tax"]);
        let step = if places == 0 { UNIT } else { UNIT / 100 };
        assert_eq!(rounded % step, 0, "{call}");
        let moved = rounded - exact;
        match mode {
            "up" | "ceiling" => assert!((0..step).contains(&moved), "{mode}: {exact} to {rounded}"),
            "down" | "floor" => assert!((0..step).contains(&-moved), "{mode}: {exact} to {rounded}"),
            _ => assert!(moved.abs() * 2 <= step, "{mode}: {exact} to {rounded}"),
        }
    }
}

#[test]
fn the_order_of_inputs_changes_nothing() {
    let mut calls = Vec::new();
    let mut pair = |kind, one: Value, other: Value| {
        calls.push((kind, one, OutputFormat::Json));
        calls.push((kind, other, OutputFormat::Json));
    };
    let tariffs = draw(tariff(), DRAWN);
    for tariff in &tariffs {
        let mut turned = tariff.incomes.clone();
        turned.reverse();
        pair(
            Kind::TaxCalculation,
            tariff.call(&tariff.incomes, Value::Null),
            tariff.call(&turned, Value::Null),
        );
        let rows = |cents: &[i64]| -> Value {
            cents.iter().map(|cents| json!({"k": cents % 3, "v": money(*cents)})).collect()
        };
        let data = |rows: Value| {
            json!({"records": rows, "operations": [{"do": "describe"}, {"do": "group_by", "by": ["k"], "measures": [
            {"column": "v", "function": "sum"}, {"column": "v", "function": "median"}]}]})
        };
        pair(Kind::DataAnalysis, data(rows(&tariff.incomes)), data(rows(&turned)));
        let facts = |names: &[i64]| -> Value {
            names
                .iter()
                .enumerate()
                .map(|(at, v)| (format!("f{at}"), json!(v)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let rule = |at: usize| json!({"id": format!("r{at}"), "requires": {"fact": format!("f{at}"), "op": "ge", "value": 5_000_000}});
        let mut rules: Vec<Value> = (0..6).map(rule).collect();
        let check = |rules: &[Value]| json!({"facts": facts(&tariff.incomes), "rules": rules});
        let straight = check(&rules);
        rules.reverse();
        pair(Kind::ComplianceCheck, straight, check(&rules));
    }
    let reports = answers(&calls);
    for (calls, reports) in calls.chunks(2).zip(reports.chunks(2)) {
        let look = |report: &Result<Report, AnalysisError>| {
            let output = &report.as_ref().unwrap().output;
            match calls[0].0 {
                Kind::TaxCalculation => json!([
                    output["totals"]["tax"],
                    output["totals"]["by_levy"],
                    output["totals"]["effective_rate"]
                ]),
                Kind::DataAnalysis => output["results"].clone(),
                _ => json!([output["overall"], output["counts"]]),
            }
        };
        let (mut one, mut other) = (look(&reports[0]), look(&reports[1]));
        for look in [&mut one, &mut other] {
            // the most frequent of equally frequent values are listed by value; a deviation is a sum of floats
            if let Some(columns) = look.pointer_mut("/0/columns").and_then(Value::as_array_mut) {
                columns.iter_mut().for_each(|column| column["stdev"] = Value::Null);
            }
        }
        assert_eq!(one, other, "{}", calls[0].1);
    }
}

/// A call with a name in it that can be put anywhere a name is meant, and the pointer to that name.
fn named_calls() -> Vec<(Kind, Value, &'static str)> {
    let levies = json!([{"id": "main", "bands": [{"rate": "10%"}]}, {"id": "top", "on_levies": ["main"], "less_levies": ["main"], "bands": [{"rate": "5%"}]}]);
    let tax = json!({"incomes": [{"kind": "salary", "amount": 100}], "levies": levies});
    let with = |pointer: &str, value: Value| {
        let mut call = tax.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        call.pointer_mut(parent).unwrap()[field] = value;
        call
    };
    let timeline = json!({"events": [{"id": "a", "date": "2026-01-01"}, {"id": "b", "date": "2026-02-01"}], "constraints": [
        {"id": "c", "type": "max_gap", "from": "a", "to": "b", "amount": 40}, {"id": "o", "type": "order", "events": ["a", "b"]},
        {"id": "l", "type": "look_back", "of": ["a"], "at": "b", "amount": 90, "max_days": 5}]});
    let formula = json!({"values": {"x": 2, "y": 3}, "formulas": [{"id": "z", "expression": "x * y"}]});
    let compare = json!({"analysis": "formula", "common": formula, "rule_sets": [{"id": "p", "parameters": {}}, {"id": "q", "parameters": {"values": {"x": 5}}}],
        "measures": [{"id": "z", "better": "lower"}]});
    let scenario = json!({"analysis": "formula", "base": formula, "scenarios": [{"id": "s", "based_on": "base", "set": [{"path": "values.x", "value": 4}]}],
        "break_even": {"path": "values.x", "low": 0, "high": 9, "measure": "z", "target": 3}});
    let data = json!({"records": [{"k": "a", "v": 1}], "operations": [{"do": "group_by", "by": ["k"], "measures": [{"column": "v", "function": "sum"}]},
        {"do": "pivot", "rows": "k", "across": "k", "column": "v"}]});
    let rules = json!({"facts": {"f": 1}, "rules": [{"id": "r", "requires": {"fact": "f", "op": "ge", "value": 1}}, {"id": "s", "requires": {"result": "r"}}],
        "formulas": [{"id": "g", "expression": "f * 2"}]});
    vec![
        (Kind::TaxCalculation, with("/levies/0/incomes", json!(["salary"])), "/levies/0/incomes/0"),
        (Kind::TaxCalculation, with("/levies/0/on_top_of", json!(["salary"])), "/levies/0/on_top_of/0"),
        (Kind::TaxCalculation, tax.clone(), "/levies/1/on_levies/0"),
        (Kind::TaxCalculation, tax.clone(), "/levies/1/less_levies/0"),
        (Kind::TaxCalculation, with("/levies/1/deduct_levies", json!(["main"])), "/levies/1/deduct_levies/0"),
        (
            Kind::TaxCalculation,
            with("/credits", json!([{"id": "c", "amount": 1, "persons": ["person"]}])),
            "/credits/0/persons/0",
        ),
        (Kind::Timeline, timeline.clone(), "/constraints/0/from"),
        (Kind::Timeline, timeline.clone(), "/constraints/0/to"),
        (Kind::Timeline, timeline.clone(), "/constraints/1/events/0"),
        (Kind::Timeline, timeline.clone(), "/constraints/2/of/0"),
        (Kind::Timeline, timeline, "/constraints/2/at"),
        (Kind::Comparison, compare.clone(), "/measures/0/id"),
        (Kind::Comparison, compare, "/common/formulas/0/expression"),
        (Kind::Scenario, scenario.clone(), "/break_even/measure"),
        (Kind::Scenario, scenario.clone(), "/break_even/path"),
        (Kind::Scenario, scenario, "/scenarios/0/based_on"),
        (Kind::DataAnalysis, data.clone(), "/operations/0/by/0"),
        (Kind::DataAnalysis, data.clone(), "/operations/0/measures/0/column"),
        (Kind::DataAnalysis, data.clone(), "/operations/1/rows"),
        (Kind::DataAnalysis, data, "/operations/1/column"),
        (Kind::ComplianceCheck, rules, "/rules/1/requires/result"),
    ]
}

#[test]
fn a_name_that_is_not_there_never_gives_a_number() {
    let mut calls = Vec::new();
    for (kind, call, pointer) in named_calls() {
        for name in draw("[a-wA-W][a-w_]{5,12}", 5) {
            let mut wrong = call.clone();
            *wrong.pointer_mut(pointer).unwrap() = json!(name);
            calls.push((kind, wrong, OutputFormat::Json));
        }
    }
    for (call, answer) in calls.iter().zip(answers(&calls)) {
        let error = answer.expect_err(&call.1.to_string());
        assert!(error.is_callers(), "{}: {error}", call.1);
    }
    // and with the names as they are, each call is answered
    let right: Vec<_> = named_calls()
        .into_iter()
        .filter(|(_, _, pointer)| !pointer.ends_with("on_top_of/0"))
        .map(|(kind, call, _)| (kind, call, OutputFormat::Json))
        .collect();
    for (call, answer) in right.iter().zip(answers(&right)) {
        assert!(answer.is_ok(), "{}: {:?}", call.1, answer.unwrap_err());
    }
}

#[test]
fn a_fact_that_is_not_given_leaves_everything_that_needs_it_unknown() {
    let names = draw("[a-w]{6,12}", DRAWN);
    let calls = names.iter().map(|name| json!({"facts": {"f": 1}, "formulas": [{"id": "g", "expression": format!("f + {name}")}], "rules": [
        {"id": "direct", "requires": {"fact": name, "op": "ge", "value": 0}}, {"id": "computed", "requires": {"fact": "g", "op": "ge", "value": 0}}]}));
    for (name, answer) in names.iter().zip(each(Kind::ComplianceCheck, calls)) {
        let output = ok(answer);
        assert_eq!(output["overall"], "unknown", "{output}");
        assert_eq!(
            (&output["missing"], &output["computed"]["g"]),
            (&json!([name]), &Value::Null),
            "{output}"
        );
    }
}

#[test]
fn amounts_in_two_units_are_never_added_compared_or_ranked() {
    let unit = || prop::sample::select(vec!["EUR", "USD", "GBP", "EUR/h", "kWh"]);
    for (a, b) in draw((unit(), unit()).prop_filter("they differ", |(a, b)| a != b), 10) {
        let formula = |expression: &str| {
            json!({"analysis": "formula", "base": {"values": {"x": format!("5 {a}"), "y": format!("7 {b}")},
            "formulas": [{"id": "z", "expression": expression}]}})
        };
        let expressions = ["x + y", "x - y", "min(x, y)", "x if x < y else 0", "x + 1", "x % y"];
        for (expression, answer) in expressions.iter().zip(each(Kind::Scenario, expressions.map(formula))) {
            let problem = answer.unwrap_err().to_string();
            assert!(problem.contains("cannot be"), "{expression}: {problem}");
        }
        let set = |id: &str, amount: String| json!({"id": id, "parameters": {"values": {"x": amount}}});
        let ranked = json!({"analysis": "formula", "common": {"formulas": [{"id": "z", "expression": "x * 2"}]},
            "rule_sets": [set("p", format!("5 {a}")), set("q", format!("7 {b}"))], "measures": [{"id": "z", "better": "lower"}]});
        let output = ok(each(Kind::Comparison, [ranked]).remove(0));
        assert_eq!(
            (&output["best"][0]["best"], &output["best"][0]["differences"]),
            (&json!([]), &json!({})),
            "{output}"
        );
        let rule = json!({"facts": {"x": format!("5 {a}")}, "rules": [{"id": "r", "requires": {"fact": "x", "op": "lt", "value": format!("7 {b}")}}]});
        assert_eq!(ok(each(Kind::ComplianceCheck, [rule]).remove(0))["overall"], "unknown");
    }
}
