//! Where clients reach this server.

/// What the settings say of it.
#[derive(Debug, Clone, Default)]
pub struct OwnUrl {
    /// How clients reach the server, when that is known.
    pub public: Option<String>,
    /// What stands before every path.
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
