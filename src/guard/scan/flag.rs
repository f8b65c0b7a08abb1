//! Passwords on command lines: `mysql -pX`, `docker login -u ci -p X`, `--token X`, `net user bob X`, `bob:X@10.0.0.7`.
//!
//! A long flag is a name. A short one and a position have no meaning by themselves, so the command that takes a password in this
//! way must come before it on the line. The commands are data: `command` in `rules/names.toml`.

use std::net::Ipv4Addr;
use std::sync::LazyLock;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::dfa::DFA;

use super::excuse::Candidate;
use super::key_value::is_plain;
use super::token::{Shape, shape_of};
use super::{Scanner, first_line, is_word, last_line};
use crate::guard::classes::only;
use crate::guard::words::{Command, Name, WORDS};

/// How far before a flag its command may be, and how far after a command its last operand.
const MAX_COMMAND: usize = 120;
const MAX_OPERANDS: usize = 256;
/// The longest flag, the longest command in [`WORDS`], and the longest group of one-letter flags.
const MAX_FLAG: usize = 32;
const MAX_WORDS: usize = 32;
const MAX_GROUP: usize = 6;

/// The prefixes of `user/password@database` in Java addresses.
const ORACLE_DRIVERS: [&[u8]; 2] = [b"jdbc:oracle:thin:", b"jdbc:oracle:oci:"];

/// The commands that take a password.
static COMMANDS: LazyLock<Commands> = LazyLock::new(Commands::new);

struct Commands {
    automaton: DFA,
    start: StateID,
    /// By pattern, the row of [`WORDS`]' commands.
    rows: Vec<usize>,
    /// The letters that their flags begin with.
    letters: [bool; 256],
}

impl Commands {
    #[expect(clippy::expect_used, reason = "a few constant words; every test uses them")]
    fn new() -> Self {
        let rows = WORDS.command.iter().enumerate();
        let words = rows.flat_map(|(at, row)| row.words.iter().map(move |word| (at, word)));
        let (rows, words): (_, Vec<_>) = words.unzip();
        let automaton = DFA::builder().ascii_case_insensitive(true).build(words).expect("a few short words");
        let start = automaton.start_state(Anchored::No).expect("it may begin anywhere");
        let flags = WORDS.command.iter().flat_map(|row| &row.flags);
        let letters: Vec<u8> = flags.filter_map(|flag| flag.trim_start_matches('-').bytes().next()).collect();
        Self { automaton, start, rows, letters: only(&letters) }
    }
}

/// The commands in the text read so far.
#[derive(Default)]
pub(super) struct Seen {
    done: usize,
    state: Option<StateID>,
    /// By row, the start and the end of its last command.
    last: Vec<Option<(usize, usize)>>,
}

/// `[--password PASSWORD]`, as in a program's usage text.
pub(super) fn is_usage(value: &[u8]) -> bool {
    let name = value.strip_suffix(b"]").unwrap_or_default();
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_')
}

