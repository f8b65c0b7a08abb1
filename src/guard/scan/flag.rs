//! Passwords on command lines: `mysql -pX`, `docker login -u ci -p X`, `--token X`, `smbclient -U bob%X`, `bob:X@10.0.0.7`.
//!
//! A long flag is a name. A short one has no meaning by itself, so the command that takes a password in this way must come
//! before it on the line.

use std::net::Ipv4Addr;
use std::sync::LazyLock;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::dfa::DFA;

use super::excuse::Candidate;
use super::key_value::is_plain;
use super::token::{Shape, shape_of};
use super::{Scanner, is_word, last_line};
use crate::guard::words::{Flag, Name, WORDS};

/// How far before a flag its command may be.
const MAX_COMMAND: usize = 120;
/// The longest flag.
const MAX_FLAG: usize = 32;

/// The prefixes of `user/password@database` in Java addresses.
const ORACLE_DRIVERS: [&[u8]; 2] = [b"jdbc:oracle:thin:", b"jdbc:oracle:oci:"];

/// The commands that take a password by a short flag.
static COMMANDS: LazyLock<Commands> = LazyLock::new(Commands::new);

struct Commands {
    automaton: DFA,
    start: StateID,
    /// By pattern, which of [`WORDS`]' flags it takes.
    flags: Vec<usize>,
}

impl Commands {
    #[expect(clippy::expect_used, reason = "a few constant words; every test uses them")]
    fn new() -> Self {
        let flags = WORDS.flag.iter().enumerate();
        let words = flags.flat_map(|(at, flag)| flag.words.iter().map(move |word| (at, word)));
        let (flags, words): (_, Vec<_>) = words.unzip();
        let automaton = DFA::builder().ascii_case_insensitive(true).build(words).expect("a few short words");
        let start = automaton.start_state(Anchored::No).expect("it may begin anywhere");
        Self { automaton, start, flags }
    }
}

/// The commands in the text read so far.
#[derive(Default)]
pub(super) struct Seen {
    done: usize,
    state: Option<StateID>,
    /// By flag, the start of the last command that takes it.
    last: Vec<Option<usize>>,
}

/// `[--password PASSWORD]`, as in a program's usage text.
pub(super) fn is_usage(value: &[u8]) -> bool {
    let name = value.strip_suffix(b"]").unwrap_or_default();
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_')
}

