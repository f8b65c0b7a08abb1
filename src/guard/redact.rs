//! Overlapping findings become replacement text.

use super::policy::{Action, Mode};
use super::report::Found;
use super::scan::{Finding, placeholder_len};
use super::{Guard, Kind, Numbering, Report};

/// Joins findings that overlap into their union, so that no fragment of either stays visible. The label is that of
/// the kind that comes first in [`Kind`]. Afterwards they are in order and apart.
pub(super) fn settle(findings: &mut Vec<Finding>) {
    findings.sort_unstable_by_key(|finding| (finding.start, usize::MAX - finding.end));
    findings.dedup_by(|next, kept| {
        if next.start >= kept.end {
            return false;
        }
        kept.end = kept.end.max(next.end);
        kept.decoded &= next.decoded;
        (kept.kind, kept.rule) = (kept.kind, kept.rule).min((next.kind, next.rule));
        true
    });
}

/// Moves the borders of a finding so that no escape sequence and no character is cut: `\n` before an address must
/// not leave a lone backslash, or JSON stops being JSON.
pub(super) fn whole(text: &str, finding: &mut Finding) {
    let bytes = text.as_bytes();
    let slashes = |end: usize| bytes[..end].iter().rev().take_while(|byte| **byte == b'\\').count();
    if slashes(finding.start) % 2 == 1 {
        let unicode = bytes[finding.start] == b'u'
            && bytes
                .get(finding.start + 1..finding.start + 5)
                .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        finding.start = (finding.start + if unicode { 5 } else { 1 }).min(finding.end);
    }
    if slashes(finding.end) % 2 == 1 && finding.end > finding.start {
        finding.end -= 1;
    }
    finding.start = text.floor_char_boundary(finding.start);
    finding.end = text.ceil_char_boundary(finding.end);
}

/// The inputs of a replacement.
pub(super) struct Tools<'a> {
    pub(super) guard: &'a Guard,
    /// Whether placeholders carry numbers.
    pub(super) numbered: bool,
    pub(super) numbering: &'a mut Numbering,
    pub(super) report: &'a mut Report,
    /// The original places of the replaced findings, if requested.
    pub(super) places: Option<&'a mut Vec<Finding>>,
    /// Whether no placeholder is in the text.
    pub(super) plain: bool,
    /// The strings in which the text begins.
    pub(super) strings: Strings,
}

/// Appends text without findings. A placeholder in it that was never issued is a forgery (or would be taken for a real
/// one later): it gets an invisible character inside, so that it is not a placeholder any more.
fn push_clean(text: &str, plain: bool, numbering: &Numbering, report: &mut Report, out: &mut String) {
    let mut done = 0;
    if report.mode == Mode::Enforce && !plain {
        for open in memchr::memchr_iter(b'[', text.as_bytes()) {
            let Some(len) = placeholder_len(&text.as_bytes()[open..]) else { continue };
            let close = len - 2;
            let inner = &text[open + 1..open + 1 + close];
            let forged = match (inner.split_once('~'), inner.rsplit_once('_')) {
                // One that was made invalid before stays invalid.
                _ if inner.ends_with('\u{200b}') => false,
                (Some(_), _) => !numbering.sealed(inner),
                (None, Some((kind, number))) => {
                    let known = (Kind::named(kind.as_bytes()), number.parse::<u32>());
                    matches!(known, (Some(kind), Ok(number)) if !numbering.issued(kind, number))
                }
                (None, None) => false,
            };
            if forged {
                report.forged += 1;
                out.push_str(&text[done..open + 1 + close]);
                out.push('\u{200b}');
                done = open + 1 + close;
            }
        }
    }
    out.push_str(&text[done..]);
}

