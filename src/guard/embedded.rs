//! Pictures and documents inside a text: in `data:` URLs, in strings of JSON and of scripts. Each is cleaned like any
//! other.
//!
//! Their base64 is seldom written plainly: it is broken into lines, escaped (`\/`, `\n`, at any depth), written with
//! `%2B` or `&#10;`. All of these are read; the output is one run without breaks.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

use super::encoded::is_run;
use super::picture::{self, Format, Inspector};
use super::stream::WITHHELD;
use super::view;

/// Markers, in any case: the two words of a `data:` URL, and how a PNG, a JPEG and a PDF begin in base64.
const MARKS: [&str; 5] = ["data", "base64", "iVBORw0KGgo", "/9j", "JVBERi0"];
const DATA: usize = 0;
const BASE64: usize = 1;

static FINDER: LazyLock<AhoCorasick> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "five constant words; every test uses them")]
    AhoCorasick::builder().ascii_case_insensitive(true).build(MARKS).expect("a few short words")
});

/// The longest media type, in bytes from `data` to `base64`.
const MAX_TYPE: usize = 512;
/// Outside of quotes, base64 continues on the next line if its first line has at least this many digits; something that begins
/// like a picture and has fewer is a word.
const LINE: usize = 32;
/// How deep base64 texts may nest.
const MAX_DEPTH: u8 = 2;

/// Base64 as browsers read it.
pub(super) const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A text with its pictures cleaned. A `data:` URL with neither text nor a picture in it is left out; something that begins
/// like a picture but is not one is withheld. `None`: there is nothing to change. Removed parts are counted as withheld.
pub(super) fn clean(inspector: &mut Inspector<'_>, text: &str) -> Option<String> {
    clean_at(inspector, text, 0)
}

/// The same at a nesting depth.
#[expect(
    clippy::too_many_lines,
    reason = "one pass over the text: each place that begins a picture, and what becomes of it"
)]
fn clean_at(inspector: &mut Inspector<'_>, text: &str, depth: u8) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut done = 0;
    // Everything before this place has been examined, whether it was changed or not.
    let mut seen = 0;
    let mut scheme = None;
    for found in FINDER.find_iter(text) {
        if found.start() < seen {
            continue;
        }
        let (mark, url) = (found.pattern().as_usize(), found.pattern().as_usize() == BASE64);
        let (start, quoted) = match mark {
            DATA => {
                // The word may be part of the type too.
                if opens(&bytes[found.end()..]) {
                    scheme = Some(found.start());
                }
                continue;
            }
            BASE64 => {
                let Some(scheme) = scheme.filter(|at| is_type(&bytes[*at..found.start()])) else { continue };
                let Some(comma) = comma(&bytes[found.end()..]) else { continue };
                (found.end() + comma, is_quote(&bytes[..scheme]))
            }
            _ => {
                let slashes = bytes[..found.start()].iter().rev().take_while(|byte| **byte == b'\\').count();
                // `\/` is a digit of the run, a `\n` before it is not.
                let slashes = if bytes[found.start()] == b'/' { slashes } else { 0 };
                let start = found.start() - slashes;
                if text[found.range()] != *MARKS[mark] || goes_on(&bytes[..start]) {
                    continue;
                }
                (start, is_quote(&bytes[..start]))
            }
        };
        let (body, decoded) = Body::decoded(&bytes[start..], quoted);
        seen = start + body.end;
        let new = match decoded {
            Some((Some(format), data)) => match picture::clean(inspector, format, &data) {
                Some(clean) if clean == data => continue,
                Some(clean) => Some(STANDARD.encode(clean)),
                None => None,
            },
            Some((None, data)) if url => match String::from_utf8(data) {
                // The rules do not see everything that a reader of it would: broken lines, escapes, nested escapes.
                Ok(inner) if !inspector.has_findings(&inner) => {
                    match (depth < MAX_DEPTH).then(|| clean_at(inspector, &inner, depth + 1)).flatten() {
                        Some(inner) => Some(STANDARD.encode(inner)),
                        None => continue,
                    }
                }
                _ => None,
            },
            _ => None,
        };
        if new.is_none() && !url && body.digits.len() < LINE {
            continue;
        }
        inspector.report.withheld += u64::from(new.is_none());
        let empty = if url { "" } else { WITHHELD };
        out.push_str(&text[done..start]);
        out.push_str(new.as_deref().unwrap_or(empty));
        done = start + body.end;
        // Without the padding that was there, the text after it would read as more of it.
        let glued =
            bytes.get(done).is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte));
        if glued && new.is_some_and(|new| !new.ends_with('=')) {
            out.push(' ');
        }
        seen = done;
    }
    (done > 0).then(|| out + &text[done..])
}

