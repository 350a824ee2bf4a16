//! Socket options.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use mooncake_sys::mem::parts::{Inward, Received};
use mooncake_sys::net::socket::{report_queued, set_receive_low_water, unacknowledged};
use rustix::event::{PollFd, PollFlags, Timespec};

fn readable_within(stream: &TcpStream, seconds: i64) -> bool {
    has_within(stream, PollFlags::IN, seconds)
}

fn has_within(stream: &TcpStream, flags: PollFlags, seconds: i64) -> bool {
    let mut polled = [PollFd::new(stream, flags)];
    let limit = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&limit)).unwrap() == 1
}

#[test]
fn a_socket_is_readable_at_its_low_water_mark_and_when_its_peer_has_closed() {
    let (mut sender, receiver) = connection();
    set_receive_low_water(receiver.as_fd(), 1000).unwrap();
    sender.write_all(&[0; 999]).unwrap();
    assert!(!readable_within(&receiver, 0));
    sender.write_all(&[0]).unwrap();
    assert!(readable_within(&receiver, 10));
    set_receive_low_water(receiver.as_fd(), 1001).unwrap();
    assert!(!readable_within(&receiver, 0));
    drop(sender);
    assert!(readable_within(&receiver, 10));
}

/// Returns the two ends of a TCP connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    (sender, receiver)
}

#[test]
fn a_receive_reports_what_is_left_in_the_buffer() {
    let (mut sender, receiver) = connection();
    let receive = |most: usize| {
        let mut bytes = vec![0; most];
        let mut parts = Inward::default();
        parts.bytes(&mut bytes).unwrap();
        parts.receive_counted(receiver.as_fd()).unwrap()
    };
    sender.write_all(&[0; 1000]).unwrap();
    assert!(readable_within(&receiver, 10));
    assert_eq!(receive(10).left, None, "the option is not set");
    report_queued(receiver.as_fd()).unwrap();
    let left = |count, left| Received {
        count,
        left: Some(left),
    };
    assert_eq!(receive(100), left(100, 890));
    assert_eq!(receive(1000), left(890, 0));
    sender.write_all(&[0]).unwrap();
    drop(sender);
    assert!(readable_within(&receiver, 10));
    // The end arrives after the byte.
    assert!(has_within(&receiver, PollFlags::RDHUP, 10));
    assert_eq!(receive(1), left(1, 1));
    assert_eq!(receive(1).count, 0);
}

#[test]
fn bytes_are_unacknowledged_until_the_peer_has_space_for_them() {
    let (mut sender, mut receiver) = connection();
    sender.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while let Ok(count) = sender.write(&[0; 4096]) {
        sent += count;
    }
    assert!(unacknowledged(sender.as_fd()).unwrap() > 0);
    receiver.read_exact(&mut vec![0; sent]).unwrap();
    while unacknowledged(sender.as_fd()).unwrap() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn only_tcp_sockets_report_what_is_left() {
    let (one, _other) = UnixStream::pair().unwrap();
    assert!(report_queued(one.as_fd()).is_err());
}
