//! The recorded executions of E2B's code interpreter, asked of ours.
//!
//! Each answer must be the recorded one in kind, order and text. Where it is not, the reason is in
//! `docs/e2b-compatibility.md`, whose table is read here: a row that is not needed fails, like one that is missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use pathbox::host::jail::SandboxLimits;
use pathbox::host::kernel::Search;
use pathbox::wire::interpreter::{Event, ExecuteRequest};
use serde_json::Value;

use crate::host::recordings::RECORDINGS;
use crate::kernel_support::Bench;

/// Runs of recordings that share a sandbox, because they build upon each other, in the order of the recording.
const SESSIONS: &[&[&str]] = &[
    &[
        "01_print",
        "02_multiline_stdout",
        "03_stderr",
        "04_result_int",
        "05_result_str",
        "06_result_str_quotes",
        "07_result_none",
        "08_result_dict",
        "09_result_list",
        "10_result_semicolon",
        "11_dataframe",
        "12_matplotlib_show",
        "13_matplotlib_noshow",
        "14_exception",
        "15_syntax_error",
        "17_raise_keyboardinterrupt",
        "21_empty",
        "22_comment_only",
        "23_display_many",
        "24_update_display_clear",
        "25_carriage_return",
        "26_subprocess",
        "27_async_await",
        "28_magics",
        "29_nested_exception",
        "30_keepalive_sleep12",
        "51_env_vars",
        "52_env_vars_gone",
        "53_env_vars_quote",
        "54_env_vars_indented",
        "80_os_exit",
        "81_after_os_exit",
    ],
    &[
        "a0_js_print",
        "a1_js_exception",
        "a2_js_await",
        "a3_js_state",
        "a4_js_import",
        "a5_js_object",
        "a6_js_settimeout",
        "a7_js_unicode",
        "a8_js_undefined",
        "c0_ts",
    ],
    &[
        "b0_bash",
        "b1_bash_exitcode",
        "b2_bash_exitcode_echo",
        "b3_bash_state",
        "b4_bash_state2",
        "b9_bash_unicode",
    ],
    &["c1_python_lang_case", "c3_python3", "c4_null_fields", "c5_empty_ctx"],
    &["e1_envvars_line_numbers", "e3_cell_magic_no_env"],
];

pub(crate) fn file(name: &str, suffix: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/e2b-streams");
    std::fs::read(dir.join(format!("{name}.{suffix}"))).unwrap()
}

/// The table: for each recording, the kinds of difference that it states.
pub(crate) fn stated() -> BTreeMap<String, Vec<String>> {
    let page = include_str!("../../docs/e2b-compatibility.md");
    let (page, _) = page.split_once("\n## ").expect("its table stands before the first heading");
    let mut stated: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [key, recordings, ..] = cells[..] else { panic!("{row}") };
        for name in recordings.split(", ").filter(|name| !name.is_empty()) {
            stated
                .entry(name.trim_matches('`').to_owned())
                .or_default()
                .push(key.trim_matches('`').to_owned());
        }
    }
    stated
}

/// An answer as lines that can be compared: what differs in every run (numbers of executions, times, addresses) is
/// left out, output that follows each other is one.
pub(crate) fn lines(events: impl IntoIterator<Item = Event>) -> Vec<(String, String)> {
    let address = regex::Regex::new("at 0x[0-9a-f]+").unwrap();
    let mut lines: Vec<(String, String)> = Vec::new();
    for event in events {
        let (kind, text) = match event {
            Event::Stdout(output) => ("stdout", output.text),
            Event::Stderr(output) => ("stderr", output.text),
            Event::Result(result) => {
                let mut result = serde_json::to_value(Event::Result(result)).unwrap();
                if let Some(png) = result.get_mut("png") {
                    *png = Value::String(png.as_str().unwrap().chars().take(20).collect());
                }
                let text = address.replace_all(&result.to_string(), "at 0x0").into();
                ("result", text)
            }
            Event::Error(error) => ("error", format!("{}\n{}\n{}", error.name, error.value, error.traceback)),
            // They come with time and not with the program.
            Event::Keepalive => continue,
            Event::NumberOfExecutions { .. } => ("count", String::new()),
            Event::EndOfExecution => ("end", String::new()),
            // Ours, which the official clients ignore.
            Event::PathboxState { .. } => continue,
            other => panic!("{other:?}"),
        };
        match lines.last_mut() {
            Some((last, before)) if last == kind && kind.starts_with("std") => before.push_str(&text),
            _ => lines.push((kind.to_owned(), text)),
        }
    }
    lines
}

