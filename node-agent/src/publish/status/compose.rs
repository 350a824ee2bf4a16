//! Computes the status of the MooncakeNode from the report, within a size limit. Pure.

use std::collections::BTreeSet;

use crds::condition::{self, ConditionType, NewCondition};
use crds::node::{MooncakeNodeStatus, PoolReport, PoolState};
use crds::reason::Reason;
use crds::text::clip_bytes;
use crds::{ByteSize, ConditionStatus, MooncakeNodeSpec};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::findings;
use crate::publish::report::Report;

/// Maximum size of a status in bytes.
const STATUS_LIMIT: usize = 8 << 10;

/// Conditions that the agent owns. The operator sets them to Unknown while it considers the agent missing.
const OWN: [ConditionType; 2] = [ConditionType::NodeHealthy, ConditionType::PoolsServing];

/// The agent's conditions that the operator has set to Unknown. The agent does not overwrite them until the
/// condition AgentAlive is True again.
pub(super) fn set_by_operator(published: &[Condition]) -> Vec<Condition> {
    let alive = condition::find(published, ConditionType::AgentAlive);
    if alive.is_none_or(|alive| alive.status == ConditionStatus::True.as_str()) {
        return Vec::new();
    }
    let own = OWN
        .iter()
        .filter_map(|kind| condition::find(published, *kind));
    own.filter(|own| own.status == ConditionStatus::Unknown.as_str())
        .cloned()
        .collect()
}

/// True if all conditions that the agent wrote are published unchanged.
pub(super) fn is_published(written: &MooncakeNodeStatus, published: &[Condition]) -> bool {
    fn content(condition: &Condition) -> [&str; 4] {
        let Condition {
            type_,
            status,
            reason,
            message,
            ..
        } = condition;
        [type_, status, reason, message]
    }
    written.conditions.iter().all(|written| {
        let same = |published| content(published) == content(written);
        published.iter().any(same)
    })
}

