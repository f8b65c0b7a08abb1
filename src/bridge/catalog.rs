//! The tools of one tenant: what may be called, under which names, with which arguments, and how it is found.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use jsonschema::{PatternOptions, Retrieve, Uri, ValidationOptions, Validator};
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::effort::{Undone, effort, has_named_parts};
use super::pins::{self, Change, Hashes, Pinned, Pins};
use super::search::{Entry, Hit, Index};
use super::types::{self, Parameter};
use super::upstream::Listing;
use super::{BridgeError, Server, names};
use crate::domain::{TenantId, hex};

/// The longest description that is kept.
const MAX_DESCRIPTION_CHARS: usize = 4_000;
/// The largest definition of one tool.
const MAX_TOOL_BYTES: usize = 256 << 10;
/// Complaints about one call's arguments.
const MAX_COMPLAINTS: usize = 5;
/// Steps of a check of which the complaints are collected: that takes many times as long as to know that there are any.
const MAX_EXPLAINED: u64 = 50_000;

/// A tool that may be called.
#[derive(Debug)]
pub struct Tool {
    /// Its server's name.
    pub server: String,
    /// Its server's name in a program.
    pub module: String,
    /// Its name, as its server has it.
    pub name: String,
    /// Its name in a program.
    pub identifier: String,
    /// What its server says about it, cut and without what a terminal would obey.
    pub description: String,
    /// The schema of its arguments.
    pub input: Value,
    /// The schema of its structured result.
    pub output: Option<Value>,
    /// Whether it says that it changes nothing. A hint: its server wrote it.
    pub read_only: bool,
    /// Whether a person is asked before it is called: the settings say so, or it says that it destroys.
    pub asks: bool,
    /// Its parameters, read from the schema.
    pub parameters: Vec<Parameter>,
    /// SHA-256 of its server's description of it, hex.
    pub definition: String,
    validator: OnceLock<Option<Validator>>,
}

/// Something that is not as it should be with a server, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Which server.
    pub server: String,
    /// What.
    pub problem: String,
    /// Whether none of its tools can be called.
    pub fatal: bool,
}

/// The tools of one tenant.
#[derive(Debug)]
pub struct Catalog {
    /// The tools, servers in the order of the settings.
    pub tools: Vec<Tool>,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// A hash of all of it: equal means that a program sees the same.
    pub version: String,
    index: Index,
    by_name: HashMap<String, usize>,
    changes: Vec<Change>,
    hashes: BTreeMap<String, Hashes>,
    key: Vec<(String, u64, String)>,
    /// Servers without tools now, by their names in a program, and where their problem is.
    down: Vec<(String, usize)>,
}

/// A server, its list, and what was accepted of it: `Ok(None)` when it was never listed.
pub(super) struct Listed<'a> {
    pub(super) server: &'a Server,
    /// Its name in a program.
    pub(super) module: &'a str,
    pub(super) listing: Result<Arc<Listing>, BridgeError>,
    pub(super) pinned: Result<Option<Pinned>, String>,
}

impl Listed<'_> {
    fn key(&self) -> (String, u64, String) {
        let (version, problem) = match &self.listing {
            Ok(listing) => (listing.version, String::new()),
            Err(error) => (0, problem_of(error)),
        };
        let digest = match &self.pinned {
            Ok(Some(pinned)) => pinned.digest.clone(),
            Ok(None) => String::new(),
            Err(_) => "unknown".to_owned(),
        };
        (self.server.name.clone(), version, digest + &problem)
    }
}

