//! The one event that comes in bulk, parsed by a fast path: a line of output as the hosted server and ours write it.
//!
//! Whatever looks different in the least is left to the general reader, which takes the same bytes for the same event; a
//! property test holds the two together.

use memchr::memchr2;

use super::interpreter::{Event, Output};

/// An output event; `None` leaves the line to the general reader.
pub(super) fn read(line: &[u8]) -> Option<Event> {
    let rest = line.strip_prefix(br#"{"type": "std"#)?;
    let (rest, event): (_, fn(Output) -> Event) = match rest.strip_prefix(br#"out", "text": ""#) {
        Some(rest) => (rest, Event::Stdout),
        None => (rest.strip_prefix(br#"err", "text": ""#)?, Event::Stderr),
    };
    let (text, rest) = text(rest)?;
    let timestamp = match rest {
        b"}" => None,
        _ => {
            let stamp = rest.strip_prefix(br#", "timestamp": ""#)?.strip_suffix(br#""}"#)?;
            let plain = stamp.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'));
            Some(String::from_utf8(stamp.to_vec()).ok().filter(|_| plain)?)
        }
    };
    Some(event(Output { text, timestamp }))
}

/// How far a text is looked at byte by byte before it is searched.
const NEAR: usize = 24;

/// Which bytes are literal in a text.
const PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let mut byte = 0;
    while byte < 0x20 {
        plain[byte] = false;
        byte += 1;
    }
    plain[b'"' as usize] = false;
    plain[b'\\' as usize] = false;
    plain
};

/// The value of each hex digit; 0xFF for any other byte.
const HEX: [u8; 256] = {
    let mut worth = [0xFF; 256];
    let mut digit = 0;
    while digit < 16 {
        worth[b"0123456789abcdef"[digit] as usize] = digit as u8;
        worth[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    worth
};

/// The text up to its closing quote, and what follows.
fn text(mut rest: &[u8]) -> Option<(String, &[u8])> {
    let mut out = Vec::with_capacity(rest.len());
    loop {
        // What is between two escapes is often short, and a search costs more than it finds there.
        let near = rest.iter().take(NEAR).take_while(|byte| PLAIN[usize::from(**byte)]).count();
        let at = if near < NEAR { near } else { near + memchr2(b'"', b'\\', &rest[near..])? };
        let (plain, found) = rest.split_at_checked(at)?;
        if plain.iter().skip(NEAR).fold(false, |seen, byte| seen | (*byte < 0x20)) {
            return None;
        }
        out.extend_from_slice(plain);
        if let Some(after) = found.strip_prefix(b"\"") {
            rest = after;
            break;
        }
        rest = unescape(found, &mut out)?;
    }
    // A text of escapes is a third of its line; the rest need not be carried along.
    if out.len() < out.capacity() / 2 {
        out.shrink_to_fit();
    }
    Some((String::from_utf8(out).ok()?, rest))
}

/// Takes one escape from the front; `None` for anything else, such as a bare control character.
fn unescape<'a>(escape: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let byte = match escape.strip_prefix(b"\\")?.first()? {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 0x08,
        b'f' => 0x0C,
        byte @ (b'"' | b'\\' | b'/') => *byte,
        b'u' => {
            let first = unit(escape)?;
            // Half a pair is for the general reader to mend.
            let (code, length) = match first {
                0xD800..=0xDBFF => match unit(escape.get(6..)?)? {
                    second @ 0xDC00..=0xDFFF => (0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00), 12),
                    _ => return None,
                },
                first => (first, 6),
            };
            out.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes());
            return escape.get(length..);
        }
        _ => return None,
    };
    out.push(byte);
    escape.get(2..)
}

/// The UTF-16 unit of a `\uXXXX` at the front.
fn unit(escape: &[u8]) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = escape.first_chunk::<6>()? else { return None };
    let [a, b, c, d] = digits.map(|digit| u32::from(HEX[usize::from(digit)]));
    (a | b | c | d < 16).then_some(a << 12 | b << 8 | c << 4 | d)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn general(line: &[u8]) -> Option<Event> {
        serde_json::from_slice(line).ok()
    }

    #[test]
    fn written_output_is_read_back() {
        for text in ["", "hello\n", "é€😀\u{2028}\u{0}\u{7f}\"\\/\t\r\u{8}\u{c}"] {
            for timestamp in [None, Some("2026-11-27T22:13:55.992927+00:00".to_owned())] {
                let output = Output { text: text.to_owned(), timestamp };
                for event in [Event::Stdout(output.clone()), Event::Stderr(output)] {
                    assert_eq!(read(event.write().trim_end().as_bytes()), Some(event));
                }
            }
        }
    }

    #[test]
    fn unusual_output_is_left_alone() {
        for odd in [
            r#"{"type":"stdout","text":"x"}"#,
            r#"{"type": "stdout", "text": "x", "more": 1}"#,
            r#"{"type": "stdout", "text": "x"} "#,
            r#"{"type": "stdout", "text": "x", "timestamp": null}"#,
            r#"{"type": "stdout", "text": "x", "timestamp": "a\n"}"#,
            r#"{"type": "stdout", "text": "x", "timestamp": "a", "b": "c"}"#,
            r#"{"type": "stdout", "text": "\ud800"}"#,
            r#"{"type": "stdout", "text": "\ud800\u0041"}"#,
            r#"{"type": "stdout", "text": "\x"}"#,
            r#"{"type": "stdout", "text": "\u+123"}"#,
            r#"{"type": "stdout", "text": "\"#,
            r#"{"type": "stdout", "text": "\u12"#,
            "{\"type\": \"stdout\", \"text\": \"a\tb\"}",
            r#"{"type": "stdin", "text": "x"}"#,
        ] {
            assert_eq!(read(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(read(b"{\"type\": \"stdout\", \"text\": \"\xff\"}"), None);
    }

    proptest! {
        #[test]
        fn both_readers_say_the_same(
            text in prop_oneof![any::<String>(), r#"([a\\"nu0-9dD8fF{}, :]|\\u[0-9a-fA-F]{4}){0,30}"#],
            raw in any::<bool>(),
            cut in 0_usize..400,
        ) {
            let line = match raw {
                true => format!(r#"{{"type": "stdout", "text": "{text}"}}"#),
                false => Event::Stderr(Output { text, timestamp: Some("now".to_owned()) }).write(),
            };
            let line = line.trim_end_matches('\n').as_bytes();
            let line = &line[..cut.min(line.len())];
            if let Some(event) = read(line) {
                prop_assert_eq!(Some(event), general(line));
            }
        }
    }
}
