//! Which names and addresses a sandbox may reach. Names permit names; whether an address is fit to be reached at all is
//! asked of the address, however it was found.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A client's request, in E2B's terms.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Asked {
    /// Addresses, ranges and names that may be reached.
    pub(crate) allow_out: Vec<String>,
    /// Addresses and ranges that may not; `allow_out` wins.
    pub(crate) deny_out: Vec<String>,
    /// False: nothing but what `allow_out` names.
    pub(crate) internet: Option<bool>,
    /// Ports besides 443 on which names are checked inside TLS.
    pub(crate) https_ports: Vec<u16>,
}

/// The rules of one sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Policy {
    asked: Asked,
    names: Vec<Name>,
    allow: Vec<Range>,
    deny: Vec<Range>,
    /// Public addresses need no rule.
    open: bool,
}

/// Most rules of one kind.
const RULES_MAX: usize = 1000;

/// A rule that cannot be followed, in words for its author.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRule {
    #[error(
        "allowOut: {0:?} is neither an address, nor a range, nor a domain name such as example.com or *.example.com"
    )]
    Allow(String),
    #[error("denyOut: {0:?} is neither an address nor a range; names can only be allowed")]
    Deny(String),
    #[error(
        "When specifying allowed domains in allow out, you must include '0.0.0.0/0' in deny out to block all other traffic"
    )]
    NameWithoutDeny,
    #[error("more than {RULES_MAX} rules")]
    TooMany,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Any,
    /// Exactly this.
    Exact(String),
    /// Everything below this; it starts with a dot.
    Below(String),
}

impl Policy {
    /// Permits nothing.
    pub(crate) fn closed() -> Self {
        Self { asked: Asked::default(), names: vec![], allow: vec![], deny: vec![], open: false }
    }

    /// The request. `open` is the default for a sandbox that requests nothing.
    pub(crate) fn new(asked: Asked, open: bool) -> Result<Self, BadRule> {
        if asked.allow_out.len().max(asked.deny_out.len()) > RULES_MAX {
            return Err(BadRule::TooMany);
        }
        let (mut names, mut allow) = (Vec::new(), Vec::new());
        for rule in &asked.allow_out {
            match (Range::parse(rule), Name::parse(rule)) {
                (Some(range), _) => allow.push(range),
                (None, Some(name)) => names.push(name),
                (None, None) => return Err(BadRule::Allow(rule.clone())),
            }
        }
        let deny = asked.deny_out.iter().map(|rule| Range::parse(rule).ok_or(BadRule::Deny(rule.clone())));
        let deny: Vec<Range> = deny.collect::<Result<_, _>>()?;
        let denies_all = asked.internet == Some(false) || deny.iter().any(|range| range.length == 0);
        if !names.is_empty() && !denies_all {
            return Err(BadRule::NameWithoutDeny);
        }
        let open = open && !denies_all;
        Ok(Self { asked, names, allow, deny, open })
    }

    /// Whether nothing at all can be reached.
    pub(crate) fn is_closed(&self) -> bool {
        !self.open && self.names.is_empty() && self.allow.is_empty()
    }

    /// Whether public addresses need no rule.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The request.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// Whether a rule names this name, which is in lower case and without a dot at its end.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.names.iter().any(|rule| match rule {
            Name::Any => true,
            Name::Exact(exact) => exact == name,
            Name::Below(suffix) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
        })
    }

    /// Whether the ClientHello of a connection to this port is checked for its name.
    pub(crate) fn is_tls_port(&self, port: u16) -> bool {
        port == 443 || self.asked.https_ports.contains(&port)
    }

    /// Whether a rule names just this address.
    pub(crate) fn names_address(&self, address: IpAddr) -> bool {
        let alone = Range::alone(plain(address));
        self.allow.contains(&alone)
    }

    /// Whether an address may be reached for its own sake, and not because a name led there.
    pub(crate) fn permits(&self, address: IpAddr) -> bool {
        let address = plain(address);
        // Connecting there is connecting to this machine, by an address that does not show it.
        if address.is_unspecified() {
            return false;
        }
        if self.allow.iter().any(|range| range.holds(address) && range.is_meant_for(address)) {
            return true;
        }
        self.open && special(address).is_none() && !self.deny.iter().any(|range| range.holds(address))
    }

    /// Whether an address may be reached by a name that a rule names. Public ones may; one of the machine's own
    /// networks only if a rule names that, too.
    pub(crate) fn permits_by_name(&self, address: IpAddr) -> bool {
        special(plain(address)).is_none() || self.permits(address)
    }
}

