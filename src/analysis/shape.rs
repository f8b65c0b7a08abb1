//! What a parameter may be, written once: the published JSON Schema, the check and the outline for a model all
//! come from the same table.
//!
//! The surprise: amounts are *texts* from here on. A decimal may arrive as text or as a JSON number; either way it
//! leaves as plain decimal text (`"1234.50"`), so that no binary fraction ever touches money. The published schema
//! names neither references nor unions, because many hosts cannot read them; a shape that contains itself is
//! written out once and then described in words.

use serde_json::{Map, Value, json};

use super::{AnalysisError, Problem};

/// What one value may be.
pub(super) enum Shape {
    /// These fields and no others.
    Object(&'static [Field]),
    /// Free names, each with a value of one shape; at most this many.
    Map(&'static Shape, usize),
    /// At least and at most this many values of one shape.
    List(&'static Shape, usize, usize),
    /// Text of 1 to this many characters.
    Text(usize),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A decimal number of either sign.
    Amount,
    /// A decimal number, zero or more.
    Positive,
    /// A share from 0 to 1, or a percentage as text.
    Rate,
    /// A decimal number of either sign, with a unit after it where it has one.
    Quantity,
    /// A decimal number above zero, or one whole number over another.
    Fraction,
    /// A whole number in a range.
    Whole(i64, i64),
    /// `true` or `false`.
    Flag,
    /// A calendar date.
    Date,
    /// A calendar date, or a date and time with its offset.
    Moment,
    /// Whatever JSON holds.
    Any,
}

/// A field of an object.
pub(super) struct Field {
    name: &'static str,
    shape: &'static Shape,
    required: bool,
    about: &'static str,
    /// Other names by which callers mean this field and nothing else.
    also: &'static [&'static str],
}

impl Field {
    /// The same field, which may be called by these names too.
    pub(super) const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.also.contains(&name)
    }
}

/// Signs and words for a choice, and the word that they mean.
const USUAL: &[(&str, &str)] = &[
    ("<", "lt"),
    ("<=", "le"),
    ("=<", "le"),
    (">", "gt"),
    (">=", "ge"),
    ("=", "eq"),
    ("==", "eq"),
    ("equals", "eq"),
    ("!=", "ne"),
    ("not_equals", "ne"),
    ("lte", "le"),
    ("gte", "ge"),
    ("avg", "mean"),
    ("average", "mean"),
    ("std", "stdev"),
    ("day", "days"),
    ("week", "weeks"),
    ("month", "months"),
    ("year", "years"),
    ("business_days", "working_days"),
    ("monthly", "month"),
    ("yearly", "year"),
    ("quarterly", "quarter"),
];

/// A field that has to be there.
pub(super) const fn must(name: &'static str, shape: &'static Shape, about: &'static str) -> Field {
    Field { name, shape, required: true, about, also: &[] }
}

/// A field that may be left out (or be `null`, which means the same).
pub(super) const fn may(name: &'static str, shape: &'static Shape, about: &'static str) -> Field {
    Field { name, shape, required: false, about, also: &[] }
}

/// Digits before and after the decimal point that a number may have.
const INTEGER_DIGITS: usize = 30;
const FRACTION_DIGITS: usize = 30;
/// Below this a JSON number that was read as binary floating point has lost no whole digit.
const EXACT_FLOAT: f64 = 9_007_199_254_740_992.0;
/// Nesting that any program can follow without running out of stack.
const MAX_DEPTH: usize = 40;
/// More problems than this are not listed.
const MAX_PROBLEMS: usize = 10;

/// The value with every number in its canonical form.
///
/// # Errors
/// [`AnalysisError::Invalid`] with the first ten problems, each with its path.
pub(super) fn check(shape: &Shape, value: &Value, path: &str) -> Result<Value, AnalysisError> {
    check_with_notes(shape, value, path, &mut Vec::new())
}

/// The same, which adds to `notes` what was read otherwise than it was written.
///
/// # Errors
/// As [`check`].
pub(super) fn check_with_notes(
    shape: &Shape,
    value: &Value,
    path: &str,
    notes: &mut Vec<String>,
) -> Result<Value, AnalysisError> {
    let mut checker = Checker { path: path.to_owned(), depth: 0, problems: Vec::new(), taken: Vec::new() };
    let checked = checker.value(shape, value);
    if !checker.problems.is_empty() {
        return Err(AnalysisError::Invalid { problems: checker.problems });
    }
    for note in checker.taken {
        if !notes.contains(&note) && notes.len() < MAX_PROBLEMS {
            notes.push(note);
        }
    }
    Ok(checked)
}

struct Checker {
    path: String,
    depth: usize,
    problems: Vec<Problem>,
    /// Notes on what was read otherwise than it was written.
    taken: Vec<String>,
}

impl Checker {
    fn value(&mut self, shape: &Shape, value: &Value) -> Value {
        if self.depth >= MAX_DEPTH {
            return self.wrong(format!("at most {MAX_DEPTH} levels of nesting"), "more");
        }
        match (shape, value) {
            (Shape::Object(fields), Value::Object(given)) => self.object(fields, given),
            (Shape::Object(fields), Value::String(text)) if only_word(fields, text).is_some() => {
                only_word(fields, text).map_or(Value::Null, |(name, word)| json!({ name: word }))
            }
            (Shape::Object(_) | Shape::Map(..) | Shape::List(..), Value::String(text)) => match json_in(text)
            {
                Some(read) => {
                    let place = self.path.trim_start_matches("parameters").trim_start_matches('.');
                    self.taken.push(format!("`{place}` was read as JSON."));
                    self.value(shape, &read)
                }
                None => self.wrong(expected(shape), kind_of(value)),
            },
            (Shape::Map(of, max), Value::Object(given)) => self.map(of, *max, given),
            (Shape::List(of, min, max), Value::Array(given)) => self.list(of, *min, *max, given),
            (Shape::Text(max), Value::String(text)) if (1..=*max).contains(&text.chars().count()) => {
                value.clone()
            }
            (Shape::Choice(words), Value::String(text)) => match usual_word(words, text) {
                Some(word) => self.word(text, word),
                None => self.wrong(expected(shape), kind_of(value)),
            },
            (Shape::Whole(min, max), Value::Number(number))
                if number.as_i64().is_some_and(|n| (*min..=*max).contains(&n)) =>
            {
                value.clone()
            }
            (Shape::Flag, Value::Bool(_)) => value.clone(),
            (Shape::Moment, Value::String(text)) if is_moment(text) => value.clone(),
            (Shape::Date | Shape::Moment, Value::String(text)) => self.date(shape, text),
            (Shape::Any, _) => self.any(value),
            (Shape::Amount, _) => self.number(shape, value, |_| true, decimal_text(value)),
            (Shape::Positive, _) => {
                self.number(shape, value, |text| !text.starts_with('-'), decimal_text(value))
            }
            (Shape::Rate, _) => self.number(shape, value, is_share, rate_text(value)),
            (Shape::Quantity, _) => self.number(shape, value, |_| true, quantity_text(value)),
            (Shape::Fraction, _) => {
                self.number(shape, value, |text| !text.starts_with('-'), fraction_text(value))
            }
            _ => self.wrong(expected(shape), kind_of(value)),
        }
    }

