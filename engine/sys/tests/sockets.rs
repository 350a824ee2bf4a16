//! Socket options.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use mooncake_sys::net::socket::set_receive_low_water;
use rustix::event::{PollFd, PollFlags, Timespec};

fn readable_within(stream: &TcpStream, seconds: i64) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&limit)).unwrap() == 1
}

#[test]
fn a_socket_is_readable_at_its_low_water_mark_and_when_its_peer_has_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
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
