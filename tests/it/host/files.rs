//! `/files` and `filesystem.Filesystem`.

use std::io::Write as _;

use http::Method;
use pathbox::wire::envd::file_signature;
use serde_json::{Value, json};

use super::{TestHost, TestSandbox, answer, exit_code, written};

async fn read(host: &TestHost, sandbox: &TestSandbox, path: &str) -> (u16, Vec<u8>) {
    let url = format!("/files?path={}", pathbox::wire::control::percent_encode(path));
    let response = host.to(sandbox, 49983, Method::GET, &url).send().await.unwrap();
    (response.status().as_u16(), response.bytes().await.unwrap().to_vec())
}

async fn write(host: &TestHost, sandbox: &TestSandbox, path: &str, bytes: Vec<u8>) -> (u16, Value) {
    let url = format!("/files?path={}", pathbox::wire::control::percent_encode(path));
    let request = host.to(sandbox, 49983, Method::POST, &url);
    answer(request.header("content-type", "application/octet-stream").body(bytes)).await
}

#[tokio::test]
async fn bytes_come_back_as_they_were_in_every_form_of_upload() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes())
        .take(3 << 20)
        .collect();
    for path in ["/home/user/deep/er/a b.bin", "relative.bin", "~/tilde ü.bin", "/tmp/x"] {
        let (status, told) = write(&host, &sandbox, path, bytes.clone()).await;
        assert_eq!(status, 200, "{told}");
        assert_eq!(told[0]["type"], "file");
        assert!(told[0]["path"].as_str().unwrap().starts_with('/'));
        assert!(read(&host, &sandbox, path).await == (200, bytes.clone()), "{path}");
    }
    // Shorter content replaces all of the longer one.
    write(&host, &sandbox, "relative.bin", b"short".to_vec()).await;
    assert_eq!(read(&host, &sandbox, "relative.bin").await.1, b"short");
    write(&host, &sandbox, "empty", Vec::new()).await;
    assert_eq!(read(&host, &sandbox, "empty").await, (200, Vec::new()));

    let part =
        |name: &str, bytes: &[u8]| reqwest::multipart::Part::bytes(bytes.to_vec()).file_name(name.to_owned());
    let form = reqwest::multipart::Form::new().part("file", part("ignored", &bytes));
    let request = host.to(&sandbox, 49983, Method::POST, "/files?path=form.bin").multipart(form);
    assert_eq!(answer(request).await.1[0]["path"], "/home/user/form.bin");
    assert!(read(&host, &sandbox, "form.bin").await.1 == bytes);
    let form = reqwest::multipart::Form::new()
        .part("file", part("/tmp/one.txt", b"1"))
        .part("note", part("x", b"not a file"))
        .part("file", part("two.txt", b"--2\r\n"));
    let (status, told) = answer(host.to(&sandbox, 49983, Method::POST, "/files").multipart(form)).await;
    assert_eq!((status, told.as_array().unwrap().len()), (200, 2), "{told}");
    assert_eq!(read(&host, &sandbox, "/tmp/one.txt").await.1, b"1");
    assert_eq!(read(&host, &sandbox, "two.txt").await.1, b"--2\r\n");

    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&bytes).unwrap();
    let request = host
        .to(&sandbox, 49983, Method::POST, "/files?path=gz.bin")
        .header("content-type", "application/octet-stream")
        .header("content-encoding", "gzip")
        .body(gzip.finish().unwrap());
    assert_eq!(answer(request).await.0, 200);
    assert!(read(&host, &sandbox, "gz.bin").await.1 == bytes);
}

