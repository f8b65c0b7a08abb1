//! Placeholder numbers: within a context a value always gets the same placeholder, such as `[EMAIL_1]`, across restarts.
//!
//! Only a keyed hash of the value and a number are kept, never the value. The caller loads the rows that a context has
//! issued before and saves the new ones afterwards.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::view::{hides, view};
use super::{Kind, Sealer};
use crate::domain::hex;

/// A stored number: kind, keyed hash of the value (32 hex digits), number.
pub type Row = (String, String, u32);

/// Issues the numbers of one context. Not shared between concurrent runs: a context runs one at a time.
#[derive(Clone)]
pub struct Numbering {
    /// The hash with the key already in it.
    keyed: Hmac<Sha256>,
    /// Whether the key is public.
    keyless: bool,
    numbers: HashMap<(Kind, [u8; 16]), u32>,
    highest: BTreeMap<Kind, u32>,
    fresh: Vec<Row>,
    /// Recent values of this run: most values are repeated. Never stored.
    recent: Vec<Option<Recent>>,
    sealer: Option<Sealer>,
    /// Whether no value gets a new number.
    closed: bool,
    /// The values behind this run's placeholders, where they are kept.
    kept: Option<Values>,
}

/// Values of these kinds by their numbers, up to the limit of a context.
#[derive(Clone)]
struct Values {
    kinds: BTreeSet<Kind>,
    by_number: BTreeMap<(Kind, u32), Zeroizing<String>>,
}

type Recent = (Kind, Zeroizing<String>, u32);

/// How many recent values are kept; a power of two.
const RECENT: usize = 256;

impl Numbering {
    /// The most values of one kind that get a number of their own; later ones share the last.
    ///
    /// A program that prints a million addresses must not grow the context's rows without end.
    pub const MAX_PER_KIND: u32 = 10_000;

    /// Numbers under `key` (32 random bytes that belong to the context), continuing from stored rows.
    ///
    /// Rows that this version does not understand are left out.
    pub fn new(key: [u8; 32], rows: impl IntoIterator<Item = Row>) -> Self {
        let key = Zeroizing::new(key);
        #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let keyed = Hmac::new_from_slice(&*key).expect("any length of key");
        let mut numbering = Self {
            keyed,
            keyless: false,
            recent: vec![None; RECENT],
            numbers: HashMap::new(),
            highest: BTreeMap::new(),
            fresh: Vec::new(),
            sealer: None,
            closed: false,
            kept: None,
        };
        for (kind, hash, number) in rows {
            let (Ok(kind), Some(hash)) = (kind.parse::<Kind>(), parse_hex(&hash)) else { continue };
            numbering.numbers.insert((kind, hash), number);
            let highest = numbering.highest.entry(kind).or_default();
            *highest = number.max(*highest);
        }
        numbering
    }

    /// The same, with a sealer for the context's tokens. Without one a policy's `tokenize` redacts.
    pub fn sealing(self, sealer: Option<Sealer>) -> Self {
        Self { sealer, ..self }
    }

    /// The same, but only values that already have a number get one: for callers that may not save new numbers.
    pub fn closed(self) -> Self {
        Self { closed: true, ..self }
    }

    /// The most values that a context keeps.
    pub const MAX_KEPT: usize = 10_000;
    /// The longest value that is kept, in bytes.
    pub const LONGEST_KEPT: usize = 512;

    /// The same, keeping the values behind placeholders of these kinds until [`Self::take_values`].
    pub fn keeping(self, kinds: &BTreeSet<Kind>) -> Self {
        Self { kept: Some(Values { kinds: kinds.clone(), by_number: BTreeMap::new() }), ..self }
    }

    /// Keeps the value of a placeholder as it was first written. Values in an encoded spelling are left out, because a
    /// program that received one would get the wrong text; so are values that share a number.
    pub(super) fn keep(&mut self, kind: Kind, number: u32, value: &str) {
        let Some(kept) = self.kept.as_mut().filter(|kept| kept.kinds.contains(&kind)) else { return };
        let plain = || !value.contains('\\') && !(0..value.len()).any(|at| hides(value.as_bytes(), at));
        if number < Self::MAX_PER_KIND
            && value.len() <= Self::LONGEST_KEPT
            && kept.by_number.len() < Self::MAX_KEPT
            && !kept.by_number.contains_key(&(kind, number))
            && plain()
        {
            kept.by_number.insert((kind, number), Zeroizing::new(value.to_owned()));
        }
    }

