//! A copy of the database, restored elsewhere: what a server on it knows, and that it is honest about what is lost.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sqlx::Connection;

use crate::support::database::cluster;
use crate::support::http::HttpServer;
use crate::support::server::command;

const KEYS: &str = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A command on a data directory and, for Postgres, a database.
fn on(data: &Path, url: Option<&str>) -> Command {
    let mut command = command(data);
    command.env("PATHBOX_SECRET_KEYS", KEYS);
    if let Some(url) = url {
        command.env("DATABASE_URL", url);
    }
    command
}

fn json_of(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Serves, takes a copy of a database in use by `copy`, ends, and looks at what a server elsewhere makes of it.
async fn a_copy_serves_elsewhere(
    from: (&Path, Option<&str>),
    to: (&Path, Option<&str>),
    copy: impl AsyncFnOnce(),
) {
    let add = ["keys", "add", "--json", "--name", "k", "--tenant", "acme", "--scopes", "run,read"];
    let key = json_of(on(from.0, from.1).args(add))["key"].as_str().unwrap().to_owned();
    let auth = format!("Bearer {key}");
    let run = |server: &HttpServer, code: &str| -> Value {
        let arguments = json!({"code": code, "language": "python"});
        let meta = json!({"dev.pathbox/conversationId": "chat"});
        server.stateless(&[("Authorization", &auth)], "run_code", arguments, meta).answer()["result"].take()
    };
    let required = ["--set", "http.auth=required"];
    let first = HttpServer::start_with(on(from.0, from.1).args(required));
    assert_eq!(run(&first, "x = 41; 'made'")["structuredContent"]["output"], "made");
    copy().await;
    // What happens after the copy is not in it.
    run(&first, "x = 42");
    drop(first);

    let second = HttpServer::start_with(on(to.0, to.1).args(required));
    let answer = run(&second, "try:\n    print(x)\nexcept NameError:\n    print('gone')");
    let content = &answer["structuredContent"];
    assert_eq!(content["stdout"], "gone\n", "{answer}");
    assert_eq!(content["state"], "reset", "it says that the variables are gone: {answer}");
    drop(second);
    let chain = json_of(on(to.0, to.1).args(["audit", "verify", "--json"]));
    assert_eq!((&chain["sound"], &chain["chains"][0]["entries"]), (&true.into(), &2.into()), "{chain}");
    let usage = json_of(on(to.0, to.1).args(["usage", "--json"]));
    assert_eq!(usage["lines"][0]["executions"], 2, "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_sqlite_serves_elsewhere() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = async || {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(from.path().join("pathbox.db"));
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
        let file = to.path().join("pathbox.db");
        sqlx::query("VACUUM INTO ?").bind(file.to_str().unwrap()).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    };
    a_copy_serves_elsewhere((from.path(), None), (to.path(), None), copy).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn a_dump_of_postgres_serves_elsewhere() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cluster = cluster().await;
    let (database, restored) = (cluster.database().await, cluster.empty_database());
    let (url, other) = (database.url(), restored.url());
    let copy = async || {
        let file = to.path().join("pathbox.dump");
        let run = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        run(cluster.tool("pg_dump").args(["-Fc", "-n", "pathbox", "-d", url.expose(), "-f"]).arg(&file));
        run(cluster.tool("pg_restore").args(["--exit-on-error", "-d", other.expose()]).arg(&file));
    };
    let (from, to) = ((from.path(), Some(url.expose())), (to.path(), Some(other.expose())));
    a_copy_serves_elsewhere(from, to, copy).await;
}
