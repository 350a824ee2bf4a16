//! What `kubectl mooncake doctor` reads from a built-in master, each cause provoked by a stock client.

use super::built_in_master::ledgers;
use anyhow::ensure;
use crds::Reason;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{CommandPod, Namespace, Pool, Product};
use serde_json::json;
use std::time::Duration;

const PROGRAM: &str = include_str!("../workload/failover.py");
const WAIT: Duration = Duration::from_secs(150);
const SPEC: &str =
    "{pools: [{name: default, size: 64Mi, drainSeconds: 2}], master: {type: BuiltIn}}";
/// Lookups without a hit from which the master is reported.
const LOOKUPS: u64 = 100;
/// Keys of 1 MiB, more than fit into both pools.
const TOO_MANY: u64 = 150;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn lookups_without_a_hit_and_puts_without_space_are_found_by_doctor() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("hits", async move |product, namespace| {
            let pool = Pool::apply(&namespace, "kv", SPEC).await?;
            pool.ready(READY).await?;
            ledgers(&pool, 2).await?;
            let client = CommandPod::start(&namespace, "client", "n1", "kv", PROGRAM).await?;
            let verify =
                |prefix: &str, keys| json!({"command": "verify", "prefix": prefix, "keys": keys});

            let none = doctor(&product, &namespace).await;
            for reason in [Reason::NoCacheHits, Reason::PoolFull] {
                ensure!(!none.contains(reason.as_str()), "at the start: {none}");
            }
            let found = client.run(verify("never-put", LOOKUPS), WAIT).await?;
            ensure!(found["missing"] == LOOKUPS, "{found}");
            let text = doctor(&product, &namespace).await;
            ensure!(text.contains(Reason::NoCacheHits.as_str()), "{text}");

            let fill = json!({"command": "fill", "prefix": "read", "keys": TOO_MANY});
            let refused = client.run(fill, WAIT).await?;
            ensure!(refused.as_u64() > Some(0), "every put found space");
            let text = doctor(&product, &namespace).await;
            ensure!(
                text.contains(Reason::PoolFull.as_str())
                    && !text.contains(Reason::NoCacheHits.as_str()),
                "{refused} puts refused: {text}"
            );
            Ok(())
        })
        .await
}

/// The findings in this namespace: other scenarios run beside this one.
async fn doctor(product: &Product, namespace: &Namespace) -> String {
    let words = ["doctor", "-n", &namespace.name];
    // It fails where there are errors.
    let answer = product.cli(&words).await;
    answer.unwrap_or_else(|error| format!("{error:#}"))
}
