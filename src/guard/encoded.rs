//! Runs of base64, base32 and hexadecimal digits that encode text, and lists of its bytes: decoded and scanned like any other
//! text.

use super::classes::alphanumeric_or;

/// The longest run that is decoded.
const MAX: usize = 16 * 1024;

/// Whether a byte can be part of a run that hides text: base64, base64url, hexadecimal digits.
pub(super) fn is_run(byte: u8) -> bool {
    static RUN: [bool; 256] = alphanumeric_or(b"+/-_=");
    RUN[usize::from(byte)]
}

/// The decoded text of a run; `None` when it is random, a hash, or a word.
pub(super) fn decode(run: &[u8]) -> Option<Vec<u8>> {
    let run = &run[..run.len().min(MAX)];
    // `0x616c...`, and `\x616c...` after its backslash.
    let bare = run.strip_prefix(b"0x").or(run.strip_prefix(b"x")).unwrap_or(run);
    hex(bare).or_else(|| digits(run, 6, &BASE64)).or_else(|| digits(run, 5, &BASE32))
}

/// What is listed, and where the list ends.
pub(super) type Listed = (Vec<u8>, usize);

/// The text whose bytes are listed as pairs of hexadecimal digits: `49 45 35`, `49:45:35`.
pub(super) fn listed_pairs(list: &[u8]) -> Option<Listed> {
    listed(list, |item| match item {
        [high, low, rest @ ..] if !rest.first().is_some_and(u8::is_ascii_alphanumeric) => {
            Some((byte(&[*high, *low])?, 2))
        }
        _ => None,
    })
}

/// The text whose bytes are listed as numbers: `115, 97`, `115  97`, `0x73, 0x61`.
pub(super) fn listed_numbers(list: &[u8]) -> Option<Listed> {
    listed(list, |item| {
        if let [b'0', b'x' | b'X', high, low, ..] = item {
            return Some((byte(&[*high, *low])?, 4));
        }
        let len = item.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
        let value = item[..len].iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
        (len > 0).then_some((u8::try_from(value).ok()?, len))
    })
}

/// The text whose bytes are listed with a comma or colon or up to three spaces between.
fn listed(list: &[u8], item: impl Fn(&[u8]) -> Option<(u8, usize)>) -> Option<Listed> {
    let (mut bytes, mut at, mut end) = (Vec::new(), 0, 0);
    while let Some((byte, len)) = item(&list[at..]).filter(|_| bytes.len() < MAX) {
        bytes.push(byte);
        if bytes.len() == FIRST && !readable(&bytes) {
            return None;
        }
        end = at + len;
        let comma = usize::from(matches!(list.get(end), Some(b',' | b':')));
        let blanks = list[end + comma..].iter().take(3).take_while(|byte| **byte == b' ').count();
        if comma + blanks == 0 {
            break;
        }
        at = end + comma + blanks;
    }
    Some((finish(bytes)?, end))
}

/// How many bytes are checked before the rest is decoded: random bytes fail by then.
const FIRST: usize = 6;
/// Shorter texts are not looked for.
const SHORTEST: usize = 8;
/// The fewest digits that must be left of a run that is split.
pub(super) const SHORTEST_PART: usize = 16;

/// The byte of two hexadecimal digits.
fn byte(pair: &[u8; 2]) -> Option<u8> {
    let [high, low] = pair.map(|digit| HEX[usize::from(digit)]);
    (high | low < 16).then_some(high << 4 | low)
}

fn hex(run: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = run.as_chunks::<2>() else { return None };
    if pairs.len() < SHORTEST {
        return None;
    }
    let mut first = [0; FIRST];
    for (to, pair) in first.iter_mut().zip(pairs) {
        *to = byte(pair)?;
    }
    if !readable(&first) {
        return None;
    }
    finish(pairs.iter().map(byte).collect::<Option<_>>()?)
}

/// The value of a hexadecimal digit; more than 15 for any other byte.
static HEX: [u8; 256] = {
    let mut values = [0xf0; 256];
    let mut at = 0;
    while at < 16 {
        values[b"0123456789abcdef"[at] as usize] = at as u8;
        values[b"0123456789ABCDEF"[at] as usize] = at as u8;
        at += 1;
    }
    values
};

