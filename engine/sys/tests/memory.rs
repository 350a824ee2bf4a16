//! Extents: checks on mapping, bounds, and copies by the kernel.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use mooncake_sys::mem::parts::{Inward, Outward};
use mooncake_sys::mem::{Error, PageSize, Region, memfd};

const LENGTH: u64 = 1 << 20;

fn region() -> Region {
    let fd = memfd::create("test", LENGTH, PageSize::Base).unwrap();
    Region::map(fd, LENGTH, PageSize::Base).unwrap()
}

#[test]
fn a_sealed_extent_maps_and_keeps_bytes() {
    let region = region();
    region.populate(0, LENGTH).unwrap();
    region.copy_in(4090, b"across a page").unwrap();
    let mut back = [0; 13];
    region.copy_out(4090, &mut back).unwrap();
    assert_eq!(&back, b"across a page");
    assert_eq!(region.page_size(), PageSize::Base);
}

#[test]
fn an_unsealed_extent_is_rejected() {
    let fd = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, LENGTH).unwrap();
    assert!(matches!(
        Region::map(fd, LENGTH, PageSize::Base),
        Err(Error::NotSealed)
    ));
    let file: OwnedFd = File::open("/dev/zero").unwrap().into();
    assert!(matches!(
        Region::map(file, LENGTH, PageSize::Base),
        Err(Error::NotSealed)
    ));
}

#[test]
fn an_extent_of_another_size_or_page_size_is_rejected() {
    let make = || memfd::create("test", 4 << 20, PageSize::Base).unwrap();
    let wrong = Region::map(make(), LENGTH, PageSize::Base);
    assert!(matches!(
        wrong,
        Err(Error::WrongLength {
            found: 4_194_304,
            ..
        })
    ));
    let wrong = Region::map(make(), 4 << 20, PageSize::Huge2Mi);
    assert!(matches!(
        wrong,
        Err(Error::WrongPageSize { found: 4096, .. })
    ));
    let wrong = memfd::create("test", 4097, PageSize::Base);
    assert!(matches!(wrong, Err(Error::BadLength { .. })));
}

#[test]
fn a_sealed_extent_cannot_be_truncated() {
    let fd = memfd::create("test", LENGTH, PageSize::Base).unwrap();
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    assert!(rustix::fs::ftruncate(&fd, 2 * LENGTH).is_err());
}

#[test]
fn ranges_outside_the_extent_are_rejected() {
    let region = region();
    for (offset, length) in [(LENGTH, 1), (LENGTH - 1, 2), (u64::MAX, 2), (1, u64::MAX)] {
        assert!(matches!(
            region.populate(offset, length),
            Err(Error::OutOfRange { .. })
        ));
    }
    let (left, _right) = UnixStream::pair().unwrap();
    assert!(region.recv_into(left.as_fd(), LENGTH - 1, 2).is_err());
    assert!(region.send_from(left.as_fd(), b"", LENGTH, 1).is_err());
    assert!(region.copy_in(LENGTH, b"x").is_err());
}

#[test]
fn sockets_fill_and_drain_ranges() {
    let region = region();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"payload").unwrap();
    assert_eq!(region.recv_into(ours.as_fd(), 100, 7).unwrap(), 7);
    let empty = region.recv_into(ours.as_fd(), 100, 7).unwrap_err();
    assert_eq!(empty.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(
        region.send_from(ours.as_fd(), b"head ", 100, 7).unwrap(),
        12
    );
    let mut got = [0; 12];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"head payload");
}

#[test]
fn one_call_sends_and_receives_several_ranges() {
    let region = region();
    region.copy_in(10, b"payload").unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut outward = Outward::default();
    outward.bytes(b"head ").unwrap();
    outward.range(&region, 10, 7).unwrap();
    outward.bytes(b" tail").unwrap();
    assert!(outward.range(&region, LENGTH, 1).is_err(), "outside");
    assert_eq!(outward.length(), 17);
    assert_eq!(outward.send(ours.as_fd()).unwrap(), 17);

    let (mut head, mut tail) = ([0; 5], [0; 9]);
    let mut inward = Inward::default();
    inward.bytes(&mut head).unwrap();
    inward.range(&region, 100, 7).unwrap();
    inward.bytes(&mut tail).unwrap();
    assert_eq!(inward.length(), 21);
    assert_eq!(inward.receive(theirs.as_fd()).unwrap(), 17);
    let mut middle = [0; 7];
    region.copy_out(100, &mut middle).unwrap();
    assert_eq!(
        (&head, &middle, &tail[..5]),
        (b"head ", b"payload", &b" tail"[..])
    );

    let mut full = Outward::default();
    while full.space() > 0 {
        full.bytes(b"x").unwrap();
    }
    assert!(full.bytes(b"x").is_err(), "no space");
    full.bytes(b"").unwrap();
}

#[test]
fn an_unsupported_numa_node_is_an_error() {
    let region = region();
    match region.prefer_numa_node(0) {
        Ok(()) | Err(Error::Call { call: "mbind", .. }) => {}
        Err(other) => panic!("{other}"),
    }
    let beyond = region.prefer_numa_node(5000);
    assert!(matches!(beyond, Err(Error::BadNode { node: 5000, .. })));
}