    fn date(&mut self, shape: &Shape, text: &str) -> Value {
        match read_date(text) {
            Ok(date) => json!(date.to_string()),
            Err(problem) => self.wrong(expected(shape), problem),
        }
    }

    fn number(
        &mut self,
        shape: &Shape,
        value: &Value,
        fits: fn(&str) -> bool,
        text: Option<String>,
    ) -> Value {
        match text {
            Some(text) if fits(&text) => Value::String(text),
            Some(_) => self.wrong(expected(shape), "a number outside that"),
            None => self.wrong(expected(shape), kind_of(value)),
        }
    }

    fn word(&mut self, text: &str, word: &str) -> Value {
        if text != word {
            self.taken.push(format!("{text:?} was read as {word:?}."));
        }
        json!(word)
    }

    fn object(&mut self, fields: &[Field], given: &Map<String, Value>) -> Value {
        let renamed = self.renamed(fields, given);
        let given = &renamed;
        let mut checked = Map::new();
        for (name, value) in given {
            match fields.iter().find(|field| field.name == name) {
                Some(field) if is_left_out(field, value) => {}
                Some(field) => {
                    let value = self.inside(&format!(".{name}"), |this| this.value(field.shape, value));
                    checked.insert(name.clone(), value);
                }
                None => {
                    let known = fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
                    let name = clipped(name);
                    self.wrong(format!("only the fields {known}"), &format!("the unknown field {name:?}"));
                }
            }
        }
        for field in fields.iter().filter(|field| field.required) {
            if given.get(field.name).is_none_or(Value::is_null) {
                self.inside(&format!(".{}", field.name), |this| {
                    this.wrong(expected(field.shape), "nothing: the field is required")
                });
            }
        }
        Value::Object(checked)
    }

