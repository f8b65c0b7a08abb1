//! What can be found. The name of a kind is the word in its placeholder, in policies and in reports.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::policy::Action;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $action:ident;)*) => {
        /// A kind of sensitive value.
        ///
        /// The order is the order of precedence: where findings overlap, the label of the earlier kind is shown.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $($(#[$doc])* $name,)* }

        impl Kind {
            /// Every kind, in order of precedence.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name: upper case, as in `[EMAIL_1]`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The kind with exactly this name.
            pub(super) fn named(name: &[u8]) -> Option<Self> {
                $(if name == $text.as_bytes() {
                    return Some(Self::$name);
                })*
                None
            }

            /// The action of the built-in policy.
            pub fn default_action(self) -> Action {
                match self { $(Self::$name => Action::$action,)* }
            }
        }
    };
}

kinds! {
    /// A value that the server itself holds or that the policy lists: no allow-list and no level of a policy lets it
    /// through in the forms that it is looked for in.
    KnownSecret = "KNOWN_SECRET", Redact;
    /// PEM, OpenSSH, PGP, PuTTY and age private keys.
    PrivateKey = "PRIVATE_KEY", Redact;
    /// A database or broker address with a password in it.
    DatabaseUrl = "DATABASE_URL", Redact;
    /// `user:password@` in any other URL.
    UrlCredentials = "URL_CREDENTIALS", Redact;
    /// A JSON web token.
    Jwt = "JWT", Redact;
    /// The id of an AWS key.
    AwsAccessKey = "AWS_ACCESS_KEY", Redact;
    /// The secret half of an AWS key.
    AwsSecret = "AWS_SECRET", Redact;
    /// A token in a published format of a provider.
    ApiKey = "API_KEY", Redact;
    /// HTTP basic authentication, `curl -u`, netrc.
    BasicAuth = "BASIC_AUTH", Redact;
    /// A bearer token.
    Bearer = "BEARER", Redact;
    /// A payment card number.
    CreditCard = "CREDIT_CARD", Redact;
    /// An international bank account number.
    Iban = "IBAN", Redact;
    /// Irish personal public service number.
    Ppsn = "PPSN", Redact;
    /// US social security number or individual taxpayer number.
    Ssn = "SSN", Redact;
    /// UK national insurance number.
    UkNino = "UK_NINO", Redact;
    /// UK national health number.
    UkNhs = "UK_NHS", Redact;
    /// Another country's personal number, with its check digit: ES NIF, IT codice fiscale, DE IdNr, PL PESEL, ...
    NationalId = "NATIONAL_ID", Redact;
    /// A passport number beside a word for it, or the second line of a machine-readable zone.
    Passport = "PASSPORT", Redact;
    /// A VAT number of an EU member or the UK, beside a word for it.
    EuVat = "EU_VAT", Redact;
    /// The address of a crypto wallet, with its checksum.
    CryptoWallet = "CRYPTO_WALLET", Redact;
    /// An e-mail address.
    Email = "EMAIL", Redact;
    /// An IPv4 or IPv6 address.
    Ip = "IP", Redact;
    /// A hardware address.
    Mac = "MAC", Allow;
    /// A password beside a name for it.
    Password = "PASSWORD", Redact;
    /// Another secret beside a name for it.
    Secret = "SECRET", Redact;
    /// A telephone number.
    Phone = "PHONE", Redact;
    /// A date of birth beside a word for it.
    BirthDate = "BIRTH_DATE", Allow;
    /// A person's name, by context.
    Person = "PERSON", Allow;
    /// A postal address, by context.
    Address = "ADDRESS", Allow;
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of an unknown kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind; `pathbox guard rules` lists them")]
pub struct UnknownKind(String);

impl FromStr for Kind {
    type Err = UnknownKind;
    /// Reads a name in any case: policies may say `email`.
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let found = Self::ALL.iter().find(|kind| kind.as_str().eq_ignore_ascii_case(text));
        found.copied().ok_or_else(|| UnknownKind(text.chars().take(40).collect()))
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
