//! The decoded form of a text: without invisible characters, terminal codes, full-width digits, percent encoding,
//! `\u0040`, `&#64;`. Built only where such a thing appears; each byte remembers its source.

/// A decoded text with the way back.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The decoded text.
    pub(super) text: Vec<u8>,
    /// For each byte of `text`, where its source begins; one more for the end.
    pub(super) source: Vec<u32>,
}

/// For each byte whether it begins or continues letters that are not decoded: those of most scripts.
static LETTERS: [bool; 256] =
    bytes!(0x80..=0xbf | 0xc3..=0xcc | 0xce..=0xd7 | 0xda | 0xdc..=0xe0 | 0xe4..=0xee);

/// Whether the odd byte at `at` hides something, or is only a percent sign or an accented letter.
#[inline]
pub(super) fn hides(text: &[u8], at: usize) -> bool {
    !LETTERS[usize::from(text[at])] && may_hide(text, at)
}

fn may_hide(text: &[u8], at: usize) -> bool {
    let next = |n: usize| text.get(at + n).copied().unwrap_or(0);
    let hex = |n: usize| next(n).is_ascii_hexdigit();
    match text[at] {
        0..=8 | 0x1b | 0x7f => true,
        b'%' => hex(1) && hex(2),
        // After `\n` in a string a value begins, but its letter would become the value's first.
        b'\\' if matches!(next(1), b'n' | b'r' | b't') => next(2).is_ascii_alphanumeric() || next(2) == b'+',
        b'\\' if matches!(next(1), b'0'..=b'3') => octal(&text[at + 1..]).is_some(),
        b'\\' => matches!(next(1), b'u' | b'x' | b'U') && (next(2) == b'{' || hex(2)) && hex(3),
        b'&' => next(1) == b'#' || named(&text[at..]).is_some() || text[at..].starts_with(b"&amp;#"),
        0xc2 => matches!(next(1), 0x9b | 0xa0 | 0xad),
        0xcd => next(1) == 0x8f,
        0xd8 => next(1) == 0x9c,
        0xd9 => (0xa0..=0xa9).contains(&next(1)),
        0xdb => (0xb0..=0xb9).contains(&next(1)),
        0xe1 => matches!((next(1), next(2)), (0x85, 0x9f | 0xa0) | (0x9e, 0xb4 | 0xb5) | (0xa0, 0x8b..=0x8f)),
        // The curly quotes, dashes and dots of prose (U+2013 to U+2026) hide nothing.
        0xe2 => match next(1) {
            0x80 => matches!(next(2), 0x80..=0x92 | 0xa8..=0xaf),
            0x81 => (0x9f..=0xaf).contains(&next(2)),
            0x88 => next(2) == 0x92,
            _ => false,
        },
        0xe3 => matches!((next(1), next(2)), (0x80, 0x80) | (0x85, 0xa4)),
        0xef => match next(1) {
            // Between Chinese words the commas, semicolons and marks of prose hide nothing.
            0xbc if matches!(next(2), 0x81 | 0x8c | 0x9b | 0x9f) => {
                next(3).is_ascii_graphic() || at > 0 && text[at - 1].is_ascii_graphic()
            }
            0xbc => true,
            0xbb | 0xbd | 0xb8 | 0xb9 => true,
            0xbe => next(2) == 0xa0,
            0xbf => (0xb0..=0xbb).contains(&next(2)),
            _ => false,
        },
        0xf0 => next(1) == 0x9d,
        0xf3 => next(1) == 0xa0,
        _ => false,
    }
}

/// Whether a text needs no decoding, except for what programs write with a percent sign, a backslash or an ampersand.
pub(super) fn reads_as_it_is(text: &[u8]) -> bool {
    static MAY_HIDE: [bool; 256] =
        bytes!(0..=8 | 0x1b | 0x7f | 0xc2 | 0xcd | 0xd8 | 0xd9 | 0xdb | 0xe1..=0xe3 | 0xef | 0xf0 | 0xf3);
    // The usual case: `\t` to `~`, and `\x1b`, which is checked below.
    let plain = |byte: &u8| byte.wrapping_sub(b'\t') <= b'~' - b'\t' && *byte != 0x1b;
    let parts = text.chunks(64).enumerate();
    !parts.filter(|(_, part)| !part.iter().fold(true, |all, byte| all & plain(byte))).any(|(nth, part)| {
        let mut odd = (64 * nth..).take(part.len()).filter(|at| MAY_HIDE[usize::from(text[*at])]);
        odd.any(|at| may_hide(text, at))
    })
}

