//! `packs`: rule packs for `run_analysis`, added, listed, shown and checked by their own worked examples.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::run::local_caller;
use super::shape::shape;
use super::{Identity, load, load_worker, table};
use crate::analysis::{OutputFormat, Pack};
use crate::app::App;
use crate::config::Sources;
use crate::domain::{Clock, ContextKey, Timeout};
use crate::execution::{AnalysisRequest, Call, Packs, Requester};

#[derive(Debug, Subcommand)]
pub(super) enum PacksCommand {
    /// Add a pack, if its worked examples give the expected results.
    Add {
        /// The pack's directory, or its pack.json.
        from: PathBuf,
    },
    /// List packs.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run the worked examples of a pack in a sandbox.
    Check {
        /// Its name, as `ls` shows it, or the directory or file of a new pack.
        pack: String,
        #[command(flatten)]
        identity: Identity,
    },
    /// Print a pack: validity, sources, rules.
    Show {
        /// Its name, as `ls` shows it.
        name: String,
    },
    /// Remove a pack that was added.
    Rm {
        /// Its name, as `ls` shows it.
        name: String,
    },
}

pub(super) async fn packs(command: PacksCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, _) = load(&sources)?;
    let clock = Clock::system();
    let packs = Packs::new(config.data_dir.join("packs"), clock.clone());
    match command {
        PacksCommand::Add { from } => {
            let pack = Packs::read(&from)?;
            prove(&pack, Identity::default(), sources).await?;
            crate::app::data_dir(&config.data_dir)?;
            packs.add(&pack)?;
            say!("added {}", pack.name());
            say_validity(&pack, &clock);
        }
        PacksCommand::Ls { json } => list(&packs, json, clock.now().date_naive())?,
        PacksCommand::Check { pack, identity } => {
            let pack = match Path::new(&pack).exists() {
                true => Packs::read(Path::new(&pack))?,
                false => packs.find(&pack)?,
            };
            prove(&pack, identity, sources).await?;
            say!("{}: {} worked examples give the published results", pack.name(), pack.info().examples);
            say_validity(&pack, &clock);
        }
        PacksCommand::Show { name } => {
            let pack = packs.find(&name)?;
            let shown = json!({"pack": shape(&pack.info())?, "analysisType": pack.kind().as_str(), "parameters": pack.parameters()});
            say!("{}", serde_json::to_string_pretty(&shown)?);
        }
        PacksCommand::Rm { name } => {
            packs.remove(&name)?;
            say!("removed {name}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A line when today is outside the rules' validity.
fn say_validity(pack: &Pack, clock: &Clock) {
    if let Some(note) = pack.note(clock.now().date_naive()) {
        say!("{note}");
    }
}

fn list(packs: &Packs, as_json: bool, today: chrono::NaiveDate) -> anyhow::Result<()> {
    let all = packs.list();
    if as_json {
        let rows: Vec<Value> = all
            .iter()
            .map(|(name, pack)| match pack {
                Ok(pack) => json!({"name": name, "analysisType": pack.kind().as_str(), "pack": pack.info()}),
                Err(error) => json!({"name": name, "problem": error.to_string()}),
            })
            .collect();
        say!("{}", serde_json::to_string_pretty(&shape(&rows)?)?);
        return Ok(());
    }
    let day = |day: Option<chrono::NaiveDate>| day.map_or_else(|| "-".to_owned(), |day| day.to_string());
    let rows = all.into_iter().map(|(name, pack)| match pack {
        Ok(pack) => {
            let info = pack.info();
            [
                name,
                pack.kind().to_string(),
                day(info.valid_from),
                day(info.valid_to)
                    + if info.valid_to.is_some_and(|last| last < today) { " (past)" } else { "" },
                info.examples.to_string(),
                info.title,
            ]
        }
        Err(error) => {
            let none = || "-".to_owned();
            [name, none(), none(), none(), none(), error.to_string()]
        }
    });
    table(&["PACK", "ANALYSIS", "FROM", "TO", "EXAMPLES", "TITLE"], &rows.collect::<Vec<_>>());
    Ok(())
}

/// Runs the first example as a call: all examples are checked before the call is answered.
async fn prove(pack: &Pack, identity: Identity, mut sources: Sources) -> anyhow::Result<()> {
    identity.into_flags(&mut sources.flags);
    let (config, _) = load_worker(&sources)?;
    let clock = Clock::system();
    let checked = pack.complete(pack.kind(), pack.first_example(), clock.now().date_naive())?;
    let caller = local_caller(&config);
    let app = App::start(config)?;
    let result = run(
        &app,
        caller,
        AnalysisRequest {
            checked,
            format: OutputFormat::Json,
            purpose: Some(format!("check the rule pack {}", pack.name())),
            timeout: Timeout::from_millis(Timeout::DEFAULT_MS)?,
        },
    )
    .await;
    app.stop(Duration::from_secs(2)).await;
    result
}

async fn run(
    app: &App,
    (key, requester): (ContextKey, Requester),
    request: AnalysisRequest,
) -> anyhow::Result<()> {
    let started = app.execution.service(Duration::from_secs(30)).await;
    let service = started.map_err(|error| anyhow::anyhow!("{error}. {}", error.advice()))?;
    let call = Call::on(key, requester);
    let (news, _) = mpsc::channel(1);
    let analysed = service.runs.run_analysis(call, request, news, CancellationToken::new()).await;
    let analysed = analysed.map_err(|error| {
        let cause = crate::telemetry::chain(&error);
        anyhow::anyhow!("{cause}. {}", error.advice())
    })?;
    analysed.report?;
    Ok(())
}
