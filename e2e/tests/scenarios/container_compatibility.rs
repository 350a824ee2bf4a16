//! Incompatible Mooncake wheels in injected pods: a condition and Events of the pod.

use std::time::Duration;

use anyhow::{Context, ensure};
use crds::Reason;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::PostParams;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Namespace, Pool, Product, Seen, StockPod, StockWork, eventually};
use serde_json::json;

const FIT: &str = "mooncake.io/ContainersFit";
const WAIT: Duration = Duration::from_secs(120);
/// The agent probes containers every 8 s and clears a finding after 15 s.
const SOON: Duration = Duration::from_secs(60);
const COMMAND: Duration = Duration::from_secs(20);
/// The forged wheel, which Python finds before the real one.
const FORGED: &str = "/forged/mooncake_transfer_engine-0.3.11.dist-info";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn only_a_pod_with_an_incompatible_wheel_gets_a_condition_with_both_versions()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("containers", async move |product, namespace| {
            Pool::small(&namespace).await?;
            let idle = StockWork::Program {
                text: "import time; time.sleep(3600)",
                arguments: Vec::new(),
            };
            StockPod::new("fits", idle)
                .node("n1")
                .inject("kv")
                .start(&namespace)
                .await?;
            forged(&namespace).await?;
            let reported = condition(&namespace, "forged", "False", WAIT).await?;
            let message = reported.message.unwrap_or_default();
            println!("{message}");
            ensure!(reported.reason.as_deref() == Some(Reason::EngineVersionSkew.as_str()));
            for part in ["container main", "0.3.11", "/forged", "0.3.13"] {
                ensure!(message.contains(part), "no {part} in {message}");
            }
            events(&namespace, Reason::EngineVersionSkew).await?;
            let there = ["--namespace", namespace.name.as_str()];
            let why = [&["why", "forged"][..], &there].concat();
            let why = product.cli(&why).await?;
            ensure!(
                why.contains("EngineVersionSkew") && why.contains("0.3.11"),
                "{why}"
            );

            let remove = ["rm", "-r", FORGED];
            namespace.exec("forged", "main", &remove, COMMAND).await?;
            condition(&namespace, "forged", "True", SOON).await?;
            events(&namespace, Reason::AsExpected).await?;
            let fits = namespace.api::<Pod>().get("fits").await?;
            ensure!(compatibility(&fits).is_none(), "{fits:?}");
            Ok(())
        })
        .await
}

/// Starts a pod whose Python finds the forged wheel first.
async fn forged(namespace: &Namespace) -> anyhow::Result<()> {
    let run = format!("mkdir {FORGED} && exec python3 -c 'import time; time.sleep(3600)'");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "forged", "labels": {(crds::names::LABEL_INJECT): "kv"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "n2"},
            // Python as the first process ignores SIGTERM.
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": local_cluster::images::MOONCAKE_STOCK,
                "command": ["sh", "-c", run],
                "env": [{"name": "PYTHONPATH", "value": "/forged"}],
                "volumeMounts": [{"name": "forged", "mountPath": "/forged"}],
                "resources": {"requests": {"cpu": "100m"}},
            }],
            "volumes": [{"name": "forged", "emptyDir": {}}],
        },
    }))?;
    namespace
        .api::<Pod>()
        .create(&PostParams::default(), &pod)
        .await
        .context("creating pod forged")?;
    namespace.pod_ready("forged", READY).await?;
    Ok(())
}

fn compatibility(pod: &Pod) -> Option<PodCondition> {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.find(|condition| condition.type_ == FIT).cloned()
}

async fn condition(
    namespace: &Namespace,
    pod: &str,
    status: &str,
    deadline: Duration,
) -> anyhow::Result<PodCondition> {
    eventually(
        format!("{FIT} of {pod} to be {status}"),
        deadline,
        || async {
            let found = compatibility(&namespace.api::<Pod>().get(pod).await?);
            let seen = format!("{found:?}");
            Ok(Seen::when(
                found.filter(|found| found.status == status),
                seen,
            ))
        },
    )
    .await
}

/// Waits for exactly one Event with this reason about the pod.
async fn events(namespace: &Namespace, reason: Reason) -> anyhow::Result<()> {
    eventually(format!("an Event {reason}"), SOON, || async {
        let found = namespace.events(("Pod", "forged"), reason).await?;
        Ok(Seen::when(
            (found.len() == 1).then_some(()),
            format!("{found:?}"),
        ))
    })
    .await
}