impl Scanner<'_> {
    /// Examines the flag whose dash is at `at`.
    #[inline(never)]
    pub(super) fn flag(&mut self, at: usize) {
        let begins =
            self.text[at] == b'-' && matches!(self.byte_before(at), b' ' | b'\t' | b'\n' | b'"' | b'\'' | 0);
        let dashes = if self.byte(at + 1) == b'-' { 2 } else { 1 };
        let letter = self.byte(at + dashes);
        if !begins || !letter.is_ascii_alphabetic() && letter != b'_' {
            return;
        }
        let name = at + dashes;
        let len =
            self.text[name..self.to.min(name + MAX_FLAG)].iter().take_while(|byte| is_word(**byte)).count();
        let end = name + len;
        let blank = matches!(self.byte(end), b' ' | b'\t');
        if dashes == 1 && b"pPawkUS".contains(&letter) {
            self.short_flag(at, letter, end);
        }
        let long = &self.text[name..end];
        if long == b"password-stdin" || long == b"stdin" && self.before(at, 7) == b"passwd " {
            return self.echoed(at);
        }
        if len > 2
            && blank
            && let kind @ (Name::Password | Name::Secret | Name::Key) = self.names.kind(long)
        {
            self.flag_value(kind, end);
        }
    }

    /// The value after a long flag, unless it is a word of a sentence about the flag.
    fn flag_value(&mut self, kind: Name, at: usize) {
        let Some((start, end, quoted)) = self.value_after(at) else { return };
        let value = &self.text[start..end];
        let word = kind == Name::Password && !quoted && is_plain(value);
        if value[0] != b'-' && !word && !is_usage(value) {
            self.value(kind, false, start, end, quoted);
        }
    }

    /// A one-letter flag, by its command; `end` is after the word that the flag begins.
    fn short_flag(&mut self, at: usize, letter: u8, end: usize) {
        let glued = !matches!(self.byte(at + 2), b' ' | b'\t');
        if letter == b'U' {
            return self.user_and_password(at + 2);
        }
        if letter == b'S' {
            if end == at + 2 && self.before(at, 8).ends_with(b"sudo ") {
                self.echoed(at);
            }
            return;
        }
        let line = at - last_line(self.before(at, MAX_COMMAND)).len();
        self.commands(line, at);
        let takes = |(flag, named): (&Flag, &Option<usize>)| {
            flag.letter.as_bytes() == [letter] && flag.glued == glued && named.is_some_and(|at| at >= line)
        };
        if WORDS.flag.iter().zip(&self.commands.last).any(takes) {
            let Some((start, end, _)) = self.value_after(at + 2) else { return };
            // Another flag or an empty value is not a password.
            if end - start >= 4 && !matches!(self.text[start], b'-' | b'$') {
                self.value(Name::Password, false, start, end, true);
            }
        }
    }

    /// Notes the commands between two places. Each byte is read once, however many flags are on a line.
    fn commands(&mut self, line: usize, at: usize) {
        let mut seen = std::mem::take(&mut self.commands);
        seen.last.resize(WORDS.flag.len(), None);
        let mut state = seen.state.filter(|_| line <= seen.done).unwrap_or(COMMANDS.start);
        for place in line.max(seen.done)..at {
            state = COMMANDS.automaton.next_state(Anchored::No, state, self.text[place]);
            if !COMMANDS.automaton.is_match(state) || !matches!(self.byte(place + 1), b' ' | b'.') {
                continue;
            }
            for nth in 0..COMMANDS.automaton.match_len(state) {
                let command = COMMANDS.automaton.match_pattern(state, nth);
                let start = place + 1 - COMMANDS.automaton.pattern_len(command);
                if !self.byte_before(start).is_ascii_alphanumeric() {
                    seen.last[COMMANDS.flags[command]] = Some(start);
                }
            }
        }
        (seen.done, seen.state) = (at, Some(state));
        self.commands = seen;
    }

    /// `-U name%password`, as Samba's tools take it.
    fn user_and_password(&mut self, at: usize) {
        let Some((start, end, _)) = self.value_after(at) else { return };
        let value = &self.text[start..end];
        let Some(sign) = memchr::memchr(b'%', value) else { return };
        let user = &value[..sign];
        let is_user = !user.is_empty() && user.iter().all(|byte| is_word(*byte) || b".\\/@".contains(byte));
        if is_user && value.len() - sign > 4 {
            self.value(Name::Password, false, start + sign + 1, end, true);
        }
    }

    /// `echo x | sudo -S`, `echo x | docker login --password-stdin`, `echo x | passwd --stdin bob`: the flag is at `at`.
    fn echoed(&mut self, at: usize) {
        let line = last_line(self.before(at, MAX_COMMAND));
        let Some(echo) = memchr::memmem::rfind(line, b"echo ") else { return };
        if !line[echo..].contains(&b'|') {
            return;
        }
        if let Some((start, end, _)) = self.value_after(at - line.len() + echo + 5) {
            self.value(Name::Password, false, start, end, true);
        }
    }

    /// `user:password@host` without a scheme, `user:password@tcp(host)` of Go, `sqlplus user/password@database`,
    /// `jdbc:oracle:thin:user/password@//host`: the `@` is at `at`.
    pub(super) fn login(&mut self, at: usize) -> bool {
        let before = self.before(at, 64);
        let Some(mark) = memchr::memrchr2(b':', b'/', before) else { return false };
        let start = at - before.len() + mark + 1;
        let outside = |byte: &u8| {
            byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`' | b'=' | b'(' | b',')
        };
        let password = &self.text[start..at];
        let strong = password.len() >= 8 && password.iter().any(u8::is_ascii_digit);
        if !strong || password.iter().any(outside) {
            return false;
        }
        let slash = before[mark] == b'/';
        let in_user = |byte: &&u8| !(outside(byte) || slash && **byte == b':');
        let len = at - start + 1 + before[..mark].iter().rev().take_while(in_user).count();
        let user = &self.text[at - len..start - 1];
        let user = ORACLE_DRIVERS.iter().find_map(|driver| user.strip_prefix(*driver)).unwrap_or(user);
        let host = self.text[at + 1..self.to.min(at + 64)]
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
            .count();
        let host = &self.text[at + 1..at + 1 + host];
        let named = !matches!(user, b"" | b"mailto")
            && user.iter().all(|byte| is_word(*byte) || b".\\/".contains(byte));
        let is_host = match self.text[start - 1] {
            b':' => {
                let socket = matches!(host, b"tcp" | b"unix") && self.byte(at + 1 + host.len()) == b'(';
                is_address(host) || host == b"localhost" || socket || self.domain(at + 1).is_some()
            }
            _ => self.names_sql(at - len),
        };
        let fits =
            named && is_host && matches!(shape_of(password), Shape::Random | Shape::Hex | Shape::Other);
        let candidate = Candidate::new(self.ids.url_credentials, start - 1 - user.len(), at);
        fits && self.propose(candidate.by(start, at, true))
    }

    /// Whether an Oracle client comes before it.
    fn names_sql(&self, at: usize) -> bool {
        let commands =
            [&b"sqlplus "[..], b"sqlldr ", b"expdp ", b"impdp ", b"exp ", b"imp ", b"rman target "];
        let mut clients = commands.iter().chain(&ORACLE_DRIVERS);
        clients.any(|client| self.before(at, 17).ends_with(client))
    }
}

/// Whether it is an IPv4 address.
pub(super) fn is_address(host: &[u8]) -> bool {
    std::str::from_utf8(host).is_ok_and(|host| host.parse::<Ipv4Addr>().is_ok())
}
