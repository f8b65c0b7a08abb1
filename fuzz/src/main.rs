//! A fuzzer that needs nothing but stable Rust: changes the recorded inputs at random, for some seconds a target.
//!
//! `pathbox-fuzz SECONDS [TARGET]`. The targets of the whole guard get only the recorded inputs unless they are named: random
//! changes still find texts there that come out otherwise in pieces. The seed is the time, and is printed; an input that breaks a
//! promise is written to `fuzz/crashes/<target>` and ends the run with status 1. `scripts/fuzz guided` finds more, by coverage.

use std::fs;
use std::panic;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(8);
    let only = arguments.next();
    let seed =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    println!("seed {seed}");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut failed = false;
    for (name, run) in
        pathbox_fuzz::TARGETS.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name))
    {
        let mut inputs: Vec<Vec<u8>> = ["corpus", "crashes"]
            .iter()
            .flat_map(|dir| fs::read_dir(here.join(dir).join(name)).into_iter().flatten().flatten())
            .filter_map(|entry| fs::read(entry.path()).ok())
            .collect();
        assert!(!inputs.is_empty(), "fuzz/corpus/{name} holds nothing to begin with");
        inputs.sort();
        let mut random = Random(seed | 1);
        let seconds = if only.is_none() && name.starts_with("guard_") { 0 } else { seconds };
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut runs = 0_u64;
        let mut broken = None;
        for input in &inputs {
            if panic::catch_unwind(|| run(input)).is_err() {
                broken = Some(input.clone());
            }
        }
        while broken.is_none() && Instant::now() < until {
            for _ in 0..256 {
                let input = random.change(&inputs);
                runs += 1;
                if panic::catch_unwind(|| run(&input)).is_err() {
                    broken = Some(input);
                    break;
                }
            }
        }
        println!("{name}: {} recorded inputs, {runs} changed ones", inputs.len());
        if let Some(input) = broken {
            let dir = here.join("crashes").join(name);
            let path = dir.join(format!(
                "{:016x}",
                input.iter().fold(seed, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte))
            ));
            fs::create_dir_all(&dir).and_then(|()| fs::write(&path, &input)).expect("writes");
            println!("{name}: broken by {}", path.display());
            failed = true;
        }
    }
    ExitCode::from(u8::from(failed))
}

/// Marsaglia's xorshift: repeatable by its seed, and good enough to choose bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// One of the inputs with some changes; now and then the beginning of one and the end of another.
    fn change(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        const LONGEST: usize = 4096;
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..1 + self.below(5) {
            let at = self.below(input.len() + 1);
            match self.below(8) {
                0 => input.truncate(at),
                1 => input.insert(at, self.next() as u8),
                2 if at < input.len() => drop(input.remove(at)),
                3 | 4 if at < input.len() => input[at] ^= 1 << self.below(8),
                5 if at < input.len() => {
                    const TELLING: [u8; 12] =
                        [0, 1, 0x7f, 0x80, 0xff, b'\r', b'\n', b'"', b'{', b'-', 0x1e, b':'];
                    input[at] = TELLING[self.below(TELLING.len())];
                }
                6 => {
                    let other = &inputs[self.below(inputs.len())];
                    let from = self.below(other.len() + 1);
                    input.truncate(at);
                    input.extend_from_slice(&other[from..]);
                }
                _ => {
                    let end = at + self.below(input.len() - at + 1);
                    let again = input[at..end].to_vec();
                    input.splice(at..at, again);
                }
            }
            input.truncate(LONGEST);
        }
        input
    }
}
