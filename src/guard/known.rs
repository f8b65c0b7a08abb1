//! Values that are known to be secret: those the server itself holds, and those a policy lists. They are found by
//! themselves, whatever they look like, and in the forms in which programs write a text: reversed, base64, hexadecimal,
//! percent-encoded, as a string of JSON or of a program, in HTML. The decoded form of a line is searched too.
//!
//! The surprise: a value within a longer text in base64 is looked for three times, because its digits depend on its
//! alignment.

use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, URL_SAFE};
use zeroize::Zeroizing;

use super::Kind;
use super::OwnRule;
use super::encoded::is_run;
use super::own::OwnRules;
use super::rule::{KNOWN, RESOLVED, RuleId};
use super::scan::Finding;
use super::view::view;

/// Known secrets, ready to search for. Cheap to clone; its debug text reveals nothing.
///
/// The values stay in memory as long as this does, and the automaton does not clear them when dropped; everything else that
/// is needed to build it is cleared.
#[derive(Clone, Default)]
pub struct Known {
    values: Option<Arc<Inner>>,
    /// Values that the code of one run received for placeholders.
    resolved: Option<Arc<Inner>>,
    /// A policy's own rules: they are searched for in the same places.
    rules: Option<Arc<OwnRules>>,
}

struct Inner {
    finder: AhoCorasick,
    needles: Vec<Needle>,
    rule: RuleId,
}

/// What a matched form belongs to: its kind, and its number where it has one already.
#[derive(Debug, Clone, Copy)]
struct Needle {
    form: Form,
    kind: Kind,
    number: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Itself,
    Written,
    /// Its first and last digit are shared with the neighbouring bytes.
    Base64,
}

impl Known {
    /// A shorter value is not looked for: it would appear in ordinary text too.
    pub const SHORTEST: usize = 8;
    /// How much of a longer value is looked for, in bytes, so that its forms fit into one window, except for HTML
    /// of one that is nearly all quotation marks.
    const LONGEST: usize = 512;

    /// Looks for these values; for each line of a multi-line value. Values shorter than [`Self::SHORTEST`] bytes are left
    /// out.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let lines = values.into_iter().flat_map(lines).map(|line| (line, Kind::KnownSecret, 0));
        Self { values: Inner::new(lines, KNOWN), ..Self::default() }
    }

    /// The same, and values that the code of one run received for placeholders, each with its kind and number. They are
    /// looked for however short they are; a short one only as itself, and not within a word.
    pub(super) fn resolving<'a>(&self, values: impl IntoIterator<Item = (Kind, u32, &'a str)>) -> Self {
        let lines = values.into_iter().flat_map(|(kind, number, value)| {
            let lines = value.lines().map(str::trim).filter(|line| !line.is_empty());
            lines.map(move |line| (line, kind, number))
        });
        Self { resolved: Inner::new(lines, RESOLVED), ..self.clone() }
    }

    /// The number of the original placeholder, where a finding is a value that the code received for one: the same
    /// placeholder comes back, whatever form the value has.
    pub(super) fn number_of(&self, finding: &Finding, value: &str) -> Option<u32> {
        let resolved = self.resolved.as_deref()?;
        let look = |text: &[u8]| {
            let mut all = resolved.finder.find_iter(text);
            let is_it = |needle: &Needle, span: std::ops::Range<usize>| {
                needle.kind == finding.kind
                    && (finding.decoded || finding.rule == RESOLVED || span == (0..text.len()))
            };
            all.find_map(|found| {
                let needle = resolved.needles[found.pattern().as_usize()];
                is_it(&needle, found.range()).then_some(needle.number)
            })
        };
        look(value.as_bytes()).or_else(|| look(&view(value.as_bytes(), 0, value.len()).text))
    }

    /// The same with the own rules of a policy, and whether they had to be compiled.
    pub(super) fn with_rules(&self, rules: &[OwnRule]) -> Result<(Self, bool), (String, String)> {
        if self.rules.as_ref().map_or(rules.is_empty(), |own| own.are(rules)) {
            return Ok((self.clone(), false));
        }
        Ok((Self { rules: OwnRules::new(rules)?, ..self.clone() }, true))
    }

    /// The own rules.
    pub(super) fn rules(&self) -> Option<&OwnRules> {
        self.rules.as_deref()
    }

    /// Whether anything is looked for.
    pub(super) fn any(&self) -> bool {
        self.values.is_some() || self.resolved.is_some() || self.rules.is_some()
    }

    /// Whether any part of a value would be looked for.
    pub fn takes(value: &str) -> bool {
        lines(value).next().is_some()
    }

    /// Adds what is found in `text[from..to]`.
    pub(super) fn find(&self, text: &[u8], (from, to): (usize, usize), findings: &mut Vec<Finding>) {
        if let Some(rules) = &self.rules {
            rules.find(text, (from, to), findings);
        }
        for inner in [&self.values, &self.resolved].into_iter().flatten() {
            inner.find(text, (from, to), findings);
        }
    }
}

