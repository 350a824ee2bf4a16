//! A scenario's namespace: kubectl, typed clients, commands in pods, and waits for pods.

use super::events;
use super::eventually::{Seen, eventually};
use super::test_cluster::{TestCluster, already_gone, output};
use anyhow::{Context, anyhow};
use crds::Reason;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace as CoreNamespace, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, LogParams};
use local_cluster::command::{Run, tail};
use std::time::Duration;

/// Time limit for anything to be Terminating.
pub(super) const DELETED: Duration = Duration::from_secs(60);

/// A handle by name.
#[derive(Clone)]
pub struct Namespace {
    pub cluster: TestCluster,
    pub name: String,
}

impl Namespace {
    /// A typed client for objects of this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.client.clone(), &self.name)
    }

    /// Runs kubectl in this namespace.
    ///
    /// # Errors
    /// kubectl's message, for example why the API server rejected an object.
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.command(arguments)).await
    }

    fn command(&self, arguments: &[&str]) -> Run {
        self.cluster
            .local
            .kubectl()
            .command(["--namespace", &self.name])
            .args(arguments)
    }

    /// Applies YAML server-side; objects without a namespace are created in this one.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn apply(&self, yaml: &str) -> anyhow::Result<String> {
        output(
            self.command(&["apply", "--server-side", "-f", "-"])
                .input(yaml),
        )
        .await
    }

    /// The Events with this reason about an object of this namespace.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn events(
        &self,
        (kind, name): (&str, &str),
        reason: Reason,
    ) -> anyhow::Result<Vec<Event>> {
        let mut found = events::about(&self.api(), kind, name).await?;
        found.retain(|event| events::has_reason(event, reason));
        Ok(found)
    }

    /// Runs a command in a pod and returns its standard output.
    ///
    /// # Errors
    /// When the command fails, its output.
    pub async fn exec(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
        deadline: Duration,
    ) -> anyhow::Result<String> {
        let mut arguments = vec!["exec", pod, "--container", container, "--"];
        arguments.extend_from_slice(command);
        output(self.command(&arguments).deadline(deadline)).await
    }

    /// The log of a pod's container. Not by kubectl: scenarios read logs until something is in them, and a process for each read
    /// was about a tenth of the processor time of a run.
    ///
    /// # Errors
    /// The API server's, for example before the container has started.
    pub async fn logs(&self, pod: &str, container: &str) -> anyhow::Result<String> {
        let pods: Api<Pod> = self.api();
        let of = LogParams {
            container: Some(container.to_owned()),
            ..LogParams::default()
        };
        Ok(pods.logs(pod, &of).await?)
    }

    /// Waits until a pod is Ready.
    ///
    /// # Errors
    /// At the deadline, the pod's conditions.
    pub async fn pod_ready(&self, pod: &str, deadline: Duration) -> anyhow::Result<Pod> {
        let pods: Api<Pod> = self.api();
        eventually(format!("pod {pod} to be Ready"), deadline, || async {
            let pod = pods.get(pod).await?;
            Ok(if is_ready(&pod) {
                Seen::Done(pod)
            } else {
                Seen::NotYet(pod_summary(&pod))
            })
        })
        .await
    }

    /// Waits until a pod has succeeded.
    ///
    /// # Errors
    /// When the pod fails, its log; at the deadline, its conditions.
    pub async fn pod_succeeded(&self, name: &str, deadline: Duration) -> anyhow::Result<()> {
        let pods: Api<Pod> = self.api();
        let phase = eventually(format!("pod {name} to end"), deadline, || async {
            let pod = pods.get(name).await?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let ended = phase.filter(|phase| phase == "Succeeded" || phase == "Failed");
            Ok(Seen::when(ended, pod_summary(&pod)))
        })
        .await?;
        if phase == "Succeeded" {
            return Ok(());
        }
        // A container that the kubelet has removed has no log.
        let words = ["logs", name, "--all-containers", "--ignore-errors"];
        let log = self.kubectl(&words).await?;
        Err(anyhow!("pod {name} failed:\n{}", tail(&log, 40)))
    }

    /// Waits until a namespace no longer exists.
    pub(super) async fn gone(&self, namespace: &str, deadline: Duration) -> anyhow::Result<()> {
        let namespaces: Api<CoreNamespace> = Api::all(self.cluster.client.clone());
        let what = format!("namespace {namespace} to be gone");
        eventually(what, deadline, || async {
            let found = namespaces.get_opt(namespace).await?;
            let status = found
                .as_ref()
                .map(|namespace| format!("{:?}", namespace.status));
            Ok(Seen::when(
                found.is_none().then_some(()),
                status.unwrap_or_default(),
            ))
        })
        .await
    }

    /// Deletes the namespace and waits until it is gone, [`DELETED`] at most.
    ///
    /// # Errors
    /// What was left Terminating.
    pub async fn delete(&self) -> anyhow::Result<()> {
        let namespaces: Api<CoreNamespace> = Api::all(self.cluster.client.clone());
        let delete = DeleteParams::default();
        already_gone(namespaces.delete(&self.name, &delete).await)?;
        self.gone(&self.name, DELETED)
            .await
            .context("something stayed Terminating")
    }
}

/// Whether a pod has the condition Ready.
pub fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// A pod's phase, the conditions that are not True, and why its containers wait.
fn pod_summary(pod: &Pod) -> String {
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
    let problems: Vec<_> = conditions.chain(waiting).collect();
    format!(
        "{}; {}",
        status.phase.as_deref().unwrap_or("no phase"),
        problems.join("; ")
    )
}
