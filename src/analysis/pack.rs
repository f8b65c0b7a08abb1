//! Rule packs: rules, rates and dates of validity as data, with their sources and worked examples that prove them.
//!
//! A pack is one JSON document ([`FORMAT`] says which fields). It fills the parameters that a call leaves out. The
//! surprise: its examples run with *every* call that names it, in front of the answer and by the same program, so a pack
//! that a change of Pathbox or a slip of its author broke is refused and never answers.

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{AnalysisError, Checked, Kind, check, shape};
use crate::domain::hex;

/// The version of the document's format.
pub const FORMAT: u32 = 1;
/// The largest document, in bytes.
pub const MAX_PACK_BYTES: usize = 1024 * 1024;
/// Worked examples in a pack at most: each costs a call its computation.
const MAX_EXAMPLES: usize = 100;

/// A rule pack, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Pack {
    document: Document,
    kind: Kind,
    sha256: String,
    /// As it was read, so that what was proved is what is added.
    bytes: Vec<u8>,
}

/// The document as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    id: String,
    version: String,
    title: String,
    analysis_type: String,
    /// The first and the last day for which the rules were made.
    valid_from: Option<NaiveDate>,
    valid_to: Option<NaiveDate>,
    sources: Vec<PackSource>,
    parameters: Map<String, Value>,
    examples: Vec<Example>,
}

/// Where the rules of a pack stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackSource {
    /// The publication.
    pub title: String,
    /// The place in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section: Option<String>,
    /// Where it can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// When it was read.
    pub retrieved: NaiveDate,
}

/// A published worked example.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    id: String,
    source: String,
    /// What the call would have given.
    parameters: Map<String, Value>,
    /// JSON pointers into the output, and what stands there.
    expect: Map<String, Value>,
}

/// A report's summary of the pack that it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackInfo {
    /// `id@version`.
    pub name: String,
    /// For people.
    pub title: String,
    /// SHA-256 of the document, hex.
    pub sha256: String,
    /// The first day for which the rules were made.
    pub valid_from: Option<NaiveDate>,
    /// The last day for which the rules were made.
    pub valid_to: Option<NaiveDate>,
    /// Where the rules stand.
    pub sources: Vec<PackSource>,
    /// How many worked examples were reproduced before the answer was computed.
    pub examples: usize,
}

/// A document is not a pack.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// It is too large.
    #[error("a pack has at most {MAX_PACK_BYTES} bytes")]
    TooLarge,
    /// It cannot be read; the author corrects it.
    #[error("the pack cannot be read: {0}")]
    Form(#[source] serde_json::Error),
    /// A field does not make sense; the author corrects it.
    #[error("the pack's field `{field}`: {problem}")]
    Field {
        /// Which one.
        field: String,
        /// What is wrong, with what would be right.
        problem: String,
    },
}

fn wrong(field: impl Into<String>, problem: impl Into<String>) -> PackError {
    PackError::Field { field: field.into(), problem: problem.into() }
}

impl Pack {
    /// Reads a document. Its examples have the right form afterwards; that they hold is shown by a run.
    ///
    /// # Errors
    /// [`PackError`]: the author corrects the document.
    pub fn parse(document: &[u8]) -> Result<Self, PackError> {
        if document.len() > MAX_PACK_BYTES {
            return Err(PackError::TooLarge);
        }
        let (sha256, bytes) = (hex(&Sha256::digest(document)), document.to_vec());
        let document: Document = serde_json::from_slice(document).map_err(PackError::Form)?;
        if document.format != FORMAT {
            return Err(wrong("format", format!("this program reads format {FORMAT}")));
        }
        for (field, name) in [("id", &document.id), ("version", &document.version)] {
            if !is_name(name) {
                return Err(wrong(
                    field,
                    "1 to 64 small letters, digits, `-` and `.`, a letter or digit first",
                ));
            }
        }
        let kind = match document.analysis_type.parse() {
            Ok(
                kind @ (Kind::TaxCalculation | Kind::ComplianceCheck | Kind::Eligibility | Kind::Timeline),
            ) => kind,
            _ => {
                return Err(wrong(
                    "analysis_type",
                    "one of tax_calculation, compliance_check, eligibility, timeline",
                ));
            }
        };
        if document.sources.is_empty() {
            return Err(wrong("sources", "at least one source is needed"));
        }
        if !(1..=MAX_EXAMPLES).contains(&document.examples.len()) {
            return Err(wrong("examples", format!("1 to {MAX_EXAMPLES} worked examples are needed")));
        }
        if document.valid_from.zip(document.valid_to).is_some_and(|(from, to)| from > to) {
            return Err(wrong("valid_to", "it lies before valid_from"));
        }
        let pack = Self { document, kind, sha256, bytes };
        for (index, example) in pack.document.examples.iter().enumerate() {
            if example.expect.is_empty() {
                return Err(wrong(format!("examples[{index}].expect"), "at least one figure is needed"));
            }
            pack.joined(&example.parameters)
                .map_err(|error| wrong(format!("examples[{index}].parameters"), error.to_string()))?;
        }
        Ok(pack)
    }

