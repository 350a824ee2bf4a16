//! The installed product: built, loaded and installed once per test process, ready at the start of each scenario.

use super::cluster_access::{ClusterAccess, Mostly};
use super::eventually::{Seen, eventually};
use super::in_namespace::with_namespace;
use super::namespace::{Namespace, is_ready};
use super::test_cluster::{TestCluster, output};
use crate::product::{self, Image};
use crate::settings::TestSettings;
use crds::names::COMPONENT_OPERATOR;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use local_cluster::command::Run;
use local_cluster::{Cluster, NodeKind, Scale, Settings};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Images of the product, once built.
static IMAGES: OnceCell<Arc<Vec<Image>>> = OnceCell::const_new();

/// The command line, once built: cargo takes a second also where it builds nothing.
static CLI: OnceCell<PathBuf> = OnceCell::const_new();

/// Time limit to become ready, after an installation or a disturbance.
const READY: Duration = Duration::from_secs(180);

/// The installed product, with access to its cluster until the last clone is dropped.
#[derive(Clone)]
pub struct Product {
    pub cluster: TestCluster,
    pub settings: Settings,
    pub scale: Scale,
    pub images: Arc<Vec<Image>>,
    access: Option<Arc<ClusterAccess>>,
}

impl Product {
    /// For a scenario that disturbs nodes, operator, agents or API server: waits for exclusive use of a cluster, then
    /// as [`Product::shared`].
    ///
    /// # Errors
    /// As [`Product::shared`].
    pub async fn exclusive() -> anyhow::Result<Self> {
        let settings = TestSettings::read();
        let access = ClusterAccess::exclusive(settings.clusters).await;
        Self::on(access, settings).await
    }

    /// For a scenario that stays in its namespace: waits until no scenario uses the cluster exclusively, installs the
    /// product unless this process already has, and waits until nodes, operator and agents are ready.
    ///
    /// # Errors
    /// Why the product cannot be built or installed, or does not become ready.
    pub async fn shared() -> anyhow::Result<Self> {
        let access = ClusterAccess::shared(Mostly::Works).await;
        Self::on(access, TestSettings::read()).await
    }

    /// As [`Product::shared`], for a scenario that waits for a timer most of its time. It runs beside those that work.
    ///
    /// # Errors
    /// As [`Product::shared`].
    pub async fn shared_by_waiting() -> anyhow::Result<Self> {
        let access = ClusterAccess::shared(Mostly::Waits).await;
        Self::on(access, TestSettings::read()).await
    }

    async fn on(access: ClusterAccess, settings: TestSettings) -> anyhow::Result<Self> {
        let name = access.cluster(&settings.cluster);
        let mut product = Self::loaded_on(name, settings).await?;
        let installing = || product.first_install();
        access.installed().get_or_try_init(installing).await?;
        product.access = Some(Arc::new(access));
        product.wait_ready(READY).await?;
        Ok(product)
    }

    /// As [`Product::exclusive`], on a cluster of this name that no other process uses. The caller removes it.
    ///
    /// # Errors
    /// As [`Product::shared`].
    pub async fn exclusive_on(cluster: &str) -> anyhow::Result<Self> {
        let product = Self::loaded_on(cluster.to_owned(), TestSettings::read()).await?;
        product.first_install().await?;
        product.wait_ready(READY).await?;
        Ok(product)
    }

    /// The cluster and the images, without an installation.
    async fn loaded_on(cluster: String, settings: TestSettings) -> anyhow::Result<Self> {
        let TestSettings {
            local: settings,
            scale,
            images_loaded: loaded,
            ..
        } = settings;
        let cluster = TestCluster::named(settings.clone(), cluster).await?;
        let images = IMAGES.get_or_try_init(|| built(&settings, loaded)).await?;
        Ok(Self {
            cluster,
            settings,
            scale,
            images: Arc::clone(images),
            access: None,
        })
    }

    async fn first_install(&self) -> anyhow::Result<()> {
        let images = Arc::clone(&self.images);
        self.cluster
            .with(move |cluster| {
                images
                    .iter()
                    .try_for_each(|image| cluster.load_image(&image.archive))
            })
            .await?;
        self.install(&[]).await
    }

