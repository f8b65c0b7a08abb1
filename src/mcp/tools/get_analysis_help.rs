//! `get_analysis_help`: what one analysis takes, with an example that works. In the list of tools the same would cost each
//! conversation five thousand bytes, whether it analyses or not.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;

use super::run_analysis::InputKind;
use crate::analysis::{self, Kind};
use crate::mcp::{McpServer, ToolError, schema};

/// The tool's name.
pub const NAME: &str = "get_analysis_help";

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Which analysis.
    analysis_type: InputKind,
}

/// The tool as it is listed.
pub fn tool() -> Tool {
    let description = "What `parameters` of one run_analysis type holds, field by field, with an example. Read it before \
        the first call of a type.";
    schema::tool::<Input>(NAME, "Help for an analysis", description).with_annotations(
        ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false),
    )
}

impl McpServer {
    pub(in crate::mcp) fn get_analysis_help(
        &self,
        arguments: JsonObject,
    ) -> Result<CallToolResult, ToolError> {
        let input: Input = self.parse(NAME, arguments)?;
        let kind = Kind::from(input.analysis_type);
        let mut text = help(kind);
        let packs = self.0.options.packs.of(kind);
        if !packs.is_empty() {
            text.push_str("\n\nRule packs (`pack`), whose rules need not be given:\n");
            text.push_str(&packs.join("\n"));
        }
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.is_error = None;
        Ok(result)
    }
}

/// What an analysis takes, for a model.
pub(in crate::mcp) fn help(kind: Kind) -> String {
    let Some(entry) = analysis::catalog().iter().find(|entry| entry.kind == kind) else {
        return String::new();
    };
    let mut text = format!(
        "{kind}: {}\n\nparameters (* is required; [..] is a list; | separates choices; any other field is text):\n{}\n\n\
         What the fields mean:\n{}\n\n",
        entry.description,
        entry.outline(),
        entry.meanings().join("\n"),
    );
    text.push_str(
        "Numbers best as text like \"1234.50\"; rates as 0.2 or \"20%\"; dates as \"2024-02-29\". A condition has exactly \
         one of `all`, `any`, `not`, `at_least` (with `of`) and `fact` (with `op` and `value`).\n",
    );
    for note in notes(kind) {
        text.push_str(note);
        text.push('\n');
    }
    text.push_str("\nExample of `parameters`:\n");
    text.push_str(example(kind));
    text
}

/// What the outline does not say.
fn notes(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::TaxCalculation => &[
            "The first band begins at 0; each band ends at its `up_to`, the last one has none. `incomes` and `on_top_of` of a \
             levy name kinds of income; a tax on a tax names the taxed levies in `on_levies`. A band has a `rate`, or in every \
             band a `formula` of the whole amount over the base `x`.",
        ],
        Kind::Timeline => &[
            "By type: deadline, not_before: `event` and `date`; min_gap, max_gap: `from`, `to`, `amount`, `unit`; order: \
             `events`; working_day: `event`; look_back: `of`, `at`, `amount`, `unit` and one of `max_days`, `min_days`, \
             `max_count`, `min_count`.",
        ],
        Kind::Comparison | Kind::Scenario => &[
            "`common`, `base` and the parameters of a rule set are those of `analysis`, see its own help. An amount with its \
             unit (\"25 EUR\") keeps it; figures in two currencies are not ranked unless `rates_to` (currency: how much of \
             `common_currency` one is) converts them.",
            "With analysis `formula` the parameters are {\"values\": {\"x\": 1}, \"formulas\": [{\"id\": \"y\", \"expression\": \"x * 2\"}]}.",
            "A `path` names a value in `base` by fields and places: `income`, `levies[0].bands[1].rate`, `values.x`.",
        ],
        Kind::DataAnalysis => &[
            "Exactly one of `records`, `csv` and `file` (a path in the sandbox). By operation: describe and missing: `columns`; \
             group_by: `by`, `measures`; time_series: `date`, `period`, `measures`; pivot: `rows`, `across`, `column`, \
             `function`; correlation: `columns`, `method`; trend and chart: `x`, `y`; outliers: `column`, `method`, `limit`.",
        ],
        Kind::Custom => {
            &["`params` is bound in the code; the result is the last expression, or the variable `result`."]
        }
        Kind::ComplianceCheck | Kind::Eligibility => &[
            "Leave out a fact that is not known: what needs it is `unknown`. A ratio or a sum of facts is computed in `formulas`: \
             [{\"id\": \"ratio\", \"expression\": \"capital / assets\"}]. Over a list of objects: {\"fact\": \"staff\", \"measure\": \
             \"count\", \"where\": {\"fact\": \"trained\", \"op\": \"days_since_at_least\", \"value\": 366}, \"op\": \"eq\", \"value\": 0}.",
        ],
    }
}

