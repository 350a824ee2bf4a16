//! Reads what built-in masters report: figures and ledgers, through their admin ports. Each one has a deadline, so that a
//! master that does not answer delays the others by no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::cluster::MasterType;
use crds::{MooncakeCluster, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use mooncake_operator::pod::is_ready;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::admin_port::{AdminPort, Error, decode};
use crate::read_error::{Cause, ReadError, Resources};
use crate::snapshot::with_component;

/// Masters that are read at a time.
const AT_ONCE: usize = 16;

/// What the masters of one cluster have answered.
#[derive(Clone, Debug)]
pub struct Reading {
    pub namespace: String,
    pub cluster: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug)]
pub enum Outcome {
    Answered {
        /// Name and node of the master pod that serves.
        pod: String,
        node: Option<String>,
        report: Report,
    },
    /// Why each master pod did not, with its name.
    Silent { failures: Vec<String> },
}

/// What a master that serves reports.
#[derive(Clone, Debug)]
pub struct Report {
    pub figures: Figures,
    /// Absent if a master of an earlier build does not list them.
    pub ledgers: Option<Ledgers>,
}

/// Metrics, since the master began to serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub lookups: u64,
    pub hits: u64,
    pub keys: u64,
    pub capacity: u64,
    pub allocated: u64,
    pub failed_allocations: u64,
    pub evicted: u64,
    pub missing_tombstones: u64,
    pub late: u64,
    pub absent: u64,
    pub unrecorded: u64,
    /// Puts that were refused because of the quota, by tenant.
    pub over_quota: BTreeMap<String, u64>,
    /// Puts that were refused because their tenant has no quota.
    pub unknown_tenants: u64,
}

/// Metric of refused puts, with the labels tenant and cause.
const REFUSED: &str = "mooncake_tenant_quota_reject_total{tenant_id=\"";
const OVER_QUOTA: &str = "\",reason=\"quota_exceeded\"}";
const UNKNOWN_TENANT: &str = "\",reason=\"not_registered\"}";

impl Figures {
    /// Reads the text of the metrics. What a master of an earlier build does not have is 0.
    ///
    /// # Errors
    /// `Metric`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut figures = Self::default();
        // A label may contain a space.
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        for (name, value) in lines {
            let refused = name.strip_prefix(REFUSED);
            if let Some(tenant) = refused.and_then(|labels| labels.strip_suffix(OVER_QUOTA)) {
                let puts = figure(name, value)?;
                if puts > 0 {
                    figures.over_quota.insert(tenant.to_owned(), puts);
                }
                continue;
            }
            if refused.is_some_and(|labels| labels.ends_with(UNKNOWN_TENANT)) {
                figures.unknown_tenants = figure(name, value)?;
                continue;
            }
            let of_master = match name {
                "total_get_nums_" => &mut figures.lookups,
                "valid_get_nums_" => &mut figures.hits,
                "master_key_count" => &mut figures.keys,
                "master_total_capacity_bytes" => &mut figures.capacity,
                "master_allocated_bytes" => &mut figures.allocated,
                "master_put_start_alloc_failures_total" => &mut figures.failed_allocations,
                "master_evicted_key_count" => &mut figures.evicted,
                "mooncake_ledger_missing_tombstones_total" => &mut figures.missing_tombstones,
                "mooncake_ledger_late_segments" => &mut figures.late,
                "mooncake_ledger_absent_owners" => &mut figures.absent,
                "mooncake_ledger_unrecorded_objects" => &mut figures.unrecorded,
                _ => continue,
            };
            *of_master = figure(name, value)?;
        }
        Ok(figures)
    }
}

fn figure(name: &str, value: &str) -> Result<u64, Error> {
    value.parse().map_err(|source| Error::Metric {
        line: format!("{name} {value}"),
        source,
    })
}

