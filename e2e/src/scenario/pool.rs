//! A MooncakeCluster of a scenario: its object, conditions, pods, and the segments that its master has mounted.

use super::eventually::{Seen, eventually};
use super::master::{self, Segment};
use super::namespace::Namespace;
use anyhow::{Context, ensure};
use crds::MooncakeCluster;
use crds::condition::{ConditionType, find};
use crds::names::{
    ANNOTATION_WITNESS, COMPONENT_MASTER, COMPONENT_POOL, LABEL_CLUSTER, LABEL_COMPONENT,
    leader_slice, master as master_lease,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::json;
use serde_yaml_ng::{Mapping, Value};
use std::time::Duration;

/// Time limit from `kubectl apply` to Ready, on two cores.
pub const READY: Duration = Duration::from_secs(180);

/// A handle by name.
#[derive(Clone)]
pub struct Pool {
    pub namespace: Namespace,
    pub name: String,
}

impl Pool {
    /// Applies a MooncakeCluster with this spec, in YAML's flow style, without waiting. Without `master` it gets a stock
    /// master, whose segments a scenario can read: a built-in master admits pods only. Pools without `cpu` request little of
    /// it: many scenarios share the two processors of each node.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn apply(namespace: &Namespace, name: &str, spec: &str) -> anyhow::Result<Self> {
        let mut spec: Mapping = serde_yaml_ng::from_str(spec)?;
        if !spec.contains_key("master") {
            let stock = Mapping::from_iter([("type".into(), "Stock".into())]);
            spec.insert("master".into(), stock.into());
        }
        let pools = spec.get_mut("pools").and_then(Value::as_sequence_mut);
        let pools = pools.into_iter().flatten();
        for pool in pools.filter_map(Value::as_mapping_mut) {
            if !pool.contains_key("cpu") {
                pool.insert("cpu".into(), "50m".into());
            }
        }
        Self::apply_unchanged(namespace, name, spec).await
    }

    /// Applies a MooncakeCluster with exactly this spec, which the CRD of another release may accept.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn apply_unchanged(
        namespace: &Namespace,
        name: &str,
        spec: Mapping,
    ) -> anyhow::Result<Self> {
        let object = json!({
            "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeCluster",
            "metadata": {"name": name}, "spec": spec,
        });
        namespace.apply(&object.to_string()).await?;
        Ok(Self {
            namespace: namespace.clone(),
            name: name.to_owned(),
        })
    }

    /// Applies the cluster `kv` with 256Mi per node and waits until it is Ready.
    ///
    /// # Errors
    /// At the deadline, its conditions.
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
    /// The API server's message.
    pub async fn object(&self) -> anyhow::Result<MooncakeCluster> {
        Ok(self
            .namespace
            .api::<MooncakeCluster>()
            .get(&self.name)
            .await?)
    }

    /// Waits until a condition for the newest spec `holds`, and returns it.
    ///
    /// # Errors
    /// At the deadline, all conditions.
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

    /// Waits until it is not Ready, with this reason if one is given, and returns the message.
    ///
    /// # Errors
    /// At the deadline, all conditions.
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

    /// Waits until it is Ready.
    ///
    /// # Errors
    /// At the deadline, its conditions.
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
    /// The API server's message.
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

    /// The pod of the only master, or of the elected one of two.
    ///
    /// # Errors
    /// When there is none.
    pub async fn master(&self) -> anyhow::Result<Pod> {
        let mut pods = self.masters().await?;
        if pods.len() > 1 {
            let elected = self.elected().await?;
            let elected =
                elected.with_context(|| format!("{} has no elected master", self.name))?;
            pods.retain(|pod| pod.name_any() == elected);
        }
        ensure!(
            pods.len() == 1,
            "{} has {} master pods that serve",
            self.name,
            pods.len()
        );
        pods.pop().context("just counted")
    }

    /// Returns the name of the elected one of two masters, by the EndpointSlice of their Service.
    ///
    /// # Errors
    /// The API server's message, also where nothing is elected.
    pub async fn elected(&self) -> anyhow::Result<Option<String>> {
        let slices: Api<EndpointSlice> = self.namespace.api();
        let slice = slices.get(&leader_slice(&self.name)).await?;
        let endpoint = slice.endpoints.into_iter().next();
        Ok(endpoint.and_then(|endpoint| endpoint.target_ref?.name))
    }

    /// Returns all master pods that are not being deleted.
    ///
    /// # Errors
    /// The API server's message.
    pub async fn masters(&self) -> anyhow::Result<Vec<Pod>> {
        let mut pods = self.of_component(COMPONENT_MASTER).await?;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// Returns the Lease of two masters.
    ///
    /// # Errors
    /// The API server's message, also where nothing is elected.
    pub async fn lease(&self) -> anyhow::Result<Lease> {
        let leases: Api<Lease> = self.namespace.api();
        Ok(leases.get(&master_lease(&self.name)).await?)
    }

    /// Waits until the one of two masters that is not elected is the witness of the other.
    ///
    /// # Errors
    /// At the deadline.
    pub async fn witnessed(&self, deadline: Duration) -> anyhow::Result<()> {
        eventually("a witness in the Lease", deadline, || async {
            let annotations = self.lease().await?.metadata.annotations.unwrap_or_default();
            let witness = annotations.contains_key(ANNOTATION_WITNESS);
            Ok(Seen::when(witness.then_some(()), "none"))
        })
        .await
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

    /// The segments that the master has mounted.
    ///
    /// # Errors
    /// When the master does not answer.
    pub async fn segments(&self) -> anyhow::Result<Vec<Segment>> {
        master::segments(&self.master_ip().await?).await
    }

    /// Waits until the master has mounted `count` segments, and returns them.
    ///
    /// # Errors
    /// At the deadline, the segments seen last.
    pub async fn mounted(&self, count: usize, deadline: Duration) -> anyhow::Result<Vec<Segment>> {
        eventually(
            format!("{count} segments at the master of {}", self.name),
            deadline,
            || async {
                let segments = self.segments().await?;
                let seen = format!("{segments:?}");
                Ok(Seen::when(
                    (segments.len() == count).then_some(segments),
                    seen,
                ))
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
