//! String literals of a program, and values inserted in place of the placeholders in them.
//!
//! A lexer for each language walks the whole program once and classifies each place. A value with only safe characters is
//! inserted as it is; any other is escaped as the literal requires, or refused. Line numbers do not change: a value adds no line

use std::ops::Range;

use zeroize::Zeroizing;

use super::Kind;
use crate::domain::Language;

/// A language with a lexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lexer {
    /// Python 3.
    Python,
    /// JavaScript and TypeScript.
    JavaScript,
    /// Bash.
    Bash,
}

impl From<Language> for Lexer {
    fn from(language: Language) -> Self {
        match language {
            Language::Python => Self::Python,
            Language::Javascript | Language::Typescript => Self::JavaScript,
            Language::Bash => Self::Bash,
        }
    }
}

/// How a value may be written at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a literal that has escapes: the quote, and its further requirements.
    Escaped { quote: u8, form: Form },
    /// In a literal without escapes.
    Plain(&'static str),
    /// In a comment: it stays as it is.
    Comment,
    /// Nowhere: the reason.
    Nowhere(&'static str),
}

/// What a literal requires beyond a backslash before its quote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// Python's `b`: bytes.
    Bytes,
    /// Python's `f`: doubled braces.
    Formatted,
    Template,
    /// Bash's `'..'`, `".."`, `$'..'`.
    Single,
    Double,
    Dollar,
}

/// A placeholder whose value cannot be inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// The placeholder, as it appears in the program.
    pub placeholder: String,
    /// Its line, from 1.
    pub line: usize,
    /// The reason.
    pub why: &'static str,
}

const ABSENT: &str = "its value is not kept: it came in an earlier context, under another policy, or in another way than as plain text";
const CODE: &str = "it stands outside of a string literal";

/// A part of a program in which all places are of one class.
#[derive(Debug)]
struct Part {
    span: Range<usize>,
    place: Place,
}

/// The placeholders outside comments.
pub(super) fn outside_comments(
    lexer: Lexer,
    code: &str,
    mut found: Vec<(Range<usize>, Kind, u32)>,
) -> Vec<(Range<usize>, Kind, u32)> {
    if !found.is_empty() {
        let parts = parts(lexer, code);
        found.retain(|(span, ..)| {
            let part = parts.get(parts.partition_point(|part| part.span.end <= span.start));
            !part.is_some_and(|part| part.span.start <= span.start && part.place == Place::Comment)
        });
    }
    found
}

/// The program with values in place of the `found` placeholders (in order, not overlapping), each with its value.
pub(super) fn put_in(
    lexer: Lexer,
    code: &str,
    found: &[(Range<usize>, Option<&str>)],
) -> Result<Zeroizing<String>, Unresolved> {
    let parts = parts(lexer, code);
    // The longest possible result: a string that grows leaves a copy that is not cleared.
    let longest = found.iter().map(|(_, value)| 8 * value.map_or(0, str::len)).sum::<usize>();
    let mut out = Zeroizing::new(String::with_capacity(code.len() + longest));
    let mut done = 0;
    for (span, value) in found {
        let at = parts.partition_point(|part| part.span.end <= span.start);
        let place = parts.get(at).filter(|part| part.span.start <= span.start);
        let place = match place {
            Some(part) if part.span.end < span.end => Place::Nowhere("a literal ends within it"),
            Some(part) => part.place,
            None => Place::Nowhere(CODE),
        };
        let inner = parts.get(at).map_or("", |part| &code[part.span.clone()]);
        match written(place, inner, *value) {
            Ok(None) => continue,
            Ok(Some(text)) => {
                out.push_str(&code[done..span.start]);
                out.push_str(&text);
                done = span.end;
            }
            Err(why) => {
                let line = 1 + memchr::memchr_iter(b'\n', &code.as_bytes()[..span.start]).count();
                return Err(Unresolved { placeholder: code[span.clone()].to_owned(), line, why });
            }
        }
    }
    out.push_str(&code[done..]);
    Ok(out)
}

/// Whether a value is the same in every literal, without escapes.
fn is_closed(value: &str) -> bool {
    value.chars().all(|c| c.is_alphanumeric() || "_@.+ :/=,-".contains(c))
}

