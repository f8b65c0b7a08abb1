//! Templates: made by the real command line, from a package that lies on this machine, used through the host's one door.

use std::path::Path;
use std::process::{Command, Output};

use http::Method;
use serde_json::{Value, json};

use crate::support::server::{Server, command};
use crate::workflows;

use super::{TestHost, TestSandbox, answer, exit_code, written};

/// A wheel with one module, as small as one can be.
fn wheel(dir: &Path, version: &str) -> String {
    let path = dir.join(format!("pathbox_probe-{version}-py3-none-any.whl"));
    let script = "import sys, zipfile\n\
        path, version = sys.argv[1:]\n\
        info = f'pathbox_probe-{version}.dist-info'\n\
        with zipfile.ZipFile(path, 'w') as z:\n\
        \x20z.writestr('pathbox_probe.py', f'VERSION = {version!r}\\n')\n\
        \x20z.writestr(info + '/METADATA', f'Metadata-Version: 2.1\\nName: pathbox-probe\\nVersion: {version}\\n')\n\
        \x20z.writestr(info + '/WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
        \x20z.writestr(info + '/RECORD', '')\n";
    let made = Command::new("python3").args(["-c", script]).arg(&path).arg(version).status().unwrap();
    assert!(made.success());
    path.display().to_string()
}

