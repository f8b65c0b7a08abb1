//! The word lists for judging names and sentences, read from `rules/names.toml`.
//!
//! Only the lists are here. The structures built from them (tables by last letters, a searcher) are next to the code that
//! uses them: [`super::scan`].

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
    /// Words that come close before a random text.
    pub(super) near: Vec<Group<Nearby>>,
    /// Context words that are looked for everywhere.
    pub(super) context: Vec<Group<ContextWord>>,
    /// Phrases that turn the word after them into a name.
    pub(super) phrase: Vec<Phrase>,
    /// Commands that take a password.
    pub(super) command: Vec<Command>,
    /// Lists of plain words.
    pub(super) list: Lists,
}

/// Words at the end of names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ending {
    pub(super) says: Name,
    /// Whether a word of the name must begin where this one does.
    #[serde(default)]
    pub(super) whole: bool,
    pub(super) words: Vec<String>,
}

/// The kind of value that a name announces. If its end matches two, the first in this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Name {
    /// None of these.
    Other,
    /// A password: almost anything may be one.
    Password,
    /// A token or key that is certainly secret.
    Secret,
    /// `Authorization` and its like: a scheme, then the credentials.
    Authorization,
    /// A cookie.
    Cookie,
    /// `key` with a word before it: secret if it looks random.
    Key,
    /// A few digits: `PIN`, `CVV`.
    Pin,
    /// A national identifier with letters in it.
    Id,
    /// A person's name.
    Person,
    /// A postal address.
    Address,
    /// The last word of a phrase in another language.
    Worded,
    /// The text before it decides.
    Empty,
    /// `value`: its meaning is in the name beside it.
    #[serde(skip)]
    Named,
}

/// Words with the same meaning.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group<S> {
    pub(super) says: S,
    pub(super) words: Vec<String>,
}

/// The meaning of a word near a random text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Nearby {
    /// It is a secret.
    Sure,
    /// It is a secret unless something contradicts it.
    Key,
    /// It is something else.
    Against,
}

/// The form that follows a context word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ContextWord {
    /// A password, in a sentence or another form.
    Sentence,
    /// The same, with the verb included.
    Is,
    /// A secret, in a form in which names appear without a mark.
    Named,
    /// A user and a password, as arguments.
    Call,
    /// A password in quotes.
    String,
    /// A national identifier with letters in it.
    Id,
    /// A part of a command that takes a password without a flag.
    Command,
}

/// Words that together with the one before or after make a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Phrase {
    /// The last word.
    pub(super) word: String,
    pub(super) says: Name,
    /// What may come before it.
    pub(super) words: Vec<String>,
}

/// Commands that take a password in the same way.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Command {
    /// The flags by which they take it; without one they take it by its position.
    #[serde(default)]
    pub(super) flags: Vec<String>,
    /// Whether the value follows at once, whether the letter may be one of a group.
    #[serde(default)]
    pub(super) glued: bool,
    #[serde(default)]
    pub(super) group: bool,
    /// The sign between a user and the password.
    pub(super) sign: Option<char>,
    /// Whether the password goes to the next command of the pipeline.
    #[serde(default)]
    pub(super) piped: bool,
    /// How many operands there are at least, of which the last is the password; 0 if it is the next word.
    #[serde(default)]
    pub(super) operands: usize,
    /// The commands; without one, any.
    #[serde(default)]
    pub(super) words: Vec<String>,
}

/// Lists of plain words; the file describes them.
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
    pub(super) stdin: Vec<String>,
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

    /// The words that a text ends in, ignoring ASCII case.
    #[inline]
    pub(super) fn of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a EndingWord<S>> {
        self.0[Self::place(text)].iter().filter(|ending| ends(text, ending.word.as_bytes()))
    }
}

impl<S> EndingWord<S> {
    /// Whether the word at the end of a text begins at a word border of the text, if required.
    #[inline]
    pub(super) fn is_apart(&self, text: &[u8]) -> bool {
        !self.whole || !is_glued(text, text.len() - self.word.len())
    }
}

/// Whether a text ends in a word, ignoring ASCII case.
#[inline]
pub(super) fn ends(text: &[u8], word: &[u8]) -> bool {
    let Some(at) = text.len().checked_sub(word.len()) else { return false };
    // Most differ in the first letter.
    let same = |(a, b): (&u8, &u8)| (a ^ b) & !0x20 == 0;
    text[at..].first().zip(word.first()).is_none_or(same) && text[at..].eq_ignore_ascii_case(word)
}

/// Words that a text may be as a whole, by their lengths.
#[derive(Debug, Deserialize)]
#[serde(from = "Vec<String>")]
pub(super) struct Set(Vec<Vec<String>>);

impl Set {
    /// Whether a text is one of the words, ignoring ASCII case.
    #[inline]
    pub(super) fn holds(&self, text: &[u8]) -> bool {
        let same_length = self.0.get(text.len()).map_or(&[][..], Vec::as_slice);
        same_length.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
    }

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

    /// The words that can never match, because `covers(before, word)` holds for an earlier one.
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
            // The first verb that fits counts, so a longer one must come first.
            let same = |before: &str, word: &str| before == word;
            assert!(covered(&words, same).is_empty(), "{:?}", covered(&words, same));
        }
        for phrase in &WORDS.phrase {
            let ends = |before: &str, word: &str| word.ends_with(before) || before.ends_with(word);
            assert!(covered(&phrase.words, ends).is_empty(), "{:?}", covered(&phrase.words, ends));
        }
        let same = |before: &str, word: &str| before == word;
        for command in &WORDS.command {
            assert!(covered(&command.words, same).is_empty(), "{:?}", command.words);
        }
        let context: Vec<String> = WORDS.context.iter().flat_map(|group| group.words.clone()).collect();
        assert!(context.iter().filter(|word| word.is_ascii()).count() <= 32, "two looks for each byte");
        let contains = |before: &str, word: &str| word.contains(before) || before.contains(word);
        assert!(covered(&context, contains).is_empty(), "{:?}", covered(&context, contains));
    }
}