/// A value as written at a place; `None`: the placeholder stays.
fn written(
    place: Place,
    inner: &str,
    value: Option<&str>,
) -> Result<Option<Zeroizing<String>>, &'static str> {
    let plain = |value: &str| Ok(Some(Zeroizing::new(value.to_owned())));
    let (quote, form) = match place {
        Place::Comment => return Ok(None),
        Place::Nowhere(why) => return Err(why),
        Place::Plain(why) => {
            return value.map_or(Err(ABSENT), |value| if is_closed(value) { plain(value) } else { Err(why) });
        }
        Place::Escaped { quote, form } => (char::from(quote), form),
    };
    let value = value.ok_or(ABSENT)?;
    if is_closed(value) && (form != Form::Bytes || value.is_ascii()) {
        return plain(value);
    }
    if inner.trim_start().starts_with(['{', '['])
        && !inner.trim_start().starts_with("[[")
        && looks_like_json(inner)
    {
        return Err("it stands in JSON within a literal, and its value would have to be escaped twice");
    }
    let mut out = Zeroizing::new(String::with_capacity(8 * value.len()));
    for c in value.chars() {
        match (form, c) {
            (Form::Single | Form::Double | Form::Dollar, '\0') => {
                return Err("Bash has no text with a NUL in it");
            }
            (Form::Single, '\'') => out.push_str(r"'\''"),
            (Form::Single, c) if c < ' ' => out.push_str(&format!(r"'$'\x{:02x}''", c as u32)),
            (Form::Double, '"' | '$' | '`' | '\\') => out.extend(['\\', c]),
            (Form::Double, c) if c < ' ' => out.push_str(&format!("\"$'\\x{:02x}'\"", c as u32)),
            (Form::Single | Form::Double, c) => out.push(c),
            (Form::Formatted, '{' | '}') => out.extend([c, c]),
            (Form::Template, '`' | '$') => out.extend(['\\', c]),
            (_, '\\') => out.push_str(r"\\"),
            (_, c) if c == quote => out.extend(['\\', c]),
            (_, c) if c < ' ' || c == '\u{7f}' => out.push_str(&format!(r"\x{:02x}", c as u32)),
            (Form::Bytes, c) if !c.is_ascii() => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| out.push_str(&format!(r"\x{byte:02x}")));
            }
            (Form::Text | Form::Template, '\u{85}' | '\u{2028}' | '\u{2029}') => {
                out.push_str(&format!(r"\u{:04x}", c as u32))
            }
            (_, c) => out.push(c),
        }
    }
    Ok(Some(out))
}

/// Whether the text of a literal is a JSON object or list, judging by its first characters.
fn looks_like_json(inner: &str) -> bool {
    let signs: String = inner.chars().filter(|c| !c.is_whitespace()).take(3).collect();
    matches!(signs.as_str(), s if s.starts_with("{\"") || s.starts_with("{\\\"") || s.starts_with("[\"") || s.starts_with("[\\\"") || s.starts_with("[{"))
}

/// Whether a byte may be in a name of JavaScript.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

fn parts(lexer: Lexer, code: &str) -> Vec<Part> {
    let mut walk = Walk { text: code.as_bytes(), at: 0, depth: 0, parts: Vec::new() };
    match lexer {
        Lexer::Python => walk.python(None),
        Lexer::JavaScript => walk.script(false),
        Lexer::Bash => walk.bash(None),
    }
    walk.parts
}

struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    /// The nesting depth of literals and substitutions.
    depth: usize,
    parts: Vec<Part>,
}

