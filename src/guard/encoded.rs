//! Runs of base64 and hexadecimal digits that are text: decoded, and looked at like any other.

use super::classes::alphanumeric_or;

/// The longest run that is decoded.
const MAX: usize = 16 * 1024;

/// Whether a byte can be of a run that hides text: base64, base64url, hexadecimal digits.
pub(super) fn is_run(byte: u8) -> bool {
    static RUN: [bool; 256] = alphanumeric_or(b"+/-_=");
    RUN[usize::from(byte)]
}

/// The text behind a run; nothing when it is random, a hash, or a word.
pub(super) fn decode(run: &[u8]) -> Option<Vec<u8>> {
    let run = &run[..run.len().min(MAX)];
    hex(run).or_else(|| base64(run))
}

/// How many bytes are looked at before the rest is decoded: random bytes are out by then.
const FIRST: usize = 6;
/// No shorter text is looked for.
const SHORTEST: usize = 8;

fn hex(run: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = run.as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |[a, b]: &[u8; 2]| Some((digit(*a)? << 4 | digit(*b)?) as u8);
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

/// The value of a base64 digit of either alphabet; more than 63 for what is none.
static BASE64: [u8; 256] = {
    let mut values = [0xff; 256];
    let mut at = 0;
    while at < 64 {
        values[b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[at] as usize] = at as u8;
        at += 1;
    }
    (values[b'-' as usize], values[b'_' as usize]) = (62, 63);
    values
};

fn base64(run: &[u8]) -> Option<Vec<u8>> {
    let run = &run[..memchr::memchr(b'=', run).unwrap_or(run.len())];
    if run.len() * 3 / 4 < SHORTEST {
        return None;
    }
    let value = |byte: &u8| u64::from(BASE64[usize::from(*byte)]);
    if run[..8].iter().any(|byte| value(byte) > 63) {
        return None;
    }
    let first = run[..8].iter().fold(0, |bits, byte| bits << 6 | value(byte)).to_be_bytes();
    if !readable(&first[2..]) || run.iter().any(|byte| value(byte) > 63) {
        return None;
    }
    let decoded = run.chunks(4).flat_map(|four| {
        let bits = four.iter().fold(0, |bits, byte| bits << 6 | value(byte)) << (6 * (4 - four.len()));
        let [.., a, b, c] = bits.to_be_bytes();
        [a, b, c].into_iter().take(four.len() * 3 / 4)
    });
    finish(decoded.collect())
}

/// Whether the first bytes can be of a text: printable, white space, or the zeros of UTF-16.
fn readable(bytes: &[u8]) -> bool {
    let (mut bad, mut printed, mut high) = (false, 0, 0);
    for byte in bytes {
        bad |= matches!(byte, 1..=8 | 11 | 12 | 14..=31 | 127);
        printed += usize::from(byte.is_ascii_graphic());
        high += usize::from(*byte >= 0x80);
    }
    !bad && printed * 2 >= bytes.len() && high * 3 <= bytes.len()
}

fn finish(mut out: Vec<u8>) -> Option<Vec<u8>> {
    out.retain(|byte| *byte != 0);
    let bad = out.iter().filter(|byte| !matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..0x7f)).count();
    (out.len() >= SHORTEST && bad * 8 <= out.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
