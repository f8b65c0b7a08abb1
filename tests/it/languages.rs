//! What holds for every language alike, through the tool that clients call.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::kernel_support::Bench;
use crate::support::server::{Server, command};

const LANGUAGES: [&str; 4] = ["python", "javascript", "typescript", "bash"];

fn call(server: &mut Server, code: &str, language: &str) -> Value {
    server.call(json!({"code": code, "language": language, "timeout_ms": 60_000}), json!({}))
}

#[test]
fn a_missing_interpreter_is_reported_once_with_its_package() {
    let data = tempfile::tempdir().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = command(data.path());
    command
        .arg("serve")
        .env("PATHBOX_HOST_PYTHON", "/nowhere/python3")
        .env("PATHBOX_LOG", "warn")
        .stderr(Stdio::from(log.reopen().unwrap()));
    let mut server = Server::start_with(&mut command);
    for _ in 0..2 {
        let result = call(&mut server, "1", "python");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("no Python that can be used: install Debian's package python3"), "{text}");
        assert!(text.contains("Nothing was run"), "{text}");
    }
    // The others work.
    let told = call(&mut server, "echo here", "bash");
    assert_eq!(told["structuredContent"]["stdout"], "here\n", "{told}");
    drop(server);
    let log = std::fs::read_to_string(log.path()).unwrap();
    let said = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    let named =
        log.lines().filter(|line| line.contains("pathbox::host") && line.contains("package python3")).count();
    assert_eq!(named, 1, "{log}");
    assert_eq!(said("pathbox::host: python3 at /nowhere/python3 does not start"), 1, "{log}");
}

