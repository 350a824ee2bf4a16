//! A node that is a machine of its own, with its own memory, cgroups of version 2 and 2 MiB pages: who
//! is charged for a pool, and what becomes of one when the memory runs out. Told in the soak alone: its
//! processor is emulated.

use anyhow::{Context, ensure};
use crds::Reason;
use crds::names::LABEL_POOL;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use mooncake_e2e::story::{
    Charges, Effort, Load, Namespace, Node, Pool, Product, Seen, eventually,
};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Everything takes 10 to 20 times as long in there.
pub(crate) const SLOW: Duration = Duration::from_secs(420);

/// What others take of the machine's memory leaves so much: less than its kubelet wants to see free.
const LEFT: u64 = 150 * MIB;

/// The machine, for as long as its story is told.
pub(crate) struct Machine {
    pub(crate) product: Arc<Product>,
    pub(crate) namespace: Namespace,
    pub(crate) node: Node,
}

impl Machine {
    /// What a command printed that ran on it.
    pub(crate) async fn run(&self, script: &str) -> anyhow::Result<String> {
        self.node.shell(script, SLOW).await
    }

    /// A line of its `/proc/meminfo`, in its own unit.
    async fn meminfo(&self, line: &str) -> anyhow::Result<u64> {
        let text = self.run("cat /proc/meminfo").await?;
        text.lines()
            .find_map(|words| words.strip_prefix(line)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("no {line} in {text}"))
    }

    async fn charges(&self, pod: &Pod) -> anyhow::Result<Charges> {
        Charges::of(&self.product.stage, pod).await
    }

    pub(crate) async fn agent(&self) -> anyhow::Result<Pod> {
        self.product.agent_on(&self.node.name).await
    }
}

/// Tells a story with a virtual machine as a further node, which is removed afterwards.
pub(crate) async fn with_a_machine<F>(
    title: &str,
    story: impl FnOnce(Machine) -> F + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let product = Product::alone().await?;
    if product.scale.of("virtual machines", 0, 1) == 0 {
        return Ok(());
    }
    let (node, product) = product.with_machine().await?;
    let product = Arc::new(product);
    let told = async {
        product.whole(SLOW).await?;
        let (told, on) = (Arc::clone(&product), product.stage.node(&node));
        let story = async move |namespace| {
            let machine = Machine {
                product: told,
                namespace,
                node: on,
            };
            let pods: Api<Pod> = machine.namespace.api();
            let namespace = machine.namespace.clone();
            story(machine).await?;
            // A minute is enough for every node but an emulated one.
            namespace
                .kubectl(&["delete", "mooncakeclusters", "--all"])
                .await?;
            eventually("its pool pods to go", SLOW, || async {
                let left = pods.list(&ListParams::default().labels(LABEL_POOL)).await?;
                let names: Vec<_> = left.iter().map(Pod::name_any).collect();
                Ok(Seen::when(names.is_empty().then_some(()), names.join(", ")))
            })
            .await
        };
        product.tell(title, story).await
    }
    .await;
    let removed = product.remove_node(&node).await;
    told.and(removed)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual machine: root and 8 GiB of memory"]
async fn a_pool_is_charged_to_its_own_pod_and_has_the_pages_that_it_asks_for() -> anyhow::Result<()>
{
    with_a_machine("charged", async |machine: Machine| {
        let free = machine.meminfo("HugePages_Free").await?;
        let before = machine.charges(&machine.agent().await?).await?;
        let here = format!(
            "nodeSelector: {{kubernetes.io/hostname: {}}}",
            machine.node.name
        );
        let spec = format!(
            "{{pools: [{{name: small, size: 256Mi, {here}}}, \
             {{name: huge, size: 128Mi, pageSize: 2Mi, {here}}}]}}"
        );
        let pool = Pool::apply(&machine.namespace, "kv", &spec).await?;
        pool.ready(SLOW).await?;
        let load = Load::start(&machine.namespace, "n1", "kv", Effort::default()).await?;
        load.finish(&machine.namespace).await?.undisturbed()?;
        let agent = machine.charges(&machine.agent().await?).await?;
        println!("agent before {before:?}, with both pools {agent:?}");
        ensure!(
            agent.memory < before.memory + 32 * MIB && agent.huge == 0,
            "the agent is charged for pools: {before:?}, then {agent:?}"
        );
        for pod in pool.pods().await? {
            let charges = machine.charges(&pod).await?;
            println!("{}: {charges:?}", pod.name_any());
            let (memory, huge) = if pod.name_any().contains("huge") {
                (0, 128 * MIB)
            } else {
                (256 * MIB, 0)
            };
            ensure!(
                (memory..memory + 32 * MIB).contains(&charges.memory) && charges.huge == huge,
                "{}: {charges:?}",
                pod.name_any()
            );
        }
        let taken = free - machine.meminfo("HugePages_Free").await?;
        ensure!(taken == 64, "{taken} pages of 2 MiB are in use");
        obtained(&machine).await
    })
    .await
}

/// The node's own report tells the pages that the kernel really gave.
async fn obtained(machine: &Machine) -> anyhow::Result<()> {
    let status = machine.node.report().await?.status;
    let pages: Vec<_> = status
        .iter()
        .flat_map(|status| &status.pools)
        .map(|pool| (pool.pod_name.contains("huge"), pool.page_size_obtained))
        .collect();
    for (huge, bytes) in [(true, 2 * MIB), (false, 4 << 10)] {
        ensure!(
            pages.contains(&(huge, Some(crds::ByteSize(bytes)))),
            "pages: {pages:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual machine: root and 8 GiB of memory"]
async fn a_pool_that_its_node_evicts_is_named_and_comes_back_when_there_is_room()
-> anyhow::Result<()> {
    with_a_machine("evicted", async |machine: Machine| {
        let pool = Pool::apply(
            &machine.namespace,
            "kv",
            "{pools: [{name: default, size: 256Mi, drainSeconds: 2}]}",
        )
        .await?;
        pool.ready(SLOW).await?;
        let whole = pool.segments().await?.len();
        let load = Load::start(&machine.namespace, "n1", "kv", Effort::default()).await?;

        // Somebody whom no kubelet can evict takes the memory: a file in memory.
        let available = machine.meminfo("MemAvailable").await? << 10;
        let taken = available.saturating_sub(LEFT);
        machine
            .run(&format!(
                "mkdir -p /run/taken && mount -t tmpfs -o size={available} taken /run/taken && \
                 fallocate -l {taken} /run/taken/bytes"
            ))
            .await?;
        let words = pool.unready(Some(Reason::PoolPodEvicted), SLOW).await?;
        println!("{words}");
        ensure!(
            words.contains(&machine.node.name) && words.contains("low on resource: memory"),
            "neither the node nor its kubelet's words: {words}"
        );
        pool.mounted(whole - 1, SLOW).await?;

        // What is given back is taken for the pool again.
        machine.run("umount /run/taken").await?;
        pool.ready(SLOW).await?;
        pool.mounted(whole, SLOW).await?;
        // Keys that lay there are gone, as with any cache; the others, and all new ones, are right.
        let report = load.finish(&machine.namespace).await?;
        ensure!(report.got > 0, "{report:?}");
        Ok(())
    })
    .await
}
