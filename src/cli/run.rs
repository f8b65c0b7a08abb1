//! `run`: code from the command line through the whole pipeline, once.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Identity, complain, load_worker, write_out};
use crate::app::{App, new_conversation, shutdown};
use crate::config::{Config, Sources};
use crate::domain::{Code, CodeRequest, ContextKey, Entropy, Inputs, Language, Principal, Timeout};
use crate::execution::{Call, Finished, Progress, Requester};
use crate::mcp::caller::IDEMPOTENCY_KEY;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pathbox run 'print(6 * 7)'
  pathbox run --language bash --file report.sh
  echo 'print(6 * 7)' | pathbox run
  pathbox run --json '1/0'")]
pub(super) struct RunArgs {
    /// The code; read from standard input if neither this nor a file is given.
    code: Option<String>,
    /// A file with the code.
    #[arg(long, short, conflicts_with = "code", value_name = "FILE")]
    file: Option<PathBuf>,
    /// python, javascript, typescript or bash, or a usual name of one, such as js.
    #[arg(long, short, default_value = "python", value_parser = named)]
    language: Language,
    #[command(flatten)]
    identity: Identity,
    /// Milliseconds that the run may take, 1000 to 600000.
    #[arg(long, default_value_t = Timeout::DEFAULT_MS)]
    timeout_ms: u64,
    /// Run at most once under this key, of 1 to 255 characters.
    #[arg(long, value_name = "KEY", value_parser = idempotency_key)]
    idempotency_key: Option<String>,
    /// Print one JSON object instead of the output: the structured content of MCP's `run_code`, and `results` with every form
    /// of every display.
    #[arg(long)]
    json: bool,
    /// Template of the sandbox; one of `e2b.templates`.
    #[arg(long)]
    template: Option<String>,
}

fn named(text: &str) -> Result<Language, String> {
    let plain = text.to_ascii_lowercase();
    Language::named(&plain).map_or_else(|| plain.parse(), Ok)
}

fn idempotency_key(text: &str) -> Result<String, String> {
    let count = text.chars().count();
    match IDEMPOTENCY_KEY.contains(&count) {
        true => Ok(text.to_owned()),
        false => Err(format!("it has {count} characters")),
    }
}

pub(super) async fn run(args: RunArgs, mut sources: Sources) -> anyhow::Result<ExitCode> {
    let source = match (args.code, args.file) {
        (Some(code), _) => code,
        (None, Some(path)) => std::fs::read_to_string(&path)
            .map_err(|error| anyhow::anyhow!("{} cannot be read: {error}", path.display()))?,
        (None, None) => {
            let mut text = String::new();
            let mut input = std::io::stdin().lock().take(2 * Code::MAX_BYTES as u64);
            input.read_to_string(&mut text).context("standard input cannot be read")?;
            text
        }
    };
    let request = CodeRequest {
        language: args.language,
        code: Code::parse(source)?,
        purpose: None,
        timeout: Timeout::from_millis(args.timeout_ms)?,
        inputs: Inputs { template: args.template, ..Inputs::default() },
    };
    args.identity.into_flags(&mut sources.flags);
    let (config, _) = load_worker(&sources)?;
    let is_made_up = config.conversation.is_none();
    let (key, requester) = local_caller(&config);
    let call = Call { idempotency_key: args.idempotency_key, is_made_up, ..Call::on(key, requester) };
    let app = App::start(config)?;
    let result = run_call(&app, call, request, args.json).await;
    app.stop(Duration::from_secs(2)).await;
    let finished = result?;
    if args.json {
        let mut result = serde_json::to_value(crate::mcp::tools::run_code::structured(&finished))?;
        // A model gets pictures and documents as blocks and links; a script has this object alone.
        result["results"] = super::shape::shape(&finished.outcome.results)?;
        write_out(&format!("{}\n", serde_json::to_string_pretty(&result)?));
    }
    Ok(ExitCode::from(u8::try_from(finished.outcome.exit_code()).unwrap_or(1)))
}

/// The context that the command line names, and this machine's user, who is `cli` in the audit.
pub(super) fn local_caller(config: &Config) -> (ContextKey, Requester) {
    let owner = Principal::local(config.tenant.clone()).owner(config.sharing.of(&config.tenant));
    let key = ContextKey {
        tenant: config.tenant.clone(),
        owner: owner.clone(),
        conversation: config.conversation.clone().unwrap_or_else(|| new_conversation(&Entropy::system())),
        path: config.path.clone(),
    };
    let requester =
        Requester { tenant: config.tenant.clone(), owner, principal: "cli".to_owned(), sees_tenant: false };
    (key, requester)
}

async fn run_call(app: &App, call: Call, request: CodeRequest, quiet: bool) -> anyhow::Result<Finished> {
    let service = app
        .execution
        .service(Duration::from_secs(30))
        .await
        .map_err(|error| anyhow::anyhow!("{error}. {}", error.advice()))?;
    let cancel = CancellationToken::new();
    let (news, mut output) = mpsc::channel::<Progress>(1024);
    let run = service.runs.run_code(call, request, news, cancel.clone());
    tokio::pin!(run);
    let finished = loop {
        tokio::select! {
            biased;
            Some(_) = output.recv() => {}
            result = &mut run => break result,
            asked = shutdown::asked(), if !cancel.is_cancelled() => {
                asked?;
                cancel.cancel();
            }
        }
    };
    let finished = finished.map_err(|error| {
        let cause = crate::telemetry::chain(&error);
        anyhow::anyhow!("{cause}. {}", error.advice())
    })?;
    if !quiet {
        show(&finished);
    }
    Ok(finished)
}

/// Prints to standard output and standard error like the program itself.
fn show(finished: &Finished) {
    let outcome = &finished.outcome;
    let mut out = outcome.stdout.text();
    for result in &outcome.results {
        if let Some(text) = result.text() {
            out.push_str(text);
            out.push('\n');
        }
    }
    write_out(&out);
    let mut err = outcome.stderr.text();
    if let Some(error) = outcome.exception() {
        match error.traceback.is_empty() {
            true => err.push_str(&format!("{}: {}\n", error.name, error.message)),
            false => err.push_str(&format!("{}\n", error.traceback.trim_end())),
        }
    }
    if let Some(reason) = &finished.record.state_reason {
        if !err.is_empty() && !err.ends_with('\n') {
            err.push('\n');
        }
        err.push_str(&format!("[note] state {}: {reason}\n", finished.record.state));
    }
    // The exit code is the code's, also where this cannot be written.
    complain(&err);
}
