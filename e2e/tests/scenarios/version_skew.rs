//! Upgrade from release 0.1.0 and rollback to it under load, with real images of both releases: operator first, agents
//! first, half of the agents.

use super::agent_restart::none_restarted;
use anyhow::{Context, ensure};
use crds::MooncakeNode;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use local_cluster::Scale;
use mooncake_e2e::product::{self, Image, NAMESPACE, SourceTree};
use mooncake_e2e::scenario::product::{AGENT, OPERATOR};
use mooncake_e2e::scenario::{
    Effort, Load, Namespace, Pool, Product, Seen, StockPod, StockWork, eventually,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const BACK: Duration = Duration::from_secs(180);
const NODES: [&str; 2] = ["n1", "n2"];
const KEYS: u32 = 8;
const BYTES: u64 = 1 << 20;
/// The version of the other release.
const OLD: &str = "0.1.0";
const NEW: &str = env!("CARGO_PKG_VERSION");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_upgrade_from_the_previous_release_and_a_rollback_lose_no_key() -> anyhow::Result<()> {
    // Before it waits for a cluster that others need.
    if !Scale::read().has("upgrades from release 0.1.0", 1) {
        return Ok(());
    }
    let product = Product::exclusive().await?;
    let old = OldRelease::loaded(&product).await?;
    let outcome = product
        .run("skew", async move |product, namespace| {
            old.install(&product).await?;
            let releases = Releases { product, old };
            releases.run(&namespace).await
        })
        .await;
    install(&product, product::chart(), Arc::clone(&product.images)).await?;
    product.wait_ready(BACK).await?;
    outcome
}

/// Chart and images of release 0.1.0.
#[derive(Clone)]
struct OldRelease {
    tree: SourceTree,
    images: Arc<Vec<Image>>,
}

impl OldRelease {
    /// Builds the images from the history and loads them into the nodes.
    async fn loaded(product: &Product) -> anyhow::Result<Self> {
        let settings = product.settings.clone();
        let build = move || {
            let tree = SourceTree::release_0_1_0(&settings)?;
            let images = Arc::new(product::build_tree(&settings, &tree)?);
            Ok::<_, local_cluster::Error>(Self { tree, images })
        };
        let old = tokio::task::spawn_blocking(build).await??;
        let images = Arc::clone(&old.images);
        product
            .cluster
            .with(move |cluster| {
                images
                    .iter()
                    .try_for_each(|image| cluster.load_image(&image.archive))
            })
            .await?;
        Ok(old)
    }

    /// Installs the old chart with the old images, and waits for its pods.
    async fn install(&self, product: &Product) -> anyhow::Result<()> {
        install(product, self.tree.chart(), Arc::clone(&self.images)).await?;
        product.wait_ready(BACK).await
    }
}

/// Installs a chart over whatever is there: Helm applies on the server, and the scenario patches the same fields.
async fn install(product: &Product, chart: PathBuf, images: Arc<Vec<Image>>) -> anyhow::Result<()> {
    let cluster = product.cluster.clone();
    tokio::task::spawn_blocking(move || {
        let flags = ["--force-conflicts"];
        product::install_chart(cluster.local.helm(), &chart, &images, &[], &flags)
    })
    .await??;
    Ok(())
}

/// Both releases on one cluster.
struct Releases {
    product: Product,
    old: OldRelease,
}

impl Releases {
    async fn run(&self, namespace: &Namespace) -> anyhow::Result<()> {
        // Release 0.1.0 has no type of master, and no `cpu` of a pool.
        let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 2}], master: {}}";
        let spec = serde_yaml_ng::from_str(spec)?;
        let pool = Pool::apply_unchanged(namespace, "kv", spec).await?;
        pool.ready(BACK).await?;
        let segments = pool.mounted(2, BACK).await?;
        let mut before = pool.pods().await?;
        before.push(pool.master().await?);
        let load = Load::start(namespace, "n1", "kv", Effort::default()).await?;
        let check = async |state: &str, agents: [&str; 2]| {
            self.works(namespace, &pool, state, agents)
                .await
                .with_context(|| state.to_owned())
        };
        check("release 0.1.0", [OLD, OLD]).await?;

        let old_agent = self.agent_template().await?;
        let old_operator = self.operator_template().await?;
        self.install_new().await?;
        let new_agent = self.agent_template().await?;
        let new_operator = self.operator_template().await?;
        self.set_agent(&old_agent).await?;
        self.product.wait_ready(BACK).await?;
        check("operator first", [OLD, OLD]).await?;

        self.replace_agent(&new_agent, "n1").await?;
        check("half of the agents", [NEW, OLD]).await?;
        self.replace_agent(&new_agent, "n2").await?;
        check("upgraded", [NEW, NEW]).await?;

        self.replace_agent(&old_agent, "n2").await?;
        check("half of the agents rolled back", [NEW, OLD]).await?;
        self.replace_agent(&old_agent, "n1").await?;
        check("agents rolled back", [OLD, OLD]).await?;
        self.old.install(&self.product).await?;
        check("rolled back", [OLD, OLD]).await?;

        self.install_new().await?;
        self.set_operator(&old_operator).await?;
        self.product.wait_ready(BACK).await?;
        check("agents first", [NEW, NEW]).await?;
        self.set_operator(&new_operator).await?;
        self.product.wait_ready(BACK).await?;
        check("upgraded again", [NEW, NEW]).await?;
        // At once, as `helm rollback` does.
        self.old.install(&self.product).await?;
        check("rolled back at once", [OLD, OLD]).await?;

        ensure!(pool.segments().await? == segments, "the segments changed");
        load.finish(namespace).await?.nothing_lost()?;
        let mut now = pool.pods().await?;
        now.push(pool.master().await?);
        none_restarted(&before, &now)
    }

    /// Both nodes are reported by agents of these releases, and a new pod puts and gets.
    async fn works(
        &self,
        namespace: &Namespace,
        pool: &Pool,
        state: &str,
        agents: [&str; 2],
    ) -> anyhow::Result<()> {
        pool.ready(BACK).await?;
        let nodes: Api<MooncakeNode> = Api::all(self.product.cluster.client.clone());
        eventually("both nodes to be reported", BACK, || async {
            let mut missing = Vec::new();
            for (name, release) in NODES.iter().zip(agents) {
                let status = nodes.get(name).await?.status.unwrap_or_default();
                let serving =
                    crds::condition::is_true(&status.conditions, crds::ConditionType::PoolsServing);
                if status.agent_version != release || !serving {
                    missing.push(format!(
                        "{name}: agent {}, not {release}; {:?}",
                        status.agent_version, status.conditions
                    ));
                }
            }
            Ok(Seen::when(
                missing.is_empty().then_some(()),
                missing.join("; "),
            ))
        })
        .await?;
        let name = state.replace([' ', '.'], "-");
        let written = StockPod::new(&format!("put-{name}"), StockWork::put(KEYS, BYTES))
            .inject("kv")
            .run(namespace, BACK)
            .await?;
        ensure!(written.done == u64::from(KEYS), "{written:?}");
        println!("{state}: works");
        Ok(())
    }

    async fn install_new(&self) -> anyhow::Result<()> {
        let images = Arc::clone(&self.product.images);
        install(&self.product, product::chart(), images).await
    }

    async fn agent_template(&self) -> anyhow::Result<Value> {
        let set: DaemonSet = self.product.in_namespace().get(AGENT).await?;
        template(serde_json::to_value(set)?)
    }

    async fn operator_template(&self) -> anyhow::Result<Value> {
        let deployment: Deployment = self.product.in_namespace().get(OPERATOR).await?;
        template(serde_json::to_value(deployment)?)
    }

    async fn set_agent(&self, template: &Value) -> anyhow::Result<()> {
        self.set_template(&format!("daemonset/{AGENT}"), template)
            .await
    }

    async fn set_operator(&self, template: &Value) -> anyhow::Result<()> {
        self.set_template(&format!("deployment/{OPERATOR}"), template)
            .await
    }

    async fn set_template(&self, object: &str, template: &Value) -> anyhow::Result<()> {
        let patch = json!([{"op": "replace", "path": "/spec/template", "value": template}]);
        let patch = patch.to_string();
        let words = ["patch", object, "--type=json", "--patch", &patch];
        let cluster = &self.product.cluster;
        let words = ["--namespace", NAMESPACE].into_iter().chain(words);
        cluster.kubectl(words).await.map(drop)
    }

    /// Replaces the agent of one node only, and waits until the new one is ready.
    async fn replace_agent(&self, template: &Value, node: &str) -> anyhow::Result<()> {
        let sets: Api<DaemonSet> = self.product.in_namespace();
        let manual =
            json!({"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}});
        sets.patch(AGENT, &PatchParams::default(), &Patch::Merge(manual))
            .await?;
        self.set_agent(template).await?;
        let before = self.product.agent_on(node).await?;
        let pods: Api<Pod> = self.product.in_namespace();
        pods.delete(&before.name_any(), &DeleteParams::default())
            .await?;
        eventually(format!("another agent on {node}"), BACK, || async {
            let now = self.product.agent_on(node).await.ok();
            let ready = now.filter(|now| {
                let conditions = now.status.iter().flat_map(|status| &status.conditions);
                let ready = conditions
                    .flatten()
                    .any(|one| one.type_ == "Ready" && one.status == "True");
                now.uid() != before.uid() && ready
            });
            Ok(Seen::when(ready.map(drop), "not ready".to_owned()))
        })
        .await
    }
}

fn template(mut object: Value) -> anyhow::Result<Value> {
    let template = object.pointer_mut("/spec/template");
    Ok(template.context("it has a template")?.take())
}
