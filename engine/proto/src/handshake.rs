//! Frames and bodies of the handshake port: one length-prefixed JSON request, one reply.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// Bytes of the length prefix.
pub const PREFIX_LENGTH: usize = 8;
/// Largest frame that a stock engine accepts by default, type byte included.
pub const MAX_LENGTH: usize = 1 << 20;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// RDMA rendezvous.
    Connection,
    /// P2P exchange of segment descriptors.
    Metadata,
    /// A message for the application.
    Notify,
    /// Liveness check.
    Probe,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Connection => 0,
            Self::Metadata => 1,
            Self::Notify => 2,
            Self::Probe => 3,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Connection, Self::Metadata, Self::Notify, Self::Probe]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// The transport that a descriptor names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `tcp`.
    Tcp,
    /// `rdma`.
    Rdma,
}

impl Protocol {
    /// Returns the transport of a descriptor; `None` for another one, and for what is no descriptor.
    #[must_use]
    pub fn of(descriptor: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            protocol: &'a str,
        }
        match serde_json::from_slice::<Raw<'_>>(descriptor).ok()?.protocol {
            "tcp" => Some(Self::Tcp),
            crate::rdma::PROTOCOL => Some(Self::Rdma),
            _ => None,
        }
    }
}

/// Why a frame is not answered. The connection is closed without a reply, as by stock engines.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The frame has no content.
    #[error("empty frame")]
    Empty,
    /// The frame is longer than [`MAX_LENGTH`].
    #[error("frame of {length} bytes exceeds the limit of {MAX_LENGTH}")]
    TooLong {
        /// The announced length.
        length: u64,
    },
    /// The protocol has no such type.
    #[error("unknown frame type {0}")]
    UnknownKind(u8),
    /// The reply has another type than the request.
    #[error("the reply has another type than the request")]
    OtherKind,
    /// Not JSON, or a field of the wrong type.
    #[error("cannot parse the body: {0}")]
    Json(#[from] serde_json::Error),
}

/// Decodes and checks the length prefix.
///
/// # Errors
/// [`FrameError::Empty`]; [`FrameError::TooLong`].
pub fn length(prefix: [u8; PREFIX_LENGTH]) -> Result<usize, FrameError> {
    let length = u64::from_le_bytes(prefix);
    match usize::try_from(length) {
        Ok(0) => Err(FrameError::Empty),
        Ok(length) if length <= MAX_LENGTH => Ok(length),
        _ => Err(FrameError::TooLong { length }),
    }
}

/// Encodes a frame; `kind` is `None` for peers of releases without frame types.
#[must_use]
pub fn encode(kind: Option<Kind>, body: &[u8]) -> Vec<u8> {
    let length = body.len() + usize::from(kind.is_some());
    let mut frame = Vec::with_capacity(PREFIX_LENGTH + length);
    frame.extend_from_slice(&(length as u64).to_le_bytes());
    frame.extend(kind.map(Kind::code));
    frame.extend_from_slice(body);
    frame
}

/// A message for the application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Notify {
    /// Name, chosen by the sender.
    pub name: String,
    /// Text.
    pub notify_msg: String,
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// RDMA rendezvous.
    Connection {
        /// Whether request and reply carry a frame type; false for old releases.
        typed: bool,
        /// The receiver's NIC path.
        peer_nic_path: String,
        /// The sender's NIC path.
        local_nic_path: String,
        /// The whole body.
        body: Vec<u8>,
    },
    /// Request for the descriptor. The requester's own is in the body; only its transport is read.
    Metadata {
        /// `None`: absent, or not known here.
        protocol: Option<Protocol>,
    },
    /// A message.
    Notify(Notify),
    /// Liveness check.
    Probe,
}

#[derive(Deserialize, Default)]
struct RawNotify {
    name: Option<String>,
    notify_msg: Option<String>,
}

#[derive(Deserialize, Default)]
struct RawConnection {
    local_nic_path: Option<String>,
    peer_nic_path: Option<String>,
}

/// Accepts objects and `null`, but neither arrays nor scalars.
#[derive(Deserialize)]
struct AnyObject {}

