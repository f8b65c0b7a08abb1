//! Allow-lists, compiled: values that pass although a rule finds them.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use super::{AllowList, Kind, PolicyError};

/// The most memory that one pattern may take when compiled.
const PATTERN_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Default)]
pub(super) struct Allowed {
    exact: Vec<String>,
    patterns: Vec<Regex>,
    domains: Vec<String>,
    networks: Vec<IpNet>,
}

impl Allowed {
    pub(super) fn new(list: &AllowList) -> Result<Self, PolicyError> {
        let mut patterns = Vec::new();
        for (index, pattern) in list.patterns.iter().enumerate() {
            patterns.push(whole(pattern).map_err(|source| PolicyError::Pattern { index, source })?);
        }
        let mut networks = Vec::new();
        for (index, network) in list.networks.iter().enumerate() {
            networks.push(parse_network(network).ok_or(PolicyError::Network { index })?);
        }
        let domains =
            list.domains.iter().map(|domain| domain.trim_start_matches('.').to_ascii_lowercase()).collect();
        Ok(Self { exact: list.exact.clone(), patterns, domains, networks })
    }

    pub(super) fn lets_through(&self, kind: Kind, value: &str) -> bool {
        if self.exact.iter().any(|exact| exact.eq_ignore_ascii_case(value)) {
            return true;
        }
        if self.patterns.iter().any(|pattern| pattern.is_match(value)) {
            return true;
        }
        match kind {
            Kind::Email => value.rsplit_once('@').is_some_and(|(_, host)| self.has_domain(host)),
            Kind::DatabaseUrl => {
                // The authority ends at the first of these (RFC 3986, 3.2); anything may follow.
                let authority = value.split_once("://").map_or("", |(_, rest)| rest);
                let authority = authority.split(['/', '?', '#', '\\']).next().unwrap_or("");
                let host = authority.rsplit_once('@').map_or("", |(_, host)| host);
                self.has_domain(host.split(':').next().unwrap_or(""))
            }
            Kind::Ip if !self.networks.is_empty() => {
                let plain = value.split(['/', '%']).next().unwrap_or(value);
                plain.parse::<IpAddr>().is_ok_and(|it| self.networks.iter().any(|all| all.contains(&it)))
            }
            _ => false,
        }
    }

    fn has_domain(&self, host: &str) -> bool {
        if self.domains.is_empty() {
            return false;
        }
        let host = host.to_ascii_lowercase();
        self.domains.iter().any(|domain| {
            host == *domain || host.strip_suffix(domain.as_str()).is_some_and(|left| left.ends_with('.'))
        })
    }
}

/// A pattern that must match the whole value.
fn whole(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(PATTERN_BYTES).build()
}

/// A pattern that compiles.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Pattern(String);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;
    fn try_from(text: String) -> Result<Self, regex::Error> {
        whole(&text).map(|_| Self(text))
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

/// A network that parses.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Network(String);

impl TryFrom<String> for Network {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match parse_network(&text) {
            Some(_) => Ok(Self(text)),
            None => Err(format!("{text:?} is not a network: write 10.0.0.0/8, fd00::/8 or one address")),
        }
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.0
    }
}

