//! Metadata services: the keys and values of stock engines, the URL of an HTTP service, and the endpoints of an etcd.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

/// Port of a URL that names none.
const HTTP_PORT: u16 = 80;

/// Longest URL in bytes.
const URL_LIMIT: usize = 512;

/// Most endpoints of one etcd, and with them the length of its connection string.
pub const ENDPOINTS_LIMIT: usize = 9;

/// Longest endpoint of an etcd in bytes: a DNS name with a port.
const ENDPOINT_LIMIT: usize = 260;

/// Scheme of the connection string of an etcd.
const ETCD: &str = "etcd://";

/// Keys of the engines that share a metadata service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Keys of the engines with this `MC_METADATA_CLUSTER_ID`. Without it, or with an empty one, engines share one set.
    #[must_use]
    pub fn new(cluster: Option<&str>) -> Self {
        let prefix = match cluster {
            None | Some("") => "mooncake/".to_owned(),
            Some(cluster) if cluster.ends_with('/') => format!("mooncake/{cluster}"),
            Some(cluster) => format!("mooncake/{cluster}/"),
        };
        Self { prefix }
    }

    /// Returns the key of a segment descriptor. As in stock engines, leading slashes of the name are dropped, and a name
    /// with a slash is not put below `ram/`.
    #[must_use]
    pub fn descriptor(&self, segment: &str) -> String {
        let segment = segment.trim_start_matches('/');
        let folder = if segment.contains('/') { "" } else { "ram/" };
        format!("{}{folder}{segment}", self.prefix)
    }

    /// Returns the key of the address of an engine's handshake listener.
    #[must_use]
    pub fn rpc_meta(&self, server: &str) -> String {
        format!("{}rpc_meta/{server}", self.prefix)
    }
}

/// What curl does not encode beside letters and digits.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Encodes a key for a query as curl does: one stock server compares the encoded text.
#[must_use]
pub fn encode(key: &str) -> String {
    utf8_percent_encode(key, ENCODED).to_string()
}

/// Decodes the value of a query: each `%XX` is a byte and `+` a space. Other text is kept. The bytes need not be UTF-8.
#[must_use]
pub fn decode(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

/// Returns the address in the server name of a key of either kind; `None` if the name has a host name or no port that follows an
/// address.
#[must_use]
pub fn address_of(key: &[u8]) -> Option<IpAddr> {
    let key = core::str::from_utf8(key).ok()?;
    let name = key.rsplit('/').next()?;
    let host = match name.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None if name.parse::<IpAddr>().is_ok() => name,
        None => name.rsplit_once(':')?.0,
    };
    Some(host.parse::<IpAddr>().ok()?.to_canonical())
}

/// Where the handshake listener of an engine is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcMeta {
    /// An address or a host name; IPv6 without brackets.
    pub ip_or_host_name: String,
    /// Port of the handshake listener.
    pub rpc_port: u16,
}

impl RpcMeta {
    /// Parses a value. Unknown fields are ignored.
    ///
    /// # Errors
    /// Invalid JSON, or a missing field.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Returns the JSON: compact, without a newline.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a string and an integer always serialise to JSON")
    }
}

/// The URL of an HTTP metadata service: `http://host[:port]/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    /// An address or a host name; IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The path, with its leading slash.
    pub path: String,
    /// Host and port as written.
    pub authority: String,
}

/// Why a URL cannot be that of an HTTP metadata service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme.
    #[error("it does not begin with `http://`")]
    Scheme,
    /// No host, or an invalid one.
    #[error("`{0}` is not a host with an optional port (IPv6 in brackets)")]
    Host(String),
    /// A query, a fragment, or a character that does not belong into a URL.
    #[error(
        "the path `{0}` contains a query, a fragment or an invalid character: engines append `?key=` to it"
    )]
    Path(String),
    /// Longer than any service requires.
    #[error("it is longer than {URL_LIMIT} bytes")]
    TooLong,
    /// An endpoint of an etcd has another form.
    #[error("`{0}` is not a host with a port, such as `etcd.infra.svc:2379` (IPv6 in brackets)")]
    Endpoint(String),
    /// An etcd has no endpoint, or too many.
    #[error("an etcd has from 1 to {ENDPOINTS_LIMIT} endpoints, not {0}")]
    Endpoints(usize),
}

