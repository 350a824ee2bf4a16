//! A pool pod of a cluster with an etcd: it is absent, comes, is lost, and comes back empty; and one with TLS, whose Secret
//! comes late and is rotated.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, reason = "this file uses a part of the node")]

#[path = "node/peers.rs"]
mod peers;
#[path = "node/stage.rs"]
mod stage;

use std::path::{Path, PathBuf};

use local_cluster::Settings;
use local_cluster::binaries::Binaries;
use mooncake_stock::{Authority, Etcd, ServerTls};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;

use peers::{Client, ETCD_CLUSTER, Master};
use stage::{Node, PATIENCE, PEERS_IP, POOL_IP, eventually};

const POD: &str = "aaaa0000-0000-4000-8000-000000000001";
const SERVICE: &str = "etcd://10.77.0.1:2379";
const MIB: u64 = 1 << 20;

/// Whether both keys of the pool pod are in etcd under a lease; `None` without an answer.
async fn published(node: &Node, etcd: &Etcd) -> Option<bool> {
    let mut found = Vec::new();
    for kind in ["ram", "rpc_meta"] {
        let key = format!("=mooncake/{}/{kind}/10.77.0.2:12001", ETCD_CLUSTER.1);
        let text = etcd
            .request(&node.peers, "kv/range", &[("key", &key)])
            .await;
        let answer: Value = serde_json::from_str(&text.ok()?).ok()?;
        let lease = answer["kvs"][0]["lease"].as_str();
        found.push(lease.is_some_and(|lease| lease != "0"));
    }
    Some(found == [true, true])
}

async fn program() -> PathBuf {
    let program = tokio::task::spawn_blocking(|| Binaries::get(&Settings::read()).unwrap().etcd());
    program.await.unwrap()
}

