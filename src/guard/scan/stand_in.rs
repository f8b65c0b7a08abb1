//! What stands where a value would and is none: templates, masks, words, code.
//!
//! Each look is at the whole text. A skip that asked only how a text begins or ends would be a way out for every
//! secret that begins or ends so: `**` before it, `<` and `>` around it, `config.` in front.

use super::token::{Look, look};
use crate::guard::words::{self, WORDS};

/// A place to be filled in, or what a mask left.
pub(super) fn is_template(text: &[u8]) -> bool {
    let Some((first, last)) = text.first().zip(text.last()) else { return true };
    // `xxxx-xxxx-xxxx`
    let filled = b"xX.0#?".contains(first) && text.iter().all(|byte| byte == first || b"-_ ".contains(byte));
    if text.iter().all(|byte| byte == first) || filled || is_mask(text) || says_so(text) {
        return true;
    }
    let inside = |open: usize| {
        let inner = text.get(open..text.len() - 1).unwrap_or_default();
        is_names(inner, b" \t_-.:/|'\"[]{}()<>$,?@=+")
    };
    match (first, last) {
        (b'<', b'>') | (b'{', b'}') | (b'[', b']') | (b'%', b'%') => inside(1),
        (b'@' | b'#', b'}') => text[1] == b'{' && inside(2),
        (b'%', _) if text.len() < 4 => true,
        (b'%', b's' | b'd' | b'r' | b')') => text[1] == b'(' && inside(2),
        (b'$', _) => is_names(&text[1..], b"_{}().:-[]>'\"?/ $"),
        // Shell that holds an expression further on: `prefix-${NAME}`.
        (_, b'}' | b')') => {
            let open = text.windows(2).position(|pair| matches!(pair, b"${" | b"$(" | b"{{"));
            open.is_some_and(|at| {
                is_names(&text[..at], b"_-.:/@") && is_names(&text[at + 1..], b"_{}().:-[]'\"?/ ")
            })
        }
        _ => false,
    }
}

/// The literal in `${NAME:-literal}`: what is used where nothing is set is a value.
pub(super) fn shell_default(text: &[u8]) -> Option<(usize, usize)> {
    let name =
        text.strip_prefix(b"${")?.iter().take_while(|byte| super::is_word(**byte) && **byte != b'-').count();
    let rest = text.get(name + 2..)?.strip_suffix(b"}")?;
    let colon = usize::from(rest.first() == Some(&b':'));
    let literal = matches!(rest.get(colon), Some(b'-' | b'=')) && name > 0;
    (literal && rest.len() > colon + 1).then_some((name + 3 + colon, text.len() - 1))
}

/// What [`mask`](crate::guard::redact) can leave: stars first, and no more letters and digits than stars, at most
/// eight.
fn is_mask(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let stars = text.chars().filter(|c| *c == '*').count();
    let kept = text.chars().filter(|c| c.is_alphanumeric()).count();
    let starred = text.chars().find(|c| *c == '*' || c.is_alphanumeric()) == Some('*');
    starred && kept <= stars.min(8) && stars >= 2
}

/// `your-api-key-here`
fn says_so(text: &[u8]) -> bool {
    let words = || text.split(|byte| b"-_ .".contains(byte));
    words().any(|word| words::is_one_of(&WORDS.list.to_be_filled, word))
        && words().all(|word| word.iter().all(u8::is_ascii_alphabetic))
        && is_names(text, b"-_ .")
}

