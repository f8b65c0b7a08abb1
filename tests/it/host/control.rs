//! The control plane.

use std::time::Duration;

use chrono::{DateTime, TimeZone, Utc};
use http::Method;
use pathbox::domain::Clock;
use serde_json::{Value, json};

use super::{TestHost, answer};

#[tokio::test]
async fn nothing_is_returned_without_the_key() {
    let host = TestHost::start().await;
    for (method, path) in [
        (Method::GET, "/v2/sandboxes"),
        (Method::POST, "/v2/sandboxes"),
        (Method::DELETE, "/sandboxes/iabc"),
        (Method::GET, "/no/such/route"),
    ] {
        for key in [None, Some("e2b_0000000000000000000000000000000000000000"), Some("")] {
            let mut request = host.client.request(method.clone(), format!("{}{path}", host.host.url()));
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            let (status, body) = answer(request).await;
            assert_eq!((status, &body["code"]), (401, &json!(401)), "{path} {body}");
        }
    }
    let (status, _) = answer(host.client.get(format!("{}/health", host.host.url()))).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_sandbox_is_created_read_extended_and_killed() {
    let host = TestHost::start().await;
    let sandbox = host.create_as(json!({"timeout": 100, "metadata": {"user": "42"}})).await;
    assert_eq!(sandbox.told["templateID"], "code-interpreter-v1");
    assert_eq!(sandbox.told["envdVersion"], "0.6.13");
    assert!(sandbox.token.as_ref().is_some_and(|token| token.len() == 64));
    assert_eq!(sandbox.told["trafficAccessToken"], Value::Null);

    let path = format!("/sandboxes/{}", sandbox.id);
    let (status, detail) = host.api(Method::GET, &path, Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(detail["state"], "running");
    assert_eq!(detail["metadata"], json!({"user": "42"}));
    assert_eq!(detail["envdAccessToken"].as_str(), sandbox.token.as_deref());
    assert_eq!(detail["lifecycle"], json!({"autoResume": false, "onTimeout": "kill"}));
    assert_eq!(life(&detail), 100);
    for member in ["clientID", "cpuCount", "diskSizeMB", "memoryMB", "startedAt"] {
        assert!(!detail[member].is_null(), "{member} is missing in {detail}");
    }

    let timeout = format!("{path}/timeout");
    assert_eq!(host.api(Method::POST, &timeout, json!({"timeout": 10})).await, (204, Value::Null));
    assert!(life(&host.api(Method::GET, &path, Value::Null).await.1) <= 11);
    let refreshes = format!("{path}/refreshes");
    assert_eq!(host.api(Method::POST, &refreshes, json!({"duration": 60})).await.0, 204);
    assert!((60..=62).contains(&life(&host.api(Method::GET, &path, Value::Null).await.1)));
    assert_eq!(host.api(Method::POST, &refreshes, json!({"duration": 3601})).await.0, 400);

    // Connect extends and never shortens; it returns the token to a caller that knows id and key.
    let (status, connected) =
        host.api(Method::POST, &format!("/v2{path}/connect"), json!({"timeout": 5})).await;
    assert_eq!((status, connected["envdAccessToken"].as_str()), (200, sandbox.token.as_deref()));
    assert!(life(&host.api(Method::GET, &path, Value::Null).await.1) >= 60);
    assert_eq!(host.api(Method::POST, &format!("{path}/connect"), json!({})).await.0, 400);

    assert_eq!(host.api(Method::DELETE, &path, Value::Null).await, (204, Value::Null));
    for (method, path, body) in [
        (Method::DELETE, path.clone(), Value::Null),
        (Method::GET, path.clone(), Value::Null),
        (Method::POST, timeout, json!({"timeout": 10})),
        (Method::POST, format!("{path}/pause"), json!({})),
        (Method::POST, format!("/v2{path}/connect"), json!({})),
    ] {
        let (status, body) = host.api(method, &path, body).await;
        assert_eq!((status, &body["code"]), (404, &json!(404)), "{path}");
        assert!(body["message"].as_str().unwrap().contains(&sandbox.id));
    }
}

fn life(detail: &Value) -> i64 {
    let at = |name: &str| detail[name].as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    (at("endAt") - at("startedAt")).num_seconds()
}

#[tokio::test]
async fn the_older_create_is_short_lived_and_open_unless_asked() {
    let host = TestHost::start().await;
    let create = json!({"templateID": "base", "future": {"a": 1}, "metadata": null});
    let (status, told) = host.api(Method::POST, "/sandboxes", create).await;
    assert_eq!((status, &told["envdAccessToken"]), (201, &Value::Null));
    let path = format!("/sandboxes/{}", told["sandboxID"].as_str().unwrap());
    assert_eq!(life(&host.api(Method::GET, &path, Value::Null).await.1), 15);
    let create =
        json!({"templateID": "base:latest", "secure": true, "timeout": 300, "allow_internet_access": true});
    let (status, told) = host.api(Method::POST, "/sandboxes", create).await;
    assert_eq!(status, 201);
    assert!(told["envdAccessToken"].is_string());
}

#[tokio::test]
async fn a_create_with_invalid_settings_is_refused_with_a_message() {
    let host = TestHost::start().await;
    for (body, status, word) in [
        (json!({}), 400, "templateID"),
        (json!({"templateID": "my-own"}), 404, "my-own"),
        (json!({"templateID": "base", "timeout": 0}), 400, "Timeout must be greater than 0"),
        (json!({"templateID": "base", "timeout": -1}), 400, "Timeout must be greater than 0"),
        (json!({"templateID": "base", "timeout": 86401}), 400, "Timeout cannot be greater than 24 hours"),
        (json!({"templateID": "base", "envVars": {"A=B": "x"}}), 400, "envVars"),
        (json!({"templateID": "base", "envVars": {"A": "x\u{0}y"}}), 400, "envVars"),
        (json!({"templateID": "base", "metadata": {"n": 1}}), 400, "does not parse"),
        (json!({"templateID": "base", "mcp": {"duckduckgo": {}}}), 400, "mcp"),
        (json!({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]}), 400, "volumeMounts"),
        (json!({"templateID": "base", "network": {"allowOut": ["api.test"]}}), 400, "network.When"),
    ] {
        let (got, answer) = host.api(Method::POST, "/v2/sandboxes", body.clone()).await;
        assert_eq!((got, &answer["code"]), (status, &json!(status)), "{body}");
        assert!(answer["message"].as_str().unwrap().contains(word), "{answer}");
    }
    let (_, list) = host.api(Method::GET, "/v2/sandboxes", Value::Null).await;
    assert_eq!(list, json!([]));
    assert_eq!(host.api(Method::PATCH, "/v2/sandboxes", Value::Null).await.0, 405);
    assert_eq!(host.api(Method::POST, "/v3/templates", json!({})).await.0, 501);
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let host = TestHost::start().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let metadata = json!({"a b": "c&d", "n": n.to_string()});
        ids.push(host.create_as(json!({"metadata": metadata})).await.id);
    }
    host.create_as(json!({"metadata": {"a b": "other"}})).await;
    ids.reverse();

    // As both official clients encode {"a b": "c&d"}.
    let base =
        format!("{}/v2/sandboxes?metadata=a%252520b%3Dc%252526d&state=running%2Cpaused", host.host.url());
    let mut seen = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let url = match &token {
            Some(token) => format!("{base}&limit=2&nextToken={token}"),
            None => format!("{base}&limit=2"),
        };
        let response =
            host.client.get(url).header("x-api-key", host.host.api_key().expose()).send().await.unwrap();
        assert_eq!(response.headers()["x-total-running"], "4");
        token = response.headers().get("x-next-token").map(|token| token.to_str().unwrap().to_owned());
        let page: Vec<Value> = response.json().await.unwrap();
        assert!(page.iter().all(|sandbox| sandbox.get("envdAccessToken").is_none()));
        seen.extend(page.iter().map(|sandbox| sandbox["sandboxID"].as_str().unwrap().to_owned()));
        if token.is_none() {
            break;
        }
    }
    assert_eq!(seen, ids);
    assert_eq!(host.api(Method::GET, "/sandboxes", Value::Null).await.1.as_array().unwrap().len(), 4);
    assert_eq!(host.api(Method::GET, "/v2/sandboxes?state=paused", Value::Null).await.1, json!([]));
    assert_eq!(host.api(Method::GET, "/v2/sandboxes?limit=1000", Value::Null).await.0, 400);
}

