//! Findings of what built-in masters report: masters that do not answer, lookups without a hit, ledgers, tombstones, pools
//! that are full, and puts that quotas refuse.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crds::{Reason, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_operator::pod::node_of;

use super::finding::{Finding, Object};
use crate::keys::{at_endpoint, by_address};
use crate::masters::{Figures, Ledger, LedgerState, Ledgers, Outcome, Reading, Report};
use crate::renderer::size_text;
use crate::snapshot::{Snapshot, with_component};

/// Lookups of which one must have found its key. Those of a cache that was just started find none.
const LOOKUPS: u64 = 100;

pub(super) fn findings(snapshot: &Snapshot) -> impl Iterator<Item = Finding> {
    let readings = snapshot.built_in.iter();
    readings.flat_map(|reading| of_reading(snapshot, reading))
}

fn of_reading(snapshot: &Snapshot, reading: &Reading) -> Vec<Finding> {
    let object = Object {
        kind: "MooncakeCluster",
        namespace: Some(reading.namespace.clone()),
        name: reading.cluster.clone(),
    };
    match &reading.outcome {
        Outcome::Silent { failures } => {
            let message = failures.join("; ");
            vec![Finding::error(Reason::MasterNotResponding, object, message)]
        }
        Outcome::Answered { pod, node, report } => {
            let master = Master {
                object,
                pod,
                node: node.as_deref().unwrap_or_default(),
            };
            let Report { figures, ledgers } = report;
            let mut found = master.of_figures(figures);
            match ledgers {
                Some(ledgers) => {
                    let pools = Pools::of(snapshot, reading);
                    found.extend(master.of_ledgers(ledgers, &pools));
                }
                None => found.extend(master.of_totals(figures)),
            }
            found
        }
    }
}

/// The pool pods of a cluster.
struct Pools<'a> {
    cluster: &'a str,
    pods: Vec<&'a Pod>,
    by_address: HashMap<IpAddr, &'a Pod>,
}

impl<'a> Pools<'a> {
    fn of(snapshot: &'a Snapshot, reading: &'a Reading) -> Self {
        let pods = with_component(&snapshot.pods, names::COMPONENT_POOL);
        let pods = pods.filter(|pod| {
            pod.metadata.namespace.as_ref() == Some(&reading.namespace)
                && pod.labels().get(names::LABEL_CLUSTER) == Some(&reading.cluster)
        });
        let pods: Vec<&Pod> = pods.map(AsRef::as_ref).collect();
        Self {
            cluster: &reading.cluster,
            by_address: by_address(pods.iter().copied()),
            pods,
        }
    }

    /// Returns pool and node in the name of a segment.
    fn place<'b>(&self, segment: &'b str) -> Option<(&'b str, &'b str)> {
        let name = segment.strip_prefix(self.cluster)?.strip_prefix('.')?;
        let (pool, name) = name.split_once('.')?;
        let (node, _extent) = name.rsplit_once('.')?;
        Some((pool, node))
    }

    /// Returns the pool pod that has, or had, the segment of that name.
    fn named(&self, segment: &str) -> Option<&'a Pod> {
        let (pool, node) = self.place(segment)?;
        let is_it = |pod: &&&Pod| {
            let label = pod.labels().get(names::LABEL_POOL);
            label.is_some_and(|label| label == pool) && node_of(pod).as_deref() == Some(node)
        };
        self.pods.iter().find(is_it).copied()
    }
}

struct Master<'a> {
    object: Object,
    pod: &'a str,
    node: &'a str,
}

