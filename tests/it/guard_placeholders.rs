//! Placeholders both ways: in the code of a later call a placeholder is the value that it replaced, in the sandbox and nowhere
//! else.

use std::path::Path;
use std::process::Command;

use pathbox::domain::{ContextKey, EndReason};
use pathbox::store::{ContextLimits, KeptValue, Secret};
use serde_json::{Value, json};

use crate::support::database::{World, cluster};
use crate::support::http::HttpServer;
use crate::support::on_every_store;
use crate::support::runs::{end, first_run, key};
use crate::support::server::command;

const MAIL: &str = "alice.walker@corp-mail.ie";
/// Syntax that a shell, a template and a format would each interpret.
const HOSTILE: &str = "ID-'${HOME}$(id)`id`{x}%s!-DI";

const POLICY: &str = r#"
version = "both-ways"
placeholders = "resolve"
[[rule]]
id = "odd-id"
kind = "NATIONAL_ID"
pattern = 'ID-[^"\s-]+-DI'
examples = ["ID-12-DI"]
[tenants.beta]
placeholders = "text"
"#;

/// Prints both values: `[NATIONAL_ID_1]`, `[EMAIL_1]`.
fn shows() -> String {
    format!("print(\"{HOSTILE}\")\nprint('{MAIL}')")
}

fn sha256(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn user(data: &mut Command, tenant: &str) -> String {
    let add = ["keys", "add", "--json", "--name", "k", "--tenant", tenant, "--scopes", "run,read"];
    let output = data.args(add).output().unwrap();
    let made: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    format!("Bearer {}", made["key"].as_str().unwrap())
}

fn call(server: &HttpServer, key: &str, conversation: &str, tool: &str, arguments: Value) -> Value {
    let meta = json!({"dev.pathbox/conversationId": conversation});
    let mut answer = server.stateless(&[("Authorization", key)], tool, arguments, meta).answer();
    assert!(answer["result"].is_object(), "{answer}");
    let result = answer["result"].take();
    assert!(!result.to_string().contains("walker") && !result.to_string().contains("`id`"), "{result}");
    result
}

fn run(server: &HttpServer, key: &str, conversation: &str, language: &str, code: &str) -> Value {
    call(server, key, conversation, "run_code", json!({"code": code, "language": language}))
}

/// The output of a program.
fn says(server: &HttpServer, key: &str, conversation: &str, language: &str, code: &str) -> String {
    let result = run(server, key, conversation, language, code);
    result["structuredContent"]["stdout"].as_str().unwrap_or_else(|| panic!("{result}")).trim_end().to_owned()
}

/// The reason why a program did not run.
fn refusal(result: &Value) -> String {
    assert_eq!(result["isError"], true, "{result}");
    let said = result.to_string();
    assert!(said.contains("placeholder_unresolved"), "{said}");
    said
}

fn server(data: &Path, prepare: impl FnOnce(&mut Command)) -> HttpServer {
    let policy = data.join("policy.toml");
    std::fs::write(&policy, POLICY).unwrap();
    let mut command = command(data);
    command
        .env("PATHBOX_GUARD_POLICY", &policy)
        .env("PATHBOX_HTTP_AUTH", "required")
        .env("PATHBOX_LOG", "trace");
    prepare(&mut command);
    HttpServer::start_with(&mut command)
}

/// Fails if one of the values is in a file of the database or in a log.
fn assert_nowhere(texts: &[Vec<u8>]) {
    for text in texts {
        for value in [MAIL, HOSTILE] {
            let at = memchr::memmem::find(text, value.as_bytes());
            let around = at.map(|at| String::from_utf8_lossy(&text[at.saturating_sub(200)..at]).into_owned());
            assert_eq!(around, None, "{value}");
        }
    }
}

/// Each language receives the exact value, and each form in which it is printed becomes its placeholder again.
fn assert_resolves(server: &HttpServer, key: &str) {
    let hash = sha256(HOSTILE);
    let python = "import base64, hashlib\nv, m = \"[NATIONAL_ID_1]\", f'[EMAIL_1]'  # not [EMAIL_7]\n\
                  print(hashlib.sha256(v.encode()).hexdigest())\nprint(v, m)\n\
                  print(base64.b64encode(m.encode()).decode(), m.encode().hex(), m[::-1])";
    let expected = format!("{hash}\n[NATIONAL_ID_1] [EMAIL_1]\n[EMAIL_1] [EMAIL_1] [EMAIL_1]");
    assert_eq!(says(server, key, "c", "python", python), expected);
    let script = "const v = `[NATIONAL_ID_1]`;\nconsole.log(require('crypto').createHash('sha256').update(v).digest('hex'));\n\
                  console.log('[EMAIL_1]')";
    assert_eq!(says(server, key, "c", "javascript", script), format!("{hash}\n[EMAIL_1]"));
    let bash = "printf %s '[NATIONAL_ID_1]' | sha256sum | cut -c1-64\nx=\"[NATIONAL_ID_1]\"; printf %s \"$x\" | sha256sum | cut -c1-64";
    assert_eq!(says(server, key, "c", "bash", bash), format!("{hash}\n{hash}"));
    // Messages that quote the code show the placeholder.
    let failed = run(server, key, "c", "python", "raise ValueError('[EMAIL_1] ' + '[NATIONAL_ID_1]')");
    let error = &failed["structuredContent"]["error"];
    assert_eq!(error["message"], "[EMAIL_1] [NATIONAL_ID_1]", "{failed}");
}

#[test]
fn a_placeholder_in_the_code_of_its_context_is_its_value_there_and_nowhere_else() {
    let data = tempfile::tempdir().unwrap();
    let keys = ["acme", "acme", "beta"].map(|tenant| user(&mut command(data.path()), tenant));
    let [ada, bob, other] = keys.each_ref().map(String::as_str);
    let first = server(data.path(), |_| {});
    assert_eq!(says(&first, ada, "c", "python", &shows()), "[NATIONAL_ID_1]\n[EMAIL_1]");
    assert_resolves(&first, ada);

    // Elsewhere it stays text: for another user of the tenant, in another conversation, and if a policy says so.
    for (key, conversation) in [(bob, "c"), (ada, "d"), (other, "c")] {
        if key == other {
            says(&first, key, conversation, "python", &shows());
        }
        assert_eq!(
            says(&first, key, conversation, "python", "print(len('[EMAIL_1]'))"),
            "9",
            "{conversation}"
        );
    }
    assert_eq!(says(&first, ada, "c", "python", "print(len('[EMAIL_9]'))"), "9", "a number that never was");

    // A place that cannot hold the value.
    let said = refusal(&run(&first, ada, "c", "python", "print(1)\nx = [EMAIL_1]"));
    assert!(said.contains("EMAIL_1 in line 2") && said.contains("outside of a string literal"), "{said}");
    let said = refusal(&run(&first, ada, "c", "javascript", "x = /[NATIONAL_ID_1]/"));
    assert!(said.contains("NATIONAL_ID_1 in line 1"), "{said}");

    // Another process on this database; the sandbox belongs to the first one.
    let second = server(data.path(), |_| {});
    assert_eq!(
        says(&second, ada, "c", "bash", "x='[EMAIL_1]'; echo ${#x} \"$x\""),
        format!("{} [EMAIL_1]", MAIL.len())
    );

    // The values are deleted with the context; the number still belongs to the same value.
    call(&second, ada, "c", "manage_context", json!({"action": "end"}));
    let said = refusal(&run(&second, ada, "c", "python", "print('[EMAIL_1]')"));
    assert!(said.contains("not kept"), "{said}");
    assert_eq!(says(&second, ada, "c", "python", &shows()), "[NATIONAL_ID_1]\n[EMAIL_1]");
    assert_eq!(says(&second, ada, "c", "python", "print(len('[EMAIL_1]'))"), MAIL.len().to_string());

    let mut texts = vec![first.log().into_bytes(), second.log().into_bytes()];
    drop((first, second));
    for file in std::fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap().path()) {
        if file.file_name().unwrap().to_string_lossy().starts_with("pathbox.db") {
            texts.push(std::fs::read(file).unwrap());
        }
    }
    assert!(texts.len() > 2);
    assert_nowhere(&texts);
}

