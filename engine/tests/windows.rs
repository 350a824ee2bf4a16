//! The engine over a transport that carries many requests on a link and completes them in any order, as RDMA does.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use mooncake_engine::transport::Transport;
use mooncake_engine::transport::fault::{Faulty, Policy};
use mooncake_engine::transport::memory::{Fabric, Memory, Shape};
use mooncake_engine::{Engine, Op, Settings, Transfer, TransferError};

use rig::{BASE, Rig, pattern, quick};

const SHAPE: Shape = Shape {
    window: 16,
    depth: 16,
    delay: 4,
    seed: 3,
};
/// Of each transfer, on a machine that does other work too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of each transfer: several slices, the last one shorter.
const LENGTH: u64 = 300_000;
const TRANSFERS: u64 = 64;

/// Two engines on one fabric.
fn rigs(shape: Shape, wrap: fn(Memory) -> Box<dyn Transport>) -> [Rig; 2] {
    let fabric = Fabric::default();
    let settings = Settings {
        slice_bytes: 64 << 10,
        lanes_per_peer: 2,
        ..quick()
    };
    [BASE, 3 * BASE].map(|base| {
        let engine = Engine::start_with(settings, |_| wrap(Memory::new(&fabric, shape))).unwrap();
        Rig::with(engine, IpAddr::V4(Ipv4Addr::LOCALHOST), base)
    })
}

/// Transfers of ranges that do not overlap.
fn transfers(op: Op, ours: &Rig, theirs: &Rig) -> Vec<Transfer> {
    let one = |at: u64| Transfer {
        op,
        peer: theirs.name.clone(),
        remote: 3 * BASE + at * LENGTH,
        local: ours.id,
        local_offset: at * LENGTH,
        length: LENGTH,
    };
    (0..TRANSFERS).map(one).collect()
}

fn bytes(rig: &Rig, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(LENGTH).unwrap()];
    rig.region.copy_out(at * LENGTH, &mut bytes).unwrap();
    bytes
}

fn all(rig: &Rig) -> Vec<u8> {
    (0..TRANSFERS).flat_map(|at| bytes(rig, at)).collect()
}

fn fill(rig: &Rig, seed: u64) -> Vec<u8> {
    let bytes = pattern(seed, usize::try_from(TRANSFERS * LENGTH).unwrap());
    rig.region.copy_in(0, &bytes).unwrap();
    bytes
}

async fn moves_every_byte(shape: Shape) {
    let [ours, theirs] = rigs(shape, |memory| Box::new(memory));
    let source = fill(&ours, 1);
    fill(&theirs, 2);
    let writes = transfers(Op::Write, &ours, &theirs);
    let deadline = Instant::now() + PATIENCE;
    let mut batch = ours.endpoint.submit(&writes, deadline);
    batch.outcome().await.unwrap();
    batch.released().await;
    assert!(all(&theirs) == source, "the writes");

    let source = fill(&theirs, 3);
    let reads = transfers(Op::Read, &ours, &theirs);
    let deadline = Instant::now() + PATIENCE;
    ours.endpoint
        .submit(&reads, deadline)
        .outcome()
        .await
        .unwrap();
    assert!(all(&ours) == source, "the reads");
}

#[tokio::test(flavor = "multi_thread")]
async fn full_windows_move_every_byte_in_any_order() {
    moves_every_byte(SHAPE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_link_refuses_are_posted_again() {
    moves_every_byte(Shape { depth: 3, ..SHAPE }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_links_end_each_transfer_of_their_windows_once_and_release_its_memory() {
    const POLICY: Policy = Policy {
        fail_every: Some(40),
        release_delay: Duration::from_millis(1),
        stale_every: None,
        pause: Duration::ZERO,
    };
    let [ours, theirs] = rigs(SHAPE, |memory| Box::new(Faulty::new(memory, POLICY)));
    let source = fill(&ours, 1);
    fill(&theirs, 2);
    let (mut good, mut bad) = (0, 0);
    for at in 0..TRANSFERS {
        // Each one alone names its own outcome; several at a time share links.
        let writes = transfers(Op::Write, &ours, &theirs);
        let near = [at, (at + 1) % TRANSFERS, (at + 2) % TRANSFERS];
        let deadline = Instant::now() + PATIENCE;
        let mut batches = near.map(|at| {
            let write = &writes[usize::try_from(at).unwrap()];
            (
                at,
                ours.endpoint.submit(std::slice::from_ref(write), deadline),
            )
        });
        for (at, batch) in &mut batches {
            match batch.outcome().await {
                Ok(()) => {
                    good += 1;
                    let from = usize::try_from(*at * LENGTH).unwrap();
                    let wanted = &source[from..][..usize::try_from(LENGTH).unwrap()];
                    assert!(bytes(&theirs, *at) == wanted, "a confirmed write differs");
                }
                Err(TransferError::Indeterminate { .. }) => bad += 1,
                Err(error) => panic!("a write without a known effect: {error}"),
            }
            batch.released().await;
        }
    }
    assert!(good > 0 && bad > 0, "{good} succeeded, {bad} failed");
    tokio::time::timeout(PATIENCE, ours.endpoint.remove_region(ours.id))
        .await
        .expect("nothing uses the region")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_is_removed_under_full_windows() {
    let slow = Shape { delay: 60, ..SHAPE };
    let [ours, theirs] = rigs(slow, |memory| Box::new(memory));
    fill(&theirs, 2);
    let reads = transfers(Op::Read, &ours, &theirs);
    let mut batch = ours.endpoint.submit(&reads, Instant::now() + PATIENCE);
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    let end = Instant::now() + PATIENCE;
    while all(&ours).iter().all(|byte| *byte == 0) {
        assert!(Instant::now() < end, "no bytes have arrived");
        tick.tick().await;
    }
    tokio::time::timeout(PATIENCE, ours.endpoint.remove_region(ours.id))
        .await
        .expect("the transfers are cut")
        .unwrap();
    // Nothing writes to it any more.
    let source = fill(&ours, 5);
    // A busy machine may have completed it before.
    let _cut_or_complete = batch.outcome().await;
    batch.released().await;
    assert!(all(&ours) == source);
}
