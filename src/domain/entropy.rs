//! Randomness, as an argument: the operating system's, or a seeded one that a test can repeat.

use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::Clock;

/// A source of random bytes. Cheap to clone; clones of a seeded source continue one sequence.
#[derive(Debug, Clone)]
pub struct Entropy(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Seeded(Arc<Mutex<(u64, u64)>>),
}

impl Entropy {
    /// The operating system's generator.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A repeatable sequence, for tests only.
    pub fn seeded(seed: u64) -> Self {
        Self(Source::Seeded(Arc::new(Mutex::new((seed, 0)))))
    }

    /// Fills `N` bytes.
    ///
    /// # Panics
    /// When the operating system has no randomness to give; nothing safe can be done then.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        match &self.0 {
            #[expect(clippy::expect_used, reason = "documented; there is no safe way to continue")]
            Source::System => getrandom::fill(&mut out).expect("the operating system gives random bytes"),
            Source::Seeded(state) => {
                let mut state = super::lock(state);
                for chunk in out.chunks_mut(32) {
                    let digest =
                        Sha256::new().chain_update(state.0.to_le_bytes()).chain_update(state.1.to_le_bytes());
                    chunk.copy_from_slice(&digest.finalize()[..chunk.len()]);
                    state.1 += 1;
                }
            }
        }
        out
    }

    /// `N` random bytes as lower-case hex: a token that no one guesses when `N` is 16 or more.
    pub fn hex<const N: usize>(&self) -> String {
        hex(&self.bytes::<N>())
    }

    /// A UUIDv7 (RFC 9562): milliseconds of `clock`, then random bits.
    pub fn uuid_v7(&self, clock: &Clock) -> Uuid {
        let millis = u64::try_from(clock.now().timestamp_millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &self.bytes()).into_uuid()
    }

    /// A number below `bound`, for jitter. `bound` of 0 gives 0.
    pub fn below(&self, bound: u64) -> u64 {
        u64::from_le_bytes(self.bytes()).checked_rem(bound).unwrap_or(0)
    }
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
