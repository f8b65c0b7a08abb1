//! What stands where a value would and is none: templates, masks, words, code.
//!
//! Each look is at the whole text. A skip that asked only how a text begins or ends would be a way out for every
//! secret that begins or ends so: `**` before it, `<` and `>` around it, `config.` in front.

use super::name::NAMES;
use super::token::{Look, look};
use super::wordy::{is_path, is_wordy};
use crate::guard::words::WORDS;

/// A place to be filled in, or what a mask left.
pub(super) fn is_template(text: &[u8]) -> bool {
    let Some((first, last)) = text.first().zip(text.last()) else { return true };
    // `&lt;your-key&gt;`
    if [&b"&lt;"[..], b"&#x3C;", b"&#60;"].iter().any(|open| text.starts_with(open)) {
        let inner = &text[text.iter().position(|byte| *byte == b';').unwrap_or(0) + 1..];
        // A blank may have cut it off.
        if inner.iter().all(u8::is_ascii_alphabetic) {
            return true;
        }
        let closed = memchr::memmem::find(inner, b"&gt;").is_some() || inner.contains(&b'>');
        return closed && is_names(inner, b" \t_-.:/|[]<>&;,");
    }
    // `xxxx-xxxx-xxxx`
    let filled = b"xX.0#?".contains(first) && text.iter().all(|byte| byte == first || b"-_ ".contains(byte));
    if text.iter().all(|byte| byte == first) || filled || is_mask(text) || says_so(text) {
        return true;
    }
    let inside = |open: usize| {
        let inner = text.get(open..text.len() - 1).unwrap_or_default();
        // `{name!r}`
        let inner = inner.strip_suffix(b"!r").or(inner.strip_suffix(b"!s")).unwrap_or(inner);
        is_names(inner, b" \t_-.:/|'\"[]{}()<>$,?@=+\\")
    };
    match (first, last) {
        (b'<', b'>') | (b'{', b'}') | (b'[', b']') | (b'%', b'%') => inside(1),
        (b'@' | b'#', b'}') => text[1] == b'{' && inside(2),
        (b'%', _) if text.len() < 4 || is_format(text) => true,
        (b'%', b's' | b'd' | b'r' | b')') => text[1] == b'(' && inside(2),
        // `$!`, `${...}`: signs alone are a password when there are more of them.
        (b'$', _) if !text.iter().any(|byte| byte.is_ascii_alphanumeric() || *byte >= 0x80) => {
            text.len() <= 4 && text.iter().all(u8::is_ascii_punctuation)
                || matches!(text, [_, b'{' | b'(', inner @ .., b'}' | b')'] if inner.iter().all(|b| *b == b'.'))
        }
        (b'$', _) => is_names(&text[1..], b"_{}().:-[]>'\"?/ $"),
        // Shell that holds an expression further on: `prefix-${NAME}`.
        (_, b'}' | b')') => {
            let open = text.windows(2).position(|pair| matches!(pair, b"${" | b"$(" | b"{{"));
            open.is_some_and(|at| {
                is_names(&text[..at], b"_-.:/@") && is_names(&text[at + 1..], b"_{}().:-[]'\"?/ |$")
            })
        }
        _ => false,
    }
}

/// `%s:%s`
fn is_format(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'%').skip(1).all(|part| {
        part.first().is_some_and(u8::is_ascii_alphabetic)
            && part.len() <= 4
            && part[1..].iter().all(u8::is_ascii_punctuation)
    })
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
    if memchr::memchr(b'*', text).is_none() {
        return false;
    }
    let text = String::from_utf8_lossy(text);
    let stars = text.chars().filter(|c| *c == '*').count();
    let kept = text.chars().filter(|c| c.is_alphanumeric()).count();
    let starred = text.chars().find(|c| *c == '*' || c.is_alphanumeric()) == Some('*');
    starred && kept <= stars.min(8) && stars >= 2
}

/// `your-api-key-here`
pub(super) fn says_so(text: &[u8]) -> bool {
    let words = || text.split(|byte| b"-_ .".contains(byte));
    words().any(|word| WORDS.list.to_be_filled.holds(word))
        && words().all(|word| word.iter().all(u8::is_ascii_alphabetic))
        && is_names(text, b"-_ .")
}

