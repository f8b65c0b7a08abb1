//! Context handles: opaque texts that name a context and belong to a tenant and a caller, sealed so that callers cannot make
//! or read one without the installation's key. Stateless: any replica with the same key opens them.
//!
//! A model repeats a handle in each call, so it is short, and the same in every result of its context. Therefore the seal
//! has a synthetic nonce (as AES-SIV has, RFC 5297): a keyed hash of what is sealed and of whom it is for is both the
//! nonce of the key stream and the proof. Names of our own making are sealed as the bytes that they were made of.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::domain::{ContextKey, ConversationId, MAX_PRINCIPAL, Owner, PathId, TenantId, derive_key, hex};

const PREFIX: &str = "ctx_";
/// Bytes of the keyed hash: 96 bits cannot be guessed over a network.
const SEAL: usize = 12;
/// Bytes of names in an ordinary handle.
const SHORT: usize = 128;
/// Bytes of names in any handle: conversation, path, and the name of a principal that another shares with.
const LONGEST: usize = 2 * 129 + 2 + MAX_PRINCIPAL;
/// Bytes of the nonce of handles that version 0.1.0 minted.
const NONCE: usize = 24;
/// Prefixes of conversations of our own making; hexadecimal digits follow.
const MADE_UP: [&str; 4] = ["default-", "session-", "call-", "stdio-"];

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

    /// The key that seals one-time addresses of files.
    pub fn address_key(&self) -> [u8; 32] {
        *derive_key(self.0.as_slice(), None, b"addresses of files")
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.0).into())
    }

    /// The handle to `key` for one caller of its tenant.
    ///
    /// # Panics
    /// Never: HMAC takes a key of any length.
    pub fn mint(&self, key: &ContextKey, principal: &str) -> String {
        let mut plain = Vec::new();
        pack(key.conversation.as_str(), &mut plain);
        if key.path != PathId::main() {
            plain.push(b'/');
            pack(key.path.as_str(), &mut plain);
        }
        // The usual owner goes without saying.
        if key.owner.as_str() != principal {
            plain.push(b'@');
            plain.extend(key.owner.as_str().as_bytes());
        }
        let seal = self.seal(&plain, &bound(&key.tenant, principal));
        let mut bytes = seal.to_vec();
        bytes.extend(self.masked(&plain, &seal));
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// What a handle names, if it was minted here for this caller of this tenant. `own`: whom the caller's contexts
    /// belong to, for handles from before contexts had owners.
    pub fn open(&self, handle: &str, tenant: &TenantId, principal: &str, own: &Owner) -> Option<ContextKey> {
        let bytes = URL_SAFE_NO_PAD.decode(handle.trim().strip_prefix(PREFIX)?).ok()?;
        let bound = bound(tenant, principal);
        let (conversation, path, owner) = match self.names(&bytes, &bound) {
            Some((conversation, path, owner)) => {
                (conversation, path, Owner::principal(owner.unwrap_or_else(|| principal.to_owned())))
            }
            None => {
                let (conversation, path) = self.names_of_0_1(&bytes, &bound)?;
                (conversation, path, own.clone())
            }
        };
        Some(ContextKey {
            tenant: tenant.clone(),
            owner,
            conversation: ConversationId::parse(conversation).ok()?,
            path: PathId::parse(path).ok()?,
        })
    }

    /// Conversation, path and, unless it is the caller, the owner.
    fn names(&self, bytes: &[u8], owner: &str) -> Option<(String, String, Option<String>)> {
        let (seal, masked) = bytes.split_at_checked(SEAL).filter(|(_, masked)| masked.len() <= LONGEST)?;
        let plain = self.masked(masked, seal);
        let differs =
            self.seal(&plain, owner).iter().zip(seal).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        if differs != 0 {
            return None;
        }
        let (conversation, mut rest) = unpack(&plain)?;
        let mut path = PathId::main().to_string();
        if let Some(named) = rest.strip_prefix(b"/") {
            (path, rest) = unpack(named)?;
        }
        let owner = rest.strip_prefix(b"@").map(|name| String::from_utf8(name.to_vec()));
        Some((conversation, path, owner.transpose().ok()?))
    }

    /// Handles of version 0.1.0 live on while replicas are replaced.
    fn names_of_0_1(&self, bytes: &[u8], owner: &str) -> Option<(String, String)> {
        let (nonce, sealed) = bytes.split_at_checked(NONCE)?;
        let nonce: [u8; NONCE] = nonce.try_into().ok()?;
        let payload = Payload { msg: sealed, aad: owner.as_bytes() };
        let plain = self.cipher().decrypt(&XNonce::from(nonce), payload).ok()?;
        let (conversation, path) = std::str::from_utf8(&plain).ok()?.split_once('/')?;
        Some((conversation.to_owned(), path.to_owned()))
    }

    fn seal(&self, plain: &[u8], owner: &str) -> [u8; SEAL] {
        #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_slice()).expect("any length");
        mac.update(owner.as_bytes());
        mac.update(b"\0");
        mac.update(plain);
        std::array::from_fn({
            let digest = mac.finalize().into_bytes();
            move |at| digest[at]
        })
    }

    /// `bytes` under the key stream that belongs to a seal; twice is as before.
    fn masked(&self, bytes: &[u8], seal: &[u8]) -> Vec<u8> {
        // A longer stream begins with the bytes of a shorter one, so most handles cost no more than they need.
        let mask = |stream: &[u8]| bytes.iter().zip(stream).map(|(byte, mask)| byte ^ mask).collect();
        match bytes.len() {
            ..=SHORT => mask(&*derive_key::<SHORT>(self.0.as_slice(), Some(seal), b"handle")),
            _ => mask(&*derive_key::<LONGEST>(self.0.as_slice(), Some(seal), b"handle")),
        }
    }
}

