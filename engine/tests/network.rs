//! Endpoints in network namespaces: sockets are created there, and a peer behind a broken link is detected.
//! Requires root and `ip`; without them it prints a message and passes.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/wire.rs"]
mod wire;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_engine::{
    Admission, Endpoint, EndpointSpec, Engine, Namespace, Op, RegionId, Settings, Targets, Transfer,
};
use proto::address::ServerName;
use rig::{BASE, bounded, quick, region, soon, until};
use wire::Wire;

fn endpoint(engine: &Engine, namespace: &Arc<Namespace>, ip: &str) -> (Endpoint, RegionId, String) {
    let bind = |ip: &str| TcpListener::bind((ip, 0));
    let (handshake, data) = namespace.run(|| Ok((bind(ip)?, bind(ip)?))).unwrap();
    let name = ServerName {
        host: ip.to_owned(),
        port: handshake.local_addr().unwrap().port(),
    };
    let name = name.to_string();
    let data_port = data.local_addr().map(|at: SocketAddr| at.port()).unwrap();
    let endpoint = engine
        .endpoint(EndpointSpec {
            name: name.clone(),
            data_port,
            data_host: ip.to_owned(),
            handshake,
            data,
            network: Some(Arc::clone(namespace)),
            admission: Admission::Anyone,
            targets: Targets::Admitted,
            metadata: None,
        })
        .unwrap();
    let region = endpoint.add_region(region(rig::LENGTH), BASE).unwrap();
    (endpoint, region, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_use_the_endpoints_namespace_and_dead_peers_are_detected() {
    let Some(wire) = Wire::new("x") else {
        eprintln!("not checked: network namespaces need root and `ip`");
        return;
    };
    let bound = Duration::from_secs(6);
    let engine = Engine::start(Settings {
        user_timeout: bound,
        ..quick()
    })
    .unwrap();
    let (ours, local, _) = endpoint(&engine, &wire.namespace(0), "10.99.0.1");
    let (theirs, _, peer) = endpoint(&engine, &wire.namespace(1), "10.99.0.2");
    theirs
        .admit(Admission::only(["10.99.0.1".parse().unwrap()]))
        .unwrap();
    let write = Transfer {
        op: Op::Write,
        peer,
        remote: BASE,
        local,
        local_offset: 0,
        length: 1 << 20,
    };
    bounded(ours.transfer(write.clone(), soon())).await.unwrap();
    assert_eq!(
        (theirs.stats().connections, theirs.stats().bytes_written),
        (1, 1 << 20)
    );
    // Only in these namespaces is there an interface of that name.
    let (scoped, _, peer) = endpoint(&engine, &wire.namespace(1), "fe80::2%wire");
    let by_name = Transfer {
        peer,
        ..write.clone()
    };
    bounded(ours.transfer(by_name, soon())).await.unwrap();
    assert_eq!(scoped.stats().bytes_written, 1 << 20);
    wire.die();
    let begun = Instant::now();
    // The idle served connection is closed within the timeout.
    until("the dead peer is found", || theirs.stats().connections == 0).await;
    assert!(begun.elapsed() <= 3 * bound, "{:?}", begun.elapsed());
    let error = bounded(ours.transfer(write, Instant::now() + Duration::from_secs(1))).await;
    assert!(error.is_err());
}