#[tokio::test]
#[ignore = "needs etcd, which is built from Go modules"]
async fn a_pool_pod_is_found_by_an_etcd_which_is_filled_again_when_it_comes_back_empty() {
    let program = program().await;
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut pool = node.pool(POD);
    let _agent = node.agent();
    let service = json!({"type": "Etcd", "endpoint": SERVICE, "clusterId": ETCD_CLUSTER.1});
    node.assign_with_metadata(POD, "m1", service);
    // A client must find the descriptor of each segment that the master returns.
    eventually("the pod waits for etcd", || {
        node.shows("Mounting", "MetadataUnreachable")
    })
    .await;
    assert!(node.probe("ready").await.is_err(), "it is not mounted");

    let address = PEERS_IP.parse().unwrap();
    let mut etcd = Etcd::start(&node.peers, &program, address, 1, &[]).unwrap();
    node.ready().await;
    assert_eq!(published(&node, &etcd).await, Some(true));
    let mut client = Client::start_with(&node.peers, SERVICE).await;
    assert_eq!(client.put("a", 4, MIB).await, (4, 0));
    assert_eq!(client.verify("a", 4, MIB).await, (4, 0));

    etcd.kill_member(0).await.unwrap();
    eventually("the loss of etcd is reported", || {
        node.shows("Serving", "MetadataUnreachable")
    })
    .await;
    // What is mounted serves on.
    assert_eq!(client.verify("a", 4, MIB).await, (4, 0));
    node.probe("ready").await.unwrap();

    etcd.remove_data(0).unwrap();
    etcd.start_member(&node.peers, 0).unwrap();
    eventually("etcd is filled again", || async {
        published(&node, &etcd).await?.then_some(())
    })
    .await;
    eventually("the failure is over", || {
        node.shows("Serving", "AsExpected")
    })
    .await;
    let mut next = Client::start_with(&node.peers, SERVICE).await;
    assert_eq!(next.verify("a", 4, MIB).await, (4, 0));
    assert_eq!(next.put("b", 4, MIB).await, (4, 0));
    assert_eq!(next.verify("b", 4, MIB).await, (4, 0));

    let pid = i32::try_from(pool.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    timeout(PATIENCE, pool.wait()).await.unwrap().unwrap();
    eventually("the keys are removed", || async {
        (!published(&node, &etcd).await?).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs etcd, which is built from Go modules"]
async fn a_pool_pod_whose_name_another_process_has_reports_it_and_takes_it_when_that_has_ended() {
    let program = program().await;
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let address = PEERS_IP.parse().unwrap();
    let etcd = Etcd::start(&node.peers, &program, address, 1, &[]).unwrap();
    let grant = eventually("etcd answers", || async {
        let granted = etcd.request(&node.peers, "lease/grant", &[("TTL", "60")]);
        granted.await.ok()
    });
    let grant: Value = serde_json::from_str(&grant.await).unwrap();
    let lease = grant["ID"].as_str().unwrap();
    let key = format!("=mooncake/{}/ram/10.77.0.2:12001", ETCD_CLUSTER.1);
    let value = r#"={"buffers":[],"name":"10.77.0.2:12001","protocol":"tcp","tcp_data_port":1}"#;
    let fields = [("key", key.as_str()), ("value", value), ("lease", lease)];
    etcd.request(&node.peers, "kv/put", &fields).await.unwrap();

    let _pool = node.pool(POD);
    let _agent = node.agent();
    let service = json!({"type": "Etcd", "endpoint": SERVICE, "clusterId": ETCD_CLUSTER.1});
    node.assign_with_metadata(POD, "m1", service);
    // As long as the process may live, it renews its lease.
    eventually("the pod reports that its name is taken", || async {
        let alive = [("ID", lease)];
        etcd.request(&node.peers, "lease/keepalive", &alive)
            .await
            .ok()?;
        node.shows("Mounting", "MetadataUnreachable").await
    })
    .await;
    assert!(node.probe("ready").await.is_err(), "it is not mounted");
    let kept = etcd
        .request(&node.peers, "kv/range", &[("key", &key)])
        .await;
    let kept: Value = serde_json::from_str(&kept.unwrap()).unwrap();
    assert_eq!(kept["kvs"][0]["lease"], lease, "{kept}");
    node.ready().await;
    assert_eq!(published(&node, &etcd).await, Some(true));
}

/// Shows a Secret as the kubelet does: the folder behind a link is replaced.
fn show(folder: &Path, version: &str, authority: &Authority) {
    let signed = authority.sign(&["pool"]).unwrap();
    let data = folder.join(version);
    std::fs::create_dir(&data).unwrap();
    for (key, value) in [
        ("ca.crt", authority.certificate()),
        ("tls.crt", &signed.certificate),
        ("tls.key", &signed.key),
    ] {
        std::fs::write(data.join(key), value).unwrap();
    }
    std::os::unix::fs::symlink(version, folder.join("..fresh")).unwrap();
    std::fs::rename(folder.join("..fresh"), folder.join("..data")).unwrap();
}

/// An etcd whose clients need a certificate of the same authority.
fn tls(authority: &Authority) -> ServerTls {
    ServerTls {
        own: authority.sign(&[PEERS_IP]).unwrap(),
        clients: Some(authority.certificate().to_owned()),
    }
}

#[tokio::test]
#[ignore = "needs etcd, which is built from Go modules"]
async fn a_pool_pod_uses_an_etcd_with_tls_by_its_secret_and_follows_a_rotation() {
    let program = program().await;
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let authority = Authority::new("first").unwrap();
    let address = PEERS_IP.parse().unwrap();
    let mut etcd = Etcd::start_tls(&node.peers, &program, address, tls(&authority)).unwrap();
    let secret = tempfile::tempdir().unwrap();
    let flag = format!("--metadata-secret={}", secret.path().display());
    let mut pool = node.pool_with(&node.pod, "default", POOL_IP, POD, &[&flag]);
    let _agent = node.agent();
    let service = json!({
        "type": "Etcd", "endpoint": SERVICE, "clusterId": ETCD_CLUSTER.1, "secretName": "etcd-client",
    });
    node.assign_with_metadata(POD, "m1", service);
    eventually("the pod waits for its Secret", || {
        node.shows("Mounting", "MetadataUnreachable")
    })
    .await;
    assert!(node.probe("ready").await.is_err(), "it is not mounted");

    show(secret.path(), "..1", &authority);
    node.ready().await;
    assert_eq!(published(&node, &etcd).await, Some(true));

    let second = Authority::new("second").unwrap();
    etcd.set_tls(tls(&second)).unwrap();
    etcd.kill_member(0).await.unwrap();
    etcd.start_member(&node.peers, 0).unwrap();
    eventually("the new certificate of etcd is reported", || {
        node.shows("Serving", "MetadataUnreachable")
    })
    .await;
    // What is mounted serves on.
    node.probe("ready").await.unwrap();
    show(secret.path(), "..2", &second);
    eventually("the rotated Secret is in use", || {
        node.shows("Serving", "AsExpected")
    })
    .await;
    assert_eq!(published(&node, &etcd).await, Some(true));

    let pid = i32::try_from(pool.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    timeout(PATIENCE, pool.wait()).await.unwrap().unwrap();
    eventually("the keys are removed", || async {
        (!published(&node, &etcd).await?).then_some(())
    })
    .await;
}