/// Appends a name: its length and bytes, or what one of our own making consists of.
fn pack(name: &str, into: &mut Vec<u8>) {
    let made_up = MADE_UP.iter().enumerate().find_map(|(at, prefix)| {
        let bytes = unhex(name.strip_prefix(prefix)?)?;
        Some((at, bytes))
    });
    // Names have 1 to 128 characters of ASCII, so the numbers above are free.
    match made_up {
        Some((at, bytes)) if bytes.len() < 31 => {
            into.push(0x80 | (at as u8) << 5 | bytes.len() as u8);
            into.extend(bytes);
        }
        _ => {
            into.push((name.len() - 1) as u8);
            into.extend(name.as_bytes());
        }
    }
}

/// The first name, and what follows it.
fn unpack(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (prefix, len) = match first & 0x80 {
        0 => (None, usize::from(*first) + 1),
        _ => (Some(MADE_UP[usize::from(first >> 5 & 3)]), usize::from(first & 0x1f)),
    };
    let (name, rest) = rest.split_at_checked(len)?;
    Some(match prefix {
        Some(prefix) => (format!("{prefix}{}", hex(name)), rest),
        None => (String::from_utf8(name.to_vec()).ok()?, rest),
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let is_ours =
        text.len().is_multiple_of(2) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let pairs = || (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok());
    if is_ours { pairs().collect() } else { None }
}

/// What a handle is bound to. A tenant id holds no line break, so no two pairs give one text.
fn bound(tenant: &TenantId, principal: &str) -> String {
    format!("{tenant}\n{principal}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str) -> ContextKey {
        ContextKey {
            tenant: TenantId::parse(tenant).unwrap(),
            owner: Owner::principal("oauth:https://issuer/a|b"),
            conversation: ConversationId::parse("c").unwrap(),
            path: PathId::parse("p").unwrap(),
        }
    }

    #[test]
    fn a_handle_opens_for_its_owner_only_and_not_when_a_bit_is_flipped() {
        let handles = HandleKey::derive(&[7; 32]);
        let handle = handles.mint(&key("a"), "key:1");
        assert_eq!(handles.open(&handle, &key("a").tenant, "key:1", &Owner::tenant()), Some(key("a")));
        assert_eq!(handles.open(&handle, &key("b").tenant, "key:1", &Owner::tenant()), None);
        for other in ["key:2", "", "key:1\n", "local"] {
            assert_eq!(handles.open(&handle, &key("a").tenant, other, &Owner::tenant()), None, "{other:?}");
        }
        assert_eq!(
            HandleKey::derive(&[8; 32]).open(&handle, &key("a").tenant, "key:1", &Owner::tenant()),
            None
        );
        for at in 0..handle.len() {
            let mut bytes = handle.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(bytes).unwrap();
            assert_eq!(handles.open(&forged, &key("a").tenant, "key:1", &Owner::tenant()), None, "byte {at}");
        }
    }

    #[test]
    fn a_handle_is_short_and_the_same_each_time_and_hides_its_names() {
        let handles = HandleKey::derive(&[7; 32]);
        let mut seen = std::collections::BTreeSet::new();
        for (conversation, path, longest) in [
            ("default-0123456789abcdef", "main", 36),
            ("session-0123456789abcdef01234567", "main", 44),
            ("stdio-0123456789abcdef", "branch-0123456789ab", 64),
            ("session-0123456789ABCDEF01234567", "main", 70),
            ("default-", "main", 40),
            ("default-0", "default-00", 50),
            ("chat-1", "main", 32),
            ("2f5d3c1e-8a4b-4f6d-9c0e-7b1a2d3e4f50", "main", 72),
            (&"c".repeat(128), &"p".repeat(128), 400),
        ] {
            let key = ContextKey {
                tenant: TenantId::parse("a").unwrap(),
                owner: Owner::principal("local"),
                conversation: ConversationId::parse(conversation).unwrap(),
                path: PathId::parse(path).unwrap(),
            };
            let handle = handles.mint(&key, "local");
            assert_eq!(handle, handles.mint(&key, "local"));
            assert!(handle.len() <= longest, "{conversation}/{path}: {} characters", handle.len());
            assert_eq!(
                handles.open(&format!(" {handle}\n"), &key.tenant, "local", &Owner::tenant()),
                Some(key),
                "{handle}"
            );
            assert!(seen.insert(handle));
        }
    }

    #[test]
    fn a_context_of_a_principal_with_the_longest_name_has_a_handle_that_opens_for_whom_it_is_shared_with() {
        let handles = HandleKey::derive(&[7; 32]);
        for length in [700, 750, 766, 1000, MAX_PRINCIPAL] {
            let key = ContextKey {
                tenant: TenantId::parse("a").unwrap(),
                owner: Owner::principal("o".repeat(length)),
                conversation: ConversationId::parse("c".repeat(128)).unwrap(),
                path: PathId::parse("p".repeat(128)).unwrap(),
            };
            let handle = handles.mint(&key, "key:1");
            assert_eq!(handles.open(&handle, &key.tenant, "key:1", &Owner::tenant()), Some(key), "{length}");
        }
    }

    #[test]
    fn a_handle_of_version_0_1_opens() {
        let handles = HandleKey::derive(&[7; 32]);
        let payload = Payload { msg: b"c/p", aad: b"a\nkey:1" };
        let mut bytes = vec![9; NONCE];
        bytes.extend(handles.cipher().encrypt(&XNonce::from([9; NONCE]), payload).unwrap());
        let old = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let own = key("a").owner;
        assert_eq!(handles.open(&old, &key("a").tenant, "key:1", &own), Some(key("a")));
        assert_eq!(handles.open(&old, &key("a").tenant, "key:2", &own), None);
    }

    #[test]
    fn nonsense_is_not_a_handle() {
        let handles = HandleKey::derive(&[7; 32]);
        for text in ["", "ctx_", "ctx_AAAA", "ctx_%%%", "main", &"ctx_".repeat(1000)] {
            assert_eq!(handles.open(text, &key("a").tenant, "key:1", &Owner::tenant()), None);
        }
    }
}
