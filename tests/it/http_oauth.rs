//! OAuth access tokens over HTTP, with an authorization server of the test's own: good ones, and every way to forge one
//! that is known.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::support::http::{HttpServer, initialize};
use crate::support::server::command;

/// Two P-256 keys that were made for this test: PKCS#8 in base64, and the public point's coordinates.
const KEYS: [(&str, &str, &str); 2] = [
    (
        "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgu61NkcKFirHv5K4iAanhbSy7yuET7EeVTMJUGciIrz6hRANCAAQVVmhGz+ULPC8\
         MnWicAa7HsqS752BkVW8xZGMVe4SgmXLvZ/EMekXhgXgKfLOFCPo2P515TrI0s5qOH4EsLDrd",
        "FVZoRs_lCzwvDJ1onAGux7Kku-dgZFVvMWRjFXuEoJk",
        "cu9n8Qx6ReGBeAp8s4UI-jY_nXlOsjSzmo4fgSwsOt0",
    ),
    (
        "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgI1/d0IqhrwoJo07mO+/R0J9y7crXdbwEqDPoSxlMo0GhRANCAARUHaqXmm0gRBW\
         8ed7mUZ4YDbSyTKMnRrkJ/z7yrYoW1pCcneboYBRyCG1lLoaC1izml1pCSHADA/ZQSxiyg0iz",
        "VB2ql5ptIEQVvHne5lGeGA20skyjJ0a5Cf8-8q2KFtY",
        "kJyd5uhgFHIIbWUuhoLWLOaXWkJIcAMD9lBLGLKDSLM",
    ),
];
const RESOURCE: &str = "https://mcp.example.com/mcp";

/// How an authorization server answers.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// It closes each connection without a word.
    Closes,
    /// It takes requests and never answers.
    Hangs,
    /// Its documents never end.
    Floods,
}

/// An authorization server: its metadata, its keys, and how often it was asked for them.
pub(crate) struct Issuer {
    pub(crate) url: String,
    mood: Arc<Mutex<Mood>>,
    keys: Arc<Mutex<Value>>,
    asked: Arc<AtomicUsize>,
}

fn jwk(which: usize) -> Value {
    let (_, x, y) = KEYS[which];
    json!({"kty": "EC", "crv": "P-256", "kid": format!("k{which}"), "alg": "ES256", "use": "sig", "x": x, "y": y})
}

impl Issuer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let keys = Arc::new(Mutex::new(json!({"keys": [jwk(0)]})));
        let asked = Arc::new(AtomicUsize::new(0));
        let mood = Arc::new(Mutex::new(Mood::Well));
        let moods = Arc::clone(&mood);
        let mut held = Vec::new();
        let (served, counted, issuer) = (Arc::clone(&keys), Arc::clone(&asked), url.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = vec![0; 4096];
                let n = stream.read(&mut head).unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..n]).into_owned();
                let mood = *moods.lock().unwrap();
                if mood != Mood::Well && head.starts_with("GET /keys ") {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                match mood {
                    Mood::Well => {}
                    Mood::Closes => continue,
                    Mood::Hangs => {
                        held.push(stream);
                        continue;
                    }
                    Mood::Floods => {
                        let _ = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[");
                        while stream.write_all(&[b' '; 4096]).is_ok() {}
                        continue;
                    }
                }
                let body = if head.starts_with("GET /.well-known/oauth-authorization-server ") {
                    json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")}).to_string()
                } else if head.starts_with("GET /keys ") {
                    counted.fetch_add(1, Ordering::SeqCst);
                    served.lock().unwrap().to_string()
                } else {
                    String::new()
                };
                let status = if body.is_empty() { "404 Not Found" } else { "200 OK" };
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self { url, mood, keys, asked }
    }

    fn claims(&self) -> Value {
        let now = u64::try_from(pathbox::domain::Clock::system().now().timestamp()).unwrap();
        json!({"iss": self.url, "sub": "alice", "aud": RESOURCE, "exp": now + 600, "iat": now,
            "scope": "openid run read", "tenant": "acme"})
    }

    pub(crate) fn token(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = self.claims();
        change(&mut claims);
        sign(0, "k0", &claims)
    }

    pub(crate) fn server(&self, data: &Path) -> HttpServer {
        HttpServer::start_with(
            command(data)
                .env("PATHBOX_HTTP_PUBLIC_URL", "https://mcp.example.com")
                .env("PATHBOX_OAUTH_ISSUER", &self.url),
        )
    }
}

fn sign(which: usize, kid: &str, claims: &Value) -> String {
    let der = STANDARD.decode(KEYS[which].0.replace(char::is_whitespace, "")).unwrap();
    let header =
        Header { kid: Some(kid.to_owned()), typ: Some("at+jwt".into()), ..Header::new(Algorithm::ES256) };
    encode(&header, claims, &EncodingKey::from_ec_der(&der)).unwrap()
}

