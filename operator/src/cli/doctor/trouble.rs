//! One thing that is wrong: how bad, why, who, where, since when, what to do.

use std::fmt;

use crds::Reason;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::age::age;
use crate::cli::page::{Cell, Page, Tone};
use crate::cli::status;

/// How bad it is, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Severity {
    /// Somebody does not get what they asked for.
    Fails,
    /// It works or is on its way; it may come to be a failure.
    Warns,
}

/// What it is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        match namespace {
            Some(namespace) => write!(f, "{kind} {namespace}/{name}"),
            None => write!(f, "{kind} {name}"),
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    pub severity: Severity,
    pub reason: Reason,
    /// Who can act on it: App, Engine, Node, Fabric or Cluster.
    pub owner: String,
    pub object: Object,
    /// Absent where it is not about one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The part of it that is meant, e.g. `mlx5_3 port 1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub message: String,
    pub remedy: &'static str,
    /// The field of a MooncakeNodePolicy by which the agent would do it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    pub docs: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// It may only repeat what somebody else says of the node.
    #[serde(skip)]
    pub echoes: bool,
}

impl Trouble {
    pub fn new(
        severity: Severity,
        reason: Reason,
        object: Object,
        message: impl AsRef<str>,
    ) -> Self {
        Self {
            severity,
            reason,
            owner: format!("{:?}", reason.owner()),
            object,
            node: None,
            subject: None,
            message: status::words(message.as_ref()),
            remedy: reason.remedy(),
            fix: None,
            docs: reason.docs_anchor(),
            since: None,
            echoes: false,
        }
    }

    /// On that node.
    pub fn on(mut self, node: impl Into<String>) -> Self {
        let node = node.into();
        self.node = (!node.is_empty()).then_some(node);
        self
    }

    /// Since then.
    pub fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    /// About that part.
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// What a policy could have the agent do about it.
    pub fn fix(mut self, fix: Option<String>) -> Self {
        self.fix = fix;
        self
    }

    /// Left out where its reason is told of the node already.
    pub fn echo(mut self) -> Self {
        self.echoes = true;
        self
    }

    /// Worst first; then by what is in the way of most: operator and webhook, agents, clusters, nodes,
    /// pods.
    pub fn order(&self) -> impl Ord {
        let rank = match self.object.kind {
            "Deployment" | "MutatingWebhookConfiguration" => 0,
            "DaemonSet" => 1,
            "MooncakeCluster" => 2,
            "MooncakeNode" => 3,
            _ => 4,
        };
        (
            self.severity,
            rank,
            self.reason,
            self.object.clone(),
            self.subject.clone(),
            self.message.clone(),
        )
    }

    pub(crate) fn show(&self, page: &mut Page, now: Timestamp) {
        let word = match self.severity {
            Severity::Fails => Cell::new("Fails", Tone::Bad),
            Severity::Warns => Cell::new("Warns", Tone::Doubt),
        };
        let mut who = self.object.to_string();
        if let Some(subject) = &self.subject {
            who.push_str(&format!(", {subject}"));
        }
        if let Some(node) = &self.node
            && *node != self.object.name
        {
            who.push_str(&format!(" on {node}"));
        }
        let since = self
            .since
            .map_or_else(String::new, |since| format!("for {}", age(since, now)));
        page.line([
            word,
            Cell::new(self.reason.as_str(), Tone::Head),
            who.into(),
            Cell::new(since, Tone::Faint),
        ]);
        page.indented(2, [self.message.clone().into()]);
        status::remedy(page, 2, self.remedy, &self.docs);
        if let Some(fix) = &self.fix {
            let words = format!("{fix} (docs/policy.md)");
            page.indented(2, [Cell::from("Or:"), words.into()]);
        }
    }
}

/// How long work under way may last before it is a failure; touching a pool of terabytes takes minutes.
const PATIENCE_SECONDS: i64 = 15 * 60;

/// How bad it is that something is not as it should be for `reason`; `lasts`: for how long, where that
/// is known.
pub(super) fn severity(reason: Reason, lasts: Option<i64>) -> Severity {
    let young = lasts.is_none_or(|seconds| seconds < PATIENCE_SECONDS);
    if is_calm(reason) || is_work(reason) && young {
        Severity::Warns
    } else {
        Severity::Fails
    }
}

/// Causes that go by themselves.
fn is_work(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Progressing
            | Reason::Deleting
            | Reason::StaleStatus
            | Reason::WaitingForGrant
            | Reason::TouchingMemory
            | Reason::Mounting
            | Reason::Draining
            | Reason::GateWaiting
            | Reason::DomainNotReady
    )
}

/// Causes for which nobody lacks anything yet.
fn is_calm(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::DomainEmpty | Reason::ComputeDomainCrdMissing | Reason::HostImexUnproven
    )
}

/// Seconds since then.
pub(super) fn lasts(since: Option<Timestamp>, now: Timestamp) -> Option<i64> {
    since.map(|since| now.as_second() - since.as_second())
}
