//! Identifiers as data: the form, the sums and the check that a `number` row of a rule gives.

use serde::{Deserialize, Serialize};

use super::confirm;
use super::rule::{Bytes, LazyRegex};

/// An identifier without its separators. Everything that a row gives must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Number {
    /// A regular expression of all of it.
    form: String,
    /// Its length, or the shortest and the longest, where it is looked for beside a context word.
    pub(super) len: usize,
    pub(super) longest: usize,
    /// Whether it needs no word, and whether only words like `number is` may be between it and the word.
    pub(super) alone: bool,
    pub(super) close: bool,
    /// Sums that must hold.
    sums: Vec<Sum>,
    /// A check other than a sum, of what is left after this many characters, with a prefix.
    check: Option<Check>,
    skip: usize,
    prefix: String,
    /// Whether digits that are all the same, except the last, are rejected.
    varied: bool,
}

/// A weighted sum of characters plus a constant; its remainder selects a check character, or is compared itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Sum {
    weights: Vec<u32>,
    plus: u32,
    modulus: u32,
    remainder: u32,
    /// The check characters, by remainder.
    checks: String,
    /// The place of the check character; the last by default.
    at: Option<usize>,
}

/// A check other than a sum of weighted digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Check {
    Card,
    Iban,
    Ssn,
    Luhn,
    /// ISO/IEC 7064.
    #[serde(rename = "mod_11_10")]
    Mod1110,
    /// The last two digits are 97 minus the remainder of the others.
    #[serde(rename = "mod_97")]
    Mod97,
    /// The last three digits are the remainder of the first ten by 511.
    #[serde(rename = "mod_511")]
    Mod511,
    Verhoeff,
    DeSocial,
    CodiceFiscale,
    Base58,
    Bech32,
    Mrz,
}

impl Check {
    fn passes(self, text: &[u8]) -> bool {
        let number = |digits: &[u8]| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(value(*digit)));
        match self {
            Self::Card => confirm::is_card(text),
            Self::Iban => confirm::iban(text),
            Self::Ssn => {
                let part = |from: usize, to: usize| number(&text[from..to]) as u32;
                confirm::ssn(part(0, 3), part(3, 5), part(5, 9))
            }
            Self::Luhn => confirm::luhn(text),
            Self::Mod1110 => confirm::mod_11_10(text),
            Self::Mod97 => {
                let (digits, check) = text.split_at(text.len() - 2);
                97 - number(digits) % 97 == number(check)
            }
            Self::Mod511 => {
                let (digits, check) = text.split_at(text.len() - 3);
                number(digits) % 511 == number(check)
            }
            Self::Verhoeff => confirm::verhoeff(text),
            Self::DeSocial => confirm::de_social(text),
            Self::CodiceFiscale => confirm::codice_fiscale(text),
            Self::Base58 => confirm::base58check(text),
            Self::Bech32 => confirm::bech32(text),
            Self::Mrz => confirm::mrz(text),
        }
    }
}

/// The value of a character: a digit itself, a letter from 10 on, with Spain's `Ñ` between `N` and `O`.
fn value(byte: u8) -> u32 {
    match byte.to_ascii_uppercase() {
        digit @ b'0'..=b'9' => u32::from(digit - b'0'),
        letter @ b'A'..=b'N' => u32::from(letter - b'A') + 10,
        letter @ b'O'..=b'Z' => u32::from(letter - b'A') + 11,
        _ => 0,
    }
}

impl Sum {
    fn fits(&self, text: &[u8]) -> bool {
        let sum: u32 = text.iter().zip(&self.weights).map(|(byte, weight)| value(*byte) * weight).sum();
        let rest = (sum + self.plus) % self.modulus;
        if self.checks.is_empty() {
            return rest == self.remainder;
        }
        let sign = text.get(self.at.unwrap_or(text.len() - 1)).map(u8::to_ascii_uppercase);
        sign.is_some_and(|sign| self.checks.as_bytes().get(rest as usize) == Some(&sign))
    }
}

/// A row, with its pattern compiled on first use.
pub(super) struct Identifier {
    pub(super) row: Number,
    first: Option<Bytes>,
    form: LazyRegex,
}

impl Identifier {
    pub(super) fn new(row: &Number) -> Self {
        let form = format!("^(?:{})$", row.form);
        Self { row: row.clone(), first: Bytes::first(&row.form), form: form.into() }
    }