/// Whether a text is made of words as names are, joined by `joints`: no part of it mixes letters and digits as
/// secrets do.
pub(super) fn is_names(text: &[u8], joints: &[u8]) -> bool {
    let plain = |part: &[u8]| {
        let letters = part.iter().take_while(|byte| byte.is_ascii_alphabetic() || **byte >= 0x80).count();
        let digits = part[letters..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        letters + digits == part.len()
            && digits <= if letters == 0 { 4 } else { 2 }
            && !(part.len() >= 16 && look(part) == Look::Random)
    };
    text.split(|byte| joints.contains(byte)).all(|part| {
        plain(part) || around_algorithm(part).is_some_and(|(before, after)| plain(before) && plain(after))
    })
}

/// What stands around the name of an algorithm that has digits in it: `base64FromBytes`, `Ed25519PrivateKey`.
pub(super) fn around_algorithm(part: &[u8]) -> Option<(&[u8], &[u8])> {
    const NAMES: [&[u8]; 21] = [
        b"base64",
        b"b64",
        b"sha1",
        b"sha224",
        b"sha256",
        b"sha384",
        b"sha512",
        b"md5",
        b"aes128",
        b"aes192",
        b"aes256",
        b"x25519",
        b"curve25519",
        b"ed25519",
        b"poly1305",
        b"oauth2",
        b"x509",
        b"nistp256",
        b"utf8",
        b"i128",
        b"u128",
    ];
    if part.len() > 64 || !part.iter().any(u8::is_ascii_digit) {
        return None;
    }
    NAMES.iter().find_map(|name| {
        let at = part.windows(name.len()).position(|word| word.eq_ignore_ascii_case(name))?;
        Some((&part[..at], &part[at + name.len()..]))
    })
}

/// A value without the blanks around it, the line's end that a string spells out (`%s\\n`) and the end of a head.
pub(super) fn trimmed(value: &[u8]) -> &[u8] {
    let mut value = value.trim_ascii();
    while let [rest @ .., b'\\', b'n' | b'r' | b't'] = value {
        value = rest;
    }
    // `def f(key, password=None):`
    value.strip_suffix(b"):").unwrap_or(value)
}

/// What a form or a catalogue of messages calls a password or a key: `Passwort`, `Mot de passe`, `API-Schlüssel`.
pub(super) fn is_label(value: &[u8]) -> bool {
    let sign = |byte: &u8| byte.is_ascii_alphabetic() || *byte >= 0x80 || b" -?!.:*".contains(byte);
    let telling = |word: &[u8]| {
        let word = word.strip_suffix(b"?").or(word.strip_suffix(b":")).unwrap_or(word);
        let joint = memchr::memrchr(b'-', word).filter(|at| word[..*at].iter().all(u8::is_ascii_uppercase));
        NAMES.has(joint.map_or(word, |at| &word[at + 1..]))
    };
    value.len() <= 48 && value.iter().all(sign) && value.split(|byte| *byte == b' ').any(telling)
}

/// Words that stand where a value would and are none.
pub(super) fn is_empty_word(value: &[u8]) -> bool {
    WORDS.list.no_value.holds(value) || super::is_placeholder(value)
}

/// A name, a call or a look-up in a program, where a value would be a literal. `next` is the byte behind it.
pub(super) fn is_code(value: &[u8], next: u8, quoted: bool) -> bool {
    if starts_like_code(value)
        || value.starts_with(b"arn:") && value.iter().filter(|byte| **byte == b':').count() >= 5
    {
        return true;
    }
    // `--encryption-key`: another flag. `projects/p/secrets/s/versions/2`: where something is.
    let flag = value.starts_with(b"--") && is_names(&value[2..], b"-");
    let part = |part: &[u8]| part.iter().all(u8::is_ascii_digit) || is_names(part, b"-_.:");
    let resource = is_path(value) && value.split(|byte| *byte == b'/').all(part);
    // `password=@password.txt`: the file that holds it.
    let file = value.strip_prefix(b"@").is_some_and(|file| file.contains(&b'.') && is_names(file, b"._-/"));
    if flag || file || resource && value.iter().filter(|byte| **byte == b'/').count() > 1 {
        return true;
    }
    if quoted {
        return false;
    }
    let colon = value.ends_with(b":") && !value.ends_with(b"::");
    let value = &value[..value.len() - usize::from(colon)];
    let value = value.trim_ascii_start();
    let first = value.iter().take_while(|byte| matches!(byte, b'&' | b'*' | b'(')).count();
    let (marks, value) = value.split_at(first);
    if !marks.is_empty() && (starts_like_code(value) || is_empty_word(value)) {
        return true;
    }
    // `(user, password) = (plugin, options)`, `fn(handle: Handle)`
    if marks.ends_with(b"(") && (colon || next == b',') && is_names(value, b"_.") {
        return true;
    }
    let joined = value.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'.'))
        && value.iter().any(|byte| matches!(byte, b'_' | b'.'));
    joined
        || is_call(value, next)
        || is_scoped(value)
        || is_constant(value)
        || is_type(value)
        || is_number(value)
        || is_command(value)
        || is_arrow(value)
        || next == b' ' && KEYWORDS.contains(&value)
}

