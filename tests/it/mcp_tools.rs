//! The tools beside `run_code`, resources, prompts and completion, through the doors that clients use.

use serde_json::{Value, json};

use crate::support::server::Server;

fn tool(server: &mut Server, name: &str, arguments: Value, meta: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments, "_meta": meta});
    let mut answer = server.request("tools/call", params);
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].take()
}

fn python(code: &str) -> Value {
    json!({"code": code, "language": "python", "timeout_ms": 60_000})
}

#[test]
fn tools_are_listed_in_a_fixed_order_and_strict_hosts_take_their_schemas() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let listed = server.request("tools/list", json!({}))["result"]["tools"].take();
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "run_code",
            "run_analysis",
            "get_analysis_help",
            "manage_context",
            "get_execution",
            "get_artifact",
            "files"
        ]
    );
    for tool in listed.as_array().unwrap() {
        for which in ["inputSchema", "outputSchema"] {
            let found = pathbox::mcp::schema::refused(&tool[which]);
            assert!(found.is_empty(), "{} {which}: {found:?}", tool["name"]);
        }
        assert!(tool["annotations"]["readOnlyHint"].is_boolean() && tool["title"].is_string(), "{tool}");
    }
}

#[test]
fn a_flood_is_read_page_by_page_to_its_last_byte() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = "for n in range(310_000): print(f'{n:06}', 'é' * 46)";
    // A busy machine may take its time.
    let arguments = json!({"code": code, "language": "python", "timeout_ms": 280_000});
    let result = server.call(arguments, json!({"dev.pathbox/patienceMs": 300_000}));
    let content = &result["structuredContent"];
    let (uri, total) = (content["artifacts"][0]["uri"].as_str().unwrap(), 310_000 * (6 + 1 + 92 + 1));
    assert_eq!(content["artifacts"][0]["bytes"], total);
    let mut at = uri.to_owned();
    let (mut seen, mut lines) = (0, 0);
    loop {
        let answer = server.request("resources/read", json!({"uri": at}));
        let page = &answer["result"]["contents"][0];
        assert!(answer.to_string().len() < 1_000_000, "hosts refuse more");
        let text = page["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(!text.contains('\u{fffd}'), "no character is cut");
        seen += text.len();
        lines += text.matches('\n').count();
        match page["_meta"]["dev.pathbox/next"].as_str() {
            Some(next) => at = next.to_owned(),
            None => break,
        }
    }
    assert_eq!((seen, lines), (total, 310_000));

    let id = content["executionId"].clone();
    let page = json!({"execution_id": id, "stream": "stdout", "offset": total - 100, "limit": 50});
    let page = tool(&mut server, "get_execution", page, json!({}));
    let page = &page["structuredContent"];
    assert_eq!(page["totalBytes"], total);
    assert!(page["text"].as_str().unwrap().starts_with("309999 é"), "{page}");
    assert_eq!(page["nextOffset"], page["offset"].as_u64().unwrap() + page["bytes"].as_u64().unwrap());
    let last = json!({"execution_id": id, "stream": "stdout", "offset": total});
    assert!(
        tool(&mut server, "get_execution", last, json!({}))["structuredContent"].get("nextOffset").is_none()
    );
}

const PICTURE: &str = "
import struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
class Picture:
    def _repr_png_(self):
        rows = b''.join(b'\\0' + bytes([200, 30, 30] * 40) for _ in range(20))
        head = struct.pack('>IIBBBBB', 40, 20, 8, 2, 0, 0, 0)
        return b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
Picture()";