    /// `id@version`, by which a call names it.
    pub fn name(&self) -> String {
        format!("{}@{}", self.document.id, self.document.version)
    }

    /// The document, byte for byte.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Which analysis it is for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A report's summary of it.
    pub fn info(&self) -> PackInfo {
        PackInfo {
            name: self.name(),
            title: self.document.title.clone(),
            sha256: self.sha256.clone(),
            valid_from: self.document.valid_from,
            valid_to: self.document.valid_to,
            sources: self.document.sources.clone(),
            examples: self.document.examples.len(),
        }
    }

    /// The rules, and the fields that a call adds, for people who read them.
    pub fn parameters(&self) -> &Map<String, Value> {
        &self.document.parameters
    }

    /// What the first worked example gives, as a call would.
    pub fn first_example(&self) -> &Map<String, Value> {
        &self.document.examples[0].parameters
    }

    /// A call's parameters completed by the pack. `today` decides whether the rules still apply.
    ///
    /// # Errors
    /// [`AnalysisError`] when the call is for another analysis, sets what the pack sets, or has the wrong form.
    pub fn complete(
        &self,
        kind: Kind,
        given: &Map<String, Value>,
        today: NaiveDate,
    ) -> Result<Checked, AnalysisError> {
        if kind != self.kind {
            let message = format!("{} is for {}, not for {kind}", self.name(), self.kind);
            return Err(AnalysisError::Refused { path: "pack".to_owned(), message });
        }
        let mut checked = self.joined(given)?;
        let day = given
            .get("as_of")
            .and_then(Value::as_str)
            .and_then(|day| shape::read_date(day).ok())
            .unwrap_or(today);
        checked.pack = Some(self.info());
        checked.notes.extend(self.note(day));
        checked.examples = self
            .document
            .examples
            .iter()
            .map(|example| {
                let parameters = self.joined(&example.parameters)?.parameters;
                Ok(json!({"id": example.id, "source": example.source, "parameters": parameters, "expect": example.expect}))
            })
            .collect::<Result<_, AnalysisError>>()?;
        Ok(checked)
    }

    /// Says so when its rules were made for other days than this one.
    pub fn note(&self, day: NaiveDate) -> Option<String> {
        let name = self.name();
        match (self.document.valid_from, self.document.valid_to) {
            (_, Some(last)) if day > last => Some(format!(
                "The rule pack {name} applies up to {last}; on {day} its rules may have changed."
            )),
            (Some(first), _) if day < first => {
                Some(format!("The rule pack {name} applies from {first}; it was used for {day}."))
            }
            _ => None,
        }
    }

    fn joined(&self, given: &Map<String, Value>) -> Result<Checked, AnalysisError> {
        let mut all = self.document.parameters.clone();
        for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
            if all.insert(name.clone(), value.clone()).is_some() {
                let message =
                    format!("{} sets it. Leave it out, or give all rules without a pack.", self.name());
                return Err(AnalysisError::Refused { path: name.clone(), message });
            }
        }
        check(self.kind, &Value::Object(all))
    }
}

/// Whether this can be a pack's id or version: no path and no option can be made of it.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
}