/// Whether this is `data:image/png;` or the like, perhaps escaped: a colon, no end of a string, a semicolon last. A parameter
/// may have quotes of its own (`;name="a.png";`).
fn is_type(head: &[u8]) -> bool {
    let Some(rest) = head.get(MARKS[DATA].len()..).filter(|_| head.len() <= MAX_TYPE) else { return false };
    let last = rest.trim_ascii_end();
    let encoded = |end: &[u8]| [&b"%3b"[..], b"03b", b"x3b"].iter().any(|way| end.eq_ignore_ascii_case(way));
    let closes = last.ends_with(b";") || last.len() >= 3 && encoded(&last[last.len() - 3..]);
    let ends_string = |at: usize| {
        let before = rest[..at].iter().rev().find(|byte| **byte != b'\\');
        before != Some(&b'=') && rest.get(at + 1) != Some(&b';')
    };
    let ends = |(at, byte): (usize, &u8)| match byte {
        b'"' | b'\'' => ends_string(at),
        _ => b"<>\n`".contains(byte),
    };
    opens(rest) && closes && !rest.iter().enumerate().any(ends)
}

/// Whether this begins with a colon.
fn opens(rest: &[u8]) -> bool {
    sign_len(rest, ':', b"&colon;").is_some()
}

/// The length of a comma and the spaces before it.
fn comma(rest: &[u8]) -> Option<usize> {
    let blanks = rest.iter().take(64).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    sign_len(&rest[blanks..], ',', b"&comma;").map(|len| blanks + len)
}

/// The length of a sign at the beginning, perhaps escaped or as an entity.
fn sign_len(rest: &[u8], sign: char, entity: &[u8]) -> Option<usize> {
    let plain = [sign as u8];
    let named = [&plain[..], entity]
        .into_iter()
        .find(|way| rest.get(..way.len()).is_some_and(|start| start.eq_ignore_ascii_case(way)));
    let coded = || view::code(rest).filter(|(_, c)| *c == Some(sign)).map(|(len, _)| len);
    named.map(<[u8]>::len).or_else(coded)
}

/// Whether the text before opens a string, so that spaces inside belong to it.
fn is_quote(before: &[u8]) -> bool {
    let escaped: [&[u8]; 5] = [b"&quot;", b"&#34;", b"&#39;", b"%22", b"u0022"];
    matches!(before.last(), Some(b'"' | b'\'' | b'`' | b'('))
        || escaped.iter().any(|end| before.ends_with(end))
}

/// Whether a run of digits continues from the text before.
fn goes_on(before: &[u8]) -> bool {
    let escape = matches!(before, [.., b'\\', b'n' | b'r' | b't'] | [.., b'%', _, _]);
    before.last().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte)) && !escape
}

/// Base64 as it appears in a text.
struct Body {
    /// Its digits, in the standard alphabet.
    digits: Vec<u8>,
    /// Where in the text it ends.
    end: usize,
    /// Where it might end before that: how many digits, and where in the text.
    breaks: Vec<(usize, usize)>,
    /// Whether it ends here; otherwise there are more digits.
    ends: bool,
}

/// Decoded base64, and its format if it is a supported one.
type Decoded = Option<(Option<Format>, Vec<u8>)>;

enum Sign {
    Digit(u8),
    Padding,
    /// What breaks base64 into lines, and invisible characters.
    Blank,
    Other,
}

impl Body {
    /// Reads and decodes what begins here. Of many pictures in a row each is read to its own end and not to that of
    /// all: at most twice as much is read as is taken.
    fn decoded(text: &[u8], quoted: bool) -> (Self, Decoded) {
        let mut most = 256;
        loop {
            let mut body = Self::read(text, quoted, most);
            let decoded = body.decode();
            if body.ends {
                return (body, decoded);
            }
            let picture = matches!(decoded, Some((Some(Format::Png | Format::Jpeg), _)));
            most = if picture { most * 2 } else { usize::MAX };
        }
    }

