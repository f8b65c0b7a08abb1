//! Each excuse lets its examples pass and nothing near them, and each is worth something: switched off, it is missed.

use pathbox::guard::{Action, Excuse, Guard, Numbering, Policy, PolicyFile, Profile, excuses};

use super::guard_quality::{negatives, positives};

/// A policy that finds all kinds, in a profile, with some excuses switched off.
fn guard(profile: Profile, off: &[&str]) -> Guard {
    let off = off.iter().map(|id| (*id).to_owned()).collect();
    let mut policy = Policy { every_address: true, profile, excuses_off: off, ..Policy::default() };
    policy.actions.values_mut().for_each(|action| *action = Action::Redact);
    Guard::new(policy).unwrap()
}

fn found(guard: &Guard, text: &str) -> bool {
    guard.text(text, &mut Numbering::alone()).1.total() > 0
}

#[test]
fn each_excuse_lets_its_examples_pass_and_nothing_near_them() {
    let balanced = guard(Profile::Balanced, &[]);
    let mut wrong = Vec::new();
    for excuse in excuses() {
        let Excuse { id, examples, counter_examples, .. } = excuse;
        if examples.is_empty() || counter_examples.is_empty() {
            wrong.push(format!("{id} has no examples of both sorts"));
        }
        for text in examples.iter().filter(|text| found(&balanced, text)) {
            wrong.push(format!("{id} does not let pass {text:?}: {:?}", balanced.check(text).findings));
        }
        for text in counter_examples.iter().filter(|text| !found(&balanced, text)) {
            wrong.push(format!("{id}: nothing is found in {text:?}"));
        }
        let without = guard(Profile::Balanced, &[id]);
        if !examples.iter().any(|text| found(&without, text)) {
            wrong.push(format!("{id} is not needed for any of its examples"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}

/// Tables of numbers in the layouts of programs, eight rows each, the same each time.
fn numeric_tables(each: usize) -> Vec<String> {
    const LAYOUTS: usize = 12;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut rows = Vec::new();
    for _ in 0..each {
        let four: Vec<u64> = (0..4).map(|_| 1_000 + next(9_000)).collect();
        let [a, b, c, d] = four[..] else { unreachable!() };
        let long = 1_000_000_000_000_000 + next(9_000_000_000_000_000);
        rows.push(format!("{a} {b} {c} {d}"));
        rows.push(format!("[{a} {b} {c} {d}]"));
        rows.push(format!("{},{long},{}", next(1_000), next(100_000)));
        rows.push(format!(".{long} .{}", 1_000_000_000_000_000 + next(9_000_000_000_000_000)));
        rows.push(format!("M {a} {b} Q {a} {b} {c} {d} z"));
        rows.push(format!("{:08x}: {a:04x} {b:04x} {c:04x} {d:04x}", next(1 << 32)));
        rows.push(format!("{} {}", 1_600_000_000 + next(200_000_000), next(1_000_000_000)));
        rows.push(format!("{a}.{b}e+0{} {c}.{d}e-0{}", next(10), next(10)));
        rows.push(format!("[{}.{:06}, {}.{:06}]", next(180), next(1_000_000), next(90), next(1_000_000)));
        rows.push(format!("[{} {} {}]", 200 + next(800), 200 + next(800), 1_000 + next(9_000)));
        rows.push(format!("{long}\n{}\n", 1_000_000_000_000_000 + next(9_000_000_000_000_000)));
        rows.push(format!("{}  {}.{:02}  {}", next(100), next(10_000), next(100), next(100_000)));
    }
    let layout = |at: usize| rows.iter().skip(at).step_by(LAYOUTS).cloned().collect::<Vec<_>>();
    (0..LAYOUTS).flat_map(|at| layout(at).chunks(8).map(|rows| rows.join("\n")).collect::<Vec<_>>()).collect()
}

/// A text that each profile decides otherwise.
#[test]
fn profiles_ask_for_more_or_less_evidence() {
    let shown = |profile: &str, text: &str| {
        let file: PolicyFile = toml::from_str(&format!("profile = \"{profile}\"")).unwrap();
        let guard = Guard::new(file.resolve(None, None, None)).unwrap();
        guard.text(text, &mut Numbering::alone()).0.into_inner()
    };
    let text = "17 4111111111111111 2209\ncall (415) 555-0132 or mail bob@example.com";
    for (profile, expected) in [
        ("strict", "17 [CREDIT_CARD_1] 2209\ncall [PHONE_1] or mail [EMAIL_1]"),
        ("balanced", "17 4111111111111111 2209\ncall [PHONE_1] or mail [EMAIL_1]"),
    ] {
        assert_eq!(shown(profile, text), expected, "{profile}");
    }
    assert_eq!(shown("balanced", "x = (415) 555-0132"), "x = [PHONE_1]");
    assert_eq!(shown("code", "x = (415) 555-0132"), "x = (415) 555-0132");
    assert_eq!(shown("code", "x = 'bob@example.com'"), "x = '[EMAIL_1]'");
}

#[test]
fn an_excuse_is_switched_off_by_its_id_and_an_unknown_one_is_an_error() {
    let file: PolicyFile = toml::from_str("excuses_off = [\"version-word\"]").unwrap();
    let without = Guard::new(file.resolve(None, None, None)).unwrap();
    let text = "version 1.2.3.4";
    assert_eq!(*Guard::default().text(text, &mut Numbering::alone()).0, text);
    assert_eq!(*without.text(text, &mut Numbering::alone()).0, "version [IP_1]");
    let error = toml::from_str::<PolicyFile>("excuses_off = [\"verison-word\"]").unwrap_err().to_string();
    assert!(error.contains("verison-word"), "{error}");
}

/// What each excuse is worth: switched off, how many negatives and numeric rows are touched more, and how many values come
/// back. `cargo test --test it guard_excuses -- --ignored --nocapture` prints the table.
#[test]
#[ignore = "prints a table; takes minutes"]
fn what_each_excuse_is_worth() {
    let (negatives, rows, positives) = (negatives(), numeric_tables(200), positives());
    let measure = |off: &[&str]| {
        let guard = guard(Profile::Balanced, off);
        let hidden = |(text, values): &(String, Vec<String>)| {
            let out = guard.text(text, &mut Numbering::alone()).0;
            values.iter().filter(|value| !out.contains(value.as_str())).count()
        };
        let touched = |texts: &[String]| texts.iter().filter(|text| found(&guard, text)).count();
        [touched(&negatives), touched(&rows), positives.iter().map(hidden).sum()]
    };
    let with = measure(&[]);
    println!("{} negatives, {} tables; with all {with:?}", negatives.len(), rows.len());
    println!("| id | applies | negatives | tables | values |\n| --- | --- | --- | --- | --- |");
    for excuse in excuses() {
        let without = measure(&[&excuse.id]);
        let [negatives, rows, values] = [0, 1, 2].map(|at| without[at] as i64 - with[at] as i64);
        println!("| {} | {} | {negatives:+} | {rows:+} | {values:+} |", excuse.id, excuse.applies.join(", "));
    }
}
