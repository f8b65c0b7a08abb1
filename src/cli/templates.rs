//! `templates`: environments with packages that sandboxes of the local host are made from.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::shape::shape;
use super::{load, table};
use crate::config::Sources;
use crate::domain::Clock;
use crate::host::templates::{NewTemplate, Template, Templates};

#[derive(Debug, Subcommand)]
pub(super) enum TemplatesCommand {
    /// Make a template. pip and npm of this machine install the packages, with their own configuration.
    Add(AddArgs),
    /// List templates, with their size on disk and age.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one template and the packages that a model finds in it.
    Show {
        /// Its name.
        name: String,
        /// As JSON only.
        #[arg(long)]
        json: bool,
    },
    /// Remove a template. Sandboxes made from it may fail from then on.
    Rm {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    /// 1 to 64 of a-z 0-9 . _ -; the name for a tenant's `template` and E2B's `templateID`.
    name: String,
    /// Python packages, comma-separated, as pip accepts them.
    #[arg(long, value_name = "PACKAGES", value_delimiter = ',')]
    pip: Vec<String>,
    /// A requirements file for pip.
    #[arg(long, value_name = "FILE")]
    requirements: Option<PathBuf>,
    /// npm packages, comma-separated.
    #[arg(long, value_name = "PACKAGES", value_delimiter = ',')]
    npm: Vec<String>,
    /// The Python to make the environment with; without packages, the Python of an existing environment, or its directory.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Modules to import in sandboxes that wait in the pool, comma-separated.
    #[arg(long, value_name = "MODULES", value_delimiter = ',')]
    preload: Vec<String>,
}

pub(super) async fn templates(command: TemplatesCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, _) = load(&sources)?;
    crate::app::data_dir(&config.data_dir)?;
    let templates = Templates::new(crate::app::templates_dir(&config));
    match command {
        TemplatesCommand::Add(args) => {
            let new = NewTemplate {
                name: args.name,
                pip: args.pip,
                requirements: args.requirements,
                npm: args.npm,
                python: args.python.or_else(|| config.host.python.clone()),
                preload: args.preload,
            };
            let made = templates.add(new, &Clock::system()).await?;
            say!("{} made, {} MB", made.name, templates.disk_bytes(&made.name) >> 20);
            say!(
                "PATHBOX_E2B_TEMPLATE={name} uses it for every sandbox; with PATHBOX_E2B_TEMPLATES={name} a call may name it",
                name = made.name
            );
        }
        TemplatesCommand::Ls { json } => {
            let all = templates.list();
            if json {
                say!("{}", serde_json::to_string_pretty(&shape(&all)?)?);
            } else {
                let rows: Vec<[String; 4]> = all.iter().map(|template| row(&templates, template)).collect();
                table(&["template", "disk", "age", "packages"], &rows);
            }
        }
        TemplatesCommand::Show { name, json } => {
            let template = templates.load(&name)?;
            say!("{}", serde_json::to_string_pretty(&shape(&template)?)?);
            if json {
                return Ok(ExitCode::SUCCESS);
            }
            say!("disk: {} MB", templates.disk_bytes(&name) >> 20);
            say!("a model finds: {}", template.known.join(", "));
        }
        TemplatesCommand::Rm { name } => {
            templates.remove(&name)?;
            say!("{name} removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(templates: &Templates, template: &Template) -> [String; 4] {
    let age = Clock::system().now() - template.created;
    let age = match (age.num_days(), age.num_hours()) {
        (0, 0) => format!("{} min", age.num_minutes().max(0)),
        (0, hours) => format!("{hours} h"),
        (days, _) => format!("{days} d"),
    };
    let disk = format!("{} MB", templates.disk_bytes(&template.name) >> 20);
    let what = match (&template.packages[..], &template.python) {
        ([], Some(python)) => python.display().to_string(),
        (packages, _) => packages.join(", "),
    };
    [template.name.clone(), disk, age, what]
}
