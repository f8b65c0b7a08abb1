//! How fast the guard is, in one run beside `memchr`, a `RegexSet` over the same token patterns and, when
//! `target/test-env/guard-peers` has them, two scanners that people use.
//!
//! `cargo bench --bench guard`, or with a word to run only the inputs whose name holds it. Speeds are megabytes
//! (10^6) a second of processor time of one thread; the best of three.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pathbox::guard::{Guard, Numbering, rules};

/// Size of the ordinary inputs and of the hostile ones.
const SIZE: usize = 32 << 20;
const HOSTILE: usize = 8 << 20;

fn main() {
    let only = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let set = regex::bytes::RegexSetBuilder::new(rules().iter().flat_map(|rule| &rule.patterns))
        .unicode(false)
        .size_limit(1 << 30)
        .dfa_size_limit(1 << 28)
        .build()
        .expect("token patterns are regular expressions too");
    let guard = Guard::default();
    println!(
        "{:<26} {:>9} {:>10} {:>9} {:>9} {:>10} {:>8}",
        "input", "guard", "streamed", "memchr", "RegexSet", "x RegexSet", "findings"
    );
    for (name, text) in inputs() {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let mut found = 0;
        // In texts of a megabyte, each whole: as much as a run may well say.
        let whole = speed(&text, || {
            found = 0;
            for part in pieces(&text, 1 << 20) {
                let (out, report) = guard.text(part, &mut Numbering::alone());
                found += report.total();
                black_box(out);
            }
        });
        let streamed = speed(&text, || {
            let (mut stream, mut numbering) = (guard.stream(), Numbering::alone());
            for piece in pieces(&text, 8 << 10) {
                black_box(stream.push(piece, &mut numbering));
            }
            black_box(stream.finish(&mut numbering));
        });
        // A byte that does not come, so that it has to look at all of them.
        let plain = speed(&text, || {
            black_box(memchr::memchr(0x7f, black_box(text.as_bytes())));
        });
        // On a slice: where a lazy automaton gives up it is a hundred times slower.
        let slice = &text[..floor(&text, 1 << 20)];
        let regex = speed(slice, || {
            for line in black_box(slice).lines() {
                // All that match, for that is what the guard says too.
                black_box(set.matches(line.as_bytes()));
            }
        });
        println!(
            "{name:<26} {whole:>9.0} {streamed:>10.0} {plain:>9.0} {regex:>9.1} {:>10.1} {found:>8}",
            whole / regex
        );
    }
    if only.is_none() {
        peers();
    }
}

