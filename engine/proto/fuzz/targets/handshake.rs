//! Fuzzes requests and replies of the handshake port.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mooncake_proto::address::ServerName;
use mooncake_proto::handshake::{
    Kind, MAX_LENGTH, PREFIX_LENGTH, Request, connection_refusal, length, reply_body,
};
use mooncake_proto::rdma::Rendezvous;
use std::net::Ipv6Addr;

fuzz_target!(|input: &[u8]| {
    if let Some((prefix, _)) = input.split_first_chunk::<PREFIX_LENGTH>()
        && let Ok(length) = length(*prefix)
    {
        assert!((1..=MAX_LENGTH).contains(&length));
    }
    for kind in [Kind::Connection, Kind::Metadata, Kind::Notify, Kind::Probe] {
        if let Ok(body) = reply_body(kind, input) {
            assert_eq!(body.len() + 1, input.len());
        }
    }
    if let Ok(Request::Connection {
        typed,
        peer_nic_path,
        local_nic_path,
        body,
    }) = Request::parse(input)
    {
        if let Ok(parsed) = Rendezvous::parse(&body) {
            let frame = parsed.frame(typed);
            let body = &frame[PREFIX_LENGTH + usize::from(typed)..];
            assert_eq!(Rendezvous::parse(body).ok(), Some(parsed));
        }
        // A reply that contains the peer's text can be parsed.
        let refusal = connection_refusal(typed, &peer_nic_path, &local_nic_path, "no RDMA here");
        let (prefix, payload) = refusal.split_first_chunk().expect("a frame has a length");
        assert_eq!(u64::from_le_bytes(*prefix), payload.len() as u64);
    }
    if let Ok(text) = str::from_utf8(input) {
        let name = ServerName::parse(text);
        // Text that is neither an address nor a host name need not be parsed back.
        if !name.host.contains(':') || name.host.parse::<Ipv6Addr>().is_ok() {
            assert_eq!(ServerName::parse(&name.to_string()), name);
        }
    }
});
