//! Text made of words, however they are joined: identifiers, types, paths, names of modules.
//!
//! Random text differs from it by its pairs of letters: `qz` and `xk` are rare in every language that is written in
//! Latin letters, and one pair in two of random text is rare. So no list of words is needed.

/// How common a letter (row) before another (column) is, from 0 to 9: logarithms of the pair's frequency in words
/// of English, German, French, Spanish, Italian, Dutch, Polish and Portuguese prose and in identifiers of programs.
const PAIRS: &[u8; 26 * 27] = include_bytes!("../rules/letter_pairs.txt");
/// The mean from which a text counts as natural language, in hundredths: words have 6.5 and more, random text 2.7, and one
/// random text of 24 characters in a thousand reaches this.
const NATURAL: usize = 575;
/// The fewest pairs that allow a decision.
const ENOUGH: usize = 8;
/// The most bytes that are examined.
const MAX_LEN: usize = 256;

/// Whether most of a text is words. A text that is too short never is.
pub(in super::super) fn is_natural_language(text: &[u8]) -> bool {
    let text = &text[..text.len().min(MAX_LEN)];
    let (mut sum, mut pairs) = (0, 0);
    for pair in text.windows(2) {
        let [a, b] = [pair[0], pair[1]];
        // `aB` is where one word ends and the next begins.
        if !a.is_ascii_alphabetic()
            || !b.is_ascii_alphabetic()
            || a.is_ascii_lowercase() && b.is_ascii_uppercase()
        {
            continue;
        }
        let [row, column] = [a, b].map(|letter| usize::from(letter.to_ascii_lowercase() - b'a'));
        sum += usize::from(PAIRS[27 * row + column] - b'0');
        pairs += 1;
    }
    let count = |test: fn(&u8) -> bool| text.iter().filter(|byte| test(byte)).count();
    let (letters, digits) = (count(u8::is_ascii_alphabetic), count(u8::is_ascii_digit));
    // Hexadecimal digits make pairs that words have too.
    let beyond_hex = letters + digits - count(u8::is_ascii_hexdigit);
    pairs >= ENOUGH && sum * 100 >= NATURAL * pairs && digits <= letters && beyond_hex * 3 >= letters
}

/// Whether a text is a path: directories, then a file with any name.
pub(super) fn is_path(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b'/');
    let _file = parts.next_back();
    let (mut directories, mut named) = (0, 0);
    for part in parts {
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte);
        if !part.iter().all(plain) {
            return false;
        }
        directories += 1;
        named += usize::from(part.len() >= 4 && part.iter().all(u8::is_ascii_lowercase));
    }
    named > 0 && (directories > 1 || named == directories)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_differ_from_random_text() {
        for text in [
            "googlecloudsdk.command_lib.functions.v2",
            "V1CSIPersistentVolumeSource",
            "EnhancerBySpringCGLIB",
            "X509KeyUsageFlags",
            "annotations_pb2.DESCRIPTOR",
            "goog-reserved-file-mtime",
            "to-pillar-two-3f9d2c1b7e6a",
            "VerteilungsschluesselNachKoepfen2026",
        ] {
            assert!(is_natural_language(text.as_bytes()), "{text}");
        }
        for text in [
            "lucWJjEhlxZW01cXI3YmVlcYnpxNGhzk",
            "8gNfF2fD1qL6y8pZ9p3vY0",
            "3ax6xnjp29jd6fds4gc373sgvjxteol0x",
            "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms",
            "37ea63d540fd27274cad6585082c91b1283f963d",
            "xqjzkwvbqhtplmzx",
            "deadbeefcafe0123adedfacebeadfeed",
            "shippo_test_600bbb827c8c8257d239f7730f388ac687a0e8ca",
            "token",
            "",
        ] {
            assert!(!is_natural_language(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_path_has_directories_that_are_named() {
        for text in [
            "exports/2026/11/7f83b1657ff1fc53b92dc18148a1d65d.parquet",
            "rates/ie/2026",
            "appengine/proto/x.proto",
        ] {
            assert!(is_path(text.as_bytes()), "{text}");
        }
        for text in ["7f83b1657ff1fc53", "aB3d/x9Kd82hfLqT4", "ab/x9Kd82hfLqT4", "/x9Kd82hfLqT4", ""] {
            assert!(!is_path(text.as_bytes()), "{text}");
        }
    }
}
