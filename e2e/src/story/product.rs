//! The product on the stage: built, loaded and installed once a test process, whole at each story's
//! start.

use super::stage::{Stage, finish};
use super::turn::Turn;
use super::wait::{Seen, eventually};
use super::{Namespace, Scale, with_namespace};
use crate::command::Run;
use crate::product::{self, Image};
use crate::settings::Environment;
use crate::{Cluster, NodeKind, Settings};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Images of what is installed, once they are built.
static IMAGES: OnceCell<Arc<Vec<Image>>> = OnceCell::const_new();

/// After an installation, or after what an earlier story disturbed.
const WHOLE: Duration = Duration::from_secs(180);

/// The installed product, and the stage for as long as this is held.
pub struct Product {
    pub stage: Stage,
    pub settings: Settings,
    pub scale: Scale,
    pub images: Arc<Vec<Image>>,
    _turn: Option<Turn>,
}

impl Product {
    /// For a story that disturbs what others stand on (nodes, operator, agents, API server): waits
    /// until it has a stage alone, then as [`Product::shared`].
    ///
    /// # Errors
    /// As [`Product::shared`].
    pub async fn alone() -> anyhow::Result<Self> {
        let environment = Environment::read();
        let turn = Turn::alone(environment.stages).await;
        Self::at(turn, environment).await
    }

    /// For a story that keeps to its own namespace: waits until nobody has the stage alone, installs
    /// where this process has not yet, and waits until nodes, operator and agents are whole.
    ///
    /// # Errors
    /// Why it cannot be built, installed or become ready.
    pub async fn shared() -> anyhow::Result<Self> {
        Self::at(Turn::shared().await, Environment::read()).await
    }

    async fn at(turn: Turn, environment: Environment) -> anyhow::Result<Self> {
        let base = environment.cluster.as_deref().unwrap_or("stories");
        let name = turn.cluster(base);
        let mut product = Self::loaded_on(name, environment).await?;
        let installing = || product.first_install();
        turn.installed().get_or_try_init(installing).await?;
        product._turn = Some(turn);
        product.whole(WHOLE).await?;
        Ok(product)
    }

    /// As [`Product::alone`], on the cluster of this name, which nobody else uses; the caller takes it
    /// down.
    ///
    /// # Errors
    /// As [`Product::shared`].
    pub async fn alone_on(cluster: &str) -> anyhow::Result<Self> {
        let product = Self::loaded_on(cluster.to_owned(), Environment::read()).await?;
        product.first_install().await?;
        product.whole(WHOLE).await?;
        Ok(product)
    }

    /// The cluster, and images of what is to be installed there.
    async fn loaded_on(cluster: String, environment: Environment) -> anyhow::Result<Self> {
        let scale = Scale::from_environment(&environment);
        let loaded = environment.images.as_deref() == Some("loaded");
        let settings = Settings::from_environment(environment);
        let stage = Stage::named(settings.clone(), cluster).await?;
        let images = IMAGES.get_or_try_init(|| built(&settings, loaded)).await?;
        Ok(Self {
            stage,
            settings,
            scale,
            images: Arc::clone(images),
            _turn: None,
        })
    }

    async fn first_install(&self) -> anyhow::Result<()> {
        let images = Arc::clone(&self.images);
        self.stage
            .with(move |cluster| {
                images
                    .iter()
                    .try_for_each(|image| cluster.load_image(&image.archive))
            })
            .await?;
        self.install(&[]).await
    }

    /// Installs or upgrades the release with further `--set` words, and does not wait.
    ///
    /// # Errors
    /// Helm's own.
    pub async fn install(&self, words: &[String]) -> anyhow::Result<()> {
        let (stage, images, words) = (self.stage.clone(), Arc::clone(&self.images), words.to_vec());
        tokio::task::spawn_blocking(move || {
            product::install(stage.cluster.helm(), &images, &words)
        })
        .await??;
        Ok(())
    }

    /// `kubectl-mooncake` with these words; what it prints.
    ///
    /// # Errors
    /// When it ends with another status than 0, with its words.
    pub async fn cli(&self, words: &[&str]) -> anyhow::Result<String> {
        let kubeconfig = self.stage.cluster.kubeconfig();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let run = move || {
            Run::new(product::cli()?)
                .args(words)
                .arg("--kubeconfig")
                .arg(kubeconfig)
                .output()
        };
        Ok(tokio::task::spawn_blocking(run).await??)
    }

    /// What `kubectl mooncake doctor` says of all namespaces, also where it ends with 1 because something
    /// fails.
    pub async fn doctor(&self) -> String {
        self.cli(&["doctor", "--all-namespaces"])
            .await
            .unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Helm with these arguments, in the release's namespace.
    ///
    /// # Errors
    /// Helm's own.
    pub async fn helm(&self, arguments: &[&str]) -> anyhow::Result<String> {
        finish(
            self.stage
                .cluster
                .helm()
                .args(["--namespace", product::NAMESPACE])
                .args(arguments),
        )
        .await
    }

    /// Waits until all nodes are Ready, and operator and agents run their newest template and are ready.
    ///
    /// # Errors
    /// With what is missing.
    pub async fn whole(&self, deadline: Duration) -> anyhow::Result<()> {
        eventually(
            "nodes, operator and agents to be whole",
            deadline,
            || async {
                let nodes: Api<Node> = Api::all(self.stage.client.clone());
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

    /// Adds a virtual machine as a node, with the product's images; answers its name, and the product on
    /// the larger cluster. The caller removes the node.
    ///
    /// # Errors
    /// Why it does not boot or take the images; it is removed then.
    pub async fn with_machine(self) -> anyhow::Result<(String, Self)> {
        let (settings, images) = (self.settings.clone(), Arc::clone(&self.images));
        let name = self.stage.cluster.name().to_owned();
        let (node, cluster) = tokio::task::spawn_blocking(move || {
            let mut cluster = Cluster::attach(&settings, &name)?;
            let node = cluster.add_node(NodeKind::Machine)?;
            let loaded = images
                .iter()
                .try_for_each(|image| cluster.load_image(&image.archive));
            if loaded.is_err() {
                cluster.remove_node(&node)?;
            }
            loaded.map(|()| (node, cluster))
        })
        .await??;
        let stage = Stage::on(cluster).await?;
        Ok((node, Self { stage, ..self }))
    }

    /// Removes a node that a story added.
    ///
    /// # Errors
    /// What is left of it.
    pub async fn remove_node(&self, node: &str) -> anyhow::Result<()> {
        let (settings, node) = (self.settings.clone(), node.to_owned());
        let name = self.stage.cluster.name().to_owned();
        let gone = node.clone();
        tokio::task::spawn_blocking(move || Cluster::attach(&settings, &name)?.remove_node(&gone))
            .await??;
        // The next story here counts pods.
        let pods: Api<Pod> = Api::all(self.stage.client.clone());
        let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
        eventually(format!("the pods of {node} to go"), WHOLE, || async {
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
        Api::namespaced(self.stage.client.clone(), product::NAMESPACE)
    }

    /// Pods of `operator` or `agent` that are not being deleted.
    ///
    /// # Errors
    /// With the API server's words.
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

    /// Tells a story in a namespace of its own, named after `title`.
    ///
    /// # Errors
    /// Those of the story; else, that something was left Terminating.
    pub async fn tell<F>(
        &self,
        title: &str,
        story: impl FnOnce(Namespace) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        with_namespace(&self.stage, title, story).await
    }
}

/// Nothing to build where the nodes have images under the chart's own names.
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