/// Builds the view of a text in which those are not decoded.
pub(super) fn shown(text: &[u8]) -> View {
    view_of(text, (0, text.len()), false)
}

/// Builds the view of `text[from..to]`.
pub(super) fn view(text: &[u8], from: usize, to: usize) -> View {
    view_of(text, (from, to), true)
}

fn view_of(text: &[u8], (from, to): (usize, usize), escapes: bool) -> View {
    let mut view = View { text: Vec::with_capacity(to - from), source: Vec::with_capacity(to - from + 1) };
    let mut at = from;
    while at < to {
        let rest = &text[at..to];
        // Line ends of a table stay line ends.
        let written =
            !escapes && (b"%\\&".contains(&rest[0]) || matches!(rest, [0xe2, 0x80, 0xa8 | 0xa9, ..]));
        let (len, becomes) = match rest {
            _ if written => (1, Becomes::Same),
            [0x1b, ..] if !escapes => (escape_len(rest), Becomes::Nothing),
            _ => decode(rest),
        };
        let mut buffer = [0; 4];
        match becomes {
            Becomes::Same => {
                view.text.extend_from_slice(&rest[..len]);
                view.source.extend(at as u32..(at + len) as u32);
            }
            Becomes::Nothing => {}
            Becomes::Char(c) if c.is_ascii() => {
                view.text.push(c as u8);
                view.source.push(at as u32);
            }
            Becomes::Char(c) => {
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    view.text.push(byte);
                    view.source.push(at as u32);
                }
            }
        }
        at += len;
    }
    view.source.push(to as u32);
    view
}

enum Becomes {
    Same,
    Nothing,
    Char(char),
}

/// The character that an escape, an entity or a percent sign at the start of `text` encodes, or the first character itself
/// where it is not ASCII: its length, and the character; `None` for an invisible one.
pub(super) fn code(text: &[u8]) -> Option<(usize, Option<char>)> {
    // A line feed, which `decode` turns into a space.
    if let [b'%', b'0', b'a' | b'A' | b'd' | b'D' | b'9', ..] = text {
        return Some((3, Some(' ')));
    }
    if !is_odd(*text.first()?) {
        return None;
    }
    match decode(text) {
        (len, Becomes::Char(c)) => Some((len, Some(c))),
        (len, Becomes::Nothing) => Some((len, None)),
        (_, Becomes::Same) => None,
    }
}

/// Whether an encoded character may begin with a byte.
fn is_odd(byte: u8) -> bool {
    static ODD: [bool; 256] = bytes!(0..=8 | 0x1b | b'%' | b'\\' | b'&' | 0x7f..);
    ODD[usize::from(byte)]
}

/// Decodes the start of `rest`: its length, and its decoded form.
fn decode(rest: &[u8]) -> (usize, Becomes) {
    let first = rest[0];
    if !is_odd(first) {
        return (rest.iter().take_while(|byte| !is_odd(**byte)).count(), Becomes::Same);
    }
    if LETTERS[usize::from(first)] {
        return (rest.iter().take_while(|byte| LETTERS[usize::from(**byte)]).count(), Becomes::Same);
    }
    match first {
        // A bell ends a terminal command: a link, a title.
        7 => (1, Becomes::Char(' ')),
        0..=8 | 0x7f => (1, Becomes::Nothing),
        0x1b => escape(rest),
        0xc2 if rest.get(1) == Some(&0x9b) => (2 + control_len(&rest[2..]), Becomes::Nothing),
        b'%' => match hex(rest, 1, 2) {
            Some(byte @ 0x20..0x7f) => (3, code_point(byte)),
            _ => (1, Becomes::Same),
        },
        b'\\' => backslash(rest),
        b'&' => match numeric(rest).or_else(|| named(rest)) {
            Some((len, value)) => (len, code_point(value)),
            None => (1, Becomes::Same),
        },
        _ => {
            let len = rest.iter().skip(1).take(3).take_while(|byte| (0x80..0xc0).contains(*byte)).count() + 1;
            match std::str::from_utf8(&rest[..len]).ok().and_then(|text| text.chars().next()) {
                Some(c) => match fold(c) {
                    Some(folded) if folded == c => (len, Becomes::Same),
                    Some(folded) => (len, Becomes::Char(folded)),
                    None => (len, Becomes::Nothing),
                },
                None => (len, Becomes::Same),
            }
        }
    }
}

