//! Addresses of files: each lets one file in or out once, without any other credential, for as long as it says.
//!
//! An address is sealed with the installation's key and says all that is needed, so any replica serves it. That it was
//! used is a fact that all replicas know. What comes in lies on disk before the sandbox hears of it: a slow sender holds
//! no context. An upload in parts is kept part by part with the outputs, so it may go on at another replica.

use std::fs::File;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::domain::{Clock, ContextKey, ConversationId, ExecutionId, Owner, PathId, SessionFact, TenantId};
use crate::guard::Sanitized;
use crate::objects::ObjectError;

use super::files::{Content, FileAction, FileAnswer, FilePath, FileProblem, Files, MAX_FILE_BYTES};
use super::outputs::Upload;
use super::{Call, Core, ExecutionError, Requester};

/// Parts of an upload at most.
pub const MAX_PARTS: usize = 1000;
/// What the uploads of a tenant may hold that are not complete, in bytes.
pub const MAX_UPLOADING: u64 = 4 * MAX_FILE_BYTES;
/// How long an address is good for.
pub const LIFE: TimeDelta = TimeDelta::minutes(15);
/// The fact that an address was used; of an upload, for which version.
const USED: &str = "used";
/// The fact that an upload was put into the sandbox.
const STORED: &str = "stored";
const NONCE: usize = 24;
const MAX_LEN: usize = 4096;

/// What an address is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Writing the file of this path.
    #[serde(rename = "i")]
    In(String),
    /// Reading the artifact of this URI.
    #[serde(rename = "o")]
    Out(String),
}

/// What an address says.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Sealed {
    #[serde(rename = "t")]
    tenant: TenantId,
    #[serde(rename = "o")]
    owner: String,
    #[serde(rename = "c")]
    conversation: ConversationId,
    #[serde(rename = "p")]
    path: PathId,
    /// Who asked for it: name, whom its own contexts belong to, and whether it acts for the tenant.
    #[serde(rename = "b")]
    by: (String, String, bool),
    #[serde(rename = "w")]
    way: Way,
    #[serde(rename = "u")]
    until: i64,
    #[serde(rename = "i")]
    id: ExecutionId,
}

impl Sealed {
    fn token(&self, cipher: &XChaCha20Poly1305, nonce: [u8; NONCE]) -> String {
        let plain = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = nonce.to_vec();
        bytes.extend(cipher.encrypt(&XNonce::from(nonce), plain.as_slice()).unwrap_or_default());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What a token says, if it was made with this key and its time is not over.
    fn open(cipher: &XChaCha20Poly1305, token: &str, clock: &Clock) -> Option<Self> {
        if token.len() > MAX_LEN {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE)?;
        let nonce: [u8; NONCE] = nonce.try_into().ok()?;
        let plain = cipher.decrypt(&XNonce::from(nonce), sealed).ok()?;
        let sealed: Self = serde_json::from_slice(&plain).ok()?;
        (clock.now().timestamp() <= sealed.until).then_some(sealed)
    }
}

/// A new address.
#[derive(Debug, Clone)]
pub struct Address {
    /// The part after `/files/`.
    pub token: String,
    /// Until when it is good.
    pub until: DateTime<Utc>,
}

/// An address that was presented and is good.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// What for.
    pub way: Way,
    /// Who asked for it.
    pub requester: Requester,
    key: ContextKey,
    id: ExecutionId,
    /// SHA-256 of the token.
    name: [u8; 32],
}

/// An upload that was put into the sandbox.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The path, as it may be shown.
    pub path: Sanitized<String>,
    /// The file's length.
    pub bytes: u64,
    /// Its version.
    pub version: String,
    /// The version that was there before.
    pub replaced: Option<String>,
    /// How many parts it came in; 0 when it came whole.
    pub parts: usize,
}

/// Makes addresses and serves them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transfers(pub(super) Arc<Core>);

