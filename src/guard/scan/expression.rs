//! Expressions of programs: computed text after `=` or `:` without quotes.
//!
//! In a program the value of a name is a secret only if it is a literal. A call, a member, an operator or a second name shows
//! an expression; a value that merely has a bracket in it is not parsed as one.

use super::natural_language::is_natural_language;
use super::placeholder::{is_identifier, is_names};
use super::token::{Shape, shape_of};
use crate::guard::words::WORDS;

/// Names this short are a minifier's.
const SHORT: usize = 3;
/// The deepest brackets that are followed.
const DEEPEST: usize = 32;
/// Characters between names in the brackets of a macro.
const MACRO: &[u8] = b"_:!#;,.(){}<>=&|+-*/%'";
/// Whether the text from a value of `len` bytes to the end of its line parses as an expression; `before` is the line before it.
pub(super) fn is_expression(before: &[u8], line: &[u8], len: usize) -> bool {
    // In a JSON string the line ends at its escaped line feed.
    let spelled =
        memchr::memchr_iter(b'\\', line).find(|at| matches!(line.get(at + 1), Some(b'n' | b'r' | b'"')));
    let line = &line[..spelled.unwrap_or(line.len())];
    let compared = [&b"=="[..], b"!="].iter().any(|sign| before.trim_ascii_end().ends_with(sign));
    let apart = matches!(before.last(), Some(b' ' | b'('));
    // `"password: "+e`: a string followed by a name.
    let joined = line.first() == Some(&b'+') && matches!(before.last(), Some(b'"' | b'\''));
    let mut reader = Reader { line, at: 0, open: Vec::new(), marks: usize::from(joined), compared, apart };
    let read = reader.expression();
    let walked = reader.at >= len || reader.at + 1 >= line.trim_ascii_end().len();
    read && walked && (reader.marks > 0 || is_statement(before, line, len))
}

/// Whether a value that is one name is where a program has names: at the end of a statement that assigns a member, or of a
/// line in a list of fields, or under its own name.
fn is_statement(before: &[u8], line: &[u8], len: usize) -> bool {
    let value = line[..len.min(line.len())].trim_ascii_end();
    let value = value.strip_suffix(b";").or(value.strip_suffix(b",")).unwrap_or(value);
    let joined = |byte: &u8| is_part(*byte) || *byte == b'.';
    if value.is_empty() || !value.iter().all(joined) {
        return false;
    }
    let end = line[value.len()..].trim_ascii();
    let mark = before.trim_ascii_end();
    let Some((b'=' | b':', left)) = mark.split_last() else { return false };
    let left = left.trim_ascii_end();
    let name_len = left.iter().rev().take_while(|byte| joined(byte)).count();
    let (head, name) = left.split_at(left.len() - name_len);
    let bare = |name: &[u8]| -> Vec<u8> {
        name.iter().filter(|byte| **byte != b'_').map(u8::to_ascii_lowercase).collect()
    };
    if !name.is_empty() && bare(name) == bare(value) {
        return true;
    }
    before.last() == Some(&b' ')
        && has_hump(value)
        && match (mark.last(), end) {
            // `response.includesCredentials = includeCredentials;`
            (Some(b'='), b";") => {
                memchr::memchr(b'.', name).is_some() || head.iter().any(u8::is_ascii_alphabetic)
            }
            // `    passphrase: keyPassphrase,` `{ token: checkIsToken }`
            (Some(b':'), b",") => head.len() > 1 && head.iter().all(|byte| *byte == b' '),
            _ => false,
        }
}

/// `keyPassphrase`
fn has_hump(name: &[u8]) -> bool {
    name.windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
}

struct Reader<'a> {
    line: &'a [u8],
    at: usize,
    /// The closing brackets of what is open.
    open: Vec<u8>,
    /// How many signs of a program were read.
    marks: usize,
    /// Whether a comparison or a space comes before it: text right after `=` may be a shell's.
    compared: bool,
    apart: bool,
}

