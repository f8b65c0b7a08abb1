//! `serve` and `host`: the servers, which run until a signal ends them.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rmcp::ServiceExt;
use rmcp::transport::io::stdio_pipes;
use tokio_util::sync::CancellationToken;

use super::{Identity, load_server};
use crate::app::{App, shutdown};
use crate::config::{Config, Sources};
use crate::mcp::transport::stdio::Lines;

#[derive(Debug, Args, Default)]
#[command(after_help = "Examples:
  pathbox serve
  pathbox serve --conversation report-7 --path main
  pathbox serve --http 127.0.0.1:8080
  DATABASE_URL=postgres://app@db/pathbox E2B_API_KEY_FILE=/run/secrets/e2b pathbox serve --http 0.0.0.0:8080")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    identity: Identity,
    /// Serve over HTTP at this address instead: MCP at /mcp and /sse. Port 0 picks a free port.
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<String>,
}

/// How long shutdown may take once the client has closed its end.
const EOF_GRACE: Duration = Duration::from_millis(400);
/// How long sending the results of the last runs may take.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

pub(super) async fn serve(args: ServeArgs, mut sources: Sources) -> anyhow::Result<ExitCode> {
    args.identity.into_flags(&mut sources.flags);
    if let Some(listen) = args.http {
        sources.flags.insert("http.listen".into(), listen);
    }
    let (config, _) = load_server(&sources)?;
    match config.http.listen {
        Some(listen) => over_http(config, listen).await,
        None => over_stdio(config).await,
    }
}

async fn over_http(config: Config, listen: std::net::SocketAddr) -> anyhow::Result<ExitCode> {
    let (grace, base, needs) =
        (config.shutdown_grace, config.http.base_path.clone(), config.http.needs_credential(listen));
    let app = App::start(config)?;
    app.follow_policy();
    let doors = match app.open_http(listen).await {
        Ok(doors) => doors,
        Err(error) => {
            app.stop(Duration::ZERO).await;
            return Err(error);
        }
    };
    let who = if needs { "callers need a credential: `pathbox keys add`" } else { "open to this machine" };
    tracing::info!("serving MCP at http://{}{base}/mcp ({who})", doors.address());
    let asked = shutdown::asked().await;
    doors.close(app, grace).await;
    asked?;
    Ok(ExitCode::SUCCESS)
}

/// Started by hand it would seem to do nothing, so it says what it waits for.
fn say_it_waits() {
    let program =
        std::env::current_exe().map_or_else(|_| "pathbox".to_owned(), |path| path.display().to_string());
    let entry = serde_json::json!({ "mcpServers": { "pathbox": { "command": program, "args": ["serve"] } } });
    let text = format!(
        "pathbox serve: waiting for an MCP client on standard input; Ctrl-C ends it.\n\
         A client starts this command itself. Claude Desktop, Cursor and others take this configuration:\n  {entry}\n\
         Claude Code: claude mcp add pathbox -- {program} serve\n\
         Over HTTP: pathbox serve --http 127.0.0.1:8080. To try it here: pathbox demo.\n"
    );
    super::complain(&text);
}

async fn over_stdio(config: Config) -> anyhow::Result<ExitCode> {
    let grace = config.shutdown_grace;
    if std::io::stdin().is_terminal() {
        say_it_waits();
    }
    let app = App::start(config)?;
    app.follow_policy();
    let ended = CancellationToken::new();
    let (reader, writer) = stdio_pipes();
    let transport = Lines::new(reader, writer, ended.clone());
    let answers = transport.answers();
    let server = app.mcp();
    let serving = async {
        match server.serve_with_ct(transport, ended.clone()).await {
            Ok(running) => drop(running.waiting().await),
            Err(error) => {
                tracing::debug!(error = %error, "the client disconnected before it had initialized")
            }
        }
    };
    tokio::pin!(serving);
    tokio::select! {
        () = serving.as_mut() => app.stop(EOF_GRACE).await,
        asked = shutdown::asked() => {
            asked?;
            // Its calls go on, and their results go out.
            let stopping = async {
                app.stop(grace).await;
                drop(tokio::time::timeout(LAST_ANSWERS, answers).await);
                ended.cancel();
            };
            tokio::join!(stopping, serving);
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(target_os = "linux")]
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pathbox host > host.env &       the lines to `source` before an E2B program runs
  E2B_API_KEY=$KEY pathbox host --listen 0.0.0.0:3900 --allow-remote")]
pub(super) struct HostArgs {
    /// Where to listen; port 0 picks a free port.
    #[arg(long, default_value = "127.0.0.1:3900", value_name = "ADDR:PORT")]
    listen: std::net::SocketAddr,
    /// The API key that clients must send. Prefer E2B_API_KEY: every user of the machine can read a command line. If neither is
    /// set, a key is generated and printed.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Allow an address that other machines can reach. The protocol is not encrypted.
    #[arg(long)]
    allow_remote: bool,
}

#[cfg(target_os = "linux")]
pub(super) async fn host(args: HostArgs, mut sources: Sources) -> anyhow::Result<ExitCode> {
    // Here the key is what callers must send, not whom to call.
    let key = args.api_key.or_else(|| sources.environment.remove("E2B_API_KEY"));
    let is_made_here = key.is_none();
    let (config, _) = load_server(&sources)?;
    let mut options = config.host.options(crate::app::templates_dir(&config));
    options.listen = args.listen;
    options.allow_remote = args.allow_remote;
    options.api_key = key.map(crate::wire::Secret::new);
    let token = CancellationToken::new();
    let host = crate::host::serve(options, token.clone()).await?;
    say!("export E2B_API_URL={url} E2B_SANDBOX_URL={url}", url = host.url());
    // A key that someone gave is not repeated: what is printed here may be a log.
    match is_made_here {
        true => say!("export E2B_API_KEY={}", host.api_key().expose()),
        false => say!("# E2B_API_KEY: the key that was given to this host"),
    }
    shutdown::asked().await?;
    token.cancel();
    if tokio::time::timeout(Duration::from_secs(5), host.ended()).await.is_err() {
        tracing::warn!("not every connection had ended");
    }
    Ok(ExitCode::SUCCESS)
}