#[tokio::test]
async fn impossible_uploads_are_refused_with_the_reason() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    for (path, status) in [("/etc/passwd", 403), ("/home/user", 400), ("/proc/1/mem", 404)] {
        let (got, body) = write(&host, &sandbox, path, b"x".to_vec()).await;
        assert!(got == status || (400..500).contains(&got), "{path}: {got} {body}");
        assert_eq!(body["code"], got, "{path}");
    }
    let too_much = vec![0; 300 << 20];
    let (status, body) = write(&host, &sandbox, "/tmp/full", too_much).await;
    assert_eq!(status, 507, "{body}");
    write(&host, &sandbox, "/tmp/full", Vec::new()).await;
    let request = host
        .to(&sandbox, 49983, Method::POST, "/files?path=x")
        .header("content-encoding", "gzip")
        .body("this is no gzip");
    assert_eq!(answer(request).await.0, 400);
    for (content_type, body) in [
        ("multipart/form-data", "x"),
        ("multipart/form-data; boundary=b", "--b\r\n\r\n\r\n"),
        ("multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx"),
    ] {
        let request = host.to(&sandbox, 49983, Method::POST, "/files?path=x");
        assert_eq!(answer(request.header("content-type", content_type).body(body)).await.0, 400, "{body}");
    }
    assert_eq!(answer(host.to(&sandbox, 49983, Method::POST, "/files").body("x")).await.0, 400);
    let request = host.to(&sandbox, 49983, Method::POST, "/files?path=x&username=root").body("x");
    assert_eq!(answer(request).await.0, 401);
}

#[tokio::test]
async fn downloads_support_ranges_and_refuse_anything_but_a_file() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    write(&host, &sandbox, "digits", b"0123456789".to_vec()).await;
    let ranged = |range: &'static str| {
        let request = host.to(&sandbox, 49983, Method::GET, "/files?path=digits").header("range", range);
        async move {
            let response = request.send().await.unwrap();
            let shown = response.headers().get("content-range").map(|v| v.to_str().unwrap().to_owned());
            (response.status().as_u16(), shown, response.text().await.unwrap())
        }
    };
    assert_eq!(ranged("bytes=2-4").await, (206, Some("bytes 2-4/10".into()), "234".into()));
    assert_eq!(ranged("bytes=-2").await, (206, Some("bytes 8-9/10".into()), "89".into()));
    assert_eq!(ranged("bytes=10-").await.0, 416);
    assert_eq!(ranged("bytes=1-2,5-6").await, (200, None, "0123456789".into()));

    let (status, body) = read(&host, &sandbox, "missing").await;
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, body), (404, json!({"code": 404, "message": "path 'missing' does not exist"})));
    assert_eq!(read(&host, &sandbox, "/tmp").await.0, 400);
    host.run(&sandbox, "mkfifo pipe; ln -s loop loop; ln -s digits link; ln -s pipe piped").await;
    // A pipe would never end, directly or through a link.
    assert_eq!(read(&host, &sandbox, "pipe").await.0, 400);
    assert_eq!(read(&host, &sandbox, "piped").await.0, 400);
    assert!(read(&host, &sandbox, "loop").await.0 >= 400);
    assert_eq!(read(&host, &sandbox, "link").await, (200, b"0123456789".to_vec()));
    // What the kernel makes up may never end; the agent reads none of it.
    assert_eq!(read(&host, &sandbox, "/proc/version").await.0, 403);
}

/// Pipes, sockets, devices and the doors in `/proc` are neither read nor written, and no one waits at them.
#[tokio::test]
async fn anything_but_a_regular_file_is_refused_at_once() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let made = "mkfifo pipe; ln -s /dev/zero zero; ln -s loop loop; mkdir dir; ln -s /proc/self/fd fds; \
                python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'";
    assert_eq!(exit_code(&host.run(&sandbox, made).await), 0);
    let long = "x".repeat(5000);
    for path in [
        "pipe",
        "sock",
        "zero",
        "loop",
        "dir",
        "fds/3",
        "/dev/zero",
        "/dev/full",
        "/dev/tty",
        "/dev/stdin",
        "/dev/fd/0",
        "/proc/self/mem",
        "/proc/self/environ",
        "/proc/self/root/etc/shadow",
        "/proc/self/cwd/../../proc/1/mem",
        "/proc/1/environ",
        "/proc/1/fd/3",
        "/proc/kmsg",
        "/proc/sys/kernel/core_pattern",
        "/proc/self/root/proc/sysrq-trigger",
        "a\u{0}b",
        &long,
    ] {
        let (status, body) = read(&host, &sandbox, path).await;
        assert!((400..500).contains(&status), "{path}: {status} {}", String::from_utf8_lossy(&body));
        let (status, body) = write(&host, &sandbox, path, b"x".to_vec()).await;
        assert!((400..500).contains(&status), "{path}: {status} {body}");
        // What is at a path is the sandbox's doing, never a failure of the host.
        let below = format!("{path}/below");
        for (method, message) in [
            ("Stat", json!({"path": below})),
            ("ListDir", json!({"path": below, "depth": 1})),
            ("Move", json!({"source": below, "destination": "moved"})),
            ("Move", json!({"source": "dir", "destination": below})),
            ("Remove", json!({"path": below})),
            ("MakeDir", json!({"path": below})),
        ] {
            let (status, body) =
                host.rpc(&sandbox, &format!("/filesystem.Filesystem/{method}"), message).await;
            assert!(status < 500, "{method} {below}: {status} {body}");
        }
    }
    let (status, body) = write(&host, &sandbox, "/proc/self/exe", b"x".to_vec()).await;
    assert!((400..500).contains(&status), "the host's program: {status} {body}");
    let (status, entries) =
        host.rpc(&sandbox, "/filesystem.Filesystem/ListDir", json!({"path": ".", "depth": 9})).await;
    assert_eq!(status, 200, "{entries}");
    let links = entries["entries"].as_array().unwrap();
    assert!(links.iter().all(|entry| !entry["path"].as_str().unwrap().contains("/fds/")), "{entries}");
}