/// One endpoint of an etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// An address or a host name; IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Both as written.
    pub authority: String,
}

impl HostPort {
    /// Parses `host:port`. The port is required: a stock engine has no default.
    ///
    /// # Errors
    /// [`UrlError::Endpoint`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let wrong = || UrlError::Endpoint(text.to_owned());
        let short = (text.len() <= ENDPOINT_LIMIT).then_some(text);
        let (host, port) = short.and_then(split).ok_or_else(wrong)?;
        let port = port.and_then(|port| port.parse().ok());
        Ok(Self {
            host: host.to_owned(),
            port: port.filter(|port| *port > 0).ok_or_else(wrong)?,
            authority: text.to_owned(),
        })
    }
}

/// Returns the connection string of an etcd for stock engines.
#[must_use]
pub fn etcd_url(endpoints: &[String]) -> String {
    format!("{ETCD}{}", endpoints.join(","))
}

/// What engines connect to for metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceAddress {
    /// An HTTP metadata service.
    Http(ServiceUrl),
    /// The endpoints of an etcd.
    Etcd(Vec<HostPort>),
}

impl ServiceAddress {
    /// Parses a URL: `http://host[:port]/path` or `etcd://host:port[,host:port…]`.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let Some(list) = text.strip_prefix(ETCD) else {
            return ServiceUrl::parse(text).map(Self::Http);
        };
        let endpoints: Result<Vec<_>, _> = list.split(',').map(HostPort::parse).collect();
        let endpoints = endpoints?;
        if endpoints.len() > ENDPOINTS_LIMIT {
            return Err(UrlError::Endpoints(endpoints.len()));
        }
        Ok(Self::Etcd(endpoints))
    }

    /// Whether this is one of its hosts, as written.
    #[must_use]
    pub fn has_host(&self, host: &str) -> bool {
        match self {
            Self::Http(url) => url.host == host,
            Self::Etcd(endpoints) => endpoints.iter().any(|endpoint| endpoint.host == host),
        }
    }
}

impl ServiceUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.len() > URL_LIMIT {
            return Err(UrlError::TooLong);
        }
        let rest = text.strip_prefix("http://").ok_or(UrlError::Scheme)?;
        let end = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let invalid = |byte: u8| !byte.is_ascii_graphic() || matches!(byte, b'?' | b'#');
        if path.bytes().any(invalid) {
            return Err(UrlError::Path(path.to_owned()));
        }
        let wrong = || UrlError::Host(authority.to_owned());
        let (host, port) = split(authority).ok_or_else(wrong)?;
        let port = match port {
            None => HTTP_PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(wrong)?,
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            path: if path.is_empty() { "/" } else { path }.to_owned(),
            authority: authority.to_owned(),
        })
    }

    /// Returns path and query of a key.
    #[must_use]
    pub fn target(&self, key: &str) -> String {
        format!("{}?key={}", self.path, encode(key))
    }
}

