//! The words by which names and sentences are judged, read from `rules/names.toml`.
//!
//! Only the lists are here. What is made of them, tables by last letters and a searcher, stands beside the code that
//! looks: [`super::scan`].

use std::sync::LazyLock;

use serde::Deserialize;

use super::rule::is_glued;

/// The built-in words; parsed once.
#[expect(clippy::expect_used, reason = "the file is part of the program; every test reads it")]
pub(super) static WORDS: LazyLock<Words> = LazyLock::new(|| {
    toml::from_str(include_str!("rules/names.toml")).expect("the built-in word file parses")
});

/// All lists.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Words {
    /// Ends of names.
    pub(super) ending: Vec<Ending>,
    /// Words close before a random text.
    pub(super) near: Vec<Group<Nearby>>,
    /// Context words that are looked for everywhere.
    pub(super) context: Vec<Group<ContextWord>>,
    /// What makes a name of the word behind it.
    pub(super) phrase: Vec<Phrase>,
    /// Flags of one letter that take a password.
    pub(super) flag: Vec<Flag>,
    /// Lists of one sort each.
    pub(super) list: Lists,
}

/// Words that names end in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ending {
    pub(super) says: Name,
    /// Whether a word of the name must begin where this one does.
    #[serde(default)]
    pub(super) whole: bool,
    pub(super) words: Vec<String>,
}

/// What a name says of its value. Of two that its end may say, the first in this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Name {
    /// Nothing of ours.
    Other,
    /// A password: almost anything may be one.
    Password,
    /// A token or key that is certainly secret.
    Secret,
    /// `Authorization` and its like: a scheme, then the credentials.
    Authorization,
    /// A cookie.
    Cookie,
    /// `key` with a word before it: secret when it looks random.
    Key,
    /// A few digits: `PIN`, `CVV`.
    Pin,
    /// A state's number in which letters stand.
    Id,
    /// A person's name.
    Person,
    /// A postal address.
    Address,
    /// The last word of a phrase in another language.
    Worded,
    /// What stands before it decides.
    Empty,
    /// `value`: what it is stands in the name beside it.
    #[serde(skip)]
    Named,
}

/// Words that say the same.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group<S> {
    pub(super) says: S,
    pub(super) words: Vec<String>,
}

/// What a word near a random text says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Nearby {
    /// It is secret.
    Sure,
    /// It is secret where nothing speaks against it.
    Key,
    /// It is something else.
    Against,
}

/// What follows a context word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ContextWord {
    /// A password, in a sentence or another form.
    Sentence,
    /// The same, the verb included.
    Is,
    /// A secret, in a form that names have without a mark.
    Named,
    /// A user and a password, as arguments.
    Call,
    /// A password in quotes.
    String,
    /// A state's number in which letters stand.
    Id,
}

/// What stands before a word and makes a name of both.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Phrase {
    /// The last word.
    pub(super) word: String,
    pub(super) says: Name,
    /// What may stand before it.
    pub(super) words: Vec<String>,
}

/// A flag of one letter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Flag {
    pub(super) letter: String,
    /// Whether the password follows without a blank.
    #[serde(default)]
    pub(super) glued: bool,
    /// The commands that take it so.
    pub(super) words: Vec<String>,
}

/// Lists of one sort each; the file says what they are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lists {
    pub(super) verbs: Vec<String>,
    pub(super) owners: Vec<String>,
    pub(super) owner_verbs: Vec<String>,
    pub(super) naming: Set,
    pub(super) calling: Set,
    pub(super) behind_phone: Vec<String>,
    pub(super) algorithms: Vec<String>,
    pub(super) prefixes: Vec<String>,
    pub(super) joints: Vec<String>,
    pub(super) no_value: Set,
    pub(super) sentence: Set,
    pub(super) no_prefix: Vec<String>,
    pub(super) live: Set,
    pub(super) databases: Set,
    pub(super) hooks: Vec<(String, String)>,
}

/// Words by their last two letters.
pub(super) struct Endings<S>(Vec<Vec<EndingWord<S>>>);

/// A word that a text may end in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndingWord<S> {
    pub(super) says: S,
    pub(super) word: &'static str,
    /// Whether a word of the text must begin where this one does.
    pub(super) whole: bool,
}

