//! Secrets after a context word, without an assignment: `the password is x`, `<password>x</password>`, `IDENTIFIED BY 'x'`.
//!
//! A few parts of words are looked for everywhere, and the text after them is judged. A value without a mark before it
//! is easily prose, so it must look less like a word than one after a name.

use std::sync::LazyLock;

use super::excuse::Candidate;
use super::flag::is_usage;
use super::key_value::{MAX_VALUE, contains};
use super::name::NAMES;
use super::placeholder::is_names;
use super::token::{Shape, mixed_case, shape_of};
use super::{Scanner, first_line};
use crate::guard::classes::only;
use crate::guard::rule::pattern;
use crate::guard::words::{ContextWord, Name, WORDS};

/// How far above a value its name may end and, with its first letters, begin: only punctuation and spaces are between.
const GAP: usize = 48;
pub(super) const ABOVE: usize = 64;

impl Scanner<'_> {
    /// A context word that ends at `end`, somewhere in the text. Of `Password` and `Passwort` it is only a part.
    pub(super) fn context_word(&mut self, word: ContextWord, end: usize) {
        let letters = |from: &[u8]| from.iter().take(4).take_while(|byte| byte.is_ascii_alphabetic()).count();
        let blanks = |from: &[u8]| from.iter().take(8).take_while(|b| matches!(**b, b' ' | b'.')).count();
        match word {
            ContextWord::Sentence => {
                // `pw for the vpn: x`
                let whose = self.text[..end].ends_with(b" for");
                // `senha ` includes its space.
                let blank = usize::from(self.text[end - 1] == b' ');
                let letters = || if blank > 0 { 0 } else { letters(&self.text[end..]) };
                let at = if whose { end - b" for".len() } else { end + letters() - blank };
                let before = end.saturating_sub(b"passwor".len());
                if !self.unmarked(Name::Password, at)
                    && !self.value_before(before)
                    && !self.attributed(before, at)
                {
                    self.password_sentence(at, false);
                }
            }
            ContextWord::Is => self.password_sentence(end, true),
            ContextWord::Command => self.command(end),
            ContextWord::Named => {
                // The quote after it may be part of the context word.
                let end = end - usize::from(matches!(self.text[end - 1], b'"' | b'\''));
                let end = end + letters(&self.text[end..]);
                // The usual case: one of these follows.
                if matches!(self.byte(end), b'"' | b'\'' | b'(' | b'>' | b' ')
                    && let Some(start) = self.name_start(end, end)
                {
                    let kind = self.names.kind(&self.text[start..end]);
                    if matches!(kind, Name::Secret | Name::Key) {
                        self.unmarked(kind, end);
                    }
                }
            }
            ContextWord::Call => {
                let plural = usize::from(self.byte(end) == b's');
                let opened = self.byte(end - 1) == b'(' || self.byte(end + plural) == b'(';
                if opened {
                    self.call(end + plural);
                }
            }
            ContextWord::Id => {
                // `henkilötunnukseni on x`
                let end = end + if self.byte(end - 1) == b' ' { 0 } else { letters(&self.text[end..]) };
                let at = end + blanks(&self.text[end..]);
                let verb = verb(&self.text[at..])
                    .or_else(|| Some(&b"on "[..]).filter(|verb| self.text[at..].starts_with(verb)));
                self.identifier(at + verb.map_or(0, <[u8]>::len));
            }
            ContextWord::String => {
                let mixed = |value: &[u8]| value.iter().any(u8::is_ascii_digit) || mixed_case(value);
                if let Some((from, to, quoted)) = self.value_after(end)
                    && (quoted || mixed(&self.text[from..to]))
                {
                    self.value(Name::Password, false, from, to, quoted);
                }
            }
        }
    }

    /// `password: |` of YAML, `password =`, a table's or a list's lone `password`, and the value on the line below: it must
    /// be alone there and look like a password.
    #[inline(never)]
    pub(super) fn value_below(&mut self, word: ContextWord, end: usize) {
        let letters = self.text[end..].iter().take(4).take_while(|byte| byte.is_ascii_alphabetic()).count();
        let name_end = end + letters;
        let Some((gap, marked)) = gap_below(&self.text[name_end..self.to.min(name_end + GAP)]) else {
            return;
        };
        let start = name_end + gap;
        if word != ContextWord::Sentence || self.depth > 0 || start < self.from {
            return;
        }
        let Some(name) = self.name_start(name_end, name_end) else { return };
        if self.names.kind(&self.text[name..name_end]) != Name::Password || !marked && !self.is_alone(name) {
            return;
        }
        let line = first_line(&self.text[start..self.to.min(start + MAX_VALUE)]);
        let outside = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`');
        let (value, behind) = line.split_at(line.iter().position(outside).unwrap_or(line.len()));
        let alone = behind.iter().all(|byte| b" \t\r\"'`|,;".contains(byte));
        // A prompt, a name of its own, a call.
        let quoted = matches!(self.byte_before(start), b'"' | b'\'' | b'`');
        let other = matches!(value.last(), None | Some(b'#' | b'$' | b'>' | b':' | b'%'))
            || !quoted && (value.contains(&b'(') || is_reference(value, &self.text[name_end..start]));
        let signed = value.iter().any(|byte| b"!@#$%^&*?~+".contains(byte));
        if alone && !other && (marked || signed) && !contains(value, b"://") {
            self.unmarked_value(Name::Password, start, start + value.len());
        }
    }

    /// Whether only spaces and punctuation come before a place on its line.
    fn is_alone(&self, at: usize) -> bool {
        let line = self.line_to(at, 24);
        line.is_some_and(|line| line.iter().all(|byte| !byte.is_ascii_alphanumeric()))
    }

    /// The line up to a place, if it begins within `len` bytes. After a placeholder no line begins: the value behind it may have
    /// been read otherwise.
    fn line_to(&self, at: usize, len: usize) -> Option<&[u8]> {
        let before = self.before(at, len);
        let line = super::last_line(before);
        (line.len() < before.len() || before.len() < len && !self.walled).then_some(line)
    }

    /// Whether the line above a random text labels it as a secret: `client_secret:`, `Your token:`, a lone `api_key`.
    pub(super) fn is_labelled_above(&self, at: usize, sure: impl FnOnce(&[u8]) -> bool) -> bool {
        let before = self.before(at, GAP);
        let gap = before.iter().rev().take_while(|byte| GAP_SIGNS[usize::from(**byte)]).count();
        let Some((_, marked)) = gap_below(&before[before.len() - gap..]) else { return false };
        let Some(line) = self.line_to(at - gap, GAP - gap) else { return false };
        let name = line.iter().rev().take_while(|byte| super::is_word(**byte)).count();
        let alone = || line.iter().all(|byte| super::is_word(*byte) || GAP_SIGNS[usize::from(*byte)]);
        name > 0 && (marked || alone()) && sure(line)
    }

    /// `password is x`, `password x` of netrc and command lines, `<password>x</password>`, `| password | x |`: `at` is
    /// after the word.
    fn password_sentence(&mut self, at: usize, is: bool) {
        let rest = &self.text[at..self.to.min(at + 96)];
        if rest.first() == Some(&b'>') {
            return self.element(at + 1);
        }
        let Some(clause) = clause(rest, is) else { return };
        // The value may continue beyond the window.
        let rest = &self.text[at + clause.from..self.to.min(at + MAX_VALUE)];
        let (len, mark) = clause.value_len(rest);
        let (value, behind) = rest.split_at(len);
        let next = behind.first().copied().unwrap_or(0);
        let quoted = clause.quote.is_some();
        if quoted && follows_string(value)
            || value.len() < 5
            || !clause.verb && !quoted && is_usage(value)
            || (clause.verb || quoted) && value.contains(&b' ')
            || clause.qualified && !is_strong(value)
        {
            return;
        }
        let mixed = clause.verb && value.len() >= 8 && mixed_case(value)
            || value.iter().any(|byte| {
                byte.is_ascii_digit()
                    || byte.is_ascii_punctuation() && !matches!(byte, b'-' | b'.' | b'_' | b'/' | b':' | b'=')
            });
        // A verb or a quote alone is evidence only for a value that does not look like a word.
        let fits = clause.verb == quoted || mixed;
        if clause.quote.is_some_and(|quote| next != quote) || !fits {
            return;
        }
        if clause.verb
            || quoted
            || clause.cell && classes(value) >= 3
            || self.is_listed(at, value, behind, mixed)
            || is_strong(value)
        {
            let (start, end) = (at + clause.from, at + clause.from + len);
            self.propose(Candidate::new(self.ids.password_told, start, end + mark).by(start, end, quoted));
        }
    }

    /// Whether a value without a verb or a quote is one by its place: after a user name in netrc or on a command line, or
    /// at the end of a line.
    fn is_listed(&self, at: usize, value: &[u8], behind: &[u8], mixed: bool) -> bool {
        let named = |word: &[u8]| contains(self.label(at, 80), word);
        let login = || named(b"login ");
        let listed = || login() || named(b"-user ");
        let last = matches!(behind.first(), None | Some(0 | b'\n' | b'\r'));
        // In netrc only its own words may follow: `the login and password portion is` is prose.
        let netrc_ends = || {
            let word = first_line(behind).trim_ascii_start();
            let names = [&b"account"[..], b"macdef", b"machine", b"port"];
            last || names.iter().any(|name| word.starts_with(name))
        };
        mixed && listed()
            || netrc_ends() && login()
            || last && classes(value) >= 3 && shape_of(value) == Shape::Random
    }

    /// `Use x as the password`: the word begins at `at`.
    fn value_before(&mut self, at: usize) -> bool {
        let before = self.before(at, 48);
        if !before.ends_with(b" ") {
            return false;
        }
        let found = pattern!(r"(\S+) as (?:the |a |your )?$").captures(before);
        let Some(value) = found.and_then(|found| found.get(1)) else { return false };
        let value = value.as_bytes();
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        let fits = value.len() >= 6 && classes(value) >= 2 && value.iter().any(u8::is_ascii_digit);
        let start = self.place_of(value);
        if fits {
            self.hit(self.ids.password_told, start, start + value.len());
        }
        fits
    }

    /// `<wsse:Password Type="PasswordText">x</wsse:Password>`: the word begins at `start` and ends before `at`.
    fn attributed(&mut self, start: usize, at: usize) -> bool {
        let tag = &self.text[at..self.to.min(at + 128)];
        let opens = || pattern!(r"<[\w:-]*$").is_match(self.before(start, 12));
        let close = memchr::memchr2(b'>', b'\n', tag).filter(|close| tag[*close] == b'>' && opens());
        close.is_some_and(|close| self.named_element(Name::Password, at + close + 1))
    }

    /// Forms without `:` or `=`: `setPassword("x")`, `("DB_PASSWORD", "x")`, `secret "x"`,
    /// `<string name="api_secret">x</string>`, `("password").send_keys("x")`. `at` is after the name.
    fn unmarked(&mut self, kind: Name, at: usize) -> bool {
        let rest = &self.text[at..self.to.min(at + 64)];
        match rest {
            [b'"' | b'\'', b'>', ..] => return self.named_element(kind, at + 2),
            [b'>', ..] if kind != Name::Password => return self.named_element(kind, at + 1),
            [b' ', ..] if kind == Name::Password => return false,
            _ => {}
        }
        let opens = pattern!(r#"^\]?(?:["']\]? *(?:, *|["']?\)\.[\w-]*\()|\( *| +)["']"#);
        let Some(start) = opens.find(rest).map(|opens| at + opens.end()) else { return false };
        let line = &self.text[start..self.to.min(start + MAX_VALUE)];
        let quote = self.byte(start - 1);
        let len = memchr::memchr2(quote, b'\n', line).filter(|len| line[*len] == quote);
        len.is_some_and(|len| !follows_string(line) && self.unmarked_value(kind, start, start + len))
    }

    /// A value without a mark, which must look like one by itself.
    fn unmarked_value(&mut self, kind: Name, start: usize, end: usize) -> bool {
        let value = &self.text[start..end];
        let digits = value.iter().filter(|byte| byte.is_ascii_digit()).count();
        let fits = match shape_of(value) {
            Shape::Hex => true,
            Shape::Uuid => kind == Name::Secret,
            Shape::Random => value.len() >= 8 && (kind == Name::Password || value.len() >= 12),
            Shape::Letters | Shape::Digits => false,
            Shape::Other => {
                let signs = value.iter().filter(|byte| b"!@#$%^&*~<>(){}[]".contains(byte)).count();
                let strong = classes(value) >= 3 && digits > 0 || signs >= 5;
                value.len() >= 8 && !value.contains(&b' ') && strong
            }
        };
        if fits {
            self.value(kind, false, start, end, true);
        }
        fits
    }

    /// `>x</`: `from` is after the `>`.
    fn named_element(&mut self, kind: Name, from: usize) -> bool {
        let line = &self.text[from..self.to.min(from + 256)];
        // `<setting name="password"><value>x</value>`
        let found = pattern!(r"^(?:<[^>\n]{0,14}>)?([^<\n]+)</").captures(line);
        let value = found.and_then(|found| found.get(1));
        value.is_some_and(|value| self.unmarked_value(kind, from + value.start(), from + value.end()))
    }

    /// The password among the strings of a call: the second of two, the third of more. `at` is after the bracket.
    fn call(&mut self, at: usize) {
        let line = &self.text[at..self.to.min(at + 160)];
        let line = &line[..memchr::memchr(b'\n', line).map_or(line.len(), |feed| feed + 1)];
        // The last of them may be cut off at the end of the line.
        let strings = pattern!(concat!(
            r#"^[^"')\n=:]*(?:"[^"\n]*"|'[^'\n]*')[^"')\n=:]*(?:"([^"\n]*)["\n]|'([^'\n]*)['\n])"#,
            r#"[^"')\n=:]*(?:"([^"\n]*)["\n]|'([^'\n]*)['\n]|[)\n=:]|$)"#
        ));
        let Some(found) = strings.captures(line) else { return };
        let Some(value) = found.iter().skip(1).flatten().last() else { return };
        if !value.as_bytes().iter().all(u8::is_ascii_digit) {
            self.value(Name::Password, false, at + value.start(), at + value.end(), true);
        }
    }

    /// `<password>x</password>`
    fn element(&mut self, from: usize) {
        let open = self.before(from, 40);
        let opens = memchr::memrchr(b'<', open).is_some_and(|at| !open[at..].contains(&b'/'));
        if self.byte(from) == b'<' {
            let value = self.value_after(from);
            return value
                .into_iter()
                .for_each(|(from, to, _)| self.value(Name::Password, false, from, to, true));
        }
        let found = pattern!(r"^[^<\n]+</").find(&self.text[from..self.to.min(from + 258)]);
        if let Some(found) = found.filter(|_| opens) {
            self.value(Name::Password, false, from, from + found.end() - 2, true);
        }
    }
}

