//! `files`: copies files into a sandbox and out of it, on this machine or through a server's `/v1`.
//!
//! Files are streamed, and in both cases what comes out has passed the guard. Standard output is for the
//! result; a transfer that takes longer than a second shows its progress on standard error.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Identity, complain, load_worker, run::local_caller, table, write_out};
use crate::app::{App, shutdown};
use crate::config::{Config, Provider, Sources};
use crate::domain::terminal::one_line;
use crate::execution::files::{Content, FileAction, FileAnswer, FileEntry, FilePath, Filed};
use crate::execution::{Call, Execution, Requester};
use crate::telemetry::chain;

#[derive(Debug, Subcommand)]
pub(super) enum FilesCommand {
    /// Copy a file from this machine into the sandbox.
    Put {
        /// The file.
        file: PathBuf,
        /// Its path in the sandbox, relative to the home directory there; the file's name when not set.
        #[arg(value_name = "SANDBOX_PATH")]
        inside: Option<String>,
        #[command(flatten)]
        to: Where,
    },
    /// Copy a file out of the sandbox, through the guard.
    Get {
        /// Its path in the sandbox.
        #[arg(value_name = "SANDBOX_PATH")]
        inside: String,
        /// Destination on this machine, `-` for standard output; its name in this directory when not set.
        file: Option<PathBuf>,
        #[command(flatten)]
        to: Where,
    },
    /// List a directory of the sandbox.
    Ls {
        /// Its path; the home directory there when not set.
        #[arg(value_name = "SANDBOX_PATH", default_value = ".")]
        inside: String,
        #[command(flatten)]
        to: Where,
    },
}

