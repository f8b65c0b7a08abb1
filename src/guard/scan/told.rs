//! Secrets that are told rather than assigned: `the password is x`, `<password>x</password>`, `IDENTIFIED BY 'x'`.
//!
//! A few parts of words are looked for everywhere, and what stands behind them is judged. A value without a mark before it
//! is easily prose, so it has to look less like a word than one behind a name.

use super::Scanner;
use super::keyed::{MAX_VALUE, contains};
use super::stand_in::{is_code, is_empty_word, is_template};
use super::token::{Look, look};
use crate::guard::words::{Name, Told, WORDS};

impl Scanner<'_> {
    /// A telling word that ends at `end`, somewhere in the text. Of `Password` and `Passwort` it is only a part.
    pub(super) fn told(&mut self, told: Told, end: usize) {
        let letters = |from: &[u8]| from.iter().take(4).take_while(|byte| byte.is_ascii_alphabetic()).count();
        let blanks = |from: &[u8]| from.iter().take(8).take_while(|b| matches!(**b, b' ' | b'.')).count();
        match told {
            Told::Sentence => self.password_sentence(end + letters(&self.text[end..])),
            Told::Id => self.lettered_id(end + blanks(&self.text[end..])),
            Told::String | Told::Word => {
                if let Some((from, to, quoted)) = self.value_after(end)
                    && (quoted || told == Told::Word)
                {
                    self.value(Name::Password, false, from, to, quoted);
                }
            }
        }
    }

    /// `password is x`, `password x` of netrc and command lines, `<password>x</password>`, `| password | x |`: `at` is
    /// behind the word.
    fn password_sentence(&mut self, at: usize) {
        let rest = &self.text[at..self.to.min(at + 96)];
        let mut from = rest.iter().take_while(|byte| matches!(**byte, b'"' | b'\'')).count();
        let blanks = |rest: &[u8]| rest.iter().take_while(|byte| matches!(**byte, b' ' | b'\t')).count();
        if from == 0 && rest.first() == Some(&b'>') {
            return self.element(at + 1);
        }
        let joined = rest.get(from).is_some_and(|byte| *byte >= 0x80) && verb(&rest[from..]).is_some();
        if from > 1 || !joined && !matches!(rest.get(from), Some(b' ' | b'\t')) {
            return;
        }
        from += blanks(&rest[from..]);
        let told = verb(&rest[from..]);
        from += told.map_or(0, <[u8]>::len);
        let cell = told.is_none() && rest[from..].starts_with(b"| ");
        from += if cell { 1 + blanks(&rest[from + 1..]) } else { 0 };
        let quote = rest.get(from).copied().filter(|byte| matches!(byte, b'"' | b'\'' | b'`'));
        from += usize::from(quote.is_some());
        // What is joined without a blank goes on as prose: `パスワードは12文字以上です`.
        let joined = joined && quote.is_none();
        let stop = |byte: &&u8| match quote {
            Some(quote) => **byte != quote && **byte != b'\n',
            None if joined && **byte >= 0x80 => false,
            None => !byte.is_ascii_whitespace() && !matches!(**byte, b'"' | b'\'' | b'<'),
        };
        // The value may go on beyond the window.
        let rest = &self.text[at..self.to.min(at + MAX_VALUE)];
        let mut len = rest[from..].iter().take_while(stop).count();
        while quote.is_none()
            && len > 0
            && matches!(rest[from + len - 1], b'.' | b',' | b';' | b')' | b'!' | b'?')
            && told.is_some()
        {
            len -= 1;
        }
        while len > 0 && rest[from + len - 1] == b'\\' {
            len -= 1;
        }
        let value = &rest[from..from + len];
        let closed = quote.is_none_or(|quote| rest.get(from + len) == Some(&quote));
        // A quote with this behind it ends a string of JSON.
        let ends = quote.is_some() && matches!(value.first(), Some(b':' | b',' | b'}' | b']'));
        let next = rest.get(from + len).copied().unwrap_or(0);
        let mixed = value.iter().any(|byte| {
            byte.is_ascii_digit()
                || byte.is_ascii_punctuation() && !matches!(byte, b'-' | b'.' | b'_' | b'/' | b':' | b'=')
        });
        let fits = match (told.is_some(), quote.is_some()) {
            (true, true) => !value.contains(&b' '),
            (true, false) | (false, true) => mixed && !value.contains(&b' '),
            (false, false) => true,
        };
        if !closed
            || ends
            || !fits
            || value.len() < 5
            || is_template(value)
            || is_empty_word(value)
            || is_code(value, next, quote.is_some())
            || quote.is_none() && self.is_remark(at + from)
        {
            return;
        }
        // A netrc line or a command line names the user before it.
        let named = |word: &[u8]| contains(self.label(at, 80), word);
        let login = || named(b"login ");
        let listed = || login() || named(b"-user ") || named(b"--password") || named(b" -pass");
        let last = || matches!(next, 0 | b'\n' | b'\r') && classes(value) >= 3 && look(value) == Look::Random;
        // Of netrc nothing but its own words may follow: `the login and password portion is` is prose.
        let netrc_ends = || {
            let word = rest[from + len..].trim_ascii_start();
            let names = [&b"account"[..], b"macdef", b"machine", b"port"];
            matches!(next, 0 | b'\n' | b'\r') || names.iter().any(|name| word.starts_with(name))
        };
        if told.is_some()
            || quote.is_some()
            || cell && classes(value) >= 3
            || mixed && listed()
            || netrc_ends() && login()
            || last()
            || is_strong(value)
        {
            self.hit(self.ids.password_told, at + from, at + from + len);
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
        let len = memchr::memchr2(b'<', b'\n', &self.text[from..self.to.min(from + 256)]);
        let Some(len) = len.filter(|len| opens && *len > 0 && self.text[from + len..].starts_with(b"</"))
        else {
            return;
        };
        self.value(Name::Password, false, from, from + len, true);
    }
}

/// What stands between a telling word and the password, where a text begins with it.
fn verb(text: &[u8]) -> Option<&'static [u8]> {
    let first = text.first()?;
    let mut verbs = WORDS.list.verbs.iter().map(String::as_bytes);
    verbs.find(|verb| verb[0] == *first && text.starts_with(verb))
}

/// How many of small letters, capitals, digits and signs a value has.
fn classes(value: &[u8]) -> usize {
    let sign = |byte: &u8| b"!@#$%^&*?~+".contains(byte);
    let tests: [&dyn Fn(&u8) -> bool; 4] =
        [&u8::is_ascii_lowercase, &u8::is_ascii_uppercase, &u8::is_ascii_digit, &sign];
    tests.into_iter().filter(|test| value.iter().any(test)).count()
}

/// A word that nothing but a password looks like: letters, digits and a sign inside.
fn is_strong(value: &[u8]) -> bool {
    let inner = &value[1..value.len() - 1];
    value.len() >= 8
        && classes(value) >= 3
        && value.iter().any(u8::is_ascii_digit)
        && inner.iter().any(|byte| b"!@#$%^&*?~+".contains(byte))
        && !value.contains(&b'(')
}
