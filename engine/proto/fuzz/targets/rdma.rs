//! Fuzzes what is published and exchanged before bytes move: RDMA descriptors and rendezvous, and the values and URLs of metadata
//! services. Most inputs are edits of what stock engines have sent.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use std::net::Ipv6Addr;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_proto::metadata::{RpcMeta, ServiceAddress, address_of, decode, encode};
use mooncake_proto::rdma::{
    Descriptor, Link, Rendezvous, Side, agree, gid_text, nic_path, parse_gid, split_nic_path,
};

const DESCRIPTOR: &[u8] = include_bytes!("../captured/rdma/descriptor.json");
/// Of which each edit matters.
const SHORT: &[u8] = br#"{"buffers":[{"addr":1,"length":1,"name":"","rkey":[1]}],"devices":[{"gid":"","name":"a"}],"protocol":"rdma"}"#;
const RENDEZVOUS: &[u8] = include_bytes!("../captured/rdma/rendezvous.json");

fn descriptor(bytes: &[u8]) {
    let Ok(read) = Descriptor::parse(bytes) else {
        return;
    };
    for buffer in &read.buffers {
        assert!(buffer.addr > 0 && buffer.length > 0);
        assert!(!buffer.rkey.is_empty() && buffer.rkey.len() == read.devices.len());
    }
    assert!(read.server() == read.rdma_server_name || read.server() == read.name);
    for device in &read.devices {
        gid(&device.gid);
    }
    let again = Descriptor::parse(&read.encode()).expect("what we write can be read");
    assert_eq!(again, read);
}

/// What both sides of a rendezvous decide from its body.
fn rendezvous(bytes: &[u8]) {
    let Ok(read) = Rendezvous::parse(bytes) else {
        return;
    };
    gid(&read.local_gid);
    let theirs = Side {
        nic_path: &read.local_nic_path,
        gid: parse_gid(&read.local_gid),
        lid: read.local_lid,
        mtu: read.path_mtu,
    };
    let ours = Side {
        nic_path: "ours@mlx5_0",
        gid: Some(Ipv6Addr::from(0xffff_0a09_0001)),
        lid: 7,
        mtu: Some(4096),
    };
    for link in [Link::Ethernet, Link::InfiniBand] {
        // Either side of a connection decides the same.
        let [here, there] = [(&ours, &theirs), (&theirs, &ours)].map(|(a, b)| agree(link, a, b));
        assert_eq!(here.as_ref().ok(), there.as_ref().ok());
        if let Ok(Some(mtu)) = here {
            assert!(mtu <= 4096);
        }
    }
    if let Some((server, device)) = split_nic_path(&read.peer_nic_path) {
        assert_eq!(nic_path(server, device), read.peer_nic_path);
    }
    let frame = read.frame(false);
    assert_eq!(Rendezvous::parse(&frame[8..]).ok(), Some(read));
}

fn gid(text: &str) {
    if let Some(gid) = parse_gid(text) {
        assert_eq!(parse_gid(&gid_text(gid)), Some(gid));
    }
}

fn metadata(bytes: &[u8]) {
    if let Ok(read) = RpcMeta::parse(bytes) {
        let again = RpcMeta::parse(&read.encode()).expect("what we write can be read");
        assert_eq!(again, read);
    }
    // A key of any bytes; an address in it is canonical.
    assert!(address_of(bytes).is_none_or(|address| address == address.to_canonical()));
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    assert_eq!(decode(&encode(text)), bytes);
    gid(text);
    if let Ok(ServiceAddress::Etcd(endpoints)) = ServiceAddress::parse(text) {
        assert!(!endpoints.is_empty() && endpoints.iter().all(|one| one.port > 0));
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((which, edits)) = input.split_first() else {
        return;
    };
    match which % 5 {
        0 => descriptor(&edited(DESCRIPTOR, edits)),
        1 => rendezvous(&edited(RENDEZVOUS, edits)),
        2 => descriptor(&edited(SHORT, edits)),
        3 => {
            descriptor(edits);
            rendezvous(edits);
        }
        _ => metadata(edits),
    }
});