#[derive(Debug, Args)]
pub(super) struct Where {
    #[command(flatten)]
    identity: Identity,
    /// A context handle from a result (this machine only).
    #[arg(long, value_name = "HANDLE", conflicts_with_all = ["server", "conversation", "path"])]
    context: Option<String>,
    /// A server's URL, e.g. https://pathbox.example.com; its API key comes from PATHBOX_API_KEY.
    #[arg(long, value_name = "URL", requires = "conversation")]
    server: Option<String>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The operation, with parsed paths.
enum Wanted {
    Put(PathBuf, FilePath),
    Get(FilePath, Option<PathBuf>),
    List(FilePath),
}

/// The progress of a transfer.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

pub(super) async fn files(command: FilesCommand, mut sources: Sources) -> anyhow::Result<ExitCode> {
    let parse = |text: &str| FilePath::parse(text).map_err(|problem| anyhow::anyhow!("{text:?} {problem}"));
    let (wanted, to) = match command {
        FilesCommand::Put { file, inside, to } => {
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
            let path = inside.or(name).context("name the path in the sandbox")?;
            (Wanted::Put(file, parse(&path)?), to)
        }
        FilesCommand::Get { inside, file, to } => (Wanted::Get(parse(&inside)?, file), to),
        FilesCommand::Ls { inside, to } => (Wanted::List(parse(&inside)?), to),
    };
    let what = match &wanted {
        Wanted::Put(file, _) => format!("put {}", one_line(&file.display().to_string())),
        Wanted::Get(path, _) => format!("get {}", path.as_str()),
        Wanted::List(path) => format!("list {}", path.as_str()),
    };
    let progress = Arc::new(Progress::default());
    let Where { identity, context, server, json } = to;
    let answer = match server {
        Some(url) => {
            let key = sources.environment.get("PATHBOX_API_KEY").cloned();
            let server = Server::new(&url, key, identity)?;
            shown(&what, &progress, server.run(&wanted, &progress)).await?
        }
        None => {
            if context.is_none() && identity.conversation.is_none() {
                bail!("name the context: --context HANDLE from a result, or --conversation ID");
            }
            identity.into_flags(&mut sources.flags);
            let (config, _) = load_worker(&sources)?;
            let app = App::start(config.clone())?;
            let answer = shown(&what, &progress, here(&app, &config, context, &wanted, &progress)).await;
            app.stop(Duration::from_secs(2)).await;
            answer?
        }
    };
    // A file on standard output is the answer.
    let is_streamed = matches!(&wanted, Wanted::Get(_, Some(file)) if file == Path::new("-"));
    match (json, &wanted) {
        _ if is_streamed => {}
        (true, _) => write_out(&format!("{}\n", serde_json::to_string_pretty(&answer)?)),
        (false, Wanted::List(_)) => print_list(&answer),
        (false, Wanted::Put(..)) => {
            say!(
                "{}: {} bytes, version {}",
                text(&answer, "path"),
                answer["bytes"],
                text(&answer, "version")
            );
        }
        (false, Wanted::Get(..)) => {
            let redacted = answer["redacted"].as_u64().unwrap_or(0);
            let note = if redacted > 0 { format!(", {redacted} values hidden") } else { String::new() };
            say!("{}: {} bytes{note}", text(&answer, "file"), answer["bytes"]);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer[key].as_str().unwrap_or_default()
}

fn print_list(answer: &Value) {
    let rows: Vec<[String; 2]> = answer["entries"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| {
            let mark = if entry["type"] == "directory" { "/" } else { "" };
            [format!("{}{mark}", text(entry, "name")), entry["bytes"].to_string()]
        })
        .collect();
    table(&["name", "bytes"], &rows);
}

/// Does the work, and shows progress once it has taken a second.
async fn shown<T>(
    what: &str,
    progress: &Progress,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::pin!(work);
    let on_terminal = std::io::stderr().is_terminal();
    let every = Duration::from_secs(if on_terminal { 1 } else { 10 });
    let mut next = Duration::from_secs(1);
    let mut said = false;
    let result = loop {
        tokio::select! {
            biased;
            result = &mut work => break result,
            () = tokio::time::sleep(next) => {}
        }
        next = every;
        let mega = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed) as f64 / 1e6;
        let far = match (mega(&progress.done), mega(&progress.total)) {
            (_, 0.0) => "working".to_owned(),
            (0.0, total) => format!("{total:.1} MB"),
            (done, total) => format!("{done:.1} of {total:.1} MB"),
        };
        complain(&match on_terminal {
            true => format!("\r{what}: {far}\x1b[K"),
            false => format!("{what}: {far}\n"),
        });
        said = true;
    };
    if said && on_terminal {
        complain("\r\x1b[K");
    }
    result
}

/// Through the service of this machine.
async fn here(
    app: &App,
    config: &Config,
    context: Option<String>,
    wanted: &Wanted,
    progress: &Progress,
) -> anyhow::Result<Value> {
    let failed =
        |error: crate::execution::ExecutionError| anyhow::anyhow!("{}. {}", chain(&error), error.advice());
    let service = app.execution.service(Duration::from_secs(30)).await.map_err(failed)?;
    let (mut key, requester) = local_caller(config);
    if let Some(handle) = context {
        // Handles are given to this machine's user, under the name that the doors know.
        let user = Requester { principal: "local".to_owned(), ..requester.clone() };
        key = service.contexts.open_handle(&handle, &config.tenant, &user).await.map_err(failed)?;
    }
    let is_local = matches!(config.provider, Provider::Local);
    if is_local && service.contexts.live(&key).await.map_err(failed)?.is_none() {
        bail!(
            "this context has no sandbox, and one that this command makes would end with it: run something in the context \
             first, in the server whose conversation it is"
        );
    }
    let action = match wanted {
        Wanted::Put(file, path) => {
            let (file, bytes) = open(file, progress)?;
            FileAction::Put {
                path: path.clone(),
                content: Content::File(Arc::new(file), bytes),
                expected: None,
            }
        }
        Wanted::Get(path, _) => FileAction::Get { path: path.clone() },
        Wanted::List(path) => FileAction::List { path: path.clone() },
    };
    let cancel = CancellationToken::new();
    let filed = {
        let run = service.files.run(Call::on(key.clone(), requester.clone()), action, cancel.clone());
        tokio::pin!(run);
        loop {
            tokio::select! {
                biased;
                result = &mut run => break result.map_err(failed)?,
                asked = shutdown::asked(), if !cancel.is_cancelled() => {
                    asked?;
                    cancel.cancel();
                }
            }
        }
    };
    answer(&service, &requester, filed, wanted, progress).await
}

async fn answer(
    service: &Execution,
    requester: &Requester,
    filed: Filed,
    wanted: &Wanted,
    progress: &Progress,
) -> anyhow::Result<Value> {
    Ok(match (&filed.answer, wanted) {
        (FileAnswer::Put { version, replaced }, _) => json!({
            "path": filed.path, "bytes": progress.total.load(Ordering::Relaxed), "version": version, "replaced": replaced,
            "context": filed.finished.handle,
        }),
        (FileAnswer::Listed(entries, total), _) => {
            let entries: Vec<Value> = entries.iter().map(FileEntry::shown).collect();
            json!({ "directory": filed.path, "entries": entries, "total": total })
        }
        (FileAnswer::Got { version, artifact }, Wanted::Get(_, to)) => {
            let mut target = Target::create(to.as_deref(), &artifact.name)?;
            progress.total.store(artifact.bytes, Ordering::Relaxed);
            let mut at = 0;
            while at < artifact.bytes {
                let page = service.reads.artifact(requester, &artifact.uri, at, 1024 * 1024).await;
                let (_, page) = page.map_err(|error| anyhow::anyhow!("{}", chain(&error)))?;
                if page.is_empty() {
                    bail!("the kept copy of the file is no longer complete; get it again");
                }
                target.write(&page)?;
                at += page.len() as u64;
                progress.done.store(at, Ordering::Relaxed);
            }
            json!({ "file": target.done()?, "bytes": at, "version": version, "mimeType": artifact.mime_type,
                "redacted": filed.finished.record.guard.total() })
        }
        (FileAnswer::Got { .. }, _) => bail!("the server sent a file that was not requested"),
    })
}

fn open(path: &Path, progress: &Progress) -> anyhow::Result<(File, u64)> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        bail!("{} is not a regular file", path.display());
    }
    progress.total.store(metadata.len(), Ordering::Relaxed);
    Ok((file, metadata.len()))
}

