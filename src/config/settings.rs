//! What a setting is, and how a component's settings are declared: once, as fields with their environment names, defaults,
//! ranges and sentences. The struct, the rows of the reference page and the reading of it follow from that.

use std::fmt;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Its name in the file and for `--set`.
    pub key: &'static str,
    /// Environment names, the first one is preferred. `PATHBOX_` names are ours; others are honoured because
    /// deployments have them already.
    pub env: &'static [&'static str],
    /// The value when no one says anything; empty for "not set".
    pub default: &'static str,
    /// What is allowed.
    pub allowed: Allowed,
    /// What it does, one sentence.
    pub doc: &'static str,
    /// Never printed; may come from a file named by `<env>_FILE`.
    pub secret: bool,
}

/// A row.
pub(super) const fn plain(
    key: &'static str,
    env: &'static [&'static str],
    default: &'static str,
    allowed: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { key, env, default, allowed: Allowed::Words(allowed), doc, secret: false }
}

/// The row of a secret.
pub(super) const fn secret(
    key: &'static str,
    env: &'static [&'static str],
    allowed: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { key, env, default: "", allowed: Allowed::Words(allowed), doc, secret: true }
}

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub enum Allowed {
    /// In words.
    Words(&'static str),
    /// A whole number of this range, and its unit.
    Range(u64, u64, &'static str),
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(words) => f.write_str(words),
            Self::Range(low, high, "") => write!(f, "{low} to {high}"),
            Self::Range(low, high, unit) => write!(f, "{low} to {high} ({unit})"),
        }
    }
}

/// Declares the settings of a component.
macro_rules! settings {
    (
        $(#[$about:meta])*
        $name:ident in $section:literal {
            $( $(#[doc = $doc:literal])+ $field:ident [$($env:literal),+]: $type:ty = $default:literal, $allowed:expr, $read:expr; )*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )*
        }

        impl $name {
            /// Their rows, in the order of the reference page.
            pub(super) const SETTINGS: &[$crate::config::settings::Setting] = &[
                $( $crate::config::settings::Setting {
                    key: concat!($section, ".", stringify!($field)),
                    env: &[$($env),+],
                    default: $default,
                    allowed: $allowed,
                    doc: concat!($($doc),+),
                    secret: false,
                }, )*
            ];

            /// Reads them.
            pub(super) fn read(
                values: &$crate::config::load::Values,
            ) -> Result<Self, $crate::config::load::ConfigError> {
                Ok(Self { $( $field: ($read)(values, concat!($section, ".", stringify!($field)))?, )* })
            }
        }
    };
}
pub(super) use settings;
