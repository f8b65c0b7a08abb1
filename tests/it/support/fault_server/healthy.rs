//! The fault server without faults: sandboxes in a map, and an interpreter that knows the suite's programs by heart.

use std::collections::{BTreeMap, HashSet};

use base64::Engine as _;
use chrono::{DateTime, Duration, Utc};
use pathbox::domain::Clock;
use pathbox::wire::control::decode_metadata;
use serde_json::{Value, json};

use super::{API_KEY, COUNT, END, Reply, Request, Step};

/// Of every execution but the one that starts a kernel.
const LATER: &str = r#"{"type": "number_of_executions", "execution_count": 2}"#;

#[derive(Default)]
pub(super) struct World {
    sandboxes: BTreeMap<String, Sandbox>,
    made: usize,
}

struct Sandbox {
    started_at: DateTime<Utc>,
    end_at: DateTime<Utc>,
    metadata: BTreeMap<String, String>,
    kept: bool,
    envs: Vec<BTreeMap<String, String>>,
    contexts: HashSet<String>,
}

fn now() -> DateTime<Utc> {
    Clock::system().now()
}

fn missing(id: &str) -> Reply {
    Reply::error(404, &format!("Sandbox \"{id}\" doesn't exist or you don't have access to it"))
}

impl World {
    pub(super) fn answer(&mut self, request: &Request) -> Reply {
        match request.port() {
            None => self.control(request),
            Some(port) => {
                let id = request.header("e2b-sandbox-id").unwrap_or_default();
                match (self.sandboxes.get_mut(id), port) {
                    (None, _) => Reply::sandbox_not_found(),
                    (Some(sandbox), 49999) => sandbox.interpreter(request),
                    (Some(_), 49983) => Reply::new(204),
                    (Some(_), port) => Reply::port_not_open(port),
                }
            }
        }
    }

    fn control(&mut self, request: &Request) -> Reply {
        if request.header("x-api-key") != Some(API_KEY) {
            return Reply::error(401, "unknown API key");
        }
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let parts: Vec<_> = path.trim_start_matches("/v2").split('/').skip(2).collect();
        let body = request.json();
        let seconds = body["timeout"].as_i64().or(body["duration"].as_i64()).unwrap_or(300);
        let end = now() + Duration::seconds(seconds);
        match (request.method.as_str(), &parts[..]) {
            ("POST", []) => {
                self.made += 1;
                let id = format!("i{:020}", self.made);
                let metadata = serde_json::from_value(body["metadata"].clone()).unwrap_or_default();
                let sandbox = Sandbox {
                    started_at: end - Duration::seconds(seconds),
                    end_at: end,
                    metadata,
                    kept: false,
                    envs: Vec::new(),
                    contexts: HashSet::new(),
                };
                self.sandboxes.insert(id.clone(), sandbox);
                Reply::json(201, created(&id))
            }
            ("GET", []) => {
                let wanted = query.split('&').find_map(|pair| pair.strip_prefix("metadata="));
                let wanted =
                    decode_metadata(&pathbox::wire::control::percent_decode(wanted.unwrap_or_default()));
                let matches = |sandbox: &Sandbox| {
                    wanted.iter().all(|(key, value)| sandbox.metadata.get(key) == Some(value))
                };
                let found = self.sandboxes.iter().filter(|(_, sandbox)| matches(sandbox));
                Reply::json(200, found.map(|(id, sandbox)| sandbox.detail(id)).collect())
            }
            (method, [id, rest @ ..]) => {
                let Some(sandbox) = self.sandboxes.get_mut(*id) else { return missing(id) };
                match (method, rest) {
                    ("GET", []) => Reply::json(200, sandbox.detail(id)),
                    ("DELETE", []) => {
                        self.sandboxes.remove(*id);
                        Reply::new(204)
                    }
                    ("POST", ["timeout"]) => {
                        sandbox.end_at = end;
                        Reply::new(204)
                    }
                    ("POST", ["refreshes" | "connect"]) => {
                        sandbox.end_at = sandbox.end_at.max(end);
                        if rest == ["connect"] { Reply::json(200, created(id)) } else { Reply::new(204) }
                    }
                    _ => Reply::new(404).send("404 page not found"),
                }
            }
            _ => Reply::new(404).send("404 page not found"),
        }
    }
}

fn created(id: &str) -> Value {
    json!({"templateID": "t", "sandboxID": id, "clientID": "c", "envdVersion": "0.6.13",
        "envdAccessToken": super::ENVD_TOKEN, "trafficAccessToken": null, "domain": null})
}