/// The recorded answer after a stated difference.
fn apply(
    difference: &str,
    recorded: Vec<(String, String)>,
    ours: &[(String, String)],
) -> Vec<(String, String)> {
    let edit = |kinds: &str, change: &dyn Fn(&str) -> String| -> Vec<(String, String)> {
        let change = |(kind, text): (String, String)| {
            let text = if kinds.contains(kind.as_str()) { change(&text) } else { text };
            (kind, text)
        };
        recorded.clone().into_iter().map(change).collect()
    };
    // The same word for what a test cannot know: the text of ours, if it passes the check.
    let ours_if = |kind: &str, check: &dyn Fn(&str, &str) -> bool| -> Vec<(String, String)> {
        let mut out = recorded.clone();
        for ((kind_a, theirs), (_, mine)) in out.iter_mut().zip(ours) {
            if kind_a == kind && check(theirs, mine) {
                *theirs = mine.clone();
            }
        }
        out
    };
    match difference {
        // Line breaks between the parts of a traceback, and the cell's number: both without any.
        "traceback-lines" => ours_if("error", &|theirs, mine| {
            let bare = regex::Regex::new(r"Cell In\[\d+\]|\n").unwrap();
            bare.replace_all(theirs, "") == bare.replace_all(mine, "")
        }),
        "cell-number" => edit("error", &|text| text.replace("Cell In[16]", "Cell In[15]")),
        "cell-name" => edit("stderr error", &|text| {
            let text =
                regex::Regex::new(r"/tmp/ipykernel_\d+/\d+\.py").unwrap().replace_all(text, "<cell 3>");
            regex::Regex::new(r"\d{6,}\.py").unwrap().replace_all(&text, "<cell 15>").into_owned()
        }),
        "chained-line" => ours_if("error", &|theirs, mine| {
            theirs.lines().next() == mine.lines().next()
                && mine.contains("----> 2     {}['k']")
                && mine.contains("----> 4     raise ValueError('wrapped') from e")
        }),
        "javascript-traceback" => ours_if("error", &|theirs, mine| {
            theirs.lines().take(2).eq(mine.lines().take(2)) && mine.contains("throw new Error('boom')\n")
        }),
        "bang-line-ends" => edit("stdout", &|text| text.replace("\r\n", "\n")),
        "timing" => ours_if("stdout", &|theirs, mine| {
            let shape = |text: &str| {
                regex::Regex::new(r"[\d.]+ (s|ms|μs|ns)").unwrap().replace_all(text, "T").into_owned()
            };
            shape(theirs) == shape(mine)
        }),
        "fonts" => recorded
            .into_iter()
            .filter(|(kind, text)| kind != "stderr" || !text.contains("findfont"))
            .collect(),
        "stream-order" => {
            let of = |lines: &[(String, String)], wanted: &str| -> String {
                lines.iter().filter(|(kind, _)| kind == wanted).map(|(_, text)| text.as_str()).collect()
            };
            let same = ["stdout", "stderr", "result", "error"]
                .iter()
                .all(|kind| of(&recorded, kind) == of(ours, kind));
            if same { ours.to_vec() } else { recorded }
        }
        "display-updates" => {
            let update = ours.iter().rposition(|(kind, text)| kind == "result" && text.contains("\"two\""));
            let without: Vec<_> = ours
                .iter()
                .enumerate()
                .filter(|(at, _)| Some(*at) != update)
                .map(|(_, line)| line.clone())
                .collect();
            if without == recorded { ours.to_vec() } else { recorded }
        }
        "exact-json" => ours_if("result", &|theirs, mine| {
            let mut mine: Value = serde_json::from_str(mine).unwrap();
            mine.as_object_mut().is_some_and(|mine| mine.shift_remove("json").is_some())
                && serde_json::from_str::<Value>(theirs).is_ok_and(|theirs| theirs == mine)
        }),
        "pending-work" => edit("stdout", &|text| format!("{text}later\n")),
        "bash-streams" => {
            // Two streams have no order between them.
            let written = |lines: &[(String, String)]| -> Vec<String> {
                let texts = lines.iter().filter(|(kind, _)| kind.starts_with("std")).map(|(_, text)| text);
                let mut lines: Vec<String> = texts.flat_map(|text| text.lines().map(str::to_owned)).collect();
                lines.sort();
                lines
            };
            if written(ours) == written(&recorded) { ours.to_vec() } else { recorded }
        }
        "no-added-newline" => edit("stdout", &|text| text.strip_suffix('\n').unwrap_or(text).to_owned()),
        "env-not-pasted" => ours.to_vec(),
        "sandbox-env" => edit("stdout", &|text| text.replace("False None", "False true")),
        "death-reason" => ours_if("error", &|theirs, mine| {
            mine.starts_with(theirs) && mine.contains("The interpreter ended: exit code 1")
        }),
        other => panic!("the table has a row that this test does not know: {other}"),
    }
}