#[test]
fn a_picture_is_an_image_block_a_link_and_a_result_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let result = server.python(PICTURE);
    let blocks = result["content"].as_array().unwrap();
    let image = blocks.iter().find(|block| block["type"] == "image").unwrap_or_else(|| panic!("{result}"));
    assert_eq!(image["mimeType"], "image/png");
    let link = blocks.iter().find(|block| block["type"] == "resource_link").unwrap();
    let artifact = &result["structuredContent"]["artifacts"][0];
    assert_eq!((&artifact["uri"], &artifact["mimeType"]), (&link["uri"], &json!("image/png")));
    let base64 = image["data"].as_str().unwrap();
    assert!(
        !result["structuredContent"].to_string().contains(&base64[..40]),
        "pictures are not in structured content"
    );

    let alone = tool(&mut server, "get_artifact", json!({"uri": artifact["uri"]}), json!({}));
    assert_eq!(alone["content"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&alone["content"][0]["type"], alone["content"][0]["data"].as_str()),
        (&json!("image"), Some(base64))
    );
    assert!(alone.get("structuredContent").is_none(), "hosts drop pictures beside structured content");

    let read = server.request("resources/read", json!({"uri": artifact["uri"]}));
    assert_eq!(read["result"]["contents"][0]["mimeType"], "image/png", "{read}");
    let listed = server.request("resources/list", json!({}));
    assert!(
        listed["result"]["resources"].as_array().unwrap().iter().any(|one| one["uri"] == artifact["uri"])
    );
    for unknown in [
        artifact["uri"].as_str().unwrap().replace("result-1", "result-9"),
        "pathbox://executions/00000000-0000-7000-8000-000000000000/stdout".into(),
        format!("{}/../../pathbox.db", artifact["uri"].as_str().unwrap()),
        "file:///etc/passwd".into(),
    ] {
        let answer = server.request("resources/read", json!({"uri": unknown}));
        assert_eq!(answer["error"]["code"], -32002, "{unknown}: {answer}");
        let result = tool(&mut server, "get_artifact", json!({"uri": unknown}), json!({}));
        assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], "not_found", "{result}");
    }
}

#[test]
fn a_client_without_support_for_links_gets_text() {
    let data = tempfile::tempdir().unwrap();
    for (version, client, takes_links) in [
        ("2025-11-25", "test", true),
        ("2025-06-18", "test", true),
        ("2025-03-26", "test", false),
        ("2024-11-05", "test", false),
        ("2025-11-25", "mcp", false),
    ] {
        let mut server = Server::raw(crate::support::server::command(data.path()).arg("serve"));
        let client_info = json!({"name": client, "version": "0"});
        let hello = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client_info});
        server.request("initialize", hello);
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        let result = server.python(PICTURE);
        let blocks = result["content"].as_array().unwrap();
        let has = |kind: &str| blocks.iter().any(|block| block["type"] == kind);
        assert!(has("image"), "{version}, {client}: {result}");
        assert_eq!(has("resource_link"), takes_links, "{version}, {client}: {result}");
        let uri = result["structuredContent"]["artifacts"][0]["uri"].as_str().unwrap();
        let is_written = blocks.iter().any(|block| block["text"].as_str().is_some_and(|t| t.contains(uri)));
        assert_eq!(is_written, !takes_links, "{version}, {client}: {result}");
    }
}

#[test]
fn each_setting_of_inline_images_shows_a_plot_as_it_says() {
    for (setting, to_others, to_claude_code) in
        [("auto", true, false), ("always", true, true), ("never", false, false)]
    {
        let data = tempfile::tempdir().unwrap();
        let mut command = crate::support::server::command(data.path());
        let mut server =
            Server::start_with(command.arg("serve").env("PATHBOX_OUTPUT_INLINE_IMAGES", setting));
        for (client, shown) in [("test", to_others), ("claude-code", to_claude_code)] {
            let meta = json!({"io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"}});
            let result = tool(&mut server, "run_code", python(PICTURE), meta.clone());
            let has = |kind: &str| result["content"].as_array().unwrap().iter().any(|b| b["type"] == kind);
            assert_eq!(has("image"), shown, "{setting}, {client}: {result}");
            assert!(has("resource_link"), "a link is always there: {result}");
            let artifact = &result["structuredContent"]["artifacts"][0];
            assert_eq!(artifact["mimeType"], "image/png", "and it is named in the structured content");
            // Whoever was not shown it can ask for it.
            let alone = tool(&mut server, "get_artifact", json!({"uri": artifact["uri"]}), meta);
            assert_eq!(alone["content"][0]["type"], "image", "{alone}");
        }
    }
}

