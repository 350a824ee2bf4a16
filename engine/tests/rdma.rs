//! Both roles against the stock wheel over an RDMA device. `cargo test -p mooncake-e2e --test soft_roce` runs these tests in
//! a virtual machine with Soft-RoCE devices. The cases of our engines alone also run on an invented libibverbs.
#![cfg(feature = "rdma")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/verbs.rs"]
mod device;
#[path = "rdma/peers.rs"]
mod peers;
#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/stock.rs"]
mod stock;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_engine::{Card, Class, Engine, Op, Port, Settings, Transfer, TransferError};
use rig::{BASE, Rig, quick};
use serde_json::json;
use stock::Stock;

const HOST: &str = "127.0.0.1";
const LENGTH: u64 = 4 << 20;
const LENGTHS: [u64; 4] = [1, 4096, 65_537, LENGTH];
/// Of each transfer in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn card() -> Arc<Card> {
    card_of("rxe0")
}

fn card_of(device: &str) -> Arc<Card> {
    Card::open(Port {
        device: device.to_owned(),
        number: 1,
        gid_index: 1,
        class: Class::default(),
    })
    .unwrap()
}

fn rig(card: &Arc<Card>, base: u64) -> Rig {
    rig_of(card, base, 1)
}

fn rig_of(card: &Arc<Card>, base: u64, data_threads: usize) -> Rig {
    let settings = Settings {
        data_threads,
        connect_timeout: PATIENCE,
        header_deadline: PATIENCE,
        ..quick()
    };
    let engine = Engine::start_rdma(settings, std::slice::from_ref(card)).unwrap();
    Rig::with(engine, IpAddr::V4(Ipv4Addr::LOCALHOST), base)
}

fn pattern(seed: u64, length: u64) -> Vec<u8> {
    (0..length)
        .map(|i| u8::try_from((seed + i) % 251).unwrap())
        .collect()
}

fn bytes(rig: &Rig, offset: u64, length: u64) -> Vec<u8> {
    let mut there = vec![0; usize::try_from(length).unwrap()];
    rig.region.copy_out(offset, &mut there).unwrap();
    there
}

async fn transfer(rig: &Rig, op: Op, peer: &str, remote: u64, length: u64) {
    let transfer = Transfer {
        op,
        peer: peer.to_owned(),
        remote,
        local: rig.id,
        local_offset: 100,
        length,
    };
    let deadline = Instant::now() + PATIENCE;
    let mut batch = rig.endpoint.submit(&[transfer], deadline);
    batch.outcome().await.unwrap();
    batch.released().await;
}

/// Writes, again if the peer's memory has changed: then nothing was written, as the error states.
async fn write_to_changed(rig: &Rig, peer: &str, remote: u64, length: u64) {
    for _ in 0..3 {
        let write = Transfer {
            op: Op::Write,
            peer: peer.to_owned(),
            remote,
            local: rig.id,
            local_offset: 100,
            length,
        };
        let deadline = Instant::now() + PATIENCE;
        match rig.endpoint.transfer(write, deadline).await {
            Ok(()) => return,
            Err(error) => assert!(matches!(error, TransferError::Failed { .. }), "{error}"),
        }
    }
    panic!("the descriptor is not read again");
}

/// The stock engine writes a range of our region from its memory at `local`, and reads it back.
fn accesses(rig: &Rig, stock: &mut Stock, local: u64, (offset, length): (u64, u64), seed: u64) {
    stock.fill(local, length, seed);
    let written = stock.transfer("write", &rig.name, local, BASE + offset, length);
    assert_eq!(written, 0, "{length} bytes");
    assert!(bytes(rig, offset, length) == pattern(seed, length));
    stock.fill(local, length, 0);
    let read = stock.transfer("read", &rig.name, local, BASE + offset, length);
    assert_eq!(read, 0, "{length} bytes");
    assert!(stock.check(local, length, seed), "{length} bytes differ");
}

