//! Whether a line that contains a word of a head can have any effect.
//!
//! Code and prose contain such words in most of their lines, and hardly any as a name: `pass`, `for key in keys`. A word that
//! is a name has a mark near it, so most lines are skipped here after one look at each byte.

use super::head::{self, is_name, may_be_led};
use super::named::{joint, outer, printed, side_joint};
use super::{LONGEST_NAME, begins_listing, entry_name, insertion};
use crate::guard::heads;
use crate::guard::scan::holds_placeholder;

/// What a byte means for a line: that it may be encoded, cannot be the head of a table, or has fields.
const ODD: u8 = 1;
const OTHER: u8 = 2;
const SEPARATES: u8 = 4;

static SAYS: [u8; 256] = {
    let mut says = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        says[byte] = match byte as u8 {
            b'\n' => 0,
            b'\\' | 0..=8 | 0xb..=0x1f | 0x7f.. => ODD,
            _ if head::SEPARATORS[byte] => SEPARATES,
            _ if head::OTHER[byte] => OTHER,
            _ => 0,
        };
        byte += 1;
    }
    says
};

/// Whether one of the words that end at `places` of a line may name a value in it or a column below it, where nothing is open.
pub(super) fn may_speak(line: &str, places: impl Iterator<Item = usize> + Clone) -> bool {
    #[cfg(test)]
    if tests::EVERY_LINE.get() {
        return true;
    }
    let bytes = line.as_bytes();
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let padded = bytes.ends_with(b"  ") || bytes.ends_with(b"  \r");
    let bytes = bytes.trim_ascii_end();
    let says = bytes.iter().fold(0, |says, byte| says | SAYS[usize::from(*byte)]);
    let text = bytes.trim_ascii_start();
    let (Some(first), Ok(name)) = (text.first(), str::from_utf8(text)) else { return says & ODD != 0 };
    // An element, a row with its mark, a head with one.
    if says & ODD != 0 || padded || matches!(first, b'<' | b'!' | b'$' | b':') || text.starts_with(b"COPY ") {
        return true;
    }
    let key = || text.ends_with(b":") && !text.ends_with(b"):") && is_name(name.trim_end_matches(':'));
    let statement = || begins_listing(name) || insertion(name, true).is_some();
    let below = || key() || entry_name(name).is_some() || printed(name).is_some() || statement();
    if places.clone().any(|place| signed(bytes, place)) || below() {
        return true;
    }
    let any = |end: usize| places.clone().any(|place| place <= end);
    let other = |end: usize| places.clone().any(|place| place <= end && !heads::ends_secret(bytes, place));
    let side = |joint: &usize| any(*joint) && is_name(line[..*joint].trim_matches('"'));
    if side_joint(line).filter(side).is_some() {
        return true;
    }
    let row = name.trim_start_matches(outer);
    if let Some((end, rest)) = joint(row) {
        let code = row[end..row.len() - rest.len()].contains([':', '=']);
        let end = bytes.len() - row.len() + end;
        if other(end) || !code && any(end) {
            return true;
        }
    }
    if says & OTHER != 0 {
        return may_be_led(name)
            || holds_placeholder(name)
            || places.clone().any(|place| in_row(bytes, place));
    }
    let alone = || heads::speaks_alone(heads::meaning(name));
    says & SEPARATES != 0
        || memchr::memmem::find(text, b"  ").is_some()
        || other(bytes.len())
        || alone()
        || bytes.starts_with(b"  ") && is_short_head(name)
}

/// Whether a line is a few names with one space between, as in a frame with short columns, and one of them is certain.
fn is_short_head(text: &str) -> bool {
    const MOST: usize = 5;
    let sign = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b' ');
    text.bytes().all(sign)
        && text.split(' ').count() <= MOST
        && text.split(' ').any(|word| heads::is_sure(heads::meaning(word)))
}