fn pathbox(data: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pathbox"))
        .arg("--data-dir")
        .arg(data)
        .arg("templates")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

async fn create(host: &TestHost, template: &str) -> (u16, Value) {
    host.api(Method::POST, "/v2/sandboxes", json!({"templateID": template})).await
}

async fn cell(host: &TestHost, sandbox: &TestSandbox, code: &str) -> String {
    let request = host.to(sandbox, 49999, Method::POST, "/execute").json(&json!({"code": code}));
    request.send().await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn a_template_s_packages_are_there_for_cells_shells_and_child_processes_and_nowhere_else() {
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let made = pathbox(
        data.path(),
        &["add", "probe", "--pip", &wheel(data.path(), "1.5"), "--preload", "pathbox_probe"],
    );
    assert!(made.status.success(), "{}", text(&made));
    let again = pathbox(data.path(), &["add", "probe", "--pip", "x"]);
    assert!(text(&again).contains("pathbox templates rm probe"), "{}", text(&again));
    let listed = text(&pathbox(data.path(), &["ls"]));
    for word in ["probe", "MB", "0 min", "pathbox_probe-1.5"] {
        assert!(listed.contains(word), "{listed}");
    }
    let shown: Value = {
        let shown = text(&pathbox(data.path(), &["show", "probe"]));
        serde_json::from_str(shown.split("disk:").next().unwrap()).unwrap()
    };
    assert_eq!(shown["name"], "probe");

    let host = TestHost::with(|options| {
        options.templates = Some(data.path().join("templates"));
        options.ready = 1;
    })
    .await;
    let (status, told) = create(&host, "probe:latest").await;
    assert_eq!(status, 201, "{told}");
    assert_eq!(told["templateID"], "probe");
    let sandbox = TestSandbox {
        id: told["sandboxID"].as_str().unwrap().to_owned(),
        token: told["envdAccessToken"].as_str().map(str::to_owned),
        told,
    };
    let ask = "import sys, pathbox_probe; print(pathbox_probe.VERSION, sys.prefix)";
    let in_cell = cell(&host, &sandbox, ask).await;
    let shell = host.run(&sandbox, &format!("python3 -c '{ask}'; python -c '{ask}'; pip --version")).await;
    let shell = written(&shell, "stdout");
    let lines: Vec<&str> = shell.lines().collect();
    assert_eq!(lines[0], lines[1], "{shell}");
    assert!(lines[0].starts_with("1.5 ") && lines[0].ends_with("/templates/probe/python"), "{shell}");
    assert!(lines[2].contains("/templates/probe/"), "{shell}");
    assert!(in_cell.contains(lines[0]), "the same interpreter: {in_cell}");
    let child = cell(&host, &sandbox, &format!("!python3 -c '{ask}'")).await;
    assert!(child.contains(lines[0]), "{child}");
    let write = host.run(&sandbox, "touch \"$(dirname \"$(command -v python3)\")/x\"").await;
    assert_ne!(exit_code(&write), 0, "a template is read-only");

    let base = host.create().await;
    assert!(cell(&host, &base, "import pathbox_probe").await.contains("ModuleNotFoundError"));
    let (status, unknown) = create(&host, "nothing").await;
    assert_eq!(status, 404);
    assert_eq!(
        unknown["message"],
        "template 'nothing' not found; this host has code-interpreter-v1, code-interpreter, base, probe"
    );
    let (_, all) = host.api(Method::GET, "/templates", Value::Null).await;
    assert_eq!((&all[0]["templateID"], all.as_array().unwrap().len()), (&json!("probe"), 1));
    let (status, refused) = host.api(Method::POST, "/v3/templates", json!({"name": "x"})).await;
    assert_eq!(status, 501);
    assert!(refused["message"].as_str().unwrap().contains("pathbox templates add"));

    // Made again, it is another one for later requests.
    assert!(pathbox(data.path(), &["rm", "probe"]).status.success());
    assert_eq!(create(&host, "probe").await.0, 404);
    let made = pathbox(data.path(), &["add", "probe", "--pip", &wheel(data.path(), "2.0")]);
    assert!(made.status.success(), "{}", text(&made));
    let (status, told) = create(&host, "probe").await;
    assert_eq!(status, 201);
    let sandbox = TestSandbox {
        id: told["sandboxID"].as_str().unwrap().to_owned(),
        token: told["envdAccessToken"].as_str().map(str::to_owned),
        told,
    };
    assert!(cell(&host, &sandbox, ask).await.contains("2.0 "));
}

/// The second would remove what the first has made so far, and the first, when it fails, what the second has.
#[test]
fn a_template_that_another_process_makes_is_left_to_it() {
    let data = tempfile::tempdir().unwrap();
    let templates = data.path().join("templates");
    std::fs::create_dir_all(templates.join("x/python")).unwrap();
    let lock = std::fs::File::create(templates.join(".x.lock")).unwrap();
    lock.lock().unwrap();
    let add = || {
        command(data.path()).args(["templates", "add", "x", "--python", "/usr/bin/python3"]).output().unwrap()
    };
    let refused = add();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("another process"), "{said}");
    assert!(templates.join("x/python").exists());
    drop(lock);
    assert!(add().status.success());
    let gone = command(data.path()).args(["templates", "rm", "x"]).status().unwrap();
    assert!(gone.success() && !templates.join("x").exists());
}

/// From an environment that is there, and a package of npm's from a directory: what a desktop user does.
#[test]
fn a_deployment_s_template_is_described_to_the_model_and_used_in_every_language() {
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let package = data.path().join("probe-js");
    std::fs::create_dir(&package).unwrap();
    // One file for `require`, another that only an `import` may have.
    let exports = json!({".": "./main.js", "./new": {"import": "./new.mjs"}});
    let description = json!({"name": "probe-js", "version": "3.1.0", "main": "main.js", "exports": exports});
    std::fs::write(package.join("new.mjs"), "export const made = 'for import'").unwrap();
    std::fs::write(package.join("package.json"), description.to_string()).unwrap();
    std::fs::write(package.join("main.js"), "exports.version = '3.1.0'").unwrap();
    let science = format!("{}/target/test-env/science/bin/python3", env!("CARGO_MANIFEST_DIR"));
    let made = pathbox(
        data.path(),
        &["add", "data-science", "--python", &science, "--npm", package.to_str().unwrap()],
    );
    assert!(made.status.success(), "{}", text(&made));

    let mut server = Server::raw(command(data.path()).args(["serve", "--set", "e2b.template=data-science"]));
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}
    });
    let answer = server.request("initialize", hello);
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let instructions = answer["result"]["instructions"].as_str().unwrap();
    let (_, packages) = instructions.split_once("Python has these packages: ").unwrap();
    assert!(packages.contains("pandas ") && packages.contains("matplotlib "), "{packages}");
    let result = server.python("import pandas; int(pandas.Series([1, 2]).sum())");
    assert_eq!(result["structuredContent"]["output"], "3", "{result}");
    for language in ["javascript", "typescript"] {
        let code = json!({"code": "require('probe-js').version", "language": language});
        assert_eq!(server.call(code, json!({}))["structuredContent"]["output"], "3.1.0");
        let modules = "import { version } from 'probe-js';\nimport { made } from 'probe-js/new';\n\
            import fs from 'node:fs';\nfs.writeFileSync('own.mjs', \"export { made } from 'probe-js/new'\");\n\
            const own = await import('./own.mjs');\n`${version} ${made}, ${own.made}`";
        let answer = server.call(json!({"code": modules, "language": language}), json!({"pathId": language}));
        assert_eq!(answer["structuredContent"]["output"], "3.1.0 for import, for import", "{answer}");
    }
    let code = json!({"code": "python3 -c 'import pandas; print(pandas.DataFrame().size)'; node -p \"require('probe-js').version\"", "language": "bash"});
    assert_eq!(server.call(code, json!({}))["structuredContent"]["stdout"], "0\n3.1.0\n");
}

