//! Reversible tokens: a value sealed under its tenant's key, opened only for a caller with the right.
//!
//! Pure: keys and nonces are arguments. Who may open, and the audit line for each opening, are the caller's to hold.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::Kind;

/// A token did not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is no token.
    #[error("not a sealed token")]
    Malformed,
    /// It was made under another key, for another scope or kind, or was changed.
    #[error("sealed under another key or scope, or altered")]
    Refused,
}

/// Seals `value` as `[KIND~...]` with XChaCha20-Poly1305. `scope` (tenant and conversation) is bound as associated
/// data: under another scope it does not open. `nonce` must be 24 fresh random bytes.
pub fn seal(key: &[u8; 32], scope: &str, nonce: [u8; 24], kind: Kind, value: &str) -> String {
    let bound = bound(scope, kind);
    let payload = Payload { msg: value.as_bytes(), aad: bound.as_bytes() };
    let sealed =
        XChaCha20Poly1305::new(key.into()).encrypt(&XNonce::from(nonce), payload).unwrap_or_default();
    format!("[{kind}~{}]", URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
}

/// Opens what [`seal`] made.
///
/// # Errors
/// [`SealError`]; tell the caller no more than that.
pub fn open(key: &[u8; 32], scope: &str, token: &str) -> Result<(Kind, String), SealError> {
    let inner =
        token.strip_prefix('[').and_then(|text| text.strip_suffix(']')).ok_or(SealError::Malformed)?;
    let (kind, sealed) = inner.split_once('~').ok_or(SealError::Malformed)?;
    let kind: Kind = kind.parse().map_err(|_| SealError::Malformed)?;
    let bytes = URL_SAFE_NO_PAD.decode(sealed).map_err(|_| SealError::Malformed)?;
    let (nonce, sealed) = bytes.split_first_chunk::<24>().ok_or(SealError::Malformed)?;
    let bound = bound(scope, kind);
    let payload = Payload { msg: sealed, aad: bound.as_bytes() };
    let plain = XChaCha20Poly1305::new(key.into())
        .decrypt(&XNonce::from(*nonce), payload)
        .map_err(|_| SealError::Refused)?;
    Ok((kind, String::from_utf8(plain).map_err(|_| SealError::Refused)?))
}

fn bound(scope: &str, kind: Kind) -> String {
    format!("pathbox token\0{scope}\0{kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_only_under_its_key_and_scope() {
        let token = seal(&[7; 32], "acme/c1", [9; 24], Kind::Email, "alice@example.com");
        assert!(token.starts_with("[EMAIL~") && !token.contains("alice"));
        assert_eq!(open(&[7; 32], "acme/c1", &token), Ok((Kind::Email, "alice@example.com".to_owned())));
        assert_eq!(open(&[8; 32], "acme/c1", &token), Err(SealError::Refused));
        assert_eq!(open(&[7; 32], "acme/c2", &token), Err(SealError::Refused));
        assert_eq!(open(&[7; 32], "acme/c1", &token.replace("EMAIL", "PHONE")), Err(SealError::Refused));
        assert_eq!(open(&[7; 32], "acme/c1", "[EMAIL_1]"), Err(SealError::Malformed));
    }
}