fn status(server: &HttpServer, token: &str) -> u16 {
    let header = format!("Bearer {token}");
    server.post(&[("Authorization", &header)], &initialize("2025-11-25")).status
}

#[test]
fn the_authorization_server_is_public_and_named_in_the_challenge() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let server = issuer.server(data.path());
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        let mut reply = server.send("GET", path, &[("Accept", "application/json")], b"");
        let document = reply.answer();
        assert_eq!(
            (&document["resource"], &document["authorization_servers"][0]),
            (&json!(RESOURCE), &json!(issuer.url))
        );
    }
    let reply = server.post(&[], &initialize("2025-11-25"));
    let challenge = reply.header("www-authenticate").unwrap();
    assert_eq!(reply.status, 401);
    let expected = "resource_metadata=\"https://mcp.example.com/.well-known/oauth-protected-resource/mcp\"";
    assert!(challenge.starts_with("Bearer ") && challenge.contains(expected), "{challenge}");
}

#[test]
fn a_good_token_acts_for_its_tenant_and_no_other() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let server = issuer.server(data.path());
    let header = format!("Bearer {}", issuer.token(|_| {}));
    let headers = [("Authorization", header.as_str())];
    let python = json!({"code": "1 + 1", "language": "python"});
    let run =
        |meta: Value| server.stateless(&headers, "run_code", python.clone(), meta).answer()["result"].take();
    assert_eq!(run(json!({}))["structuredContent"]["output"], "2");
    assert_eq!(run(json!({"tenantId": "acme"}))["structuredContent"]["output"], "2");
    assert_eq!(run(json!({"tenantId": "umbrella"}))["_meta"]["dev.pathbox/error"]["code"], "forbidden");
    // An audience list that holds us is fine, and so is the plain type.
    assert_eq!(status(&server, &issuer.token(|claims| claims["aud"] = json!(["other", RESOURCE]))), 200);
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 1, "the keys are kept");
    assert!(!server.log().contains(&header[20..60]), "a token is never logged");
}

#[test]
fn no_forged_old_or_foreign_token_opens_anything() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let server = issuer.server(data.path());
    let good = issuer.token(|_| {});
    assert_eq!(status(&server, &good), 200);
    let now = issuer.claims()["iat"].as_u64().unwrap();
    let fraction = issuer.token(|claims| claims["exp"] = json!(now as f64 + 600.25));
    assert_eq!(status(&server, &fraction), 200, "a time may have a fraction");
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let [header, claims, signature] = good.split('.').collect::<Vec<_>>().try_into().unwrap();
    let public = KEYS[0].1.to_owned() + KEYS[0].2;
    let confused = |secret: &[u8]| {
        let header = Header { kid: Some("k0".into()), ..Header::new(Algorithm::HS256) };
        encode(&header, &issuer.claims(), &EncodingKey::from_secret(secret)).unwrap()
    };
    let mut admin = issuer.claims();
    admin["tenant"] = json!("umbrella");
    for (what, token) in [
        ("expired", issuer.token(|claims| claims["exp"] = json!(now - 100))),
        ("not yet", issuer.token(|claims| claims["nbf"] = json!(now + 600))),
        ("without an end", issuer.token(|claims| drop(claims.as_object_mut().unwrap().remove("exp")))),
        ("for another server", issuer.token(|claims| claims["aud"] = json!("https://other.example.com/mcp"))),
        ("for nobody", issuer.token(|claims| drop(claims.as_object_mut().unwrap().remove("aud")))),
        ("for our prefix", issuer.token(|claims| claims["aud"] = json!("https://mcp.example.com"))),
        ("of another issuer", issuer.token(|claims| claims["iss"] = json!("https://evil.example"))),
        ("without a subject", issuer.token(|claims| drop(claims.as_object_mut().unwrap().remove("sub")))),
        ("alg none", format!("{}.{claims}.", part(&json!({"alg": "none"})))),
        ("alg None", format!("{}.{claims}.{signature}", part(&json!({"alg": "None", "kid": "k0"})))),
        ("unsigned", format!("{header}.{claims}.")),
        ("HMAC with the public key", confused(public.as_bytes())),
        ("HMAC with nothing", confused(b"")),
        ("changed claims", format!("{header}.{}.{signature}", part(&admin))),
        ("another key under this name", sign(1, "k0", &issuer.claims())),
        ("an unknown key", sign(1, "k9", &issuer.claims())),
        ("an identity token", {
            let header = Header {
                kid: Some("k0".into()),
                typ: Some("id+jwt".into()),
                ..Header::new(Algorithm::ES256)
            };
            let der = STANDARD.decode(KEYS[0].0.replace(char::is_whitespace, "")).unwrap();
            encode(&header, &issuer.claims(), &EncodingKey::from_ec_der(&der)).unwrap()
        }),
        ("a tenant that is no name", issuer.token(|claims| claims["tenant"] = json!("a/b"))),
        ("long", "e".repeat(20_000)),
        ("three dots", "a.b.c".into()),
    ] {
        assert_eq!(status(&server, &token), 401, "{what}");
    }
    let scoped = issuer.token(|claims| claims["scope"] = json!("openid"));
    let reply = server.post(&[("Authorization", &format!("Bearer {scoped}"))], &initialize("2025-11-25"));
    assert_eq!(reply.status, 403);
    assert!(reply.header("www-authenticate").unwrap().contains("insufficient_scope"));
    assert_eq!(status(&server, &good), 200, "and good ones still pass");
    let asked = issuer.asked.load(Ordering::SeqCst);
    assert!(asked <= 2, "names of unknown keys do not make it ask again and again: {asked}");
}

