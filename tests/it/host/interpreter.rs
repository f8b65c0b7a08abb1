//! `/execute` and `/contexts`: what the wire says, beyond what the code contexts' own tests hold.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{TestHost, TestSandbox, answer};

/// Runs code to the end of its stream.
async fn execute(host: &TestHost, sandbox: &TestSandbox, body: Value) -> Vec<Value> {
    let response = host.to(sandbox, 49999, Method::POST, "/execute").json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    assert!(text.is_ascii() && text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) async fn text_of(host: &TestHost, sandbox: &TestSandbox, code: &str) -> String {
    let events = execute(host, sandbox, json!({"code": code})).await;
    let result = events.iter().find(|event| event["type"] == "result");
    result.map_or_else(|| panic!("{events:?}"), |event| event["text"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn an_execution_is_lines_of_ascii_json_without_a_type_or_a_length() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    // As the Python client sends it, with its nulls.
    let body =
        json!({"code": "print('é😀\\u2028')\n2+2", "context_id": null, "language": null, "env_vars": null});
    let response = host.to(&sandbox, 49999, Method::POST, "/execute").json(&body).send().await.unwrap();
    assert!(response.headers().get("content-type").is_none());
    assert!(response.headers().get("content-length").is_none());
    assert_eq!(response.headers()["transfer-encoding"], "chunked");
    let text = response.text().await.unwrap();
    assert!(text.contains(r#""text": "\u00e9\ud83d\ude00\u2028\n""#), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({"type": "number_of_executions", "execution_count": 1}));
    assert_eq!(lines.last().unwrap(), &json!({"type": "end_of_execution"}));
    assert!(
        lines
            .iter()
            .any(|line| line["type"] == "result" && line["is_main_result"] == true && line["text"] == "4")
    );
}

#[tokio::test]
async fn each_event_is_sent_when_it_happens() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    text_of(&host, &sandbox, "1").await;
    let code = "import time\nprint('first', flush=True)\ntime.sleep(5)\nprint('second')";
    let mut response =
        host.to(&sandbox, 49999, Method::POST, "/execute").json(&json!({"code": code})).send().await.unwrap();
    let mut seen = String::new();
    while !seen.contains("first") {
        seen.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
    assert!(!seen.contains("second"), "{seen}");
    let rest = response.text().await.unwrap();
    assert!(rest.contains("second") && rest.ends_with("{\"type\": \"end_of_execution\"}\n"));
}

#[tokio::test]
async fn requests_that_cannot_run_are_refused_as_the_cloud_refuses_them() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let refused = async |body: &str| {
        let request = host.to(&sandbox, 49999, Method::POST, "/execute").body(body.to_owned());
        let response = request.send().await.unwrap();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        (response.status().as_u16(), kind, response.text().await.unwrap())
    };
    let (status, kind, text) = refused(r#"{"code": "1", "context_id": "a", "language": "python"}"#).await;
    assert_eq!((status, text.as_str()), (400, "Only one of context_id or language can be provided"));
    assert!(kind.starts_with("text/plain"));
    let (status, _, text) = refused(r#"{"code": "1", "context_id": "a"}"#).await;
    assert_eq!((status, text.as_str()), (404, "Context a not found"));
    let (status, _, text) = refused(r#"{"code": "1", "language": "cobol"}"#).await;
    assert_eq!(status, 500);
    assert!(text.starts_with("Failed to create context: ") && text.contains("cobol not found"), "{text}");
    for bad in ["{}", "", "null", "{", "[1]", r#"{"code": 1}"#, r#"{"code": "1", "env_vars": {"A": 1}}"#] {
        let (status, kind, text) = refused(bad).await;
        assert_eq!((status, kind.as_str()), (422, "application/json"), "{bad}");
        assert!(serde_json::from_str::<Value>(&text).unwrap()["detail"][0]["msg"].is_string(), "{text}");
    }
    let missing: Value = serde_json::from_str(&refused("{}").await.2).unwrap();
    assert_eq!(missing["detail"][0]["loc"], json!(["body", "code"]));
    assert_eq!(refused(r#"{"code": "1", "env_vars": {"A=B": "1"}}"#).await.0, 400);
    let (status, body) = answer(host.to(&sandbox, 49999, Method::GET, "/execute")).await;
    assert_eq!((status, body), (405, json!({"detail": "Method Not Allowed"})));
    assert_eq!(text_of(&host, &sandbox, "'still here'").await, "still here");
}

#[tokio::test]
async fn contexts_are_made_listed_restarted_and_removed() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let (status, made) =
        answer(host.to(&sandbox, 49999, Method::POST, "/contexts").json(&json!({"cwd": "/tmp"}))).await;
    assert_eq!((status, &made["language"], &made["cwd"]), (200, &json!("python"), &json!("/tmp")));
    let id = made["id"].as_str().unwrap();
    let (_, list) = answer(host.to(&sandbox, 49999, Method::GET, "/contexts")).await;
    assert!(list.as_array().unwrap().contains(&made) && list[0]["language"] == "python", "{list}");
    let run = async |code: &str| execute(&host, &sandbox, json!({"code": code, "context_id": id})).await;
    run("x = 1").await;
    let path = format!("/contexts/{id}");
    assert_eq!(
        answer(host.to(&sandbox, 49999, Method::POST, &format!("{path}/restart"))).await,
        (200, Value::Null)
    );
    assert!(run("x").await.iter().any(|event| event["name"] == "NameError"));
    assert_eq!(answer(host.to(&sandbox, 49999, Method::DELETE, &path)).await, (200, Value::Null));
    assert_eq!(answer(host.to(&sandbox, 49999, Method::DELETE, &path)).await.0, 404);
    assert_eq!(answer(host.to(&sandbox, 49999, Method::POST, "/contexts").body("")).await.0, 200);
}

/// How every client ends an execution.
#[tokio::test]
async fn closing_the_connection_interrupts_and_keeps_the_variables() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    text_of(&host, &sandbox, "x = 'kept'; x").await;
    let code = "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    x += ' and told'\n    raise";
    let body = json!({"code": code}).to_string();
    let head = format!(
        "POST /execute HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 49999\r\ncontent-length: {}\r\n\r\n",
        sandbox.id,
        body.len()
    );
    let mut stream = TcpStream::connect(host.host.addr()).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut seen = String::new();
    while !seen.contains("begun") {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    drop(stream);
    assert_eq!(text_of(&host, &sandbox, "x").await, "kept and told");
}

#[tokio::test]
async fn a_sandbox_that_is_killed_breaks_its_executions_off() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    text_of(&host, &sandbox, "1").await;
    let code = json!({"code": "import time; time.sleep(1000)"});
    let mut response = host.to(&sandbox, 49999, Method::POST, "/execute").json(&code).send().await.unwrap();
    response.chunk().await.unwrap().unwrap();
    host.api(Method::DELETE, &format!("/sandboxes/{}", sandbox.id), Value::Null).await;
    let rest = async {
        while response.chunk().await?.is_some() {}
        Ok::<_, reqwest::Error>(())
    };
    assert!(rest.await.is_err(), "a stream without its end must not look whole");
    assert_eq!(answer(host.to(&sandbox, 49999, Method::POST, "/execute").json(&code)).await.0, 502);
}

#[tokio::test]
async fn the_environment_given_at_create_is_in_a_ready_sandboxs_interpreter_too() {
    let host = TestHost::with(|options| options.ready = 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sandbox = host.create_as(json!({"envVars": {"A": "it's \\n ü"}})).await;
    assert_eq!(
        text_of(&host, &sandbox, "import os; print(os.environ['A'] == \"it's \\\\n ü\"); 1").await,
        "1"
    );
    let events = execute(&host, &sandbox, json!({"code": "import os; os.environ['A']"})).await;
    assert!(
        events.iter().any(|event| event["text"].as_str().is_some_and(|text| text.contains('ü'))),
        "{events:?}"
    );
}

/// Makes sandboxes until one is handed out of the pool: `said` then says "True".
async fn out_of_the_pool(host: &TestHost, said: &str) -> TestSandbox {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let sandbox = host.create().await;
        if text_of(host, &sandbox, said).await == "True" {
            return sandbox;
        }
        host.api(Method::DELETE, &format!("/sandboxes/{}", sandbox.id), Value::Null).await;
        assert!(Instant::now() < deadline, "no ready sandbox");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_ready_sandbox_has_its_imports_and_a_new_one_does_not_wait_for_them() {
    let names = ["no_such_module", "wave", "no.such.module", "antigravity_not"].map(str::to_owned);
    let host = TestHost::with(|options| {
        options.ready = 1;
        options.kernel.preload = names.to_vec();
    })
    .await;
    let sandbox = out_of_the_pool(&host, "import sys; 'wave' in sys.modules").await;
    assert_eq!(text_of(&host, &sandbox, "'no_such_module' in sys.modules").await, "False");

    let host = TestHost::with(|options| options.kernel.preload = names.to_vec()).await;
    let sandbox = host.create().await;
    assert_eq!(text_of(&host, &sandbox, "import sys; 'wave' in sys.modules").await, "False");
}

#[tokio::test]
async fn a_death_is_reported_with_the_fate_of_the_variables() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    execute(&host, &sandbox, json!({"code": "kept = 1"})).await;
    let events = execute(&host, &sandbox, json!({"code": "import ctypes; ctypes.string_at(0)"})).await;
    let told: Vec<&Value> = events.iter().filter(|event| event["type"] != "stderr").skip(1).collect();
    assert_eq!(
        told[0],
        &json!({"type": "pathbox_state", "state": "rolled_back", "status": 139}),
        "{events:?}"
    );
    assert_eq!((&told[1]["type"], &told[1]["name"]), (&json!("error"), &json!("ContextRestarting")));
    assert_eq!(told[2], &json!({"type": "end_of_execution"}));
    assert_eq!(text_of(&host, &sandbox, "kept").await, "1");

    let host = TestHost::with(|options| options.kernel.checkpoint_bytes = 0).await;
    let sandbox = host.create().await;
    execute(&host, &sandbox, json!({"code": "kept = 1"})).await;
    let events = execute(&host, &sandbox, json!({"code": "import os; os._exit(1)"})).await;
    assert_eq!(events[1], json!({"type": "pathbox_state", "state": "lost", "status": 1}), "{events:?}");
    assert_eq!(text_of(&host, &sandbox, "'kept' in dir()").await, "False");
}

#[tokio::test]
#[ignore = "needs pandas and matplotlib: scripts/test installs them"]
async fn a_data_cell_starts_warm_and_survives_its_death() {
    let science = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-env/science/bin/python");
    let host = TestHost::with(|options| {
        options.ready = 1;
        options.search.python = Some(science.into());
        options.kernel.preload = ["numpy", "pandas", "matplotlib.pyplot"].map(str::to_owned).to_vec();
    })
    .await;
    let sandbox =
        out_of_the_pool(&host, "import sys; {'pandas', 'matplotlib.pyplot'} <= sys.modules.keys()").await;
    // The list of fonts was made once, elsewhere.
    let fonts = "import os, matplotlib\nd = matplotlib.get_cachedir()\n\
        [n[:8] for n in os.listdir(d)], os.path.getmtime(os.path.join(d, os.listdir(d)[0])) <= os.path.getmtime('/proc/self')";
    assert_eq!(text_of(&host, &sandbox, fonts).await, "(['fontlist'], True)");
    let plot = "import matplotlib.pyplot as plt, pandas as pd\n\
        frame = pd.DataFrame({'a': [1, 2]}); plt.plot(frame.a); plt.title('T')";
    let events = execute(&host, &sandbox, json!({"code": plot})).await;
    let figure = events.iter().find(|event| event["png"].is_string()).unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!((&figure["chart"]["type"], &figure["chart"]["title"]), (&json!("line"), &json!("T")));
    let deadly = "frame['b'] = 0\nimport ctypes; ctypes.string_at(0)";
    let events = execute(&host, &sandbox, json!({"code": deadly})).await;
    assert!(
        events.contains(&json!({"type": "pathbox_state", "state": "rolled_back", "status": 139})),
        "{events:?}"
    );
    assert_eq!(text_of(&host, &sandbox, "list(frame.columns), int(frame.a.sum())").await, "(['a'], 3)");
}
