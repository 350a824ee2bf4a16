//! RDMA as stock engines publish and connect it: segment descriptors, NIC paths, GIDs, and the bodies of the
//! rendezvous at the handshake port.

mod agreement;

pub use agreement::{Disagreement, Link, Side, agree};

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use crate::coro_rpc::clip;
use crate::handshake::{self, FrameError, Kind};

/// The transport's name in descriptors.
pub const PROTOCOL: &str = "rdma";

/// A device of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// GID of its port, as text ([`gid_text`]).
    pub gid: String,
    /// LID of its port; 0 for Ethernet.
    #[serde(default)]
    pub lid: u16,
    /// For example `mlx5_0`.
    pub name: String,
}

/// A buffer that peers may access over each device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Wire address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u64,
    /// Of no meaning to readers, who check the number of entries.
    #[serde(default)]
    pub lkey: Vec<u32>,
    /// Location of the memory, a key of the priority matrix.
    pub name: String,
    /// One key for each device, in the order of the devices. Empty: memory that only its owner uses.
    #[serde(default)]
    pub rkey: Vec<u32>,
}

/// An RDMA segment descriptor. Fields are sorted by name, as in stock engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The buffers; may be empty.
    #[serde(default)]
    pub buffers: Vec<Buffer>,
    /// The devices that serve each buffer.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Server name.
    #[serde(default)]
    pub name: String,
    /// For each location the preferred devices, then the others.
    #[serde(default)]
    pub priority_matrix: BTreeMap<String, Vec<Vec<String>>>,
    /// [`PROTOCOL`].
    pub protocol: String,
    /// The name in NIC paths, if not the server name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rdma_server_name: String,
    /// 0: there is no data listener.
    #[serde(default)]
    pub tcp_data_port: u16,
    /// 1.
    #[serde(default)]
    pub tcp_proto_version: u32,
    /// Wall clock of publishing, for display.
    #[serde(default)]
    pub timestamp: String,
}

/// Why a descriptor cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Not JSON, or a field of the wrong type.
    #[error("cannot parse the segment descriptor: {0}")]
    Json(#[from] serde_json::Error),
    /// The peer uses another transport.
    #[error("the peer uses transport `{0}`, not `rdma`")]
    Protocol(String),
    /// A buffer that stock readers reject too.
    #[error(
        "buffer {index} of the segment descriptor has no address or length, or not one key for each device"
    )]
    Buffer {
        /// Index in `buffers`.
        index: usize,
    },
}

impl Descriptor {
    /// Parses the descriptor of an RDMA engine. Unknown fields are ignored, and so are buffers without keys for peers, which
    /// stock engines publish too.
    ///
    /// # Errors
    /// [`DescriptorError::Json`] for invalid JSON or wrong types; [`DescriptorError::Protocol`] for another transport;
    /// [`DescriptorError::Buffer`] for a buffer that peers cannot access.
    pub fn parse(bytes: &[u8]) -> Result<Self, DescriptorError> {
        #[derive(Deserialize)]
        struct Named {
            protocol: Option<String>,
        }
        let named: Named = serde_json::from_slice(bytes)?;
        let protocol = named.protocol.unwrap_or_default();
        if protocol != PROTOCOL {
            return Err(DescriptorError::Protocol(clip(protocol)));
        }
        let mut found: Self = serde_json::from_slice(bytes)?;
        for (index, buffer) in found.buffers.iter().enumerate() {
            let keyed = buffer.rkey.is_empty() || buffer.rkey.len() == found.devices.len();
            if buffer.addr == 0 || buffer.length == 0 || !keyed {
                return Err(DescriptorError::Buffer { index });
            }
        }
        found.buffers.retain(|buffer| !buffer.rkey.is_empty());
        Ok(found)
    }

