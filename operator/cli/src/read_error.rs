//! Objects that could not be read: which, why, and what to do. Every report lists what it lacks.

use std::fmt;

use serde::Serialize;

use crate::renderer::{Cell, Renderer, Style, cells};

/// A kind of object, as RBAC rules name it, with the selected subset.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resources(pub &'static str);

impl Resources {
    pub const CLUSTERS: Self = Self("mooncakeclusters.mooncake.io");
    pub const MOONCAKE_NODES: Self = Self("mooncakenodes.mooncake.io");
    pub const INVENTORIES: Self = Self("mooncakeinventories.mooncake.io");
    pub const POLICIES: Self = Self("mooncakenodepolicies.mooncake.io");
    pub const POOL_PODS: Self = Self("pods of masters and pools");
    pub const LABELLED_PODS: Self = Self("pods with the label mooncake.io/inject");
    pub const OPERATORS: Self = Self("deployments.apps of the operator");
    pub const AGENTS: Self = Self("daemonsets.apps of the agent");
    pub const CONTROL_PLANE_PODS: Self = Self("pods of the operator and the agents");
    pub const WEBHOOKS: Self = Self("mutatingwebhookconfigurations.admissionregistration.k8s.io");
    pub const NAMESPACES: Self = Self("namespaces");
    pub const EVENTS: Self = Self("events");
    pub const PODS: Self = Self("pods");
    pub const PORT_FORWARD: Self = Self("pods/portforward of masters");
    pub const LOGS: Self = Self("pods/log");
    pub const NODES: Self = Self("nodes");
    pub const VERSION: Self = Self("version");
    pub const API_GROUPS: Self = Self("API groups");
    pub const DEFINITIONS: Self = Self("customresourcedefinitions.apiextensions.k8s.io");
    pub const ACCESS_REVIEWS: Self = Self("selfsubjectaccessreviews.authorization.k8s.io");
}

/// Why objects could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Cause {
    /// RBAC does not allow it.
    Forbidden,
    /// The API server does not serve the kind.
    NotInstalled,
    /// No object has that name.
    NotFound,
    /// The API server did not respond before the deadline.
    Timeout,
    /// The API server rejected the request for another reason, or closed the connection.
    Failed,
    /// The object does not have the schema of this release.
    DecodeFailed,
}

/// Objects that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct ReadError {
    pub resource: Resources,
    /// The object, its namespace, or all of them.
    pub scope: String,
    pub cause: Cause,
    /// The API server's message, or a local one.
    pub message: String,
    pub remedy: &'static str,
}

impl ReadError {
    pub fn new(
        resource: Resources,
        scope: impl Into<String>,
        cause: Cause,
        message: String,
    ) -> Self {
        let remedy = match cause {
            Cause::Forbidden => {
                "Request read access from the cluster administrator, or use a context that has it \
                 (--context)."
            }
            Cause::NotInstalled => {
                "Install the chart: helm install mooncake charts/mooncake --namespace \
                 mooncake-system --create-namespace --values images.yaml (docs/install.md)."
            }
            Cause::NotFound => "Check the name, the namespace (-n) and the context (--context).",
            Cause::Timeout => "Increase --timeout, or check the health of the API server.",
            Cause::Failed => "See the message, and check the health of the API server.",
            Cause::DecodeFailed => {
                "Use kubectl-mooncake of the release that is installed on the cluster."
            }
        };
        Self {
            resource,
            scope: scope.into(),
            cause,
            message,
            remedy,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            scope,
            cause,
            message,
            remedy,
        } = self;
        write!(f, "{} {scope}: {cause:?}: {message}. {remedy}", resource.0)
    }
}

/// Renders the errors, and the remedy once for each run of equal causes: a tenant may read few kinds.
pub(crate) fn show(out: &mut Renderer, errors: &[ReadError]) {
    for run in errors.chunk_by(|one, next| one.cause == next.cause) {
        out.blank_line();
        for error in run {
            let what = format!("Cannot read {} ({}):", error.resource.0, error.scope);
            let cause = Cell::new(format!("{:?}", error.cause), Style::Bold);
            out.line(cells![Cell::new(what, Style::Warning), cause]);
            out.indented(2, cells![&error.message]);
        }
        if let Some(error) = run.last() {
            out.remedy(error.remedy, "");
        }
    }
}