/// The value of hexadecimal digits.
fn hex(rest: &[u8], from: usize, len: usize) -> Option<u32> {
    let digits = rest.get(from..from + len)?;
    digits.iter().try_fold(0, |sum, digit| Some(sum << 4 | char::from(*digit).to_digit(16)?))
}

/// The value of three octal digits, as C, bash and git escape bytes.
fn octal(rest: &[u8]) -> Option<u32> {
    let digits = rest.first_chunk::<3>()?;
    digits.iter().try_fold(0, |sum, digit| Some(sum << 3 | char::from(*digit).to_digit(8)?))
}

/// The decoded form of a code point. A decoded line feed would let a rule look past the end of a line.
fn code_point(code: u32) -> Becomes {
    match char::from_u32(code) {
        Some('\n' | '\r') => Becomes::Char(' '),
        Some(c) => fold(c).map_or(Becomes::Nothing, Becomes::Char),
        None => Becomes::Same,
    }
}

/// An escape in a string. In a nested string each has one backslash more.
fn backslash(rest: &[u8]) -> (usize, Becomes) {
    let letter = rest.iter().take(16).take_while(|byte| **byte == b'\\').count();
    if matches!(rest.get(letter), Some(b'n' | b'r' | b't')) {
        return (letter + 1, Becomes::Char(' '));
    }
    let braced = || {
        let digits = rest.get(letter + 2..)?.iter().take(7).position(|byte| *byte == b'}');
        let digits = digits.filter(|digits| *digits > 0)?;
        Some((letter + digits + 3, hex(rest, letter + 2, digits)?))
    };
    let escaped = match (rest.get(letter), rest.get(letter + 1)) {
        (Some(b'u'), Some(b'{')) => braced(),
        (Some(b'u'), _) => hex(rest, letter + 1, 4).map(|value| (letter + 5, value)),
        (Some(b'U'), _) => hex(rest, letter + 1, 8).map(|value| (letter + 9, value)),
        (Some(b'x'), _) => hex(rest, letter + 1, 2).map(|value| (letter + 3, value)),
        (Some(b'0'..=b'3'), _) => octal(&rest[letter..]).map(|value| (letter + 3, value)),
        _ => None,
    };
    match (escaped, rest.get(1)) {
        (Some((len, value)), _) => (len, code_point(value)),
        // Not an escape of a program: what follows is decoded by itself.
        (_, Some(byte)) if *byte != b'\\' && is_odd(*byte) => (1, Becomes::Same),
        // Both bytes of another escape.
        (_, Some(_)) => (2, Becomes::Same),
        (_, None) => (1, Becomes::Same),
    }
}

/// A terminal code (ECMA-48, 5.4 and 8.3): `ESC [ ... letter`, `ESC ] 8 ;`, `ESC ( B`, or `ESC` and one. None crosses a
/// line feed. The part between `ESC ]` and `ESC \` is text: the address of a link, a title.
fn escape(rest: &[u8]) -> (usize, Becomes) {
    let body = &rest[1..];
    match body.first() {
        Some(b'[') => (2 + control_len(&body[1..]), Becomes::Nothing),
        Some(b']') => {
            let number = body[1..].iter().take(8).take_while(|b| b.is_ascii_digit() || **b == b';').count();
            match &body[1 + number..] {
                [7, ..] => (3 + number, Becomes::Nothing),
                [0x1b, b'\\', ..] => (4 + number, Becomes::Nothing),
                _ => (2 + number, Becomes::Char(' ')),
            }
        }
        Some(b'\\') => (2, Becomes::Char(' ')),
        Some(0x20..=0x2f) => {
            let between = body.iter().take(4).take_while(|b| matches!(b, 0x20..=0x2f)).count();
            let last = matches!(body.get(between), Some(0x30..=0x7e));
            (1 + between + usize::from(last), Becomes::Nothing)
        }
        Some(byte) if *byte < 0x80 && *byte != b'\n' => (2, Becomes::Nothing),
        _ => (1, Becomes::Nothing),
    }
}

