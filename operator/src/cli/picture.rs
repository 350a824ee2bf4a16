//! What was seen of Mooncake on one API server: objects by kind, and what could not be looked at.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, names};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::admission::Wish;
use crate::cli::unseen::{Cause, Unseen, What};
use crate::cluster::observe::is_over;

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Where clusters and their pods were looked for; `None`: everywhere.
    pub namespace: Option<String>,
    pub clusters: Vec<MooncakeCluster>,
    pub nodes: Vec<MooncakeNode>,
    pub policies: Vec<MooncakeNodePolicy>,
    /// Pods of masters and pools.
    pub pods: Vec<Arc<Pod>>,
    /// Pods that ask for injection.
    pub labelled: Vec<Arc<Pod>>,
    pub operators: Vec<Deployment>,
    pub agents: Vec<DaemonSet>,
    /// Pods of operator and agents.
    pub crew: Vec<Arc<Pod>>,
    pub webhooks: Vec<MutatingWebhookConfiguration>,
    pub unseen: Vec<Unseen>,
}

impl Picture {
    /// True where every object of that kind was listed; one that was not understood is told by itself.
    pub fn saw(&self, what: What) -> bool {
        !self
            .unseen
            .iter()
            .any(|unseen| unseen.what == what && unseen.cause != Cause::NotUnderstood)
    }

    /// True where the API server serves none of our kinds.
    pub fn is_not_installed(&self) -> bool {
        self.unseen
            .iter()
            .any(|unseen| unseen.what == What::Clusters && unseen.cause == Cause::NotInstalled)
    }

    /// True where objects of `namespace` were looked at.
    pub fn covers(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    /// The cluster that a pod names.
    pub fn cluster(&self, wish: &Wish) -> Option<&MooncakeCluster> {
        self.clusters.iter().find(|cluster| {
            let meta = &cluster.metadata;
            meta.name.as_ref() == Some(&wish.cluster)
                && meta.namespace.as_ref() == Some(&wish.namespace)
        })
    }

    /// The MooncakeNode of a node.
    pub fn node(&self, name: &str) -> Option<&MooncakeNode> {
        let named = |node: &&MooncakeNode| node.metadata.name.as_deref() == Some(name);
        self.nodes.iter().find(named)
    }

    /// The MooncakeNodes by their names: there are thousands.
    pub fn by_name(&self) -> BTreeMap<&str, &MooncakeNode> {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((node.metadata.name.as_deref()?, node)))
            .collect()
    }

    /// Master pods by namespace and cluster.
    pub fn masters(&self) -> BTreeMap<(&str, &str), Vec<Arc<Pod>>> {
        let mut masters: BTreeMap<_, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &self.pods {
            let component = pod.labels().get(names::LABEL_COMPONENT);
            if component.is_none_or(|component| component != names::COMPONENT_MASTER) {
                continue;
            }
            let namespace = pod.metadata.namespace.as_deref();
            let cluster = pod.labels().get(names::LABEL_CLUSTER);
            if let (Some(namespace), Some(cluster)) = (namespace, cluster) {
                let of_one = masters.entry((namespace, cluster.as_str())).or_default();
                of_one.push(pod.clone());
            }
        }
        masters
    }

    /// Labelled pods that run or are about to.
    pub fn alive(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.labelled
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !is_over(pod))
    }
}
