//! Texts in place of a value: templates, masks, words, code.
//!
//! Each check covers the whole text. A check of only the beginning or the end would let through every secret that
//! begins or ends so: `**` before it, `<` and `>` around it, `config.` in front.

use super::is_word;
use super::name::NAMES;
use super::natural_language::is_natural_language;
use super::token::{Shape, shape_of};
use crate::guard::rule::pattern;
use crate::guard::words::WORDS;

/// The literal in `${NAME:-literal}`: a default is a value.
pub(super) fn shell_default(text: &[u8]) -> Option<(usize, usize)> {
    let whole = Some(text).filter(|text| text.starts_with(b"${"))?;
    let literal = pattern!(r"(?s)^\$\{\w+:?[-=](.+)\}$").captures(whole)?.get(1)?;
    Some((literal.start(), literal.end()))
}

/// What [`mask`](crate::guard::redact) can leave: stars first, and no more letters and digits than stars, at most
/// eight.
pub(super) fn is_mask(text: &[u8]) -> bool {
    if memchr::memchr(b'*', text).is_none() {
        return false;
    }
    let text = String::from_utf8_lossy(text);
    let stars = text.chars().filter(|c| *c == '*').count();
    let kept = text.chars().filter(|c| c.is_alphanumeric()).count();
    let starred = text.chars().find(|c| *c == '*' || c.is_alphanumeric()) == Some('*');
    starred && kept <= stars.min(8) && stars >= 2
}

/// Whether a text is made of words as in names, joined by `joints`: no part of it mixes letters and digits as
/// secrets do.
pub(super) fn is_names(text: &[u8], joints: &[u8]) -> bool {
    let plain = |part: &[u8]| {
        let letters = part.iter().take_while(|byte| byte.is_ascii_alphabetic() || **byte >= 0x80).count();
        let digits = part[letters..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        letters + digits == part.len()
            && digits <= if letters == 0 { 4 } else { 2 }
            && !(part.len() >= 16 && shape_of(part) == Shape::Random)
    };
    text.split(|byte| joints.contains(byte)).all(|part| {
        plain(part) || around_algorithm(part).is_some_and(|(before, after)| plain(before) && plain(after))
    })
}

/// The text around the name of an algorithm that has digits in it: `base64FromBytes`, `Ed25519PrivateKey`.
pub(super) fn around_algorithm(part: &[u8]) -> Option<(&[u8], &[u8])> {
    if part.len() > 64 || !part.iter().any(u8::is_ascii_digit) {
        return None;
    }
    WORDS.list.algorithms.iter().find_map(|name| {
        let at = part.windows(name.len()).position(|word| word.eq_ignore_ascii_case(name.as_bytes()))?;
        Some((&part[..at], &part[at + name.len()..]))
    })
}

/// Whether at least half of a text is fields to fill in (`{name}`, `#name#`) or spelled-out characters (`&lt;`, `\x1b`),
/// and the rest is words.
pub(super) fn is_filled(text: &[u8]) -> bool {
    let place = pattern!(concat!(
        r"\{([^}]{1,46})\}|#([^#]{1,46})#|&(?:#[0-9A-Fa-f]*|lt|gt|amp|quot|apos|nbsp);",
        r#"|\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[nrt"'])"#
    ));
    let named = |field: regex::bytes::Match<'_>| is_names(field.as_bytes(), b"_.()[]!:'\"$ ,+-");
    let (mut at, mut left) = (0, Vec::new());
    while let Some(found) = place.captures_at(text, at) {
        let whole = found.get(0).map_or(at..at, |whole| whole.range());
        let fills = found.iter().skip(1).flatten().all(named);
        let end = if fills { whole.end } else { whole.start + 1 };
        left.extend_from_slice(&text[at..if fills { whole.start } else { end }]);
        left.extend(fills.then_some(b' '));
        at = end;
    }
    left.extend_from_slice(&text[at..]);
    let kept = left.iter().filter(|byte| **byte != b' ').count();
    kept * 2 <= text.len() && kept < text.len() && is_names(&left, b"_-.:/ |,=?")
}

