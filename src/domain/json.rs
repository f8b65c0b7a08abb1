//! Types out of JSON values.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// A value that is not what a type needs.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct Misfit {
    /// Where, as `serde_path_to_error` writes it; `.` or `?` for the whole.
    pub path: String,
    /// What does not fit.
    pub problem: String,
}

/// A value as a type, by way of its text: `serde_json` hands an integer from 2^128 on over as a float if a float has the
/// same digits, as 10^40 has.
///
/// # Errors
/// [`Misfit`].
///
/// ```
/// # use pathbox::domain::from_value;
/// let wide: serde_json::Value = serde_json::from_str("[1e1, 10000000000000000000000000000000000000000]").unwrap();
/// assert_eq!(from_value::<Vec<serde_json::Value>>(&wide).unwrap(), *wide.as_array().unwrap());
/// ```
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Misfit> {
    let text = value.to_string();
    let mut text = serde_json::Deserializer::from_str(&text);
    serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        // A place in a text that the caller has not seen says nothing.
        let place = format!(" at line {} column {}", error.line(), error.column());
        let problem = error.to_string();
        Misfit { path, problem: problem.strip_suffix(&place).unwrap_or(&problem).to_owned() }
    })
}