    /// The values that were kept.
    pub fn take_values(&mut self) -> Vec<(Kind, u32, Zeroizing<String>)> {
        let kept = self.kept.as_mut().map(|kept| std::mem::take(&mut kept.by_number)).unwrap_or_default();
        kept.into_iter().map(|((kind, number), value)| (kind, number, value)).collect()
    }

    /// Whether [`Self::number`] may be asked for the number of a value.
    pub(super) fn gives_number(&self, kind: Kind, value: &str) -> bool {
        !self.closed || self.numbers.contains_key(&(kind, self.hash(kind, value)))
    }

    /// The token of a value, where there is a key for tokens and the value is not too long.
    pub(super) fn token(&self, kind: Kind, value: &str) -> Option<String> {
        self.sealer.as_ref()?.seal(kind, value)
    }

    /// Whether a token was made in this context.
    pub(super) fn sealed(&self, token: &str) -> bool {
        self.sealer.as_ref().is_some_and(|sealer| sealer.open(token).is_ok())
    }

    /// Numbers for a single text, under a key that is not kept: for a file given on the command line. There are no
    /// fingerprints, because they would allow trying all values.
    pub fn alone() -> Self {
        Self { keyless: true, ..Self::new([0; 32], []) }
    }

    /// The number of a value; a new one if it was not seen before.
    pub(super) fn number(&mut self, kind: Kind, value: &str) -> u32 {
        let place = value
            .bytes()
            .take(64)
            .fold(kind as usize, |sum, byte| (sum.wrapping_mul(31)) ^ usize::from(byte))
            % RECENT;
        if let Some((known, text, number)) = &self.recent[place]
            && *known == kind
            && **text == value
        {
            return *number;
        }
        let number = self.look_up(kind, value);
        if value.len() <= 256 {
            self.recent[place] = Some((kind, Zeroizing::new(value.to_owned()), number));
        }
        number
    }

    fn look_up(&mut self, kind: Kind, value: &str) -> u32 {
        let hash = self.hash(kind, value);
        if let Some(number) = self.numbers.get(&(kind, hash)) {
            return *number;
        }
        let highest = self.highest.entry(kind).or_default();
        if *highest >= Self::MAX_PER_KIND {
            return *highest;
        }
        *highest += 1;
        self.numbers.insert((kind, hash), *highest);
        self.fresh.push((kind.as_str().to_owned(), hex(&hash), *highest));
        *highest
    }

    /// Whether `[KIND_number]` has been issued.
    pub fn issued(&self, kind: Kind, number: u32) -> bool {
        number >= 1 && self.highest.get(&kind).is_some_and(|highest| number <= *highest)
    }

    /// The first 48 bits of the keyed hash as 12 letters, for the action `hash`: no digits, so that no rule finds anything in
    /// it later. `None` where there is no key.
    pub(super) fn fingerprint(&self, kind: Kind, value: &str) -> Option<String> {
        let letter = |nibble: u8| char::from(b'a' + nibble);
        let letters = |hash: [u8; 16]| {
            hash[..6].iter().flat_map(|byte| [letter(byte >> 4), letter(byte & 15)]).collect()
        };
        (!self.keyless).then(|| letters(self.hash(kind, value)))
    }

    /// The numbers issued since the last call, to be saved.
    pub fn take_fresh(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.fresh)
    }

    fn hash(&self, kind: Kind, value: &str) -> [u8; 16] {
        let mut mac = self.keyed.clone();
        mac.update(kind.as_str().as_bytes());
        mac.update(&[0]);
        mac.update(normal_form(kind, value).as_bytes());
        let mut out = [0; 16];
        out.copy_from_slice(&mac.finalize().into_bytes()[..16]);
        out
    }
}