    /// The object with other names of fields instead of theirs, and with the fields of its one required object, if they
    /// were given directly, inside that.
    fn renamed(&mut self, fields: &[Field], given: &Map<String, Value>) -> Map<String, Value> {
        let mut renamed = Map::new();
        let mut inner = Map::new();
        let mut objects =
            fields.iter().filter(|field| field.required && matches!(field.shape, Shape::Object(_)));
        let inside = match (objects.next(), objects.next()) {
            (Some(field), None) if !given.contains_key(field.name) => Some(field),
            _ => None,
        };
        for (name, value) in given {
            let field = fields.iter().find(|field| field.name == name).or_else(|| {
                let called = |field: &&Field| field.is_called(name) && !given.contains_key(field.name);
                fields.iter().find(called).filter(|field| !renamed.contains_key(field.name))
            });
            let fits = |field: &&Field| match field.shape {
                Shape::Object(of) => of.iter().any(|field| field.is_called(name)),
                _ => false,
            };
            match (field, inside.filter(fits)) {
                (Some(field), _) => {
                    if field.name != name {
                        self.taken.push(format!("`{name}` was read as `{}`.", field.name));
                    }
                    renamed.insert(field.name.to_owned(), value.clone());
                }
                (None, Some(_)) => {
                    inner.insert(name.clone(), value.clone());
                }
                (None, None) => {
                    renamed.insert(name.clone(), value.clone());
                }
            }
        }
        if let Some(field) = inside.filter(|_| !inner.is_empty()) {
            self.taken.push(format!("A bare condition was read as `{}`.", field.name));
            renamed.insert(field.name.to_owned(), Value::Object(inner));
        }
        renamed
    }

    fn map(&mut self, of: &Shape, max: usize, given: &Map<String, Value>) -> Value {
        if given.len() > max {
            return self.wrong(format!("at most {max} names"), &format!("{}", given.len()));
        }
        let mut checked = Map::new();
        for (name, value) in given {
            let value = self.inside(&format!(".{}", clipped(name)), |this| this.value(of, value));
            checked.insert(name.clone(), value);
        }
        Value::Object(checked)
    }

    fn list(&mut self, of: &Shape, min: usize, max: usize, given: &[Value]) -> Value {
        if !(min..=max).contains(&given.len()) {
            return self.wrong(format!("a list of {min} to {max}"), &format!("a list of {}", given.len()));
        }
        let mut checked = Vec::with_capacity(given.len());
        for (index, value) in given.iter().enumerate() {
            checked.push(self.inside(&format!("[{index}]"), |this| this.value(of, value)));
        }
        Value::Array(checked)
    }

    fn any(&mut self, value: &Value) -> Value {
        match value {
            Value::Array(items) => Value::Array(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| {
                        self.inside(&format!("[{index}]"), |this| this.value(&Shape::Any, item))
                    })
                    .collect(),
            ),
            Value::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(name, item)| {
                        let step = format!(".{}", clipped(name));
                        (name.clone(), self.inside(&step, |this| this.value(&Shape::Any, item)))
                    })
                    .collect(),
            ),
            _ => value.clone(),
        }
    }

    fn inside<T>(&mut self, step: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        let step = if length == 0 { step.trim_start_matches('.') } else { step };
        self.path.push_str(step);
        self.depth += 1;
        let checked = check(self);
        self.depth -= 1;
        self.path.truncate(length);
        checked
    }

    fn wrong(&mut self, expected: String, got: &str) -> Value {
        if self.problems.len() < MAX_PROBLEMS {
            let path = if self.path.is_empty() { "parameters" } else { &self.path };
            self.problems.push(Problem { path: path.to_owned(), expected, got: got.to_owned() });
        }
        Value::Null
    }
}