/// Splits an authority into host and port; `None` if the host is invalid.
fn split(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<core::net::Ipv6Addr>().ok()?;
        return match rest {
            "" => Some((host, None)),
            rest => Some((host, Some(rest.strip_prefix(':')?))),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let ends = |host: &str| host.starts_with('-') || host.starts_with('.');
    let good = !host.is_empty() && host.bytes().all(valid) && !ends(host);
    good.then_some((host, port))
}

/// Whether the host of a URL is this machine or no single machine, which each pod takes for itself.
#[must_use]
pub fn is_local(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback() || address.is_unspecified() || address.is_multicast(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_those_that_stock_engines_write() {
        for (segment, key) in [
            ("10.0.0.1:12001", "mooncake/ram/10.0.0.1:12001"),
            ("/10.0.0.1:12001", "mooncake/ram/10.0.0.1:12001"),
            ("ram/10.0.0.1:12001", "mooncake/ram/10.0.0.1:12001"),
            ("", "mooncake/ram/"),
            ("../x", "mooncake/../x"),
        ] {
            assert_eq!(Keys::new(None).descriptor(segment), key, "{segment}");
        }
        assert_eq!(
            Keys::new(Some("")).rpc_meta("/x/y"),
            "mooncake/rpc_meta//x/y"
        );
        for cluster in ["team/kv", "team/kv/"] {
            let keys = Keys::new(Some(cluster));
            assert_eq!(
                keys.descriptor("10.0.0.1:1"),
                "mooncake/team/kv/ram/10.0.0.1:1"
            );
            assert_eq!(
                keys.rpc_meta("10.0.0.1:1"),
                "mooncake/team/kv/rpc_meta/10.0.0.1:1"
            );
        }
    }

    #[test]
    fn keys_are_encoded_as_curl_encodes_them() {
        assert_eq!(
            encode("mooncake/ram/[fd00::2]:1~_.-é "),
            "mooncake%2Fram%2F%5Bfd00%3A%3A2%5D%3A1~_.-%C3%A9%20"
        );
    }

    #[test]
    fn the_text_of_a_query_is_decoded_to_bytes() {
        for (text, bytes) in [
            ("mooncake%2Fram%2Fx", &b"mooncake/ram/x"[..]),
            ("mooncake/ram/x", b"mooncake/ram/x"),
            ("%ff%FE", b"\xff\xfe"),
            ("a+b%20c%2B", b"a b c+"),
            ("%", b"%"),
            ("%2", b"%2"),
            ("%zz%2", b"%zz%2"),
            ("", b""),
        ] {
            assert_eq!(decode(text), bytes, "{text}");
        }
    }

    #[test]
    fn the_address_in_a_key_is_that_of_its_server_name() {
        for (name, address) in [
            ("10.0.0.1:12001", Some("10.0.0.1")),
            ("10.0.0.1", Some("10.0.0.1")),
            ("[fd00::1]:12001", Some("fd00::1")),
            ("[fd00::1]", Some("fd00::1")),
            ("fd00::1", Some("fd00::1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("[::ffff:10.0.0.1]:1", Some("10.0.0.1")),
            ("vllm-0:12001", None),
            ("vllm-0", None),
            ("[fe80::1%eth0]:1", None),
            ("[fd00::1", None),
            ("", None),
        ] {
            let address = address.map(|address| address.parse().unwrap());
            for cluster in [None, Some("team/kv")] {
                let keys = Keys::new(cluster);
                let key = keys.descriptor(name);
                assert_eq!(address_of(key.as_bytes()), address, "{key}");
                let key = keys.rpc_meta(name);
                assert_eq!(address_of(key.as_bytes()), address, "{key}");
            }
        }
        assert_eq!(address_of(b"mooncake/ram/\xff10.0.0.1:1"), None);
    }

    #[test]
    fn a_stock_rpc_meta_is_encoded_to_the_same_bytes() {
        let stock = br#"{"ip_or_host_name":"127.0.0.1","rpc_port":16643}"#;
        assert_eq!(RpcMeta::parse(stock).unwrap().encode(), stock);
        for wrong in [
            &b"null"[..],
            b"{}",
            br#"{"ip_or_host_name":1,"rpc_port":1}"#,
        ] {
            assert!(RpcMeta::parse(wrong).is_err());
        }
    }

    #[test]
    fn urls_are_split_into_host_port_and_path() {
        for (text, host, port, path) in [
            (
                "http://kv-master.team.svc:8080/metadata",
                "kv-master.team.svc",
                8080,
                "/metadata",
            ),
            ("http://10.0.0.1", "10.0.0.1", 80, "/"),
            ("http://[fd00::2]:8080/a/b", "fd00::2", 8080, "/a/b"),
            ("http://[fd00::2]/", "fd00::2", 80, "/"),
        ] {
            let url = ServiceUrl::parse(text).unwrap();
            assert_eq!(
                (&*url.host, url.port, &*url.path),
                (host, port, path),
                "{text}"
            );
        }
        let url = ServiceUrl::parse("http://a:1/m").unwrap();
        assert_eq!(url.target("mooncake/ram/x"), "/m?key=mooncake%2Fram%2Fx");
    }

    #[test]
    fn urls_that_no_stock_engine_can_use_are_errors() {
        for text in [
            "https://a/m",
            "a:1/m",
            "http://",
            "http:///m",
            "http://a:0/m",
            "http://a:70000/m",
            "http://a:b/m",
            "http://user@a/m",
            "http://fd00::2/m",
            "http://[10.0.0.1]/m",
            "http://a b/m",
            "http://a/m?x=1",
            "http://a/m#x",
            "http://a/m\r\nX: y",
        ] {
            assert!(ServiceUrl::parse(text).is_err(), "{text}");
        }
        for (text, error) in [
            ("https://a/m", UrlError::Scheme),
            ("http://a:0/m", UrlError::Host("a:0".to_owned())),
            ("http://a/m?x=1", UrlError::Path("/m?x=1".to_owned())),
        ] {
            assert_eq!(ServiceAddress::parse(text), Err(error));
        }
        let url = |length: usize| format!("http://a/{}", "m".repeat(length - "http://a/".len()));
        let longest = ServiceAddress::parse(&url(URL_LIMIT)).unwrap();
        assert!(longest.has_host("a") && !longest.has_host("m"));
        assert_eq!(
            ServiceAddress::parse(&url(URL_LIMIT + 1)),
            Err(UrlError::TooLong)
        );
    }

    #[test]
    fn an_etcd_has_endpoints_with_ports() {
        let endpoints = ["etcd-0.infra.svc:2379", "10.0.0.2:2379", "[fd00::2]:2379"];
        let text = etcd_url(&endpoints.map(str::to_owned));
        let address = ServiceAddress::parse(&text).unwrap();
        let ServiceAddress::Etcd(found) = &address else {
            panic!("{address:?}");
        };
        let hosts: Vec<_> = found
            .iter()
            .map(|found| (&*found.host, found.port))
            .collect();
        assert_eq!(
            hosts,
            [
                ("etcd-0.infra.svc", 2379),
                ("10.0.0.2", 2379),
                ("fd00::2", 2379)
            ]
        );
        assert!(address.has_host("fd00::2") && !address.has_host("10.0.0.3"));
        for wrong in [
            "etcd://",
            "etcd://a",
            "etcd://a:0",
            "etcd://a:2379,",
            "etcd://a:2379;b:2379",
            "etcd://http://a:2379",
            "etcd://a:2379/x",
            "etcd://user@a:2379",
            "etcd://fd00::2:2379",
            "etcds://a:2379",
        ] {
            assert!(ServiceAddress::parse(wrong).is_err(), "{wrong}");
        }
        let many = etcd_url(&core::array::from_fn::<_, { ENDPOINTS_LIMIT + 1 }, _>(
            |_| "a:1".to_owned(),
        ));
        assert_eq!(ServiceAddress::parse(&many), Err(UrlError::Endpoints(10)));
    }

    #[test]
    fn hosts_that_each_pod_takes_for_itself_are_local() {
        for host in [
            "127.0.0.1",
            "localhost",
            "::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in ["10.0.0.1", "fd00::2", "kv-master.team.svc"] {
            assert!(!is_local(host), "{host}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_to_the_same_text(key in "\\PC{0,60}") {
            prop_assert_eq!(decode(&encode(&key)), key.as_bytes());
        }

        #[test]
        fn no_url_makes_the_parser_panic(text in "\\PC{0,60}") {
            let _ = ServiceAddress::parse(&text);
            let _ = ServiceAddress::parse(&format!("http://{text}"));
            let _ = ServiceAddress::parse(&format!("etcd://{text}"));
        }
    }
}