/// One normal form for all spellings of a value, decoded: e-mail without case, numbers without separators. A run that was
/// found by its decoded text has no other spelling.
fn normal_form(kind: Kind, value: &str) -> String {
    let read = || match (0..value.len()).any(|at| hides(value.as_bytes(), at)) {
        true => String::from_utf8_lossy(&view(value.as_bytes(), 0, value.len()).text).into_owned(),
        false => value.to_owned(),
    };
    let normal = match kind {
        Kind::Email => Some(read().to_ascii_lowercase()).filter(|text| text.contains('@')),
        Kind::Phone | Kind::CreditCard | Kind::Ssn | Kind::UkNhs => {
            let text = read();
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            let letters = text.chars().filter(char::is_ascii_alphabetic).count();
            Some(digits).filter(|digits| digits.len() > letters)
        }
        Kind::Iban | Kind::Ppsn | Kind::UkNino | Kind::EuVat | Kind::NationalId | Kind::Passport => {
            let part = |c: char| c.is_ascii_alphanumeric().then(|| c.to_ascii_uppercase());
            Some(read().chars().filter_map(part).collect()).filter(|text: &String| !text.is_empty())
        }
        _ => None,
    };
    normal.unwrap_or_else(|| value.to_owned())
}

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    let number = Some(text).filter(|text| text.len() == 32)?;
    u128::from_str_radix(number, 16).ok().map(u128::to_be_bytes)
}

/// The key stays out of logs.
impl fmt::Debug for Numbering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Numbering").field("highest", &self.highest).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_where_the_stored_rows_end() {
        let mut first = Numbering::new([7; 32], []);
        assert_eq!(first.number(Kind::Email, "a@example.com"), 1);
        assert_eq!(first.number(Kind::Email, "b@example.com"), 2);
        assert_eq!(first.number(Kind::Email, "A@Example.com"), 1);
        assert_eq!(first.number(Kind::Iban, "DE89 3704 0044 0532 0130 00"), 1);
        let rows = first.take_fresh();
        assert_eq!(rows.len(), 3);
        assert!(first.take_fresh().is_empty());
        assert!(!format!("{rows:?}").contains("example"));

        let mut second = Numbering::new([7; 32], rows);
        assert_eq!(second.number(Kind::Email, "b@example.com"), 2);
        assert_eq!(second.number(Kind::Email, "c@example.com"), 3);
        assert_eq!(second.number(Kind::Iban, "DE89370400440532013000"), 1);
    }

    #[test]
    fn a_value_has_one_number_however_it_is_spelled_and_two_have_two() {
        let mut numbering = Numbering::new([7; 32], []);
        let mut number = |kind, value| numbering.number(kind, value);
        for spelled in
            ["alice@example.com", "Alice%40example.com", "alice&#64;example.com", r"alice\u0040example.com"]
        {
            assert_eq!(number(Kind::Email, spelled), 1, "{spelled}");
        }
        // In base64 the case of each letter counts.
        assert_eq!(number(Kind::Email, "YWxpY2VAZXhhbXBsZS5jb20="), 2);
        assert_eq!(number(Kind::Email, "YWXpY2VAZXhhbXBsZS5jb20="), 3);
        for (value, expected) in [
            ("４１１１１１１１１１１１１１１１", 1),
            ("５５００００５５５５５５５５５９", 2),
            ("4111 1111 1111 1111", 1),
            ("NDExMTExMTExMTExMTExMQ==", 3),
            ("NTUwMDAwNTU1NTU1NTU1OQ==", 4),
        ] {
            assert_eq!(number(Kind::CreditCard, value), expected, "{value}");
        }
        assert_eq!(number(Kind::Ssn, "２１９-０９-９９９９"), 1);
        assert_eq!(number(Kind::Ssn, "５１９-０９-９９９９"), 2);
    }

    #[test]
    fn another_key_gives_another_hash() {
        let (mut a, mut b) = (Numbering::new([1; 32], []), Numbering::new([2; 32], []));
        a.number(Kind::Ssn, "219-09-9999");
        b.number(Kind::Ssn, "219-09-9999");
        assert_ne!(a.take_fresh()[0].1, b.take_fresh()[0].1);
    }
}
