//! A MooncakeCluster of a story: its object, its pods, and what its master has mounted.

use super::master::{self, Segment};
use super::namespace::Namespace;
use super::wait::{Seen, eventually};
use anyhow::{Context, ensure};
use crds::MooncakeCluster;
use crds::condition::{ConditionType, find};
use crds::names::{COMPONENT_MASTER, COMPONENT_POOL, LABEL_CLUSTER, LABEL_COMPONENT};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use std::time::Duration;

/// From `kubectl apply` to Ready, with two cores for everything.
pub const READY: Duration = Duration::from_secs(180);

/// A handle by name.
#[derive(Clone)]
pub struct Pool {
    pub namespace: Namespace,
    pub name: String,
}

impl Pool {
    /// Applies a MooncakeCluster with this spec, in YAML's flow style, and does not wait.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn apply(namespace: &Namespace, name: &str, spec: &str) -> anyhow::Result<Self> {
        let yaml = format!(
            "apiVersion: mooncake.io/v1alpha1
kind: MooncakeCluster
metadata:
  name: {name}
spec: {spec}
"
        );
        namespace.apply(&yaml).await?;
        Ok(Self {
            namespace: namespace.clone(),
            name: name.to_owned(),
        })
    }

    /// Applies one of 256Mi a node and waits until it is Ready on `nodes` nodes.
    ///
    /// # Errors
    /// When it is not Ready in time, with its conditions.
    pub async fn small(namespace: &Namespace) -> anyhow::Result<Self> {
        let pool = Self::apply(
            namespace,
            "kv",
            "{pools: [{name: default, size: 256Mi, drainSeconds: 2}]}",
        )
        .await?;
        pool.ready(READY).await?;
        Ok(pool)
    }

    /// # Errors
    /// With the API server's words.
    pub async fn object(&self) -> anyhow::Result<MooncakeCluster> {
        Ok(self
            .namespace
            .api::<MooncakeCluster>()
            .get(&self.name)
            .await?)
    }

    /// Waits until a condition on the newest spec is as asked; answers it.
    ///
    /// # Errors
    /// With all conditions, after the deadline.
    pub async fn condition(
        &self,
        kind: ConditionType,
        what: &str,
        deadline: Duration,
        holds: impl Fn(&Condition) -> bool,
    ) -> anyhow::Result<Condition> {
        let what = format!("{} of MooncakeCluster {}: {what}", kind.as_str(), self.name);
        eventually(what, deadline, || async {
            let object = self.object().await?;
            let conditions = object
                .status
                .map(|status| status.conditions)
                .unwrap_or_default();
            let found = find(&conditions, kind).filter(|condition| {
                condition.observed_generation == object.metadata.generation && holds(condition)
            });
            let all = conditions.iter().map(|condition| {
                format!(
                    "{}={} {}: {}",
                    condition.type_, condition.status, condition.reason, condition.message
                )
            });
            Ok(Seen::when(
                found.cloned(),
                all.collect::<Vec<_>>().join("; "),
            ))
        })
        .await
    }

    /// Waits until it is not Ready, for this reason where one is given; answers the message.
    ///
    /// # Errors
    /// With all conditions, after the deadline.
    pub async fn unready(
        &self,
        reason: Option<crds::Reason>,
        deadline: Duration,
    ) -> anyhow::Result<String> {
        let what = reason.map_or_else(|| "not True".to_owned(), |reason| reason.to_string());
        let condition = self
            .condition(ConditionType::Ready, &what, deadline, |condition| {
                condition.status != "True"
                    && reason.is_none_or(|reason| condition.reason == reason.as_str())
            })
            .await?;
        Ok(condition.message)
    }

    /// # Errors
    /// When it is not Ready in time, with its conditions.
    pub async fn ready(&self, deadline: Duration) -> anyhow::Result<()> {
        self.condition(ConditionType::Ready, "True", deadline, |condition| {
            condition.status == "True"
        })
        .await
        .map(drop)
    }

    /// Its pool pods, by name.
    ///
    /// # Errors
    /// With the API server's words.
    pub async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        self.of_component(COMPONENT_POOL).await
    }

    /// The pool pod on a node that is not being deleted.
    ///
    /// # Errors
    /// When there is none.
    pub async fn pod_on(&self, node: &str) -> anyhow::Result<Pod> {
        self.pods()
            .await?
            .into_iter()
            .find(|pod| {
                pod.metadata.deletion_timestamp.is_none()
                    && pod
                        .spec
                        .as_ref()
                        .is_some_and(|spec| spec.node_name.as_deref() == Some(node))
            })
            .with_context(|| format!("{} has no pool pod on {node}", self.name))
    }

    /// The master's pod.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub async fn master(&self) -> anyhow::Result<Pod> {
        let mut pods = self.of_component(COMPONENT_MASTER).await?;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        ensure!(
            pods.len() == 1,
            "{} has {} master pods",
            self.name,
            pods.len()
        );
        pods.pop().context("just counted")
    }

    async fn of_component(&self, component: &str) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = self.namespace.api();
        let selector = format!(
            "{LABEL_CLUSTER}={},{LABEL_COMPONENT}={component}",
            self.name
        );
        let mut pods = pods
            .list(&ListParams::default().labels(&selector))
            .await?
            .items;
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    /// Address of the master's pod.
    ///
    /// # Errors
    /// When it has none yet.
    pub async fn master_ip(&self) -> anyhow::Result<String> {
        ip(&self.master().await?)
    }

    /// What the master has mounted.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn segments(&self) -> anyhow::Result<Vec<Segment>> {
        master::segments(&self.master_ip().await?).await
    }

    /// Waits until the master has mounted so many segments; answers them.
    ///
    /// # Errors
    /// With the segments seen last.
    pub async fn mounted(&self, count: usize, deadline: Duration) -> anyhow::Result<Vec<Segment>> {
        eventually(
            format!("{count} segments at the master of {}", self.name),
            deadline,
            || async {
                let segments = self.segments().await?;
                Ok(if segments.len() == count {
                    Seen::Done(segments)
                } else {
                    Seen::NotYet(format!("{segments:?}"))
                })
            },
        )
        .await
    }
}

/// A pod's address.
///
/// # Errors
/// When it has none yet.
pub fn ip(pod: &Pod) -> anyhow::Result<String> {
    pod.status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .with_context(|| format!("pod {} has no address", pod.name_any()))
}
