//! The kind that a name gives its value, by its last words: `reset_password` is a password, `password_policy` is not.

use std::sync::LazyLock;

use crate::guard::rule::is_glued;
use crate::guard::words::{EndingWord, Endings, Name, WORDS};

/// The ends of names.
pub(super) struct Names {
    endings: Endings<Name>,
    /// A bit for each group of three letters that one may end in.
    threes: Box<[u32; 1 << 10]>,
    /// A bit for each ending: the last six letters, of a shorter word the last four, or all of one with fewer.
    ends: Box<[u64; 1 << 9]>,
    /// Likewise for short words that must begin a word of the name.
    whole: Box<[u64; 1 << 9]>,
}

/// The built-in ones.
pub(super) static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(entries()));

fn entries() -> impl Iterator<Item = EndingWord<Name>> + Clone {
    WORDS.ending.iter().flat_map(|group| {
        group.words.iter().map(|word| EndingWord { says: group.says, word, whole: group.whole })
    })
}

impl Names {
    fn new(entries: impl Iterator<Item = EndingWord<Name>> + Clone) -> Self {
        let (mut ends, mut whole) = (Box::new([0; 1 << 9]), Box::new([0; 1 << 9]));
        for entry in entries.clone() {
            let word = entry.word.as_bytes();
            note(if entry.whole && word.len() < 4 { &mut whole } else { &mut ends }, word);
        }
        // `auth=("user", "password")`
        note(&mut ends, b"auth");
        let mut threes = Box::new([0; 1 << 10]);
        for word in entries.clone().map(|entry| entry.word).chain(["auth"]) {
            let last = word.bytes().fold(0, |last, byte| last << 8 | u64::from(byte));
            let (place, third) = Self::three(last);
            threes[place] |= if word.len() > 2 { 1 << third } else { u32::MAX };
        }
        Self { endings: Endings::new(entries), threes, ends, whole }
    }

    /// Whether a name with these last eight bytes may end in any of the words. Nearly free: it is called for nearly every
    /// mark, and the names that pass are examined once more.
    #[inline(always)]
    pub(super) fn may_end(&self, last: u64) -> bool {
        let (place, third) = Self::three(last);
        self.threes[place] >> third & 1 == 1 && self.seems_to_end(last)
    }

    /// The place of the last two letters, and the bit of the one before.
    #[inline]
    fn three(last: u64) -> (usize, u32) {
        ((last >> 3 & 0x3e0 | last & 0x1f) as usize, (last >> 16 & 0x1f) as u32)
    }

    fn seems_to_end(&self, last: u64) -> bool {
        let is = |ends: &[u64; 1 << 9], len: usize| {
            let place = end_of(last, len);
            ends[place / 64] >> (place % 64) & 1 == 1
        };
        let whole = |len: usize| is(&self.whole, len) && !is_glued(&last.to_be_bytes(), 8 - len);
        [6, 4, 3].into_iter().any(|len| is(&self.ends, len)) || whole(3) || whole(2)
    }

    /// Whether a word is one of them, and not only ends in one: `Passwort`.
    pub(super) fn has(&self, word: &[u8]) -> bool {
        self.endings.of(word).any(|entry| {
            matches!(entry.says, Name::Password | Name::Secret | Name::Key | Name::Worded)
                && entry.word.len() == word.len()
        })
    }

    /// Whether a name ends like one of ours but means something else: `cacheKey`.
    pub(super) fn denies(&self, name: &[u8]) -> bool {
        self.endings.of(name).any(|entry| entry.says == Name::Other)
    }

    /// The kind that a name gives.
    pub(super) fn kind(&self, name: &[u8]) -> Name {
        let mut name = name;
        for _ in 0..4 {
            while let [rest @ .., b'_' | b'-' | b'.' | b'0'..=b'9'] = name {
                name = rest;
            }
            match self.endings.of(name).filter(|entry| entry.is_apart(name)).min() {
                None => return Name::Other,
                Some(entry) if entry.says != Name::Empty => return entry.says,
                Some(_) if name.eq_ignore_ascii_case(b"value") => return Name::Named,
                Some(entry) => name = &name[..name.len() - entry.word.len()],
            }
        }
        Name::Other
    }
}

fn note(ends: &mut [u64; 1 << 9], word: &[u8]) {
    let last = word.iter().fold(0, |last, byte| last << 8 | u64::from(*byte));
    let place = end_of(last, if word.len() < 6 { word.len().min(4) } else { 6 });
    ends[place / 64] |= 1 << (place % 64);
}

/// The bit for an ending of `len` letters.
#[inline]
fn end_of(last: u64, len: usize) -> usize {
    let letters = u64::MAX >> (64 - 8 * len);
    (((last | 0x2020_2020_2020_2020) & letters).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_judged_by_its_last_words() {
        let cases: &[(&str, Name)] = &[
            ("password", Name::Password),
            ("DB_PASSWORD", Name::Password),
            ("userPassword2", Name::Password),
            ("pw", Name::Password),
            ("client_secret", Name::Secret),
            ("API_KEY_PROD", Name::Secret),
            ("fbApiKey", Name::Secret),
            ("tomtom_key", Name::Key),
            ("Authorization", Name::Authorization),
            ("value", Name::Named),
            ("password_policy", Name::Other),
            ("token_count", Name::Other),
            ("public_key", Name::Other),
            ("compass", Name::Other),
            ("monkey", Name::Other),
            ("sha256", Name::Other),
            ("amount", Name::Other),
        ];
        for (name, kind) in cases {
            assert_eq!(NAMES.kind(name.as_bytes()), *kind, "{name}");
        }
    }

    #[test]
    fn without_any_one_of_the_words_some_name_would_be_judged_otherwise() {
        let idle: Vec<&str> = entries()
            .filter(|entry| {
                let without = Names::new(entries().filter(|other| other != entry));
                // Alone, glued and joined to others, and with a capital inside.
                let word = entry.word;
                let humps = word.char_indices().skip(1).map(|(at, letter)| {
                    format!(
                        "{}{}",
                        &word[..at],
                        word[at..].replacen(letter, &letter.to_uppercase().to_string(), 1)
                    )
                });
                ["", "x", "x_", "pw_"]
                    .map(|before| format!("{before}{word}"))
                    .into_iter()
                    .chain(humps)
                    .all(|name| NAMES.kind(name.as_bytes()) == without.kind(name.as_bytes()))
            })
            .map(|entry| entry.word)
            .collect();
        assert!(idle.is_empty(), "{idle:?}");
    }
}
