//! Check digits and shapes: what turns a run of characters into a finding.
//!
//! All functions take ASCII bytes without separators unless they say otherwise.

/// Luhn check (ISO/IEC 7812-1 annex B) over digits.
pub(super) fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| {
            let digit = u32::from(digit - b'0');
            match (at % 2, digit * 2) {
                (0, _) => digit,
                (_, double) if double > 9 => double - 9,
                (_, double) => double,
            }
        })
        .sum();
    sum.is_multiple_of(10)
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
    let lead = |n: usize| digits[..n].iter().fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    if digits.len() < 12 || digits.len() > 19 {
        return CardRange::None;
    }
    let (two, three, four) = (lead(2), lead(3), lead(4));
    let usual: &[usize] = match (two, three, four) {
        (40..=49, ..) => &[16],                       // Visa; 13 and 19 are rare
        (51..=55, ..) | (_, _, 2221..=2720) => &[16], // Mastercard
        (34 | 37, ..) => &[15],                       // American Express
        (36 | 38 | 39, ..) | (_, 300..=305, _) | (_, _, 3095) => &[14, 16], // Diners Club
        (_, _, 3528..=3589) => &[16],                 // JCB
        (65, ..) | (_, 644..=649, _) | (_, _, 6011) => &[16], // Discover
        (62, ..) => &[16],                            // UnionPay
        (_, _, 2200..=2204) => &[16],                 // Mir
        (50 | 56..=58 | 60..=69, ..) => &[16],        // Maestro, RuPay, Elo, Verve
        (81 | 82, ..) | (_, _, 9792 | 1800 | 2131) => &[], // RuPay, UnionPay; Troy; old JCB
        _ => return CardRange::None,
    };
    if usual.contains(&digits.len()) { CardRange::Usual } else { CardRange::Rare }
}

/// Remainder modulo 97 of the number that ISO 7064 makes of letters and digits (A is 10, Z is 35).
fn mod97(text: impl Iterator<Item = u8>) -> u32 {
    text.fold(0, |sum, byte| match byte {
        b'0'..=b'9' => (sum * 10 + u32::from(byte - b'0')) % 97,
        _ => (sum * 100 + u32::from(byte.to_ascii_uppercase() - b'A') + 10) % 97,
    })
}

