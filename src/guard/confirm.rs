//! Check digits and shapes: what turns a run of characters into a finding.
//!
//! All functions take ASCII bytes without separators, exactly as many as the identifier has, unless they say otherwise.

use std::sync::LazyLock;

use bech32::primitives::decode::UncheckedHrpstring;
use bech32::{Bech32, Bech32m};
use sha2::{Digest as _, Sha256};

/// Luhn check (ISO/IEC 7812-1 annex B) over digits.
pub(super) fn luhn(digits: &[u8]) -> bool {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Eight at a time from the right, one byte each; the first of eight is one of those that are doubled.
    let sum = |eight: [u8; 8]| {
        let eight = u64::from_le_bytes(eight) & (0xf * ONES);
        let twice = (eight & EVEN) * 2;
        let over = (twice + 0x76 * ONES) >> 7 & ONES;
        ((twice - 9 * over) + (eight & !EVEN)).wrapping_mul(ONES) >> 56
    };
    let (rest, eights) = digits.as_rchunks::<8>();
    let mut first = [0; 8];
    first[8 - rest.len()..].copy_from_slice(rest);
    (sum(first) + eights.iter().map(|eight| sum(*eight)).sum::<u64>()).is_multiple_of(10)
}

/// What a card number's first digits and length tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CardRange {
    /// A known network with its usual length: certain without any context.
    Usual,
    /// A length that the network seldom uses, or a network with a wide range: needs a context word.
    Rare,
    /// No network.
    None,
}

/// Which network, by the issuer ranges that the networks publish (ISO/IEC 7812 register).
pub(super) fn card_range(digits: &[u8]) -> CardRange {
    match digits.first_chunk::<4>().and_then(card_lengths) {
        Some(usual) if usual.contains(&digits.len()) => CardRange::Usual,
        Some(_) if (12..=19).contains(&digits.len()) => CardRange::Rare,
        _ => CardRange::None,
    }
}

/// Whether any network's numbers begin with these two digits.
pub(super) fn may_be_card([first, second]: [u8; 2]) -> bool {
    static STARTS: LazyLock<[bool; 100]> = LazyLock::new(|| {
        std::array::from_fn(|two| {
            (0..100).any(|rest| {
                let digits = [two / 10, two % 10, rest / 10, rest % 10].map(|digit| b'0' + digit as u8);
                card_lengths(&digits).is_some()
            })
        })
    });
    STARTS.get(usize::from(first - b'0') * 10 + usize::from(second - b'0')).is_some_and(|known| *known)
}

/// The usual lengths of numbers that begin with these digits; `None` where no network's do.
fn card_lengths(first: &[u8; 4]) -> Option<&'static [usize]> {
    let four = first.iter().fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    let (two, three) = (four / 100, four / 10);
    Some(match (two, three, four) {
        (40..=49, ..) => &[16],                       // Visa; 13 and 19 are rare
        (51..=55, ..) | (_, _, 2221..=2720) => &[16], // Mastercard
        (34 | 37, ..) => &[15],                       // American Express
        (36 | 38 | 39, ..) | (_, 300..=305, _) | (_, _, 3095) => &[14, 16], // Diners Club
        (_, _, 3528..=3589) => &[16],                 // JCB
        (65, ..) | (_, 644..=649, _) | (_, _, 6011) => &[16], // Discover
        (62, ..) => &[16],                            // UnionPay
        (_, _, 2200..=2204) => &[16],                 // Mir
        (50 | 56..=58 | 60..=69, ..) => &[16],        // Maestro, RuPay, Elo, Verve
        (_, _, 9792) => &[16],                        // Troy
        (81 | 82, ..) | (_, _, 1800 | 2131) => &[],   // RuPay, UnionPay; old JCB
        (35, ..) => &[],
        _ => return None,
    })
}

