//! The MooncakeInventory of each node: its content, its re-creation, and that only the node's agent may write it.

use anyhow::{Context, ensure};
use crds::MooncakeInventory;
use k8s_openapi::api::core::v1::Node as CoreNode;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use mooncake_e2e::scenario::{Node, Product, Seen, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn every_node_has_an_inventory_that_only_its_own_agent_may_write() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("inventory", async move |_, namespace| {
            let client = &namespace.cluster.client;
            let inventories: Api<MooncakeInventory> = Api::all(client.clone());
            for name in ["n1", "n2"] {
                let node = Api::<CoreNode>::all(client.clone()).get(name).await?;
                let inventory = published(&inventories, name).await?;
                equals_the_kubelets_report(&inventory, &node)?;
                let report = Node::new(&namespace.cluster, name).report().await?;
                let lines = report.status.context("no status")?.hcas.len();
                let ports: usize = inventory
                    .status
                    .iter()
                    .flat_map(|status| &status.hcas)
                    .map(|hca| hca.ports.len())
                    .sum();
                ensure!(lines == ports.min(16), "{lines} lines of {ports} ports");
            }
            let table = namespace.kubectl(&["get", "mooncakeinventories"]).await?;
            println!("{table}");
            for name in ["NAME", "HCAS", "USABLE", "GPUS", "n1", "n2"] {
                ensure!(table.contains(name), "no {name} in\n{table}");
            }

            let lost = inventories.get("n2").await?;
            inventories.delete("n2", &DeleteParams::default()).await?;
            let what = "the inventory of n2 to be created again";
            eventually(what, SOON, || async {
                let found = inventories.get_opt("n2").await?;
                let new =
                    found.filter(|found| found.uid() != lost.uid() && found.status == lost.status);
                Ok(Seen::when(new, "not yet"))
            })
            .await?;

            let patch = |words: &[&'static str]| {
                let agent = "--as=system:serviceaccount:mooncake-system:mooncake-agent";
                let of_n1 = "--as-user-extra=authentication.kubernetes.io/node-name=n1";
                let words = [&["patch", "--type=merge", agent, of_n1], words].concat();
                let namespace = namespace.clone();
                async move { namespace.kubectl(&words).await }
            };
            let label = "--patch={\"metadata\":{\"labels\":{\"a\":\"b\"}}}";
            patch(&["mooncakeinventory", "n1", label]).await?;
            let version = "--patch={\"status\":{\"agentVersion\":\"forged\"}}";
            for foreign in [
                ["mooncakeinventory", "n2", label].as_slice(),
                &["mooncakenode", "n2", "--subresource=status", version],
            ] {
                let refused = patch(foreign).await.err();
                let refused = refused
                    .with_context(|| format!("the agent of n1 wrote {foreign:?}"))?
                    .to_string();
                ensure!(refused.contains("own node (n1)"), "{refused}");
            }
            Ok(())
        })
        .await
}

/// Waits until the inventory has a status.
async fn published(
    inventories: &Api<MooncakeInventory>,
    name: &str,
) -> anyhow::Result<MooncakeInventory> {
    eventually("the inventory to be written", SOON, || async {
        let found = inventories.get_opt(name).await?;
        Ok(Seen::when(
            found.filter(|found| found.status.is_some()),
            "not yet",
        ))
    })
    .await
}

fn equals_the_kubelets_report(
    inventory: &MooncakeInventory,
    node: &CoreNode,
) -> anyhow::Result<()> {
    let status = inventory.status.as_ref().context("no status")?;
    let reported = node.status.as_ref().context("no status of the Node")?;
    let info = reported.node_info.as_ref().context("no nodeInfo")?;
    ensure!(
        status.kernel.release.as_ref() == Some(&info.kernel_version),
        "{status:?}"
    );
    ensure!(
        status.kernel.distribution.as_ref() == Some(&info.os_image),
        "{status:?}"
    );
    let memory = reported.capacity.as_ref().and_then(|all| all.get("memory"));
    let memory = memory.map(|memory| memory.0.clone());
    ensure!(
        memory == Some(status.counts.memory.to_string()),
        "{memory:?}: {status:?}"
    );
    ensure!(
        status.node_uid == node.uid().unwrap_or_default(),
        "{status:?}"
    );
    let owners = inventory.owner_references();
    ensure!(
        owners.len() == 1 && Some(&owners[0].uid) == node.metadata.uid.as_ref(),
        "{owners:?}"
    );
    ensure!(status.faults.is_empty(), "faults: {:?}", status.faults);
    ensure!(status.kernel.local_ports.is_some(), "{status:?}");
    Ok(())
}