impl<S: Copy> Endings<S> {
    pub(super) fn new(words: impl Iterator<Item = EndingWord<S>>) -> Self {
        let mut by_end = vec![Vec::new(); 1 << 10];
        words.for_each(|word| by_end[Self::place(word.word.as_bytes())].push(word));
        Self(by_end)
    }

    #[inline]
    fn place(text: &[u8]) -> usize {
        match text {
            [.., a, b] => usize::from(a & 31) << 5 | usize::from(b & 31),
            _ => 0,
        }
    }

    /// The words that a text ends in, in any ASCII case.
    #[inline]
    pub(super) fn of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a EndingWord<S>> {
        self.0[Self::place(text)].iter().filter(|ending| ends(text, ending.word.as_bytes()))
    }
}

impl<S> EndingWord<S> {
    /// Whether the word, which ends a text, begins where a word of it does, if it has to.
    #[inline]
    pub(super) fn is_apart(&self, text: &[u8]) -> bool {
        !self.whole || !is_glued(text, text.len() - self.word.len())
    }
}

/// Whether a text ends in a word, in any ASCII case.
#[inline]
pub(super) fn ends(text: &[u8], word: &[u8]) -> bool {
    text.len() >= word.len() && text[text.len() - word.len()..].eq_ignore_ascii_case(word)
}

/// Words that a text may be as a whole, by their lengths.
#[derive(Debug, Deserialize)]
#[serde(from = "Vec<String>")]
pub(super) struct Set(Vec<Vec<String>>);

impl Set {
    /// Whether a text is one of the words, in any ASCII case.
    #[inline]
    pub(super) fn holds(&self, text: &[u8]) -> bool {
        let same_length = self.0.get(text.len()).map_or(&[][..], Vec::as_slice);
        same_length.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
    }
}

impl Set {
    /// All words.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().map(String::as_str)
    }
}

impl From<Vec<String>> for Set {
    fn from(words: Vec<String>) -> Self {
        let mut by_length = Vec::new();
        for word in words {
            by_length.resize(by_length.len().max(word.len() + 1), Vec::new());
            by_length[word.len()].push(word);
        }
        Self(by_length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words after which `covers(before, word)` says that they are never come to.
    fn covered(words: &[String], covers: fn(&str, &str) -> bool) -> Vec<&String> {
        let hidden = |at: usize| words[..at].iter().any(|before| covers(before, &words[at]));
        (0..words.len()).filter(|at| hidden(*at)).map(|at| &words[at]).collect()
    }

    #[test]
    fn no_word_of_a_list_is_covered_by_another() {
        let same = |before: &str, word: &str| before.eq_ignore_ascii_case(word);
        let lists = &WORDS.list;
        for set in
            [&lists.no_value, &lists.sentence, &lists.live, &lists.naming, &lists.calling, &lists.databases]
        {
            for words in &set.0 {
                assert!(covered(words, same).is_empty(), "{:?}", covered(words, same));
            }
        }
        let begins = |before: &str, word: &str| word.starts_with(before);
        for words in [&lists.verbs, &lists.no_prefix] {
            let mut words = words.clone();
            assert!(covered(&words, begins).is_empty(), "{:?}", covered(&words, begins));
            words.reverse();
            // Of verbs the first that fits counts: a longer one may stand before.
            let same = |before: &str, word: &str| before == word;
            assert!(covered(&words, same).is_empty(), "{:?}", covered(&words, same));
        }
        for phrase in &WORDS.phrase {
            let ends = |before: &str, word: &str| word.ends_with(before) || before.ends_with(word);
            assert!(covered(&phrase.words, ends).is_empty(), "{:?}", covered(&phrase.words, ends));
        }
        let same = |before: &str, word: &str| before == word;
        for flag in &WORDS.flag {
            assert!(covered(&flag.words, same).is_empty(), "{:?}", flag.words);
        }
        let context: Vec<String> = WORDS.context.iter().flat_map(|group| group.words.clone()).collect();
        assert!(context.iter().filter(|word| word.is_ascii()).count() <= 32, "two looks for each byte");
        let contains = |before: &str, word: &str| word.contains(before) || before.contains(word);
        assert!(covered(&context, contains).is_empty(), "{:?}", covered(&context, contains));
    }
}