impl Transfers {
    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&self.0.parts.handles.address_key()).into())
    }

    /// A new address for one caller and one context.
    pub fn address(&self, requester: &Requester, key: &ContextKey, way: Way) -> Address {
        let parts = &self.0.parts;
        let until = parts.clock.now() + LIFE;
        let sealed = Sealed {
            tenant: key.tenant.clone(),
            owner: key.owner.as_str().to_owned(),
            conversation: key.conversation.clone(),
            path: key.path.clone(),
            by: (requester.principal.clone(), requester.owner.as_str().to_owned(), requester.sees_tenant),
            way,
            until: until.timestamp(),
            id: ExecutionId::mint(&parts.clock, &parts.entropy),
        };
        Address { token: sealed.token(&self.cipher(), parts.entropy.bytes()), until }
    }

    /// What a token says, if it was made here and its time is not over. Whether it was used is another question.
    pub fn ticket(&self, token: &str) -> Option<Ticket> {
        let sealed = Sealed::open(&self.cipher(), token, &self.0.parts.clock)?;
        let (principal, owner, sees_tenant) = sealed.by;
        let requester = Requester {
            tenant: sealed.tenant.clone(),
            owner: Owner::principal(owner),
            principal,
            sees_tenant,
        };
        let key = ContextKey {
            tenant: sealed.tenant,
            owner: Owner::principal(sealed.owner),
            conversation: sealed.conversation,
            path: sealed.path,
        };
        Some(Ticket { way: sealed.way, requester, key, id: sealed.id, name: Sha256::digest(token).into() })
    }

    /// Uses an address of a download up. `false`: someone has before.
    ///
    /// # Errors
    /// The store's.
    pub async fn use_up(&self, ticket: &Ticket) -> Result<bool, ExecutionError> {
        let mine = self.0.parts.entropy.hex::<8>();
        let fact = SessionFact { session: ticket.name, fact: USED.to_owned(), value: mine.clone() };
        Ok(self.0.store().note_session(&fact).await? == mine)
    }

    /// Whether an address has been used.
    ///
    /// # Errors
    /// The store's.
    pub async fn is_used(&self, ticket: &Ticket) -> Result<bool, ExecutionError> {
        let facts = self.0.store().session_facts(&ticket.name).await?;
        Ok(facts.iter().any(|fact| fact.fact == USED))
    }

    /// A file without a name for what comes in.
    ///
    /// # Errors
    /// That the data directory cannot be written.
    pub fn scratch(&self) -> std::io::Result<File> {
        self.0.outputs().scratch()
    }

    /// Puts what has come into the sandbox, and uses the address up for it: the same content is stored once, however often it
    /// comes, and another one is refused.
    ///
    /// # Errors
    /// [`FileProblem::Taken`], and as [`Files::run`].
    pub async fn put(
        &self,
        ticket: &Ticket,
        (file, bytes): (File, u64),
        parts: usize,
    ) -> Result<Stored, ExecutionError> {
        let (files, content) = (Files(Arc::clone(&self.0)), Content::File(Arc::new(file), bytes));
        let version = files.version_of(&ticket.key, content.clone()).await?;
        let used = SessionFact { session: ticket.name, fact: USED.to_owned(), value: version.clone() };
        if self.0.store().note_session(&used).await? != version {
            return Err(ExecutionError::File(FileProblem::Taken));
        }
        if let Some(stored) = self.stored(ticket).await? {
            return Ok(stored);
        }
        let call = Call::on(ticket.key.clone(), ticket.requester.clone());
        let action = FileAction::Put { path: ticket.path()?, content, expected: None };
        let filed = files.run(call, action, CancellationToken::new()).await?;
        let FileAnswer::Put { version, replaced } = filed.answer else {
            return Err(ExecutionError::Internal("a file was put, and something else came of it".into()));
        };
        let value = format!("{parts}/{bytes}/{}", replaced.as_deref().unwrap_or_default());
        let fact = SessionFact { session: ticket.name, fact: STORED.to_owned(), value };
        if let Err(error) = self.0.store().note_session(&fact).await {
            tracing::warn!(%error, "an upload was stored, and its address does not know it: the same file would be put again");
        }
        Ok(Stored { path: filed.path, bytes, version, replaced, parts })
    }

    /// What has been stored by an address.
    ///
    /// # Errors
    /// The store's.
    pub async fn stored(&self, ticket: &Ticket) -> Result<Option<Stored>, ExecutionError> {
        let facts = self.0.store().session_facts(&ticket.name).await?;
        let value = |name: &str| facts.iter().find(|fact| fact.fact == name).map(|fact| fact.value.as_str());
        let (Some(version), Some(stored)) = (value(USED), value(STORED)) else { return Ok(None) };
        let mut fields = stored.splitn(3, '/');
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
        let (parts, bytes) = (number(), number());
        let replaced = fields.next().filter(|version| !version.is_empty()).map(str::to_owned);
        let call = Call::on(ticket.key.clone(), ticket.requester.clone());
        let path = Files(Arc::clone(&self.0)).shown(&call, &ticket.path()?);
        let (version, parts) = (version.to_owned(), usize::try_from(parts).unwrap_or_default());
        Ok(Some(Stored { path, bytes, version, replaced, parts }))
    }

    /// Keeps a part of a file; one that comes again takes the place of the first. `coming`: bytes of the tenant's uploads that
    /// are under way, with this part.
    ///
    /// # Errors
    /// That the upload or all of the tenant's get too large; the object store's.
    pub async fn keep_part(
        &self,
        ticket: &Ticket,
        number: usize,
        (file, bytes): (File, u64),
        coming: u64,
    ) -> Result<(), ExecutionError> {
        let (outputs, upload) = (self.0.outputs(), ticket.upload());
        let kept = outputs.kept_beside(upload, number).await.map_err(ExecutionError::Objects)?;
        let problem = match kept {
            (of_upload, _) if of_upload + bytes > MAX_FILE_BYTES => FileProblem::TooLarge,
            (_, of_tenant) if of_tenant + coming > MAX_UPLOADING => FileProblem::Uploads,
            _ => return outputs.put_part(upload, number, file).await.map_err(ExecutionError::Objects),
        };
        Err(ExecutionError::File(problem))
    }

    /// The first `parts` of an upload in one file, and its length; `Err` in it names the part that has not come.
    ///
    /// # Errors
    /// The object store's.
    pub async fn joined(
        &self,
        ticket: &Ticket,
        parts: usize,
    ) -> Result<Result<(File, u64), usize>, ExecutionError> {
        let mut file = self.scratch().map_err(|error| ExecutionError::Objects(ObjectError::Spool(error)))?;
        let mut bytes = 0;
        for number in 1..=parts {
            match self.0.outputs().take_part(ticket.upload(), number, &mut file).await {
                Ok(length) => bytes += length,
                Err(ObjectError::Missing) => return Ok(Err(number)),
                Err(error) => return Err(ExecutionError::Objects(error)),
            }
            if bytes > MAX_FILE_BYTES {
                return Err(ExecutionError::File(FileProblem::TooLarge));
            }
        }
        Ok(Ok((file, bytes)))
    }

    /// Removes the parts of an upload that has ended.
    pub async fn remove_parts(&self, ticket: &Ticket) {
        self.0.outputs().remove_parts(ticket.upload()).await;
    }
}

