//! From a checked call to a cell of Python, and from what the cell said back to a report.
//!
//! A cell is constant text but for three string literals of base64, whose alphabet cannot end a literal: the
//! program, the request and nothing else. So no parameter is ever source. The report comes back as the *value of
//! the cell's expression*, in a format of its own ([`RESULT_FORMAT`]); what the code prints is never looked at.
//! Everything runs in a namespace that the cell makes and drops, so a context's own variables stay as they were.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Checked, Kind, OutputFormat};

/// The format under which a cell's value carries the report: a JSON object, so that a guard can walk it.
pub const RESULT_FORMAT: &str = "application/vnd.pathbox.analysis+json";

/// The largest report that is taken back, in bytes of JSON text.
pub const MAX_REPORT_BYTES: usize = 4 * 1024 * 1024;

/// Says under every report what it is.
pub const DISCLAIMER: &str =
    "This is a computation from the rules and figures given with the call. It is not advice.";

/// The programs by name.
const SOURCES: &[(&str, &str)] = &[
    ("main", include_str!("programs/main.py")),
    ("core", include_str!("programs/core.py")),
    ("conditions", include_str!("programs/conditions.py")),
    ("formula", include_str!("programs/formula.py")),
    ("tax_calculation", include_str!("programs/tax_calculation.py")),
    ("compliance_check", include_str!("programs/compliance_check.py")),
    ("eligibility", include_str!("programs/eligibility.py")),
    ("timeline", include_str!("programs/timeline.py")),
    ("cases", include_str!("programs/cases.py")),
    ("comparison", include_str!("programs/comparison.py")),
    ("scenario", include_str!("programs/scenario.py")),
    ("data_analysis", include_str!("programs/data_analysis.py")),
    ("custom", include_str!("programs/custom.py")),
];

/// The constant part of every cell: an expression, so that it leaves no name behind.
const CELL: &str = r#"(lambda scope: (
    __import__("builtins").exec(__import__("builtins").compile(
        __import__("base64").b64decode("{loader}"), "<pathbox>", "exec"), scope),
    scope["analyse"](__import__("base64").b64decode("{sources}"), __import__("base64").b64decode("{request}")),
)[1])({"__name__": "pathbox_analysis"})"#;

/// A cell of Python to run in a sandbox.
#[derive(Debug, Clone)]
pub struct Program {
    /// The cell's source; larger than what `run_code` takes from a caller, at most about 6 MB.
    pub code: String,
}

impl Program {
    /// The cell for a checked call.
    pub fn new(checked: &Checked, format: OutputFormat) -> Self {
        let mut request = json!({
            "analysis_type": checked.kind.as_str(),
            "output_format": format.as_str(),
            "result_format": RESULT_FORMAT,
            "max_bytes": MAX_REPORT_BYTES,
            "disclaimer": DISCLAIMER,
            "parameters": checked.parameters,
        });
        if let Some(pack) = &checked.pack {
            request["pack"] = json!(pack);
            request["examples"] = json!(checked.examples);
        }
        if !checked.notes.is_empty() {
            request["notes"] = json!(checked.notes);
        }
        let wanted = needs(checked.kind);
        let sources: serde_json::Map<String, Value> = SOURCES
            .iter()
            .filter(|(name, _)| wanted.contains(name))
            .map(|(name, source)| ((*name).to_owned(), json!(source)))
            .collect();
        let code = CELL
            .replace("{loader}", &STANDARD.encode(include_str!("programs/loader.py")))
            .replace("{sources}", &STANDARD.encode(Value::Object(sources).to_string()))
            .replace("{request}", &STANDARD.encode(request.to_string()));
        Self { code }
    }
}

/// The programs that an analysis is made of.
fn needs(kind: Kind) -> &'static [&'static str] {
    const CASES: &[&str] = &[
        "main",
        "core",
        "cases",
        "conditions",
        "formula",
        "tax_calculation",
        "compliance_check",
        "eligibility",
        "timeline",
        "comparison",
        "scenario",
    ];
    match kind {
        Kind::TaxCalculation => &["main", "core", "formula", "tax_calculation"],
        Kind::ComplianceCheck => &["main", "core", "formula", "conditions", "compliance_check"],
        Kind::Eligibility => &["main", "core", "formula", "conditions", "eligibility"],
        Kind::Timeline => &["main", "core", "timeline"],
        Kind::Comparison | Kind::Scenario => CASES,
        Kind::DataAnalysis => &["main", "core", "data_analysis"],
        Kind::Custom => &["main", "core", "custom"],
    }
}