    /// Installs or upgrades the Helm release with further `--set` values, without waiting.
    ///
    /// # Errors
    /// Helm's message.
    pub async fn install(&self, values: &[String]) -> anyhow::Result<()> {
        let (cluster, images) = (self.cluster.clone(), Arc::clone(&self.images));
        let values = values.to_vec();
        tokio::task::spawn_blocking(move || {
            product::install(cluster.local.helm(), &images, &values)
        })
        .await??;
        Ok(())
    }

    /// Runs `kubectl-mooncake` and returns its output.
    ///
    /// # Errors
    /// An exit status other than 0, with its output.
    pub async fn cli(&self, words: &[&str]) -> anyhow::Result<String> {
        let build = || async { anyhow::Ok(tokio::task::spawn_blocking(product::cli).await??) };
        let run = Run::new(CLI.get_or_try_init(build).await?)
            .args(words)
            .arg("--kubeconfig")
            .arg(self.cluster.local.kubeconfig());
        output(run).await
    }

    /// The output of `kubectl mooncake doctor` for all namespaces, also when it exits with 1 because of a failure.
    pub async fn doctor(&self) -> String {
        self.cli(&["doctor", "--all-namespaces"])
            .await
            .unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Runs Helm in the release's namespace.
    ///
    /// # Errors
    /// Helm's message.
    pub async fn helm(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(
            self.cluster
                .local
                .helm()
                .args(["--namespace", product::NAMESPACE])
                .args(arguments),
        )
        .await
    }

    /// Waits until all nodes are Ready and all pods of operator and agents run the newest template and are Ready.
    ///
    /// # Errors
    /// At the deadline, what is not ready.
    pub async fn wait_ready(&self, deadline: Duration) -> anyhow::Result<()> {
        eventually(
            "nodes, operator and agents to be ready",
            deadline,
            || async {
                let nodes: Api<Node> = Api::all(self.cluster.client.clone());
                let mut missing: Vec<_> = nodes
                    .list(&ListParams::default())
                    .await?
                    .into_iter()
                    .filter(|node| !node_is_ready(node))
                    .map(|node| format!("node {}", node.name_any()))
                    .collect();
                let operator: Deployment = self.in_namespace().get(OPERATOR).await?;
                missing.extend(unready_operator(&operator));
                let agents: DaemonSet = self.in_namespace().get(AGENT).await?;
                missing.extend(unready_agents(&agents));
                Ok(Seen::when(
                    missing.is_empty().then_some(()),
                    missing.join(", "),
                ))
            },
        )
        .await
    }

    /// Adds a virtual machine of this kind as a node, with the product's images. Returns its name and the product on the
    /// larger cluster. The caller removes the node.
    ///
    /// # Errors
    /// When the machine does not boot or the images cannot be loaded; the node is removed then.
    pub async fn with_machine(self, kind: NodeKind) -> anyhow::Result<(String, Self)> {
        let (settings, images) = (self.settings.clone(), Arc::clone(&self.images));
        let name = self.cluster.local.name().to_owned();
        let (node, cluster) = tokio::task::spawn_blocking(move || {
            let mut cluster = Cluster::attach(&settings, &name)?;
            let node = cluster.add_node(kind)?;
            let loaded = images
                .iter()
                .try_for_each(|image| cluster.load_image(&image.archive));
            if loaded.is_err() {
                cluster.remove_node(&node)?;
            }
            loaded.map(|()| (node, cluster))
        })
        .await??;
        let cluster = TestCluster::connect(cluster).await?;
        Ok((node, Self { cluster, ..self }))
    }

    /// Removes a node that a scenario added, and waits until its pods are gone.
    ///
    /// # Errors
    /// What cannot be removed.
    pub async fn remove_node(&self, node: &str) -> anyhow::Result<()> {
        let (settings, node) = (self.settings.clone(), node.to_owned());
        let name = self.cluster.local.name().to_owned();
        let gone = node.clone();
        tokio::task::spawn_blocking(move || Cluster::attach(&settings, &name)?.remove_node(&gone))
            .await??;
        let pods: Api<Pod> = Api::all(self.cluster.client.clone());
        let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
        eventually(format!("the pods of {node} to go"), READY, || async {
            let left = pods.list(&there).await?;
            let names: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
            Ok(Seen::when(names.is_empty().then_some(()), names.join(", ")))
        })
        .await
    }

    /// A typed client for objects of the release's namespace.
    pub fn in_namespace<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.client.clone(), product::NAMESPACE)
    }

    /// Brings the operators to different nodes again, after a drain has moved both to one: its loss would stop all reconciliation.
    ///
    /// # Errors
    /// At the deadline, the nodes.
    pub async fn spread_operators(&self, deadline: Duration) -> anyhow::Result<()> {
        eventually("operators on different nodes", deadline, || async {
            let pods = self.pods(COMPONENT_OPERATOR).await?;
            let nodes: Vec<_> = pods
                .iter()
                .filter(|pod| is_ready(pod))
                .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
                .collect();
            let seen = format!("{nodes:?}");
            if let [one, other] = nodes[..]
                && one == other
            {
                // The next one prefers another node.
                let name = pods[0].name_any();
                self.in_namespace::<Pod>()
                    .delete(&name, &DeleteParams::default())
                    .await?;
                return Ok(Seen::when(None, seen));
            }
            Ok(Seen::when((nodes.len() == 2).then_some(()), seen))
        })
        .await
    }

    /// Pods of `operator` or `agent` that are not being deleted.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn pods(&self, component: &str) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = self.in_namespace();
        let selector = format!("{}={component}", crds::names::LABEL_COMPONENT);
        let mut pods = pods
            .list(&ListParams::default().labels(&selector))
            .await?
            .items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// The agent's pod on a node.
    ///
    /// # Errors
    /// When there is none.
    pub async fn agent_on(&self, node: &str) -> anyhow::Result<Pod> {
        self.pods(crds::names::COMPONENT_AGENT)
            .await?
            .into_iter()
            .find(|pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.as_deref() == Some(node))
            })
            .ok_or_else(|| anyhow::anyhow!("no agent pod on {node}"))
    }

    /// Runs a scenario in a namespace of its own, named after `title`.
    ///
    /// # Errors
    /// Those of the scenario; else, what was left Terminating.
    pub async fn run<F>(
        &self,
        title: &str,
        scenario: impl FnOnce(Self, Namespace) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let (product, access) = (self.clone(), self.access.clone());
        with_namespace(&self.cluster, title, |namespace| {
            let scenario = scenario(product, namespace);
            async move {
                let outcome = scenario.await;
                if let Some(access) = access {
                    access.give_place();
                }
                outcome
            }
        })
        .await
    }
}

