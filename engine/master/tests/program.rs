//! The program: what its HTTP paths answer beside the stock master, and how it ends. Requires root.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/http.rs"]
mod http;
#[path = "fixture/namespace.rs"]
mod namespace;
#[path = "fixture/same_answers.rs"]
mod same_answers;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use http::http;
use namespace::{Host, OUR_HTTP, OURS, STOCK, STOCK_HTTP, TIMEOUT};
use proto::store::Uuid;
use proto::store::release_0_3_13 as wire;
use rustix::process::{Pid, Signal, kill_process};
use same_answers::same_answers;
use serde_json::{Value, json};
use tokio::time::timeout;
use wire::{ObjectMeta, ReplicaType, ReplicateConfig, Segment};

async fn fill(client: &mut client::Client) {
    let id = |second| Uuid { first: 1, second };
    let segment = Segment {
        id: id(1),
        name: "a.segment".into(),
        base: 1 << 58,
        size: 64 << 20,
        te_endpoint: "10.0.0.1:1".into(),
        protocol: "tcp".into(),
        host_id: String::new(),
    };
    client
        .call::<wire::MountSegment>(&(segment, id(2)))
        .await
        .unwrap();
    for key in ["k1", "k2"] {
        let start = (
            id(3),
            key.into(),
            1024,
            ReplicateConfig::default(),
            String::new(),
        );
        client.call::<wire::PutStart>(&start).await.unwrap();
        let meta = ObjectMeta {
            key: key.into(),
            object_checksum: None,
        };
        let end = (id(3), meta, ReplicaType::All, String::new());
        client.call::<wire::PutEnd>(&end).await.unwrap();
    }
}

