//! Reversible tokens: a value sealed under its tenant's key, opened only for a caller with the right.
//!
//! Pure: the key is an argument. Who may open tokens, and the audit entry for each opening, is up to the caller. The
//! surprise: the nonce is not a random number but a keyed hash of the value, so that a value has one token within a context.
//! The only thing that tokens reveal is that two of them are the same value, which is their purpose.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::Kind;
use crate::domain::derive_key;

/// A token could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is not a token.
    #[error("not a sealed token")]
    Malformed,
    /// It was made under another key, for another scope or kind, or it was changed.
    #[error("sealed under another key or scope, or altered")]
    Refused,
}

/// The longest value that becomes a token, in bytes; a longer one is redacted.
pub(super) const MAX_VALUE: usize = 256;
const NONCE: usize = 24;
const TAG: usize = 16;
/// The number of letters in the shortest and in the longest token: two a byte.
pub(super) const LETTERS: std::ops::RangeInclusive<usize> =
    2 * (NONCE + TAG + 1)..=2 * (NONCE + TAG + MAX_VALUE);

/// Makes and opens the tokens of one scope: a tenant's context.
#[derive(Clone)]
pub struct Sealer {
    seal: Zeroizing<[u8; 32]>,
    nonce: Zeroizing<[u8; 32]>,
    scope: String,
}

impl Sealer {
    /// Works under a tenant's key; `scope` names the tenant and the context, and is bound to each token: a token
    /// cannot be opened in another scope.
    pub fn new(key: &[u8; 32], scope: impl Into<String>) -> Self {
        let derive = |purpose: &[u8]| derive_key(key, Some(b"pathbox token v1"), purpose);
        Self { seal: derive(b"seal"), nonce: derive(b"nonce"), scope: scope.into() }
    }

    /// Seals a value as `[KIND~...]` with XChaCha20-Poly1305: the same value gives the same token. `None`: it is too long
    /// for a token.
    ///
    /// The token is written in the letters a to p, so that no rule finds anything in it.
    pub fn seal(&self, kind: Kind, value: &str) -> Option<String> {
        if value.is_empty() || value.len() > MAX_VALUE {
            return None;
        }
        let bound = self.bound(kind);
        #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.nonce).expect("any length of key");
        mac.update(&(bound.len() as u64).to_le_bytes());
        mac.update(bound.as_bytes());
        mac.update(value.as_bytes());
        let nonce: [u8; NONCE] = mac.finalize().into_bytes()[..NONCE].try_into().ok()?;
        let payload = Payload { msg: value.as_bytes(), aad: bound.as_bytes() };
        let sealed = self.cipher().encrypt(&XNonce::from(nonce), payload).ok()?;
        let letters = |byte: &u8| [byte >> 4, byte & 15].map(|nibble| char::from(b'a' + nibble));
        let text: String = nonce.iter().chain(&sealed).flat_map(letters).collect();
        Some(format!("[{kind}~{text}]"))
    }

    /// Opens what [`Self::seal`] made in this scope. The brackets may be missing.
    ///
    /// # Errors
    /// [`SealError`]; give the caller no further details.
    pub fn open(&self, token: &str) -> Result<(Kind, Zeroizing<String>), SealError> {
        let inner = token.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(token);
        let (kind, letters) = inner.split_once('~').ok_or(SealError::Malformed)?;
        let kind: Kind = kind.parse().map_err(|_| SealError::Malformed)?;
        if !LETTERS.contains(&letters.len()) || !is_text(letters.as_bytes()) {
            return Err(SealError::Malformed);
        }
        let (pairs, _) = letters.as_bytes().as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| (high - b'a') << 4 | (low - b'a')).collect();
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE>().ok_or(SealError::Malformed)?;
        let bound = self.bound(kind);
        let payload = Payload { msg: sealed, aad: bound.as_bytes() };
        let plain = self.cipher().decrypt(&XNonce::from(*nonce), payload).map_err(|_| SealError::Refused)?;
        let plain = String::from_utf8(plain).map_err(|_| SealError::Refused)?;
        Ok((kind, Zeroizing::new(plain)))
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.seal).into())
    }

    fn bound(&self, kind: Kind) -> String {
        format!("{}\0{kind}", self.scope)
    }
}

/// Whether these can be the letters of a token.
pub(super) fn is_text(letters: &[u8]) -> bool {
    LETTERS.contains(&letters.len())
        && letters.len().is_multiple_of(2)
        && letters.iter().all(|letter| matches!(letter, b'a'..=b'p'))
}

/// The keys stay out of logs.
impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("scope", &self.scope).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(sealer: &Sealer, token: &str) -> Result<(Kind, String), SealError> {
        sealer.open(token).map(|(kind, value)| (kind, value.to_string()))
    }

    #[test]
    fn a_token_opens_only_under_its_key_and_scope() {
        let sealer = Sealer::new(&[7; 32], "acme/c1");
        let token = sealer.seal(Kind::Email, "alice@example.com").unwrap();
        assert!(token.starts_with("[EMAIL~") && !token.contains("alice"));
        let value = Ok((Kind::Email, "alice@example.com".to_owned()));
        assert_eq!(opened(&sealer, &token), value);
        assert_eq!(opened(&sealer, token.trim_matches(['[', ']'])), value);
        assert_eq!(opened(&Sealer::new(&[8; 32], "acme/c1"), &token), Err(SealError::Refused));
        assert_eq!(opened(&Sealer::new(&[7; 32], "acme/c2"), &token), Err(SealError::Refused));
        assert_eq!(opened(&sealer, &token.replace("EMAIL", "PHONE")), Err(SealError::Refused));
        for (at, letter) in token.char_indices().filter(|(_, letter)| letter.is_ascii_lowercase()) {
            let other = if letter == 'a' { "b" } else { "a" };
            let changed = format!("{}{other}{}", &token[..at], &token[at + 1..]);
            assert_eq!(opened(&sealer, &changed), Err(SealError::Refused), "{at}");
        }
        for text in
            ["", "[EMAIL_1]", "[EMAIL~]", "[EMAIL~abc]", "[NOBODY~aa]", &format!("{token}a"), &token[..60]]
        {
            assert_eq!(opened(&sealer, text), Err(SealError::Malformed), "{text}");
        }
    }

    #[test]
    fn one_value_is_one_token_within_a_scope_and_another_elsewhere() {
        let sealer = Sealer::new(&[7; 32], "acme/c1");
        let token = sealer.seal(Kind::Email, "alice@example.com").unwrap();
        assert_eq!(sealer.seal(Kind::Email, "alice@example.com").as_ref(), Some(&token));
        assert_ne!(sealer.seal(Kind::Email, "alicf@example.com").as_ref(), Some(&token));
        assert_ne!(sealer.seal(Kind::Phone, "alice@example.com").unwrap()[8..], token[8..]);
        let elsewhere = Sealer::new(&[7; 32], "acme/c2").seal(Kind::Email, "alice@example.com").unwrap();
        assert_ne!(elsewhere, token);
        assert_eq!(sealer.seal(Kind::Email, &"x".repeat(MAX_VALUE + 1)), None);
        let longest = sealer.seal(Kind::Email, &"x".repeat(MAX_VALUE)).unwrap();
        assert_eq!(opened(&sealer, &longest).unwrap().1.len(), MAX_VALUE);
    }
}
