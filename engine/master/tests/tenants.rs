//! The program with tenants: what it answers by HTTP beside the stock master, how it reads the file with quotas, and hostile
//! clients. Requires root.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/http.rs"]
mod http;
#[path = "fixture/namespace.rs"]
mod namespace;
#[path = "fixture/same_answers.rs"]
mod same_answers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use client::Client;
use http::http;
use namespace::{Host, OUR_HTTP, OURS, STOCK, STOCK_HTTP, TIMEOUT};
use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Uuid};
use same_answers::same_answers;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;
use wire::{ObjectMeta, ReplicaType, ReplicateConfig, Segment};

const QUOTAS: &str = "version: 1
tenants:
  - {name: default, quota: 48MB}
  - {name: a, quota: 10000}
  - {name: \"b\\\"c\", quota: 48MB}
  - {name: d, quota: 1MB}
";

/// The file with quotas as in a volume of a ConfigMap: each version is a folder, and a link leads to the newest one.
struct File {
    folder: TempDir,
    versions: u32,
}

impl File {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("..data/quotas", folder.path().join("quotas")).unwrap();
        let mut file = Self {
            folder,
            versions: 0,
        };
        file.replace(text);
        file
    }

    fn replace(&mut self, text: &str) {
        self.versions += 1;
        let at = |name: &str| self.folder.path().join(name);
        let version = format!("..{}", self.versions);
        std::fs::create_dir(at(&version)).unwrap();
        std::fs::write(at(&version).join("quotas"), text).unwrap();
        std::os::unix::fs::symlink(&version, at("..next")).unwrap();
        std::fs::rename(at("..next"), at("..data")).unwrap();
    }

    fn flags(&self) -> [String; 4] {
        let file = self.folder.path().join("quotas");
        [
            // The clients send no pings.
            "--client_ttl=3600".into(),
            "--default_kv_lease_ttl=1h".into(),
            "--enable_multi_tenants".into(),
            format!("--tenant_quota_connector_uri={}", file.display()),
        ]
    }
}

fn id(second: u64) -> Uuid {
    Uuid { first: 1, second }
}

async fn mount(client: &mut Client) {
    let segment = Segment {
        id: id(1),
        name: "a.segment".into(),
        base: 1 << 58,
        size: 64 << 20,
        te_endpoint: "10.0.0.1:1".into(),
        protocol: "tcp".into(),
        host_id: String::new(),
    };
    let mounted = client.call::<wire::MountSegment>(&(segment, id(2))).await;
    assert_eq!(mounted, Ok(()));
}

async fn put(client: &mut Client, tenant: &str, key: &str, size: u64) -> Result<(), ErrorCode> {
    let config = ReplicateConfig::default();
    let start = (id(3), key.into(), size, config, tenant.into());
    client.call::<wire::PutStart>(&start).await?;
    let meta = ObjectMeta {
        key: key.into(),
        object_checksum: None,
    };
    let end = (id(3), meta, ReplicaType::All, tenant.into());
    client.call::<wire::PutEnd>(&end).await
}

async fn exists(client: &mut Client, tenant: &str, key: &str) -> Result<bool, ErrorCode> {
    let arguments = (key.into(), tenant.into());
    client.call::<wire::ExistKey>(&arguments).await
}

