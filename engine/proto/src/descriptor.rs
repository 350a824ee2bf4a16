//! Segment descriptors: what an engine says about itself, as JSON with the fields and the order
//! of stock engines.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A buffer that peers may address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Buffer {
    /// Wire address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// For TCP the server name; stock readers want it to be there.
    pub name: String,
}

/// A TCP segment descriptor. Fields stand in the order of stock engines, which sort them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Descriptor {
    /// The buffers, possibly none.
    pub buffers: Vec<Buffer>,
    /// Server name.
    pub name: String,
    /// `tcp`, or another engine's transport.
    pub protocol: String,
    /// The name for RDMA paths; empty for TCP.
    pub rdma_server_name: String,
    /// Host of the data listener; empty means the host of the server name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tcp_data_host: String,
    /// Port of the data listener.
    pub tcp_data_port: u16,
    /// Highest data protocol that the engine serves.
    pub tcp_proto_version: u32,
    /// Wall clock when it was published, for people: `YYYY-MM-DD HH:MM:SS.ffffff`.
    pub timestamp: String,
}

/// Why a descriptor is of no use.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// No JSON, or a field of the wrong type.
    #[error("the segment descriptor does not parse: {0}")]
    Json(#[from] serde_json::Error),
    /// A buffer that stock readers refuse too.
    #[error("buffer {index} of the segment descriptor has no name, address or length")]
    Buffer {
        /// Position in `buffers`.
        index: usize,
    },
    /// The engine at the other end runs another transport.
    #[error("the peer's engine runs transport `{0}`, not tcp")]
    Protocol(String),
}

/// As read: everything may be missing or null, which stock engines read as zero.
#[derive(Deserialize)]
struct Raw {
    buffers: Option<Vec<RawBuffer>>,
    name: Option<String>,
    protocol: Option<String>,
    /// Any type: what is no string counts as absent.
    tcp_data_host: Option<serde_json::Value>,
    tcp_data_port: Option<u16>,
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
    /// Reads the descriptor of a TCP engine; fields of other versions are ignored.
    ///
    /// # Errors
    /// Broken JSON, wrong types, another transport, or a buffer that stock readers refuse.
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
        Ok(Self {
            buffers,
            name: raw.name.unwrap_or_default(),
            protocol,
            rdma_server_name: raw.rdma_server_name.unwrap_or_default(),
            tcp_data_host: host,
            tcp_data_port: raw.tcp_data_port.unwrap_or(0),
            tcp_proto_version: raw.tcp_proto_version.unwrap_or(1),
            timestamp: raw.timestamp.unwrap_or_default(),
        })
    }

    /// The JSON text as stock engines send it over the handshake port: compact, with a newline.
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
    use alloc::string::ToString;
    use proptest::prelude::*;

    /// Captured from a stock engine.
    const STOCK: &str = r#"{"buffers":[{"addr":94219822298688,"length":4096,"name":"127.0.0.1:16247"}],"name":"127.0.0.1:16247","protocol":"tcp","rdma_server_name":"","tcp_data_host":"127.0.0.1","tcp_data_port":15664,"tcp_proto_version":2,"timestamp":"2026-11-21 08:21:44.743367"}"#;

    #[test]
    fn a_stock_descriptor_reads_and_writes_to_the_same_bytes() {
        let parsed = Descriptor::parse(STOCK.as_bytes()).unwrap();
        assert_eq!(parsed.tcp_data_port, 15664);
        assert_eq!(parsed.encode(), [STOCK.as_bytes(), b"\n"].concat());
    }

    #[test]
    fn missing_null_and_unknown_fields_do_no_harm() {
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
    fn wrong_types_and_useless_buffers_are_errors() {
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
    fn another_transport_is_named() {
        let error = Descriptor::parse(br#"{"protocol":"rdma"}"#).unwrap_err();
        assert!(error.to_string().contains("`rdma`"), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Descriptor::parse(&bytes);
        }
    }
}