impl<'a> Reader<'a> {
    fn byte(&self, ahead: usize) -> u8 {
        self.line.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn blanks(&mut self) -> bool {
        let from = self.at;
        while matches!(self.byte(0), b' ' | b'\t' | b'\r') {
            self.at += 1;
        }
        self.at > from
    }

    fn starts(&self, text: &[u8]) -> bool {
        self.line[self.at..].starts_with(text)
    }

    /// Parses operands and operators as far as they go; whether nothing else was met.
    fn expression(&mut self) -> bool {
        loop {
            if !self.operand() {
                return false;
            }
            match self.behind_operand() {
                Next::Operand => {}
                Next::End => return true,
                Next::Other => return false,
            }
            self.blanks();
            // A line that continues below.
            if self.at == self.line.len() {
                return true;
            }
        }
    }

    /// One operand with its prefix operators, up to its opening bracket if it has one.
    fn operand(&mut self) -> bool {
        loop {
            self.blanks();
            match self.byte(0) {
                b'!' | b'-' | b'+' | b'&' | b'*' | b'~' => self.at += 1,
                b'.' if self.starts(b"...") => self.at += 3,
                open @ (b'(' | b'[' | b'{') => {
                    if !self.opens(open) {
                        return false;
                    }
                    self.blanks();
                    if self.at == self.line.len() || self.closes() {
                        return true;
                    }
                }
                b')' | b']' | b'}' if self.closes() => return true,
                // A slice.
                b':' if self.open.last() == Some(&b']') => self.at += 1,
                b'"' | b'\'' | b'`' => return self.string(),
                b'0'..=b'9' => {
                    while self.byte(0).is_ascii_alphanumeric() || matches!(self.byte(0), b'.' | b'_') {
                        self.at += 1;
                    }
                    return true;
                }
                byte if is_start(byte) => {
                    let name = self.name();
                    if !is_name(name) {
                        return false;
                    }
                    // `b"x"`
                    if name.len() < 3 && matches!(self.byte(0), b'"' | b'\'') {
                        return self.string();
                    }
                    let (lambda, prefix) =
                        (name == b"lambda", WORDS.list.prefixes.iter().any(|word| word.as_bytes() == name));
                    if lambda && self.byte(0) == b' ' {
                        self.marks += 1;
                        self.at = self.line.len();
                    }
                    if !prefix || !self.blanks() {
                        return true;
                    }
                }
                _ => return false,
            }
        }
    }

    fn opens(&mut self, open: u8) -> bool {
        let close = match open {
            b'(' => b')',
            b'[' => b']',
            _ => b'}',
        };
        self.open.push(close);
        self.at += 1;
        self.open.len() <= DEEPEST
    }

    /// Reads a closing bracket of what is open.
    fn closes(&mut self) -> bool {
        let closes = self.open.last() == Some(&self.byte(0));
        if closes {
            self.open.pop();
            self.at += 1;
        }
        closes
    }

    fn name(&mut self) -> &'a [u8] {
        let from = self.at;
        while is_part(self.byte(0)) {
            self.at += 1;
        }
        let line = self.line;
        &line[from..self.at]
    }

    /// A string, perhaps cut off at the end of the window.
    fn string(&mut self) -> bool {
        let quote = self.byte(0);
        self.at += 1;
        while self.at < self.line.len() && self.byte(0) != quote {
            self.at += if self.byte(0) == b'\\' { 2 } else { 1 };
        }
        self.at = (self.at + 1).min(self.line.len());
        true
    }

    /// The text after an operand: members, calls, closing brackets, then an operator.
    fn behind_operand(&mut self) -> Next {
        loop {
            match self.byte(0) {
                // A member, with `?.`, `->`, `::` too.
                b'.' | b'?' | b'-' | b':' if self.member() => {}
                open @ (b'(' | b'[') => {
                    if !self.opens(open) {
                        return Next::Other;
                    }
                    let plain = !self.line[..self.at].iter().any(|byte| matches!(byte, b'.' | b'_'));
                    self.blanks();
                    let numbers = self.byte(0).is_ascii_digit() && open == b'(' && plain;
                    self.marks += usize::from(!numbers);
                    if !self.closes() {
                        return if self.at == self.line.len() { Next::End } else { Next::Operand };
                    }
                }
                b')' | b']' | b'}' if self.closes() => {}
                // `Token![;]`
                b'!' if self.byte(1) == b'[' => {
                    let inside = &self.line[self.at + 2..];
                    let Some(len) =
                        memchr::memchr(b']', inside).filter(|len| is_names(&inside[..*len], MACRO))
                    else {
                        return Next::Other;
                    };
                    self.marks += 1;
                    self.at += len + 3;
                }
                // `parse::<Token>()`
                b':' if self.starts(b"::<") => {
                    self.goes_on();
                    return Next::End;
                }
                // The end of the brackets around the value: a program continues after it, or a name is compared with it.
                b')' | b']' | b'}' if self.open.is_empty() => {
                    while matches!(self.byte(0), b')' | b']' | b'}') {
                        self.at += 1;
                    }
                    let goes_on = (matches!(self.byte(0), b'.' | b';')
                        || self.byte(0) == b',' && self.marks > 0)
                        && is_start(self.byte(1));
                    if goes_on || self.compared {
                        self.goes_on();
                    }
                    return Next::End;
                }
                0 if self.at == self.line.len() => return Next::End,
                _ => return self.joint(),
            }
        }
    }

