//! Container compatibility: the pod condition for what the node's agent found in the pod's containers. Pure.

use crds::check::CheckFinding;
use crds::{MooncakeNode, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::cluster::pod_condition::DesiredCondition;
use crate::cluster::pool_pod::current_report;
use crate::pod::condition;

/// Pod condition: the pod's containers are compatible with the cluster and the node.
pub const CONDITION: &str = "mooncake.io/ContainersFit";

/// Most findings in a message.
const MAX_FINDINGS: usize = 3;

/// The desired condition; none if nothing was ever found. It stays while the agent's report is stale.
pub fn desired(pod: &Pod, mooncake_node: Option<&MooncakeNode>) -> Option<DesiredCondition> {
    let current = condition(pod, CONDITION);
    let condition_of = |holds, reason: &str, message| DesiredCondition {
        kind: CONDITION,
        holds,
        reason: reason.to_owned(),
        message,
    };
    let Ok(mooncake_node) = current_report(mooncake_node) else {
        let current = current?;
        let reason = current.reason.clone().unwrap_or_default();
        let message = current.message.clone().unwrap_or_default();
        return Some(condition_of(current.status == "True", &reason, message));
    };
    let found = found(pod, mooncake_node);
    let Some(worst) = found.first() else {
        let message = "no findings in its containers".to_owned();
        return current.map(|_| condition_of(true, Reason::AsExpected.as_str(), message));
    };
    let mut message = found
        .iter()
        .take(MAX_FINDINGS)
        .map(|finding| text(pod, finding))
        .collect::<Vec<_>>()
        .join(" ");
    if found.len() > MAX_FINDINGS {
        message.push_str(&format!(" And {} more.", found.len() - MAX_FINDINGS));
    }
    Some(condition_of(false, worst.reason.as_str(), message))
}

/// The pod's findings, worst first, as the agent lists them.
fn found<'a>(pod: &Pod, mooncake_node: &'a MooncakeNode) -> Vec<&'a CheckFinding> {
    let uid = pod.uid();
    let findings = mooncake_node
        .status
        .iter()
        .flat_map(|status| &status.findings);
    findings
        .filter(|finding| finding.pod_uid.is_some() && finding.pod_uid == uid)
        .collect()
}

/// The finding without the pod's own name.
fn text(pod: &Pod, finding: &CheckFinding) -> String {
    let own = format!(
        "pod {}/{} ",
        pod.namespace().unwrap_or_default(),
        pod.name_any()
    );
    let subject = finding.subject.strip_prefix(&own);
    let subject = subject.unwrap_or(&finding.subject);
    format!("{subject}: {}", finding.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(conditions: &str) -> Pod {
        serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: a, namespace: team, uid: u1}}, status: {{conditions: [{conditions}]}}}}"
        ))
        .unwrap()
    }

    fn mooncake_node(alive: &str, findings: &str) -> MooncakeNode {
        serde_yaml_ng::from_str(&format!(
            "{{apiVersion: mooncake.io/v1alpha1, kind: MooncakeNode, metadata: {{name: n1}}, spec: {{}}, \
             status: {{conditions: [{{type: AgentAlive, status: '{alive}', reason: AsExpected, message: '', \
             lastTransitionTime: '2026-01-01T00:00:00Z'}}], findings: [{findings}]}}}}"
        ))
        .unwrap()
    }

    const SKEW: &str = "{check: PodEngine, verdict: Warn, reason: EngineVersionSkew, podUid: u1, \
        subject: pod team/a container main, message: it has 0.3.11, since: '2026-01-01T00:00:00Z'}";
    const OTHER: &str = "{check: PodEngine, verdict: Warn, reason: EngineVersionSkew, podUid: u2, \
        subject: pod team/b container main, message: it has 0.3.11, since: '2026-01-01T00:00:00Z'}";
    const CURRENT: &str = "{type: mooncake.io/ContainersFit, status: 'False', \
        reason: EngineVersionSkew, message: 'container main: it has 0.3.11'}";

    #[test]
    fn findings_set_the_condition_false_and_no_findings_set_it_true() {
        let it = desired(&pod(""), Some(&mooncake_node("True", SKEW))).unwrap();
        assert_eq!((it.holds, it.reason.as_str()), (false, "EngineVersionSkew"));
        assert_eq!(it.message, "container main: it has 0.3.11");
        let it = desired(&pod(CURRENT), Some(&mooncake_node("True", OTHER))).unwrap();
        assert_eq!((it.holds, it.reason.as_str()), (true, "AsExpected"));
    }

    #[test]
    fn a_pod_without_findings_gets_no_condition() {
        assert_eq!(desired(&pod(""), Some(&mooncake_node("True", OTHER))), None);
        assert_eq!(desired(&pod(""), None), None);
    }

    #[test]
    fn the_condition_stays_while_the_report_is_stale() {
        for stale in [
            None,
            Some(mooncake_node("False", "")),
            Some(mooncake_node("Unknown", "")),
        ] {
            let it = desired(&pod(CURRENT), stale.as_ref()).unwrap();
            assert!(!it.holds);
            assert_eq!(it.message, "container main: it has 0.3.11");
        }
    }
}