/// Computes the status. An equal report over an equal status gives an equal status.
pub(super) fn compose(
    spec: &MooncakeNodeSpec,
    boot_id: &str,
    report: &Report,
    before: &MooncakeNodeStatus,
    foreign: &[Condition],
    now: Timestamp,
) -> MooncakeNodeStatus {
    let reports = report.pool_reports();
    // Until this agent has observed a value, the value of its predecessor stays, unless the node has rebooted.
    let previous = (before.boot_id == boot_id).then_some(before);
    let (hcas, hcas_omitted) = report.hcas.clone().unwrap_or_else(|| {
        let lines = previous.map(|previous| (previous.hcas.clone(), previous.hcas_omitted));
        lines.unwrap_or_default()
    });
    let devices = report
        .devices
        .clone()
        .or_else(|| previous.and_then(|previous| previous.devices.clone()));
    let mounted: u64 = reports
        .iter()
        .filter_map(|report| report.mounted)
        .map(|b| b.0)
        .sum();
    let mut own = vec![pools_serving(spec, &reports)];
    own.extend(report.health.as_ref().map(findings::condition));
    own.retain(|own| condition::find(foreign, own.kind).is_none());
    let mut conditions = condition::merge(&before.conditions, &own, None, now);
    if report.health.is_none()
        && let Some(previous) = previous.and_then(|previous| agent_health(&previous.conditions))
    {
        conditions.push(previous.clone());
    }
    for foreign in foreign {
        conditions.retain(|own| own.type_ != foreign.type_);
        conditions.push(foreign.clone());
    }
    conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    let found = previous.map_or(&[][..], |previous| &previous.findings);
    let found_later = previous.and_then(|previous| previous.later_findings.as_deref());
    let previous_checks = previous.and_then(|previous| previous.checks);
    // Before the first reading of the hardware, the only check that ran is the one that reports this. With its count, the operator
    // would take ports that were not read for ports that the node does not have.
    let read = report.hcas.is_some();
    let (checks, findings, later_findings) = match report.health.as_ref().map(findings::by_release)
    {
        Some((health, later)) => {
            let listed = |reported: &[_], before| {
                findings::findings(reported, before, &spec.injected, &report.affected_pods)
            };
            (
                read.then_some(health.counts).or(previous_checks),
                listed(&health.findings, found),
                Some(listed(&later, found_later.unwrap_or_default())),
            )
        }
        None => (
            previous_checks,
            found.to_vec(),
            found_later.map(<[_]>::to_vec),
        ),
    };
    let fixes = report
        .fixes
        .clone()
        .or_else(|| previous.map(|previous| previous.fixes.clone()))
        .unwrap_or_default();
    let mut status = MooncakeNodeStatus {
        node_uid: spec.node_uid.clone(),
        boot_id: boot_id.to_owned(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        capacity: Some(ByteSize(mounted)),
        hcas,
        hcas_omitted,
        devices: devices.filter(|devices| devices.known > 0),
        checks,
        findings,
        later_findings,
        fixes,
        pools: reports,
        conditions,
    };
    for report in &mut status.pools {
        clip_bytes(&mut report.message, 512);
    }
    shorten(&mut status);
    status
}

/// The condition NodeHealthy if an agent wrote it; only the operator sets Unknown.
fn agent_health(conditions: &[Condition]) -> Option<&Condition> {
    condition::find(conditions, ConditionType::NodeHealthy)
        .filter(|healthy| healthy.status != ConditionStatus::Unknown.as_str())
}

/// Shortens the status to its limit, the least important content first.
fn shorten(status: &mut MooncakeNodeStatus) {
    let steps: [fn(&mut MooncakeNodeStatus); 10] = [
        |status| each_pool(status, |report| report.segments.truncate(4)),
        |status| each_pool(status, |report| report.segments.clear()),
        |status| shorten_findings(status, 160),
        |status| each_pool(status, |report| clip_bytes(&mut report.message, 80)),
        |status| shorten_findings(status, 60),
        |status| each_pool(status, |report| report.message.clear()),
        |status| {
            each_pool(status, |report| {
                if let Some(failure) = &mut report.metadata_failure {
                    clip_bytes(failure, 80);
                }
            });
        },
        |status| status.findings.truncate(8),
        |status| {
            // A pod may wait for any check.
            let mut checks = BTreeSet::new();
            if let Some(later) = &mut status.later_findings {
                later.retain(|finding| checks.insert(finding.check));
            }
        },
        |status| status.findings.truncate(6),
    ];
    for step in steps {
        if is_within_limit(status) {
            return;
        }
        step(status);
    }
    // The inventory lists all ports.
    while !is_within_limit(status) && status.hcas.pop().is_some() {
        *status.hcas_omitted.get_or_insert(0) += 1;
    }
}

fn each_pool(status: &mut MooncakeNodeStatus, shorten: fn(&mut PoolReport)) {
    status.pools.iter_mut().for_each(shorten);
}

fn shorten_findings(status: &mut MooncakeNodeStatus, most: usize) {
    let later = status.later_findings.iter_mut().flatten();
    for finding in status.findings.iter_mut().chain(later) {
        clip_bytes(&mut finding.message, most);
    }
}

fn is_within_limit(status: &MooncakeNodeStatus) -> bool {
    serde_json::to_vec(status).map_or(0, |bytes| bytes.len()) <= STATUS_LIMIT
}

/// The condition PoolsServing, which names the first pool pod that is not served.
fn pools_serving(spec: &MooncakeNodeSpec, reports: &[PoolReport]) -> NewCondition {
    let kind = ConditionType::PoolsServing;
    let not = spec.pools.iter().find_map(|pool| {
        let report = reports.iter().find(|report| report.pod_uid == pool.pod_uid);
        match report {
            Some(report) if report.state == PoolState::Serving => None,
            Some(report) => Some((
                report.reason.or(Reason::PoolPodNotReady, &report.message),
                pool,
            )),
            None => {
                let message = "the agent has not reported the pod yet".to_owned();
                Some(((Reason::PoolPodNotReady, message), pool))
            }
        }
    });
    match not {
        None => NewCondition::new(
            kind,
            true,
            Reason::AsExpected,
            format!(
                "{} of {} pool pods served",
                spec.pools.len(),
                spec.pools.len()
            ),
        ),
        Some(((reason, message), pool)) => NewCondition::new(
            kind,
            false,
            reason,
            format!("{}/{}: {message}", pool.namespace, pool.pod_name),
        ),
    }
}

#[cfg(test)]
mod tests;