/// A network, or one address.
fn parse_network(text: &str) -> Option<IpNet> {
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

/// Whether an address is a special-purpose one, and so identifies no machine: loopback, private, link-local, documentation,
/// benchmarking, multicast, reserved, a netmask.
pub(super) fn is_special_purpose(value: &str) -> bool {
    let plain = value.split(['/', '%']).next().unwrap_or(value);
    let private = |address: Ipv4Addr| {
        let bits = address.to_bits();
        let shared = bits >> 22 == u32::from_be_bytes([100, 64, 0, 0]) >> 22;
        let mask = bits >> 24 == 255 && (!bits).wrapping_add(1).is_power_of_two();
        address.is_loopback()
            || address.octets()[0] == 0
            || address.is_private()
            || address.is_link_local()
            || address.is_documentation()
            || address.is_multicast()
            || (240..255).contains(&address.octets()[0])
            || bits >> 8 == u32::from_be_bytes([0, 192, 0, 0])
            || bits >> 17 == u32::from_be_bytes([198, 18, 0, 0]) >> 17
            || shared
            || mask
    };
    match plain.parse() {
        Ok(IpAddr::V4(address)) => private(address),
        Ok(IpAddr::V6(address)) => {
            let [first, second, ..] = address.segments();
            address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_unique_local()
                || address.is_unicast_link_local()
                || (first, second) == (0x2001, 0xdb8)
                || first == 0x3fff && second < 0x1000
                || address.to_ipv4_mapped().is_some_and(private)
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_lets_its_own_through_and_nothing_near_it() {
        let list = AllowList {
            exact: vec!["info@revenue.ie".to_owned()],
            patterns: vec![r"INV-\d+".to_owned()],
            domains: vec!["example.com".to_owned()],
            networks: vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()],
        };
        let allowed = Allowed::new(&list).unwrap();
        for (kind, good) in [
            (Kind::Email, "INFO@revenue.ie"),
            (Kind::Secret, "INV-12"),
            (Kind::Email, "a@Example.com"),
            (Kind::Email, "a@mail.example.com"),
            (Kind::Ip, "10.1.2.3"),
            (Kind::Ip, "fd12::1"),
            (Kind::DatabaseUrl, "postgres://u:pw12345@db.example.com:5432/x?y=z"),
        ] {
            assert!(allowed.lets_through(kind, good), "{good}");
        }
        for (kind, bad) in [
            (Kind::Email, "info@revenue.ie.evil.com"),
            (Kind::Secret, "xINV-12"),
            (Kind::Email, "a@notexample.com"),
            (Kind::Email, "a@example.com.evil.org"),
            (Kind::Ip, "11.1.2.3"),
            (Kind::Ip, "fc00::1"),
            (Kind::Ip, "::ffff:10.1.2.3"),
            (Kind::Email, "a@evil-example.com"),
            (Kind::DatabaseUrl, "postgres://u:pw12345@evil.org/db?x=@example.com"),
            (Kind::DatabaseUrl, "postgres://u:pw12345@evil.org/@example.com"),
            (Kind::DatabaseUrl, "postgres://u:pw12345@evil.org#@example.com"),
            (Kind::DatabaseUrl, "postgres://u:pw12345@evil.org,example.com/db"),
        ] {
            assert!(!allowed.lets_through(kind, bad), "{bad}");
        }
    }

    #[test]
    fn addresses_of_a_special_purpose_are_known_by_their_class() {
        for none in [
            "127.0.0.1",
            "0.0.0.0/0",
            "10.1.2.3",
            "172.16.0.0/12",
            "192.168.1.9",
            "169.254.1.1",
            "203.0.113.9",
            "100.64.0.1",
            "255.255.255.0",
            "255.255.255.255",
            "::1",
            "::",
            "fd12::1",
            "fe80::1%eth0",
            "2001:db8::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_special_purpose(none), "{none}");
        }
        for some in
            ["8.8.8.8", "172.32.0.1", "100.128.0.1", "255.1.2.3", "2a02:8084::1", "::ffff:8.8.8.8", "x"]
        {
            assert!(!is_special_purpose(some), "{some}");
        }
    }

    #[test]
    fn a_list_that_does_not_work_names_the_entry() {
        let list = AllowList { patterns: vec!["a".to_owned(), "(".to_owned()], ..AllowList::default() };
        assert!(matches!(Allowed::new(&list), Err(PolicyError::Pattern { index: 1, .. })));
        let list = AllowList { networks: vec!["10.0.0.0/33".to_owned()], ..AllowList::default() };
        assert!(matches!(Allowed::new(&list), Err(PolicyError::Network { index: 0 })));
    }
}