impl Inner {
    /// Looks for lines in all their forms.
    fn new<'a>(lines: impl Iterator<Item = (&'a str, Kind, u32)>, rule: RuleId) -> Option<Arc<Self>> {
        let mut texts: Vec<Zeroizing<String>> = Vec::new();
        let mut needles = Vec::new();
        for (line, kind, number) in lines {
            for (text, form) in forms(&line[..line.floor_char_boundary(Known::LONGEST)]) {
                // A short text appears everywhere.
                if form == Form::Itself || text.len() >= Known::SHORTEST {
                    texts.push(text);
                    needles.push(Needle { form, kind, number });
                }
            }
        }
        if needles.is_empty() {
            return None;
        }
        // The fast automaton takes up to a KB for each byte of a needle.
        let fast = texts.iter().map(|text| text.len()).sum::<usize>() <= 16 * 1024;
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(fast.then_some(AhoCorasickKind::DFA))
            .build(texts.iter().map(|text| text.as_bytes()));
        #[expect(clippy::expect_used, reason = "some needles of 3 KB: far from the limit of 2^31 states")]
        let finder = finder.expect("few and short needles");
        Some(Arc::new(Self { finder, needles, rule }))
    }

    fn find(&self, text: &[u8], (from, to): (usize, usize), findings: &mut Vec<Finding>) {
        let mut at = from;
        while let Some(found) = self.finder.find(Input::new(text).range(at..to)) {
            // Another may begin within this one.
            at = found.start() + 1;
            let Needle { form, kind, .. } = self.needles[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            let letter =
                |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte >= 0x80);
            let glued = || letter(text[..start].last()) || letter(text.get(end));
            if end - start < Known::SHORTEST && glued() {
                continue;
            }
            if form == Form::Base64 {
                let digit = |byte: &&u8| is_run(**byte);
                start -= text[from..start].iter().rev().take(3).take_while(digit).count();
                end += text[end..to].iter().take(3).take_while(digit).count();
            }
            let decoded = form != Form::Itself;
            findings.push(Finding { start, end, kind, rule: self.rule, decoded });
        }
    }
}

/// The lines of a value that are looked for.
fn lines(value: &str) -> impl Iterator<Item = &str> {
    value.lines().map(str::trim).filter(|line| line.len() >= Known::SHORTEST)
}

/// What libraries do not percent-encode: RFC 3986's unreserved characters, the same with the slash of paths,
/// `encodeURIComponent`, `encodeURI`, and forms (WHATWG URL, 5.2).
const PLAIN: [&str; 5] = ["-_.~", "-_.~/", "-_.!~*'()", "-_.!~*'();,/?:@&=+$#", "*-._"];

const LOWER: &[u8; 16] = b"0123456789abcdef";
const UPPER: &[u8; 16] = b"0123456789ABCDEF";

