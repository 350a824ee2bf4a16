//! Processes that imitate a pool pod and hand over something else: refused by name.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use mooncake_node_agent::handover::message::{Attached, Call, FromPool, Reply, Request};
use mooncake_node_agent::handover::{ADDRESS, Connection};
use rustix::fs::{MemfdFlags, SealFlags};
use std::time::{Duration, Instant};
use sys::mem::{PageSize, memfd};
use sys::net::{Namespace, seqpacket};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::stage::{Node, PATIENCE, POOL_BYTES, POOL_IP, eventually};

const POD: &str = "cccc0000-0000-4000-8000-000000000003";

/// How an impostor misbehaves.
#[derive(Clone, Copy)]
enum Manner {
    Unsealed,
    Truncated,
    Silent,
    ForgedRecord,
    ForeignAddress,
    Nonsense,
}

/// Answers as a pool would, in the manner asked for. Runs in this test's process.
async fn imitate(listener: UnixListener, manner: Manner, attached: watch::Sender<u32>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let connection = Connection::from(socket);
        while let Ok((call, _)) = connection.receive::<Call>().await {
            if matches!(manner, Manner::Silent) {
                continue;
            }
            if matches!(call.request, Request::Attach { .. }) {
                attached.send_modify(|count| *count += 1);
            }
            let (reply, descriptor) = reply(&call.request, manner);
            let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
            let answer = FromPool::Answer { id: call.id, reply };
            if connection
                .send(&answer, &descriptors, Duration::from_secs(1))
                .await
                .is_err()
            {
                break;
            }
        }
    }
}

fn reply(request: &Request, manner: Manner) -> (Reply, Option<OwnedFd>) {
    match request {
        Request::Attach { .. } => (Reply::Attached(attached(manner)), None),
        Request::GetRecord if matches!(manner, Manner::Nonsense) => (Reply::Done, None),
        Request::GetRecord => {
            let forged = matches!(manner, Manner::ForgedRecord);
            let record = forged.then(|| format!("{}\n{{}}", "0".repeat(64)));
            (Reply::Record { record }, None)
        }
        Request::Extent { .. } => (Reply::Done, Some(extent(manner))),
        _ => (Reply::Done, None),
    }
}

fn attached(manner: Manner) -> Attached {
    let foreign = matches!(manner, Manner::ForeignAddress);
    Attached {
        pod_uid: POD.to_owned(),
        pod_ip: if foreign { "10.77.0.99" } else { POOL_IP }.to_owned(),
        handshake_port: 12001,
        data_port: 12002,
        extents: Vec::new(),
        ending: false,
    }
}

fn extent(manner: Manner) -> OwnedFd {
    match manner {
        Manner::Truncated => memfd::create("short", 4096, PageSize::Base).unwrap(),
        _ => {
            let fd = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&fd, POOL_BYTES).unwrap();
            rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW).unwrap();
            fd
        }
    }
}

fn impostor(node: &Node, manner: Manner, pod_uid: &str) -> JoinHandle<()> {
    counted_impostor(node, manner, pod_uid).0
}

/// With the count of agents that attached.
fn counted_impostor(
    node: &Node,
    manner: Manner,
    pod_uid: &str,
) -> (JoinHandle<()>, watch::Receiver<u32>) {
    let path = format!("/proc/{}/ns/net", node.pod.pid());
    let inside = Namespace::open(Path::new(&path)).unwrap();
    let listener = inside.run(|| seqpacket::listen(ADDRESS, 4)).unwrap();
    let listener = UnixListener::from_std(listener.into()).unwrap();
    // The agent enters the namespace of the process that it found, and sees who listens there.
    node.show(node.pod.pid(), POD);
    let own = std::process::id();
    if own != node.pod.pid() {
        node.show_only_cgroup(own, pod_uid, node.pod.pid());
    }
    let (count, attached) = watch::channel(0);
    (tokio::spawn(imitate(listener, manner, count)), attached)
}

async fn is_refused(manner: Manner, reason: &str) {
    let node = Node::new().await;
    let impostor = impostor(&node, manner, POD);
    node.assign(&[(POD, None)]);
    let _agent = node.agent();
    eventually(reason, || node.shows("Refused", reason)).await;
    impostor.abort();
}

#[tokio::test]
async fn memory_that_can_shrink_is_refused_as_not_sealed() {
    is_refused(Manner::Unsealed, "DescriptorNotSealed").await;
}

#[tokio::test]
async fn memory_of_another_size_is_refused_as_wrong_size() {
    is_refused(Manner::Truncated, "DescriptorWrongSize").await;
}

#[tokio::test]
async fn a_pool_that_says_nothing_is_refused_as_silent() {
    is_refused(Manner::Silent, "PoolSilent").await;
}

#[tokio::test]
async fn a_record_that_somebody_else_wrote_is_refused_as_forged() {
    is_refused(Manner::ForgedRecord, "RecordForged").await;
}

#[tokio::test]
async fn s01_an_address_that_is_not_the_pods_own_is_refused() {
    is_refused(Manner::ForeignAddress, "AddressNotOwn").await;
}

#[tokio::test]
async fn answers_that_make_no_sense_are_refused_as_a_failed_hand_over() {
    is_refused(Manner::Nonsense, "HandoverFailed").await;
}

#[tokio::test]
async fn a_pool_that_answers_nonsense_is_asked_less_and_less_often() {
    let node = Node::new().await;
    let (impostor, mut attached) = counted_impostor(&node, Manner::Nonsense, POD);
    node.assign(&[(POD, None)]);
    let _agent = node.agent();
    let first = timeout(PATIENCE, attached.wait_for(|count| *count >= 1)).await;
    first.unwrap().unwrap();
    let begun = Instant::now();
    let fourth = timeout(PATIENCE, attached.wait_for(|count| *count >= 4)).await;
    fourth.unwrap().unwrap();
    assert!(
        begun.elapsed() >= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    impostor.abort();
}

#[tokio::test]
async fn a_process_of_another_pod_is_refused_as_foreign() {
    let node = Node::new().await;
    let impostor = impostor(
        &node,
        Manner::Silent,
        "dddd0000-0000-4000-8000-000000000004",
    );
    node.assign(&[(POD, None)]);
    let _agent = node.agent();
    eventually("ForeignProcess", || node.shows("Refused", "ForeignProcess")).await;
    impostor.abort();
}