/// Whether a text is made of words as names are, joined by `joints`: no part of it mixes letters and digits as
/// secrets do.
pub(super) fn is_names(text: &[u8], joints: &[u8]) -> bool {
    const KNOWN: [&[u8]; 8] =
        [b"b64encode", b"b64decode", b"b64enc", b"b64dec", b"sha256", b"sha512", b"base64", b"oauth2"];
    text.split(|byte| joints.contains(byte)).all(|part| {
        let letters = part.iter().take_while(|byte| byte.is_ascii_alphabetic() || **byte >= 0x80).count();
        let digits = part[letters..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let plain = letters + digits == part.len() && digits <= if letters == 0 { 4 } else { 2 };
        plain && !(part.len() >= 16 && look(part) == Look::Random) || KNOWN.contains(&part)
    })
}

/// Words that stand where a value would and are none.
pub(super) fn is_empty_word(value: &[u8]) -> bool {
    words::is_one_of(&WORDS.list.no_value, value) || super::is_placeholder(value)
}

/// A name, a call or a look-up in a program, where a value would be a literal. `next` is the byte behind it.
pub(super) fn is_code(value: &[u8], next: u8, quoted: bool) -> bool {
    const STARTS: &[&[u8]] = &[
        b"os.",
        b"process.",
        b"env.",
        b"ENV[",
        b"self.",
        b"this.",
        b"settings.",
        b"config.",
        b"getenv",
        b"System.",
        b"request.",
        b"args.",
        b"var.",
        b"local.",
        b"data.",
        b"secrets.",
        b"vault:",
        b"ref+",
    ];
    let starts = STARTS.iter().any(|start| value.starts_with(start));
    if starts && is_names(value, b"_.()[]{}'\"/:#,+-<> $")
        || value.starts_with(b"arn:") && value.iter().filter(|byte| **byte == b':').count() >= 5
    {
        return true;
    }
    if quoted {
        return false;
    }
    // What follows the name of a call or a table: the quote, bracket or blank where the value was cut off.
    let name_len = value.iter().take_while(|byte| super::is_word(**byte) || **byte == b'.').count();
    let (name, rest) = value.split_at(name_len);
    let cut = matches!(next, b')' | b']' | b'"' | b'\'' | b'`' | b',' | b';') || rest.len() == 1;
    let opened = matches!(rest.first(), Some(b'(' | b'[')) && !name.is_empty() && !name[0].is_ascii_digit();
    let inside = rest.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_.()[]\"',:".contains(byte));
    let call = opened && cut && inside && is_names(name, b"_.-");
    let joined = value.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'.'))
        && value.iter().any(|byte| matches!(byte, b'_' | b'.'));
    call || joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_no_values() {
        for text in [
            "${PW}",
            "$PASSWORD",
            "$(PGUSER)",
            "$env:API_KEY",
            "{{ vault_password }}",
            "{{ .Values.auth.password | quote }}",
            "${{ secrets.NPM_PASSWORD }}",
            "${DB_PASSWORD:?required}",
            "%PASSWORD%",
            "%s",
            "%(password)s",
            "<your-password>",
            "[PASSWORD]",
            "#{pw}",
            "xxxx",
            "****",
            "xxxx-xxxx-xxxx",
            "your-api-key-here",
            "YOUR_API_KEY",
            "prefix-${NAME}",
        ] {
            assert!(is_template(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_secret_that_begins_or_ends_like_a_template_is_a_secret() {
        for text in [
            "**hunter2-x9",
            "**",
            "****4fd8Kq92",
            "$uper5ecret",
            "$x9Kd82hfLq",
            "<x9Kd82hfLq>",
            "{x9Kd82hfLq}",
            "[x9Kd82hfLq]",
            "%x9Kd82hfLq%",
            "%(x9Kd82hfLq",
            "@{x9Kd82hfLq}",
            "#{hunter",
            "#{x9Kd82hfLq}",
            "${x9Kd82hfLq}",
            "$(x9Kd82hfLq)",
            "x9Kd82hfLq${X}",
            "xxxxhunter2",
            "xxxx-hunter2",
            "your-x9Kd82hfLq",
            "redacted-hunter2",
            "REDACTEDx9Kd82",
        ] {
            assert_eq!(is_template(text.as_bytes()), text == "**", "{text}");
        }
        assert!(!is_empty_word(b"[PASSWORD_1]x9Kd82hfLq") && !is_empty_word(b"x9Kd82hfLq[PASSWORD_1]"));
        assert!(!is_empty_word(b"redacted-hunter2") && is_empty_word(b"REDACTED"));
    }

    #[test]
    fn what_a_mask_leaves_is_left_alone() {
        for text in
            ["****er2x", "**c", "*-*-*-s-w", "***d*e", "****-****-****-1234", "\u{2a}\u{2a}\u{2a}\u{43f}"]
        {
            assert!(is_mask(text.as_bytes()), "{text}");
        }
        for text in ["*x", "a**", "**abc", "*********abcdefghi"] {
            assert!(!is_mask(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn code_is_no_value_and_a_secret_that_begins_like_it_is() {
        for (text, next) in [
            ("os.environ[", b'"'),
            ("getpass.getpass(", b'"'),
            ("st.secrets[", b'"'),
            ("get_token(request", b')'),
            ("settings.CLIENT_SECRET", 0),
            ("user.password", 0),
        ] {
            assert!(is_code(text.as_bytes(), next, false), "{text}");
        }
        assert!(is_code(b"os.environ['X']", b'"', true));
        assert!(is_code(b"arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf", 0, true));
        for text in ["config.x9Kd82hfLq", "vault:x9Kd82hfLq", "p4ss(w0rd", "data.hunter22x", "x9Kd82(hfLq"] {
            assert!(!is_code(text.as_bytes(), 0, false), "{text}");
            assert!(!is_code(text.as_bytes(), 0, true), "{text}");
        }
    }

    #[test]
    fn what_a_shell_falls_back_to_is_a_value() {
        let default = |text: &'static str| shell_default(text.as_bytes()).map(|(from, to)| &text[from..to]);
        assert_eq!(default("${DB_PASSWORD:-hunter2}"), Some("hunter2"));
        assert_eq!(default("${DB_PASSWORD-hunter2}"), Some("hunter2"));
        for none in ["${DB_PASSWORD}", "${DB_PASSWORD:-}", "${DB_PASSWORD:?required}", "$DB", "${", "${:-x}"]
        {
            assert_eq!(default(none), None, "{none}");
        }
    }
}