/// The time that this thread has had a processor, so that a busy machine does not count; the clock elsewhere.
fn now() -> Duration {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

fn speed(text: &str, mut run: impl FnMut()) -> f64 {
    // So often that the kernel's accounting, which ticks in milliseconds, does not matter.
    let (mut best, mut batch) = (f64::MAX, 1u32);
    let mut rounds = 0;
    while rounds < 3 {
        let start = now();
        for _ in 0..batch {
            run();
        }
        let took = (now() - start).as_secs_f64();
        if took < 0.04 {
            batch *= 2;
            continue;
        }
        best = best.min(took / f64::from(batch));
        rounds += 1;
    }
    text.len() as f64 / 1e6 / best
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn pieces(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(floor(rest, size));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A small generator of the same numbers each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn fill(size: usize, mut piece: impl FnMut(&mut String)) -> String {
    let mut text = String::with_capacity(size + 512);
    while text.len() < size {
        piece(&mut text);
    }
    text
}

fn inputs() -> Vec<(&'static str, String)> {
    use std::fmt::Write as _;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let words: Vec<&str> = "the of and to in a is that for it as was with be by on not he this are or his from at which \
        but have an had they you were their one all we can her has there been if more when will would who so no said what \
        up its about into than them only other new some could time these two may then do first any my now such like our \
        over man me even most made after also did many before must through back years where much your way well down should \
        because each just those people how too little state good very make world still own see men work long get here \
        between both life being under never day same another know while last might us great old year off come since \
        against go came right used take three regulation undertaking member authority competent directive provision \
        assessment contribution threshold entitlement jurisdiction Commission"
        .split_whitespace()
        .collect();
    let prose = fill(SIZE, |text| {
        for n in 0..12 + dice.roll(10) {
            if n > 0 {
                text.push(' ');
            }
            match dice.roll(120) {
                0 => write!(text, "{}", dice.roll(2000)),
                1 => write!(text, "({})", words[dice.roll(20) as usize]),
                _ => write!(text, "{}", words[dice.roll(words.len() as u64) as usize]),
            }
            .ok();
            if dice.roll(14) == 0 {
                text.push(',');
            }
        }
        text.push_str(if dice.roll(6) == 0 { ".\n" } else { ". " });
    });
    let logs = fill(SIZE, |text| {
        let (a, b, c) = (dice.roll(1 << 32), dice.roll(1 << 48), dice.roll(900_000));
        writeln!(
            text,
            "{{\"ts\":\"2026-{:02}-{:02}T{:02}:{:02}:{:02}.{c:06}Z\",\"level\":\"INFO\",\"reqId\":\"{a:08x}-2d4e-4439-964b-{b:012x}\",\"msg\":\"computed band\",\"amount\":{}.{:02},\"rate\":0.{:04},\"items\":{},\"ok\":true}}",
            1 + dice.roll(12),
            1 + dice.roll(28),
            dice.roll(24),
            dice.roll(60),
            dice.roll(60),
            dice.roll(300_000),
            dice.roll(100),
            dice.roll(10_000),
            dice.roll(50),
        )
        .ok();
    });
    let mut row = 0;
    let tables = fill(SIZE, |text| {
        if row % 1000 == 0 {
            text.push_str("              date        net        tax      rate  count\n");
        }
        writeln!(
            text,
            "{row:<7}  20{:02}-{:02}-{:02}  {:>8}.{:02}  {:>8}.{:02}  0.{:06}  {:>5}",
            dice.roll(30),
            1 + dice.roll(12),
            1 + dice.roll(28),
            dice.roll(200_000),
            dice.roll(100),
            dice.roll(60_000),
            dice.roll(100),
            dice.roll(1_000_000),
            dice.roll(10_000),
        )
        .ok();
        row += 1;
    });
    let arrays = fill(SIZE, |text| {
        for _ in 0..8 {
            write!(text, " {}.{:08}", dice.roll(10), dice.roll(100_000_000)).ok();
        }
        text.push('\n');
    });
    let dense = fill(HOSTILE, |text| {
        let n = dice.roll(90_000);
        writeln!(
            text,
            "{{\"name\":\"P{n}\",\"email\":\"p{n}@example.com\",\"phone\":\"+353 87 {:03} {:04}\",\"ip\":\"10.{}.{}.7\",\"iban\":\"DE89 3704 0044 0532 0130 00\",\"card\":\"4111 1111 1111 1111\"}}",
            dice.roll(1000),
            dice.roll(10_000),
            dice.roll(250),
            dice.roll(250),
        )
        .ok();
    });
    let french = fill(SIZE, |text| {
        text.push_str("Le règlement prévoit que l’autorité compétente, après évaluation, décide où l’entité est établie. ");
    });
    let random = fill(HOSTILE, |text| {
        for _ in 0..76 {
            let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            text.push(char::from(alphabet[dice.roll(64) as usize]));
        }
        text.push('\n');
    });
    let one_line: String = random.chars().filter(|c| *c != '\n').collect();
    let floats = fill(SIZE, |text| {
        for n in 0..8 {
            let sign = if n > 0 { "," } else { "" };
            write!(text, "{sign}{}.{:015}", dice.roll(2), dice.roll(1_000_000_000_000_000)).ok();
        }
        text.push('\n');
    });
    let traced = fill(SIZE, |text| {
        let (trace, span) = ((dice.roll(u64::MAX), dice.roll(u64::MAX)), dice.roll(u64::MAX));
        writeln!(
            text,
            "{{\"timestamp\":\"2026-11-28T12:{:02}:{:02}.{:03}Z\",\"level\":\"info\",\"service\":\"billing\",\"trace_id\":\"{:016x}{:016x}\",\"span_id\":\"{span:016x}\",\"msg\":\"request done\",\"path\":\"/v1/orders/{}\",\"status\":200,\"ms\":{}.{}}}",
            dice.roll(60),
            dice.roll(60),
            dice.roll(1000),
            trace.0,
            trace.1,
            dice.roll(100_000),
            dice.roll(300),
            dice.roll(10),
        )
        .ok();
    });
    let integers = fill(SIZE, |text| {
        write!(text, "{} ", dice.roll(1_000_000)).ok();
    });
    let chinese = fill(SIZE, |text| {
        text.push_str("中华人民共和国公民的个人信息受法律保护，任何组织或者个人不得非法收集、使用、加工、传输他人个人信息。\n");
    });
    let mut all = vec![
        ("prose", prose),
        ("JSON logs", logs),
        ("pandas tables", tables),
        ("numpy arrays", arrays),
        ("French prose", french),
        ("dense PII", dense),
        ("base64 lines", random),
        ("base64 in one line", one_line),
        ("JSON logs, trace id", traced),
        ("CSV of floats", floats),
        ("one line of integers", integers),
        ("Chinese prose", chinese),
    ];
    all.extend(sources());
    for (name, unit) in [
        ("a", "a"),
        ("@", "@"),
        ("1", "1"),
        ("-", "-"),
        (":", ":"),
        ("=", "="),
        ("%", "%"),
        ("backslash", "\\"),
        ("-----BEGIN", "-----BEGIN"),
        ("PEM lines", "-----BEGIN RSA PRIVATE KEY-----\n"),
        ("1 2 3", "1 "),
        ("1234 5678", "1234 5678 "),
        ("1.2.3", "1."),
        ("e-mail bombs", "a@a.a@"),
        ("password", "password \""),
        ("key=", "key="),
        ("api_key=", "api_key="),
        ("short flags", "-p "),
        ("token prefix", "ghp_0123456789ab "),
        ("eyJ", "eyJhbGciOiJIUzI1."),
        ("://", "://a:b@"),
        ("IBAN starts", "DE12 "),
        ("%40", "%40"),
        ("\\u0040", "\\u0040"),
        ("&#64;", "&#64;"),
        ("full-width", "\u{ff11}"),
        ("zero-width", "1\u{200b}"),
        ("ESC", "\u{1b}[1m"),
        ("[EMAIL_1]", "[EMAIL_1]"),
        ("+1 ", "+1 ("),
        ("hex", "0a1b2c3d4e5f6071 "),
        ("::", "1::2 "),
        ("telephones", "07700900123 "),
        ("password: ", "password: "),
        ("key:key:", "key:key:"),
        ("ssn = [", "ssn = ["),
        ("ssn...", "ssn..."),
        ("cookies", "Cookie: a=b;"),
    ] {
        all.push((name, unit.repeat(HOSTILE / unit.len())));
    }
    all
}

/// The directory of the sources of a package that this one depends on; empty if cargo does not know it.
fn package(name: &str) -> String {
    let here = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let asked = ["metadata", "--format-version", "1", "--offline", "--filter-platform", &here];
    let out = Command::new(env!("CARGO")).args(asked).output().map(|out| out.stdout).unwrap_or_default();
    let known: serde_json::Value = serde_json::from_slice(&out).unwrap_or_default();
    let package = known["packages"].as_array().into_iter().flatten().find(|package| package["name"] == name);
    let manifest = package.and_then(|package| package["manifest_path"].as_str()).unwrap_or_default();
    manifest.trim_end_matches("Cargo.toml").to_owned()
}

/// Sources of programs as they are on this machine: this package's own, in which names of secrets are common; two of the
/// libraries it is built with; Python's library; plotly.js where the tests have installed it.
fn sources() -> Vec<(&'static str, String)> {
    fn read(dir: &Path, ends: &str, out: &mut String) {
        let mut entries: Vec<_> =
            std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for path in entries {
            if out.len() > SIZE {
                return;
            }
            if path.is_dir() && (ends != ".py" || !path.ends_with("site-packages")) {
                read(&path, ends, out);
            } else if path.to_string_lossy().ends_with(ends) {
                out.push_str(&String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    let asked = "import sysconfig; print(sysconfig.get_paths()['stdlib'])";
    let library = Command::new("python3").args(["-c", asked]).output();
    let library = library.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    let plotly = "target/test-env/charts/lib".to_owned();
    let found = [
        ("Rust source", vec!["src".to_owned()], ".rs"),
        ("Rust libraries", vec![package("tokio"), package("regex-automata")], ".rs"),
        ("Python source", vec![library.unwrap_or_default()], ".py"),
        ("minified JavaScript", vec![plotly], "plotly.min.js"),
    ]
    .map(|(name, dirs, ends)| {
        let mut text = String::new();
        dirs.iter().for_each(|dir| read(Path::new(dir), ends, &mut text));
        (name, text)
    });
    found
        .into_iter()
        .filter(|(name, text)| {
            if text.is_empty() {
                println!("{name}: left out, there is none on this machine");
            }
            !text.is_empty()
        })
        .collect()
}

/// Two scanners that people use, on a smaller file of the same kinds.
fn peers() {
    let python = Path::new("target/test-env/guard-peers/bin/python");
    if !python.exists() {
        println!("peers: left out, {} is not there (scripts/test guard-peers makes it)", python.display());
        return;
    }
    for (name, text) in inputs().into_iter().take(3) {
        let path = std::env::temp_dir().join(format!(
            "pathbox-guard-{}-{}.txt",
            std::process::id(),
            name.replace(' ', "-")
        ));
        let text = &text[..floor(&text, 200_000)];
        if std::fs::write(&path, text).is_err() {
            continue;
        }
        let guard = Guard::default();
        let ours = speed(text, || {
            black_box(guard.text(text, &mut Numbering::alone()));
        });
        let out = Command::new(python).arg("benches/guard_peers.py").arg(&path).output();
        let _ = std::fs::remove_file(&path);
        let Ok(out) = out else { continue };
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            let Some((peer, speed)) = line.split_once(' ') else { continue };
            let theirs: f64 = speed.parse().unwrap_or(0.0);
            println!(
                "{name:<16} {peer:<24} {theirs:>8.4} MB/s; the guard {ours:.0} MB/s, {:.0} times",
                ours / theirs
            );
        }
    }
}
