//! Secrets: a text that is never printed, keys derived from keys, and comparison that gives nothing away.

use std::fmt;

use hkdf::Hkdf;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

/// A key or token: never printed, wiped when dropped. Serialised as its text, for the one peer that needs it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `other` is the same text. Takes the same time wherever they differ.
    pub fn matches(&self, other: &str) -> bool {
        same_bytes(self.0.as_bytes(), other.as_bytes())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        secret.expose().to_owned()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Whether two byte strings are the same. Takes the same time wherever they differ; their lengths are not secret.
pub fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |seen, (a, b)| seen | (a ^ b));
    (a.len() == b.len()) & (differing == 0)
}

/// A key of `N` bytes for one purpose, from another key (HKDF-SHA-256, RFC 5869).
pub fn derive_key<const N: usize>(key: &[u8], salt: Option<&[u8]>, purpose: &[u8]) -> Zeroizing<[u8; N]> {
    const { assert!(N <= 255 * 32, "HKDF-SHA-256 gives at most 255 blocks") };
    let mut out = Zeroizing::new([0; N]);
    #[expect(clippy::expect_used, reason = "the length was checked when this was compiled")]
    Hkdf::<Sha256>::new(salt, key).expand(purpose, out.as_mut_slice()).expect("at most 255 blocks");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_are_the_same_and_no_others() {
        assert!(same_bytes(b"", b"") && same_bytes(b"abc", b"abc"));
        for other in ["", "ab", "abd", "bbc", "abcd"] {
            assert!(!same_bytes(b"abc", other.as_bytes()), "{other}");
        }
        assert!(!format!("{:?}", Secret::new("hidden")).contains("hidden"));
        assert_eq!(serde_json::to_string(&Secret::new("sent")).unwrap(), "\"sent\"");
    }

    /// RFC 5869, test cases 1 and 3.
    #[test]
    fn derived_keys_are_those_of_the_rfc() {
        let salt: Vec<u8> = (0..=0x0c).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let key = derive_key::<42>(&[0x0b; 22], Some(&salt), &info);
        assert_eq!(
            super::super::hex(&*key),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
        );
        let plain = derive_key::<42>(&[0x0b; 22], None, b"");
        assert_eq!(
            super::super::hex(&*plain),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
        );
    }
}
