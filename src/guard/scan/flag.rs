//! Passwords on command lines: `mysql -pX`, `docker login -u ci -p X`, `--token X`, `smbclient -U bob%X`, `bob:X@10.0.0.7`.
//!
//! A long flag is a name. A short one says nothing by itself, so the command that takes a password so has to stand
//! before it on the line.

use super::keyed::places;
use super::stand_in::{is_empty_word, is_template};
use super::token::{Look, look, mixed_case};
use super::{Scanner, is_word, last_line};
use crate::guard::words::{Flag, Name, WORDS};

/// How far before a flag its command may stand.
const MAX_COMMAND: usize = 120;
/// The longest flag.
const MAX_FLAG: usize = 32;

impl Scanner<'_> {
    /// Looks at the flag whose dash is at `at`.
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
        if long == b"password-stdin" {
            return self.echoed(at);
        }
        if len > 2
            && blank
            && let kind @ (Name::Password | Name::Secret | Name::Key) = self.names.kind(long)
        {
            self.flag_value(kind, end);
        }
    }

    /// The value behind a long flag: no word of a sentence about the flag.
    fn flag_value(&mut self, kind: Name, at: usize) {
        let Some((start, end, quoted)) = self.value_after(at) else { return };
        let value = &self.text[start..end];
        let sign = |byte: &u8| byte.is_ascii_digit() || b"!@#$%^&*+".contains(byte);
        let word = kind == Name::Password && !quoted && !value.iter().any(sign) && !mixed_case(value);
        if value[0] != b'-' && !word {
            self.value(kind, false, start, end, quoted);
        }
    }

    /// A flag of one letter, by its command; `end` is behind the word that the flag begins.
    fn short_flag(&mut self, at: usize, letter: u8, end: usize) {
        let glued = !matches!(self.byte(at + 2), b' ' | b'\t');
        if letter == b'U' {
            return self.user_and_password(at + 2);
        }
        let line = last_line(self.before(at, MAX_COMMAND));
        if letter == b'S' {
            if end == at + 2 && line.ends_with(b"sudo ") {
                self.echoed(at);
            }
            return;
        }
        let takes = |flag: &&Flag| {
            flag.letter.as_bytes() == [letter]
                && flag.glued == glued
                && flag.words.iter().any(|command| names_command(line, command.as_bytes()))
        };
        if WORDS.flag.iter().any(|flag| takes(&flag)) {
            let Some((start, end, _)) = self.value_after(at + 2) else { return };
            // Other flags and an empty one are none.
            if end - start >= 4 && !matches!(self.text[start], b'-' | b'$') {
                self.value(Name::Password, false, start, end, true);
            }
        }
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

    /// `echo x | sudo -S`, `echo x | docker login --password-stdin`: the flag is at `at`.
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
        let in_user = |byte: &&u8| !outside(byte) && !(slash && **byte == b':');
        let len = at - start + 1 + before[..mark].iter().rev().take_while(in_user).count();
        let user = &self.text[at - len..start - 1];
        let host = self.text[at + 1..self.to.min(at + 64)]
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
            .count();
        let host = &self.text[at + 1..at + 1 + host];
        let named = !user.is_empty() && user.iter().all(|byte| is_word(*byte) || b".\\/".contains(byte));
        let is_host = match self.text[start - 1] {
            b':' => {
                let socket = matches!(host, b"tcp" | b"unix") && self.byte(at + 1 + host.len()) == b'(';
                is_address(host) || host == b"localhost" || socket || self.domain(at + 1).is_some()
            }
            _ => self.names_sql(at - len),
        };
        let told = named
            && is_host
            && matches!(look(password), Look::Random | Look::Hex | Look::Other)
            && !is_template(password)
            && !is_empty_word(password);
        if told {
            self.hit(self.ids.url_credentials, at - len, at);
        }
        told
    }

    /// Whether a client of Oracle's stands before.
    fn names_sql(&self, at: usize) -> bool {
        let oracle: [&[u8]; 9] = [
            b"sqlplus ",
            b"sqlldr ",
            b"expdp ",
            b"impdp ",
            b"exp ",
            b"imp ",
            b"rman target ",
            b"jdbc:oracle:thin:",
            b"jdbc:oracle:oci:",
        ];
        oracle.iter().any(|command| self.before(at, 17).ends_with(command))
    }
}

/// Whether a command is among the words of a line; its words may have others between them.
fn names_command(line: &[u8], command: &[u8]) -> bool {
    places(line, command).any(|at| {
        (at == 0 || !line[at - 1].is_ascii_alphanumeric())
            && line.get(at + command.len()).is_none_or(|next| matches!(next, b' ' | b'.'))
    })
}

/// Four numbers with dots between.
fn is_address(host: &[u8]) -> bool {
    let mut parts = 0;
    let numbers = host.split(|byte| *byte == b'.').all(|part| {
        parts += 1;
        (1..=3).contains(&part.len()) && part.iter().all(u8::is_ascii_digit)
    });
    numbers && parts == 4
}
