//! What the user who installs must be allowed to do: to create and change each kind of the chart and of the manifests.

use std::fmt;

use kube::ResourceExt;

use super::{Check, Facts, Finding, Plan};
use crate::doctor::Severity;

/// Kind, API group, resource, and whether it is in the namespace of the release. The chart's kinds with its default values.
pub const INSTALLED: &[(&str, &str, &str, bool)] = &[
    ("Namespace", "", "namespaces", false),
    ("Secret", "", "secrets", true),
    ("Service", "", "services", true),
    ("ServiceAccount", "", "serviceaccounts", true),
    ("DaemonSet", "apps", "daemonsets", true),
    ("Deployment", "apps", "deployments", true),
    ("Lease", "coordination.k8s.io", "leases", true),
    (
        "NetworkPolicy",
        "networking.k8s.io",
        "networkpolicies",
        true,
    ),
    (
        "PodDisruptionBudget",
        "policy",
        "poddisruptionbudgets",
        true,
    ),
    ("Role", "rbac.authorization.k8s.io", "roles", true),
    (
        "RoleBinding",
        "rbac.authorization.k8s.io",
        "rolebindings",
        true,
    ),
    (
        "ClusterRole",
        "rbac.authorization.k8s.io",
        "clusterroles",
        false,
    ),
    (
        "ClusterRoleBinding",
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        false,
    ),
    (
        "CustomResourceDefinition",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        false,
    ),
    ("DeviceClass", "resource.k8s.io", "deviceclasses", false),
    (
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        false,
    ),
    (
        "PriorityClass",
        "scheduling.k8s.io",
        "priorityclasses",
        false,
    ),
    (
        "ValidatingAdmissionPolicy",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        false,
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
        false,
    ),
];

/// One right, as of a SelfSubjectAccessReview.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    pub verb: &'static str,
    pub group: &'static str,
    pub resource: &'static str,
    /// `None`: cluster scope.
    pub namespace: Option<String>,
}

impl Permission {
    /// Every right. Who has it needs no further check.
    pub fn every() -> Self {
        Self {
            verb: "*",
            group: "*",
            resource: "*",
            namespace: None,
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verb,
            group,
            resource,
            namespace,
        } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        match namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

/// What the plan needs.
pub fn needed(plan: &Plan) -> Vec<Permission> {
    let installed = INSTALLED
        .iter()
        .flat_map(|(_, group, resource, namespaced)| {
            let namespace = namespaced.then(|| plan.namespace.clone());
            ["create", "patch"].map(|verb| Permission {
                verb,
                group,
                resource,
                namespace: namespace.clone(),
            })
        });
    // A role may grant only rights that its creator has, unless it may escalate.
    let escalate = Permission {
        verb: "escalate",
        group: "rbac.authorization.k8s.io",
        resource: "clusterroles",
        namespace: None,
    };
    let clusters = plan.clusters.iter().map(|cluster| Permission {
        verb: "create",
        group: crds::names::GROUP,
        resource: "mooncakeclusters",
        namespace: cluster.namespace(),
    });
    let policies = plan.policies.iter().take(1).map(|_| Permission {
        verb: "create",
        group: crds::names::GROUP,
        resource: "mooncakenodepolicies",
        namespace: None,
    });
    let chart = installed.chain([escalate]).filter(|_| !plan.installed);
    chart.chain(clusters).chain(policies).collect()
}

/// One finding for all missing rights: they have one remedy.
pub(super) fn findings(facts: &Facts, _: &Plan) -> Option<Finding> {
    let denied = facts.denied.as_deref().unwrap_or_default();
    if denied.is_empty() {
        return None;
    }
    let denied: Vec<String> = denied.iter().map(ToString::to_string).collect();
    Some(Finding::new(
        Severity::Error,
        Check::Permissions,
        "the user of this kubeconfig",
        format!("may not {}", denied.join("; ")),
        "Let an administrator install the chart, or bind the user to the ClusterRole cluster-admin for the installation.",
    ))
}
