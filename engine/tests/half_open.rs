//! Tests the memory use of half-open connections, and that other peers are served. The only test of its
//! process, because it measures the memory of the process.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use std::io::Write;
use std::time::Duration;

use mooncake_engine::{Ended, Settings};
use proto::frame::Status;
use rig::{BASE, Rig, connect, put, quick, until};

/// Returns the anonymous memory of this process in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("RssAnon:"))
        .unwrap();
    1024 * line
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_use_little_memory_and_block_no_peer() {
    // Time for all connections and requests below, also on a busy machine.
    let header_deadline = Duration::from_secs(10);
    let settings = Settings {
        max_connections_per_address: 400,
        header_deadline,
        ..quick()
    };
    let rig = Rig::new(settings);
    let mut honest = rig.connect();
    assert_eq!(put(&mut honest, BASE, b"honest"), Status::Ok);
    let before = anonymous();
    let mut half = Vec::new();
    // One at a time: a burst would only fill the listener's queue in the kernel.
    while rig.endpoint.stats().connections < 400 {
        let mut stream = connect(rig.data);
        stream.write_all(&[0; 20]).unwrap();
        half.push(stream);
    }
    let each = anonymous().saturating_sub(before) / 400;
    assert!(each <= 16 << 10, "{each} bytes per connection");
    for _ in 0..50 {
        assert!(
            rig::is_closed(&mut connect(rig.data)),
            "a newcomer is refused"
        );
        assert_eq!(put(&mut honest, BASE, b"still here"), Status::Ok);
    }
    until("the half-open ones are gone", || {
        rig.endpoint.stats().connections == 1
    })
    .await;
    let ended = rig.endpoint.stats().ended;
    assert!(
        ended[Ended::HeaderDeadline] >= 399 && ended[Ended::OverLimit] >= 50,
        "{ended:?}"
    );
    drop(half);
    assert_eq!(put(&mut honest, BASE, b"at last"), Status::Ok);
}