/// Where a file goes on this machine. One of its own gets its name once it is complete.
enum Target {
    Stdout,
    File(tempfile::NamedTempFile, PathBuf),
    /// What is there already and no regular file: a pipe, a device.
    Other(File, PathBuf),
}

impl Target {
    fn create(to: Option<&Path>, name: &str) -> anyhow::Result<Self> {
        if to == Some(Path::new("-")) {
            return Ok(Self::Stdout);
        }
        // A name comes from a sandbox: only its last part counts.
        let own = Path::new(name).file_name().map_or_else(|| PathBuf::from("file"), PathBuf::from);
        let path = match to {
            None => own,
            Some(dir) if dir.is_dir() => dir.join(own),
            Some(path) => path.to_owned(),
        };
        let path = if path.is_symlink() { path.canonicalize().unwrap_or(path) } else { path };
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            let other = File::options().write(true).open(&path);
            return Ok(Self::Other(
                other.with_context(|| format!("{} cannot be written", path.display()))?,
                path,
            ));
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::NamedTempFile::new_in(dir)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Self::File(file, path))
    }

    fn write(&mut self, piece: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Stdout => std::io::stdout().lock().write_all(piece),
            Self::File(file, _) => file.write_all(piece),
            Self::Other(file, _) => file.write_all(piece),
        }
    }

    fn done(self) -> anyhow::Result<String> {
        match self {
            Self::Stdout => {
                std::io::stdout().lock().flush()?;
                Ok("-".to_owned())
            }
            Self::File(file, path) => {
                file.persist(&path).with_context(|| format!("{} cannot be written", path.display()))?;
                Ok(path.display().to_string())
            }
            Self::Other(_, path) => Ok(path.display().to_string()),
        }
    }
}

/// A server that is reached over HTTP.
struct Server {
    client: reqwest::Client,
    url: String,
    key: Option<crate::domain::Secret>,
    tenant: Option<String>,
}

/// How often a broken transfer is tried.
const TRIES: u32 = 3;

