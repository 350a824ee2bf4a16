//! One problem: severity, reason, object, node, age and remedy.

use std::fmt;

use crds::Reason;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::age::age;
use crate::renderer::{Cell, Renderer, Style, cells};
use crate::status::without_remedy;

/// How severe a finding is, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// Something that was requested does not work.
    Error,
    /// Work in progress, or a risk.
    Warning,
}

/// The object of a finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Object {
    pub kind: &'static str,
    pub namespace: Option<String>,
    pub name: String,
}

impl Object {
    pub fn of<K: ResourceExt>(kind: &'static str, object: &K) -> Self {
        Self {
            namespace: object.namespace(),
            ..Self::named(kind, &object.name_any())
        }
    }

    /// An object without a namespace, or one that does not exist, by its name in the chart.
    pub fn named(kind: &'static str, name: &str) -> Self {
        Self {
            kind,
            namespace: None,
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, .. } = self;
        match &self.namespace {
            Some(namespace) => write!(f, "{kind} {namespace}/{name}"),
            None => write!(f, "{kind} {name}"),
        }
    }
}

/// One problem.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub severity: Severity,
    pub reason: Reason,
    /// Who can act on it: App, Engine, Node, Fabric or Cluster.
    pub owner: String,
    pub object: Object,
    pub node: Option<String>,
    /// The affected part of the object, such as `mlx5_3 port 1`.
    pub subject: Option<String>,
    pub message: String,
    pub remedy: &'static str,
    /// The field of a MooncakeNodePolicy that lets the agent apply the remedy.
    pub fix: Option<String>,
    pub docs: String,
    pub since: Option<Timestamp>,
    /// Dropped when an earlier finding has the same reason and node.
    #[serde(skip)]
    pub secondary: bool,
}

impl Finding {
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
            message: without_remedy(message.as_ref()),
            remedy: reason.remedy(),
            fix: None,
            docs: reason.docs_anchor(),
            since: None,
            secondary: false,
        }
    }

    pub fn error(reason: Reason, object: Object, message: impl AsRef<str>) -> Self {
        Self::new(Severity::Error, reason, object, message)
    }

    pub fn warning(reason: Reason, object: Object, message: impl AsRef<str>) -> Self {
        Self::new(Severity::Warning, reason, object, message)
    }

    /// Sets the node, unless the name is empty.
    pub fn on(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into()).filter(|node| !node.is_empty());
        self
    }

    pub fn since(self, since: Option<Timestamp>) -> Self {
        Self { since, ..self }
    }

    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    pub fn fix(self, fix: Option<String>) -> Self {
        Self { fix, ..self }
    }

    pub fn secondary(self) -> Self {
        Self {
            secondary: true,
            ..self
        }
    }

    /// Most severe first, then by the number of affected objects: control plane, clusters, nodes, others.
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

    pub(crate) fn show(&self, out: &mut Renderer, now: Timestamp) {
        let style = match self.severity {
            Severity::Error => Style::Bad,
            Severity::Warning => Style::Warning,
        };
        let mut object = self.object.to_string();
        if let Some(subject) = &self.subject {
            object += &format!(", {subject}");
        }
        let node = self.node.as_ref();
        if let Some(node) = node.filter(|node| **node != self.object.name) {
            object += &format!(" on {node}");
        }
        let since = self.since.map(|since| format!("for {}", age(since, now)));
        out.line(cells![
            Cell::new(format!("{:?}", self.severity), style),
            Cell::new(self.reason, Style::Bold),
            object,
            Cell::new(since.unwrap_or_default(), Style::Dim),
        ]);
        out.indented(2, cells![&self.message]);
        out.remedy(self.remedy, &self.docs);
        if let Some(fix) = &self.fix {
            let text = format!("{fix} (docs/policy.md)");
            out.indented(2, cells!["Automatic fix:", text]);
        }
    }
}

/// How long work may be in progress before it is an error; a pool of terabytes is touched in minutes.
const PROGRESS_SECONDS: i64 = 15 * 60;

/// Severity of a condition that is not met for `reason` and for `seconds`, where that is known.
pub(super) fn severity(reason: Reason, seconds: Option<i64>) -> Severity {
    let recent = seconds.is_none_or(|seconds| seconds < PROGRESS_SECONDS);
    match reason {
        Reason::ComputeDomainEmpty
        | Reason::ComputeDomainCrdMissing
        | Reason::HostImexUnverified
        | Reason::Paused => Severity::Warning,
        Reason::Progressing
        | Reason::Deleting
        | Reason::StaleStatus
        | Reason::WaitingForGrant
        | Reason::TouchingMemory
        | Reason::Mounting
        | Reason::Draining
        | Reason::GateWaiting
        | Reason::ComputeDomainNotReady
            if recent =>
        {
            Severity::Warning
        }
        _ => Severity::Error,
    }
}

/// Seconds from `since` to `now`.
pub(super) fn elapsed(since: Option<Timestamp>, now: Timestamp) -> Option<i64> {
    since.map(|since| now.as_second() - since.as_second())
}