impl Ticket {
    /// Whose upload it is.
    pub fn tenant(&self) -> &TenantId {
        &self.key.tenant
    }

    /// Where an upload goes.
    fn path(&self) -> Result<FilePath, ExecutionError> {
        let Way::In(path) = &self.way else { return Err(ExecutionError::File(FileProblem::WrongKind)) };
        FilePath::parse(path.as_str()).map_err(|_| ExecutionError::File(FileProblem::WrongKind))
    }

    fn upload(&self) -> Upload<'_> {
        Upload { tenant: &self.key.tenant, id: self.id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_good_for_its_time_and_no_longer() {
        let clock = Clock::manual(DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        let cipher = |byte| XChaCha20Poly1305::new(&[byte; 32].into());
        let sealed = Sealed {
            tenant: TenantId::parse("acme").unwrap(),
            owner: "ann".to_owned(),
            conversation: ConversationId::parse("c").unwrap(),
            path: PathId::parse("main").unwrap(),
            by: ("ann".to_owned(), "ann".to_owned(), false),
            way: Way::In("in/a.csv".to_owned()),
            until: (clock.now() + LIFE).timestamp(),
            id: "01980000-0000-7000-8000-000000000001".parse().unwrap(),
        };
        let token = sealed.token(&cipher(7), [1; NONCE]);
        let opens = |cipher: &XChaCha20Poly1305| Sealed::open(cipher, &token, &clock).map(|found| found.way);
        assert_eq!(opens(&cipher(7)), Some(sealed.way.clone()));
        assert_eq!(opens(&cipher(8)), None, "another installation's");
        clock.advance(std::time::Duration::from_secs(15 * 60));
        assert_eq!(opens(&cipher(7)), Some(sealed.way.clone()), "to the last second");
        clock.advance(std::time::Duration::from_secs(1));
        assert_eq!(opens(&cipher(7)), None, "it has ended");
    }
}
