//! `drain NODE` and `undrain NODE`: the pool pods of a node move their keys to other nodes and end, until it is undone. What
//! is decided and shown; pure.

pub mod carry_out;

use crds::cluster::MasterType;
use crds::node::{PoolReport, PoolState};
use crds::{MooncakeCluster, MooncakeNode, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_operator::cluster::pool_pod::current_report;
use serde::Serialize;

use crate::read_error::ReadError;
use crate::renderer::{Cell, Renderer, Style, cells};

/// The DaemonSet controller deletes the pod within seconds. After that it does not know the drain.
const DELETION_SECONDS: i64 = 60;

/// The objects at one time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The Node has the label.
    pub requested: bool,
    /// Pool pods on the node.
    pub pods: Vec<Pod>,
    pub clusters: Vec<MooncakeCluster>,
    pub nodes: Vec<MooncakeNode>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// No pool pod is left on the node.
    Drained,
    /// Keys would be lost, and `--lose-keys` was not given. Nothing was changed.
    Refused,
    /// The deadline is over; the drain goes on.
    Draining,
    /// Pool pods are not deleted.
    NotDeleted,
    /// Another client has undone the drain.
    Cancelled,
    /// Pool pods may start on the node again.
    Undrained,
}

/// A pool pod of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolPod {
    pub namespace: String,
    pub pod: String,
    pub cluster: String,
    /// As its agent reports it.
    pub state: String,
    pub message: String,
}

/// Keys that would be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    pub namespace: String,
    pub pod: String,
    pub message: String,
}

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    pub node: String,
    pub state: State,
    pub message: String,
    pub remedy: Option<String>,
    /// Pool pods that are left on the node.
    pub pods: Vec<PoolPod>,
    /// Pool pods whose keys are lost.
    pub losses: Vec<Loss>,
    pub read_errors: Vec<ReadError>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Wait,
    End(State),
}

impl Seen {
    /// The pool pods whose keys a drain of `node` loses.
    pub fn losses(&self, node: &str) -> Vec<Loss> {
        let losses = self.pods.iter().filter_map(|pod| {
            let report = self.report(node, pod);
            // A pod without mounted memory has no keys.
            if report.is_some_and(|report| report.mounted.is_none()) {
                return None;
            }
            let namespace = pod.namespace().unwrap_or_default();
            let cluster = label(pod, names::LABEL_CLUSTER);
            let name = format!("{namespace}/{cluster}");
            let of = self.clusters.iter().find(|one| {
                one.name_any() == cluster && one.namespace().as_ref() == Some(&namespace)
            });
            let message = match of {
                None => format!("MooncakeCluster {name} could not be read"),
                Some(one) if one.spec.master.kind() == MasterType::Stock => {
                    format!("MooncakeCluster {name} has a stock master, which moves no keys")
                }
                Some(_) if !self.serves_elsewhere(node, &namespace, cluster) => {
                    format!("no pool pod of MooncakeCluster {name} serves on another node")
                }
                Some(_) => return None,
            };
            Some(Loss {
                namespace,
                pod: pod.name_any(),
                message,
            })
        });
        losses.collect()
    }

    /// Another node has a pool pod of the cluster that serves. What the agent of a lost node reported last does not count.
    fn serves_elsewhere(&self, node: &str, namespace: &str, cluster: &str) -> bool {
        let others = self.nodes.iter().filter(|other| other.name_any() != node);
        let mut others = others.filter(|other| current_report(Some(other)).is_ok());
        others.any(|other| {
            let assigned = other.spec.pools.iter();
            let mut assigned =
                assigned.filter(|one| (&*one.namespace, &*one.cluster) == (namespace, cluster));
            assigned.any(|one| {
                let mut reports = other.status.iter().flat_map(|status| &status.pools);
                let report = reports.find(|report| report.pod_uid == one.pod_uid);
                report.is_some_and(|report| report.state == PoolState::Serving)
            })
        })
    }

    fn report(&self, node: &str, pod: &Pod) -> Option<&PoolReport> {
        let uid = pod.uid()?;
        let node = self.nodes.iter().find(|one| one.name_any() == node)?;
        let mut reports = node.status.iter().flat_map(|status| &status.pools);
        reports.find(|report| report.pod_uid == uid)
    }