/// The value of a base64 digit of either alphabet; more than 63 for what is none.
static BASE64: [u8; 256] = {
    let mut values = values(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    (values[b'-' as usize], values[b'_' as usize]) = (62, 63);
    values
};

/// The value of a base32 digit (RFC 4648, section 6); more than 31 for what is none.
static BASE32: [u8; 256] = values(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567");

/// The place of each digit of an alphabet; 255 for other bytes.
const fn values(alphabet: &[u8]) -> [u8; 256] {
    let mut values = [0xff; 256];
    let mut at = 0;
    while at < alphabet.len() {
        values[alphabet[at] as usize] = at as u8;
        at += 1;
    }
    values
}

/// The text behind digits of `width` bits each, up to a padding.
fn digits(run: &[u8], width: usize, values: &[u8; 256]) -> Option<Vec<u8>> {
    let value = |byte: &u8| u64::from(values[usize::from(*byte)]);
    let is_other = |byte: &u8| value(byte) >> width != 0;
    // Eight digits are `width` bytes.
    let bits = |eight: &[u8]| eight.iter().fold(0, |bits, byte| bits << width | value(byte));
    let begin = run.first_chunk::<8>()?;
    if begin.iter().any(is_other) || !readable(&bits(begin).to_be_bytes()[8 - width..]) {
        return None;
    }
    let run = &run[..memchr::memchr(b'=', run).unwrap_or(run.len())];
    if run.len() * width / 8 < SHORTEST || run.iter().any(is_other) {
        return None;
    }
    let decoded = run.chunks(8).flat_map(|eight| {
        let bytes = (bits(eight) << (width * (8 - eight.len()))).to_be_bytes();
        bytes.into_iter().skip(8 - width).take(eight.len() * width / 8)
    });
    finish(decoded.collect())
}

const UTF8: &[u8] = b"\xef\xbb\xbf";
const UTF16_BE: &[u8] = b"\xfe\xff";
const UTF16_LE: &[u8] = b"\xff\xfe";

/// Whether the first bytes can be text: printable, white space, the zeros of UTF-16, UTF-8 in any script.
fn readable(bytes: &[u8]) -> bool {
    if matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        return true;
    }
    let sorts = bytes.iter().fold(0, |sorts, byte| sorts + SORTS[usize::from(*byte)]);
    let [bad, printed, high] = [0, 8, 16].map(|field| (sorts >> field & 0xff) as usize);
    if bad > 0 || high <= 1 {
        return bad == 0 && printed * 2 >= bytes.len();
    }
    // UTF-8, in which each byte of a character is high; the last one may be cut.
    let tail = |byte: u8| byte & 0xc0 == 0x80;
    let apart = |pair: &[u8]| pair[0] >= 0xc0 && !tail(pair[1]) || pair[0] < 0x80 && tail(pair[1]);
    !tail(bytes[0])
        && !bytes.windows(2).any(apart)
        && std::str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true)
}

/// What each byte adds to the counts of control characters other than zero, printable ones and high ones, in eight bits each.
static SORTS: [u32; 256] = {
    let mut sorts = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        sorts[at] = (byte != 0 && is_control(byte)) as u32
            | (byte.is_ascii_graphic() as u32) << 8
            | ((byte >= 0x80) as u32) << 16;
        at += 1;
    }
    sorts
};

const fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && !matches!(byte, b'\t' | b'\n' | b'\r')
}