#[test]
fn keys_are_found_by_name_among_several_and_rotation_is_noticed() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    // The issuer has changed its keys before anyone asked; later both are published.
    *issuer.keys.lock().unwrap() = json!({"keys": [jwk(1), jwk(0)]});
    let server = issuer.server(data.path());
    assert_eq!(status(&server, &sign(1, "k1", &issuer.claims())), 200);
    assert_eq!(status(&server, &sign(0, "k0", &issuer.claims())), 200);
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_stranger_locks_no_one_out_while_the_issuer_closes_hangs_or_floods() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let server = issuer.server(data.path());
    let good = issuer.token(|_| {});
    assert_eq!(status(&server, &good), 200);
    let mut recovered = 0;
    for (mood, cause) in [
        (Mood::Closes, "does not answer"),
        (Mood::Floods, "more than 262144 bytes"),
        (Mood::Hangs, "timed out"),
    ] {
        *issuer.mood.lock().unwrap() = mood;
        let server = &server;
        std::thread::scope(|scope| {
            let name = format!("unknown while {cause}");
            let stranger = sign(1, &name, &issuer.claims());
            let refused = scope.spawn(move || status(server, &stranger));
            // No one waits for what the stranger started.
            for _ in 0..5 {
                assert_eq!(status(server, &good), 200, "{cause}");
            }
            if mood == Mood::Hangs {
                assert!(!refused.is_finished(), "good tokens are answered while the stranger waits");
            }
            assert!([401, 503].contains(&refused.join().unwrap()), "{cause}");
        });
        assert_eq!(status(server, &good), 200, "{cause}: also after the fetch has failed");
        // The fetch that failed is repeated by itself, so the next one is well before the next mood.
        *issuer.mood.lock().unwrap() = Mood::Well;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        recovered += 1;
        while server.log().matches("can be fetched again").count() < recovered {
            assert!(std::time::Instant::now() < until, "{}", server.log());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        assert!(server.log().contains(cause), "the cause is logged: {}", server.log());
    }
    // A key that is published later is found, without a restart.
    *issuer.keys.lock().unwrap() = json!({"keys": [jwk(1), jwk(0)]});
    assert_eq!(status(&server, &sign(1, "k1", &issuer.claims())), 200);
    let asked = issuer.asked.load(Ordering::SeqCst);
    for n in 0..40 {
        assert_eq!(status(&server, &sign(1, &format!("k{n}-unknown"), &issuer.claims())), 401);
    }
    let more = issuer.asked.load(Ordering::SeqCst) - asked;
    assert!(more <= 8, "forty unknown names make few fetches: {more}");
}

#[test]
fn a_slash_too_many_in_the_issuers_name_is_explained() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let server = HttpServer::start_with(
        command(data.path())
            .env("PATHBOX_HTTP_PUBLIC_URL", "https://mcp.example.com")
            .env("PATHBOX_OAUTH_ISSUER", format!("{}/", issuer.url)),
    );
    assert_eq!(status(&server, &issuer.token(|_| {})), 503);
    // The log comes through a pipe.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let log = server.log();
        if log.contains("differ in the trailing slash") && log.contains(&issuer.url) {
            break;
        }
        assert!(std::time::Instant::now() < until, "{log}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_token_that_marks_an_extension_as_critical_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let server = issuer.server(data.path());
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let der = STANDARD.decode(KEYS[0].0.replace(char::is_whitespace, "")).unwrap();
    let signed = |header: Value| {
        let message = format!("{}.{}", part(&header), part(&issuer.claims()));
        let key = EncodingKey::from_ec_der(&der);
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::ES256).unwrap();
        format!("{message}.{signature}")
    };
    assert_eq!(status(&server, &signed(json!({"alg": "ES256", "kid": "k0", "typ": "at+jwt"}))), 200);
    for crit in [json!(["exp"]), json!(["b64"]), json!([])] {
        let header = json!({"alg": "ES256", "kid": "k0", "crit": crit, "b64": true});
        assert_eq!(status(&server, &signed(header)), 401, "{crit}");
    }
}
