//! Compliance and eligibility: each comparison worked out by hand, the laws of three-valued logic against an evaluator
//! written here, and the nearest way to pass tried out.

use pathbox::analysis::{Kind, OutputFormat};
use serde_json::{Value, json};

use crate::analysis_run::{answers, each, golden, output, refusal};

fn check(facts: Value, requires: Value) -> Value {
    json!({"facts": facts, "as_of": "2024-03-01", "rules": [{"id": "r", "requires": requires}]})
}

#[test]
fn each_comparison_passes_fails_or_is_unknown() {
    let facts = json!({
        "staff": 20, "turnover": "1000000.50", "name": "Acme", "open": true, "none": null, "listed": "no",
        "born": "2006-03-01", "leapling": "2008-02-29", "signed": "2024-01-31", "moment": "2024-01-31T23:30:00+01:00",
        "countries": ["IE", "FR"], "numbers": [1, "2.5", 3], "limit": 20, "company": {"address": {"country": "IE"}}, "a.b": {"c": 7},
        "people": [{"role": "director", "age": 50, "pay": "10.10"}, {"role": "clerk", "age": 30, "pay": "20.20"}, {"role": "director", "age": 41, "pay": "30.30"}],
        "holes": [{"pay": 1}, {"pay": null}], "empty": [],
    });
    let leaf = |fact: &str, op: &str, value: Value| json!({"fact": fact, "op": op, "value": value});
    let bare = |fact: &str, op: &str| json!({"fact": fact, "op": op});
    let cases = [
        (leaf("staff", "ge", json!(20)), "pass"),
        (leaf("staff", "gt", json!("20.000")), "fail"),
        (leaf("staff", "lt", json!(20.5)), "pass"),
        (leaf("staff", "le", json!(19)), "fail"),
        (leaf("turnover", "gt", json!("1000000.49")), "pass"),
        (leaf("turnover", "eq", json!(1000000.5)), "pass"),
        (leaf("staff", "ne", json!(21)), "pass"),
        (leaf("staff", "between", json!([20, 30])), "pass"),
        (leaf("staff", "between", json!([21, 30])), "fail"),
        (leaf("signed", "between", json!(["2024-01-31", "2024-02-29"])), "pass"),
        (leaf("name", "in", json!(["acme", "ACME"])), "fail"),
        (leaf("name", "in", json!(["Acme"])), "pass"),
        (leaf("name", "not_in", json!(["Acme"])), "fail"),
        (leaf("name", "contains", json!("cm")), "pass"),
        (leaf("countries", "contains", json!("FR")), "pass"),
        (leaf("countries", "contains_all", json!(["FR", "DE"])), "fail"),
        (leaf("countries", "contains_any", json!(["FR", "DE"])), "pass"),
        (leaf("numbers", "contains", json!("2.50")), "pass"),
        (leaf("signed", "before", json!("2024-02-01")), "pass"),
        (leaf("signed", "on_or_before", json!("2024-01-31")), "pass"),
        (leaf("signed", "after", json!("2024-01-31")), "fail"),
        (leaf("moment", "on_or_after", json!("2024-01-31")), "pass"),
        // 23:30 an hour east of Greenwich is 22:30 there; a day is compared with a day
        (leaf("moment", "on_or_before", json!("2024-01-31T22:30:00Z")), "pass"),
        (leaf("moment", "on_or_before", json!("2024-01-31T22:29:59Z")), "fail"),
        (leaf("moment", "before", json!("2024-01-31T23:00:00Z")), "pass"),
        (leaf("moment", "after", json!("2024-01-31T22:00:00Z")), "pass"),
        (leaf("moment", "eq", json!("2024-01-31T22:30Z")), "pass"),
        (leaf("moment", "before", json!("2024-01-31T23:00:00")), "unknown"),
        (leaf("moment", "between", json!(["2024-01-31T22:00:00Z", "2024-01-31T22:29:00Z"])), "fail"),
        (leaf("moment", "between", json!(["2024-01-31", "2024-01-31T22:30:00Z"])), "pass"),
        // 18 on the very day of the check; who is born on 29 February is 16 on 1 March of 2024 too
        (leaf("born", "age_at_least", json!(18)), "pass"),
        (leaf("born", "age_at_most", json!(17)), "fail"),
        (json!({"fact": "born", "op": "age_at_least", "value": 18, "at": "2024-02-29"}), "fail"),
        (json!({"fact": "leapling", "op": "age_at_least", "value": 15, "at": "2023-02-28"}), "fail"),
        (json!({"fact": "leapling", "op": "age_at_least", "value": 15, "at": "2023-03-01"}), "pass"),
        (json!({"fact": "born", "op": "age_at_least", "value": 17, "at": "signed"}), "pass"),
        (bare("open", "is_true"), "pass"),
        (bare("open", "is_false"), "fail"),
        (bare("staff", "known"), "pass"),
        (bare("none", "known"), "fail"),
        (bare("listed", "is_true"), "unknown"),
        (bare("none", "is_true"), "unknown"),
        (leaf("absent", "eq", json!("x")), "unknown"),
        (leaf("name", "gt", json!(3)), "unknown"),
        (leaf("open", "eq", json!(1)), "fail"),
        (leaf("company.address.country", "eq", json!("IE")), "pass"),
        (leaf("company.address.zip", "eq", json!("IE")), "unknown"),
        (leaf("a.b.c", "eq", json!(7)), "pass"),
        (leaf("countries.1", "eq", json!("FR")), "pass"),
        (json!({"fact": "staff", "op": "le", "value_fact": "limit"}), "pass"),
        (json!({"fact": "staff", "op": "le", "value_fact": "nowhere"}), "unknown"),
        (json!({"fact": "people", "measure": "count", "op": "eq", "value": 3}), "pass"),
        (
            json!({"fact": "people", "measure": "count", "where": leaf("role", "eq", json!("director")), "op": "ge", "value": 2}),
            "pass",
        ),
        (json!({"fact": "people", "measure": "sum", "field": "pay", "op": "eq", "value": "60.60"}), "pass"),
        (
            json!({"fact": "people", "measure": "max", "field": "age", "where": leaf("role", "eq", json!("clerk")), "op": "eq", "value": 30}),
            "pass",
        ),
        (json!({"fact": "people", "measure": "min", "field": "age", "op": "lt", "value": 30}), "fail"),
        (json!({"fact": "numbers", "measure": "sum", "op": "eq", "value": "6.5"}), "pass"),
        (json!({"fact": "holes", "measure": "sum", "field": "pay", "op": "gt", "value": 0}), "unknown"),
        (json!({"fact": "empty", "measure": "sum", "op": "eq", "value": 0}), "pass"),
        (json!({"fact": "empty", "measure": "max", "op": "eq", "value": 0}), "unknown"),
        (json!({"fact": "staff", "measure": "count", "op": "eq", "value": 0}), "unknown"),
        (json!({"not": bare("absent", "is_true")}), "unknown"),
        (json!({"all": [bare("open", "is_true"), bare("absent", "is_true")]}), "unknown"),
        (json!({"all": [bare("open", "is_false"), bare("absent", "is_true")]}), "fail"),
        (json!({"any": [bare("open", "is_true"), bare("absent", "is_true")]}), "pass"),
        (
            json!({"at_least": 2, "of": [bare("open", "is_true"), bare("absent", "is_true"), bare("open", "is_false")]}),
            "unknown",
        ),
    ];
    let reports = each(Kind::ComplianceCheck, cases.iter().map(|case| check(facts.clone(), case.0.clone())));
    for ((condition, status), report) in cases.iter().zip(reports) {
        let output = report.unwrap().output;
        assert_eq!(output["rules"][0]["status"], *status, "{condition}: {}", output["rules"][0]);
        assert_eq!(output["overall"], *status, "{condition}");
    }
}