/// The ledgers of all segments.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Ledgers {
    pub segments: Vec<Ledger>,
    /// Names of segments whose owners are away.
    pub absent: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Ledger {
    /// Name and endpoint of the segment.
    pub name: String,
    pub endpoint: String,
    pub state: LedgerState,
    /// Keys that a restart of the master loses.
    pub unrecorded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LedgerState {
    None,
    Loading,
    Late,
    Loaded,
    /// A word of another release.
    #[serde(other)]
    Unknown,
}

/// Reads the masters of all clusters that have a built-in one which is ready. A cluster whose masters may not be read has a read
/// error.
pub async fn read(
    client: &Client,
    clusters: &[MooncakeCluster],
    pods: &[Arc<Pod>],
    deadline: Duration,
) -> (Vec<Reading>, Vec<ReadError>) {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    let built_in = clusters
        .iter()
        .filter(|cluster| cluster.spec.master.kind() == MasterType::BuiltIn);
    let built_in: Vec<&MooncakeCluster> = built_in.collect();
    for (number, cluster) in built_in.iter().enumerate() {
        let namespace = cluster.namespace().unwrap_or_default();
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        for pod in with_component(pods, names::COMPONENT_MASTER) {
            if !is_of(pod, cluster) || !is_ready(pod) {
                continue;
            }
            let (api, pod, permits) = (api.clone(), pod.clone(), Arc::clone(&permits));
            tasks.spawn(async move {
                let _permit = permits.acquire().await;
                let read = timeout(deadline, read_pod(&api, &pod.name_any())).await;
                (number, pod, read.ok())
            });
        }
    }
    let mut answers: Vec<Vec<_>> = built_in.iter().map(|_| Vec::new()).collect();
    while let Some(ended) = tasks.join_next().await {
        if let Ok((number, pod, read)) = ended {
            answers[number].push((pod, read));
        }
    }
    let (mut readings, mut errors) = (Vec::new(), Vec::new());
    let mut refused = BTreeSet::new();
    for (cluster, answers) in built_in.into_iter().zip(answers) {
        let namespace = cluster.namespace().unwrap_or_default();
        match outcome(answers, deadline) {
            None => {}
            Some(Ok(outcome)) => readings.push(Reading {
                namespace,
                cluster: cluster.name_any(),
                outcome,
            }),
            // Once for each namespace.
            Some(Err(message)) if refused.insert(namespace.clone()) => {
                let scope = format!("namespace {namespace}");
                let (resource, cause) = (Resources::PORT_FORWARD, Cause::Forbidden);
                errors.push(ReadError::new(resource, scope, cause, message));
            }
            Some(Err(_)) => {}
        }
    }
    (readings, errors)
}

fn is_of(pod: &Pod, cluster: &MooncakeCluster) -> bool {
    pod.metadata.namespace == cluster.metadata.namespace
        && pod.labels().get(names::LABEL_CLUSTER) == cluster.metadata.name.as_ref()
}

/// What a master pod answered; `None`: nothing before the deadline.
type Answer = Option<Result<Report, Error>>;

/// Returns the answer of the master that serves. `None`: the cluster has none that is ready. The error is the API server's refusal.
fn outcome(
    mut answers: Vec<(Arc<Pod>, Answer)>,
    deadline: Duration,
) -> Option<Result<Outcome, String>> {
    answers.sort_by_key(|(pod, _)| pod.name_any());
    let (mut failures, mut refusal) = (Vec::new(), None);
    for (pod, read) in answers {
        let name = pod.name_any();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let failure = match read {
            Some(Ok(report)) => {
                let pod = name;
                return Some(Ok(Outcome::Answered { pod, node, report }));
            }
            Some(Err(error)) => {
                if error.is_forbidden() {
                    refusal = Some(error.to_string());
                }
                error.to_string()
            }
            None => format!("no answer in {} s", deadline.as_secs_f64()),
        };
        let place = node.map_or_else(String::new, |node| format!(" on {node}"));
        failures.push(format!("master pod {name}{place}: {failure}"));
    }
    match refusal {
        Some(refusal) => Some(Err(refusal)),
        None => (!failures.is_empty()).then_some(Ok(Outcome::Silent { failures })),
    }
}

async fn read_pod(pods: &Api<Pod>, master: &str) -> Result<Report, Error> {
    report(&mut AdminPort::open(pods, master).await?).await
}

/// Reads a master over a connection to its admin port.
///
/// # Errors
/// A connection that fails, and an answer that cannot be decoded.
pub async fn exchange<S>(stream: S) -> Result<Report, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    report(&mut AdminPort::over(stream).await?).await
}

async fn report(port: &mut AdminPort) -> Result<Report, Error> {
    let metrics = port.get("/metrics").await?;
    let path = "/ledgers";
    let ledgers = match port.get(path).await {
        Ok(body) => Some(decode(path, &body)?),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    Ok(Report {
        figures: Figures::parse(&String::from_utf8_lossy(&metrics))?,
        ledgers,
    })
}
