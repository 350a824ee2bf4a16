//! `status`: every MooncakeCluster in one line, and what is worst about those that are not ready. Pure.

use crds::cluster::Transport;
use crds::condition::find;
use crds::{ByteSize, ConditionType, MooncakeCluster, MooncakeClusterStatus, Reason, State};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::cli::age::age;
use crate::cli::page::{Cell, Page, Tone};
use crate::cli::picture::Picture;
use crate::cli::unseen::Unseen;
use crate::cluster::verdict;

/// `Ready` and its parts, which say the same with a narrower word; then what it does not wait for.
const WORST_FIRST: [&[ConditionType]; 2] = [
    &[
        ConditionType::MasterReady,
        ConditionType::PoolsReady,
        ConditionType::TransportsReady,
        ConditionType::Ready,
    ],
    &[ConditionType::PodsInjected, ConditionType::MnnvlReady],
];

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Where was looked; absent: everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub clusters: Vec<Row>,
    pub unseen: Vec<Unseen>,
}

/// One cluster.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub namespace: String,
    pub name: String,
    /// The condition `Ready`: `True`, `False` or `Unknown`; also `Unknown` where the operator has not
    /// looked at the present spec.
    pub ready: &'static str,
    /// Where it is on its way, in words.
    pub progress: String,
    /// Storing nodes, serving/wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// What stock pods use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Nodes that may use NVLink between nodes, members/taking part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// The worst condition; absent where every one is as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst: Option<Worst>,
}

/// A condition that is not as it should be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Worst {
    pub condition: &'static str,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub remedy: &'static str,
    pub docs: String,
    pub since: Timestamp,
}

/// Computes the answer.
pub fn status(picture: &Picture) -> Status {
    let mut clusters: Vec<Row> = picture.clusters.iter().map(row).collect();
    clusters.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Status {
        namespace: picture.namespace.clone(),
        clusters,
        unseen: picture.unseen.clone(),
    }
}

fn row(cluster: &MooncakeCluster) -> Row {
    let status = cluster.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, ConditionType::Ready);
    let current = is_current(cluster);
    Row {
        namespace: cluster.namespace().unwrap_or_default(),
        name: cluster.name_any(),
        ready: match ready {
            Some(ready) if current => state(ready).as_str(),
            _ => State::Unknown.as_str(),
        },
        progress: progress(cluster, &status, ready, current),
        worst: worst(&status.conditions),
        nodes: status.nodes,
        capacity: status.capacity,
        used: status.used,
        transport: status.transport,
        nvlink: status.mnnvl.map(|mnnvl| mnnvl.nodes),
        master: status.master_endpoint,
        created: cluster.creation_timestamp().map(|time| time.0),
    }
}

/// True where the status is about the spec that stands.
pub fn is_current(cluster: &MooncakeCluster) -> bool {
    let seen = cluster.status.as_ref().and_then(|s| s.observed_generation);
    seen.is_some() && seen == cluster.meta().generation
}

fn state(condition: &Condition) -> State {
    [State::True, State::False]
        .into_iter()
        .find(|state| state.as_str() == condition.status)
        .unwrap_or(State::Unknown)
}

fn progress(
    cluster: &MooncakeCluster,
    status: &MooncakeClusterStatus,
    ready: Option<&Condition>,
    current: bool,
) -> String {
    if cluster.meta().deletion_timestamp.is_some() {
        return "is being deleted".to_owned();
    }
    let is = |kind| find(&status.conditions, kind).filter(|c| state(c) == State::True);
    let words = |condition: &Condition| words(&condition.message);
    if !current {
        return match status.observed_generation {
            None => "the operator has not looked at it yet".to_owned(),
            Some(seen) => format!(
                "generation {} waits for the operator, which has seen {seen}",
                cluster.meta().generation.unwrap_or_default()
            ),
        };
    }
    if let Some(stalled) = is(ConditionType::Stalled) {
        return format!("waits for a person: {}", stalled.reason);
    }
    if let Some(working) = is(ConditionType::Reconciling) {
        return format!("is being carried out: {}", words(working));
    }
    ready.map_or_else(|| "nothing is known".to_owned(), words)
}

