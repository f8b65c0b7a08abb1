//! Context handles: opaque texts that name a context and belong to a tenant and a caller, sealed so that nobody can make
//! or read one without the installation's key. Stateless: any replica with the same key opens them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use crate::domain::{ContextKey, ConversationId, Entropy, PathId, TenantId, derive_key, hex};

const PREFIX: &str = "ctx_";
const NONCE: usize = 24;

/// The key that seals handles.
#[derive(Clone)]
pub struct HandleKey(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleKey(…)")
    }
}

impl HandleKey {
    /// Derives the key from the installation's master key (HKDF-SHA-256, RFC 5869).
    pub fn derive(master: &[u8; 32]) -> Self {
        Self(derive_key(master, Some(b"pathbox handles v1"), b"context"))
    }

    /// A name for this installation that gives nothing away: replicas with one key have the same, others another.
    pub fn installation(&self) -> String {
        hex(&*derive_key::<8>(self.0.as_slice(), None, b"installation"))
    }

    /// The key under which a context's placeholder numbers are hashed: each context has its own.
    pub fn placeholder_key(&self, key: &ContextKey) -> [u8; 32] {
        let info = format!("placeholders/{}/{}/{}", key.tenant, key.conversation, key.path);
        *derive_key(self.0.as_slice(), None, info.as_bytes())
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.0).into())
    }

    /// A new handle to `key`, for one caller of its tenant. Two handles to one context differ; both open.
    pub fn mint(&self, key: &ContextKey, principal: &str, entropy: &Entropy) -> String {
        let nonce: [u8; NONCE] = entropy.bytes();
        let plain = format!("{}/{}", key.conversation, key.path);
        let owner = owner(&key.tenant, principal);
        let payload = Payload { msg: plain.as_bytes(), aad: owner.as_bytes() };
        let sealed = self.cipher().encrypt(&XNonce::from(nonce), payload).unwrap_or_default();
        let mut bytes = nonce.to_vec();
        bytes.extend(sealed);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// What a handle names, if it was minted here for this caller of this tenant.
    pub fn open(&self, handle: &str, tenant: &TenantId, principal: &str) -> Option<ContextKey> {
        let bytes = URL_SAFE_NO_PAD.decode(handle.strip_prefix(PREFIX)?).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE)?;
        let nonce: [u8; NONCE] = nonce.try_into().ok()?;
        let owner = owner(tenant, principal);
        let payload = Payload { msg: sealed, aad: owner.as_bytes() };
        let plain = String::from_utf8(self.cipher().decrypt(&XNonce::from(nonce), payload).ok()?).ok()?;
        let (conversation, path) = plain.split_once('/')?;
        Some(ContextKey {
            tenant: tenant.clone(),
            conversation: ConversationId::parse(conversation).ok()?,
            path: PathId::parse(path).ok()?,
        })
    }
}

/// Whose handle it is. A tenant id holds no line break, so no two pairs give one text.
fn owner(tenant: &TenantId, principal: &str) -> String {
    format!("{tenant}\n{principal}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str) -> ContextKey {
        ContextKey {
            tenant: TenantId::parse(tenant).unwrap(),
            conversation: ConversationId::parse("c").unwrap(),
            path: PathId::parse("p").unwrap(),
        }
    }

    #[test]
    fn a_handle_opens_for_its_owner_only_and_not_when_a_bit_is_flipped() {
        let handles = HandleKey::derive(&[7; 32]);
        let handle = handles.mint(&key("a"), "key:1", &Entropy::seeded(1));
        assert_eq!(handles.open(&handle, &key("a").tenant, "key:1"), Some(key("a")));
        assert_eq!(handles.open(&handle, &key("b").tenant, "key:1"), None);
        for other in ["key:2", "", "key:1\n", "local"] {
            assert_eq!(handles.open(&handle, &key("a").tenant, other), None, "{other:?}");
        }
        assert_eq!(HandleKey::derive(&[8; 32]).open(&handle, &key("a").tenant, "key:1"), None);
        for at in 0..handle.len() {
            let mut bytes = handle.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(bytes).unwrap();
            assert_eq!(handles.open(&forged, &key("a").tenant, "key:1"), None, "byte {at}");
        }
        assert!(!handle.contains("/c/"));
    }

    #[test]
    fn nonsense_is_not_a_handle() {
        let handles = HandleKey::derive(&[7; 32]);
        for text in ["", "ctx_", "ctx_AAAA", "ctx_%%%", "main", &"ctx_".repeat(1000)] {
            assert_eq!(handles.open(text, &key("a").tenant, "key:1"), None);
        }
    }
}