/// The text after a context word for a password.
struct Clause {
    /// The start of the value.
    from: usize,
    quote: Option<u8>,
    /// Whether a verb introduces the password, and whether another word is before that.
    verb: bool,
    qualified: bool,
    /// Whether it is in a table.
    cell: bool,
    /// Whether the verb joins it to the word without a space, in a script that has none.
    joined: bool,
}

/// How `rest` continues after a word for a password; `is` if the verb comes before it.
#[inline]
fn clause(rest: &[u8], is: bool) -> Option<Clause> {
    let blanks = |rest: &[u8]| rest.iter().take_while(|byte| matches!(**byte, b' ' | b'\t')).count();
    let mut from = rest.iter().take_while(|byte| matches!(**byte, b'"' | b'\'')).count();
    let joined = rest.get(from).is_some_and(|byte| *byte >= 0x80) && verb(&rest[from..]).is_some();
    if from > 1 || !joined && !matches!(rest.get(from), Some(b' ' | b'\t')) {
        return None;
    }
    from += blanks(&rest[from..]);
    let after = &rest[from..];
    let known = match is {
        true => Some(0),
        false => owner(after).or_else(|| verb(after).map(<[u8]>::len)),
    };
    // `mot de passe provisoire est x`
    let adjective = || after.iter().position(|byte| !byte.is_ascii_alphabetic()).filter(|len| *len > 3);
    let behind = |len: usize| verb(after.get(len + 1..)?).map(|verb| len + 1 + verb.len());
    let qualified = if known.is_none() { adjective().and_then(behind) } else { None };
    let known = known.or(qualified);
    let is_verb = known.is_some();
    from += known.unwrap_or(0);
    let cell = !is_verb && rest[from..].starts_with(b"| ");
    from += if cell { 1 + blanks(&rest[from + 1..]) } else { 0 };
    let quote = rest.get(from).copied().filter(|byte| matches!(byte, b'"' | b'\'' | b'`'));
    from += usize::from(quote.is_some());
    Some(Clause { from, quote, verb: is_verb, qualified: qualified.is_some(), cell, joined })
}

