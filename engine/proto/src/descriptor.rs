//! Segment descriptors: the JSON that an engine publishes about itself, with the fields and field order of
//! stock engines.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A buffer that peers may access.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Buffer {
    /// Wire address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u64,
    /// For TCP the server name; stock readers require it.
    pub name: String,
}

/// A TCP segment descriptor. Fields are sorted by name, as in stock engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Descriptor {
    /// The buffers; may be empty.
    pub buffers: Vec<Buffer>,
    /// Server name.
    pub name: String,
    /// The transport: `tcp`.
    pub protocol: String,
    /// The name for RDMA paths; empty for TCP.
    pub rdma_server_name: String,
    /// Host of the data listener; empty means the host of the server name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tcp_data_host: String,
    /// Port of the data listener.
    pub tcp_data_port: u16,
    /// Most requests that an initiator may send ahead of their answers on one data connection. Stock engines neither
    /// publish nor read it; 0 means that it is not published, and one request at a time.
    #[serde(skip_serializing_if = "is_zero")]
    pub tcp_pipeline_depth: u32,
    /// Highest data protocol that the engine serves.
    pub tcp_proto_version: u32,
    /// Wall clock of publishing, for display: `YYYY-MM-DD HH:MM:SS.ffffff`.
    pub timestamp: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(depth: &u32) -> bool {
    *depth == 0
}

/// Why a descriptor cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Not JSON, or a field of the wrong type.
    #[error("cannot parse the segment descriptor: {0}")]
    Json(#[from] serde_json::Error),
    /// A buffer that stock readers reject too.
    #[error("buffer {index} of the segment descriptor has no name, address or length")]
    Buffer {
        /// Index in `buffers`.
        index: usize,
    },
    /// The peer uses another transport.
    #[error("the peer uses transport `{0}`, not `tcp`")]
    Protocol(String),
}

/// A descriptor as received. Any field may be missing or null, which stock engines read as zero.
#[derive(Deserialize)]
struct Raw {
    buffers: Option<Vec<RawBuffer>>,
    name: Option<String>,
    protocol: Option<String>,
    /// Any type; anything but a string counts as missing.
    tcp_data_host: Option<serde_json::Value>,
    tcp_data_port: Option<u16>,
    /// Any type; anything but a number counts as missing.
    tcp_pipeline_depth: Option<serde_json::Value>,
    tcp_proto_version: Option<u32>,
    rdma_server_name: Option<String>,
    timestamp: Option<String>,
}

#[derive(Deserialize)]
struct RawBuffer {
    addr: Option<u64>,
    length: Option<u64>,
    name: Option<String>,
}

impl Descriptor {
    /// Parses the descriptor of a TCP engine. Unknown fields are ignored.
    ///
    /// # Errors
    /// [`DescriptorError::Json`] for invalid JSON or wrong types; [`DescriptorError::Protocol`] for another
    /// transport; [`DescriptorError::Buffer`] for a buffer without name, address or length.
    pub fn parse(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let raw: Raw = serde_json::from_slice(bytes)?;
        let protocol = raw.protocol.unwrap_or_default();
        if protocol != "tcp" {
            return Err(DescriptorError::Protocol(protocol));
        }
        let mut buffers = Vec::new();
        for (index, buffer) in raw.buffers.unwrap_or_default().into_iter().enumerate() {
            match (buffer.addr, buffer.length, buffer.name) {
                (Some(addr @ 1..), Some(length @ 1..), Some(name)) if !name.is_empty() => {
                    buffers.push(Buffer { addr, length, name });
                }
                _ => return Err(DescriptorError::Buffer { index }),
            }
        }
        let host = match raw.tcp_data_host {
            Some(serde_json::Value::String(host)) => host,
            Some(_) | None => String::new(),
        };
        let depth = raw.tcp_pipeline_depth.and_then(|depth| depth.as_u64());
        Ok(Self {
            buffers,
            name: raw.name.unwrap_or_default(),
            protocol,
            rdma_server_name: raw.rdma_server_name.unwrap_or_default(),
            tcp_data_host: host,
            tcp_data_port: raw.tcp_data_port.unwrap_or(0),
            tcp_pipeline_depth: depth.map_or(0, |depth| u32::try_from(depth).unwrap_or(u32::MAX)),
            tcp_proto_version: raw.tcp_proto_version.unwrap_or(1),
            timestamp: raw.timestamp.unwrap_or_default(),
        })
    }

