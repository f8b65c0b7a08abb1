//! Snapshots and forks: files that are kept, of programs that do what they like.

use http::Method;
use pathbox::host::Options;
use pathbox::host::jail::Isolation;
use serde_json::{Value, json};

use super::{TestHost, TestSandbox, exit_code, written};

/// A tree with everything that a program can make.
const TREE: &str = r#"
mkdir -p tree/empty tree/closed tree/"$(printf 'odd\nname')" && cd tree
echo text > file; chmod 640 file; ln file hard; printf '#!/bin/sh\necho runs' > program; chmod 755 program
ln -s /etc link-out; ln -s /nowhere dangling; ln -s file link; mkfifo pipe; truncate -s 200M sparse; touch -d 2001-02-03 old
echo in > closed/file; chmod 555 closed; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
echo t > /tmp/t; echo d > /data/d; echo m > /mnt/data/m
"#;

/// What is to be the same in a sandbox that begins with it.
const LOOK: &str = r"
find tree ! -type s -printf '%p|%y|%m|%n|%s|%Ts|%l\n' | grep -v '^tree|' | sort; cat tree/file tree/closed/file /tmp/t /data/d /mnt/data/m
tree/program; stat -c %h tree/hard; du -k tree/sparse | cut -f1; test tree/file -ef tree/hard && echo one; echo $MINE
stat -c %a /tmp ~";

async fn create_from(host: &TestHost, snapshot: &Value) -> (u16, TestSandbox) {
    let body = json!({ "templateID": snapshot });
    let (status, told) = host.api(Method::POST, "/v2/sandboxes", body).await;
    let text = |key: &str| told[key].as_str().map(str::to_owned);
    (status, TestSandbox { id: text("sandboxID").unwrap_or_default(), token: text("envdAccessToken"), told })
}

async fn snapshot(host: &TestHost, sandbox: &TestSandbox, body: Value) -> (u16, Value) {
    host.api(Method::POST, &format!("/sandboxes/{}/snapshots", sandbox.id), body).await
}

async fn list(host: &TestHost) -> Vec<Value> {
    host.api(Method::GET, "/snapshots", Value::Null).await.1.as_array().unwrap().clone()
}

async fn delete(host: &TestHost, snapshot: &Value) -> u16 {
    let path = format!("/templates/{}", snapshot["snapshotID"].as_str().unwrap());
    host.api(Method::DELETE, &path, Value::Null).await.0
}

async fn said(host: &TestHost, sandbox: &TestSandbox, command: &str) -> String {
    let events = host.run(sandbox, command).await;
    format!("{}{}", written(&events, "stdout"), written(&events, "stderr"))
}

#[tokio::test]
async fn a_sandbox_begins_with_the_files_of_another_that_is_gone() {
    let host = TestHost::start().await;
    let first = host.create_as(json!({"envVars": {"MINE": "kept"}, "metadata": {"tenant": "t"}})).await;
    let made = host.run(&first, TREE).await;
    assert_eq!(exit_code(&made), 0, "{}", written(&made, "stderr"));
    // Two files that are written in turn, as long as the sandbox lives.
    let turns = "setsid bash -c 'while :; do echo >> ~/a; echo >> ~/b; done' >/dev/null 2>&1 & \
                 until test -s ~/b; do sleep .01; done";
    host.run(&first, turns).await;

    let (status, kept) = snapshot(&host, &first, json!({"name": "mine"})).await;
    assert_eq!(status, 201, "{kept}");
    assert_eq!((&kept["names"], &kept["memory"]), (&json!(["mine"]), &json!(false)));
    let go_on = "before=$(stat -c %s ~/b); for _ in $(seq 6000); do test $(stat -c %s ~/b) != $before && echo on && exit; sleep .01; done";
    assert_eq!(said(&host, &first, go_on).await, "on\n", "its programs go on");
    let was = said(&host, &first, LOOK).await;
    assert!(was.contains("runs\n2\n0\none\nkept\n") && was.contains("tree/link-out|l|"), "{was}");
    host.api(Method::DELETE, &format!("/sandboxes/{}", first.id), Value::Null).await;

    let (status, second) = create_from(&host, &kept["snapshotID"]).await;
    assert_eq!(status, 201, "{}", second.told);
    assert_eq!(said(&host, &second, LOOK).await, was);
    let turns = said(
        &host,
        &second,
        "echo $(( $(stat -c %s a) - $(stat -c %s b) )); pgrep -f 'whil[e]' || echo none",
    )
    .await;
    assert!(["0\nnone\n", "1\nnone\n"].contains(&&*turns), "packed while it stood still: {turns}");
    let outside = said(&host, &second, "cat tree/link-out/shadow").await;
    assert!(outside.contains("cat: "), "a link leads where it leads inside: {outside}");

    // One of one: by its name, with what its creator adds.
    let (status, copy) = snapshot(&host, &second, json!({"memory": false})).await;
    assert_eq!(status, 201, "{copy}");
    delete(&host, &kept).await;
    let body = json!({"templateID": copy["snapshotID"], "envVars": {"MINE": "new"}});
    let (status, told) = host.api(Method::POST, "/v2/sandboxes", body).await;
    assert_eq!((status, &told["templateID"]), (201, &copy["snapshotID"]), "{told}");
    let third = TestSandbox {
        id: told["sandboxID"].as_str().unwrap().into(),
        token: told["envdAccessToken"].as_str().map(str::to_owned),
        told,
    };
    assert_eq!(said(&host, &third, "cat tree/file; echo $MINE").await, "text\nnew\n");
}

