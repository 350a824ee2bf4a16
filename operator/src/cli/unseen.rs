//! What could not be looked at, why, and what to do about it: an answer that leaves something out says
//! so.

use serde::Serialize;

use crate::cli::page::{Cell, Page, Tone};

/// A kind of object that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum What {
    #[serde(rename = "mooncakeclusters.mooncake.io")]
    Clusters,
    #[serde(rename = "mooncakenodes.mooncake.io")]
    Nodes,
    #[serde(rename = "mooncakeinventories.mooncake.io")]
    Inventories,
    #[serde(rename = "mooncakenodepolicies.mooncake.io")]
    Policies,
    /// Pods of masters and pools.
    #[serde(rename = "pods of masters and pools")]
    PoolPods,
    /// Pods with the label `mooncake.io/inject`.
    #[serde(rename = "pods with the label mooncake.io/inject")]
    LabelledPods,
    #[serde(rename = "deployments.apps of the operator")]
    Operators,
    #[serde(rename = "daemonsets.apps of the agents")]
    Agents,
    #[serde(rename = "pods of operator and agents")]
    CrewPods,
    #[serde(rename = "mutatingwebhookconfigurations.admissionregistration.k8s.io")]
    Webhooks,
    #[serde(rename = "namespaces")]
    Namespaces,
    #[serde(rename = "events")]
    Events,
    #[serde(rename = "pods")]
    Pods,
}

impl What {
    /// As people and RBAC rules call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clusters => "mooncakeclusters.mooncake.io",
            Self::Nodes => "mooncakenodes.mooncake.io",
            Self::Inventories => "mooncakeinventories.mooncake.io",
            Self::Policies => "mooncakenodepolicies.mooncake.io",
            Self::PoolPods => "pods of masters and pools",
            Self::LabelledPods => "pods with the label mooncake.io/inject",
            Self::Operators => "deployments.apps of the operator",
            Self::Agents => "daemonsets.apps of the agents",
            Self::CrewPods => "pods of operator and agents",
            Self::Webhooks => "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            Self::Namespaces => "namespaces",
            Self::Events => "events",
            Self::Pods => "pods",
        }
    }
}

/// Why it could not be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Cause {
    /// RBAC.
    Forbidden,
    /// The API server does not serve the kind.
    NotInstalled,
    /// There is no object of that name.
    NotFound,
    /// No answer in time.
    Deadline,
    /// The API server refused for another reason, or broke off.
    Failed,
    /// The object has a shape that this program does not know.
    NotUnderstood,
}

/// One thing that could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unseen {
    pub what: What,
    /// The object, the namespace, or all of them.
    pub place: String,
    pub cause: Cause,
    /// The API server's own words, or ours.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Unseen {
    /// What to do about `cause`.
    pub fn new(what: What, place: impl Into<String>, cause: Cause, message: String) -> Self {
        let remedy = match cause {
            Cause::Forbidden => {
                "Ask an administrator for the right to read it, or ask as somebody who has it \
                 (--context)."
            }
            Cause::NotInstalled => {
                "Install the chart: helm install mooncake charts/mooncake --namespace \
                 mooncake-system --create-namespace."
            }
            Cause::NotFound => "See the name and the namespace (-n), and the context (--context).",
            Cause::Deadline => "Give it more time (--timeout), or see how the API server is.",
            Cause::Failed => "See the message, and how the API server is.",
            Cause::NotUnderstood => {
                "Use the kubectl-mooncake of the release that is installed on the cluster."
            }
        };
        Self {
            what,
            place: place.into(),
            cause,
            message,
            remedy: remedy.to_owned(),
        }
    }
}

/// For people. A tenant may see nothing of many kinds: what is to be done about them is said once.
pub fn show(page: &mut Page, unseen: &[Unseen]) {
    for like in unseen.chunk_by(|one, next| one.cause == next.cause) {
        page.gap();
        for not in like {
            let what = format!("Could not look at {} ({}):", not.what.as_str(), not.place);
            let cause = Cell::new(format!("{:?}", not.cause), Tone::Head);
            page.line([Cell::new(what, Tone::Doubt), cause]);
            page.indented(2, [not.message.clone().into()]);
        }
        if let Some(not) = like.last() {
            page.indented(2, [Cell::from("Do:"), not.remedy.clone().into()]);
        }
    }
}