/// The classic hole of such hosts: a link made inside, followed outside.
#[tokio::test]
async fn no_link_leads_out_of_the_sandbox() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "host secret").unwrap();
    let outside = secret.path().to_str().unwrap();
    host.run(
        &sandbox,
        &format!("ln -s {outside} out; ln -s / root; ln -s /proc/1/root up; ln -s ../../../../.. dots"),
    )
    .await;
    for path in [
        "out".to_owned(),
        outside.to_owned(),
        format!("root{outside}"),
        format!("up{outside}"),
        format!("dots{outside}"),
        format!("../../../../../..{outside}"),
    ] {
        // What an earlier path of this list wrote may be there, inside.
        let (_, body) = read(&host, &sandbox, &path).await;
        assert!(!String::from_utf8_lossy(&body).contains("host secret"));
        let (_, _) = write(&host, &sandbox, &path, b"overwritten".to_vec()).await;
        let (_, _) = host.rpc(&sandbox, "/filesystem.Filesystem/Remove", json!({"path": path})).await;
        assert_eq!(std::fs::read_to_string(secret.path()).unwrap(), "host secret", "{path}");
    }
}

#[tokio::test]
async fn a_signed_address_needs_no_header_and_opens_that_file_only() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let other = host.create().await;
    write(&host, &sandbox, "a.txt", b"signed".to_vec()).await;
    let token = sandbox.token.clone().unwrap();
    let url = |path: &str, signature: &str, more: &str| {
        let encode = pathbox::wire::control::percent_encode;
        format!("{}/files?path={}&signature={}{more}", host.host.url(), encode(path), encode(signature))
    };
    let get = |url: String| answer_text(host.client.get(url));
    let right = file_signature("a.txt", "read", "", &token, None);
    assert_eq!(get(url("a.txt", &right, "")).await, (200, "signed".into()));
    // With the sandbox named but no token, as a client whose proxy strips the token would send it.
    let anonymous = TestSandbox { id: sandbox.id.clone(), token: None, told: Value::Null };
    let path = url("a.txt", &right, "").replace(&host.host.url(), "");
    assert_eq!(answer_text(host.to(&anonymous, 49983, Method::GET, &path)).await.0, 200);

    assert_eq!(get(url("/etc/passwd", &right, "")).await.0, 401);
    assert_eq!(get(url("a.txt", &right, "&username=user")).await.0, 401);
    let write_only = file_signature("a.txt", "write", "", &token, None);
    assert_eq!(get(url("a.txt", &write_only, "")).await.0, 401);
    let past = file_signature("a.txt", "read", "", &token, Some(1_700_000_000));
    assert_eq!(get(url("a.txt", &past, "&signature_expiration=1700000000")).await.0, 401);
    let future = file_signature("a.txt", "read", "", &token, Some(4_000_000_000));
    assert_eq!(get(url("a.txt", &future, "&signature_expiration=4000000000")).await.0, 200);
    assert_eq!(get(url("a.txt", &future, "&signature_expiration=4000000001")).await.0, 401);
    for more in [
        "",
        "&signature_expiration=",
        "&signature_expiration=-1",
        "&signature_expiration=99999999999999999999",
    ] {
        let (status, said) = get(url("a.txt", &future, more)).await;
        assert!((400..500).contains(&status) && !said.contains("signed"), "{more}: {status} {said}");
    }
    // It is of this text, for this user, by this sandbox's token, and does not help to write.
    for path in ["./a.txt", "/home/user/a.txt", "a.txt/", "a.txt%00", "../user/a.txt", ""] {
        assert_eq!(get(url(path, &right, "")).await.0, 401, "{path}");
    }
    assert_eq!(get(url("a.txt", &right, "&path=/etc/passwd")).await.0, 401);
    for user in ["root", "user", "../root"] {
        let as_other = file_signature("a.txt", "read", user, &token, None);
        assert_eq!(get(url("a.txt", &as_other, "")).await.0, 401, "{user}");
    }
    let foreign = file_signature("a.txt", "read", "", &other.token.clone().unwrap(), None);
    let path = url("a.txt", &foreign, "").replace(&host.host.url(), "");
    assert_eq!(answer_text(host.to(&anonymous, 49983, Method::GET, &path)).await.0, 401);
    // Where the signature alone says whose file is meant, it is the other's, who has none.
    assert_eq!(get(url("a.txt", &foreign, "")).await.0, 404);
    for signature in ["", "v1_", "v1_AAAA", &right.to_uppercase(), &right[..right.len() - 1]] {
        assert_eq!(get(url("a.txt", signature, "")).await.0, 401, "{signature}");
    }
    let unsigned = answer_text(host.client.get(format!("{}/files?path=a.txt", host.host.url()))).await;
    assert!((400..500).contains(&unsigned.0) && !unsigned.1.contains("signed"), "{unsigned:?}");
    let post = |signature: &str| {
        host.client
            .post(url("a.txt", signature, ""))
            .header("content-type", "application/octet-stream")
            .body("x")
    };
    assert_eq!(answer_text(post(&right)).await.0, 401);
    assert_eq!(read(&host, &sandbox, "a.txt").await.1, b"signed");

    let form = reqwest::multipart::Form::new()
        .part("file", reqwest::multipart::Part::bytes(b"new".to_vec()).file_name("x"));
    assert_eq!(answer_text(host.client.post(url("a.txt", &write_only, "")).multipart(form)).await.0, 200);
    assert_eq!(read(&host, &sandbox, "a.txt").await.1, b"new");
}

