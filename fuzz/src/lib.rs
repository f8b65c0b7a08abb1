//! What is fuzzed: each target takes any bytes and panics when a promise of its parser does not hold, first among them
//! that it does not panic, that what is held is bounded, and that it does not matter how the bytes are cut.

#[path = "../../src/host/network/client_hello.rs"]
mod client_hello;
#[path = "../../src/wire/connect.rs"]
mod connect;
#[path = "../../src/host/kernel/protocol.rs"]
mod driver;
#[path = "../../src/wire/interpreter.rs"]
mod interpreter;
#[path = "../../src/wire/json.rs"]
mod json;
#[path = "../../src/host/http/envd/multipart.rs"]
mod multipart;
#[path = "../../src/wire/output.rs"]
mod output;
/// The guard is more than one file; it looks for what it needs at the root.
#[path = "../../src"]
#[allow(unused_imports)]
mod pathbox {
    pub(crate) mod domain;
    pub(crate) mod guard;
}
#[path = "../../src/host/network/policy.rs"]
mod policy;
#[path = "../../src/host/agent/protocol.rs"]
mod protocol;
#[path = "../../src/wire/text.rs"]
mod text;

/// Where the parsers look for each other.
mod wire {
    pub(crate) use super::interpreter;
}

use std::net::IpAddr;

use bytes::Bytes;
use pathbox::{domain, guard};

/// A target: its name, as in `corpus` and `fuzz_targets`, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("agent_frames", agent_frames),
    ("client_hello", client_hello_names),
    ("driver_frames", driver_frames),
    ("envelopes", envelopes),
    ("event_lines", event_lines),
    ("guard_documents", guard_files),
    ("guard_json", guard_json),
    ("guard_pictures", guard_files),
    ("guard_tables", guard_texts),
    ("guard_views", guard_texts),
    ("multipart_forms", multipart_forms),
    ("network_rules", network_rules),
];

/// The first byte says how the rest is cut.
fn cuts(bytes: &[u8]) -> (usize, &[u8]) {
    bytes.split_first().map_or((1, bytes), |(cut, rest)| (usize::from(*cut).max(1), rest))
}

/// Messages between host and agent: what decodes is encoded to something that decodes to the same.
pub fn agent_frames(bytes: &[u8]) {
    if let Ok((id, message)) = protocol::FromAgent::decode(bytes) {
        let again = protocol::FromAgent::decode(&message.encode(id));
        assert_eq!(again, Ok((id, message)));
    }
    if let Ok((id, message)) = protocol::ToAgent::decode(bytes) {
        let again = protocol::ToAgent::decode(&message.encode(id));
        assert_eq!(again, Ok((id, message)));
    }
}