fn events(lines: &[String]) -> Reply {
    let mut all = vec![LATER.to_owned()];
    all.extend_from_slice(lines);
    all.push(END.to_owned());
    Reply::events(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

fn stdout(text: &str) -> String {
    pathbox::wire::json::to_ascii(&json!({"type": "stdout", "text": text})).unwrap()
}

fn result(text: &str) -> String {
    json!({"type": "result", "text": text, "extra": {}, "is_main_result": true}).to_string()
}

fn error(name: &str, value: &str, traceback: &str) -> String {
    json!({"type": "error", "name": name, "value": value, "traceback": traceback}).to_string()
}

impl Sandbox {
    fn detail(&self, id: &str) -> Value {
        json!({"templateID": "t", "sandboxID": id, "clientID": "c", "startedAt": self.started_at, "endAt": self.end_at,
            "envdVersion": "0.6.13", "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1, "state": "running",
            "metadata": self.metadata})
    }

    fn interpreter(&mut self, request: &Request) -> Reply {
        let parts: Vec<_> = request.path.split('/').skip(1).collect();
        let unknown = |id: &str| Reply::new(404).send(format!("Context {id} not found"));
        match (request.method.as_str(), &parts[..]) {
            ("GET", ["health"]) => Reply::json(200, json!("OK")),
            ("POST", ["execute"]) => {
                let body = request.json();
                match (body["language"].as_str(), body["context_id"].as_str()) {
                    (Some("python"), None) => self.execute(body["code"].as_str().unwrap_or_default()),
                    (None, Some(id)) if self.contexts.contains(id) => {
                        self.execute(body["code"].as_str().unwrap_or_default())
                    }
                    (None, Some(id)) => unknown(id),
                    _ => {
                        let message =
                            "The 'cobol' kernel is not available. Please pick another suitable kernel";
                        Reply::new(500)
                            .send(format!("Failed to create context: {{\"message\": \"{message}\"}}"))
                    }
                }
            }
            ("POST", ["contexts"]) => {
                let id = format!("context-{}", self.contexts.len());
                self.contexts.insert(id.clone());
                Reply::json(200, context(&id))
            }
            ("GET", ["contexts"]) => Reply::json(200, self.contexts.iter().map(|id| context(id)).collect()),
            (_, ["contexts", id, ..]) if !self.contexts.contains(*id) => unknown(id),
            ("POST", ["contexts", _, "restart"]) => Reply::json(200, json!(null)),
            ("DELETE", ["contexts", id]) => {
                self.contexts.remove(*id);
                Reply::json(200, json!(null))
            }
            _ => Reply::new(404).send("{\"detail\":\"Not Found\"}"),
        }
    }

    fn execute(&mut self, code: &str) -> Reply {
        match code {
            "print('hello'); 1 + 1" => events(&[stdout("hello\n"), result("2")]),
            "1 + 1" => events(&[result("2")]),
            "kept = 41" => {
                self.kept = true;
                events(&[])
            }
            "kept + 1" if self.kept => events(&[result("42")]),
            "x = 1\nx / 0" => events(&[error(
                "ZeroDivisionError",
                "division by zero",
                "-----ZeroDivisionError     Traceback (most recent call last)Cell In[1], line 2\n      1 x = 1\n----> 2 x / 0\nZeroDivisionError: division by zero",
            )]),
            r"print('é€😀\u2028\u0085')" => events(&[stdout("é€😀\u{2028}\u{85}\n")]),
            "while True: pass" => Reply::events(&[COUNT]).step(Step::Hang),
            "import os; os._exit(1)" => {
                self.kept = false;
                events(&[error("ContextRestarting", "Context was restarted", "")])
            }
            "import os; print(os.environ.get('SHOWN'))" => {
                let shown = self.envs.last().and_then(|envs| envs.get("SHOWN"));
                events(&[stdout(&format!("{}\n", shown.map_or("None", String::as_str)))])
            }
            set if set.contains("os.environ.update") => {
                let data = set.split("b64decode(\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
                let json = base64::prelude::BASE64_STANDARD.decode(data).unwrap();
                self.envs.push(serde_json::from_slice(&json).unwrap());
                events(&[])
            }
            unset if unset.contains("_pathbox_before") => {
                self.envs.clear();
                events(&[])
            }
            _ => events(&[]),
        }
    }
}

fn context(id: &str) -> Value {
    json!({"id": id, "language": "python", "cwd": "/tmp"})
}
