//! Files in a sandbox, through envd.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use reqwest::Method;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};

use super::rpc::{Envd, RpcStream};
use super::send::{query, read_all};
use super::{Deadline, E2bClient, E2bError, SandboxAccess, Subject};
use crate::wire::connect::Code;
use crate::wire::envd::{
    Empty, EntriesResponse, EntryInfo, EntryResponse, FileEvent, ListDirRequest, MoveRequest, PathRequest,
    WatchRequest, WatchResponse, WrittenFile, file_signature, filesystem,
};
use crate::wire::{ENVD_PORT, Secret, Version};

/// Bytes of a file that are sent in one go.
const PIECE: usize = 256 * 1024;
/// Bytes a second that a slow line carries.
const SLOW_LINE: u64 = 256 * 1024;

/// The files of one sandbox. Relative paths start at the user's home; `~` works.
#[derive(Debug, Clone)]
pub struct Files {
    envd: Envd,
}

impl E2bClient {
    /// The files of a sandbox, as its default user.
    pub fn files(&self, access: &SandboxAccess) -> Files {
        Files { envd: Envd { client: self.clone(), access: access.clone(), user: None } }
    }
}

impl Files {
    /// The same as another Linux user.
    pub fn as_user(&self, user: impl Into<String>) -> Self {
        Self { envd: Envd { user: Some(user.into()), ..self.envd.clone() } }
    }

    /// Reads a file of at most `max_bytes`.
    ///
    /// # Errors
    /// [`E2bError::NotFound`], [`E2bError::Refused`] for a directory, [`E2bError::TooLarge`].
    pub async fn read(&self, path: &str, max_bytes: usize) -> Result<Bytes, E2bError> {
        let request = self.envd.request(Method::GET, &self.url("/files", path))?;
        self.within(async {
            let response = request.send().await.map_err(|error| E2bError::transport(error, false))?;
            let response = self.accept(response).await?;
            read_all(response, "a file", max_bytes).await
        })
        .await
    }

    /// Begins to read a file of any length, piece by piece.
    ///
    /// # Errors
    /// [`E2bError::NotFound`], [`E2bError::Refused`] for a directory.
    pub async fn open(&self, path: &str) -> Result<Download, E2bError> {
        let request = self.envd.request(Method::GET, &self.url("/files", path))?;
        let response = self
            .within(async {
                let response = request.send().await.map_err(|error| E2bError::transport(error, false))?;
                self.accept(response).await
            })
            .await?;
        Ok(Download { response, files: self.clone() })
    }