fn finish(mut out: Vec<u8>) -> Option<Vec<u8>> {
    let units = |of: fn([u8; 2]) -> u16| {
        let (pairs, _) = out[2..].as_chunks::<2>();
        let units = pairs.iter().map(|pair| of(*pair));
        char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect::<String>()
    };
    if out.starts_with(UTF16_LE) {
        out = units(u16::from_le_bytes).into_bytes();
    } else if out.starts_with(UTF16_BE) {
        out = units(u16::from_be_bytes).into_bytes();
    } else if out.starts_with(UTF8) {
        out.drain(..UTF8.len());
    }
    out.retain(|byte| *byte != 0);
    let mut bad = 0;
    let mut seen = 0;
    for chunk in out.utf8_chunks() {
        seen += chunk.valid().len() + chunk.invalid().len();
        bad += chunk.valid().bytes().filter(|byte| is_control(*byte)).count() + chunk.invalid().len();
        // Noise is rejected early.
        if bad > 8 + seen / 8 {
            return None;
        }
    }
    (out.len() >= SHORTEST && bad * 8 <= out.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Guard, Known, Numbering, Policy};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn text_comes_back_and_noise_does_not() {
        assert_eq!(decode(b"YWxpY2VAZXhhbXBsZS5jb20=").unwrap(), b"alice@example.com");
        assert_eq!(decode(b"616c696365406578616d706c652e636f6d").unwrap(), b"alice@example.com");
        assert_eq!(decode(b"YQBsAGkAYwBlAEAAeAAuAGkAZQA=").unwrap(), b"alice@x.ie");
        for noise in [
            "37ea63d540fd27274cad6585082c91b1283f963d",
            "internationalisation",
            "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
        ] {
            assert_eq!(decode(noise.as_bytes()), None, "{noise}");
        }
    }

    fn guarded(text: &str) -> String {
        Guard::default().text(text, &mut Numbering::alone()).0.to_string()
    }

    fn base64(bytes: impl AsRef<[u8]>) -> String {
        STANDARD.encode(bytes)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn text_in_any_script_is_decoded() {
        let utf16 =
            |text: &str, of: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(of).collect::<Vec<u8>>();
        for text in [
            "привет alice@example.com",
            "連絡先はこちら alice@example.com",
            "à l’été, écrivez: alice@example.com",
        ] {
            let marked = format!("\u{feff}{text}");
            let forms = [
                text.as_bytes().to_vec(),
                marked.as_bytes().to_vec(),
                utf16(&marked, u16::to_le_bytes),
                utf16(&marked, u16::to_be_bytes),
            ];
            for bytes in forms {
                assert_eq!(guarded(&base64(&bytes)), "[EMAIL_1]", "{text}");
                assert_eq!(guarded(&hex(&bytes).to_uppercase()), "[EMAIL_1]", "{text}");
            }
        }
        assert_eq!(
            decode(&[b"FEFF0061006C006900630065", &b"00400078002E00690065"[..]].concat()).unwrap(),
            b"alice@x.ie"
        );
    }

    #[test]
    fn a_run_is_decoded_whatever_it_is_joined_to() {
        for (text, left) in [
            ("https://x.io/unsubscribe/{}", "https://x.io/unsubscribe/[EMAIL_1]"),
            ("https://x.io/unsubscribe/{}/edit", "https://x.io/unsubscribe/[EMAIL_1]/edit"),
            ("id_{}.txt", "id_[EMAIL_1].txt"),
            ("user-{}", "user-[EMAIL_1]"),
        ] {
            for run in [base64("alice@example.com"), base64("alice@example.com!"), hex(b"alice@example.com")]
            {
                assert_eq!(guarded(&text.replace("{}", &run)), left);
            }
        }
        let signed = format!("{}.YsT8fw.abc", base64("alice@example.com!"));
        assert_eq!(guarded(&signed), "[EMAIL_1].YsT8fw.abc");
        assert_eq!(guarded(&format!("0x{}", hex(b"alice@example.com"))), "[EMAIL_1]");
        assert_eq!(guarded(&format!("\\x{}", hex(b"alice@example.com"))), "\\x[EMAIL_1]");
    }

    #[test]
    fn bytes_that_are_listed_or_escaped_are_decoded() {
        let each = |form: fn(u8) -> String, sign: &str| {
            b"alice@example.com".iter().map(|byte| form(*byte)).collect::<Vec<_>>().join(sign)
        };
        for (text, left) in [
            (format!("x = {} y", each(|byte| format!("{byte:02x}"), " ")), "x = [EMAIL_1] y"),
            (format!("00000000  {}\n", each(|byte| format!("{byte:02X}"), " ")), "00000000  [EMAIL_1]\n"),
            (format!("digest {}", each(|byte| format!("{byte:02x}"), ":")), "digest [EMAIL_1]"),
            (format!("[{}]", each(|byte| byte.to_string(), ", ")), "[[EMAIL_1]]"),
            (format!("[{}]", each(|byte| format!("0x{byte:02x}"), ", ")), "[[EMAIL_1]]"),
            (format!("[{}]", each(|byte| format!("{byte:>3}"), " ")), "[ [EMAIL_1]]"),
            (format!("id {}", each(|byte| format!("\\{byte:03o}"), "")), "id [EMAIL_1]"),
            ("MFWGSY3FIBSXQYLNOBWGKLTDN5WQ====".to_owned(), "[EMAIL_1]"),
        ] {
            assert_eq!(guarded(&text), left, "{text}");
        }
        for text in [
            "12 45 67 23 89 10 55 31 44 62 17 20",
            "[115, 97, 115, 107, 105, 97, 119, 97, 108]",
            "[[1,2],[3,4]] INTERNATIONALIZATION",
            r"\100 \1",
        ] {
            assert_eq!(guarded(text), text);
        }
    }

    #[test]
    fn nested_encodings_are_decoded() {
        for text in [
            "alice%40example.com",
            r#"{"to": "alice\u0040example.com"}"#,
            "ａｌｉｃｅ@example.com",
            "ali\u{200b}ce@example.com",
        ] {
            assert_eq!(guarded(&base64(text)), "[EMAIL_1]", "{text}");
            assert_eq!(guarded(&base64(base64("alice@example.com"))), "[EMAIL_1]");
        }
        for text in [
            "alice%2540example.com",
            r"alice\\u0040example.com",
            "alice&amp;#64;example.com",
            "alice%26%2364%3Bexample.com",
            "%61lice%5Cu0040example.com",
        ] {
            assert_eq!(guarded(text), "[EMAIL_1]");
        }
    }

    #[test]
    fn a_known_secret_is_found_in_what_a_run_hides() {
        let secret = "correct-horse/battery";
        let guard = Guard::knowing(Policy::default(), &Known::new([secret])).unwrap();
        let utf16: Vec<u8> = secret.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for text in [
            base64(&utf16),
            hex(&utf16),
            base64(base64(secret)),
            base64(format!("run {}", hex(secret.as_bytes()))),
        ] {
            assert_eq!(*guard.text(&text, &mut Numbering::alone()).0, "[KNOWN_SECRET_1]", "{text}");
        }
    }
}
