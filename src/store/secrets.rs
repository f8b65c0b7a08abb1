//! Tokens at rest: sealed before they reach a database, opened after they leave it.
//!
//! XChaCha20-Poly1305 with a random 24-byte nonce, under a key derived for the tenant (HKDF-SHA256). The seal is
//! bound to tenant, row and column, so a value copied into another row does not open: write access to the database
//! is not enough to point one tenant's context at another tenant's sandbox.
//!
//! The surprise: a lost key is not a catastrophe. Tokens live as long as a sandbox, so the store treats a context whose
//! tokens do not open as lost and lets its caller make a new one.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::{SandboxRef, StoreError};
use crate::domain::{ContextId, Entropy, Secret, TenantId, derive_key};

/// The file in the data directory that holds the generated key.
pub const KEY_FILE: &str = "secret.key";

const VERSION: u8 = 1;
const HEADER: usize = 5;
const NONCE: usize = 24;

/// What a seal is bound to. All three must be the same to open it.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Whose it is.
    pub tenant: &'a TenantId,
    /// The row's id, as text.
    pub row: &'a str,
    /// The column.
    pub column: &'a str,
}

/// The master keys: the first seals, all of them open. Cheap enough to clone.
#[derive(Clone)]
pub struct Keyring {
    keys: Vec<(u32, Zeroizing<[u8; 32]>)>,
    entropy: Entropy,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|(id, _)| id)).finish()
    }
}

/// A sealed value does not open: another key, another place, or a changed byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It was sealed with a key that is not in the ring.
    #[error("sealed with key {0}, which is not in the ring")]
    UnknownKey(u32),
    /// It is not what was sealed here.
    #[error("does not decrypt in this place")]
    Tampered,
}

impl Keyring {
    /// Reads `2:base64,1:base64`: id and 32 bytes each, the first is the one that seals.
    ///
    /// # Errors
    /// [`StoreError::Keys`] says which entry is malformed; it never repeats the key.
    pub fn parse(text: &str, entropy: &Entropy) -> Result<Self, StoreError> {
        let mut keys: Vec<(u32, Zeroizing<[u8; 32]>)> = Vec::new();
        for (at, entry) in text.trim().split(',').enumerate() {
            let problem = |what: &str| StoreError::Keys(format!("entry {} {what}", at + 1));
            let (id, encoded) = entry.trim().split_once(':').ok_or_else(|| problem("is not `id:base64`"))?;
            let id: u32 = id.parse().map_err(|_| problem("has an id that is not a number"))?;
            let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| problem("is not valid base64"))?);
            let key = <[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| problem("is not 32 bytes long"))?;
            if keys.iter().any(|(known, _)| *known == id) {
                return Err(problem("repeats an id"));
            }
            keys.push((id, Zeroizing::new(key)));
        }
        Ok(Self { keys, entropy: entropy.clone() })
    }

    /// The key in `dir`, generated (mode 0600) by whichever process comes first.
    ///
    /// # Errors
    /// [`StoreError::DataDir`] when the file can be neither read nor written, [`StoreError::Keys`] when it holds
    /// something else.
    pub fn open(dir: &Path, entropy: &Entropy) -> Result<Self, StoreError> {
        let path = dir.join(KEY_FILE);
        let failed = |what: &str, source| StoreError::DataDir {
            problem: format!("{what} {}", path.display()),
            source,
        };
        super::make_private_dir(dir)?;
        match fs::read_to_string(&path) {
            Ok(text) => return Self::parse(&text, entropy),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("cannot read", error)),
        }
        // Written aside and linked into place: a link never overwrites, so of two processes one wins and both read
        // the winner's key; and a crash leaves no half-written key.
        let aside = dir.join(format!(".{KEY_FILE}.{}", entropy.hex::<8>()));
        let text = Zeroizing::new(format!("1:{}\n", STANDARD.encode(Zeroizing::new(entropy.bytes::<32>()))));
        let written = write_private(&aside, text.as_bytes());
        let linked = written.and_then(|()| match fs::hard_link(&aside, &path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        });
        let _ = fs::remove_file(&aside);
        linked.map_err(|error| failed("cannot write", error))?;
        let text = fs::read_to_string(&path).map_err(|error| failed("cannot read", error))?;
        Self::parse(&text, entropy)
    }

    /// A key for another purpose of this installation (HKDF-SHA-256, RFC 5869). It comes from the key with the lowest
    /// id, so that it stays the same while keys are rotated, until that one is taken out.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        let oldest = self.keys.iter().min_by_key(|(id, _)| *id);
        oldest.map_or([0; 32], |(_, key)| {
            *derive_key(&key[..], Some(b"pathbox purpose v1"), purpose.as_bytes())
        })
    }

    /// The randomness that it was given.
    pub(super) fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    /// Seals a secret for one place: `version | key id | nonce | ciphertext and tag`.
    pub fn seal(&self, place: Place<'_>, secret: &Secret) -> Vec<u8> {
        let (id, master) = &self.keys[0];
        let nonce: [u8; NONCE] = self.entropy.bytes();
        let mut out = Vec::with_capacity(HEADER + NONCE + secret.expose().len() + 16);
        out.push(VERSION);
        out.extend_from_slice(&id.to_be_bytes());
        let aad = associated_data(&out, place);
        out.extend_from_slice(&nonce);
        let payload = Payload { msg: secret.expose().as_bytes(), aad: &aad };
        #[expect(clippy::expect_used, reason = "fails only above 256 GiB of plaintext")]
        let sealed = cipher(master, place.tenant)
            .encrypt(&XNonce::from(nonce), payload)
            .expect("a token is far below the cipher's limit");
        out.extend_from_slice(&sealed);
        out
    }

    /// Opens what [`Keyring::seal`] made for the same place.
    ///
    /// # Errors
    /// [`OpenError`]; the caller treats the context as lost.
    pub fn open_sealed(&self, place: Place<'_>, sealed: &[u8]) -> Result<Secret, OpenError> {
        if sealed.len() < HEADER + NONCE || sealed[0] != VERSION {
            return Err(OpenError::Tampered);
        }
        let (header, rest) = sealed.split_at(HEADER);
        let (nonce, ciphertext) = rest.split_at(NONCE);
        let id = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        let (_, master) =
            self.keys.iter().find(|(known, _)| *known == id).ok_or(OpenError::UnknownKey(id))?;
        let nonce = <[u8; NONCE]>::try_from(nonce).map_err(|_| OpenError::Tampered)?;
        let aad = associated_data(header, place);
        let plain = cipher(master, place.tenant)
            .decrypt(&XNonce::from(nonce), Payload { msg: ciphertext, aad: &aad })
            .map_err(|_| OpenError::Tampered)?;
        let plain = Zeroizing::new(plain);
        let text = std::str::from_utf8(&plain).map_err(|_| OpenError::Tampered)?;
        Ok(Secret::new(text))
    }
}

