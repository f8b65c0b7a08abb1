//! Where the database is: a URL with one host or several, as libpq writes them.
//!
//! `postgres://user:password@one:5432,two:5433/name?target_session_attrs=read-write`; also `?host=one,two&port=5432,5433`,
//! where a host that begins with `/` is a directory of sockets. Unknown parameters are refused: a parameter that is
//! silently ignored may be one that the operator relies on.

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use super::PgOptions;
use crate::store::{Secret, StoreError};

/// Parameters that the driver takes as they are.
const TAKEN: [&str; 15] = [
    "application_name",
    "dbname",
    "options",
    "password",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// The hosts of a URL, in the order in which they are tried.
pub(super) fn parse(url: &Secret, options: &PgOptions) -> Result<Vec<PgConnectOptions>, StoreError> {
    let parts = Parts::of(url.expose())?;
    let connect = |host: &(String, Option<String>)| {
        let parsed: PgConnectOptions = parts.url_of(host).parse().map_err(StoreError::Url)?;
        let parsed = parsed.application_name("pathbox").disable_statement_logging();
        // A pooler knows no parameters of a session.
        Ok(if options.pooled { parsed.statement_cache_capacity(0).extra_float_digits(None) } else { parsed })
    };
    parts.hosts.iter().map(connect).collect()
}

/// A URL, taken apart.
struct Parts {
    /// `user:password@`, or nothing.
    user: String,
    hosts: Vec<(String, Option<String>)>,
    /// `/name`, or nothing.
    path: String,
    query: Vec<(String, String)>,
}

impl Parts {
    fn of(url: &str) -> Result<Self, StoreError> {
        let malformed = |what: &'static str| StoreError::Url(sqlx::Error::Configuration(what.into()));
        let rest = ["postgres://", "postgresql://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let rest = rest.ok_or_else(|| malformed("another scheme"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (user, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        let mut parts =
            Self { user: user.to_owned(), hosts: listed(hosts), path: path.to_owned(), query: Vec::new() };
        let (mut named, mut ports) = (Vec::new(), Vec::new());
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let list = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
            match &*key {
                "host" | "hostaddr" => named = list(),
                "port" => ports = list(),
                "target_session_attrs" if ["read-write", "primary"].contains(&&*value) => {}
                "target_session_attrs" => {
                    let why = format!(
                        "target_session_attrs={value} is not supported: Pathbox writes, so it is always read-write"
                    );
                    return Err(StoreError::Address(why));
                }
                key if TAKEN.contains(&key) || key.starts_with("options[") => {
                    parts.query.push((key.to_owned(), value.into_owned()));
                }
                key => {
                    let why = format!(
                        "the parameter `{key}` is not supported; time-outs and the size of the pool are settings (database.*)"
                    );
                    return Err(StoreError::Address(why));
                }
            }
        }
        if !named.is_empty() {
            parts.hosts = named.into_iter().map(|host| (host, None)).collect();
        }
        if parts.hosts.iter().any(|(host, _)| host.is_empty()) {
            return Err(malformed("empty host"));
        }
        match (ports.len(), parts.hosts.len()) {
            (0, _) => {}
            (1, _) => parts.hosts.iter_mut().for_each(|(_, port)| *port = Some(ports[0].clone())),
            (many, hosts) if many == hosts => {
                for ((_, port), given) in parts.hosts.iter_mut().zip(ports) {
                    *port = Some(given);
                }
            }
            (many, hosts) => {
                return Err(StoreError::Address(format!("it names {hosts} hosts and {many} ports")));
            }
        }
        Ok(parts)
    }

    /// A URL of one host, as the driver takes it.
    fn url_of(&self, (host, port): &(String, Option<String>)) -> String {
        let is_socket = host.starts_with('/') || host.starts_with("%2F");
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.query);
        if host.starts_with('/') {
            query.append_pair("host", host);
        }
        let name = if host.starts_with('/') { "localhost" } else { host };
        let port = port.as_ref().filter(|port| !port.is_empty());
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = if self.path.is_empty() && !is_socket { "/" } else { &self.path };
        format!("postgres://{}{name}{port}{path}?{}", self.user, query.finish())
    }
}

/// `one:5432,[::1]:5433,two` as hosts and ports; nothing is localhost, as for libpq.
fn listed(hosts: &str) -> Vec<(String, Option<String>)> {
    let one = |text: &str| match text.rfind(':') {
        Some(at) if !text[at..].contains(']') => (text[..at].to_owned(), Some(text[at + 1..].to_owned())),
        _ => (text.to_owned(), None),
    };
    if hosts.is_empty() { vec![("localhost".to_owned(), None)] } else { hosts.split(',').map(one).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(url: &str) -> Result<Vec<String>, String> {
        let parsed = parse(&Secret::new(url), &PgOptions::default()).map_err(|error| error.to_string())?;
        let name = |options: &PgConnectOptions| {
            let host =
                options.get_socket().map_or(options.get_host().to_owned(), |dir| dir.display().to_string());
            let database = options.get_database().unwrap_or_default();
            format!("{}@{host}:{}/{database}", options.get_username(), options.get_port())
        };
        Ok(parsed.iter().map(name).collect())
    }

    #[test]
    fn hosts_are_tried_in_the_order_in_which_they_are_named() {
        for (url, expected) in [
            ("postgres://u:p@one/db", &["u@one:5432/db"][..]),
            ("postgresql://u@one:5/db?target_session_attrs=read-write", &["u@one:5/db"]),
            (
                "postgres://u:p%40@one:5,two:6,three/db?sslmode=disable",
                &["u@one:5/db", "u@two:6/db", "u@three:5432/db"],
            ),
            ("postgres://u@[::1]:5,[fe80::2]/db", &["u@[::1]:5/db", "u@[fe80::2]:5432/db"]),
            ("postgres://u@one,two:6/db?port=7", &["u@one:7/db", "u@two:7/db"]),
            ("postgres://u@x/db?host=one,two&port=5,6", &["u@one:5/db", "u@two:6/db"]),
            ("postgres:///db?user=u&host=/run/a,/run/b", &["u@/run/a:5432/db", "u@/run/b:5432/db"]),
            ("postgres://u@localhost/db?host=/run/pg", &["u@/run/pg:5432/db"]),
            ("postgres://u@%2Frun%2Fpg/db", &["u@/run/pg:5432/db"]),
            ("postgres://u@/db", &["u@localhost:5432/db"]),
        ] {
            assert_eq!(hosts(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn unknown_parameters_are_refused_by_name() {
        for (url, expected) in [
            ("postgres://u@one/db?target_session_attrs=any", "target_session_attrs=any"),
            ("postgres://u@one/db?connect_timeout=5", "`connect_timeout`"),
            ("postgres://u@one/db?pgbouncer=true", "`pgbouncer`"),
            ("postgres://u@one,two,three/db?port=1,2", "3 hosts and 2 ports"),
        ] {
            let said = hosts(url).unwrap_err();
            assert!(said.contains(expected), "{url}: {said}");
        }
        for url in ["mysql://u@one/db", "postgres://u@one,,two/db", "postgres://u@one:port/db"] {
            assert!(hosts(url).unwrap_err().contains("DATABASE_URL is not a Postgres URL"), "{url}");
        }
    }
}