#[tokio::test]
#[ignore = "needs node, pandas and matplotlib: scripts/test installs them"]
async fn the_answers_equal_the_recordings_except_for_stated_differences() {
    let science = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/test-env/science/bin/python");
    let mut stated = stated();
    let mut wrong = Vec::new();
    for session in SESSIONS {
        let search = Search { python: Some(science.clone()), ..Search::default() };
        let bench = Bench::with(search, SandboxLimits::default(), |options| options).await;
        // What E2B's server has when it runs outside of E2B, as it did when it was recorded.
        bench.kernels.set_env([("E2B_TEST_VARIABLE".to_owned(), "true".to_owned())].into()).unwrap();
        for name in *session {
            let request: Value = serde_json::from_slice(&file(name, "request.json")).unwrap();
            let request: ExecuteRequest = serde_json::from_value(request["body"].clone()).unwrap();
            let code = request.code.clone();
            let recorded = file(name, "ndjson");
            let recorded = recorded.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let mut expected = lines(recorded.map(|line| Event::read(line).unwrap()));
            let ours = lines(bench.kernels.execute(request).unwrap().collect::<Vec<_>>().await);
            for difference in stated.remove(*name).unwrap_or_default() {
                let after = apply(&difference, expected.clone(), &ours);
                // Chance decides these, and may decide as it did then.
                if after == expected && !["stream-order", "timing"].contains(&&*difference) {
                    wrong.push(format!("{name}: `{difference}` is stated and makes no difference"));
                }
                expected = after;
            }
            if ours != expected {
                wrong.push(format!("{name}: {code:?}\n  recorded {expected:#?}\n  ours     {ours:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    stated.retain(|name, _| !RECORDINGS.contains(&&**name)); // those ask over HTTP
    assert!(stated.is_empty(), "rows without a recording: {stated:?}");
}

#[test]
fn every_recording_is_compared() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/e2b-streams");
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut recorded: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".request.json")?.to_owned())).collect();
    let mut compared: Vec<&str> = SESSIONS.iter().copied().flatten().chain(RECORDINGS).copied().collect();
    recorded.sort();
    compared.sort();
    assert_eq!(recorded, compared);
    assert_eq!(recorded.len(), 69);
}
