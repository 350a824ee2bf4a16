//! The Mooncake objects of one API server by kind, and the objects that could not be read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, names};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_operator::admission::InjectionRequest;
use mooncake_operator::pod::{is_component, is_over};

use crate::masters;
use crate::read_error::{Cause, ReadError, Resources};

/// Objects that were read at about the same time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Namespace of clusters and their pods; `None`: all namespaces.
    pub namespace: Option<String>,
    pub clusters: Vec<MooncakeCluster>,
    pub nodes: Vec<MooncakeNode>,
    /// The spec of one that cannot be decoded is empty.
    pub policies: Vec<MooncakeNodePolicy>,
    /// Pods of masters and pools.
    pub pods: Vec<Arc<Pod>>,
    /// Pods that request injection.
    pub labelled: Vec<Arc<Pod>>,
    pub operators: Vec<Deployment>,
    pub agents: Vec<DaemonSet>,
    /// Pods of the operator and the agents.
    pub control_plane: Vec<Arc<Pod>>,
    pub webhooks: Vec<MutatingWebhookConfiguration>,
    /// What the built-in masters report. One that may not be read has a read error instead.
    pub built_in: Vec<masters::Reading>,
    pub read_errors: Vec<ReadError>,
}

impl Snapshot {
    /// True when the objects could be listed; single objects that cannot be decoded do not count.
    pub fn has(&self, resource: Resources) -> bool {
        !self
            .read_errors
            .iter()
            .any(|error| error.resource == resource && error.cause != Cause::DecodeFailed)
    }

    /// False when the API server does not serve MooncakeClusters.
    pub fn is_installed(&self) -> bool {
        !self.read_errors.iter().any(|error| {
            error.resource == Resources::CLUSTERS && error.cause == Cause::NotInstalled
        })
    }

    /// True when the snapshot includes objects of `namespace`.
    pub fn covers(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    /// The cluster that a pod names.
    pub fn cluster(&self, request: &InjectionRequest) -> Option<&MooncakeCluster> {
        self.clusters.iter().find(|cluster| {
            let meta = &cluster.metadata;
            meta.name.as_ref() == Some(&request.cluster)
                && meta.namespace.as_ref() == Some(&request.namespace)
        })
    }

    /// MooncakeNodes by name: there may be thousands.
    pub fn nodes_by_name(&self) -> BTreeMap<&str, &MooncakeNode> {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((node.metadata.name.as_deref()?, node)))
            .collect()
    }

    /// Master pods by namespace and cluster.
    pub fn masters(&self) -> BTreeMap<(&str, &str), Vec<Arc<Pod>>> {
        let mut masters: BTreeMap<_, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in with_component(&self.pods, names::COMPONENT_MASTER) {
            let namespace = pod.metadata.namespace.as_deref();
            let cluster = pod.labels().get(names::LABEL_CLUSTER);
            if let (Some(namespace), Some(cluster)) = (namespace, cluster) {
                let pods = masters.entry((namespace, cluster.as_str())).or_default();
                pods.push(pod.clone());
            }
        }
        masters
    }

    /// Labelled pods that are neither deleted nor completed.
    pub fn active_labelled(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let labelled = self.labelled.iter();
        labelled.filter(|pod| pod.metadata.deletion_timestamp.is_none() && !is_over(pod))
    }
}

/// The pods with that value of the component label.
pub(crate) fn with_component<'a>(
    pods: &'a [Arc<Pod>],
    component: &'a str,
) -> impl Iterator<Item = &'a Arc<Pod>> {
    pods.iter().filter(move |pod| is_component(pod, component))
}
