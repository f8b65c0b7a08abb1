//! Values beside a name that gives their kind: `password: x`, `"api_key": "x"`, `Authorization: Bearer x`,
//! `Pwd=x;`.
//!
//! The name is examined first, and by its last word: `reset_password` is a password, `password_policy` is not. Only
//! then is the value examined, and it must look like one: no template, no call, no other name.

use super::context::is_strong;
use super::excuse::{Candidate, Evidence};
use super::name::{AUTH, CREDS, NAMES};
use super::natural_language::is_natural_language;
use super::placeholder::{is_empty_word, shell_default, trimmed};
use super::token::{Shape, mixed_case, shape_of};
use super::{LEFT, Scanner, first_line, is_word};
use crate::guard::classes::only;
use crate::guard::rule::pattern;
use crate::guard::words::{Name, Phrase, WORDS, ends};

/// The longest name and value that are examined.
const MAX_NAME: usize = 64;
pub(super) const MAX_VALUE: usize = 1024;
/// The most backslashes before a quote: of four strings, one in the other.
const MAX_SLASHES: usize = 15;
/// The longest value within another that is always examined, and how many of the longer ones are.
const MAX_NESTED: usize = 256;
const MOST_NESTED: u8 = 2;
/// The most nested defaults that are followed.
const MAX_DEFAULTS: usize = 8;

/// Signs after which a mark has no name.
static NOT_AFTER: [bool; 256] = only(b"\n<>{}(,;:=/|&@#$%^");

/// A name and the value beside it, as places in the text.
struct Pair {
    kind: Name,
    name_start: usize,
    name_end: usize,
    name_in_quotes: bool,
    start: usize,
    quoted: bool,
}

