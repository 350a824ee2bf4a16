//! Peers find each other by a real etcd, also the stock wheel; each failure of etcd has its name.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/served.rs"]
mod served;
#[path = "fixture/stock.rs"]
mod stock;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use local_cluster::Settings;
use local_cluster::binaries::Binaries;
use metadata::{Entry, Error, Lookup, Problem, Published, Service, system_lookup};
use mooncake_engine::Op;
use mooncake_stock::{Etcd, Space};
use proto::descriptor::Descriptor;
use proto::metadata::{RpcMeta, etcd_url};
use rig::BASE;
use rustix::process::{Pid, Signal, kill_process};
use served::{OURS, Served, isolated};
use socket2::{Domain, Socket, Type};
use stock::Stock;

/// Limit of a wait for etcd.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);
const CLUSTER: &str = "team/kv";

fn program() -> PathBuf {
    Binaries::get(&Settings::read()).unwrap().etcd()
}

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn start(space: &Space, members: usize, flags: &[&str]) -> Etcd {
    start_at(space, V4, members, flags)
}

fn start_at(space: &Space, address: IpAddr, members: usize, flags: &[&str]) -> Etcd {
    Etcd::start(space, &program(), address, members, flags).unwrap()
}

fn service_at(endpoints: &[String]) -> Service {
    Service::new(&etcd_url(endpoints), Some(CLUSTER), system_lookup()).unwrap()
}