/// Builds the images, unless the nodes already have images under the chart's own names.
async fn built(settings: &Settings, loaded: bool) -> anyhow::Result<Arc<Vec<Image>>> {
    if loaded {
        return Ok(Arc::default());
    }
    let settings = settings.clone();
    let images = tokio::task::spawn_blocking(move || product::build(&settings)).await??;
    Ok(Arc::new(images))
}

pub const OPERATOR: &str = "mooncake-operator";
pub const AGENT: &str = "mooncake-agent";

fn node_is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn unready_operator(operator: &Deployment) -> Option<String> {
    let wanted = operator.spec.as_ref().and_then(|spec| spec.replicas);
    let status = operator.status.as_ref()?;
    let whole = status.observed_generation == operator.metadata.generation
        && status.updated_replicas == wanted
        && status.ready_replicas == wanted
        && status.replicas == wanted;
    (!whole).then(|| {
        format!(
            "operator pods {:?} of {wanted:?} ready",
            status.ready_replicas.unwrap_or(0)
        )
    })
}

fn unready_agents(agents: &DaemonSet) -> Option<String> {
    let Some(status) = agents.status.as_ref() else {
        return Some("agents".to_owned());
    };
    let wanted = status.desired_number_scheduled;
    let whole = status.observed_generation == agents.metadata.generation
        && wanted > 0
        && status.number_ready == wanted
        && status.updated_number_scheduled == Some(wanted);
    (!whole).then(|| format!("agents {} of {wanted} ready", status.number_ready))
}
