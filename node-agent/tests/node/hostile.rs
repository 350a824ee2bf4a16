//! Processes that imitate a pool process and hand over something else: rejected with a Reason.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use pool::handover::message::{Attached, Call, FromPool, Reply, Request};
use pool::handover::{ADDRESS, Connection};
use rustix::fs::{MemfdFlags, SealFlags};
use std::time::{Duration, Instant};
use sys::mem::{PageSize, memfd};
use sys::net::{Namespace, seqpacket};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::stage::{Node, PATIENCE, POOL_BYTES, POOL_IP, eventually};

pub(crate) const POD: &str = "cccc0000-0000-4000-8000-000000000003";

/// How the impostor deviates from a pool process.
#[derive(Clone, Copy)]
pub(crate) enum Deviation {
    Unsealed,
    Socket,
    Pipe,
    Truncated,
    Silent,
    ForgedRecord,
    ForeignAddress,
    InvalidAnswer,
}

/// Answers as a pool process, with one deviation. Runs in this test's process.
async fn imitate(listener: UnixListener, deviation: Deviation, attached: watch::Sender<u32>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let connection = Connection::from(socket);
        while let Ok((call, _)) = connection.receive::<Call>().await {
            if matches!(deviation, Deviation::Silent) {
                continue;
            }
            if matches!(call.request, Request::Attach { .. }) {
                attached.send_modify(|count| *count += 1);
            }
            let (reply, descriptor) = reply(&call.request, deviation);
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

fn reply(request: &Request, deviation: Deviation) -> (Reply, Option<OwnedFd>) {
    match request {
        Request::Attach { .. } => (Reply::Attached(attached(deviation)), None),
        Request::GetRecord if matches!(deviation, Deviation::InvalidAnswer) => (Reply::Done, None),
        Request::GetRecord => {
            let forged = matches!(deviation, Deviation::ForgedRecord);
            let record = forged.then(|| format!("{}\n{{}}", "0".repeat(64)));
            (Reply::Record { record }, None)
        }
        Request::Extent { .. } => (Reply::Done, Some(extent(deviation))),
        _ => (Reply::Done, None),
    }
}

fn attached(deviation: Deviation) -> Attached {
    let foreign = matches!(deviation, Deviation::ForeignAddress);
    Attached {
        pod_uid: POD.to_owned(),
        pod_ip: if foreign { "10.77.0.99" } else { POOL_IP }.to_owned(),
        handshake_port: 12001,
        data_port: 12002,
        extents: Vec::new(),
        ending: false,
        ledger: None,
    }
}

fn extent(deviation: Deviation) -> OwnedFd {
    match deviation {
        Deviation::Truncated => memfd::create("short", 4096, PageSize::Base).unwrap(),
        Deviation::Socket => seqpacket::pair().unwrap().0,
        Deviation::Pipe => rustix::pipe::pipe().unwrap().0,
        _ => {
            let fd = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&fd, POOL_BYTES).unwrap();
            rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW).unwrap();
            fd
        }
    }
}

pub(crate) fn impostor(node: &Node, deviation: Deviation, pod_uid: &str) -> JoinHandle<()> {
    counted_impostor(node, deviation, pod_uid).0
}

/// Starts an impostor; also returns the count of attached agents.
fn counted_impostor(
    node: &Node,
    deviation: Deviation,
    pod_uid: &str,
) -> (JoinHandle<()>, watch::Receiver<u32>) {
    let listener = listener(node, pod_uid);
    let (count, attached) = watch::channel(0);
    (tokio::spawn(imitate(listener, deviation, count)), attached)
}

/// Listens in the network of the pod like its pool process, as a process of a pod.
pub(crate) fn listener(node: &Node, pod_uid: &str) -> UnixListener {
    let inside = Namespace::of_process(node.pod.pid()).unwrap();
    let listener = inside.run(|| seqpacket::listen(ADDRESS, 4)).unwrap();
    // The agent enters the namespace of the process that it found, and reads who listens there.
    node.show(node.pod.pid(), POD);
    let own = std::process::id();
    if own != node.pod.pid() {
        node.show_only_cgroup(own, pod_uid, node.pod.pid());
    }
    UnixListener::from_std(listener.into()).unwrap()
}

async fn is_rejected(deviation: Deviation, reason: &str) {
    let node = Node::new().await;
    let impostor = impostor(&node, deviation, POD);
    node.assign(&[(POD, None)]);
    let _agent = node.agent();
    eventually(reason, || node.shows("Refused", reason)).await;
    impostor.abort();
}

#[tokio::test]
async fn memory_that_can_shrink_is_rejected_as_not_sealed() {
    is_rejected(Deviation::Unsealed, "DescriptorNotSealed").await;
}

#[tokio::test]
async fn memory_of_another_size_is_rejected_as_wrong_size() {
    is_rejected(Deviation::Truncated, "DescriptorWrongSize").await;
}

#[tokio::test]
async fn a_pool_process_that_does_not_answer_is_rejected() {
    is_rejected(Deviation::Silent, "PoolNotResponding").await;
}

#[tokio::test]
async fn a_record_with_an_invalid_seal_is_rejected_as_forged() {
    is_rejected(Deviation::ForgedRecord, "RecordForged").await;
}

#[tokio::test]
async fn an_address_outside_the_pods_network_namespace_is_rejected() {
    is_rejected(Deviation::ForeignAddress, "AddressNotOwn").await;
}

#[tokio::test]
async fn invalid_answers_are_rejected_as_a_failed_hand_over() {
    is_rejected(Deviation::InvalidAnswer, "HandoverFailed").await;
}

#[tokio::test]
async fn requests_to_a_pool_process_with_invalid_answers_back_off() {
    let node = Node::new().await;
    let (impostor, mut attached) = counted_impostor(&node, Deviation::InvalidAnswer, POD);
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
async fn a_process_of_another_pod_is_rejected_as_foreign() {
    let node = Node::new().await;
    let impostor = impostor(
        &node,
        Deviation::Silent,
        "dddd0000-0000-4000-8000-000000000004",
    );
    node.assign(&[(POD, None)]);
    let _agent = node.agent();
    eventually("ForeignProcess", || node.shows("Refused", "ForeignProcess")).await;
    impostor.abort();
}

#[tokio::test]
async fn extents_beyond_the_assignment_are_rejected_and_reserve_nothing() {
    let node = Node::new().await;
    let path = format!("/proc/{}/ns/net", node.pod.pid());
    let inside = Namespace::open(Path::new(&path)).unwrap();
    let listener = inside.run(|| seqpacket::listen(ADDRESS, 4)).unwrap();
    let listener = UnixListener::from_std(listener.into()).unwrap();
    node.show(node.pod.pid(), POD);
    node.show_only_cgroup(std::process::id(), POD, node.pod.pid());
    // Answers the first request, and closes the connection before the next one.
    let impostor = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let connection = Connection::from(socket);
            let Ok((call, _)) = connection.receive::<Call>().await else {
                continue;
            };
            let mut attached = attached(Deviation::Silent);
            attached.extents = vec![pool::handover::message::ExtentState {
                length: 1 << 62,
                touched: 0,
            }];
            let answer = FromPool::Answer {
                id: call.id,
                reply: Reply::Attached(attached),
            };
            let _ = connection.send(&answer, &[], PATIENCE).await;
        }
    });
    node.assign(&[(POD, None)]);
    let _agent = node.agent();
    eventually("DescriptorWrongSize", || {
        node.shows("Refused", "DescriptorWrongSize")
    })
    .await;
    impostor.abort();
}