#[test]
fn contexts_are_listed_reset_and_branched() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("x = 1");
    let manage = |server: &mut Server, arguments: Value| {
        let mut result = tool(server, "manage_context", arguments, json!({}));
        assert!(result.get("isError").is_none(), "{result}");
        result["structuredContent"].take()
    };
    let shown = manage(&mut server, json!({"action": "show"}));
    assert_eq!((&shown["status"], &shown["runs"]), (&json!("ready"), &json!(1)), "{shown}");
    assert!(!shown.to_string().contains("sandbox"), "where it runs is nobody's business");

    let branch = manage(&mut server, json!({"action": "branch", "path": "what-if"}));
    let mut there = python("x");
    there["context"] = branch["context"].clone();
    let result = tool(&mut server, "run_code", there, json!({}));
    assert_eq!(result["structuredContent"]["error"]["name"], "NameError", "a branch starts afresh");
    assert_eq!(manage(&mut server, json!({"action": "list"}))["contexts"].as_array().unwrap().len(), 2);
    assert_eq!(server.python("x")["structuredContent"]["output"], "1", "the branch took nothing away");

    assert_eq!(manage(&mut server, json!({"action": "reset"}))["ended"], true);
    let result = server.python("x");
    let content = &result["structuredContent"];
    assert_eq!(
        (&content["state"], &content["error"]["name"]),
        (&json!("reset"), &json!("NameError")),
        "{content}"
    );
    for bad in [
        json!({"action": "destroy"}),
        json!({"action": "branch", "path": "a/b"}),
        json!({"action": "branch", "path": "main"}),
    ] {
        assert_eq!(tool(&mut server, "manage_context", bad, json!({}))["isError"], true);
    }
}

#[test]
fn a_person_can_ask_for_a_tool_by_a_prompt_and_complete_its_arguments() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let listed = server.request("prompts/list", json!({}));
    assert_eq!(listed["result"]["prompts"][0]["name"], "run_code");
    let params = json!({"name": "run_code", "arguments": {"task": "add 1 and 1", "language": "bash"}});
    let filled = server.request("prompts/get", params);
    let text = filled["result"]["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(text.contains("`run_code`") && text.contains("bash") && text.contains("add 1 and 1"), "{text}");
    assert_eq!(server.request("prompts/get", json!({"name": "run_code"}))["error"]["code"], -32602);
    assert_eq!(server.request("prompts/get", json!({"name": "nope"}))["error"]["code"], -32602);
    let complete = json!({"ref": {"type": "ref/prompt", "name": "run_code"}, "argument": {"name": "language", "value": "p"}});
    let answer = server.request("completion/complete", complete);
    assert_eq!(answer["result"]["completion"]["values"], json!(["python"]), "{answer}");
}

#[test]
fn another_tenants_runs_do_not_exist() {
    let data = tempfile::tempdir().unwrap();
    let mut one =
        Server::start_with(crate::support::server::command(data.path()).args(["serve", "--tenant", "one"]));
    let result = one.python(PICTURE);
    let content = &result["structuredContent"];
    let mut two =
        Server::start_with(crate::support::server::command(data.path()).args(["serve", "--tenant", "two"]));
    let id = json!({"execution_id": content["executionId"]});
    for (name, arguments) in [
        ("get_execution", id.clone()),
        ("get_execution", json!({"execution_id": content["executionId"], "cancel": true})),
        ("get_execution", json!({"execution_id": content["executionId"], "stream": "stdout"})),
        ("get_artifact", json!({"uri": content["artifacts"][0]["uri"]})),
        ("manage_context", json!({"action": "end", "context": content["context"]})),
    ] {
        let result = tool(&mut two, name, arguments, json!({}));
        assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], "not_found", "{name}: {result}");
    }
    let read = two.request("resources/read", json!({"uri": content["artifacts"][0]["uri"]}));
    assert_eq!(read["error"]["code"], -32002, "{read}");
    assert!(tool(&mut one, "get_execution", id, json!({}))["structuredContent"].is_object());
}
