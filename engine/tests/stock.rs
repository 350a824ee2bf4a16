//! Tests of both roles against the stock wheel.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/stock.rs"]
mod stock;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_engine::{Ended, Engine, Namespace, Op, Settings, Transfer, TransferError};
use mooncake_stock::Space;
use proto::frame::Status;
use rig::{BASE, Rig, bounded, hasty, quick, soon};
use rustix::process::{Pid, Signal};
use serde_json::json;
use stock::Stock;

const LENGTH: u64 = 8 << 20;

fn stock_pattern(seed: u64, length: u64) -> Vec<u8> {
    (0..length)
        .map(|i| u8::try_from((seed + i) % 251).unwrap())
        .collect()
}

fn region_has(rig: &Rig, offset: u64, wanted: &[u8]) -> bool {
    let mut there = vec![0; wanted.len()];
    rig.region.copy_out(offset, &mut there).unwrap();
    there == wanted
}

/// A stock engine writes into a region of this engine, reads it back, and gets an error for a bad address.
fn stock_initiates(rig: &Rig, stock: &mut Stock, base: u64) {
    let local = stock.allocate(LENGTH);
    assert_eq!(
        stock.request(json!({"call": "first", "peer": rig.name}))["address"].as_u64(),
        Some(base)
    );
    for (round, length) in [1, 4096, 65_537, LENGTH].into_iter().enumerate() {
        let seed = round as u64 * 17;
        let offset = 4096 * round as u64 + 13;
        stock.fill(local, length, seed);
        assert_eq!(
            stock.transfer("write", &rig.name, local, base + offset, length),
            0
        );
        // Version 1 has no status, so the last bytes may still be in flight.
        let end = soon();
        while !region_has(rig, offset, &stock_pattern(seed, length)) {
            assert!(Instant::now() < end, "{length} bytes never arrived");
        }
        stock.fill(local, length, 0);
        assert_eq!(
            stock.transfer("read", &rig.name, local, base + offset, length),
            0
        );
        assert!(
            stock.check(local, length, seed),
            "{length} bytes read back differ"
        );
    }
    assert_eq!(
        stock.transfer("read", &rig.name, local, base + rig::LENGTH, 1),
        -1
    );
    assert_eq!(stock.transfer("read", &rig.name, local, base, 16), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_engine_reads_and_writes_our_region_in_version_two() {
    let rig = Rig::new(quick());
    stock_initiates(&rig, &mut Stock::start("127.0.0.1", &[]), BASE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_engine_reads_and_writes_our_region_in_version_one() {
    let rig = Rig::new(quick());
    let mut stock = Stock::start("127.0.0.1", &[("MC_TCP_PROTO", "1")]);
    stock_initiates(&rig, &mut stock, BASE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_engine_reads_and_writes_our_region_over_ipv6() {
    let base = (1 << 61) + (3 << 30);
    let rig = Rig::on(quick(), IpAddr::V6(Ipv6Addr::LOCALHOST), base);
    let mut stock = Stock::start("::1", &[("MC_USE_IPV6", "1")]);
    stock_initiates(&rig, &mut stock, base);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_of_a_stock_engine_all_complete() {
    let rig = Rig::new(quick());
    let mut stock = Stock::start("127.0.0.1", &[]);
    let local = stock.allocate(LENGTH);
    stock.fill(local, LENGTH, 9);
    let batch = json!({
        "call": "parallel", "peer": rig.name,
        "local": local, "remote": BASE, "length": LENGTH, "count": 256,
    });
    assert_eq!(stock.request(batch)["code"], 0);
    assert!(region_has(&rig, 0, &stock_pattern(9, LENGTH)));
    assert_eq!(rig.endpoint.stats().requests, 256);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_engine_without_its_connection_pool_has_a_connection_for_each_request() {
    const COUNT: u64 = 512;
    rig::allow_descriptors();
    let rig = Rig::new(quick());
    // Of other engines at its address.
    let mut others: Vec<_> = (0..256).map(|_| rig.connect()).collect();
    let mut stock = Stock::start("127.0.0.1", &[("MC_TCP_ENABLE_CONNECTION_POOL", "0")]);
    let length = COUNT << 15;
    let local = stock.allocate(length);
    stock.fill(local, length, 9);
    let batch = json!({
        "call": "parallel", "peer": rig.name,
        "local": local, "remote": BASE, "length": length, "count": COUNT,
    });
    let code = stock.request(batch)["code"].clone();
    assert_eq!(code, 0, "{:?}", rig.endpoint.stats());
    assert!(region_has(&rig, 0, &stock_pattern(9, length)));
    assert_eq!(rig.endpoint.stats().requests, COUNT);
    for stream in &mut others {
        assert_eq!(rig::put(stream, BASE, b"x"), Status::Ok);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_engine_idle_beyond_the_header_deadline_keeps_its_connection() {
    let rig = Rig::new(hasty());
    let mut stock = Stock::start("127.0.0.1", &[]);
    let local = stock.allocate(4096);
    assert_eq!(stock.transfer("write", &rig.name, local, BASE, 4096), 0);
    tokio::time::sleep(2 * hasty().header_deadline).await;
    for _ in 0..8 {
        assert_eq!(stock.transfer("write", &rig.name, local, BASE, 4096), 0);
    }
    assert_eq!(rig.endpoint.stats().ended[Ended::HeaderDeadline], 0);
}

// A stock engine opens a further connection while requests wait for the first one, which often completes them all before the
// other one is there. Later requests use that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_stock_engine_uses_connections_that_it_opened_long_before() {
    // Which connections carry the first requests is a race; with closed ones, 10 of 48 second batches failed.
    let rigs: Vec<_> = (0..48).map(|_| Rig::new(hasty())).collect();
    let mut stock = Stock::start("127.0.0.1", &[]);
    let local = stock.allocate(LENGTH);
    let mut write = |rig: &Rig, count: usize| {
        let batch = json!({
            "call": "parallel", "peer": rig.name,
            "local": local, "remote": BASE, "length": count, "count": count,
        });
        stock.request(batch)["code"].clone()
    };
    for (number, rig) in rigs.iter().enumerate() {
        assert_eq!(write(rig, 2 + number % 4), 0);
    }
    tokio::time::sleep(2 * hasty().header_deadline).await;
    for rig in &rigs {
        assert_eq!(write(rig, 64), 0, "{:?}", rig.endpoint.stats());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_probes_and_messages_are_answered() {
    let rig = Rig::new(quick());
    let mut stock = Stock::start("127.0.0.1", &[]);
    assert_eq!(
        stock.request(json!({"call": "probe", "peer": rig.name}))["code"],
        0
    );
    let local = stock.allocate(4096);
    let message = json!({
        "call": "notify", "peer": rig.name, "local": local, "remote": BASE,
        "name": "done", "text": "grüße",
    });
    assert_eq!(stock.request(message)["code"], 0);
    let mut messages = Vec::new();
    rig::until("the message is there", || {
        messages.extend(rig.endpoint.notifies());
        !messages.is_empty()
    })
    .await;
    assert_eq!(
        (messages[0].name.as_str(), messages[0].notify_msg.as_str()),
        ("done", "grüße")
    );
}

/// This engine writes into a stock engine's buffer and reads it back.
async fn we_initiate(rig: &Rig, stock: &mut Stock) {
    let remote = stock.allocate(LENGTH);
    for (round, length) in [1, 4096, 65_537, LENGTH].into_iter().enumerate() {
        let seed = round as u64 * 31;
        rig.region
            .copy_in(11, &stock_pattern(seed, length))
            .unwrap();
        let write = Transfer {
            op: Op::Write,
            peer: stock.name.clone(),
            remote,
            local: rig.id,
            local_offset: 11,
            length,
        };
        bounded(rig.endpoint.transfer(write.clone(), soon()))
            .await
            .unwrap();
        assert!(stock.check(remote, length, seed), "{length} bytes");
        stock.fill(remote, length, seed + 1);
        let read = Transfer {
            op: Op::Read,
            ..write
        };
        bounded(rig.endpoint.transfer(read, soon())).await.unwrap();
        assert!(
            region_has(rig, 11, &stock_pattern(seed + 1, length)),
            "{length} bytes"
        );
    }
    let bad = Transfer {
        op: Op::Write,
        peer: stock.name.clone(),
        remote: remote + LENGTH,
        local: rig.id,
        local_offset: 0,
        length: 1 << 20,
    };
    let error = bounded(rig.endpoint.transfer(bad, soon()))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            TransferError::Failed { .. } | TransferError::Indeterminate { .. }
        ),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn we_read_and_write_a_stock_engines_buffer() {
    let settings = Settings {
        slice_bytes: 1 << 20,
        ..quick()
    };
    for (ip, host, environment) in [
        (IpAddr::V4(Ipv4Addr::LOCALHOST), "127.0.0.1", &[][..]),
        (
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            "::1",
            &[("MC_USE_IPV6", "1")][..],
        ),
    ] {
        let rig = Rig::on(settings, ip, BASE);
        we_initiate(&rig, &mut Stock::start(host, environment)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_stock_engine_is_an_error_and_its_successor_is_resolved() {
    let rig = Rig::new(quick());
    let mut stock = Stock::start("127.0.0.1", &[]);
    let remote = stock.allocate(4096);
    let mut read = Transfer {
        op: Op::Read,
        peer: stock.name.clone(),
        remote,
        local: rig.id,
        local_offset: 0,
        length: 4096,
    };
    bounded(rig.endpoint.transfer(read.clone(), soon()))
        .await
        .unwrap();
    drop(stock);
    let error = bounded(rig.endpoint.transfer(read.clone(), soon()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&read.peer), "{error}");
    let mut stock = Stock::start("127.0.0.1", &[]);
    read.peer = stock.name.clone();
    read.remote = stock.allocate(4096);
    bounded(rig.endpoint.transfer(read, soon())).await.unwrap();
}

/// A process that a stock engine has left behind; killed when dropped.
struct Child(Pid);

impl Drop for Child {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _gone = rustix::process::kill_process(self.0, Signal::KILL);
    }
}

/// Starts a stock engine on the handshake port of an earlier one. A stock engine chooses its ports at random
/// from a range.
fn restart_on(name: &str, space: &Space) -> Stock {
    let (host, port) = name.rsplit_once(':').unwrap();
    let last = (port.parse::<u16>().unwrap() + 2).to_string();
    let range = [("MC_MIN_RPC_PORT", port), ("MC_MAX_RPC_PORT", &last)];
    for _ in 0..30 {
        let stock = Stock::start_in(space, host, &range);
        if stock.name == name {
            return stock;
        }
    }
    panic!("no stock engine got port {port}");
}

/// A network namespace in which a port is free as soon as its process has ended.
async fn space_without_lingering_ports() -> Space {
    let space = Space::new().await.unwrap();
    let mut command = space.command("sh");
    command.args(["-c", "echo 0 >/proc/sys/net/ipv4/tcp_max_tw_buckets"]);
    assert!(command.status().await.unwrap().success());
    space
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_engine_that_restarts_on_its_port_is_resolved_while_another_link_is_busy() {
    let settings = Settings {
        lanes_per_peer: 2,
        slice_bytes: 1 << 20,
        ..quick()
    };
    let space = space_without_lingering_ports().await;
    let network = Arc::new(Namespace::of_process(space.pid()).unwrap());
    let engine = Engine::start(settings).unwrap();
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let rig = Rig::inside(Some(network), engine, localhost, BASE);
    let mut stock = Stock::start_in(&space, "127.0.0.1", &[]);
    let first = Transfer {
        op: Op::Read,
        peer: stock.name.clone(),
        remote: stock.allocate(LENGTH),
        local: rig.id,
        local_offset: 0,
        length: LENGTH,
    };
    // The second link is opened while the first one carries a slice, and may come too late for the last slice.
    let end = soon();
    while stock.request(json!({"call": "connections"}))["count"] != 2 {
        assert!(Instant::now() < end, "no second link");
        bounded(rig.endpoint.transfer(first.clone(), soon()))
            .await
            .unwrap();
    }
    let forked = stock.request(json!({"call": "fork"}));
    let pid = i32::try_from(forked["pid"].as_i64().unwrap()).unwrap();
    let _child = Child(Pid::from_raw(pid).unwrap());
    // One link ends with the engine. The child holds the other one, and answers nothing.
    drop(stock);
    let waiting = Transfer {
        length: 1,
        ..first.clone()
    };
    let end = Instant::now() + Duration::from_secs(60);
    let mut waiting = rig.endpoint.submit(&[waiting], end);
    let mut stock = restart_on(&first.peer, &space);
    let second = Transfer {
        remote: stock.allocate(LENGTH),
        local_offset: LENGTH,
        ..first
    };
    stock.fill(second.remote, LENGTH, 5);
    bounded(rig.endpoint.transfer(second, soon()))
        .await
        .unwrap();
    assert!(region_has(&rig, LENGTH, &stock_pattern(5, LENGTH)));
    let still = tokio::time::timeout(Duration::from_millis(10), waiting.outcome()).await;
    assert!(still.is_err(), "the other link is busy");
}