/// The forms in which a value is looked for: one family of spellings after the other.
#[expect(clippy::too_many_lines, reason = "one family of spellings after the other")]
fn forms(value: &str) -> Vec<(Zeroizing<String>, Form)> {
    let spelled = |spell: &dyn Fn(&mut String, char)| {
        // The capacity of the longest form: a string that grows leaves a copy that is not cleared.
        let mut form = Zeroizing::new(String::with_capacity(6 * value.len()));
        value.chars().for_each(|c| spell(&mut form, c));
        form
    };
    let mut written = vec![spelled(&|out, c| out.insert(0, c))];
    for digits in [LOWER, UPPER] {
        written.push(spelled(&|out, c| bytes(out, c, "", digits)));
        for plain in PLAIN {
            for blank in ["%20", "+"] {
                written.push(spelled(&|out, c| match c {
                    ' ' => out.push_str(blank),
                    c if c.is_ascii_alphanumeric() || plain.contains(c) => out.push(c),
                    c => bytes(out, c, "%", digits),
                }));
            }
        }
        for (slash, ascii) in [(false, false), (true, false), (false, true), (true, true)] {
            written.push(spelled(&|out, c| json(out, c, slash, ascii, digits)));
        }
    }
    for (quoted, ascii) in [(false, false), (true, false), (false, true), (true, true)] {
        written.push(spelled(&|out, c| match c {
            '\\' => out.push_str(r"\\"),
            '\'' if quoted => out.push_str(r"\'"),
            c if ascii && !c.is_ascii() => bytes(out, c, r"\x", LOWER),
            c => out.push(c),
        }));
    }
    const QUOTES: [[&str; 2]; 6] = [
        ["\"", "'"],
        ["&quot;", "'"],
        ["&quot;", "&#x27;"],
        ["&quot;", "&#39;"],
        ["&#34;", "&#39;"],
        ["&quot;", "&apos;"],
    ];
    for quotes in QUOTES {
        written.push(spelled(&|out, c| match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str(quotes[0]),
            '\'' => out.push_str(quotes[1]),
            c => out.push(c),
        }));
    }
    // CSV, SQL, shlex.quote, a shell.
    for (quote, becomes) in [('"', "\"\""), ('\'', "''"), ('\'', "'\"'\"'"), ('\'', r"'\''")] {
        written.push(spelled(&|out, c| match c {
            c if c == quote => out.push_str(becomes),
            c => out.push(c),
        }));
    }
    let mut forms = vec![(Zeroizing::new(value.to_owned()), Form::Itself)];
    forms.extend(written.into_iter().map(|form| (form, Form::Written)));
    for (engine, slash) in [(&STANDARD, "/"), (&STANDARD, r"\/"), (&URL_SAFE, "/")] {
        let digits = |lead| Zeroizing::new(inner_digits(engine, value.as_bytes(), lead).replace('/', slash));
        forms.extend((0..3).map(|lead| (digits(lead), Form::Base64)));
    }
    // The first of equal ones stays: most values are written unchanged.
    forms.sort_by(|a, b| a.0.cmp(&b.0));
    forms.dedup_by(|a, b| a.0 == b.0);
    forms
}

/// Appends a character's bytes in hexadecimal digits, each after a mark.
fn bytes(out: &mut String, c: char, mark: &str, digits: &[u8; 16]) {
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        out.push_str(mark);
        out.extend([byte >> 4, byte & 15].map(|nibble| char::from(digits[usize::from(nibble)])));
    }
}

/// Appends a character as in a JSON string (RFC 8259, section 7), where slashes and non-ASCII characters may be escaped
/// too.
fn json(out: &mut String, c: char, slash: bool, ascii: bool, digits: &[u8; 16]) {
    match c {
        '"' | '\\' => out.extend(['\\', c]),
        '/' if slash => out.push_str(r"\/"),
        '\t' => out.push_str(r"\t"),
        c if c < ' ' || ascii && !c.is_ascii() => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(r"\u");
                out.extend([12, 8, 4, 0].map(|bits| char::from(digits[usize::from(*unit >> bits & 15)])));
            }
        }
        c => out.push(c),
    }
}

/// The base64 digits that depend on nothing but the value, when it is `lead` bytes after a multiple of three.
fn inner_digits(engine: &GeneralPurpose, value: &[u8], lead: usize) -> Zeroizing<String> {
    let digits = Zeroizing::new(engine.encode(Zeroizing::new([&[0; 2][..lead], value].concat())));
    let first = (lead * 8).div_ceil(6);
    Zeroizing::new(digits[first..(lead + value.len()) * 8 / 6].to_owned())
}