#[test]
fn a_computed_fact_is_compared_as_it_is_and_not_as_it_is_shown() {
    // a twelfth of the year's pay, twelve times, is the year's pay
    let requires = |op: &str| json!({"id": op, "requires": {"fact": "again", "op": op, "value": 50000}});
    let output = output(
        Kind::ComplianceCheck,
        json!({"facts": {"pay": 50000}, "rules": [requires("le"), requires("ge")],
            "formulas": [{"id": "month", "expression": "pay / 12"}, {"id": "again", "expression": "month * 12"}]}),
    );
    assert_eq!(output["overall"], "pass", "{output}");
    assert_eq!(output["computed"], json!({"month": "4166.666666666667", "again": "50000"}));
}

#[test]
fn nothing_is_compliant_by_default() {
    let applies = |when: Value, requires: Value| json!({"facts": {"small": true, "fine": true}, "rules": [{"id": "r", "applies_when": when, "requires": requires, "remedy": "file it"}]});
    let is = |fact: &str| json!({"fact": fact, "op": "is_true"});
    let no = |fact: &str| json!({"fact": fact, "op": "is_false"});
    golden(
        Kind::ComplianceCheck,
        vec![
            (
                "no facts at all",
                json!({"facts": {}, "rules": [{"id": "r", "requires": is("a")}]}),
                vec![("/overall", json!("unknown")), ("/missing", json!(["a"]))],
            ),
            ("does not apply", applies(no("small"), no("fine")), vec![("/overall", json!("not_applicable"))]),
            (
                "may not apply, would pass",
                applies(is("absent"), is("fine")),
                vec![
                    ("/overall", json!("unknown")),
                    ("/missing", json!(["absent"])),
                    (
                        "/rules/0/reasons/0",
                        json!("whether it applies is not known; if it does, it would pass"),
                    ),
                ],
            ),
            (
                "may not apply, would fail",
                applies(is("absent"), no("fine")),
                vec![("/overall", json!("unknown")), ("/rules/0/remedy", json!(null))],
            ),
            (
                "fails",
                applies(is("small"), no("fine")),
                vec![
                    ("/overall", json!("fail")),
                    ("/rules/0/remedy", json!("file it")),
                    ("/counts/fail", json!(1)),
                    ("/failed_by_severity/medium", json!(1)),
                ],
            ),
            (
                "a failure outweighs an unknown",
                json!({"facts": {"a": false}, "rules": [{"id": "r", "requires": is("b")}, {"id": "s", "requires": is("a")}]}),
                vec![("/overall", json!("fail"))],
            ),
            (
                "an unknown outweighs a pass",
                json!({"facts": {"a": true}, "rules": [{"id": "r", "requires": is("b")}, {"id": "s", "requires": is("a")}]}),
                vec![("/overall", json!("unknown"))],
            ),
        ],
    );
}

