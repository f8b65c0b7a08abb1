//! The query parameters of lists and logs.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, SecondsFormat};

use super::Refusal;
use crate::host::journal::{Level, Line};
use crate::host::registry::{Cursor, Query};
use crate::wire::control::{State as Life, decode_metadata};

pub(super) fn parse_query(text: &str) -> Result<Query, Refusal> {
    let mut query = Query {
        metadata: Vec::new(),
        state: None,
        template: None,
        started_after: None,
        ascending: false,
        limit: 100,
        after: None,
    };
    let bad = |what: &str, value: &str| Refusal::Invalid(format!("{what} {value:?} is not understood"));
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        match name.as_ref() {
            "metadata" => query.metadata = decode_metadata(&value).into_iter().collect(),
            "state" => query.state = parse_states(&value).ok_or_else(|| bad("state", &value))?,
            "template" => query.template = Some(value.into_owned()),
            "startedAfter" => {
                let at = DateTime::parse_from_rfc3339(&value).map_err(|_| bad("startedAfter", &value))?;
                query.started_after = Some(at.to_utc());
            }
            "order" if value == "asc" || value == "desc" => query.ascending = value == "asc",
            "order" => return Err(bad("order", &value)),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=100).contains(limit));
                query.limit = limit.ok_or_else(|| bad("limit", &value))?;
            }
            "nextToken" if value.is_empty() => {}
            "nextToken" => {
                query.after = Some(read_cursor(&value).ok_or_else(|| bad("nextToken", &value))?);
            }
            _ => {}
        }
    }
    Ok(query)
}

/// A comma list; both states are the same as none.
fn parse_states(value: &str) -> Option<Option<Life>> {
    let mut found = (false, false);
    for state in value.split(',').filter(|state| !state.is_empty()) {
        match state {
            "running" => found.0 = true,
            "paused" => found.1 = true,
            _ => return None,
        }
    }
    Some(match found {
        (true, false) => Some(Life::Running),
        (false, true) => Some(Life::Paused),
        _ => None,
    })
}

/// Opaque to clients. The time is whole, so that no sandbox falls between two pages.
pub(super) fn write_cursor((started_at, id): &Cursor) -> String {
    let started_at = started_at.to_rfc3339_opts(SecondsFormat::Nanos, true);
    URL_SAFE_NO_PAD.encode(format!("{started_at}__{id}"))
}

pub(super) fn read_cursor(token: &str) -> Option<Cursor> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (started_at, id) = text.split_once("__")?;
    Some((DateTime::parse_from_rfc3339(started_at).ok()?.to_utc(), id.to_owned()))
}

/// Which lines of a sandbox's life are asked for.
pub(super) struct LogQuery {
    /// Nothing before this time; nothing after it when the newest come first. In milliseconds since 1970.
    from: Option<i64>,
    pub(super) newest_first: bool,
    level: Level,
    search: String,
    pub(super) limit: usize,
}

impl LogQuery {
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        const MOST: usize = 1000;
        let mut query =
            Self { from: None, newest_first: false, level: Level::Debug, search: String::new(), limit: MOST };
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let bad = || Refusal::Invalid(format!("{name} {value:?} is not understood"));
            match name.as_ref() {
                "start" | "cursor" => query.from = Some(value.parse().map_err(|_| bad())?),
                "direction" if value == "forward" || value == "backward" => {
                    query.newest_first = value == "backward";
                }
                "direction" => return Err(bad()),
                "level" => {
                    let level = Level::ALL.into_iter().find(|level| level.name() == value);
                    query.level = level.ok_or_else(bad)?;
                }
                "search" => query.search = value.into_owned(),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| *limit <= MOST);
                    query.limit = limit.ok_or_else(bad)?;
                }
                _ => {}
            }
        }
        Ok(query)
    }

    pub(super) fn wants(&self, line: &Line) -> bool {
        let at = line.at.timestamp_millis();
        self.from.is_none_or(|from| if self.newest_first { at <= from } else { at >= from })
            && line.level >= self.level
            && line.text.contains(&self.search)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_filter_is_decoded_as_the_official_clients_encode_it() {
        // {"a b": "c&d"}, recorded from the Python and the JavaScript client.
        let query = parse_query("metadata=a%252520b%3Dc%252526d&state=running%2Cpaused&limit=5").unwrap();
        assert_eq!(query.metadata, [("a b".to_owned(), "c&d".to_owned())]);
        assert_eq!((query.state, query.limit, query.ascending), (None, 5, false));
        let two = parse_query("metadata=user%3D1%26x%3D%25C3%25A9").unwrap();
        assert_eq!(two.metadata, [("user".into(), "1".into()), ("x".into(), "é".into())]);
    }

    #[test]
    fn a_query_that_is_not_understood_is_refused_by_name() {
        for (text, what) in [
            ("state=dead", "state"),
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=x", "limit"),
            ("order=up", "order"),
            ("nextToken=!!", "nextToken"),
            ("nextToken=YQ", "nextToken"),
            ("startedAfter=yesterday", "startedAfter"),
        ] {
            let refusal = parse_query(text).unwrap_err().to_string();
            assert!(refusal.starts_with(what), "{refusal}");
        }
        assert!(parse_query("unknown=1&&nextToken=").is_ok());
    }

    #[test]
    fn a_page_token_comes_back_as_it_was_to_the_nanosecond() {
        let cursor = (DateTime::from_timestamp(1_700_000_000, 123_456_789).unwrap(), "iabc".to_owned());
        assert_eq!(read_cursor(&write_cursor(&cursor)), Some(cursor));
    }
}
