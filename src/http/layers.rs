//! Checks before every route: a panic is answered, Host and Origin are checked against DNS rebinding, and
//! browsers of named origins are let in.
//!
//! DNS rebinding needs a *name*: a page that a browser loaded from `evil.example` turns that name to this machine and
//! may then read the answers. So the Host must be a name of this server, or the very address that the
//! connection came in on, which no page can be loaded from but ours.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};

/// The address that a connection came in on.
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress(pub SocketAddr);

/// The address that a connection came from.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// Which names this server goes by, and which pages may talk to it.
#[derive(Debug, Clone, Default)]
pub struct Places {
    hosts: BTreeSet<String>,
    origins: BTreeSet<String>,
}

impl Places {
    /// Loopback names are always among the hosts. Origins are `scheme://host[:port]`.
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let mut all: BTreeSet<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        all.extend(hosts.iter().map(|host| host.trim().to_ascii_lowercase()));
        let origins =
            origins.iter().map(|origin| origin.trim().trim_end_matches('/').to_ascii_lowercase()).collect();
        Self { hosts: all, origins }
    }

    fn knows_host(&self, authority: &Authority, local: Option<IpAddr>) -> bool {
        let host = authority.host().trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
        let by_name =
            self.hosts.contains(&host) || self.hosts.contains(&authority.as_str().to_ascii_lowercase());
        let by_address = match (host.parse::<IpAddr>(), local) {
            (Ok(named), Some(local)) => named.to_canonical() == local.to_canonical(),
            _ => false,
        };
        by_name || by_address
    }

    /// Whether a page of this origin may talk to us: a listed one, or one that we served ourselves.
    fn knows_origin(&self, origin: &str, host: &Authority) -> bool {
        if self.origins.contains(origin) {
            return true;
        }
        let own = origin.split_once("://").map(|(_, authority)| authority);
        own.is_some_and(|own| own.eq_ignore_ascii_case(host.as_str()))
    }
}

/// The host that a request names: its `Host`, or what HTTP/2 and an absolute target have instead of it. Two that differ
/// are none.
pub(super) fn host_of(headers: &HeaderMap, uri: &Uri) -> Option<Authority> {
    let mut named = headers.get_all(header::HOST).iter();
    let host = match (named.next(), named.next()) {
        (Some(host), None) => Some(host.to_str().ok()?.parse::<Authority>().ok()?),
        (Some(_), Some(_)) => return None,
        (None, _) => None,
    };
    match (host, uri.authority()) {
        (Some(host), Some(target)) => (host == *target).then_some(host),
        (host, target) => host.or_else(|| target.cloned()),
    }
}

/// Checks Host and Origin; answers preflights of listed origins.
pub async fn check_place(State(places): State<Arc<Places>>, request: Request, next: Next) -> Response {
    let local = request.extensions().get::<LocalAddress>().map(|local| local.0.ip());
    let Some(host) = host_of(request.headers(), request.uri()) else {
        return (
            StatusCode::BAD_REQUEST,
            "the Host header is missing, cannot be read, or differs from the target",
        )
            .into_response();
    };
    if !places.knows_host(&host, local) {
        tracing::warn!("a request for an unknown host name was refused");
        let text = "this server does not accept that host name; the setting `http.allowed_hosts` adds names";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let mut origins = request.headers().get_all(header::ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (None, _) => None,
        (Some(origin), None) => Some(origin.clone()),
        (Some(_), Some(_)) => return (StatusCode::FORBIDDEN, "more than one Origin").into_response(),
    };
    let Some(origin) = origin else { return next.run(request).await };
    let text = origin.to_str().unwrap_or_default().to_ascii_lowercase();
    if !places.knows_origin(&text, &host) {
        tracing::warn!("a request from a page of another origin was refused");
        let text =
            "pages of that origin may not use this server; the setting `http.allowed_origins` adds origins";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let listed = places.origins.contains(&text);
    if request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    {
        return if listed { preflight(&origin) } else { StatusCode::FORBIDDEN.into_response() };
    }
    let mut response = next.run(request).await;
    if listed {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        let exposed = HeaderValue::from_static(
            "mcp-session-id, mcp-protocol-version, www-authenticate, retry-after, etag",
        );
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}

fn preflight(origin: &HeaderValue) -> Response {
    const ALLOWED: &str = "authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, \
        mcp-method, mcp-name, if-match, x-tenant-id, x-conversation-id, x-path-id, traceparent, tracestate";
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    let methods = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    response
}

/// Answers a panic; it ends nothing else. Puts headers on every answer that keep browsers from guessing.
pub async fn catch_panic(request: Request, next: Next) -> Response {
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!("a request handler panicked; the request is answered");
            (StatusCode::INTERNAL_SERVER_ERROR, "the server failed; its log says more").into_response()
        }
    };
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places::new(&["mcp.example.com".into(), "proxy:8443".into()], &["https://app.example.com".into()])
    }

    fn host(text: &str, local: Option<&str>) -> bool {
        places().knows_host(&text.parse().unwrap(), local.map(|ip| ip.parse().unwrap()))
    }

    #[test]
    fn known_names_and_the_own_address_are_hosts_and_nothing_else_is() {
        for good in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "mcp.example.com:443", "proxy:8443"]
        {
            assert!(host(good, None), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "mcp.example.com.evil",
            "127.0.0.2",
            "10.0.0.7",
            "proxy:1",
        ] {
            assert!(!host(bad, Some("10.0.0.8")), "{bad}");
        }
        assert!(host("10.0.0.8:8080", Some("10.0.0.8")));
        assert!(host("10.0.0.8", Some("::ffff:10.0.0.8")), "an address in IPv6 clothes");
        assert!(!host("10.0.0.8", None));
    }

    #[test]
    fn an_origin_is_listed_or_our_own_page() {
        let own: Authority = "localhost:8080".parse().unwrap();
        assert!(places().knows_origin("http://localhost:8080", &own));
        assert!(places().knows_origin("https://app.example.com", &own));
        for bad in
            ["null", "http://localhost:3000", "http://localhost", "https://app.example.com.evil", "", "://"]
        {
            assert!(!places().knows_origin(bad, &own), "{bad}");
        }
    }

    #[test]
    fn two_host_headers_count_as_no_host() {
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(host_of(&headers, &Uri::default()).is_some());
        headers.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert!(host_of(&headers, &Uri::default()).is_none());
    }
}