impl Request {
    /// Parses a frame without its length prefix.
    ///
    /// # Errors
    /// [`FrameError::Empty`], [`FrameError::UnknownKind`] or [`FrameError::Json`].
    pub fn parse(payload: &[u8]) -> Result<Self, FrameError> {
        let (&first, rest) = payload.split_first().ok_or(FrameError::Empty)?;
        // Old releases send JSON from the first byte. Stock engines compare it as a signed number, so
        // bytes from 0x80 on are unknown types.
        let untyped = (4..0x80).contains(&first);
        if untyped {
            return Self::connection(payload, false);
        }
        match Kind::from_code(first) {
            Some(Kind::Connection) => Self::connection(rest, true),
            Some(Kind::Metadata) => {
                serde_json::from_slice::<IgnoredAny>(rest)?;
                let protocol = Protocol::of(rest);
                Ok(Self::Metadata { protocol })
            }
            Some(Kind::Notify) => {
                let raw: Option<RawNotify> = serde_json::from_slice(rest)?;
                let raw = raw.unwrap_or_default();
                Ok(Self::Notify(Notify {
                    name: raw.name.unwrap_or_default(),
                    notify_msg: raw.notify_msg.unwrap_or_default(),
                }))
            }
            Some(Kind::Probe) => {
                serde_json::from_slice::<Option<AnyObject>>(rest)?;
                Ok(Self::Probe)
            }
            None => Err(FrameError::UnknownKind(first)),
        }
    }

    fn connection(body: &[u8], typed: bool) -> Result<Self, FrameError> {
        let raw: Option<RawConnection> = serde_json::from_slice(body)?;
        let raw = raw.unwrap_or_default();
        Ok(Self::Connection {
            typed,
            peer_nic_path: raw.peer_nic_path.unwrap_or_default(),
            local_nic_path: raw.local_nic_path.unwrap_or_default(),
            body: body.to_owned(),
        })
    }
}

/// Encodes the reply to a message. Stock senders read an empty text as a rejection.
#[must_use]
pub fn notify_reply(accepted: bool) -> Vec<u8> {
    let text = if accepted { "success" } else { "" };
    encode(
        Some(Kind::Notify),
        &line(&Notify {
            name: String::new(),
            notify_msg: text.to_owned(),
        }),
    )
}

/// Encodes the reply to a probe.
#[must_use]
pub fn probe_reply() -> Vec<u8> {
    encode(Some(Kind::Probe), b"{\"status\":\"success\"}\n")
}

/// A Connection body, with the field order of stock engines.
#[derive(Serialize)]
struct Connection<'a> {
    local_gid: &'a str,
    local_lid: u16,
    local_nic_path: &'a str,
    payload: &'a str,
    peer_nic_path: &'a str,
    qp_num: [u32; 0],
    reply_msg: &'a str,
}

/// Encodes the rejection of an RDMA rendezvous. `why` must not be empty, which would mean success.
#[must_use]
pub fn connection_refusal(typed: bool, ours: &str, theirs: &str, why: &str) -> Vec<u8> {
    let body = line(&Connection {
        local_gid: "",
        local_lid: 0,
        local_nic_path: ours,
        payload: "",
        peer_nic_path: theirs,
        qp_num: [],
        reply_msg: why,
    });
    encode(typed.then_some(Kind::Connection), &body)
}

/// Returns the body of a reply to a request of `kind`.
///
/// # Errors
/// [`FrameError::Empty`] or [`FrameError::OtherKind`].
pub fn reply_body(kind: Kind, payload: &[u8]) -> Result<&[u8], FrameError> {
    match payload.split_first() {
        None => Err(FrameError::Empty),
        Some((&code, body)) if code == kind.code() => Ok(body),
        Some(_) => Err(FrameError::OtherKind),
    }
}