#[test]
fn a_call_names_the_template_of_its_context_where_it_may() {
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let made = pathbox(data.path(), &["add", "probe", "--pip", &wheel(data.path(), "1.5")]);
    assert!(made.status.success(), "{}", text(&made));
    let start = || {
        let set = ["serve", "--set", "e2b.templates=probe,base", "--conversation", "c"];
        Server::start_with(workflows::on(&mut command(data.path())).args(set))
    };
    let mut server = start();
    let listed = server.request("tools/list", json!({}))["result"]["tools"][0].take();
    let told = listed["inputSchema"]["properties"]["template"]["description"].as_str().unwrap();
    assert!(told.ends_with("One of: probe, base."), "{told}");

    let ask = "import pathbox_probe; pathbox_probe.VERSION";
    let run = |server: &mut Server, path: &str, template: &str, code: &str| {
        let arguments = json!({"code": code, "language": "python", "template": template});
        server.call(arguments, json!({"pathId": path}))
    };
    let output =
        |result: &Value| result["structuredContent"]["output"].as_str().unwrap_or_default().to_owned();
    let code = |result: &Value| result["_meta"]["dev.pathbox/error"]["code"].as_str().map(str::to_owned);
    let first = run(&mut server, "main", "probe", ask);
    assert_eq!(
        (output(&first).as_str(), &first["structuredContent"]["state"]),
        ("1.5", &json!("fresh")),
        "{first}"
    );
    let kept = run(&mut server, "main", " ", "x = 7; pathbox_probe.VERSION");
    assert_eq!(
        (output(&kept).as_str(), &kept["structuredContent"]["state"]),
        ("1.5", &json!("kept")),
        "{kept}"
    );

    let differs = run(&mut server, "main", "base", "x = 8");
    assert_eq!(code(&differs).as_deref(), Some("template_conflict"), "{differs}");
    assert!(differs["content"][0]["text"].as_str().unwrap().contains("\"probe\", not \"base\""), "{differs}");
    assert_eq!(output(&run(&mut server, "main", "probe", "x")), "7", "nothing was run");
    let unknown = run(&mut server, "elsewhere", "nothing", "1");
    assert_eq!(code(&unknown).as_deref(), Some("invalid_argument"), "{unknown}");
    assert!(unknown["content"][0]["text"].as_str().unwrap().contains("Use one of probe, base"), "{unknown}");

    let plain = run(&mut server, "plain", "", ask);
    assert_eq!(plain["structuredContent"]["error"]["name"], "ModuleNotFoundError", "{plain}");
    assert_eq!(code(&run(&mut server, "plain", "probe", ask)).as_deref(), Some("template_conflict"));
    assert_eq!(output(&run(&mut server, "plain", "code-interpreter-v1", "1")), "1", "the one that it has");
    let manage = |server: &mut Server, action: &str, path: &str| {
        let params =
            json!({"name": "manage_context", "arguments": {"action": action}, "_meta": {"pathId": path}});
        server.request("tools/call", params)["result"]["structuredContent"].take()
    };
    assert_eq!(manage(&mut server, "show", "main")["template"], "probe");
    manage(&mut server, "end", "plain");
    assert_eq!(output(&run(&mut server, "plain", "probe", ask)), "1.5", "after its end another may be named");

    // Tasks of workflows do as well, and what they are given goes into the sandbox that they name.
    let shown = workflows::run(
        &mut server,
        json!({"tasks": [
            workflows::code("write", "open('note.txt', 'w').write('from another')\n1", json!({"files": ["note.txt"]})),
            workflows::code("ask", &format!("import json\n{ask}\nprint(json.dumps([pathbox_probe.VERSION, open(data['note']).read()]))"),
                json!({"path": "fresh", "template": "probe", "inputs": {"note": {"from": "write", "artifact": "note.txt"}}})),
            workflows::code("not", "1", json!({"path": "fresh", "template": "nothing", "on_error": "continue"})),
        ]}),
    );
    assert_eq!(shown["results"]["ask"], json!(["1.5", "from another"]), "{shown:#}");
    let refused = workflows::state(&shown, "not");
    assert!(refused.to_string().contains("Use one of probe, base"), "{refused}");

    // What is made in the place of a sandbox that is gone is made from the same.
    manage(&mut server, "reset", "main");
    let again = run(&mut server, "main", "", ask);
    assert_eq!(
        (output(&again).as_str(), &again["structuredContent"]["state"]),
        ("1.5", &json!("reset")),
        "{again}"
    );
    drop(server);
    let mut server = start();
    let after = run(&mut server, "main", "", ask);
    assert_eq!(
        (output(&after).as_str(), &after["structuredContent"]["state"]),
        ("1.5", &json!("reset")),
        "{after}"
    );
    drop(server);

    // Where nothing may be named, there is no such argument, and sandboxes made from it are made as all are.
    let mut server = Server::start_with(command(data.path()).args(["serve", "--conversation", "c"]));
    let listed = server.request("tools/list", json!({}))["result"]["tools"][0].take();
    assert!(listed["inputSchema"]["properties"].get("template").is_none(), "{listed}");
    let plain = server.python(ask);
    assert_eq!(plain["structuredContent"]["error"]["name"], "ModuleNotFoundError", "{plain}");
    let refused = run(&mut server, "main", "probe", "1");
    assert_eq!(code(&refused).as_deref(), Some("invalid_argument"), "{refused}");
}

