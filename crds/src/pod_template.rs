//! What a user adds to the pods that the operator creates.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// CEL rule: the operator, its Services and Kubernetes' controllers select pods by these labels.
fn free_labels() -> Value {
    json!([{
        "rule": "self.all(key, !key.startsWith('mooncake.io/') && !key.contains('.mooncake.io/') && !(key in ['controller-revision-hash', 'pod-template-generation', 'pod-template-hash']))",
        "message": "labels with the prefix mooncake.io, controller-revision-hash, pod-template-generation and pod-template-hash are reserved: choose other keys"
    }])
}

/// CEL rule: the operator and the webhook read these annotations.
fn free_annotations() -> Value {
    json!([{
        "rule": "self.all(key, !key.startsWith('mooncake.io/') && !key.contains('.mooncake.io/'))",
        "message": "annotations with the prefix mooncake.io are reserved: choose other keys"
    }])
}

/// What is added to the pods of a pool.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolPodTemplate {
    /// Labels of the pods, besides those of the operator. A change replaces the pool's pods. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[schemars(extend("x-kubernetes-validations" = free_labels()))]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the pods, besides those of the operator. A change replaces the pool's pods. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[schemars(extend("x-kubernetes-validations" = free_annotations()))]
    pub annotations: BTreeMap<String, String>,

    /// Affinity of the pods. Required node affinity selects nodes as `nodeSelector` does. A change starts or drains the pods
    /// of added or removed nodes, and replaces no other pod. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
}

/// What is added to the master's pod.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MasterPodTemplate {
    /// Labels of the pod, besides those of the operator. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[schemars(extend("x-kubernetes-validations" = free_labels()))]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the pod, besides those of the operator. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[schemars(extend("x-kubernetes-validations" = free_annotations()))]
    pub annotations: BTreeMap<String, String>,

    /// Affinity of the pod, for example for nodes without GPUs. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,

    /// Spread over nodes or zones, relative to other pods that `labelSelector` selects, for example the masters of other
    /// clusters. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Taints that the pod tolerates. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,

    /// PriorityClass of the pod. The keys of a `Stock` master are lost if the pod is preempted. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
}
