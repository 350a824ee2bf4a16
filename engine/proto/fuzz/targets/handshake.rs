//! Fuzzes a connection to the handshake port, in both roles: the peer's request, and the peer's reply to ours, arrive in pieces of
//! any length. Most inputs are edits of what stock engines have sent each other.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use std::net::Ipv6Addr;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_proto::address::ServerName;
use mooncake_proto::descriptor::Descriptor;
use mooncake_proto::handshake::{
    FrameError, Kind, MAX_LENGTH, Notify, PREFIX_LENGTH, Request, connection_refusal, encode,
    length, notify_reply, probe_reply, reply_body,
};
use mooncake_proto::rdma::{self, Rendezvous};

/// Request and reply of each kind, between two engines of the wheel 0.3.13.post1 over TCP.
const CAPTURED: [(Kind, [&[u8]; 2]); 3] = [
    (
        Kind::Metadata,
        [
            include_bytes!("../captured/handshake/metadata-request"),
            include_bytes!("../captured/handshake/metadata-reply"),
        ],
    ),
    (
        Kind::Notify,
        [
            include_bytes!("../captured/handshake/notify-request"),
            include_bytes!("../captured/handshake/notify-reply"),
        ],
    ),
    (
        Kind::Probe,
        [
            include_bytes!("../captured/handshake/probe-request"),
            include_bytes!("../captured/handshake/probe-reply"),
        ],
    ),
];
/// The body of a rendezvous of such an engine over RDMA. A reply has the same fields.
const RENDEZVOUS: &[u8] = include_bytes!("../captured/rdma/rendezvous.json");

/// Receives one frame, as both ends do, and returns its content. `None`: its end has not arrived.
fn receive(stream: &[u8], step: usize) -> Option<Result<Vec<u8>, FrameError>> {
    let mut received = Vec::new();
    for piece in stream.chunks(step) {
        received.extend(piece);
        let Some((prefix, content)) = received.split_first_chunk::<PREFIX_LENGTH>() else {
            continue;
        };
        let length = match length(*prefix) {
            Ok(length) => length,
            Err(error) => return Some(Err(error)),
        };
        assert!((1..=MAX_LENGTH).contains(&length));
        if let Some(content) = content.get(..length) {
            return Some(Ok(content.to_vec()));
        }
    }
    None
}

/// Answers a request as an engine over TCP does. Returns its kind, whether it has a type, and the reply.
fn answer(request: &[u8]) -> Result<(Kind, bool, Vec<u8>), FrameError> {
    Ok(match Request::parse(request)? {
        Request::Metadata { .. } => {
            let descriptor = &CAPTURED[0].1[1][PREFIX_LENGTH + 1..];
            (
                Kind::Metadata,
                true,
                encode(Some(Kind::Metadata), descriptor),
            )
        }
        Request::Notify(Notify { name, notify_msg }) => {
            assert!(name.len() + notify_msg.len() <= request.len());
            (Kind::Notify, true, notify_reply(!name.is_empty()))
        }
        Request::Probe => (Kind::Probe, true, probe_reply()),
        Request::Connection {
            typed,
            peer_nic_path,
            local_nic_path,
            body,
        } => {
            if let Ok(parsed) = Rendezvous::parse(&body) {
                let frame = parsed.frame(typed);
                let content = receive(&frame, 7).expect("a whole frame");
                let again = &content.expect("of the right length")[usize::from(typed)..];
                assert_eq!(Rendezvous::parse(again).ok(), Some(parsed));
            }
            let why = "no RDMA here";
            let refusal = connection_refusal(typed, &peer_nic_path, &local_nic_path, why);
            (Kind::Connection, typed, refusal)
        }
    })
}

/// Reads a reply to a request of this kind. Returns whether it is one.
fn read_reply(kind: Kind, content: &[u8]) -> bool {
    let Ok(body) = reply_body(kind, content) else {
        return false;
    };
    assert_eq!(body.len() + 1, content.len());
    match kind {
        Kind::Metadata => match (Descriptor::parse(body), rdma::Descriptor::parse(body)) {
            (Ok(read), other) => {
                assert!(other.is_err(), "two transports");
                server_name(&read.name);
                assert_eq!(Descriptor::parse(&read.encode()).ok(), Some(read));
                true
            }
            (Err(_), Ok(read)) => {
                server_name(read.server());
                true
            }
            (Err(_), Err(_)) => false,
        },
        Kind::Connection => Rendezvous::parse(body).is_ok(),
        // Their texts are compared as they are.
        Kind::Notify | Kind::Probe => true,
    }
}

fn server_name(text: &str) {
    let name = ServerName::parse(text);
    // Text that is neither an address nor a host name need not be parsed back.
    if !name.host.contains(':') || name.host.parse::<Ipv6Addr>().is_ok() {
        assert_eq!(ServerName::parse(&name.to_string()), name);
    }
}

/// One connection to our port. Its reply can be read by the peer, whatever the request contains.
fn serve(stream: &[u8], step: usize) -> Option<Kind> {
    let request = receive(stream, step)?.ok()?;
    let (kind, typed, reply) = answer(&request).ok()?;
    let content = receive(&reply, step).expect("a whole frame").ok()?;
    if typed {
        assert!(read_reply(kind, &content));
    } else {
        assert!(Rendezvous::parse(&content).is_ok());
    }
    Some(kind)
}

/// One connection to the peer's port.
fn query(kind: Kind, stream: &[u8], step: usize) -> bool {
    matches!(receive(stream, step), Some(Ok(content)) if read_reply(kind, &content))
}

fn check_captured() {
    for (kind, [request, reply]) in CAPTURED {
        assert_eq!(serve(request, 1), Some(kind));
        assert!(query(kind, reply, 1));
    }
    for typed in [true, false] {
        let frame = encode(typed.then_some(Kind::Connection), RENDEZVOUS);
        assert_eq!(serve(&frame, 1), Some(Kind::Connection));
        assert_eq!(query(Kind::Connection, &frame, 1), typed);
    }
}

fuzz_target!(init: check_captured(), |input: &[u8]| {
    let [which, step, split, rest @ ..] = input else {
        return;
    };
    let step = usize::from(*step).max(1);
    let (first, second) = rest.split_at(usize::from(*split).min(rest.len()));
    match which % 6 {
        0..=2 => {
            let (kind, [request, reply]) = CAPTURED[usize::from(which % 6)];
            serve(&edited(request, first), step);
            query(kind, &edited(reply, second), step);
        }
        3 => {
            // The prefix stays, so that each edit reaches the body.
            let typed = which & 0x80 == 0;
            let [request, reply] = [first, second].map(|edits| edited(RENDEZVOUS, edits));
            serve(&encode(typed.then_some(Kind::Connection), &request), step);
            let reply = encode(Some(Kind::Connection), &reply);
            query(Kind::Connection, &reply, step);
        }
        4 => {
            // The same for the descriptor.
            let body = &CAPTURED[0].1[1][PREFIX_LENGTH + 1..];
            let reply = encode(Some(Kind::Metadata), &edited(body, rest));
            query(Kind::Metadata, &reply, step);
        }
        _ => {
            serve(first, step);
            for kind in [Kind::Connection, Kind::Metadata, Kind::Notify, Kind::Probe] {
                query(kind, second, step);
            }
            // Without a prefix that fits.
            if let Ok((kind, true, reply)) = answer(rest) {
                assert!(read_reply(kind, &reply[PREFIX_LENGTH..]));
            }
            if let Ok(text) = str::from_utf8(rest) {
                server_name(text);
            }
        }
    }
});