#[tokio::test]
async fn a_snapshot_that_fails_says_why_and_takes_no_space() {
    let host = TestHost::with(|options| options.snapshot_bytes = 12 << 20).await;
    let sandbox = host.create().await;
    let refused = async |body: Value, status: u16, word: &str| {
        let (got, answer) = snapshot(&host, &sandbox, body).await;
        assert!(got == status && answer["message"].as_str().unwrap().contains(word), "{got} {answer}");
    };
    refused(json!({"memory": true}), 400, "no memory").await;
    refused(json!({"name": "a/b"}), 400, "the name").await;
    refused(json!({"name": "base"}), 400, "template").await;
    host.run(&sandbox, "mkdir shut; chmod 0 shut").await;
    refused(json!({}), 400, "home/user/shut").await;
    let deep = "python3 -c 'import os\nfor i in range(20): os.mkdir(\"d\" * 250); os.chdir(\"d\" * 250)'";
    host.run(&sandbox, &format!("rmdir shut; {deep}")).await;
    let (status, kept) = snapshot(&host, &sandbox, json!({})).await;
    assert_eq!(status, 201, "{kept}");
    let (status, begun) = create_from(&host, &kept["snapshotID"]).await;
    let words = begun.told["message"].as_str().unwrap_or_default();
    // Not every `tar` makes paths that are longer than one call of the kernel takes.
    let is_said = status == 400 && words.contains("cannot be unpacked: tar: home/user/ddd");
    assert!(status == 201 || is_said, "{}", begun.told);
    assert_eq!(delete(&host, &kept).await, 204);
    let (_, living) = host.api(Method::GET, "/v2/sandboxes", Value::Null).await;
    assert_eq!(
        living.as_array().unwrap().len(),
        1 + usize::from(status == 201),
        "nothing is left of what did not begin: {living}"
    );
    host.run(&sandbox, "rm -r d*; head -c 8M /dev/urandom > much; head -c 6M /dev/urandom > more").await;
    refused(json!({}), 507, "host.snapshots_mb").await;
    assert_eq!(list(&host).await, [Value::Null; 0]);

    // What failed holds nothing: one that takes more than a half fits, and no second one.
    host.run(&sandbox, "rm more").await;
    let (status, kept) = snapshot(&host, &sandbox, json!({})).await;
    assert_eq!(status, 201, "{kept}");
    refused(json!({}), 507, "delete some").await;
    let fork = format!("/sandboxes/{}/fork", sandbox.id);
    assert_eq!(host.api(Method::POST, &fork, json!({})).await.0, 507);
    for count in [0, 101] {
        assert_eq!(host.api(Method::POST, &fork, json!({ "count": count })).await.0, 400);
    }

    // Deleted while a sandbox begins with it: that one gets all of it, or there is none.
    let ((status, begun), deleted) =
        tokio::join!(create_from(&host, &kept["snapshotID"]), delete(&host, &kept));
    assert_eq!(deleted, 204);
    match status {
        201 => assert_eq!(said(&host, &begun, "stat -c %s much").await, "8388608\n"),
        _ => assert_eq!(status, 404, "{}", begun.told),
    }
    assert_eq!((delete(&host, &kept).await, list(&host).await.len()), (404, 0));
    assert_eq!(create_from(&host, &kept["snapshotID"]).await.0, 404);

    // Two at once take turns; a tenant has half of the room, however many ask.
    host.run(&sandbox, "rm much; echo 1 > one").await;
    let (first, second) =
        tokio::join!(snapshot(&host, &sandbox, json!({})), snapshot(&host, &sandbox, json!({})));
    assert_eq!((first.0, second.0, list(&host).await.len()), (201, 201, 2), "{first:?} {second:?}");
    let named = host.create_as(json!({"metadata": {"tenant": "greedy"}})).await;
    host.run(&named, "head -c 7M /dev/urandom > much").await;
    assert_eq!(snapshot(&host, &named, json!({})).await.0, 507);

    // A paused one stays as it is.
    let path = |what: &str| format!("/sandboxes/{}/{what}", sandbox.id);
    assert_eq!(host.api(Method::POST, &path("pause"), json!({})).await.0, 204);
    refused(json!({}), 409, "paused").await;
    assert_eq!(host.api(Method::POST, &path("fork"), json!({})).await.0, 409);
    assert_eq!(host.api(Method::POST, &path("connect"), json!({"timeout": 60})).await.0, 201);
    let (status, again) = snapshot(&host, &sandbox, json!({"name": "n"})).await;
    let (_, replaced) = snapshot(&host, &sandbox, json!({"name": "n"})).await;
    assert_eq!((status, create_from(&host, &again["snapshotID"]).await.0), (201, 404));
    assert_eq!(create_from(&host, &json!("n")).await.0, 201, "{replaced}");

    for path in ["/sandboxes/inothing/snapshots", "/sandboxes/inothing/fork"] {
        assert_eq!(host.api(Method::POST, path, json!({})).await.0, 404);
    }
    assert_eq!(host.api(Method::GET, "/snapshots?limit=0", Value::Null).await.0, 400);
    host.end().await;
}