/// Countries of the SWIFT IBAN register with length and the form of what follows the check digits:
/// `n` digits, `a` letters, `c` either, each with its count.
const IBAN: &[(&[u8; 2], u8, &str)] = &[
    (b"AD", 24, "8n12c"),
    (b"AE", 23, "19n"),
    (b"AL", 28, "8n16c"),
    (b"AT", 20, "16n"),
    (b"AZ", 28, "4a20c"),
    (b"BA", 20, "16n"),
    (b"BE", 16, "12n"),
    (b"BG", 22, "4a6n8c"),
    (b"BH", 22, "4a14c"),
    (b"BI", 27, "23n"),
    (b"BR", 29, "23n1a1c"),
    (b"BY", 28, "4c4n16c"),
    (b"CH", 21, "5n12c"),
    (b"CR", 22, "18n"),
    (b"CY", 28, "8n16c"),
    (b"CZ", 24, "20n"),
    (b"DE", 22, "18n"),
    (b"DJ", 27, "23n"),
    (b"DK", 18, "14n"),
    (b"DO", 28, "4c20n"),
    (b"EE", 20, "16n"),
    (b"EG", 29, "25n"),
    (b"ES", 24, "20n"),
    (b"FI", 18, "14n"),
    (b"FK", 18, "2a12n"),
    (b"FO", 18, "14n"),
    (b"FR", 27, "10n11c2n"),
    (b"GB", 22, "4a14n"),
    (b"GE", 22, "2a16n"),
    (b"GI", 23, "4a15c"),
    (b"GL", 18, "14n"),
    (b"GR", 27, "7n16c"),
    (b"GT", 28, "24c"),
    (b"HN", 28, "4a20n"),
    (b"HR", 21, "17n"),
    (b"HU", 28, "24n"),
    (b"IE", 22, "4a14n"),
    (b"IL", 23, "19n"),
    (b"IQ", 23, "4a15n"),
    (b"IS", 26, "22n"),
    (b"IT", 27, "1a10n12c"),
    (b"JO", 30, "4a4n18c"),
    (b"KW", 30, "4a22c"),
    (b"KZ", 20, "3n13c"),
    (b"LB", 28, "4n20c"),
    (b"LC", 32, "4a24c"),
    (b"LI", 21, "5n12c"),
    (b"LT", 20, "16n"),
    (b"LU", 20, "3n13c"),
    (b"LV", 21, "4a13c"),
    (b"LY", 25, "21n"),
    (b"MC", 27, "10n11c2n"),
    (b"MD", 24, "20c"),
    (b"ME", 22, "18n"),
    (b"MK", 19, "3n10c2n"),
    (b"MN", 20, "16n"),
    (b"MR", 27, "23n"),
    (b"MT", 31, "4a5n18c"),
    (b"MU", 30, "4a19n3a"),
    (b"NI", 28, "4a20n"),
    (b"NL", 18, "4a10n"),
    (b"NO", 15, "11n"),
    (b"OM", 23, "3n16c"),
    (b"PK", 24, "4a16c"),
    (b"PL", 28, "24n"),
    (b"PS", 29, "4a21c"),
    (b"PT", 25, "21n"),
    (b"QA", 29, "4a21c"),
    (b"RO", 24, "4a16c"),
    (b"RS", 22, "18n"),
    (b"RU", 33, "14n15c"),
    (b"SA", 24, "2n18c"),
    (b"SC", 31, "4a20n3a"),
    (b"SD", 18, "14n"),
    (b"SE", 24, "20n"),
    (b"SI", 19, "15n"),
    (b"SK", 24, "20n"),
    (b"SM", 27, "1a10n12c"),
    (b"SO", 23, "19n"),
    (b"ST", 25, "21n"),
    (b"SV", 28, "4a20n"),
    (b"TL", 23, "19n"),
    (b"TN", 24, "20n"),
    (b"TR", 26, "5n1n16c"),
    (b"UA", 29, "6n19c"),
    (b"VA", 22, "18n"),
    (b"VG", 24, "4a16n"),
    (b"XK", 20, "16n"),
    (b"YE", 30, "4a4n18c"),
];

/// The length of an IBAN of this country, in any case.
pub(super) fn iban_len(country: [u8; 2]) -> Option<usize> {
    let country = country.map(|byte| byte.to_ascii_uppercase());
    IBAN.binary_search_by(|(name, ..)| (*name).cmp(&country)).ok().map(|at| usize::from(IBAN[at].1))
}

/// Country, length, structure and check digits of an IBAN without separators (ISO 13616).
pub(super) fn iban(text: &[u8]) -> bool {
    let [a, b, ..] = text else { return false };
    let country = [a.to_ascii_uppercase(), b.to_ascii_uppercase()];
    let Ok(at) = IBAN.binary_search_by(|(name, ..)| (*name).cmp(&country)) else { return false };
    let (_, len, form) = IBAN[at];
    text.len() == usize::from(len)
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

/// Bits of entropy in a character, by the text's own frequencies.
pub(super) fn entropy(text: &[u8]) -> f32 {
    let mut counts = [0u16; 256];
    for byte in text.iter().take(256) {
        counts[usize::from(*byte)] += 1;
    }
    let len = text.len().min(256) as f32;
    -counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f32::from(*count) / len)
        .map(|p| p * p.log2())
        .sum::<f32>()
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
    fn national_insurance_and_health_numbers() {
        assert!(nino(b"AB123456C") && nino(b"jg103759a"));
        assert!(!nino(b"BG123612A") && !nino(b"NT998877A") && !nino(b"AB123456E"));
        assert!(nhs(b"9434765919") && !nhs(b"9434765918"));
    }
}