impl Scanner<'_> {
    /// Whether the name before a mark may end as one of ours; most names do not.
    #[inline(always)]
    pub(super) fn may_be_named(&self, at: usize) -> bool {
        match self.text[..at] {
            [.., b'A'..=b'Z' | b'a'..=b'z'] => self.names.may_end(&self.text[..at]),
            [.., b'A'..=b'Z' | b'a'..=b'z', b'"'] => self.names.may_end(&self.text[..at - 1]),
            _ => self.may_be_signed(at),
        }
    }

    /// The same for a name with anything but a letter at its end.
    #[inline(never)]
    fn may_be_signed(&self, at: usize) -> bool {
        // In `:=`, `==`, `::=` only the first counts.
        if matches!(self.byte_before(at), b':' | b'=') {
            return false;
        }
        // `"x" == password`, as people write it.
        let compares = self.text[at] == b'=' && self.byte(at + 1) == b'=';
        let end = at - usize::from(self.byte_before(at) == b' ' && !compares);
        let end = end - usize::from(self.byte_before(end) == b'"');
        let name = &self.text[..end];
        let digits = name.iter().rev().take(8).take_while(|byte| byte.is_ascii_digit()).count();
        let name = &name[..end - digits];
        match name {
            // `12:34:56`, `2026-11-28 12:34`. A name may have a number after it, but not two.
            [.., b':'] | [.., b'0'..=b'9', b' '] if digits > 0 => false,
            [.., b'A'..=b'Z' | b'a'..=b'z'] => self.names.may_end(name),
            [.., sign] => compares || !NOT_AFTER[usize::from(*sign)],
            [] => true,
        }
    }

    /// Examines the name before and the value after a `:` or `=`.
    #[inline(never)]
    pub(super) fn named_pair(&mut self, at: usize) {
        if self.text[at] == b'='
            && (self.byte(at + 1) == b'=' || self.byte_before(at) == b'!')
            && self.compared(at)
        {
            return;
        }
        let name_end = self.name_end(at);
        // Most names have a different ending.
        if self.byte_before(name_end).is_ascii_alphabetic() && !self.names.may_end(&self.text[..name_end]) {
            return;
        }
        let Some(name_start) = self.name_start(at, name_end) else { return };
        // `a=b=c`: the text after a mark is a value, not the next name.
        let name = &self.text[name_start..name_end];
        if self.byte_before(name_start) == b'=' && !self.is_setting(name_start, name) {
            return;
        }
        let kind = self.kind_of_name(at, name_start, name_end);
        if kind == Name::Other {
            if name == AUTH {
                self.pair_of_strings(at);
                if let Some((start, end, _)) = self.value_after(at)
                    && is_strong(&self.text[start..end])
                {
                    self.user_and_password(b':', start, end);
                }
            }
            return;
        }
        if self.text[..name_start].ends_with(b"${") {
            return self.variable(kind, at);
        }
        let Some((start, end, quoted)) = self.value_beside(at) else { return };
        if name == CREDS && self.user_and_password(b'/', start, end) {
            return;
        }
        let name_in_quotes = self.text[name_end..at].iter().any(|byte| matches!(byte, b'"' | b'\'' | b'\\'));
        // Beside a name in quotes, a value without quotes ends where the object does.
        let closes = |byte: &u8| b",}])".contains(byte);
        let end = match (name_in_quotes || kind == Name::Pin) && !quoted {
            true => self.text[start..end].iter().position(closes).map_or(end, |at| start + at),
            false => end,
        };
        let pair = Pair { kind, name_start, name_end, name_in_quotes, start, quoted };
        if start == end || self.is_excused(&pair) {
            return;
        }
        match kind {
            Name::Authorization => self.authorization(start, end),
            Name::Cookie => self.cookie(start, end),
            Name::Id => _ = self.identifier(start),
            // Within an encoded run the finding would cover the whole run.
            Name::Person | Name::Address if self.depth > 0 => {}
            Name::Person | Name::Address => {
                self.personal_value(kind, start, self.rest_of_line(start, end, quoted))
            }
            _ => self.value(kind, contains(name, b"aws"), start, end, quoted),
        }
    }

    /// The kind that the name before a mark gives, with the words before it and the value after.
    fn kind_of_name(&mut self, at: usize, start: usize, end: usize) -> Name {
        let name = &self.text[start..end];
        let text_type = name.eq_ignore_ascii_case(b"string") || name == b"str";
        match self.name_says(start, end) {
            Name::Named => self.kind_beside(start),
            Name::Worded => self.kind_of_phrase(start, name).unwrap_or(Name::Other),
            Name::Key if name.len() == 3 => self.kind_of_phrase(start, name).unwrap_or(Name::Key),
            // `password: String = "x"`, `var password string = "x"`
            Name::Other if self.text[at] == b'=' && text_type => {
                let quoted = self.value_after(at).is_some_and(|(_, _, quoted)| quoted);
                if quoted { self.kind_before_type(start) } else { Name::Other }
            }
            kind => kind,
        }
    }

    /// `${NAME:-value}`, `${NAME:?what is wrong}`: the mark is at `at`.
    fn variable(&mut self, kind: Name, at: usize) {
        let end = memchr::memchr2(b'}', b'\n', &self.text[at..self.to.min(at + MAX_VALUE)]);
        if let Some(len) = end.filter(|len| *len > 2 && matches!(self.byte(at + 1), b'-' | b'=')) {
            self.value(kind, false, at + 2, at + len, true);
        }
    }

    /// The value after the mark at `at`, or its default literal; of a value that holds many names only a few are
    /// examined.
    fn value_beside(&mut self, at: usize) -> Option<(usize, usize, bool)> {
        let (start, end, quoted) = self.value_after(at)?;
        // Of the names in a value that has been judged, only a few are checked against its long rest.
        if start >= self.judged {
            self.nested = 0;
        } else if end - start > MAX_NESTED {
            self.nested = self.nested.saturating_add(1);
            if self.nested > MOST_NESTED {
                return None;
            }
        }
        self.judged = self.judged.max(end);
        // `process.env.PW || "x"`: the default where nothing is set.
        let wallet = |this: &Self| (this.byte(end) == b' ').then(|| this.wallet_phrase(start)).flatten();
        let literal = if quoted { None } else { self.fallback(start).or_else(|| wallet(self)) };
        Some(literal.unwrap_or((start, end, quoted)))
    }

    /// Whether the name and its quotes show that the text beside the name is not its value.
    fn is_excused(&self, pair: &Pair) -> bool {
        let Pair { kind, name_start, name_end, start, quoted, .. } = *pair;
        let key = self.text[name_start..name_end].eq_ignore_ascii_case(b"key");
        // `cache key: x`: the word before it changes the meaning.
        kind == Name::Key && key && self.is_denied(name_start, name_end)
            // `"Password: "`: the quote after the mark ends a string that began before the name.
            || quoted && !pair.name_in_quotes && self.ends_a_string(name_start, start - 1)
    }

    /// Whether a name and the word before it together mean something else: `primary key`, `cache key`.
    fn is_denied(&self, start: usize, end: usize) -> bool {
        let Some(before) = self.before(start, 16).strip_suffix(b" ") else { return false };
        let word = before.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let phrase = &self.text[start - 1 - word..end];
        let name: Vec<u8> = phrase.iter().map(|byte| if *byte == b' ' { b'_' } else { *byte }).collect();
        word > 0 && self.names.denies(&name)
    }

    /// Whether the name that a mark joins to the text at `at` means something else, in spite of its ending.
    pub(super) fn is_named_otherwise(&self, at: usize) -> bool {
        let before = self.before(at, 4);
        let skip = before.iter().rev().take_while(|byte| matches!(byte, b' ' | b'"' | b'\'')).count();
        let mark = at - skip;
        if skip == before.len() || !matches!(self.byte_before(mark), b':' | b'=') {
            return false;
        }
        let end = self.name_end(mark - 1);
        self.name_start(mark - 1, end).is_some_and(|start| self.names.denies(&self.text[start..end]))
    }

    /// Whether a quote ends a string that began on the same line before the name at `name`.
    fn ends_a_string(&self, name: usize, quote: usize) -> bool {
        let before = self.before(name, 128);
        let line = memchr::memrchr(b'\n', before).map(|at| &before[at + 1..]);
        let line = line.or((before.len() < 128).then_some(before)).unwrap_or_default();
        let sign = self.text[quote];
        // An apostrophe is between letters.
        let letter =
            |at: Option<usize>| at.and_then(|at| line.get(at)).is_some_and(u8::is_ascii_alphanumeric);
        let quotes = |at: &usize| sign == b'"' || !letter(at.checked_sub(1)) || !letter(at.checked_add(1));
        let count = memchr::memchr_iter(sign, line).filter(quotes).count();
        matches!(sign, b'"' | b'\'' | b'`') && self.byte_before(quote) != b'\\' && count % 2 == 1
    }

    /// The kind that a name gives; the same name is looked up often.
    fn name_says(&mut self, start: usize, end: usize) -> Name {
        let (known_start, known_end, says) = self.last_name;
        if self.text[start..end] != self.text[known_start..known_end] {
            self.last_name = (start, end, self.names.kind(&self.text[start..end]));
            return self.last_name.2;
        }
        says
    }

    /// `"x" == password`, `"x" !== private_key`: the first `=` is at `at`.
    fn compared(&mut self, at: usize) -> bool {
        let mark = at - usize::from(self.byte_before(at) == b'!');
        let blank = |byte: &&u8| **byte == b' ';
        let quote = mark - self.before(mark, 4).iter().rev().take_while(blank).count();
        let sign = self.byte_before(quote);
        if !matches!(sign, b'"' | b'\'') {
            return false;
        }
        let before = self.before(quote - 1, 120);
        let Some(open) = memchr::memrchr2(sign, b'\n', before).filter(|open| before[*open] == sign) else {
            return false;
        };
        let joint = |byte: &&u8| matches!(**byte, b'=' | b' ');
        let name = at + self.text[at..self.to.min(at + 6)].iter().take_while(joint).count();
        let part = |byte: &&u8| is_word(**byte) || matches!(**byte, b'.' | b'$');
        let len = self.text[name..self.to.min(name + MAX_NAME)].iter().take_while(part).count();
        let kind = self.names.kind(&self.text[name..name + len]);
        let named = matches!(kind, Name::Password | Name::Secret | Name::Key);
        if named {
            self.value(kind, false, quote - before.len() + open, quote - 1, true);
        }
        named
    }

    /// The literal after `||`, `??`, `or` and `?:` on the same line.
    fn fallback(&mut self, at: usize) -> Option<(usize, usize, bool)> {
        let rest = &self.text[at..self.to.min(at + 96)];
        // Each comes after a name or a call.
        let found = pattern!(r#"^[^ \n]* (?:\|\||\?\?|or|\?:) ["']"#).find(rest)?;
        self.value_after(at + found.end() - 1)
    }

    /// The words of a wallet, up to the end of the line: more than a sentence without a capital has (BIP 39).
    #[inline(never)]
    fn wallet_phrase(&self, at: usize) -> Option<(usize, usize, bool)> {
        let line = first_line(&self.text[at..self.to.min(at + MAX_VALUE)]).trim_ascii_end();
        let count = line.iter().filter(|byte| **byte == b' ').count() + 1;
        (count >= 12 && is_pass_phrase(line)).then_some((at, at + line.len(), true))
    }

    /// `Environment=SMTP_PASSWORD=x`, `--from-literal=password=x`: a setting that is the value of another.
    fn is_setting(&self, at: usize, name: &[u8]) -> bool {
        let constant =
            name.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_');
        let before = self.before(at - 1, 48);
        let word = || memchr::memrchr3(b' ', b'\n', b'\t', before).map_or(0, |blank| blank + 1);
        constant && name.contains(&b'_') || before[word()..].starts_with(b"--")
    }

    /// The kind from a name beside `value`: `key="ServicePassword" value="x"`, `- name: DB_PASSWORD` and `value: x` below.
    fn kind_beside(&self, at: usize) -> Name {
        let beside = pattern!(
            r#"(?i)(?:^|[^\w.-])(?:key|name|id|variable|field)[ "'\\]*[:=][ "'\\]*([\w.-]+)[\s"'\\,-]*$"#
        );
        let found = beside.captures(self.before(at, LEFT));
        let name = found.and_then(|found| found.get(1));
        name.map_or(Name::Other, |name| self.names.kind(name.as_bytes()))
    }

    /// The kind from a name's last word and the words before it: `mot de passe`, `clé API`.
    fn kind_of_phrase(&self, at: usize, name: &[u8]) -> Option<Name> {
        let before = self.before(at, 16);
        let fits = |phrase: &&Phrase| {
            name.eq_ignore_ascii_case(phrase.word.as_bytes())
                && phrase.words.iter().any(|word| ends(before, word.as_bytes()))
        };
        WORDS.phrase.iter().find(fits).map(|phrase| phrase.says)
    }

    /// The kind from the name before the type of a variable.
    fn kind_before_type(&self, at: usize) -> Name {
        let sign = |byte: &&u8| matches!(**byte, b' ' | b':' | b'&' | b'*' | b'?');
        let end = at - self.before(at, 8).iter().rev().take_while(sign).count();
        let Some(start) = self.name_start(end, end).filter(|_| end < at) else { return Name::Other };
        match self.names.kind(&self.text[start..end]) {
            kind @ (Name::Password | Name::Secret | Name::Key) => kind,
            _ => Name::Other,
        }
    }

    /// `auth=("user", "password")`, as HTTP libraries take it.
    fn pair_of_strings(&mut self, at: usize) {
        let line = first_line(&self.text[at + 1..self.to.min(at + 160)]);
        let pair = pattern!(r#"^\s*\(["'][^"']*["']\s*,\s*["']([^"']+)["']"#).captures(line);
        if let Some(value) = pair.and_then(|pair| pair.get(1)) {
            self.value(Name::Password, false, at + 1 + value.start(), at + 1 + value.end(), true);
        }
    }

    /// The end of the name before a mark: past spaces, a closing quote, an index.
    fn name_end(&self, at: usize) -> usize {
        let mut end = at;
        let floor = at.saturating_sub(MAX_NAME);
        let text = self.text;
        let back = |end: &mut usize, test: fn(u8) -> bool| {
            while *end > floor && test(text[*end - 1]) {
                *end -= 1;
            }
        };
        back(&mut end, |byte| matches!(byte, b' ' | b'\t' | b'!' | b'?' | b'+'));
        // `password (temporary): x`
        if self.byte_before(end) == b')'
            && let Some(open) = memchr::memrchr(b'(', &self.text[floor.max(end.saturating_sub(24))..end])
        {
            let open = floor.max(end.saturating_sub(24)) + open;
            if self.byte_before(open) == b' ' {
                end = open - 1;
            }
        }
        // Digits at the end of a name belong to it unless a bracket follows.
        back(&mut end, |byte| {
            matches!(byte, b'"' | b'\'' | b'`' | b']' | b')' | b'\\' | b'[' | b'*' | b'0'..=b'9')
        });
        back(&mut end, |byte| matches!(byte, b'"' | b'\'' | b'`' | b'[' | b'\\'));
        // `key 1: x`
        if self.byte(end).is_ascii_digit() {
            back(&mut end, |byte| byte == b' ');
        }
        end
    }

    /// The start of the name that ends before the mark at `at`.
    pub(super) fn name_start(&self, at: usize, end: usize) -> Option<usize> {
        let name = self.text.get(at.saturating_sub(MAX_NAME)..end)?;
        let part = |byte: &&u8| is_word(**byte) || **byte == b'.' || **byte >= 0x80;
        let len = name.iter().rev().take_while(part).count();
        (len > 0).then_some(end - len)
    }

    /// The value after a mark: its start and end, and whether it is in quotes.
    pub(super) fn value_after(&mut self, at: usize) -> Option<(usize, usize, bool)> {
        let start = self.value_start(at);
        match self.byte(start) {
            b'"' | b'\'' | b'`' => self.quoted_value(at, start),
            b'<' => self.value_at_element(start),
            _ => self.bare_value(start),
        }
    }

    /// The start of the value after a mark: past spaces, a tag and a string prefix.
    fn value_start(&self, at: usize) -> usize {
        let rest = &self.text[at..self.to.min(at + 128)];
        // `**Password:** x`, `<b>Password:</b> x`
        let mark = pattern!(r"^[:=>~]*[ \t]{0,64}(?:\*\* |__ |</(?:b|strong|label|span)> )?").find(rest);
        let mut start = mark.map_or(0, |mark| mark.end());
        // A YAML anchor or tag: `&pw x`, `!!str x`.
        if matches!(rest.get(start), Some(b'&' | b'!')) {
            let tag = pattern!(r"^[&!][\w!-]{1,24} \S").find(&rest[start..]);
            start += tag.map_or(0, |tag| tag.end() - 1);
        }
        // An Erlang binary, an escaped quote, a string prefix of Python, C# or Go.
        let prefix = pattern!(r#"^(?:<<"|\\{1,15}["']|[fbru]["']|[@$]")"#).find(&rest[start..]);
        at + start + prefix.map_or(0, |prefix| prefix.end() - 1)
    }

    /// How many backslashes begin at a place.
    fn slashes(&self, at: usize) -> usize {
        self.text[at..self.to].iter().take(MAX_SLASHES).take_while(|byte| **byte == b'\\').count()
    }

    /// A value whose quote is at `start`, after a mark at `at`.
    fn quoted_value(&mut self, at: usize, start: usize) -> Option<(usize, usize, bool)> {
        let limit = self.to.min(start + MAX_VALUE);
        let quote = self.byte(start);
        // Each level of strings in strings doubles them.
        let slashes = self.before(start, MAX_SLASHES).iter().rev().take_while(|byte| **byte == b'\\').count();
        let escaped = slashes > 0;
        // After a name in escaped quotes it is the end of the string that holds both.
        if quote == b'"' && !escaped && self.text[..at].trim_ascii_end().ends_with(b"\\\"") {
            return None;
        }
        let from = start + 1;
        let mut end = from;
        let mut in_string = None;
        while end < limit && self.text[end] != b'\n' {
            match self.text[end] {
                b'\\' if escaped => {
                    let run = self.slashes(end);
                    let quoted = self.byte(end + run) == quote;
                    if quoted && run <= slashes {
                        break;
                    }
                    end += run - usize::from(!quoted);
                }
                b'\\' if self.byte(end + 1) != b'\n' => end += 1,
                byte if byte == quote => break,
                // The end of the string that holds all of this.
                b'"' if *in_string.get_or_insert_with(|| self.ends_a_string(at, end)) => break,
                _ => {}
            }
            end += 1;
        }
        let end = end.min(limit);
        let close = end + if escaped { self.slashes(end) } else { 0 };
        if end == from || self.closes(quote, from, close) {
            return None;
        }
        let closed = self.byte(close) == quote && (close > end || !escaped);
        if closed || end == from + MAX_VALUE - 1 {
            return Some((from, end, true));
        }
        // An unclosed quote: a pass phrase up to the end, or the text up to a space, unless it is the first word of
        // prose.
        let whole = self.text[from..end].trim_ascii_end();
        if is_pass_phrase(whole) {
            return Some((from, from + whole.len(), true));
        }
        let (from, end, _) = self.bare_value(from)?;
        let prose = self.byte(end) == b' ' && is_plain(&self.text[from..end]);
        (!prose).then_some((from, end, true))
    }

    /// `<name>` is a template or an element; the text in it or after it may be the value all the same.
    fn value_at_element(&self, start: usize) -> Option<(usize, usize, bool)> {
        let rest = &self.text[start..self.to.min(start + MAX_VALUE)];
        let close = rest.iter().take(64).position(|byte| matches!(byte, b'>' | b' ' | b'\n'))?;
        let tail = rest[close + 1..].iter().take_while(|byte| goes_on(**byte)).count();
        let is_value = |value: &[u8]| matches!(shape_of(value), Shape::Random | Shape::Hex);
        let behind = (start + close + 1, start + close + 1 + tail, false);
        let inside = (start + 1, start + close, false);
        [behind, inside]
            .into_iter()
            .find(|(from, to, _)| rest[close] == b'>' && is_value(&self.text[*from..*to]))
    }

    /// A value without quotes that begins at `start`.
    fn bare_value(&mut self, start: usize) -> Option<(usize, usize, bool)> {
        let limit = self.to.min(start + MAX_VALUE);
        let stop = |byte: &&u8| goes_on(**byte);
        // Values within a value end where it does: each byte is read once.
        let known = if (self.bare.0..=self.bare.1).contains(&start) { self.bare.1.min(limit) } else { start };
        let mut end = known + self.text[known..limit].iter().take_while(stop).count();
        self.bare = (if known > start { self.bare.0 } else { start }, end);
        // A separator inside belongs to a value only if more of the value follows.
        let paired = |end: usize| self.text[start] == b'[' && self.text[end - 1] == b']';
        while end > start && matches!(self.text[end - 1], b',' | b';' | b')' | b']' | b'\\') && !paired(end) {
            end -= 1;
        }
        // `Pwd=x;Trusted=no`, `a=x&b=y`: the next name ends the value.
        if let Some(at) = memchr::memchr3(b';', b'&', b',', &self.text[start..end]) {
            let rest = &self.text[start + at + 1..end];
            let named = rest.iter().take(24).take_while(|byte| is_word(**byte)).count();
            if rest.get(named).is_some_and(|byte| matches!(*byte, b'=' | b':')) {
                end = start + at;
            }
        }
        (end > start).then_some((start, end, false))
    }

    /// Whether the apparent opening quote of a value ends the string that its name is in (`{"label": "Password: "}`):
    /// JSON syntax between strings follows, and where the value would end, another string begins or none does.
    fn closes(&self, quote: u8, from: usize, close: usize) -> bool {
        let first =
            self.text[from..close.min(self.to)].iter().take(64).find(|byte| !byte.is_ascii_whitespace());
        let after = self.byte(close + 1);
        let ends = after.is_ascii_whitespace() || b",;:)}]".contains(&after);
        matches!(first, Some(b',' | b':' | b'}' | b']')) && !(self.byte(close) == quote && ends)
    }

    /// Whether a value is acceptable for the kind that its name gives.
    pub(super) fn value(&mut self, kind: Name, aws: bool, start: usize, end: usize, quoted: bool) {
        if matches!(kind, Name::Person | Name::Address) {
            return self.personal_value(kind, start, end);
        }
        let rule = match kind {
            Name::Password => self.ids.password,
            Name::Pin => self.ids.pin,
            _ => self.ids.secret,
        };
        let (mut start, mut end, mut quoted) = (start, end, quoted);
        let mut defaults = 0;
        while let Some((from, to)) = shell_default(&self.text[start..end]) {
            // Deeper nesting counts as a value, whatever it is.
            if defaults == MAX_DEFAULTS {
                return self.hit(rule, start, end);
            }
            (start, end, quoted) = (start + from, start + to, true);
            defaults += 1;
        }
        // `token: Bearer x`
        if self.scheme_len(start, end) > 0 {
            return self.authorization(start, end);
        }
        let value = &self.text[start..end];
        if !is_secret_value(kind, value, quoted) {
            return;
        }
        let rule = if aws && value.len() == 40 { self.ids.aws_secret } else { rule };
        let bare = trimmed(value);
        let from = self.place_of(bare);
        let to = from + bare.len();
        // A value that exceeds the window is hidden whole.
        if !quoted && end - start == MAX_VALUE {
            end += self.text[end..].iter().take_while(|byte| goes_on(**byte)).count();
        }
        let word = if kind == Name::Key { Evidence::WeakWord } else { Evidence::Word };
        self.propose(Candidate::new(rule, start, end).by(from, to, quoted).with(word));
    }

    /// The length of `Bearer `, `Basic ` and the like at the start of a value.
    fn scheme_len(&self, start: usize, end: usize) -> usize {
        let value = &self.text[start..end.max((start + 10).min(self.to))];
        let schemes: [&[u8]; 6] = [b"bearer ", b"basic ", b"token ", b"apikey ", b"digest ", b"ssws "];
        schemes
            .iter()
            .find(|name| value.len() > name.len() && value[..name.len()].eq_ignore_ascii_case(name))
            .map_or(0, |name| name.len())
    }

    /// `Authorization: Bearer x`: the credentials after the scheme.
    pub(super) fn authorization(&mut self, start: usize, end: usize) {
        let scheme = self.scheme_len(start, end);
        let basic = scheme == 6
            && self.text[start].eq_ignore_ascii_case(&b'b')
            && self.text[start + 1].eq_ignore_ascii_case(&b'a');
        let from = start + scheme;
        let stop = |byte: &&u8| {
            !(byte.is_ascii_whitespace()
                || matches!(**byte, b'"' | b'\'' | b'`' | b'<' | b'>' | b',' | b'\\'))
        };
        let len = self.text[from..self.to.min(from + MAX_VALUE)].iter().take_while(stop).count();
        let value = &self.text[from..from + len];
        // `AWS4-HMAC-SHA256 Credential=...`: a scheme whose parameters are examined by their names.
        let scheme_only = scheme == 0 && value.ends_with(b"-SHA256") && self.byte(from + len) == b' ';
        if scheme_only || len < 6 {
            return;
        }
        if scheme == 0 && !matches!(shape_of(value), Shape::Random | Shape::Hex | Shape::Uuid) {
            return;
        }
        // `Digest username="x"`: a field, not credentials.
        if value.ends_with(b"=") && matches!(self.byte(from + len), b'"' | b'\\') && !basic {
            return;
        }
        let rule = if basic { self.ids.basic_header } else { self.ids.bearer };
        self.propose(Candidate::new(rule, from, from + len).by(from, from + len, true));
    }

    /// `Set-Cookie: name=value; ...`: the first value, if it looks random.
    pub(super) fn cookie(&mut self, start: usize, end: usize) {
        if start < self.cookies_done {
            return;
        }
        // A quote ends the line if one began it.
        let quotes = self.before(start, 64).iter().rev().take_while(|byte| **byte != b'\n');
        let quoted = quotes.filter(|byte| **byte == b'"').count() % 2 == 1;
        let stop = if quoted { b'"' } else { b'\n' };
        let len = memchr::memchr2(stop, b'\n', &self.text[start..]);
        let line_end = start + len.unwrap_or(self.to - start);
        let line = &self.text[start..line_end.max(end)];
        self.cookies_done = start + line.len();
        for found in pattern!(r"=([^;]{16,})").captures_iter(line) {
            let Some(value) = found.get(1) else { continue };
            let shape = shape_of(value.as_bytes());
            let random = matches!(shape, Shape::Random | Shape::Hex | Shape::Uuid);
            if random && !is_natural_language(value.as_bytes()) {
                self.hit(self.ids.cookie, start + value.start(), start + value.end());
            }
        }
    }

    /// The end of a value of several words: at its quote, or at the end of the line, the cell or the field.
    fn rest_of_line(&self, start: usize, end: usize, quoted: bool) -> usize {
        if quoted {
            return end;
        }
        let line = &self.text[start..self.to.min(start + 96)];
        let stop = |at: &usize| {
            matches!(line[*at], b'\n' | b'\t' | b';' | b'|' | b'<' | b'"' | b'{' | b'}')
                || line[*at..].starts_with(b"  ")
        };
        start + (0..line.len()).find(stop).unwrap_or(line.len())
    }

    /// The value of a field for a person's name or a postal address, if it has the form of one.
    fn personal_value(&mut self, kind: Name, start: usize, end: usize) {
        let value = self.text[start..end].trim_ascii_end();
        let capital = || pattern!(r"(?:^|[ ,])[A-Z\x80-\xff]").is_match(value);
        let words = || pattern!(r"^(?:[ ,]*[A-Za-z\x80-\xff'.-]+){1,5}[ ,]*$").is_match(value);
        // A house's number, and the name of a street or a town.
        let number =
            || pattern!(r"(?:^|[ ,])[0-9](?:[^0-9 ,]*[0-9]){0,4}[^0-9 ,]*(?:[ ,]|$)").is_match(value);
        let place = || pattern!(r"(?:^|[ ,])[A-Z\x80-\xff](?:[^ ,]*?[A-Za-z\x80-\xff]){2}").is_match(value);
        let rule = match kind {
            Name::Person if (2..=64).contains(&value.len()) && words() && capital() => self.ids.person,
            Name::Address if (6..=96).contains(&value.len()) && number() && place() => self.ids.address,
            _ => return,
        };
        if kind == Name::Person || !value.contains(&b'@') {
            self.hit(rule, start, start + value.len());
        }
    }
}

/// Whether a value looks like one of its kind.
fn is_secret_value(kind: Name, value: &[u8], quoted: bool) -> bool {
    match kind {
        Name::Password => is_password(value, quoted),
        Name::Secret => match shape_of(value) {
            Shape::Random => value.len() >= 8,
            Shape::Hex | Shape::Uuid => true,
            Shape::Letters => value.len() >= 16 || quoted && value.len() >= 8 && !is_phrase(value),
            Shape::Digits => value.len() >= 12,
            Shape::Other => value.len() >= 8 && has_symbols(value, quoted),
        },
        Name::Key => match shape_of(value) {
            Shape::Random => value.len() >= 12,
            Shape::Hex => value.len() >= 16,
            Shape::Uuid => true,
            Shape::Letters => value.len() >= 20,
            Shape::Digits => false,
            Shape::Other => value.len() >= 16 && has_symbols(value, quoted),
        },
        Name::Pin => (3..=8).contains(&value.len()) && value.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Whether a value may be a word of prose: no digit, no punctuation of passwords, no capital within.
pub(super) fn is_plain(value: &[u8]) -> bool {
    let sign = |byte: &u8| byte.is_ascii_digit() || b"!@#$%^&*+".contains(byte);
    !value.iter().any(sign) && !mixed_case(value)
}

/// Whether a value without quotes continues with this byte.
fn goes_on(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !matches!(byte, b'"' | b'\'' | b'`' | b'<')
}

/// The places of a word in a text, ignoring ASCII case.
pub(super) fn places<'a>(text: &'a [u8], word: &'a [u8]) -> impl Iterator<Item = usize> {
    let [small, capital] = [word[0].to_ascii_lowercase(), word[0].to_ascii_uppercase()];
    memchr::memchr2_iter(small, capital, text)
        .filter(|at| text.get(*at..at + word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word)))
}

pub(super) fn contains(text: &[u8], word: &[u8]) -> bool {
    places(text, word).next().is_some()
}

fn is_phrase(value: &[u8]) -> bool {
    value.iter().any(|byte| b" _-.".contains(byte))
}

/// Characters that passwords have and prose, paths and numbers do not.
fn has_symbols(value: &[u8], quoted: bool) -> bool {
    let letters = value.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let digits = value.iter().filter(|byte| byte.is_ascii_digit()).count();
    let blanks = value.iter().filter(|byte| **byte == b' ').count();
    let symbols = value.iter().filter(|byte| byte.is_ascii_punctuation()).count();
    blanks == 0 && letters > 0 && (digits > 0 || symbols >= 2) && (quoted || symbols * 2 <= value.len())
}

/// `correct horse battery`: words, none of which is about passwords or joins others to a sentence. Wallets' phrases have up to
/// twenty-four words (BIP 39).
fn is_pass_phrase(value: &[u8]) -> bool {
    let words = || value.split(|byte| *byte == b' ');
    let word = |word: &[u8]| {
        word.len() >= 3
            && word.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            && !WORDS.list.sentence.holds(word)
            && !is_empty_word(word)
            && !NAMES.has(word)
    };
    value.len() >= 14 && matches!(words().count(), 3..=10 | 12 | 15 | 18 | 21 | 24) && words().all(word)
}

fn is_password(value: &[u8], quoted: bool) -> bool {
    let blanks = value.iter().filter(|byte| **byte == b' ').count();
    let digits = value.iter().all(u8::is_ascii_digit);
    String::from_utf8_lossy(value).trim().chars().count() >= if quoted { 3 } else { 4 }
        && value.len() <= 256
        && (blanks < 2 || quoted && is_pass_phrase(value))
        && !(digits && !quoted && value.len() < 6)
        && (quoted || String::from_utf8_lossy(value).contains(char::is_alphanumeric))
}
