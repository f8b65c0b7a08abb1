//! A `pathbox host` in a container, for machines that have no local sandbox host: started, found again, ended.
//!
//! All differences between the runtimes are here. Docker's filter withholds namespaces from programs that may
//! not administer the machine, so that there the weaker Landlock tier is used; Apple's runtime gives each container a
//! virtual machine of its own, and has no filter to loosen.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::Command;
use tokio::time::Instant;

use crate::config::container::ContainerHost;
use crate::domain::{Entropy, Secret};

/// How long a container may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);
/// The name of the image that `scripts/package --only image` makes.
pub const IMAGE: &str = "localhost/pathbox:latest";
/// Runtimes in the order in which they are looked for.
const RUNTIMES: [&str; 3] = ["podman", "docker", "container"];

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The runtime; the first that is there when left out.
    pub runtime: Option<PathBuf>,
    /// An image's name, or the archive of one.
    pub image: String,
    /// The container's name.
    pub name: String,
    /// The port on this machine's loopback address.
    pub port: u16,
    /// More options for the runtime's `run`.
    pub options: Vec<String>,
}

/// Starts the host, or finds the one that runs. `true`: it was made now.
///
/// # Errors
/// When no runtime is there, the container cannot be made, or does not answer.
pub async fn up(
    data_dir: &Path,
    wanted: &Wanted,
    entropy: &Entropy,
) -> anyhow::Result<(ContainerHost, bool)> {
    if let Some(host) = ContainerHost::read(data_dir)?
        && ensure(&host).await.is_ok()
    {
        return Ok((host, false));
    }
    let runtime = match &wanted.runtime {
        Some(runtime) => runtime.clone(),
        None => found().await?,
    };
    let image = image(&runtime, &wanted.image).await?;
    let host = ContainerHost {
        runtime,
        name: wanted.name.clone(),
        url: format!("http://127.0.0.1:{}", wanted.port),
        key: Secret::new(format!("e2b_{}", entropy.hex::<20>())),
    };
    remember(data_dir, &host)?;
    let made = async {
        output(run(&host, &image, wanted)).await.context(
            "the container was not made; with `--image` give the image of this release (pathbox-VERSION-ARCH.oci.tar), and \
             with `--name` another name where that is taken",
        )?;
        answers(&host, PATIENCE).await
    };
    if let Err(error) = made.await {
        let _ = std::fs::remove_file(ContainerHost::file(data_dir));
        let log = output(Command::new(&host.runtime).args(["logs", &host.name])).await.unwrap_or_default();
        let _ = output(removal(&host)).await;
        return Err(
            error.context(format!("the container does not run a sandbox host. Its log: {:?}", log.trim()))
        );
    }
    Ok((host, true))
}

/// Ends the host and forgets it. `None`: there was none.
///
/// # Errors
/// When the runtime refuses.
pub async fn down(data_dir: &Path) -> anyhow::Result<Option<ContainerHost>> {
    let Some(host) = ContainerHost::read(data_dir)? else { return Ok(None) };
    // podman and docker are content when the container is gone already; Apple's runtime is not.
    if let Err(error) = output(removal(&host)).await
        && !format!("{error:#}").contains("notFound")
    {
        return Err(error);
    }
    std::fs::remove_file(ContainerHost::file(data_dir))?;
    Ok(Some(host))
}

/// Makes sure that the host answers: one that was stopped, or whose machine was restarted, is started again.
///
/// # Errors
/// When it does not come up.
pub async fn ensure(host: &ContainerHost) -> anyhow::Result<()> {
    if answers(host, Duration::ZERO).await.is_ok() {
        return Ok(());
    }
    tracing::info!(container = host.name, "the sandbox host in a container does not answer and is started");
    output(Command::new(&host.runtime).args(["start", &host.name])).await.context(
        "the sandbox host in a container cannot be started; `pathbox container up` creates it again",
    )?;
    answers(host, PATIENCE).await
}

