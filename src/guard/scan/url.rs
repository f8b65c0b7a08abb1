//! URLs: credentials in them, and addresses that are themselves a secret (web hooks).

use super::Scanner;
use super::excuse::Candidate;
use crate::guard::classes::only;
use crate::guard::rule::pattern;
use crate::guard::words::{WORDS, ends};

/// The longest authority and path that are examined.
const MAX: usize = 1024;

/// Characters that are not in any URL: spaces, quotes, brackets around it.
static OUTSIDE: [bool; 256] = only(b" \t\n\r\x0c\"'<>`|\\");

impl Scanner<'_> {
    /// Examines the URL whose `://` begins at `at`.
    #[inline(never)]
    pub(super) fn url(&mut self, at: usize) {
        let scheme_char =
            |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'+' | b'.' | b'-' | b':');
        let back = self.before(at, 32).iter().rev().take_while(scheme_char).count();
        let start = at - back;
        let scheme = &self.text[start..at];
        let body = at + 3;
        let outside = |byte: &u8| OUTSIDE[usize::from(*byte)];
        let rest = &self.text[body..self.to.min(body + MAX)];
        let stop = |byte: &u8| OUTSIDE[usize::from(*byte)] || matches!(byte, b'/' | b'?' | b'#');
        let authority = rest.iter().take(300).position(stop).unwrap_or(rest.len().min(300));
        let authority = authority_end(rest, authority);
        let at_sign = memchr::memrchr(b'@', &rest[..authority]);
        let host = &rest[at_sign.map_or(0, |at| at + 1)..authority];
        let hook = rest.get(authority) == Some(&b'/') && host.len() >= 7 && is_hook(host, &rest[authority..]);
        let scheme = scheme.len();
        // The path is read only where it matters.
        let len = if hook || at_sign.is_some() && self.names_database(start, scheme) {
            rest.iter().position(outside).unwrap_or(rest.len())
        } else {
            authority
        };
        let end = body + len;
        if let Some(at) = at_sign {
            self.user_info(start, scheme, body, body + at, end);
        }
        if hook && len - authority >= 16 {
            self.hook(start, end);
        }
    }

    /// An address that is a secret as a whole.
    #[inline(never)]
    fn hook(&mut self, start: usize, end: usize) {
        let tail = self.text[..end].iter().rev().take_while(|byte| b"),.;]".contains(byte)).count();
        self.hit(self.ids.web_hook, start, end - tail);
    }

    fn names_database(&self, start: usize, len: usize) -> bool {
        let mut parts = self.text[start..start + len].split(|byte| matches!(byte, b':' | b'+'));
        parts.any(|part| WORDS.list.databases.holds(part))
    }

    /// `user:password` or a token before the `@`.
    fn user_info(&mut self, start: usize, scheme: usize, from: usize, at: usize, end: usize) {
        let info = &self.text[from..at];
        let (user, password) = match memchr::memchr(b':', info) {
            Some(colon) => (&info[..colon], &info[colon + 1..]),
            None => (&info[..0], info),
        };
        let lone = user.is_empty() && memchr::memchr(b':', info).is_none();
        let token = |byte: &u8| super::is_word(*byte) || matches!(*byte, b'.' | b'~' | b'%');
        if lone && !password.iter().all(token) {
            return;
        }
        // `user:user@` in a handbook; a longer one may be somebody's.
        let shown = user == password && password.len() <= 8 && password.iter().all(u8::is_ascii_lowercase);
        // `user[:password]@`, `username:password@`
        let named =
            is_one(user, &[b"user", b"username"]) && is_one(password, &[b"pass", b"passwd", b"password"]);
        if password.is_empty() || shown || named || lone && password.len() < 20 {
            return;
        }
        if self.names_database(start, scheme) {
            let tail = self.text[at..end]
                .iter()
                .rev()
                .take_while(|byte| matches!(**byte, b')' | b',' | b';' | b']' | b'}' | b'.'))
                .count();
            let candidate = Candidate::new(self.ids.database_url, start, end - tail);
            self.propose(candidate.by(at - password.len(), at, true));
        } else {
            let candidate = Candidate::new(self.ids.url_credentials, from, at);
            self.propose(candidate.by(at - password.len(), at, true));
        }
    }
}

/// The end of an authority, `stop` being the first character that may end one: a `?` or `#` may also be part of an
/// unencoded password. A port is not one.
fn authority_end(rest: &[u8], stop: usize) -> usize {
    let password = match rest.get(stop) {
        Some(b'?' | b'#') => memchr::memchr(b':', &rest[..stop]).map(|colon| &rest[colon + 1..stop]),
        _ => None,
    };
    let begun = password.is_some_and(|begun| !is_port(begun));
    if !begun || rest[0] == b'[' || rest[..stop].contains(&b'@') {
        return stop;
    }
    let outside = |byte: &u8| OUTSIDE[usize::from(*byte)] || *byte == b'/';
    let end = rest.iter().take(300).position(outside).unwrap_or(rest.len().min(300));
    if rest[stop..end].contains(&b'@') { end } else { stop }
}

/// `8080`, `PORT`, `${APP_PORT}`, `{n}`: a port or a placeholder for one.
fn is_port(text: &[u8]) -> bool {
    pattern!(r"^(?:[0-9\]]*|%[dsiu]|[${][A-Za-z_${}()\[\].]*[})])$").is_match(text)
        || text.len() <= 24 && pattern!(r"(?i)^[a-z_${}()\[\]]*port[a-z_${}()\[\]]*$").is_match(text)
}

/// Whether a text is one of the words, perhaps in the brackets of an address template.
fn is_one(text: &[u8], words: &[&[u8]]) -> bool {
    let start = text.iter().take_while(|byte| matches!(byte, b'[' | b'(' | b'<')).count();
    let end = text.iter().rev().take_while(|byte| matches!(byte, b'[' | b']' | b')' | b'>')).count();
    text.get(start..text.len() - end).is_some_and(|text| words.contains(&text))
}

/// Addresses that are a credential: knowing the path is enough to act.
fn is_hook(host: &[u8], path: &[u8]) -> bool {
    let host = host.split(|byte| *byte == b':').next().unwrap_or(host);
    let is = |name: &str| match name.starts_with('.') {
        true => host.len() > name.len() && ends(host, name.as_bytes()),
        false => host.eq_ignore_ascii_case(name.as_bytes()),
    };
    WORDS.list.hooks.iter().any(|(name, begin)| is(name) && path.starts_with(begin.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_a_word_ends_an_authority() {
        for rest in
            ["localhost:PORT#@anchor", "host.example.com:${PORT}?to=alice@example.com", "host:{n}?a=b@c"]
        {
            let stop = rest.find(['?', '#']).unwrap();
            assert_eq!(authority_end(rest.as_bytes(), stop), stop, "{rest}");
        }
        for rest in ["bob:hunter?secret@host", "bob:$uper?secret@host", "bob:port4uk#x@host"] {
            let stop = rest.find(['?', '#']).unwrap();
            assert_eq!(authority_end(rest.as_bytes(), stop), rest.len(), "{rest}");
        }
    }
}
