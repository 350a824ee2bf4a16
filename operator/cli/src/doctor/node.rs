//! Findings of MooncakeNodes: missing agents, findings of checks, rejected pool pods, nodes outside their
//! ComputeDomain.

use crds::check::CheckFinding;
use crds::condition::find;
use crds::node::PoolState;
use crds::{ConditionStatus, ConditionType, FixId, FixMode, MooncakeNode, Reason, Verdict};
use kube::ResourceExt;
use mooncake_operator::cluster::pool_pod::is_stale;

use super::finding::{Finding, Object, Severity, severity};
use crate::status::known_reason;

/// The policy field that lets the agent fix the finding; `None` when it is set, or no fix exists. Only findings
/// of the node have fixes, not those of a pod.
fn fix(node: &MooncakeNode, finding: &CheckFinding) -> Option<String> {
    if finding.pod_uid.is_some() {
        return None;
    }
    let fix = FixId::of(finding.reason.known()?)?;
    let policy = node.spec.policy.as_ref();
    if policy.and_then(|policy| policy.mode(fix)) == Some(FixMode::Apply) {
        return None;
    }
    let name = policy.map_or_else(
        || "a MooncakeNodePolicy".to_owned(),
        |policy| format!("MooncakeNodePolicy {}", policy.name),
    );
    let amount = match fix {
        FixId::Hugepages => ", and spec.hugepages to the required amount",
        _ => "",
    };
    Some(format!(
        "set spec.fixes of {name}: {{id: {fix}, mode: Apply}}{amount}"
    ))
}

/// All findings of one node.
pub(crate) fn findings(node: &MooncakeNode) -> Vec<Finding> {
    let finding = |severity, reason, message: &str| {
        let object = Object::of("MooncakeNode", node);
        Finding::new(severity, reason, object, message).on(node.name_any())
    };
    let Some(status) = &node.status else {
        let message = "the agent has not reported yet";
        return vec![finding(Severity::Warning, Reason::AgentMissing, message)];
    };
    if let Some(alive) = find(&status.conditions, ConditionType::AgentAlive)
        && alive.status != ConditionStatus::True.as_str()
    {
        // The rest of the status is out of date.
        let reason = known_reason(&alive.reason).unwrap_or(Reason::AgentNotReady);
        let since = Some(alive.last_transition_time.0);
        let dead = finding(Severity::Error, reason, &alive.message);
        return vec![dead.since(since).secondary()];
    }
    if is_stale(node) {
        let message = "the agent has not reported since the node was recreated";
        return vec![finding(Severity::Warning, Reason::StaleStatus, message)];
    }
    let checks = status.all_findings().map(|found| {
        let severity = match found.verdict.severity() {
            Verdict::Fail => Severity::Error,
            Verdict::Unknown | Verdict::Warn => Severity::Warning,
        };
        let (reason, message) = found.reason.or(Reason::ReleaseSkew, &found.message);
        finding(severity, reason, &message)
            .subject(found.subject.clone())
            .fix(fix(node, found))
            .since(Some(found.since.0))
    });
    // An assigned pool pod has a finding of its own.
    let assigned = |uid: &str| node.spec.pools.iter().any(|entry| entry.pod_uid == uid);
    let rejected = status
        .pools
        .iter()
        .filter(|pool| pool.state == PoolState::Refused && !assigned(&pool.pod_uid))
        .map(|pool| {
            let message = format!(
                "pool pod {}/{} is rejected: {}",
                pool.namespace, pool.pod_name, pool.message
            );
            let (reason, message) = pool.reason.or(Reason::ReleaseSkew, &message);
            finding(Severity::Error, reason, &message)
        });
    let domains = node.spec.domains.iter().filter(|domain| !domain.member);
    let outside = domains.map(|domain| {
        let message = format!(
            "not a member of ComputeDomain {}/{}: {}",
            domain.namespace, domain.domain, domain.message
        );
        // Only the cluster's condition has the time.
        let (reason, message) = domain.reason.or(Reason::ReleaseSkew, &message);
        finding(severity(reason, None), reason, &message)
    });
    checks.chain(rejected).chain(outside).collect()
}