async fn close(rig: Rig) {
    let closed = tokio::time::timeout(PATIENCE, rig.endpoint.close()).await;
    closed.expect("the device ends everything").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the RDMA device rxe0"]
async fn a_stock_engine_reads_and_writes_our_region() {
    let rig = rig(&card(), BASE);
    let mut stock = Stock::start_rdma(HOST, "rxe0");
    let local = stock.allocate(LENGTH);
    let first = stock.request(json!({"call": "first", "peer": rig.name}));
    assert_eq!(first["address"].as_u64(), Some(BASE));
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let seed = round as u64 * 17 + 1;
        let offset = 4096 * round as u64 + 13;
        accesses(&rig, &mut stock, local, (offset, length), seed);
    }
    close(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the RDMA device rxe0"]
async fn we_read_and_write_the_memory_of_a_stock_engine() {
    let rig = rig(&card(), BASE);
    let mut stock = Stock::start_rdma(HOST, "rxe0");
    let remote = stock.allocate(LENGTH);
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let seed = round as u64 * 31 + 1;
        rig.region.copy_in(100, &pattern(seed, length)).unwrap();
        transfer(&rig, Op::Write, &stock.name, remote, length).await;
        assert!(stock.check(remote, length, seed), "{length} bytes differ");
        stock.fill(remote, length, seed + 7);
        transfer(&rig, Op::Read, &stock.name, remote, length).await;
        assert!(bytes(&rig, 100, length) == pattern(seed + 7, length));
    }
    // Each side's connection serves its own transfers: ours end, and theirs go on.
    let local = stock.allocate(LENGTH);
    stock.fill(local, LENGTH, 5);
    let name = rig.name.clone();
    assert_eq!(stock.transfer("write", &name, local, BASE, LENGTH), 0);
    assert!(bytes(&rig, 0, LENGTH) == pattern(5, LENGTH));
    close(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the RDMA device rxe0"]
async fn two_of_our_engines_exchange_bytes_also_under_another_wire_base() {
    let card = card();
    let [ours, theirs] = [BASE, 3 * BASE].map(|base| rig(&card, base));
    for (round, base) in [3 * BASE, 5 * BASE, 7 * BASE].into_iter().enumerate() {
        if round > 0 {
            let rebased = theirs.endpoint.rebase_region(theirs.id, base);
            tokio::time::timeout(PATIENCE, rebased)
                .await
                .unwrap()
                .unwrap();
        }
        let seed = round as u64 + 1;
        ours.region.copy_in(100, &pattern(seed, LENGTH)).unwrap();
        write_to_changed(&ours, &theirs.name, base, LENGTH).await;
        assert!(bytes(&theirs, 0, LENGTH) == pattern(seed, LENGTH));
    }
    close(ours).await;
    close(theirs).await;
}

/// A peer over RDMA and one over TCP access the same bytes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the RDMA device rxe0"]
async fn stock_engines_over_rdma_and_over_tcp_share_our_region() {
    let rig = rig(&card(), BASE);
    let mut stock = [Stock::start_rdma(HOST, "rxe0"), Stock::start(HOST, &[])];
    let local = stock.each_mut().map(|one| one.allocate(LENGTH));
    for (round, (writer, reader)) in [(0, 1), (1, 0)].into_iter().enumerate() {
        let seed = round as u64 + 3;
        stock[writer].fill(local[writer], LENGTH, seed);
        let written = stock[writer].transfer("write", &rig.name, local[writer], BASE, LENGTH);
        assert_eq!(written, 0);
        let read = stock[reader].transfer("read", &rig.name, local[reader], BASE, LENGTH);
        assert_eq!(read, 0);
        assert!(stock[reader].check(local[reader], LENGTH, seed));
    }
    close(rig).await;
}

/// Runs a case with one of our engines over an RDMA device.
fn with_one<F: Future<Output = ()>>(test: &str, case: impl FnOnce(Rig) -> F) {
    device::with_device(test, || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { case(rig_of(&card_of(device::names()[0]), BASE, 2)).await });
    });
}

#[test]
fn a_stock_engine_over_tcp_and_an_engine_over_rdma_access_each_other() {
    let name = "rdma::a_stock_engine_over_tcp_and_an_engine_over_rdma_access_each_other";
    with_one(name, |rig| async move {
        // It must not find the invented library.
        let mut stock = Stock::start(HOST, &[("LD_LIBRARY_PATH", "")]);
        let there = stock.allocate(LENGTH);
        for (round, length) in LENGTHS.into_iter().enumerate() {
            let seed = round as u64 * 13 + 1;
            let offset = 4096 * round as u64 + 13;
            accesses(&rig, &mut stock, there, (offset, length), seed);

            rig.region.copy_in(100, &pattern(seed + 5, length)).unwrap();
            transfer(&rig, Op::Write, &stock.name, there, length).await;
            assert!(stock.check(there, length, seed + 5));
            stock.fill(there, length, seed + 9);
            transfer(&rig, Op::Read, &stock.name, there, length).await;
            assert!(bytes(&rig, 100, length) == pattern(seed + 9, length));
        }
        close(rig).await;
    });
}

#[test]
fn engines_over_rdma_and_over_tcp_access_each_other_also_under_another_wire_base() {
    let name =
        "rdma::engines_over_rdma_and_over_tcp_access_each_other_also_under_another_wire_base";
    with_one(name, |rdma| async move {
        let tcp = Rig::on(quick(), IpAddr::V4(Ipv4Addr::LOCALHOST), 3 * BASE);
        let mut base = BASE;
        for round in 1..4 {
            tcp.region.copy_in(100, &pattern(round, LENGTH)).unwrap();
            write_to_changed(&tcp, &rdma.name, base, LENGTH).await;
            assert!(bytes(&rdma, 0, LENGTH) == pattern(round, LENGTH));
            transfer(&rdma, Op::Read, &tcp.name, 3 * BASE, LENGTH).await;
            assert!(bytes(&rdma, 100, LENGTH) == bytes(&tcp, 0, LENGTH));

            let former = base;
            base = (2 * round + 3) * BASE;
            let rebased = rdma.endpoint.rebase_region(rdma.id, base);
            let rebased = tokio::time::timeout(PATIENCE, rebased).await;
            rebased
                .expect("both transports end the former base")
                .unwrap();
            let late = Transfer {
                op: Op::Write,
                peer: rdma.name.clone(),
                remote: former,
                local: tcp.id,
                local_offset: 0,
                length: 4096,
            };
            let before = bytes(&rdma, 0, LENGTH);
            let refused = tcp.endpoint.transfer(late, Instant::now() + PATIENCE).await;
            assert!(refused.is_err(), "an address of the former base");
            assert!(bytes(&rdma, 0, LENGTH) == before);
        }
        close(tcp).await;
        close(rdma).await;
    });
}

#[test]
fn connections_over_tcp_are_passed_on_by_an_engine_over_rdma() {
    let name = "rdma::connections_over_tcp_are_passed_on_by_an_engine_over_rdma";
    with_one(name, |rdma| async move {
        let tcp = Rig::on(quick(), IpAddr::V4(Ipv4Addr::LOCALHOST), 3 * BASE);
        tcp.region.copy_in(0, &pattern(1, 4096)).unwrap();
        transfer(&tcp, Op::Write, &rdma.name, BASE, 4096).await;
        let passed = rdma.endpoint.pass_on(PATIENCE).await.unwrap();
        assert_eq!(passed.len(), 1);
        close(tcp).await;
        close(rdma).await;
    });
}

/// Runs a case with two of our engines, the first one with so many data threads.
fn between_two<F: Future<Output = ()>>(
    test: &str,
    data_threads: usize,
    case: impl FnOnce(Rig, Rig) -> F,
) {
    device::with_device(test, || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let card = card_of(device::names()[0]);
            let ours = rig_of(&card, BASE, data_threads);
            case(ours, rig_of(&card, 3 * BASE, 1)).await;
        });
    });
}

