//! What a display is for a reader of text, and what of it is kept as a file: the table of `docs/results.md`.
//!
//! An interpreter gives a value in several forms at once. A reader of text gets the one that says it best; forms that are
//! no text, or lose by it, are attachments, in the order in which they came.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::execution::{Outcome, RichResult};

/// What a text form is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Text as it is.
    Text,
    /// JSON text: exactly the value.
    Json,
    /// Text that shows a table.
    Table,
}

impl Reading {
    /// Its name in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Table => "table",
        }
    }
}

/// A form that is kept as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The suffix after the display's number: `.png`, `.chart.json`.
    pub extension: String,
    /// Its media type.
    pub mime_type: String,
    /// Itself.
    pub bytes: Vec<u8>,
}

/// The forms of E2B that are not text: name, extension, media type, whether it is base64.
const FORMS: [(&str, &str, &str, bool); 12] = [
    ("png", "png", "image/png", true),
    ("image/png", "png", "image/png", true),
    ("jpeg", "jpg", "image/jpeg", true),
    ("image/jpeg", "jpg", "image/jpeg", true),
    ("image/gif", "gif", "image/gif", true),
    ("image/webp", "webp", "image/webp", true),
    ("pdf", "pdf", "application/pdf", true),
    ("application/pdf", "pdf", "application/pdf", true),
    ("svg", "svg", "image/svg+xml", false),
    ("image/svg+xml", "svg", "image/svg+xml", false),
    ("javascript", "js", "text/javascript", false),
    ("chart", "chart.json", "application/json", false),
];

/// What HTML holds that a reader of text does not get.
const DRAWN: [&str; 8] = ["<script", "<svg", "<img", "<canvas", "<iframe", "<video", "<audio", "<object"];

impl RichResult {
    /// What a reader of text gets; `None`: nothing of it is text.
    pub fn reading(&self) -> Option<(Cow<'_, str>, Reading)> {
        if let Some(json) = self.formats.get("json").or_else(|| self.formats.get("application/json")) {
            // The lines of a text are its lines.
            return Some(match json {
                Value::String(text) => (Cow::Borrowed(text.as_str()), Reading::Text),
                value => (Cow::Owned(value.to_string()), Reading::Json),
            });
        }
        let form =
            |name: &str| self.formats.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let spoken = ["markdown", "latex"].iter().find_map(|name| form(name));
        if let Some(text) = form("text").filter(|text| spoken.is_none() || !is_address(text)) {
            let is_table =
                self.formats.contains_key("data") || form("html").is_some_and(|html| html.contains("<table"));
            return Some((Cow::Borrowed(text), if is_table { Reading::Table } else { Reading::Text }));
        }
        spoken.map(|text| (Cow::Borrowed(text), Reading::Text))
    }

    /// Gives a display that is readable only in a browser a text: the words of its HTML instead of an object's address.
    /// This comes before the guard, which must see words that tags held apart.
    pub fn read_html(&mut self) {
        let has_words = ["json", "markdown", "latex"].iter().any(|form| self.formats.contains_key(*form));
        let text = self.text().filter(|text| !is_address(text));
        if has_words || text.is_some() {
            return;
        }
        if let Some(Value::String(html)) = self.formats.get("html") {
            let words = words_of(html);
            if !words.is_empty() {
                self.formats.insert("text".to_owned(), words.into());
            }
        }
    }

    /// The forms that are kept as files.
    pub fn attachments(&self) -> Vec<Attachment> {
        self.formats.iter().filter_map(|(name, form)| attachment(name, form)).collect()
    }
}

fn attachment(name: &str, form: &Value) -> Option<Attachment> {
    let kept = |extension: &str, mime_type: &str, bytes: Vec<u8>| {
        Some(Attachment { extension: extension.to_owned(), mime_type: mime_type.to_owned(), bytes })
    };
    let bytes_of = |base64: &str| {
        let plain: Vec<u8> = base64.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        STANDARD.decode(plain).ok()
    };
    if let Some((_, extension, mime_type, is_base64)) = FORMS.iter().find(|(form, ..)| *form == name) {
        return match form {
            Value::String(text) if *is_base64 => kept(extension, mime_type, bytes_of(text)?),
            Value::String(text) => kept(extension, mime_type, text.clone().into_bytes()),
            other => kept(extension, mime_type, other.to_string().into_bytes()),
        };
    }
    match (name, form) {
        ("html", Value::String(html)) => {
            let lower = html.to_ascii_lowercase();
            let is_drawn = DRAWN.iter().any(|tag| lower.contains(tag))
                || lower.contains("<style") && !lower.contains("<style scoped");
            if is_drawn { kept("html", "text/html", html.clone().into_bytes()) } else { None }
        }
        _ if name.starts_with("application/vnd.pathbox") => None,
        _ if name.ends_with("json") && name.contains('/') && name != "application/json" => {
            kept(&format!("{}.json", short(name)), "application/json", form.to_string().into_bytes())
        }
        (_, Value::String(text))
            if name.starts_with("image/") || name.starts_with("audio/") || name.starts_with("video/") =>
        {
            kept(&short(name), name, bytes_of(text)?)
        }
        _ => None,
    }
}

