//! Tariffs given by formulas, taxes on taxes, alternative and limited taxes: by hand and by a second way in integers.

use pathbox::analysis::Kind;
use serde_json::{Value, json};

use crate::analysis_run::{each, golden, output, refusal};

/// The German income tax tariff of 2024 (Einkommensteuergesetz, § 32a as amended in December 2024), in whole euros.
fn income_tax() -> Value {
    json!({"id": "income tax", "base_rounding": {"to": 1}, "rounding": {"places": 0, "mode": "down"}, "bands": [
        {"up_to": 11784, "formula": "0"},
        {"up_to": 17005, "formula": "(954.80 * ((x - 11784) / 10000) + 1400) * ((x - 11784) / 10000)"},
        {"up_to": 66760, "formula": "(181.19 * ((x - 17005) / 10000) + 2397) * ((x - 17005) / 10000) + 991.21"},
        {"up_to": 277825, "formula": "0.42 * x - 10636.31"},
        {"formula": "0.45 * x - 18971.06"}]})
}

/// Solidarity surcharge (Solidaritätszuschlaggesetz, §§ 3 and 4) and church tax of 9 %, both on the income tax.
fn surcharges() -> [Value; 2] {
    [
        json!({"id": "solidarity", "on_levies": ["income tax"], "exempt_up_to": 18130, "rounding": {"mode": "down"},
            "excess_limit": {"over": 18130, "rate": "11.9%"}, "bands": [{"rate": "5.5%"}]}),
        json!({"id": "church", "on_levies": ["income tax"], "rounding": {"mode": "down"}, "bands": [{"rate": "9%"}]}),
    ]
}

/// The same in integers: euros of income tax, cents of the surcharge and of the church tax.
fn second_way(income: i128) -> (i128, i128, i128) {
    let tax = match income {
        ..11_785 => 0,
        11_785..17_006 => {
            let n = income - 11784;
            (95_480 * n * n + 1_400_000_000 * n) / 10_000_000_000
        }
        17_006..66_761 => {
            let n = income - 17005;
            (18_119 * n * n + 2_397_000_000 * n + 9_912_100_000_000) / 10_000_000_000
        }
        66_761..277_826 => (42 * income - 1_063_631) / 100,
        _ => (45 * income - 1_897_106) / 100,
    };
    let solidarity = if tax <= 18_130 { 0 } else { (tax * 55 / 10).min((tax - 18_130) * 119 / 10) };
    (tax, solidarity, tax * 9)
}

fn cents(amount: i128) -> Value {
    json!(format!("{}.{:02}", amount / 100, amount % 100))
}

#[test]
fn a_tariff_by_formulas_and_the_taxes_on_it_agree_with_integers() {
    let [solidarity, church] = surcharges();
    let mut incomes: Vec<i128> =
        vec![0, 11784, 11785, 17005, 17006, 66760, 66761, 68491, 68492, 277_825, 277_826];
    let mut state: i128 = 20_24;
    incomes.extend((0..60).map(|_| {
        state = (state * 6_364_136_223 + 1_442_695) % 4_000_037;
        state % 400_000
    }));
    let calls = incomes.iter().map(|income| {
        json!({"income": income.to_string(), "thresholds": false, "levies": [income_tax(), solidarity, church]})
    });
    for (income, report) in incomes.iter().zip(each(Kind::TaxCalculation, calls)) {
        let levies = report.unwrap().output["totals"]["by_levy"].clone();
        let (tax, solidarity, church) = second_way(*income);
        assert_eq!(levies["income tax"], json!(tax.to_string()), "on {income}");
        assert_eq!(levies["solidarity"], cents(solidarity), "on {income}");
        assert_eq!(levies["church"], cents(church), "on {income}");
    }
}

#[test]
fn splitting_takes_the_rounded_tax_on_half_the_income_twice() {
    // Einkommensteuergesetz, § 32a (5)
    let couple = json!({"assessment": "split", "thresholds": false, "levies": [income_tax()],
        "persons": [{"id": "a", "income": 80001}, {"id": "b", "income": 20000}]});
    let (half, _, _) = second_way(50_000);
    assert_eq!(output(Kind::TaxCalculation, couple)["totals"]["tax"], json!(format!("{}.00", half * 2)));
}

