//! `guard`: try a policy on a file, and list the rules. Nothing is stored and no server is needed.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Identity, load};
use crate::config::Sources;
use crate::domain::{ContextKey, Entropy, Owner, TenantId};
use crate::guard::{
    Action, Checked, Checker, FileKind, Format, Guard, Kind, Known, PolicyFile, excuses, excuses_table,
    rules, rules_table,
};
use crate::store::{NewReveal, RevealRow, Secret};

#[derive(Debug, Subcommand)]
pub(super) enum GuardCommand {
    /// Show what would be replaced in a file, where, and why; the values themselves are not shown.
    Check {
        /// The file; `-` for standard input.
        file: PathBuf,
        #[command(flatten)]
        policy: PolicyArgs,
        /// Print the guarded text instead.
        #[arg(long, conflicts_with = "json")]
        text: bool,
        /// Also show each candidate, its evidence, and the excuse that let it pass.
        #[arg(long, conflicts_with = "text")]
        explain: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Open a sealed token; needs the installation's key. Each attempt is recorded.
    Reveal {
        /// The token, as shown in an output; `-` reads it from standard input.
        token: String,
        #[command(flatten)]
        identity: Identity,
    },
    /// List who opened, or tried to open, a sealed token, newest first.
    Reveals {
        /// Only this tenant's; every tenant's when not set.
        #[arg(long, value_name = "ID")]
        tenant: Option<TenantId>,
        /// Maximum number of rows.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Test a policy on cases: texts with the expected findings and the expected output.
    Test {
        /// The policy file (TOML).
        policy: PathBuf,
        /// The cases, one JSON object per line: `{"text": "to alice@example.com", "finds": ["EMAIL"], "becomes": "to [EMAIL_1]"}`,
        /// with `finds`, `becomes` or both, and optionally a `name`; `-` for standard input.
        cases: PathBuf,
        /// Apply the policy level of this tenant.
        #[arg(long, value_name = "TENANT")]
        policy_tenant: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the rules and the policy's action for each.
    Rules {
        #[command(flatten)]
        policy: PolicyArgs,
        /// List the excuses instead: the conditions that let a candidate pass.
        #[arg(long)]
        excuses: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct PolicyArgs {
    /// A policy file (TOML) instead of the built-in policy.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Apply the policy level of this tenant.
    #[arg(long, value_name = "TENANT")]
    policy_tenant: Option<String>,
}

impl PolicyArgs {
    fn guard(&self, sources: &Sources) -> anyhow::Result<Guard> {
        let file = match &self.policy {
            None => PolicyFile::default(),
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                PolicyFile::read(&text).with_context(|| format!("{} is not a policy", path.display()))?
            }
        };
        let secrets = crate::app::named(&file, |name| sources.environment.get(name).map(Secret::new))?;
        let known = Known::new(secrets.iter().map(Secret::expose));
        Ok(Guard::knowing(file.resolve(self.policy_tenant.as_deref(), None, None), &known)?)
    }
}

/// How much of a file is read at once.
const PIECE: usize = 256 * 1024;

/// Output options of a check.
struct Show {
    text: bool,
    explain: bool,
    json: bool,
}

/// Checks a file of any size. It is read as text: a byte that is not UTF-8 counts as one `?`.
fn check(file: &Path, guard: &Guard, show: Show) -> anyhow::Result<ExitCode> {
    let Show { text: show_text, explain, json: as_json } = show;
    let reading = || match file.as_os_str() == "-" {
        true => "reading standard input".to_owned(),
        false => format!("reading {}", file.display()),
    };
    let mut input: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(std::fs::File::open(file).with_context(reading)?),
    };
    // What has been printed cannot be withheld any more.
    let may_block = Kind::ALL.iter().any(|kind| guard.policy().action(*kind) == Action::Block);
    let checker = if explain { Checker::explaining } else { Checker::new };
    let (mut checker, mut held) = (checker(guard), String::new());
    let mut show = |text: &str| match (show_text, may_block) {
        (true, true) => held.push_str(text),
        (true, false) => super::write_out(text),
        (false, _) => {}
    };
    let (mut piece, mut have, mut binary, mut kind) = (vec![0; PIECE], 0, false, None);
    loop {
        let more = input.read(&mut piece[have..]).with_context(reading)?;
        // What a file is, it is by how it begins.
        kind.get_or_insert_with(|| FileKind::of(&piece[..have + more]));
        let (text, rest) = as_text(&piece[..have + more], more == 0);
        binary |= matches!(text, Cow::Owned(_)) || text.contains('\0');
        show(&checker.push(&text));
        drop(text);
        if more == 0 {
            break;
        }
        let end = have + more;
        piece.copy_within(end - rest..end, 0);
        have = rest;
    }
    let checked = checker.finish();
    show(&checked.text);
    if show_text {
        super::write_out(if checked.report.blocked { "" } else { &held });
    } else {
        report(&checked, kind, binary, explain, as_json)?;
    }
    Ok(if checked.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Prints what was found: as JSON, or as a table.
fn report(
    checked: &Checked,
    kind: Option<FileKind>,
    binary: bool,
    explain: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    if as_json {
        let mut report = json!({ "findings": checked.findings, "leftOut": checked.left_out, "binary": binary,
            "report": checked.report });
        if explain {
            report["candidates"] = serde_json::to_value(&checked.candidates)?;
        }
        say!("{}", serde_json::to_string_pretty(&super::shape::shape(&report)?)?);
        return Ok(());
    }
    super::write_out(match kind {
        Some(FileKind::Form(Format::Png | Format::Jpeg)) => {
            "an image: as a file of a sandbox it would leave without its metadata, unless it is damaged\n"
        }
        Some(FileKind::Form(Format::Pdf)) => {
            "a PDF: as a file of a sandbox it would be passed whole or withheld; its streams are not scanned here\n"
        }
        _ if binary => "not UTF-8 text: as a file of a sandbox it would be withheld\n",
        _ => "",
    });
    super::write_out(&checked.table());
    if explain {
        super::write_out(&format!("\n{}", checked.explanation()));
    }
    Ok(())
}

/// A text, and what the policy has to do with it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: Option<String>,
    text: String,
    /// The kinds of all findings that are not let through, in order.
    finds: Option<Vec<Kind>>,
    /// The expected output.
    becomes: Option<String>,
}

/// A failed case.
#[derive(Debug, Serialize)]
struct Failed {
    line: usize,
    name: Option<String>,
    finds: Vec<Kind>,
    becomes: String,
}

impl Case {
    /// The actual output, if it differs.
    fn fails(self, line: usize, guard: &Guard) -> Option<Failed> {
        let mut checker = Checker::new(guard);
        let begun = checker.push(&self.text);
        let checked = checker.finish();
        let becomes =
            if checked.report.blocked { String::new() } else { format!("{}{}", *begun, *checked.text) };
        let found = checked.findings.iter().filter(|found| found.action != Action::Allow);
        let finds: Vec<Kind> = found.map(|found| found.kind).collect();
        let passes = self.finds.is_none_or(|wanted| wanted == finds)
            && self.becomes.is_none_or(|wanted| wanted == becomes);
        (!passes).then_some(Failed { line, name: self.name, finds, becomes })
    }
}

/// Tries each case; exit code 1 if one failed.
fn test(cases: &Path, guard: &Guard, as_json: bool) -> anyhow::Result<ExitCode> {
    let text = match cases.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()).context("reading standard input")?,
        false => std::fs::read_to_string(cases).with_context(|| format!("reading {}", cases.display()))?,
    };
    let (mut count, mut failed) = (0, Vec::new());
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let case: Case =
            serde_json::from_str(line).with_context(|| format!("line {} is not a case", at + 1))?;
        if case.finds.is_none() && case.becomes.is_none() {
            bail!("line {} says neither what it `finds` nor what it `becomes`", at + 1);
        }
        count += 1;
        failed.extend(case.fails(at + 1, guard));
    }
    if as_json {
        let report = json!({ "cases": count, "failed": failed });
        say!("{}", serde_json::to_string_pretty(&super::shape::shape(&report)?)?);
    } else {
        for Failed { line, name, finds, becomes } in &failed {
            let name = name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
            let finds: Vec<&str> = finds.iter().map(|kind| kind.as_str()).collect();
            say!("line {line}{name}: finds [{}], becomes {becomes:?}", finds.join(", "));
        }
        say!("{} of {count} cases pass", count - failed.len());
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Bytes as text, with `?` for each byte that is not UTF-8, so that positions stay correct; and how many bytes at the end
/// are an incomplete character.
fn as_text(bytes: &[u8], last: bool) -> (Cow<'_, str>, usize) {
    let mut rest = bytes;
    let mut mended = String::new();
    loop {
        let error = match std::str::from_utf8(rest) {
            Ok(text) if mended.is_empty() => return (Cow::Borrowed(text), 0),
            Ok(text) => return (Cow::Owned(mended + text), 0),
            Err(error) => error,
        };
        let (good, bad) = rest.split_at(error.valid_up_to());
        let good = std::str::from_utf8(good).unwrap_or_default();
        match error.error_len() {
            None if !last && mended.is_empty() => return (Cow::Borrowed(good), bad.len()),
            None if !last => return (Cow::Owned(mended + good), bad.len()),
            None => return (Cow::Owned(mended + good + &"?".repeat(bad.len())), 0),
            Some(len) => {
                mended.push_str(good);
                mended.push_str(&"?".repeat(len));
                rest = &bad[len..];
            }
        }
    }
}

/// Runs the command. Exit code 1 says that `check` found something, or that a case of `test` failed.
pub(super) async fn guard(command: GuardCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    match command {
        GuardCommand::Reveal { token, identity } => reveal(token, identity, sources).await,
        GuardCommand::Reveals { tenant, limit, json } => reveals(tenant, limit, json, &sources).await,
        GuardCommand::Check { file, policy, text, explain, json } => {
            check(&file, &policy.guard(&sources)?, Show { text, explain, json })
        }
        GuardCommand::Test { policy, cases, policy_tenant, json } => {
            let policy = PolicyArgs { policy: Some(policy), policy_tenant };
            test(&cases, &policy.guard(&sources)?, json)
        }
        GuardCommand::Rules { policy, excuses: listed, json } => {
            let guard = policy.guard(&sources)?;
            if listed && json {
                say!("{}", serde_json::to_string_pretty(&super::shape::shape(&excuses())?)?);
            } else if listed {
                super::write_out(&excuses_table());
            } else if json {
                let all = (rules().iter().map(serde_json::to_value))
                    .chain(guard.policy().rules.iter().map(serde_json::to_value));
                let all = all.collect::<Result<Vec<_>, _>>()?;
                say!("{}", serde_json::to_string_pretty(&super::shape::shape(&all)?)?);
            } else {
                super::write_out(&rules_table(&guard));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn reveal(token: String, identity: Identity, mut sources: Sources) -> anyhow::Result<ExitCode> {
    identity.into_flags(&mut sources.flags);
    let (config, _) = load(&sources)?;
    let entropy = Entropy::system();
    let keyring = crate::app::keyring(&config, &entropy)?;
    let Some(tokens) = crate::app::token_key(&config, &keyring) else {
        bail!("there is no key for tokens of this database: set PATHBOX_SECRET_KEYS to the servers' value");
    };
    let Some(conversation) = config.conversation.clone() else {
        bail!("--conversation is missing: a token opens only in the context that it came from");
    };
    let key = ContextKey {
        tenant: config.tenant.clone(),
        owner: Owner::tenant(),
        conversation,
        path: config.path.clone(),
    };
    let store = crate::app::open_store(&config, keyring).await?;
    let token = match token.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).context("reading standard input")?,
        _ => token,
    };
    let revealed = tokens.reveal(&store, &key, "cli", token.trim(), &entropy).await;
    let revealed = revealed.map_err(|error| anyhow::anyhow!("{error}. {}", error.advice()))?;
    super::write_out(&format!("{}\n", *revealed.value));
    Ok(ExitCode::SUCCESS)
}

async fn reveals(
    tenant: Option<TenantId>,
    limit: u32,
    as_json: bool,
    sources: &Sources,
) -> anyhow::Result<ExitCode> {
    let (config, _) = load(sources)?;
    let keyring = crate::app::keyring(&config, &Entropy::system())?;
    let rows = crate::app::open_store(&config, keyring).await?.reveals(tenant.as_ref(), limit).await?;
    if as_json {
        let view = |row: &RevealRow| {
            let NewReveal { key, kind, principal, opened, .. } = &row.reveal;
            json!({ "at": row.at, "principal": principal, "tenant": key.tenant, "conversation": key.conversation,
                "path": key.path, "opened": opened, "kind": kind })
        };
        say!("{}", serde_json::to_string_pretty(&rows.iter().map(view).collect::<Vec<_>>())?);
        return Ok(ExitCode::SUCCESS);
    }
    let line = |RevealRow { reveal, at }: &RevealRow| {
        let NewReveal { key, kind, principal, .. } = reveal;
        [
            at.format("%Y-%m-%d %H:%M:%S").to_string(),
            principal.clone(),
            key.tenant.to_string(),
            key.conversation.to_string(),
            key.path.to_string(),
            kind.clone().unwrap_or_else(|| "refused".to_owned()),
        ]
    };
    let headings = ["when", "who", "tenant", "conversation", "path", "kind"];
    super::table(&headings, &rows.iter().map(line).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_text_of_the_same_length_and_a_cut_character_waits() {
        for (bytes, last, text, waits) in [
            (&b"plain"[..], false, "plain", 0),
            ("caf\u{e9}".as_bytes(), false, "caf\u{e9}", 0),
            (b"caf\xc3", false, "caf", 1),
            (b"caf\xc3", true, "caf?", 0),
            (b"\xffa\xf0\x9f\x98b\xe2\x82", false, "?a???b", 2),
            (b"", true, "", 0),
        ] {
            assert_eq!(as_text(bytes, last), (Cow::Borrowed(text), waits), "{bytes:?}");
        }
    }
}