/// A media type as an extension: `plotly` for `application/vnd.plotly.v1+json`.
fn short(mime_type: &str) -> String {
    let subtype = mime_type.split_once('/').map_or(mime_type, |(_, subtype)| subtype);
    let subtype = subtype.trim_start_matches("vnd.").trim_start_matches("x-");
    let word: String = subtype.chars().take_while(char::is_ascii_alphanumeric).take(20).collect();
    if word.is_empty() { "data".to_owned() } else { word.to_ascii_lowercase() }
}

/// Whether a text is only where an object is: `<altair.Chart object at 0x7f..>`, `<IPython.core.display.HTML object>`.
fn is_address(text: &str) -> bool {
    let inner = text.trim().strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inner.is_some_and(|inner| {
        let (class, rest) = match inner.split_once(" object") {
            Some(parts) => parts,
            None => inner.find(" at 0x").map_or((inner, "?"), |at| inner.split_at(at)),
        };
        let is_name = class.chars().all(|c| c.is_alphanumeric() || "._<>".contains(c));
        is_name && (rest.is_empty() || rest.starts_with(" at 0x"))
    })
}

/// The words of a piece of HTML: a line for each block and row, ` | ` between cells.
fn words_of(html: &str) -> String {
    const BLOCKS: [&str; 17] = [
        "tr", "p", "div", "li", "br", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "pre",
        "section", "caption",
    ];
    const SILENT: [&str; 5] = ["script", "style", "head", "svg", "template"];
    let mut out = String::new();
    let mut rest = html;
    while let Some(open) = rest.find('<') {
        push_words(&rest[..open], &mut out);
        rest = &rest[open..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.split_once("-->").map_or("", |(_, after)| after);
            continue;
        }
        let Some(close) = rest.find('>') else { break };
        let tag = &rest[1..close];
        let name: String = tag
            .trim_start_matches('/')
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect::<String>()
            .to_ascii_lowercase();
        rest = &rest[close + 1..];
        if SILENT.contains(&name.as_str()) && !tag.starts_with('/') && !tag.ends_with('/') {
            let end = format!("</{name}");
            let lower = rest.to_ascii_lowercase();
            let at = lower.find(&end).unwrap_or(rest.len());
            rest = rest[at..].split_once('>').map_or("", |(_, after)| after);
        } else if BLOCKS.contains(&name.as_str()) {
            trim_cells(&mut out);
            if !out.is_empty() && !out.ends_with('\n') {
                out.push('\n');
            }
        } else if ["td", "th"].contains(&name.as_str()) && tag.starts_with('/') {
            out.push_str(" | ");
        }
    }
    push_words(rest, &mut out);
    trim_cells(&mut out);
    out.trim().to_owned()
}

fn trim_cells(out: &mut String) {
    let end = out.trim_end_matches(' ').trim_end_matches('|').trim_end_matches(' ').len();
    out.truncate(end);
}

/// Adds text between tags, with spaces as a browser shows them.
fn push_words(text: &str, out: &mut String) {
    let mut blank = text.starts_with(|c: char| c.is_ascii_whitespace());
    for word in text.split_ascii_whitespace() {
        if blank && !out.is_empty() && !out.ends_with([' ', '\n']) {
            out.push(' ');
        }
        push_plain(word, out);
        blank = true;
    }
    if text.ends_with(|c: char| c.is_ascii_whitespace()) && !out.is_empty() && !out.ends_with([' ', '\n']) {
        out.push(' ');
    }
}

/// Adds a word with its entities read.
fn push_plain(word: &str, out: &mut String) {
    let mut rest = word;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let entity = rest.find(';').filter(|end| *end <= 10).and_then(|end| {
            let name = &rest[1..end];
            let code = match name.strip_prefix('#') {
                Some(hex) if hex.starts_with(['x', 'X']) => u32::from_str_radix(&hex[1..], 16).ok(),
                Some(digits) => digits.parse().ok(),
                None => match name {
                    "amp" => Some(0x26),
                    "lt" => Some(0x3c),
                    "gt" => Some(0x3e),
                    "quot" => Some(0x22),
                    "apos" => Some(0x27),
                    "nbsp" => Some(0x20),
                    _ => None,
                },
            };
            Some((end + 1, code.and_then(char::from_u32)?))
        });
        let (len, c) = entity.unwrap_or((1, '&'));
        out.push(c);
        rest = &rest[len..];
    }
    out.push_str(rest);
}