    /// Writes a file of any length from a file of this machine.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub async fn write_file(&self, path: &str, file: Arc<File>, bytes: u64) -> Result<WrittenFile, E2bError> {
        let body = reqwest::Body::wrap_stream(pieces(file, bytes));
        self.write_body(path, body, bytes).await
    }

    /// Writes a file; parents are made, what was there is replaced.
    ///
    /// # Errors
    /// [`E2bError::Failed`] with status 507 when the disk is full.
    pub async fn write(&self, path: &str, bytes: impl Into<Bytes>) -> Result<WrittenFile, E2bError> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        self.write_body(path, bytes.into(), length).await
    }

    async fn write_body(
        &self,
        path: &str,
        body: reqwest::Body,
        length: u64,
    ) -> Result<WrittenFile, E2bError> {
        let request = self.envd.request(Method::POST, &self.url("/files", path))?;
        let takes_bytes = self.envd.access.envd_version.is_none_or(|version| version >= Version(0, 5, 7));
        let request = if takes_bytes {
            request.header(CONTENT_TYPE, "application/octet-stream").header(CONTENT_LENGTH, length).body(body)
        } else {
            let part = reqwest::multipart::Part::stream_with_length(body, length).file_name(path.to_owned());
            request.multipart(reqwest::multipart::Form::new().part("file", part))
        };
        let written = self.send(request, length).await?;
        written.into_iter().next().ok_or(E2bError::Protocol { what: "the answer to an upload", source: None })
    }

    /// Writes several files in one request.
    ///
    /// # Errors
    /// As [`Files::write`]; some may have been written.
    pub async fn write_all(&self, files: Vec<(String, Bytes)>) -> Result<Vec<WrittenFile>, E2bError> {
        let length = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let form = files.into_iter().fold(reqwest::multipart::Form::new(), |form, (path, bytes)| {
            form.part("file", part(&path, bytes))
        });
        let path = format!("/files{}", query(&self.user()));
        self.send(self.envd.request(Method::POST, &path)?.multipart(form), length).await
    }

    async fn send(
        &self,
        request: reqwest::RequestBuilder,
        length: u64,
    ) -> Result<Vec<WrittenFile>, E2bError> {
        let limit = self.envd.client.options().max_answer_bytes;
        self.within_for(length, async {
            let response = request.send().await.map_err(|error| E2bError::transport(error, true))?;
            let response = self.accept(response).await?;
            let body = read_all(response, "the answer to an upload", limit).await?;
            serde_json::from_slice(&body)
                .map_err(|error| E2bError::protocol("the answer to an upload", error))
        })
        .await
    }

    /// The type of a path.
    ///
    /// # Errors
    /// [`E2bError::NotFound`].
    pub async fn stat(&self, path: &str) -> Result<EntryInfo, E2bError> {
        let request = PathRequest { path: path.to_owned() };
        let answer: EntryResponse = self.envd.unary(filesystem::STAT, &request, Subject::File).await?;
        Ok(answer.entry)
    }

    /// The entries of a directory, `depth` levels deep (1 or more).
    ///
    /// # Errors
    /// [`E2bError::NotFound`]; [`E2bError::Rpc`] with `invalid_argument` when it is not a directory.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<EntryInfo>, E2bError> {
        let request = ListDirRequest { path: path.to_owned(), depth };
        let answer: EntriesResponse = self.envd.unary(filesystem::LIST_DIR, &request, Subject::File).await?;
        Ok(answer.entries)
    }

    /// Makes a directory and its parents; `false` when it was there.
    ///
    /// # Errors
    /// [`E2bError::Rpc`] with `invalid_argument` when a file is there.
    pub async fn make_dir(&self, path: &str) -> Result<bool, E2bError> {
        let request = PathRequest { path: path.to_owned() };
        match self.envd.unary::<EntryResponse>(filesystem::MAKE_DIR, &request, Subject::File).await {
            Ok(_) => Ok(true),
            Err(E2bError::Rpc { code: Code::AlreadyExists, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renames a file or directory.
    ///
    /// # Errors
    /// [`E2bError::NotFound`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<EntryInfo, E2bError> {
        let request = MoveRequest { source: from.to_owned(), destination: to.to_owned() };
        let answer: EntryResponse = self.envd.unary(filesystem::MOVE, &request, Subject::File).await?;
        Ok(answer.entry)
    }

    /// Removes a file, or a directory with everything in it. No error when it does not exist.
    ///
    /// # Errors
    /// Those of any call to envd.
    pub async fn remove(&self, path: &str) -> Result<(), E2bError> {
        let request = PathRequest { path: path.to_owned() };
        self.envd.unary::<Empty>(filesystem::REMOVE, &request, Subject::File).await.map(drop)
    }

    /// Tells what changes in a directory, from when this returns.
    ///
    /// # Errors
    /// [`E2bError::NotFound`]; [`E2bError::Rpc`] with `invalid_argument` when it is not a directory.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<FileWatch, E2bError> {
        let request = WatchRequest { path: path.to_owned(), recursive, ..WatchRequest::default() };
        let mut stream: RpcStream<WatchResponse> =
            self.envd.stream(filesystem::WATCH_DIR, &request, Subject::File, None).await?;
        loop {
            match stream.next().await? {
                Some(WatchResponse::Start(_)) => return Ok(FileWatch { stream }),
                Some(_) => {}
                None => return Err(E2bError::Protocol { what: "the start of a watch", source: None }),
            }
        }
    }

    /// A URL that reads a file without any header, until `expires`: anyone who has it can read the file.
    ///
    /// # Errors
    /// [`E2bError::Setting`] when the sandbox has no envd token: then anyone can read without a signature.
    pub fn download_url(&self, path: &str, expires: Option<DateTime<Utc>>) -> Result<Secret, E2bError> {
        let access = &self.envd.access;
        let Some(token) = &access.envd_token else {
            let problem = "is missing, so there is nothing to sign with".to_owned();
            return Err(E2bError::Setting { what: "envd token", problem });
        };
        let expires = expires.map(|at| at.timestamp());
        let user = self.envd.user.as_deref().unwrap_or("");
        let mut pairs = vec![("path", path.to_owned())];
        pairs.extend(self.user());
        pairs.push(("signature", file_signature(path, "read", user, token.expose(), expires)));
        pairs.extend(expires.map(|at| ("signature_expiration", at.to_string())));
        let base = self.envd.client.endpoint.direct_base(&access.id, access.domain.as_deref(), ENVD_PORT);
        Ok(Secret::new(format!("{base}/files{}", query(&pairs))))
    }

    fn url(&self, route: &str, path: &str) -> String {
        let mut pairs = vec![("path", path.to_owned())];
        pairs.extend(self.user());
        format!("{route}{}", query(&pairs))
    }

    fn user(&self) -> Vec<(&'static str, String)> {
        self.envd.user.iter().map(|user| ("username", user.clone())).collect()
    }

    async fn accept(&self, response: reqwest::Response) -> Result<reqwest::Response, E2bError> {
        self.envd.client.accept(response, &self.envd.access, ENVD_PORT, Subject::File).await
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, E2bError>>) -> Result<T, E2bError> {
        self.within_for(0, work).await
    }

    /// The time of a request, plus what that number of bytes takes on a slow link.
    async fn within_for<T>(
        &self,
        bytes: u64,
        work: impl Future<Output = Result<T, E2bError>>,
    ) -> Result<T, E2bError> {
        let within: Duration =
            self.envd.client.options().request_timeout + Duration::from_secs(bytes / SLOW_LINE);
        tokio::time::timeout(within, work).await.unwrap_or(Err(E2bError::TimedOut {
            clock: Deadline::Request,
            after: within,
            may_have_run: true,
        }))
    }
}

/// A file that is being read.
#[derive(Debug)]
pub struct Download {
    response: reqwest::Response,
    files: Files,
}

impl Download {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// That the answer broke off or stood still.
    pub async fn next(&mut self) -> Result<Option<Bytes>, E2bError> {
        let Self { response, files } = self;
        files.within(async { response.chunk().await.map_err(|error| E2bError::transport(error, true)) }).await
    }
}

/// The first `bytes` of a file, piece by piece.
fn pieces(file: Arc<File>, bytes: u64) -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    futures::stream::try_unfold(0, move |at: u64| {
        let file = Arc::clone(&file);
        async move {
            let length = usize::try_from(bytes - at).unwrap_or(PIECE).min(PIECE);
            if length == 0 {
                return Ok(None);
            }
            let mut piece = vec![0; length];
            // One reader at a time: a file that is sent again is sent from its beginning.
            (&*file).seek(SeekFrom::Start(at))?;
            (&*file).read_exact(&mut piece)?;
            Ok(Some((Bytes::from(piece), at + length as u64)))
        }
    })
}

/// The form name is `file`; the file name is the whole target path.
fn part(path: &str, bytes: Bytes) -> reqwest::multipart::Part {
    let length = bytes.len() as u64;
    reqwest::multipart::Part::stream_with_length(bytes, length).file_name(path.to_owned())
}

/// Changes in a directory. Dropping it ends the watch.
#[derive(Debug)]
pub struct FileWatch {
    stream: RpcStream<WatchResponse>,
}

impl FileWatch {
    /// The next change; `None` when envd ended the watch. Safe to cancel.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost), or that the stream broke.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, E2bError> {
        loop {
            match self.stream.next().await? {
                Some(WatchResponse::Filesystem(event)) => return Ok(Some(*event)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}