#[tokio::test]
async fn the_http_paths_answer_as_those_of_the_stock_master() {
    let host = Host::new().await;
    let _ours = host.ours(&["--default_kv_lease_ttl=1h"]).await;
    let _stock = host.stock(&["--default_kv_lease_ttl=1h"]).await;
    for address in [OURS, STOCK] {
        fill(&mut host.client(address).await).await;
    }
    for (method, path) in [
        ("GET", "/health"),
        ("GET", "/role"),
        ("GET", "/ha_status"),
        ("GET", "/leader"),
        ("GET", "/get_all_keys"),
        ("GET", "/query_key?key=k1"),
        ("GET", "/query_key?key=none"),
        ("GET", "/query_key"),
        ("GET", "/batch_query_keys?keys=k2,none"),
        ("GET", "/batch_query_keys"),
        ("GET", "/get_all_segments"),
        ("GET", "/get_segments_detail"),
        ("GET", "/query_segment?segment=a.segment"),
        ("GET", "/query_segment?segment=none"),
        ("GET", "/api/v1/segments/status?segment=a.segment"),
        ("GET", "/api/v1/segments/status?segment=none"),
        ("GET", "/api/v1/segments/status?segment="),
        ("GET", "/api/v1/segments/status"),
        ("GET", "/api/v1/tenant_quotas"),
        // Only the query of one key has granted a lease: of k1.
        ("POST", "/api/v1/remove_all"),
        ("GET", "/get_all_keys"),
    ] {
        same_answers(&host, method, path).await;
    }
    let names = |text: &str| -> std::collections::BTreeMap<String, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    };
    let stock = names(&http(&host, STOCK_HTTP, "GET", "/metrics").await.1);
    let ours = names(&http(&host, OUR_HTTP, "GET", "/metrics").await.1);
    for name in [
        "master_key_count",
        "master_total_capacity_bytes",
        "master_put_start_requests_total",
        "master_put_end_requests_total",
        "master_mount_segment_requests_total",
        "master_put_start_failures_total",
        "segment_total_capacity_bytes{segment=\"a.segment\"}",
    ] {
        assert_eq!(ours.get(name), stock.get(name), "{name}");
        assert!(ours.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn keys_are_found_by_prefix_and_pattern_and_ledgers_are_listed() {
    let host = Host::new().await;
    let _ours = host.ours(&["--default_kv_lease_ttl=1h"]).await;
    fill(&mut host.client(OURS).await).await;
    let find = async |query: &str| {
        let (status, body) = http(&host, OUR_HTTP, "GET", &format!("/find_keys{query}")).await;
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let (status, all) = find("").await;
    assert_eq!(status, 200);
    let segments = json!([
        {"name": "a.segment", "endpoint": "10.0.0.1:1", "leaves": false, "objects": 2, "bytes": 2048}
    ]);
    let expected = json!({
        "success": true, "complete": true, "objects": 2, "bytes": 2048, "keys": [], "segments": segments,
    });
    assert_eq!(all, expected);
    let (_, listed) = find("?prefix=k&regex=2%24&limit=5").await;
    let key = json!([{"key": "k2", "size": 1024, "hard_pin": false, "segments": [0]}]);
    assert_eq!((&listed["keys"], &listed["objects"]), (&key, &json!(1)));
    // No time at all: nothing is known.
    let (_, none) = find("?seconds=0").await;
    assert_eq!(
        (&none["complete"], &none["objects"]),
        (&json!(false), &json!(0))
    );
    let (status, refused) = find("?regex=(").await;
    assert_eq!(
        (status, &refused["error_message"]),
        (400, &json!("INVALID_PARAMS"))
    );
    // The segment of a client that stores keys itself.
    let (status, ledgers) = http(&host, OUR_HTTP, "GET", "/ledgers").await;
    let ledgers: Value = serde_json::from_str(&ledgers).unwrap();
    let expected = json!({"success": true, "absent": [], "segments": [
        {"name": "a.segment", "endpoint": "10.0.0.1:1", "state": "NONE", "unrecorded": 0},
    ]});
    assert_eq!((status, ledgers), (200, expected));
    // The figures that `kubectl mooncake doctor` reads (operator/cli/src/masters.rs) are whole numbers under these names.
    let (_, metrics) = http(&host, OUR_HTTP, "GET", "/metrics").await;
    for name in [
        "total_get_nums_",
        "valid_get_nums_",
        "master_key_count",
        "master_total_capacity_bytes",
        "master_allocated_bytes",
        "master_put_start_alloc_failures_total",
        "master_evicted_key_count",
        "mooncake_ledger_missing_tombstones_total",
        "mooncake_ledger_late_segments",
        "mooncake_ledger_absent_owners",
        "mooncake_ledger_unrecorded_objects",
    ] {
        let prefix = format!("{name} ");
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(&prefix));
        assert!(
            value.is_some_and(|value| value.parse::<u64>().is_ok()),
            "{name}: {value:?}"
        );
    }
    for line in [
        "mooncake_call_seconds_bucket{le=\"+Inf\",function=\"PutStart\"} 2",
        "mooncake_call_seconds_count{function=\"PutEnd\"} 2",
        "mooncake_evicted_objects_total{cause=\"watermark\"} 0",
        "mooncake_failed_allocations_total{cause=\"full\"} 0",
        "mooncake_evicted_idle_seconds_count 0",
        "mooncake_ledger_lag_seconds 0.0",
    ] {
        assert!(metrics.lines().any(|of| of == line), "{line}: {metrics}");
    }
    assert!(!metrics.contains("RemoveAll"), "no calls, no lines");
    let page = include_str!("../../../docs/metrics.md");
    for of in metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
    {
        let (name, kind) = of.split_once(' ').unwrap();
        let suffix = if kind == "counter" { "_total" } else { "" };
        let row = format!("| {kind} | `{name}{suffix}` |");
        assert!(
            !name.starts_with("mooncake_") || page.contains(&row),
            "docs/metrics.md lacks {row}"
        );
    }
    // Nothing has a lease, in contrast to a lookup: all keys are removed without force.
    let (_, removed) = http(&host, OUR_HTTP, "POST", "/api/v1/remove_all").await;
    assert!(removed.contains("\"removed_count\":2"), "{removed}");
}

#[tokio::test]
async fn the_metadata_server_answers_as_that_of_the_stock_master() {
    let host = Host::new().await;
    let flags = |port: u16| {
        [
            "--enable_http_metadata_server=true".to_owned(),
            "--http_metadata_server_host=127.0.0.1".to_owned(),
            format!("--http_metadata_server_port={port}"),
        ]
    };
    let (ours, stock) = (flags(8081), flags(8080));
    let _ours = host.ours(&ours.each_ref().map(String::as_str)).await;
    let _stock = host.stock(&stock.each_ref().map(String::as_str)).await;
    for (method, path) in [
        ("GET", "/metadata?key=a"),
        ("PUT", "/metadata?key=a"),
        ("GET", "/metadata?key=a"),
        ("DELETE", "/metadata?key=a"),
        ("DELETE", "/metadata?key=a"),
        ("GET", "/metadata"),
        ("GET", "/metadata?key="),
        ("PUT", "/metadata?key="),
    ] {
        let stock = http(&host, SocketAddr::new(STOCK.ip(), 8080), method, path).await;
        let ours = http(&host, SocketAddr::new(OURS.ip(), 8081), method, path).await;
        assert_eq!(ours, stock, "{method} {path}");
    }
}

#[tokio::test]
async fn the_release_probe_of_a_storing_node_passes() {
    let host = Host::new().await;
    let _ours = host.ours(&[]).await;
    let master = store::Master::connect(host.connect(OURS).await.unwrap(), "ours".into());
    assert_eq!(
        master.probe_release().await.unwrap(),
        store::Release::V0_3_13
    );
}

#[tokio::test]
async fn sigterm_ends_the_program_and_a_used_port_is_named() {
    let host = Host::new().await;
    let mut first = host.ours(&[]).await;
    let second = host
        .space
        .command(Path::new(env!("CARGO_BIN_EXE_mooncake-master")))
        .args(["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"])
        .arg(format!("--rpc_port={}", OURS.port()))
        .stderr(Stdio::piped())
        .output();
    let second = timeout(TIMEOUT, second).await.unwrap().unwrap();
    let error = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    assert!(
        error.contains("cannot listen on 127.0.0.1:50061 for RPC (--rpc_address, --rpc_port)"),
        "{error}"
    );
    // A connection that waits does not keep the program.
    let _idle = host.connect(OURS).await.unwrap();
    let pid = Pid::from_raw(i32::try_from(first.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = timeout(TIMEOUT, first.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
}

/// A node that was paused, for example: no client could reach the master, so none has fallen silent.
#[tokio::test]
async fn clients_do_not_expire_while_the_program_is_stopped() {
    let host = Host::new().await;
    let ours = host.ours(&["--client_ttl=4"]).await;
    let client = Uuid {
        first: 1,
        second: 2,
    };
    let mut pings = host.client(OURS).await;
    fill(&mut pings).await;
    pings.call::<wire::Ping>(&client).await.unwrap();
    let pid = Pid::from_raw(i32::try_from(ours.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    kill_process(pid, Signal::CONT).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (_, metrics) = http(&host, OUR_HTTP, "GET", "/metrics").await;
    assert!(metrics.contains("\nmaster_expired_clients_total 0\n"));
    assert!(metrics.contains("\nmaster_key_count 2\n"), "{metrics}");
}

/// The table of `args/stock.rs` is compared with the record.
#[tokio::test]
async fn the_record_has_each_flag_of_the_stock_program_and_a_stock_command_line_starts_ours() {
    let stock = mooncake_stock::MOONCAKE.site().unwrap();
    let help = std::process::Command::new(stock.join("mooncake/mooncake_master"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    // A flag begins after four blanks, and its lines after six.
    let joined = help.replace("\n      ", " ");
    let flags = joined.lines().filter_map(|line| {
        let flag = line.strip_prefix("    -")?;
        let (name, _) = flag.split_once(' ')?;
        let (_, typed) = flag.rsplit_once(" type: ")?;
        let (kind, default) = typed.split_once(" default: ")?;
        let default = default.split(' ').next()?;
        Some(format!("{name} {kind} {default}"))
    });
    let recorded = include_str!("../src/args/stock_flags.txt");
    let recorded: Vec<_> = recorded.lines().collect();
    assert_eq!(flags.collect::<Vec<_>>(), recorded);

    let host = Host::new().await;
    let flags = [
        "-memory_allocator=offset",
        "--enable_metric_reporting=false",
        "--enable_offload=false",
        "--allocation_strategy=free_ratio_first",
    ];
    let _stock = host.stock(&flags).await;
    let _ours = host.ours(&flags).await;
}