/// The length of the terminal command at the start of a text; for a link including the address.
pub(super) fn escape_len(rest: &[u8]) -> usize {
    let control = rest.starts_with(b"\x1b]").then(|| {
        let body = rest.iter().take(1024).take_while(|byte| **byte != b'\n');
        body.enumerate().skip(2).find(|(_, byte)| matches!(byte, 7 | 0x1b)).map(|(at, byte)| match byte {
            7 => at + 1,
            _ => at + usize::from(rest.get(at + 1) == Some(&b'\\')) * 2,
        })
    });
    control.flatten().unwrap_or_else(|| escape(rest).0)
}

/// The length of the rest of a control sequence.
fn control_len(rest: &[u8]) -> usize {
    let sequence = rest.iter().take(32).take_while(|byte| **byte != b'\n');
    sequence.enumerate().find(|(_, byte)| (0x40..0x7f).contains(*byte)).map_or(0, |(at, _)| at + 1)
}

/// `&#64;`, `&#x40;`, `&amp;#64;`
fn numeric(rest: &[u8]) -> Option<(usize, u32)> {
    let body = rest.strip_prefix(b"&#").or_else(|| rest.strip_prefix(b"&amp;#"))?;
    let lead = rest.len() - body.len();
    let (digits, radix, skip) = match body.first()? {
        b'x' | b'X' => (&body[1..], 16, lead + 1),
        _ => (body, 10, lead),
    };
    let len = digits.iter().take(7).take_while(|byte| char::from(**byte).is_digit(radix)).count();
    let value = u32::from_str_radix(std::str::from_utf8(&digits[..len]).ok()?, radix).ok()?;
    Some((skip + len + usize::from(digits.get(len) == Some(&b';')), value))
}

/// The named entities that appear in addresses and numbers.
fn named(rest: &[u8]) -> Option<(usize, u32)> {
    let len = rest.iter().take(8).position(|byte| *byte == b';')? + 1;
    let c = match &rest[..len] {
        b"&commat;" => '@',
        b"&period;" => '.',
        b"&colon;" => ':',
        b"&equals;" => '=',
        b"&nbsp;" => ' ',
        b"&shy;" => '\u{ad}',
        b"&lowbar;" => '_',
        b"&plus;" => '+',
        b"&hyphen;" => '-',
        _ => return None,
    };
    Some((len, u32::from(c)))
}

