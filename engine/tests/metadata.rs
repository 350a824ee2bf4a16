//! Both roles against the stock wheel, which finds its peers by a metadata service: both stock HTTP servers.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/stock.rs"]
mod stock;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metadata::{Problem, Published, Service, system_lookup};
use mooncake_engine::{
    Admission, Endpoint, EndpointSpec, Engine, Namespace, Op, RegionId, Targets, Transfer,
};
use mooncake_stock::{AIOHTTP, MOONCAKE, Space};
use rig::{BASE, LENGTH, pattern, quick, region, soon};
use stock::Stock;
use tokio::process::Child;

/// Limit of a wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);
const URL: &str = "http://127.0.0.1:8080/metadata";
const OURS: &str = "127.0.0.1:12001";

/// Runs a test on a thread of its own in a new network namespace: ports there are free.
fn isolated<F: Future<Output = ()>>(test: impl FnOnce(Arc<Space>) -> F + Send + 'static) {
    // The namespace has no way to the package index.
    MOONCAKE.site().unwrap();
    for wheel in AIOHTTP {
        wheel.site().unwrap();
    }
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let space = Arc::new(runtime.block_on(Space::new()).unwrap());
        let namespace = Namespace::of_process(space.pid()).unwrap();
        namespace.enter().unwrap();
        // Its threads begin in the namespace. The endpoint is served while the test waits for a stock engine.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test(space));
    });
    thread.join().unwrap();
}

fn service() -> Service {
    Service::new(URL, system_lookup()).unwrap()
}

/// The server in the stock master.
fn embedded(space: &Space) -> Child {
    let program = MOONCAKE.site().unwrap().join("mooncake/mooncake_master");
    let mut command = space.command(program);
    command.args([
        "--enable_http_metadata_server=true",
        "--http_metadata_server_port=8080",
    ]);
    start(command)
}

/// The server in Python.
fn python(space: &Space) -> Child {
    let mut modules = vec![MOONCAKE.site().unwrap()];
    modules.extend(AIOHTTP.iter().map(|wheel| wheel.site().unwrap()));
    let mut command = space.command("python3");
    command
        .env("PYTHONPATH", std::env::join_paths(modules).unwrap())
        .args(["-m", "mooncake.http_metadata_server", "--port", "8080"]);
    start(command)
}