/// Appends `text[from..to]` to `out` with its findings replaced. They must be settled and lie inside. Returns the end of
/// the last one that was replaced (or would be).
pub(super) fn redact(
    tools: Tools<'_>,
    text: &str,
    (from, to): (usize, usize),
    findings: &[Finding],
    out: &mut String,
) -> Option<usize> {
    let Tools { guard, numbered, numbering, report, mut places, plain, strings } = tools;
    let mut last = None;
    let (mut done, mut quotes) = (from, Quotes::from(from, strings));
    // Findings of one rule often follow each other: they are counted together.
    let mut alike: Option<Found> = None;
    for finding in findings {
        let mut finding = *finding;
        whole(text, &mut finding);
        finding.start = finding.start.max(done);
        if finding.start >= finding.end {
            continue;
        }
        let value = &text[finding.start..finding.end];
        let action = guard.action(finding.kind);
        if action == Action::Allow {
            continue;
        }
        if guard.lets_through(finding.kind, value) {
            *report.allowed.entry(finding.kind).or_default() += 1;
            continue;
        }
        last = Some(finding.end);
        if let Some(places) = &mut places {
            places.push(finding);
        }
        let found = Found::one(&finding, action, value.len());
        if !alike.as_mut().is_some_and(|alike| alike.take(&found))
            && let Some(before) = alike.replace(found)
        {
            report.found(before, guard);
        }
        if report.mode != Mode::Enforce {
            continue;
        }
        let quote = quotes.around(text.as_bytes(), &mut finding, to);
        push_clean(&text[done..finding.start], plain, numbering, report, out);
        push_quote(quote, out);
        push_label(guard, &finding, action, value, numbered, numbering, out);
        push_quote(quote, out);
        report.type_changed += u64::from(quote.is_some());
        done = finding.end;
    }
    if let Some(last) = alike {
        report.found(last, guard);
    }
    push_clean(&text[done..to], plain, numbering, report, out);
    last
}

/// Appends the replacement of a value.
fn push_label(
    guard: &Guard,
    finding: &Finding,
    action: Action,
    value: &str,
    numbered: bool,
    numbering: &mut Numbering,
    out: &mut String,
) {
    let kind = finding.kind;
    if action == Action::Tokenize
        && let Some(token) = numbering.token(kind, value)
    {
        return out.push_str(&token);
    }
    // The end of a key does not identify it, and it spans lines.
    if action == Action::Mask && kind != Kind::PrivateKey {
        return out.push_str(&mask(kind, value, usize::from(guard.policy().mask_keep)));
    }
    out.push('[');
    out.push_str(kind.as_str());
    if action == Action::Hash {
        if let Some(fingerprint) = numbering.fingerprint(kind, value) {
            out.push(':');
            out.push_str(&fingerprint);
        }
    } else if numbered {
        let resolved = guard.known().number_of(finding, value);
        let number =
            resolved.or_else(|| numbering.gives_number(kind, value).then(|| numbering.number(kind, value)));
        if let Some(number) = number {
            out.push('_');
            out.push_str(number.to_string().as_str());
            if !finding.decoded {
                numbering.keep(kind, number, value);
            }
        }
    }
    out.push(']');
}

/// Every letter and digit except the last `keep` becomes `*`; at most half of them are kept. A secret is masked whole.
/// An escape counts as one character.
fn mask(kind: Kind, value: &str, keep: usize) -> String {
    let shown = |c: char| c.is_alphanumeric() && !is_secret(kind);
    let total = signs(value).filter(|sign| sign.is_some_and(shown)).count();
    let hide = total - keep.min(total / 2);
    let mut seen = 0;
    let hidden = signs(value).map(|sign| match sign {
        Some(c) if shown(c) => {
            seen += 1;
            if seen <= hide { '*' } else { c }
        }
        Some(c) if c != '@' && !is_secret(kind) => c,
        _ => '*',
    });
    hidden.collect()
}

/// The characters of a value; `None` for an escape, which must not be split.
fn signs(value: &str) -> impl Iterator<Item = Option<char>> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let len = match (first, rest.as_bytes().get(1)) {
            ('\\', Some(b'u')) => 2 + hex_digits(&rest[2..], 4),
            ('\\', Some(b'x')) => 2 + hex_digits(&rest[2..], 2),
            ('\\', Some(next)) if next.is_ascii() => 2,
            _ => first.len_utf8(),
        };
        rest = &rest[len..];
        Some((first != '\\').then_some(first))
    })
}

/// How many hexadecimal digits a text begins with, up to `most`.
fn hex_digits(text: &str, most: usize) -> usize {
    text.bytes().take(most).take_while(u8::is_ascii_hexdigit).count()
}

/// Whether no part of a value of this kind may be shown.
fn is_secret(kind: Kind) -> bool {
    use Kind::{ApiKey, AwsSecret, BasicAuth, Bearer, DatabaseUrl, Jwt, Password, Secret, UrlCredentials};
    matches!(
        kind,
        ApiKey | AwsSecret | BasicAuth | Bearer | DatabaseUrl | Jwt | Password | Secret | UrlCredentials
    )
}

/// Appends a quote with this many backslashes before it, if one is needed.
pub(super) fn push_quote(slashes: Option<usize>, out: &mut String) {
    if let Some(slashes) = slashes {
        out.extend(std::iter::repeat_n('\\', slashes));
        out.push('"');
    }
}