impl Server {
    fn new(url: &str, key: Option<impl Into<String>>, identity: Identity) -> anyhow::Result<Self> {
        // Fails when one is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let conversation = identity.conversation.context("--server needs --conversation")?;
        let path = identity.path.unwrap_or_else(|| "main".to_owned());
        let conversation: crate::domain::ConversationId = conversation.parse()?;
        let path: crate::domain::PathId = path.parse()?;
        Ok(Self {
            client: reqwest::Client::builder().connect_timeout(Duration::from_secs(10)).build()?,
            url: format!("{}/v1/conversations/{conversation}/paths/{path}/files", url.trim_end_matches('/')),
            key: key.map(|key| crate::domain::Secret::new(key)),
            tenant: identity.tenant,
        })
    }

    fn request(&self, method: Method, url: &str) -> reqwest::RequestBuilder {
        let mut request = self.client.request(method, url);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.expose());
        }
        if let Some(tenant) = &self.tenant {
            request = request.header("x-tenant-id", tenant);
        }
        request
    }

    async fn run(&self, wanted: &Wanted, progress: &Arc<Progress>) -> anyhow::Result<Value> {
        match wanted {
            Wanted::List(path) => {
                let url = reqwest::Url::parse_with_params(&self.url, [("directory", path.as_str())])?;
                read(self.request(Method::GET, url.as_str())).await
            }
            Wanted::Put(file, path) => {
                let mut left = TRIES;
                let asked = json!({ "action": "upload", "file": path.as_str() });
                let address = read(self.request(Method::POST, &self.url).json(&asked)).await?;
                loop {
                    left -= 1;
                    let (file, bytes) = open(file, progress)?;
                    let sent = self.client.put(text(&address, "url")).header("content-length", bytes);
                    match sent
                        .body(reqwest::Body::wrap_stream(pieces(file, Arc::clone(progress))))
                        .send()
                        .await
                    {
                        Ok(response) => return of(response).await,
                        Err(error) if left == 0 => return Err(error.without_url().into()),
                        Err(_) => {}
                    }
                }
            }
            Wanted::Get(path, to) => {
                let asked = json!({ "action": "download", "file": path.as_str() });
                let address = read(self.request(Method::POST, &self.url).json(&asked)).await?;
                let response = self.client.get(text(&address, "url")).send().await;
                let response = response.map_err(reqwest::Error::without_url)?;
                if !response.status().is_success() {
                    return of(response).await;
                }
                let mut target = Target::create(to.as_deref(), text(&address, "name"))?;
                progress.total.store(address["bytes"].as_u64().unwrap_or(0), Ordering::Relaxed);
                let mut pieces = response.bytes_stream();
                let mut bytes = 0;
                while let Some(piece) = pieces.next().await {
                    let piece = piece.map_err(reqwest::Error::without_url)?;
                    target.write(&piece)?;
                    bytes += piece.len() as u64;
                    progress.done.store(bytes, Ordering::Relaxed);
                }
                Ok(json!({ "file": target.done()?, "bytes": bytes, "version": address["version"],
                    "mimeType": address["mimeType"], "redacted": address["redacted"] }))
            }
        }
    }
}

fn pieces(file: File, progress: Arc<Progress>) -> impl futures::Stream<Item = std::io::Result<bytes::Bytes>> {
    progress.done.store(0, Ordering::Relaxed);
    futures::stream::try_unfold(file, move |mut file| {
        let progress = Arc::clone(&progress);
        async move {
            let mut piece = vec![0; 256 * 1024];
            let read = file.read(&mut piece)?;
            piece.truncate(read);
            progress.done.fetch_add(read as u64, Ordering::Relaxed);
            Ok((read > 0).then(|| (bytes::Bytes::from(piece), file)))
        }
    })
}

async fn read(request: reqwest::RequestBuilder) -> anyhow::Result<Value> {
    of(request.send().await.context("the server does not answer")?).await
}

/// A server's response as JSON; a refusal as the server's own message.
async fn of(response: reqwest::Response) -> anyhow::Result<Value> {
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    if status.is_success() {
        return Ok(body);
    }
    match body["error"]["message"].as_str() {
        Some(message) => bail!("{message}"),
        None => bail!("the server answers with {status}"),
    }
}
