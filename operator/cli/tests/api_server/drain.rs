//! `drain` and `undrain` set and remove one label of the Node. No controller of DaemonSets runs: the test deletes the pod.

use std::time::Duration;

use anyhow::ensure;
use crds::names::LABEL_DRAIN;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use tokio::time::sleep;

use crate::harness::{TEAM, eventually};
use crate::installation::run;
use crate::server::Server;

async fn label(server: &Server) -> anyhow::Result<Option<String>> {
    let nodes = Api::<Node>::all(server.client.clone());
    Ok(nodes.get("n1").await?.labels().get(LABEL_DRAIN).cloned())
}

pub(crate) async fn changes_one_label_of_the_node(server: &Server) -> anyhow::Result<()> {
    let output = run(server, true, &["drain", "n1"]).await?;
    output.expect(2, &["mooncakeclusters", "forbidden", "context tenant"])?;
    let output = run(server, false, &["drain", "n9"]).await?;
    output.expect(2, &["nodes", "n9", "not found"])?;

    // The fixture has a stock master.
    let output = run(server, false, &["drain", "n1"]).await?;
    let words = [
        "is not drained",
        "team/kv has a stock master",
        "--lose-keys",
    ];
    output.expect(1, &words)?;
    ensure!(
        label(server).await?.is_none(),
        "a refused drain has an effect"
    );

    let late = ["drain", "n1", "--lose-keys", "--deadline=3s"];
    let output = run(server, false, &late).await?;
    output.expect(
        1,
        &["the deadline is over", "kv-pool-default-n1", "undrain n1"],
    )?;
    ensure!(label(server).await?.as_deref() == Some("true"));

    let pods = Api::<Pod>::namespaced(server.client.clone(), TEAM);
    let ended = async {
        sleep(Duration::from_secs(3)).await;
        let now = DeleteParams::default().grace_period(0);
        pods.delete("kv-pool-default-n1", &now).await?;
        anyhow::Ok(())
    };
    // It is drained already, so the loss needs no second confirmation.
    let words = ["drain", "n1", "--deadline=60s"];
    let (output, ended) = tokio::join!(run(server, false, &words), ended);
    ended?;
    output?.expect(0, &["Node n1 is drained", "no pool pod is left"])?;

    let output = run(server, true, &["undrain", "n1"]).await?;
    output.expect(2, &["cannot patch resource"])?;
    run(server, false, &["undrain", "n1"])
        .await?
        .expect(0, &["Node n1"])?;
    eventually("the label to be removed", || async {
        Ok(label(server).await?.is_none())
    })
    .await
}
