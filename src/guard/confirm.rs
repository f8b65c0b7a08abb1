//! Check digits and shapes: what turns a run of characters into a finding.
//!
//! All functions take ASCII bytes without separators, as many as the identifier has, unless they say otherwise.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// Luhn check (ISO/IEC 7812-1 annex B) over digits.
pub(super) fn luhn(digits: &[u8]) -> bool {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Eight at a time from the right, a byte for each; the first of eight is one of those that count twice.
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

/// What a card number's first digits and length say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CardRange {
    /// A known network with its usual length: sure enough without any context.
    Usual,
    /// A length that the network uses seldom, or a network whose range is wide: needs a word beside it.
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

/// The lengths that numbers usually have which begin with these digits; nothing where no network's do.
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

/// Countries of the SWIFT IBAN register, and those that use the form without being in it, with length and the form of what follows the check digits:
/// `n` digits, `a` letters, `c` either, each with its count.
#[rustfmt::skip]
const IBAN: &[(&[u8; 2], u8, &str)] = &[
    (b"AD", 24, "8n12c"), (b"AE", 23, "19n"), (b"AL", 28, "8n16c"), (b"AO", 25, "21n"), (b"AT", 20, "16n"),
    (b"AZ", 28, "4a20c"), (b"BA", 20, "16n"), (b"BE", 16, "12n"), (b"BF", 28, "2c22n"), (b"BG", 22, "4a6n8c"),
    (b"BH", 22, "4a14c"), (b"BI", 27, "23n"), (b"BJ", 28, "2c22n"), (b"BR", 29, "23n1a1c"), (b"BY", 28, "4c4n16c"),
    (b"CF", 27, "23n"), (b"CG", 27, "23n"), (b"CH", 21, "5n12c"), (b"CI", 28, "2c22n"), (b"CM", 27, "23n"),
    (b"CR", 22, "18n"), (b"CV", 25, "21n"), (b"CY", 28, "8n16c"), (b"CZ", 24, "20n"), (b"DE", 22, "18n"),
    (b"DJ", 27, "23n"), (b"DK", 18, "14n"), (b"DO", 28, "4c20n"), (b"DZ", 26, "22n"), (b"EE", 20, "16n"),
    (b"EG", 29, "25n"), (b"ES", 24, "20n"), (b"FI", 18, "14n"), (b"FK", 18, "2a12n"), (b"FO", 18, "14n"),
    (b"FR", 27, "10n11c2n"), (b"GA", 27, "23n"), (b"GB", 22, "4a14n"), (b"GE", 22, "2a16n"), (b"GI", 23, "4a15c"),
    (b"GL", 18, "14n"), (b"GQ", 27, "23n"), (b"GR", 27, "7n16c"), (b"GT", 28, "24c"), (b"GW", 25, "2c19n"),
    (b"HN", 28, "4a20n"), (b"HR", 21, "17n"), (b"HU", 28, "24n"), (b"IE", 22, "4a14n"), (b"IL", 23, "19n"),
    (b"IQ", 23, "4a15n"), (b"IR", 26, "22n"), (b"IS", 26, "22n"), (b"IT", 27, "1a10n12c"), (b"JO", 30, "4a4n18c"),
    (b"KM", 27, "23n"), (b"KW", 30, "4a22c"), (b"KZ", 20, "3n13c"), (b"LB", 28, "4n20c"), (b"LC", 32, "4a24c"),
    (b"LI", 21, "5n12c"), (b"LT", 20, "16n"), (b"LU", 20, "3n13c"), (b"LV", 21, "4a13c"), (b"LY", 25, "21n"),
    (b"MA", 28, "24n"), (b"MC", 27, "10n11c2n"), (b"MD", 24, "20c"), (b"ME", 22, "18n"), (b"MG", 27, "23n"),
    (b"MK", 19, "3n10c2n"), (b"ML", 28, "2c22n"), (b"MN", 20, "16n"), (b"MR", 27, "23n"), (b"MT", 31, "4a5n18c"),
    (b"MU", 30, "4a19n3a"), (b"MZ", 25, "21n"), (b"NE", 28, "2a22n"), (b"NI", 28, "4a20n"), (b"NL", 18, "4a10n"),
    (b"NO", 15, "11n"), (b"OM", 23, "3n16c"), (b"PK", 24, "4a16c"), (b"PL", 28, "24n"), (b"PS", 29, "4a21c"),
    (b"PT", 25, "21n"), (b"QA", 29, "4a21c"), (b"RO", 24, "4a16c"), (b"RS", 22, "18n"), (b"RU", 33, "14n15c"),
    (b"SA", 24, "2n18c"), (b"SC", 31, "4a20n3a"), (b"SD", 18, "14n"), (b"SE", 24, "20n"), (b"SI", 19, "15n"),
    (b"SK", 24, "20n"), (b"SM", 27, "1a10n12c"), (b"SN", 28, "2c22n"), (b"SO", 23, "19n"), (b"ST", 25, "21n"),
    (b"SV", 28, "4a20n"), (b"TD", 27, "23n"), (b"TG", 28, "2a22n"), (b"TL", 23, "19n"), (b"TN", 24, "20n"),
    (b"TR", 26, "5n1n16c"), (b"UA", 29, "6n19c"), (b"VA", 22, "18n"), (b"VG", 24, "4a16n"), (b"XK", 20, "16n"),
    (b"YE", 30, "4a4n18c"),
];

/// The row of a country in [`IBAN`], and one more, by the lower five bits of its two letters.
static COUNTRIES: [u8; 1024] = {
    let mut rows = [0; 1024];
    let mut at = 0;
    while at < IBAN.len() {
        let [a, b] = *IBAN[at].0;
        rows[((a & 31) as usize) << 5 | (b & 31) as usize] = at as u8 + 1;
        at += 1;
    }
    rows
};

/// Length and form of an IBAN of this country: two letters in any case.
fn iban_row([a, b]: [u8; 2]) -> Option<(usize, &'static str)> {
    let row = COUNTRIES[usize::from(a & 31) << 5 | usize::from(b & 31)];
    let (_, len, form) = IBAN[usize::from(row.checked_sub(1)?)];
    (a.is_ascii_alphabetic() && b.is_ascii_alphabetic()).then_some((usize::from(len), form))
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

/// Check letter of an Irish PPSN: seven digits, the check letter, and for numbers since 2013 a second letter that
/// counts nine times (`W`, `T` and `X` of older numbers count nothing).
pub(super) fn ppsn(text: &[u8]) -> bool {
    let (digits, letters) = match text.len() {
        8 | 9 => text.split_at(7),
        _ => return false,
    };
    let second = letters.get(1).map(u8::to_ascii_uppercase);
    if !digits.iter().all(u8::is_ascii_digit) || !letters.iter().all(u8::is_ascii_alphabetic) {
        return false;
    }
    let extra = match second {
        None | Some(b'W' | b'T' | b'X') => 0,
        Some(letter @ b'A'..=b'I') => u32::from(letter - b'A') + 1,
        Some(_) => return false,
    };
    let sum: u32 =
        digits.iter().zip((2..=8).rev()).map(|(digit, weight)| u32::from(digit - b'0') * weight).sum();
    let rest = (sum + 9 * extra) % 23;
    let expected = if rest == 0 { b'W' } else { b'A' + (rest as u8) - 1 };
    letters[0].to_ascii_uppercase() == expected
}

/// Whether the check digit of a VAT number may be right, where the country's is known: Germany's and Ireland's.
pub(super) fn may_be_vat(text: &[u8]) -> bool {
    match text.split_at_checked(2) {
        Some((b"DE", digits)) if digits.len() == 9 && digits.iter().all(u8::is_ascii_digit) => {
            // ISO/IEC 7064, MOD 11,10.
            let product = digits[..8].iter().fold(10, |product, digit| {
                let sum = (u32::from(digit - b'0') + product) % 10;
                (if sum == 0 { 10 } else { sum }) * 2 % 11
            });
            (11 - product) % 10 == u32::from(digits[8] - b'0')
        }
        Some((b"IE", number)) if number[..7.min(number.len())].iter().all(u8::is_ascii_digit) => ppsn(number),
        _ => true,
    }
}

/// Whether area, group and serial of a US social security number were ever given out (20 CFR 422.103).
/// Areas of 9xx are individual taxpayer numbers, with their own groups.
pub(super) fn ssn(area: u32, group: u32, serial: u32) -> bool {
    let itin = (900..=999).contains(&area) && matches!(group, 50..=65 | 70..=88 | 90..=92 | 94..=99);
    let person = (1..=899).contains(&area) && area != 666 && group != 0;
    serial != 0 && (person || itin)
}

/// UK national insurance number: two letters (with the pairs that HMRC leaves out), six digits, `A` to `D`.
pub(super) fn nino(text: &[u8]) -> bool {
    let [a, b, digits @ .., suffix] = text else { return false };
    let (a, b) = (a.to_ascii_uppercase(), b.to_ascii_uppercase());
    digits.len() == 6
        && digits.iter().all(u8::is_ascii_digit)
        && matches!(suffix.to_ascii_uppercase(), b'A'..=b'D')
        && a.is_ascii_uppercase()
        && b.is_ascii_uppercase()
        && !b"DFIQUV".contains(&a)
        && !b"DFIOQUV".contains(&b)
        && ![*b"BG", *b"GB", *b"KN", *b"NK", *b"NT", *b"TN", *b"ZZ"].contains(&[a, b])
}

/// UK national health number: ten digits, modulo 11.
pub(super) fn nhs(digits: &[u8]) -> bool {
    if digits.len() != 10 {
        return false;
    }
    let sum: u32 =
        digits.iter().zip((2..=10).rev()).map(|(digit, weight)| u32::from(digit - b'0') * weight).sum();
    let check = (11 - sum % 11) % 11;
    check != 10 && check == u32::from(digits[9] - b'0')
}

/// US national provider identifier: Luhn with the prefix 80840 (45 CFR 162.406).
pub(super) fn npi(digits: &[u8]) -> bool {
    let mut whole = *b"808400000000000";
    let [b'1' | b'2', ..] = digits else { return false };
    if digits.len() != 10 || digits.iter().all(|digit| *digit == digits[0]) {
        return false;
    }
    whole[5..].copy_from_slice(digits);
    luhn(&whole)
}

/// US bank routing number: weights 3, 7, 1.
pub(super) fn aba(digits: &[u8]) -> bool {
    let sum = weighted(digits, &[3, 7, 1, 3, 7, 1, 3, 7, 1]);
    digits[0] <= b'3' && sum != 0 && sum.is_multiple_of(10)
}

/// Polish PESEL: weights 1, 3, 7, 9, and a month that exists.
pub(super) fn pesel(digits: &[u8]) -> bool {
    let month = u32::from(digits[2] - b'0') * 10 + u32::from(digits[3] - b'0');
    (1..=12).contains(&(month % 20))
        && weighted(digits, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1]).is_multiple_of(10)
}

/// Brazilian CPF: two check digits modulo 11.
pub(super) fn cpf(digits: &[u8]) -> bool {
    let check = |len: usize| {
        let weights = (2..=len as u32 + 1).rev();
        let sum: u32 =
            digits[..len].iter().zip(weights).map(|(digit, weight)| u32::from(digit - b'0') * weight).sum();
        sum * 10 % 11 % 10 == u32::from(digits[len] - b'0')
    };
    digits.iter().any(|digit| *digit != digits[0]) && check(9) && check(10)
}

/// Chilean RUT: weights 2 to 7 from the right, modulo 11; the check digit may be a `K`.
pub(super) fn rut(text: &[u8]) -> bool {
    let Some((check, body)) = text.split_last() else { return false };
    let sum: u32 = body.iter().rev().zip((2..=7).cycle()).map(|(digit, w)| u32::from(digit - b'0') * w).sum();
    match (11 - sum % 11) % 11 {
        10 => matches!(check, b'K' | b'k'),
        value => check.is_ascii_digit() && value == u32::from(check - b'0'),
    }
}

/// Indian Aadhaar number: twelve digits, the last by Verhoeff's table.
pub(super) fn aadhaar(digits: &[u8]) -> bool {
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
    digits[0] >= b'2' && moved.fold(0, product) == 0
}

/// Australian tax file number.
pub(super) fn tfn(digits: &[u8]) -> bool {
    digits[0] != b'0' && weighted(digits, &[1, 4, 3, 7, 5, 8, 6, 9, 10]).is_multiple_of(11)
}

/// Australian business number: the first digit counts one less.
pub(super) fn abn(digits: &[u8]) -> bool {
    digits[0] != b'0' && (weighted(digits, &[10, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19]) - 10).is_multiple_of(89)
}

/// UK unique taxpayer reference: the first digit checks the others.
pub(super) fn utr(digits: &[u8]) -> bool {
    let sum = weighted(&digits[1..], &[6, 7, 8, 9, 10, 5, 4, 3, 2]);
    b"21987654321"[(sum % 11) as usize] == digits[0]
}

/// Two digits as a number.
pub(super) fn pair(digits: &[u8], at: usize) -> u32 {
    u32::from(digits[at] - b'0') * 10 + u32::from(digits[at + 1] - b'0')
}

/// Danish CPR: it begins with a day and a month, and has had no check digit since 2007.
pub(super) fn cpr(digits: &[u8]) -> bool {
    (1..=31).contains(&pair(digits, 0)) && (1..=12).contains(&pair(digits, 2))
}

/// Norwegian birth number: two check digits modulo 11.
pub(super) fn no_birth_number(digits: &[u8]) -> bool {
    (1..=71).contains(&pair(digits, 0))
        && weighted(digits, &[3, 7, 6, 1, 8, 9, 4, 5, 2, 1]).is_multiple_of(11)
        && weighted(digits, &[5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
}

/// Belgian national register number: 97 minus the remainder, with a 2 before it for those born since 2000.
pub(super) fn be_register(digits: &[u8]) -> bool {
    let number = digits[..9].iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let check = u64::from(pair(digits, 9));
    pair(digits, 2) <= 12 && [number, number + 2_000_000_000].iter().any(|number| 97 - number % 97 == check)
}

/// Portuguese tax number.
pub(super) fn pt_nif(digits: &[u8]) -> bool {
    let rest = weighted(&digits[..8], &[9, 8, 7, 6, 5, 4, 3, 2]) % 11;
    digits[0] != b'0' && u32::from(digits[8] - b'0') == if rest < 2 { 0 } else { 11 - rest }
}

/// Czech and Slovak birth number: divisible by 11, women's months 50 higher.
pub(super) fn cz_birth_number(digits: &[u8]) -> bool {
    let number = digits.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    (1..=12).contains(&(pair(digits, 2) % 50 % 20)) && number != 0 && number.is_multiple_of(11)
}

/// Romanian personal code.
pub(super) fn ro_cnp(digits: &[u8]) -> bool {
    let rest = weighted(&digits[..12], &[2, 7, 9, 1, 4, 6, 3, 5, 8, 2, 7, 9]) % 11;
    digits[0] != b'0'
        && (1..=12).contains(&pair(digits, 3))
        && u32::from(digits[12] - b'0') == if rest == 10 { 1 } else { rest }
}

/// Turkish identity number.
pub(super) fn tr_identity(digits: &[u8]) -> bool {
    let digit = |at: usize| u32::from(digits[at] - b'0');
    let odd: u32 = (0..9).step_by(2).map(digit).sum();
    let even: u32 = (1..8).step_by(2).map(digit).sum();
    digits[0] != b'0'
        && (odd * 7 + 100 - even) % 10 == digit(9)
        && (0..10).map(digit).sum::<u32>() % 10 == digit(10)
}

/// South African identity number: a date first, then Luhn.
pub(super) fn za_identity(digits: &[u8]) -> bool {
    (1..=12).contains(&pair(digits, 2)) && (1..=31).contains(&pair(digits, 4)) && luhn(digits)
}

/// Chinese resident identity number (GB 11643): a date inside, ISO 7064 MOD 11-2, the last may be an `X`.
pub(super) fn cn_identity(text: &[u8]) -> bool {
    let sum = weighted(&text[..17], &[7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]);
    matches!(pair(text, 6), 19 | 20)
        && (1..=12).contains(&pair(text, 10))
        && (1..=31).contains(&pair(text, 12))
        && b"10X98765432"[(sum % 11) as usize] == text[17].to_ascii_uppercase()
}

/// Swiss insurance number: an EAN-13 that begins with the country's 756.
pub(super) fn ch_ahv(digits: &[u8]) -> bool {
    digits.starts_with(b"756")
        && weighted(digits, &[1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1]).is_multiple_of(10)
}

/// Croatian OIB: ISO 7064 MOD 11,10.
pub(super) fn hr_oib(digits: &[u8]) -> bool {
    mod_11_10(digits)
}

/// Estonian and Lithuanian personal code: two rows of weights.
pub(super) fn baltic_code(digits: &[u8]) -> bool {
    let first = weighted(digits, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 1]) % 11;
    let second = weighted(digits, &[3, 4, 5, 6, 7, 8, 9, 1, 2, 3]) % 11;
    let check = if first < 10 { first } else { second % 10 };
    matches!(digits[0], b'1'..=b'6')
        && (1..=12).contains(&pair(digits, 3))
        && check == u32::from(digits[10] - b'0')
}

/// Greek social security number: a date first, then Luhn.
pub(super) fn gr_amka(digits: &[u8]) -> bool {
    (1..=31).contains(&pair(digits, 0)) && (1..=12).contains(&pair(digits, 2)) && luhn(digits)
}

/// Argentine CUIT and CUIL.
pub(super) fn ar_cuit(digits: &[u8]) -> bool {
    let rest = (11 - weighted(digits, &[5, 4, 3, 2, 7, 6, 5, 4, 3, 2]) % 11) % 11;
    matches!(digits[0], b'2' | b'3') && rest == u32::from(digits[10] - b'0')
}

/// Japanese individual number.
pub(super) fn jp_my_number(digits: &[u8]) -> bool {
    let rest = weighted(digits, &[6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2]) % 11;
    u32::from(digits[11] - b'0') == if rest < 2 { 0 } else { 11 - rest }
}

/// Finnish personal identity code: a date, the sign of the century, and a check character modulo 31.
pub(super) fn hetu(text: &[u8]) -> bool {
    let Some((date, [century, number @ .., check])) = text.split_at_checked(6) else { return false };
    let digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    if number.len() != 3
        || !digits(date)
        || !digits(number)
        || !b"+-ABCDEFUVWXY".contains(&century.to_ascii_uppercase())
    {
        return false;
    }
    let value = date.iter().chain(number).fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    (1..=31).contains(&pair(date, 0))
        && (1..=12).contains(&pair(date, 2))
        && b"0123456789ABCDEFHJKLMNPRSTUVWXY"[(value % 31) as usize] == check.to_ascii_uppercase()
}

/// Indian permanent account number: three letters, the sort of holder, a letter, four digits, a letter.
pub(super) fn in_pan(text: &[u8]) -> bool {
    let form = text.len() == 10
        && text[..5].iter().chain(&text[9..]).all(u8::is_ascii_alphabetic)
        && text[5..9].iter().all(u8::is_ascii_digit);
    form && b"ABCFGHJLPT".contains(&text[3].to_ascii_uppercase())
}

/// US Medicare beneficiary identifier: eleven characters in a form without S, L, O, I, B and Z, with dashes or without.
pub(super) fn us_mbi(text: &[u8]) -> bool {
    let form: &[u8] = if text.len() == 13 { b"1anx-anx-aa00" } else { b"1anxanxaa00" };
    text.len() == form.len()
        && text.iter().zip(form).all(|(byte, form)| {
            let letter = byte.is_ascii_uppercase() && !b"SLOIBZ".contains(byte);
            match form {
                b'1' => matches!(byte, b'1'..=b'9'),
                b'a' => letter,
                b'n' => letter || byte.is_ascii_digit(),
                b'-' => *byte == b'-',
                _ => byte.is_ascii_digit(),
            }
        })
}

/// UK driving licence (DVLA): five letters of the surname filled up with nines, the date of birth with the year's digits at
/// its ends (a woman's month counts from 51), two initials, a digit, two letters.
pub(super) fn uk_driving_licence(text: &[u8]) -> bool {
    let [surname @ .., d1, m1, m2, b1, b2, y, i1, i2, n, c1, c2] = text else { return false };
    let letters = surname.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let number = |tens: &u8, ones: &u8| (tens - b'0') * 10 + (ones - b'0');
    let initial = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'9';
    surname.len() == 5
        && letters >= 2
        && surname[letters..].iter().all(|byte| *byte == b'9')
        && [d1, m1, m2, b1, b2, y, n].iter().all(|byte| byte.is_ascii_digit())
        && matches!(number(m1, m2), 1..=12 | 51..=62)
        && matches!(number(b1, b2), 1..=31)
        && i1.is_ascii_uppercase()
        && initial(i2)
        && [c1, c2].iter().all(|byte| byte.is_ascii_uppercase())
}

/// Singaporean NRIC and FIN: weights, an offset for two of the first letters, and a table for each series.
pub(super) fn sg_nric(text: &[u8]) -> bool {
    let [first, digits @ .., check] = text else { return false };
    if digits.len() != 7 || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let (offset, table): (u32, &[u8; 11]) = match first.to_ascii_uppercase() {
        b'S' => (0, b"JZIHGFEDCBA"),
        b'T' => (4, b"JZIHGFEDCBA"),
        b'F' => (0, b"XWUTRQPNMLK"),
        b'G' => (4, b"XWUTRQPNMLK"),
        _ => return false,
    };
    let sum = weighted(digits, &[2, 7, 6, 5, 4, 3, 2]) + offset;
    table[(sum % 11) as usize] == check.to_ascii_uppercase()
}

/// Mexican CURP: eighteen characters in a form of their own, the last modulo 10 (with `Ñ` between `N` and `O`).
pub(super) fn curp(text: &[u8]) -> bool {
    let form = b"aaaannnnnnaaaaaacn";
    let fits = text.len() == 18
        && text.iter().zip(form).all(|(byte, form)| match form {
            b'a' => byte.is_ascii_uppercase(),
            b'n' => byte.is_ascii_digit(),
            _ => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
        });
    if !fits || !b"HMX".contains(&text[10]) || !(1..=12).contains(&pair(text, 6)) {
        return false;
    }
    let value = |byte: u8| match byte {
        b'0'..=b'9' => u32::from(byte - b'0'),
        b'A'..=b'N' => u32::from(byte - b'A') + 10,
        _ => u32::from(byte - b'A') + 11,
    };
    let sum: u32 = text[..17].iter().zip((2..=18).rev()).map(|(byte, weight)| value(*byte) * weight).sum();
    (10 - sum % 10) % 10 == u32::from(text[17] - b'0')
}

/// The payload of base58check (Bitcoin): the last four bytes are the beginning of a double SHA-256.
pub(super) fn base58check(text: &[u8]) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    if !text.iter().all(|byte| byte.is_ascii_alphanumeric() && !b"0OIl".contains(byte)) {
        return None;
    }
    let mut bytes: Vec<u8> = Vec::with_capacity(text.len());
    for byte in text {
        let mut carry = ALPHABET.iter().position(|known| known == byte)?;
        for place in &mut bytes {
            carry += usize::from(*place) * 58;
            *place = carry as u8;
            carry >>= 8;
        }
        while carry > 0 {
            bytes.push(carry as u8);
            carry >>= 8;
        }
    }
    bytes.extend(text.iter().take_while(|byte| **byte == b'1').map(|_| 0));
    bytes.reverse();
    let (payload, check) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    let digest = Sha256::digest(Sha256::digest(payload));
    digest.starts_with(check).then(|| payload.to_vec())
}

/// Checksum of bech32 and bech32m (BIP 173, BIP 350) over a text in one case.
pub(super) fn bech32(text: &[u8]) -> bool {
    const ALPHABET: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
    let Some(bar) = text.iter().rposition(|byte| *byte == b'1') else { return false };
    let step =
        |sum: u32, value: u32| {
            const GENERATORS: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
            let top = sum >> 25;
            let shifted = (sum & 0x01ff_ffff) << 5 ^ value;
            GENERATORS.iter().enumerate().fold(shifted, |sum, (bit, generator)| {
                if top >> bit & 1 == 1 { sum ^ generator } else { sum }
            })
        };
    let lower = |byte: &u8| byte.to_ascii_lowercase();
    let head = text[..bar].iter().map(lower);
    let mut sum = head.clone().fold(1, |sum, byte| step(sum, u32::from(byte >> 5)));
    sum = step(sum, 0);
    sum = head.fold(sum, |sum, byte| step(sum, u32::from(byte & 31)));
    for byte in text[bar + 1..].iter().map(lower) {
        let Some(value) = ALPHABET.iter().position(|known| *known == byte) else { return false };
        sum = step(sum, value as u32);
    }
    bar > 0 && text.len() - bar > 7 && matches!(sum, 1 | 0x2bc8_30a3)
}

/// Whether an account number counts up as those in handbooks do: nobody's.
pub(super) fn counts_up(text: &[u8]) -> bool {
    text.windows(9).any(|part| part == b"123456789")
}

/// Dutch citizen service number: eleven test.
pub(super) fn bsn(digits: &[u8]) -> bool {
    let sum = weighted(&digits[..8], &[9, 8, 7, 6, 5, 4, 3, 2]);
    let check = u32::from(digits[8] - b'0');
    sum != 0 && sum % 11 == check
}

/// French social security number: 13 digits and 97 minus their remainder.
pub(super) fn nir(digits: &[u8]) -> bool {
    let number = digits[..13].iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let key = u64::from(digits[13] - b'0') * 10 + u64::from(digits[14] - b'0');
    matches!(digits[0], b'1' | b'2') && 97 - number % 97 == key
}

fn weighted(digits: &[u8], weights: &[u32]) -> u32 {
    digits.iter().zip(weights).map(|(digit, weight)| u32::from(digit - b'0') * weight).sum()
}

/// German tax identification number: ISO 7064 MOD 11,10.
pub(super) fn de_tax_id(digits: &[u8]) -> bool {
    digits[0] != b'0' && digits[..10].iter().any(|digit| *digit != digits[0]) && mod_11_10(digits)
}

/// ISO 7064 MOD 11,10 over eleven digits.
fn mod_11_10(digits: &[u8]) -> bool {
    let product = digits[..10].iter().fold(10u32, |product, digit| {
        let sum = (u32::from(digit - b'0') + product) % 10;
        (if sum == 0 { 10 } else { sum }) * 2 % 11
    });
    (11 - product) % 10 == u32::from(digits[10] - b'0')
}

/// Spanish NIF: eight digits and a letter by their remainder modulo 23.
pub(super) fn nif(text: &[u8]) -> bool {
    let [digits @ .., letter] = text else { return false };
    if digits.len() != 8 || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let number = digits.iter().fold(0usize, |sum, digit| sum * 10 + usize::from(digit - b'0'));
    b"TRWAGMYFPDXBNJZSQVHLCKE"[number % 23] == letter.to_ascii_uppercase()
}

/// Italian codice fiscale: sixteen characters, the last by two tables.
pub(super) fn codice_fiscale(text: &[u8]) -> bool {
    const ODD: &[u8; 26] =
        &[1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23];
    let form = b"aaaaaannannannna";
    if text.len() != 16 {
        return false;
    }
    let fits = text.iter().zip(form).all(|(byte, form)| match form {
        b'a' => byte.is_ascii_alphabetic(),
        _ => byte.is_ascii_digit() || b"LMNPQRSTUV".contains(&byte.to_ascii_uppercase()),
    });
    // A letter for the month and the day, 40 more for women; letters stand for digits where two people would share one.
    let day = text[9..11].iter().fold(0, |day, digit| day * 10 + u32::from(digit.wrapping_sub(b'0')));
    let dated = b"ABCDEHLMPRST".contains(&text[8].to_ascii_uppercase())
        && (matches!(day, 1..=31 | 41..=71) || !text[9..11].iter().all(u8::is_ascii_digit));
    if !fits || !dated {
        return false;
    }
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
    line.len() == 44
        && line.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase() || *byte == b'<')
        && digit(0..9, 9)
        && digit(13..19, 19)
        && digit(21..27, 27)
}