/// The metrics of tenants.
async fn metrics(host: &Host, address: SocketAddr) -> BTreeMap<String, String> {
    let (_, text) = http(host, address, "GET", "/metrics").await;
    let lines = text
        .lines()
        .filter(|line| line.starts_with("mooncake_tenant_"));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[tokio::test]
async fn tenants_are_shown_by_http_as_by_the_stock_master() {
    let host = Host::new().await;
    let file = File::new(QUOTAS);
    let flags = file.flags();
    let flags = flags.each_ref().map(String::as_str);
    let _ours = host.ours(&flags).await;
    let _stock = host.stock(&flags).await;
    for address in [OURS, STOCK] {
        let client = &mut host.client(address).await;
        mount(client).await;
        for tenant in ["default", "a", "b\"c", "d"] {
            assert_eq!(put(client, tenant, "same", 1000).await, Ok(()));
            let own = format!("of-{}", &tenant[..1]);
            assert_eq!(put(client, tenant, &own, 2000).await, Ok(()));
        }
        // The objects of "a" are in use, so nothing is evicted for one that exceeds its quota.
        for key in ["same", "of-a"] {
            assert_eq!(exists(client, "a", key).await, Ok(true));
        }
        let refused = put(client, "a", "large", 8000).await;
        assert_eq!(refused, Err(ErrorCode::TenantQuotaExceeded));
        for tenant in ["other", "", "_a"] {
            let refused = put(client, tenant, "k", 1).await;
            assert_eq!(refused, Err(ErrorCode::TenantNotRegistered), "{tenant:?}");
        }
    }
    for (method, path) in [
        ("GET", "/api/v1/tenant_quotas"),
        ("GET", "/api/v1/tenant_quotas?tenant_id="),
        ("GET", "/api/v1/tenant_quotas?tenant_id=a"),
        ("GET", "/api/v1/tenant_quotas?tenant_id=b%22c"),
        ("GET", "/api/v1/tenant_quotas?tenant_id=other"),
        ("GET", "/api/v1/tenant_quotas?tenant_id=_a"),
        ("GET", "/get_all_keys"),
        ("GET", "/get_all_keys?tenant_id=a"),
        ("GET", "/query_key?key=same&tenant_id=a"),
        ("GET", "/query_key?key=of-a&tenant_id=a"),
        ("GET", "/query_key?key=of-a"),
        ("GET", "/batch_query_keys?keys=same,of-a&tenant_id=a"),
        ("POST", "/api/v1/remove_all?tenant_id=_a"),
        ("POST", "/api/v1/remove_all?tenant_id=d"),
        ("GET", "/api/v1/tenant_quotas"),
        ("POST", "/api/v1/remove_all"),
        ("GET", "/api/v1/tenant_quotas"),
        ("GET", "/get_all_keys"),
    ] {
        let ours = same_answers(&host, method, path).await;
        assert!(!ours.contains('\0'), "{method} {path}");
    }
    let mut ours = metrics(&host, OUR_HTTP).await;
    let stock = metrics(&host, STOCK_HTTP).await;
    for (name, value) in stock {
        assert_eq!(ours.remove(&name), Some(value), "{name}");
    }
    // What the stock master does not count, and what is zero.
    ours.retain(|_, value| value != "0");
    let expected = [
        ("mooncake_tenant_keys{tenant_id=\"a\"}", "2"),
        ("mooncake_tenant_keys{tenant_id=\"default\"}", "1"),
        (
            "mooncake_tenant_quota_reject_total{tenant_id=\"\",reason=\"not_registered\"}",
            "3",
        ),
    ];
    let expected = expected.map(|(name, value)| (name.into(), value.into()));
    assert_eq!(ours, BTreeMap::from(expected));

    // Quotas are changed in the file only.
    for method in ["PUT", "DELETE"] {
        let path = "/api/v1/tenant_quotas?tenant_id=a";
        let (status, body) = http(&host, OUR_HTTP, method, path).await;
        assert_eq!(status, 405);
        assert!(body.contains("--tenant_quota_connector_uri"), "{body}");
    }
    // Our own search knows tenants.
    let (_, body) = http(
        &host,
        OUR_HTTP,
        "GET",
        "/find_keys?tenant_id=a&prefix=of&limit=9",
    )
    .await;
    let found: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&found["objects"], &found["keys"][0]["key"]),
        (&1.into(), &"of-a".into())
    );
    let (status, _) = http(&host, OUR_HTTP, "GET", "/find_keys?tenant_id=_a").await;
    assert_eq!(status, 400);
}

