//! Work requests of the engine, with an invented libibverbs. The test program starts itself again with that library
//! in its path. With `MOONCAKE_TEST_VERBS=real` it uses the first device of the machine: port 1, GID index 1.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use mooncake_sys::mem::{PageSize, Region, memfd};
use mooncake_sys::verbs::{
    Class, Completion, CompletionChannel, CompletionQueue, Context, Destination, DeviceEvent,
    DeviceEvents, Direction, MemoryRange, MemoryRegion, Path as Route, ProtectionDomain, QueuePair,
    Remote, WorkRequest, devices,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LENGTH: u64 = 64 << 10;
/// Wire address of the first byte.
const BASE: u64 = 1 << 58;
const DEPTH: u16 = 40;
const ENOMEM: i32 = 12;
/// Only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with the library.
static LIBRARY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/library.c");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg("-o")
        .arg(folder.path().join("libibverbs.so.1"))
        .arg(source)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{errors}");
    folder
});

/// `real`: a device of the machine. `invented`: this process finds the invented library.
const DEVICE: &str = "MOONCAKE_TEST_VERBS";

/// Of the invented library: the folder of its calls, and the link layer of its ports.
const CALLS: &str = "MOONCAKE_TEST_CALLS";
const LINK: &str = "MOONCAKE_TEST_LINK";

/// Runs a test in a process of its own that finds the invented library.
fn with_library(test: &str, body: fn()) {
    if std::env::var_os(DEVICE).is_some() {
        body();
        return;
    }
    let link = if test.contains("infiniband") {
        "infiniband"
    } else {
        "ethernet"
    };
    let calls = tempfile::tempdir().unwrap();
    let inside = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", LIBRARY.path())
        // Where the library lists its calls, and finds those that fail.
        .env(CALLS, calls.path())
        .env(LINK, link)
        .env(DEVICE, "invented")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&inside.stderr);
    assert!(inside.status.success(), "{errors}");
    assert!(!errors.contains("is released while"), "{errors}");
    assert!(!errors.contains("were not acknowledged"), "{errors}");
    let output = String::from_utf8_lossy(&inside.stdout);
    assert!(output.contains("1 passed"), "{output}");
}

/// Two connected queue pairs with memory.
struct Rig {
    near: QueuePair,
    far: QueuePair,
    queue: CompletionQueue,
    channel: CompletionChannel,
    local: MemoryRegion,
    remote: MemoryRegion,
    local_memory: Arc<Region>,
    remote_memory: Arc<Region>,
    domain: ProtectionDomain,
    context: Context,
}

fn region() -> Arc<Region> {
    let fd = memfd::create("verbs", LENGTH, PageSize::Base).unwrap();
    Arc::new(Region::map(fd, LENGTH, PageSize::Base).unwrap())
}

fn connect(context: &Context, pairs: [&QueuePair; 2]) {
    let facts = context.port(1).unwrap();
    let route = Route {
        port: 1,
        gid: Some(1),
        class: Class::default(),
        link_layer: facts.link_layer,
        mtu: facts.mtu,
    };
    let gid = context.gid(1, 1).unwrap();
    for (own, other) in [(pairs[0], pairs[1]), (pairs[1], pairs[0])] {
        let other = Destination {
            queue_pair: other.number(),
            gid,
            lid: facts.lid,
        };
        own.init(&route).unwrap();
        own.ready_to_receive(&route, &other).unwrap();
        own.ready_to_send().unwrap();
    }
}

impl Rig {
    fn new() -> Self {
        let context = devices().unwrap()[0].open().unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let channel = CompletionChannel::new(&context).unwrap();
        let queue = CompletionQueue::signalled(&context, 256, &channel).unwrap();
        let pair = || QueuePair::with_depth(&domain, &queue, DEPTH).unwrap();
        let (near, far) = (pair(), pair());
        connect(&context, [&near, &far]);
        let (local_memory, remote_memory) = (region(), region());
        let register = |memory: &Arc<Region>, base| {
            MemoryRegion::register_at(&domain, Arc::clone(memory), base).unwrap()
        };
        Self {
            local: register(&local_memory, 3 * BASE),
            remote: register(&remote_memory, BASE),
            near,
            far,
            queue,
            channel,
            local_memory,
            remote_memory,
            domain,
            context,
        }
    }

    fn request(&self, id: u64, direction: Direction, offset: u64, length: u32) -> WorkRequest<'_> {
        WorkRequest {
            id,
            direction,
            local: MemoryRange {
                memory: &self.local,
                offset,
                length,
            },
            remote: Remote {
                address: BASE + offset,
                key: self.remote.remote_key(),
            },
            signalled: true,
        }
    }

    /// Waits for so many completions.
    fn completed(&self, count: usize) -> Vec<Completion> {
        completed(&self.queue, count)
    }
}

