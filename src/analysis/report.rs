//! What a run of an analysis said, read back and held against what was promised.
//!
//! Only the value of the cell's expression counts. Code that ran earlier in the same interpreter could have replaced
//! parts of Python itself, so the form is checked here, and a caller that needs more runs analyses in an interpreter
//! that has run nothing else.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::program::{DISCLAIMER, MAX_REPORT_BYTES, RESULT_FORMAT};
use super::{AnalysisError, Checked, Kind, OutputFormat, PackInfo, catalog};
use crate::domain::{RichResult, from_value};

/// An analysis's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Which analysis.
    pub analysis_type: String,
    /// How `text` is written.
    pub output_format: String,
    /// The figures, by the analysis's own fields; amounts are decimal text.
    pub output: Value,
    /// The same for reading, as JSON, Markdown tables or sentences.
    pub text: String,
    /// The sources that came with the rules.
    pub sources: Vec<String>,
    /// How numbers were computed and rounded.
    pub arithmetic: String,
    /// What the reader should know besides: assumptions, things left out.
    pub notes: Vec<String>,
    /// That this is a computation and no advice.
    pub disclaimer: String,
    /// The rule pack that it rests on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<PackInfo>,
}

impl Report {
    /// The report among a run's results.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] when the parameters contradict themselves, [`AnalysisError::NoReport`] when there is
    /// none, and [`AnalysisError::BadReport`] or [`AnalysisError::Failed`] for a fault that is not the caller's.
    pub fn read(
        checked: &Checked,
        format: OutputFormat,
        results: &[RichResult],
    ) -> Result<Self, AnalysisError> {
        let report = Self::said(results)?;
        if report.analysis_type != checked.kind().as_str() || report.output_format != format.as_str() {
            return Err(AnalysisError::BadReport("it answers another call"));
        }
        if report.pack != checked.pack {
            return Err(AnalysisError::BadReport("it names another rule pack"));
        }
        report.promised(checked.kind(), format)
    }

    /// The report among the results of a run whose parameters are not at hand any more.
    ///
    /// # Errors
    /// As [`Report::read`].
    pub fn recorded(results: &[RichResult]) -> Result<Self, AnalysisError> {
        let report = Self::said(results)?;
        let (Ok(kind), Ok(format)) = (report.analysis_type.parse(), report.output_format.parse()) else {
            return Err(AnalysisError::BadReport("it does not belong to this call"));
        };
        report.promised(kind, format)
    }

    fn said(results: &[RichResult]) -> Result<Self, AnalysisError> {
        let said = results
            .iter()
            .filter(|result| result.is_main)
            .find_map(|result| result.formats.get(RESULT_FORMAT))
            .ok_or(AnalysisError::NoReport)?;
        if said.to_string().len() > MAX_REPORT_BYTES {
            return Err(AnalysisError::BadReport("it is larger than 4 MiB"));
        }
        let mut said =
            said.as_object().cloned().ok_or(AnalysisError::BadReport("it is not a JSON object"))?;
        let word =
            |value: Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        match word(said.remove("status")).as_str() {
            "done" => from_value(&Value::Object(said))
                .map_err(|_| AnalysisError::BadReport("a field is missing, unknown or of another type")),
            "refused" => Err(AnalysisError::Refused {
                path: word(said.remove("path")),
                message: word(said.remove("message")),
            }),
            "failed" => Err(AnalysisError::Failed(word(said.remove("message")))),
            _ => Err(AnalysisError::BadReport("its status is none of done, refused, failed")),
        }
    }

    fn promised(mut self, kind: Kind, format: OutputFormat) -> Result<Self, AnalysisError> {
        if self.disclaimer != DISCLAIMER {
            return Err(AnalysisError::BadReport("it does not say what it is"));
        }
        for (name, shape) in catalog::output_fields(kind) {
            let field =
                self.output.get(name).ok_or(AnalysisError::BadReport("an output field is missing"))?;
            let fits = match shape {
                '[' => field.is_array(),
                '{' => field.is_object(),
                '"' => field.is_string(),
                '0' => field.is_u64(),
                'b' => field.is_boolean(),
                _ => true,
            };
            if !fits {
                return Err(AnalysisError::BadReport("an output field is of another type"));
            }
        }
        if format == OutputFormat::Json {
            self.text = format!("{:#}", self.output);
        }
        Ok(self)
    }
}
