//! Golden cases as data: `tests/fixtures/analysis-golden.jsonl`, whose figures `analysis-golden.py` beside it computes a
//! second way (fractions, days listed one by one, Python's `statistics`).

use pathbox::analysis::Kind;
use serde_json::Value;

use crate::analysis_run::each;

/// The minimum number of cases of each analysis.
const CASES: usize = 15;

#[test]
fn every_golden_case_comes_out_as_computed_the_second_way() {
    let cases: Vec<Value> = include_str!("../fixtures/analysis-golden.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut wrong = Vec::new();
    for kind in Kind::ALL {
        let of_kind: Vec<&Value> = cases.iter().filter(|case| case["type"] == kind.as_str()).collect();
        assert!(of_kind.len() >= CASES, "{kind}: {}", of_kind.len());
        let answers = each(*kind, of_kind.iter().map(|case| case["parameters"].clone()));
        for (case, answer) in of_kind.iter().zip(answers) {
            let output = match answer {
                Ok(report) => report.output,
                Err(error) => {
                    wrong.push(format!("{kind}, {}: {error}", case["name"]));
                    continue;
                }
            };
            for (pointer, wanted) in case["expect"].as_object().unwrap() {
                let (pointer, nearly) = match pointer.strip_prefix('~') {
                    Some(pointer) => (pointer, true),
                    None => (pointer.as_str(), false),
                };
                let found = output.pointer(pointer);
                let same = if nearly {
                    found.is_some_and(|found| near(found, wanted))
                } else {
                    found == Some(wanted)
                };
                if !same {
                    let found = found.map_or_else(|| format!("nothing in {output}"), Value::to_string);
                    wrong.push(format!("{kind}, {}: {pointer} is {found}, not {wanted}", case["name"]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} figures are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Equal to about nine significant digits, as two ways of floating point are.
fn near(found: &Value, wanted: &Value) -> bool {
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<f64>().ok());
    match (number(found), number(wanted)) {
        (Some(found), Some(wanted)) => (found - wanted).abs() <= 1e-8 * wanted.abs().max(1e-6),
        _ => false,
    }
}