/// A number as plain decimal text; `None` for other values, and for one that JSON's reader may have changed.
fn decimal_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().filter(|float| float.abs() < EXACT_FLOAT)?;
            format!("{float}") // the shortest text that reads back to the same number, never with an exponent
        }
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    let unsigned = text.strip_prefix('-').unwrap_or(&text);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
    let digits = |part: &str, most: usize| {
        (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    (digits(whole, INTEGER_DIGITS) && digits(fraction, FRACTION_DIGITS)).then_some(text)
}

/// A share as plain decimal text; `"12.5%"` becomes `"0.125"`.
fn rate_text(value: &Value) -> Option<String> {
    let Value::String(text) = value else { return decimal_text(value) };
    let Some(percent) = text.strip_suffix('%') else { return decimal_text(value) };
    let percent = decimal_text(&Value::String(percent.trim_end().to_owned()))?;
    let (sign, unsigned) = percent.strip_prefix('-').map_or(("", percent.as_str()), |rest| ("-", rest));
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let padded = format!("{whole:0>3}");
    let (whole, moved) = padded.split_at(padded.len() - 2);
    Some(format!("{sign}{whole}.{moved}{fraction}"))
}

/// Digits of the unit's name at most.
const UNIT_CHARS: usize = 30;

/// A number as plain decimal text, with one space and its unit after it; `"12.5%"` becomes `"0.125"`, `"€25"` `"25 €"`.
fn quantity_text(value: &Value) -> Option<String> {
    let Value::String(text) = value else { return decimal_text(value) };
    if let Some(plain) = rate_text(value) {
        return Some(plain);
    }
    if let Some(symbol) = text.chars().next().filter(|first| "€$£¥".contains(*first)) {
        let number = decimal_text(&json!(text[symbol.len_utf8()..].trim_start()))?;
        return Some(format!("{number} {symbol}"));
    }
    let split = text.find(|c: char| !(c.is_ascii_digit() || "-.".contains(c)))?;
    let (number, unit) = (decimal_text(&json!(&text[..split]))?, text[split..].trim_start());
    is_unit(unit).then(|| format!("{number} {unit}"))
}

fn is_unit(text: &str) -> bool {
    let mark = |c: char| "€$£¥".contains(c);
    let exponent =
        text.strip_prefix(['e', 'E']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    text.len() <= UNIT_CHARS
        && !exponent
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || mark(c))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || mark(c) || "/_".contains(c))
}

/// The unit of a number that was written with one.
pub(super) fn unit_of(value: &Value) -> Option<String> {
    let text = quantity_text(value)?;
    text.split_once(' ').map(|(_, unit)| unit.to_owned())
}

/// A decimal, or a fraction of two whole numbers such as `1/12`.
fn fraction_text(value: &Value) -> Option<String> {
    let Some((over, under)) = value.as_str().and_then(|text| text.split_once('/')) else {
        return decimal_text(value);
    };
    let whole = |part: &str| (1..=9).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    (whole(over) && whole(under) && under.bytes().any(|byte| byte != b'0')).then(|| format!("{over}/{under}"))
}

fn is_share(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    match whole.trim_start_matches('0') {
        "" => true,
        "1" => fraction.bytes().all(|byte| byte == b'0'),
        _ => false,
    }
}

/// The day that a text names, in the forms whose order is certain: year first, day first with dots, a month by name.
pub(super) fn read_date(text: &str) -> Result<chrono::NaiveDate, &'static str> {
    if text.contains(':') {
        return Err("a time, where a day is expected, or a time without its offset");
    }
    let forms = ["%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d. %m. %Y"];
    let named = ["%d %B %Y", "%d. %B %Y", "%B %d, %Y", "%B %d %Y"];
    let parts: Vec<&str> =
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()).collect();
    let [first, second, third] = parts[..] else { return Err("a text that is not a date") };
    let digits = |part: &str, length: std::ops::RangeInclusive<usize>| {
        length.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let with_name = [first, second].iter().any(|part| part.bytes().all(|byte| byte.is_ascii_alphabetic()));
    let year_first = digits(first, 4..=4) && digits(second, 1..=2) && digits(third, 1..=2);
    let year_last = digits(third, 4..=4) && (with_name || digits(first, 1..=2) && digits(second, 1..=2));
    if !(year_first || year_last) || text.contains("0000") {
        return Err("a text that is not a date");
    }
    if year_last && !with_name && !text.contains('.') {
        return Err("a date whose day and month cannot be told apart");
    }
    let forms = if with_name { &named[..] } else { &forms[..] };
    forms
        .iter()
        .find_map(|form| chrono::NaiveDate::parse_from_str(text, form).ok())
        .ok_or("a day that does not exist")
}