/// Waits until a put has this result.
async fn becomes(client: &mut Client, tenant: &str, size: u64, result: Result<(), ErrorCode>) {
    let key = format!("{tenant} {size}");
    let becomes = async {
        while put(client, tenant, &key, size).await != result {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let what = format!("a put of {tenant} is {result:?}");
    timeout(TIMEOUT, becomes).await.expect(&what);
}

#[tokio::test]
async fn the_file_is_read_again_and_a_wrong_one_is_refused_with_its_name() {
    let host = Host::new().await;
    let mut file = File::new(QUOTAS);
    let flags = file.flags();
    let _ours = host.ours(&flags.each_ref().map(String::as_str)).await;
    let client = &mut host.client(OURS).await;
    mount(client).await;
    becomes(client, "a", 10_001, Err(ErrorCode::TenantQuotaExceeded)).await;
    becomes(client, "new", 1, Err(ErrorCode::TenantNotRegistered)).await;
    file.replace("version: 1\ntenants: [{name: a, quota: 20000}, {name: new, quota: 5000}]");
    becomes(client, "a", 10_001, Ok(())).await;
    becomes(client, "new", 1, Ok(())).await;
    becomes(client, "b\"c", 1, Err(ErrorCode::TenantNotRegistered)).await;
    // It is seen by the next look; nothing changes.
    file.replace("version: 1\ntenants: [{name: a, quota: 20000}, {name: new, quota: 5000 MB}]");
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(put(client, "a", "k", 5000).await, Ok(()));
    assert_eq!(
        put(client, "new", "k", 6000).await,
        Err(ErrorCode::TenantQuotaExceeded)
    );
    file.replace("version: 1\ntenants: [{name: new, quota: 7000}]");
    becomes(client, "a", 2, Err(ErrorCode::TenantNotRegistered)).await;
    becomes(client, "new", 6000, Ok(())).await;
    // Its objects are still there.
    assert_eq!(exists(client, "a", "k").await, Ok(true));

    let wrong = File::new("version: 1\ntenants: [{name: _a, quota: 1}]");
    let [_, _, enable, uri] = wrong.flags();
    let etcd = "--tenant_quota_connector_type=etcd".to_owned();
    for (flags, reasons) in [
        (vec![&enable, &uri], vec!["quotas", "_a"]),
        (vec![&enable], vec!["--tenant_quota_connector_uri"]),
        (vec![&uri], vec!["--enable_multi_tenants"]),
        (
            vec![&enable, &uri, &etcd],
            vec!["etcd", "[possible values: file]"],
        ),
    ] {
        let program = Path::new(env!("CARGO_BIN_EXE_mooncake-master"));
        let mut command = host.space.command(program);
        let ended = command.args(&flags).stderr(Stdio::piped()).output();
        let ended = timeout(TIMEOUT, ended).await.unwrap().unwrap();
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "{flags:?}");
        for reason in reasons {
            assert!(error.contains(reason), "{flags:?}: {error}");
        }
    }
}

#[tokio::test]
async fn clients_that_name_many_tenants_take_no_memory_and_no_metrics() {
    let host = Host::new().await;
    let file = File::new(QUOTAS);
    let flags = file.flags();
    let ours = host.ours(&flags.each_ref().map(String::as_str)).await;
    let client = &mut host.client(OURS).await;
    mount(client).await;
    assert_eq!(put(client, "a", "k", 100).await, Ok(()));
    let before = metrics(&host, OUR_HTTP).await;
    let resident = || {
        let status = format!("/proc/{}/status", ours.id().unwrap());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kib
    };
    let mut names: Vec<String> = (0..2000).map(|number| format!("tenant-{number}")).collect();
    let long = "n".repeat(1 << 20);
    let mut first = 0;
    for number in 0..40 {
        names.push(format!("{long}{number}"));
    }
    for (number, tenant) in names.iter().enumerate() {
        let refused = put(client, tenant, "k", 100).await;
        assert_eq!(refused, Err(ErrorCode::TenantNotRegistered));
        assert_eq!(exists(client, tenant, "k").await, Ok(false));
        let removal = ("k".into(), true, tenant.clone());
        let removed = client.call::<wire::Remove>(&removal).await;
        assert_eq!(removed, Err(ErrorCode::ObjectNotFound));
        if number == 100 || number == 2005 {
            first = resident();
        }
    }
    let grown = resident().saturating_sub(first);
    assert!(grown < 16 << 10, "{grown} KiB");
    let mut after = metrics(&host, OUR_HTTP).await;
    let refused = "mooncake_tenant_quota_reject_total{tenant_id=\"\",reason=\"not_registered\"}";
    assert_eq!(
        after.insert(refused.into(), "0".into()),
        Some(names.len().to_string())
    );
    assert_eq!(after, before);

    // The stored form of a key of another tenant.
    for tenant in ["default", "a", "b\"c"] {
        let key = || String::from("\0a\0k");
        let of = || String::from(tenant);
        let exists = client.call::<wire::ExistKey>(&(key(), of())).await;
        assert_eq!(exists, Err(ErrorCode::InvalidParams));
        let found = client.call::<wire::GetReplicaList>(&(key(), of())).await;
        assert_eq!(found.err(), Some(ErrorCode::InvalidParams));
        let removed = client.call::<wire::Remove>(&(key(), true, of())).await;
        assert_eq!(removed, Err(ErrorCode::InvalidParams));
        let refused = put(client, tenant, &key(), 1).await;
        assert_eq!(refused, Err(ErrorCode::InvalidParams));
        let found = client
            .bare::<wire::BatchGetReplicaList>(&(vec![key()], of()))
            .await;
        assert_eq!(found[0].as_ref().err(), Some(&ErrorCode::InvalidParams));
    }
    let clearing = (vec!["\0a\0k".into()], id(3), String::new());
    let cleared = client.call::<wire::BatchReplicaClear>(&clearing).await;
    assert_eq!(cleared, Err(ErrorCode::InvalidParams));
    let (status, _) = http(&host, OUR_HTTP, "GET", "/query_key?key=%00a%00k").await;
    assert_eq!(status, 404);
    assert_eq!(exists(client, "a", "k").await, Ok(true));
}
