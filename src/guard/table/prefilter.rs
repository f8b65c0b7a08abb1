//! Whether a line in which a word of a head stands may say anything by it.
//!
//! Code and prose hold such words in most of their lines, and hardly any as a name: `pass`, `for key in keys`. What is read
//! as a name has a sign of it near, so most lines are passed over here for the price of one look at each byte.

use super::head::{self, is_name, lead};
use super::named::{joint, outer, printed, side_joint};
use super::{LONGEST_NAME, begins_listing, entry_name, insertion};
use crate::guard::heads;
use crate::guard::scan::holds_placeholder;

/// What a byte says of a line: that it is not as it looks, cannot be the head of a table, or has fields.
const ODD: u8 = 1;
const OTHER: u8 = 2;
const SEPARATES: u8 = 4;

static SAYS: [u8; 256] = {
    let mut says = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        says[byte] = match byte as u8 {
            b'\n' | b'\r' => 0,
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
        return lead(name).is_some() || holds_placeholder(name);
    }
    let alone = || heads::speaks_alone(heads::meaning(name));
    says & SEPARATES != 0 || memchr::memmem::find(text, b"  ").is_some() || other(bytes.len()) || alone()
}

/// Whether the sign of a value stands behind the word that ends at a place, or, behind that of an identifier, a number.
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
    let sentence = behind.first().is_some_and(|sign| b" \"'`*].-".contains(sign));
    if !secret && sentence && behind.iter().take(5 * LONGEST_NAME).any(u8::is_ascii_digit) {
        return true;
    }
    let gap = name + rest[name..].iter().take_while(|byte| b"\"'`*] .".contains(byte)).count();
    let signs = rest[gap..].iter().take_while(|byte| b"=:>,".contains(byte)).count();
    let value = rest[gap + signs..].trim_ascii_start().first();
    match rest.get(gap) {
        Some(b'=' | b':') => !secret || matches!(value, Some(b'[' | b'(' | b'{')),
        Some(b',') => matches!(value, Some(b'[' | b'"' | b'\'')),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::may_speak;
    use crate::guard::heads::Words;

    fn speaks(line: &str) -> bool {
        let mut words = Words::default();
        words.fill(line.as_bytes(), (0, line.len()), true, None);
        assert!(!words.places.is_empty(), "{line}");
        may_speak(line, words.places.iter().copied())
    }

    #[test]
    fn a_line_is_read_where_a_word_stands_as_a_name() {
        for line in [
            "ssn,name",
            "ssn  219-09-9998",
            "| ssn | 219-09-9998 |",
            "| ssn | a = 219-09-9998 |",
            "    ssn name",
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
    fn code_and_prose_in_which_none_does_are_passed_over() {
        for line in [
            "        pass",
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