fn is_moment(text: &str) -> bool {
    text.len() <= 40
        && text.get(..10).is_some_and(|date| read_date(date).is_ok())
        && text.as_bytes().get(10) == Some(&b'T')
        && chrono::DateTime::parse_from_rfc3339(text).is_ok()
}

/// An object or a list that came as its text.
fn json_in(text: &str) -> Option<Value> {
    let text = text.trim_start_matches('\u{feff}').trim();
    let read = if text.starts_with(['{', '[']) { serde_json::from_str(text).ok() } else { None };
    read.filter(|read: &Value| read.is_object() || read.is_array())
}

/// Whether a field is as good as absent: null, or an optional one whose text is empty, which no shape but `Any` takes.
fn is_left_out(field: &Field, value: &Value) -> bool {
    let is_empty = value.as_str() == Some("");
    value.is_null() || is_empty && !field.required && !matches!(field.shape, Shape::Any)
}

/// The one required field of an object and its word, when a text in the object's place is that word.
fn only_word(fields: &'static [Field], text: &str) -> Option<(&'static str, &'static str)> {
    let mut required = fields.iter().filter(|field| field.required);
    match (required.next(), required.next()) {
        (Some(Field { name, shape: Shape::Choice(words), .. }), None) => {
            Some((name, usual_word(words, text)?))
        }
        _ => None,
    }
}

/// The word of a choice that a text is, or plainly means.
fn usual_word(words: &'static [&'static str], text: &str) -> Option<&'static str> {
    let find = |wanted: &str| words.iter().copied().find(|word| *word == wanted);
    find(text).or_else(|| {
        let plain = text.trim().to_ascii_lowercase().replace([' ', '-'], "_");
        find(&plain)
            .or_else(|| USUAL.iter().find(|(usual, _)| *usual == plain).and_then(|(_, word)| find(word)))
    })
}

fn clipped(name: &str) -> String {
    name.chars().take(60).collect()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number out of range",
        Value::String(text) if text.is_empty() => "an empty text",
        Value::String(_) => "another text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn expected(shape: &Shape) -> String {
    match shape {
        Shape::Object(fields) => format!("an object {}", one_level(fields)),
        Shape::Map(..) => "an object".to_owned(),
        Shape::List(Shape::Object(fields), min, max) => {
            format!("a list of {min} to {max}, each {}", one_level(fields))
        }
        Shape::List(_, min, max) => format!("a list of {min} to {max}"),
        Shape::Text(max) => format!("text of 1 to {max} characters"),
        Shape::Choice(words) => format!("one of {}", words.join(", ")),
        Shape::Amount => format!("a number, best as text like \"1234.50\" ({INTEGER_DIGITS} digits at most)"),
        Shape::Positive => {
            format!(
                "a number of zero or more, best as text like \"1234.50\" ({INTEGER_DIGITS} digits at most)"
            )
        }
        Shape::Quantity => {
            "a number, with its unit where it has one, like \"1234.50\" or \"25 EUR\"".to_owned()
        }
        Shape::Fraction => "a number above zero like \"0.25\", or a fraction like \"1/12\"".to_owned(),
        Shape::Rate => "a share from 0 to 1 like \"0.20\", or a percentage as text like \"20%\"".to_owned(),
        Shape::Whole(min, max) => format!("a whole number from {min} to {max}"),
        Shape::Flag => "true or false".to_owned(),
        Shape::Date => "a date like \"2024-02-29\"".to_owned(),
        Shape::Moment => {
            "a date like \"2024-02-29\", or a time with its offset like \"2024-02-29T17:00:00+01:00\""
                .to_owned()
        }
        Shape::Any => "any value".to_owned(),
    }
}

/// The fields of an object in one line, `*` after what is required.
fn one_level(fields: &[Field]) -> String {
    let name = |field: &Field| format!("{}{}", field.name, if field.required { "*" } else { "" });
    format!("{{{}}}", fields.iter().map(name).collect::<Vec<_>>().join(", "))
}

/// What the fields mean, a line for each, where the shape says something about it; a name that means the same at several
/// places stands once.
pub(super) fn meanings(shape: &'static Shape) -> Vec<String> {
    let (mut lines, mut seen) = (Vec::new(), Vec::new());
    meanings_into(shape, &mut seen, &mut lines);
    lines
}