    fn member(&mut self) -> bool {
        let Some(len) =
            [&b"?."[..], b"->", b"::", b"."].iter().find(|sign| self.starts(sign)).map(|sign| sign.len())
        else {
            return false;
        };
        if !is_start(self.byte(len)) {
            return false;
        }
        let from = self.at;
        self.at += len;
        if is_name(self.name()) {
            self.marks += usize::from(len > 1);
            return true;
        }
        self.at = from;
        false
    }

    /// An operator after an operand: one case after the other, each by its character.
    #[expect(clippy::too_many_lines, reason = "an arm for each sign that joins")]
    fn joint(&mut self) -> Next {
        let blank = self.blanks();
        if self.at == self.line.len() || self.starts(b"//") || self.byte(0) == b'#' && blank {
            return Next::End;
        }
        const SIGNS: [&[u8]; 26] = [
            b"===", b"!==", b"<<", b">>", b"==", b"!=", b"<=", b">=", b"=>", b"&&", b"||", b"??", b"**",
            b"//", b"=", b"+", b"-", b"*", b"/", b"%", b"<", b">", b"?", b"|", b"&", b",",
        ];
        let inside = !self.open.is_empty();
        if let Some(sign) = SIGNS.iter().find(|sign| self.starts(sign)) {
            self.at += sign.len();
            let spaced = self.blanks();
            return match *sign {
                b"," if inside => Next::Operand,
                // `a(),b=c`: statements of a minifier.
                b"," => {
                    let goes_on = self.marks > 0 || self.compared || has_hump(&self.line[..self.at]);
                    if goes_on && !blank && !spaced && is_start(self.byte(0)) {
                        self.goes_on();
                    }
                    Next::End
                }
                b"=>" => self.marked(),
                _ if inside => Next::Operand,
                b"=" | b"===" | b"!==" | b"==" | b"!=" | b"&&" | b"||" | b"??" | b"?"
                    if self.apart && blank && (spaced || self.at == self.line.len()) =>
                {
                    self.marked()
                }
                b"+" | b"-" | b"*" | b"/" | b"%" | b"<" | b">" | b"|" | b"===" | b"!==" | b"&&" | b"||"
                    if self.marks > 0 =>
                {
                    Next::Operand
                }
                _ => Next::Other,
            };
        }
        if self.byte(0) == b';' && !blank {
            self.at += 1;
            if self.marks > 0 && is_start(self.byte(0)) {
                self.goes_on();
            }
            return Next::End;
        }
        if self.byte(0) == b':' {
            self.at += 1;
            let goes_on = inside || blank && self.marks > 0;
            return if goes_on { Next::Operand } else { Next::End.only_if(self.at == self.line.len()) };
        }
        if blank && is_start(self.byte(0)) {
            let from = self.at;
            let word = self.name();
            let joint = WORDS.list.joints.iter().any(|joint| joint.as_bytes() == word);
            let chosen = word == b"if" && memchr::memmem::find(&self.line[from..], b" else ").is_some();
            return match (joint, inside) {
                (true, true) => Next::Operand,
                (true, false) if chosen => self.marked(),
                (false, true) => Next::Operand.only_if(is_name(&self.line[from..self.at]) && self.marks > 0),
                _ => {
                    self.at = from;
                    Next::End
                }
            };
        }
        if blank || !inside && matches!(self.byte(0), b'"' | b'\'') { Next::End } else { Next::Other }
    }