#[test]
fn an_answer_names_the_rule_the_fact_the_comparison_and_the_source() {
    let parameters = json!({"facts": {"staff": 12}, "rules": [{"id": "dpo", "title": "Officer", "source": "Reg 2016/679, Art. 37", "severity": "high",
        "requires": {"fact": "staff", "op": "ge", "value": 20, "source": "Guideline 3"}}]});
    let report = answers(&[(Kind::ComplianceCheck, parameters, OutputFormat::Summary)]).remove(0).unwrap();
    assert_eq!(report.sources, ["Reg 2016/679, Art. 37", "Guideline 3"]);
    assert!(
        report.text.contains(
            "dpo (Officer) fails; severity high: staff is 12 (required: at least 20). Nearest way to pass: staff at least 20, short by 8."
        ),
        "{}",
        report.text
    );
    let leaf = &report.output["rules"][0]["checks"][0];
    assert_eq!(
        (&leaf["fact"], &leaf["op"], &leaf["actual"], &leaf["expected"], &leaf["truth"]),
        (&json!("staff"), &json!("ge"), &json!(12), &json!(20), &json!(false))
    );
}

/// Truth of a tree over facts a to f, by a second way.
fn truth(tree: &Value, facts: &Value) -> Option<bool> {
    if let Some(fact) = tree.get("fact") {
        let value = facts.get(fact.as_str().unwrap()).and_then(Value::as_bool);
        return value.map(|value| value == (tree["op"] == "is_true"));
    }
    if let Some(inner) = tree.get("not") {
        return truth(inner, facts).map(|value| !value);
    }
    let name = ["all", "any", "of"].into_iter().find(|name| tree.get(name).is_some()).unwrap();
    let parts: Vec<_> = tree[name].as_array().unwrap().iter().map(|part| truth(part, facts)).collect();
    match name {
        "all" if parts.contains(&Some(false)) => Some(false),
        "all" => parts.iter().try_fold(true, |all, part| part.map(|part| all && part)),
        "any" if parts.contains(&Some(true)) => Some(true),
        "any" => parts.iter().try_fold(false, |any, part| part.map(|part| any || part)),
        _ => {
            // every way of filling in the unknown ones agrees, or it is unknown
            let need = tree["at_least"].as_u64().unwrap() as usize;
            let sure = parts.iter().filter(|part| **part == Some(true)).count();
            let open = parts.iter().filter(|part| part.is_none()).count();
            let mut ways = (0..=open).map(|more| sure + more >= need);
            let first = ways.next().unwrap();
            ways.all(|way| way == first).then_some(first)
        }
    }
}

