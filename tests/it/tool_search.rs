//! How well tools are found by what people ask for, over labelled queries. The word weights were learned from one half of the
//! families; the other half is what they have not seen.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use pathbox::bridge::search::{Entry, Index};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn rows(name: &str) -> Vec<Value> {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/search").join(format!("{name}.jsonl.gz"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `source.server.tool` or `source.tool`.
fn names(full: &str) -> (&str, &str) {
    let (server, name) = full.rsplit_once('.').unwrap();
    (server.split_once('.').map_or(server, |(_, server)| server), name)
}

#[test]
fn at_least_six_of_ten_labelled_queries_find_their_tool_among_the_first_five() {
    let (tools, queries) = (rows("tools"), rows("queries"));
    let text = |value: &'static str| move |tool: &Value| tool[value].as_str().unwrap_or_default().to_owned();
    let (name, description, family) = (text("name"), text("description"), text("family"));
    let all: Vec<(String, String)> = tools.iter().map(|tool| (name(tool), description(tool))).collect();
    let index = Index::of(tools.iter().zip(&all).map(|(tool, (full, description))| {
        let (server, name) = names(full);
        let parameters = tool["parameters"].as_object().unwrap();
        Entry {
            server,
            name,
            description,
            parameters: parameters
                .iter()
                .map(|(name, text)| (name.as_str(), text.as_str().unwrap_or_default()))
                .collect(),
        }
    }));
    let families: HashMap<String, String> = tools.iter().map(|tool| (name(tool), family(tool))).collect();
    let mut recall: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for query in &queries {
        let wanted: Vec<&str> = query["tools"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let found = index.search(query["query"].as_str().unwrap(), 5);
        let hits = wanted.iter().filter(|tool| found.iter().any(|hit| all[hit.at].0 == **tool)).count();
        let half = if Sha256::digest(&families[wanted[0]])[0] & 1 == 0 { "learned from" } else { "not seen" };
        for part in [half, "all"] {
            let sum = recall.entry(part).or_default();
            sum.0 += hits as f64 / wanted.len() as f64;
            sum.1 += 1.0;
        }
    }
    let share = |part: &str| recall[part].0 / recall[part].1;
    println!(
        "recall at 5: {:.3} of all, {:.3} where the weights were learned, {:.3} not seen",
        share("all"),
        share("learned from"),
        share("not seen")
    );
    assert!(share("all") >= 0.60 && share("not seen") >= 0.60, "{recall:?}");
}
