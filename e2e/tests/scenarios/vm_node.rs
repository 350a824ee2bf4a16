//! A virtual machine as a further node of the test cluster, with its own kernel, memory and cgroups of version 2.
//! Only the soak runs most of these scenarios, because its processor is emulated.

use anyhow::Context;
use crds::names::LABEL_POOL;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use local_cluster::{NodeKind, Scale};
use mooncake_e2e::scenario::{Charges, Namespace, Node, Product, Seen, eventually};
use std::time::Duration;

/// Time limit on the emulated processor, where everything takes 10 to 20 times as long.
pub(crate) const SLOW: Duration = Duration::from_secs(420);

/// The node, for the duration of a scenario.
#[derive(Clone)]
pub(crate) struct VmNode {
    pub(crate) product: Product,
    pub(crate) namespace: Namespace,
    pub(crate) node: Node,
}

impl VmNode {
    /// Runs a shell script on the node and returns its output.
    pub(crate) async fn run(&self, script: &str) -> anyhow::Result<String> {
        self.node.shell(script, SLOW).await
    }

    /// A line of `/proc/meminfo`, in its own unit.
    pub(crate) async fn meminfo(&self, line: &str) -> anyhow::Result<u64> {
        let text = self.run("cat /proc/meminfo").await?;
        text.lines()
            .find_map(|words| words.strip_prefix(line)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("no {line} in {text}"))
    }

    pub(crate) async fn charges(&self, pod: &Pod) -> anyhow::Result<Charges> {
        Charges::of(&self.product.cluster, pod).await
    }

    pub(crate) async fn agent(&self) -> anyhow::Result<Pod> {
        self.product.agent_on(&self.node.name).await
    }
}

/// Runs a scenario with a virtual machine as a further node, and removes the node afterwards. Does nothing outside the
/// soak.
pub(crate) async fn with_vm_node<F>(
    title: &str,
    scenario: impl FnOnce(VmNode) -> F + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    with_vm_nodes(title, async |[vm]: [VmNode; 1]| scenario(vm).await).await
}

/// Like [`with_vm_node`], in every run.
pub(crate) async fn with_vm_node_in_every_run<F>(
    title: &str,
    scenario: impl FnOnce(VmNode) -> F + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let scenario = async |[vm]: [VmNode; 1]| scenario(vm).await;
    with_nodes(NodeKind::Machine, title, scenario).await
}

/// Like [`with_vm_node`], with a machine that runs systemd and has the systemd cgroup driver.
pub(crate) async fn with_systemd_node<F>(
    title: &str,
    scenario: impl FnOnce(VmNode) -> F + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    if !soak_has(1) {
        return Ok(());
    }
    let scenario = async |[vm]: [VmNode; 1]| scenario(vm).await;
    with_nodes(NodeKind::SystemdMachine, title, scenario).await
}

/// Like [`with_vm_node`], with several of them.
pub(crate) async fn with_vm_nodes<const COUNT: usize, F>(
    title: &str,
    scenario: impl FnOnce([VmNode; COUNT]) -> F + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    if !soak_has(COUNT) {
        return Ok(());
    }
    with_nodes(NodeKind::Machine, title, scenario).await
}

/// Whether this run is the soak. To be called before a scenario waits for a cluster that others need.
fn soak_has(machines: usize) -> bool {
    Scale::read().has("virtual machines", machines)
}

async fn with_nodes<const COUNT: usize, F>(
    kind: NodeKind,
    title: &str,
    scenario: impl FnOnce([VmNode; COUNT]) -> F + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut product = Product::exclusive().await?;
    let mut names = Vec::new();
    let outcome = async {
        for _ in 0..COUNT {
            let (name, with_machine) = product.clone().with_machine(kind).await?;
            names.push(name);
            product = with_machine;
        }
        product.wait_ready(SLOW).await?;
        let node_names = names.clone();
        let scenario = async move |product: Product, namespace: Namespace| {
            let nodes = node_names.iter().map(|name| VmNode {
                product: product.clone(),
                namespace: namespace.clone(),
                node: Node::new(&product.cluster, name),
            });
            let nodes: Vec<_> = nodes.collect();
            let nodes = nodes
                .try_into()
                .map_err(|_| anyhow::anyhow!("not {COUNT} machines"))?;
            scenario(nodes).await?;
            // The emulated node needs longer to end pods than the limit for the namespace allows.
            namespace
                .kubectl(&["delete", "mooncakeclusters", "--all"])
                .await?;
            let pods: Api<Pod> = namespace.api();
            eventually("its pool pods to go", SLOW, || async {
                let left = pods.list(&ListParams::default().labels(LABEL_POOL)).await?;
                let names: Vec<_> = left.iter().map(Pod::name_any).collect();
                Ok(Seen::when(names.is_empty().then_some(()), names.join(", ")))
            })
            .await
        };
        product.run(title, scenario).await
    }
    .await;
    let mut removed = Ok(());
    for name in &names {
        removed = removed.and(product.remove_node(name).await);
    }
    outcome.and(removed)
}
