//! What a pod that waits is told of its node, where its cluster asks for checks of the node: an annotation, which the
//! kubelet shows to the pod's gate as a file. The webhook gives it to pods whose gate reads it. Pure.

use std::collections::BTreeSet;

use crds::check::CheckFinding;
use crds::condition::shorten;
use crds::policy::CheckAction;
use crds::{CheckId, MooncakeNode, Reason, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::admission::GATE_CONTAINER;
use crate::cluster::validate::Valid;
use crate::cluster::verdict::heard;

/// The node whose checks the pod waits for; none where its gate does not ask, or is open, so that nobody reads it
/// any more.
pub fn waits_for(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (said(pod).is_some() && !is_open(pod)).then_some(node)
}

/// What is to stand in the annotation of a pod that waits for that node. `report` is whole: what is kept of one
/// lacks what was found of the node itself.
pub fn word(cluster: &Valid, report: Option<&MooncakeNode>) -> String {
    let (reason, words) = judge(&cluster.preflight, report);
    shorten(&format!("{reason}: {words}"))
}

/// What the pod was told.
pub fn said(pod: &Pod) -> Option<&str> {
    let said = pod.annotations().get(names::ANNOTATION_PREFLIGHT);
    said.map(String::as_str)
}

/// What keeps the pod waiting, of what it was told.
pub fn holds(pod: &Pod) -> Option<&str> {
    let passed = Reason::AsExpected.as_str();
    said(pod).filter(|said| said.split(':').next() != Some(passed))
}

fn is_open(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|s| &s.init_container_statuses);
    let mut gates = statuses.flatten().filter(|one| one.name == GATE_CONTAINER);
    gates.any(|gate| gate.started == Some(true))
}

fn judge(checks: &[CheckId], report: Option<&MooncakeNode>) -> (Reason, String) {
    if checks.is_empty() {
        let words = "the cluster asks for nothing of the node any more";
        return (Reason::AsExpected, words.to_owned());
    }
    let report = match heard(report) {
        Ok(report) => report,
        Err((reason, words)) => return (reason, words),
    };
    let node = report.name_any();
    let untold = |words: &str| (Reason::PreflightUntold, format!("node {node}: {words}"));
    let Some((status, counts)) = report
        .status
        .as_ref()
        .and_then(|status| Some((status, status.checks.as_ref()?)))
    else {
        return untold("its agent has not looked at it yet");
    };
    if let Some(policy) = &report.spec.policy {
        let ignored = |check: &&CheckId| policy.action(**check) == CheckAction::Ignore;
        if let Some(check) = checks.iter().find(ignored) {
            let words = format!(
                "node {node}: check {} is ignored there by MooncakeNodePolicy {}",
                check.as_str(),
                policy.name
            );
            return (Reason::CheckIgnored, words);
        }
    }
    let asked = |finding: &&CheckFinding| checks.contains(&finding.check);
    let found: Vec<&CheckFinding> = status.findings.iter().filter(asked).collect();
    if let [worst, others @ ..] = found.as_slice() {
        let mut words = format!(
            "node {node}: check {} finds of {}: {}",
            worst.check.as_str(),
            worst.subject,
            worst.message
        );
        if !others.is_empty() {
            words.push_str(&format!("; and {} more", others.len()));
        }
        return (worst.reason, words);
    }
    let told: BTreeSet<CheckId> = status.findings.iter().map(|found| found.check).collect();
    let all = counts.failed + counts.warned + counts.unknown;
    if told.len() < usize::try_from(all).unwrap_or(usize::MAX) {
        return untold("more is found there than its MooncakeNode can list: repair that first");
    }
    let names: Vec<&str> = checks.iter().map(|check| check.as_str()).collect();
    let words = format!("node {node}: nothing found by {}", names.join(", "));
    (Reason::AsExpected, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn pod(node: &str, started: bool, stands: &str) -> Pod {
        serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: a, namespace: team, annotations: {{{stands}}}}}, \
             spec: {{{node} containers: []}}, status: {{initContainerStatuses: [{{name: {GATE_CONTAINER}, \
             image: x, imageID: x, ready: false, restartCount: 0, started: {started}}}]}}}}"
        ))
        .unwrap()
    }

    const UNTOLD: &str = "mooncake.io/preflight: 'PreflightUntold: x'";

    fn waiting() -> Pod {
        pod("nodeName: n1,", false, UNTOLD)
    }

    fn report(policy: &str, status: &str) -> MooncakeNode {
        serde_yaml_ng::from_str(&format!(
            "{{apiVersion: mooncake.io/v1alpha1, kind: MooncakeNode, metadata: {{name: n1}}, \
             spec: {{{policy}}}, status: {{conditions: [{{type: AgentAlive, status: 'True', \
             reason: AsExpected, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}}], {status}}}}}"
        ))
        .unwrap()
    }

    const COUNTS: &str = "checks: {passed: 9, warned: 1, failed: 0, unknown: 0, notApplicable: 0}";
    const WARNS: &str = "findings: [{check: EphemeralPorts, verdict: Warn, reason: EphemeralPortsLow, \
        subject: node, message: it has 900, since: '2026-01-01T00:00:00Z'}]";

    fn told(report: Option<&MooncakeNode>) -> String {
        let cluster = fixture::valid("{preflight: {checks: [EphemeralPorts, Clock]}}");
        word(&cluster, report)
    }

    #[test]
    fn a_warning_of_a_check_that_is_asked_for_holds_and_one_of_another_does_not() {
        let found = report("", &format!("{COUNTS}, {WARNS}"));
        assert_eq!(
            told(Some(&found)),
            "EphemeralPortsLow: node n1: check EphemeralPorts finds of node: it has 900"
        );
        let other = WARNS.replace("EphemeralPorts,", "MapCount,");
        let other = report("", &format!("{COUNTS}, {other}"));
        assert_eq!(
            told(Some(&other)),
            "AsExpected: node n1: nothing found by EphemeralPorts, Clock"
        );
    }

    #[test]
    fn what_is_not_known_of_the_node_is_never_taken_for_good() {
        let reason = |report: Option<&MooncakeNode>| {
            let said = told(report);
            said.split_once(':').unwrap().0.to_owned()
        };
        assert_eq!(reason(None), "AgentMissing");
        assert_eq!(reason(Some(&report("", ""))), "PreflightUntold");
        // A warning that the list has no room for.
        assert_eq!(reason(Some(&report("", COUNTS))), "PreflightUntold");
        let ignored = "policy: {name: p, checks: [{id: Clock, action: Ignore}]}";
        let ignored = report(ignored, &format!("{COUNTS}, {WARNS}"));
        assert_eq!(reason(Some(&ignored)), "CheckIgnored");
    }

    #[test]
    fn only_a_pod_that_asks_and_has_a_node_and_is_not_let_go_waits_for_it() {
        assert_eq!(waits_for(&waiting()), Some("n1"));
        assert_eq!(waits_for(&pod("nodeName: n1,", false, "")), None);
        assert_eq!(waits_for(&pod("", false, UNTOLD)), None);
        let passed = "mooncake.io/preflight: 'AsExpected: node n1'";
        let open = pod("nodeName: n1,", true, passed);
        assert_eq!(waits_for(&open), None);
        assert_eq!(holds(&open), None);
        assert_eq!(holds(&waiting()), Some("PreflightUntold: x"));
    }
}