/// The values stay out of logs.
impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known")
            .field("forms", &self.values.as_ref().map(|inner| inner.needles.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Action, AllowList, Guard, Mode, Numbering, Policy};
    use serde_json::json;

    const SECRET: &str = "correct/horse \"battery\"";

    fn guard() -> Guard {
        Guard::knowing(Policy::default(), &Known::new([SECRET, "short", "tall-order"])).unwrap()
    }

    fn hex(text: &str) -> String {
        text.bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_known_value_is_found_in_every_form_that_it_is_looked_for_in() {
        let forms = [
            SECRET.to_owned(),
            SECRET.chars().rev().collect(),
            hex(SECRET),
            hex(SECRET).to_uppercase(),
            "correct%2Fhorse%20%22battery%22".to_owned(),
            "correct%2fhorse%20%22battery%22".to_owned(),
            r#"correct/horse \"battery\""#.to_owned(),
        ];
        for form in forms {
            let (out, report) = guard().text(&format!("it is <{form}>."), &mut Numbering::alone());
            assert_eq!(*out, "it is <[KNOWN_SECRET_1]>.", "{form}");
            assert_eq!((report.total(), report.rules["known-secret"]), (1, 1), "{form}");
        }
    }

    #[test]
    fn a_known_value_is_found_anywhere_in_base64() {
        // Bytes that are not text, so that no other decoder reads them.
        for lead in 0..7 {
            for tail in 0..4 {
                let noise = |len| vec![0xf5; len];
                let whole = [noise(lead), SECRET.as_bytes().to_vec(), noise(tail)].concat();
                for engine in [&STANDARD, &URL_SAFE] {
                    let (out, _) =
                        guard().text(&format!("<{}>", engine.encode(&whole)), &mut Numbering::alone());
                    assert!(out.contains("[KNOWN_SECRET_1]"), "{lead} {tail}: {}", *out);
                    let kept = out.replace("[KNOWN_SECRET_1]", "");
                    assert!(kept.len() <= 2 + 4 * (lead + tail), "{lead} {tail}: {}", *out);
                }
            }
        }
    }

    #[test]
    fn short_or_similar_values_are_not_found() {
        let text = "a short one, a tall orde, correct/horse battery, tall-orde\nr";
        let (out, report) = guard().text(text, &mut Numbering::alone());
        assert_eq!((&**out, report.total()), (text, 0));
        assert!(!Known::new(["short", ""]).any());
    }

    #[test]
    fn values_that_overlap_are_hidden_as_one() {
        let known = Known::new(["abcdefgh12", "gh12345678", "abcdefgh1"]);
        let guard = Guard::knowing(Policy::default(), &known).unwrap();
        let (out, _) = guard.text("<abcdefgh12345678>", &mut Numbering::alone());
        assert_eq!(*out, "<[KNOWN_SECRET_1]>");
    }

    #[test]
    fn a_value_of_several_lines_is_found_by_each() {
        let known = Known::new(["-----BEGIN THING-----\r\nfirst line of it\nx\n"]);
        let guard = Guard::knowing(Policy::default(), &known).unwrap();
        let (out, _) = guard.text("first line of it\nx", &mut Numbering::alone());
        assert_eq!(*out, "[KNOWN_SECRET_1]\nx");
    }

    #[test]
    fn it_is_found_however_the_text_is_cut_and_twice_is_once() {
        let guard = guard();
        let line = "word, ".repeat(4_000);
        let text = format!("a {SECRET}\n{line}{SECRET}{line}{}\n{line}", STANDARD.encode(SECRET));
        let (whole, report) = guard.text(&text, &mut Numbering::alone());
        assert_eq!(report.findings[&Kind::KnownSecret].count, 3);
        for step in [1, 7, 4_000, 20_000] {
            let (mut stream, mut numbering) = (guard.stream(), Numbering::alone());
            let mut out = String::new();
            for piece in text.as_bytes().chunks(step) {
                out.push_str(&stream.push(std::str::from_utf8(piece).unwrap(), &mut numbering));
            }
            out.push_str(&stream.finish(&mut numbering).0);
            assert!(out == **whole, "in steps of {step}");
        }
        let mut numbering = Numbering::alone();
        let (once, _) = guard.text(&text, &mut numbering);
        assert!(guard.text(&once, &mut numbering).0 == once);
    }

    #[test]
    fn it_is_found_wherever_a_long_line_is_cut() {
        let before = "word, ".repeat(3_000);
        for place in 14 * 1024 - 40..14 * 1024 + 10 {
            let text = format!("{}{SECRET}{before}", &before[..place]);
            let (out, _) = guard().text(&text, &mut Numbering::alone());
            assert!(*out == format!("{}[KNOWN_SECRET_1]{before}", &before[..place]), "at {place}");
        }
    }

    #[test]
    fn no_allow_list_passes_it_and_no_fingerprint_or_debug_text_reveals_it() {
        let allow = AllowList {
            exact: vec![SECRET.to_owned()],
            patterns: vec![".*".to_owned()],
            ..AllowList::default()
        };
        let policy = Policy { allow, ..Policy::default() };
        let guard = Guard::knowing(policy.clone(), &Known::new([SECRET])).unwrap();
        assert_eq!(*guard.text(SECRET, &mut Numbering::alone()).0, "[KNOWN_SECRET_1]");
        assert_eq!(
            guard.report().policy_fingerprint,
            Guard::new(policy).unwrap().report().policy_fingerprint
        );
        let known = Known::new([SECRET]);
        let guard = Guard::knowing(Policy::default(), &known).unwrap();
        assert!(!format!("{guard:?} {known:?}").contains("horse"));
    }

    #[test]
    fn no_allow_list_lets_it_through_under_the_name_of_a_secret_or_in_a_private_key() {
        let exact = AllowList { exact: vec![SECRET.to_owned()], ..AllowList::default() };
        let any = AllowList { patterns: vec!["(?s).*".to_owned()], ..AllowList::default() };
        for allow in [exact, any.clone()] {
            let policy = Policy { allow, ..Policy::default() };
            let guard = Guard::knowing(policy, &Known::new([SECRET])).unwrap();
            for value in [SECRET.to_owned(), format!("Basic {SECRET}"), hex(SECRET)] {
                for name in ["password", "Authorization", "cookie", "address", "pin", "x"] {
                    let (out, report) = guard.json(json!({ name: value }), &mut Numbering::alone());
                    assert!(out[name].as_str().unwrap().ends_with("[KNOWN_SECRET_1]"), "{out:?}");
                    assert_eq!(report.findings[&Kind::KnownSecret].count, 1);
                }
            }
        }
        let line = "bm90IGEga2V5IGF0/GFsbA+";
        let pem = format!("-----BEGIN PRIVATE KEY-----\nMIIB\n{line}\n-----END PRIVATE KEY-----\n");
        let mut policy = Policy { allow: any, ..Policy::default() };
        let listed = Guard::knowing(policy.clone(), &Known::new([line])).unwrap();
        let (out, _) = listed.text(&pem, &mut Numbering::alone());
        assert!(out.starts_with("[KNOWN_SECRET_1]") && !out.contains(line), "{out:?}");
        policy.actions.insert(Kind::PrivateKey, Action::Allow);
        let allowed = Guard::knowing(policy, &Known::new([line])).unwrap();
        let (out, report) = allowed.text(&pem, &mut Numbering::alone());
        assert_eq!(*out, pem.replace(line, "[KNOWN_SECRET_1]"));
        assert_eq!(report.total(), 1);
    }

    #[test]
    fn a_value_is_found_as_libraries_write_it() {
        const SIGNS: &str = r#"pä/s&w <ö>=\'"77"#;
        let known = Known::new(["abc/defgh=", SIGNS, "p😀ssword-77"]);
        let guard = Guard::knowing(Policy::default(), &known).unwrap();
        for form in [
            // urllib.parse.quote, encodeURI, encodeURIComponent, quote_plus.
            "abc/defgh%3D",
            "abc%2Fdefgh%3d",
            "p%C3%A4/s%26w%20%3C%C3%B6%3E%3D%5C%27%2277",
            "p%C3%A4/s&w%20%3C%C3%B6%3E=%5C'%2277",
            "p%C3%A4%2Fs%26w%20%3C%C3%B6%3E%3D%5C'%2277",
            "p%C3%A4%2Fs%26w+%3C%C3%B6%3E%3D%5C%27%2277",
            "p%c3%a4%2fs%26w+%3c%c3%b6%3e%3d%5c%27%2277",
            // json.dumps with and without other letters, json_encode, JSON within HTML.
            r#"p\u00e4/s&w <\u00f6>=\\'\"77"#,
            r#"p\u00E4/s&w <\u00F6>=\\'\"77"#,
            r#"pä/s&w <ö>=\\'\"77"#,
            r#"p\u00e4\/s&w <\u00f6>=\\'\"77"#,
            r#"pä/s\u0026w \u003cö\u003e=\\'\"77"#,
            r"p\ud83d\ude00ssword-77",
            // repr of bytes and of text, ascii.
            r#"p\xc3\xa4/s&w <\xc3\xb6>=\\\'"77"#,
            r#"pä/s&w <ö>=\\\'"77"#,
            r#"p\xe4/s&w <\xf6>=\\\'"77"#,
            // html.escape and its like.
            r"pä/s&amp;w &lt;ö&gt;=\&#x27;&quot;77",
            r"pä/s&amp;w &lt;ö&gt;=\&#39;&#34;77",
            r#"pä/s&amp;w &lt;ö&gt;=\'"77"#,
            r#"p&#228;/s&#38;w &#60;&#xf6;&#62;=\'"77"#,
            // CSV, SQL, shlex.quote, a shell.
            r#"pä/s&w <ö>=\'""77"#,
            r#"pä/s&w <ö>=\''"77"#,
            r#"pä/s&w <ö>=\'"'"'"77"#,
            r#"pä/s&w <ö>=\'\''"77"#,
            // Invisible characters, terminal codes, letters in another style.
            "p\u{200b}😀ssw\u{ad}ord-77",
            "p😀ss\x1b[1mword\x1b[0m-77",
            "p😀ｓｓword-77",
        ] {
            let text = format!("it is ({form})!");
            let (out, report) = guard.text(&text, &mut Numbering::alone());
            let rest = out.strip_prefix("it is (").unwrap().strip_suffix(")!");
            assert_eq!(rest, Some("[KNOWN_SECRET_1]"), "{form}");
            assert_eq!((report.total(), report.decoded), (1, 1), "{form}");
        }
    }

    #[test]
    fn base64_is_found_as_strings_and_addresses_have_it() {
        // Its base64 has a slash and a plus, at every alignment.
        let secret = "~~>~??~~>~~??~";
        let guard = Guard::knowing(Policy::default(), &Known::new([secret])).unwrap();
        for lead in 0..3 {
            let noise = vec![0xf5; lead];
            let digits = STANDARD.encode([&noise, secret.as_bytes(), &noise].concat());
            assert!(digits.contains('/') && digits.contains('+'), "{digits}");
            for form in [
                digits.clone(),
                digits.replace('/', r"\/"),
                digits.replace('/', "%2F").replace('+', "%2B"),
                digits.replace('+', r"\u002b"),
            ] {
                let (out, report) = guard.text(&form, &mut Numbering::alone());
                assert!(report.findings[&Kind::KnownSecret].count == 1 && out.len() < 28, "{form}: {out:?}");
            }
        }
    }

    #[test]
    fn a_policy_decides_what_is_done_with_it() {
        let known = Known::new([SECRET]);
        let act = |action, mode| {
            let mut policy = Policy { mode, ..Policy::default() };
            policy.actions.insert(Kind::KnownSecret, action);
            Guard::knowing(policy, &known).unwrap().text(SECRET, &mut Numbering::alone())
        };
        let (out, report) = act(Action::Block, Mode::Enforce);
        assert!(out.is_empty() && report.blocked);
        let (out, report) = act(Action::Redact, Mode::ReportOnly);
        assert_eq!((out.as_str(), report.would_redact[&Kind::KnownSecret].count), (SECRET, 1));
    }
}