/// What begins an expression or a block, with a blank behind.
const KEYWORDS: [&[u8]; 9] =
    [b"return", b"match", b"unsafe", b"async", b"function", b"lambda", b"typeof", b"yield", b"raise"];

/// `Digest->new($key)`: a call in Perl and PHP.
fn is_arrow(value: &[u8]) -> bool {
    memchr::memmem::find(value, b"->").is_some_and(|at| at > 0 && is_names(value, b"->:_().$@,;"))
}

/// `Read-Host`, `Get-AzKeyVaultSecret`: commands of PowerShell.
fn is_command(value: &[u8]) -> bool {
    const VERBS: [&[u8]; 8] =
        [b"Read-", b"Get-", b"New-", b"ConvertTo-", b"ConvertFrom-", b"Import-", b"Invoke-", b"Join-"];
    VERBS.iter().any(|verb| {
        value.strip_prefix(*verb).is_some_and(|noun| {
            noun.first().is_some_and(u8::is_ascii_uppercase) && noun.iter().all(u8::is_ascii_alphabetic)
        })
    })
}

/// `os.environ[...]`, `self.password`: what many programs begin a look-up with.
fn starts_like_code(value: &[u8]) -> bool {
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
    STARTS.iter().any(|start| value.starts_with(start)) && is_names(value, b"_.()[]{}'\"/:#,+-<> $")
}

/// `get_token(request`, `tokens[0]`, `Field(default=None`: the blank or the quote may have cut it off.
fn is_call(value: &[u8], next: u8) -> bool {
    // `Token![;]`
    if memchr::memmem::find(value, b"![").is_some() && is_names(value, b"_:![]#;,.(){}<>=&|+-*/%'") {
        return true;
    }
    let name_len = value.iter().take_while(|byte| super::is_word(**byte) || b".:!".contains(byte)).count();
    let (name, rest) = value.split_at(name_len);
    let opened = matches!(rest.first(), Some(b'(' | b'[')) && !name.is_empty() && !name[0].is_ascii_digit();
    if !opened || !is_names(name, b"_.-:!") {
        return false;
    }
    let cut = matches!(next, b')' | b']' | b'"' | b'\'' | b'`' | b',' | b';') || rest.len() == 1;
    let inside = rest.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_.()[]\"',:".contains(byte));
    // Behind a plain word brackets may be part of a password, but not with names inside.
    let named = rest.iter().any(u8::is_ascii_alphabetic) || name.iter().any(|byte| b"_.:!".contains(byte));
    let signs = b"_.()[]{}\"',:=&*|$!?<>@-";
    let code = |part: &[u8]| is_names(part, b"") || is_wordy(part);
    let glued = rest.windows(2).any(|pair| matches!(pair[0], b')' | b']') && pair[1].is_ascii_alphanumeric());
    let random = |part: &[u8]| part.len() >= 8 && look(part) == Look::Random && !is_wordy(part);
    // `token[:-1]`
    let slice = rest[0] == b'[' && rest.iter().all(|byte| byte.is_ascii_digit() || b"[]:-".contains(byte));
    slice
        || cut && inside && !rest.split(|byte| signs.contains(byte)).any(random)
        || named && !glued && rest.split(|byte| signs.contains(byte)).all(code)
}

/// `super::Foundation::HANDLE`, `auth::verify::{{closure}}::h4a7c0b9d2e1f3a58`
pub(super) fn is_scoped(value: &[u8]) -> bool {
    let scoped = value.windows(2).any(|pair| pair == b"::");
    let hash = |part: &[u8]| part.len() == 17 && part[0] == b'h' && look(&part[1..]) == Look::Hex;
    let name = |part: &[u8]| is_names(part, b"_") || part.len() < 8 || is_wordy(part) || hash(part);
    let sign = |byte: &u8| super::is_word(*byte) || b":{}()<>[]&'*!,.".contains(byte);
    scoped
        && value.iter().all(sign)
        && value.split(|byte| !super::is_word(*byte)).all(|part| part.is_empty() || name(part))
}