/// Whether a text has so many different ASCII characters: a cheap stand-in for its entropy.
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
    fn the_iban_register_is_sorted_and_its_forms_have_its_lengths() {
        assert!(IBAN.is_sorted_by_key(|(name, ..)| **name));
        for (name, len, form) in IBAN {
            let total: usize =
                form.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<usize>().ok()).sum();
            assert_eq!(total + 4, usize::from(*len), "{:?}", std::str::from_utf8(*name));
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
    fn check_letters_of_both_generations_of_ppsn() {
        for good in ["1234567T", "1234567TW", "6433435F", "6433435FT", "1234567FA", "8081978F", "7286924QH"] {
            assert!(ppsn(good.as_bytes()), "{good}");
        }
        for bad in ["1234567A", "6433435E", "6433435VH", "1234567XX", "123456T", "1234567T1"] {
            assert!(!ppsn(bad.as_bytes()), "{bad}");
        }
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
    fn identifiers_of_many_states_by_their_published_examples() {
        type Check = fn(&[u8]) -> bool;
        let cases: &[(Check, &str)] = &[
            (aadhaar, "234123412346"),
            (tfn, "123456782"),
            (abn, "51824753556"),
            (utr, "1955839661"),
            (cpr, "0707614285"),
            (no_birth_number, "15108695088"),
            (be_register, "85073003328"),
            (pt_nif, "501442600"),
            (cz_birth_number, "7103192745"),
            (ro_cnp, "1630615123457"),
            (tr_identity, "17291716060"),
            (za_identity, "7503305044089"),
            (cn_identity, "11010519491231002X"),
            (ch_ahv, "7569217076985"),
            (hr_oib, "33392005961"),
            (baltic_code, "37605030299"),
            (gr_amka, "01013099997"),
            (ar_cuit, "20267565393"),
            (jp_my_number, "123456789018"),
            (rut, "125319092"),
            (rut, "10000013K"),
            (hetu, "131052-308T"),
            (in_pan, "ABCPE1234F"),
            (sg_nric, "S1234567D"),
            (curp, "BOXW310820HNERXN09"),
        ];
        for (check, good) in cases {
            assert!(check(good.as_bytes()), "{good}");
            if !matches!(*good, "0707614285" | "ABCPE1234F") {
                let mut bad = good.as_bytes().to_vec();
                let at = bad.iter().rposition(u8::is_ascii_digit).unwrap();
                bad[at] = if bad[at] == b'9' { b'0' } else { bad[at] + 1 };
                assert!(!check(&bad), "{good} altered");
            }
        }
    }

    #[test]
    fn wallets_have_checksums() {
        assert_eq!(base58check(b"1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa").map(|bytes| bytes.len()), Some(21));
        assert!(base58check(b"1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb").is_none());
        assert!(base58check(b"").is_none() && base58check(b"11").is_none() && base58check(b"0OIl").is_none());
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

    #[test]
    fn national_insurance_and_health_numbers() {
        assert!(nino(b"AB123456C") && nino(b"jg103759a"));
        assert!(!nino(b"BG123612A") && !nino(b"NT998877A") && !nino(b"AB123456E"));
        assert!(nhs(b"9434765919") && !nhs(b"9434765918"));
    }
}
