//! Many peers, and an engine process that is stopped or killed, while a stock client verifies the pool of another pod on the same
//! node: it loses no operation, and the agent stays active.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};
use sys::net::Namespace;
use tokio::process::Child;

use crate::hostile_pools::{
    NEIGHBOUR, Neighbour, during, engine_of, is_served_again, neighbour, successor, used,
};
use crate::stage::{ESTABLISHED, MASTER_PORT, Node, POOL_IP, sockets};

const DATA_PORT: u16 = 12002;
const ADDRESSES: u8 = 64;
const OF_EACH: u64 = 160;

/// A node with the neighbour and with another pool, to which further addresses may connect.
async fn beside(further: u8) -> (Node, Neighbour, Child, Vec<String>) {
    let (node, neighbour) = neighbour().await;
    let further = node.further_peers(further).await;
    let pool = node.pool(&node.pod_uid);
    let pools = [
        ("second", NEIGHBOUR, MASTER_PORT),
        ("default", &node.pod_uid, MASTER_PORT),
    ];
    node.assign_admitting(&pools, "m1", 1, &further);
    node.ready().await;
    (node, neighbour, pool, further)
}

fn connected(from: Ipv4Addr) -> std::io::Result<OwnedFd> {
    let own = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&own, &SocketAddrV4::new(from, 0))?;
    let to: Ipv4Addr = POOL_IP.parse().map_err(std::io::Error::other)?;
    connect(&own, &SocketAddrV4::new(to, DATA_PORT))?;
    Ok(own)
}

#[tokio::test]
async fn ten_thousand_connections_from_64_addresses_keep_no_other_peer_out() {
    let (node, mut neighbour, _pool, addresses) = beside(ADDRESSES).await;
    let mut descriptors = getrlimit(Resource::Nofile);
    descriptors.current = descriptors.maximum;
    setrlimit(Resource::Nofile, descriptors).unwrap();
    let engine = engine_of(&node, &neighbour).await;
    let peers = Namespace::of_process(node.peers.pid()).unwrap();
    let attack = async {
        let held = tokio::task::spawn_blocking(move || {
            let all = addresses.iter().map(|address| address.parse().unwrap());
            let all = all.flat_map(|address| (0..OF_EACH).map(move |_| address));
            peers.run(|| all.map(connected).collect::<std::io::Result<Vec<_>>>())
        });
        let held = held.await.unwrap().unwrap();
        // A connection that is accepted after these.
        let used = used(&node, 3).await.unwrap();
        (held, used, sockets(&node.pod, DATA_PORT, ESTABLISHED))
    };
    let (held, used, open) = during(&node, &mut neighbour, attack).await;
    println!("{open} connections; another client: {used:?}");
    let all = u64::from(ADDRESSES) * OF_EACH;
    assert_eq!(held.len() as u64, all);
    assert!(open >= all, "{open} of {all} connections are open");
    assert!(used.right > 0 && used.failed == 0 && used.wrong == 0);
    drop(held);
    is_served_again(&node).await;
    assert_eq!(engine_of(&node, &neighbour).await, engine, "replaced");
}

#[tokio::test]
async fn a_stopped_and_a_killed_engine_process_cost_the_neighbour_nothing() {
    let (node, mut neighbour, _pool, _) = beside(0).await;
    for signal in [Signal::STOP, Signal::KILL] {
        let engine = engine_of(&node, &neighbour).await;
        let pid = Pid::from_raw(i32::try_from(engine).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let former = [neighbour.engine, engine];
        during(&node, &mut neighbour, successor(&node, former)).await;
        is_served_again(&node).await;
    }
}