impl Clause {
    /// The length of the value at the start of a text, and how much longer the hidden part is: an exclamation mark after it may
    /// belong to the password.
    #[inline]
    fn value_len(&self, rest: &[u8]) -> (usize, usize) {
        let stop = |byte: &&u8| match self.quote {
            Some(quote) => **byte != quote && **byte != b'\n',
            // Text joined without a space continues as prose: `パスワードは12文字以上です`.
            None if self.joined && **byte >= 0x80 => false,
            None => !byte.is_ascii_whitespace() && !matches!(**byte, b'"' | b'\'' | b'<'),
        };
        let mut len = rest.iter().take_while(stop).count();
        let whole = len;
        let sign = |byte| matches!(byte, b'.' | b',' | b';' | b')' | b'!' | b'?');
        while self.verb && self.quote.is_none() && len > 0 && sign(rest[len - 1]) {
            len -= 1;
        }
        let mark = usize::from(len < whole && rest[len] == b'!');
        while len > 0 && rest[len - 1] == b'\\' {
            len -= 1;
        }
        (len, mark)
    }
}

/// Characters that may be between a name and the value below it.
static GAP_SIGNS: [bool; 256] = only(b" \t\r\n:=|>\"'`*+-");

/// The length of the punctuation and spaces at the start of `rest`, if they cross a line feed to a value; and whether a mark
/// comes before that, as after a name.
#[inline]
fn gap_below(rest: &[u8]) -> Option<(usize, bool)> {
    memchr::memchr(b'\n', rest)?;
    // The bar and the quote after the last feed belong to the value.
    let gap = pattern!(r#"^[ \t\r:=|>"'`*+-]*\n(?:[ \t\r\n:=|>"'`*+-]*\n)?[ \t]*(?:\|[ \t]*)?["'`]?"#);
    let gap = gap.find(rest)?.as_bytes();
    let marked = first_line(gap).iter().any(|byte| matches!(byte, b':' | b'=' | b'>'));
    // A mask is left of the value.
    memchr::memmem::find(gap, b"***").is_none().then_some((gap.len(), marked))
}

/// Whether the text below a name refers to a value: `process.env.E2E_PASSWORD!;`, `&self.password1;`, an anchor of
/// YAML (`*anchor1`), a sealed vault. `gap` is the text between.
fn is_reference(value: &[u8], gap: &[u8]) -> bool {
    let yaml = gap.contains(&b':') && !gap.iter().any(|byte| matches!(byte, b'|' | b'>' | b'='));
    let mark = value.iter().take_while(|byte| matches!(byte, b'&' | b'*')).count();
    let end = value.iter().rposition(|byte| !b"!?;,".contains(byte)).map_or(0, |last| last + 1);
    let name = value.get(mark..end).unwrap_or_default();
    let anchor = mark == 1
        && yaml
        && name.first().is_some_and(u8::is_ascii_lowercase)
        && name.len() + mark == value.len()
        && !name.iter().any(u8::is_ascii_uppercase)
        && is_names(name, b"_-");
    // `opts?.auth?.pass2`: the last name decides.
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_?!".contains(byte);
    let names = name.split(|byte| *byte == b'.').all(|name| name.iter().all(part) && !name.is_empty());
    let dotted = memchr::memrchr(b'.', name)
        .is_some_and(|dot| names && !name[0].is_ascii_digit() && NAMES.kind(&name[dot + 1..]) != Name::Other);
    anchor || dotted || value.starts_with(b"$ANSIBLE_VAULT;")
}

/// The text between a context word and the password at the start of a text.
fn verb(text: &[u8]) -> Option<&'static [u8]> {
    static FIRST: LazyLock<[bool; 256]> = LazyLock::new(|| {
        let first: Vec<u8> = WORDS.list.verbs.iter().map(|verb| verb.as_bytes()[0]).collect();
        only(&first)
    });
    let first = text.first().filter(|first| FIRST[usize::from(**first)])?;
    let mut verbs = WORDS.list.verbs.iter().map(String::as_bytes);
    verbs.find(|verb| verb[0] == *first && text.starts_with(verb))
}

