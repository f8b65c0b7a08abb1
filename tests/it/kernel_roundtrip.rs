//! Values that go through an interpreter and back: what comes as data is what went in, or the text says what it is.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;

use crate::kernel_support::{Bench, Told};

/// Values for each language.
const VALUES: usize = 120;

/// What a program of every language can have.
#[derive(Debug, Clone)]
enum Made {
    Nothing,
    Truth(bool),
    /// A whole number of any size, in digits.
    Whole(String),
    Real(f64),
    Text(String),
    List(Vec<Made>),
    Members(Vec<(String, Made)>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Language {
    Python,
    JavaScript,
    TypeScript,
}

fn made() -> impl Strategy<Value = Made> {
    let whole =
        "-?[1-9][0-9]{0,30}".prop_filter("no sign alone", |digits| digits != "-").prop_map(Made::Whole);
    let leaf = prop_oneof![
        Just(Made::Nothing),
        any::<bool>().prop_map(Made::Truth),
        whole,
        any::<f64>().prop_map(Made::Real),
        prop::sample::select(vec![f64::NAN, f64::INFINITY, -0.0, 0.1, 1e21, 5e-324]).prop_map(Made::Real),
        any::<String>().prop_map(Made::Text),
        "[a-z'\"\\\\\n\t ]{0,12}".prop_map(Made::Text),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        let key = "k[a-z0-9 '\"\\\\\u{e9}\u{1f389}\n]{0,6}";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Made::List),
            prop::collection::vec((key, inner), 0..6).prop_map(|members| {
                let mut seen = std::collections::HashSet::new();
                let once = members.into_iter().filter(|(key, _)| seen.insert(key.clone()));
                Made::Members(once.collect())
            }),
        ]
    })
}

impl Made {
    /// The value as source.
    fn literal(&self, language: Language) -> String {
        let is_python = language == Language::Python;
        let text = |text: &str| -> String {
            let escaped = text.chars().map(|c| match c {
                ' '..='~' if !matches!(c, '"' | '\\') => c.to_string(),
                c if is_python => format!("\\U{:08x}", c as u32),
                c => format!("\\u{{{:x}}}", c as u32),
            });
            format!("\"{}\"", escaped.collect::<String>())
        };
        match self {
            Self::Nothing => if is_python { "None" } else { "null" }.to_owned(),
            Self::Truth(truth) if is_python => if *truth { "True" } else { "False" }.to_owned(),
            Self::Truth(truth) => truth.to_string(),
            Self::Whole(digits) if is_python || !Self::is_big(digits) => digits.clone(),
            Self::Whole(digits) => format!("{digits}n"),
            Self::Real(real) if real.is_nan() => if is_python { "float('nan')" } else { "NaN" }.to_owned(),
            Self::Real(real) if real.is_infinite() => match (is_python, *real > 0.0) {
                (true, true) => "float('inf')".to_owned(),
                (true, false) => "float('-inf')".to_owned(),
                (false, true) => "Infinity".to_owned(),
                (false, false) => "-Infinity".to_owned(),
            },
            Self::Real(real) => format!("{real:?}"),
            Self::Text(said) => text(said),
            Self::List(items) => {
                format!(
                    "[{}]",
                    items.iter().map(|item| item.literal(language)).collect::<Vec<_>>().join(", ")
                )
            }
            Self::Members(members) => {
                let members =
                    members.iter().map(|(key, item)| format!("{}: {}", text(key), item.literal(language)));
                format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Whether a number of JavaScript's cannot hold it.
    fn is_big(digits: &str) -> bool {
        digits.parse::<i64>().map_or(true, |whole| whole.unsigned_abs() > 1 << 53)
    }

    /// A word that the text of this value must have when JSON cannot hold it.
    fn beyond_json(&self, language: Language) -> Option<String> {
        let is_python = language == Language::Python;
        match self {
            Self::Real(real) if real.is_nan() => Some(if is_python { "nan" } else { "NaN" }.to_owned()),
            Self::Real(real) if real.is_infinite() => {
                Some(if is_python { "inf" } else { "Infinity" }.to_owned())
            }
            Self::Real(real) if *real == 0.0 && real.is_sign_negative() && !is_python => {
                Some("-0".to_owned())
            }
            Self::Whole(digits) if !is_python && Self::is_big(digits) => Some(format!("{digits}n")),
            Self::List(items) => items.iter().find_map(|item| item.beyond_json(language)),
            Self::Members(members) => members.iter().find_map(|(_, item)| item.beyond_json(language)),
            _ => None,
        }
    }

    /// Whether this is what came back as data.
    fn is(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Nothing, Value::Null) => true,
            (Self::Truth(made), Value::Bool(came)) => made == came,
            (Self::Whole(digits), Value::Number(came)) => *digits == came.to_string(),
            (Self::Real(made), Value::Number(came)) => {
                came.to_string().parse::<f64>().is_ok_and(|came| came.to_bits() == made.to_bits())
            }
            (Self::Text(made), Value::String(came)) => made == came,
            (Self::List(made), Value::Array(came)) => {
                made.len() == came.len() && made.iter().zip(came).all(|(made, came)| made.is(came))
            }
            (Self::Members(made), Value::Object(came)) => {
                made.len() == came.len()
                    && made
                        .iter()
                        .zip(came)
                        .all(|((key, made), (came_as, came))| key == came_as && made.is(came))
            }
            _ => false,
        }
    }

    /// What is wrong with what came back.
    fn fault(&self, told: &Told, language: Language) -> Option<&'static str> {
        if !told.errors.is_empty() || !told.complete {
            return Some("an error");
        }
        let [result] = &told.results[..] else {
            return (!matches!(self, Self::Nothing)
                || language != Language::Python
                || !told.results.is_empty())
            .then_some("not one result");
        };
        let text = result.text.as_deref().unwrap_or_default();
        match (self, &result.json, self.beyond_json(language)) {
            (_, Some(json), None) => (!self.is(json)).then_some("other data"),
            (_, Some(_), Some(_)) => Some("data that cannot be exact"),
            (_, None, Some(word)) => {
                (!text.contains(&word)).then_some("neither data nor a text that says it")
            }
            (Self::Text(made), None, None) => (made != text).then_some("another text"),
            (Self::Truth(_) | Self::Nothing, None, None) => {
                (text != self.literal(language)).then_some("another word")
            }
            (Self::Whole(digits), None, None) => (digits != text).then_some("another number"),
            (Self::Real(made), None, None) => {
                (!text.parse::<f64>().is_ok_and(|came| came.to_bits() == made.to_bits()))
                    .then_some("another number")
            }
            (Self::List(_) | Self::Members(_), None, None) => Some("no data"),
        }
    }
}

async fn round_trips(language: Language, name: &str) {
    let bench = Bench::new().await;
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[language as u8 + 1; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    for _ in 0..VALUES {
        let value = made().new_tree(&mut runner).unwrap().current();
        let literal = value.literal(language);
        let code = match language {
            Language::Python => literal,
            Language::JavaScript => format!("({literal})"),
            Language::TypeScript => format!("const value: unknown = {literal}; value"),
        };
        let told = bench.run(&code, name).await;
        if let Some(fault) = value.fault(&told, language) {
            panic!("{fault}: {code}\n{value:?}\n{told:#?}");
        }
    }
}

#[tokio::test]
async fn values_of_python_come_back() {
    round_trips(Language::Python, "python").await;
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn values_of_javascript_come_back() {
    round_trips(Language::JavaScript, "javascript").await;
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn values_of_typescript_come_back() {
    round_trips(Language::TypeScript, "typescript").await;
}
