//! Recorded requests of code contexts, and recorded refusals, asked of the host over HTTP in the order of the recording.
//!
//! `kernel_recordings` compares the executions. Differences are in the same table of `docs/e2b-compatibility.md`.

use std::collections::BTreeMap;

use http::Method;
use pathbox::wire::interpreter::Event;
use serde_json::{Value, json};

use super::TestHost;
use crate::kernel_recordings::{file, lines, stated};

/// In this order, because later ones refer to contexts that earlier ones have made.
pub(crate) const RECORDINGS: &[&str] = &[
    "40_contexts_list",
    "41_context_create",
    "42_context_create_badlang",
    "43_context_create_badcwd",
    "44_execute_context",
    "45_execute_unknown_context",
    "46_execute_both",
    "47_execute_badlang",
    "48_execute_no_code",
    "49_execute_bad_json",
    "50_execute_get",
    "55_context_restart",
    "56_after_restart",
    "61_restart_unknown",
    "c2_py_alias",
];

/// A body that can be compared: events as [`lines`], JSON as a value, everything else as text.
fn read(body: &[u8], kind: &str) -> Value {
    if kind.starts_with("text/plain") {
        return String::from_utf8(body.to_vec()).unwrap().into();
    }
    if kind == "application/json" {
        return serde_json::from_slice(body).unwrap();
    }
    let events = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    json!(lines(events.map(|line| Event::read(line).unwrap())))
}

/// Puts our ids of contexts in the place of the recorded ones.
fn with_our_ids(text: &str, ids: &BTreeMap<String, String>) -> String {
    ids.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// Learns which of our contexts represents which of the recorded ones.
fn learn(theirs: &Value, ours: &Value, ids: &mut BTreeMap<String, String>) {
    let (Some(theirs), Some(ours)) = (theirs["id"].as_str(), ours["id"].as_str()) else {
        let (Some(theirs), Some(ours)) = (theirs.as_array(), ours.as_array()) else { return };
        return theirs.iter().zip(ours).for_each(|(theirs, ours)| learn(theirs, ours, ids));
    };
    ids.insert(theirs.to_owned(), ours.to_owned());
}

/// The recorded answer after a stated difference.
fn apply(difference: &str, recorded: &Value, ours: &Value) -> Value {
    match difference {
        "restart-directory" => {
            serde_json::from_str(&recorded.to_string().replace("/home/user", "/tmp")).unwrap()
        }
        "json-words" => {
            let mut recorded = recorded.clone();
            recorded["detail"][0]["ctx"]["error"] = ours["detail"][0]["ctx"]["error"].clone();
            recorded
        }
        other => panic!("the table has a row that this test does not know: {other}"),
    }
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn contexts_and_refusals_equal_the_recordings_except_for_stated_differences() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    // The recorded server had one when it was asked what it had.
    let typescript = json!({"code": "1", "language": "typescript"});
    host.to(&sandbox, 49999, Method::POST, "/execute")
        .json(&typescript)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let mut stated = stated();
    let mut ids = BTreeMap::new();
    let mut wrong = Vec::new();
    for name in RECORDINGS {
        let request: Value = serde_json::from_slice(&file(name, "request.json")).unwrap();
        let meta: Value = serde_json::from_slice(&file(name, "meta.json")).unwrap();
        let kind = meta["headers"]["content-type"].as_str().unwrap_or("");
        if *name == "61_restart_unknown" {
            // Its context had been removed in between.
            let path = with_our_ids("/contexts/374ab564-12a5-46cb-813b-e92f453b144a", &ids);
            host.to(&sandbox, 49999, Method::DELETE, &path).send().await.unwrap();
        }
        let method = request["method"].as_str().unwrap().parse().unwrap();
        let path = with_our_ids(request["path"].as_str().unwrap(), &ids);
        let body = match &request["body"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            body => with_our_ids(&body.to_string(), &ids),
        };
        let asked =
            host.to(&sandbox, 49999, method, &path).header("content-type", "application/json").body(body);
        let response = asked.send().await.unwrap();
        let status = response.status().as_u16();
        let our_kind =
            response.headers().get("content-type").map_or("", |kind| kind.to_str().unwrap()).to_owned();
        let ours = read(&response.bytes().await.unwrap(), &our_kind);
        let recorded = read(&file(name, "ndjson"), kind);
        learn(&recorded, &ours, &mut ids);
        let mut expected: Value = serde_json::from_str(&with_our_ids(&recorded.to_string(), &ids)).unwrap();
        for difference in stated.remove(*name).unwrap_or_default() {
            let after = apply(&difference, &expected, &ours);
            if after == expected {
                wrong.push(format!("{name}: `{difference}` is stated and makes no difference"));
            }
            expected = after;
        }
        if (meta["status"].as_u64(), kind, &expected) != (Some(status.into()), &our_kind, &ours) {
            wrong.push(format!(
                "{name}:\n  recorded {} {kind} {expected}\n  ours     {status} {our_kind} {ours}",
                meta["status"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