#[tokio::test]
async fn forks_have_the_files_and_the_rules_of_the_sandbox_and_fail_one_by_one() {
    let host = TestHost::with(|options| options.max_sandboxes = 3).await;
    let body = json!({"metadata": {"a": "b"}, "envVars": {"MINE": "kept"}, "autoPause": true,
                      "network": {"allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]}});
    let sandbox = host.create_as(body).await;
    host.run(&sandbox, "echo 1 > one").await;
    let path = format!("/sandboxes/{}/fork", sandbox.id);
    let (status, made) = host.api(Method::POST, &path, json!({"count": 3, "timeout": 100})).await;
    let made = made.as_array().unwrap();
    let (forks, errors): (Vec<_>, Vec<_>) = made.iter().partition(|one| one["sandbox"].is_object());
    assert_eq!((status, forks.len(), errors.len()), (201, 2, 1), "{made:?}");
    assert_eq!(errors[0]["error"]["code"], 429, "{errors:?}");
    for fork in forks {
        let text = |key: &str| fork["sandbox"][key].as_str().map(str::to_owned);
        let fork = TestSandbox {
            id: text("sandboxID").unwrap(),
            token: text("envdAccessToken"),
            told: fork.clone(),
        };
        assert_eq!(said(&host, &fork, "cat one; echo $MINE").await, "1\nkept\n");
        let (_, info) = host.api(Method::GET, &format!("/sandboxes/{}", fork.id), Value::Null).await;
        assert_eq!(info["metadata"], json!({"a": "b"}));
        assert_eq!(
            (&info["lifecycle"]["onTimeout"], &info["network"]["allowOut"]),
            (&json!("pause"), &json!(["1.1.1.1"]))
        );
    }
    assert_eq!(list(&host).await.len(), 0, "what they were made from is gone");
}

#[tokio::test]
async fn without_full_isolation_or_room_there_are_no_snapshots() {
    let changes: [fn(&mut Options); 2] =
        [|options| options.snapshot_bytes = 0, |options| options.jail.isolation = Isolation::Landlock];
    for change in changes {
        let host = TestHost::with(change).await;
        let sandbox = host.create().await;
        for what in ["snapshots", "fork"] {
            let path = format!("/sandboxes/{}/{what}", sandbox.id);
            let (status, answer) = host.api(Method::POST, &path, json!({})).await;
            let words = answer["message"].as_str().unwrap();
            assert!(status == 501 && words.contains("full isolation"), "{answer}");
        }
    }
}
