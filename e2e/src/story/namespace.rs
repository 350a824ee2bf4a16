//! A story's own namespace: made before, shown when the story fails, gone afterwards.

use super::events;
use super::evidence;
use super::scale::Scale;
use super::stage::{Stage, already_gone, finish};
use super::stock::{StockPod, StockWork};
use super::wait::{Seen, eventually};
use crate::settings::Environment;
use anyhow::{Context, anyhow};
use crds::{MooncakeCluster, Reason};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace as CoreNamespace, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use std::time::{Duration, Instant};

/// How long anything may stay Terminating.
const GOODBYE: Duration = Duration::from_secs(60);

/// The namespace of one story.
#[derive(Clone)]
pub struct Namespace {
    pub stage: Stage,
    pub name: String,
}

/// Tells a story in a new namespace. On failure, panic included, prints its objects, conditions,
/// events and logs; then the namespace is deleted and must be gone in 60 s, whatever happened.
///
/// # Errors
/// Those of the story; else, that something was left Terminating.
pub async fn with_namespace<F>(
    stage: &Stage,
    title: &str,
    story: impl FnOnce(Namespace) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let name = format!("{title}-{:x}", std::process::id());
    stage.kubectl(["create", "namespace", &name]).await?;
    let namespace = Namespace {
        stage: stage.clone(),
        name,
    };
    // Pods are refused until the controllers have made the account that they run as.
    eventually(
        "the namespace's default service account",
        GOODBYE,
        || async {
            namespace
                .kubectl(&["get", "serviceaccount", "default"])
                .await
                .map(Seen::Done)
        },
    )
    .await?;
    // A task of its own: its panic is an error here, and cleaning up still happens.
    let limit = Scale::from_environment(&Environment::read()).story();
    let started = Instant::now();
    let telling = tokio::spawn(tokio::time::timeout(limit, story(namespace.clone())));
    let outcome = match telling.await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(anyhow!("the story did not end within {limit:?}")),
        Err(panic) => Err(anyhow!("the story panicked: {panic}")),
    };
    if outcome.is_err() {
        evidence::print(&namespace).await;
    }
    let told = started.elapsed();
    let gone = namespace.clear().await;
    let all = started.elapsed();
    say(&namespace, told, all);
    if gone.is_err() {
        evidence::print(&namespace).await;
    }
    outcome.and(gone)
}

#[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
fn say(namespace: &Namespace, told: Duration, all: Duration) {
    println!(
        "{} on {}: told in {} s, gone {} s later",
        namespace.name,
        namespace.stage.cluster.name(),
        told.as_secs(),
        all.saturating_sub(told).as_secs()
    );
}

