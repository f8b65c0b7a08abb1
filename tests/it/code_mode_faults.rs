//! Tools are called while the way to the sandbox breaks: a real sandbox host, behind a proxy that cuts connections, swallows
//! what comes and loses answers. No call is made twice, and a program learns what happened to its own.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::code_mode::{Host, Place, run, stdout, until};
use crate::support::server::Server;

/// Passes bytes on, and harms the relay's connections when asked.
struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// What the relay says is taken and goes nowhere.
    swallow: AtomicBool,
    swallowed: AtomicUsize,
    /// The answer to the next thing that is sent to a process is lost, and with it its connection.
    lose: AtomicBool,
    lost: AtomicUsize,
    /// Connections on which the relay's output comes.
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    fn start(to: &str) -> Self {
        let to: SocketAddr = to.trim_start_matches("http://").parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(host)) = (client, TcpStream::connect(to)) else { continue };
                carry(client, host, Arc::clone(&shared));
            }
        });
        Self { address, state }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Cuts the connections on which the relay's output comes, once there is one.
    fn cut(&self) {
        until(|| !self.state.streams.lock().unwrap().is_empty());
        for stream in self.state.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Carries one connection both ways until it ends.
fn carry(client: TcpStream, host: TcpStream, state: Arc<State>) {
    let (is_stream, loses) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (mut from, mut to) = (client.try_clone().unwrap(), host.try_clone().unwrap());
    let (shared, marks) = (Arc::clone(&state), (Arc::clone(&is_stream), Arc::clone(&loses)));
    std::thread::spawn(move || {
        let (mut piece, mut tail) = ([0; 65536], Vec::new());
        while let Ok(n @ 1..) = from.read(&mut piece) {
            // A word may be cut in two by the pieces in which it comes.
            tail.extend_from_slice(&piece[..n]);
            if ["pathbox-tools", "process.Process/Connect"].iter().any(|word| holds(&tail, word))
                && !marks.0.swap(true, Ordering::SeqCst)
            {
                shared.streams.lock().unwrap().push(from.try_clone().unwrap());
            }
            if holds(&tail, "process.Process/SendInput") && shared.lose.swap(false, Ordering::SeqCst) {
                marks.1.store(true, Ordering::SeqCst);
            }
            tail.drain(..tail.len().saturating_sub(64));
            if to.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (host, client);
    std::thread::spawn(move || {
        let mut piece = [0; 65536];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            if loses.load(Ordering::SeqCst) {
                state.lost.fetch_add(1, Ordering::SeqCst);
                break;
            }
            if is_stream.load(Ordering::SeqCst) && state.swallow.load(Ordering::SeqCst) {
                state.swallowed.fetch_add(n, Ordering::SeqCst);
            } else if to.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    });
}

struct Setting {
    server: Server,
    place: Place,
    proxy: Proxy,
    _host: Host,
}

fn setting() -> Setting {
    let host = Host::start();
    let proxy = Proxy::start(&host.url);
    let place = Place::new("", "", &host.settings(&proxy.url()));
    let server = place.serve();
    Setting { server, place, proxy, _host: host }
}

impl Setting {
    fn begin(&mut self, language: &str, code: &str) -> u64 {
        let arguments = json!({"code": code, "language": language, "timeout_ms": 120_000});
        self.server.begin("tools/call", json!({"name": "run_code", "arguments": arguments}))
    }

    fn called(&self) -> usize {
        self.place.calls("slow").len()
    }

    /// How many calls the tool server got, each once.
    fn called_once_each(&self) -> usize {
        let calls = self.place.calls("slow");
        let keys: std::collections::BTreeSet<&str> =
            calls.iter().map(|call| call["meta"]["dev.pathbox/idempotencyKey"].as_str().unwrap()).collect();
        assert_eq!(keys.len(), calls.len(), "a call came twice");
        calls.len()
    }
}

const MANY: &str = "from tools import kit\nprint(sum(kit.slow(ms=60) == 'done' for n in range(40)))";

#[test]
fn a_connection_that_breaks_again_and_again_loses_no_call_and_repeats_none() {
    let mut at = setting();
    let id = at.begin("python", MANY);
    for after in [3, 12, 20, 30] {
        until(|| at.called() >= after);
        at.proxy.cut();
    }
    let answer = at.server.answer(id);
    assert_eq!(stdout(&answer["result"]), "40\n", "{answer}");
    assert_eq!(at.called_once_each(), 40);
}

#[test]
fn calls_that_were_lost_with_a_connection_come_again_and_are_made_once() {
    let mut at = setting();
    let id = at.begin("python", MANY);
    until(|| at.called() >= 3);
    at.proxy.state.swallow.store(true, Ordering::SeqCst);
    until(|| at.proxy.state.swallowed.load(Ordering::SeqCst) > 0);
    at.proxy.cut();
    at.proxy.state.swallow.store(false, Ordering::SeqCst);
    let answer = at.server.answer(id);
    assert_eq!(stdout(&answer["result"]), "40\n", "{answer}");
    assert_eq!(at.called_once_each(), 40);
}

#[test]
fn a_lost_answer_is_an_error_that_says_so_and_the_next_run_calls_again() {
    for (language, code) in [
        (
            "python",
            "import tools\nfrom tools import kit\ntry:\n    for n in range(150):\n        kit.slow(ms=60)\nexcept tools.ToolError as error:\n    print(error.kind, error)",
        ),
        (
            "javascript",
            "import { kit } from 'tools';\ntry { for (let n = 0; n < 150; n++) await kit.slow({ms: 60}); } catch (error) { console.log(error.kind, error.message) }",
        ),
    ] {
        let mut at = setting();
        let id = at.begin(language, code);
        until(|| at.called() >= 3);
        at.proxy.state.lose.store(true, Ordering::SeqCst);
        let answer = at.server.answer(id);
        assert_eq!(at.proxy.state.lost.load(Ordering::SeqCst), 1);
        let said = stdout(&answer["result"]);
        assert!(said.starts_with("gone ") && said.contains("may have had effects"), "{language}: {answer}");
        at.called_once_each();
        let again: Value =
            run(&mut at.server, "python", "from tools import kit\nprint(kit.add(a=2, b=3)['sum'])");
        assert_eq!(stdout(&again), "5\n", "{language}: {again:#}");
    }
}
