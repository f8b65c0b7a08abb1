//! Tax by a second way: published tables and worked examples, hand computations, and a small independent
//! calculation in whole hundredths that random cases are held against.

use pathbox::analysis::Kind;
use serde_json::{Value, json};

use crate::analysis_run::{each, golden, output, refusal};

/// Bands as (end or none, rate).
fn bands(list: &[(&str, &str)]) -> Value {
    let band = |(end, rate): &(&str, &str)| match *end {
        "" => json!({"rate": rate}),
        end => json!({"up_to": end, "rate": rate}),
    };
    list.iter().map(band).collect()
}

fn tax(income: &str, list: &[(&str, &str)]) -> Value {
    json!({"income": income, "levies": [{"id": "tax", "bands": bands(list)}]})
}

/// Charged on incomes by the published rates, must be the published amount to the cent.
fn published(rates: &[(&str, &str)], amounts: &[(&str, &str)]) {
    let got = each(Kind::TaxCalculation, amounts.iter().map(|(income, _)| tax(income, rates)));
    for ((income, amount), got) in amounts.iter().zip(got) {
        assert_eq!(got.unwrap().output["totals"]["tax"], *amount, "on {income}");
    }
}

#[test]
fn united_states_2024_rate_schedules_give_their_own_base_amounts() {
    // Internal Revenue Service, 2024 Tax Rate Schedules (Instructions for Form 1040, 2024; Rev. Proc. 2023-34): the
    // schedules print, at the start of each band, the tax on everything below it.
    published(
        // Schedule X, single
        &[
            ("11600", "10%"),
            ("47150", "12%"),
            ("100525", "22%"),
            ("191950", "24%"),
            ("243725", "32%"),
            ("609350", "35%"),
            ("", "37%"),
        ],
        &[
            ("11600", "1160.00"),
            ("47150", "5426.00"),
            ("100525", "17168.50"),
            ("191950", "39110.50"),
            ("243725", "55678.50"),
            ("609350", "183647.25"),
        ],
    );
    published(
        // Schedule Y-1, married filing jointly
        &[
            ("23200", "10%"),
            ("94300", "12%"),
            ("201050", "22%"),
            ("383900", "24%"),
            ("487450", "32%"),
            ("731200", "35%"),
            ("", "37%"),
        ],
        &[
            ("23200", "2320.00"),
            ("94300", "10852.00"),
            ("201050", "34337.00"),
            ("383900", "78221.00"),
            ("487450", "111357.00"),
            ("731200", "196669.50"),
        ],
    );
}

#[test]
fn australia_2023_24_gives_the_amounts_that_its_tax_office_prints() {
    // Australian Taxation Office, Individual income tax rates, 2023-24: "$5,092 plus 32.5c for each $1 over $45,000",
    // "$29,467 plus 37c ... over $120,000", "$51,667 plus 45c ... over $180,000"; foreign residents $39,000 and $61,200.
    published(
        &[("18200", "0"), ("45000", "0.19"), ("120000", "0.325"), ("180000", "0.37"), ("", "0.45")],
        &[
            ("18200", "0.00"),
            ("45000", "5092.00"),
            ("120000", "29467.00"),
            ("180000", "51667.00"),
            ("200001", "60667.45"),
        ],
    );
    published(
        &[("120000", "0.325"), ("180000", "0.37"), ("", "0.45")],
        &[("120000", "39000.00"), ("180000", "61200.00")],
    );
}

fn irish_usc() -> Value {
    json!({"id": "USC", "use_deductions": false, "exempt_up_to": "13000", "bands": bands(&[("12012", "0.5%"), ("25760", "2%"), ("70044", "4%"), ("", "8%")])})
}