#[test]
fn data_threads_with_one_device_keep_their_links() {
    const PART: u64 = 1 << 20;
    let name = "rdma::data_threads_with_one_device_keep_their_links";
    between_two(name, 2, |ours, theirs| async move {
        for round in 1..4 {
            ours.region.copy_in(0, &pattern(round, 8 * PART)).unwrap();
            let parts: Vec<_> = (0..8)
                .map(|at| Transfer {
                    op: Op::Write,
                    peer: theirs.name.clone(),
                    remote: 3 * BASE + at * PART,
                    local: ours.id,
                    local_offset: at * PART,
                    length: PART,
                })
                .collect();
            let mut batch = ours.endpoint.submit(&parts, Instant::now() + PATIENCE);
            batch.outcome().await.unwrap();
            batch.released().await;
            assert!(bytes(&theirs, 0, 8 * PART) == pattern(round, 8 * PART));
        }
        close(ours).await;
        close(theirs).await;
    });
}

#[test]
fn a_transfer_to_an_unknown_range_fails_alone() {
    let name = "rdma::a_transfer_to_an_unknown_range_fails_alone";
    between_two(name, 1, |ours, theirs| async move {
        ours.region.copy_in(0, &pattern(1, LENGTH)).unwrap();
        // Both wait for the same link.
        let [mut wrong, mut right] = [9 * BASE, 3 * BASE].map(|remote| {
            let write = Transfer {
                op: Op::Write,
                peer: theirs.name.clone(),
                remote,
                local: ours.id,
                local_offset: 0,
                length: 4096,
            };
            ours.endpoint.submit(&[write], Instant::now() + PATIENCE)
        });
        let error = wrong.outcome().await.unwrap_err();
        assert!(matches!(error, TransferError::Failed { .. }), "{error}");
        right.outcome().await.unwrap();
        assert!(bytes(&theirs, 0, 4096) == pattern(1, 4096));
        close(ours).await;
        close(theirs).await;
    });
}

