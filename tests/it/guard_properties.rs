//! Properties of every text: pieces give the same as the whole, guarding is idempotent, JSON stays JSON, clean text is unchanged.

use std::time::Duration;

use base64::Engine as _;
use pathbox::domain::{CodeError, Ended, OutputChunk, RichResult};
use pathbox::guard::{
    Action, Guard, Kind, Mode, Numbering, OutcomeGuard, OutputLimits, Policy, PolicyFile, Report, Sealer,
    rules,
};
use serde_json::{Value, json};

/// A deterministic sequence of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.roll(items.len())]
    }
}

/// Texts that matter to the rules, in random mixtures: examples, counter-examples, punctuation, noise.
fn mixture(dice: &mut Dice, pieces: usize) -> String {
    let signs = [
        "\n",
        " ",
        ",",
        "\"",
        ": ",
        "=",
        "@",
        "-----BEGIN",
        "\u{200b}",
        "é",
        "４",
        "%40",
        "\\",
        "\\n",
        "\\u0040",
        "[",
        "]",
        "[EMAIL_1]",
        "[PHONE_7]",
        "1",
        "4111 1111 1111 1111",
        "password ",
        "password=",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAt3v0jtQimyI3MzqaEIdz\n",
        "-----END RSA PRIVATE KEY-----",
        "\x1b[31m",
        "&#64;",
        "://",
        "aGVsbG8gYWxpY2VAZXhhbXBsZS5jb20=",
        "word ",
        "The amount is ",
        "12.5%",
        "\r\n",
        "\0",
        "😀",
        "\r",
        "\r 12%|",
        "[EMAIL_1\u{200b}]",
        "[PASSWORD]",
        "[SECRET~",
        "~aabbccddeeffgghhiijj",
        "{\"password\": ",
        "{\"card\":",
        "-4111111111111111",
        "4111111111111111.0",
        "\\\"",
        "}",
        "data:image/png;base64,",
        "\u{202e}",
        "%5B",
        "&#91;EMAIL_2&#93;",
        "postgres://app:",
        "'",
        "password='x9Kd82",
        "\", [",
        ", 4111111111111111, ",
        "\npassword: |\n  ",
        "\n password\n",
        "Granite510*\n",
        "\ntoken:\n ",
        "8f14a92beeaa730f2e29ebbc4bfd0333\n",
    ];
    let mut text = String::new();
    for _ in 0..pieces {
        match dice.roll(5) {
            0 => {
                let rule = &rules()[dice.roll(rules().len())];
                let examples = [&rule.examples[..], &rule.counter_examples].concat();
                text.push_str(&examples[dice.roll(examples.len())].replace('·', ""));
            }
            1 => text.extend(std::iter::repeat_n(dice.pick(&["a", "1", "-", "@", ":", "x9"]), dice.roll(60))),
            _ => text.push_str(dice.pick(&signs)),
        }
    }
    text
}

/// A context's numbering, with a key for tokens.
fn numbering() -> Numbering {
    Numbering::alone().sealing(Some(Sealer::new(&[7; 32], "tenant/context")))
}

fn in_pieces(guard: &Guard, text: &str, most: usize, dice: &mut Dice) -> (String, Report) {
    let (mut stream, mut numbering) = (guard.stream(), numbering());
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut at = (1 + dice.roll(most)).min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        out.push_str(&stream.push(&rest[..at], &mut numbering));
        rest = &rest[at..];
    }
    let (last, report) = stream.finish(&mut numbering);
    assert_eq!(report.errors, 0, "{text:?}");
    (out + &last, report)
}

fn check(guard: &Guard, text: &str, dice: &mut Dice) {
    let mut numbering = numbering();
    let (whole, report) = guard.text(text, &mut numbering);
    assert_eq!(report.errors, 0, "the guard failed on {text:?}");
    for most in [1, 3, 17, 300] {
        let (pieces, counted) = in_pieces(guard, text, most, dice);
        assert_eq!(pieces, *whole, "in pieces of up to {most}: {text:?}");
        assert_eq!(counted, report, "in pieces of up to {most}: {text:?}");
    }
    let (twice, _) = guard.text(&whole, &mut numbering);
    assert_eq!(*twice, *whole, "guarding twice changed {text:?}");
    if report.total() == 0 && report.forged == 0 {
        assert_eq!(*whole, text);
    }
    // A value of n bytes becomes at most a token of 2n + 98, and quotes; a forged placeholder grows by three.
    let (count, bytes) = report
        .findings
        .values()
        .fold((0, 0), |(count, bytes), tally| (count + tally.count, bytes + tally.bytes));
    let grown = count * 100 + 2 * bytes + 3 * report.forged + 13 * report.withheld;
    assert!(whole.len() as u64 <= text.len() as u64 + grown, "{text:?}");
}

#[test]
fn any_cutting_gives_the_same_and_twice_is_once() {
    let guard = Guard::default();
    let mut dice = Dice(0x1234_5678_9abc_def1);
    for _ in 0..3000 {
        let pieces = 1 + dice.roll(14);
        check(&guard, &mixture(&mut dice, pieces), &mut dice);
    }
}

/// Rules of a policy: one with a literal, one with trigger words, one that matches nearly anything.
const OWN: &str = r#"
[[rule]]
id = "employee"
kind = "NATIONAL_ID"
pattern = '\bEMP-\d{6}\b'
examples = ["ask EMP-123456"]
[[rule]]
id = "customer"
kind = "SECRET"
words = ["Kundennummer", "customer"]
pattern = '\d{8}'
examples = ["customer 48213377"]
[[rule]]
id = "reference"
kind = "PASSPORT"
pattern = 'ref [^;r]{1,40};'
examples = ["the ref of it; x"]
"#;

#[test]
fn own_rules_have_the_properties_of_the_built_in_ones() {
    let guard = Guard::new(PolicyFile::read(OWN).unwrap().resolve(None, None, None)).unwrap();
    let mut dice = Dice(0x0a11_5678_9abc_def1);
    let own = [
        "EMP-123456",
        "EMP-",
        "123456",
        "customer ",
        "Kundennummer: ",
        "48213377",
        "{\"customer\": 48213377, ",
        "ref ",
        "ref of;",
        "; ",
        "EMP%2D123456",
        "c2VlIEVNUC0xMjM0NTYgbm93",
    ];
    let mut found = 0;
    for round in 0..300 {
        let mut text = String::new();
        for _ in 0..=dice.roll(12) {
            text.push_str(dice.pick(&own));
            let pieces = dice.roll(3);
            text.push_str(&mixture(&mut dice, pieces));
        }
        if round % 100 == 0 {
            text = text.replace(['\n', '\r'], " ").repeat(20);
        }
        check(&guard, &text, &mut dice);
        let report = guard.text(&text, &mut numbering()).1;
        found +=
            ["employee", "customer", "reference"].iter().filter(|id| report.rules.contains_key(**id)).count();
    }
    assert!(found > 200, "{found}");
    // Wherever a long line is cut.
    let around = "word, ".repeat(3000);
    for place in (14 * 1024 - 90..14 * 1024 + 10).step_by(3) {
        let text = format!("{} EMP-123456 {around}", &around[..place]);
        let becomes = format!("{} [NATIONAL_ID_1] {around}", &around[..place]);
        assert!(*guard.text(&text, &mut numbering()).0 == becomes, "at {place}");
    }
    // JSON stays JSON, with names and numbers that are found.
    let value = json!({"customer": 48213377, "ref \"of\" it;": ["EMP-123456", {"Kundennummer": [48213377, 1]}, "ref\\;é;"]});
    for text in [value.to_string(), json!([value.to_string()]).to_string()] {
        let out = guard.text(&text, &mut numbering()).0;
        assert!(serde_json::from_str::<Value>(&out).is_ok(), "{text} becomes {}", *out);
        assert!(!out.contains("48213377") && !out.contains("EMP-1"), "{}", *out);
    }
}

#[test]
fn lines_longer_than_any_window_give_the_same_in_pieces() {
    let guard = Guard::default();
    let mut dice = Dice(0xfeed_5678_9abc_def1);
    for _ in 0..6 {
        let text = mixture(&mut dice, 2500).replace(['\n', '\r'], " ");
        let (whole, _) = guard.text(&text, &mut Numbering::alone());
        for most in [700, 40_000] {
            assert_eq!(in_pieces(&guard, &text, most, &mut dice).0, *whole);
        }
    }
}

