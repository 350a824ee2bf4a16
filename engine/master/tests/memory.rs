//! Memory that malicious clients can make the server take. Not together with other tests: they measure this process.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/served.rs"]
mod served;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use mooncake_master::server::Limits;
use proto::store::BareRpc;
use proto::store::release_0_3_13 as wire;
use proto::struct_pack;
use served::{SOON, closed, header, limits, start};
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Held by the test that measures.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib << 10
}

#[tokio::test]
async fn many_large_half_requests_take_bounded_memory() {
    const CONNECTIONS: usize = 200;
    const BUDGET: usize = 64 << 20;
    let _alone = ALONE.lock().await;
    let served = start(Limits {
        buffered_bytes: BUDGET,
        frame_deadline: Duration::from_secs(2),
        ..Limits::default()
    });
    served.serves().await;
    let before = resident();
    // 200 × 16 MiB, of which all but one byte is sent if the server takes it.
    let half = [
        &header(wire::BatchExistKey::function_id(), 16 << 20)[..],
        &vec![7; (16 << 20) - 1][..],
    ]
    .concat();
    let half: Arc<[u8]> = half.into();
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = served.connect().await;
        let half = Arc::clone(&half);
        tasks.push(tokio::spawn(async move {
            // Fails when the server closes the connection.
            let _ = stream.write_all(&half).await;
            closed(&mut stream, Duration::from_secs(60)).await
        }));
    }
    let mut most = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        most = most.max(resident());
        served.serves().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let grown = most.saturating_sub(before);
    println!(
        "{CONNECTIONS} half requests of 16 MiB: {} MiB more",
        grown >> 20
    );
    // Vectors grow by doubling, and the sender's own copy of the request is in this process.
    assert!(grown < 3 * BUDGET as u64, "{} MiB more", grown >> 20);
    assert_eq!(served.faulty(), CONNECTIONS as u64);
    served.serves().await;
}

#[tokio::test]
async fn a_client_that_takes_no_replies_is_closed_and_does_not_fill_the_memory() {
    let _alone = ALONE.lock().await;
    let served = start(limits());
    let before = resident();
    let keys: Vec<_> = (0..60_000).map(|number| format!("{number}")).collect();
    let body = struct_pack::encode(&(keys, String::new()));
    let length = u32::try_from(body.len()).unwrap();
    let request = [
        &header(wire::BatchGetReplicaList::function_id(), length)[..],
        &body,
    ]
    .concat();
    let mut stream = served.connect().await;
    // Without reading: the replies fill the buffers of both sockets, then the server reads no more.
    let sent = timeout(SOON, async {
        let mut sent = 0_u64;
        while stream.write_all(&request).await.is_ok() {
            sent += 1;
        }
        sent
    });
    let sent = sent.await.expect("the connection is closed in time");
    let grown = resident().saturating_sub(before);
    println!("{sent} requests, {} MiB more", grown >> 20);
    assert!(grown < 64 << 20, "{} MiB more", grown >> 20);
    served.serves().await;
}
