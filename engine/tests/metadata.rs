//! Both roles against the stock wheel, which finds its peers by a metadata service: both stock HTTP servers.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/served.rs"]
mod served;
#[path = "fixture/stock.rs"]
mod stock;

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use metadata::{Problem, Published, Service, system_lookup};
use mooncake_engine::Op;
use mooncake_stock::{AIOHTTP, MOONCAKE, Space};
use rig::BASE;
use served::{OURS, Served, isolated};
use stock::Stock;
use tokio::process::Child;

/// Limit of a wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);
const URL: &str = "http://127.0.0.1:8080/metadata";

fn service() -> Service {
    Service::new(URL, None, system_lookup()).unwrap()
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
async fn answers(service: &Service) {
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

async fn both_find_each_other(space: Arc<Space>, start: fn(&Space) -> Child) {
    let service = service();
    let mut server = start(&space);
    answers(&service).await;
    let served = Served::new(service.clone());
    let entry = served.endpoint.metadata_entry().unwrap();
    assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
    assert_eq!(entry.publish(&service).await.unwrap(), Published::Unchanged);

    let mut stock = Stock::start_with(&space, "stock-1", URL, &[]);
    served.exchange(&mut stock).await;

    // A name that nobody has published.
    let missing = served.transfer(Op::Read, "stock-2", BASE, 0).await;
    let missing = missing.unwrap_err().to_string();
    assert!(missing.contains("mooncake/ram/stock-2"), "{missing}");

    // A server that lost everything is filled again.
    server.kill().await.unwrap();
    let mut server = start(&space);
    answers(&service).await;
    assert!(!entry.is_described(&service).await.unwrap());
    assert!(!entry.is_reachable(&service).await.unwrap());
    assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
    assert!(entry.is_described(&service).await.unwrap());
    assert!(entry.is_reachable(&service).await.unwrap());
    let mut second = Stock::start_with(&space, "stock-3", URL, &[]);
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

/// Forwards connections to the service, and counts them: each is one request of ours.
fn counted() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/metadata", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    std::thread::spawn(move || {
        for from in listener.incoming() {
            counter.fetch_add(1, Relaxed);
            let from = from.unwrap();
            let to = TcpStream::connect((Ipv4Addr::LOCALHOST, 8080)).unwrap();
            for (mut source, mut target) in [
                (from.try_clone().unwrap(), to.try_clone().unwrap()),
                (to, from),
            ] {
                std::thread::spawn(move || {
                    // Ends with either connection.
                    let _ = std::io::copy(&mut source, &mut target);
                    let _ = target.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (url, count)
}

/// An endpoint that is published in the running service, and the number of requests to it.
async fn published() -> (Service, Served, Arc<AtomicUsize>) {
    answers(&service()).await;
    let (url, count) = counted();
    let service = Service::new(&url, None, system_lookup()).unwrap();
    let served = Served::new(service.clone());
    let entry = served.endpoint.metadata_entry().unwrap();
    entry.publish(&service).await.unwrap();
    (service, served, count)
}

#[test]
fn a_peer_costs_one_lookup_before_the_first_transfer_and_none_afterwards() {
    const WARM: usize = 500;
    isolated(|space| async move {
        let _server = embedded(&space);
        let (service, served, count) = published().await;
        let mut lookups = Vec::new();
        let mut colds = Vec::new();
        let mut warms = Vec::new();
        for peer in 0..5 {
            let name = format!("stock-{peer}");
            let mut stock = Stock::start_with(&space, &name, URL, &[]);
            let local = stock.allocate(4096);
            let begun = Instant::now();
            service.descriptor(&name).await.unwrap();
            lookups.push(begun.elapsed());
            let before = count.load(Relaxed);
            let begun = Instant::now();
            served.transfer(Op::Read, &name, local, 0).await.unwrap();
            colds.push(begun.elapsed());
            assert_eq!(count.load(Relaxed) - before, 1, "lookups before the first");
            for _ in 0..WARM {
                let begun = Instant::now();
                served.transfer(Op::Read, &name, local, 0).await.unwrap();
                warms.push(begun.elapsed());
            }
            assert_eq!(count.load(Relaxed) - before, 1, "lookups of {WARM} others");
        }
        lookups.sort_unstable();
        colds.sort_unstable();
        warms.sort_unstable();
        println!(
            "4 KiB from a stock engine: first one {:?} (p50 of 5, with lookup and connection; a lookup alone {:?}), later ones \
             {:?} (p50), without a lookup",
            colds[2],
            lookups[2],
            warms[warms.len() / 2]
        );
    });
}

/// Its keys stay in the service, and a stock engine keeps what it has read of them for ever.
#[test]
fn an_engine_that_was_killed_is_named_and_its_successor_is_looked_up_again() {
    const NAME: &str = "stock-1";
    isolated(|space| async move {
        let _server = embedded(&space);
        let (service, served, count) = published().await;
        let mut stock = Stock::start_with(&space, NAME, URL, &[]);
        let local = stock.allocate(4096);
        served.transfer(Op::Read, NAME, local, 0).await.unwrap();

        drop(stock);
        let left = service.descriptor(NAME).await.unwrap();
        for _ in 0..2 {
            let dead = served.transfer(Op::Read, NAME, local, 0).await;
            println!("{}", dead.unwrap_err());
        }

        // The server refuses the name while the keys of the killed engine are there.
        let mut killed = served.endpoint.metadata_entry().unwrap();
        killed.descriptor.name = NAME.to_owned();
        killed.withdraw(&service).await.unwrap();
        let mut stock = Stock::start_with(&space, NAME, URL, &[]);
        assert_ne!(
            service.descriptor(NAME).await.unwrap().tcp_data_port,
            left.tcp_data_port
        );
        let before = count.load(Relaxed);
        served.exchange(&mut stock).await;
        assert!(count.load(Relaxed) > before, "no lookup of the successor");
    });
}

#[test]
fn a_stock_engine_and_ours_find_each_other_by_the_server_in_the_stock_master() {
    isolated(|space| both_find_each_other(space, embedded));
}

#[test]
fn a_stock_engine_and_ours_find_each_other_by_the_stock_server_in_python() {
    isolated(|space| both_find_each_other(space, python));
}