impl Namespace {
    /// A typed client for objects of this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.stage.client.clone(), &self.name)
    }

    /// kubectl in this namespace.
    ///
    /// # Errors
    /// With kubectl's words, for example why the API server refused.
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        finish(self.command(arguments)).await
    }

    fn command(&self, arguments: &[&str]) -> crate::command::Run {
        self.stage
            .cluster
            .kubectl()
            .command(["--namespace", &self.name])
            .args(arguments)
    }

    /// Applies YAML, server-side; objects without a namespace come into this one.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn apply(&self, yaml: &str) -> anyhow::Result<String> {
        finish(
            self.command(&["apply", "--server-side", "-f", "-"])
                .input(yaml),
        )
        .await
    }

    /// The Events of this reason about an object of this namespace.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn events(
        &self,
        (kind, name): (&str, &str),
        reason: Reason,
    ) -> anyhow::Result<Vec<Event>> {
        let mut told = events::about(&self.api(), kind, name).await?;
        told.retain(|event| events::tells(event, reason));
        Ok(told)
    }

    /// Runs a command in a pod and answers its standard output.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn exec(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
        deadline: Duration,
    ) -> anyhow::Result<String> {
        let mut arguments = vec!["exec", pod, "--container", container, "--"];
        arguments.extend_from_slice(command);
        finish(self.command(&arguments).deadline(deadline)).await
    }

    /// As [`Namespace::exec`], with text for the command to read.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn exec_with_input(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
        input: &str,
        deadline: Duration,
    ) -> anyhow::Result<String> {
        let mut arguments = vec!["exec", "--stdin", pod, "--container", container, "--"];
        arguments.extend_from_slice(command);
        finish(self.command(&arguments).input(input).deadline(deadline)).await
    }

    /// What a pod's container has printed.
    ///
    /// # Errors
    /// With kubectl's words.
    pub async fn logs(&self, pod: &str, container: &str) -> anyhow::Result<String> {
        self.kubectl(&["logs", pod, "--container", container]).await
    }

    /// Waits until a pod is Ready.
    ///
    /// # Errors
    /// With the pod's own conditions, after the deadline.
    pub async fn pod_ready(&self, pod: &str, deadline: Duration) -> anyhow::Result<Pod> {
        let pods: Api<Pod> = self.api();
        eventually(format!("pod {pod} to be Ready"), deadline, || async {
            let pod = pods.get(pod).await?;
            let ready = pod
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten())
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            Ok(if ready {
                Seen::Done(pod)
            } else {
                Seen::NotYet(how_it_stands(&pod))
            })
        })
        .await
    }

    /// Waits until a pod has ended; the error of one that failed holds its log.
    ///
    /// # Errors
    /// When it failed, or did not end in time.
    pub async fn pod_succeeded(&self, name: &str, deadline: Duration) -> anyhow::Result<()> {
        let pods: Api<Pod> = self.api();
        let phase = eventually(format!("pod {name} to end"), deadline, || async {
            let pod = pods.get(name).await?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let ended = phase.filter(|phase| phase == "Succeeded" || phase == "Failed");
            Ok(Seen::when(ended, how_it_stands(&pod)))
        })
        .await?;
        if phase == "Succeeded" {
            return Ok(());
        }
        let log = self.kubectl(&["logs", name, "--all-containers"]).await?;
        Err(anyhow!(
            "pod {name} failed:\n{}",
            crate::command::tail(&log, 40)
        ))
    }

    /// Waits until the kubelets of these nodes hear of new pods, and so of deleted ones, and the
    /// controllers of deleted namespaces. After the API server was away each comes back after a pause
    /// of its own, which client-go lets grow to a minute.
    ///
    /// # Errors
    /// When one does not start a pod in time, or a namespace stays.
    pub async fn everyone_listens(&self, nodes: &[&str], deadline: Duration) -> anyhow::Result<()> {
        let name = |node: &str| format!("listens-{node}");
        for node in nodes {
            let pod = StockPod::new(&name(node), StockWork::Idle).node(node);
            pod.start(self).await?;
        }
        let empty = format!("{}-listens", self.name);
        self.stage.kubectl(["create", "namespace", &empty]).await?;
        self.stage
            .kubectl(["delete", "namespace", &empty, "--wait=false"])
            .await?;
        for node in nodes {
            self.pod_ready(&name(node), deadline).await?;
        }
        self.gone(&empty, deadline).await
    }

    async fn gone(&self, namespace: &str, deadline: Duration) -> anyhow::Result<()> {
        let namespaces: Api<CoreNamespace> = Api::all(self.stage.client.clone());
        let what = format!("namespace {namespace} to be gone");
        eventually(what, deadline, || async {
            let there = namespaces.get_opt(namespace).await?;
            let status = there
                .as_ref()
                .map(|namespace| format!("{:?}", namespace.status));
            Ok(Seen::when(
                there.is_none().then_some(()),
                status.unwrap_or_default(),
            ))
        })
        .await
    }

    /// Deletes the namespace with all that is in it and waits until it is gone, [`GOODBYE`] at most.
    ///
    /// # Errors
    /// With what was left Terminating.
    pub async fn delete(&self) -> anyhow::Result<()> {
        self.stage
            .kubectl([
                "delete",
                "namespace",
                &self.name,
                "--wait=false",
                "--ignore-not-found",
            ])
            .await?;
        self.gone(&self.name, GOODBYE)
            .await
            .context("something stayed Terminating")
    }

    /// Ends its clusters and the pods that nobody owns, then itself. A namespace's own controller comes
    /// back to one that still has pods only after half their grace period, though they went long before:
    /// the next story need not wait for that.
    async fn clear(&self) -> anyhow::Result<()> {
        let now = DeleteParams::default();
        for cluster in self.clusters().await? {
            let clusters = self.api::<MooncakeCluster>();
            already_gone(clusters.delete(&cluster, &now).await)?;
        }
        let pods: Api<Pod> = self.api();
        let unowned = |pod: &Pod| pod.owner_references().is_empty();
        for pod in pods.list(&ListParams::default()).await? {
            if unowned(&pod) {
                already_gone(pods.delete(&pod.name_any(), &now).await)?;
            }
        }
        let ends =
            |pod: &&Pod| unowned(pod) || pod.labels().contains_key(crds::names::LABEL_CLUSTER);
        let what = format!(
            "the pods and clusters of namespace {} to be gone",
            self.name
        );
        eventually(what, GOODBYE, || async {
            let mut left = self.clusters().await?;
            let pods = pods.list(&ListParams::default()).await?;
            left.extend(pods.iter().filter(ends).map(ResourceExt::name_any));
            Ok(Seen::when(left.is_empty().then_some(()), left.join(", ")))
        })
        .await
        .context("something stayed Terminating")?;
        self.delete().await
    }

    /// Names of its MooncakeClusters; none where the stage does not have the kind.
    async fn clusters(&self) -> anyhow::Result<Vec<String>> {
        match self
            .api::<MooncakeCluster>()
            .list(&ListParams::default())
            .await
        {
            Ok(clusters) => Ok(clusters.iter().map(ResourceExt::name_any).collect()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A pod's phase, the conditions that are not met, and why its containers wait.
fn how_it_stands(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return "no status".to_owned();
    };
    let conditions = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| condition.status != "True")
        .map(|condition| {
            format!(
                "{}={} {}",
                condition.type_,
                condition.status,
                condition.message.as_deref().unwrap_or_default()
            )
        });
    let waiting = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten()
        .filter_map(|container| {
            let waiting = container.state.as_ref()?.waiting.as_ref()?;
            Some(format!(
                "{} waits: {} {}",
                container.name,
                waiting.reason.as_deref().unwrap_or_default(),
                waiting.message.as_deref().unwrap_or_default()
            ))
        });
    let words: Vec<_> = conditions.chain(waiting).collect();
    format!(
        "{}; {}",
        status.phase.as_deref().unwrap_or("no phase"),
        words.join("; ")
    )
}