#[test]
fn ireland_gives_the_worked_examples_of_its_authorities() {
    let paye = |income: &str, end: &str, higher: &str, credit: &str| {
        json!({"income": income, "levies": [{"id": "tax", "bands": bands(&[(end, "20%"), ("", higher)]),
            "credits": [{"id": "tax credits", "amount": credit}]}]})
    };
    let mut joan = paye("28000", "42000", "40%", "3750");
    joan["levies"].as_array_mut().unwrap().push(irish_usc());
    golden(
        Kind::TaxCalculation,
        vec![
            // Revenue, "Tax rates and bands", 2024: Aoife, 4,000 a month: 3,500 at 20 % is 700, 500 at 40 % is 200.
            (
                "Aoife",
                paye("4000", "3500", "40%", "0"),
                vec![
                    ("/totals/tax", json!("900.00")),
                    ("/periods/0/levies/0/units/0/bands/0/amount", json!("700.00")),
                    ("/periods/0/levies/0/units/0/bands/1/amount", json!("200.00")),
                ],
            ),
            // Revenue, "Week 1 basis", 2024: John, 600 a week: 120.00 less credits of 72.12 is 47.88.
            ("John", paye("600", "807.70", "40%", "72.12"), vec![("/totals/tax", json!("47.88"))]),
            // Revenue, "How do I work out my tax", example 2, 2010: David, 750 a week: 150.00 less 125.77 is 24.23.
            ("David", paye("750", "873.08", "41%", "125.77"), vec![("/totals/tax", json!("24.23"))]),
            // Citizens Information, "Calculating your income tax", 2024: Joan, 28,000: 1,850 and USC of 424.62
            // (60.06 + 274.96 + 89.60), 2,274.62 in all.
            (
                "Joan",
                joan,
                vec![
                    ("/totals/by_levy/tax", json!("1850.00")),
                    ("/totals/by_levy/USC", json!("424.62")),
                    ("/totals/tax", json!("2274.62")),
                    ("/periods/0/levies/1/units/0/bands/0/amount", json!("60.060")),
                    ("/periods/0/levies/1/units/0/bands/1/amount", json!("274.96")),
                    ("/periods/0/levies/1/units/0/bands/2/amount", json!("89.60")),
                ],
            ),
            // The same page, "Tax rates and the standard rate cut-off point": 43,200: 8,400 + 480 = 8,880.
            ("cut-off", paye("43200", "42000", "40%", "0"), vec![("/totals/tax", json!("8880.00"))]),
        ],
    );
}

fn uk_allowance(amount: &str) -> Value {
    json!([{"id": "personal allowance", "amount": amount, "taper": {"from": "100000", "reduce_by": "1", "per": "2", "partial": "down"}}])
}

#[test]
fn united_kingdom_gives_the_worked_examples_of_its_authorities() {
    // GOV.UK, "Tax on dividends", 2022 to 2023: 29,570 in wages, 3,000 in dividends, allowance 12,570: 20 % on 17,000
    // of wages, nothing on 2,000 of dividends, 8.75 % on 1,000.
    let dividends = json!({
        "incomes": [{"kind": "wages", "amount": "29570"}, {"kind": "dividends", "amount": "3000"}],
        "deductions": uk_allowance("12570"),
        "levies": [
            {"id": "income tax", "incomes": ["wages"], "bands": bands(&[("37700", "20%"), ("150000", "40%"), ("", "45%")])},
            {"id": "dividend tax", "incomes": ["dividends"], "on_top_of": ["wages"],
             "nil_rate": "2000", "bands": bands(&[("37700", "8.75%"), ("150000", "33.75%"), ("", "39.35%")])},
        ],
    });
    // GOV.UK, "National Insurance rates", 2022 to 2023: 1,000 a week: nothing on 242, 13.25 % (96.06) up to 967, 3.25 %
    // (1.07) above: 97.13.
    let insurance = json!({"income": "1000", "rounding": {"at": "band"},
        "levies": [{"id": "class 1", "bands": bands(&[("242", "0"), ("967", "13.25%"), ("", "3.25%")])}]});
    // GOV.UK, "Income over 100,000", 2016 to 2017: the allowance of 11,000 is zero at 122,000.
    let taper = json!({"income": "122000", "deductions": uk_allowance("11000"),
        "levies": [{"id": "tax", "bands": bands(&[("32000", "20%"), ("150000", "40%"), ("", "45%")])}]});
    golden(
        Kind::TaxCalculation,
        vec![
            (
                "dividends",
                dividends,
                vec![
                    ("/totals/by_levy/income tax", json!("3400.00")),
                    ("/totals/by_levy/dividend tax", json!("87.50")),
                    ("/periods/0/levies/1/units/0/nil_rate", json!("2000")),
                    ("/periods/0/levies/1/units/0/bands/0/base", json!("1000")),
                ],
            ),
            (
                "insurance",
                insurance,
                vec![
                    ("/totals/tax", json!("97.13")),
                    ("/periods/0/levies/0/units/0/bands/1/amount", json!("96.06")),
                    ("/periods/0/levies/0/units/0/bands/2/amount", json!("1.07")),
                ],
            ),
            (
                "taper",
                taper,
                vec![
                    ("/periods/0/levies/0/units/0/deductions", json!([])),
                    ("/periods/0/levies/0/units/0/base", json!("122000")),
                ],
            ),
        ],
    );
}

