//! What MooncakeNodes say: is the agent there, what have its checks found, what is refused, and which
//! nodes are out of their ComputeDomain.

use crds::check::CheckFinding;
use crds::condition::find;
use crds::node::PoolState;
use crds::{ConditionType, FixId, FixMode, MooncakeNode, Reason, State, Verdict};
use kube::ResourceExt;

use super::object;
use super::trouble::{Severity, Trouble, severity};
use crate::cli::picture::Picture;
use crate::cli::status::known;
use crate::cluster::verdict::is_void;

pub(super) fn troubles(picture: &Picture) -> Vec<Trouble> {
    picture.nodes.iter().flat_map(of_one).collect()
}

/// The field by which the agent would set it right; none where it may already, or nothing can.
fn by_policy(node: &MooncakeNode, reason: Reason) -> Option<String> {
    let fix = FixId::of(reason)?;
    let policy = node.spec.policy.as_ref();
    let mode = policy.and_then(|policy| policy.mode(fix));
    let whose = match (policy, mode) {
        (_, Some(FixMode::Apply)) => return None,
        (Some(policy), _) => format!("MooncakeNodePolicy {}", policy.name),
        (None, _) => "a MooncakeNodePolicy".to_owned(),
    };
    let beside = match fix {
        FixId::Hugepages => ", and spec.hugepages to how many",
        _ => "",
    };
    Some(format!(
        "set spec.fixes of {whose}: {{id: {fix}, mode: Apply}}{beside}"
    ))
}

/// What an agent sets right is the node's own, nothing of a pod.
fn fix_of(node: &MooncakeNode, finding: &CheckFinding) -> Option<String> {
    let of_node = finding.pod_uid.is_none();
    of_node.then(|| by_policy(node, finding.reason))?
}

/// Everything that one node says is wrong with it.
pub(crate) fn of_one(node: &MooncakeNode) -> Vec<Trouble> {
    let name = node.name_any();
    let trouble = |severity, reason, message: &str| {
        Trouble::new(severity, reason, object("MooncakeNode", node), message).on(name.clone())
    };
    let Some(status) = &node.status else {
        let message = "nothing is known of the node's agent yet";
        return vec![trouble(Severity::Warns, Reason::AgentMissing, message)];
    };
    if let Some(alive) = find(&status.conditions, ConditionType::AgentAlive)
        && alive.status != State::True.as_str()
    {
        // Whatever else stands there is an agent's word that nobody can believe now.
        let reason = known(&alive.reason).unwrap_or(Reason::AgentNotReady);
        let since = Some(alive.last_transition_time.0);
        let dead = trouble(Severity::Fails, reason, &alive.message);
        return vec![dead.since(since).echo()];
    }
    if is_void(node) {
        let message = "the agent has not yet reported in this life of the node";
        return vec![trouble(Severity::Warns, Reason::StaleStatus, message)];
    }
    let checks = status.findings.iter().map(|finding| {
        let severity = match finding.verdict {
            Verdict::Fail => Severity::Fails,
            Verdict::Unknown | Verdict::Warn => Severity::Warns,
        };
        trouble(severity, finding.reason, &finding.message)
            .about(finding.subject.clone())
            .fix(fix_of(node, finding))
            .since(Some(finding.since.0))
    });
    let assigned = |uid: &str| node.spec.pools.iter().any(|entry| entry.pod_uid == uid);
    // One that is assigned is told with its pod.
    let refused = status
        .pools
        .iter()
        .filter(|pool| pool.state == PoolState::Refused && !assigned(&pool.pod_uid));
    let refused = refused.map(|pool| {
        let message = format!(
            "pool pod {}/{} is refused: {}",
            pool.namespace, pool.pod_name, pool.message
        );
        trouble(Severity::Fails, pool.reason, &message)
    });
    let domains = node.spec.domains.iter().filter(|domain| !domain.member);
    let outside = domains.map(|domain| {
        let message = format!(
            "not a member of ComputeDomain {}/{}: {}",
            domain.namespace, domain.domain, domain.message
        );
        // Since when stands in the cluster's condition.
        trouble(severity(domain.reason, None), domain.reason, &message)
    });
    checks.chain(refused).chain(outside).collect()
}