#[test]
#[ignore = "needs packages from PyPI: scripts/test installs them"]
fn the_directory_of_a_virtual_environment_names_its_python() {
    let data = tempfile::tempdir().unwrap();
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env/science");
    let mut serve = command(data.path());
    serve.arg("serve").env("PATHBOX_HOST_PYTHON", &environment);
    let mut server = Server::start_with(&mut serve);
    // The first cell of a new interpreter finds what `site` brings.
    let result = call(&mut server, "import sys; print(sys.prefix, type(help).__name__)", "python");
    let prefix = format!("{} _Helper\n", environment.display());
    assert_eq!(result["structuredContent"]["stdout"], prefix, "{result}");
    drop(server);
    let mut add = command(data.path());
    let added = add.args(["templates", "add", "science", "--python"]).arg(&environment).output().unwrap();
    assert!(added.status.success(), "{added:?}");
    let shown = command(data.path()).args(["templates", "show", "science"]).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("matplotlib"), "{shown:?}");
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn several_languages_share_a_sandbox_and_each_has_its_own_variables() {
    let bench = Bench::new().await;
    let cells = [
        "x = 'python'; open('python', 'w').write(x)",
        "const x = 'javascript'; require('fs').writeFileSync('javascript', x)",
        "const x: string = 'typescript'; require('fs').writeFileSync('typescript', x)",
        "x=bash; printf %s $x > bash",
    ];
    for (language, code) in LANGUAGES.iter().zip(cells) {
        let told = bench.run(code, language).await;
        assert!(told.errors.is_empty(), "{language}: {told:?}");
    }
    let list = [
        "import os; sorted(os.listdir('.')), x",
        "[require('fs').readdirSync('.').sort().join(), x]",
        "[require('fs').readdirSync('.').sort().join(), x as string]",
        "ls | sort | tr '\\n' ' '; echo $x",
    ];
    for (language, code) in LANGUAGES.iter().zip(list) {
        let told = bench.run(code, language).await;
        let said = format!(
            "{}{}",
            told.stdout,
            told.results.iter().filter_map(|r| r.text.as_deref()).collect::<String>()
        );
        for file in LANGUAGES {
            assert!(said.contains(file), "{language} sees {file}: {said}");
        }
        assert!(said.trim_end_matches(['\'', ']', ')', ' ', '\n']).ends_with(language), "its own x: {said}");
    }
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn reading_input_fails_with_the_reason() {
    let bench = Bench::new().await;
    let told = bench.python("name = input('name? ')").await;
    let error = told.error();
    assert_eq!(&*error.name, "StdinNotImplementedError");
    assert_eq!(&*error.value, "raw_input was called, but this frontend does not support input requests.");
    assert!(error.traceback.contains("----> 1 name = input('name? ')"), "{error:?}");
    for (code, language, said) in [
        ("import sys; repr(sys.stdin.readline())", "python", "''"),
        ("require('fs').readFileSync(0, 'utf8').length", "javascript", "0"),
        ("require('fs').readFileSync(0, 'utf8').length as number", "typescript", "0"),
    ] {
        let told = bench.run(code, language).await;
        assert_eq!(told.value().trim_matches('"'), said, "{language}: it has ended already");
    }
    let told = bench.run("read name; echo $?", "bash").await;
    assert_eq!(told.output(), "1\n");
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn typescript_has_what_javascript_has() {
    let bench = Bench::new().await;
    bench.run("const a: number = 1; let b = 'x'; class C { v = 1 } enum E { A = 1 }", "typescript").await;
    let told = bench.run("const a: string = 'again'; let b = 2; class C { v = 2 } enum E { A = 5 }\n[a, b, new C().v, E.A]", "typescript").await;
    assert_eq!(told.value(), "[ 'again', 2, 2, 5 ]");
    let told = bench
        .run(
            "const w: string = await new Promise<string>((done) => setTimeout(done, 10, 'awaited')); w",
            "typescript",
        )
        .await;
    assert_eq!(told.value(), "awaited");
    let mut stream = bench
        .kernels
        .execute(pathbox::wire::interpreter::ExecuteRequest::in_language(
            "console.log('on' as string); for (;;) {}",
            "typescript",
        ))
        .unwrap();
    while !matches!(
        futures::StreamExt::next(&mut stream).await,
        Some(pathbox::wire::interpreter::Event::Stdout(_)) | None
    ) {}
    drop(stream);
    assert_eq!(bench.run("a", "typescript").await.value(), "again", "an interrupt keeps the variables");
}

#[tokio::test]
#[ignore = "needs pandas and matplotlib: scripts/test installs them"]
async fn the_users_own_environment_is_used_and_cannot_be_changed() {
    let venv = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env/science");
    let venv = venv.canonicalize().unwrap();
    let bench = Bench::with_python(venv.join("bin/python")).await;
    let told = bench.python("import os, sys, pandas; sys.prefix").await;
    assert_eq!(told.value(), venv.to_string_lossy());
    let code = "packages = os.path.dirname(os.path.dirname(pandas.__file__))\n\
        def tried(step):\n    try: step()\n    except OSError as error: return error.errno\n    return 'done'\n\
        [tried(lambda: open(os.path.join(packages, 'evil.py'), 'w')), tried(lambda: open(pandas.__file__, 'a')),\n \
        tried(lambda: os.unlink(pandas.__file__)), tried(lambda: os.rename(packages, packages + '2')),\n \
        tried(lambda: os.chmod(pandas.__file__, 0o666)), tried(lambda: os.mkdir(os.path.join(sys.prefix, 'd')))]";
    let told = bench.python(code).await;
    let errors: Vec<i32> = serde_json::from_str(&told.results[0].json.as_ref().unwrap().to_string()).unwrap();
    assert!(
        errors.iter().all(|errno| [libc::EROFS, libc::EACCES, libc::EPERM].contains(errno)),
        "{errors:?}"
    );
    assert!(!venv.join("d").exists());
    let told = bench.python("import subprocess\nsubprocess.run([sys.executable, '-m', 'pip', 'uninstall', '-y', 'pandas'], capture_output=True).returncode != 0").await;
    assert_eq!(told.value(), "True");
    assert_eq!(
        bench.python("import importlib; importlib.reload(pandas).DataFrame({'a': [1]}).shape").await.value(),
        "(1, 1)"
    );
}

#[test]
#[ignore = "needs node: scripts/test installs it"]
fn a_program_that_ends_itself_with_a_status_has_that_status_and_no_traceback() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(command(data.path()).arg("serve"));
    for (language, exit) in [
        ("python", "import sys; sys.exit(N)"),
        ("javascript", "process.exit(N)"),
        ("typescript", "process.exit(N as number)"),
        ("bash", "exit N"),
    ] {
        let ended = |result: &Value| {
            let said = &result["structuredContent"];
            let text = result["content"][0]["text"].as_str().unwrap();
            assert_eq!(text.lines().count(), 1, "{language}: the head says it all: {text}");
            (said["success"].clone(), said["exitCode"].clone(), said["error"]["message"].clone())
        };
        let failed = call(&mut server, &exit.replace('N', "3"), language);
        assert_eq!(ended(&failed), (json!(false), json!(3), json!("3")), "{language}");
        assert_ne!(failed["structuredContent"]["error"]["name"], "", "{language}");
        let succeeded = call(&mut server, &exit.replace('N', "0"), language);
        let note = &succeeded["structuredContent"]["notes"];
        assert_eq!(succeeded["structuredContent"].get("error"), None, "{language}: {note}");
    }
}

#[test]
fn redirected_output_is_noted_until_it_is_restored() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(command(data.path()).arg("serve"));
    call(&mut server, "import io, sys; kept, sys.stdout = sys.stdout, io.StringIO()", "python");
    let lost = call(&mut server, "print('lost')", "python");
    assert!(lost["structuredContent"]["stderr"].as_str().unwrap().contains("replaced by StringIO"), "{lost}");
    let back = call(&mut server, "sys.stdout = kept; print('back')", "python");
    assert_eq!(
        (&back["structuredContent"]["stdout"], &back["structuredContent"]["stderr"]),
        (&json!("back\n"), &json!(""))
    );
}

#[test]
fn a_run_that_timed_out_says_where_it_was_interrupted_and_what_it_printed_after_that() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(command(data.path()).arg("serve"));
    let code = "import time\ndef wait():\n    try:\n        time.sleep(60)\n    finally:\n        print('cleaned up')\nwait()";
    let late =
        server.call(json!({"code": code, "language": "python", "timeout_ms": 1_000}), json!({}))["structuredContent"].take();
    assert_eq!(
        (&late["exitCode"], &late["state"], &late["error"]["name"]),
        (&json!(124), &json!("fresh"), &json!("timeout"))
    );
    let said = late["stderr"].as_str().unwrap();
    assert!(
        said.starts_with("note: after the interrupt:\ncleaned up\n")
            && said.contains("----> 4         time.sleep(60)"),
        "{said}"
    );
    let next = call(&mut server, "1", "python");
    assert_eq!(next["structuredContent"]["stderr"], "", "it is said once: {next}");
}