#[test]
fn hundreds_of_blank_lines_are_read_with_a_table_above_and_without() {
    let guard = Guard::default();
    for above in
        ["", "id,ssn\n1,219-09-9998\n", "id  ssn\n1   219-09-9998\n", ":header: id,ssn\n\n1,219-09-9998\n"]
    {
        let blank = "\n".repeat(600);
        check(&guard, &format!("{above}{blank}end\n"), &mut Dice(1));
        check(&guard, &format!("{above}{}end\r\n", blank.replace('\n', "\r\n")), &mut Dice(1));
    }
}

#[test]
fn no_rule_looks_past_a_placeholder_or_a_mask_of_any_length() {
    let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAt3v0jtQimyI3MzqaEIdz\n";
    for guard in all_guards() {
        // The letters of a name look like the key's; then the rest comes after a sealed token.
        check(
            &guard,
            "пароль: hunter28f14a92beea\n-----BEGINcli-ecwuss05748ghik1977za7m1wv9e\n",
            &mut Dice(1),
        );
        for rest in ["rows[::2]é", "card_4111111111111111", "password\n\nhunter2Xyz9"] {
            check(&guard, &format!("{key}{rest}"), &mut Dice(1));
        }
    }
}

/// Text of this many bytes, in base64, with an address at a place.
fn long_run(len: usize, place: usize) -> String {
    let mut text = "the quick brown fox. ".repeat(len / 21 + 1);
    text.truncate(len);
    text.replace_range(place..place + 17, "alice@example.com");
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn a_run_longer_than_any_window_is_guarded_the_same_the_second_time() {
    let guard = Guard::default();
    let mut dice = Dice(0xbeef_5678_9abc_def1);
    for lead in 0..4 {
        for place in [100, 9_000, 11_900, 12_250, 13_000, 20_000, 30_000] {
            // A replacement before the run moves the run within the windows.
            let run = long_run(40_000, place);
            let before = "x:".repeat(5000 + 2000 * lead);
            let text = format!("card 4111111111111111 {before}{}({run}) bob@example.com", "y".repeat(lead));
            let mut numbering = Numbering::alone();
            let (once, report) = guard.text(&text, &mut numbering);
            assert_eq!(report.total(), 3, "an address at {place} behind {lead}");
            // After a finding, the rest of the run is hidden.
            assert!(!once.contains(&run[run.len() - 1000..]), "an address at {place} behind {lead}");
            let (twice, _) = guard.text(&once, &mut numbering);
            assert!(*twice == *once, "an address at {place} behind {lead}");
            for most in [700, 40_000] {
                assert!(in_pieces(&guard, &text, most, &mut dice).0 == *once, "in pieces of up to {most}");
            }
        }
    }
}

/// A line without end is scanned in windows; no value may slip through where two of them meet.
#[test]
fn a_value_and_its_label_are_seen_together_wherever_a_long_line_is_cut() {
    let guard = Guard::default();
    for (secret, shown) in [
        ("password: hunter22x", "password: [PASSWORD_1]"),
        ("\"password\": \"hunter22x\"", "\"password\": \"[PASSWORD_1]\""),
        ("Authorization: Bearer x9Kd82hfLqmz12", "Authorization: Bearer [BEARER_1]"),
        ("IBAN DE89 3704 0044 0532 0130 00", "IBAN [IBAN_1]"),
        ("PPS number 1234567FA", "PPS number [PPSN_1]"),
        ("postgres://app:pw 12345@h/x", "postgres://app:pw 12345@h/x"),
        ("é <alice@example.com>", "é <[EMAIL_1]>"),
    ] {
        // A window of 16 KB, of which the last 2 KB are scanned again.
        for place in 14 * 1024 - 50..14 * 1024 + 10 {
            let (before, after) = ("word, ".repeat(3_000), " word,".repeat(3_000));
            let text = format!("{} {secret}{after}", &before[..place]);
            let (out, _) = guard.text(&text, &mut Numbering::alone());
            let expected = format!("{} {shown}{after}", &before[..place]);
            assert!(*out == expected, "{secret} at {place}: {}", &out[place - 20..place + 60]);
        }
    }
}

#[test]
fn a_value_is_hidden_wherever_the_stream_is_cut() {
    let guard = Guard::default();
    let text = "é1\r12%|██| password: hunter22x\r\nIBAN DE89 3704 0044 0532 0130 00 😀 \"alice@example.com\"\n\
                -----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEAt3v0jtQimyI3MzqaEIdz\n-----END PRIVATE KEY-----\nend";
    let expected =
        "é1\r12%|██| password: [PASSWORD_1]\r\nIBAN [IBAN_1] 😀 \"[EMAIL_1]\"\n[PRIVATE_KEY_1]\nend";
    let ends: Vec<_> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
    for (first, second) in ends.iter().flat_map(|first| ends.iter().map(move |second| (*first, *second))) {
        let (mut stream, mut numbering) = (guard.stream(), numbering());
        let mut out = String::new();
        if first <= second {
            for piece in [&text[..first], &text[first..second], &text[second..]] {
                out.push_str(&stream.push(piece, &mut numbering));
            }
            out.push_str(&stream.finish(&mut numbering).0);
            assert_eq!(out, expected, "cut at {first} and {second}");
        }
    }
    // A stream that ends in the middle, because the process was killed, shows no part of a key.
    let open = text.find("-----END").unwrap();
    for end in text.find("MII").unwrap() + 30..open {
        let (out, _) = guard.text(&text[..end], &mut numbering());
        assert!(out.ends_with("[PRIVATE_KEY_1]"), "{}", *out);
    }
}

/// Lines as long as a window, as its overlap, and a byte to either side, with a multi-byte character on each border.
#[test]
fn lines_as_long_as_a_window_are_guarded_like_any_other() {
    const WINDOW: usize = 16 * 1024;
    let guard = Guard::default();
    let mut dice = Dice(0xabcd_5678_9abc_def1);
    for border in [2 * 1024, 14 * 1024, WINDOW, 2 * WINDOW] {
        for len in border - 3..border + 4 {
            for sign in ["x", "é", "😀"] {
                let secret = format!("{sign}password: hunter22x{sign}");
                let pad = |len: usize| "w, ".repeat(len / 3) + &"...."[..len % 3];
                for (before, after) in
                    [(len, 0), (len - secret.len(), 0), (len - secret.len() - 5, 5), (5, len)]
                {
                    let text = format!("{} {secret} {}\nend\n", pad(before), pad(after));
                    let (out, report) = guard.text(&text, &mut numbering());
                    assert_eq!(report.total(), 1, "{sign} {before} {after}");
                    let (pieces, counted) = in_pieces(&guard, &text, 5_000, &mut dice);
                    assert!(pieces == *out && counted == report, "{sign} {before} {after}");
                }
            }
        }
    }
}

/// The lines around must not change the findings in one, or a stream would show hidden values.
#[test]
fn a_line_is_guarded_the_same_whatever_comes_with_it() {
    let guard = Guard::default();
    let token = format!("EAAA{}", "aB3dE6gH9jK2".repeat(5));
    let hash = "0123456789abcdef".repeat(4);
    let dashes = "-".repeat(48);
    for text in [
        format!("\n{token}\n{hash}\n"),
        format!("{dashes}\n1 415 555 2671\n"),
        format!("{}\n", "pw:".repeat(500)),
        format!("Cookie: {}sid=1e8a9c2b7d1e4f6a8b0c3d5e7f901234\n", "a=b; ".repeat(400)),
    ] {
        let (whole, _) = guard.text(&text, &mut numbering());
        let (mut stream, mut numbering) = (guard.stream(), numbering());
        let mut out = String::new();
        for line in text.split_inclusive('\n') {
            out.push_str(&stream.push(line, &mut numbering));
        }
        out.push_str(&stream.finish(&mut numbering).0);
        assert_eq!(out, *whole);
        assert!(!out.contains("GUARD_ERROR") && !out.contains("1e8a9c2b") && !out.contains("2671"), "{out}");
    }
}

#[test]
fn ordinary_text_goes_out_with_the_end_of_its_line() {
    let (guard, mut numbering) = (Guard::default(), Numbering::alone());
    let mut stream = guard.stream();
    for line in ["total 12\n", "2026-01-31  1,234.56\r\n", "{\"ok\": true, \"rate\": 0.2}\n", "\n", "é: 1\n"]
    {
        assert_eq!(*stream.push(line, &mut numbering), *line);
    }
    // Of several lines all complete ones; the rest with its end.
    assert_eq!(*stream.push("one\ntwo\nthr", &mut numbering), *"one\ntwo\n");
    assert_eq!(*stream.push("ee\n", &mut numbering), *"three\n");
    // A key that may continue holds back no more than itself.
    assert_eq!(*stream.push("before\n-----BEGIN PRIVATE KEY-----\n", &mut numbering), *"before\n");
    // A line without an end goes out once it is longer than any value; a possible Series once its name cannot come any more.
    let mut stream = guard.stream();
    assert_eq!(*stream.push("0  123456\n", &mut numbering), *"");
    assert!(stream.push(&"word ".repeat(5000), &mut numbering).starts_with("0  123456\nword"));
    let mut stream = guard.stream();
    let long = "word ".repeat(5000);
    let ready = stream.push(&long, &mut numbering).len();
    assert!(ready + 16 * 1024 >= long.len(), "{ready}");
    assert_eq!(stream.finish(&mut numbering).1.total(), 0);
}

/// One guard for each action, and one whose placeholders have no numbers.
fn all_guards() -> Vec<Guard> {
    let mut guards =
        vec![Guard::default(), Guard::new(Policy { numbered: false, ..Policy::default() }).unwrap()];
    for action in [Action::Redact, Action::Mask, Action::Hash, Action::Tokenize] {
        let mut policy = Policy::default();
        policy.actions.values_mut().for_each(|known| *known = action);
        guards.push(Guard::new(policy).unwrap());
    }
    guards
}

#[test]
fn thousands_of_random_texts_find_no_crack() {
    for (guard, seed) in all_guards().iter().zip(1..) {
        damaged_texts(guard, 0x0dd0_cafe_1234_5679 ^ seed, 600);
    }
}

#[test]
#[ignore = "takes an hour: scripts/fuzz runs it"]
fn an_hour_of_random_texts_finds_no_crack() {
    let started = std::time::Instant::now();
    let mut seed = started.elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    let mut texts = 0;
    while started.elapsed() < Duration::from_secs(3600) {
        for guard in all_guards() {
            seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
            damaged_texts(&guard, seed | 1, 10_000);
            texts += 10_000;
        }
    }
    println!("{texts} texts");
}

fn damaged_texts(guard: &Guard, seed: u64, texts: usize) {
    let mut dice = Dice(seed);
    for _ in 0..texts {
        let pieces = 1 + dice.roll(24);
        let mut text = mixture(&mut dice, pieces).into_bytes();
        // Mutations: bytes changed, doubled, dropped.
        for _ in 0..dice.roll(4) {
            if text.is_empty() {
                break;
            }
            let at = dice.roll(text.len());
            match dice.roll(3) {
                0 => text[at] = dice.roll(256) as u8,
                1 => text.insert(at, dice.roll(128) as u8),
                _ => {
                    text.remove(at);
                }
            }
        }
        checked(guard, &String::from_utf8_lossy(&text), seed);
    }
}

/// Checks a text; one that fails is minimised and printed with the seed of its cuts.
fn checked(guard: &Guard, text: &str, seed: u64) {
    let fails = |text: &str| {
        let check = || check(guard, text, &mut Dice(seed));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err()
    };
    if !fails(text) {
        return;
    }
    let mut signs: Vec<char> = text.chars().collect();
    let mut len = signs.len();
    while len > 0 {
        let mut at = 0;
        while at < signs.len() {
            let end = signs.len().min(at + len);
            let less: Vec<char> = [&signs[..at], &signs[end..]].concat();
            if fails(&String::from_iter(&less)) {
                signs = less;
            } else {
                at = end;
            }
        }
        len /= 2;
    }
    let short = String::from_iter(signs);
    panic!("with cuts by {seed:#x} the shortest text that fails is {short:?}, of {text:?}");
}

/// Regressions found by random texts, one of each kind.
#[test]
fn texts_that_once_differed_the_second_time_or_in_pieces() {
    let key = "-----BEGIN PRIVATE KEY-----MIIEowIBAAKCAQEAt3v0jtQimyI3MzqaEIdz";
    let shifted = (0..64).flat_map(|shift| {
        let before = "x ".repeat(shift / 2) + &"."[..shift % 2];
        // An IBAN whose digits are a card's, wherever the border of 64 bytes falls.
        [
            format!("4-4111111111111111@\n{before}{{\"card\":FR14-2004-1010-0505-0001-3M02-606\r\n"),
            format!("{before}07700900123 a@b.ie 07700900123 07700900123\n"),
        ]
    });
    let texts = [
        // The text before a key is judged before the key is gone; its placeholder names nothing.
        "rfc     ODE561231GR8\"-----BEGINPRIVATE-----IEowIBAhQkxj4rNfTsDZ6dX3; is \\n".to_owned(),
        format!("the password is d{key}"),
        format!("machine x login y password {key}"),
        format!("https://hooks.slack.com/{key}"),
        format!("password=//\\{key}"),
        // The end of a key, and its string pieces, as they arrive.
        format!("{key}-----END\n-----"),
        format!("{key}\"\"aGVsbG8gd29ybGQgaGVs"),
        // Nothing is read past the end of a line: no terminal code, no escaped quote.
        "KEY-----\u{1b}\nMIIEowIBAAKCAQEAt3\n".to_owned(),
        "pass=\"\\\n\r\n".to_owned(),
        // A line with hidden text does not affect its neighbours.
        format!("{key}-----END PRIVATE KEY-----aGVsbG8gYWxpY2VAZXhhbXBsZS5jb0=sec-c-x\n\u{ff14}\n"),
        // A group of digits that crosses the border of 64 bytes.
        format!("{}\r\n{} SIN 046 454286\n", "6".repeat(15), "@".repeat(35)),
        format!("\n{}call me on 450 0840\n", "x9".repeat(26)),
        // A label without any ASCII letter, far from where a piece begins.
        format!("{}\r\n0.マイナンバー 123456789018\r\n", "1".repeat(100)),
        // A letter after digits is a check digit for some states only.
        "SIN 4111 1111 111k".to_owned(),
        "Aadhaar 2341 2341 234K, 身份证 1101 0519 4912 3100 2X".to_owned(),
        // A word of dashes alone.
        "----------------.".to_owned(),
        // Hidden or not, the text before the value of a Series is its label; and a wide gap ends a number.
        "+353  95510  79937107\n5  4\nName: bsn, dtype: s".to_owned(),
        format!("{} 49    779937107\n5  4\nName: bsn, dtype: r", "liam.2@example7.com, ".repeat(12)),
        "   36200790K448\nnir            +353                  279-65-5502\n".to_owned(),
        // A mask is not a secret, and neither a mask nor a placeholder is part of a name or a head.
        "token:\n- IE29AIBK93115212345678".to_owned(),
        "\"passord\":4111111111111111".to_owned(),
        "password T~31mbsn  16_g7A".to_owned(),
        "PRIVATE 3v0jtQimyI3MzqaE|%40,Gr".to_owned(),
        "kraken sdbZDFYAg8rQvvKMeF==|n|token|\n||2hfLqT|".to_owned(),
        format!("x{key}\u{13}  219-09-9998"),
        // A list ends with a line that is a row; a name has its value on one line; a key does not end a line.
        "n  passwd\ntoken:\nAZXhhbXBsZS5jb20\n- FO9991".to_owned(),
        "'ssn':\npassword\n1,219-09-9998\n110201543".to_owned(),
        "\"passord\":[]\npassword\nBfaKTfZwKufSSqid,spassword\n11111c".to_owned(),
        "\"card\":KEY-7DQW02S288B97TBK\ntoken:38Q~xY".to_owned(),
        "SECRET~8f29ebbc4bfd0333\na[SRET~".to_owned(),
        "SECRET~\"0Mg1YLVUHFjxQieN\\n😀x9999".to_owned(),
        "passord:\n- -----BEGINPRIVATE-----imyI3MzqaEIdzMORGA6PHON7]\n- <tr><t".to_owned(),
        // The length of a line that may be one of a Series; a Series without a row.
        format!(
            "{}shpat_Q2J1o02YoPdsrBZEWQHOeVBIbfurrI9aX{}bsn   163270703\nName: ssn, dtype: o",
            "@".repeat(90),
            "<".repeat(60)
        ),
        "a  Name: ssn, dtype: object\nName: ssn, dtype: object  x\n1  2\n".to_owned(),
        "| a |\n|----------------|\n".to_owned(),
        // A line with a value in it is not a head, a value of a cell counts for its row, a mark that crosses the end of a line
        // of a table joins two of them, and replaced text is a value of a list.
        "iban  \"|DE61580497968969343970\nW\nrvnr|36200790K448".to_owned(),
        ",e,d,apikey,m\n\"\nDE53790517924439133742,4367323247048270,dGdXs%,".to_owned(),
        "iban  passwd\nDE61343992\u{c}4412468578386891  Bk6QjS".to_owned(),
        "''}\"\",\"passord\":\"Q\ry\":\"80057J\"".to_owned(),
        "\"fields\":[{\"name\":\"bsn\"}],\"rows\":[\"27814218\",\"9, 1: '+353 87 924 5510', 2: '0876437752'}".to_owned(),
        "'dni':[''\n'']\n3@3.om'\u{7f}\n'[\n'pesel':[''\n'57042694672'".to_owned(),
        // Cells over several lines, a Series in a part of a line, digits of other scripts below each other.
        "<th\nthh>phone</th\n<td>27819810</td".to_owned(),
        "  \r2  94442815\n3  4\nName: bsn, dtype: s".to_owned(),
        "\u{664}\u{661}\u{661}\u{663}\u{661}\n\u{1d7d2}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\u{1d7cf}\n".to_owned(),
    ];
    let mut dice = Dice(0x5151_5151_5151_5151);
    for guard in all_guards() {
        for text in texts.iter().cloned().chain(shifted.clone()) {
            check(&guard, &text, &mut dice);
        }
    }
}

#[test]
fn a_value_on_the_line_below_its_name_is_found_however_the_text_is_cut() {
    let (guard, mut dice) = (Guard::default(), Dice(0x51ca_b1e5_0b5e_55ed));
    for (text, shown) in [
        ("password: |\n  0rchid83\nuser: bob", "password: |\n  [PASSWORD_1]\nuser: bob"),
        ("db_password: >-\n  Granite510*\n", "db_password: >-\n  [PASSWORD_1]\n"),
        (
            " password  \n-----------\n Granite510*\n(1 row)",
            " password  \n-----------\n [PASSWORD_1]\n(1 row)",
        ),
        ("password =\r\n    'eG*%Cd3dy6P84I'\r\n", "password =\r\n    '[PASSWORD_1]'\r\n"),
        ("<key>password</key>\nGranite510*\n", "<key>password</key>\nGranite510*\n"),
        ("api_key: |\n  a3b4c77296bbc1e33b517108473a56ad\n", "api_key: |\n  [SECRET_1]\n"),
        ("API key:\n\n    3evnR1lqogffTW5vdgBpjCkQXd74\n", "API key:\n\n    [SECRET_1]\n"),
        ("\"token\":\n   \"24bb3701ce02cb3ce5ac04fca90dcb16\"", "\"token\":\n   \"[SECRET_1]\""),
        ("| token |\n| 24bb3701ce02cb3ce5ac04fca90dcb16 |", "| token |\n| [SECRET_1] |"),
    ] {
        let shown_by = |guard: &Guard| guard.text(text, &mut numbering()).0.into_inner();
        assert_eq!(shown_by(&guard), shown, "{text:?}");
        // The words that went out before have no effect.
        let long = format!("{}{text}", "an ordinary line\n".repeat(1200));
        for text in [text, &long] {
            check(&guard, text, &mut dice);
        }
    }
    for text in [
        "bob@h's password:\nroot@web01:~#\n",
        "Password:\nhttps://x.example/reset?id=12A!\n",
        "password\nemail_verified_1\ncreated_at2\n",
        "password =\n    getPassword2();\n",
        "Enter password:\nLast login: Mon\n",
        "password_policy:\n Min8Chars!\n",
        "public_key:\n  a3b4c77296bbc1e33b517108473a56ad\n",
        "the token and the commit\n9e107d9d372bb6826bd81d3542a419d6a1b2c3d4\n",
        "Token\nsha256:9e107d9d372bb6826bd81d3542a419d6a1b2c3d4\n",
    ] {
        assert_eq!(*guard.text(text, &mut numbering()).0, text);
    }
}

#[test]
fn a_rule_finds_its_examples_anywhere_in_the_text() {
    let mut policy = Policy::default();
    policy.actions.values_mut().for_each(|action| *action = Action::Redact);
    let guard = Guard::new(policy).unwrap();
    for rule in rules() {
        let example = rule.examples[0].replace('·', "");
        // Every place within a block of 64 bytes.
        for place in 0..64 {
            let text = format!("{}\n{example}", ".".repeat(place));
            let (_, report) = guard.text(&text, &mut Numbering::alone());
            assert!(report.rules.contains_key(&rule.id), "{} at {place}: {:?}", rule.id, report.rules);
        }
    }
}

fn value(dice: &mut Dice, depth: usize) -> Value {
    match dice.roll(if depth > 3 { 5 } else { 7 }) {
        0 => json!(4_111_111_111_111_111_u64),
        1 => json!(dice.roll(1_000_000)),
        2 => json!(-0.25),
        3 => Value::Null,
        4 if dice.roll(2) == 0 => {
            let pieces = dice.roll(5);
            Value::String(mixture(dice, pieces))
        }
        4 => json!(dice.pick(&[
            "user,password\nwalsh,Wint3r2024#78\nnielsen,vh6s&T5B3W12\n",
            ",api_key",
            "ssn",
            "password",
            "Authorization",
            "phone: +354 611 1234",
            "token=\"99d70f38;",
            "TOKEN\n",
            "tel 82 789798\n",
            "Basic dXNlcjpFWHRBdXRob3IAYWxpY2VAZXhhbXBsZS5jb208",
            "\"",
        ])),
        5 => (0..dice.roll(4)).map(|_| value(dice, depth + 1)).collect(),
        _ => {
            let mut object = serde_json::Map::new();
            for _ in 0..dice.roll(4) {
                let key = match dice.roll(4) {
                    0 => mixture(dice, 2),
                    1 => dice.pick(&["name", "value", "columns", "data", "header", "rows"]).to_owned(),
                    _ => dice.pick(&["password", "email", "ssn", "id", "card", "net", "token"]).to_owned(),
                };
                object.insert(key, value(dice, depth + 1));
            }
            Value::Object(object)
        }
    }
}

#[test]
fn valid_json_stays_valid_json_as_value_and_as_text() {
    for (guard, seed) in all_guards().iter().zip(1..) {
        json_stays_json(guard, 0x7777_1234_5678_9abd ^ seed, 120);
    }
}

fn json_stays_json(guard: &Guard, seed: u64, values: usize) {
    let mut dice = Dice(seed);
    for _ in 0..values {
        let value = json!({ "data": value(&mut dice, 0) });
        let mut numbering = numbering();
        let (out, report) = guard.json(value.clone(), &mut numbering);
        assert_eq!(report.errors, 0);
        assert_eq!(out["data"].is_array(), value["data"].is_array());
        let (again, _) = guard.json(out.clone().into_inner(), &mut numbering);
        assert_eq!(*again, *out, "from {value}");
        let (short, pretty) = (value.to_string(), serde_json::to_string_pretty(&value).unwrap());
        let spaced = short.replace("\":", "\" : ");
        let nested = [&short, &pretty].map(|text| json!({ "body": text }).to_string());
        for text in [short, pretty, spaced].into_iter().chain(nested) {
            let valid = serde_json::from_str::<Value>(&text).is_ok();
            let (out, _) = guard.text(&text, &mut self::numbering());
            if !valid {
                continue;
            }
            let parsed = serde_json::from_str::<Value>(&out);
            assert!(parsed.is_ok(), "{parsed:?}\nfrom {text}\nto   {}", *out);
        }
    }
}

/// A replaced JSON number is quoted, anywhere on a line, and nothing else is.
#[test]
fn only_replaced_json_numbers_get_quotes() {
    let guard = Guard::default();
    let words = "word ".repeat(40);
    let rows: String = (0..20).map(|row| format!("{row},4111111111111111,x\n")).collect();
    let numbers = "5500005555555559, ".repeat(30);
    for (text, expected) in [
        (format!("{{\"log\": \"{words}[4111111111111111, 5]\"}}"), "[[CREDIT_CARD_1], 5]\"}"),
        (json!({"csv": format!("id,card\n{rows}")}).to_string(), "\\n19,[CREDIT_CARD_1],x\\n\"}"),
        (format!("{{\"n\": [{numbers}4111111111111111]}}"), ", \"[CREDIT_CARD_2]\"]}"),
        (r#"{"out": "], [4111111111111111]"}"#.to_owned(), r#""], [[CREDIT_CARD_1]]"}"#),
        (r#"{"out": "} then pay 4111111111111111, 2"}"#.to_owned(), "then pay [CREDIT_CARD_1], 2\"}"),
        ("[185.12.44.9]".to_owned(), "[[IP_1]]"),
        ("SSN [219-09-9998]".to_owned(), "SSN [[SSN_1]]"),
    ] {
        let (out, _) = guard.text(&text, &mut Numbering::alone());
        assert!(out.ends_with(expected), "{}", *out);
        // The same in a line that is longer than a window.
        let long = format!("[\"{}\", {text}]", "w, ".repeat(8_000));
        let (out, _) = guard.text(&long, &mut Numbering::alone());
        assert!(out.ends_with(&format!("{expected}]")), "{}", &out[out.len() - 200..]);
        let valid = |text: &str| serde_json::from_str::<Value>(text).is_ok();
        assert!(valid(&out) || !valid(&long), "{text}");
    }
}

#[test]
fn a_quote_that_is_not_closed_ends_with_the_word_or_the_string() {
    let guard = Guard::default();
    for (text, expected) in [
        ("password='hunter2Xyz9 and more", "password='[PASSWORD_1] and more"),
        ("password=\"hunter2Xyz9 and more", "password=\"[PASSWORD_1] and more"),
        ("\"password\": \"swordfish", "\"password\": \"[PASSWORD_1]"),
        (r#"{"cmd": "mysql -p'hunter2Xyz9", "n": 1}"#, r#"{"cmd": "mysql -p'[PASSWORD_1]", "n": 1}"#),
        (r#"{"cmd":"mysql -p'hunter2Xyz9","n":1}"#, r#"{"cmd":"mysql -p'[PASSWORD_1]","n":1}"#),
        (r#"{"log":"token='abc123def456ghi7","n":"it's"}"#, r#"{"log":"token='[SECRET_1]","n":"it's"}"#),
        (r#"{"log":"password=\"hunter2 is it","n":1}"#, r#"{"log":"password=\"[PASSWORD_1] is it","n":1}"#),
        (r#"["password: 'hunter2Xyz9", "and more"]"#, r#"["password: '[PASSWORD_1]", "and more"]"#),
        // Prose, and strings that continue on the next line.
        ("password: \"Please choose one that", "password: \"Please choose one that"),
        ("the password: don't tell", "the password: don't tell"),
        ("password: 'tis the season", "password: 'tis the season"),
    ] {
        assert_eq!(*guard.text(text, &mut Numbering::alone()).0, *expected);
    }
}

#[test]
fn json_stays_json_if_a_label_or_a_number_is_in_a_string() {
    let guard = Guard::default();
    for (text, expected) in [
        (r#"{"label": "Password: "}"#, r#"{"label": "Password: "}"#),
        (r#"{"label": "password=", "n": 12}"#, r#"{"label": "password=", "n": 12}"#),
        (r#"{"a": ["the password "], "n": 12}"#, r#"{"a": ["the password "], "n": 12}"#),
        (r#"{"PIN 2": 4711}"#, r#"{"PIN 2": "[PASSWORD_1]"}"#),
        (r#"{"card" : 4111111111111111}"#, r#"{"card" : "[CREDIT_CARD_1]"}"#),
        (r#"{"body": "{\"card\": 4111111111111111}"}"#, r#"{"body": "{\"card\": \"[CREDIT_CARD_1]\"}"}"#),
        (r#"{"body": "[\n4111111111111111\n]"}"#, r#"{"body": "[\n\"[CREDIT_CARD_1]\"\n]"}"#),
        (r#"{"password": "}x9Kd82hfLq"}"#, r#"{"password": "[PASSWORD_1]"}"#),
        // An escaped quote ends no string.
        (r#"{"password":["ab\"c",1,2],"user":"x"}"#, r#"{"password":["ab\"c",1,2],"user":"x"}"#),
        // What follows the string of a table is not its row.
        (r#"[",password",219099998]"#, r#"[",password",219099998]"#),
        (
            r#"["password,user\nWint3r2024#78,walsh\n",353871234567]"#,
            r#"["password,user\n[PASSWORD_1],walsh\n",353871234567]"#,
        ),
        (r#"[["TOKEN\n",null],[{"zz":"\nh"}]]"#, r#"[["TOKEN\n",null],[{"zz":"\nh"}]]"#),
    ] {
        let (out, _) = guard.text(text, &mut Numbering::alone());
        assert_eq!(*out, expected);
        let parsed = serde_json::from_str::<Value>(&out);
        assert!(parsed.is_ok(), "{}: {parsed:?}", *out);
    }
}

/// What names a value is read as it goes out: a replaced name is none. And what comes after a private key on its line is read.
#[test]
fn json_is_guarded_the_same_the_second_time() {
    let guard = Guard::default();
    let key = "-----BEGIN PRIVATE KEY-----\ns7/xXcz2/qoI2zqXSlhpN5RejR1PiSpf2NwjKvHPuNXE\n-----END PRIVATE KEY-----\n";
    for (value, expected) in [
        (
            json!([["Authorization", "Basic dXNlcjpFWHRBdXRob3IAYWxpY2VAZXhhbXBsZS5jb208@b21tZW50"], 1]),
            json!([["Authorization", "Basic [BASIC_AUTH_1]"], 1]),
        ),
        (
            json!({"name": "phone: +354 611 1234", "1": 4_111_111_111_111_111_u64}),
            json!({"name": "phone: [PHONE_1]", "1": "[CREDIT_CARD_1]"}),
        ),
        (
            json!({"password": [["Authorization"], [219_099_998]]}),
            json!({"password": [["[PASSWORD_1]"], ["[PASSWORD_2]"]]}),
        ),
        (
            json!(["token=\"99d70f38;", 4_111_111_111_111_111_u64]),
            json!(["token=\"[SECRET_1];", "[CREDIT_CARD_1]"]),
        ),
        (json!({ key: "tel 82 789798\n" }), json!({"[PRIVATE_KEY_1]\n": "tel [PHONE_1]\n"})),
    ] {
        let mut numbering = Numbering::alone();
        let (once, _) = guard.json(value.clone(), &mut numbering);
        let (twice, _) = guard.json(once.clone().into_inner(), &mut numbering);
        assert_eq!(*twice, *once, "from {value}");
        let mut numbering = Numbering::alone();
        let (once_text, _) = guard.text(&value.to_string(), &mut numbering);
        let (twice_text, _) = guard.text(&once_text, &mut numbering);
        assert_eq!(*twice_text, *once_text, "from {value}");
        assert_eq!((*once).clone(), expected);
    }
}

#[test]
fn a_card_that_is_a_json_number_becomes_a_string() {
    let guard = Guard::default();
    let (out, report) =
        guard.text("{\"card\": 4111111111111111, \"n\": [4111111111111111]}\n", &mut Numbering::alone());
    assert_eq!(*out, "{\"card\": \"[CREDIT_CARD_1]\", \"n\": [\"[CREDIT_CARD_1]\"]}\n");
    assert_eq!(report.type_changed, 2);
    let (out, _) = guard.json(json!({"card": 4_111_111_111_111_111_u64}), &mut Numbering::alone());
    assert_eq!(*out, json!({"card": "[CREDIT_CARD_1]"}));
}

#[test]
fn the_name_of_a_json_value_is_a_hint_and_names_are_guarded_too() {
    let guard = Guard::default();
    let value = json!({
        "password": "hunter2", "ssn": 219_099_998, "phone": ["4156667777"], "a@b.ie": 1, "policy": "hunter2",
        "nested": {"api_key": "x9Kd82hfLq", "token_count": 12}
    });
    let (out, _) = guard.json(value, &mut Numbering::alone());
    let expected = json!({
        "password": "[PASSWORD_1]", "ssn": "[SSN_1]", "phone": ["[PHONE_1]"], "[EMAIL_1]": 1, "policy": "hunter2",
        "nested": {"api_key": "[SECRET_1]", "token_count": 12}
    });
    assert_eq!(*out, expected);
}

#[test]
fn a_name_reaches_its_value_across_nesting() {
    let guard = Guard::default();
    for (value, expected) in [
        (json!({"password": {"value": "hunter22"}}), json!({"password": {"value": "[PASSWORD_1]"}})),
        (json!({"password": {"0": "hunter22"}}), json!({"password": {"0": "[PASSWORD_1]"}})),
        (
            json!({"name": "DB_PASSWORD", "value": "hunter22"}),
            json!({"name": "DB_PASSWORD", "value": "[PASSWORD_1]"}),
        ),
        (
            json!([["user", "password"], ["bob", "hunter22"], ["eve"]]),
            json!([["user", "password"], ["bob", "[PASSWORD_1]"], ["eve"]]),
        ),
        (
            json!({"columns": ["user", "password"], "data": [["bob", "hunter22"]]}),
            json!({"columns": ["user", "password"], "data": [["bob", "[PASSWORD_1]"]]}),
        ),
        (json!([["password", "hunter22"]]), json!([["password", "[PASSWORD_1]"]])),
        (json!({"Authorization": "Bearer x9Kd82hfLqmz12"}), json!({"Authorization": "Bearer [BEARER_1]"})),
        (
            json!({"headers": [["Authorization", "Basic dXNlcjpwYXNzd29yZA=="]]}),
            json!({"headers": [["Authorization", "Basic [BASIC_AUTH_1]"]]}),
        ),
        (json!({"user[password]": "hunter22"}), json!({"user[password]": "[PASSWORD_1]"})),
        (json!({"pass\u{200b}word": "hunter22"}), json!({"pass\u{200b}word": "[PASSWORD_1]"})),
        (json!({"ｐａｓｓｗｏｒｄ": "hunter22"}), json!({"ｐａｓｓｗｏｒｄ": "[PASSWORD_1]"})),
        (json!({"Password: ": "hunter22"}), json!({"Password: ": "[PASSWORD_1]"})),
        (json!({"password\n": "hunter22"}), json!({"password\n": "[PASSWORD_1]"})),
        (
            json!({"columns": [{"name": "user"}, {"name": "password"}], "rows": [["bob", "hunter22"]]}),
            json!({"columns": [{"name": "user"}, {"name": "password"}], "rows": [["bob", "[PASSWORD_1]"]]}),
        ),
        (
            json!([["user", "password", 2026], ["bob", "hunter22", 4]]),
            json!([["user", "password", 2026], ["bob", "[PASSWORD_1]", 4]]),
        ),
        (
            json!([[0, "user", "password"], [7, "bob", "hunter22"]]),
            json!([[0, "user", "password"], [7, "bob", "[PASSWORD_1]"]]),
        ),
        (
            json!([{"name": "Cookie", "value": "sid=x9Kd82hfLqmz12x9Kd; theme=dark"}]),
            json!([{"name": "Cookie", "value": "sid=[SECRET_1]; theme=dark"}]),
        ),
    ] {
        assert_eq!(*guard.json(value, &mut Numbering::alone()).0, expected);
    }
    const PUBLIC_KEY: &str =
        "AAAAB3NzaC1yc2EAAAADAQABAAABgQC7v5k0x9m1J8yqT3n2ZsW4uRkLdVbYhXcPfGjEoQaSiUwKzMtNpBrHgFe1D6";
    // Forms and schemas that only mention passwords.
    for value in [
        json!({"properties": {"password": {"type": "string", "minLength": 8, "title": "the password"}}}),
        json!({"columns": ["token", "count"], "data": [["the", 512], ["of", 256]]}),
        json!([["key", "amount"], ["standard_rate", 23.0]]),
        json!({"name": "password", "value": null, "required": true}),
        json!([["password", 512, null], ["dragon", 256, null]]),
        json!([[1, "password", "open"], [2, "invoices", "closed"]]),
        json!([["reset", "password", 12], ["buy", "basket", 9]]),
        // A slash alone does not make a media type.
        json!({"org/repo": {"data": PUBLIC_KEY}, "2026/01": {"value": [PUBLIC_KEY]}, "src/main.rs": PUBLIC_KEY}),
        json!({"[PASSWORD_9\u{200b}]": "hunter22"}),
        json!({"Authorization": "Digest username=\"Mufasa\", realm=\"x\""}),
    ] {
        assert_eq!(*guard.json(value.clone(), &mut Numbering::alone()).0, value);
    }
}

#[test]
fn a_list_of_lines_is_a_table_as_value_and_as_text() {
    let guard = Guard::default();
    let lines =
        |first: &str, second: &str| json!({"rows": ["id,bsn,note", first, second], "n": ["a,b", "c"]});
    let value = lines("1,278198104,x", "2,278198104,y");
    let (out, report) = guard.json(value.clone(), &mut numbering());
    assert!(!out.to_string().contains("278198104") && report.total() == 2, "{out:?}");
    assert_eq!((&out["rows"][0], &out["n"]), (&value["rows"][0], &value["n"]));
    let text = guard.text(&value.to_string(), &mut numbering()).0;
    assert!(!text.contains("278198104") && serde_json::from_str::<Value>(&text).is_ok(), "{}", *text);
    let report_only = Guard::new(Policy { mode: Mode::ReportOnly, ..Policy::default() }).unwrap();
    let (out, report) = report_only.json(value.clone(), &mut numbering());
    assert_eq!((&*out, report.would_redact[&Kind::NationalId].count), (&value, 2));
}

#[test]
fn names_that_become_equal_keep_their_values() {
    let guard = Guard::new(Policy { numbered: false, ..Policy::default() }).unwrap();
    let many: serde_json::Map<_, _> = (0..30_000).map(|n| (format!("u{n}@example.com"), json!(n))).collect();
    let (out, _) = guard.json(Value::Object(many), &mut Numbering::alone());
    let object = out.as_object().unwrap();
    let values: std::collections::BTreeSet<_> =
        object.values().map(|value| value.as_u64().unwrap()).collect();
    assert_eq!(values.len(), 30_000);
    assert!(object.contains_key("[EMAIL]") && object.contains_key("[EMAIL]_30000"));
    let twice = guard.json(out.get().clone(), &mut Numbering::alone()).0;
    assert!(twice.get() == out.get());
}

#[test]
fn an_allowed_value_does_not_hide_its_neighbour() {
    let mut policy = Policy::default();
    policy.actions.insert(Kind::Password, Action::Allow);
    let guard = Guard::new(policy).unwrap();
    let value = json!({
        "password": "hunter22 alice@example.com", "first_name": "Alice alice@example.com",
        "billing_address": "1 Main Street, Dublin, tel +353 87 123 4567"
    });
    let expected = json!({
        "password": "hunter22 [EMAIL_1]", "first_name": "Alice [EMAIL_1]",
        "billing_address": "1 Main Street, Dublin, tel [PHONE_1]"
    });
    assert_eq!(*guard.json(value, &mut Numbering::alone()).0, expected);
}

#[test]
fn a_value_of_forged_placeholders_is_guarded_the_same_the_second_time() {
    let guard = Guard::default();
    let mut numbering = Numbering::alone();
    for forged in ["[PASSWORD_7] [EMAIL_8]", "[PASSWORD_7]", "[EMAIL_8], [EMAIL_9]"] {
        let (once, report) = guard.json(json!({"password": forged}), &mut numbering);
        assert_eq!((report.total(), report.forged > 0), (0, true), "{}", *once);
        assert_eq!(guard.json(once.get().clone(), &mut numbering).0, once);
    }
    // The text after one is not a placeholder.
    let (out, _) = guard.json(json!({"password": "[EMAIL_8]x9Kd82hfLq"}), &mut numbering);
    assert_eq!(*out, json!({"password": "[PASSWORD_1]"}));
}

#[test]
fn pictures_inside_values_and_text_files_lose_their_text() {
    let engine = base64::engine::general_purpose::STANDARD;
    let comment =
        [b"\xff\xd8\xff\xfe\x00\x13alice@example.com".to_vec(), b"\xff\xda\x00\x02 \xff\xd9".to_vec()];
    let (run, clean) = (engine.encode(comment.concat()), engine.encode(b"\xff\xd8\xff\xda\x00\x02 \xff\xd9"));
    let (first, second) = run.split_at(20);
    let url = |body: &str| format!("data:image/jpeg;base64,{body}");
    let mut run = OutcomeGuard::new(&Guard::default(), Numbering::alone(), OutputLimits::default());
    let page = format!("<img src=\"{}\">\nask bob@example.com\n", url(&format!("\n{first}\n{second}")));
    let shown = run.file(page.as_bytes()).unwrap().into_inner();
    assert_eq!(String::from_utf8(shown).unwrap(), format!("<img src=\"{}\">\nask [EMAIL_1]\n", url(&clean)));
    let notebook = json!({"outputs": [{"image/jpeg": format!("{first}\n{second}\n")}]}).to_string();
    let shown = run.file(notebook.as_bytes()).unwrap().into_inner();
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown, json!({"outputs": [{"image/jpeg": format!("{clean}\n")}]}).to_string());
    let (out, _) = Guard::default()
        .json(json!({"a": [{"src": url(&format!("{first}{second}"))}]}), &mut Numbering::alone());
    assert_eq!(*out, json!({"a": [{"src": url(&clean)}]}));
}

#[test]
fn defaults_within_defaults_are_hidden_however_deep() {
    let guard = Guard::default();
    for depth in [1, 8, 9, 1_000_000] {
        let value = "${A:-".repeat(depth) + "hunter2" + &"}".repeat(depth);
        let (out, report) = guard.json(json!({"password": value}), &mut Numbering::alone());
        let outer = depth.min(8);
        let expected = "${A:-".repeat(outer) + "[PASSWORD_1]" + &"}".repeat(outer);
        assert_eq!(out["password"], json!(expected), "{depth}");
        assert_eq!(report.errors, 0);
    }
}

#[test]
fn a_long_value_is_hidden_by_its_name() {
    let guard = Guard::default();
    for value in ["abcdefghijklmnopqrst".repeat(250), "0123456789abcdef".repeat(4_375)] {
        let (out, report) = guard.json(json!({"api_token": value}), &mut Numbering::alone());
        assert_eq!((&*out, report.errors), (&json!({"api_token": "[SECRET_1]"}), 0), "{}", value.len());
    }
}

#[test]
fn an_encoded_value_is_not_hidden_from_the_guard() {
    let guard = Guard::default();
    for hidden in [
        "alice%40example.com",
        r"alice\u0040example.com",
        r"alice\x40example.com",
        "alice&#64;example.com",
        "alice&commat;example.com",
        "al\u{200b}ice@exam\u{200b}ple.com",
        "\x1b[1malice\x1b[0m@example.com",
        "ａｌｉｃｅ＠ｅｘａｍｐｌｅ．ｃｏｍ",
        "a\0l\0i\0c\0e\0@\0e\0x\0a\0m\0p\0l\0e\0.\0c\0o\0m",
        "YWxpY2VAZXhhbXBsZS5jb20=",
        "616c69636540657861· 6d706c652e636f6d",
        "４１１１１１１１１１１１１１１１",
        "4111\u{a0}1111\u{a0}1111\u{a0}1111",
        "4111\u{200b}1111\u{200b}1111\u{200b}1111",
        "4111‐1111‐1111‐1111",
        "aHR0cHM6Ly91c2VyOmh1bnRlcjJAZXhhbXBsZS5jb20vcGF0aA==",
    ] {
        let hidden = hidden.replace("· ", "");
        let text = format!("value {hidden} end");
        let (out, _) = guard.text(&text, &mut Numbering::alone());
        assert!(
            out.contains("_1]") && !out.contains(&hidden.chars().skip(6).collect::<String>()),
            "{text:?} became {:?}",
            *out
        );
    }
}

/// As in JSON logs and printed strings.
#[test]
fn a_value_is_found_after_an_escaped_line_feed() {
    let guard = Guard::default();
    for (value, shown) in [
        ("4111111111111111", "[CREDIT_CARD_1]"),
        ("4111 1111 1111 1111", "[CREDIT_CARD_1]"),
        ("DE89 3704 0044 0532 0130 00", "[IBAN_1]"),
        ("219-09-9998", "[SSN_1]"),
        ("+353 87 123 4567", "[PHONE_1]"),
        ("185.12.44.7", "[IP_1]"),
        ("alice@example.com", "[EMAIL_1]"),
        ("ghp_1234567890abcdefghijABCDEFGHIJ123456", "[API_KEY_1]"),
    ] {
        for escape in ["\\n", "\\t", "\\r\\n", "\\\\n"] {
            let text = |value: &str| format!("{{\"text\": \"see{escape}{value}{escape}end\"}}\n");
            let (out, _) = guard.text(&text(value), &mut Numbering::alone());
            // The escape's letter may be the first of an address.
            let expected = text(shown);
            assert!(*out == expected || *out == expected.replacen("n[EMAIL", "[EMAIL", 1), "{}", *out);
        }
    }
    let path = r"C:\new\table\readme-2026-11-28.txt";
    assert_eq!(*guard.text(path, &mut Numbering::alone()).0, path);
}

#[test]
fn a_placeholder_that_was_not_issued_is_made_invalid() {
    let guard = Guard::default();
    let mut numbering = Numbering::alone();
    let (out, report) = guard.text("[EMAIL_1] a@b.ie [EMAIL_1] [EMAIL_2] [X_1]", &mut numbering);
    assert_eq!(*out, "[EMAIL_1\u{200b}] [EMAIL_1] [EMAIL_1] [EMAIL_2\u{200b}] [X_1]");
    assert_eq!(report.forged, 2);
}

#[test]
fn report_only_counts_and_changes_nothing() {
    let mut policy = Policy { mode: Mode::ReportOnly, ..Policy::default() };
    policy.actions.insert(Kind::PrivateKey, Action::Block);
    let guard = Guard::new(policy).unwrap();
    let text = "a@b.ie [EMAIL_9] 4111111111111111\n";
    let (out, report) = guard.text(text, &mut Numbering::alone());
    assert_eq!(*out, text);
    assert_eq!((report.findings.len(), report.would_redact.len(), report.blocked), (0, 2, false));
}

#[test]
fn every_action_does_what_it_says() {
    let act = |action| {
        let mut policy = Policy::default();
        policy.actions.insert(Kind::CreditCard, action);
        let mut numbering = Numbering::new([7; 32], []);
        Guard::new(policy).unwrap().text("pay 4111-1111-1111-1111 now", &mut numbering)
    };
    assert_eq!(*act(Action::Redact).0, "pay [CREDIT_CARD_1] now");
    assert_eq!(*act(Action::Mask).0, "pay ****-****-****-1111 now");
    assert_eq!(*act(Action::Allow).0, "pay 4111-1111-1111-1111 now");
    let (hashed, _) = act(Action::Hash);
    assert!(
        hashed.starts_with("pay [CREDIT_CARD:") && hashed.len() == "pay [CREDIT_CARD:abcdefabcdef] now".len()
    );
    let (blocked, report) = act(Action::Block);
    assert!(blocked.is_empty() && report.blocked);
}

#[test]
fn a_mask_shows_no_character_of_a_secret() {
    let mut policy = Policy::default();
    policy.actions.values_mut().for_each(|known| *known = Action::Mask);
    let guard = Guard::new(policy).unwrap();
    for password in ["!@#$%^&*()_+", "$%^&#!?@x1", "%^&*(){}[]!", r"pass\nword9X", r"Geheim\u00df9wort"] {
        let (out, _) = guard.text(&format!("{{\"password\": \"{password}\"}}"), &mut Numbering::alone());
        let masked = out.strip_prefix("{\"password\": \"").and_then(|out| out.strip_suffix("\"}"));
        assert!(masked.is_some_and(|masked| masked.bytes().all(|sign| sign == b'*')), "{}", *out);
        assert_eq!(*guard.text(&out, &mut Numbering::alone()).0, *out);
    }
}

#[test]
fn a_run_has_one_numbering_for_all_its_output() {
    let mut run = OutcomeGuard::new(&Guard::default(), Numbering::alone(), OutputLimits::default());
    let mut out = Vec::new();
    out.extend(run.push(OutputChunk::Stdout("to alice@exam".to_owned())));
    assert!(out.is_empty(), "an unfinished line waits");
    out.extend(run.push(OutputChunk::Stderr("bob@example.com\n".to_owned())));
    out.extend(run.push(OutputChunk::Stdout("ple.com\n".to_owned())));
    let formats = [
        ("text", json!("alice@example.com")),
        ("html", json!("<td title=\"bob@example.com\">x</td>")),
        ("application/vnd.custom+json", json!({"carol@example.com": [4_111_111_111_111_111_u64]})),
        ("png", json!("not a picture: dave@example.com")),
    ];
    let formats = formats.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    out.extend(run.push(OutputChunk::Result(RichResult { formats, is_main: true })));
    out.extend(run.push(OutputChunk::Error(CodeError {
        name: "ValueError".to_owned(),
        message: "bad alice@example.com".to_owned(),
        traceback: "x = 'bob@example.com'".to_owned(),
    })));
    let done = run.finish(Ended::Completed, Vec::new(), Duration::ZERO);
    assert!(done.rest.is_empty());
    let outcome = done.outcome.get();
    assert_eq!(outcome.stdout.text(), "to [EMAIL_2]\n");
    assert_eq!(outcome.stderr.text(), "[EMAIL_1]\n");
    let result = &outcome.results[0].formats;
    assert_eq!(result["text"], "[EMAIL_2]");
    assert_eq!(result["html"], "<td title=\"[EMAIL_1]\">x</td>");
    assert_eq!(result["application/vnd.custom+json"], json!({"[EMAIL_3]": ["[CREDIT_CARD_1]"]}));
    assert_eq!(result["png"], "[WITHHELD]");
    let error = outcome.error.as_ref().unwrap();
    assert_eq!((error.message.as_str(), error.traceback.as_str()), ("bad [EMAIL_2]", "x = '[EMAIL_1]'"));
    assert!(!serde_json::to_string(&done.report).unwrap().contains("example"));
    assert_eq!(out.len(), 4);
}

#[test]
fn a_blocked_run_shows_no_output() {
    let mut policy = Policy::default();
    policy.actions.insert(Kind::Email, Action::Block);
    let mut run =
        OutcomeGuard::new(&Guard::new(policy).unwrap(), Numbering::alone(), OutputLimits::default());
    run.push(OutputChunk::Result(RichResult {
        formats: serde_json::Map::from_iter([("text".to_owned(), json!("secret plan"))]),
        is_main: true,
    }));
    assert!(run.push(OutputChunk::Stdout("a@b.ie\nmore\n".to_owned())).is_empty());
    assert!(run.is_blocked());
    let done = run.finish(Ended::Completed, Vec::new(), Duration::ZERO);
    assert!(done.report.blocked && done.rest.is_empty() && done.outcome.results.is_empty());
    assert_eq!(done.outcome.stdout.text(), "");
}

#[test]
fn the_text_in_a_picture_is_removed() {
    use base64::Engine as _;
    let engine = base64::engine::general_purpose::STANDARD;
    let chunk =
        |name: &[u8], data: &[u8]| [&(data.len() as u32).to_be_bytes()[..], name, data, &[0; 4]].concat();
    let png = [
        b"\x89PNG\r\n\x1a\n".to_vec(),
        chunk(b"IHDR", &[0; 13]),
        chunk(b"tEXt", b"Author\0alice@example.com"),
        chunk(b"IDAT", &[1, 2, 3]),
        chunk(b"IEND", &[]),
        b"trailing alice@example.com".to_vec(),
    ]
    .concat();
    let mut run = OutcomeGuard::new(&Guard::default(), Numbering::alone(), OutputLimits::default());
    let formats = serde_json::Map::from_iter([("image/png".to_owned(), json!(engine.encode(png)))]);
    run.push(OutputChunk::Result(RichResult { formats, is_main: true }));
    let done = run.finish(Ended::Completed, Vec::new(), Duration::ZERO);
    let out = engine.decode(done.outcome.results[0].formats["image/png"].as_str().unwrap()).unwrap();
    assert!(out.starts_with(b"\x89PNG") && memchr::memmem::find(&out, b"IDAT").is_some());
    assert!(memchr::memmem::find(&out, b"alice").is_none());
}

/// Tokens that are recognised after their beginning, with nothing before them.
#[test]
fn tokens_that_begin_before_a_word_are_looked_for_at_the_start_of_a_text() {
    let guard = Guard::default();
    for len in [24, 34, 36, 43, 64] {
        for before in ["", ":", "a:", "a.b:", "+a:", "|", "1|"] {
            let text = format!("{before}{}", "0123456789abcdef".repeat(4).get(..len).unwrap());
            let (out, report) = guard.text(&text, &mut numbering());
            assert_eq!(report.errors, 0, "{text}: {}", *out);
        }
    }
}

/// A name may contain the invalidated form of a forged placeholder; only in the value is it decoded.
#[test]
fn an_invisible_character_in_a_name_shifts_nothing_in_its_value() {
    let guard = Guard::default();
    for (name, value) in [
        ("\u{200b}]".repeat(3) + "password", "hunter2!\u{200b}]"),
        ("\u{200b}]".repeat(28) + "password", "hunter2\u{200b}]"),
    ] {
        let (out, _) = guard.json(serde_json::json!({ name: value }), &mut numbering());
        assert!(!out.to_string().contains("hunter2"), "{}", out.get());
    }
}

/// Rows of numbers in the layouts of programs, 96,000 in total: at most one in ten thousand changes.
#[test]
fn random_rows_of_numbers_are_left_alone() {
    const BLOCK: usize = 400;
    let mut dice = Dice(7);
    let mut roll = |bound: u64| dice.roll(bound as usize) as u64;
    let mut digits = |len: usize| -> String {
        (0..len)
            .map(|at| char::from(b'0' + (roll(if at == 0 { 9 } else { 10 }) as u8) + u8::from(at == 0)))
            .collect()
    };
    let guard = Guard::default();
    let mut changed = Vec::new();
    for block in 0..20 {
        for layout in 0..12 {
            let rows: Vec<String> = (0..BLOCK)
                .map(|row| match layout {
                    0 => (0..4).map(|_| digits(4)).collect::<Vec<_>>().join(" "),
                    1 => (0..4).map(|_| digits(6)).collect::<Vec<_>>().join("  "),
                    2 => (0..3).map(|_| format!(".{}", digits(16))).collect::<Vec<_>>().join(" "),
                    3 => format!("{row},{},{}.{}", digits(16), digits(3), digits(2)),
                    4 => (0..3)
                        .map(|_| format!("{}.{}e+00", digits(1), digits(18)))
                        .collect::<Vec<_>>()
                        .join(" "),
                    5 => format!(
                        "<path d=\"M{}.{} {}.{}L{} {}\"/>",
                        digits(3),
                        digits(9),
                        digits(2),
                        digits(9),
                        digits(4),
                        digits(4)
                    ),
                    6 => format!("[-{}.{}, {}.{}],", digits(1), digits(15), digits(2), digits(15)),
                    7 => (0..8).map(|_| digits(2)).collect::<Vec<_>>().join(", "),
                    8 => format!(
                        "{:08x}  {}",
                        row * 16,
                        (0..16).map(|_| digits(2)).collect::<Vec<_>>().join(" ")
                    ),
                    9 => format!("{row:<5}  {}  {}", digits(15), digits(5)),
                    10 => format!("{}\t{}\t{}", digits(13), digits(13), digits(1)),
                    _ => digits(16),
                })
                .collect();
            let text = rows.join("\n");
            let (out, _) = guard.text(&text, &mut Numbering::alone());
            let lines = rows.iter().zip(out.lines()).filter(|(before, after)| before != after);
            changed.extend(lines.map(|(before, after)| format!("{block} {layout}: {before} -> {after}")));
        }
    }
    assert!(changed.len() * 10_000 <= 12 * 20 * BLOCK, "{} {changed:#?}", changed.len());
}