#[test]
fn limited_alternative_and_conditional_levies_by_hand() {
    let base = json!({"id": "tax", "bands": [{"up_to": 50000, "rate": "20%"}, {"rate": "40%"}]});
    let case = |income: i64, more: Value| {
        let mut levies = vec![base.clone()];
        levies.extend(more.as_array().unwrap().clone());
        json!({"income": income, "levies": levies})
    };
    let cess = json!([{"id": "surcharge", "on_levies": ["tax"], "income_above": 100000, "bands": [{"rate": "10%"}]},
        {"id": "cess", "on_levies": ["tax", "surcharge"], "bands": [{"rate": "4%"}]}]);
    let minimum = json!([{"id": "alternative minimum", "less_levies": ["tax"], "deductions": [{"id": "exemption", "amount": 10000}],
        "use_deductions": false, "bands": [{"rate": "28%"}]}]);
    golden(
        Kind::TaxCalculation,
        vec![
            (
                "a surcharge on the tax and a cess on both",
                case(200_000, cess.clone()),
                vec![
                    ("/totals/by_levy/tax", json!("70000.00")),
                    ("/totals/by_levy/surcharge", json!("7000.00")),
                    ("/totals/by_levy/cess", json!("3080.00")),
                ],
            ),
            (
                "the surcharge begins above its income",
                case(100_000, cess),
                vec![
                    ("/totals/by_levy/surcharge", json!("0.00")),
                    ("/totals/by_levy/cess", json!("1200.00")),
                ],
            ),
            (
                "the alternative tax adds what the tax lacks",
                case(60_000, minimum.clone()),
                vec![
                    ("/totals/by_levy/tax", json!("14000.00")),
                    ("/totals/by_levy/alternative minimum", json!("0.00")),
                ],
            ),
            (
                "where the tax is lower",
                case(50_000, minimum),
                vec![
                    ("/totals/by_levy/tax", json!("10000.00")),
                    ("/totals/by_levy/alternative minimum", json!("1200.00")),
                    ("/totals/tax", json!("11200.00")),
                ],
            ),
        ],
    );
}

#[test]
fn income_above_the_last_band_is_noted_or_refused() {
    let closed = json!({"income": 70, "levies": [{"id": "t", "bands": [{"up_to": 50, "rate": "10%"}]}]});
    let report = each(Kind::TaxCalculation, [closed]).remove(0).unwrap();
    assert_eq!(report.output["totals"]["tax"], "5.00");
    assert_eq!(report.output["periods"][0]["levies"][0]["units"][0]["untaxed"], "20");
    assert!(
        report.notes[0].contains("levy t end at 50; 20 of the base above that was charged nothing"),
        "{:?}",
        report.notes
    );
    let formula =
        json!({"income": 70, "levies": [{"id": "t", "bands": [{"up_to": 50, "formula": "x / 10"}]}]});
    let said = refusal(Kind::TaxCalculation, formula);
    assert!(said.contains("the base 70 lies above the last band, 50"), "{said}");
}

#[test]
fn tariffs_that_make_no_sense_are_refused_with_their_place() {
    let levy = |levy: Value| json!({"income": 1, "levies": [{"id": "u", "bands": [{"rate": 0}]}, levy]});
    for (parameters, said) in [
        (levy(json!({"id": "t", "bands": [{}]})), "levies[1].bands[0].rate: exactly one of rate and formula"),
        (
            levy(json!({"id": "t", "bands": [{"up_to": 5, "rate": 0}, {"formula": "x"}]})),
            "levies[1].bands[0].formula: either every band has a formula or none",
        ),
        (
            levy(json!({"id": "t", "bands": [{"formula": "y * 2"}]})),
            "levies[1].bands[0].formula: there is no value 'y'; there are: x",
        ),
        (
            levy(json!({"id": "t", "bands": [{"formula": "x - 100"}]})),
            "levies[1].bands[0].formula: it gives -99 at 1",
        ),
        (
            levy(json!({"id": "t", "on_levies": ["v"], "bands": [{"rate": 0}]})),
            "levies[1].on_levies[0]: there is no earlier levy 'v'; there are: u",
        ),
        (
            levy(json!({"id": "t", "on_levies": ["t"], "bands": [{"rate": 0}]})),
            "levies[1].on_levies[0]: there is no earlier levy 't'",
        ),
        (
            levy(json!({"id": "t", "on_levies": ["u"], "incomes": ["income"], "bands": [{"rate": 0}]})),
            "levies[1].incomes: a levy on other levies has no incomes of its own",
        ),
    ] {
        let problem = refusal(Kind::TaxCalculation, parameters.clone());
        assert!(problem.contains(said), "{parameters}: {problem}");
    }
}