impl Catalog {
    /// Reads the lists. A server that was never listed is known from now on.
    pub(super) async fn of(listed: Vec<Listed<'_>>, tenant: &TenantId, pins: &Pins) -> Self {
        let mut catalog = Self {
            tools: Vec::new(),
            problems: Vec::new(),
            version: String::new(),
            index: Index::default(),
            by_name: HashMap::new(),
            changes: Vec::new(),
            hashes: BTreeMap::new(),
            key: Vec::new(),
            down: Vec::new(),
        };
        for mut listed in listed {
            let (server, module) = (listed.server, listed.module);
            match &listed.listing {
                Ok(listing) => {
                    let tools = catalog.read(server, module, listing);
                    let hashes = hashes_of(&tools);
                    if let Ok(None) = listed.pinned {
                        listed.pinned = pins.pin(server, tenant, &hashes, false).await.map(Some);
                    }
                    catalog.add(server, tools, hashes, &listed.pinned);
                }
                Err(error) => {
                    let (server, problem) = (server.name.clone(), problem_of(error));
                    catalog.down.push((module.to_owned(), catalog.problems.len()));
                    catalog.problems.push(Problem { server, problem, fatal: true });
                }
            }
            catalog.key.push(listed.key());
        }
        catalog.index = Index::of(catalog.tools.iter().map(|tool| Entry {
            server: &tool.server,
            name: &tool.name,
            description: &tool.description,
            parameters: tool.parameters.iter().map(|p| (p.name.as_str(), p.description.as_str())).collect(),
        }));
        for (at, tool) in catalog.tools.iter().enumerate() {
            // The true name decides where a made one is the same.
            catalog.by_name.entry(format!("{}.{}", tool.module, tool.identifier)).or_insert(at);
        }
        for (at, tool) in catalog.tools.iter().enumerate() {
            catalog.by_name.insert(tool.full_name(), at);
        }
        let mut digest = Sha256::new();
        for (server, tools) in &catalog.hashes {
            for (tool, hash) in tools {
                digest.update(format!("{server}\0{tool}\0{hash}\0"));
            }
        }
        for tool in &catalog.tools {
            digest.update(format!("{}\0{}\0", tool.module, tool.identifier));
        }
        catalog.version = hex(&digest.finalize()[..8]);
        catalog
    }

    fn warn(&mut self, server: &Server, problem: String) {
        self.problems.push(Problem { server: server.name.clone(), problem, fatal: false });
    }

    /// The tools of a list, as far as they are tools.
    fn read(&mut self, server: &Server, module: &str, listing: &Listing) -> Vec<Tool> {
        for warning in &listing.warnings {
            self.warn(server, warning.clone());
        }
        let mut tools: Vec<Tool> = Vec::new();
        let mut names = HashSet::new();
        for raw in &listing.tools {
            match Tool::read(server, module, raw) {
                Ok(tool) if !names.insert(tool.name.clone()) => {
                    self.warn(
                        server,
                        format!("the tool {:?} is listed twice; the first one is used", tool.name),
                    );
                }
                Ok(tool) => tools.push(tool),
                Err(problem) => self.warn(server, problem),
            }
        }
        tools
    }

    /// Takes up the tools that may be called.
    fn add(
        &mut self,
        server: &Server,
        mut tools: Vec<Tool>,
        hashes: Hashes,
        pinned: &Result<Option<Pinned>, String>,
    ) {
        let changes = match pinned {
            Ok(pinned) => pinned.as_ref().map_or_else(Vec::new, |pinned| pinned.compare(server, &hashes)),
            Err(why) if server.pinned => {
                self.problems.push(Problem {
                    server: server.name.clone(),
                    problem: format!("which of its tools were accepted cannot be read: {why}"),
                    fatal: true,
                });
                return;
            }
            Err(why) => {
                tracing::warn!(tool.server = %server.name, error = %why, "hashes of tool descriptions could not be kept");
                Vec::new()
            }
        };
        for change in &changes {
            let how = if change.blocked { ", and is blocked until `pathbox tools accept`" } else { "" };
            tracing::warn!(tool.server = %server.name, "the tool {:?} is {}{how}", change.tool, change.what);
        }
        let blocked: HashSet<&str> =
            changes.iter().filter(|change| change.blocked).map(|change| change.tool.as_str()).collect();
        tools.retain(|tool| server.allows(&tool.name) && !blocked.contains(tool.name.as_str()));
        let identifiers = names::identifiers(tools.iter().map(|tool| tool.name.as_str()), &[]);
        for (mut tool, identifier) in tools.into_iter().zip(identifiers) {
            tool.identifier = identifier;
            self.tools.push(tool);
        }
        if !blocked.is_empty() {
            let text = format!(
                "{} tools changed since they were accepted and cannot be called: look at `pathbox tools check`, then `pathbox tools accept {}`",
                blocked.len(),
                server.name
            );
            self.warn(server, text);
        }
        for (kind, patterns) in
            [("allow", &server.allow), ("deny", &server.deny), ("confirm", &server.confirm)]
        {
            for pattern in patterns {
                if !hashes.keys().any(|tool| pattern.matches(&server.name, tool)) {
                    self.warn(
                        server,
                        format!("the {kind} pattern {:?} matches none of its tools", pattern.as_str()),
                    );
                }
            }
        }
        self.changes.extend(changes);
        self.hashes.insert(server.name.clone(), hashes);
    }