/// The owner of a password, and a verb: ` for user 'root' is `, ` to the vault: `, ` is generated for root@localhost: `. Its
/// length.
fn owner(text: &[u8]) -> Option<usize> {
    WORDS.list.owners.iter().find(|word| text.starts_with(word.as_bytes()))?;
    let text = &text[..text.len().min(56)];
    let stop = text.iter().position(|byte| matches!(byte, b'\n' | b',' | b';' | b'(')).unwrap_or(text.len());
    let place =
        |verb: &String| memchr::memmem::find(&text[..stop], verb.as_bytes()).map(|at| at + verb.len());
    WORDS.list.owner_verbs.iter().filter_map(place).min()
}

/// Whether the text after a quote shows that a string of JSON ends there.
fn follows_string(text: &[u8]) -> bool {
    matches!(text.first(), Some(b':' | b',' | b'}' | b']'))
}

/// How many classes of characters a value has: lowercase letters, capitals, digits, punctuation.
fn classes(value: &[u8]) -> usize {
    let sign = |byte: &u8| b"!@#$%^&*?~+".contains(byte);
    let tests: [&dyn Fn(&u8) -> bool; 4] =
        [&u8::is_ascii_lowercase, &u8::is_ascii_uppercase, &u8::is_ascii_digit, &sign];
    tests.into_iter().filter(|test| value.iter().any(test)).count()
}

/// A word that can only be a password: letters, digits and punctuation inside.
pub(super) fn is_strong(value: &[u8]) -> bool {
    value.len() >= 8
        && classes(value) >= 3
        && value.iter().any(u8::is_ascii_digit)
        && value[1..value.len() - 1].iter().any(|byte| b"!@#$%^&*?~+".contains(byte))
        && !value.contains(&b'(')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_to_a_password_is_not_one() {
        for text in [
            "process.env.E2E_PASSWORD!;",
            "this.form.value.password1!;",
            "opts?.auth?.pass2;",
            "cfg.password2?;",
            "&self.password1;",
            "*anchor1",
            "$ANSIBLE_VAULT;1.1;AES256",
        ] {
            assert!(is_reference(text.as_bytes(), b":\n  "), "{text}");
        }
        for text in ["*Winter26", "Winter.Sun26!", "hunter2!", "*x9Kd82hfLq", "&hunter2x!", "!", "&"] {
            assert!(!is_reference(text.as_bytes(), b":\n  "), "{text}");
        }
        // In a YAML block a star belongs to the password.
        assert!(!is_reference(b"*anchor1", b": |\n  "));
    }
}
