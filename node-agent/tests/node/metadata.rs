//! A pool pod of a cluster with an HTTP metadata service: the service is absent, comes, is lost, and comes back empty.

use std::process::Stdio;

use mooncake_stock::{MOONCAKE, Space};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::Child;
use tokio::time::timeout;

use crate::peers::{Client, Master};
use crate::stage::{Node, PATIENCE, eventually};

const POD: &str = "aaaa0000-0000-4000-8000-000000000001";
const SERVICE: &str = "http://10.77.0.1:8080/metadata";
const MIB: u64 = 1 << 20;

/// Starts the metadata server of a stock master that no client uses as a master.
fn serve_metadata(space: &Space) -> Child {
    let program = MOONCAKE.site().unwrap().join("mooncake/mooncake_master");
    space
        .command(program)
        .args([
            "--rpc_port=50052",
            "--metrics_port=9004",
            "--enable_http_metadata_server=true",
            "--http_metadata_server_port=8080",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns status and body of a key of the pool pod, as curl requests it; `None` without an answer.
async fn key(space: &Space, key: &str) -> Option<String> {
    let output = space
        .command("python3")
        .arg("-c")
        .arg(
            "import sys,urllib.request,urllib.error\n\
             try: print(200, urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())\n\
             except urllib.error.HTTPError as e: print(e.code, e.read().decode())",
        )
        .arg(format!(
            "{SERVICE}?key=mooncake%2F{key}%2F10.77.0.2%3A12001"
        ))
        .stderr(Stdio::null())
        .output();
    let output = timeout(PATIENCE, output).await.unwrap().unwrap();
    output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn a_pool_pod_is_found_by_its_metadata_service_which_is_filled_again_when_it_comes_back_empty()
 {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut pool = node.pool(POD);
    let _agent = node.agent();
    let service = json!({"type": "HTTP", "endpoint": SERVICE});
    node.assign_with_metadata(POD, "m1", service);
    // A client must find the descriptor of each segment that the master returns.
    eventually("the pod waits for the service", || {
        node.shows("Mounting", "MetadataUnreachable")
    })
    .await;
    assert!(node.probe("ready").await.is_err(), "it is not mounted");

    let mut server = serve_metadata(&node.peers);
    node.ready().await;
    let mut client = Client::start_with(&node.peers, SERVICE).await;
    assert_eq!(client.put("a", 4, MIB).await, (4, 0));
    assert_eq!(client.verify("a", 4, MIB).await, (4, 0));

    server.kill().await.unwrap();
    eventually("the loss of the service is reported", || {
        node.shows("Serving", "MetadataUnreachable")
    })
    .await;
    // What is mounted serves on.
    assert_eq!(client.verify("a", 4, MIB).await, (4, 0));
    node.probe("ready").await.unwrap();

    let _server = serve_metadata(&node.peers);
    eventually("the service is filled again", || async {
        let described = key(&node.peers, "ram").await?;
        let reachable = key(&node.peers, "rpc_meta").await?;
        (described.starts_with("200 ") && reachable.starts_with("200 ")).then_some(())
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
        let described = key(&node.peers, "ram").await?;
        let reachable = key(&node.peers, "rpc_meta").await?;
        (described.starts_with("404 ") && reachable.starts_with("404 ")).then_some(())
    })
    .await;
}