impl Name {
    fn parse(rule: &str) -> Option<Self> {
        if rule == "*" {
            return Some(Self::Any);
        }
        match rule.strip_prefix("*.") {
            Some(rest) => host_name(rest).map(|name| Self::Below(format!(".{name}"))),
            None => host_name(rule).map(Self::Exact),
        }
    }
}

/// A name as rules use it: lower case, no dot at its end. `None` for an invalid one, numbers in disguise among them:
/// resolvers read `127.1` and `0x7f000001` as addresses.
pub(crate) fn host_name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let last = text.rsplit('.').next().unwrap_or("");
    let is_number = last.starts_with(|first: char| first.is_ascii_digit());
    (text.len() <= 253 && text.split('.').all(is_label) && !is_number).then(|| text.to_ascii_lowercase())
}

/// The addresses that begin with the same bits. IPv4 is kept as such, also when it was written as IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    base: IpAddr,
    length: u8,
}

impl Range {
    const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Self {
        Self { base: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length }
    }

    const fn v6(a: u16, b: u16, c: u16, length: u8) -> Self {
        Self { base: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)), length }
    }

    /// One address.
    fn alone(base: IpAddr) -> Self {
        Self { base, length: if base.is_ipv4() { 32 } else { 128 } }
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let written: IpAddr = address.parse().ok()?;
        let bits = if written.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().ok().filter(|length| *length <= bits)?
            }
            Some(_) => return None,
            None => bits,
        };
        let base = plain(written);
        match base.is_ipv4() == written.is_ipv4() {
            true => Some(Self { base, length }),
            // Shorter, it would be more than IPv4.
            false => length.checked_sub(96).map(|length| Self { base, length }),
        }
    }

    fn holds(&self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, bits: u32| {
            let drop = bits - u32::from(self.length).min(bits);
            drop == 128 || (a ^ b) >> drop == 0
        };
        match (self.base, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            // `0.0.0.0/0` is how E2B's clients write "everything".
            (IpAddr::V4(_), IpAddr::V6(_)) => self.length == 0,
            (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// A rule on everything is not about loopback. For a special address, the rule must be about addresses of its kind.
    fn is_meant_for(&self, address: IpAddr) -> bool {
        special(address).is_none_or(|kind| self.length >= kind.length && kind.holds(self.base))
    }
}

/// IPv4 for an address that is IPv4 mapped into IPv6.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Addresses that are not the public internet: this machine, its networks, services of a cloud to its machines, ways to
/// write IPv4 in IPv6 that someone on the way may translate. From the registries of RFC 6890.
const SPECIAL: &[Range] = &[
    Range::v4(0, 0, 0, 0, 8),
    Range::v4(10, 0, 0, 0, 8),
    Range::v4(100, 64, 0, 0, 10),
    Range::v4(127, 0, 0, 0, 8),
    Range::v4(169, 254, 0, 0, 16),
    Range::v4(172, 16, 0, 0, 12),
    Range::v4(192, 0, 0, 0, 24),
    Range::v4(192, 0, 2, 0, 24),
    Range::v4(192, 88, 99, 0, 24),
    Range::v4(192, 168, 0, 0, 16),
    Range::v4(198, 18, 0, 0, 15),
    Range::v4(198, 51, 100, 0, 24),
    Range::v4(203, 0, 113, 0, 24),
    Range::v4(224, 0, 0, 0, 4),
    Range::v4(240, 0, 0, 0, 4),
    Range { base: IpAddr::V6(Ipv6Addr::LOCALHOST), length: 128 },
    Range::v6(0x2001, 0, 0, 23),
    Range::v6(0x2001, 0xdb8, 0, 32),
    Range::v6(0x2002, 0, 0, 16),
    Range::v6(0x3fff, 0, 0, 20),
    Range::v6(0xfc00, 0, 0, 7),
    Range::v6(0xfe80, 0, 0, 10),
    Range::v6(0xff00, 0, 0, 8),
];

/// Where clouds give a machine its secrets. Each address counts alone: a rule on the network around it does not cover it.
const METADATA: &[Range] = &[
    Range::v4(169, 254, 0, 0, 16), // most of them, at 169.254.169.254 and its neighbours
    Range::v4(100, 100, 100, 200, 32),
    Range::v4(168, 63, 129, 16, 32), // looks public
    Range::v4(192, 0, 0, 192, 32),
    Range::v6(0xfd00, 0xec2, 0, 32),
    Range::v6(0xfd20, 0xce, 0, 32),
];

/// The range that makes an address special. Of IPv6 only 2000::/3 is public; the rest that is in no list counts alone.
fn special(address: IpAddr) -> Option<Range> {
    let is_in = |ranges: &[Range]| ranges.iter().find(|range| range.holds(address)).copied();
    if is_in(METADATA).is_some() {
        return Some(Range::alone(address));
    }
    let public = Range::v6(0x2000, 0, 0, 3);
    is_in(SPECIAL).or_else(|| (address.is_ipv6() && !public.holds(address)).then_some(Range::alone(address)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> Result<Policy, BadRule> {
        let list = |rules: &[&str]| rules.iter().map(ToString::to_string).collect();
        let asked = Asked { allow_out: list(allow), deny_out: list(deny), ..Asked::default() };
        Policy::new(asked, false)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const EVERYTHING: &str = "0.0.0.0/0";

    #[test]
    fn names_permit_themselves_and_wildcards_the_names_below() {
        let policy = policy(&["Example.com", "*.Test.org."], &[EVERYTHING]).unwrap();
        for name in ["example.com", "a.test.org", "a.b.test.org"] {
            assert!(policy.names(name), "{name}");
        }
        for name in
            ["www.example.com", "test.org", ".test.org", "evil-example.com", "example.com.evil", "atest.org"]
        {
            assert!(!policy.names(name), "{name}");
        }
    }

    #[test]
    fn no_rules_permit_nothing_and_the_machine_s_owner_can_open_public_addresses() {
        let closed = policy(&[], &[]).unwrap();
        assert!(closed.is_closed() && !closed.permits(ip("1.1.1.1")));
        let open = Policy::new(Asked::default(), true).unwrap();
        assert!(open.permits(ip("1.1.1.1")) && !open.permits(ip("10.0.0.1")) && !open.permits(ip("::1")));
        let denied = Asked { deny_out: vec!["1.0.0.0/8".into()], ..Asked::default() };
        let open = Policy::new(denied, true).unwrap();
        assert!(!open.permits(ip("1.1.1.1")) && open.permits(ip("8.8.8.8")));
        let off = Asked { internet: Some(false), ..Asked::default() };
        assert!(Policy::new(off, true).unwrap().is_closed());
    }

    #[test]
    fn allow_wins_over_deny() {
        let policy = policy(&["9.9.9.0/24", "2620:fe::/32"], &[EVERYTHING]).unwrap();
        assert!(policy.permits(ip("9.9.9.9")) && policy.permits(ip("2620:fe::fe")));
        assert!(!policy.permits(ip("9.9.8.9")) && !policy.permits(ip("2620:ff::fe")));
    }

    const NOT_PUBLIC: &[&str] = &[
        "127.0.0.1",
        "127.255.0.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "224.0.0.1",
        "255.255.255.255",
        "198.19.0.1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "fe80::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "100::1",
        "5f00::1",
    ];

    #[test]
    fn no_rule_on_names_or_on_everything_leads_into_the_machine_s_own_networks() {
        let everything =
            policy(&[EVERYTHING, "::/0", "*", "128.0.0.0/1", "::ffff:0:0/96"], &[EVERYTHING]).unwrap();
        let open = Policy::new(Asked::default(), true).unwrap();
        for address in NOT_PUBLIC.iter().map(|text| ip(text)) {
            for policy in [&everything, &open] {
                assert!(!policy.permits(address) && !policy.permits_by_name(address), "{address}");
            }
        }
        assert!(everything.permits(ip("1.1.1.1")) && everything.permits(ip("2606:4700::1111")));
    }

    #[test]
    fn a_rule_about_a_private_network_opens_that_network_and_no_other() {
        let policy = policy(&["10.1.0.0/16", "::1", "::ffff:127.0.0.1"], &[]).unwrap();
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "::1", "127.0.0.1"] {
            assert!(policy.permits(ip(address)) && policy.permits_by_name(ip(address)), "{address}");
        }
        for address in ["10.2.0.1", "127.0.0.2", "169.254.169.254", "fe80::1"] {
            assert!(!policy.permits(ip(address)), "{address}");
        }
        // Wider than the kind of address that it would open.
        assert!(!self::policy(&["8.0.0.0/6"], &[]).unwrap().permits(ip("10.1.2.3")));
    }

    #[test]
    fn metadata_services_are_reached_only_by_a_rule_for_that_address() {
        let wide = ["169.254.0.0/16", "100.64.0.0/10", "168.63.0.0/16", "192.0.0.0/24", "fc00::/7"];
        let wide = policy(&wide, &[]).unwrap();
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "::ffff:169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            assert!(!wide.permits(ip(address)) && !wide.permits_by_name(ip(address)), "{address}");
            assert!(policy(&[address], &[]).unwrap().permits(ip(address)), "{address}");
        }
        assert!(wide.permits(ip("100.100.100.201")) && wide.permits(ip("fd00::1")));
    }

    #[test]
    fn no_rule_opens_the_unspecified_address() {
        let policy = policy(&["0.0.0.0", "0.0.0.0/8", "::", "*"], &[EVERYTHING]).unwrap();
        for address in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
            assert!(!policy.permits(ip(address)) && !policy.permits_by_name(ip(address)), "{address}");
        }
    }

    #[test]
    fn an_address_is_named_by_itself_and_by_no_range() {
        let policy = policy(&["10.0.0.1", "10.0.1.1/32", "10.0.2.0/24", "::1", EVERYTHING], &[]).unwrap();
        for address in ["10.0.0.1", "::ffff:10.0.0.1", "10.0.1.1", "::1"] {
            assert!(policy.names_address(ip(address)), "{address}");
        }
        for address in ["10.0.2.0", "10.0.2.1", "1.1.1.1", "0.0.0.0", "::2"] {
            assert!(!policy.names_address(ip(address)), "{address}");
        }
    }

    #[test]
    fn rules_that_cannot_be_followed_are_refused() {
        assert_eq!(policy(&["example.com"], &[]), Err(BadRule::NameWithoutDeny));
        assert_eq!(policy(&["example.com"], &["10.0.0.0/8"]), Err(BadRule::NameWithoutDeny));
        for rule in [
            "",
            "a b",
            "http://x.y",
            "*.*.x",
            "1.2.3",
            "0x7f.1",
            "1.2.3.4/33",
            "1.2.3.4/-1",
            "::/129",
            "x..y",
            "ü.x",
        ] {
            assert_eq!(policy(&[rule], &[EVERYTHING]), Err(BadRule::Allow(rule.into())));
        }
        assert_eq!(policy(&[], &["example.com"]), Err(BadRule::Deny("example.com".into())));
        assert_eq!(policy(&["1.1.1.1"; RULES_MAX + 1], &[]), Err(BadRule::TooMany));
    }

    #[test]
    fn disguised_numbers_are_not_names() {
        for text in ["127.1", "2130706433", "0x7f000001", "1.2.3.4", "017700000001", "a.0x1"] {
            assert_eq!(host_name(text), None, "{text}");
        }
        assert_eq!(host_name("X_1.Example.COM.").as_deref(), Some("x_1.example.com"));
    }

    proptest! {
        #[test]
        fn a_range_holds_its_ends_and_not_its_neighbours(base: u32, length in 1_u8..=32) {
            let mask = u32::MAX << (32 - u32::from(length));
            let range = Range::parse(&format!("{}/{length}", Ipv4Addr::from(base))).unwrap();
            let at = |bits: u32| IpAddr::V4(Ipv4Addr::from(bits));
            prop_assert!(range.holds(at(base & mask)) && range.holds(at(base | !mask)));
            prop_assert!(!range.holds(at((base | !mask).wrapping_add(1))));
        }

        #[test]
        fn no_text_makes_a_rule_panic(text in ".{0,40}") {
            let _ = policy(&[&text], &[&text]);
        }
    }
}