#[test]
fn a_failed_installation_leaves_nothing() {
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let failed = pathbox(data.path(), &["add", "broken", "--pip", "/nowhere/at-all.whl"]);
    assert!(
        !failed.status.success() && text(&failed).contains("what it wrote says why"),
        "{}",
        text(&failed)
    );
    assert!(!data.path().join("templates/broken").exists());
    for name in ["../x", "base", "A"] {
        let refused = pathbox(data.path(), &["add", name, "--python", "/usr/bin/python3"]);
        assert!(text(&refused).contains("is not 1 to 64 of"), "{name}: {}", text(&refused));
    }
    let missing = pathbox(data.path(), &["show", "nothing"]);
    assert!(text(&missing).contains("pathbox templates ls"), "{}", text(&missing));
}

/// What E2B's clients and a browser ask that has no place in the tests of one door.
#[tokio::test]
async fn browsers_may_call_and_servers_in_a_sandbox_see_no_key_of_ours() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let preflight = host
        .client
        .request(Method::OPTIONS, format!("{}/v2/sandboxes", host.host.url()))
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "x-api-key, authorization")
        .send()
        .await
        .unwrap();
    assert_eq!(preflight.status(), 204);
    assert_eq!(preflight.headers()["access-control-allow-origin"], "*");
    assert_eq!(preflight.headers()["access-control-allow-headers"], "x-api-key, authorization");
    let listed =
        host.client.get(format!("{}/v2/sandboxes", host.host.url())).header("origin", "https://app.example");
    let refused = listed.send().await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["access-control-allow-origin"]),
        (401, &http::HeaderValue::from_static("*"))
    );

    let serve = "cat > s.py <<'END'\n\
        import http.server\n\
        class H(http.server.BaseHTTPRequestHandler):\n\
        \x20   def do_GET(self):\n\
        \x20       self.send_response(200); self.end_headers(); self.wfile.write(str(self.headers).lower().encode())\n\
        server = http.server.HTTPServer(('127.0.0.1', 8080), H); open('up', 'w').close(); server.serve_forever()\n\
        END\n\
        setsid python3 s.py > /dev/null 2>&1 & while ! test -e up; do sleep .05; done";
    assert_eq!(exit_code(&host.run(&sandbox, serve).await), 0);
    let token = sandbox.token.clone().unwrap();
    let seen = async |authorization: &str| {
        let get = host.to(&sandbox, 8080, Method::GET, "/").header("authorization", authorization);
        let get = get.header("x-api-key", host.host.api_key().expose()).header("cookie", "own=1");
        get.send().await.unwrap().text().await.unwrap()
    };
    for ours in [format!("Bearer {}", host.host.api_key().expose()), format!("Bearer {token}"), token.clone()]
    {
        let seen = seen(&ours).await;
        assert!(
            !seen.contains("authorization") && !seen.contains("api-key") && !seen.contains("access-token"),
            "{seen}"
        );
        assert!(seen.contains("cookie: own=1"), "{seen}");
    }
    assert!(seen("Bearer of-the-server-itself").await.contains("authorization: bearer of-the-server-itself"));

    let path = format!("/sandboxes/metrics?sandbox_ids={}%2Cinothing", sandbox.id);
    let (status, points) = host.api(Method::GET, &path, Value::Null).await;
    assert_eq!((status, points["sandboxes"].as_object().unwrap().len()), (200, 1), "{points}");
    assert!(points["sandboxes"][&sandbox.id]["memTotal"].as_u64().unwrap() > 0);
    let range = |query: &str| format!("/sandboxes/{}/metrics?{query}", sandbox.id);
    assert_eq!(host.api(Method::GET, &range("start=1&end=2"), Value::Null).await, (200, json!([])));
    assert_eq!(host.api(Method::GET, &range("start=1"), Value::Null).await.1.as_array().unwrap().len(), 1);
    assert_eq!(host.api(Method::GET, &range("start=x"), Value::Null).await.0, 400);
    assert_eq!(host.api(Method::GET, &range("start=2&end=1"), Value::Null).await.0, 400);

    // Whoever asks for more levels than there are gets what is there, at once.
    let (status, list) = host
        .rpc(&sandbox, "/filesystem.Filesystem/ListDir", json!({"path": "/home/user", "depth": u32::MAX}))
        .await;
    assert_eq!((status, list["entries"].as_array().map(Vec::is_empty)), (200, Some(false)), "{list}");

    let path = format!("/sandboxes/{}", sandbox.id);
    assert_eq!(host.api(Method::DELETE, &path, Value::Null).await.0, 204);
    let (status, gone) = answer(host.to(&sandbox, 49983, Method::GET, "/files?path=x")).await;
    assert_eq!(
        (status, &gone["message"]),
        (502, &json!("The sandbox was not found: it was killed by a request"))
    );
}
