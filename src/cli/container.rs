//! `container`: a sandbox host in a container, for machines without a local one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::load;
use crate::app::container::{self, IMAGE, Wanted};
use crate::config::Sources;
use crate::config::container::ContainerHost;
use crate::domain::Entropy;

#[derive(Debug, Subcommand)]
pub(super) enum ContainerCommand {
    /// Start a sandbox host in a container. `serve`, `run` and `demo` use it from then on.
    #[command(after_help = "Examples:
  pathbox container up --image pathbox-0.1.0-arm64.oci.tar
  pathbox container up --runtime docker --port 3901
  pathbox container up -- --memory 8g          options for the runtime's `run`")]
    Up {
        /// podman, docker or container (Apple's), or its path; the first one installed when not set.
        #[arg(long, value_name = "PROGRAM")]
        runtime: Option<PathBuf>,
        /// The name of an image, or an image archive (`pathbox-VERSION-ARCH.oci.tar` of a release).
        #[arg(long, default_value = IMAGE, value_name = "NAME|FILE")]
        image: String,
        /// The container's name.
        #[arg(long, default_value = "pathbox-host")]
        name: String,
        /// The port on 127.0.0.1.
        #[arg(long, default_value_t = 3900, value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        /// As JSON.
        #[arg(long)]
        json: bool,
        /// More options for the runtime's `run`.
        #[arg(last = true)]
        options: Vec<String>,
    },
    /// End the host and its sandboxes, and delete its entry.
    Down {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn container(command: ContainerCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, _) = load(&sources)?;
    let data_dir = &config.data_dir;
    match command {
        ContainerCommand::Up { runtime, image, name, port, json, options } => {
            let wanted = Wanted { runtime, image, name, port, options };
            let (host, is_new) = container::up(data_dir, &wanted, &Entropy::system()).await?;
            let state = if is_new { "started" } else { "running" };
            if json {
                say!("{}", describe(&host, state));
            } else {
                say!("{state}: {} in {}, at {}", host.name, host.runtime.display(), host.url);
                say!(
                    "`pathbox serve`, `run` and `demo` use it, unless E2B_API_KEY is set; `pathbox container down` ends it"
                );
            }
        }
        ContainerCommand::Down { json } => match (container::down(data_dir).await?, json) {
            (Some(host), true) => say!("{}", describe(&host, "ended")),
            (Some(host), false) => say!("ended: {}", host.name),
            (None, true) => say!("{}", json!({"state": "none"})),
            (None, false) => say!("there is none; `pathbox container up` starts one"),
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// What is shown of a host. Never its key.
fn describe(host: &ContainerHost, state: &str) -> serde_json::Value {
    json!({"name": host.name, "runtime": host.runtime, "url": host.url, "state": state})
}
