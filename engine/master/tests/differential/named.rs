//! Answers that depend on names of hosts: addresses of clients, and where objects of a host are placed.

use proto::store::Uuid;
use proto::store::release_0_3_13 as wire;
use wire::{ReplicateConfig, Segment};

use crate::client::Client;
use crate::compared::list;
use crate::namespace::{Host, OURS, STOCK};

fn id(number: u64) -> Uuid {
    Uuid {
        first: 5,
        second: number,
    }
}

fn segment(number: u64, endpoint: &str, host: &str) -> Segment {
    Segment {
        id: id(100 + number),
        name: format!("name{number}"),
        base: (1 << 58) + (number << 30),
        size: 1 << 20,
        te_endpoint: endpoint.into(),
        protocol: "tcp".into(),
        host_id: host.into(),
    }
}

/// Endpoints as clients and operators write them; each belongs to a client of its own.
const ENDPOINTS: [&str; 14] = [
    "10.0.0.1:12345",
    "10.0.0.1",
    "vllm-0.example:12001",
    "vllm-0",
    "",
    ":12001",
    "[::1]:17813",
    "[fd00::2]",
    "::1",
    "fd00::2",
    "fe80::a236:bcff:fecb:a1be%eno2:15773",
    "[fe80::1%eth0]:12001",
    "fd00:0:0:0:0:0:0:2:12001",
    "host:not-a-port",
];

async fn addresses(client: &mut Client) -> Vec<String> {
    for (number, endpoint) in (0..).zip(ENDPOINTS) {
        let mount = (segment(number, endpoint, ""), id(number));
        client.call::<wire::MountSegment>(&mount).await.unwrap();
    }
    let clients = (0..20).map(id).collect();
    let found = client.call::<wire::BatchQueryIp>(&clients).await.unwrap();
    let of = |number| found.get(&id(number));
    (0..)
        .zip(ENDPOINTS)
        .map(|(number, endpoint)| format!("{endpoint}: {:?}", of(number)))
        .collect()
}

#[tokio::test]
async fn clients_have_the_addresses_that_they_have_for_the_stock_master() {
    let host = Host::new().await;
    let _stock = host.stock(&[]).await;
    let _ours = host.ours(&[]).await;
    let stock = addresses(&mut host.client(STOCK).await).await;
    let ours = addresses(&mut host.client(OURS).await).await;
    assert_eq!(ours, stock);
}

/// Where the objects of these hosts go while the segments of more and more hosts are full.
async fn placed(client: &mut Client) -> Vec<String> {
    let mut seen = Vec::new();
    for (number, host) in (0..).zip(["host2", "host6", "host4", "host0", "host8"]) {
        let mount = (segment(number, host, host), id(number));
        client.call::<wire::MountSegment>(&mount).await.unwrap();
    }
    // The writer has a segment at host0. Each segment has space for one of the large objects.
    for (number, host) in (0..).zip([
        "host4", "host5", "host9", "", "host4", "host4", "host4", "host4", "host4", "host4",
    ]) {
        let config = ReplicateConfig {
            host_id: host.into(),
            ..ReplicateConfig::default()
        };
        let size = if number < 4 { 100 } else { 600_000 };
        let arguments = (
            id(3),
            format!("key{number}"),
            size,
            config,
            "default".into(),
        );
        let answer = client.call::<wire::PutStart>(&arguments).await;
        seen.push(format!(
            "{host}: {:?}",
            answer.map(|replicas| list(&replicas))
        ));
    }
    seen
}

#[tokio::test]
async fn objects_of_a_full_host_go_to_the_next_one_as_by_the_stock_master() {
    let host = Host::new().await;
    let flags = ["--allocation_strategy=local_first"];
    let _stock = host.stock(&flags).await;
    let _ours = host.ours(&flags).await;
    let stock = placed(&mut host.client(STOCK).await).await;
    let ours = placed(&mut host.client(OURS).await).await;
    for (ours, stock) in ours.iter().zip(&stock) {
        println!("{stock}");
        assert_eq!(ours, stock);
    }
}
