//! Who may do what on the host's port, which every user of the machine can reach, loopback or not.
//!
//! | door | what opens it |
//! | --- | --- |
//! | control plane | the API key, always; a host without one makes one up |
//! | envd (port 49983) | the sandbox's access token, or a signature over it on `/files`; `GET /health` is open |
//! | code interpreter (port 49999) | the sandbox's id, which is 103 random bits that only the control plane tells; an access token is not asked for, as at E2B, but one that is sent must be right |
//! | all ports but envd's | also the traffic token, when the sandbox was made with `allowPublicTraffic: false` |
//!
//! Whoever wants `/execute` closed to a leaked id creates with `allowPublicTraffic: false`. Comparisons take the
//! same time wherever two texts differ.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::Entropy;

/// A text that opens something. Its debug form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a text as it is.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// An API key in the form of E2B's own, since older SDKs check that: `e2b_` and 40 hexadecimal digits.
    pub(crate) fn api_key(entropy: &Entropy) -> Self {
        Self(format!("e2b_{}", entropy.hex::<20>()))
    }

    /// A token of 256 random bits in hexadecimal.
    pub(crate) fn token(entropy: &Entropy) -> Self {
        Self(entropy.hex::<32>())
    }

    /// Whether a stranger's text is this one, in a time that does not depend on where they differ.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(text).into()
    }

    /// The text, for handing it to its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A sandbox id in E2B's form: `i` and 20 characters of `[a-z0-9]`, 103 random bits.
pub(crate) fn sandbox_id(entropy: &Entropy) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut id = String::from("i");
    while id.len() < 21 {
        // 252 = 7 * 36: a byte above it would make the first letters likelier.
        let letters = entropy.bytes::<32>().into_iter().filter(|byte| *byte < 252);
        id.extend(letters.map(|byte| char::from(LETTERS[usize::from(byte) % 36])).take(21 - id.len()));
    }
    id
}

/// Whether a text could be a sandbox id at all; E2B's proxy takes `^[a-z0-9]+$`.
pub(crate) fn is_sandbox_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// What a signed `/files` address is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    Read,
    Write,
}

/// The signature that lets an address of `/files` work without a header, as the SDKs compute it:
/// `"v1_"` and the base64 of SHA-256 over `path:operation:user:token` and, with an expiry, `:seconds`.
pub(crate) fn file_signature(
    path: &str,
    access: FileAccess,
    user: &str,
    token: &Secret,
    expires_unix: Option<i64>,
) -> Secret {
    let operation = match access {
        FileAccess::Read => "read",
        FileAccess::Write => "write",
    };
    let mut raw = format!("{path}:{operation}:{user}:{}", token.0);
    if let Some(seconds) = expires_unix {
        raw.push_str(&format!(":{seconds}"));
    }
    Secret(format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(raw))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keys_and_tokens_have_the_forms_that_clients_check() {
        let entropy = Entropy::seeded(1);
        let id = sandbox_id(&entropy);
        assert!(id.len() == 21 && id.starts_with('i') && is_sandbox_id(&id), "{id}");
        assert_ne!(id, sandbox_id(&entropy));
        let key = Secret::api_key(&entropy);
        assert_eq!(key.expose().len(), 44);
        assert!(key.expose().starts_with("e2b_"));
        assert_eq!(format!("{key:?}"), "Secret(..)");
        for bad in ["", "A", "a-b", "../x", "é", &"a".repeat(65)] {
            assert!(!is_sandbox_id(bad), "{bad}");
        }
    }

    #[test]
    fn only_the_same_text_opens() {
        let secret = Secret::new("abc");
        assert!(secret.matches(b"abc"));
        for other in ["", "ab", "abd", "abcd", "ABC"] {
            assert!(!secret.matches(other.as_bytes()), "{other}");
        }
    }

    /// Computed by the official SDKs.
    #[test]
    fn signatures_are_those_of_the_official_clients() {
        let token = Secret::new("tok-envd");
        let read = FileAccess::Read;
        let plain = file_signature("/home/user/a.txt", read, "", &token, None);
        assert_eq!(plain.expose(), "v1_OHjUK6av8krcZG622B18mGU+DWDQvCHamqqb/+hN+c8");
        let write = file_signature("a b.txt", FileAccess::Write, "root", &token, None);
        assert_eq!(write.expose(), "v1_YPBPvigX3zbnzz/qdXMI2/Xnh95j/U/lrAOZ24+eKe8");
        let expiring = file_signature("/home/user/a.txt", read, "user", &token, Some(1_700_000_060));
        assert_eq!(expiring.expose(), "v1_n67FOOtfDHc8p0z540B2OYCv9S8BAy5pGoNk/ICjacQ");
    }
}