/// Connect's envelopes.
pub fn envelopes(bytes: &[u8]) {
    const LIMIT: usize = 1000;
    let read = |bytes: &[u8], cut: usize| {
        let mut reader = connect::EnvelopeReader::new(LIMIT);
        let mut found = Vec::new();
        for piece in bytes.chunks(cut) {
            reader.push(piece);
            loop {
                match reader.next() {
                    Ok(Some(envelope)) => found.push(envelope),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    };
    let (cut, bytes) = cuts(bytes);
    let (found, error) = read(bytes, cut);
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!((&found, error), (&whole.0, whole.1));
    let encoded: Vec<u8> = found.iter().flat_map(|envelope| envelope.encode().to_vec()).collect();
    assert!(bytes.starts_with(&encoded));
    for envelope in found {
        let (connect::Envelope::Message(payload) | connect::Envelope::End(payload)) = envelope;
        assert!(payload.len() <= LIMIT);
        let _ = serde_json::from_slice::<connect::EndStream>(&payload);
    }
}

/// Uploaded forms.
pub fn multipart_forms(bytes: &[u8]) {
    type Parts = Vec<(String, Option<String>, Vec<u8>)>;
    let read = |bytes: &[u8], cut: usize| -> (Parts, Option<multipart::Malformed>, bool) {
        let mut form = multipart::Multipart::new("multipart/form-data; boundary=b").expect("a boundary");
        let mut parts = Parts::new();
        for piece in bytes.chunks(cut) {
            form.push(piece);
            loop {
                match form.next() {
                    Ok(Some(multipart::Piece::Part { name, filename })) => {
                        parts.push((name, filename, vec![]))
                    }
                    Ok(Some(multipart::Piece::Data(data))) => {
                        parts.last_mut().expect("data belongs to a part").2.extend_from_slice(&data);
                    }
                    Ok(Some(multipart::Piece::End)) => return (parts, None, true),
                    Ok(None) => break,
                    Err(error) => return (parts, Some(error), false),
                }
            }
        }
        (parts, None, false)
    };
    let (cut, rest) = cuts(bytes);
    let (parts, error, ended) = read(rest, cut);
    let (whole, whole_error, whole_ended) = read(rest, rest.len().max(1));
    assert_eq!((error, ended), (whole_error, whole_ended));
    assert_eq!(parts, whole);
    assert!(parts.iter().map(|(_, _, data)| data.len()).sum::<usize>() <= rest.len());
    if let Ok(content_type) = std::str::from_utf8(bytes) {
        let _ = multipart::Multipart::new(content_type);
    }
}

/// What an interpreter's driver says: frames on the control socket, marks in the output.
pub fn driver_frames(bytes: &[u8]) {
    let (cut, bytes) = cuts(bytes);
    let read = |cut: usize| {
        let mut frames = driver::Frames::default();
        let mut found = Vec::new();
        'all: for piece in bytes.chunks(cut) {
            frames.push(piece);
            loop {
                match frames.whole().and_then(|whole| whole.map(|bytes| driver::Frame::parse(&bytes)).transpose()) {
                    Ok(Some(frame)) => found.push((frame.k, frame.dropped, frame.data.0.len())),
                    Ok(None) => break,
                    Err(_) => break 'all,
                }
            }
        }
        found
    };
    assert_eq!(read(cut), read(bytes.len().max(1)));
    // Marks: nothing is lost but the marks themselves, of which those in one place are the highest.
    let read = |cut: usize| {
        let mut marks = driver::Marks::new("ab");
        let (mut text, mut numbers) = (Vec::new(), std::collections::BTreeMap::new());
        let mut take = |piece| match piece {
            driver::Piece::Text(bytes) => text.extend_from_slice(&bytes),
            driver::Piece::Mark(number) => {
                let highest = numbers.entry(text.len()).or_insert(number);
                *highest = number.max(*highest);
            }
        };
        for piece in bytes.chunks(cut) {
            marks.push(Bytes::copy_from_slice(piece)).into_iter().for_each(&mut take);
        }
        take(driver::Piece::Text(marks.finish()));
        (text, numbers)
    };
    let (text, numbers) = read(cut);
    assert_eq!((bytes.len() - text.len()) % "\x1eab:00000000\x1e".len(), 0);
    assert_eq!((text, numbers), read(bytes.len().max(1)));
}

/// Lines of an execution's answer and the events in them, and text in pieces.
pub fn event_lines(bytes: &[u8]) {
    const LIMIT: usize = 300;
    let (cut, bytes) = cuts(bytes);
    let read = |cut: usize| {
        let mut lines = text::Lines::new(LIMIT);
        let mut found = Vec::new();
        for piece in bytes.chunks(cut) {
            lines.push(Bytes::copy_from_slice(piece));
            while let Some(line) = lines.next() {
                found.push(line);
            }
        }
        found.extend(lines.finish());
        found
    };
    let found = read(cut);
    assert_eq!(found, read(bytes.len().max(1)));
    for line in found {
        let (text::Line::Whole(line) | text::Line::Cut { head: line, .. }) = line;
        assert!(line.len() <= LIMIT);
        if let Ok(event) = interpreter::Event::read(&line) {
            let written = event.write();
            assert!(written.is_ascii(), "{written}");
            let again = interpreter::Event::read(written.as_bytes()).expect("what is written is read");
            assert_eq!(again.write(), written);
        }
        let _ = interpreter::Event::salvage(&line);
    }
    let decode = |cut: usize| {
        let mut decoder = text::Utf8Decoder::default();
        let mut out: String = bytes.chunks(cut).map(|piece| decoder.push(piece)).collect();
        out.push_str(&decoder.finish());
        out
    };
    assert_eq!(decode(cut), String::from_utf8_lossy(bytes));
}

/// The name in a TLS greeting.
pub fn client_hello_names(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    if let Ok(greeting) = runtime.block_on(client_hello::read(&mut &bytes[..])) {
        // What goes on is what came.
        assert!(bytes.starts_with(&greeting.bytes));
        assert!(greeting.name.is_none_or(|name| name.len() < greeting.bytes.len()));
    }
}

/// Rules of a network policy, and names and addresses to judge by them.
pub fn network_rules(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let allow_out: Vec<String> =
        lines.by_ref().take_while(|line| !line.is_empty()).map(str::to_owned).collect();
    let asked = policy::Asked { allow_out, deny_out: vec!["0.0.0.0/0".into()], ..policy::Asked::default() };
    let Ok(policy) = policy::Policy::new(asked.clone(), false) else { return };
    let about_private =
        asked.allow_out.iter().any(|rule| rule.starts_with(|c: char| c.is_ascii_hexdigit() || c == ':'));
    for line in lines {
        if let Some(name) = policy::host_name(line) {
            assert!(name.parse::<IpAddr>().is_err());
            let _ = policy.names(&name);
        }
        if let Ok(address) = line.parse::<IpAddr>() {
            let reached = policy.permits_by_name(address);
            assert!(!policy.permits(address) || reached);
            let own = matches!(address, IpAddr::V4(v4) if v4.is_loopback() || v4.is_private() || v4.is_link_local());
            assert!(!(own && reached) || about_private, "{address}");
            // Where secrets are told: only by a rule on that one address.
            let tells = matches!(address, IpAddr::V4(v4) if v4.is_link_local());
            assert!(!(tells && reached) || policy.names_address(address), "{address}");
        }
    }
}

/// Text through the guard, whatever hides in it and whatever tables it holds: it does not fail, it does not matter how the
/// text is cut, and what has gone out is let out again as it is.
pub fn guard_texts(bytes: &[u8]) {
    let (cut, bytes) = cuts(bytes);
    let text = String::from_utf8_lossy(bytes);
    let guard = guard::Guard::default();
    let mut numbering = guard::Numbering::alone();
    let (whole, report) = guard.text(&text, &mut numbering);
    assert_eq!(report.errors, 0);
    assert!(report.total() + report.forged > 0 || *whole == *text);
    let (mut stream, mut again) = (guard.stream(), guard::Numbering::alone());
    let mut pieces = String::new();
    let mut rest = &*text;
    while !rest.is_empty() {
        let at = (cut.min(rest.len())..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        pieces.push_str(&stream.push(&rest[..at], &mut again));
        rest = &rest[at..];
    }
    pieces.push_str(&stream.finish(&mut again).0);
    assert_eq!(pieces, *whole);
    assert_eq!(*guard.text(&whole, &mut numbering).0, *whole);
}

/// JSON through the guard, as a value and as text: what comes out is JSON, and as it is the second time. A number by itself
/// is no JSON for the guard.
pub fn guard_json(bytes: &[u8]) {
    let value = serde_json::from_slice(bytes).unwrap_or_else(|_| built(&mut bytes.iter(), 0));
    if value.is_number() {
        return;
    }
    let guard = guard::Guard::default();
    let mut numbering = guard::Numbering::alone();
    let (once, report) = guard.json(value.clone(), &mut numbering);
    assert_eq!(report.errors, 0);
    assert_eq!(*guard.json(once.clone().into_inner(), &mut numbering).0, *once);
    let (text, _) = guard.text(&value.to_string(), &mut numbering);
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{}", *text);
}

/// The value that bytes describe, one for each scalar: names, what they name, texts that hold tables, in any nesting.
fn built(bytes: &mut std::slice::Iter<'_, u8>, depth: usize) -> serde_json::Value {
    const TEXTS: [&str; 24] = [
        "name",
        "value",
        "columns",
        "data",
        "header",
        "password",
        "Authorization",
        "email",
        "ssn",
        "token",
        "id",
        "x9Kd82hfLqT4",
        "Basic dXNlcjpFWHRBdXRob3IAYWxpY2VAZXhhbXBsZS5jb208",
        "user,password\nwalsh,Wint3r2024#78\n",
        ",api_key",
        "phone: +354 611 1234",
        "token=\"99d70f38;",
        "TOKEN\n",
        "tel 82 789798\n",
        "\"",
        "{\"card\": 4111111111111111}",
        "alice@example.com",
        "[EMAIL_1]",
        "id;ssn",
    ];
    let text = |byte: u8| TEXTS[usize::from(byte) % TEXTS.len()];
    let mut next = || bytes.next().copied().unwrap_or_default();
    match next() {
        byte @ 0..128 => text(byte).into(),
        byte @ 128..144 => serde_json::json!(4_111_111_111_111_104_u64 + u64::from(byte % 16)),
        144..152 => serde_json::json!(219_099_998),
        152..160 => serde_json::Value::Null,
        _ if depth > 4 => next().into(),
        byte @ 160..208 => (0..byte % 5).map(|_| built(bytes, depth + 1)).collect(),
        byte => {
            let mut fields = serde_json::Map::new();
            for _ in 0..byte % 4 {
                let key = text(bytes.next().copied().unwrap_or_default());
                fields.insert(key.to_owned(), built(bytes, depth + 1));
            }
            fields.into()
        }
    }
}

/// Pictures, documents and archives through the guard: refused, or let out as what is not refused the second time.
pub fn guard_files(bytes: &[u8]) {
    let out = || {
        let (guard, numbering) = (guard::Guard::default(), guard::Numbering::alone());
        guard::OutcomeGuard::new(&guard, numbering, guard::OutputLimits::default())
    };
    if let Ok(clean) = out().file(bytes) {
        assert!(out().file(&clean).is_ok());
    }
}

// What the messages between host and agent carry: the shapes of `src/host/agent.rs`, which is much more than a parser.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileInfo {
    name: String,
    path: String,
    kind: FileKind,
    size: u64,
    mode: u32,
    modified_ms: i64,
    target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum FileKind {
    File,
    Dir,
    Link,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WatchEvent {
    name: String,
    kind: WatchKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum WatchKind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
enum Stdin {
    #[default]
    Null,
    Pipe,
}

#[path = "../../src/host"]
mod host {
    pub(crate) mod credit;

    pub(crate) mod jail {
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub(crate) struct Usage {
            pub(crate) memory_bytes: u64,
            pub(crate) cpu_micros: u64,
            pub(crate) processes: u32,
        }
    }
}