#[test]
fn own_transfers_use_a_device_that_has_registered_their_memory() {
    const PART: u64 = 128 << 10;
    device::with_device(
        "rdma::own_transfers_use_a_device_that_has_registered_their_memory",
        || {
            if device::is_real() {
                return;
            }
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let cards = device::names().map(card_of);
                let failing = device::calls().join("fail-ibv_reg_mr_iova2-invented_1");
                std::fs::write(&failing, "12").unwrap();
                let settings = Settings {
                    data_threads: 1,
                    connect_timeout: PATIENCE,
                    header_deadline: PATIENCE,
                    ..quick()
                };
                let engine = Engine::start_rdma(settings, &cards).unwrap();
                let ours = Rig::with(engine, IpAddr::V4(Ipv4Addr::LOCALHOST), BASE);
                std::fs::remove_file(failing).unwrap();
                let theirs = rig_of(&cards[0], 3 * BASE, 1);
                ours.region.copy_in(0, &pattern(1, LENGTH)).unwrap();
                for length in [PART, 100] {
                    let parts: Vec<_> = (0..8)
                        .map(|at| Transfer {
                            op: Op::Write,
                            peer: theirs.name.clone(),
                            remote: 3 * BASE + at * PART,
                            local: ours.id,
                            local_offset: at * PART,
                            length,
                        })
                        .collect();
                    let mut batch = ours.endpoint.submit(&parts, Instant::now() + PATIENCE);
                    batch.outcome().await.unwrap();
                    batch.released().await;
                }
                assert!(bytes(&theirs, 0, 8 * PART) == pattern(1, 8 * PART));
                close(ours).await;
                close(theirs).await;
            });
        },
    );
}

