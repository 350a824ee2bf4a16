//! Unmodified clients of the wheel with our master: what they put is what they get. Requires root.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/http.rs"]
mod http;
#[path = "fixture/namespace.rs"]
mod namespace;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use namespace::{Host, OUR_HTTP, OURS, STOCK, STOCK_HTTP};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

/// The first answer includes loading the library.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of the wheel, which takes a request per line and answers each.
struct Store {
    child: Child,
    requests: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Store {
    /// Starts a client; with `segment` it stores objects itself.
    async fn start(host: &Host, master: SocketAddr, segment: u64) -> Self {
        let mut store = Self::spawn(host, master, segment, &[], &[]);
        assert_eq!(store.reply().await, json!({"setup": 0}));
        store
    }

    /// Starts a client with this name that finds others by a metadata service; it stores objects.
    fn named(host: &Host, name: &str, metadata: &str) -> Self {
        Self::spawn(host, OURS, 64 << 20, &[name, metadata], &[])
    }

    /// Starts a client of a tenant.
    async fn of_tenant(host: &Host, master: SocketAddr, tenant: &str) -> Self {
        let variables = [("MOONCAKE_TENANT_ID", tenant)];
        let mut store = Self::spawn(host, master, 0, &[], &variables);
        assert_eq!(store.reply().await, json!({"setup": 0}));
        store
    }

    fn spawn(
        host: &Host,
        master: SocketAddr,
        segment: u64,
        added: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture/store.py");
        let mut child = host
            .python()
            .arg(script)
            .args([master.to_string(), segment.to_string()])
            .args(added)
            // Of the descriptor: the namespace has no interface but loopback.
            .env("MC_TCP_BIND_ADDRESS", "127.0.0.1")
            .envs(variables.iter().copied())
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            requests: child.stdin.take().unwrap(),
            replies: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    async fn reply(&mut self) -> Value {
        let line = timeout(TIMEOUT, self.replies.next_line())
            .await
            .expect("an answer in time");
        serde_json::from_str(&line.unwrap().expect("the client lives")).unwrap()
    }

    async fn call(&mut self, request: Value) -> Value {
        let line = format!("{request}\n");
        self.requests.write_all(line.as_bytes()).await.unwrap();
        self.reply().await
    }
}

/// What a writer, a reader and a storing client see of one master.
async fn operations(host: &Host, master: SocketAddr) -> Vec<Value> {
    let mut owner = Store::start(host, master, 64 << 20).await;
    let mut writer = Store::start(host, master, 0).await;
    let mut reader = Store::start(host, master, 0).await;
    let mut seen = Vec::new();
    for (who, request) in [
        (
            0,
            json!({"call": "put", "key": "own", "seed": 1, "bytes": 1_000}),
        ),
        (
            1,
            json!({"call": "put", "key": "a", "seed": 2, "bytes": 65_536}),
        ),
        (
            1,
            json!({"call": "put", "key": "a", "seed": 3, "bytes": 65_536}),
        ),
        (
            1,
            json!({"call": "put", "key": "large", "seed": 4, "bytes": 5_000_000}),
        ),
        (
            1,
            json!({"call": "put", "key": "huge", "seed": 5, "bytes": 80_000_000}),
        ),
        (2, json!({"call": "get", "key": "own"})),
        (2, json!({"call": "get", "key": "a"})),
        (2, json!({"call": "get", "key": "large"})),
        (2, json!({"call": "get", "key": "none"})),
        (2, json!({"call": "exist", "key": "a"})),
        (2, json!({"call": "exist", "key": "none"})),
        (2, json!({"call": "size", "key": "large"})),
        (2, json!({"call": "size", "key": "none"})),
        (1, json!({"call": "put_batch", "count": 40, "bytes": 3_000})),
        (2, json!({"call": "get_batch", "count": 40})),
        (
            2,
            json!({"call": "batch_exist", "keys": ["batch-0", "none", "batch-39"]}),
        ),
        (2, json!({"call": "replicas", "key": "a"})),
        (1, json!({"call": "remove", "key": "a", "force": false})),
        (1, json!({"call": "remove", "key": "a", "force": true})),
        (2, json!({"call": "get", "key": "a"})),
        (
            1,
            json!({"call": "put", "key": "a", "seed": 6, "bytes": 10}),
        ),
        (2, json!({"call": "get", "key": "a"})),
        (
            1,
            json!({"call": "upsert", "key": "a", "seed": 7, "bytes": 10}),
        ),
        (2, json!({"call": "get", "key": "a"})),
        (
            1,
            json!({"call": "upsert", "key": "a", "seed": 8, "bytes": 20_000}),
        ),
        (2, json!({"call": "get", "key": "a"})),
        (
            1,
            json!({"call": "remove_by_regex", "pattern": "^batch-1", "force": true}),
        ),
        (
            2,
            json!({"call": "batch_exist", "keys": ["batch-0", "batch-1", "batch-10"]}),
        ),
        (1, json!({"call": "remove_all", "force": true})),
        (2, json!({"call": "exist", "key": "own"})),
    ] {
        let client = [&mut owner, &mut writer, &mut reader];
        let answer = client
            .into_iter()
            .nth(who)
            .unwrap()
            .call(request.clone())
            .await;
        seen.push(json!([request, answer]));
    }
    seen
}

#[tokio::test]
async fn every_operation_of_the_wheel_gives_the_results_that_it_has_with_the_stock_master() {
    let host = Host::new().await;
    let _ours = host.ours(&[]).await;
    let ours = operations(&host, OURS).await;
    let _stock = host.stock(&[]).await;
    let stock = operations(&host, STOCK).await;
    for (ours, stock) in ours.iter().zip(&stock) {
        assert_eq!(ours, stock);
    }
    // The comparison would not notice that nothing works at all.
    let got: Vec<_> = ours
        .iter()
        .filter(|line| line[0]["call"] == "get")
        .map(|line| line[1].clone())
        .collect();
    let whole = |seed: u64, bytes: u64| json!({"bytes": bytes, "seed": seed, "right": true});
    assert_eq!(
        got,
        [
            whole(1, 1_000),
            whole(2, 65_536),
            whole(4, 5_000_000),
            json!({"bytes": 0}),
            json!({"bytes": 0}),
            whole(6, 10),
            whole(7, 10),
            whole(8, 20_000),
        ]
    );
}

/// Copies a value between two clients that store objects, moves another one there and back, and reads them.
async fn tasks(host: &Host, master: SocketAddr, admin: SocketAddr) -> Vec<Value> {
    let storing = async |name: &str| {
        let mut store = Store::spawn(host, master, 64 << 20, &[name, "P2PHANDSHAKE"], &[]);
        assert_eq!(store.reply().await, json!({"setup": 0}));
        store
    };
    let mut first = storing("127.0.0.1").await;
    // The only segment.
    for (key, seed) in [("copied", 1), ("moved", 2)] {
        let put = json!({"call": "put", "key": key, "seed": seed, "bytes": 1_000_000});
        assert_eq!(first.call(put).await, json!({"code": 0}));
    }
    let _second = storing("127.0.0.2").await;
    let (_, names) = http::http(host, admin, "GET", "/get_all_segments").await;
    let mut names: Vec<&str> = names.split_whitespace().collect();
    names.sort_unstable();
    let [from, to] = names[..] else {
        panic!("{names:?}");
    };
    let of = |key: &str| json!({"call": "places", "key": key});
    let mut reader = Store::start(host, master, 0).await;
    let get = |key: &str| json!({"call": "get", "key": key});
    let mut seen = Vec::new();
    for request in [
        json!({"call": "copy_task", "key": "none", "targets": [to]}),
        json!({"call": "copy_task", "key": "copied", "targets": []}),
        json!({"call": "copy_task", "key": "copied", "targets": ["elsewhere"]}),
        json!({"call": "copy_task", "key": "copied", "targets": [to]}),
        of("copied"),
        json!({"call": "copy_task", "key": "copied", "targets": [to]}),
        get("copied"),
        json!({"call": "move_task", "key": "moved", "source": to, "target": from}),
        json!({"call": "move_task", "key": "moved", "source": from, "target": from}),
        json!({"call": "move_task", "key": "moved", "source": from, "target": to}),
        of("moved"),
        get("moved"),
        json!({"call": "move_task", "key": "moved", "source": to, "target": from}),
        of("moved"),
        get("moved"),
        json!({"call": "move_task", "key": "copied", "source": from, "target": to}),
        of("copied"),
        get("copied"),
    ] {
        seen.push(reader.call(request).await);
    }
    seen
}

#[tokio::test]
async fn tasks_copy_and_move_values_between_clients_of_the_wheel_as_with_the_stock_master() {
    let host = Host::new().await;
    let _ours = host.ours(&[]).await;
    let ours = tasks(&host, OURS, OUR_HTTP).await;
    let _stock = host.stock(&[]).await;
    let stock = tasks(&host, STOCK, STOCK_HTTP).await;
    for (ours, stock) in ours.iter().zip(&stock) {
        println!("{stock}");
        assert_eq!(ours, stock);
    }
    let count = |answer: Value| ours.iter().filter(|of| **of == answer).count();
    assert_eq!(count(json!({"status": "SUCCESS"})), 5);
    let value = |seed| json!({"bytes": 1_000_000, "right": true, "seed": seed});
    assert_eq!((count(value(1)), count(value(2))), (2, 2));
    assert_eq!(count(json!({"places": ["127.0.0.1", "127.0.0.2"]})), 1);
}

#[tokio::test]
async fn storing_clients_mount_again_after_a_restart_and_expire_after_their_death() {
    let host = Host::new().await;
    let mut ours = host.ours(&["--client_ttl=3"]).await;
    let mut owner = Store::start(&host, OURS, 64 << 20).await;
    let put = |key: &str| json!({"call": "put", "key": key, "seed": 1, "bytes": 1_000});
    assert_eq!(owner.call(put("before")).await, json!({"code": 0}));
    ours.kill().await.unwrap();
    let _ours = host.ours(&["--client_ttl=3"]).await;
    let mut other = Store::start(&host, OURS, 0).await;
    let again = async {
        while other.call(put("after")).await != json!({"code": 0}) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TIMEOUT, again)
        .await
        .expect("the segment is mounted again");
    let got = other.call(json!({"call": "get", "key": "after"})).await;
    assert_eq!(got["right"], true);
    // The keys of the former master are unknown: this one has no ledger.
    let got = other.call(json!({"call": "exist", "key": "before"})).await;
    assert_eq!(got, json!({"code": 0}));

    drop(owner);
    let expired = async {
        while other.call(json!({"call": "exist", "key": "after"})).await != json!({"code": 0}) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TIMEOUT, expired).await.expect("the client expires");
}

/// Values of a metadata service by HTTP.
async fn metadata(host: &Host, address: SocketAddr, key: &str) -> u16 {
    let mut stream = host.connect(address).await.unwrap();
    let key = proto::metadata::encode(key);
    let request =
        format!("GET /metadata?key={key} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    timeout(TIMEOUT, read)
        .await
        .expect("an answer in time")
        .unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn clients_find_each_other_by_our_metadata_server_and_take_no_name_of_another_pod() {
    let host = Host::new().await;
    // Whoever connects to its own address is there: two pods.
    const PODS: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
    for pod in PODS {
        let mut add = host.space.command("ip");
        add.args(["address", "add", pod, "dev", "lo"]);
        assert!(add.status().await.unwrap().success());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("addresses");
    std::fs::write(&file, "member 10.9.0.1 a\nmember 10.9.0.2 b\n").unwrap();
    let flags = [
        "--enable_http_metadata_server=true".to_owned(),
        format!("--admitted_file={}", file.display()),
    ];
    let _ours = host.ours(&flags.each_ref().map(String::as_str)).await;
    let [first, second] = PODS.map(|pod| format!("http://{pod}:8080/metadata"));
    let address = |pod: &str| format!("{pod}:8080").parse().unwrap();

    // The one by its host name, the other one by its address.
    let mut a = Store::named(&host, "vllm-0:17001", &first);
    assert_eq!(a.reply().await, json!({"setup": 0}));
    let mut b = Store::named(&host, "10.9.0.2:17002", &second);
    assert_eq!(b.reply().await, json!({"setup": 0}));
    for key in ["mooncake/ram/vllm-0:17001", "mooncake/ram/10.9.0.2:17002"] {
        assert_eq!(metadata(&host, address(PODS[0]), key).await, 200, "{key}");
    }
    for (number, writes) in [true, false].into_iter().cycle().take(16).enumerate() {
        let (writer, reader) = match writes {
            true => (&mut a, &mut b),
            false => (&mut b, &mut a),
        };
        let key = format!("key-{number}");
        let put = json!({"call": "put", "key": key, "seed": number, "bytes": 100_000});
        assert_eq!(writer.call(put).await, json!({"code": 0}));
        let got = reader.call(json!({"call": "get", "key": key})).await;
        assert_eq!(got["right"], true, "{got}");
    }

    // A name of another pod: the start fails, and the end of that client removes nothing of the other one.
    for taken in ["vllm-0:17001", "10.9.0.1:17003"] {
        let mut thief = Store::named(&host, taken, &second);
        assert_ne!(thief.reply().await, json!({"setup": 0}), "{taken}");
        drop(thief.requests);
        timeout(TIMEOUT, thief.child.wait()).await.unwrap().unwrap();
    }
    for key in [
        "mooncake/ram/vllm-0:17001",
        "mooncake/rpc_meta/vllm-0:17001",
    ] {
        assert_eq!(metadata(&host, address(PODS[0]), key).await, 200, "{key}");
    }
    let got = b.call(json!({"call": "get", "key": "key-0"})).await;
    assert_eq!(got["right"], true, "{got}");

    // A process that was killed comes back under its name.
    a.child.kill().await.unwrap();
    let mut again = Store::named(&host, "vllm-0:17001", &first);
    assert_eq!(again.reply().await, json!({"setup": 0}));
}

/// What clients of two tenants, of one without a quota and of the default one see of one master.
async fn operations_of_tenants(host: &Host, master: SocketAddr) -> Vec<Value> {
    let mut default = Store::start(host, master, 64 << 20).await;
    let mut a = Store::of_tenant(host, master, "a").await;
    let mut b = Store::of_tenant(host, master, "b").await;
    let mut none = Store::of_tenant(host, master, "other").await;
    let put = |key: &str, seed: u64, bytes: u64| json!({"call": "put", "key": key, "seed": seed, "bytes": bytes});
    let get = |key: &str| json!({"call": "get", "key": key});
    let mut seen = Vec::new();
    for (who, request) in [
        (0, put("same", 1, 1000)),
        (1, put("same", 2, 2000)),
        (2, put("same", 3, 3000)),
        (3, put("same", 4, 4000)),
        (0, get("same")),
        (1, get("same")),
        (2, get("same")),
        (3, get("same")),
        // The quota of "a" is 100,000 bytes; what it has is in use, so nothing is evicted.
        (1, put("large", 5, 98_001)),
        (1, put("large", 6, 98_000)),
        (1, get("large")),
        (1, put("more", 7, 1)),
        (
            1,
            json!({"call": "upsert", "key": "large", "seed": 8, "bytes": 98_000}),
        ),
        (1, get("large")),
        (2, put("large", 9, 150_000)),
        (2, json!({"call": "put_batch", "count": 5, "bytes": 10_000})),
        (2, json!({"call": "get_batch", "count": 5})),
        (
            0,
            json!({"call": "batch_exist", "keys": ["large", "batch-0", "same"]}),
        ),
        (
            2,
            json!({"call": "remove_by_regex", "pattern": "^batch-", "force": true}),
        ),
        (2, json!({"call": "remove", "key": "same", "force": true})),
        (1, json!({"call": "exist", "key": "same"})),
        (1, json!({"call": "remove_all", "force": true})),
        (0, get("same")),
        (2, get("large")),
        (1, put("more", 10, 100_000)),
        (1, get("more")),
    ] {
        let client = [&mut default, &mut a, &mut b, &mut none];
        let client = client.into_iter().nth(who).unwrap();
        let answer = client.call(request.clone()).await;
        seen.push(json!([who, request, answer]));
    }
    seen
}

#[tokio::test]
async fn clients_of_tenants_read_their_own_values_within_their_own_quota() {
    let host = Host::new().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quotas");
    let quotas = "version: 1\ntenants: [{name: default, quota: 1MB}, {name: a, quota: 100000}, {name: b, quota: 1MB}]";
    std::fs::write(&file, quotas).unwrap();
    let uri = format!("--tenant_quota_connector_uri={}", file.display());
    let flags = ["--enable_multi_tenants", "--default_kv_lease_ttl=1h", &uri];
    let _ours = host.ours(&flags).await;
    let ours = operations_of_tenants(&host, OURS).await;
    let _stock = host.stock(&flags).await;
    let stock = operations_of_tenants(&host, STOCK).await;
    for (ours, stock) in ours.iter().zip(&stock) {
        assert_eq!(ours, stock);
    }
    // The comparison would not notice that nothing works at all.
    let results: Vec<_> = ours.iter().map(|line| line[2].clone()).collect();
    let whole = |seed: u64, bytes: u64| json!({"bytes": bytes, "seed": seed, "right": true});
    let code = |code: i32| json!({"code": code});
    assert_eq!(results[..4], [code(0), code(0), code(0), code(-1701)]);
    let values = [
        whole(1, 1000),
        whole(2, 2000),
        whole(3, 3000),
        json!({"bytes": 0}),
    ];
    assert_eq!(results[4..8], values);
    assert_eq!(
        results[8..12],
        [code(-1700), code(0), whole(6, 98_000), code(-1700)]
    );
    assert_eq!(results[12..14], [code(0), whole(8, 98_000)]);
    assert_eq!(
        results[20..],
        [
            code(1),
            json!({"count": 2}),
            whole(1, 1000),
            whole(9, 150_000),
            code(0),
            whole(10, 100_000)
        ]
    );
}
