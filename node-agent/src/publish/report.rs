//! The agent's one report of its node: each part of the agent sets its values, the status and the metrics read them.

use std::collections::{BTreeMap, BTreeSet};

use crds::node::{DeviceHealth, HcaLine, PoolAssignment, PoolReport, PoolState};
use crds::reason::Reason;
use crds::{FixReport, Word};
use engine::{EndpointStats, PeerFailures};
use engine_process::control::message::Traffic;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::publish::totals::Totals;
use crate::watched;
use checks::debounce::Health;
use host::snapshot::AffectedPod;

/// Most combinations of peer and cause that the report lists per pool pod.
pub(crate) const PEERS_LIMIT: usize = 10;

/// The ports of the node's RDMA devices that have a line in the status, and how many have none.
pub(crate) type HcaLines = (Vec<HcaLine>, Option<u32>);

/// What ports wait for, and until when: the health may not be looked at again by then.
pub(crate) type Awaited = (String, Instant);

/// What the agent reports of its node. What is absent has not been observed by this process yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(super) pools: BTreeMap<String, Pool>,
    /// What ended endpoints have counted, by namespace and name of the cluster, while it has a pool pod here.
    pub(super) former: BTreeMap<(String, String), Totals>,
    pub(crate) hcas: Option<HcaLines>,
    /// Whether the policy of the node was read, so those ports are marked that it excludes.
    pub(crate) policy_known: bool,
    /// The names of all RDMA devices of the node, also where their ports have no line.
    pub(crate) present: BTreeSet<String>,
    /// What ports wait for that may be proved soon, and until when.
    pub(crate) awaited_ports: Option<Awaited>,
    pub(crate) devices: Option<DeviceHealth>,
    pub(crate) health: Option<Health>,
    /// Pods that hold a device which a finding of `health` is about.
    pub(crate) affected_pods: Vec<AffectedPod>,
    pub(crate) fixes: Option<Vec<FixReport>>,
}

/// One pool pod of the report.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) report: PoolReport,
    pub(super) cluster: String,
    /// The last one, without connections where no peers are served.
    pub(super) traffic: Option<Traffic>,
}

impl Pool {
    fn cluster(&self) -> (String, String) {
        (self.report.namespace.clone(), self.cluster.clone())
    }
}

/// One pool pod of the metrics.
#[derive(Debug, Clone)]
pub(crate) struct PoolMetrics {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    pub(crate) state: Word<PoolState>,
    pub(crate) reason: Word<Reason>,
    pub(crate) mounted: u64,
    pub(crate) stats: Option<EndpointStats>,
    /// The peers with the most failures, at most [`PEERS_LIMIT`].
    pub(crate) worst_peers: Vec<PeerFailures>,
}

impl Report {
    /// The pool pods for the status, in the order of their UIDs.
    pub(super) fn pool_reports(&self) -> Vec<PoolReport> {
        self.pools
            .values()
            .map(|pool| pool.report.clone())
            .collect()
    }

    /// What ports wait for now.
    pub(crate) fn awaits(&self, now: Instant) -> Option<&str> {
        let (text, until) = self.awaited_ports.as_ref()?;
        (now < *until).then_some(text)
    }

    /// Keeps what an endpoint that has ended has counted.
    fn keep(&mut self, of: (String, String), traffic: &Traffic) {
        let totals = Totals::of(&traffic.stats, &traffic.worst_peers);
        self.former.entry(of).or_default().add(totals);
    }

    /// The pool pods for the metrics.
    pub(crate) fn pool_metrics(&self) -> Vec<PoolMetrics> {
        let pools = self.pools.values().map(|pool| {
            let traffic = pool.traffic.as_ref();
            PoolMetrics {
                namespace: pool.report.namespace.clone(),
                cluster: pool.cluster.clone(),
                state: pool.report.state,
                reason: pool.report.cause(),
                mounted: pool.report.mounted.map_or(0, |bytes| bytes.0),
                stats: traffic.map(|traffic| traffic.stats),
                worst_peers: traffic.map_or_else(Vec::new, |traffic| traffic.worst_peers.clone()),
            }
        });
        pools.collect()
    }
}