    /// Whether letters and digits, in any case, are such an identifier.
    pub(super) fn passes(&self, text: &[u8]) -> bool {
        let Number { sums, check, skip, prefix, varied, .. } = &self.row;
        self.first.is_none_or(|first| first.holds(text.first()))
            && !text.is_empty()
            && sums.iter().all(|sum| sum.fits(text))
            && self.form.is_match(text)
            && !(*varied && text[..text.len() - 1].iter().all(|digit| *digit == text[0]))
            && check.is_none_or(|check| match prefix.is_empty() {
                true => check.passes(&text[*skip..]),
                false => check.passes(&[prefix.as_bytes(), &text[*skip..]].concat()),
            })
    }

    /// Whether one of its characters depends on the others.
    pub(super) fn has_check_digit(&self) -> bool {
        !self.row.sums.is_empty() || self.row.check.is_some_and(|check| check != Check::Ssn)
    }

    /// Whether it has letters where other numbers have digits.
    pub(super) fn has_letters(&self) -> bool {
        self.row.form.contains("[A")
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::RULES;

    #[test]
    fn identifiers_of_many_states_by_their_published_examples() {
        for (id, good) in [
            ("in-aadhaar", "234123412346"),
            ("au-tfn", "123456782"),
            ("au-abn", "51824753556"),
            ("uk-utr", "1955839661"),
            ("dk-cpr", "0707614285"),
            ("no-birth-number", "15108695088"),
            ("be-register", "85073003328"),
            ("pt-nif", "501442600"),
            ("cz-birth-number", "7103192745"),
            ("ro-cnp", "1630615123457"),
            ("tr-identity", "17291716060"),
            ("za-identity", "7503305044089"),
            ("cn-identity", "11010519491231002X"),
            ("ch-ahv", "7569217076985"),
            ("hr-oib", "33392005961"),
            ("baltic-code", "37605030299"),
            ("gr-amka", "01013099997"),
            ("ar-cuit", "20267565393"),
            ("jp-my-number", "123456789018"),
            ("cl-rut", "125319092"),
            ("cl-rut", "10000013K"),
            ("fi-hetu", "131052-308T"),
            ("in-pan", "ABCPE1234F"),
            ("sg-nric", "S1234567D"),
            ("mx-curp", "BOXW310820HNERXN09"),
            ("baltic-code", "16117519997"),
            ("bg-egn", "7523169263"),
            ("hu-identity", "8071592153"),
            ("hu-identity", "111111110"),
            ("si-emso", "0101006500006"),
            ("is-kennitala", "4504013150"),
            ("pl-nip", "8567346215"),
            ("gr-afm", "094259216"),
            ("br-cnpj", "16727230000197"),
            ("nz-ird", "049091850"),
            ("at-social-insurance", "1237010180"),
            ("uk-nhs", "9434765919"),
            ("de-tax-id", "86095742719"),
            ("de-social-insurance", "65170839J003"),
            ("ppsn", "1234567T"),
            ("ppsn", "6433435F"),
            ("ppsn", "6433435FT"),
            ("ppsn", "1234567FA"),
            ("ppsn", "7286924QH"),
            ("ssn", "123456789"),
            ("uk-nino", "AB123456C"),
            ("uk-nino", "jg103759a"),
        ] {
            let rule = RULES.list.iter().position(|rule| rule.id == id).unwrap() as u16;
            assert!(RULES.passes(rule, good.as_bytes()), "{id} {good}");
            if !matches!(id, "dk-cpr" | "in-pan" | "ssn" | "uk-nino") {
                let mut bad = good.as_bytes().to_vec();
                let at = bad.iter().rposition(u8::is_ascii_digit).unwrap();
                bad[at] = if bad[at] == b'9' { b'0' } else { bad[at] + 1 };
                assert!(!RULES.passes(rule, &bad), "{id} {good} altered");
            }
        }
        for (id, bad) in [
            ("ppsn", "6433435VH"),
            ("ppsn", "1234567XX"),
            ("ppsn", "123456T"),
            ("ppsn", "1234567T1"),
            ("uk-nino", "BG123612A"),
            ("uk-nino", "NT998877A"),
            ("uk-nino", "AB123456E"),
            ("nl-bsn", "000000000"),
            ("br-cpf", "11111111111"),
        ] {
            let rule = RULES.list.iter().position(|rule| rule.id == id).unwrap() as u16;
            assert!(!RULES.passes(rule, bad.as_bytes()), "{id} {bad}");
        }
    }

    #[test]
    fn every_form_is_a_regular_expression() {
        for rule in &RULES.list {
            for row in &rule.number {
                regex::bytes::Regex::new(&row.form).unwrap();
                assert!(row.sums.iter().all(|sum| sum.modulus > 0 && !sum.weights.is_empty()), "{}", rule.id);
            }
        }
    }
}
