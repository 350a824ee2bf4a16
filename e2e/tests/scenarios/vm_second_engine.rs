//! A stock store on TCP and a second Transfer Engine of the same process on a virtual machine node with a Soft-RoCE device:
//! the store installs TCP alone, the second engine uses RDMA. Only the soak runs it.

use anyhow::{Context, ensure};
use local_cluster::images;
use mooncake_e2e::scenario::Pool;
use serde_json::{Value, json};

use super::rdma_device_claims;
use super::vm_node::{SLOW, VmNode, with_vm_node};

const PROGRAM: &str = include_str!("../workload/second_engine.py");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual machine: root and 8 GiB of memory"]
async fn an_injected_store_on_tcp_leaves_rdma_to_a_second_engine_of_the_process()
-> anyhow::Result<()> {
    with_vm_node("engines", async |vm: VmNode| {
        Pool::small(&vm.namespace).await?;
        let template = rdma_device_claims::template("rail", "rxe0");
        vm.namespace.apply(&template.to_string()).await?;
        let pod = pod_with_two_engines(&vm.node.name);
        vm.namespace.apply(&pod.to_string()).await?;
        vm.namespace.pod_succeeded("engines", SLOW).await?;
        let log = vm.namespace.logs("engines", "main").await?;
        let line = log.lines().rev().find(|line| line.starts_with('{'));
        let report: Value = serde_json::from_str(line.context("no report")?)?;
        println!("{report}");
        let expected = json!({
            "store": ["tcp"], "engine": ["rdma"], "stored": true, "transferred": true,
        });
        ensure!(report == expected, "{report}, not {expected}:\n{log}");
        Ok(())
    })
    .await
}

fn pod_with_two_engines(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "engines", "labels": {(crds::names::LABEL_INJECT): "kv"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "hca", "resourceClaimTemplateName": "rail"}],
            "containers": [{
                "name": "main", "image": images::MOONCAKE_STOCK,
                "command": ["python3", "-c", PROGRAM],
                "resources": {"claims": [{"name": "hca"}]},
            }],
        },
    })
}