#[test]
fn a_sandbox_with_network_access_gets_no_value() {
    let data = tempfile::tempdir().unwrap();
    let ada = user(&mut command(data.path()), "acme");
    let config = data.path().join("settings.toml");
    std::fs::write(&config, "[sandbox]\nallow_out = \"example.com\"\n").unwrap();
    let open = server(data.path(), |command| {
        command.env("PATHBOX_CONFIG", &config);
    });
    assert_eq!(says(&open, &ada, "c", "python", &shows()), "[NATIONAL_ID_1]\n[EMAIL_1]");
    let said = refusal(&run(&open, &ada, "c", "python", "print('[EMAIL_1]')"));
    assert!(said.contains("placeholders_open_network"), "{said}");
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn another_replica_on_postgres_resolves_what_one_has_shown() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let url = database.url().expose().to_owned();
    let on_postgres = |command: &mut Command| {
        command
            .env("DATABASE_URL", &url)
            .env("PATHBOX_SECRET_KEYS", "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    };
    // Without a key shared by all replicas nothing is served.
    let alone = tempfile::tempdir().unwrap();
    std::fs::write(alone.path().join("policy.toml"), POLICY).unwrap();
    let mut refused = command(alone.path());
    refused.env("DATABASE_URL", &url).env("PATHBOX_GUARD_POLICY", alone.path().join("policy.toml"));
    let refused = refused.args(["serve", "--http", "127.0.0.1:0"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("set PATHBOX_SECRET_KEYS"), "{said}");

    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut prepared = command(directories[0].path());
    on_postgres(&mut prepared);
    let ada = user(&mut prepared, "acme");
    let replicas = directories.each_ref().map(|data| server(data.path(), on_postgres));
    assert_eq!(says(&replicas[0], &ada, "c", "python", &shows()), "[NATIONAL_ID_1]\n[EMAIL_1]");
    assert_resolves(&replicas[1], &ada);
    runtime.block_on(async {
        let mut connection = database.connect().await;
        let (values, resolved): (i64, i64) =
            sqlx::query_as("select count(*), sum(resolved)::bigint from pathbox.placeholder_values")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert_eq!((values, resolved), (2, 7));
    });
    let dump = runtime.block_on(cluster()).tool("pg_dump").arg(&url).output().unwrap();
    assert!(dump.status.success() && dump.stdout.len() > 10_000, "{dump:?}");
    assert_nowhere(&[dump.stdout, replicas[0].log().into_bytes(), replicas[1].log().into_bytes()]);
}

on_every_store! {
    values_are_kept_sealed_for_their_context_and_end_with_it,
    a_context_keeps_and_returns_a_limited_number_of_values,
}

fn value(kind: &str, number: u32, text: &str) -> KeptValue {
    (kind.to_owned(), number, Secret::new(text))
}

fn mail(number: u32) -> Vec<(String, u32)> {
    vec![("EMAIL".to_owned(), number)]
}

async fn values_are_kept_sealed_for_their_context_and_end_with_it(world: World) {
    let (one, limits) = (world.store().await, ContextLimits::default());
    let of: fn(&str) -> ContextKey = |conversation| key("acme", conversation, "main");
    let tenant = of("c1").tenant;
    let (here, there) =
        (first_run(&one, &of("c1"), &limits).await, first_run(&one, &of("c2"), &limits).await);
    let values = [value("EMAIL", 1, MAIL), value("NATIONAL_ID", 1, HOSTILE)];
    one.keep_values(&tenant, here.id, &values).await.unwrap();
    // The first value of a number stays.
    one.keep_values(&tenant, here.id, &[value("EMAIL", 1, "other@corp-mail.ie")]).await.unwrap();
    drop(one);

    let other = world.store().await;
    let wanted = [mail(1), mail(2), vec![("NATIONAL_ID".to_owned(), 1)]].concat();
    let mut taken = other.take_values(&tenant, here.id, &wanted).await.unwrap().unwrap();
    taken.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(taken, values);
    let none: Option<Vec<KeptValue>> = Some(Vec::new());
    assert_eq!(other.take_values(&tenant, there.id, &wanted).await.unwrap(), none, "another context");
    assert_eq!(
        other.take_values(&key("beta", "c1", "main").tenant, here.id, &wanted).await.unwrap(),
        none,
        "another tenant"
    );

    // A value that is copied to another number or context cannot be opened there.
    let copy = format!(
        "INSERT INTO placeholder_values (tenant_id, context_id, kind, number, sealed)
         SELECT tenant_id, '{}', kind, number, sealed FROM placeholder_values WHERE kind = 'EMAIL'",
        there.id
    );
    world.sql(&copy).await.unwrap();
    world.sql("UPDATE placeholder_values SET number = 5 WHERE kind = 'NATIONAL_ID'").await.unwrap();
    assert_eq!(other.take_values(&tenant, there.id, &mail(1)).await.unwrap(), none);
    assert_eq!(other.take_values(&tenant, here.id, &[("NATIONAL_ID".to_owned(), 5)]).await.unwrap(), none);

    assert!(other.end(&end(&of("c1"), here.id, None, EndReason::Manual), &limits).await.unwrap());
    let left = format!("SELECT count(*) FROM placeholder_values WHERE context_id = '{}'", here.id);
    assert_eq!(world.number(&left).await, 0);
    other.keep_values(&tenant, here.id, &values).await.unwrap();
    assert_eq!(world.number(&left).await, 0, "nothing is kept of a context that has ended");
}

async fn a_context_keeps_and_returns_a_limited_number_of_values(world: World) {
    let (store, limits) = (world.store().await, ContextLimits::default());
    let key = key("acme", "c1", "main");
    let context = first_run(&store, &key, &limits).await.id;
    let many: Vec<KeptValue> = (1..=10_001).map(|n| value("EMAIL", n, "a@corp-mail.ie")).collect();
    store.keep_values(&key.tenant, context, &many[..9_999]).await.unwrap();
    store.keep_values(&key.tenant, context, &many).await.unwrap();
    assert_eq!(world.number("SELECT count(*) FROM placeholder_values").await, 10_000);
    let wanted: Vec<(String, u32)> = (1..=999).map(|n| ("EMAIL".to_owned(), n)).collect();
    assert_eq!(store.take_values(&key.tenant, context, &wanted).await.unwrap().unwrap().len(), 999);
    assert_eq!(store.take_values(&key.tenant, context, &wanted[..2]).await.unwrap(), None);
    assert_eq!(store.take_values(&key.tenant, context, &mail(1)).await.unwrap().unwrap().len(), 1);
    assert_eq!(store.take_values(&key.tenant, context, &mail(1)).await.unwrap(), None);
}
