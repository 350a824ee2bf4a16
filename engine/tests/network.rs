//! Endpoints in network namespaces: sockets are created there, a peer behind a broken link is detected, and a served connection
//! outlasts it.
//! Requires root and `ip`; without them it prints a message and passes.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/wire.rs"]
mod wire;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_engine::{
    Admission, Ended, Endpoint, EndpointSpec, Engine, Namespace, Op, RegionId, Settings, Targets,
    Transfer,
};
use proto::address::ServerName;
use proto::frame::{Status, Version};
use rig::{BASE, bounded, header, put, quick, region, soon, until};
use socket2::{Domain, Socket, Type};
use wire::Wire;

fn endpoint(
    engine: &Engine,
    namespace: &Arc<Namespace>,
    ip: &str,
) -> (Endpoint, RegionId, String, SocketAddr) {
    let bind = |ip: &str| TcpListener::bind((ip, 0));
    let (handshake, data) = namespace.run(|| Ok((bind(ip)?, bind(ip)?))).unwrap();
    let name = ServerName {
        host: ip.to_owned(),
        port: handshake.local_addr().unwrap().port(),
    };
    let name = name.to_string();
    let data_at = data.local_addr().unwrap();
    let endpoint = engine
        .endpoint(EndpointSpec {
            name: name.clone(),
            data_port: data_at.port(),
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
    (endpoint, region, name, data_at)
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_use_the_endpoints_namespace_and_only_own_links_end_in_a_gap() {
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
    let (ours, local, ..) = endpoint(&engine, &wire.namespace(0), "10.99.0.1");
    let (theirs, _, peer, data) = endpoint(&engine, &wire.namespace(1), "10.99.0.2");
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
    let (scoped, _, peer, _) = endpoint(&engine, &wire.namespace(1), "fe80::2%wire");
    let by_name = Transfer {
        peer,
        ..write.clone()
    };
    bounded(ours.transfer(by_name, soon())).await.unwrap();
    assert_eq!(scoped.stats().bytes_written, 1 << 20);
    let connect = || TcpStream::connect(data);
    let mut idle = wire.namespace(0).run(connect).unwrap();
    idle.set_read_timeout(Some(rig::TIMEOUT)).unwrap();
    assert_eq!(put(&mut idle, BASE, b"before"), Status::Ok);
    // The end of its answer stays in the send buffer of the target.
    let narrow = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_recv_buffer_size(1)?;
        socket.connect(&data.into())?;
        Ok(TcpStream::from(socket))
    };
    let requests = theirs.stats().requests;
    let mut gone = wire.namespace(0).run(narrow).unwrap();
    let read = header(Op::Read, Version::V2, BASE, 32 << 10);
    gone.write_all(&read).unwrap();
    until("it is answered", || theirs.stats().requests > requests).await;
    // The status of the idle one is acknowledged by then.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let theirs_of_gone = || {
        let port = format!(":{:04X} ", gone.local_addr()?.port());
        let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp")?;
        Ok(sockets.lines().any(|line| line.contains(&port)))
    };
    assert!(wire.namespace(1).run(theirs_of_gone).unwrap());
    wire.die();
    let begun = Instant::now();
    let error = bounded(ours.transfer(write, begun + 4 * bound)).await;
    assert!(error.is_err());
    assert!(begun.elapsed() <= 3 * bound, "{:?}", begun.elapsed());
    tokio::time::sleep_until((begun + 2 * bound).into()).await;
    until("a peer is found that takes no answer", || {
        theirs.stats().ended[Ended::Stalled] == 1
    })
    .await;
    assert!(
        !wire.namespace(1).run(theirs_of_gone).unwrap(),
        "it is left to the kernel"
    );
    wire.revive();
    assert_eq!(put(&mut idle, BASE, b"after"), Status::Ok);
}
