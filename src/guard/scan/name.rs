//! The kind that a name gives its value, by its last words: `reset_password` is a password, `password_policy` is not.

use std::sync::LazyLock;

use crate::guard::words::{EndingWord, Endings, Name, WORDS};

/// The ends of names.
pub(super) struct Names {
    endings: Endings<Name>,
    /// A bit for each group of three letters that one may end in.
    threes: Box<[u32; 1 << 10]>,
}

/// The built-in ones.
pub(super) static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(entries()));

fn entries() -> impl Iterator<Item = EndingWord<Name>> + Clone {
    WORDS.ending.iter().flat_map(|group| {
        group.words.iter().map(|word| EndingWord { says: group.says, word, whole: group.whole })
    })
}

/// `auth=("user", "password")`
pub(super) const AUTH: &[u8] = b"auth";
/// `creds: user/password`
pub(super) const CREDS: &[u8] = b"creds";

impl Names {
    fn new(entries: impl Iterator<Item = EndingWord<Name>> + Clone) -> Self {
        let mut threes = Box::new([0; 1 << 10]);
        for word in entries.clone().map(|entry| entry.word.as_bytes()).chain([AUTH]) {
            let (place, third) = Self::three(word);
            threes[place] |= if word.len() > 2 { 1 << third } else { u32::MAX };
        }
        Self { endings: Endings::new(entries), threes }
    }

    /// Whether a name that ends with a text may end in any of the words. Nearly free, because it is called for nearly every mark.
    #[inline(always)]
    pub(super) fn may_end(&self, text: &[u8]) -> bool {
        let (place, third) = Self::three(text);
        self.threes[place] >> third & 1 == 1 && self.ends(text)
    }

    /// The place of the last two letters, and the bit of the one before.
    #[inline(always)]
    fn three(text: &[u8]) -> (usize, u8) {
        let [a, b, c] = match text {
            [.., a, b, c] => [*a, *b, *c],
            [b, c] => [0, *b, *c],
            _ => [0; 3],
        };
        (usize::from(b & 31) << 5 | usize::from(c & 31), a & 31)
    }

    fn ends(&self, text: &[u8]) -> bool {
        text.ends_with(AUTH) || self.endings.of(text).any(|entry| entry.is_apart(text))
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