fn meanings_into(shape: &'static Shape, seen: &mut Vec<&'static Shape>, lines: &mut Vec<String>) {
    if seen.iter().any(|other| std::ptr::eq(*other, shape)) {
        return;
    }
    seen.push(shape);
    match shape {
        Shape::Object(fields) => {
            for field in *fields {
                let line = format!("{}: {}", field.name, field.about);
                if !field.about.is_empty() && !lines.contains(&line) {
                    lines.push(line);
                }
                meanings_into(field.shape, seen, lines);
            }
        }
        Shape::Map(of, _) | Shape::List(of, ..) => meanings_into(of, seen, lines),
        _ => {}
    }
}

/// The JSON Schema of a shape: plain types only, no references, no unions.
pub(super) fn schema(shape: &'static Shape) -> Value {
    schema_within(shape, "", &mut Vec::new())
}

fn schema_within(shape: &'static Shape, about: &str, above: &mut Vec<&'static Shape>) -> Value {
    if above.iter().any(|outer| std::ptr::eq(*outer, shape)) {
        return json!({"type": "object", "description": "The same fields as the object that holds this."});
    }
    above.push(shape);
    let mut schema = match shape {
        Shape::Object(fields) => {
            let properties: Map<String, Value> = fields
                .iter()
                .map(|field| (field.name.to_owned(), schema_within(field.shape, field.about, above)))
                .collect();
            let required: Vec<_> =
                fields.iter().filter(|field| field.required).map(|field| field.name).collect();
            let mut object =
                json!({"type": "object", "properties": properties, "additionalProperties": false});
            if !required.is_empty() {
                object["required"] = json!(required);
            }
            object
        }
        Shape::Map(of, max) => json!({
            "type": "object", "additionalProperties": schema_within(of, "", above), "maxProperties": max,
        }),
        Shape::List(of, min, max) => json!({
            "type": "array", "items": schema_within(of, "", above), "minItems": min, "maxItems": max,
        }),
        Shape::Text(max) => json!({"type": "string", "minLength": 1, "maxLength": max}),
        Shape::Choice(words) => json!({"type": "string", "enum": words}),
        Shape::Amount => json!({"type": "string", "pattern": "^-?[0-9]{1,30}([.][0-9]{1,30})?$"}),
        Shape::Positive => json!({"type": "string", "pattern": "^[0-9]{1,30}([.][0-9]{1,30})?$"}),
        Shape::Rate => json!({"type": "string", "pattern": "^[0-9]{1,30}([.][0-9]{1,30})? ?%?$"}),
        Shape::Quantity => {
            json!({"type": "string", "pattern": "^-?[0-9]{1,30}([.][0-9]{1,30})?( .{1,30})?$"})
        }
        Shape::Fraction => json!({"type": "string", "pattern": "^[0-9]{1,30}([.][0-9]{1,30}|/[0-9]{1,9})?$"}),
        Shape::Whole(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        Shape::Flag => json!({"type": "boolean"}),
        Shape::Date => json!({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
        Shape::Moment => json!({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}(T.*)?$"}),
        Shape::Any => json!({}),
    };
    above.pop();
    if !about.is_empty() {
        schema["description"] = json!(about);
    }
    schema
}

/// The shape in one line, `*` after what is required: what a model reads where a schema cannot be shown.
pub(super) fn outline(shape: &'static Shape) -> String {
    let mut text = String::new();
    outline_into(shape, &mut Vec::new(), &mut text);
    text
}

fn outline_into(shape: &'static Shape, above: &mut Vec<&'static Shape>, text: &mut String) {
    if above.iter().any(|outer| std::ptr::eq(*outer, shape)) {
        return text.push('…');
    }
    above.push(shape);
    match shape {
        Shape::Object(fields) => {
            text.push('{');
            for (index, field) in fields.iter().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                text.push_str(field.name);
                if field.required {
                    text.push('*');
                }
                if !matches!(field.shape, Shape::Text(_) | Shape::Any) {
                    text.push_str(": ");
                    outline_into(field.shape, above, text);
                }
            }
            text.push('}');
        }
        Shape::Map(of, _) => {
            text.push_str("{name: ");
            outline_into(of, above, text);
            text.push('}');
        }
        Shape::List(of, ..) => {
            text.push('[');
            outline_into(of, above, text);
            text.push(']');
        }
        Shape::Text(_) => text.push_str("text"),
        Shape::Choice(words) => text.push_str(&words.join("|")),
        Shape::Amount | Shape::Positive => text.push_str("number"),
        Shape::Quantity => text.push_str("number with unit"),
        Shape::Fraction => text.push_str("number or \"1/12\""),
        Shape::Rate => text.push_str("rate"),
        Shape::Whole(..) => text.push_str("integer"),
        Shape::Flag => text.push_str("true|false"),
        Shape::Date | Shape::Moment => text.push_str("date"),
        Shape::Any => text.push_str("any"),
    }
    above.pop();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(shape: &Shape, value: Value) -> String {
        check(shape, &value, "").unwrap_err().to_string()
    }

    #[test]
    fn a_number_leaves_as_the_text_that_the_caller_wrote() {
        for (given, text) in [
            (json!(0.1), "0.1"),
            (json!(1e-7), "0.0000001"),
            (json!(-12), "-12"),
            (json!(u64::MAX), "18446744073709551615"),
            (json!("1234.50"), "1234.50"),
            (json!("000.10"), "000.10"),
        ] {
            assert_eq!(check(&Shape::Amount, &given, "").unwrap(), json!(text));
        }
    }

    #[test]
    fn inexact_numbers_are_refused() {
        for bad in [
            json!("NaN"),
            json!("Infinity"),
            json!("-inf"),
            json!("1e5"),
            json!("1,000"),
            json!(" 1"),
            json!("１"),
            json!(""),
            json!("."),
            json!("1."),
            json!(".5"),
            json!("--1"),
            json!("+1"),
            json!("0x10"),
            json!("1_000"),
            json!(1e300),
            json!(9_007_199_254_740_993.0),
            json!("9".repeat(31)),
            json!(true),
            json!([1]),
            json!({"n": 1}),
            json!("__import__('os')"),
        ] {
            assert!(check(&Shape::Amount, &bad, "").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rate_is_a_share_or_a_percentage_and_never_more_than_the_whole() {
        for (given, text) in [
            (json!("20%"), "0.20"),
            (json!("12.5 %"), "0.125"),
            (json!("0.5%"), "0.005"),
            (json!("100%"), "1.00"),
            (json!(0.4), "0.4"),
            (json!(1), "1"),
            (json!("1.00"), "1.00"),
        ] {
            assert_eq!(check(&Shape::Rate, &given, "").unwrap(), json!(text));
        }
        for bad in
            [json!(20), json!("1.01"), json!("101%"), json!("-0.2"), json!("-5%"), json!("%"), json!("5%%")]
        {
            assert!(check(&Shape::Rate, &bad, "").is_err(), "{bad}");
        }
    }

    #[test]
    fn dates_are_real_days() {
        for good in ["2024-02-29", "0001-01-01", "9999-12-31"] {
            assert!(check(&Shape::Date, &json!(good), "").is_ok());
        }
        for (given, day) in [
            ("2024-1-1", "2024-01-01"),
            ("31.12.2024", "2024-12-31"),
            ("1. 2. 2024", "2024-02-01"),
            ("2024/12/31", "2024-12-31"),
            ("31 January 2025", "2025-01-31"),
            ("29. Feb 2024", "2024-02-29"),
            ("March 3, 2025", "2025-03-03"),
        ] {
            assert_eq!(check(&Shape::Date, &json!(given), "").unwrap(), json!(day), "{given}");
        }
        for (bad, said) in [
            ("2023-02-29", "a day that does not exist"),
            ("2025-02-30", "a day that does not exist"),
            ("31.02.2025", "a day that does not exist"),
            ("2024-13-01", "a day that does not exist"),
            ("3/4/2024", "cannot be told apart"),
            ("03-04-2024", "cannot be told apart"),
            ("24-01-01", "not a date"),
            ("0000-01-01", "not a date"),
            ("2024-02-29T00:00:00Z", "a time, where a day is expected"),
            ("+2024-01-1x", "not a date"),
            ("soon", "not a date"),
        ] {
            let problem = check(&Shape::Date, &json!(bad), "").unwrap_err().to_string();
            assert!(problem.contains(said), "{bad}: {problem}");
        }
        assert!(check(&Shape::Moment, &json!("2024-02-29T23:30:00+01:00"), "").is_ok());
        assert!(check(&Shape::Moment, &json!("2024-02-29T23:30:00"), "").is_err());
        assert!(check(&Shape::Moment, &json!("2024-02-29 23:30:00Z"), "").is_err());
    }

    #[test]
    fn a_wrong_field_is_named_with_its_path_and_what_was_expected() {
        static ROW: Shape = Shape::Object(&[must("rate", &Shape::Rate, ""), may("id", &Shape::Text(5), "")]);
        static ROWS: Shape = Shape::Object(&[must("rows", &Shape::List(&ROW, 1, 3), "")]);
        let said =
            problem(&ROWS, json!({"rows": [{"rate": 0.1}, {"rate": "x", "idd": 1}, {"id": "toolong"}]}));
        assert!(said.contains("rows[1].rate: expected a share from 0 to 1"), "{said}");
        assert!(
            said.contains("rows[1]: expected only the fields rate, id, got the unknown field \"idd\""),
            "{said}"
        );
        assert!(said.contains("rows[2].id: expected text of 1 to 5 characters"), "{said}");
        assert!(said.contains("rows[2].rate: expected a share"), "{said}");
        assert!(
            problem(&ROWS, json!({}))
                .contains("rows: expected a list of 1 to 3, each {rate*, id}, got nothing")
        );
        assert!(problem(&ROWS, json!([])).starts_with("parameters"), "{}", problem(&ROWS, json!([])));
    }

    #[test]
    fn unambiguous_guesses_are_accepted_and_noted_and_nothing_else_is() {
        static WORDS: Shape = Shape::Choice(&["le", "ge", "days_since_at_least"]);
        static INNER: Shape =
            Shape::Object(&[may("op", &WORDS, "").also(&["operator"]), may("fact", &Shape::Text(9), "")]);
        static OUTER: Shape =
            Shape::Object(&[must("id", &Shape::Text(9), "").also(&["name"]), must("requires", &INNER, "")]);
        let take = |value: Value| {
            let mut notes = Vec::new();
            check_with_notes(&OUTER, &value, "", &mut notes).map(|taken| (taken, notes))
        };
        let whole = json!({"id": "a", "requires": {"op": "le", "fact": "x"}});
        assert_eq!(take(whole.clone()).unwrap(), (whole.clone(), Vec::new()));
        let (taken, notes) = take(json!({"name": "a", "operator": "<=", "fact": "x"})).unwrap();
        assert_eq!(taken, whole);
        assert_eq!(notes.len(), 4, "{notes:?}");
        for wrong in [
            json!({"id": "a", "name": "b", "requires": {"op": "le"}}),
            json!({"id": "a", "requires": {"op": "le"}, "fact": "x"}),
            json!({"id": "a", "op": "le", "fuct": "x"}),
            json!({"id": "a", "requires": {"op": "<>"}}),
        ] {
            assert!(take(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantities_keep_their_unit_and_fractions_their_form() {
        for (given, text) in [
            (json!("25 EUR"), "25 EUR"),
            (json!("25EUR"), "25 EUR"),
            (json!("€25.50"), "25.50 €"),
            (json!("-3 kWh"), "-3 kWh"),
            (json!("1.17 EUR/GBP"), "1.17 EUR/GBP"),
            (json!(25), "25"),
            (json!("12.5%"), "0.125"),
        ] {
            assert_eq!(check(&Shape::Quantity, &given, "").unwrap(), json!(text));
        }
        for bad in [
            json!("EUR"),
            json!("1,5 EUR"),
            json!("5 EUR GBP"),
            json!("5 <b>"),
            json!(""),
            json!("1e5 EUR"),
            json!("1e5"),
            json!(true),
        ] {
            assert!(check(&Shape::Quantity, &bad, "").is_err(), "{bad}");
        }
        assert_eq!(check(&Shape::Fraction, &json!("1/12"), "").unwrap(), json!("1/12"));
        for bad in [json!("1/0"), json!("-1/12"), json!("1/2/3"), json!("a/b"), json!("1/")] {
            assert!(check(&Shape::Fraction, &bad, "").is_err(), "{bad}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_and_not_followed() {
        let mut value = json!(1);
        for _ in 0..100 {
            value = json!([value]);
        }
        assert!(problem(&Shape::Any, value).contains("levels of nesting"));
    }
}