fn completed(queue: &CompletionQueue, count: usize) -> Vec<Completion> {
    let mut found = Vec::new();
    let end = Instant::now() + PATIENCE;
    while found.len() < count {
        assert!(Instant::now() < end, "{found:?} of {count}");
        if queue.poll(&mut found).unwrap() == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(queue.poll(&mut found).unwrap(), 0, "{found:?}");
    found
}

fn bytes(memory: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(LENGTH).unwrap()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

fn fill(memory: &Region, salt: u64) -> Vec<u8> {
    let mixed = |at: u64| ((at ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).to_le_bytes()[0];
    let bytes: Vec<u8> = (0..LENGTH).map(mixed).collect();
    memory.copy_in(0, &bytes).unwrap();
    bytes
}

fn ids(found: &[Completion]) -> Vec<u64> {
    found.iter().map(|completion| completion.id).collect()
}

#[test]
fn writes_and_reads_move_their_ranges_at_wire_addresses() {
    with_library(
        "writes_and_reads_move_their_ranges_at_wire_addresses",
        || {
            let rig = Rig::new();
            let source = fill(&rig.local_memory, 1);
            let mut expected = fill(&rig.remote_memory, 2);
            let write = rig.request(7, Direction::Write, 5000, 9000);
            assert_eq!(rig.near.post(&[write]).accepted, 1);
            let found = rig.completed(1);
            assert_eq!(ids(&found), [7]);
            found[0].result().unwrap();
            expected[5000..14000].copy_from_slice(&source[5000..14000]);
            assert!(bytes(&rig.remote_memory) == expected);

            let mut expected = source;
            let source = fill(&rig.remote_memory, 3);
            let read = rig.request(8, Direction::Read, 100, 60_001);
            assert_eq!(rig.near.post(&[read]).accepted, 1);
            rig.completed(1)[0].result().unwrap();
            expected[100..60_101].copy_from_slice(&source[100..60_101]);
            assert!(bytes(&rig.local_memory) == expected);
        },
    );
}

#[test]
fn a_full_queue_pair_refuses_the_rest_of_a_chain() {
    if std::env::var(DEVICE).is_ok_and(|device| device == "real") {
        // Soft-RoCE works on requests while others are posted, so it is not full for sure.
        return;
    }
    with_library("a_full_queue_pair_refuses_the_rest_of_a_chain", || {
        let rig = Rig::new();
        fill(&rig.local_memory, 1);
        // A device may have rounded the depth up.
        let many: Vec<_> = (0..50 * u64::from(DEPTH))
            .map(|id| rig.request(id, Direction::Write, id * 10, 10))
            .collect();
        let posted = rig.near.post(&many);
        let accepted = posted.accepted;
        assert!(accepted >= usize::from(DEPTH), "{posted:?}");
        assert_eq!(posted.refused.unwrap().errno(), Some(ENOMEM));
        let found = rig.completed(accepted);
        assert_eq!(ids(&found), (0..accepted as u64).collect::<Vec<_>>());
        let posted = rig.near.post(&many[accepted..][..9]);
        assert!(posted.refused.is_none() && posted.accepted == 9);
        assert_eq!(rig.completed(9)[0].id, accepted as u64);
    });
}

/// How two queue pairs address each other, by the invented library, if each end has this GID.
fn addressed(own: Option<u8>, gid: Ipv6Addr) -> Vec<String> {
    let rig = Rig::new();
    let facts = rig.context.port(1).unwrap();
    let pair = QueuePair::with_depth(&rig.domain, &rig.queue, DEPTH).unwrap();
    let route = Route {
        port: 1,
        gid: own,
        class: Class {
            traffic_class: 106,
            service_level: 3,
        },
        link_layer: facts.link_layer,
        mtu: facts.mtu,
    };
    let to = Destination {
        queue_pair: rig.far.number(),
        gid,
        lid: facts.lid,
    };
    pair.init(&route).unwrap();
    pair.ready_to_receive(&route, &to).unwrap();
    let folder = PathBuf::from(std::env::var_os(CALLS).unwrap());
    let lines = std::fs::read_to_string(folder.join("path")).unwrap();
    // The first two are those of the rig.
    lines.lines().skip(2).map(str::to_owned).collect()
}

#[test]
fn packets_of_roce_have_their_traffic_class_and_service_level() {
    with_library(
        "packets_of_roce_have_their_traffic_class_and_service_level",
        || {
            if std::env::var(DEVICE).is_ok_and(|device| device == "real") {
                return;
            }
            let found = addressed(Some(5), Ipv6Addr::from([8; 16]));
            let expected = "global 1 dgid 8 sgid 5 class 106 dlid 0 sl 3";
            assert_eq!(found, [expected]);
        },
    );
}

#[test]
fn packets_of_infiniband_have_a_global_route_header_if_both_ends_have_a_gid() {
    with_library(
        "packets_of_infiniband_have_a_global_route_header_if_both_ends_have_a_gid",
        || {
            if std::env::var(DEVICE).is_ok_and(|device| device == "real") {
                return;
            }
            let gid = Ipv6Addr::from([8; 16]);
            let with = "global 1 dgid 8 sgid 5 class 106 dlid 7 sl 3";
            assert_eq!(addressed(Some(5), gid), [with]);
            let without = "global 0 dgid 0 sgid 0 class 0 dlid 7 sl 3";
            assert_eq!(addressed(None, gid).last().unwrap(), without);
            let none = Ipv6Addr::UNSPECIFIED;
            assert_eq!(addressed(Some(5), none).last().unwrap(), without);
        },
    );
}

#[test]
fn only_signalled_requests_complete_visibly() {
    with_library("only_signalled_requests_complete_visibly", || {
        let rig = Rig::new();
        let chain: Vec<_> = (0..32)
            .map(|id| WorkRequest {
                signalled: id % 16 == 15,
                ..rig.request(id, Direction::Write, id * 100, 100)
            })
            .collect();
        assert_eq!(rig.near.post(&chain).accepted, 32);
        assert_eq!(ids(&rig.completed(2)), [15, 31]);
    });
}

#[test]
fn a_failed_request_names_its_cause_and_flushes_the_later_ones() {
    with_library(
        "a_failed_request_names_its_cause_and_flushes_the_later_ones",
        || {
            let rig = Rig::new();
            let before = fill(&rig.remote_memory, 2);
            let mut wrong = rig.request(1, Direction::Write, 0, 100);
            wrong.remote.address = BASE + LENGTH - 99;
            let later = [2, 3].map(|id| WorkRequest {
                signalled: false,
                ..rig.request(id, Direction::Write, 0, 100)
            });
            rig.near.post(&[wrong, later[0], later[1]]);
            let found = rig.completed(3);
            assert_eq!(ids(&found), [1, 2, 3]);
            let error = found[0].result().unwrap_err().to_string();
            assert!(error.contains("remote access error"), "{error}");
            assert!(!found[0].is_flushed() && found[1].is_flushed() && found[2].is_flushed());
            assert!(bytes(&rig.remote_memory) == before);
        },
    );
}

#[test]
fn a_queue_pair_that_is_failed_ends_its_requests() {
    with_library("a_queue_pair_that_is_failed_ends_its_requests", || {
        let rig = Rig::new();
        fill(&rig.local_memory, 1);
        let before = fill(&rig.remote_memory, 2);
        let writes = [1, 2].map(|id| rig.request(id, Direction::Write, 0, 100));
        assert_eq!(rig.near.post(&writes).accepted, 2);
        rig.near.fail().unwrap();
        let found = rig.completed(2);
        assert_eq!(ids(&found), [1, 2]);
        // A device may have carried them out before.
        if found.iter().all(Completion::is_flushed) {
            assert!(bytes(&rig.remote_memory) == before);
        }
        assert_eq!(rig.near.post(&writes).accepted, 2);
        let found = rig.completed(2);
        assert!(found.iter().all(Completion::is_flushed), "{found:?}");
        // Nor does the other end reach it any more.
        let key = rig.local.remote_key();
        let write = WorkRequest {
            local: MemoryRange {
                memory: &rig.remote,
                offset: 0,
                length: 10,
            },
            remote: Remote {
                address: 3 * BASE,
                key,
            },
            ..rig.request(9, Direction::Write, 0, 10)
        };
        rig.far.post(&[write]);
        rig.completed(1)[0].result().unwrap_err();
    });
}

#[test]
fn a_key_ends_with_its_registration_and_is_of_one_domain() {
    with_library(
        "a_key_ends_with_its_registration_and_is_of_one_domain",
        || {
            let rig = Rig::new();
            let before = fill(&rig.remote_memory, 2);
            // A domain of another tenant on the same device.
            let foreign = ProtectionDomain::new(&rig.context).unwrap();
            let memory = MemoryRegion::register_at(&foreign, region(), 5 * BASE).unwrap();
            let mut write = rig.request(1, Direction::Write, 0, 100);
            write.remote = Remote {
                address: 5 * BASE,
                key: memory.remote_key(),
            };
            rig.near.post(&[write]);
            let error = rig.completed(1)[0].result().unwrap_err().to_string();
            assert!(error.contains("remote access error"), "{error}");
            // As local memory it is refused before the device has it.
            let mut write = rig.request(2, Direction::Write, 0, 100);
            write.local.memory = &memory;
            assert_eq!(rig.near.post(&[write]).accepted, 0);

            let pair = || QueuePair::with_depth(&rig.domain, &rig.queue, DEPTH).unwrap();
            let (near, far) = (pair(), pair());
            connect(&rig.context, [&near, &far]);
            let key = rig.remote.remote_key();
            rig.remote.deregister().unwrap();
            let again =
                MemoryRegion::register_at(&rig.domain, Arc::clone(&rig.remote_memory), 7 * BASE)
                    .unwrap();
            let old = WorkRequest {
                id: 3,
                direction: Direction::Write,
                local: MemoryRange {
                    memory: &rig.local,
                    offset: 0,
                    length: 100,
                },
                remote: Remote { address: BASE, key },
                signalled: true,
            };
            near.post(&[old]);
            completed(&rig.queue, 1)[0].result().unwrap_err();
            assert!(bytes(&rig.remote_memory) == before);
            again.deregister().unwrap();
        },
    );
}

#[test]
fn a_completion_makes_the_channel_readable_once() {
    with_library("a_completion_makes_the_channel_readable_once", || {
        let rig = Rig::new();
        let readable = |wait: Duration| {
            let wait = Timespec::try_from(wait).unwrap();
            let mut watched = [PollFd::from_borrowed_fd(rig.channel.as_fd(), PollFlags::IN)];
            poll(&mut watched, Some(&wait)).unwrap() == 1
        };
        rig.queue.notify().unwrap();
        assert!(!readable(Duration::ZERO));
        rig.near.post(&[rig.request(1, Direction::Write, 0, 100)]);
        assert!(readable(PATIENCE));
        rig.channel.clear();
        assert!(!readable(Duration::ZERO));
        assert_eq!(ids(&rig.completed(1)), [1]);
        // Without another call there is no other event.
        rig.near.post(&[rig.request(2, Direction::Write, 0, 100)]);
        assert_eq!(ids(&rig.completed(1)), [2]);
        assert!(!readable(Duration::ZERO));
    });
}

#[test]
fn the_events_of_a_device_are_read_without_blocking() {
    with_library("the_events_of_a_device_are_read_without_blocking", || {
        if std::env::var(DEVICE).is_ok_and(|device| device == "real") {
            return;
        }
        let found = devices().unwrap();
        let context = found[0].open().unwrap();
        let events = DeviceEvents::new(&context).unwrap();
        let pipe = Path::new(&std::env::var_os(CALLS).unwrap()).join("event-invented_0");
        let mut pipe = std::fs::OpenOptions::new().write(true).open(pipe).unwrap();
        assert_eq!(events.next().unwrap(), None);
        for (bytes, event) in [
            ([10, 2], DeviceEvent::PortDown(2)),
            ([9, 1], DeviceEvent::PortActive(1)),
            ([11, 1], DeviceEvent::LidChanged(1)),
            ([18, 1], DeviceEvent::GidsChanged(1)),
            ([4, 0], DeviceEvent::Other),
            ([8, 0], DeviceEvent::Fatal),
        ] {
            std::io::Write::write_all(&mut pipe, &bytes).unwrap();
            let mut watched = [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut watched, None).unwrap(), 1);
            assert_eq!(events.next().unwrap(), Some(event));
            assert_eq!(events.next().unwrap(), None);
        }
    });
}

#[test]
fn a_registration_requests_relaxed_ordering_where_it_is_known() {
    with_library(
        "a_registration_requests_relaxed_ordering_where_it_is_known",
        || {
            if std::env::var(DEVICE).is_ok_and(|device| device == "real") {
                // The driver does not show it.
                return;
            }
            let calls = Path::new(&std::env::var_os(CALLS).unwrap()).to_owned();
            let context = devices().unwrap()[0].open().unwrap();
            let domain = ProtectionDomain::new(&context).unwrap();
            let register = || MemoryRegion::register_at(&domain, region(), BASE);
            let requested = || std::fs::read_to_string(calls.join("access")).unwrap();
            drop(register().unwrap());
            assert_eq!(requested(), "0x100007\n");
            let failing = calls.join("fail-ibv_reg_mr_iova2-invented_0");
            for refusal in [libc::EINVAL, libc::EOPNOTSUPP] {
                std::fs::write(&failing, refusal.to_string()).unwrap();
                drop(register().unwrap());
            }
            assert_eq!(requested(), "0x100007\n0x7\n0x7\n");
            // It is not pinned a second time in vain.
            std::fs::write(&failing, ENOMEM.to_string()).unwrap();
            assert_eq!(register().unwrap_err().errno(), Some(ENOMEM));
            let others = std::fs::read_to_string(calls.join("ibv_reg_mr_iova")).unwrap();
            assert_eq!(others.lines().count(), 2);
        },
    );
}