#[test]
fn hand_computations() {
    let two = &[("10000", "10%"), ("", "20%")];
    let levy = |extra: Value| {
        let mut levy = json!({"id": "tax", "bands": bands(two)});
        levy.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        levy
    };
    let on = |income: &str, extra: Value| json!({"income": income, "levies": [levy(extra)]});
    golden(
        Kind::TaxCalculation,
        vec![
            (
                "nothing earned",
                tax("0", two),
                vec![
                    ("/totals/tax", json!("0.00")),
                    ("/totals/effective_rate", json!(null)),
                    ("/totals/marginal_rate", json!("0.100000")),
                ],
            ),
            (
                "a loss",
                tax("-500.50", two),
                vec![
                    ("/totals/tax", json!("0.00")),
                    ("/totals/net", json!("-500.50")),
                    ("/periods/0/levies/0/units/0/loss", json!("500.50")),
                    ("/totals/marginal_rate", json!("0.000000")),
                ],
            ),
            // the end of a band belongs to it: 10,000 × 10 %
            (
                "at the edge",
                tax("10000", two),
                vec![("/totals/tax", json!("1000.00")), ("/totals/marginal_rate", json!("0.200000"))],
            ),
            // 1,000 + 0.01 × 20 % = 1,000.002
            ("one cent over", tax("10000.01", two), vec![("/totals/tax", json!("1000.00"))]),
            // 0.05 × 10 % = 0.005: half up 0.01, half even 0.00
            ("half up", tax("0.05", two), vec![("/totals/tax", json!("0.01"))]),
            (
                "half even",
                {
                    let mut p = tax("0.05", two);
                    p["rounding"] = json!({"mode": "half_even"});
                    p
                },
                vec![("/totals/tax", json!("0.00"))],
            ),
            // 12,345.67: base down to 12,300: 1,000 + 2,300 × 20 % = 1,460
            (
                "rounded base",
                on("12345.67", json!({"base_rounding": {"to": "100"}})),
                vec![("/totals/tax", json!("1460.00"))],
            ),
            // slab: 12,000 × 20 % = 2,400
            ("slab", on("12000", json!({"method": "slab"})), vec![("/totals/tax", json!("2400.00"))]),
            // 1,000 + 400 + 50 = 1,450, at most 1,200
            (
                "flat and maximum",
                on("12000", json!({"flat": "50", "maximum": "1200"})),
                vec![("/totals/tax", json!("1200.00"))],
            ),
            ("minimum", on("10", json!({"minimum": "25"})), vec![("/totals/tax", json!("25.00"))]),
            // exempt at 9,000, the whole taxed at 9,000.01
            (
                "exempt",
                on("9000", json!({"exempt_up_to": "9000"})),
                vec![
                    ("/totals/tax", json!("0.00")),
                    ("/thresholds/0/at", json!("9000.00")),
                    ("/thresholds/0/jump", json!("900.00")),
                ],
            ),
            (
                "no longer exempt",
                on("9000.01", json!({"exempt_up_to": "9000"})),
                vec![("/totals/tax", json!("900.00"))],
            ),
            // tax 100; credits 80, then 50 of which 20 can be used
            (
                "credits in order",
                on("1000", json!({"credits": [{"id": "a", "amount": "80"}, {"id": "b", "amount": "50"}]})),
                vec![
                    ("/totals/tax", json!("0.00")),
                    ("/periods/0/levies/0/units/0/credits/1/used", json!("20.00")),
                    ("/periods/0/levies/0/units/0/credits/1/unused", json!("30.00")),
                ],
            ),
            // tax 100 less a refundable 150: 50 is paid out
            (
                "refundable",
                on("1000", json!({"credits": [{"id": "a", "amount": "150", "refundable": true}]})),
                vec![("/totals/tax", json!("-50.00")), ("/totals/net", json!("1050.00"))],
            ),
            // a relief at 20 % of 1,000 against 2,000 × … 12,000: 1,400 - 200
            (
                "relief at a rate",
                on("12000", json!({"credits": [{"id": "a", "amount": "1000", "rate": "20%"}]})),
                vec![("/totals/tax", json!("1200.00"))],
            ),
            // deductions of 300 and 900 from 1,000: 300, then 700
            (
                "deductions in order",
                on(
                    "1000",
                    json!({"deductions": [{"id": "a", "amount": "300"}, {"id": "b", "amount": "900"}]}),
                ),
                vec![
                    ("/totals/tax", json!("0.00")),
                    ("/periods/0/levies/0/units/0/deductions/1/amount", json!("700")),
                ],
            ),
            // two levies, the first reduces the second's base: 1,000; (10,000 - 1,000) × 5 % = 450
            (
                "a levy under a levy",
                json!({"income": "10000", "levies": [{"id": "a", "bands": bands(two)}, {"id": "b", "deduct_levies": ["a"], "bands": bands(&[("", "5%")])}]}),
                vec![("/totals/by_levy/b", json!("450.00")), ("/totals/tax", json!("1450.00"))],
            ),
            // two people of 15,000 and 5,000: separate 2,000 + 500; joint 1,000 + 2,000; split 2 × 1,000
            ("separate", couple("separate"), vec![("/totals/tax", json!("2500.00"))]),
            ("joint", couple("joint"), vec![("/totals/tax", json!("3000.00"))]),
            ("split", couple("split"), vec![("/totals/tax", json!("2000.00"))]),
            // 10 % of 0.85 is 0.085, in three parts too
            (
                "three parts, half up",
                json!({"income": "0.85", "parts": "3", "assessment": "split", "levies": [{"id": "tax", "bands": bands(&[("", "10%")])}]}),
                vec![("/totals/tax", json!("0.09"))],
            ),
            (
                "three parts, down",
                json!({"income": "4.00", "parts": "3", "assessment": "split", "rounding": {"mode": "down"}, "levies": [{"id": "tax", "bands": bands(&[("", "10%")])}]}),
                vec![("/totals/tax", json!("0.40"))],
            ),
            // joint band of 10,000 widened by the second income, at most 4,000: 14,000 × 10 % + 6,000 × 20 %
            (
                "a wider band for two",
                {
                    let mut p = couple("joint");
                    p["levies"][0]["bands"][0]["widen_by_second_income"] = json!("4000");
                    p
                },
                vec![("/totals/tax", json!("2600.00"))],
            ),
            // twelfths: 2,000 a month, 833.33… at 10 % and the rest at 20 %: 83.333… + 233.333… = 316.67, each month
            (
                "twelfths",
                months("fraction", &["2000"; 12]),
                vec![("/periods/3/tax", json!("316.67")), ("/totals/tax", json!("3800.04"))],
            ),
            // cumulative: after two months 4,000 against 1,666.67: 166.67 + 466.67 = 633.33, of which 316.67 is charged
            (
                "cumulative",
                months("cumulative", &["2000"; 12]),
                vec![("/periods/1/tax", json!("316.66")), ("/totals/tax", json!("3800.00"))],
            ),
            // 6,000 in the first month: 83.33 + 1,033.33 = 1,116.67; nothing after: 600.00 - … flows back
            (
                "cumulative pays back",
                months("cumulative", &["6000", "0", "0", "0", "0", "0", "0", "0", "0", "0", "0", "0"]),
                vec![("/periods/0/tax", json!("1116.67")), ("/totals/tax", json!("600.00"))],
            ),
            // losses: -1,000 then 3,000: 2,000 × 10 %
            (
                "a loss carried",
                {
                    let mut p = months("each", &["-1000", "3000"]);
                    p["carry_losses"] = json!(true);
                    p
                },
                vec![
                    ("/periods/1/tax", json!("200.00")),
                    ("/periods/1/levies/0/units/0/losses_used", json!("1000")),
                ],
            ),
        ],
    );
}