/// The secrets of a [`SandboxRef`], sealed for their columns.
#[derive(Debug)]
pub(super) struct SealedTokens {
    pub(super) host_key: Option<Vec<u8>>,
    pub(super) envd_token: Option<Vec<u8>>,
    pub(super) traffic_token: Option<Vec<u8>>,
    pub(super) mcp_token: Option<Vec<u8>>,
}

impl Keyring {
    /// Seals all secrets of a context's sandbox.
    pub(super) fn seal_tokens(
        &self,
        tenant: &TenantId,
        context: ContextId,
        sandbox: &SandboxRef,
    ) -> SealedTokens {
        let row = context.to_string();
        let seal = |column, secret: &Option<Secret>| {
            secret.as_ref().map(|secret| self.seal(Place { tenant, row: &row, column }, secret))
        };
        SealedTokens {
            host_key: seal("host_key", &sandbox.host_key),
            envd_token: seal("envd_token", &sandbox.envd_token),
            traffic_token: seal("traffic_token", &sandbox.traffic_token),
            mcp_token: seal("mcp_token", &sandbox.mcp_token),
        }
    }

    /// Opens them again, into `sandbox`.
    ///
    /// # Errors
    /// [`OpenError`] of the first that does not open.
    pub(super) fn open_tokens(
        &self,
        tenant: &TenantId,
        context: ContextId,
        sealed: &SealedTokens,
        sandbox: &mut SandboxRef,
    ) -> Result<(), OpenError> {
        let row = context.to_string();
        let open = |column, sealed: &Option<Vec<u8>>| {
            sealed
                .as_ref()
                .map(|sealed| self.open_sealed(Place { tenant, row: &row, column }, sealed))
                .transpose()
        };
        sandbox.host_key = open("host_key", &sealed.host_key)?;
        sandbox.envd_token = open("envd_token", &sealed.envd_token)?;
        sandbox.traffic_token = open("traffic_token", &sealed.traffic_token)?;
        sandbox.mcp_token = open("mcp_token", &sealed.mcp_token)?;
        Ok(())
    }
}

