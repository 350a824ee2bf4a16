//! What the confined process does all day.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use mooncake_sys::mem::{PageSize, Region, memfd};
use mooncake_sys::net::{seqpacket, socket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::Case;
use crate::child::{enter, exits};

const PAGE: u64 = 4096;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("threads_start_sleep_and_end", threads, exits),
        Case::new("tcp_connections_carry_bytes", tcp, exits),
        Case::new(
            "a_descriptor_passes_between_local_sockets",
            descriptor,
            exits,
        ),
        Case::new(
            "an_extent_is_mapped_and_filled_from_a_socket",
            extent,
            exits,
        ),
        Case::new("events_wake_a_thread", events, exits),
        Case::new("clocks_and_random_numbers_work", clocks, exits),
        Case::new("abort_ends_the_process", abort, |child| {
            assert!(child.end().terminating_signal().is_some());
        }),
        Case::new("a_panic_ends_the_process", panic, |child| {
            assert_eq!(child.end().exit_status(), Some(101));
        }),
    ]
}

#[expect(clippy::disallowed_methods, reason = "the sleep is what is tested")]
fn threads() {
    enter();
    let start = |number: u64| {
        let thread = std::thread::Builder::new().name(format!("data {number}"));
        let work = move || {
            std::thread::sleep(Duration::from_millis(1));
            // Larger than what malloc takes from its arena.
            let bytes = vec![1_u8; 8 << 20];
            bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>() * number
        };
        thread.spawn(work).unwrap()
    };
    let threads: Vec<_> = (0..8).map(start).collect();
    let sums = threads.into_iter().map(|thread| thread.join().unwrap());
    assert_eq!(sums.sum::<u64>(), 28 * (8 << 20));
    let processors = rustix::thread::sched_getaffinity(None).unwrap();
    rustix::thread::sched_setaffinity(None, &processors).unwrap();
    assert!(std::thread::available_parallelism().is_ok());
}

fn tcp() {
    enter();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"ping").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    });
    let (mut stream, peer) = listener.accept().unwrap();
    assert!(peer.ip().is_loopback());
    sockopt::set_socket_keepalive(&stream, true).unwrap();
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(3)).unwrap();
    sockopt::set_tcp_user_timeout(&stream, 3000).unwrap();
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    sockopt::set_socket_linger(&stream, None).unwrap();
    socket::set_receive_low_water(stream.as_fd(), 4).unwrap();
    assert_eq!(socket::unacknowledged(stream.as_fd()).unwrap(), 0);
    let mut request = [0; 4];
    stream.read_exact(&mut request).unwrap();
    assert_eq!(&request, b"ping");
    assert_eq!(rustix::io::ioctl_fionread(&stream).unwrap(), 0);
    stream.write_all(b"pong").unwrap();
    drop(stream);
    assert_eq!(client.join().unwrap(), "pong");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    let six = rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
    sockopt::set_ipv6_v6only(&six, true).unwrap();
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn descriptor() {
    // Descriptors from before are still open.
    let (sender, receiver) = pair();
    let file = memfd::create("test", PAGE, PageSize::Base).unwrap();
    enter();
    seqpacket::send(&sender, b"{}", &[file.as_fd()]).unwrap();
    let packet = seqpacket::receive(&receiver, &mut [0; 8]).unwrap();
    assert_eq!(packet.descriptors.len(), 1);
    memfd::check(packet.descriptors[0].as_fd(), PAGE, PageSize::Base).unwrap();
    // The listener of an agent, which names its successor.
    let name = format!(
        "mooncake-sandbox-{}",
        rustix::process::getpid().as_raw_nonzero()
    );
    let listener = seqpacket::listen(&name, 1).unwrap();
    let client = seqpacket::connect(&name).unwrap();
    let accepted = seqpacket::accept(&listener).unwrap();
    assert_eq!(seqpacket::peer(&accepted).unwrap().pid, Some(1));
    drop(client);
}

fn extent() {
    let file = memfd::create("test", PAGE, PageSize::Base).unwrap();
    let second = file.try_clone().unwrap();
    enter();
    let [ours, theirs] = [file, second].map(|fd| Region::map(fd, PAGE, PageSize::Base).unwrap());
    ours.populate(0, PAGE).unwrap();
    ours.prefer_numa_node(0).unwrap();
    let (left, right) = pair();
    rustix::io::write(&left, b"payload").unwrap();
    assert_eq!(ours.recv_into(right.as_fd(), 10, 7).unwrap(), 7);
    // Both mappings are the same memory.
    assert_eq!(
        theirs.send_from(right.as_fd(), b"head ", 10, 7).unwrap(),
        12
    );
    let mut back = [0; 12];
    rustix::io::read(&left, &mut back).unwrap();
    assert_eq!(&back, b"head payload");
}

fn events() {
    enter();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let wakeup = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let data = epoll::EventData::new_u64(7);
    epoll::add(&epoll, &wakeup, data, epoll::EventFlags::IN).unwrap();
    rustix::io::write(&wakeup, &1_u64.to_ne_bytes()).unwrap();
    let mut events = Vec::with_capacity(4);
    let deadline = rustix::event::Timespec::try_from(Duration::from_secs(5)).unwrap();
    epoll::wait(
        &epoll,
        rustix::buffer::spare_capacity(&mut events),
        Some(&deadline),
    )
    .unwrap();
    assert_eq!(events[0].data.u64(), 7);
    let mut ready = [PollFd::new(&wakeup, PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ready, Some(&deadline)).unwrap(), 1);
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    assert!(receiver.recv_timeout(Duration::from_millis(1)).is_err());
    drop(sender);
}

#[expect(clippy::disallowed_methods, reason = "the sleep is what is tested")]
fn clocks() {
    enter();
    let before = Instant::now();
    std::thread::sleep(Duration::from_millis(1));
    assert!(before.elapsed() >= Duration::from_millis(1));
    assert!(SystemTime::now() > SystemTime::UNIX_EPOCH);
    let mut bytes = [0_u8; 32];
    // SAFETY: the kernel writes at most 32 bytes into the array.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!((count, bytes == [0; 32]), (32, false));
    // Its keys are random numbers of the kernel.
    let map: HashMap<_, _> = [(1, 2)].into();
    assert_eq!(map[&1], 2);
}

fn abort() {
    enter();
    std::process::abort();
}

fn panic() {
    enter();
    std::panic::set_hook(Box::new(|_| {}));
    panic!("intended");
}