/// Remainder modulo 97 of the number that ISO 7064 makes of letters and digits (A is 10, Z is 35).
pub(super) fn mod97(text: impl Iterator<Item = u8>) -> u32 {
    text.fold(0, |sum, byte| match byte {
        b'0'..=b'9' => (sum * 10 + u32::from(byte - b'0')) % 97,
        _ => (sum * 100 + u32::from(byte.to_ascii_uppercase() - b'A') + 10) % 97,
    })
}

/// Length and form of an IBAN.
type IbanForm = (usize, &'static str);

/// Countries of the SWIFT IBAN register, and those that use the form without being in it, by the lower five bits of their two
/// letters: the length, and the form of what follows the check digits, `n` digits, `a` letters, `c` either, each with its count.
static IBAN: LazyLock<Vec<Option<IbanForm>>> = LazyLock::new(|| {
    let mut rows = vec![None; 1024];
    for row in include_str!("rules/iban.txt").split([',', '\n']) {
        let mut parts = row.split_ascii_whitespace();
        if let (Some([a, b]), Some(len), Some(form)) =
            (parts.next().map(str::as_bytes), parts.next().and_then(|len| len.parse().ok()), parts.next())
        {
            rows[usize::from(a & 31) << 5 | usize::from(b & 31)] = Some((len, form));
        }
    }
    rows
});

/// Length and form of an IBAN of this country: two letters in any case.
fn iban_row([a, b]: [u8; 2]) -> Option<IbanForm> {
    let row = IBAN[usize::from(a & 31) << 5 | usize::from(b & 31)];
    row.filter(|_| a.is_ascii_alphabetic() && b.is_ascii_alphabetic())
}

/// The length of an IBAN of this country, in any case.
pub(super) fn iban_len(country: [u8; 2]) -> Option<usize> {
    iban_row(country).map(|(len, _)| len)
}

/// Whether an account number of this country can begin with this character.
pub(super) fn iban_begins(country: [u8; 2], first: u8) -> bool {
    let Some((_, form)) = iban_row(country) else { return false };
    match form.bytes().find(u8::is_ascii_alphabetic) {
        Some(b'n') => first.is_ascii_digit(),
        Some(b'a') => first.is_ascii_alphabetic(),
        _ => first.is_ascii_alphanumeric(),
    }
}

/// Country, length, structure and check digits of an IBAN without separators (ISO 13616).
pub(super) fn iban(text: &[u8]) -> bool {
    let [a, b, ..] = text else { return false };
    let Some((len, form)) = iban_row([*a, *b]) else { return false };
    text.len() == len
        && text.iter().all(u8::is_ascii_alphanumeric)
        && text[2..4].iter().all(u8::is_ascii_digit)
        && has_form(&text[4..], form)
        && mod97(text[4..].iter().chain(&text[..4]).copied()) == 1
}

fn has_form(mut rest: &[u8], form: &str) -> bool {
    let mut count = 0usize;
    for byte in form.bytes() {
        if byte.is_ascii_digit() {
            count = count * 10 + usize::from(byte - b'0');
            continue;
        }
        let Some((part, after)) = rest.split_at_checked(count) else { return false };
        let fits = match byte {
            b'n' => part.iter().all(u8::is_ascii_digit),
            b'a' => part.iter().all(u8::is_ascii_alphabetic),
            _ => true,
        };
        if !fits {
            return false;
        }
        (rest, count) = (after, 0);
    }
    rest.is_empty()
}

/// Whether area, group and serial of a US social security number were ever issued (20 CFR 422.103).
/// Areas of 9xx are individual taxpayer numbers, with their own groups.
pub(super) fn ssn(area: u32, group: u32, serial: u32) -> bool {
    let itin = (900..=999).contains(&area) && matches!(group, 50..=65 | 70..=88 | 90..=92 | 94..=99);
    let person = (1..=899).contains(&area) && area != 666 && group != 0;
    serial != 0 && (person || itin)
}

/// Whether digits are a card number.
pub(super) fn is_card(digits: &[u8]) -> bool {
    luhn(digits) && card_range(digits) != CardRange::None
}

/// ISO/IEC 7064 MOD 11,10: the last digit checks the others.
pub(super) fn mod_11_10(digits: &[u8]) -> bool {
    let Some((check, digits)) = digits.split_last() else { return false };
    let product = digits.iter().fold(10, |product, digit| {
        let sum = (u32::from(digit - b'0') + product) % 10;
        (if sum == 0 { 10 } else { sum }) * 2 % 11
    });
    (11 - product) % 10 == u32::from(check - b'0')
}

/// Verhoeff's check.
pub(super) fn verhoeff(digits: &[u8]) -> bool {
    const MOVED: [[u8; 10]; 8] = [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        [1, 5, 7, 6, 2, 8, 3, 0, 9, 4],
        [5, 8, 0, 3, 7, 9, 6, 1, 4, 2],
        [8, 9, 1, 6, 0, 4, 3, 5, 2, 7],
        [9, 4, 5, 3, 1, 2, 6, 8, 7, 0],
        [4, 2, 8, 6, 5, 7, 3, 9, 0, 1],
        [2, 7, 9, 3, 8, 0, 6, 4, 1, 5],
        [7, 0, 4, 6, 9, 1, 3, 2, 5, 8],
    ];
    // The product of two elements of the dihedral group of ten: turns below five, mirrored turns from five on.
    let product = |a: u8, b: u8| match (a < 5, b < 5) {
        (true, true) => (a + b) % 5,
        (true, false) => (a + b) % 5 + 5,
        (false, true) => (a + 5 - b) % 5 + 5,
        (false, false) => (a + 5 - b) % 5,
    };
    let moved = digits.iter().rev().enumerate().map(|(at, digit)| MOVED[at % 8][usize::from(digit - b'0')]);
    moved.fold(0, product) == 0
}

/// German social insurance number: the letter counts as its two digits, and the digits of the products are summed.
pub(super) fn de_social(text: &[u8]) -> bool {
    let Ok(text) = <&[u8; 12]>::try_from(text) else { return false };
    let letter = (text[8] | 0x20).wrapping_sub(b'a' - 1);
    let digit = |byte: &u8| u32::from(byte.wrapping_sub(b'0'));
    let digits = text[..8].iter().map(digit).chain([u32::from(letter / 10), u32::from(letter % 10)]);
    let products = digits.chain(text[9..11].iter().map(digit)).zip([2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1]);
    let sum: u32 = products.map(|(digit, weight)| digit * weight / 10 + digit * weight % 10).sum();
    sum % 10 == digit(&text[11])
}

/// Italian codice fiscale: sixteen characters, the last by two tables.
pub(super) fn codice_fiscale(text: &[u8]) -> bool {
    const ODD: &[u8; 26] =
        &[1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23];
    let value = |byte: u8| {
        usize::from(if byte.is_ascii_digit() { byte - b'0' } else { byte.to_ascii_uppercase() - b'A' })
    };
    let sum: usize = text[..15]
        .iter()
        .enumerate()
        .map(|(at, byte)| if at % 2 == 0 { usize::from(ODD[value(*byte)]) } else { value(*byte) })
        .sum();
    sum % 26 == value(text[15])
}

/// Whether the last four bytes of a text in base58 are the beginning of the double SHA-256 of the others (Bitcoin).
pub(super) fn base58check(text: &[u8]) -> bool {
    let bytes = bs58::decode(text).into_vec().unwrap_or_default();
    let parts = bytes.split_last_chunk::<4>();
    parts.is_some_and(|(payload, check)| Sha256::digest(Sha256::digest(payload)).starts_with(check))
}

/// Checksum of bech32 and bech32m (BIP 173, BIP 350) over a text in one case.
pub(super) fn bech32(text: &[u8]) -> bool {
    let parts = str::from_utf8(text).ok().and_then(|text| UncheckedHrpstring::new(text).ok());
    parts.is_some_and(|it| it.has_valid_checksum::<Bech32>() || it.has_valid_checksum::<Bech32m>())
}

/// Whether an account number counts up, as the examples in handbooks do.
pub(super) fn counts_up(text: &[u8]) -> bool {
    text.windows(9).any(|part| part == b"123456789")
}

/// The second line of a passport's machine-readable zone (ICAO 9303 part 4): 44 characters, three of the check
/// digits.
pub(super) fn mrz(line: &[u8]) -> bool {
    let digit = |range: std::ops::Range<usize>, check: usize| {
        let sum: u32 = line[range]
            .iter()
            .zip([7, 3, 1].iter().cycle())
            .map(|(byte, weight)| {
                let value = match byte {
                    b'0'..=b'9' => u32::from(byte - b'0'),
                    b'A'..=b'Z' => u32::from(byte - b'A') + 10,
                    _ => 0,
                };
                value * weight
            })
            .sum();
        line[check] == b'0' + (sum % 10) as u8
    };
    digit(0..9, 9) && digit(13..19, 19) && digit(21..27, 27)
}

/// Whether a text has at least this many different ASCII characters: a cheap substitute for its entropy.
pub(super) fn varied(text: &[u8], at_least: u32) -> bool {
    let mut seen = [0u64; 2];
    text[..text.len().min(256)].chunks(8).any(|part| {
        for byte in part {
            seen[usize::from(byte >> 6 & 1)] |= 1 << (byte & 63);
        }
        seen[0].count_ones() + seen[1].count_ones() >= at_least
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_the_iban_register_have_its_lengths() {
        let rows = include_str!("rules/iban.txt").split([',', '\n']).filter(|row| !row.is_empty());
        assert_eq!(rows.count(), IBAN.iter().flatten().count());
        for (len, form) in IBAN.iter().flatten() {
            let total: usize =
                form.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<usize>().ok()).sum();
            assert_eq!(total + 4, *len, "{form}");
        }
    }

    #[test]
    fn ibans_of_the_register_pass_and_altered_ones_do_not() {
        let examples = [
            "DE89370400440532013000",
            "GB29NWBK60161331926819",
            "IE29AIBK93115212345678",
            "NO9386011117947",
            "MT84MALT011000012345MTLCAST001S",
            "FR1420041010050500013M02606",
            "CH9300762011623852957",
        ];
        for good in examples {
            assert!(iban(good.as_bytes()), "{good}");
            assert!(iban(good.to_lowercase().as_bytes()), "{good}");
            let mut bad = good.as_bytes().to_vec();
            bad[5] = if bad[5] == b'1' { b'2' } else { b'1' };
            assert!(!iban(&bad), "{good}");
        }
        assert!(!iban(b"DE8937040044053201300"));
        assert!(!iban(b"XX89370400440532013000"));
    }

    #[test]
    fn cards_pass_luhn_and_belong_to_a_network() {
        for good in
            ["4111111111111111", "378282246310005", "30569309025904", "6011111111111117", "3530111333300000"]
        {
            assert!(luhn(good.as_bytes()) && card_range(good.as_bytes()) == CardRange::Usual, "{good}");
        }
        assert!(!luhn(b"4111111111111112"));
        assert_eq!(card_range(b"1672531200000000"), CardRange::None);
        assert_eq!(card_range(b"4222222222222"), CardRange::Rare);
    }

    #[test]
    fn numbers_that_were_never_given_out_are_not_social_security_numbers() {
        assert!(ssn(123, 45, 6789) && ssn(900, 70, 1234));
        assert!(
            !ssn(0, 45, 6789)
                && !ssn(666, 45, 6789)
                && !ssn(123, 0, 6789)
                && !ssn(123, 45, 0)
                && !ssn(911, 89, 1)
        );
    }

    #[test]
    fn wallets_have_checksums() {
        assert!(base58check(b"1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"));
        for wrong in [&b"1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb"[..], b"", b"11", b"0OIl"] {
            assert!(!base58check(wrong));
        }
        for good in [
            "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
            "BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4",
            "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
        ] {
            assert!(bech32(good.as_bytes()), "{good}");
        }
        for bad in ["bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdp", "bc1", "1", "bc1b", "qqqqqqqqqqqqqqqq"] {
            assert!(!bech32(bad.as_bytes()), "{bad}");
        }
    }
}