/// Whether this can name a pack: `id@version`.
pub fn is_pack_name(name: &str) -> bool {
    name.split_once('@').is_some_and(|(id, version)| is_name(id) && is_name(version))
}

/// The packs that come with the program. They are examples and no advice.
pub fn built_in() -> &'static [&'static str] {
    &[
        include_str!("packs/us-federal-income-tax-single@2024.json"),
        include_str!("packs/au-resident-income-tax@2023-24.json"),
        include_str!("packs/de-income-tax@2024.json"),
        include_str!("packs/eu-schengen-short-stay@2024.json"),
        include_str!("packs/fr-income-tax-gross@2023.json"),
        include_str!("packs/ie-income-tax-single-employee@2024.json"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        json!({"format": 1, "id": "xx-tax", "version": "2024", "title": "T", "analysis_type": "tax_calculation",
            "valid_from": "2024-01-01", "valid_to": "2024-12-31",
            "sources": [{"title": "Act", "retrieved": "2024-01-01"}],
            "parameters": {"levies": [{"id": "t", "bands": [{"rate": "10%"}]}]},
            "examples": [{"id": "e", "source": "Act, p. 1", "parameters": {"income": 100}, "expect": {"/totals/tax": "10.00"}}]})
    }

    fn parse(document: &Value) -> Result<Pack, PackError> {
        Pack::parse(document.to_string().as_bytes())
    }

    #[test]
    fn the_error_in_a_document_is_named() {
        for (pointer, value, said) in [
            ("/format", json!(2), "`format`: this program reads format 1"),
            ("/id", json!("../etc"), "`id`: 1 to 64 small letters"),
            ("/version", json!(""), "`version`"),
            ("/analysis_type", json!("custom"), "`analysis_type`: one of tax_calculation"),
            ("/sources", json!([]), "`sources`: at least one"),
            ("/examples", json!([]), "`examples`: 1 to 100"),
            ("/examples/0/expect", json!({}), "`examples[0].expect`"),
            ("/examples/0/parameters", json!({"incom": 1}), "`examples[0].parameters`"),
            ("/parameters/levies", json!([]), "`examples[0].parameters`: levies: expected a list of 1 to 50"),
            ("/valid_to", json!("2023-01-01"), "`valid_to`"),
            ("/title", json!(null), "the pack cannot be read"),
        ] {
            let mut document = document();
            *document.pointer_mut(pointer).unwrap() = value;
            let problem = parse(&document).unwrap_err().to_string();
            assert!(problem.contains(said), "{pointer}: {problem}");
        }
    }

    #[test]
    fn a_call_adds_to_a_pack_and_changes_nothing_of_it() {
        let pack = parse(&document()).unwrap();
        let day = |text: &str| text.parse().unwrap();
        let given = |value: Value| value.as_object().unwrap().clone();
        let within =
            pack.complete(Kind::TaxCalculation, &given(json!({"income": 5})), day("2024-06-01")).unwrap();
        assert!(within.notes.is_empty());
        let late =
            pack.complete(Kind::TaxCalculation, &given(json!({"income": 5})), day("2025-01-01")).unwrap();
        assert!(late.notes[0].contains("applies up to 2024-12-31"), "{:?}", late.notes);
        let refused =
            |kind, value| pack.complete(kind, &given(value), day("2024-06-01")).unwrap_err().to_string();
        assert!(
            refused(Kind::TaxCalculation, json!({"income": 5, "levies": []}))
                .contains("levies: xx-tax@2024 sets it")
        );
        assert!(refused(Kind::Timeline, json!({})).contains("is for tax_calculation"));
    }

    #[test]
    fn the_built_in_packs_have_the_right_form_and_names_of_their_own() {
        let names: std::collections::BTreeSet<_> =
            built_in().iter().map(|text| Pack::parse(text.as_bytes()).unwrap().name()).collect();
        assert_eq!(names.len(), built_in().len());
        assert!(names.iter().all(|name| is_pack_name(name)));
        for bad in ["a", "a@", "@1", "../a@1", "a@../1", "a@1@2", "-a@1", "A@1"] {
            assert!(!is_pack_name(bad), "{bad}");
        }
    }
}