/// What the invented library has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// Calls of `ibv_post_send`.
    doorbells: u64,
    requests: u64,
    signalled: u64,
    /// Of completion queues.
    events: u64,
    /// Registrations of memory.
    keys: u64,
}

impl Counts {
    fn now() -> Self {
        let lines = |file| {
            let text = std::fs::read_to_string(device::calls().join(file)).unwrap_or_default();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let posts = lines("posts");
        let sum = |column| {
            let numbers = posts
                .iter()
                .map(|line| line.split(' ').nth(column).unwrap());
            numbers.map(|number| number.parse::<u64>().unwrap()).sum()
        };
        Self {
            doorbells: posts.len() as u64,
            requests: sum(0),
            signalled: sum(1),
            events: lines("events").len() as u64,
            keys: lines("access").len() as u64,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            doorbells: self.doorbells - before.doorbells,
            requests: self.requests - before.requests,
            signalled: self.signalled - before.signalled,
            events: self.events - before.events,
            keys: self.keys - before.keys,
        }
    }
}

#[test]
fn sixteen_slices_of_a_batch_take_one_doorbell_and_one_signalled_request() {
    /// As `CHAIN` of a link.
    const CHAIN: u64 = 16;
    const SLICE: u64 = 256 << 10;
    let name = "rdma::sixteen_slices_of_a_batch_take_one_doorbell_and_one_signalled_request";
    between_two(name, 1, |ours, theirs| async move {
        if device::is_real() {
            return;
        }
        // Opens the link.
        transfer(&ours, Op::Write, &theirs.name, 3 * BASE, 1).await;
        // (transfers, bytes of each, slices of all): depths up to the window of a link, 128.
        for (count, length, slices) in [
            (1, 1, 1),
            (1, 17 * SLICE, 17),
            (1, 64 * SLICE, 64),
            (64, 4096, 64),
            (16, 4 * SLICE, 64),
            (128, 4096, 128),
        ] {
            for op in [Op::Write, Op::Read] {
                let part = |at| Transfer {
                    op,
                    peer: theirs.name.clone(),
                    remote: 3 * BASE + at * length,
                    local: ours.id,
                    local_offset: at * length,
                    length,
                };
                let parts: Vec<_> = (0..count).map(part).collect();
                let before = Counts::now();
                let mut batch = ours.endpoint.submit(&parts, Instant::now() + PATIENCE);
                batch.outcome().await.unwrap();
                batch.released().await;
                let made = Counts::now().since(before);
                println!("{count} of {length} bytes: {made:?}");
                assert_eq!(made.requests, slices, "{count} of {length} bytes");
                assert_eq!(made.doorbells, slices.div_ceil(CHAIN), "{made:?}");
                assert_eq!(made.signalled, made.doorbells, "{made:?}");
                assert!(made.events <= made.signalled, "{made:?}");
                assert_eq!(made.keys, 0, "no transfer registers memory");
            }
        }
        close(ours).await;
        close(theirs).await;
    });
}

#[test]
fn each_region_takes_one_key_of_each_device() {
    device::with_device("rdma::each_region_takes_one_key_of_each_device", || {
        if device::is_real() {
            return;
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let cards = device::names().map(card_of);
            for devices in [1, 2] {
                let before = Counts::now();
                let engine = Engine::start_rdma(quick(), &cards[..devices]).unwrap();
                let rig = Rig::with(engine, IpAddr::V4(Ipv4Addr::LOCALHOST), BASE);
                for extent in 1..4 {
                    let memory = rig::region(4096);
                    let base = (3 + extent) * BASE;
                    rig.endpoint.add_region(memory, base).unwrap();
                }
                let keys = Counts::now().since(before).keys;
                assert_eq!(keys, 4 * devices as u64, "{devices} devices");
                close(rig).await;
            }
        });
    });
}
