//! What `preflight` reads from the API server. A list that could not be read is `None` and a read error.

use std::collections::BTreeMap;

use crds::MooncakeNode;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::permissions::Permission;
use crate::read_error::ReadError;

/// Versions of an API group that the server serves; empty: it does not serve the group.
pub type GroupVersions = Vec<String>;

/// The groups on which optional parts depend; `None` if the groups could not be read.
#[derive(Clone, Debug, Default)]
pub struct Dra {
    /// `resource.k8s.io`, device claims.
    pub claims: Option<GroupVersions>,
    /// `resource.nvidia.com`, ComputeDomains.
    pub compute_domains: Option<GroupVersions>,
}

/// The result of a server-side dry run. Nothing is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attempt {
    /// Not tried: the namespace does not exist, or the user may not create pods in it.
    #[default]
    Untried,
    Admitted,
    /// The API server's message.
    Rejected(String),
}

/// Everything that the checks evaluate.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Release of the API server, such as `v1.35.4`.
    pub kubernetes: Option<String>,
    pub groups: Dra,
    /// The installed CRDs of the group mooncake.io.
    pub definitions: Option<Vec<CustomResourceDefinition>>,
    /// The permissions of the user that are missing; `None` if they could not be evaluated.
    pub denied: Option<Vec<Permission>>,
    /// Labels of the namespace of the release; `None` if it does not exist or could not be read.
    pub namespace_labels: Option<BTreeMap<String, String>>,
    /// A dry run of an agent-like pod in that namespace.
    pub agent_pod: Attempt,
    /// Deployments with the label of the operator, of all namespaces.
    pub operators: Option<Vec<Deployment>>,
    pub webhooks: Option<Vec<MutatingWebhookConfiguration>>,
    pub nodes: Option<Vec<Node>>,
    /// MooncakeNodes of an earlier installation, whose pools use memory.
    pub mooncake_nodes: Vec<MooncakeNode>,
    pub read_errors: Vec<ReadError>,
}