/// The quotes that JSON numbers need once they are replaced.
pub(super) struct Quotes {
    strings: Strings,
    passed: usize,
}

impl Quotes {
    /// For a line that begins at a place, in these strings.
    pub(super) fn from(start: usize, strings: Strings) -> Self {
        Self { strings, passed: start }
    }

    /// The number of backslashes before the quotes around a finding, if it needs quotes: then it is widened to the whole
    /// number. The text from `end` on is unknown.
    pub(super) fn around(&mut self, text: &[u8], finding: &mut Finding, end: usize) -> Option<usize> {
        if !json_number(text, finding) {
            return None;
        }
        self.strings.pass(text, (self.passed, finding.start), end);
        self.passed = finding.start;
        self.strings.slashes()
    }
}

/// Whether a finding is a JSON number in a place where one is valid, so that its replacement must be quoted. If so
/// the finding is widened to the whole number.
fn json_number(text: &[u8], finding: &mut Finding) -> bool {
    let numeric = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
    if !text[finding.start..finding.end].iter().all(numeric) {
        return false;
    }
    let start = finding.start - usize::from(finding.start > 0 && text[finding.start - 1] == b'-');
    let end = finding.end + text[finding.end..].iter().take(32).take_while(|byte| numeric(byte)).count();
    let before = before_blanks(&text[start.saturating_sub(super::scan::LEFT)..start]);
    let opens = match before.split_last() {
        Some((b',' | b'[', _)) => true,
        Some((b':', name)) => before_blanks(name).ends_with(b"\""),
        _ => false,
    };
    let right = &text[end..text.len().min(end + 64)];
    let closes = matches!(behind_blanks(right), None | Some(b',' | b']' | b'}'));
    if !opens || !closes || serde_json::from_slice::<serde_json::Number>(&text[start..end]).is_err() {
        return false;
    }
    (finding.start, finding.end) = (start, end);
    true
}

/// The strings that a place in a line is in, if the line is JSON: nested, where a JSON string holds JSON. No string
/// continues past the end of a line.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Strings {
    /// How many are open.
    depth: usize,
    /// Which of them hold JSON, as bits.
    json: u64,
}

impl Strings {
    /// The deepest level in which quotes are added.
    const MAX_DEPTH: usize = 5;

    /// Whether one is open.
    pub(super) fn is_open(self) -> bool {
        self.depth > 0
    }

    /// Advances over `text[from..to]`; the text from `end` on is unknown.
    pub(super) fn pass(&mut self, text: &[u8], (from, to): (usize, usize), end: usize) {
        for at in memchr::memchr2_iter(b'"', b'\n', &text[from..to]) {
            let at = from + at;
            if text[at] == b'\n' {
                *self = Self::default();
                continue;
            }
            // The quotes of a string within a string have one backslash, within that three, then seven; the string's own
            // backslashes before them come in pairs, fours, eights.
            let slashes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
            let level = slashes.trailing_ones() as usize;
            if level == self.depth {
                let json = matches!(behind_blanks(&text[at + 1..end.min(at + 64)]), Some(b'{' | b'['));
                self.depth += 1;
                self.json = self.json & !(1 << self.depth) | u64::from(json) << self.depth;
            } else if level < self.depth {
                self.depth = level;
            }
        }
    }