    /// Whether it is of these very listings.
    pub(super) fn is_of(&self, listed: &[Listed<'_>]) -> bool {
        self.key.iter().eq(&listed.iter().map(Listed::key).collect::<Vec<_>>())
    }

    pub(super) fn changes(&self) -> &[Change] {
        &self.changes
    }

    pub(super) fn hashes(&self, server: &str) -> Hashes {
        self.hashes.get(server).cloned().unwrap_or_default()
    }

    /// A tool by `server.tool`: its true name, or its name in a program.
    pub fn find(&self, name: &str) -> Option<&Tool> {
        self.by_name.get(name).map(|at| &self.tools[*at])
    }

    /// Servers without tools now, each with its name in a program, and why.
    pub fn down_by_module(&self) -> impl Iterator<Item = (&str, &Problem)> {
        self.down.iter().map(|(module, at)| (module.as_str(), &self.problems[*at]))
    }

    /// Why a server, or the server of a tool, has no tools now.
    pub fn down(&self, name: &str) -> Option<&Problem> {
        let mut down = self.down_by_module();
        down.find(|(module, problem)| super::is_of(name, &problem.server, module)).map(|(_, problem)| problem)
    }

    /// The tools that fit a sentence best.
    pub fn search(&self, query: &str, limit: usize) -> Vec<&Tool> {
        self.index.search(query, limit).iter().map(|hit| &self.tools[hit.at]).collect()
    }

    /// The ranking itself, for who fuses it with another.
    pub fn ranking(&self, query: &str, limit: usize) -> Vec<Hit> {
        self.index.search(query, limit)
    }

    /// Names of servers, the name of each in a program, and how many tools it has.
    pub fn servers(&self) -> Vec<(&str, &str, usize)> {
        let mut out: Vec<(&str, &str, usize)> = Vec::new();
        for tool in &self.tools {
            match out.iter_mut().find(|(name, _, _)| *name == tool.server) {
                Some((_, _, count)) => *count += 1,
                None => out.push((&tool.server, &tool.module, 1)),
            }
        }
        out
    }
}

fn problem_of(error: &BridgeError) -> String {
    match error {
        BridgeError::Start { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

fn hashes_of(tools: &[Tool]) -> Hashes {
    tools.iter().map(|tool| (tool.name.clone(), tool.definition.clone())).collect()
}

impl Tool {
    /// Reads a tool from a list.
    fn read(server: &Server, module: &str, raw: &Map<String, Value>) -> Result<Self, String> {
        let name = match raw.get("name").and_then(Value::as_str) {
            Some(name) if !name.is_empty() && name.chars().count() <= 256 => name.to_owned(),
            Some(_) => {
                return Err(
                    "a tool whose name is empty or longer than 256 characters was left out".to_owned()
                );
            }
            None => return Err("a tool without a name was left out".to_owned()),
        };
        let shown: String = clean(&name, 80);
        if Value::Object(raw.clone()).to_string().len() > MAX_TOOL_BYTES {
            return Err(format!(
                "the tool {shown:?} was left out: its definition is larger than {MAX_TOOL_BYTES} bytes"
            ));
        }
        let null = Value::Null;
        let field = |key: &str| raw.get(key).unwrap_or(&null);
        let input = match field("inputSchema") {
            Value::Object(schema) => Value::Object(schema.clone()),
            Value::Bool(true) => Value::Object(Map::new()),
            _ => return Err(format!("the tool {shown:?} was left out: it has no input schema")),
        };
        let definition = pins::hash(&[
            field("name"),
            field("description"),
            field("inputSchema"),
            field("outputSchema"),
            field("annotations"),
        ]);
        let hint = |key: &str| field("annotations").get(key).and_then(Value::as_bool);
        let text = field("description").as_str().or(field("title").as_str()).unwrap_or_default();
        let tool = Self {
            server: server.name.clone(),
            module: module.to_owned(),
            identifier: String::new(),
            description: clean(text, MAX_DESCRIPTION_CHARS),
            output: field("outputSchema").as_object().cloned().map(Value::Object),
            read_only: hint("readOnlyHint") == Some(true),
            asks: server.confirms(&name) || hint("destructiveHint") == Some(true),
            parameters: types::parameters(&input),
            validator: OnceLock::new(),
            definition,
            name,
            input,
        };
        Ok(tool)
    }

    /// `server.tool`, by its true name.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.server, self.name)
    }

    /// What a program writes.
    pub fn callable(&self) -> String {
        format!("{}.{}", self.module, self.identifier)
    }

    /// Checks arguments against the schema. The message names the path of each that does not fit. A schema that cannot be
    /// used lets everything through: its server checks too.
    ///
    /// # Errors
    /// What does not fit, in a sentence; or that the check would take too long.
    pub fn check(&self, arguments: &Value) -> Result<(), String> {
        let Some(validator) = self.validator.get_or_init(|| validator(&self.input)) else { return Ok(()) };
        let steps = match effort(&self.input, arguments) {
            Ok(steps) => steps,
            Err(Undone::Unreadable) => return Ok(()),
            Err(Undone::TooMuch) => {
                let text = "the arguments are too large, or nested too deeply, to be checked against the tool's schema: pass less in one call";
                return Err(text.to_owned());
            }
        };
        if steps > MAX_EXPLAINED {
            let fits = validator.is_valid(arguments);
            return fits.then_some(()).ok_or_else(|| "the arguments do not fit the tool's schema".to_owned());
        }
        let complaints: Vec<String> = validator
            .iter_errors(arguments)
            .take(MAX_COMPLAINTS)
            .map(|error| {
                let path = error.instance_path().to_string();
                let text: String = error.to_string().chars().take(300).collect();
                if path.is_empty() { text } else { format!("{path}: {text}") }
            })
            .collect();
        if complaints.is_empty() { Ok(()) } else { Err(complaints.join("; ")) }
    }
}

/// References to elsewhere are not followed: what they would say is not checked.
struct Nothing;

impl Retrieve for Nothing {
    fn retrieve(&self, _uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Value::Bool(true))
    }
}

fn validator(schema: &Value) -> Option<Validator> {
    if has_named_parts(schema) {
        return None;
    }
    // Patterns come from strangers: the engine without backtracking takes no longer than the text is.
    let options = |linear: bool| -> ValidationOptions<'_, _> {
        let options = jsonschema::options().with_retriever(Nothing).should_validate_formats(false);
        if linear { options.with_pattern_options(PatternOptions::regex()) } else { options }
    };
    let mut schema = schema.clone();
    match options(true).build(&schema) {
        Ok(validator) => Some(validator),
        Err(_) => {
            without_patterns(&mut schema, 64);
            options(true).build(&schema).ok()
        }
    }
}

/// Takes out patterns, which not every engine can read.
fn without_patterns(schema: &mut Value, depth: usize) {
    match schema {
        _ if depth == 0 => {}
        Value::Object(members) => {
            if members.get("pattern").is_some_and(Value::is_string) {
                members.remove("pattern");
            }
            members.values_mut().for_each(|value| without_patterns(value, depth - 1));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| without_patterns(value, depth - 1)),
        _ => {}
    }
}

/// A text of a stranger as it may be shown: no control, direction or tag characters, and cut.
pub(super) fn clean(text: &str, max_chars: usize) -> String {
    let is_shown = |c: &char| {
        let hidden = matches!(*c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
        !hidden && (!c.is_control() || matches!(c, '\n' | '\t'))
    };
    let mut out: String = text.trim().chars().filter(is_shown).take(max_chars).collect();
    if text.chars().count() > max_chars {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool(schema: Value) -> Tool {
        let server = Server::any("s");
        let raw = json!({"name": "t", "inputSchema": schema});
        Tool::read(&server, "s", raw.as_object().unwrap()).unwrap()
    }

    #[test]
    fn arguments_that_do_not_fit_are_named_by_their_path() {
        let tool = tool(json!({"type": "object", "required": ["repo"], "properties": {
            "repo": {"type": "string"}, "filter": {"type": "object", "properties": {"since": {"type": "integer"}}}}}));
        assert_eq!(tool.check(&json!({"repo": "x"})), Ok(()));
        let wrong = tool.check(&json!({"filter": {"since": "yesterday"}})).unwrap_err();
        assert!(wrong.contains("/filter/since") && wrong.contains("repo"), "{wrong}");
    }

    #[test]
    fn a_schema_that_cannot_be_used_refuses_nothing_and_takes_no_time() {
        for schema in [
            json!({"properties": {"a": {"$ref": "https://elsewhere.example/x"}}}),
            json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}),
            json!({"properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}}),
            json!({"properties": {"a": {"type": "string", "pattern": "("}}}),
            json!({"properties": {"a": {"type": "strange"}}}),
            json!({"$ref": "#"}),
        ] {
            let tool = tool(schema);
            let _ = tool.check(&json!({"a": "x"}));
        }
        let evil = tool(json!({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}));
        assert!(evil.check(&json!({"a": format!("{}!", "a".repeat(50_000))})).is_err());
    }

    #[test]
    fn a_schema_that_multiplies_holds_up_no_thread_and_takes_no_stack() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
        let branch = json!({"properties": {"a": {"$ref": "#"}}, "required": ["z"]});
        let twice = tool(json!({"type": "object", "anyOf": [branch, branch]}));
        assert!(twice.check(&nested(5)).unwrap_err().contains("not valid"));
        assert!(twice.check(&nested(14)).unwrap_err().contains("do not fit"));
        assert!(twice.check(&nested(120)).unwrap_err().contains("pass less"));
        let all = tool(
            json!({"type": "object", "allOf": vec![json!({"properties": {"a": {"anyOf": [{"$ref": "#"}, {}]}}}); 2]}),
        );
        assert_eq!(all.check(&nested(12)), Ok(()));
        let mut chain: Map<_, _> =
            (0..900).map(|n| (n.to_string(), json!({"$ref": format!("#/$defs/{}", n + 1)}))).collect();
        chain.insert("900".to_owned(), json!({"properties": {"a": {"$ref": "#"}}}));
        assert!(tool(json!({"$defs": chain, "$ref": "#/$defs/0"})).check(&nested(120)).is_err());
    }

    #[test]
    fn text_of_an_untrusted_server_is_cut_and_cleaned() {
        assert_eq!(clean(" a\u{1b}[31m\u{202e}b\u{e0041}\nc ", 100), "a[31mb\nc");
        assert_eq!(clean("abcdef", 3), "abc…");
    }
}
