//! A file on its way out of a sandbox. It lies on disk while it comes, so its length does not count in memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::e2b::{Download, E2bError};
use crate::guard::{FileKind, OutcomeGuard, Refused, Sanitized};

use super::{FileProblem, MAX_FILE_BYTES, MAX_WHOLE_BYTES};

/// How many files are looked at whole at a time.
static LOOKING: Semaphore = Semaphore::const_new(2);
/// Bytes that are read in one go.
const PIECE: usize = 256 * 1024;

/// A file that has come.
#[derive(Debug)]
pub(super) struct Spooled {
    file: File,
    bytes: u64,
}

/// What the guard let pass of a file.
#[derive(Debug)]
pub(super) enum Passed {
    /// A short one.
    Whole(Sanitized<Vec<u8>>),
    /// A long one.
    Long(Sanitized<File>),
}

/// Why a file has not come.
#[derive(Debug)]
pub(super) enum Broken {
    /// The sandbox's side.
    Sandbox(E2bError),
    /// It is longer than what goes out.
    TooLarge,
    /// This machine's side.
    Here(std::io::Error),
}

/// Reads a download to its end and hands each piece on.
pub(super) async fn pieces(
    mut download: Download,
    mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<u64, Broken> {
    let mut bytes = 0;
    while let Some(piece) = download.next().await.map_err(Broken::Sandbox)? {
        bytes += piece.len() as u64;
        if bytes > MAX_FILE_BYTES {
            return Err(Broken::TooLarge);
        }
        take(&piece).map_err(Broken::Here)?;
    }
    Ok(bytes)
}

impl Spooled {
    /// Takes a download into `file`, and every piece into `digest`.
    pub(super) async fn take(
        download: Download,
        mut file: File,
        digest: &mut Sha256,
    ) -> Result<Self, Broken> {
        let bytes = pieces(download, |piece| {
            digest.update(piece);
            file.write_all(piece)
        })
        .await?;
        Ok(Self { file, bytes })
    }

    /// What of the file may go out. `to`: where a long one goes.
    pub(super) async fn guarded(
        self,
        mut guard: Box<OutcomeGuard>,
        to: File,
    ) -> Result<(Box<OutcomeGuard>, FileKind, Passed), FileProblem> {
        let turn = LOOKING.acquire().await;
        let looked = tokio::task::spawn_blocking(move || {
            let passed = self.look(&mut guard, to);
            passed.map(|(kind, passed)| (guard, kind, passed))
        });
        let looked = looked.await;
        drop(turn);
        looked.unwrap_or_else(|error| {
            tracing::error!(%error, "a file could not be scanned");
            Err(FileProblem::Opaque)
        })
    }

    fn look(mut self, guard: &mut OutcomeGuard, to: File) -> Result<(FileKind, Passed), FileProblem> {
        let unreadable = |error: std::io::Error| {
            tracing::warn!(%error, "a file in transit could not be read or written");
            FileProblem::NotKept
        };
        self.file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        if self.bytes <= MAX_WHOLE_BYTES as u64 {
            let mut raw = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or_default());
            self.file.read_to_end(&mut raw).map_err(unreadable)?;
            let out = guard.file(&raw).map_err(|why| match why {
                Refused::Opaque => FileProblem::Opaque,
                Refused::Holds => FileProblem::Holds,
            })?;
            return Ok((FileKind::of(&raw), Passed::Whole(out)));
        }
        let mut head = vec![0; 1024];
        self.file.read_exact(&mut head).map_err(unreadable)?;
        self.file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        if is_text(&mut self.file).map_err(unreadable)? {
            self.file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
            let out = guard.long_text(&self.file, to).map_err(unreadable)?;
            return Ok((FileKind::Text, Passed::Long(out)));
        }
        self.file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        let out = guard.long_opaque(self.file).map_err(|_| FileProblem::LongOpaque)?;
        Ok((FileKind::of(&head), Passed::Long(out)))
    }
}

/// Whether all of it is text in UTF-8.
fn is_text(file: &mut File) -> std::io::Result<bool> {
    let mut piece = vec![0; PIECE];
    let mut kept = 0;
    loop {
        let read = file.read(&mut piece[kept..])?;
        if read == 0 {
            return Ok(kept == 0);
        }
        let filled = kept + read;
        let done = match std::str::from_utf8(&piece[..filled]) {
            Ok(_) => filled,
            Err(cut) if cut.error_len().is_none() => cut.valid_up_to(),
            Err(_) => return Ok(false),
        };
        if piece[..filled].contains(&0) {
            return Ok(false);
        }
        piece.copy_within(done..filled, 0);
        kept = filled - done;
    }
}

/// What goes into a sandbox.
#[derive(Debug, Clone)]
pub enum Content {
    /// What is in memory.
    Bytes(bytes::Bytes),
    /// What lies on disk, and its length.
    File(Arc<File>, u64),
}

impl Content {
    /// Adds all of it to a digest.
    pub(super) fn digest(&self, digest: &mut Sha256) -> std::io::Result<()> {
        match self {
            Self::Bytes(bytes) => digest.update(bytes),
            Self::File(file, bytes) => {
                let mut piece = vec![0; PIECE];
                (&**file).seek(SeekFrom::Start(0))?;
                let mut from = (&**file).take(*bytes);
                loop {
                    match from.read(&mut piece)? {
                        0 => break,
                        read => digest.update(&piece[..read]),
                    }
                }
            }
        }
        Ok(())
    }
}