impl Outcome {
    /// All displays as text, one below the other, and what they are. `None` without text.
    pub fn reading(&self) -> Option<(String, Reading)> {
        let mut all = self.results.iter().filter_map(RichResult::reading);
        let (first, kind) = all.next()?;
        let mut out = first.into_owned();
        let mut kind = kind;
        for (text, _) in all {
            kind = Reading::Text;
            if !out.ends_with('\n') {
                out.push('\n');
            }
            out.push_str(&text);
        }
        Some((out, kind))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn display(formats: Value) -> RichResult {
        let formats: Map<String, Value> = formats.as_object().unwrap().clone();
        let mut result = RichResult { formats, is_main: false };
        result.read_html();
        result
    }

    #[test]
    fn each_form_has_its_reading_and_its_file() {
        let kept = |result: &RichResult| -> Vec<String> {
            result.attachments().iter().map(|one| format!("{} {}", one.extension, one.mime_type)).collect()
        };
        for (formats, reading, files) in [
            (
                json!({"text": "{'b': 1, 'a': 2}", "json": {"b": 1, "a": 2}}),
                Some(("{\"b\":1,\"a\":2}", "json")),
                vec![],
            ),
            (json!({"text": "a\\nb", "json": "a\nb"}), Some(("a\nb", "text")), vec![]),
            (json!({"text": "nan"}), Some(("nan", "text")), vec![]),
            (
                json!({"text": " n\n0 1", "html": "<table><tr><td>1</td></tr></table>", "data": {}}),
                Some((" n\n0 1", "table")),
                vec![],
            ),
            (
                json!({"text": "<IPython.core.display.Markdown object>", "markdown": "# hi"}),
                Some(("# hi", "text")),
                vec![],
            ),
            (
                json!({"text": "<IPython.core.display.Latex object>", "latex": "$x$"}),
                Some(("$x$", "text")),
                vec![],
            ),
            (
                json!({"text": "<IPython.core.display.HTML object>", "html": "<b>bold</b> &amp; <i>more</i>"}),
                Some(("bold & more", "text")),
                vec![],
            ),
            (
                json!({"text": "<pandas.io.formats.style.Styler object at 0x7f01>",
                    "html": "<style>#T { color: red }</style><table><thead><tr><th>&nbsp;</th><th>a</th></tr></thead><tr><td>0</td><td>1</td></tr></table>"}),
                Some(("| a\n0 | 1", "table")),
                vec!["html text/html"],
            ),
            (
                json!({"text": "<plotly.Figure object at 0x7f>", "html": "<div><script>Plotly.newPlot()</script></div>"}),
                Some(("<plotly.Figure object at 0x7f>", "text")),
                vec!["html text/html"],
            ),
            (
                json!({"png": "AAAA", "text": "<Figure size 640x480 with 1 Axes>"}),
                Some(("<Figure size 640x480 with 1 Axes>", "text")),
                vec!["png image/png"],
            ),
            (json!({"image/gif": "AAAA"}), None, vec!["gif image/gif"]),
            (json!({"svg": "<svg/>", "pdf": "AAAA"}), None, vec!["svg image/svg+xml", "pdf application/pdf"]),
            (
                json!({"application/vnd.plotly.v1+json": {"data": []}}),
                None,
                vec!["plotly.json application/json"],
            ),
            (json!({"application/vnd.vegalite.v5+json": {}}), None, vec!["vegalite.json application/json"]),
            (json!({"application/vnd.pathbox.analysis+json": {}}), None, vec![]),
            (
                json!({"chart": {"type": "bar"}, "png": "AAAA"}),
                None,
                vec!["chart.json application/json", "png image/png"],
            ),
            (json!({"javascript": "alert(1)"}), None, vec!["js text/javascript"]),
            (json!({"png": "not base64!"}), None, vec![]),
        ] {
            let result = display(formats.clone());
            let read = result.reading();
            let read = read.as_ref().map(|(text, kind)| (text.as_ref(), kind.as_str()));
            assert_eq!(read, reading, "{formats}");
            assert_eq!(kept(&result), files, "{formats}");
        }
    }

    #[test]
    fn an_object_address_is_distinguished_from_a_value() {
        for text in [
            "<a.B object at 0x7f00>",
            "<IPython.core.display.HTML object>",
            "<__main__.f.<locals>.C object at 0x1>",
            "<__main__.Html at 0x7fdb>",
        ] {
            assert!(is_address(text), "{text}");
        }
        for text in [
            "<b>",
            "<Figure size 640x480 with 1 Axes>",
            "<object>",
            "<1 object left>",
            "x",
            "<function f at 0x7f>",
        ] {
            assert!(!is_address(text), "{text}");
        }
    }
}
