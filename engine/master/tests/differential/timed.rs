//! The same steps on both masters, in which time passes: leases, discarded puts, expiry of clients, unmounting, eviction.

use std::time::Duration;

use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};
use tokio::time::sleep;
use wire::{ObjectMeta, ReplicaType, ReplicateConfig, Segment};

use crate::client::Client;
use crate::namespace::{Host, OURS, STOCK};

const FLAGS: [&str; 5] = [
    "--default_kv_lease_ttl=1000",
    "--client_ttl=4",
    "--put_start_discard_timeout_sec=2",
    "--put_start_release_timeout_sec=3",
    "--eviction_high_watermark_ratio=0.9",
];
const WRITER: Uuid = Uuid {
    first: 1,
    second: 1,
};
const OWNER: Uuid = Uuid {
    first: 2,
    second: 2,
};
const SEGMENT_BYTES: u64 = 64 << 20;

fn segment(number: u64) -> Segment {
    Segment {
        id: Uuid {
            first: 3,
            second: number,
        },
        name: format!("10.0.0.{number}:1"),
        base: (1 << 58) + (number << 30),
        size: SEGMENT_BYTES,
        te_endpoint: format!("10.0.0.{number}:1"),
        protocol: "tcp".into(),
        host_id: String::new(),
    }
}

async fn start(client: &mut Client, key: &str, size: u64) -> Result<usize, ErrorCode> {
    let arguments = (
        WRITER,
        key.into(),
        size,
        ReplicateConfig::default(),
        "default".into(),
    );
    let replicas = client.call::<wire::PutStart>(&arguments).await?;
    Ok(replicas.len())
}

async fn put(client: &mut Client, key: &str, size: u64) -> Result<(), ErrorCode> {
    start(client, key, size).await?;
    let meta = ObjectMeta {
        key: key.into(),
        object_checksum: None,
    };
    let arguments = (WRITER, meta, ReplicaType::All, "default".into());
    client.call::<wire::PutEnd>(&arguments).await
}

async fn get(client: &mut Client, key: &str) -> Result<u64, ErrorCode> {
    let found = client
        .call::<wire::GetReplicaList>(&(key.into(), "default".into()))
        .await?;
    Ok(found.lease_ttl_ms)
}

async fn remove(client: &mut Client, key: &str) -> Result<(), ErrorCode> {
    client
        .call::<wire::Remove>(&(key.into(), false, "default".into()))
        .await
}

/// What each step answered.
async fn steps(client: &mut Client) -> Vec<String> {
    let mut seen = Vec::new();
    macro_rules! see {
        ($answer:expr) => {
            seen.push(format!("{}: {:?}", stringify!($answer), $answer))
        };
    }
    let mount = (segment(1), OWNER);
    see!(client.call::<wire::MountSegment>(&mount).await);
    see!(client.call::<wire::Ping>(&OWNER).await);
    let remount = (vec![segment(1)], OWNER);
    see!(client.call::<wire::ReMountSegment>(&remount).await);
    see!(client.call::<wire::Ping>(&OWNER).await);

    // A lease.
    see!(put(client, "leased", 100).await);
    see!(get(client, "leased").await);
    see!(remove(client, "leased").await);
    sleep(Duration::from_millis(1500)).await;
    see!(remove(client, "leased").await);

    // An unfinished put.
    see!(start(client, "unfinished", 100).await);
    see!(start(client, "unfinished", 100).await);
    see!(get(client, "unfinished").await);
    for _ in 0..5 {
        sleep(Duration::from_millis(500)).await;
        see!(client.call::<wire::Ping>(&OWNER).await);
    }
    see!(start(client, "unfinished", 100).await);

    // A segment that unmounts gracefully.
    let second = (segment(2), OWNER);
    see!(client.call::<wire::MountSegment>(&second).await);
    let id = segment(2).id;
    see!(client.call::<wire::QuerySegmentStatusById>(&id).await);
    let graceful = (id, OWNER, 800);
    see!(client.call::<wire::GracefulUnmountSegment>(&graceful).await);
    see!(client.call::<wire::QuerySegmentStatusById>(&id).await);
    // Refused with −1010.
    see!(client.call::<wire::MountSegment>(&second).await);
    sleep(Duration::from_millis(2000)).await;
    see!(client.call::<wire::QuerySegmentStatusById>(&id).await);
    see!(client.call::<wire::GracefulUnmountSegment>(&graceful).await);

    // A client that expires, with its segment and the objects in it.
    see!(client.call::<wire::Ping>(&OWNER).await);
    see!(put(client, "kept", 100).await);
    sleep(Duration::from_millis(6500)).await;
    let id = segment(1).id;
    see!(client.call::<wire::QuerySegmentStatusById>(&id).await);
    see!(get(client, "kept").await);
    see!(start(client, "nowhere", 100).await);
    see!(client.call::<wire::Ping>(&OWNER).await);
    seen
}

#[tokio::test]
async fn what_time_does_is_what_it_does_in_the_stock_master() {
    let host = Host::new().await;
    let _stock = host.stock(&FLAGS).await;
    let _ours = host.ours(&FLAGS).await;
    let (mut stock, mut ours) = (host.client(STOCK).await, host.client(OURS).await);
    let (stock, ours) = tokio::join!(steps(&mut stock), steps(&mut ours));
    for (stock, ours) in stock.iter().zip(&ours) {
        println!("{ours}");
        assert_eq!(stock, ours);
    }
    assert_eq!(stock.len(), ours.len());
}

/// Puts more than there is space for, and returns how many objects were evicted, and how many of the first hundred and
/// of the last hundred still exist.
async fn overfill(client: &mut Client) -> (u64, usize, usize) {
    const OBJECTS: u64 = 2_000;
    const BYTES: u64 = 64 << 10;
    let mount = (segment(1), OWNER);
    client.call::<wire::MountSegment>(&mount).await.unwrap();
    let mut refused = 0;
    for number in 0..OBJECTS {
        // The segment has space for 1,024 objects.
        while put(client, &format!("key{number}"), BYTES).await.is_err() {
            refused += 1;
            assert!(refused < 2_000, "nothing is evicted");
            sleep(Duration::from_millis(5)).await;
        }
        if number % 50 == 0 {
            client.call::<wire::Ping>(&OWNER).await.unwrap();
        }
    }
    sleep(Duration::from_millis(200)).await;
    let keys = (0..OBJECTS).map(|number| format!("key{number}")).collect();
    let exist = client
        .bare::<wire::BatchExistKey>(&(keys, "default".into()))
        .await;
    let exist: Vec<_> = exist.into_iter().map(|exists| exists.unwrap()).collect();
    let count = |some: &[bool]| some.iter().filter(|exists| **exists).count();
    let left = count(&exist);
    (
        OBJECTS - left as u64,
        count(&exist[..100]),
        count(&exist[1900..]),
    )
}

#[tokio::test]
async fn old_objects_are_evicted_above_the_watermark_as_by_the_stock_master() {
    let host = Host::new().await;
    let _stock = host.stock(&FLAGS).await;
    let _ours = host.ours(&FLAGS).await;
    let mut stock = host.client(STOCK).await;
    let mut ours = host.client(OURS).await;
    let stock = overfill(&mut stock).await;
    let ours = overfill(&mut ours).await;
    println!(
        "evicted, left of the first 100, left of the last 100: stock {stock:?}, ours {ours:?}"
    );
    for (evicted, first, last) in [stock, ours] {
        assert!((1_000..1_500).contains(&evicted), "{evicted}");
        assert_eq!((first, last), (0, 100));
    }
}
