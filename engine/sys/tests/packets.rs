//! Packets with descriptors, peer credentials, and sockets in another network namespace.

#![allow(clippy::unwrap_used, reason = "a test")]
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use mooncake_sys::mem::{PageSize, Region, memfd};
use mooncake_sys::net::{Namespace, seqpacket};

fn pair(name: &str) -> (OwnedFd, OwnedFd) {
    let listener = seqpacket::listen(name, 4).unwrap();
    let client = seqpacket::connect(name).unwrap();
    (client, seqpacket::accept(&listener).unwrap())
}

#[test]
fn an_extent_sent_by_descriptor_is_the_same_memory() {
    let (client, server) = pair(&format!("mooncake-sys-{}-a", std::process::id()));
    let fd = memfd::create("test", 4096, PageSize::Base).unwrap();
    seqpacket::send(&client, b"{}", &[fd.as_fd()]).unwrap();
    let mut buffer = [0; 64];
    let packet = seqpacket::receive(&server, &mut buffer).unwrap();
    assert_eq!((packet.length, packet.descriptors.len()), (2, 1));
    let ours = Region::map(fd, 4096, PageSize::Base).unwrap();
    let theirs = Region::map(
        packet.descriptors.into_iter().next().unwrap(),
        4096,
        PageSize::Base,
    );
    ours.copy_in(0, b"shared").unwrap();
    let mut back = [0; 6];
    theirs.unwrap().copy_out(0, &mut back).unwrap();
    assert_eq!(&back, b"shared");
    let peer = seqpacket::peer(&server).unwrap();
    assert_eq!(peer.pid, Some(std::process::id()));
}

#[test]
fn packet_boundaries_are_kept_and_a_closed_peer_reads_as_zero_bytes() {
    let (client, server) = pair(&format!("mooncake-sys-{}-b", std::process::id()));
    seqpacket::send(&client, &[1; 10], &[]).unwrap();
    seqpacket::send(&client, &[2; 200], &[]).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(seqpacket::receive(&server, &mut buffer).unwrap().length, 10);
    let large = seqpacket::receive(&server, &mut buffer).unwrap_err();
    assert_eq!(large.kind(), ErrorKind::InvalidData);
    let empty = seqpacket::receive(&server, &mut buffer).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    drop(client);
    assert_eq!(seqpacket::receive(&server, &mut buffer).unwrap().length, 0);
}

#[test]
fn connecting_without_a_listener_fails_at_once() {
    let refused = seqpacket::connect("mooncake-sys-no-listener").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn sockets_created_in_a_namespace_stay_there() {
    // A new namespace needs privileges; without them the test uses the current one.
    let here = Namespace::current().unwrap();
    let made = std::thread::spawn(|| {
        let flags = rustix::thread::UnshareFlags::NEWNET;
        // SAFETY: a new thread; the namespace affects no memory.
        #[allow(unsafe_code, reason = "only the test makes namespaces")]
        let done = unsafe { rustix::thread::unshare_unsafe(flags) };
        done.ok().map(|()| Namespace::current().unwrap())
    });
    let Some(other) = made.join().unwrap() else {
        writeln!(
            std::io::stderr(),
            "not privileged: checked without another namespace"
        )
        .unwrap();
        return;
    };
    let name = format!("mooncake-sys-{}-c", std::process::id());
    let listener = other.run(|| seqpacket::listen(&name, 1)).unwrap();
    assert!(seqpacket::connect(&name).is_err());
    assert!(other.run(|| seqpacket::connect(&name)).is_ok());
    assert!(seqpacket::accept(&listener).is_ok());
    // Loopback is down in the new namespace.
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr().unwrap();
    assert!(other.run(|| std::net::TcpStream::connect(address)).is_err());
    assert!(here.run(|| std::net::TcpStream::connect(address)).is_ok());
}