    /// The pool pods that are left on the node, by name.
    pub fn left(&self, node: &str) -> Vec<PoolPod> {
        let mut left: Vec<PoolPod> = self
            .pods
            .iter()
            .map(|pod| {
                let report = self.report(node, pod);
                let state = report.map(|report| report.state.to_string());
                PoolPod {
                    namespace: pod.namespace().unwrap_or_default(),
                    pod: pod.name_any(),
                    cluster: label(pod, names::LABEL_CLUSTER).to_owned(),
                    state: state.unwrap_or_else(|| "Unknown".to_owned()),
                    message: report.map_or_else(
                        || "its agent has not reported it".to_owned(),
                        |report| report.message.clone(),
                    ),
                }
            })
            .collect();
        left.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
        left
    }

    /// Seconds that the longest drain of the pods may take.
    pub fn longest(&self) -> i64 {
        let grace = self.pods.iter().filter_map(|pod| {
            let spec = pod.spec.as_ref()?;
            spec.termination_grace_period_seconds
        });
        grace.max().unwrap_or_default()
    }

    /// Decides for a drain that was requested at `since` and ends at `deadline`.
    pub fn next(&self, since: Timestamp, deadline: Timestamp, now: Timestamp) -> Next {
        let is_kept = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        if self.pods.is_empty() {
            Next::End(State::Drained)
        } else if !self.requested {
            Next::End(State::Cancelled)
        } else if now.as_second() - since.as_second() >= DELETION_SECONDS
            && self.pods.iter().any(is_kept)
        {
            Next::End(State::NotDeleted)
        } else if now >= deadline {
            Next::End(State::Draining)
        } else {
            Next::Wait
        }
    }
}

fn label<'a>(pod: &'a Pod, name: &str) -> &'a str {
    pod.labels().get(name).map_or("", String::as_str)
}

impl PoolPod {
    /// One line of progress.
    pub fn line(&self) -> String {
        let Self {
            namespace,
            pod,
            state,
            message,
            ..
        } = self;
        format!("{namespace}/{pod}: {state}: {message}")
    }
}

impl Drain {
    /// The report of a drain that has ended so.
    pub fn new(node: &str, state: State, seen: &Seen, losses: Vec<Loss>) -> Self {
        let undo = format!("Undo it with kubectl mooncake undrain {node}.");
        let (message, remedy) = match state {
            State::Drained => (
                "no pool pod is left, and none starts until it is undrained",
                Some(undo),
            ),
            State::Refused => (
                "keys would be lost. Nothing was changed",
                Some(
                    "Add pool pods on other nodes, or confirm the loss with --lose-keys."
                        .to_owned(),
                ),
            ),
            State::Draining => (
                "the deadline is over, and the drain goes on",
                Some(format!("Run the command again to wait longer. {undo}")),
            ),
            State::NotDeleted => (
                "pool pods are not deleted: the operator is of an earlier release, is paused, or the controller of DaemonSets does not run",
                Some(format!("Update or resume the operator. {undo}")),
            ),
            State::Cancelled => (
                "the label was removed meanwhile: pool pods may start again",
                None,
            ),
            State::Undrained => ("pool pods may start again", None),
        };
        Self {
            node: node.to_owned(),
            state,
            message: message.to_owned(),
            remedy,
            pods: seen.left(node),
            losses,
            read_errors: Vec::new(),
        }
    }

    /// 0: as requested, 1: not.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.state {
            State::Drained | State::Undrained => 0,
            _ => 1,
        }
    }

    pub(crate) fn show(&self, out: &mut Renderer) {
        let name = format!("Node {}", self.node);
        out.line(cells![Cell::new(name, Style::Bold), self.state.cell()]);
        out.indented(2, cells![&self.message]);
        if let Some(remedy) = &self.remedy {
            out.remedy(remedy, "");
        }
        let rows = self.losses.iter().map(|loss| {
            let pod = format!("{}/{}", loss.namespace, loss.pod);
            cells![pod, &loss.message]
        });
        out.table(&["LOSES KEYS", "CAUSE"], rows);
        let rows = self.pods.iter().map(|pod| {
            let name = format!("{}/{}", pod.namespace, pod.pod);
            cells![name, &pod.cluster, &pod.state, &pod.message]
        });
        out.table(&["POOL POD", "CLUSTER", "STATE", "MESSAGE"], rows);
    }
}

impl State {
    fn cell(self) -> Cell {
        let (text, style) = match self {
            Self::Drained => ("is drained", Style::Good),
            Self::Refused => ("is not drained", Style::Bad),
            Self::Draining => ("drains", Style::Warning),
            Self::NotDeleted => ("does not drain", Style::Bad),
            Self::Cancelled => ("is no longer drained", Style::Bad),
            Self::Undrained => ("is not drained any more", Style::Good),
        };
        Cell::new(text, style)
    }
}
