//! The product on the stage: built, loaded and installed once a test process, whole at each story's start.

use super::stage::{Stage, finish};
use super::wait::{Seen, eventually};
use super::{Namespace, Scale, with_namespace};
use crate::Settings;
use crate::product::{self, Image};
use crate::settings::Environment;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// What is installed, once something is. Who holds it has the stage alone: stories disturb each other.
static STAGE: Mutex<Option<Arc<Vec<Image>>>> = Mutex::const_new(None);

const INSTALLED: Duration = Duration::from_secs(180);
/// Also for what an earlier story disturbed to come back.
const WHOLE: Duration = Duration::from_secs(120);

/// The installed product, and the stage for as long as this is held.
pub struct Product {
    pub stage: Stage,
    pub settings: Settings,
    pub scale: Scale,
    pub images: Arc<Vec<Image>>,
    _alone: MutexGuard<'static, Option<Arc<Vec<Image>>>>,
}

impl Product {
    /// Waits for its turn, installs where this process has not yet, and waits until nodes, operator
    /// and agents are whole.
    ///
    /// # Errors
    /// Why it cannot be built, installed or become ready.
    pub async fn installed() -> anyhow::Result<Self> {
        let mut alone = STAGE.lock().await;
        let environment = Environment::read();
        let scale = Scale::from_environment(&environment);
        let name = environment
            .cluster
            .clone()
            .unwrap_or_else(|| "stories".to_owned());
        let loaded = environment.images.as_deref() == Some("loaded");
        let settings = Settings::from_environment(environment);
        let stage = Stage::named(settings.clone(), name).await?;
        let images = match alone.as_ref() {
            Some(images) => Arc::clone(images),
            None if loaded => Arc::default(),
            None => {
                let wanted = settings.clone();
                let images = tokio::task::spawn_blocking(move || product::build(&wanted)).await??;
                let archives = images.clone();
                stage
                    .with(move |cluster| {
                        archives
                            .iter()
                            .try_for_each(|image| cluster.load_image(&image.archive))
                    })
                    .await?;
                Arc::new(images)
            }
        };
        let first = alone.is_none();
        let product = Self {
            stage,
            settings,
            scale,
            images: Arc::clone(&images),
            _alone: {
                *alone = Some(images);
                alone
            },
        };
        if first {
            product.install(&[]).await?;
        }
        product.whole(if first { INSTALLED } else { WHOLE }).await?;
        Ok(product)
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