    /// Returns the JSON as sent over the handshake port: compact, with a newline.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        handshake::line(self)
    }

    /// Returns the name in the NIC paths of the engine.
    #[must_use]
    pub fn server(&self) -> &str {
        match self.rdma_server_name.as_str() {
            "" => &self.name,
            server => server,
        }
    }
}

/// The body of a rendezvous: request, reply and acknowledgement. Missing fields are read as empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rendezvous {
    /// GID of the sender.
    pub local_gid: String,
    /// LID of the sender.
    pub local_lid: u16,
    /// NIC path of the sender.
    pub local_nic_path: String,
    /// MTU of the sender's port in bytes; of our engines only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    /// Of other transports.
    pub payload: String,
    /// NIC path of the receiver.
    pub peer_nic_path: String,
    /// Numbers of the sender's queue pairs, each for the receiver's one with the same index.
    pub qp_num: Vec<u32>,
    /// Present: the sender knows acknowledgements. `true`: this is one, and the sender's queue pairs are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ack: Option<bool>,
    /// In a reply the reason of a refusal; empty for success.
    pub reply_msg: String,
}

impl Rendezvous {
    /// Parses a body.
    ///
    /// # Errors
    /// [`FrameError::Json`] for invalid JSON or a field of the wrong type.
    pub fn parse(body: &[u8]) -> Result<Self, FrameError> {
        Ok(serde_json::from_slice::<Option<Self>>(body)?.unwrap_or_default())
    }

    /// Encodes the frame; `typed` is false for peers of releases without frame types.
    #[must_use]
    pub fn frame(&self, typed: bool) -> Vec<u8> {
        handshake::encode(typed.then_some(Kind::Connection), &handshake::line(self))
    }
}

/// Returns the NIC path of a device.
#[must_use]
pub fn nic_path(server: &str, device: &str) -> String {
    format!("{server}@{device}")
}

/// Splits a NIC path into server name and device.
#[must_use]
pub fn split_nic_path(path: &str) -> Option<(&str, &str)> {
    let (server, device) = path.rsplit_once('@')?;
    (!server.is_empty() && !device.is_empty()).then_some((server, device))
}

/// Returns a GID as text: 16 bytes as two hexadecimal digits each, joined by colons.
#[must_use]
pub fn gid_text(gid: Ipv6Addr) -> String {
    let mut text = String::new();
    for (at, byte) in gid.octets().into_iter().enumerate() {
        let colon = if at == 0 { "" } else { ":" };
        // Writing to a string does not fail.
        let _infallible = write!(text, "{colon}{byte:02x}");
    }
    text
}