fn cipher(master: &[u8; 32], tenant: &TenantId) -> XChaCha20Poly1305 {
    let key = derive_key(master, Some(b"pathbox token v1"), tenant.as_str().as_bytes());
    XChaCha20Poly1305::new(&Key::from(*key))
}

/// The header, then each part after its length: no two places have the same bytes.
fn associated_data(header: &[u8], place: Place<'_>) -> Vec<u8> {
    let mut aad = header.to_vec();
    for part in [place.tenant.as_str(), place.row, place.column] {
        aad.extend_from_slice(&(part.len() as u64).to_be_bytes());
        aad.extend_from_slice(part.as_bytes());
    }
    aad
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(text: &str) -> Keyring {
        Keyring::parse(text, &Entropy::seeded(7)).unwrap()
    }

    fn key(id: u32, byte: u8) -> String {
        format!("{id}:{}", STANDARD.encode([byte; 32]))
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[test]
    fn a_sealed_value_opens_only_in_its_place() {
        let ring = ring(&key(1, 1));
        let (acme, bolt) = (tenant("acme"), tenant("bolt"));
        let home = Place { tenant: &acme, row: "r1", column: "envd_token" };
        let sealed = ring.seal(home, &Secret::new("s3cret"));
        assert_eq!(ring.open_sealed(home, &sealed).unwrap().expose(), "s3cret");
        for elsewhere in [
            Place { tenant: &bolt, ..home },
            Place { row: "r2", ..home },
            Place { column: "mcp_token", ..home },
            Place { row: "r1envd", column: "_token", ..home },
        ] {
            assert_eq!(ring.open_sealed(elsewhere, &sealed), Err(OpenError::Tampered));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let ring = ring(&key(1, 1));
        let acme = tenant("acme");
        let home = Place { tenant: &acme, row: "r1", column: "c" };
        let sealed = ring.seal(home, &Secret::new("s3cret"));
        for bit in 0..sealed.len() * 8 {
            let mut bent = sealed.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(ring.open_sealed(home, &bent).is_err(), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert!(ring.open_sealed(home, &sealed[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn old_keys_open_and_the_first_one_seals() {
        let acme = tenant("acme");
        let home = Place { tenant: &acme, row: "r", column: "c" };
        let old = ring(&key(1, 1)).seal(home, &Secret::new("x"));
        let both = ring(&format!("{},{}", key(2, 2), key(1, 1)));
        assert_eq!(both.open_sealed(home, &old).unwrap().expose(), "x");
        let new = both.seal(home, &Secret::new("y"));
        assert_eq!(ring(&key(1, 1)).open_sealed(home, &new), Err(OpenError::UnknownKey(2)));
    }

    #[test]
    fn two_seals_of_one_text_differ() {
        let ring = ring(&key(1, 1));
        let acme = tenant("acme");
        let home = Place { tenant: &acme, row: "r", column: "c" };
        assert_ne!(ring.seal(home, &Secret::new("x")), ring.seal(home, &Secret::new("x")));
    }

    #[test]
    fn a_malformed_ring_says_which_entry_and_not_the_key() {
        let good = key(1, 1);
        let short = format!("2:{}", STANDARD.encode("hunter2"));
        for bad in ["", "1", "x:AAAA", "1:!!!!", &format!("{good},{good}"), &format!("{good},{short}")] {
            let error = Keyring::parse(bad, &Entropy::seeded(1)).unwrap_err().to_string();
            assert!(error.contains("entry "), "{error}");
            assert!(!error.contains("AQEB") && !error.contains("aHVudGVyMg"), "{error}");
        }
        assert!(!format!("{:?}", ring(&good)).contains("AQEB"));
    }

    #[test]
    fn of_many_that_start_at_once_all_have_the_same_key() {
        let dir = tempfile::tempdir().unwrap();
        let (acme, home) = (tenant("acme"), dir.path().join("new"));
        let rings: Vec<Keyring> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..16u64)
                .map(|seed| {
                    let home = &home;
                    scope.spawn(move || Keyring::open(home, &Entropy::seeded(seed)).unwrap())
                })
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let place = Place { tenant: &acme, row: "r", column: "c" };
        let sealed = rings[0].seal(place, &Secret::new("x"));
        for ring in &rings {
            assert_eq!(ring.open_sealed(place, &sealed).unwrap().expose(), "x");
        }
        let left: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [KEY_FILE], "nothing else is left behind");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(home.join(KEY_FILE)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(fs::metadata(&home).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }
}