    /// Returns the JSON as sent over the handshake port: compact, with a newline.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut text =
            serde_json::to_vec(self).expect("strings and integers always serialise to JSON");
        text.push(b'\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use proptest::prelude::*;

    /// Captured from a stock engine.
    const STOCK: &str = r#"{"buffers":[{"addr":94219822298688,"length":4096,"name":"127.0.0.1:16247"}],"name":"127.0.0.1:16247","protocol":"tcp","rdma_server_name":"","tcp_data_host":"127.0.0.1","tcp_data_port":15664,"tcp_proto_version":2,"timestamp":"2026-11-21 08:21:44.743367"}"#;

    #[test]
    fn a_stock_descriptor_is_encoded_to_the_same_bytes() {
        let parsed = Descriptor::parse(STOCK.as_bytes()).unwrap();
        assert_eq!(parsed.tcp_data_port, 15664);
        assert_eq!(parsed.encode(), [STOCK.as_bytes(), b"\n"].concat());
    }

    #[test]
    fn missing_null_and_unknown_fields_are_accepted() {
        let text = br#"{"protocol":"tcp","name":null,"tcp_caps":[1],"tcp_data_host":7,"x":{}}"#;
        let parsed = Descriptor::parse(text).unwrap();
        assert_eq!(
            (parsed.tcp_proto_version, parsed.tcp_data_host.as_str()),
            (1, "")
        );
        assert!(
            !String::from_utf8(parsed.encode())
                .unwrap()
                .contains("tcp_data_host")
        );
    }

    #[test]
    fn a_pipeline_depth_is_read_back_and_any_other_value_means_none() {
        let depth = |text: &str| {
            let text = STOCK.replace(
                r#""tcp_proto"#,
                &format!(r#""tcp_pipeline_depth":{text},"tcp_proto"#),
            );
            let parsed = Descriptor::parse(text.as_bytes()).unwrap();
            let encoded = String::from_utf8(parsed.encode()).unwrap();
            let published = encoded.contains("tcp_pipeline_depth");
            assert_eq!(published, parsed.tcp_pipeline_depth > 0, "{encoded}");
            assert!(!published || encoded.trim_end() == text || text.contains("99999"));
            parsed.tcp_pipeline_depth
        };
        assert_eq!(depth("16"), 16);
        assert_eq!(depth("99999999999"), u32::MAX);
        for text in ["0", "-1", "1.5", "null", "\"16\"", "[16]", "{}"] {
            assert_eq!(depth(text), 0, "{text}");
        }
    }

    #[test]
    fn wrong_types_and_invalid_buffers_are_errors() {
        for text in [
            r#"[]"#,
            r#"{"protocol":["tcp"]}"#,
            r#"{"protocol":"tcp","tcp_data_port":"15664"}"#,
            r#"{"protocol":"tcp","tcp_data_port":70000}"#,
            r#"{"protocol":"tcp","buffers":{}}"#,
            r#"{"protocol":"tcp","buffers":[{"addr":-1,"length":1,"name":"a"}]}"#,
            r#"{"protocol":"tcp","buffers":[{"addr":0,"length":1,"name":"a"}]}"#,
            r#"{"protocol":"tcp","buffers":[{"addr":1,"length":0,"name":"a"}]}"#,
            r#"{"protocol":"tcp","buffers":[{"addr":1,"length":1}]}"#,
            r#"{"protocol":"tcp"} trailing"#,
        ] {
            assert!(Descriptor::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_error_names_another_transport() {
        let error = Descriptor::parse(br#"{"protocol":"rdma"}"#).unwrap_err();
        assert!(error.to_string().contains("`rdma`"), "{error}");
    }

    proptest! {
        #[test]
        fn no_input_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Descriptor::parse(&bytes);
        }
    }
}