fn couple(assessment: &str) -> Value {
    json!({"assessment": assessment, "persons": [{"id": "A", "income": "15000"}, {"id": "B", "income": "5000"}],
        "levies": [{"id": "tax", "bands": bands(&[("10000", "10%"), ("", "20%")])}]})
}

fn months(basis: &str, incomes: &[&str]) -> Value {
    let periods: Vec<_> = incomes
        .iter()
        .enumerate()
        .map(|(n, income)| json!({"id": format!("m{}", n + 1), "income": income, "fraction": (basis != "each").then_some("1/12")}))
        .collect();
    json!({"basis": basis, "periods": periods, "levies": [{"id": "tax", "bands": bands(&[("10000", "10%"), ("", "20%")])}]})
}

#[test]
fn the_marginal_rate_is_given_on_both_sides_of_every_threshold() {
    // 2024-25 figures of the United Kingdom: between 100,000 and 125,140 the allowance falls by 1 for each 2, so that
    // tax takes 60 % and insurance 2 % of each further pound.
    let output = output(
        Kind::TaxCalculation,
        json!({
            "income": "60000", "deductions": uk_allowance("12570"),
            "levies": [
                {"id": "tax", "bands": bands(&[("37700", "20%"), ("125140", "40%"), ("", "45%")])},
                {"id": "insurance", "use_deductions": false, "bands": bands(&[("12570", "0"), ("50270", "8%"), ("", "2%")])},
            ],
        }),
    );
    let steps: Vec<_> = output["thresholds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| {
            [&step["at"], &step["rate_below"], &step["rate_above"]]
                .map(|value| value.as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(
        steps,
        [
            ["12570.00", "0.000000", "0.280000"],
            ["50270.00", "0.280000", "0.420000"],
            ["100000.00", "0.420000", "0.620000"],
            ["125140.00", "0.620000", "0.470000"],
        ]
    );
    assert_eq!(output["totals"]["marginal_rate"], "0.420000");
}

/// Numbers that look random and are the same in every run.
struct Series(u64);

impl Series {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn random_cases_agree_with_a_computation_in_whole_hundredths() {
    let mut series = Series(7);
    let mut cases = Vec::new();
    for _ in 0..150 {
        let mut ends = Vec::new();
        let mut end = 0;
        for _ in 0..series.below(6) {
            end += 1 + series.below(2_000_000);
            ends.push(end);
        }
        let rates: Vec<u64> = (0..=ends.len()).map(|_| series.below(101)).collect();
        let cents = series.below(8_000_000) as i64 - 500_000;
        // the second way: hundredths of cents, each band in whole numbers, rounded half up at the end
        let mut hundredths = 0_u64;
        let mut start = 0;
        for (index, rate) in rates.iter().enumerate() {
            let top = ends.get(index).copied().unwrap_or(u64::MAX).min(cents.max(0) as u64);
            hundredths += top.saturating_sub(start) * rate;
            start = ends.get(index).copied().unwrap_or(0);
        }
        let expected = (hundredths + 50) / 100;
        let money = |cents: i64| {
            format!("{}{}.{:02}", if cents < 0 { "-" } else { "" }, cents.abs() / 100, cents.abs() % 100)
        };
        let list: Vec<_> = rates
            .iter()
            .enumerate()
            .map(|(index, rate)| match ends.get(index) {
                Some(end) => json!({"up_to": money(*end as i64), "rate": format!("{rate}%")}),
                None => json!({"rate": format!("{rate}%")}),
            })
            .collect();
        let income = money(cents);
        cases.push((
            json!({"income": income, "levies": [{"id": "tax", "bands": list}]}),
            money(expected as i64),
            cents,
        ));
    }
    for ((parameters, expected, cents), report) in
        cases.iter().zip(each(Kind::TaxCalculation, cases.iter().map(|case| case.0.clone())))
    {
        let output = report.unwrap().output;
        assert_eq!(output["totals"]["tax"], **expected, "{parameters}");
        let parts: f64 = output["periods"][0]["levies"][0]["units"][0]["bands"]
            .as_array()
            .unwrap()
            .iter()
            .map(|band| band["base"].as_str().unwrap().parse::<f64>().unwrap())
            .sum();
        assert!(
            (parts - (*cents).max(0) as f64 / 100.0).abs() < 1e-6,
            "the bands' parts come to the whole: {parameters}"
        );
    }
}

#[test]
fn without_tapers_more_income_is_never_less_tax() {
    let incomes: Vec<u64> = (0..60).map(|n| n * 1_737).collect();
    let rates = &[("9000", "0"), ("20000", "15%"), ("20000.01", "3%"), ("61000", "40%"), ("", "12.5%")];
    let taxes: Vec<f64> =
        each(Kind::TaxCalculation, incomes.iter().map(|income| tax(&income.to_string(), rates)))
            .into_iter()
            .map(|report| report.unwrap().output["totals"]["tax"].as_str().unwrap().parse().unwrap())
            .collect();
    assert!(taxes.windows(2).all(|pair| pair[0] <= pair[1]), "{taxes:?}");
    assert!(taxes[59] > taxes[5]);
}

#[test]
fn rules_that_contradict_themselves_are_refused_with_their_place() {
    let levy = |levy: Value| json!({"income": 1, "levies": [levy]});
    for (parameters, said) in [
        (
            levy(json!({"id": "t", "bands": [{"up_to": 50, "rate": 0}, {"from": 40, "rate": 0}]})),
            "levies[0].bands[1].from: 40 is below 50, where the band before ends: the bands overlap",
        ),
        (
            levy(json!({"id": "t", "bands": [{"up_to": 50, "rate": 0}, {"from": 60, "rate": 0}]})),
            "levies[0].bands[1].from: 60 is above 50, where the band before ends: there is a gap",
        ),
        (
            levy(json!({"id": "t", "bands": [{"up_to": 50, "rate": 0}, {"up_to": 50, "rate": 0}]})),
            "levies[0].bands[1].up_to: 50 is not above 50",
        ),
        (
            levy(json!({"id": "t", "bands": [{"rate": 0}, {"up_to": 50, "rate": 0}]})),
            "levies[0].bands[0].up_to: only the last band may have no end",
        ),
        (levy(json!({"id": "t"})), "levies[0]: a levy needs bands"),
        (
            levy(json!({"id": "t", "bands": [{"rate": 0}], "minimum": 2, "maximum": 1})),
            "levies[0].minimum: the minimum is above",
        ),
        (
            levy(json!({"id": "t", "bands": [{"rate": 0}], "deduct_levies": ["u"]})),
            "levies[0].deduct_levies[0]: there is no earlier levy",
        ),
        (
            levy(json!({"id": "t", "bands": [{"rate": 0}], "deduct_levies": ["t"]})),
            "levies[0].deduct_levies[0]: there is no earlier levy",
        ),
        (
            levy(json!({"id": "t", "bands": [{"rate": 0}], "base_rounding": {"to": 0}})),
            "levies[0].base_rounding.to",
        ),
        (
            levy(
                json!({"id": "t", "bands": [{"rate": 0}], "credits": [{"id": "c", "amount": 1, "taper": {"from": 1, "reduce_by": 1, "per": 0}}]}),
            ),
            "levies[0].credits[0].taper.per",
        ),
        (
            levy(
                json!({"id": "t", "bands": [{"rate": 0}], "credits": [{"id": "c", "amount": 1, "persons": ["x"]}]}),
            ),
            "levies[0].credits[0].persons[0]: there is no person 'x'",
        ),
        (
            json!({"levies": [{"id": "t", "bands": [{"rate": 0}]}]}),
            "parameters: exactly one of income, incomes, persons or periods",
        ),
        (
            json!({"income": 1, "incomes": [{"kind": "a", "amount": 1}], "levies": [{"id": "t", "bands": [{"rate": 0}]}]}),
            "parameters: exactly one of income",
        ),
        (
            json!({"income": 1, "levies": [{"id": "t", "bands": [{"rate": 0}]}, {"id": "t", "bands": [{"rate": 0}]}]}),
            "levies[1].id: the id 't' stands twice",
        ),
        (
            json!({"periods": [{"id": "a", "income": 1, "fraction": "0.5"}], "levies": [{"id": "t", "bands": [{"rate": 0}]}]}),
            "basis: a fraction is given",
        ),
        (
            json!({"persons": [{"id": "a"}], "levies": [{"id": "t", "bands": [{"rate": 0}]}]}),
            "parameters.persons[0]: exactly one of income or incomes",
        ),
    ] {
        let refused = refusal(Kind::TaxCalculation, parameters.clone());
        assert!(refused.contains(said), "{parameters}: {refused}");
    }
}