    /// The rest of the line is a program too.
    fn goes_on(&mut self) {
        self.marks += 1;
        self.at = self.line.len();
    }

    fn marked(&mut self) -> Next {
        self.marks += 1;
        Next::Operand
    }
}

enum Next {
    Operand,
    End,
    Other,
}

impl Next {
    fn only_if(self, holds: bool) -> Self {
        if holds { self } else { Self::Other }
    }
}

fn is_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$')
}

fn is_part(byte: u8) -> bool {
    is_start(byte) || byte.is_ascii_digit()
}

/// Whether a name looks like one of a program.
fn is_name(name: &[u8]) -> bool {
    let letters = is_natural_language(name) && !name.iter().any(u8::is_ascii_digit);
    name.len() <= SHORT
        || letters
        || is_names(name, b"_$")
        || is_identifier(name)
        || name.split(|byte| *byte == b'_').all(numbered)
}

/// `kHTTP2Session`, `b32decode`: a word behind one number, and letters before it.
fn numbered(part: &[u8]) -> bool {
    let letters = |part: &[u8]| part.iter().all(u8::is_ascii_alphabetic);
    let word = |word: &[u8]| word.len() > SHORT && letters(word) && shape_of(word) != Shape::Random;
    let at = part.iter().position(u8::is_ascii_digit).unwrap_or(part.len());
    let (before, rest) = part.split_at(at);
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let short = (1..=SHORT).contains(&before.len()) && letters(before);
    digits <= 2 && (short || word(before)) && word(&rest[digits..]) || is_names(part, b"")
}

#[cfg(test)]
mod tests {
    use super::is_expression;

    /// Whether the text between `«` and `»` parses as an expression.
    fn reads(text: &str) -> bool {
        let (before, rest) = text.split_once('«').unwrap();
        let (value, behind) = rest.split_once('»').unwrap();
        is_expression(before.as_bytes(), format!("{value}{behind}").as_bytes(), value.len())
    }

    #[test]
    fn calls_members_operators_and_names_in_the_place_of_names_are_expressions() {
        for text in [
            "password = «getArrayBufferOrView(password», 'password');",
            "result = df.groupby(\"key\", group_keys=«group_keys).apply(lambda» x: x.iloc[:2])",
            "fds_to_pass = «[listener.fileno(»), alive_r]",
            "kwargs_to_pass = «kwargs» if isinstance(a, b) else None",
            "binary_token = «tokens.send(1+nbytes_token.value(»))",
            "comment_token = «line[pos:].rstrip(»'\\r\\n')",
            "userid = passwd = «acct» = ''",
            "const pass = «value?.passphrase» || passphrase;",
            "_checkIsHttpToken: «checkIsHttpToken»,",
            "  passphrase: «keyPassphrase»,",
            "response.requestIncludesCredentials = «includeCredentials»;",
            "if(n.currentPass===«p)return;let» v=1",
            "this.pass=«a}};Fo.disabled=new» Fo()",
            "let union_token = «input.parse::<Token![union]>()?»;",
            "        \"token = «tokens[0]»\\n\",",
            "        passwords: «list[str»] | None = None,",
            "    password = «base64.b16encode(random_bytes[8:»])  # UTF-8",
            "        buckets, continuation_token = «self.s3tables_backend.list_table_buckets(»",
        ] {
            assert!(reads(text), "{text}");
        }
    }

    #[test]
    fn a_value_with_a_bracket_or_beside_an_operator_is_not_an_expression() {
        for text in [
            "password: «p4ss(w0rd»",
            "password: «hunter(2)x»",
            "token: «get(x9Kd82hfLq»",
            "password: «Token![x9Kd82hfLqT4]»",
            "User(name=bob, password=«swordfish», role=admin)",
            "Server=db;User=sa;Password=«swordfish»;Trusted=no",
            "password=«swordfish»,user=bob",
            "PASSWORD=«swordfish» || exit 1",
            "password: «hunterTwo»,",
            "password: «swordfish» - 3 tries left",
            "token = «x9Kd82hfLqT4»;",
        ] {
            assert!(!reads(text), "{text}");
        }
    }
}