impl Walk<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn starts(&self, with: &[u8]) -> bool {
        self.text[self.at..].starts_with(with)
    }

    fn push(&mut self, start: usize, end: usize, place: Place) {
        if start < end {
            self.parts.push(Part { span: start..end, place });
        }
    }

    /// Code within a literal. Deeper nesting than any real program has is not followed.
    fn within(&mut self, walk: impl FnOnce(&mut Self)) {
        const DEEPEST: usize = 64;
        if self.depth == DEEPEST {
            let start = std::mem::replace(&mut self.at, self.text.len());
            return self.push(
                start,
                self.at,
                Place::Nowhere("literals stand within each other more than 64 deep"),
            );
        }
        self.depth += 1;
        walk(self);
        self.depth -= 1;
    }

    /// A literal from here up to and including its `end`, or to the end of the line if it may not have `lines`. A backslash
    /// takes the next character with it; `len` gives the length of any other text, 0 where code begins that `code` reads.
    fn literal(
        &mut self,
        (end, lines): (&[u8], bool),
        place: Place,
        len: impl Fn(&Self) -> usize,
        code: impl Fn(&mut Self),
    ) {
        let mut start = self.at;
        while self.at < self.text.len() && !self.starts(end) && (lines || self.peek(0) != b'\n') {
            match (self.peek(0), len(self)) {
                (b'\\', _) => self.at += 2,
                (_, 0) => {
                    self.push(start, self.at, place);
                    code(self);
                    start = self.at;
                }
                (_, len) => self.at += len,
            }
        }
        self.at = self.at.min(self.text.len());
        self.push(start, self.at, place);
        self.at += if self.starts(end) { end.len() } else { 0 };
    }

    /// A literal without code in it, whose quote is one character.
    fn quoted(&mut self, quote: u8, lines: bool, place: Place) {
        self.literal((&[quote], lines), place, |_| 1, |_| ());
    }

    /// Advances by one character, if one is left.
    fn step(&mut self) {
        self.at = (self.at + 1).min(self.text.len());
    }

    fn line_comment(&mut self) {
        let start = self.at;
        let len = memchr::memchr(b'\n', &self.text[start..]).unwrap_or(self.text.len() - start);
        self.at += len;
        self.push(start, self.at, Place::Comment);
    }

    // ---- Python

    /// Code, up to the `}` of a formatted string if it is inside one whose quotes are given.
    fn python(&mut self, inside: Option<&[u8]>) {
        let mut depth = 0;
        while self.at < self.text.len() {
            match self.peek(0) {
                b'#' if inside.is_none() => self.line_comment(),
                b'"' | b'\'' => {
                    // Before Python 3.12 the quotes of the string end it here too.
                    if inside.is_some_and(|quotes| self.starts(quotes)) {
                        return;
                    }
                    self.python_string();
                }
                b'}' if inside.is_some() && depth == 0 => return,
                byte => {
                    depth +=
                        i32::from(b"([{".contains(&byte)) - i32::from(b")]}".contains(&byte) && depth > 0);
                    self.at += 1;
                }
            }
        }
    }

    fn python_string(&mut self) {
        let letters = self.text[..self.at]
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
        let prefix = &self.text[self.at - letters.count()..self.at];
        let has =
            |letter: u8| prefix.len() <= 2 && prefix.iter().any(|byte| byte.eq_ignore_ascii_case(&letter));
        let (raw, bytes, formatted) = (has(b'r'), has(b'b'), has(b'f') || has(b't'));
        let quote = self.peek(0);
        let quotes: &[u8] = match (quote, self.peek(1) == quote && self.peek(2) == quote) {
            (b'"', true) => b"\"\"\"",
            (b'"', false) => b"\"",
            (_, true) => b"'''",
            (_, false) => b"'",
        };
        let form = if bytes {
            Form::Bytes
        } else if formatted {
            Form::Formatted
        } else {
            Form::Text
        };
        let place = match raw {
            true => Place::Plain("it stands in a raw string, which has no escapes for its value"),
            false => Place::Escaped { quote, form },
        };
        self.at += quotes.len();
        let len = |walk: &Self| match (walk.peek(0), walk.peek(1)) {
            (b'{', b'{') if formatted => 2,
            (b'{', _) if formatted => 0,
            _ => 1,
        };
        self.literal((quotes, quotes.len() > 1), place, len, |walk| {
            let (begin, kept) = (walk.at, walk.parts.len());
            walk.at += 1;
            walk.within(|walk| walk.python(Some(quotes)));
            // The text in braces is an expression, with a format after its colon.
            walk.parts.truncate(kept);
            walk.push(begin, walk.at, Place::Nowhere("it stands in the braces of a formatted string"));
        });
    }

    // ---- JavaScript

    /// Code, up to the `}` of a template if it is inside one. One match with an arm for each opening character.
    fn script(&mut self, inside: bool) {
        let mut depth = 0;
        // Whether a `/` here begins a regular expression.
        let mut operand = true;
        while self.at < self.text.len() {
            let byte = self.peek(0);
            match byte {
                b'/' if self.peek(1) == b'/' => self.line_comment(),
                b'/' if self.peek(1) == b'*' => {
                    let start = self.at;
                    let len = memchr::memmem::find(&self.text[start + 2..], b"*/");
                    self.at = len.map_or(self.text.len(), |len| start + 4 + len);
                    self.push(start, self.at, Place::Comment);
                }
                b'/' if operand => {
                    self.regular_expression();
                    operand = false;
                }
                b'"' | b'\'' => {
                    self.at += 1;
                    self.quoted(byte, false, Place::Escaped { quote: byte, form: Form::Text });
                    operand = false;
                }
                b'`' => {
                    self.template(!operand);
                    operand = false;
                }
                b'}' if inside && depth == 0 => return,
                b if is_word(b) => {
                    let start = self.at;
                    while is_word(self.peek(0)) {
                        self.at += 1;
                    }
                    const BEFORE: [&[u8]; 11] = [
                        b"return", b"typeof", b"case", b"in", b"of", b"delete", b"void", b"throw", b"new",
                        b"else", b"await",
                    ];
                    operand = BEFORE.contains(&&self.text[start..self.at]);
                }
                b if b.is_ascii_whitespace() => self.at += 1,
                _ => {
                    depth += i32::from(byte == b'{') - i32::from(byte == b'}' && depth > 0);
                    self.at += 1;
                    operand = !b")]".contains(&byte);
                }
            }
        }
    }

    fn regular_expression(&mut self) {
        let start = self.at;
        self.at += 1;
        let mut class = false;
        while self.at < self.text.len() && self.peek(0) != b'\n' && (class || self.peek(0) != b'/') {
            match self.peek(0) {
                b'[' => class = true,
                b']' => class = false,
                b'\\' => self.at += 1,
                _ => {}
            }
            self.at += 1;
        }
        self.step();
        self.push(start, self.at, Place::Nowhere("it stands in a regular expression or behind a division"));
    }

    fn template(&mut self, tagged: bool) {
        let place = match tagged {
            true => {
                Place::Plain("it stands in a tagged template, whose function may read it without escapes")
            }
            false => Place::Escaped { quote: b'`', form: Form::Template },
        };
        self.at += 1;
        let len = |walk: &Self| usize::from(!walk.starts(b"${"));
        self.literal((b"`", true), place, len, |walk| {
            walk.at += 2;
            walk.within(|walk| walk.script(true));
            walk.step();
        });
    }

    // ---- Bash

    /// Commands, up to the character that ends a substitution. One match with an arm for each opening character.
    fn bash(&mut self, until: Option<u8>) {
        let mut depth = 0;
        let mut documents: Vec<(Vec<u8>, bool)> = Vec::new();
        let mut word = false;
        while self.at < self.text.len() {
            let byte = self.peek(0);
            match byte {
                b if Some(b) == until && depth == 0 => return,
                b'\\' => self.at += 2,
                b'#' if !word => {
                    self.line_comment();
                    continue;
                }
                b'\'' => {
                    self.at += 1;
                    let start = self.at;
                    self.at += memchr::memchr(b'\'', &self.text[start..]).unwrap_or(self.text.len() - start);
                    self.push(start, self.at, Place::Escaped { quote: b'\'', form: Form::Single });
                    self.at += 1;
                }
                b'$' if self.peek(1) == b'\'' => {
                    self.at += 2;
                    self.quoted(b'\'', true, Place::Escaped { quote: b'\'', form: Form::Dollar });
                }
                b'"' => self.double_quoted(),
                b'$' if self.peek(1) == b'(' => self.substitution(),
                b'`' => self.back_quotes(),
                b'<' if self.peek(1) == b'<' && self.peek(2) != b'<' => {
                    documents.extend(self.document_begins())
                }
                b'<' if self.starts(b"<<<") => self.at += 3,
                b'\n' => {
                    self.at += 1;
                    for (end, dash) in documents.drain(..) {
                        self.document(&end, dash);
                    }
                }
                _ => {
                    depth += i32::from(byte == b'(') - i32::from(byte == b')' && depth > 0);
                    self.at += 1;
                }
            }
            word = !(byte.is_ascii_whitespace() || matches!(byte, b';' | b'&' | b'|' | b'(' | b')'));
        }
        self.at = self.at.min(self.text.len());
    }

    fn substitution(&mut self) {
        self.at += 2;
        self.within(|walk| walk.bash(Some(b')')));
        self.step();
    }

    fn double_quoted(&mut self) {
        let place = Place::Escaped { quote: b'"', form: Form::Double };
        self.at += 1;
        let code = |walk: &Self| walk.peek(0) == b'`' || walk.starts(b"$(") || walk.starts(b"${");
        self.literal(
            (b"\"", true),
            place,
            |walk| usize::from(!code(walk)),
            |walk| match (walk.peek(0), walk.peek(1)) {
                (b'`', _) => walk.back_quotes(),
                (_, b'(') => walk.substitution(),
                _ => {
                    walk.at += 2;
                    let begin = walk.at;
                    let rest = &walk.text[begin..];
                    walk.at += memchr::memchr(b'}', rest).map_or(rest.len(), |len| len + 1);
                    walk.push(begin, walk.at, Place::Nowhere("it stands in the braces of a variable"));
                }
            },
        );
    }

    /// Commands between back quotes.
    fn back_quotes(&mut self) {
        self.at += 1;
        self.quoted(b'`', true, Place::Nowhere("it stands between back quotes"));
    }

    /// After `<<`: the word that ends the document, and whether leading tabs are ignored.
    fn document_begins(&mut self) -> Option<(Vec<u8>, bool)> {
        self.at += 2;
        let dash = self.peek(0) == b'-';
        self.at += usize::from(dash);
        while matches!(self.peek(0), b' ' | b'\t') {
            self.at += 1;
        }
        let mut end = Vec::new();
        while self.at < self.text.len()
            && !self.peek(0).is_ascii_whitespace()
            && !matches!(self.peek(0), b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')')
        {
            if !matches!(self.peek(0), b'\'' | b'"' | b'\\') {
                end.push(self.peek(0));
            }
            self.at += 1;
        }
        // The arithmetic `1 << 3` is not one, nor is `<<` without a word.
        (!end.is_empty() && !end[0].is_ascii_digit()).then_some((end, dash))
    }

    fn document(&mut self, end: &[u8], dash: bool) {
        let start = self.at;
        while self.at < self.text.len() {
            let len = memchr::memchr(b'\n', &self.text[self.at..]).unwrap_or(self.text.len() - self.at);
            let line = &self.text[self.at..self.at + len];
            let line = if dash { line.trim_ascii_start() } else { line };
            if line == end {
                break;
            }
            self.at = (self.at + len + 1).min(self.text.len());
        }
        self.push(
            start,
            self.at,
            Place::Plain("it stands in a document (`<<`), which has no escapes for its value"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn put(lexer: Lexer, code: &str, value: &str) -> Result<String, Unresolved> {
        let found: Vec<_> =
            code.match_indices("[X_1]").map(|(at, text)| (at..at + text.len(), Some(value))).collect();
        put_in(lexer, code, &found).map(|code| (*code).clone())
    }

    const HOSTILE: [&str; 16] = [
        "alice@example.com",
        "+353 86 123 4567",
        "O'Brien \"Bob\"",
        r"a\nb\\c\'",
        "${HOME} $(id) `id` $HOME",
        "{x} {{y}} %s %d",
        "tab\there",
        "two\nlines",
        "Straße Ünal 東京",
        "'''\"\"\"",
        "\\",
        "'",
        "\"",
        "a;rm -rf /; # x",
        "</script>\u{2028}",
        "!x !! a",
    ];

    fn said(program: &str, args: &[&str], code: &str) -> String {
        let out = Command::new(program).args(args).arg(code).output().unwrap();
        assert!(out.status.success(), "{code}\n{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn a_value_means_itself_in_each_literal_of_each_language() {
        let python = [
            "'[X_1]'",
            "\"[X_1]\"",
            "'''[X_1]'''",
            "\"\"\"[X_1]\"\"\"",
            "u'[X_1]'",
            "f'[X_1]'",
            "f'{1}[X_1]{2!r:>3}'[1:-3]",
            "b'[X_1]'.decode()",
            "('a' '[X_1]')[1:]",
            "f\"{'a'}[X_1]\"[1:]",
            "rf'' f'[X_1]'",
        ];
        let script = [
            "'[X_1]'",
            "\"[X_1]\"",
            "`[X_1]`",
            "`${1}[X_1]${`b`}`.slice(1, -1)",
            "(/a'/.source, '[X_1]')",
            "`${'[X_1]'}`",
        ];
        let bash = [
            "'[X_1]'",
            "\"[X_1]\"",
            "$'[X_1]'",
            "\"$(printf %s \"[X_1]\")\"",
            "\"${NONE-}[X_1]\"",
            "a=1 && printf %s \"[X_1]\" #",
        ];
        // One process a language: the values are in one program, separated by NUL.
        for (lexer, forms) in
            [(Lexer::Python, &python[..]), (Lexer::JavaScript, &script), (Lexer::Bash, &bash)]
        {
            let (mut code, mut values) = (String::from("#\n"), Vec::new());
            if lexer == Lexer::Python {
                code.push_str("import sys\n");
            } else if lexer == Lexer::JavaScript {
                code.clear();
            }
            for (form, value) in forms.iter().flat_map(|form| HOSTILE.map(|value| (form, value))) {
                values.push(value);
                code.push_str(&match lexer {
                    Lexer::Python => format!("x = {form}\nsys.stdout.buffer.write(x.encode() + bytes(1))\n"),
                    Lexer::JavaScript => {
                        format!("x = {form};\nprocess.stdout.write(x + String.fromCharCode(0))\n")
                    }
                    Lexer::Bash if form.starts_with("a=") => format!("{form}\nprintf '\\0'\n"),
                    Lexer::Bash => format!("x={form}; printf '%s\\0' \"$x\"\n"),
                });
            }
            let places = code.match_indices("[X_1]").map(|(at, text)| at..at + text.len());
            let found: Vec<_> = places.zip(values.iter().map(|value| Some(*value))).collect();
            assert_eq!(found.len(), values.len());
            let code = put_in(lexer, &code, &found).unwrap();
            let (program, flag) = match lexer {
                Lexer::Python => ("python3", "-c"),
                Lexer::JavaScript => ("node", "-e"),
                Lexer::Bash => ("bash", "-c"),
            };
            let said = said(program, &[flag], &code);
            let said: Vec<&str> = said.split_terminator('\0').collect();
            for (at, value) in values.iter().enumerate() {
                assert_eq!(said[at], *value, "{}", forms[at / HOSTILE.len()]);
            }
            assert_eq!(said.len(), values.len());
        }
    }

    #[test]
    fn literals_within_literals_do_not_end_the_process() {
        for (lexer, open) in [(Lexer::Python, "f'{f\"{"), (Lexer::JavaScript, "`${"), (Lexer::Bash, "\"$(")] {
            let code = format!("{}\n'[X_1]'", open.repeat(20_000));
            let refused = put(lexer, &code, "alice@example.com").unwrap_err();
            assert_eq!(refused.line, 2, "{lexer:?}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_inserted_is_refused_with_its_line_and_the_reason() {
        let (closed, open) = ("alice@example.com", "O'Brien");
        for (lexer, code, value, why) in [
            (Lexer::Python, "# a\nx = [X_1]", closed, "outside"),
            (Lexer::Python, "# a\nx = r'[X_1]'", open, "raw"),
            (Lexer::Python, "\nx = f'{[X_1]}'", closed, "braces"),
            (Lexer::Python, "\nx = '{\"a\": \"[X_1]\"}'", open, "JSON"),
            (Lexer::JavaScript, "\nx = /[X_1]/", closed, "regular expression"),
            (Lexer::JavaScript, "\nx = String.raw`[X_1]`", open, "tagged"),
            (Lexer::JavaScript, "\nx = [X_1]", closed, "outside"),
            (Lexer::JavaScript, "// '\nx = `${[X_1]}`", closed, "outside"),
            (Lexer::Bash, "\necho [X_1]", closed, "outside"),
            (Lexer::Bash, "cat <<EOF\n[X_1]\nEOF", open, "document"),
            (Lexer::Bash, "\necho `echo '[X_1]'`", closed, "back quotes"),
            (Lexer::Bash, "\necho \"${A:-[X_1]}\"", closed, "braces"),
        ] {
            let refused = put(lexer, code, value).unwrap_err();
            assert_eq!((refused.placeholder.as_str(), refused.line), ("[X_1]", 2), "{code}");
            assert!(refused.why.contains(why), "{code}: {refused:?}");
        }
        for (lexer, code) in [
            (Lexer::Python, "x = 1 # [X_1]"),
            (Lexer::JavaScript, "x = 1 // '[X_1]'"),
            (Lexer::JavaScript, "/* \n[X_1] */ x = a / b"),
            (Lexer::Bash, "true # '[X_1]'"),
        ] {
            assert_eq!(put(lexer, code, open).unwrap(), code);
        }
        assert_eq!(
            put(Lexer::Bash, "cat <<EOF\n[X_1]\nEOF", closed).unwrap(),
            "cat <<EOF\nalice@example.com\nEOF"
        );
        assert_eq!(put(Lexer::Python, "x = r'[X_1]'", closed).unwrap(), "x = r'alice@example.com'");
        let absent = put_in(Lexer::Python, "\n'[X_1]'", &[(2..7, None)]).unwrap_err();
        assert!(absent.line == 2 && absent.why.contains("not kept"), "{absent:?}");
    }
}