pub(crate) fn line(body: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(body).expect("strings and integers always serialise to JSON");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn frames_have_the_bytes_of_stock_engines() {
        assert_eq!(
            probe_reply(),
            b"\x16\0\0\0\0\0\0\0\x03{\"status\":\"success\"}\n"
        );
        let reply = notify_reply(true);
        assert_eq!(
            &reply[8..],
            b"\x02{\"name\":\"\",\"notify_msg\":\"success\"}\n"
        );
        assert_eq!(encode(None, b"{}"), b"\x02\0\0\0\0\0\0\0{}");
    }

    #[test]
    fn lengths_are_limited_to_one_mebibyte() {
        assert_eq!(length(MAX_LENGTH.to_le_bytes()).unwrap(), MAX_LENGTH);
        for wrong in [MAX_LENGTH as u64 + 1, u64::MAX] {
            let error = length(wrong.to_le_bytes()).unwrap_err();
            assert!(
                matches!(error, FrameError::TooLong { length } if length == wrong),
                "{error}"
            );
        }
        assert!(matches!(length([0; 8]), Err(FrameError::Empty)));
    }

    #[test]
    fn requests_of_all_kinds_are_parsed() {
        for (body, protocol) in [
            ("{}", None),
            ("null\n", None),
            ("[]", None),
            (r#"{"protocol":null}"#, None),
            (r#"{"protocol":["tcp"]}"#, None),
            (r#"{"protocol":"ascend","devices":[]}"#, None),
            (r#"{"name":"a:1","protocol":"tcp"}"#, Some(Protocol::Tcp)),
            (r#"{"devices":[],"protocol":"rdma"}"#, Some(Protocol::Rdma)),
        ] {
            let frame = [b"\x01", body.as_bytes()].concat();
            let request = Request::parse(&frame).unwrap();
            assert_eq!(request, Request::Metadata { protocol }, "{body}");
        }
        assert_eq!(Request::parse(b"\x03{}").unwrap(), Request::Probe);
        assert_eq!(
            Request::parse(b"\x02null").unwrap(),
            Request::Notify(Notify::default())
        );
        let Request::Notify(notify) =
            Request::parse("\x02{\"name\":\"n\",\"notify_msg\":\"ü\",\"x\":1}".as_bytes()).unwrap()
        else {
            panic!("no notify")
        };
        assert_eq!(
            (notify.name.as_str(), notify.notify_msg.as_str()),
            ("n", "ü")
        );
        let untyped = Request::parse(br#"{"local_nic_path":"a@b"}"#).unwrap();
        assert!(matches!(untyped, Request::Connection { typed: false, .. }));
        let typed = Request::parse(b"\x00{\"qp_num\":[\"x\"]}").unwrap();
        assert!(matches!(typed, Request::Connection { typed: true, .. }));
    }

    #[test]
    fn json_that_aborts_stock_engines_is_an_error() {
        for payload in [
            &b"\x02[]"[..],
            b"\x02{\"name\":{}}",
            b"\x00{\"local_nic_path\":{}}",
            b"\x00\"text\"",
            b"\x03[]7",
            b"\x01{",
            b"x",
        ] {
            let error = Request::parse(payload).unwrap_err();
            assert!(matches!(error, FrameError::Json(_)), "{payload:?}: {error}");
        }
        // Types from 4 to 127 are the first byte of an untyped body.
        for first in [0x80, 0xfe] {
            let error = Request::parse(&[first, b'{', b'}']).unwrap_err();
            assert!(
                matches!(error, FrameError::UnknownKind(kind) if kind == first),
                "{error}"
            );
        }
        assert!(matches!(Request::parse(b""), Err(FrameError::Empty)));
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let mut payload = vec![1];
        payload.extend(vec![b'['; MAX_LENGTH - 1]);
        assert!(Request::parse(&payload).is_err());
    }

    #[test]
    fn a_rejected_rendezvous_carries_the_reason() {
        let frame = connection_refusal(true, "us@none", "them@mlx5_0", "no RDMA here");
        let body = reply_body(Kind::Connection, &frame[8..]).unwrap();
        let value: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert_eq!(value["reply_msg"], "no RDMA here");
        let of_probe = reply_body(Kind::Probe, &frame[8..]);
        assert!(matches!(of_probe, Err(FrameError::OtherKind)));
        assert!(matches!(
            reply_body(Kind::Connection, b""),
            Err(FrameError::Empty)
        ));
    }

    #[test]
    fn what_stock_engines_have_sent_each_other_is_read_and_answered_with_the_same_bytes() {
        let content = |frame: &'static [u8]| {
            let (prefix, content) = frame.split_first_chunk().unwrap();
            assert_eq!(length(*prefix).unwrap(), content.len());
            content
        };
        let request = content(include_bytes!(
            "../fuzz/captured/handshake/metadata-request"
        ));
        let protocol = Some(Protocol::Tcp);
        assert_eq!(
            Request::parse(request).unwrap(),
            Request::Metadata { protocol }
        );
        let reply = include_bytes!("../fuzz/captured/handshake/metadata-reply");
        let body = reply_body(Kind::Metadata, content(reply)).unwrap();
        let descriptor = crate::descriptor::Descriptor::parse(body).unwrap();
        assert_eq!(encode(Some(Kind::Metadata), &descriptor.encode()), reply);

        let request = content(include_bytes!("../fuzz/captured/handshake/notify-request"));
        let sent = Notify {
            name: "prefill-0".to_owned(),
            notify_msg: "layer 3 is written".to_owned(),
        };
        assert_eq!(Request::parse(request).unwrap(), Request::Notify(sent));
        let reply = include_bytes!("../fuzz/captured/handshake/notify-reply");
        assert_eq!(notify_reply(true), reply);
        let request = content(include_bytes!("../fuzz/captured/handshake/probe-request"));
        assert_eq!(Request::parse(request).unwrap(), Request::Probe);
        let reply = include_bytes!("../fuzz/captured/handshake/probe-reply");
        assert_eq!(probe_reply(), reply);
    }

    proptest! {
        #[test]
        fn no_payload_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Request::parse(&bytes);
        }
    }
}