struct Series(u64);

impl Series {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit as u64) as usize
    }

    fn tree(&mut self, depth: usize) -> Value {
        let parts = |this: &mut Self| -> Vec<Value> {
            (0..1 + this.below(3)).map(|_| this.tree(depth - 1)).collect()
        };
        match if depth == 0 { 0 } else { self.below(5) } {
            1 => json!({"not": self.tree(depth - 1)}),
            2 => json!({"all": parts(self)}),
            3 => json!({"any": parts(self)}),
            4 => {
                let parts = parts(self);
                json!({"at_least": 1 + self.below(parts.len()), "of": parts})
            }
            _ => {
                let fact = ["a", "b", "c", "d", "e", "f"][self.below(6)];
                json!({"fact": fact, "op": if self.below(2) == 0 { "is_true" } else { "is_false" }})
            }
        }
    }
}

#[test]
fn random_trees_agree_with_an_evaluator_of_three_valued_logic() {
    let mut series = Series(3);
    let mut cases = Vec::new();
    for _ in 0..40 {
        let facts: Value = ["a", "b", "c", "d", "e", "f"]
            .iter()
            .zip(0..6)
            .map(|(name, _)| {
                ((*name).to_owned(), [json!(true), json!(false), json!(null)][series.below(3)].clone())
            })
            .collect::<serde_json::Map<_, _>>()
            .into();
        let rules: Vec<_> =
            (0..10).map(|n| json!({"id": n.to_string(), "requires": series.tree(4)})).collect();
        cases.push(json!({"facts": facts, "rules": rules}));
    }
    let mut seen = std::collections::BTreeSet::new();
    for (case, report) in cases.iter().zip(each(Kind::ComplianceCheck, cases.clone())) {
        let output = report.unwrap().output;
        for (rule, got) in case["rules"].as_array().unwrap().iter().zip(output["rules"].as_array().unwrap()) {
            let expected = match truth(&rule["requires"], &case["facts"]) {
                Some(true) => "pass",
                Some(false) => "fail",
                None => "unknown",
            };
            seen.insert(expected);
            assert_eq!(got["status"], expected, "{} over {}", rule["requires"], case["facts"]);
        }
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn de_morgan_holds_with_unknown_facts_too() {
    let facts = json!({"t": true, "f": false});
    let is = |fact: &str| json!({"fact": fact, "op": "is_true"});
    let names = ["t", "f", "u"];
    let mut rules = Vec::new();
    for a in names {
        for b in names {
            rules.push(json!({"id": format!("{a}{b}1"), "requires": {"not": {"all": [is(a), is(b)]}}}));
            rules.push(
                json!({"id": format!("{a}{b}2"), "requires": {"any": [{"not": is(a)}, {"not": is(b)}]}}),
            );
        }
    }
    let output = output(Kind::ComplianceCheck, json!({"facts": facts, "rules": rules}));
    for pair in output["rules"].as_array().unwrap().chunks(2) {
        assert_eq!(pair[0]["status"], pair[1]["status"], "{}", pair[0]["id"]);
    }
}

#[test]
fn the_nearest_way_to_pass_is_the_shortest_and_works() {
    let is = |fact: &str| json!({"fact": fact, "op": "is_true"});
    let facts = json!({"a": false, "b": false, "n": 5, "d": "2024-01-31"});
    golden(
        Kind::ComplianceCheck,
        vec![
            (
                "the shorter branch",
                check(
                    facts.clone(),
                    json!({"any": [{"all": [is("a"), is("b")]}, {"fact": "n", "op": "ge", "value": 7}]}),
                ),
                vec![
                    ("/rules/0/nearest/0/fact", json!("n")),
                    ("/rules/0/nearest/0/short_by", json!("2")),
                    ("/rules/0/nearest/1", json!(null)),
                ],
            ),
            (
                "two of three",
                check(
                    facts.clone(),
                    json!({"at_least": 2, "of": [is("a"), is("b"), {"fact": "n", "op": "eq", "value": 5}]}),
                ),
                vec![("/rules/0/nearest/0/fact", json!("a")), ("/rules/0/nearest/0/needed", json!("true"))],
            ),
            (
                "the other way round",
                check(facts.clone(), json!({"not": {"fact": "n", "op": "lt", "value": 10}})),
                vec![("/rules/0/nearest/0/needed", json!("at least 10"))],
            ),
            (
                "days",
                check(facts.clone(), json!({"fact": "d", "op": "after", "value": "2024-03-01"})),
                vec![("/rules/0/nearest/0/short_by", json!("31 days"))],
            ),
        ]
        .into_iter()
        .map(|(name, parameters, mut expected)| {
            expected.retain(|(_, value)| !value.is_null());
            (name, parameters, expected)
        })
        .collect(),
    );
    let age = json!({"facts": {"born": "2008-02-29"}, "as_of": "2024-01-01", "rules": [{"id": "r", "requires": {"fact": "born", "op": "age_at_least", "value": 18}}]});
    golden(
        Kind::ComplianceCheck,
        vec![(
            "a birthday that is not every year",
            age,
            vec![("/rules/0/nearest/0/needed", json!("age at least 18, reached on 2026-03-01"))],
        )],
    );
}

#[test]
fn eligibility_by_hand() {
    let criteria = json!([
        {"id": "adult", "requires": {"fact": "born", "op": "age_at_least", "value": 18}},
        {"id": "poor", "requires": {"fact": "income", "op": "lt", "value": "20000"}},
        {"id": "resident", "requires": {"fact": "country", "op": "in", "value": ["IE", "FR"]}},
    ]);
    let scheme = |facts: Value| json!({"facts": facts, "as_of": "2024-02-28", "schemes": [{"id": "s", "benefit": "100 a month", "criteria": criteria}]});
    let one = |requires: Value, facts: Value| json!({"facts": facts, "schemes": [{"id": "s", "criteria": [{"id": "c", "requires": requires}]}]});
    golden(
        Kind::Eligibility,
        vec![
            (
                "all met",
                scheme(json!({"born": "2000-01-01", "income": 1, "country": "IE"})),
                vec![
                    ("/schemes/0/status", json!("eligible")),
                    ("/eligible/0", json!("s")),
                    ("/schemes/0/closeness", json!("1.0000")),
                    ("/schemes/0/changes_needed", json!([])),
                    ("/schemes/0/benefit", json!("100 a month")),
                ],
            ),
            (
                "one unmet",
                scheme(json!({"born": "2000-01-01", "income": 20000, "country": "IE"})),
                vec![
                    ("/schemes/0/status", json!("not_eligible")),
                    ("/schemes/0/met", json!(2)),
                    ("/schemes/0/closeness", json!("0.6667")),
                    ("/schemes/0/changes_needed/0/fact", json!("income")),
                    ("/schemes/0/changes_needed/0/criterion", json!("poor")),
                ],
            ),
            (
                "one unknown",
                scheme(json!({"born": "2000-01-01", "country": "IE"})),
                vec![
                    ("/schemes/0/status", json!("unknown")),
                    ("/schemes/0/missing", json!(["income"])),
                    ("/missing/0/fact", json!("income")),
                    ("/missing/0/would_decide", json!(["s"])),
                ],
            ),
            (
                "unmet outweighs unknown",
                scheme(json!({"born": "2000-01-01", "country": "DE"})),
                vec![("/schemes/0/status", json!("not_eligible")), ("/missing", json!([]))],
            ),
            (
                "nothing known",
                scheme(json!({})),
                vec![
                    ("/schemes/0/status", json!("unknown")),
                    ("/schemes/0/closeness", json!("0.0000")),
                    ("/schemes/0/missing", json!(["born", "income", "country"])),
                ],
            ),
            (
                "too young by a day",
                scheme(json!({"born": "2006-02-29".replace("29", "28"), "income": 1, "country": "IE"})),
                vec![("/schemes/0/status", json!("eligible"))],
            ),
            (
                "young",
                scheme(json!({"born": "2006-03-01", "income": 1, "country": "IE"})),
                vec![
                    ("/schemes/0/status", json!("not_eligible")),
                    ("/schemes/0/changes_needed/0/needed", json!("age at least 18, reached on 2024-03-01")),
                ],
            ),
            (
                "a number as text",
                scheme(json!({"born": "2000-01-01", "income": "19999.99", "country": "IE"})),
                vec![("/schemes/0/status", json!("eligible"))],
            ),
            (
                "text for a number",
                scheme(json!({"born": "2000-01-01", "income": "much", "country": "IE"})),
                vec![
                    ("/schemes/0/status", json!("unknown")),
                    ("/schemes/0/criteria/1/reasons/0", json!("income is not a number")),
                ],
            ),
            (
                "an age without a date",
                one(json!({"fact": "b", "op": "age_at_most", "value": 3}), json!({"b": "2020-01-01"})),
                vec![("/schemes/0/status", json!("unknown")), ("/schemes/0/missing", json!(["as_of"]))],
            ),
            (
                "not yet born",
                json!({"facts": {"b": "2030-01-01"}, "as_of": "2024-01-01", "schemes": [{"id": "s", "criteria": [{"id": "c", "requires": {"fact": "b", "op": "age_at_most", "value": 3}}]}]}),
                vec![("/schemes/0/status", json!("unknown"))],
            ),
            (
                "either",
                one(
                    json!({"any": [{"fact": "a", "op": "is_true"}, {"fact": "b", "op": "is_true"}]}),
                    json!({"b": true}),
                ),
                vec![("/schemes/0/status", json!("eligible"))],
            ),
            (
                "a sum",
                one(
                    json!({"fact": "l", "measure": "sum", "op": "ge", "value": "0.3"}),
                    json!({"l": ["0.1", "0.2"]}),
                ),
                vec![("/schemes/0/status", json!("eligible"))],
            ),
            (
                "none of",
                one(json!({"not": {"fact": "l", "op": "contains", "value": "x"}}), json!({"l": ["a"]})),
                vec![("/schemes/0/status", json!("eligible"))],
            ),
            (
                "several schemes",
                json!({"facts": {"a": true}, "schemes": [
                {"id": "x", "criteria": [{"id": "c", "requires": {"fact": "a", "op": "is_true"}}]},
                {"id": "y", "criteria": [{"id": "c", "requires": {"fact": "q", "op": "is_true"}}]},
                {"id": "z", "criteria": [{"id": "c", "requires": {"fact": "a", "op": "is_false"}}, {"id": "d", "requires": {"fact": "q", "op": "is_true"}}]}]}),
                vec![
                    ("/eligible", json!(["x"])),
                    ("/unknown", json!(["y"])),
                    ("/not_eligible", json!(["z"])),
                    ("/missing", json!([{"fact": "q", "would_decide": ["y"]}])),
                ],
            ),
        ],
    );
}

#[test]
fn ten_thousand_rules_are_answered() {
    let rules: Vec<_> = (0..10_000)
        .map(|n| json!({"id": n.to_string(), "requires": {"fact": "n", "op": "ge", "value": n}}))
        .collect();
    let output = output(Kind::ComplianceCheck, json!({"facts": {"n": 4_999}, "rules": rules}));
    assert_eq!((&output["counts"]["pass"], &output["counts"]["fail"]), (&json!(5_000), &json!(5_000)));
}

#[test]
fn conditions_that_make_no_sense_are_refused_with_their_place() {
    let leaf = |fact: &str, op: &str, value: Value| json!({"fact": fact, "op": op, "value": value});
    for (condition, said) in [
        (
            json!({}),
            "rules[0].requires: a condition has exactly one of all, any, not, at_least, result or fact, not none; for instance {",
        ),
        (json!({"all": [leaf("a", "eq", json!(1))], "fact": "b"}), "not all and fact"),
        (
            json!({"all": [leaf("a", "eq", json!(1))], "op": "eq"}),
            "rules[0].requires.op: does not go with all",
        ),
        (json!({"fact": "a"}), "rules[0].requires.op: how is the fact compared?"),
        (json!({"fact": "a", "op": "eq"}), "rules[0].requires.value: exactly one of value and value_fact"),
        (
            json!({"fact": "a", "op": "is_true", "value": 1}),
            "rules[0].requires.value: is_true takes no value",
        ),
        (leaf("a", "lt", json!("many")), "rules[0].requires.value: lt needs a number"),
        (leaf("a", "before", json!("soon")), "rules[0].requires.value: before needs a date"),
        (leaf("a", "in", json!("x")), "rules[0].requires.value: in needs a list"),
        (leaf("a", "between", json!([3])), "between needs [low, high]"),
        (leaf("a", "between", json!([3, 1])), "the low end is above the high end"),
        (
            json!({"at_least": 2, "of": [leaf("a", "eq", json!(1))]}),
            "rules[0].requires.at_least: 2 can never hold among 1",
        ),
        (json!({"at_least": 2}), "rules[0].requires.of: at_least needs the list"),
        (
            json!({"fact": "a", "op": "eq", "value": 1, "at": "2024-01-01"}),
            "only an age, or days since, is taken at a date",
        ),
        (
            json!({"fact": "a", "op": "eq", "value": 1, "field": "b"}),
            "rules[0].requires.measure: where and field need a measure",
        ),
        (
            json!({"not": {"not": {"fact": "a", "op": "lt", "value": "x"}}}),
            "rules[0].requires.not.not.value: lt needs a number",
        ),
    ] {
        let refused = refusal(Kind::ComplianceCheck, check(json!({}), condition.clone()));
        assert!(refused.contains(said), "{condition}: {refused}");
    }
    let twice = json!({"facts": {}, "rules": [{"id": "r", "requires": leaf("a", "eq", json!(1))}, {"id": "r", "requires": leaf("a", "eq", json!(1))}]});
    assert!(refusal(Kind::ComplianceCheck, twice).contains("rules[1].id: the id 'r' stands twice"));
}
