//! The command line, with a subcommand for each task. Standard output is for results (or
//! for the protocol, under `serve`); everything else goes to standard error.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::app::App;
use crate::config::{Config, Source, Sources, Values, reference};
use crate::domain::{ConversationId, Entropy, OwnUrl, SharingRules, terminal};
use crate::execution::Starting;
use crate::guard::own_words;
use crate::mcp::caller::{Defaults, Door};
use crate::mcp::{McpServer, manifest};
use crate::telemetry;

/// Prints a line of an answer. What a model or a program named cannot steer the terminal.
macro_rules! say {
    ($($arg:tt)*) => { $crate::cli::write_out(&$crate::domain::terminal::visible(&format!("{}\n", format_args!($($arg)*)))) };
}

mod audit;
mod container;
mod contexts;
mod demo;
mod doctor;
mod explain;
mod files;
mod guard;
mod keys;
mod packs;
mod run;
mod serve;
mod shape;
#[cfg(target_os = "linux")]
mod templates;
mod tools;
mod usage;
mod workflows;

const EXAMPLES: &str = "\
Examples:
  pathbox demo                                       the whole pipeline, with nothing configured
  pathbox run 'print(6 * 7)'                         run code once
  pathbox serve                                      serve an MCP client over standard input and output
  pathbox serve --http 127.0.0.1:8080                serve agent frameworks and services at /mcp
  pathbox doctor                                     check this machine and say what to fix
  claude mcp add pathbox -- pathbox serve            use it in Claude Code";

/// Pathbox: runs a language model's code in sandboxes that follow the conversation's path.
#[derive(Debug, Parser)]
#[command(name = "pathbox", version, about, long_about = None, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct Global {
    /// A TOML file with settings (also PATHBOX_CONFIG).
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where Pathbox keeps its files (also PATHBOX_DATA_DIR).
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Any setting of `pathbox config`, e.g. `--set host.pool=4`; may be repeated.
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Do not apply migrations at startup; `pathbox migrate` applies them.
    #[arg(long, global = true)]
    no_auto_migrate: bool,
    /// How the sandboxes of this machine are isolated: `auto` (namespaces) or the weaker `landlock`.
    #[arg(long, global = true, value_name = "TIER")]
    isolation: Option<String>,
    /// Run code without isolation, with the rights of this user.
    #[arg(long, global = true, conflicts_with = "isolation")]
    unsafe_no_isolation: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve MCP over standard input and output (the default), or over HTTP.
    Serve(serve::ServeArgs),
    /// Show the whole pipeline on this machine with nothing configured.
    Demo(demo::DemoArgs),
    /// Run code once through the same pipeline; exits with the code's exit code.
    Run(run::RunArgs),
    /// Serve only the local sandbox host, for an official E2B SDK.
    #[cfg(target_os = "linux")]
    Host(serve::HostArgs),
    /// Serve only the local sandbox host (Linux only).
    #[cfg(not(target_os = "linux"))]
    #[command(alias = "templates")]
    Host {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Run a sandbox host in a container, on machines without a local one.
    #[command(subcommand)]
    Container(container::ContainerCommand),
    /// End expired contexts once and print how many.
    Cleanup,
    /// List and show contexts, end one, set a tenant's limits.
    #[command(subcommand)]
    Contexts(contexts::ContextsCommand),
    /// List and show runs.
    #[command(subcommand)]
    Executions(contexts::ExecutionsCommand),
    /// Verify or export the audit chain of each tenant.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Show usage and cost; set quotas.
    Usage(usage::UsageArgs),
    /// Erase the data of a tenant, or of one of its users.
    #[command(subcommand)]
    Tenants(audit::TenantsCommand),
    /// Copy files from this machine into a sandbox, and out of it.
    #[command(subcommand)]
    Files(files::FilesCommand),
    /// List and show workflows, resume or abort one.
    #[command(subcommand)]
    Workflows(workflows::WorkflowsCommand),
    /// List or clear the cached results of hermetic tasks.
    #[command(subcommand)]
    Cache(workflows::CacheCommand),
    /// Create, list and revoke API keys for callers over HTTP.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Manage rule packs for run_analysis.
    #[command(subcommand)]
    Packs(packs::PacksCommand),
    /// Try a guard policy on a file; list the rules; open sealed tokens.
    #[command(subcommand)]
    Guard(guard::GuardCommand),
    /// Manage templates: environments with packages for local sandboxes.
    #[cfg(target_os = "linux")]
    #[command(subcommand)]
    Templates(templates::TemplatesCommand),
    /// List, search, call and check the tools that programs in the sandbox may call.
    #[command(subcommand)]
    Tools(tools::ToolsCommand),
    /// Apply missing migrations.
    Migrate,
    /// Check this deployment and say what to fix.
    Doctor(doctor::DoctorArgs),
    /// Print every setting and where its value came from.
    Config {
        /// As JSON.
        #[arg(long)]
        json: bool,
        /// Print the reference page in Markdown instead of the values.
        #[arg(long)]
        reference: bool,
    },
    /// Print the MCPB manifest, generated from the tools.
    Manifest {
        /// Print the entry of the MCP registry (server.json) instead.
        #[arg(long)]
        registry: bool,
    },
    /// Print the completions for a shell.
    #[command(after_help = "Examples:
  pathbox completions bash > ~/.local/share/bash-completion/completions/pathbox
  pathbox completions zsh > \"${fpath[1]}/_pathbox\"
  pathbox completions fish > ~/.config/fish/completions/pathbox.fish")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages (`pathbox.1`, `pathbox-serve.1` and so on) to a directory.
    #[command(after_help = "Example:
  pathbox man ~/.local/share/man/man1 && man pathbox-serve")]
    Man {
        /// The directory; it is created if it does not exist.
        dir: PathBuf,
    },
}