/// Parses a GID: 16 groups of one or two hexadecimal digits.
#[must_use]
pub fn parse_gid(text: &str) -> Option<Ipv6Addr> {
    let mut bytes = [0; 16];
    let mut groups = text.split(':');
    for byte in &mut bytes {
        let group = groups.next()?;
        let digits =
            (1..=2).contains(&group.len()) && group.bytes().all(|digit| digit.is_ascii_hexdigit());
        *byte = u8::from_str_radix(group, 16).ok().filter(|_| digits)?;
    }
    groups.next().is_none().then(|| Ipv6Addr::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;
    use proptest::prelude::*;

    const STOCK: &str = r#"{"buffers":[{"addr":140015546916880,"length":1048576,"lkey":[1000,1001],"name":"cpu:0","rkey":[1001000,1001001]}],"devices":[{"gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:08:08:01:01","lid":7,"name":"mlx5_0"},{"gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:08:08:01:02","lid":7,"name":"mlx5_1"}],"name":"127.0.0.1:16990","priority_matrix":{"cpu:0":[["mlx5_0"],["mlx5_1"]]},"protocol":"rdma","tcp_data_port":0,"tcp_proto_version":1,"timestamp":"2026-11-21 08:29:34.428722"}"#;
    const REQUEST: &str = r#"{"local_gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:09:00:01","local_lid":7,"local_nic_path":"127.0.0.1:16233@mlx5_0","payload":"","peer_nic_path":"127.0.0.1:41611@r0","qp_num":[100,101],"ready_ack":false,"reply_msg":""}"#;

    #[test]
    fn a_stock_descriptor_is_encoded_to_the_same_bytes() {
        let parsed = Descriptor::parse(STOCK.as_bytes()).unwrap();
        assert_eq!(parsed.server(), "127.0.0.1:16990");
        assert_eq!(parsed.encode(), [STOCK.as_bytes(), b"\n"].concat());
    }

    #[test]
    fn memory_that_only_its_owner_uses_does_not_hide_the_rest() {
        let local = r#"{"addr":4096,"length":4096,"lkey":[1,2],"name":"cpu:0","rkey":[]}"#;
        let text = STOCK.replace("[{\"addr\"", &format!("[{local},{{\"addr\""));
        let parsed = Descriptor::parse(text.as_bytes()).unwrap();
        assert_eq!(
            parsed.buffers,
            Descriptor::parse(STOCK.as_bytes()).unwrap().buffers
        );
    }

    #[test]
    fn descriptors_that_peers_cannot_use_are_errors() {
        for (text, wanted) in [
            (r#"{"protocol":"tcp","buffers":7}"#.to_owned(), "`tcp`"),
            ("{}".to_owned(), "``"),
            (STOCK.replace(",1001001", ""), "buffer 0"),
            (STOCK.replace("140015546916880", "0"), "buffer 0"),
            (STOCK.replace("140015546916880", "-1"), "cannot parse"),
        ] {
            let error = Descriptor::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_rendezvous_has_the_bytes_of_stock_engines() {
        let parsed = Rendezvous::parse(REQUEST.as_bytes()).unwrap();
        assert_eq!(parsed.qp_num, [100, 101]);
        let frame = parsed.frame(true);
        assert_eq!(frame[8], 0);
        assert_eq!(&frame[9..], [REQUEST.as_bytes(), b"\n"].concat());
        assert_eq!(
            Rendezvous::parse(b"null").unwrap(),
            Rendezvous::parse(b"{}").unwrap()
        );
        assert!(Rendezvous::parse(br#"{"qp_num":["x"]}"#).is_err());
    }

    #[test]
    fn nic_paths_have_the_name_for_them_if_a_descriptor_has_one() {
        let named = STOCK.replace(
            r#""tcp_data_port""#,
            r#""rdma_server_name":"10.0.0.1:7","tcp_data_port""#,
        );
        let parsed = Descriptor::parse(named.as_bytes()).unwrap();
        assert_eq!(nic_path(parsed.server(), "mlx5_0"), "10.0.0.1:7@mlx5_0");
        assert_eq!(parsed.encode(), [named.as_bytes(), b"\n"].concat());
    }

    #[test]
    fn nic_paths_are_split_at_the_last_sign() {
        assert_eq!(split_nic_path("a@b@mlx5_0"), Some(("a@b", "mlx5_0")));
        assert_eq!(split_nic_path("__ctrl__"), None);
        assert_eq!(split_nic_path("@mlx5_0"), None);
    }

    #[test]
    fn gids_with_too_many_groups_or_other_signs_are_no_gids() {
        let text = gid_text("::ffff:10.9.0.1".parse().unwrap());
        assert_eq!(text, "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:09:00:01");
        for wrong in [
            format!("{text}:00"),
            text.replace("0a", "+a"),
            text[..44].to_string(),
            String::new(),
        ] {
            assert_eq!(parse_gid(&wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn each_gid_is_read_back(bits in any::<u128>()) {
            let gid = Ipv6Addr::from(bits);
            prop_assert_eq!(parse_gid(&gid_text(gid)), Some(gid));
        }

        #[test]
        fn no_input_makes_the_parsers_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Descriptor::parse(&bytes);
            let _ = Rendezvous::parse(&bytes);
            let _ = parse_gid(&String::from_utf8_lossy(&bytes));
        }
    }
}
