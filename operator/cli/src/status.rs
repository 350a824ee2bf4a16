//! `status`: one line for each MooncakeCluster, and the most severe condition of those that are not ready. Pure.

use crds::cluster::Transport;
use crds::condition::find;
use crds::{
    ByteSize, ConditionStatus, ConditionType, MooncakeCluster, MooncakeClusterStatus, Reason,
    Vocabulary, Word,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::age::age;
use crate::read_error::ReadError;
use crate::renderer::{Cell, Renderer, Style, cells};
use crate::snapshot::Snapshot;

/// The parts of `Ready`, whose reasons are more precise, then `Ready`; then the conditions that it does not
/// depend on.
const BY_SEVERITY: [&[ConditionType]; 2] = [
    &[
        ConditionType::MasterReady,
        ConditionType::PoolsReady,
        ConditionType::TransportsReady,
        ConditionType::Ready,
    ],
    &[
        ConditionType::MetadataReady,
        ConditionType::PodsInjected,
        ConditionType::MnnvlReady,
        ConditionType::Drained,
    ],
];

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Absent: all namespaces.
    pub namespace: Option<String>,
    pub clusters: Vec<Row>,
    pub read_errors: Vec<ReadError>,
}

/// One cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub namespace: String,
    pub name: String,
    /// Status of the condition `Ready`; `Unknown` until the operator has observed the current generation.
    pub ready: &'static str,
    pub progress: String,
    /// Storing nodes, serving/desired.
    pub nodes: Option<String>,
    pub capacity: Option<ByteSize>,
    pub used: Option<String>,
    /// Transport of stock pods.
    pub transport: Option<Word<Transport>>,
    /// Nodes that may use NVLink between nodes, members/all.
    pub nvlink: Option<String>,
    pub master: Option<String>,
    pub created: Option<Timestamp>,
    /// The most severe condition; absent when there is none.
    pub worst_condition: Option<WorstCondition>,
}

/// A condition that is `False` or `Unknown`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorstCondition {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub remedy: &'static str,
    pub docs: String,
    pub since: Timestamp,
}

/// Computes the report.
pub fn status(snapshot: &Snapshot) -> Status {
    let mut clusters: Vec<Row> = snapshot.clusters.iter().map(row).collect();
    clusters.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Status {
        namespace: snapshot.namespace.clone(),
        clusters,
        read_errors: snapshot.read_errors.clone(),
    }
}

fn row(cluster: &MooncakeCluster) -> Row {
    let status = cluster.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, ConditionType::Ready).filter(|_| is_current(cluster));
    Row {
        namespace: cluster.namespace().unwrap_or_default(),
        name: cluster.name_any(),
        ready: ready.map_or(ConditionStatus::Unknown, state).as_str(),
        progress: progress(cluster, &status),
        worst_condition: worst_condition(&status.conditions),
        nodes: status.nodes,
        capacity: status.capacity,
        used: status.used,
        transport: status.transport,
        nvlink: status.mnnvl.map(|mnnvl| mnnvl.nodes),
        master: status.master_endpoint,
        created: cluster.creation_timestamp().map(|time| time.0),
    }
}

/// True when the status describes the current generation.
pub fn is_current(cluster: &MooncakeCluster) -> bool {
    let observed = cluster.status.as_ref().and_then(|s| s.observed_generation);
    observed.is_some() && observed == cluster.meta().generation
}

/// What the operator has not observed of a cluster.
pub(crate) fn not_observed(cluster: &MooncakeCluster) -> String {
    match cluster.status.as_ref().and_then(|s| s.observed_generation) {
        None => "the operator has not observed it yet".to_owned(),
        Some(observed) => format!(
            "the operator has observed generation {observed}, not yet {}",
            cluster.meta().generation.unwrap_or_default()
        ),
    }
}

fn state(condition: &Condition) -> ConditionStatus {
    [ConditionStatus::True, ConditionStatus::False]
        .into_iter()
        .find(|state| state.as_str() == condition.status)
        .unwrap_or(ConditionStatus::Unknown)
}