/// `TEST_ENCRYPTION_KEY1`
pub(super) fn is_constant(value: &[u8]) -> bool {
    let part = |part: &[u8]| {
        let letters = part.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
        part.len() <= letters + 3 && part[letters..].iter().all(u8::is_ascii_digit)
    };
    let letters = value.iter().filter(|byte| byte.is_ascii_uppercase()).count();
    value.contains(&b'_') && letters * 3 >= value.len() * 2 && value.split(|byte| *byte == b'_').all(part)
}

/// `0x030`, `-2147483648i32`
fn is_number(value: &[u8]) -> bool {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let typed = [&b"i32"[..], b"u32", b"i64", b"u64"].iter().find_map(|suffix| digits.strip_suffix(*suffix));
    value.strip_prefix(b"0x").is_some_and(|rest| rest.len() <= 8 && rest.iter().all(u8::is_ascii_hexdigit))
        || typed.is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
}

/// A regular expression.
pub(super) fn is_pattern(value: &[u8]) -> bool {
    [&b"[a-z"[..], b"[A-Z", b"[0-9", b"[^\\", b"(?:", b"(?i", b"\\d{", b"\\w", b"-.+", b".*", b")("]
        .iter()
        .any(|sign| memchr::memmem::find(value, sign).is_some())
}

/// A type, where a declaration has a value's place: `password: SecretString`, `&[u8`.
fn is_type(value: &[u8]) -> bool {
    let start = value.iter().take_while(|byte| matches!(byte, b'[' | b'?' | b'&')).count();
    WORDS.list.types.iter().any(|name| name.as_bytes() == &value[start..])
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
            "$!",
            "$$",
            "${...}",
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
            "$!@#%^&*()_+",
            "$()[]{}_-",
            "$_-:./?",
            "%a!@#$^&*()",
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
            ("super::Foundation::HANDLE", b','),
            ("verify::{{closure}}::h4a7c0b9d2e1f3a58", 0),
            ("Field(default=None", b' '),
            ("len(expected_token):", b'\n'),
            ("input.parse()?", b','),
            ("&self.token2", 0),
            ("sys.argv[2]", b' '),
            ("TEST_ENCRYPTION_KEY1", b')'),
            ("projects/12345/secrets/signing/versions/2", 0),
            ("--encryption-key", 0),
            ("@password.txt", 0),
            ("&[u8", b']'),
            ("SecretString", b','),
            ("0x0030", b','),
        ] {
            assert!(is_code(text.as_bytes(), next, false), "{text}");
        }
        assert!(is_code(b"os.environ['X']", b'"', true));
        assert!(is_code(b"arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf", 0, true));
        for text in [
            "config.x9Kd82hfLq",
            "vault:x9Kd82hfLq",
            "p4ss(w0rd",
            "data.hunter22x",
            "x9Kd82(hfLq",
            "hunter(2)x",
            "super::x9Kd82hfLq",
            "get(x9Kd82hfLq",
            "&self.x9Kd82hfLq",
            "SUMMER_2024",
            "a/b/x9Kd82hfLq",
            "--x9Kd82hfLq",
            "@x9Kd82hfLq.txt",
            "0xx9Kd82hfLq",
            "SecretString9",
        ] {
            assert!(!is_code(text.as_bytes(), 0, false), "{text}");
            assert!(!is_code(text.as_bytes(), 0, true), "{text}");
        }
    }

    #[test]
    fn what_a_form_calls_a_password_is_none() {
        for text in
            ["Passwort", "Contraseña actual", "Passwort vergessen?", "API-Schlüssel", "Heslo", "пароль"]
        {
            assert!(is_label(text.as_bytes()), "{text}");
        }
        for text in ["Passwort1", "my-secret-thing", "Sommer2024!", "swordfish", "mypassword"] {
            assert!(!is_label(text.as_bytes()), "{text}");
        }
        for (text, bare) in
            [("%s\\n", "%s"), (" PASSWORD", "PASSWORD"), ("None):", "None"), ("hunter2\\n", "hunter2")]
        {
            assert_eq!(trimmed(text.as_bytes()), bare.as_bytes());
        }
        assert!(is_template(b"%s:%s") && !is_template(b"%x9Kd82hfLq%"));
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