async fn answer_text(request: reqwest::RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn entries_are_made_listed_moved_and_removed() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let call = async |method: &str, message: Value| {
        host.rpc(&sandbox, &format!("/filesystem.Filesystem/{method}"), message).await
    };
    let (status, made) = call("MakeDir", json!({"path": "d/e"})).await;
    assert_eq!((status, &made["entry"]["type"]), (200, &json!("FILE_TYPE_DIRECTORY")), "{made}");
    assert_eq!(made["entry"]["path"], "/home/user/d/e");
    let (status, again) = call("MakeDir", json!({"path": "d/e"})).await;
    assert_eq!((status, &again["code"]), (409, &json!("already_exists")));
    write(&host, &sandbox, "d/f", b"twelve bytes".to_vec()).await;
    let (status, on_file) = call("MakeDir", json!({"path": "d/f"})).await;
    assert_eq!((status, &on_file["code"]), (400, &json!("invalid_argument")));

    let (_, stat) = call("Stat", json!({"path": "d/f"})).await;
    let entry = &stat["entry"];
    assert_eq!(
        (&entry["name"], &entry["size"], &entry["owner"]),
        (&json!("f"), &json!("12"), &json!("user"))
    );
    assert!(entry["permissions"].as_str().unwrap().starts_with("-rw"), "{entry}");
    assert!(entry["modifiedTime"].as_str().unwrap().starts_with("20"), "{entry}");
    assert_eq!(call("Stat", json!({"path": "none"})).await.0, 404);

    host.run(&sandbox, "ln -s f d/link; ln -s nowhere d/dead").await;
    let (_, list) = call("ListDir", json!({"path": "d", "depth": 1})).await;
    let mut names: Vec<(&str, &str)> = list["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["type"].as_str().unwrap()))
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            ("dead", "FILE_TYPE_SYMLINK"),
            ("e", "FILE_TYPE_DIRECTORY"),
            ("f", "FILE_TYPE_FILE"),
            ("link", "FILE_TYPE_FILE")
        ]
    );
    let (_, deep) = call("ListDir", json!({"path": "", "depth": 2})).await;
    assert!(deep["entries"].as_array().unwrap().iter().any(|entry| entry["path"] == "/home/user/d/f"));
    assert_eq!(call("ListDir", json!({"path": "d/f", "depth": 1})).await.1["code"], "invalid_argument");
    assert_eq!(call("ListDir", json!({"path": "none"})).await.1["code"], "not_found");

    let (status, moved) = call("Move", json!({"source": "d/f", "destination": "g/h"})).await;
    assert_eq!((status, &moved["entry"]["path"]), (200, &json!("/home/user/g/h")), "{moved}");
    assert_eq!(call("Move", json!({"source": "d/f", "destination": "x"})).await.1["code"], "not_found");
    assert_eq!(call("Remove", json!({"path": "d"})).await, (200, json!({})));
    assert_eq!(call("Remove", json!({"path": "d"})).await, (200, json!({})));
    assert_eq!(call("Stat", json!({"path": "d"})).await.0, 404);
    assert_eq!(call("Stat", json!({"path": 1})).await.1["code"], "invalid_argument");
    assert_eq!(call("Stat", Value::Null).await.1["code"], "invalid_argument");
}