/// Repeats a lookup of a key that is not there until it ends as wanted.
async fn until(service: &Service, what: &str, wanted: impl Fn(&Problem) -> bool) -> Error {
    let end = Instant::now() + PATIENCE;
    loop {
        let error = service.descriptor("nobody").await.unwrap_err();
        if wanted(&error.problem) {
            return error;
        }
        assert!(Instant::now() < end, "{what}: {error}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until etcd answers.
async fn answers(service: &Service) {
    until(service, "etcd does not answer", |problem| {
        matches!(problem, Problem::NoKey(_))
    })
    .await;
}

/// What an engine without memory publishes.
fn entry(name: &str) -> Entry {
    let text = format!(
        r#"{{"buffers":[],"name":"{name}","protocol":"tcp","tcp_data_port":1,"tcp_proto_version":2}}"#
    );
    Entry {
        descriptor: Descriptor::parse(text.as_bytes()).unwrap(),
        rpc_meta: RpcMeta {
            ip_or_host_name: "127.0.0.1".to_owned(),
            rpc_port: 1,
        },
    }
}

/// All keys of engines with their leases, as JSON of its API.
async fn all(space: &Space, etcd: &Etcd) -> Vec<serde_json::Value> {
    let below = [("key", "=mooncake/"), ("range_end", "=mooncake0")];
    let text = etcd.request(space, "kv/range", &below).await.unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    found["kvs"].as_array().cloned().unwrap_or_default()
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn a_stock_engine_and_ours_find_each_other_by_etcd() {
    find_each_other(V4);
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn a_stock_engine_and_ours_find_each_other_by_an_etcd_with_an_ipv6_address() {
    find_each_other(V6);
}

fn find_each_other(address: IpAddr) {
    isolated(move |space| async move {
        let mut etcd = start_at(&space, address, 1, &[]);
        let url = etcd_url(&etcd.endpoints());
        let service = service_at(&etcd.endpoints());
        answers(&service).await;
        let served = Served::new(service.clone());
        let entry = served.endpoint.metadata_entry().unwrap();
        assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
        assert_eq!(entry.publish(&service).await.unwrap(), Published::Unchanged);
        let cluster = [("MC_METADATA_CLUSTER_ID", CLUSTER)];
        let mut first = Stock::start_with(&space, "stock-1", &url, &cluster);
        served.exchange(&mut first).await;

        // Engines of another cluster have other keys.
        let other = Stock::start_with(&space, "stock-2", &url, &[]);
        let missing = served.transfer(Op::Read, "stock-2", BASE, 0).await;
        let missing = missing.unwrap_err().to_string();
        assert!(
            missing.contains("mooncake/team/kv/ram/stock-2"),
            "{missing}"
        );
        drop((first, other));

        // An etcd that lost everything is filled again, also for engines that start then.
        etcd.kill_member(0).await.unwrap();
        etcd.remove_data(0).unwrap();
        etcd.start_member(&space, 0).unwrap();
        answers(&service).await;
        assert!(!entry.is_described(&service).await.unwrap());
        assert!(!entry.is_reachable(&service).await.unwrap());
        assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
        assert!(entry.is_described(&service).await.unwrap());
        assert!(entry.is_reachable(&service).await.unwrap());
        let mut second = Stock::start_with(&space, "stock-3", &url, &cluster);
        let local = second.allocate(4096);
        assert_eq!(second.transfer("read", OURS, local, BASE, 4096), 0);
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn what_a_process_published_ends_with_its_lease_and_a_successor_keeps_its_own() {
    isolated(|space| async move {
        let etcd = start(&space, 1, &[]);
        let service = service_at(&etcd.endpoints());
        answers(&service).await;
        let entry = entry("10.0.0.1:12001");
        // What a stock engine of the same name has left, without a lease.
        let key = "=mooncake/team/kv/rpc_meta/10.0.0.1:12001";
        let left = [
            ("key", key),
            ("value", r#"={"ip_or_host_name":"10.0.0.1","rpc_port":2}"#),
        ];
        etcd.request(&space, "kv/put", &left).await.unwrap();
        assert_eq!(entry.publish(&service).await.unwrap(), Published::Written);
        assert_eq!(
            service.rpc_meta("10.0.0.1:12001").await.unwrap(),
            entry.rpc_meta
        );

        let keys = all(&space, &etcd).await;
        assert_eq!(keys.len(), 2, "{keys:?}");
        let lease = keys[0]["lease"].as_str().unwrap();
        assert_eq!(keys[1]["lease"], lease);
        let lease = [("ID", lease)];
        let granted = etcd.request(&space, "lease/timetolive", &lease).await;
        let granted: serde_json::Value = serde_json::from_str(&granted.unwrap()).unwrap();
        assert_eq!(granted["grantedTTL"], "60", "{granted}");

        // A successor has the same name and another lease. The end of its predecessor takes nothing from it.
        let successor = service_at(&etcd.endpoints());
        assert_eq!(entry.publish(&successor).await.unwrap(), Published::Written);
        assert!(!entry.is_described(&service).await.unwrap());
        entry.withdraw(&service).await.unwrap();
        assert!(entry.is_described(&successor).await.unwrap());
        assert!(entry.is_reachable(&successor).await.unwrap());

        // A lease that ended by itself is replaced.
        let keys = all(&space, &etcd).await;
        let lease = [("ID", keys[0]["lease"].as_str().unwrap())];
        etcd.request(&space, "lease/revoke", &lease).await.unwrap();
        assert!(all(&space, &etcd).await.is_empty());
        assert_eq!(entry.publish(&successor).await.unwrap(), Published::Written);

        entry.withdraw(&successor).await.unwrap();
        assert!(all(&space, &etcd).await.is_empty());
        entry.withdraw(&successor).await.unwrap();
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn of_two_living_processes_with_one_name_the_second_is_refused_until_the_first_has_ended() {
    isolated(|space| async move {
        let etcd = start(&space, 1, &[]);
        let process = || service_at(&etcd.endpoints());
        let (one, other) = (process(), process());
        answers(&one).await;
        let of_one = entry("10.0.0.1:12001");
        // Another engine has other ports or wire bases.
        let mut of_other = of_one.clone();
        of_other.descriptor.tcp_data_port = 2;
        assert_ne!(of_one, of_other);
        assert_eq!(of_one.publish(&one).await.unwrap(), Published::Written);
        for _ in 0..3 {
            let error = of_other.publish(&other).await.unwrap_err();
            assert!(matches!(error.problem, Problem::NameTaken(_)), "{error}");
            assert!(error.to_string().contains("10.0.0.1:12001"), "{error}");
            assert_eq!(of_one.publish(&one).await.unwrap(), Published::Unchanged);
        }
        // The second one ends, and takes nothing from the first.
        of_other.withdraw(&other).await.unwrap();
        assert!(of_one.is_described(&one).await.unwrap());
        assert!(of_one.is_reachable(&one).await.unwrap());

        // A hostile process replaces the value of the first one, under a lease that it renews: the first one repairs it.
        let granted = etcd.request(&space, "lease/grant", &[("TTL", "60")]).await;
        let granted: serde_json::Value = serde_json::from_str(&granted.unwrap()).unwrap();
        let hostile = [
            ("key", "=mooncake/team/kv/ram/10.0.0.1:12001"),
            ("value", "={}"),
            ("lease", granted["ID"].as_str().unwrap()),
        ];
        etcd.request(&space, "kv/put", &hostile).await.unwrap();
        assert!(!of_one.is_described(&one).await.unwrap());
        assert_eq!(of_one.publish(&one).await.unwrap(), Published::Written);
        assert!(of_one.is_described(&one).await.unwrap());

        // The first one is killed: nothing renews its lease.
        let killed = Instant::now();
        let error = of_other.publish(&other).await.unwrap_err();
        assert!(matches!(error.problem, Problem::NameTaken(_)), "{error}");
        while let Err(error) = of_other.publish(&other).await {
            assert!(killed.elapsed() < Duration::from_secs(25), "{error}");
            tokio::time::sleep(PAUSE).await;
        }
        println!("the name is free {:?} after its process", killed.elapsed());
        assert!(killed.elapsed() > Duration::from_secs(10));
        // It was only frozen.
        assert!(!of_one.is_described(&one).await.unwrap());
        let error = of_one.publish(&one).await.unwrap_err();
        assert!(matches!(error.problem, Problem::NameTaken(_)), "{error}");
        assert!(of_other.is_described(&other).await.unwrap());

        // Both begin at the same time.
        of_other.withdraw(&other).await.unwrap();
        of_one.withdraw(&one).await.unwrap();
        for _ in 0..20 {
            let (first, second) = tokio::join!(of_one.publish(&one), of_other.publish(&other));
            assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
            of_one.withdraw(&one).await.unwrap();
            of_other.withdraw(&other).await.unwrap();
        }
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn one_of_three_members_may_be_gone_and_with_two_gone_the_quorum_is_named() {
    isolated(|space| async move {
        let mut etcd = start(&space, 3, &[]);
        let endpoints = etcd.endpoints();
        let service = service_at(&endpoints);
        answers(&service).await;
        let entry = entry("10.0.0.1:12001");
        entry.publish(&service).await.unwrap();

        etcd.kill_member(0).await.unwrap();
        // The others may elect a leader first.
        answers(&service).await;
        assert!(entry.is_described(&service).await.unwrap());
        // A client that starts now finds one that works.
        answers(&service_at(&endpoints)).await;

        etcd.kill_member(1).await.unwrap();
        let error = until(&service, "the quorum is not named", |problem| {
            matches!(problem, Problem::NoQuorum(_))
        })
        .await;
        let text = error.to_string();
        println!("{text}");
        for part in [
            "at 127.0.0.1:2399: no quorum",
            "127.0.0.1:2379: connection refused",
            "127.0.0.1:2389: connection refused",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }

        etcd.start_member(&space, 1).unwrap();
        answers(&service).await;
        let end = Instant::now() + PATIENCE;
        while let Err(error) = entry.publish(&service).await {
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(PAUSE).await;
        }
        assert!(entry.is_reachable(&service).await.unwrap());
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn a_full_database_is_named_by_its_alarm_and_what_is_there_stays_readable() {
    isolated(|space| async move {
        let etcd = start(&space, 1, &["--quota-backend-bytes=1000000"]);
        let service = service_at(&etcd.endpoints());
        answers(&service).await;
        let entry = entry("10.0.0.1:12001");
        entry.publish(&service).await.unwrap();
        let value = format!("={}", "x".repeat(100_000));
        let mut writes = 0;
        while etcd
            .request(&space, "kv/put", &[("key", "=other"), ("value", &value)])
            .await
            .is_ok()
        {
            writes += 1;
            assert!(writes < 100, "the quota has no effect");
        }
        for failed in [
            entry.publish(&service).await.unwrap_err(),
            entry.is_described(&service).await.unwrap_err(),
            entry
                .publish(&service_at(&etcd.endpoints()))
                .await
                .unwrap_err(),
        ] {
            assert!(matches!(failed.problem, Problem::NoSpace), "{failed}");
        }
        service.descriptor("10.0.0.1:12001").await.unwrap();
    });
}

/// How long a lookup takes, and that it finds this entry.
async fn looked_up(service: &Service, entry: &Entry) -> Duration {
    let name = &entry.descriptor.name;
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        let found = service.descriptor(name).await.unwrap();
        times.push(begun.elapsed());
        assert_eq!(&found.name, name);
    }
    times.sort_unstable();
    times[50]
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn ten_thousand_segments_are_published_and_found_and_a_compaction_loses_none() {
    const SEGMENTS: usize = 10_000;
    isolated(|space| async move {
        let etcd = start(&space, 1, &[]);
        let service = service_at(&etcd.endpoints());
        answers(&service).await;
        let name = |number: usize| format!("10.0.{}.{}:12001", number / 250, number % 250);
        // They share the lease of the first one.
        let first = entry(&name(0));
        first.publish(&service).await.unwrap();
        let alone = looked_up(&service, &first).await;
        let begun = Instant::now();
        let published = stream::iter(1..SEGMENTS).map(|number| {
            let (entry, service) = (entry(&name(number)), service.clone());
            async move { entry.publish(&service).await }
        });
        let mut published = published.buffer_unordered(64);
        while let Some(done) = published.next().await {
            assert_eq!(done.unwrap(), Published::Written);
        }
        let written = begun.elapsed();
        let among = looked_up(&service, &first).await;
        assert_eq!(all(&space, &etcd).await.len(), 2 * SEGMENTS);

        let status = etcd.request(&space, "maintenance/status", &[]).await;
        let status: serde_json::Value = serde_json::from_str(&status.unwrap()).unwrap();
        let revision = status["header"]["revision"].as_str().unwrap().to_owned();
        let size = status["dbSize"].as_str().unwrap().to_owned();
        let fields = [("revision", revision.as_str())];
        etcd.request(&space, "kv/compaction", &fields)
            .await
            .unwrap();
        etcd.request(&space, "maintenance/defragment", &[])
            .await
            .unwrap();
        for number in (0..SEGMENTS).step_by(97) {
            let entry = entry(&name(number));
            assert!(entry.is_described(&service).await.unwrap(), "{number}");
            assert!(entry.is_reachable(&service).await.unwrap(), "{number}");
        }
        let another = entry("10.1.0.1:12001");
        assert_eq!(another.publish(&service).await.unwrap(), Published::Written);
        println!(
            "{SEGMENTS} segments in an etcd: written in {written:?} (5 requests each, 64 at a time), database {size} bytes, \
             lookup alone {alone:?}, among all {among:?} (p50)"
        );
        // The end of the process takes all of them.
        another.withdraw(&service).await.unwrap();
        assert!(all(&space, &etcd).await.is_empty());
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn values_and_names_that_no_engine_of_ours_writes_end_in_a_named_failure() {
    isolated(|space| async move {
        let etcd = start(&space, 1, &[]);
        let service = service_at(&etcd.endpoints());
        answers(&service).await;
        // Bytes that are no text, no JSON, and JSON of another type: base64.
        for value in ["/w==", "eA==", "W10=", "eyJuYW1lIjoiX/8ifQ=="] {
            let fields = [("key", "=mooncake/team/kv/ram/odd"), ("value", value)];
            etcd.request(&space, "kv/put", &fields).await.unwrap();
            let error = service.descriptor("odd").await.unwrap_err();
            assert!(
                matches!(error.problem, Problem::InvalidValue { .. }),
                "{value}: {error}"
            );
        }
        for name in ["../../etc/passwd", "a/../b", "//", "\u{fffd}\u{0}", ""] {
            let error = service.descriptor(name).await.unwrap_err();
            assert!(
                matches!(error.problem, Problem::NoKey(_)),
                "{name}: {error}"
            );
        }
        // A descriptor of almost a mebibyte.
        let mut large = entry("10.0.0.1:12001");
        let text = r#"{"buffers":[{"addr":140737488355328,"length":1048576,"name":"10.0.0.1:12001"}],"name":"10.0.0.1:12001","protocol":"tcp","tcp_data_port":1}"#;
        let buffer = Descriptor::parse(text.as_bytes())
            .unwrap()
            .buffers
            .remove(0);
        large.descriptor.buffers = vec![buffer; 15_500];
        let bytes = large.descriptor.encode().len();
        assert!((1_000_000..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(large.publish(&service).await.unwrap(), Published::Written);
        assert!(large.is_described(&service).await.unwrap());
        let found = service.descriptor("10.0.0.1:12001").await.unwrap();
        assert_eq!(found.buffers.len(), 15_500);
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn each_way_in_which_an_endpoint_is_no_usable_etcd_has_its_name() {
    isolated(|space| async move {
        // Nothing listens.
        let endpoints = ["127.0.0.1:2379".to_owned()];
        let error = service_at(&endpoints).descriptor("a").await.unwrap_err();
        assert!(matches!(error.problem, Problem::Refused), "{error}");

        let lookup: Lookup = Arc::new(|host| {
            Box::pin(async move { Err(format!("10.96.0.10 does not resolve {host}")) })
        });
        let service = Service::new("etcd://etcd.infra.svc:2379", None, lookup).unwrap();
        let error = service.descriptor("a").await.unwrap_err();
        assert!(matches!(error.problem, Problem::NotResolved(_)), "{error}");

        // A queue that is full: the kernel drops further requests.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        socket.listen(0).unwrap();
        let _first = std::net::TcpStream::connect(address).unwrap();
        let service = service_at(&[address.to_string()]);
        let error = service.descriptor("a").await.unwrap_err();
        assert!(matches!(error.problem, Problem::Filtered(_)), "{error}");

        // The port for members, a web server, a process that is stopped, users.
        let etcd = start(&space, 1, &[]);
        let service = service_at(&etcd.endpoints());
        answers(&service).await;
        let peer = service_at(&["127.0.0.1:2380".to_owned()]);
        let error = peer.descriptor("a").await.unwrap_err();
        println!("{error}");
        assert!(matches!(error.problem, Problem::NotEtcd(_)), "{error}");
        assert!(
            error.to_string().contains("port 2380 is for its members"),
            "{error}"
        );
        let mut web = space.command("python3");
        web.args(["-m", "http.server", "8000"]);
        let _web = web
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let web = service_at(&["127.0.0.1:8000".to_owned()]);
        let error = until(&web, "a web server is not named", |problem| {
            matches!(problem, Problem::NotEtcd(_))
        })
        .await;
        println!("{error}");

        let pid = Pid::from_raw(i32::try_from(etcd.pid(0).unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let error = until(&service, "a stopped etcd is not named", |problem| {
            matches!(problem, Problem::Slow(_))
        })
        .await;
        println!("{error}");
        kill_process(pid, Signal::CONT).unwrap();
        answers(&service).await;

        for (path, fields) in [
            (
                "auth/user/add",
                &[("name", "root"), ("password", "secret")][..],
            ),
            ("auth/role/add", &[("name", "root")]),
            ("auth/user/grant", &[("user", "root"), ("role", "root")]),
            ("auth/enable", &[]),
        ] {
            etcd.request(&space, path, fields).await.unwrap();
        }
        let error = service.descriptor("a").await.unwrap_err();
        println!("{error}");
        assert!(matches!(error.problem, Problem::Denied(_)), "{error}");
        let error = service_at(&etcd.endpoints()).descriptor("a").await;
        let error = error.unwrap_err();
        assert!(matches!(error.problem, Problem::Denied(_)), "{error}");
    });
}

#[test]
#[ignore = "needs etcd, which is built from Go modules"]
fn an_etcd_that_expects_tls_is_named() {
    isolated(|space| async move {
        let url = "https://127.0.0.1:2379";
        let flags = [
            "--auto-tls",
            &format!("--listen-client-urls={url}"),
            &format!("--advertise-client-urls={url}"),
        ];
        let etcd = start(&space, 1, &flags);
        let error = until(
            &service_at(&etcd.endpoints()),
            "TLS is not named",
            |problem| matches!(problem, Problem::Tls),
        )
        .await;
        println!("{error}");
    });
}