impl Scanner<'_> {
    /// Examines the flag whose dash or slash is at `at`.
    #[inline(never)]
    pub(super) fn flag(&mut self, at: usize) {
        let begins = matches!(self.text[at], b'-' | b'/')
            && matches!(self.byte_before(at), b' ' | b'\t' | b'\n' | b'"' | b'\'' | 0);
        let dashes = if self.byte(at + 1) == b'-' { 2 } else { 1 };
        let letter = self.byte(at + dashes);
        if !begins || !letter.is_ascii_alphabetic() && letter != b'_' {
            return;
        }
        let name = at + dashes;
        let len =
            self.text[name..self.to.min(name + MAX_FLAG)].iter().take_while(|byte| is_word(**byte)).count();
        let end = name + len;
        if COMMANDS.letters[usize::from(letter)] || dashes == 1 && len <= MAX_GROUP {
            self.commands(at, end);
        }
        if len > 2
            && self.text[at] == b'-'
            && matches!(self.byte(end), b' ' | b'\t')
            && let kind @ (Name::Password | Name::Secret | Name::Key) = self.names.kind(&self.text[name..end])
        {
            // Unless it is a word of a sentence about the flag.
            let Some((start, end, quoted)) = self.value_after(end) else { return };
            let value = &self.text[start..end];
            let word = kind == Name::Password && !quoted && is_plain(value);
            if value[0] != b'-' && !word && !is_usage(value) {
                self.value(kind, false, start, end, quoted);
            }
        }
    }

    /// The passwords that a command before the flag from `at` to `end` takes by it.
    fn commands(&mut self, at: usize, end: usize) {
        let (text, len, mut line) = (&self.text[at..], end - at, None);
        for (nth, row) in WORDS.command.iter().enumerate() {
            let fits = |known: &String| match known.as_bytes() {
                known if row.glued => text.starts_with(known) && text.get(known.len()) > Some(&b' '),
                known if row.group => len <= MAX_GROUP && text[1..len].contains(&known[1]),
                known => text[..len] == *known && matches!(text.get(len), Some(b' ' | b'\t' | b'=')),
            };
            let Some(known) = row.flags.iter().find(|known| fits(known)) else { continue };
            if !row.words.is_empty() {
                let line = *line.get_or_insert_with(|| at - last_line(self.before(at, MAX_COMMAND)).len());
                self.note_commands(line, at);
                if self.commands.last[nth].is_none_or(|(start, _)| start < line) {
                    continue;
                }
            }
            self.operand(row, if row.glued { at + known.len() } else { end });
        }
    }

    /// A command without a flag, of which the text before `end` is a part.
    pub(super) fn command(&mut self, end: usize) {
        let line = end - last_line(self.before(end, MAX_COMMAND)).len();
        let to = end + first_line(&self.text[end..self.to.min(end + MAX_WORDS)]).len();
        let known = std::mem::take(&mut self.commands);
        self.note_commands(line, to);
        let seen = std::mem::replace(&mut self.commands, known);
        for (row, place) in WORDS.command.iter().zip(seen.last) {
            if let Some((start, command_end)) = place
                && row.flags.is_empty()
                && (start..=command_end + 1).contains(&end)
                && self.may_begin(line, start)
            {
                self.operand(row, command_end);
            }
        }
    }

    /// Whether a command may begin at a place of the line: after a prompt, an operator, a quote.
    fn may_begin(&self, line: usize, at: usize) -> bool {
        let before = self.text[line..at].trim_ascii_end();
        let apart = before.last().is_none_or(|byte| b"$#>;|&(\"'`+%:-=".contains(byte));
        apart || [&b"sudo"[..], b"RUN", b"exec", b"then", b"do"].iter().any(|word| before.ends_with(word))
    }

    /// The password among the operands after `at`, as the row says.
    fn operand(&mut self, row: &Command, at: usize) {
        let place = if row.operands > 0 { self.last_operand(at, row) } else { self.value_after(at) };
        let Some((start, end, quoted)) = place else { return };
        let value = &self.text[start..end];
        let sets = || memchr::memmem::find(first_line(&self.text[end..]), b"chpasswd").is_some();
        let pair = row.piped && value.contains(&b':') && sets();
        if let Some(sign) = row.sign.or(pair.then_some(':')) {
            self.user_and_password(sign as u8, start, end);
            return;
        }
        // Another flag or an empty value is not a password, and neither is the word of a manual.
        let plain = row.operands > 0 && is_plain(value) && !quoted;
        if end - start >= 4 && !matches!(value[0], b'-' | b'$') && !plain {
            self.value(Name::Password, false, start, end, true);
        }
    }

    /// The last of a command's operands, which begin after `at`; of one in a pipeline, only if another reads it.
    fn last_operand(&mut self, at: usize, row: &Command) -> Option<(usize, usize, bool)> {
        let line = at + first_line(&self.text[at..self.to.min(at + MAX_OPERANDS)]).len();
        let (mut from, mut count, mut last) = (at, 0, None);
        loop {
            from += self.text[from..line].iter().take_while(|byte| matches!(**byte, b' ' | b'\t')).count();
            if from >= line || b"|;&><#)".contains(&self.text[from]) {
                break;
            }
            let (start, end, quoted) = self.value_after(from).filter(|(_, end, _)| *end <= line)?;
            if !matches!(self.text[start], b'-' | b'/') || quoted {
                (count, last) = (count + 1, Some((start, end, quoted)));
            }
            from = line.min(end + usize::from(quoted));
            from += self.text[from..line].iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
        }
        let reads = |word: &String| memchr::memmem::find(&self.text[from..line], word.as_bytes()).is_some();
        last.filter(|_| count >= row.operands && (!row.piped || WORDS.list.stdin.iter().any(reads)))
    }

    /// Notes the commands between two places. Each byte is read once, however many flags are on a line.
    fn note_commands(&mut self, line: usize, at: usize) {
        let mut seen = std::mem::take(&mut self.commands);
        seen.last.resize(WORDS.command.len(), None);
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
                    seen.last[COMMANDS.rows[command]] = Some((start, place + 1));
                }
            }
        }
        (seen.done, seen.state) = (at, Some(state));
        self.commands = seen;
    }

    /// `name:password`, `name%password`: what curl's and Samba's flags take.
    pub(super) fn user_and_password(&mut self, sign: u8, start: usize, end: usize) -> bool {
        let part = |byte: &&u8| !byte.is_ascii_whitespace() && !matches!(**byte, b'"' | b'\'');
        let mut end = end + self.text[end..self.to.min(end + MAX_OPERANDS)].iter().take_while(part).count();
        // The quote after it is escaped.
        end -= self.text[start..end].iter().rev().take_while(|byte| **byte == b'\\').count();
        let value = &self.text[start..end];
        let Some(at) = memchr::memchr(sign, value).filter(|at| *at > 0) else { return false };
        let (user, mut from) = (&value[..at], start + at + 1);
        // `scott/"x"@db`
        if from == end
            && let Some((start, close, true)) = self.value_after(from)
        {
            (from, end) = (start, close);
        }
        let password = &self.text[from..end];
        let signs = password.iter().all(|byte| !byte.is_ascii_alphanumeric());
        let words = user.eq_ignore_ascii_case(b"username") && password.eq_ignore_ascii_case(b"password");
        let is_user = user.iter().all(|byte| is_word(*byte) || *byte >= 0x80 || b".\\/@+$".contains(byte));
        if password.len() < 3 || signs || words || !is_user {
            return false;
        }
        if sign != b':' {
            self.value(Name::Password, false, from, end, true);
            return true;
        }
        self.propose(Candidate::new(self.ids.command_line_user, start, end).by(from, end, true))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Guard, Numbering};

    fn is_hidden(line: &str) -> bool {
        !Guard::default().text(line, &mut Numbering::alone()).0.contains("x7Qm-2Wd9p")
    }

    /// The line of a command, up to its password.
    fn begun(row: &Command, command: &str, flag: Option<&String>) -> String {
        let operands = "a1 ".repeat(row.operands.saturating_sub(1));
        let user = row.sign.map_or_else(String::new, |sign| format!("bob{sign}"));
        let flag = flag.map_or_else(String::new, |flag| match (row.glued, row.group) {
            (true, _) => flag.clone(),
            (_, true) => format!("-n{} ", &flag[1..]),
            _ => format!("{flag} "),
        });
        format!("$ {command} {flag}{operands}{user}")
    }

    #[test]
    fn each_command_of_the_table_takes_its_password() {
        for row in &WORDS.command {
            let any = ["tool".to_owned()];
            let flags: Vec<_> = match row.flags.is_empty() {
                true => vec![None],
                false => row.flags.iter().map(Some).collect(),
            };
            let piped = if row.piped { &WORDS.list.stdin[..] } else { &any };
            for command in if row.words.is_empty() { &any[..] } else { &row.words } {
                for (flag, reader) in flags.iter().flat_map(|flag| piped.iter().map(move |to| (flag, to))) {
                    let begun = begun(row, command, *flag);
                    for line in
                        [format!("{begun}x7Qm-2Wd9p | {reader}"), format!("{begun}'x7Qm-2Wd9p' | {reader}")]
                    {
                        assert!(is_hidden(&line), "{line}");
                        let other = line.replace(&command[..], "frobnicate");
                        assert!(row.words.is_empty() || !is_hidden(&other), "{other}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_operand_that_is_not_a_password_is_left_alone() {
        for line in [
            "net use Z: \\\\nas\\share",
            "net user bob",
            "net user username password /add",
            "the net user growth was 12 % in 2024-Q4",
            "htpasswd -B users.txt x7Qm-2Wd9p",
            "htpasswd -b file username $PASSWORD",
            "echo x7Qm-2Wd9p | tee out.txt",
            "echo x7Qm-2Wd9p",
            "lftp -u anonymous, ftp.example.org",
            "curl -u $USER:$PASS https://example.org",
            "sort -u names.txt",
            "smartd '-u USER[:GROUP]'",
        ] {
            let guarded = Guard::default().text(line, &mut Numbering::alone()).0;
            assert_eq!(&*guarded, line);
        }
    }
}