/// Which context a command line acts on.
#[derive(Debug, Args, Default)]
struct Identity {
    /// Tenant; `local` when not set.
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Conversation; one per process start when not set.
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Path of the conversation; `main` when not set.
    #[arg(long, value_name = "ID")]
    path: Option<String>,
}

impl Identity {
    fn into_flags(self, flags: &mut std::collections::BTreeMap<String, String>) {
        let parts = [
            ("identity.tenant", self.tenant),
            ("identity.conversation", self.conversation),
            ("identity.path", self.path),
        ];
        flags.extend(parts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // Without optimization a call's futures pass over the stack by value: a file operation needs more than the usual 2 MiB.
    let runtime = match builder.thread_stack_size(8 << 20).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("the runtime cannot start")),
    };
    let result = runtime.block_on(async {
        let result = dispatch(cli).await;
        telemetry::export::finish().await;
        result
    });
    // A blocking read of standard input must not hold the exit.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match (result, UNWRITTEN.get()) {
        (Err(error), _) => fail(&error),
        (_, Some(error)) => fail(&anyhow::anyhow!("the output is not complete: {error}")),
        (Ok(code), None) => code,
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    complain(&format!("pathbox: {}\n", terminal::visible(&own_words(&crate::app::why(error)))));
    ExitCode::from(2)
}

async fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let sources = cli.global.sources()?;
    match cli.command.unwrap_or(Command::Serve(serve::ServeArgs::default())) {
        Command::Serve(args) => serve::serve(args, sources).await,
        Command::Demo(args) => demo::demo(args, sources).await,
        Command::Run(args) => run::run(args, sources).await,
        #[cfg(target_os = "linux")]
        Command::Host(args) => serve::host(args, sources).await,
        #[cfg(not(target_os = "linux"))]
        Command::Host { .. } => bail!(crate::config::host::NEEDS_LINUX),
        Command::Cleanup => cleanup(&sources).await,
        Command::Container(command) => container::container(command, sources).await,
        Command::Contexts(command) => contexts::contexts(command, sources).await,
        Command::Workflows(command) => workflows::workflows(command, sources).await,
        Command::Cache(command) => workflows::cache(command, sources).await,
        Command::Executions(command) => contexts::executions(command, sources).await,
        Command::Audit(command) => audit::audit(command, sources).await,
        Command::Usage(args) => usage::usage(args, sources).await,
        Command::Tenants(command) => audit::tenants(command, sources).await,
        Command::Files(command) => files::files(command, sources).await,
        Command::Keys(command) => keys::keys(command, sources).await,
        Command::Packs(command) => packs::packs(command, sources).await,
        Command::Guard(command) => guard::guard(command, sources).await,
        #[cfg(target_os = "linux")]
        Command::Templates(command) => templates::templates(command, sources).await,
        Command::Tools(command) => tools::tools(command, sources).await,
        Command::Migrate => migrate(sources).await,
        Command::Doctor(args) => doctor::doctor(args, sources).await,
        Command::Config { json, reference } => {
            config(&sources, json, reference)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Manifest { registry } => {
            let document = match registry {
                true => manifest::registry_entry(),
                false => manifest::manifest(&offline_server()),
            };
            write_out(&manifest::text(&document));
            Ok(ExitCode::SUCCESS)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pathbox", &mut script);
            write_out(&String::from_utf8_lossy(&script));
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { dir } => {
            let problem = || format!("the manual pages cannot be written to {}", dir.display());
            std::fs::create_dir_all(&dir).with_context(problem)?;
            clap_mangen::generate_to(Cli::command(), &dir).with_context(problem)?;
            say!("{}", dir.join("pathbox.1").display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn cleanup(sources: &Sources) -> anyhow::Result<ExitCode> {
    let app = App::start(load_worker(sources)?.0)?;
    let service = app.execution.service(Duration::from_secs(30)).await?;
    let cleaned = service.cleanup.run_once().await;
    say!("{}", serde_json::to_string(&cleaned)?);
    app.stop(Duration::from_secs(5)).await;
    Ok(ExitCode::from(u8::from(cleaned.errors > 0)))
}

async fn migrate(mut sources: Sources) -> anyhow::Result<ExitCode> {
    sources.flags.insert("auto_migrate".into(), "true".into());
    let (config, _) = load(&sources)?;
    crate::app::data_dir(&config.data_dir)?;
    let keyring = crate::app::keyring(&config, &Entropy::system())?;
    let store = crate::app::open_store(&config, keyring).await.context("the migrations were not applied")?;
    say!("{{\"store\":\"{}\",\"migrated\":true}}", store.kind());
    Ok(ExitCode::SUCCESS)
}

impl Global {
    fn sources(&self) -> anyhow::Result<Sources> {
        let mut sources = Sources::from_process();
        let named =
            self.config.clone().or_else(|| sources.environment.get("PATHBOX_CONFIG").map(PathBuf::from));
        sources.file = named;
        if let Some(dir) = &self.data_dir {
            let Some(dir) = dir.to_str() else {
                bail!("--data-dir {}: the path is not UTF-8", dir.display())
            };
            sources.flags.insert("data_dir".into(), dir.to_owned());
        }
        if self.no_auto_migrate {
            sources.flags.insert("auto_migrate".into(), "false".into());
        }
        let unsafe_none = self.unsafe_no_isolation.then(|| "unsafe-none".to_owned());
        if let Some(isolation) = unsafe_none.or_else(|| self.isolation.clone()) {
            sources.flags.insert("host.isolation".into(), isolation);
        }
        for pair in &self.set {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("--set {pair}: expected KEY=VALUE");
            };
            sources.flags.insert(key.trim().to_owned(), value.trim().to_owned());
        }
        Ok(sources)
    }
}

/// Reads the settings and starts logging accordingly.
/// Commands log only warnings and errors unless the filter is set.
fn load(sources: &Sources) -> anyhow::Result<(Config, Values)> {
    start(sources, "warn", false)
}

/// The same for commands that do work of the service: its spans and metrics are exported.
fn load_worker(sources: &Sources) -> anyhow::Result<(Config, Values)> {
    start(sources, "warn", true)
}

/// The same for a server, which runs until a signal ends it: it logs at level info.
fn load_server(sources: &Sources) -> anyhow::Result<(Config, Values)> {
    start(sources, "warn,pathbox=info", true)
}

fn start(sources: &Sources, filter: &str, exports: bool) -> anyhow::Result<(Config, Values)> {
    let values = Values::read(sources)?;
    let mut config = values.config(&sources.environment)?;
    if values.source("log.filter") == Source::Default {
        config.telemetry.filter = filter.to_owned();
    }
    telemetry::log_panics();
    let mut started = config.telemetry.clone();
    if !exports {
        started.export = None;
    }
    telemetry::start(&started, |line| own_words(line).into_inner()).map_err(anyhow::Error::msg)?;
    Ok((config, values))
}

fn config(sources: &Sources, json: bool, page: bool) -> anyhow::Result<()> {
    if page {
        write_out(&reference::page());
        return Ok(());
    }
    let (_, values) = load(sources)?;
    let rows = reference::rows(&values);
    if json {
        say!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let rows: Vec<_> = rows
        .into_iter()
        .map(|row| {
            let instead = row.effective.map_or_else(|| "–".to_owned(), |text| format!("({text})"));
            [row.key, row.value.unwrap_or(instead), row.source]
        })
        .collect();
    table(&["setting", "value", "source"], &rows);
    Ok(())
}

/// What kept output from being written, such as a full disk.
static UNWRITTEN: OnceLock<std::io::Error> = OnceLock::new();

/// Writes output. A closed pipe (`| head`) is not an error; anything else is one at the end, and must not end a server.
fn write_out(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        UNWRITTEN.get_or_init(|| error);
    }
}

/// Writes to standard error, where there is one.
fn complain(text: &str) {
    use std::io::Write;
    drop(std::io::stderr().lock().write_all(text.as_bytes()));
}

/// Prints rows under their headings, columns aligned.
fn table<const N: usize>(headings: &[&str; N], rows: &[[String; N]]) {
    let mut widths = headings.map(str::len);
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| terminal::one_line(cell))).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say!("{}", padded.join("  ").trim_end());
    };
    line(&headings.map(str::to_owned));
    rows.iter().for_each(line);
}

/// The MCP handler without any backend: enough to list what it offers.
fn offline_server() -> McpServer {
    let (_, execution) = Starting::channel();
    #[expect(clippy::expect_used, reason = "constants within the set of allowed characters")]
    let door = Door::Process(Defaults {
        tenant: "local".parse().expect("valid"),
        conversation: ConversationId::parse("offline").expect("valid"),
        path: crate::domain::PathId::main(),
    });
    let options = crate::mcp::Options {
        code_execution: true,
        network: false,
        workflows: false,
        tool_servers: None,
        templates: None,
        patience: Duration::from_secs(60),
        packages: Vec::new(),
        inline_images: crate::mcp::InlineImages::Auto,
        packs: crate::execution::Packs::new(PathBuf::new(), crate::domain::Clock::system()),
        own_url: OwnUrl::default(),
        door,
        sharing: SharingRules::default(),
    };
    McpServer::new(options, execution.part(crate::mcp::Service::of))
}
