//! Where clients reach this server.

/// Its settings.
#[derive(Debug, Clone, Default)]
pub struct OwnUrl {
    /// How clients reach the server, when that is known.
    pub public: Option<String>,
    /// The prefix of every path.
    pub base_path: String,
}

impl OwnUrl {
    /// The address of a path (with its slash) for a client that named this host.
    pub fn of(&self, host: Option<&str>, path: &str) -> Option<String> {
        match (&self.public, host) {
            (Some(url), _) => Some(format!("{}{path}", url.trim_end_matches('/'))),
            (None, Some(host)) => Some(format!("http://{host}{}{path}", self.base_path)),
            (None, None) => None,
        }
    }
}
