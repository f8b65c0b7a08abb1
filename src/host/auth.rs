//! Authorisation on the host's port, which every user of the machine can reach, loopback or not.
//!
//! | door | what opens it |
//! | --- | --- |
//! | control plane | the API key, always; a host without one makes one up |
//! | envd (port 49983) | the sandbox's access token, or a signature over it on `/files`; `GET /health` is open |
//! | code interpreter (port 49999) | the sandbox's id, which is 103 random bits that only the control plane tells; an access token is not asked for, as at E2B, but one that is sent must be right |
//! | all ports but envd's | also the traffic token, when the sandbox was made with `allowPublicTraffic: false` |
//!
//! Anyone who wants `/execute` closed to a leaked id creates with `allowPublicTraffic: false`. Comparisons take the
//! same time wherever two texts differ.

use http::HeaderValue;

use crate::domain::Entropy;
use crate::wire::Secret;

/// An API key in the form of E2B's own, since older SDKs check that: `e2b_` and 40 hexadecimal digits.
pub(crate) fn api_key(entropy: &Entropy) -> Secret {
    Secret::new(format!("e2b_{}", entropy.hex::<20>()))
}

/// A token of 256 random bits in hexadecimal.
pub(crate) fn token(entropy: &Entropy) -> Secret {
    Secret::new(entropy.hex::<32>())
}

/// Whether a header opens what the secret protects.
pub(crate) fn opens(secret: &Secret, sent: &HeaderValue) -> bool {
    sent.to_str().is_ok_and(|sent| secret.matches(sent))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keys_and_tokens_have_the_forms_that_clients_check() {
        let entropy = Entropy::seeded(1);
        let id = sandbox_id(&entropy);
        assert!(id.len() == 21 && id.starts_with('i') && is_sandbox_id(&id), "{id}");
        assert_ne!(id, sandbox_id(&entropy));
        let key = api_key(&entropy);
        assert_eq!(key.expose().len(), 44);
        assert!(key.expose().starts_with("e2b_"));
        for bad in ["", "A", "a-b", "../x", "é", &"a".repeat(65)] {
            assert!(!is_sandbox_id(bad), "{bad}");
        }
    }
}
