//! `doctor`: runs a real test of each thing that a deployment needs, and says how to fix what fails.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{load, table};
use crate::app::App;
use crate::config::{Config, Provider, Sources};
use crate::domain::{
    Code, CodeRequest, ContextKey, ConversationId, Entropy, Inputs, Language, Owner, Timeout,
};
use crate::execution::{Call, Requester};
use crate::store::StoreError;
use crate::telemetry::chain;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    ok: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn new(name: &str, result: Result<String, (String, String)>) -> Self {
        let name = name.to_owned();
        match result {
            Ok(detail) => Self { name, ok: true, detail, remedy: None },
            Err((detail, remedy)) => Self { name, ok: false, detail, remedy: Some(remedy) },
        }
    }
}

pub(super) async fn doctor(args: DoctorArgs, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, _) = load(&sources)?;
    let checks = examine(config).await;
    let healthy = checks.iter().all(|check| check.ok);
    if args.json {
        say!("{}", serde_json::to_string_pretty(&checks)?);
    } else {
        let rows: Vec<[String; 3]> = checks
            .iter()
            .map(|check| {
                let verdict = if check.ok { "ok" } else { "FAILS" };
                let remedy = check.remedy.as_deref().map(|text| format!(" -> {text}")).unwrap_or_default();
                [check.name.clone(), verdict.to_owned(), format!("{}{remedy}", check.detail)]
            })
            .collect();
        table(&["check", "result", "detail"], &rows);
    }
    Ok(ExitCode::from(u8::from(!healthy)))
}

async fn examine(config: Config) -> Vec<Check> {
    let dir = &config.data_dir;
    let mut checks = vec![Check::new(
        "data directory",
        crate::app::data_dir(dir).map(|()| dir.display().to_string()).map_err(|error| {
            (chain(error.as_ref()), "choose a directory that this user can write, with --data-dir".into())
        }),
    )];
    if matches!(config.provider, Provider::Local) {
        checks.extend(machine(&config).await);
        checks.extend(packages(&config).await);
    }
    checks.extend(collector(&config).await);
    checks.extend(tool_servers(&config).await);
    let store = database(&config).await;
    let serves = store.ok;
    checks.push(store);
    let app = match App::start(config) {
        Ok(app) => app,
        Err(error) => {
            let advice = "correct the guard policy, or the setting that the message names";
            checks.push(Check::new("settings", Err((chain(error.as_ref()), advice.into()))));
            return checks;
        }
    };
    // What the database lacks has been said.
    let patience = if serves { Duration::from_secs(15) } else { Duration::ZERO };
    match app.execution.service(patience).await {
        Ok(service) => serving(&service, &mut checks).await,
        Err(error) if serves => checks.push(Check::new("start", Err((error.to_string(), error.advice())))),
        Err(_) => {}
    }
    app.stop(Duration::from_secs(3)).await;
    checks
}

/// The provider, the checks of the readiness probe, and a run.
async fn serving(service: &crate::execution::Execution, checks: &mut Vec<Check>) {
    let remedy = || "see the failed checks above, or set E2B_API_KEY".to_owned();
    let lacks = service.health.provider_problem();
    checks.push(Check::new(
        "sandbox provider",
        match lacks {
            None => provider_answers(&service.health).await,
            Some(why) => Err((why.to_owned(), remedy())),
        },
    ));
    for found in service.health.checks().await {
        let said = checks.iter().any(|check| check.name == found.name);
        if !said && found.name != "provider" {
            let (name, detail) = (found.name.to_owned(), found.state.to_owned());
            let remedy = match found.name {
                "outputs" => "set `objects.url` to a bucket that all replicas reach".to_owned(),
                _ => remedy(),
            };
            checks.push(Check { name, ok: found.ok, detail, remedy: Some(remedy).filter(|_| !found.ok) });
        }
    }
    if lacks.is_none() {
        checks.push(first_run(service).await);
    }
}

/// The telemetry collector, if one is set.
async fn collector(config: &Config) -> Option<Check> {
    let export = config.telemetry.export.as_ref()?;
    let answered = crate::telemetry::export::probe(export).await;
    let found = answered
        .map(|after| {
            let urls: Vec<&str> = export.targets().map(|target| target.url.as_str()).collect();
            format!("{} answers, in {} ms", urls.join(" and "), after.as_millis())
        })
        .map_err(|why| {
            (why, "check OTEL_EXPORTER_OTLP_ENDPOINT and the collector; calls do not need it".into())
        });
    Some(Check::new("collector", found))
}

/// The servers whose tools programs may call.
async fn tool_servers(config: &Config) -> Vec<Check> {
    let ended = tokio_util::sync::CancellationToken::new();
    let bridge = crate::bridge::Bridge::new(config.bridge.clone(), None, ended);
    let mut checks = Vec::new();
    if bridge.is_empty() {
        return checks;
    }
    let catalog = bridge.catalog(&config.tenant).await;
    for name in bridge.names() {
        let tools = catalog.tools.iter().filter(|tool| tool.server == name).count();
        let problem = catalog.problems.iter().find(|problem| problem.fatal && problem.server == name);
        let result = match problem {
            None if bridge.server(&config.tenant, name).is_none() => continue,
            None => Ok(format!("answers, {tools} tools")),
            Some(problem) => Err((
                problem.problem.clone(),
                format!("correct `[[tools.server]]` {name:?}; programs cannot call its tools meanwhile"),
            )),
        };
        checks.push(Check::new(&format!("tool server {name}"), result));
    }
    bridge.close().await;
    checks
}

