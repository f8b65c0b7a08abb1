//! A wire between a server and its Postgres: it counts round trips, and it can be held, so that one server finds the
//! database away while others do not.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::database::Database;

/// Bytes before the body of a message: its kind and its length.
const HEAD: usize = 5;

/// A client asks for TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// Passes bytes on to a database's socket. It ends with the test process.
pub(crate) struct Wire {
    dir: tempfile::TempDir,
    url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    round_trips: AtomicU64,
    is_held: AtomicBool,
}

impl Wire {
    /// A wire to a database.
    pub(crate) fn to(database: &Database) -> Self {
        let direct = database.url().expose().to_owned();
        let (address, host) = direct.split_once("host=").unwrap();
        // The path of a socket is short.
        let dir = tempfile::Builder::new().prefix("pathbox-wire-").tempdir_in("/tmp").unwrap();
        let listener = UnixListener::bind(dir.path().join(".s.PGSQL.5432")).unwrap();
        let (state, socket) = (Arc::new(State::default()), PathBuf::from(host).join(".s.PGSQL.5432"));
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (asks, answers) = (shared.clone(), shared.clone());
                std::thread::spawn(move || pass(up, server, &asks, Some(Messages::default())));
                std::thread::spawn(move || pass(down, client, &answers, None));
            }
        });
        let url = format!("{address}host={}", dir.path().display());
        Self { dir, url, state }
    }

    /// The database's URL over this wire.
    pub(crate) fn url(&self) -> &str {
        debug_assert!(self.dir.path().exists());
        &self.url
    }

    /// How often an answer was asked for so far.
    pub(crate) fn round_trips(&self) -> u64 {
        self.state.round_trips.load(Ordering::SeqCst)
    }

    /// Lets nothing through, neither way.
    pub(crate) fn hold(&self) {
        self.state.is_held.store(true, Ordering::SeqCst);
    }

    /// Lets everything through again, also what was sent meanwhile.
    pub(crate) fn release(&self) {
        self.state.is_held.store(false, Ordering::SeqCst);
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream, state: &State, mut messages: Option<Messages>) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while state.is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(messages) = &mut messages {
            state.round_trips.fetch_add(messages.round_trips_in(&bytes[..count]), Ordering::SeqCst);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// What a client has sent and what is not counted yet (PostgreSQL, "Message Formats").
#[derive(Default)]
struct Messages {
    pending: Vec<u8>,
    has_begun: bool,
    /// Something was asked since the last Sync.
    has_asked: bool,
}

impl Messages {
    /// Sync and Query are what a client waits for an answer to. A Sync after nothing is none: the pool sends it when a
    /// connection comes back, and no one waits.
    fn round_trips_in(&mut self, bytes: &[u8]) -> u64 {
        self.pending.extend_from_slice(bytes);
        let mut found = 0;
        loop {
            // The first message has no kind, nor has a question for TLS before it.
            let kind = if self.has_begun { 1 } else { 0 };
            let Some(length) = self.pending.get(kind..kind + HEAD - 1) else { return found };
            let length = kind + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if self.pending.len() < length {
                return found;
            }
            let message: Vec<u8> = self.pending.drain(..length).collect();
            if self.has_begun {
                let ends = matches!(message[0], b'S' | b'Q');
                found += u64::from(message[0] == b'Q' || ends && self.has_asked);
                self.has_asked = !ends;
            }
            self.has_begun |= message[kind..] != SSL_REQUEST;
        }
    }
}