/// Whether a place is in a string of a list that may be a row.
fn in_row(line: &[u8], place: usize) -> bool {
    let rest = line.get(place..).unwrap_or_default();
    let Some(end) = memchr::memchr2(b'"', b'\'', rest) else { return false };
    let start = line[..place].iter().rposition(|byte| b"\"'".contains(byte)).map_or(0, |quote| quote + 1);
    rest.get(end + 1) == Some(&b',') && line[start..place + end].iter().any(|byte| b",;|".contains(byte))
}

/// Whether a mark comes after the word that ends at a place, or a number after that of an identifier.
fn signed(line: &[u8], place: usize) -> bool {
    let rest = line.get(place..).unwrap_or_default();
    let run = |from: usize, signs: &[u8]| {
        let goes_on = |byte: &&u8| byte.is_ascii_alphanumeric() || signs.contains(byte);
        from + rest[from..].iter().take(5 * LONGEST_NAME).take_while(goes_on).count()
    };
    let name = run(0, b"_- .");
    if name == 5 * LONGEST_NAME || rest.get(name).is_some_and(|sign| b"\"':".contains(sign)) {
        return true;
    }
    let secret = heads::ends_secret(line, place);
    let behind = &rest[run(0, b"_")..];
    let sentence = behind.first().is_some_and(|sign| b" \"'`*].-/".contains(sign));
    if !secret && sentence && behind.iter().take(5 * LONGEST_NAME).any(u8::is_ascii_digit) {
        return true;
    }
    let gap = name + rest[name..].iter().take_while(|byte| b"\"'`*] .".contains(byte)).count();
    let signs = rest[gap..].iter().take_while(|byte| b"=:>,".contains(byte)).count();
    let value = rest[gap + signs..].trim_ascii_start().first();
    // `mot de passe provisoire : x`
    let qualified = rest[..name].iter().any(u8::is_ascii_alphabetic);
    match rest.get(gap) {
        Some(b'=' | b':') => !secret || qualified || matches!(value, Some(b'[' | b'(' | b'{')),
        Some(b',') => matches!(value, Some(b'[' | b'"' | b'\'')),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Read as _;

    use base64::Engine as _;

    use super::may_speak;
    use crate::guard::heads::Words;
    use crate::guard::{Guard, Numbering};

    thread_local! {
        /// Whether the prefilter is off.
        pub(super) static EVERY_LINE: Cell<bool> = const { Cell::new(false) };
    }

    /// The texts of the labelled sets, without their labels.
    fn labelled() -> Vec<String> {
        let packed = [
            include_str!("../../../tests/fixtures/guard/cases.jsonl.gz.b64"),
            include_str!("../../../tests/fixtures/guard/fresh.jsonl.gz.b64"),
        ];
        let plain = [
            include_str!("../../../tests/fixtures/guard/legitimate.txt"),
            include_str!("../../../tests/fixtures/guard/phrasings.txt"),
            include_str!("../../../tests/fixtures/guard/vendors.txt"),
        ];
        let text = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["text"].clone();
        let unpacked = packed.iter().flat_map(|packed| {
            let bytes = base64::engine::general_purpose::STANDARD.decode(packed.replace('\n', "")).unwrap();
            let mut lines = String::new();
            flate2::read::GzDecoder::new(&*bytes).read_to_string(&mut lines).unwrap();
            lines.lines().map(|line| text(line).as_str().unwrap().to_owned()).collect::<Vec<_>>()
        });
        let marks = ['·', '«', '»'];
        let plain = plain.iter().flat_map(|lines| lines.lines());
        unpacked.chain(plain.map(|line| line.replace(marks, "").replace('⏎', "\n"))).collect()
    }

    /// Heads, values and marks in any order.
    fn made_up(count: usize) -> impl Iterator<Item = String> {
        const PARTS: [&str; 57] = [
            "\r",
            "2026-01-31 10:00:00,123 - INFO - ",
            "web-1  | ",
            "> ",
            "['id,ssn',",
            "ssn",
            "bsn",
            "phone number",
            "password",
            "api_key",
            "Pass Nr.",
            "téléphone",
            "passport",
            "iban",
            "pesel",
            "key",
            "token",
            "type",
            "name",
            "id",
            "amount",
            "219-09-9998",
            "278198104",
            "087 123 4567",
            "x9Kd82!q",
            "kQ9x00017Lm2Tz8RwkQ9x0001",
            "57042694672",
            "C1ZT6502P",
            "DE61580497968969343970",
            "[EMAIL_1]",
            "12.50",
            "\n",
            "\n",
            "\n",
            "\n  ",
            ",",
            ", ",
            ";",
            "\t",
            "|",
            " | ",
            ": ",
            ":",
            "=",
            " = ",
            "  ",
            "   ",
            "\"",
            "'",
            "[",
            "]",
            "(",
            ")",
            "{",
            "}",
            "\\n",
            " is ",
        ];
        let mut seed = 0x0f1e_2d3c_4b5a_6978_u64;
        let mut roll = move |bound: usize| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (seed >> 33) as usize % bound
        };
        (0..count).map(move |_| (0..4 + roll(16)).map(|_| PARTS[roll(PARTS.len())]).collect())
    }

    #[test]
    fn a_skipped_line_has_no_effect() {
        let guard = Guard::default();
        let read = |text: &str, every: bool| {
            EVERY_LINE.set(every);
            let (out, report) = guard.text(text, &mut Numbering::alone());
            (out.into_inner(), report)
        };
        let labelled = labelled();
        assert!(labelled.len() > 5_000, "{}", labelled.len());
        let (mut found, mut differ) = (0, Vec::new());
        for text in labelled.into_iter().chain(made_up(20_000)) {
            let (all, some) = (read(&text, true), read(&text, false));
            found += all.1.total();
            if all != some {
                differ.push(format!("{text:?} becomes {:?}, if each line is read {:?}", some.0, all.0));
            }
        }
        assert!(found > 5_000, "{found}");
        assert!(differ.is_empty(), "{} {differ:#?}", differ.len());
    }

    fn speaks(line: &str) -> bool {
        let mut words = Words::default();
        words.fill(line.as_bytes(), (0, line.len()), true, None);
        assert!(!words.places.is_empty(), "{line}");
        may_speak(line, words.places.iter().copied())
    }

    #[test]
    fn a_line_is_read_if_it_uses_a_word_as_a_name() {
        for line in [
            "ssn,name",
            "ssn  219-09-9998",
            "| ssn | 219-09-9998 |",
            "| ssn | a = 219-09-9998 |",
            "    ssn name",
            "    token country",
            "  pass nr name",
            "user  password",
            "x = {'ssn': '219-09-9998'}",
            "Person(ssn=219-09-9998)",
            "tokens = key = ['a']",
            "\"password\",",
            "password:",
            "<ssn>219-09-9998</ssn>",
            "$ ssn : chr \"219-09-9998\"",
            "printenv DB_PASSWORD",
            "%let ssn = 219-09-9998;",
            "say \"ssn\\n219-09-9998\"",
            "COPY people (name, ssn) FROM stdin;",
            "{\"ssn\", \"219-09-9998\"}",
            "INSERT INTO users (id, ssn) VALUES (1, '219-09-9998:x');",
            "CREATE TABLE users (ssn text DEFAULT '=');",
            "ssn [EMAIL_1] name",
            "users.csv:1:id,ssn",
            "> id,ssn",
            "password,a=bcdef8,9=klmno7",
            "password   ",
            "type: passport",
            "passport no. C1ZT6502P",
            "ssns = (219-09-9998",
        ] {
            assert!(speaks(line), "{line}");
        }
    }

    #[test]
    fn code_and_prose_without_such_a_name_are_skipped() {
        for line in [
            "        pass",
            "    yield the_key",
            "    return self._get(key)",
            "    for key in sorted(keys, key=len):",
            "def __getitem__(self, key):",
            "        self[key] = other[key]",
            "# pass the key on",
            "if (key >= last) { next(key); }",
        ] {
            assert!(!speaks(line), "{line}");
        }
    }
}
