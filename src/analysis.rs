//! The analyses that `run_analysis` knows: named parameters in, a program for the sandbox out, a checked report back.
//!
//! Nothing is computed here. Rust checks the parameters' form, joins the cases of a comparison or a scenario and
//! wraps everything as data; the arithmetic is Python's `decimal` in `programs/*.py`, run where all code of a
//! context runs. What is checked where is in `docs/analysis.md`.
//!
//! ```
//! use pathbox::analysis::{self, Kind, OutputFormat, Program};
//!
//! let parameters = serde_json::json!({
//!     "income": "30000",
//!     "levies": [{"id": "income tax", "bands": [{"up_to": "10000", "rate": 0}, {"rate": "20%"}]}],
//! });
//! let checked = analysis::check(Kind::TaxCalculation, &parameters)?;
//! let program = Program::new(&checked, OutputFormat::Summary);
//! assert!(!program.code.contains("income tax"), "parameters are data and never source");
//! # Ok::<(), analysis::AnalysisError>(())
//! ```

mod catalog;
mod expand;
pub mod pack;
mod program;
mod report;
mod shape;

use serde_json::Value;

pub use catalog::{Entry, catalog};
pub use pack::{Pack, PackInfo};
pub use program::{DISCLAIMER, MAX_REPORT_BYTES, Program, RESULT_FORMAT};
pub use report::Report;

use crate::domain::context::text_enum;

text_enum! {
    /// Which analysis.
    Kind {
        /// Bands, allowances, credits and levies.
        TaxCalculation = "tax_calculation",
        /// Rules against facts.
        ComplianceCheck = "compliance_check",
        /// Schemes against facts.
        Eligibility = "eligibility",
        /// Events and constraints in time.
        Timeline = "timeline",
        /// One question under several rule sets.
        Comparison = "comparison",
        /// A base and named changes.
        Scenario = "scenario",
        /// Rows of data.
        DataAnalysis = "data_analysis",
        /// The caller's Python.
        Custom = "custom",
    }
}

text_enum! {
    /// How the report's `text` is written; the structured output is there in each.
    OutputFormat {
        /// The output as JSON text.
        Json = "json",
        /// Markdown tables.
        Table = "table",
        /// Sentences with figures.
        Summary = "summary",
    }
}

/// The largest `parameters` as JSON text, and the largest sum of the cases that a comparison or scenario makes.
const MAX_PARAMETER_BYTES: usize = 4 * 1024 * 1024;

/// Parameters whose form is right: known fields only, numbers as exact decimal text, cases joined and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    kind: Kind,
    parameters: Value,
    /// The rule pack that completed the parameters.
    pack: Option<PackInfo>,
    /// What the report says besides.
    notes: Vec<String>,
    /// Worked examples that have to come out before the answer is computed.
    examples: Vec<Value>,
}

impl Checked {
    /// Which analysis they are for.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// Checks the form of `parameters`; contradictions in the content are found by the program and reported in the same way.
///
/// # Errors
/// [`AnalysisError::TooLarge`] or [`AnalysisError::Invalid`]; the caller changes the parameters.
pub fn check(kind: Kind, parameters: &Value) -> Result<Checked, AnalysisError> {
    too_large(parameters.to_string().len())?;
    let mut notes = Vec::new();
    let parameters = shape::check_with_notes(catalog::parameters(kind), parameters, "", &mut notes)?;
    let parameters = match kind {
        Kind::Comparison => expand::comparison(parameters, &mut notes)?,
        Kind::Scenario => expand::scenario(parameters, &mut notes)?,
        _ => parameters,
    };
    Ok(Checked { kind, parameters, pack: None, notes, examples: Vec::new() })
}

fn too_large(bytes: usize) -> Result<(), AnalysisError> {
    if bytes > MAX_PARAMETER_BYTES {
        return Err(AnalysisError::TooLarge { bytes });
    }
    Ok(())
}

/// One thing that is wrong with the parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, for instance `levies[0].bands[2].rate`.
    pub path: String,
    /// What may stand there.
    pub expected: String,
    /// What stood there: its kind, never its content.
    pub got: String,
}

/// An analysis could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AnalysisError {
    /// The parameters are not what the analysis takes; the caller corrects them.
    #[error("{}", listed(.problems))]
    Invalid {
        /// What is wrong, in order; at most ten.
        problems: Vec<Problem>,
    },
    /// The parameters contradict themselves; the caller corrects them.
    #[error("{path}: {message}")]
    Refused {
        /// Where.
        path: String,
        /// What is wrong, with what would be right.
        message: String,
    },
    /// The parameters are too large; the caller sends less, or data as a file in the sandbox.
    #[error(
        "parameters come to {bytes} bytes; allowed are {MAX_PARAMETER_BYTES}: send less, or rows as a file"
    )]
    TooLarge {
        /// How large they are, with the cases of a comparison or scenario written out.
        bytes: usize,
    },
    /// The run ended without a report (a time-out, a death, an exception); its outcome says why.
    #[error("the analysis gave no report")]
    NoReport,
    /// What came back is not a report of this analysis: the interpreter was tampered with, or it is a fault of Pathbox.
    #[error("the report does not have the promised form: {0}")]
    BadReport(&'static str),
    /// The program failed; a fault of Pathbox.
    #[error("the analysis program failed: {0}")]
    Failed(String),
}

fn listed(problems: &[Problem]) -> String {
    let one =
        |problem: &Problem| format!("{}: expected {}, got {}", problem.path, problem.expected, problem.got);
    problems.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl AnalysisError {
    /// Whether the caller can put it right by changing the call.
    pub fn is_callers(&self) -> bool {
        matches!(self, Self::Invalid { .. } | Self::Refused { .. } | Self::TooLarge { .. })
    }
}