/// Where each part of the agent reports. Readers are notified only of what changes the status.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reporter(watch::Sender<Report>);

impl Reporter {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Report> {
        self.0.subscribe()
    }

    /// Reports one value; an equal value sends no notification.
    pub(crate) fn set<T: PartialEq>(&self, field: fn(&mut Report) -> &mut T, value: T) {
        watched::set(&self.0, field, value);
    }

    /// Reports the health of the node, and the pods that its findings about devices are about.
    pub(crate) fn set_health(&self, health: Health, affected_pods: Vec<AffectedPod>) {
        self.0.send_if_modified(|report| {
            report.affected_pods = affected_pods;
            let health = Some(health);
            let changed = report.health != health;
            report.health = health;
            changed
        });
    }

    /// Reports the ports of the node. Only they are in the status.
    pub(crate) fn set_ports(
        &self,
        ports: HcaLines,
        present: BTreeSet<String>,
        policy_known: bool,
        awaited: Option<Awaited>,
    ) {
        self.0.send_if_modified(|report| {
            report.present = present;
            report.policy_known = policy_known;
            report.awaited_ports = awaited;
            let ports = Some(ports);
            let changed = report.hcas != ports;
            report.hcas = ports;
            changed
        });
    }

    /// Reports the state of a pool pod.
    pub(crate) fn set_pool(&self, report: PoolReport, of: &PoolAssignment) {
        self.0.send_if_modified(|all| {
            let before = all.pools.remove(&report.pod_uid);
            let pool = Pool {
                report: report.clone(),
                cluster: of.cluster.clone(),
                traffic: before.as_ref().and_then(|before| before.traffic.clone()),
            };
            all.pools.insert(report.pod_uid.clone(), pool);
            let before = before.map(|before| before.report);
            if before.as_ref().map(|before| before.state) != Some(report.state) {
                tracing::info!(
                    pod = report.pod_name, namespace = report.namespace, uid = report.pod_uid,
                    reason = %report.reason, "the pool pod is {:?}: {}", report.state, report.message
                );
            }
            before != Some(report)
        });
    }

    /// Reports the counters of a pool pod, which are not in the status; `None`: no peers are served, or it is not known.
    pub(crate) fn set_traffic(&self, pod_uid: &str, traffic: Option<Traffic>) {
        self.0.send_if_modified(|all| {
            let Some(pool) = all.pools.get_mut(pod_uid) else {
                return false;
            };
            let Some(traffic) = traffic else {
                // The same endpoint may go on: its counts are kept when another one reports.
                if let Some(last) = &mut pool.traffic {
                    last.stats.connections = 0;
                }
                return false;
            };
            let now = Totals::of(&traffic.stats, &[]);
            let former = pool.traffic.replace(traffic);
            let of = pool.cluster();
            if let Some(former) = former
                && Totals::of(&former.stats, &[]).are_former(&now)
            {
                all.keep(of, &former);
            }
            false
        });
    }

    /// Removes all other pool pods.
    pub(crate) fn retain_pools(&self, keep: impl Fn(&String) -> bool) {
        self.0.send_if_modified(|report| {
            let pools = std::mem::take(&mut report.pools).into_iter();
            let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
                pools.partition(|(uid, _)| keep(uid));
            report.pools = kept;
            for pool in gone.values() {
                if let Some(traffic) = &pool.traffic {
                    report.keep(pool.cluster(), traffic);
                }
            }
            let clusters: BTreeSet<_> = report.pools.values().map(Pool::cluster).collect();
            report.former.retain(|of, _| clusters.contains(of));
            !gone.is_empty()
        });
    }
}