/// The first runtime that answers.
async fn found() -> anyhow::Result<PathBuf> {
    for runtime in RUNTIMES {
        if output(Command::new(runtime).arg("--version")).await.is_ok() {
            return Ok(runtime.into());
        }
    }
    bail!("none of {} is installed; install one, or name another with --runtime", RUNTIMES.join(", "))
}

/// What a runtime is, by its name.
fn kind(runtime: &Path) -> &str {
    runtime.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The image's name. An archive is loaded first.
async fn image(runtime: &Path, image: &str) -> anyhow::Result<String> {
    if !Path::new(image).is_file() {
        return Ok(image.to_owned());
    }
    let mut load = Command::new(runtime);
    if kind(runtime) == "container" {
        load.arg("image");
    }
    output(load.args(["load", "--input", image])).await.context("the image was not loaded")?;
    Ok(IMAGE.to_owned())
}

/// The command that makes the container. The key goes through the environment, where no list of processes shows it.
fn run(host: &ContainerHost, image: &str, wanted: &Wanted) -> Command {
    let mut run = Command::new(&host.runtime);
    let port = wanted.port;
    run.env("E2B_API_KEY", host.key.expose());
    run.args([
        "run",
        "-d",
        "--name",
        &host.name,
        "-p",
        &format!("127.0.0.1:{port}:{port}"),
        "-e",
        "E2B_API_KEY",
    ]);
    match kind(&host.runtime) {
        "docker" => drop(run.args(["--restart=unless-stopped", "-e", "PATHBOX_HOST_ISOLATION=landlock"])),
        "container" => {}
        _ => drop(run.args(["--restart=unless-stopped", "--security-opt", "unmask=ALL"])),
    }
    if image == IMAGE && kind(&host.runtime) != "container" {
        run.arg("--pull=never");
    }
    run.args(&wanted.options).arg(image);
    run.args(["host", "--listen", &format!("0.0.0.0:{port}"), "--allow-remote"]);
    run
}

fn removal(host: &ContainerHost) -> Command {
    let mut rm = Command::new(&host.runtime);
    rm.args(["rm", "-f", &host.name]);
    rm
}

/// Writes down what was started, for its owner alone.
fn remember(data_dir: &Path, host: &ContainerHost) -> anyhow::Result<()> {
    super::data_dir(data_dir)?;
    let mut file = tempfile_in(data_dir)?;
    std::io::Write::write_all(&mut file.1, serde_json::to_string_pretty(host)?.as_bytes())?;
    std::fs::rename(&file.0, ContainerHost::file(data_dir))?;
    Ok(())
}

/// A new file that only its owner reads.
fn tempfile_in(dir: &Path) -> std::io::Result<(PathBuf, std::fs::File)> {
    let path = dir.join("container.json.new");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path)?;
    Ok((path, file))
}

/// What a command printed.
async fn output(mut command: impl std::borrow::BorrowMut<Command>) -> anyhow::Result<String> {
    let command = command.borrow_mut();
    let done = command.stdin(std::process::Stdio::null()).output().await?;
    let [out, err] = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match done.status.success() {
        true => Ok(out + &err),
        false => bail!("{} said: {}", command.as_std().get_program().to_string_lossy(), err.trim()),
    }
}

/// Waits until the host takes its key.
async fn answers(host: &ContainerHost, patience: Duration) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?;
    let until = Instant::now() + patience;
    loop {
        let asked = client.get(format!("{}/v2/sandboxes", host.url)).header("X-API-Key", host.key.expose());
        let problem = match asked.send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) if answer.status().is_client_error() => {
                bail!("something else listens on {} ({}); give another --port", host.url, answer.status())
            }
            Ok(answer) => answer.status().to_string(),
            Err(error) => crate::telemetry::chain(&error),
        };
        if Instant::now() >= until {
            bail!("{} does not answer: {problem}", host.url);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
