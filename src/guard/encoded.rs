//! Runs of base64 and hexadecimal digits that are text: decoded, and looked at like any other.

/// The longest run that is decoded.
const MAX: usize = 16 * 1024;

/// The text behind a run; nothing when it is random, a hash, or a word.
pub(super) fn decode(run: &[u8]) -> Option<Vec<u8>> {
    let run = &run[..run.len().min(MAX)];
    hex(run).or_else(|| base64(run))
}

fn hex(run: &[u8]) -> Option<Vec<u8>> {
    if run.len() % 2 == 1 || !run.iter().take(8).all(u8::is_ascii_hexdigit) {
        return None;
    }
    let (pairs, _) = run.as_chunks::<2>();
    let mut out = Vec::new();
    for [a, b] in pairs {
        let byte = char::from(*a).to_digit(16)? << 4 | char::from(*b).to_digit(16)?;
        out.push(byte as u8);
        if out.len() == 6 && !readable(&out) {
            return None;
        }
    }
    finish(out)
}

fn base64(run: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let (mut bits, mut have) = (0u32, 0);
    for byte in run {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            b'=' => break,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        have += 6;
        if have >= 8 {
            have -= 8;
            out.push((bits >> have) as u8);
            bits &= (1 << have) - 1;
            // Random bytes are out after the first six, eight times in nine even after two.
            if out.len() == 6 && !readable(&out) {
                return None;
            }
        }
    }
    finish(out)
}

/// Whether bytes can be text: printable, white space, or the zeros of UTF-16.
fn readable(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| !matches!(byte, 1..=8 | 11 | 12 | 14..=31 | 127))
        && bytes.iter().filter(|byte| byte.is_ascii_graphic()).count() * 2 >= bytes.len().min(6)
        && bytes.iter().filter(|byte| **byte >= 0x80).count() * 3 <= bytes.len()
}

fn finish(mut out: Vec<u8>) -> Option<Vec<u8>> {
    out.retain(|byte| *byte != 0);
    let bad = out.iter().filter(|byte| !matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..0x7f)).count();
    (out.len() >= 8 && bad * 8 <= out.len()).then_some(out)
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
