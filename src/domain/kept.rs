//! JSON that is kept in a column. Each kind says in which form it is, so that a record of any earlier version is read for
//! as long as it is kept, and one of a newer version is refused by name instead of being misread.
//!
//! A form changes when its readers must know; a member that older programs may ignore does not.
//! `tests/fixtures/stored` has each form that was ever written.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::json::{Misfit, from_value};

/// The member that says the form. What the first release wrote has none.
const FORMAT: &str = "format";

/// A kind of JSON that is kept.
pub trait Kept: Serialize + DeserializeOwned {
    /// What it is, in an error.
    const WHAT: &'static str;
    /// The form that this program writes, and the newest that it reads.
    const FORMAT: u64;
}

/// Why something that was kept cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// A newer program wrote it.
    #[error(
        "{what} is of form {found}, written by a newer version of Pathbox; this one reads up to form {known}"
    )]
    Newer {
        /// What it is.
        what: &'static str,
        /// Its form.
        found: u64,
        /// The newest form that is known here.
        known: u64,
    },
    /// It is not what it should be.
    #[error("{what} is malformed")]
    Malformed {
        /// What it is.
        what: &'static str,
        /// What does not fit.
        #[source]
        source: Misfit,
    },
}

/// A value as it is kept.
pub fn to_kept<T: Kept>(value: &T) -> Value {
    let mut kept = Map::from_iter([(FORMAT.to_owned(), T::FORMAT.into())]);
    if let Ok(Value::Object(members)) = serde_json::to_value(value) {
        kept.extend(members);
    }
    Value::Object(kept)
}

/// A kept value as this program knows it.
///
/// # Errors
/// [`KeptError`].
pub fn from_kept<T: Kept>(kept: Value) -> Result<T, KeptError> {
    check_form::<T>(&kept)?;
    from_value(&kept).map_err(|source| KeptError::Malformed { what: T::WHAT, source })
}

/// Whether this program knows the form of a kept value.
///
/// # Errors
/// [`KeptError::Newer`].
pub fn check_form<T: Kept>(kept: &Value) -> Result<(), KeptError> {
    let found = kept.get(FORMAT).map_or(1, |form| form.as_u64().unwrap_or(u64::MAX));
    match found <= T::FORMAT {
        true => Ok(()),
        false => Err(KeptError::Newer { what: T::WHAT, found, known: T::FORMAT }),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Note {
        text: String,
    }

    impl Kept for Note {
        const WHAT: &'static str = "a note";
        const FORMAT: u64 = 2;
    }

    #[test]
    fn every_form_up_to_this_programs_is_read_and_a_newer_one_is_named() {
        let note = Note { text: "a".to_owned() };
        assert_eq!(to_kept(&note), json!({"format": 2, "text": "a"}));
        for kept in [json!({"text": "a"}), json!({"format": 1, "text": "a", "more": 1}), to_kept(&note)] {
            assert_eq!(from_kept::<Note>(kept).unwrap(), note);
        }
        for form in [json!(3), json!("two"), json!(-1), json!(1.5), json!(null)] {
            let error = from_kept::<Note>(json!({"format": form, "text": "a"})).unwrap_err();
            assert!(matches!(error, KeptError::Newer { known: 2, .. }), "{error}");
        }
        let said = from_kept::<Note>(json!({"format": 3})).unwrap_err().to_string();
        assert_eq!(
            said,
            "a note is of form 3, written by a newer version of Pathbox; this one reads up to form 2"
        );
        assert!(matches!(from_kept::<Note>(json!([])), Err(KeptError::Malformed { .. })));
    }
}
