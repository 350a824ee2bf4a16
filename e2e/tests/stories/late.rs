//! Stock clients that were stopped inside a transfer and go on in another world.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Namespace, Pool, Product, Seen, StockPod, StockWork, eventually};
use serde::Deserialize;
use std::time::Duration;

const PROGRAM: &str = include_str!("../workload/late.py");
const BYTES: u64 = 64 << 20;
const WAIT: Duration = Duration::from_secs(120);

#[derive(Debug, Deserialize)]
struct Outcome {
    put: String,
    get: String,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn clients_stopped_inside_a_put_and_a_get_meet_errors_and_no_wrong_byte_in_a_later_life()
-> anyhow::Result<()> {
    let product = Product::installed().await?;
    let rounds = product.scale.of("rounds of stopped clients", 3, 100);
    product
        .tell("late", async move |namespace| {
            let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 0}]}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            StockPod::new("late", StockWork::Idle)
                .node("n1")
                .inject("kv")
                .start(&namespace)
                .await?;
            namespace.pod_ready("late", WAIT).await?;
            for round in 0..rounds {
                late(
                    &namespace,
                    &["catch", &format!("late-{round}"), &BYTES.to_string()],
                )
                .await?;
                replace_master(&pool).await?;
                // The pool is full of a new life's bytes, where the stopped ones were aiming.
                let refill = refill(round);
                let put = StockWork::Put {
                    keys: refill.0,
                    bytes: refill.1,
                    prefix: format!("new-{round}-"),
                };
                let written = StockPod::new(&format!("refill-{round}"), put)
                    .node("n2")
                    .inject("kv")
                    .run(&namespace, WAIT)
                    .await?;
                ensure!(written.done == u64::from(refill.0), "{written:?}");
                let text = late(&namespace, &["continue"]).await?;
                let outcome: Outcome = text
                    .lines()
                    .find_map(|line| serde_json::from_str(line).ok())
                    .with_context(|| format!("no outcome in {text}"))?;
                println!("round {round}: put {}, get {}", outcome.put, outcome.get);
                ensure!(
                    outcome.get != "wrong",
                    "round {round}: wrong bytes: {outcome:?}"
                );
                ensure!(
                    outcome.put.starts_with("refused"),
                    "round {round}: a late write was taken: {outcome:?}"
                );
                let verify = StockWork::Verify {
                    keys: refill.0,
                    bytes: refill.1,
                    prefix: format!("new-{round}-"),
                };
                let read = StockPod::new(&format!("verify-{round}"), verify)
                    .node("n2")
                    .inject("kv")
                    .run(&namespace, WAIT)
                    .await?;
                ensure!(
                    read.wrong == 0 && read.done == u64::from(refill.0),
                    "round {round}: {read:?}"
                );
            }
            Ok(())
        })
        .await
}

/// Keys and bytes of each that fill most of 512 MiB, in sizes that differ from round to round.
fn refill(round: u32) -> (u32, u64) {
    let mebibytes = [1, 2, 4][round as usize % 3];
    (400 / mebibytes, u64::from(mebibytes) << 20)
}

async fn late(namespace: &Namespace, arguments: &[&str]) -> anyhow::Result<String> {
    let line = format!(
        "export LATE=\"$(cat)\"; exec python3 -c \"$LATE\" {}",
        arguments.join(" ")
    );
    namespace
        .exec_with_input("late", "main", &["bash", "-c", &line], PROGRAM, WAIT)
        .await
}

/// Deletes the master and waits until its successor has both nodes' memory again.
async fn replace_master(pool: &Pool) -> anyhow::Result<()> {
    let old = pool.master().await?;
    let pods: Api<Pod> = pool.namespace.api();
    pods.delete(&old.name_any(), &DeleteParams::default())
        .await?;
    eventually("a new master", READY, || async {
        let now = pool.master().await?;
        Ok(Seen::when(
            (now.uid() != old.uid()).then_some(()),
            "the old one",
        ))
    })
    .await?;
    pool.mounted(2, READY).await?;
    pool.ready(READY).await
}
