//! Server names: the host and port of a handshake listener, in the format of stock engines.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::net::Ipv6Addr;

/// The handshake port of a name without a port.
pub const DEFAULT_PORT: u16 = 12001;

/// A host and the port of its handshake listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerName {
    /// An address or a host name; IPv6 without brackets, its scope (`%eth0`) kept.
    pub host: String,
    /// The handshake port.
    pub port: u16,
}

impl ServerName {
    /// Parses a server name. A missing or invalid port becomes [`DEFAULT_PORT`], as in stock engines.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if let Some((host, rest)) = bracketed(text) {
            return Self::new(host, rest.strip_prefix(':'));
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Self::new(text, None);
        }
        match text.rsplit_once(':') {
            Some((host, port)) => Self::new(host, Some(port)),
            None => Self::new(text, None),
        }
        .or_scoped(text)
    }

    fn new(host: &str, port: Option<&str>) -> Self {
        let port = port
            .and_then(|port| port.parse().ok())
            .filter(|port| *port != 0);
        Self {
            host: host.to_owned(),
            port: port.unwrap_or(DEFAULT_PORT),
        }
    }

    /// Handles `v6%scope` without a port: the last colon belongs to the address.
    fn or_scoped(self, text: &str) -> Self {
        match text.split_once('%') {
            Some((address, scope))
                if address.parse::<Ipv6Addr>().is_ok() && !scope.contains(':') =>
            {
                Self::new(text, None)
            }
            _ => self,
        }
    }
}

/// Splits a bracketed IPv6 literal from the rest of the text.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let address = inside
        .split_once('%')
        .map_or(inside, |(address, _)| address);
    address.parse::<Ipv6Addr>().ok()?;
    Some((inside, rest))
}

impl fmt::Display for ServerName {
    /// Writes IPv6 in brackets, as in a published P2P server name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_parse_as_stock_engines_parse_them() {
        for (text, host, port) in [
            ("127.0.0.1:15134", "127.0.0.1", 15134),
            ("127.0.0.1", "127.0.0.1", 12001),
            ("node-1.example:7", "node-1.example", 7),
            ("host:", "host", 12001),
            ("host:banana", "host", 12001),
            ("host:70000", "host", 12001),
            ("[::1]:15029", "::1", 15029),
            ("[::1]", "::1", 12001),
            ("[fe80::1%eth0]:16128", "fe80::1%eth0", 16128),
            ("fe80::1%eth0:16128", "fe80::1%eth0", 16128),
            ("fe80::1%eth0", "fe80::1%eth0", 12001),
            ("::1", "::1", 12001),
            ("::1:16408", "::1", 16408),
            ("", "", 12001),
        ] {
            let parsed = ServerName::parse(text);
            assert_eq!((parsed.host.as_str(), parsed.port), (host, port), "{text}");
        }
    }

    #[test]
    fn names_are_written_with_brackets_where_needed() {
        for name in ["10.0.0.1:12001", "[fd00::2]:12001", "[fe80::1%eth0]:16128"] {
            assert_eq!(ServerName::parse(name).to_string(), name);
        }
    }
}