#[tokio::test]
async fn one_sandbox_more_than_there_is_room_for_is_429_until_one_ends() {
    let host = TestHost::with(|options| options.max_sandboxes = 2).await;
    let first = host.create_as(json!({"timeout": 20})).await;
    host.create().await;
    let body = json!({"templateID": "base"});
    let response = host
        .client
        .post(format!("{}/v2/sandboxes", host.host.url()))
        .header("x-api-key", host.host.api_key().expose())
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 429);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=21).contains(&wait));
    let told: Value = response.json().await.unwrap();
    assert!(told["message"].as_str().unwrap().contains("maximum number of concurrent"), "{told}");
    host.api(Method::DELETE, &format!("/sandboxes/{}", first.id), Value::Null).await;
    assert_eq!(host.api(Method::POST, "/v2/sandboxes", body).await.0, 201);
}

#[tokio::test]
async fn a_sandbox_ends_at_its_end_and_is_gone_at_every_door() {
    let clock = Clock::manual(Utc.with_ymd_and_hms(2026, 1, 1, 0, 0, 0).unwrap());
    let host = TestHost::with(|options| options.clock = clock.clone()).await;
    let sandbox = host.create_as(json!({"timeout": 60})).await;
    clock.advance(Duration::from_secs(59));
    assert_eq!(answer(host.to(&sandbox, 49983, Method::GET, "/health")).await.0, 204);
    clock.advance(Duration::from_secs(1));
    let (status, body) = answer(host.to(&sandbox, 49983, Method::GET, "/health")).await;
    assert_eq!(status, 502);
    assert_eq!(body, json!({"sandboxId": sandbox.id, "message": "The sandbox was not found", "code": 502}));
    let path = format!("/sandboxes/{}", sandbox.id);
    assert_eq!(host.api(Method::GET, &path, Value::Null).await.0, 404);
    assert_eq!(host.api(Method::POST, &format!("/v2{path}/connect"), json!({})).await.0, 404);
}