    /// Reads up to this many digits.
    fn read(text: &[u8], quoted: bool, most: usize) -> Self {
        let mut body = Self { digits: Vec::new(), end: 0, breaks: Vec::new(), ends: true };
        let (mut at, mut padded) = (0, false);
        while at < text.len() {
            let (len, sign) = sign(&text[at..]);
            match sign {
                Sign::Digit(_) if padded => break,
                Sign::Digit(digit) => {
                    if at != body.end && !quoted && !body.goes_on_in(&text[at..]) {
                        break;
                    }
                    if body.digits.len() == most {
                        body.ends = false;
                        break;
                    }
                    if at != body.end && !body.digits.is_empty() {
                        body.breaks.push((body.digits.len(), body.end));
                    }
                    body.digits.push(digit);
                }
                Sign::Padding => padded = true,
                Sign::Blank => {
                    at += len;
                    continue;
                }
                Sign::Other => break,
            }
            at += len;
            body.end = at;
        }
        body
    }

    /// Whether the next line is more base64 rather than words.
    fn goes_on_in(&self, line: &[u8]) -> bool {
        let width = self.breaks.first().map_or(self.digits.len(), |(digits, _)| *digits);
        let next = line.iter().take(width.max(LINE) + 1).take_while(|byte| is_run(**byte)).count();
        if self.digits.is_empty() {
            return next >= LINE;
        }
        width >= LINE && next <= width && (next == width || line.get(next) != Some(&b' '))
    }

    /// Decodes it, without anything that follows a picture; and its format if it is a supported one.
    fn decode(&mut self) -> Decoded {
        // A single digit carries no whole byte.
        let whole = self.digits.len() - usize::from(self.digits.len() % 4 == 1);
        let mut data = LENIENT.decode(&self.digits[..whole]).ok()?;
        let format = Format::sniff(&data);
        if let Some(format) = format {
            let length = picture::length(format, &data);
            let cut = self.breaks.iter().find(|(digits, _)| digits * 3 / 4 >= length);
            if let Some(&(digits, end)) = cut {
                data.truncate(digits * 3 / 4);
                self.digits.truncate(digits);
                self.end = end;
                self.ends = true;
            }
        }
        Some((format, data))
    }
}

/// The base64 token at the start of a text: its length and what it is.
fn sign(text: &[u8]) -> (usize, Sign) {
    let plain = |byte: u8| match byte {
        b'-' => Sign::Digit(b'+'),
        b'_' => Sign::Digit(b'/'),
        b'+' | b'/' => Sign::Digit(byte),
        b'=' => Sign::Padding,
        _ if byte.is_ascii_alphanumeric() => Sign::Digit(byte),
        _ if byte.is_ascii_whitespace() => Sign::Blank,
        _ => Sign::Other,
    };
    match text[0] {
        b'\\' => {
            // Each level of nested strings adds a backslash.
            let slashes = text.iter().take_while(|byte| **byte == b'\\').count();
            match text.get(slashes) {
                Some(b'n' | b'r' | b't' | b'f' | b'\n' | b'\r') => (slashes + 1, Sign::Blank),
                Some(b'/') => (slashes + 1, Sign::Digit(b'/')),
                Some(b'u' | b'x') => match view::code(&text[slashes - 1..]) {
                    Some((len, code)) => (slashes - 1 + len, coded(code, plain)),
                    None => (slashes, Sign::Other),
                },
                _ => (slashes, Sign::Other),
            }
        }
        b'%' | b'&' | 0x80.. => match view::code(text) {
            Some((len, code)) => (len, coded(code, plain)),
            None => (1, Sign::Other),
        },
        byte => (1, plain(byte)),
    }
}