impl Master<'_> {
    /// A warning about the cluster, whose subject is the master.
    fn warning(&self, reason: Reason, message: impl AsRef<str>) -> Finding {
        Finding::warning(reason, self.object.clone(), message)
            .subject(format!("master {}", self.pod))
            .on(self.node)
    }

    fn of_figures(&self, figures: &Figures) -> Vec<Finding> {
        let Figures {
            lookups,
            hits: found,
            keys,
            capacity,
            allocated,
            failed_allocations,
            evicted,
            missing_tombstones,
            unknown_tenants,
            ..
        } = *figures;
        let mut findings = Vec::new();
        if found == 0 && lookups >= LOOKUPS {
            let message = format!(
                "none of {lookups} lookups has found its key since the master began to serve, and {keys} keys are stored"
            );
            findings.push(self.warning(Reason::NoCacheHits, message));
        }
        // Evictions alone are what a cache does.
        if failed_allocations > 0 {
            let message = format!(
                "{failed_allocations} puts found no space and {evicted} keys were evicted since the master began to serve; {} of {} are allocated",
                size_text(allocated),
                size_text(capacity)
            );
            findings.push(self.warning(Reason::PoolFull, message));
        }
        if missing_tombstones > 0 {
            let message = format!(
                "{missing_tombstones} keys were removed or replaced without a note for a pool pod that was away: their former values can return"
            );
            findings.push(self.warning(Reason::TombstonesMissing, message));
        }
        for (tenant, puts) in &figures.over_quota {
            let message = format!(
                "{puts} puts of tenant {tenant} were refused because of its quota (-1700) since the master began to serve"
            );
            findings.push(self.warning(Reason::TenantOverQuota, message));
        }
        if unknown_tenants > 0 {
            let message = format!(
                "{unknown_tenants} puts were refused because their tenant has no quota (-1701) since the master began to serve"
            );
            findings.push(self.warning(Reason::TenantUnknown, message));
        }
        findings
    }

    /// One finding for each pool pod and Reason.
    fn of_ledgers(&self, ledgers: &Ledgers, pools: &Pools<'_>) -> Vec<Finding> {
        let mut found = BTreeMap::new();
        for ledger in &ledgers.segments {
            let Ledger {
                name,
                endpoint,
                state,
                unrecorded,
            } = ledger;
            let pod = at_endpoint(&pools.by_address, endpoint);
            let message = match state {
                // Clients that store keys themselves keep no ledger.
                LedgerState::None if pod.is_some() => Some((
                    Reason::LedgerAbsent,
                    "the pool pod keeps no ledger: a restart of the master loses its keys",
                )),
                LedgerState::Loading => Some((
                    Reason::LedgerLate,
                    "the ledger is being loaded: keys of the pool pod are not found yet",
                )),
                LedgerState::Late => Some((
                    Reason::LedgerLate,
                    "the pool pod has not acknowledged changes of keys for a second: puts and removals that wait for it end without an answer after 3 s",
                )),
                LedgerState::None | LedgerState::Loaded | LedgerState::Unknown => None,
            };
            let finding = |reason| self.of_segment(reason, pod, name, pools);
            if let Some((reason, message)) = message {
                let finding = finding(reason);
                let text = (finding.object.clone(), finding.subject.clone(), message);
                found.entry(text).or_insert((finding, 0));
            }
            if *unrecorded > 0 {
                let finding = finding(Reason::LedgerFull);
                let text = (finding.object.clone(), finding.subject.clone(), UNRECORDED);
                found.entry(text).or_insert((finding, 0)).1 += unrecorded;
            }
        }
        for name in &ledgers.absent {
            let finding = self.of_segment(Reason::LedgerAbsent, pools.named(name), name, pools);
            let text = (finding.object.clone(), finding.subject.clone(), AWAY);
            found.entry(text).or_insert((finding, 0));
        }
        let with_text = |((_, _, text), (finding, count)): (_, (Finding, u64))| {
            let count = (count > 0).then(|| format!("{count} "));
            let count = count.unwrap_or_default();
            let message = format!("{count}{text} (reported by master pod {})", self.pod);
            Finding { message, ..finding }
        };
        found.into_iter().map(with_text).collect()
    }

    /// A warning without a message about the pool pod of a segment, or about the segment if no pod has it.
    fn of_segment(
        &self,
        reason: Reason,
        pod: Option<&Pod>,
        segment: &str,
        pools: &Pools<'_>,
    ) -> Finding {
        if let Some(pod) = pod {
            let node = node_of(pod).unwrap_or_default();
            return Finding::warning(reason, Object::of("Pod", pod), "").on(node);
        }
        let node = pools.place(segment).map(|(_, node)| node);
        Finding::warning(reason, self.object.clone(), "")
            .subject(format!("segment {segment}"))
            .on(node.unwrap_or_default())
    }

    /// Findings from the totals: a master of an earlier build does not name the pool pods.
    fn of_totals(&self, figures: &Figures) -> Vec<Finding> {
        let totals = [
            (
                figures.late,
                Reason::LedgerLate,
                "pool segments whose pods do not acknowledge changes of keys",
            ),
            (
                figures.absent,
                Reason::LedgerAbsent,
                "pool segments whose pods are away",
            ),
            (figures.unrecorded, Reason::LedgerFull, UNRECORDED),
        ];
        let found = totals.into_iter().filter(|(count, ..)| *count > 0);
        let found =
            found.map(|(count, reason, what)| self.warning(reason, format!("{count} {what}")));
        found.collect()
    }
}

const UNRECORDED: &str = "keys are not in the ledger, which is full or takes no keys of their length: a restart of the master loses them";
const AWAY: &str = "the pool pod is away: its keys are not found until it comes back";
