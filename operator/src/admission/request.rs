//! The injection request of a pod: which cluster, in which namespace.

use std::collections::BTreeMap;

use crds::names;
use k8s_openapi::api::core::v1::Pod;

/// Longest name that a MooncakeCluster may have.
const MAX_CLUSTER_NAME: usize = 40;
/// Longest name of a namespace.
const MAX_NAMESPACE: usize = 63;

/// The cluster that a pod names in its label and annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectionRequest {
    /// Name of the MooncakeCluster.
    pub cluster: String,
    /// Namespace of the MooncakeCluster.
    pub namespace: String,
}

/// Why a request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error(
        "label {label} has the value `{0}`, which no MooncakeCluster can have as its name: write the cluster's name",
        label = names::LABEL_INJECT
    )]
    Cluster(String),
    #[error(
        "annotation {annotation} has the value `{0}`, which is no name of a namespace",
        annotation = names::ANNOTATION_CLUSTER_NAMESPACE
    )]
    Namespace(String),
}

impl InjectionRequest {
    /// The request of a pod that is created in `namespace`; `None` when it has no inject label.
    ///
    /// # Errors
    /// A label or annotation that can name nothing.
    pub fn of(pod: &Pod, namespace: &str) -> Result<Option<Self>, InvalidRequest> {
        let Some(cluster) = label(pod, names::LABEL_INJECT) else {
            return Ok(None);
        };
        if !is_name(cluster, MAX_CLUSTER_NAME) {
            return Err(InvalidRequest::Cluster(cluster.to_owned()));
        }
        let other = lookup(
            pod.metadata.annotations.as_ref(),
            names::ANNOTATION_CLUSTER_NAMESPACE,
        );
        let named = other.unwrap_or(namespace);
        if !is_name(named, MAX_NAMESPACE) {
            return Err(InvalidRequest::Namespace(named.to_owned()));
        }
        Ok(Some(Self {
            cluster: cluster.to_owned(),
            namespace: named.to_owned(),
        }))
    }
}

/// A label of the pod.
pub(super) fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    lookup(pod.metadata.labels.as_ref(), key)
}

/// An annotation of the pod.
pub(super) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    lookup(pod.metadata.annotations.as_ref(), key)
}

fn lookup<'a>(map: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    map?.get(key).map(String::as_str)
}

/// Lower-case letters, digits and `-`, neither first nor last a `-`. Looser than the API server,
/// which has the last word; strict enough that the value is safe in a URL and in a host name.
fn is_name(text: &str, longest: usize) -> bool {
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty()
        && text.len() <= longest
        && text.bytes().all(inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
