//! Each excuse lets its examples pass and nothing similar, and each has an effect: without it a test fails.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use pathbox::guard::{Action, Checker, Excuse, Guard, Numbering, Policy, PolicyFile, Profile, excuses};

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

/// Tables of numbers in the layouts of programs, eight rows each, always the same.
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

/// A text on which the profiles decide differently.
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

/// The effect of each excuse: switched off, how many more negatives and numeric tables are changed, how many values come
/// back, and how many more findings there are in the sources that `scripts/guard-sources` printed.
/// `cargo test --test it guard_excuses -- --ignored --nocapture` prints the table.
#[test]
#[ignore = "prints a table; takes minutes"]
fn the_effect_of_each_excuse() {
    let every = |off: &[&str]| guard(Profile::Balanced, off);
    let usual = |off: &[&str]| {
        let off = off.iter().map(|id| (*id).to_owned()).collect();
        Guard::new(Policy { excuses_off: off, ..Policy::default() }).unwrap()
    };
    let list = std::fs::read_to_string("target/test-env/guard-sources/files.txt").unwrap_or_default();
    let sources = list.lines().filter_map(|path| std::fs::read_to_string(path).ok());
    let plain = |texts: Vec<String>| texts.into_iter().map(|text| (text, Vec::new())).collect();
    let sets = [
        Set::new(plain(negatives()), &every),
        Set::new(plain(numeric_tables(200)), &every),
        Set::new(positives(), &every),
        Set::new(plain(sources.collect()), &usual),
    ];
    println!("with all: {:?}", sets.each_ref().map(Set::all));
    println!("| id | applies | negatives | rows | values | sources |\n| --- | --- | --- | --- | --- | --- |");
    for Excuse { id, applies, .. } in excuses() {
        let [negatives, rows, values, sources] = sets.each_ref().map(|set| set.without(id));
        println!(
            "| {id} | {} | {:+} | {:+} | {:+} | {:+} |",
            applies.join(", "),
            negatives.touched,
            rows.touched,
            values.hidden,
            sources.findings
        );
    }
}

/// The guard's results for texts.
#[derive(Debug, Default, Clone, Copy)]
struct Done {
    touched: i64,
    findings: i64,
    hidden: i64,
}

impl std::iter::Sum for Done {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            touched: sum.touched + one.touched,
            findings: sum.findings + one.findings,
            hidden: sum.hidden + one.hidden,
        })
    }
}

/// A text, what must be hidden in it, its findings, and the rows that excuse a candidate in it: unless one of them is
/// switched off, the result is the same.
struct Judged {
    text: String,
    values: Vec<String>,
    done: Done,
    excused: Option<BTreeSet<&'static str>>,
}

type Maker<'a> = &'a (dyn Fn(&[&str]) -> Guard + Sync);

struct Set<'a> {
    texts: Vec<Judged>,
    guard: Maker<'a>,
}

impl<'a> Set<'a> {
    fn new(texts: Vec<(String, Vec<String>)>, make: Maker<'a>) -> Self {
        let guard = make(&[]);
        let texts = in_threads(&texts, |(text, values)| {
            let mut checker = Checker::explaining(&guard);
            checker.push(text);
            let candidates = checker.finish().candidates;
            let whole = candidates.len() < Checker::MAX_FINDINGS;
            let excused = whole.then(|| candidates.iter().filter_map(|one| one.excuse).collect());
            Judged { text: text.clone(), values: values.clone(), done: done(&guard, text, values), excused }
        });
        Self { texts, guard: make }
    }

    fn all(&self) -> Done {
        self.texts.iter().map(|one| one.done).sum()
    }

    /// The additional findings with a row switched off.
    fn without(&self, id: &str) -> Done {
        let guard = (self.guard)(&[id]);
        let asked = |one: &&Judged| one.excused.as_ref().is_none_or(|rows| rows.contains(id));
        let asked: Vec<&Judged> = self.texts.iter().filter(asked).collect();
        let more = in_threads(&asked, |one| {
            let now = done(&guard, &one.text, &one.values);
            Done {
                touched: now.touched - one.done.touched,
                findings: now.findings - one.done.findings,
                hidden: now.hidden - one.done.hidden,
            }
        });
        more.into_iter().sum()
    }
}

fn done(guard: &Guard, text: &str, values: &[String]) -> Done {
    let (out, report) = guard.text(text, &mut Numbering::alone());
    let hidden = values.iter().filter(|value| !out.contains(value.as_str())).count() as i64;
    let findings = report.total() as i64;
    Done { touched: findings.min(1), findings, hidden }
}

/// The result of `run` for each text, with as many threads as there are processors.
fn in_threads<T: Sync, R: Send>(texts: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let next = || texts.get(next.fetch_add(1, Ordering::Relaxed));
        std::iter::from_fn(next).map(&run).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}
