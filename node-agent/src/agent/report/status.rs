//! The status that follows from what is known of a node, within its bound. Pure.

use crds::condition::{self, ConditionType, Finding};
use crds::node::{DeviceHealth, MooncakeNodeStatus, PoolReport, PoolState};
use crds::reason::Reason;
use crds::{ByteSize, FixReport, MooncakeNodeSpec, State};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::HcaLines;
use crate::agent::health;
use crate::checks::Owner;
use crate::checks::steady::Health;

/// Most bytes of a status.
const STATUS_LIMIT: usize = 8 << 10;

/// Conditions of the agent's; the operator writes them while it does not believe this agent.
const OWN: [ConditionType; 2] = [ConditionType::NodeHealthy, ConditionType::PoolsServing];

/// The operator's doubt, where it stands: it does not believe this agent now, so that the agent's own
/// verdicts are not repeated until it does.
pub(super) fn doubt(stands: &[Condition]) -> Vec<Condition> {
    let alive = condition::find(stands, ConditionType::AgentAlive);
    if alive.is_none_or(|alive| alive.status == State::True.as_str()) {
        return Vec::new();
    }
    let said = OWN.iter().filter_map(|kind| condition::find(stands, *kind));
    said.filter(|said| said.status == State::Unknown.as_str())
        .cloned()
        .collect()
}

/// True where the agent's verdict stands as it was written.
pub(super) fn holds(written: &MooncakeNodeStatus, stands: &[Condition]) -> bool {
    written.conditions.iter().all(|said| {
        stands.iter().any(|stands| {
            (
                &stands.type_,
                &stands.status,
                &stands.reason,
                &stands.message,
            ) == (&said.type_, &said.status, &said.reason, &said.message)
        })
    })
}

/// Everything that is known of the node. What is absent was not looked at yet by this process.
#[derive(Debug, Clone, Default)]
pub(super) struct Noted {
    pub(super) hcas: Option<HcaLines>,
    pub(super) devices: Option<DeviceHealth>,
    pub(super) health: Option<Health>,
    pub(super) owners: Vec<Owner>,
    pub(super) fixes: Option<Vec<FixReport>>,
    pub(super) reports: Vec<PoolReport>,
}

/// The status that follows from what is known. Equal notes over an equal status give an equal
/// status.
pub(super) fn compose(
    spec: &MooncakeNodeSpec,
    boot_id: &str,
    noted: Noted,
    before: &MooncakeNodeStatus,
    doubt: &[Condition],
    now: Timestamp,
) -> MooncakeNodeStatus {
    let Noted {
        hcas,
        devices,
        health,
        owners,
        fixes,
        reports,
    } = noted;
    // Until an agent that has just started has looked for itself, the word of the one before it stands;
    // not that of an earlier life of the node.
    let stood = (before.boot_id == boot_id).then_some(before);
    let (hcas, hcas_omitted) = hcas.unwrap_or_else(|| {
        let stood = stood.map(|stood| (stood.hcas.clone(), stood.hcas_omitted));
        stood.unwrap_or_default()
    });
    let devices = devices.or_else(|| stood.and_then(|stood| stood.devices.clone()));
    let mounted: u64 = reports
        .iter()
        .filter_map(|report| report.mounted)
        .map(|b| b.0)
        .sum();
    let mut verdicts = vec![finding(spec, &reports)];
    verdicts.extend(health.as_ref().map(health::condition));
    verdicts.retain(|verdict| condition::find(doubt, verdict.kind).is_none());
    let mut conditions = condition::merge(&before.conditions, &verdicts, None, now);
    if health.is_none()
        && let Some(said) = stood.and_then(|stood| said(&stood.conditions))
    {
        conditions.push(said.clone());
    }
    for doubted in doubt {
        conditions.retain(|said| said.type_ != doubted.type_);
        conditions.push(doubted.clone());
    }
    conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    let found = stood.map_or(&[][..], |stood| &stood.findings);
    let (checks, findings) = match &health {
        Some(health) => (
            Some(health.counts),
            health::findings(health, found, &spec.injected, &owners),
        ),
        None => (stood.and_then(|stood| stood.checks), found.to_vec()),
    };
    let fixes = fixes.unwrap_or_else(|| stood.map_or_else(Vec::new, |stood| stood.fixes.clone()));
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
        fixes,
        pools: reports,
        conditions,
    };
    for report in &mut status.pools {
        cut(&mut report.message, 512);
    }
    shorten(&mut status);
    status
}

/// What an agent said of its node's health; doubt is the operator's.
fn said(stands: &[Condition]) -> Option<&Condition> {
    condition::find(stands, ConditionType::NodeHealthy)
        .filter(|said| said.status != State::Unknown.as_str())
}

/// What is dear to a reader goes last.
fn shorten(status: &mut MooncakeNodeStatus) {
    let steps: [fn(&mut MooncakeNodeStatus); 7] = [
        |status| each(status, |report| report.segments.truncate(4)),
        |status| each(status, |report| report.segments.clear()),
        |status| words(status, 160),
        |status| each(status, |report| cut(&mut report.message, 80)),
        |status| words(status, 60),
        |status| each(status, |report| report.message.clear()),
        |status| status.findings.truncate(8),
    ];
    for step in steps {
        if fits(status) {
            return;
        }
        step(status);
    }
    // All ports stand in the inventory.
    while !fits(status) && status.hcas.pop().is_some() {
        *status.hcas_omitted.get_or_insert(0) += 1;
    }
}

fn each(status: &mut MooncakeNodeStatus, shorten: fn(&mut PoolReport)) {
    status.pools.iter_mut().for_each(shorten);
}

fn words(status: &mut MooncakeNodeStatus, most: usize) {
    for finding in &mut status.findings {
        cut(&mut finding.message, most);
    }
}

fn fits(status: &MooncakeNodeStatus) -> bool {
    serde_json::to_vec(status).map_or(0, |bytes| bytes.len()) <= STATUS_LIMIT
}

fn cut(text: &mut String, most: usize) {
    let most = most.min(text.len());
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
}

/// Whether every listed pod is served, and if not, which is not.
fn finding(spec: &MooncakeNodeSpec, reports: &[PoolReport]) -> Finding {
    let kind = ConditionType::PoolsServing;
    let not = spec.pools.iter().find_map(|pool| {
        let report = reports.iter().find(|report| report.pod_uid == pool.pod_uid);
        match report {
            Some(report) if report.state == PoolState::Serving => None,
            Some(report) => Some((report.reason, report.message.as_str(), pool)),
            None => Some((Reason::PoolPodNotReady, "not looked at yet", pool)),
        }
    });
    match not {
        None => Finding::new(
            kind,
            true,
            Reason::AsExpected,
            format!(
                "{} of {} pool pods served",
                spec.pools.len(),
                spec.pools.len()
            ),
        ),
        Some((reason, message, pool)) => Finding::new(
            kind,
            false,
            reason,
            format!("{}/{}: {message}", pool.namespace, pool.pod_name),
        ),
    }
}

#[cfg(test)]
mod tests;