fn progress(cluster: &MooncakeCluster, status: &MooncakeClusterStatus) -> String {
    let message = |condition: &Condition| without_remedy(&condition.message);
    let is_true = |kind| find(&status.conditions, kind).filter(|c| c.status == "True");
    if cluster.meta().deletion_timestamp.is_some() {
        "deleting".to_owned()
    } else if !is_current(cluster) {
        not_observed(cluster)
    } else if let Some(stalled) = is_true(ConditionType::Stalled) {
        format!("stalled: {}", stalled.reason)
    } else if let Some(reconciling) = is_true(ConditionType::Reconciling) {
        format!("reconciling: {}", message(reconciling))
    } else {
        find(&status.conditions, ConditionType::Ready)
            .map_or_else(|| "no condition Ready".to_owned(), message)
    }
}

fn worst_condition(conditions: &[Condition]) -> Option<WorstCondition> {
    let first = |kinds: &[ConditionType], wanted| {
        let mut kinds = kinds.iter().copied();
        kinds.find(|kind| find(conditions, *kind).is_some_and(|c| state(c) == wanted))
    };
    let kind = BY_SEVERITY.iter().find_map(|kinds| {
        first(kinds, ConditionStatus::False).or_else(|| first(kinds, ConditionStatus::Unknown))
    })?;
    let condition = find(conditions, kind)?;
    let reason = known_reason(&condition.reason);
    Some(WorstCondition {
        kind: kind.as_str(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: without_remedy(&condition.message),
        remedy: reason.map_or("", Reason::remedy),
        docs: reason.map(Reason::docs_anchor).unwrap_or_default(),
        since: condition.last_transition_time.0,
    })
}

/// The reason of that name; `None` for one of another release.
pub fn known_reason(name: &str) -> Option<Reason> {
    Reason::read(name)
}

/// A message without the remedy of its reason, which is shown separately.
pub fn without_remedy(message: &str) -> String {
    let (text, remedy) = message.rsplit_once("Remedy: ").unwrap_or((message, ""));
    let ours = Reason::ALL.iter().any(|reason| reason.remedy() == remedy);
    if ours { text } else { message }.trim().to_owned()
}

impl Status {
    pub(crate) fn show(&self, out: &mut Renderer, now: Timestamp) {
        if self.clusters.is_empty() && self.read_errors.is_empty() {
            out.line(match &self.namespace {
                Some(namespace) => cells![format!(
                    "No MooncakeClusters found in namespace {namespace}. Use -A for all namespaces."
                )],
                None => cells!["No MooncakeClusters found."],
            });
        }
        let head = [
            "NAMESPACE",
            "NAME",
            "READY",
            "NODES",
            "CAPACITY",
            "USED",
            "TRANSPORT",
            "NVLINK",
            "MASTER",
            "AGE",
        ];
        out.table(&head, self.clusters.iter().map(|row| row.cells(now)));
        for row in &self.clusters {
            if row.ready == ConditionStatus::True.as_str() && row.worst_condition.is_none() {
                continue;
            }
            out.blank_line();
            let name = format!("{}/{}:", row.namespace, row.name);
            out.line(cells![Cell::new(name, Style::Bold), &row.progress]);
            if let Some(worst) = &row.worst_condition {
                worst.show(out, now);
            }
        }
    }
}

impl Row {
    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let transport = self.transport.map(|transport| match transport {
            Word::Known(Transport::Tcp) => "tcp".to_owned(),
            Word::Known(Transport::Rdma) => "rdma".to_owned(),
            Word::Other(word) => word.as_str().to_owned(),
        });
        cells![
            &self.namespace,
            &self.name,
            Cell::new(self.ready, Style::of_status(self.ready)),
            Cell::optional(self.nodes.as_ref()),
            Cell::optional(self.capacity),
            Cell::optional(self.used.as_ref()),
            Cell::optional(transport),
            Cell::optional(self.nvlink.as_ref()),
            Cell::optional(self.master.as_ref()),
            Cell::optional(self.created.map(|created| age(created, now))),
        ]
    }
}

impl WorstCondition {
    fn show(&self, out: &mut Renderer, now: Timestamp) {
        let status = Cell::new(&self.status, Style::of_status(&self.status));
        let reason = Cell::new(&self.reason, Style::Bold);
        let since = Cell::new(format!("for {}", age(self.since, now)), Style::Dim);
        out.indented(2, cells![self.kind, status, reason, since]);
        out.indented(2, cells![&self.message]);
        if !self.remedy.is_empty() {
            out.remedy(self.remedy, &self.docs);
        }
    }
}