/// Parameters that work.
fn example(kind: Kind) -> &'static str {
    match kind {
        Kind::TaxCalculation => {
            r#"{"currency": "EUR", "income": "42000", "levies": [{"id": "income_tax", "source": "Act, s. 1", "bands": [{"up_to": "12000", "rate": 0}, {"up_to": "40000", "rate": "20%"}, {"rate": "40%"}]}], "credits": [{"id": "basic", "amount": "500"}]}"#
        }
        Kind::ComplianceCheck => {
            r#"{"facts": {"staff": 25, "has_officer": false}, "rules": [{"id": "officer", "source": "Act, s. 2", "applies_when": {"fact": "staff", "op": "ge", "value": 20}, "requires": {"fact": "has_officer", "op": "is_true"}, "remedy": "Appoint an officer"}]}"#
        }
        Kind::Eligibility => {
            r#"{"facts": {"age": 67, "resident": true}, "schemes": [{"id": "pension", "criteria": [{"id": "age", "requires": {"fact": "age", "op": "ge", "value": 66}}, {"id": "resident", "requires": {"fact": "resident", "op": "is_true"}}]}]}"#
        }
        Kind::Timeline => {
            r#"{"events": [{"id": "signed", "date": "2024-01-31"}, {"id": "filed", "date": "2024-03-01"}], "constraints": [{"id": "in_time", "type": "max_gap", "from": "signed", "to": "filed", "amount": 1, "unit": "months"}]}"#
        }
        Kind::Comparison => {
            r#"{"analysis": "tax_calculation", "common": {"income": "50000"}, "rule_sets": [{"id": "A", "parameters": {"levies": [{"id": "tax", "bands": [{"rate": "20%"}]}]}}, {"id": "B", "parameters": {"levies": [{"id": "tax", "bands": [{"up_to": "10000", "rate": 0}, {"rate": "25%"}]}]}}]}"#
        }
        Kind::Scenario => {
            r#"{"analysis": "tax_calculation", "base": {"income": "50000", "levies": [{"id": "tax", "bands": [{"rate": "20%"}]}]}, "scenarios": [{"id": "raise", "set": [{"path": "income", "value": "60000"}]}]}"#
        }
        Kind::DataAnalysis => {
            r#"{"csv": "region,sales\nnorth,10\nsouth,12\nnorth,8\n", "operations": [{"do": "describe"}, {"do": "group_by", "by": ["region"], "measures": [{"column": "sales", "function": "sum"}]}]}"#
        }
        Kind::Custom => {
            r#"{"code": "sum(params['values']) / len(params['values'])", "params": {"values": [1, 2, 3]}}"#
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_example_is_taken() {
        for kind in Kind::ALL {
            let parameters = serde_json::from_str(example(*kind)).unwrap();
            analysis::check(*kind, &parameters).unwrap_or_else(|error| panic!("{kind}: {error}"));
            let text = help(*kind);
            assert!(text.contains(example(*kind)) && text.len() < 16_000, "{kind}: {}", text.len());
        }
    }
}