    /// The number of backslashes before a string that begins here; `None` where no string can.
    fn slashes(self) -> Option<usize> {
        let json = self.depth == 0 || self.json >> self.depth & 1 == 1;
        (json && self.depth <= Self::MAX_DEPTH).then(|| (1 << self.depth) - 1)
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// The text before the spaces at the end, including `\n` of a string within a string.
fn before_blanks(text: &[u8]) -> &[u8] {
    let mut text = text;
    loop {
        match text {
            [rest @ .., last] if is_blank(*last) => text = rest,
            [rest @ .., b'\\', b'n' | b'r' | b't'] => {
                let slashes = rest.iter().rev().take_while(|byte| **byte == b'\\').count();
                text = &rest[..rest.len() - slashes];
            }
            _ => return text,
        }
    }
}

/// The first byte after the spaces at the start, within the line.
fn behind_blanks(text: &[u8]) -> Option<u8> {
    let mut text = text;
    loop {
        match text {
            [b'\n', ..] | [] => return None,
            [first, rest @ ..] if is_blank(*first) => text = rest,
            [b'\\', rest @ ..] => {
                let slashes = rest.iter().take_while(|byte| **byte == b'\\').count();
                match rest.get(slashes) {
                    Some(b'n' | b'r' | b't') => text = &rest[slashes + 1..],
                    _ => return Some(b'\\'),
                }
            }
            [first, ..] => return Some(*first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Policy;

    fn finding(start: usize, end: usize, kind: Kind) -> Finding {
        Finding { start, end, kind, rule: 0, decoded: false }
    }

    #[test]
    fn overlapping_findings_become_their_union_under_the_stronger_label() {
        let mut findings = vec![
            finding(5, 9, Kind::Email),
            finding(0, 6, Kind::Phone),
            finding(10, 12, Kind::Ip),
            finding(8, 9, Kind::Jwt),
        ];
        settle(&mut findings);
        assert_eq!(findings, [finding(0, 9, Kind::Jwt), finding(10, 12, Kind::Ip)]);
    }

    #[test]
    fn quotes_match_those_of_the_string_that_a_number_is_in() {
        for (before, slashes) in [
            (r#"{"a":"#, Some(0)),
            (r#"{"a" : "#, Some(0)),
            (r#"{"a": "x\"y", "b": ["#, Some(0)),
            ("[1, ", Some(0)),
            (r#"["x\\", "#, Some(0)),
            (r#"{"body": "["#, Some(1)),
            (r#"{"body": "{\"a\": "#, Some(1)),
            (r#"{"body": "{\"a\": \"x\",\n  "#, Some(1)),
            (r#"{"body": "{\"a\": \"["#, Some(3)),
            (r#"{"body": "{\"a\": \"{\\\"b\\\":"#, Some(3)),
            (r#"["x\\\"y\\", "#, Some(0)),
            (r#"{"body": "{\"a\": \"x\\\\\",\"b\":"#, Some(1)),
            ("{\"a\": \"cut\n[1, ", Some(0)),
            (r#"{"out": ", ["#, None),
            (r#"{"out": "], ["#, None),
            (r#"{"out": "} then 1, "#, None),
            (r#"{"csv": "id,card\n0,"#, None),
            (r#"{"a": "say \"[1]\", ["#, None),
            (r#"{"log": "{\"a\" is cut", "b": ["#, Some(0)),
        ] {
            let text = format!("{before}4111111111111111}}");
            let mut found = finding(before.len(), before.len() + 16, Kind::CreditCard);
            assert!(json_number(text.as_bytes(), &mut found), "{text}");
            let mut strings = Strings::default();
            strings.pass(text.as_bytes(), (0, before.len()), text.len());
            assert_eq!(strings.slashes(), slashes, "{text}");
        }
    }

    #[test]
    fn a_key_that_is_not_secret_makes_no_fingerprint() {
        let mut policy = Policy::default();
        policy.actions.insert(Kind::Ssn, Action::Hash);
        let guard = Guard::new(policy).unwrap();
        let text = "SSN 219-09-9998";
        assert_eq!(*guard.line(text), "SSN [SSN]");
        assert_eq!(*guard.check(text).text, "SSN [SSN]");
        let (out, _) = guard.text(text, &mut Numbering::new([7; 32], []));
        assert!(out.starts_with("SSN [SSN:") && out.len() == 22, "{out:?}");
    }

    #[test]
    fn only_json_numbers_get_quotes() {
        for value in ["185.12.44.9", "219-09-9998", "0871234567", "1e5e5", "--1"] {
            let mut found = finding(1, 1 + value.len(), Kind::Ip);
            assert!(!json_number(format!("[{value}]").as_bytes(), &mut found), "{value}");
        }
    }

    #[test]
    fn a_mask_keeps_the_shape_and_at_most_half() {
        let card = |value| mask(Kind::CreditCard, value, 4);
        assert_eq!(card("4111-1111-1111-1234"), "****-****-****-1234");
        assert_eq!(card("abc"), "**c");
        assert_eq!(mask(Kind::Email, "al@b.io", 0), "****.**");
        assert_eq!(mask(Kind::Email, r"al\u0040b.io", 2), "****.io");
    }

    #[test]
    fn a_mask_shows_nothing_of_a_secret_and_cuts_no_escape() {
        for (value, len) in [
            ("!@#$%^&*()_+", 12),
            (r"pass\nword9X", 11),
            (r"Geheim\u00df9wort", 12),
            (r"a\\b\", 4),
            ("pässword", 8),
        ] {
            assert_eq!(mask(Kind::Password, value, 4), "*".repeat(len), "{value}");
        }
    }
}