/// The worst condition.
pub fn worst(conditions: &[Condition]) -> Option<Worst> {
    let first = |kinds: &[ConditionType], wanted| {
        let mut kinds = kinds.iter().copied();
        kinds.find(|kind| find(conditions, *kind).is_some_and(|c| state(c) == wanted))
    };
    let kind = WORST_FIRST
        .iter()
        .find_map(|kinds| first(kinds, State::False).or_else(|| first(kinds, State::Unknown)))?;
    let condition = find(conditions, kind)?;
    let reason = known(&condition.reason);
    Some(Worst {
        condition: kind.as_str(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: words(&condition.message),
        remedy: reason.map_or("", Reason::remedy),
        docs: reason.map(Reason::docs_anchor).unwrap_or_default(),
        since: condition.last_transition_time.0,
    })
}

/// The reason of that name; `None` where a newer release wrote it.
pub fn known(word: &str) -> Option<Reason> {
    let reason = verdict::reason(word);
    (reason.as_str() == word).then_some(reason)
}

/// A message without the remedy of whatever cause it tells, which is shown by itself.
pub fn words(message: &str) -> String {
    let (words, remedy) = message.rsplit_once("Remedy: ").unwrap_or((message, ""));
    let ours = Reason::ALL.iter().any(|reason| reason.remedy() == remedy);
    if ours { words } else { message }.trim().to_owned()
}

/// The word for a transport.
pub fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Rdma => "rdma",
    }
}

impl Status {
    /// For people.
    pub fn show(&self, page: &mut Page, now: Timestamp) {
        let rows: Vec<Vec<Cell>> = self.clusters.iter().map(|row| row.cells(now)).collect();
        if !rows.is_empty() {
            page.table(
                &[
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
                ],
                &rows,
            );
        }
        if rows.is_empty() && self.unseen.is_empty() {
            page.line([match &self.namespace {
                Some(namespace) => {
                    format!("No MooncakeCluster in namespace {namespace}; -A looks everywhere.")
                }
                None => "No MooncakeCluster in any namespace.".to_owned(),
            }
            .into()]);
        }
        for row in &self.clusters {
            if row.ready == State::True.as_str() && row.worst.is_none() {
                continue;
            }
            page.gap();
            let name = format!("{}/{}", row.namespace, row.name);
            let name = Cell::new(format!("{name}:"), Tone::Head);
            page.line([name, row.progress.clone().into()]);
            if let Some(worst) = &row.worst {
                worst.show(page, now);
            }
        }
    }
}

impl Row {
    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let optional = |text: &Option<String>| Cell::from(text.clone().unwrap_or_default());
        vec![
            self.namespace.clone().into(),
            self.name.clone().into(),
            Cell::new(self.ready, tone(self.ready)),
            optional(&self.nodes),
            optional(&self.capacity.map(|size| size.to_string())),
            optional(&self.used),
            self.transport.map_or("", transport).into(),
            optional(&self.nvlink),
            optional(&self.master),
            optional(&self.created.map(|created| age(created, now))),
        ]
    }
}

/// A condition's state in its colour.
pub fn tone(status: &str) -> Tone {
    match status {
        "True" => Tone::Good,
        "False" => Tone::Bad,
        _ => Tone::Doubt,
    }
}

impl Worst {
    fn show(&self, page: &mut Page, now: Timestamp) {
        let state = Cell::new(self.status.clone(), tone(&self.status));
        let since = Cell::new(format!("for {}", age(self.since, now)), Tone::Faint);
        let reason = Cell::new(self.reason.clone(), Tone::Head);
        page.indented(2, [self.condition.into(), state, reason, since]);
        page.indented(2, [self.message.clone().into()]);
        if !self.remedy.is_empty() {
            remedy(page, 2, self.remedy, &self.docs);
        }
    }
}

/// What to do, and where it is explained.
pub fn remedy(page: &mut Page, depth: usize, remedy: &str, docs: &str) {
    let docs = match docs {
        "" => Cell::from(""),
        docs => Cell::new(format!("({docs})"), Tone::Faint),
    };
    page.indented(depth, [Cell::from("Do:"), remedy.into(), docs]);
}
