//! Tool servers over Streamable HTTP: both eras of the protocol, a key in a header, and what is said of an address that does
//! not work. The server is a `pathbox serve --http` of its own.

use serde_json::{Value, json};

use crate::code_mode::Place;
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};

fn key(data: &std::path::Path) -> String {
    let arguments = ["keys", "add", "--json", "--tenant", "acme", "--name", "tools"];
    let output = command(data).args(arguments).output().unwrap();
    let key: Value = serde_json::from_slice(&output.stdout).unwrap();
    key["key"].as_str().unwrap().to_owned()
}

/// Settings of a server whose `Authorization` comes from the environment.
fn entry(name: &str, url: &str, protocol: &str) -> String {
    format!(
        "[[tools.server]]\nname = {name:?}\nurl = {url:?}\nprotocol = {protocol:?}\nheaders = {{ Authorization = {{ env = \"TOOL_KEY\" }} }}\n"
    )
}

fn upstream(data: &std::path::Path) -> HttpServer {
    HttpServer::start_with(command(data).env("PATHBOX_HTTP_AUTH", "required"))
}

#[test]
fn a_server_over_streamable_http_is_called_in_both_eras_with_its_key() {
    let data = tempfile::tempdir().unwrap();
    let key = key(data.path());
    let upstream = upstream(data.path());
    let url = format!("http://{}/mcp", upstream.address);
    let more = entry("older", &url, "2025-11-25")
        + &entry("newer", &url, "2026-07-28")
        + &entry("either", &url, "auto");
    let place = Place::new("", "", &more);
    let mut server =
        Server::start_with(place.command().env("TOOL_KEY", format!("Bearer {key}")).arg("serve"));
    let code = "import tools\nfrom tools import older, newer, either\nfor server in (older, newer, either):\n    \
        print(server.get_analysis_help(analysis_type='custom').startswith('custom: '))\ntry:\n    older.get_artifact(uri='pathbox://nothing')\n\
        except tools.ToolError as error:\n    print(error.kind)";
    let ran = server.call(json!({"code": code, "language": "python", "timeout_ms": 60_000}), json!({}));
    assert_eq!(ran["structuredContent"]["stdout"], "True\nTrue\nTrue\ntool\n", "{ran:#}");
    assert_eq!(ran["structuredContent"]["toolCalls"].as_array().unwrap().len(), 4, "{ran:#}");
}

#[test]
fn a_wrong_key_and_an_address_of_the_old_transport_are_named_and_no_secret_is_shown() {
    let data = tempfile::tempdir().unwrap();
    let upstream = upstream(data.path());
    let address = |path: &str| format!("http://{}/{path}", upstream.address);
    let more = entry("closed", &address("mcp"), "auto") + &entry("old", &address("sse"), "auto");
    let place = Place::new("", "", &more);
    let checked = place
        .command()
        .env("TOOL_KEY", "Bearer not-the-right-key")
        .args(["tools", "check"])
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success(), "{said}");
    assert!(
        said.contains("closed") && said.contains("the old HTTP+SSE transport, which is not spoken here"),
        "{said}"
    );
    assert!(!said.contains("not-the-right-key"), "{said}");
}
