//! Upgrade of the operator and failover of its leader: pools and transfers are not disturbed.

use super::agent_restart::none_restarted;
use super::idle_cluster::settled;
use anyhow::{Context, ensure};
use crds::MooncakeCluster;
use crds::names::{COMPONENT_OPERATOR, pool_service};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use mooncake_e2e::product::NAMESPACE;
use mooncake_e2e::scenario::audit::{Audit, Write};
use mooncake_e2e::scenario::product::OPERATOR;
use mooncake_e2e::scenario::{Effort, Load, Pool, Product, processes};
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn upgrading_the_operator_restarts_no_pool_pod() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    product
        .run("upgrade", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let pods_before = pool.pods().await?;
            let master = pool.master().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let old = product.pods(COMPONENT_OPERATOR).await?;
            product.install(&["operator.log=debug".to_owned()]).await?;
            product.wait_ready(Duration::from_secs(120)).await?;
            let new = product.pods(COMPONENT_OPERATOR).await?;
            ensure!(
                old.iter()
                    .all(|old| new.iter().all(|new| new.uid() != old.uid())),
                "the operator was not replaced"
            );
            pool.ready(SOON).await?;
            load.finish(&namespace).await?.nothing_failed()?;
            none_restarted(&pods_before, &pool.pods().await?)?;
            none_restarted(&[master], &[pool.master().await?])
        })
        .await
}

/// A Lease that is not released is valid for 15 s; candidates check it every 3 s.
const TAKEN_OVER: Duration = Duration::from_secs(30);
const CHANGE_PERIOD: Duration = Duration::from_millis(250);
/// Changes before the leader dies and after another has taken over.
const CHANGES: u32 = 12;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn another_operator_takes_over_from_a_killed_leader_and_writes_nothing_twice()
-> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    product
        .run("leader", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let pods_before = pool.pods().await?;
            settled(&product.cluster).await?;
            let audit = Audit::from_now(&product.cluster)?;
            let mut changes = Changes::new(&pool);
            for _ in 0..CHANGES {
                changes.next().await?;
            }
            let old = leader(&product).await?;
            // It may still write what the last of them causes.
            let before = changes.made;
            kill(&product, &old).await?;
            let died = Instant::now();
            while leader(&product).await? == old {
                ensure!(died.elapsed() < TAKEN_OVER, "{old} still holds the Lease");
                changes.next().await?;
            }
            println!("another leads {:.1} s later", died.elapsed().as_secs_f64());
            // What was changed in between it writes once.
            let between = changes.made - before;
            for _ in 0..CHANGES {
                changes.next().await?;
            }
            pool.ready(SOON).await?;
            let policies: Api<NetworkPolicy> = namespace.api();
            let policy = policies.get(&pool_service("kv")).await?;
            let last = changes.address();
            ensure!(
                serde_json::to_string(&policy.spec)?.contains(&format!("\"{last}/32\"")),
                "{last} is not in {policy:?}"
            );
            settled(&product.cluster).await?;
            println!("{before} changes, {between} without a leader, then {CHANGES}");
            one_at_a_time(&audit.writes(NAMESPACE)?, &old, before, CHANGES)?;
            product.wait_ready(SOON).await?;
            none_restarted(&pods_before, &pool.pods().await?)
        })
        .await
}

/// Repeated changes of a spec, which change two NetworkPolicies and two MooncakeNodes.
struct Changes {
    clusters: Api<MooncakeCluster>,
    name: String,
    made: u32,
}

impl Changes {
    fn new(pool: &Pool) -> Self {
        Self {
            clusters: pool.namespace.api(),
            name: pool.name.clone(),
            made: 0,
        }
    }

    fn address(&self) -> String {
        format!("192.0.2.{}", self.made)
    }

    async fn next(&mut self) -> anyhow::Result<()> {
        self.made += 1;
        let spec = json!({"spec": {"access": {"addresses": [self.address()]}}});
        self.clusters
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(spec))
            .await?;
        tokio::time::sleep(CHANGE_PERIOD).await;
        Ok(())
    }
}

/// The operator pod that holds the Lease.
async fn leader(product: &Product) -> anyhow::Result<String> {
    let lease: Lease = product.in_namespace().get(OPERATOR).await?;
    lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .context("the Lease has no holder")
}

/// Kills an operator pod so that its process cannot finish and its container does not restart.
async fn kill(product: &Product, name: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = product.in_namespace();
    let pod = pods.get(name).await?;
    let operator = processes::of_pod(&pod, "--log=")?;
    pods.delete(name, &DeleteParams::default().grace_period(0))
        .await?;
    for process in operator {
        process.recorded.signal(Signal::KILL);
    }
    Ok(())
}

/// Changes between the election of a leader and the look at the Lease that shows it: there is a look after each change.
const UNSEEN: u32 = 1;

/// Checks that the old leader wrote nothing after the new one's first write, and that neither wrote an object more often than the
/// spec changed while it led: `before` times and `after` times, and once for what changed while nobody led.
fn one_at_a_time(writes: &[Write], old: &str, before: u32, after: u32) -> anyhow::Result<()> {
    let mut writes: Vec<_> = writes
        .iter()
        .filter(|write| write.account.ends_with("-operator"))
        .collect();
    writes.sort_by(|a, b| a.at.cmp(&b.at));
    let list = || {
        let lines: Vec<_> = writes.iter().map(ToString::to_string).collect();
        lines.join("\n")
    };
    let succession = writes.iter().position(|write| write.pod != old);
    let succession = succession.with_context(|| format!("only one leader:\n{}", list()))?;
    ensure!(succession > 0, "the old leader wrote nothing:\n{}", list());
    ensure!(
        writes[succession..].iter().all(|write| write.pod != old),
        "{old} wrote after its successor:\n{}",
        list()
    );
    // Of each object, by the old leader and by the new one.
    let mut counts: BTreeMap<String, [u32; 2]> = BTreeMap::new();
    for write in &writes {
        if matches!(write.resource.as_str(), "networkpolicies" | "mooncakenodes") {
            counts
                .entry(format!("{} {}", write.resource, write.name))
                .or_default()[usize::from(write.pod != old)] += 1;
        } else {
            // No other object depends on the addresses. Status and Events are reports.
            ensure!(
                write.resource.ends_with("/status") || write.resource == "events",
                "unexpected: {write}"
            );
        }
    }
    println!("written: {counts:?}");
    let limits = [before, after + 1 + UNSEEN];
    ensure!(
        counts.len() == 4
            && counts
                .values()
                .all(|count| count[0] <= limits[0] && count[1] <= limits[1]),
        "{before} changes, later {after}, but {counts:?}:\n{}",
        list()
    );
    Ok(())
}