fn coded(code: Option<char>, plain: impl Fn(u8) -> Sign) -> Sign {
    match code.map(u8::try_from) {
        None => Sign::Blank,
        Some(Ok(byte)) => plain(byte),
        Some(Err(_)) => Sign::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::guard::picture::MAX_INFLATED;
    use crate::guard::picture::tests::{document, png_with_text};

    fn cleaned(text: &str) -> Option<(String, u64)> {
        let guard = Guard::default();
        let mut report = guard.report();
        let inspector =
            &mut Inspector { guard: &guard, left: &mut MAX_INFLATED.clone(), report: &mut report };
        clean(inspector, text).map(|clean| (clean, report.withheld))
    }

    /// The picture in base64, without its text.
    fn without_text() -> String {
        let guard = Guard::default();
        let inspector =
            &mut Inspector { guard: &guard, left: &mut MAX_INFLATED.clone(), report: &mut guard.report() };
        picture::strip(inspector, Format::Png, &STANDARD.encode(png_with_text())).unwrap()
    }

    #[test]
    fn a_picture_is_cleaned_however_its_url_is_written() {
        let (run, clean) = (STANDARD.encode(png_with_text()), without_text());
        let lines = |feed: &str| {
            let lines: Vec<_> =
                run.as_bytes().chunks(40).map(|line| std::str::from_utf8(line).unwrap()).collect();
            lines.join(feed)
        };
        let percent: String = run.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let head = "<img src=\"data:image/png;base64,";
        for (head, body) in [
            (head, run.clone()),
            ("<img src=\"DATA:IMAGE/PNG;BASE64,", run.clone()),
            ("<img src='data:image/png;charset=utf-8;base64,", run.clone()),
            ("<img src='data:image/png; base64 ,", run.clone()),
            ("<img src='data:image/png;name=a file.png;base64,", run.clone()),
            ("<img src='data&#58;image/png;base64&#44;", run.clone()),
            ("url(data%3Aimage/png%3Bbase64%2C", run.clone()),
            (r#"{"src": "data:image\/png;base64,"#, run.replace('/', r"\/")),
            (r#""{\"src\": \"data:image\\\/png;base64,"#, run.replace('/', r"\\\/")),
            (r#"{"src": "\u0064ata:image/png;base64,"#, run.clone()),
            (head, lines("\n")),
            (head, lines("\r\n   ")),
            (head, lines(" ")),
            (head, lines(r"\n")),
            (head, lines(r"\\n")),
            (head, lines("&#10;")),
            (head, lines("%0A")),
            (head, lines("\\\n")),
            (head, lines("\u{200b}")),
            (head, format!("\n{run}")),
            (head, run.replace('A', "\tA")),
            (head, run.replace('A', "%41")),
            (head, percent),
            (head, run.replace('/', "&#47;").replace('+', "&#x2B;")),
            (head, run.replace('/', r"\u002f").replace('+', r"\u002B")),
            (head, run.replace('/', "_").replace('+', "-")),
            // Not in a URL at all: as notebooks and scripts have it.
            (r#"{"image/png": ""#, lines(r"\n") + r"\n"),
            ("var picture = '", run.clone()),
            ("---\n", lines("\n")),
            ("src: data:image/png;base64,", lines("\n")),
        ] {
            let text = format!("{head}{body}\"> and the rest");
            let (out, withheld) = cleaned(&text).unwrap_or_else(|| panic!("{text}"));
            assert!(out.contains(&clean) && out.ends_with("\"> and the rest"), "{text} became {out}");
            assert_eq!((out.starts_with(head), withheld), (true, 0), "{text} became {out}");
            assert_eq!(cleaned(&out), None, "{out} is changed again");
        }
    }

    #[test]
    fn text_after_a_picture_stays() {
        let (run, clean) = (STANDARD.encode(png_with_text()), without_text());
        for tail in
            ["\nwords\n", "\nNext line, with words", " and more", "\n", ")\n![](b.png)", "\\n\"}", "\nAAAA"]
        {
            for head in ["x: ", "![](data:image/png;base64,", "\"data:image/png;base64,"] {
                let (out, _) = cleaned(&format!("{head}{run}{tail}")).unwrap();
                assert_eq!(out, format!("{head}{clean}{tail}"));
            }
        }
    }

    #[test]
    fn each_of_many_pictures_in_one_string_is_cleaned() {
        let (run, clean) = (STANDARD.encode(png_with_text()), without_text());
        // No padding says that the first has ended.
        assert!(!clean.ends_with('='));
        for (head, feed) in [("x = '", "\n"), (r#"{"a": ""#, r"\n"), ("", "\n")] {
            let text = format!("{head}{clean}{feed}{run}");
            assert_eq!(cleaned(&text), Some((format!("{head}{clean}{feed}{clean}"), 0)), "{text}");
        }
        // In linear time.
        let many = |picture: &str| format!("'{}'", vec![picture; 30_000].join("\n"));
        assert!(cleaned(&many(&clean)).is_none());
        assert_eq!(cleaned(&many(&run)).unwrap().0.matches(&clean).count(), 30_000);
    }

    #[test]
    fn the_word_data_within_a_type_hides_no_url() {
        let opaque = STANDARD.encode([0xfe; 60]);
        for head in [
            "data:application/x-data;base64,",
            "data:image/webp;name=data.webp;base64,",
            "data:application/vnd.oasis.opendocument.database;base64,",
            "data:image/webp;a=data:;base64,",
            "data%3Aapplication/x-data%3Bbase64%2C",
            "data:application/zip;name=\"a.zip\";base64,",
            r#"data:application/zip;name=\"a, b.zip\";base64,"#,
        ] {
            let html = |body: &str| format!("<a href='{head}{body}'>");
            assert_eq!(cleaned(&html(&opaque)), Some((html(""), 1)), "{head}");
        }
    }

    #[test]
    fn text_with_findings_is_left_out_in_any_encoding() {
        for (text, passes) in [
            ("ask the office", true),
            ("спросите в конторе", true),
            ("ask bob@example.com", false),
            ("ask bob&#64;example.com", false),
            ("спросите у bob@example.com", false),
            ("\u{feff}ask bob@example.com", false),
        ] {
            let html = |body: &str| format!("<iframe src=\"data:text/html;charset=utf-8;base64,{body}\">");
            let whole = html(&STANDARD.encode(text));
            assert_eq!(cleaned(&whole), (!passes).then(|| (html(""), 1)), "{text}");
        }
    }

    #[test]
    fn content_that_is_neither_picture_nor_text_is_left_out() {
        let opaque = STANDARD.encode([0xfe; 60]);
        let bare = STANDARD.encode(document(b"ask bob@example.com"));
        let bare = bare.trim_end_matches('=');
        let broken = STANDARD.encode(&png_with_text()[..60]);
        let secret = STANDARD.encode("the address of Bob is bob@example.com");
        let secret = format!("{}\\n{}", &secret[..22], &secret[22..]);
        let nested = STANDARD.encode(format!("<image href='data:application/zip;base64,{opaque}'>"));
        let emptied = STANDARD.encode("<image href='data:application/zip;base64,'>");
        for (body, left) in
            [(&*opaque, ""), (bare, ""), (&broken, ""), ("iVBOR", ""), (&secret, ""), (&nested, &*emptied)]
        {
            let html = |body: &str| format!("<a href='data:application/zip;Base64,{body}'>");
            assert_eq!(cleaned(&html(body)), Some((html(left), 1)), "{body}");
        }
        assert_eq!(cleaned(&format!("x = '{broken}'")), Some(("x = '[WITHHELD]'".to_owned(), 1)));
        let slashes = format!(r#"{{"a": "\/9j\/{opaque}"}}"#);
        assert_eq!(cleaned(&slashes), Some((r#"{"a": "[WITHHELD]"}"#.to_owned(), 1)));
    }

    #[test]
    fn clean_content_is_unchanged_byte_for_byte() {
        let clean = without_text();
        let (first, second) = clean.split_at(40);
        for text in [
            "no url",
            "data:image/png;base64,",
            "data:text/plain;base64,aGVsbG8gd29ybGQ=",
            "data:text/plain;base64,aGVsbG8g\nd29ybGQ=",
            "x;base64,iVBORw0KGgo",
            "a PNG in base64 begins with iVBORw0KGgo, a JPEG with /9j/, a PDF with JVBERi0",
            "the data is in base64, which is not a picture",
            "data: in base64, of course; base64, I said",
            "https://example.com/9j/abc/data/JVBERi0",
            r#"{"data": "x;", "as": "base64,iVBORw0KGgo"}"#,
            &format!("<img src='data:image/png;base64,{clean}'>"),
            &format!("<img src='data:image/png;base64,{first}\n{second}'>"),
        ] {
            assert_eq!(cleaned(text), None, "{text}");
        }
    }

    #[test]
    fn many_beginnings_are_read_once() {
        let marks = "/9j/ iVBORw0KGgo JVBERi0 ".repeat(40_000);
        let (out, withheld) = cleaned(&format!("\"{marks}\"")).unwrap();
        assert_eq!((out.as_str(), withheld), ("\"[WITHHELD] \"", 1));
    }
}