#[tokio::test]
async fn parts_are_composed_into_one_file() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let parts: Vec<Vec<u8>> = (0..3_u8).map(|n| vec![n; 300_000]).collect();
    for (n, part) in parts.iter().enumerate() {
        write(&host, &sandbox, &format!("/tmp/part{n}"), part.clone()).await;
    }
    let body = json!({"source_paths": ["/tmp/part0", "/tmp/part1", "/tmp/part2"], "destination": "whole"});
    let (status, told) = answer(host.to(&sandbox, 49983, Method::POST, "/files/compose").json(&body)).await;
    assert_eq!((status, &told["path"]), (200, &json!("/home/user/whole")), "{told}");
    assert!(read(&host, &sandbox, "whole").await.1 == parts.concat());
    assert_eq!(read(&host, &sandbox, "/tmp/part0").await.0, 404);
}

#[tokio::test]
async fn changes_below_a_directory_are_reported_by_stream_and_by_polling() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    host.run(&sandbox, "mkdir -p w").await;
    let (_, watcher) = host
        .rpc(&sandbox, "/filesystem.Filesystem/CreateWatcher", json!({"path": "w", "includeEntry": true}))
        .await;
    let id = watcher["watcherId"].clone();
    assert_eq!(exit_code(&host.run(&sandbox, "echo hi > w/new; sync; rm w/new; echo x > w/kept").await), 0);
    let mut seen: Vec<Value> = Vec::new();
    for _ in 0..50 {
        let ask = json!({"watcherId": id});
        let (status, events) = host.rpc(&sandbox, "/filesystem.Filesystem/GetWatcherEvents", ask).await;
        assert_eq!(status, 200);
        seen.extend(events["events"].as_array().into_iter().flatten().cloned());
        if seen.iter().any(|event| event["name"] == "kept") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    for (name, kind) in
        [("new", "EVENT_TYPE_CREATE"), ("new", "EVENT_TYPE_REMOVE"), ("kept", "EVENT_TYPE_CREATE")]
    {
        assert!(
            seen.iter().any(|event| event["name"] == name && event["type"] == kind),
            "{name} {kind}: {seen:?}"
        );
    }
    let kept = seen.iter().find(|event| event["name"] == "kept").unwrap();
    assert_eq!(kept["entry"]["path"], "/home/user/w/kept");
    let ask = json!({"watcherId": id});
    assert_eq!(host.rpc(&sandbox, "/filesystem.Filesystem/RemoveWatcher", ask.clone()).await.0, 200);
    assert_eq!(host.rpc(&sandbox, "/filesystem.Filesystem/GetWatcherEvents", ask).await.0, 404);
    let missing =
        host.stream(&sandbox, "/filesystem.Filesystem/WatchDir", json!({"path": "none"}), &[]).await;
    assert_eq!(missing[0]["error"]["code"], "not_found");
    assert_eq!(written(&[], "stdout"), "");
}