#[tokio::test]
async fn metrics_are_one_true_point() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    host.run(&sandbox, "head -c 20000000 /dev/zero > big").await;
    let (status, points) =
        host.api(Method::GET, &format!("/sandboxes/{}/metrics", sandbox.id), Value::Null).await;
    assert_eq!(status, 200);
    let point = &points[0];
    assert!(point["memUsed"].as_u64().unwrap() > 0, "{point}");
    assert!(point["memTotal"].as_u64().unwrap() >= point["memUsed"].as_u64().unwrap(), "{point}");
    assert!(point["diskUsed"].as_u64().unwrap() >= 20_000_000, "{point}");
    assert!(point["diskTotal"].as_u64().unwrap() > point["diskUsed"].as_u64().unwrap(), "{point}");
    for member in ["timestamp", "timestampUnix", "cpuCount", "cpuUsedPct", "memCache"] {
        assert!(!point[member].is_null(), "{member}");
    }
}

#[tokio::test]
async fn a_create_sent_again_with_its_key_makes_no_second_sandbox() {
    let host = TestHost::start().await;
    let post = async |key: &str, body: Value| {
        let request = host.client.post(format!("{}/v2/sandboxes", host.host.url())).json(&body);
        let request = request.header("x-api-key", host.host.api_key().expose());
        answer(request.header("idempotency-key", key)).await
    };
    let body = json!({"templateID": "base", "timeout": 60});
    // At the same moment one of them makes it, and the others are asked to retry.
    let (one, two) = tokio::join!(post("key-1", body.clone()), post("key-1", body.clone()));
    assert!([one.0, two.0].contains(&201), "{one:?} {two:?}");
    let (status, made) = post("key-1", body.clone()).await;
    assert_eq!(status, 201);
    assert_eq!(post("key-1", body.clone()).await.1, made);
    assert_eq!(host.api(Method::GET, "/v2/sandboxes", Value::Null).await.1.as_array().unwrap().len(), 1);
    let (status, other) = post("key-1", json!({"templateID": "base", "timeout": 61})).await;
    assert_eq!((status, &other["error_code"]), (409, &json!("idempotency_request_mismatch")));
    assert_eq!(post("Not A Key", body.clone()).await.0, 400);
    host.api(Method::DELETE, &format!("/sandboxes/{}", made["sandboxID"].as_str().unwrap()), Value::Null)
        .await;
    assert_eq!(post("key-1", body.clone()).await.0, 409);
    assert_eq!(post("key-2", body).await.0, 201);
}