/// The database as a run needs it: reached, migrated, taking writes.
async fn database(config: &Config) -> Check {
    let entropy = Entropy::system();
    let asked = async {
        let keyring = crate::app::keyring(config, &entropy)?;
        let store = crate::app::open_store(config, keyring).await?;
        store.examine().await?;
        anyhow::Ok(format!("{} answers and takes writes, migrations are applied", store.kind()))
    };
    let remedy = |error: &anyhow::Error| match error.downcast_ref::<StoreError>() {
        Some(error) => error.remedy(),
        None => "correct the setting that the message names",
    };
    let found = asked.await.map_err(|error| (chain(error.as_ref()), remedy(&error).to_owned()));
    Check::new("database", found)
}

/// The primitives of isolation, each tried in a process of its own.
#[cfg(target_os = "linux")]
async fn machine(config: &Config) -> Vec<Check> {
    let found = crate::host::jail::probe(&config.host.options(crate::app::templates_dir(config)).jail)
        .await
        .map_err(|error| chain(&error));
    match found {
        Ok(found) => found
            .into_iter()
            .map(|check| Check {
                name: check.what,
                ok: check.works || !check.needed,
                detail: check.seen,
                remedy: Some(check.remedy).filter(|text| !text.is_empty()),
            })
            .collect(),
        Err(why) => vec![Check::new("isolation", Err((why, "the checks could not be run".into())))],
    }
}

/// The packages that a model can import, in each environment that sandboxes are made from.
#[cfg(target_os = "linux")]
async fn packages(config: &Config) -> Vec<Check> {
    use crate::host::templates::{Templates, known_packages};
    let own = config.host.python.clone().unwrap_or_else(|| "python3".into());
    let templates = Templates::new(crate::app::templates_dir(config)).list();
    let made = templates
        .into_iter()
        .filter_map(|template| Some((format!("packages of template {}", template.name), template.python?)));
    let mut checks = Vec::new();
    for (name, python) in [("packages".to_owned(), own)].into_iter().chain(made) {
        let found = known_packages(&python).await;
        checks.push(Check::new(
            &name,
            found
                .map(|found| match found.is_empty() {
                    true => "no common data packages; `pathbox templates add data-science --pip pandas,matplotlib` makes an environment with them"
                        .to_owned(),
                    false => found.join(", "),
                })
                .map_err(|error| {
                    (format!("{} does not start: {error}", python.display()), "install python3, or set host.python".into())
                }),
        ));
    }
    checks
}

#[cfg(not(target_os = "linux"))]
async fn packages(_: &Config) -> Vec<Check> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
async fn machine(_: &Config) -> Vec<Check> {
    let (why, remedy) = crate::config::host::NEEDS_LINUX.split_once(": ").unwrap_or_default();
    vec![Check::new("isolation", Err((why.to_owned(), remedy.to_owned())))]
}

/// One small request to the provider, with the key.
async fn provider_answers(health: &crate::execution::Health) -> Result<String, (String, String)> {
    match health.ask_provider().await {
        Ok(after) => Ok(format!("answers, in {} ms", after.as_millis())),
        Err(crate::execution::ExecutionError::Sandbox(error)) => {
            Err((chain(&error), error.advice().to_owned()))
        }
        Err(error) => Err((error.to_string(), error.advice())),
    }
}

/// `1+1`, through everything.
async fn first_run(service: &crate::execution::Execution) -> Check {
    let run = async {
        let key = ContextKey {
            tenant: "doctor".parse().map_err(|_| "bad tenant")?,
            owner: Owner::principal("doctor"),
            conversation: ConversationId::parse(format!("doctor-{}", Entropy::system().hex::<6>()))
                .map_err(|_| "bad conversation")?,
            path: crate::domain::PathId::main(),
        };
        let request = CodeRequest {
            language: Language::Python,
            code: Code::parse("1+1").map_err(|_| "bad code")?,
            purpose: Some("doctor".into()),
            timeout: Timeout::default(),
            inputs: Inputs::default(),
        };
        let requester = Requester {
            tenant: key.tenant.clone(),
            owner: key.owner.clone(),
            principal: "doctor".into(),
            sees_tenant: false,
        };
        let call = Call::on(key.clone(), requester);
        let (news, _) = tokio::sync::mpsc::channel(1);
        let finished = service
            .runs
            .run_code(call, request, news, tokio_util::sync::CancellationToken::new())
            .await
            .map_err(|error| format!("{}. {}", chain(&error), error.advice()))?;
        service.contexts.end(&key).await.map_err(|error| error.to_string())?;
        let text = finished.outcome.results.first().and_then(|result| result.text().map(str::to_owned));
        match text.as_deref() {
            Some("2") => Ok(format!("1+1 is 2, in {} ms", finished.outcome.duration.as_millis())),
            other => Err(format!("1+1 came back as {other:?}")),
        }
    };
    Check::new("first run", run.await.map_err(|why: String| (why, "see the failed checks above".into())))
}