/// The plain form of a character; `None` for an invisible one.
fn fold(c: char) -> Option<char> {
    let digit = |zero: u32| char::from_digit(c as u32 - zero, 10);
    let ascii = |base: u32| char::from_u32(c as u32 - base);
    match c {
        '\u{9}'..='\u{7e}' | '\u{80}'..='\u{9f}' => Some(c),
        // Control characters, and Unicode's Default_Ignorable_Code_Point.
        '\0'..='\u{8}' | '\u{7f}' | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' => None,
        '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' => None,
        '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' => None,
        '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' => None,
        '\u{e0000}'..='\u{e0fff}' => None,
        '\u{a0}'
        | '\u{2000}'..='\u{200a}'
        | '\u{2028}'
        | '\u{2029}'
        | '\u{202f}'
        | '\u{205f}'
        | '\u{3000}' => Some(' '),
        '\u{2010}'..='\u{2012}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' => Some('-'),
        '\u{fe52}' => Some('.'),
        '\u{fe6b}' => Some('@'),
        '\u{ff01}'..='\u{ff5e}' => ascii(0xfee0),
        '\u{660}'..='\u{669}' => digit(0x660),
        '\u{6f0}'..='\u{6f9}' => digit(0x6f0),
        // Mathematical digits in five styles, and letters in thirteen (except for the few that Unicode keeps elsewhere).
        '\u{1d7ce}'..='\u{1d7ff}' => char::from_digit((c as u32 - 0x1d7ce) % 10, 10),
        '\u{1d400}'..='\u{1d6a3}' => {
            let at = (c as u32 - 0x1d400) % 52;
            char::from_u32(if at < 26 { 0x41 + at } else { 0x61 + at - 26 })
        }
        _ => Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Guard, Numbering};

    #[test]
    fn letters_that_are_skipped_need_no_decoding() {
        for c in ('\u{80}'..=char::MAX).filter(|c| LETTERS[usize::from(c.to_string().as_bytes()[0])]) {
            assert_eq!(fold(c), Some(c), "{c:?}");
            assert!(!may_hide(c.to_string().as_bytes(), 0), "{c:?}");
        }
    }

    #[test]
    fn plain_text_needs_no_decoding() {
        for c in ('\0'..=char::MAX).filter(|c| !"%\\&".contains(*c)) {
            let text = c.to_string();
            assert_eq!(reads_as_it_is(text.as_bytes()), !may_hide(text.as_bytes(), 0), "{c:?}");
        }
    }

    fn read(text: &str) -> String {
        String::from_utf8(view(text.as_bytes(), 0, text.len()).text).unwrap()
    }

    #[test]
    fn hidden_text_is_decoded() {
        for (hidden, plain) in [
            ("a\u{200b}@b", "a@b"),
            ("\x1b[31ma@b\x1b[0m", "a@b"),
            ("a%40b", "a@b"),
            (r"a\u0040b", "a@b"),
            (r"a\x40b", "a@b"),
            ("a&#64;b&#x40;c&commat;d", "a@b@c@d"),
            ("４１１１", "4111"),
            ("٤١١١", "4111"),
            ("𝟒𝟏𝐚", "41a"),
            ("1\u{a0}2\u{202f}3", "1 2 3"),
            ("a\0b", "ab"),
            (r"a\\u0040b\\\\u0040c", "a@b@c"),
            (r"a\U00000040b\u{40}c\u{zz}", r"a@b@c\u{zz}"),
            ("a&amp;#64;b &amp; c", "a@b &amp; c"),
            ("a\x01@\x7fb", "a@b"),
            ("a\u{9b}1;31m@b", "a@b"),
            ("a\x1b(B\x1b[m@b", "a@b"),
            ("\x1b]8;;file://a%40b\x1b\\c\x1b]8;;\x1b\\d", " file://a@b cd"),
            ("\x1b]8;;file://a%40b\x07c\x1b]8;;\x07d", " file://a@b cd"),
            ("\x1b\nx", "\nx"),
            ("100% é \\z", "100% é \\z"),
            (r"a\n4111", "a 4111"),
            (r"a\\n4111\\\tx", "a 4111 x"),
            (r"a\%40b\&#64;c", r"a\@b\@c"),
            ("%0A", "%0A"),
        ] {
            assert_eq!(read(hidden), plain, "{hidden:?}");
        }
    }

    #[test]
    fn every_byte_knows_its_source() {
        let text = "é%40\u{200b}x";
        let view = view(text.as_bytes(), 0, text.len());
        assert_eq!(view.text, "é@x".as_bytes());
        assert_eq!(view.source, [0, 1, 2, 8, 9]);
    }

    #[test]
    fn invisible_characters_do_not_hide_an_address() {
        for hidden in [
            "\u{1}",
            "\u{8}",
            "\u{7f}",
            "\u{9b}0m",
            "\u{61c}",
            "\u{115f}",
            "\u{1160}",
            "\u{17b4}",
            "\u{180b}",
            "\u{3164}",
            "\u{ffa0}",
            "\u{fff9}",
            "\u{1d173}",
            "\u{e0100}",
            "\x1b(B\x1b[m",
            "\x1b[0m",
            "\x1b]8;;\x07",
            "\x1b]8;;\x1b\\",
        ] {
            let text = format!("alice@exa{hidden}mple.com 4111{hidden}111111111111");
            let (out, _) = Guard::default().text(&text, &mut Numbering::alone());
            assert_eq!(*out, "[EMAIL_1] [CREDIT_CARD_1]", "{hidden:?}");
        }
    }

    #[test]
    fn terminal_commands_are_scanned_as_text() {
        for (text, left) in [
            ("\x1b]8;;https://x.example/?email=alice%40example.com\x1b\\link\x1b]8;;\x1b\\", "[EMAIL_1]"),
            ("\x1b]8;id=1;file://host/alice%40example.com\x07link\x1b]8;;\x07", "[EMAIL_1]"),
            ("\x1b]0;alice%40example.com\x07$ ", "[EMAIL_1]"),
        ] {
            let (out, _) = Guard::default().text(text, &mut Numbering::alone());
            assert!(
                out.contains(left) && !out.contains("alice") && out.ends_with(&text[text.len() - 2..]),
                "{:?}",
                *out
            );
        }
    }
}
