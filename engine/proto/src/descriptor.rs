//! Segment descriptors: the JSON that an engine publishes about itself, with the fields and field order of
//! stock engines.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::coro_rpc::clip;

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
    #[serde(default)]
    buffers: RawBuffers,
    name: Option<String>,
    protocol: Option<String>,
    #[serde(default)]
    tcp_data_host: Lenient,
    tcp_data_port: Option<u16>,
    #[serde(default)]
    tcp_pipeline_depth: Lenient,
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

/// The buffers up to the first invalid one. The elements of what follows it are not kept: an empty one takes more memory
/// than it has bytes.
#[derive(Default)]
struct RawBuffers {
    valid: Vec<Buffer>,
    invalid: bool,
}

impl<'de> Deserialize<'de> for RawBuffers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = RawBuffers;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a list of buffers")
            }

            fn visit_none<E>(self) -> Result<RawBuffers, E> {
                Ok(RawBuffers::default())
            }

            fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<RawBuffers, D::Error> {
                from.deserialize_seq(self)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawBuffers, A::Error> {
                let mut found = RawBuffers::default();
                while let Some(buffer) = list.next_element::<RawBuffer>()? {
                    match (buffer.addr, buffer.length, buffer.name) {
                        _ if found.invalid => {}
                        (Some(addr @ 1..), Some(length @ 1..), Some(name)) if !name.is_empty() => {
                            found.valid.push(Buffer { addr, length, name });
                        }
                        _ => found.invalid = true,
                    }
                }
                Ok(found)
            }
        }
        from.deserialize_option(List)
    }
}

/// A field of any type. Values of other types than these count as missing, and are not kept.
#[derive(Default)]
enum Lenient {
    #[default]
    Missing,
    Text(String),
    Number(u64),
}

impl<'de> Deserialize<'de> for Lenient {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Lenient;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Lenient, E> {
        Ok(Lenient::Missing)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Lenient, E> {
        Ok(Lenient::Missing)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Lenient, E> {
        Ok(Lenient::Missing)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Lenient, E> {
        Ok(Lenient::Number(number))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Lenient, E> {
        Ok(Lenient::Missing)
    }

    fn visit_str<E>(self, text: &str) -> Result<Lenient, E> {
        Ok(Lenient::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Lenient, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Lenient::Missing)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Lenient, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Lenient::Missing)
    }
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
            return Err(DescriptorError::Protocol(clip(protocol)));
        }
        let buffers = raw.buffers.valid;
        if raw.buffers.invalid {
            let index = buffers.len();
            return Err(DescriptorError::Buffer { index });
        }
        let host = match raw.tcp_data_host {
            Lenient::Text(host) => host,
            Lenient::Number(_) | Lenient::Missing => String::new(),
        };
        let depth = match raw.tcp_pipeline_depth {
            Lenient::Number(depth) => depth,
            Lenient::Text(_) | Lenient::Missing => 0,
        };
        Ok(Self {
            buffers,
            name: raw.name.unwrap_or_default(),
            protocol,
            rdma_server_name: raw.rdma_server_name.unwrap_or_default(),
            tcp_data_host: host,
            tcp_data_port: raw.tcp_data_port.unwrap_or(0),
            tcp_pipeline_depth: u32::try_from(depth).unwrap_or(u32::MAX),
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
    fn a_nested_value_of_a_lenient_field_is_ignored() {
        let many = "{\"\":0},".repeat(150_000);
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        for value in [
            format!("[{many}0]"),
            format!(r#"{{"a":[{many}0],"b":{deep}}}"#),
            deep,
            "[[null,1.5,-1,true]]".into(),
            "-1".into(),
            "1.5".into(),
            "true".into(),
        ] {
            let text = format!(
                r#"{{"protocol":"tcp","tcp_data_host":{value},"tcp_pipeline_depth":{value},"tcp_data_port":7}}"#
            );
            let parsed = Descriptor::parse(text.as_bytes()).unwrap();
            assert_eq!(parsed.tcp_data_host, "");
            assert_eq!((parsed.tcp_pipeline_depth, parsed.tcp_data_port), (0, 7));
        }
        let broken = r#"{"protocol":"tcp","tcp_data_host":[{"a":]}"#;
        assert!(Descriptor::parse(broken.as_bytes()).is_err());
    }

    #[test]
    fn the_first_invalid_buffer_is_named_and_missing_ones_are_none() {
        let good = r#"{"addr":1,"length":1,"name":"a"}"#;
        let text = format!(r#"{{"protocol":"tcp","buffers":[{good},{good},{{}},{good},{{}}]}}"#);
        let error = Descriptor::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(error, DescriptorError::Buffer { index: 2 }));
        for text in [
            r#"{"protocol":"tcp"}"#,
            r#"{"protocol":"tcp","buffers":null}"#,
        ] {
            let parsed = Descriptor::parse(text.as_bytes()).unwrap();
            assert_eq!(parsed.buffers, []);
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
            r#"{"protocol":"tcp"} trailing"#,
        ] {
            let error = Descriptor::parse(text.as_bytes()).unwrap_err();
            assert!(matches!(error, DescriptorError::Json(_)), "{text}: {error}");
        }
        for buffer in [
            r#"{"addr":0,"length":1,"name":"a"}"#,
            r#"{"addr":1,"length":0,"name":"a"}"#,
            r#"{"addr":1,"length":1}"#,
        ] {
            let text = format!(r#"{{"protocol":"tcp","buffers":[{buffer}]}}"#);
            let error = Descriptor::parse(text.as_bytes()).unwrap_err();
            assert!(
                matches!(error, DescriptorError::Buffer { index: 0 }),
                "{text}: {error}"
            );
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