/// A value without the spaces around it, an escaped line end (`%s\\n`) and the end of a function head.
pub(super) fn trimmed(value: &[u8]) -> &[u8] {
    let mut value = value.trim_ascii();
    while let [rest @ .., b'\\', b'n' | b'r' | b't'] = value {
        value = rest;
    }
    // `def f(key, password=None):`
    value.strip_suffix(b"):").unwrap_or(value)
}

/// Whether a word of a text is a word for a password or a key, as a label in a form or a message catalogue: `Passwort`,
/// `Mot de passe`, `API-Schlüssel`.
pub(super) fn names_itself(text: &[u8]) -> bool {
    let context = |word: &[u8]| {
        let word = word.strip_suffix(b"?").or(word.strip_suffix(b":")).unwrap_or(word);
        let joint = memchr::memrchr(b'-', word).filter(|at| word[..*at].iter().all(u8::is_ascii_uppercase));
        NAMES.has(joint.map_or(word, |at| &word[at + 1..]))
    };
    text.split(|byte| *byte == b' ').any(context)
}

/// Words that are written in place of a value.
pub(super) fn is_empty_word(value: &[u8]) -> bool {
    WORDS.list.no_value.holds(value) || super::is_placeholder(value)
}

/// `super::Foundation::HANDLE`, `auth::verify::{{closure}}::h4a7c0b9d2e1f3a58`
pub(super) fn is_scoped(value: &[u8]) -> bool {
    let scoped = value.windows(2).any(|pair| pair == b"::");
    let hash = |part: &[u8]| part.len() == 17 && part[0] == b'h' && shape_of(&part[1..]) == Shape::Hex;
    let name =
        |part: &[u8]| is_names(part, b"_") || part.len() < 8 || is_natural_language(part) || hash(part);
    let sign = |byte: &u8| super::is_word(*byte) || b":{}()<>[]&'*!,.".contains(byte);
    scoped
        && value.iter().all(sign)
        && value.split(|byte| !super::is_word(*byte)).all(|part| part.is_empty() || name(part))
}

/// `ServerConnection`, `auth::Ed25519Key`, `__u32`: the name of a type or a variable in a program. It has digits only as
/// part of the name of an algorithm, or as a width of bits.
pub(super) fn is_identifier(word: &[u8]) -> bool {
    let letters = |part: &[u8]| !part.iter().any(u8::is_ascii_digit) && shape_of(part) != Shape::Random;
    let part = |part: &[u8]| {
        letters(part)
            || around_algorithm(part).is_some_and(|(before, after)| letters(before) && letters(after))
            || around_width(part).is_some_and(|(before, after)| {
                matches!((before, after), (b"u" | b"i" | b"f", b""))
                    || letters(before) && letters(after) && is_natural_language(part)
            })
    };
    (word[0].is_ascii_alphabetic() || word[0] == b'_')
        && word.iter().all(|byte| is_word(*byte) && *byte != b'-' || b":.".contains(byte))
        && word.split(|byte| b"_:.".contains(byte)).all(part)
}

/// The text around a width of bits: `u32`, `Archive64Locator`.
fn around_width(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let (before, rest) = part.split_at(part.iter().position(u8::is_ascii_digit)?);
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    matches!(&rest[..digits], b"8" | b"16" | b"32" | b"64").then_some((before, &rest[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shells_default_is_a_value() {
        let default = |text: &'static str| shell_default(text.as_bytes()).map(|(from, to)| &text[from..to]);
        assert_eq!(default("${DB_PASSWORD:-hunter2}"), Some("hunter2"));
        assert_eq!(default("${DB_PASSWORD-hunter2}"), Some("hunter2"));
        for none in ["${DB_PASSWORD}", "${DB_PASSWORD:-}", "${DB_PASSWORD:?required}", "$DB", "${", "${:-x}"]
        {
            assert_eq!(default(none), None, "{none}");
        }
    }
}