fn start(mut command: tokio::process::Command) -> Child {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until the service answers.
async fn served(service: &Service) {
    let end = Instant::now() + PATIENCE;
    loop {
        match service.descriptor("none").await {
            Err(metadata::Error {
                problem: Problem::NoKey(_),
                ..
            }) => return,
            other => assert!(Instant::now() < end, "the server does not serve: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An endpoint that reads descriptors from the service.
fn endpoint(service: Service) -> (Engine, Endpoint, RegionId, Arc<mooncake_engine::Region>) {
    let engine = Engine::start(quick()).unwrap();
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let handshake = TcpListener::bind((ip, 12001)).unwrap();
    let data = TcpListener::bind((ip, 12002)).unwrap();
    let endpoint = engine.endpoint(EndpointSpec {
        name: OURS.to_owned(),
        data_port: 12002,
        data_host: ip.to_string(),
        handshake,
        data,
        network: None,
        admission: Admission::Anyone,
        targets: Targets::Admitted,
        metadata: Some(service),
    });
    let endpoint = endpoint.unwrap();
    let memory = region(LENGTH);
    let id = endpoint.add_region(Arc::clone(&memory), BASE).unwrap();
    (engine, endpoint, id, memory)
}

async fn both_find_each_other(space: Arc<Space>, start: fn(&Space) -> Child) {
    let service = service();
    let mut server = start(&space);
    served(&service).await;
    let (_engine, endpoint, id, memory) = endpoint(service.clone());
    let entry = endpoint.metadata_entry();
    assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
    assert_eq!(entry.publish(&service).await.unwrap(), Published::Unchanged);

    // A stock engine finds ours.
    let mut stock = Stock::start_with(&space, "stock-1", URL);
    let length = 1 << 20;
    let local = stock.allocate(length);
    stock.fill(local, length, 7);
    assert_eq!(stock.transfer("write", OURS, local, BASE, length), 0);
    let mut there = vec![0; usize::try_from(length).unwrap()];
    memory.copy_out(0, &mut there).unwrap();
    let expected: Vec<u8> = (0..length)
        .map(|at| u8::try_from((7 + at) % 251).unwrap())
        .collect();
    assert!(
        there == expected,
        "the bytes that the stock engine wrote differ"
    );
    stock.fill(local, length, 0);
    assert_eq!(stock.transfer("read", OURS, local, BASE, length), 0);
    assert!(
        stock.check(local, length, 7),
        "the bytes that it reads differ"
    );

    // Ours finds the stock engine, whose handshake port does not return descriptors in this mode.
    let bytes = pattern(3, 4096);
    memory.copy_in(0, &bytes).unwrap();
    let transfer = |op, peer: &str, local_offset| Transfer {
        op,
        peer: peer.to_owned(),
        remote: local,
        local: id,
        local_offset,
        length: 4096,
    };
    endpoint
        .transfer(transfer(Op::Write, "stock-1", 0), soon())
        .await
        .unwrap();
    endpoint
        .transfer(transfer(Op::Read, "stock-1", 8192), soon())
        .await
        .unwrap();
    let mut back = vec![0; 4096];
    memory.copy_out(8192, &mut back).unwrap();
    assert!(back == bytes, "the bytes that ours reads back differ");

    // A name that nobody has published.
    let missing = endpoint
        .transfer(transfer(Op::Read, "stock-2", 0), soon())
        .await
        .unwrap_err();
    assert!(
        missing.to_string().contains("mooncake/ram/stock-2"),
        "{missing}"
    );

    // A server that lost everything is filled again.
    server.kill().await.unwrap();
    let mut server = start(&space);
    served(&service).await;
    assert!(!entry.is_described(&service).await.unwrap());
    assert!(!entry.is_reachable(&service).await.unwrap());
    assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
    assert!(entry.is_described(&service).await.unwrap());
    assert!(entry.is_reachable(&service).await.unwrap());
    let mut second = Stock::start_with(&space, "stock-3", URL);
    let local = second.allocate(4096);
    assert_eq!(second.transfer("read", OURS, local, BASE, 4096), 0);

    // What a dead predecessor with the same name left is replaced.
    let mut predecessor = entry.clone();
    predecessor.rpc_meta.rpc_port = 1;
    predecessor.descriptor.tcp_data_port = 1;
    predecessor.descriptor.buffers.clear();
    assert_eq!(
        predecessor.publish(&service).await.unwrap(),
        Published::Written
    );
    assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
    let found = service.descriptor(OURS).await.unwrap();
    assert_eq!(found.buffers, entry.descriptor.buffers);
    assert_eq!(service.rpc_meta(OURS).await.unwrap(), entry.rpc_meta);

    // Nothing is left at the end.
    entry.withdraw(&service).await.unwrap();
    let gone = service.descriptor(OURS).await.unwrap_err();
    assert!(matches!(gone.problem, Problem::NoKey(_)), "{gone}");
    let gone = service.rpc_meta(OURS).await.unwrap_err();
    assert!(matches!(gone.problem, Problem::NoKey(_)), "{gone}");
    entry.withdraw(&service).await.unwrap();
    server.kill().await.unwrap();
}

#[test]
fn a_stock_engine_and_ours_find_each_other_by_the_server_in_the_stock_master() {
    isolated(|space| both_find_each_other(space, embedded));
}

#[test]
fn a_stock_engine_and_ours_find_each_other_by_the_stock_server_in_python() {
    isolated(|space| both_find_each_other(space, python));
}
