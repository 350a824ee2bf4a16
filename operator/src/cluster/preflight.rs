//! The preflight annotation: results of the node checks that the cluster requires, for a waiting pod. The
//! pod's gate reads it as a downward API file. The webhook adds it to pods whose gate reads it. Pure.

use std::collections::BTreeSet;

use crds::check::CheckFinding;
use crds::condition::shorten;
use crds::policy::CheckAction;
use crds::{CheckId, MooncakeNode, Reason, Verdict, Vocabulary, Word, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::cluster::pool_pod::current_report;
use crate::cluster::validate::Valid;
use crate::pod::gate_status;

/// The node whose checks the pod waits for; none if its gate does not read them, or is open.
pub fn waits_for(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (current(pod).is_some() && !is_open(pod)).then_some(node)
}

/// The annotation for a pod that waits for that node. `report` comes from the API server: the cached one
/// lacks the findings of the node.
pub fn annotation(cluster: &Valid, mooncake_node: Option<&MooncakeNode>) -> String {
    let (reason, message) = evaluate(&cluster.preflight, mooncake_node);
    // A gate of release 0.1.0 reads it as well.
    shorten(&format!("{}: {message}", reason.written()))
}

/// The pod's current annotation.
pub fn current(pod: &Pod) -> Option<&str> {
    let annotation = pod.annotations().get(names::ANNOTATION_PREFLIGHT);
    annotation.map(String::as_str)
}

/// The annotation, if it keeps the pod waiting.
pub fn holds(pod: &Pod) -> Option<&str> {
    let passed = Reason::AsExpected.as_str();
    current(pod).filter(|current| current.split(':').next() != Some(passed))
}

fn is_open(pod: &Pod) -> bool {
    gate_status(pod).is_some_and(|gate| gate.started == Some(true))
}

fn evaluate(checks: &[CheckId], mooncake_node: Option<&MooncakeNode>) -> (Reason, String) {
    if checks.is_empty() {
        let message = "the cluster requires no node checks";
        return (Reason::AsExpected, message.to_owned());
    }
    let mooncake_node = match current_report(mooncake_node) {
        Ok(mooncake_node) => mooncake_node,
        Err((reason, message)) => return (reason, message),
    };
    let node = mooncake_node.name_any();
    let pending = |message: &str| (Reason::PreflightPending, format!("node {node}: {message}"));
    let Some((status, counts)) = mooncake_node
        .status
        .as_ref()
        .and_then(|status| Some((status, status.checks.as_ref()?)))
    else {
        return pending("its agent has not run the checks yet");
    };
    if let Some(policy) = &mooncake_node.spec.policy {
        let ignored = |check: &&CheckId| policy.action(**check) == CheckAction::Ignore;
        if let Some(check) = checks.iter().find(ignored) {
            let message = format!(
                "node {node}: MooncakeNodePolicy {1} ignores check {0}",
                check.as_str(),
                policy.name
            );
            return (Reason::CheckIgnored, message);
        }
    }
    // A check of another release may be a required one under another name.
    let required = |finding: &&CheckFinding| match finding.check.known() {
        Some(check) => checks.contains(&check),
        None => finding.verdict.severity() != Verdict::Warn,
    };
    let mut found: Vec<&CheckFinding> = status.all_findings().filter(required).collect();
    found.sort_by_key(|finding| finding.verdict.severity());
    if let [worst, others @ ..] = found.as_slice() {
        let mut message = format!(
            "node {node}: check {} failed on {}: {}",
            worst.check.as_str(),
            worst.subject,
            worst.message
        );
        if !others.is_empty() {
            message.push_str(&format!("; and {} more", others.len()));
        }
        return worst.reason.or(Reason::PreflightPending, &message);
    }
    let mut later = checks.iter().filter(|check| !check.is_in_0_1_0());
    if let (Some(check), None) = (later.next(), &status.later_findings) {
        return pending(&format!(
            "its agent does not report check {}: the agent or the CRD MooncakeNode is of an earlier release. Upgrade \
             it, or remove the check from spec.preflight.checks",
            check.as_str()
        ));
    }
    let listed: BTreeSet<Word<CheckId>> = status.findings.iter().map(|found| found.check).collect();
    let all = counts.failed + counts.warned + counts.unknown;
    if listed.len() < usize::try_from(all).unwrap_or(usize::MAX) {
        return pending(
            "it has more findings than its MooncakeNode can list; resolve the listed ones first",
        );
    }
    let names: Vec<&str> = checks.iter().map(|check| check.as_str()).collect();
    let message = format!("node {node}: no findings of {}", names.join(", "));
    (Reason::AsExpected, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::pod::GATE_CONTAINER;

    fn pod(node: &str, started: bool, annotations: &str) -> Pod {
        serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: a, namespace: team, annotations: {{{annotations}}}}}, \
             spec: {{{node} containers: []}}, status: {{initContainerStatuses: [{{name: {GATE_CONTAINER}, \
             image: x, imageID: x, ready: false, restartCount: 0, started: {started}}}]}}}}"
        ))
        .unwrap()
    }

    const PENDING: &str = "mooncake.io/preflight: 'PreflightPending: x'";

    fn waiting() -> Pod {
        pod("nodeName: n1,", false, PENDING)
    }

    fn mooncake_node(policy: &str, status: &str) -> MooncakeNode {
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

    fn result(mooncake_node: Option<&MooncakeNode>) -> String {
        let cluster = fixture::valid("{preflight: {checks: [EphemeralPorts, Clock]}}");
        annotation(&cluster, mooncake_node)
    }

    #[test]
    fn only_findings_of_required_checks_hold_the_pod() {
        let found = mooncake_node("", &format!("{COUNTS}, {WARNS}"));
        assert_eq!(
            result(Some(&found)),
            "EphemeralPortsLow: node n1: check EphemeralPorts failed on node: it has 900"
        );
        let other = WARNS.replace("EphemeralPorts,", "MapCount,");
        let other = mooncake_node("", &format!("{COUNTS}, {other}"));
        assert_eq!(
            result(Some(&other)),
            "AsExpected: node n1: no findings of EphemeralPorts, Clock"
        );
    }

    #[test]
    fn an_unknown_result_never_passes() {
        let reason = |mooncake_node: Option<&MooncakeNode>| {
            let current = result(mooncake_node);
            current.split_once(':').unwrap().0.to_owned()
        };
        assert_eq!(reason(None), "AgentMissing");
        assert_eq!(reason(Some(&mooncake_node("", ""))), "PreflightUntold");
        // A warning that is not in the list.
        assert_eq!(reason(Some(&mooncake_node("", COUNTS))), "PreflightUntold");
        // A check of another release that does not pass; a warning of it holds nothing.
        let of = |verdict: &str| {
            let other = WARNS.replace("check: EphemeralPorts", "check: OfTheNextRelease");
            mooncake_node(
                "",
                &format!("{COUNTS}, {}", other.replace("verdict: Warn", verdict)),
            )
        };
        assert_eq!(reason(Some(&of("verdict: Fail"))), "EphemeralPortsLow");
        assert_eq!(reason(Some(&of("verdict: Worse"))), "EphemeralPortsLow");
        assert_eq!(reason(Some(&of("verdict: Warn"))), "AsExpected");
        let unknown = WARNS.replace("reason: EphemeralPortsLow", "reason: OfTheNextRelease");
        let unknown = mooncake_node("", &format!("{COUNTS}, {unknown}"));
        assert_eq!(reason(Some(&unknown)), "PreflightUntold");
        let ignored = "policy: {name: p, checks: [{id: Clock, action: Ignore}]}";
        let ignored = mooncake_node(ignored, &format!("{COUNTS}, {WARNS}"));
        assert_eq!(reason(Some(&ignored)), "CheckIgnored");
    }

    #[test]
    fn a_check_that_release_0_1_0_lacks_passes_only_where_an_agent_reports_it() {
        let cluster = fixture::valid("{preflight: {checks: [EngineProcessorTime]}}");
        let passed = "checks: {passed: 9, warned: 0, failed: 0, unknown: 0, notApplicable: 0}";
        let result = |later: &str| {
            annotation(
                &cluster,
                Some(&mooncake_node("", &format!("{passed}, {later}"))),
            )
        };
        let by_an_earlier_agent = result("");
        assert!(
            by_an_earlier_agent.starts_with(
                "PreflightUntold: node n1: its agent does not report check EngineProcessorTime"
            ),
            "{by_an_earlier_agent}"
        );
        assert_eq!(
            result("laterFindings: []"),
            "AsExpected: node n1: no findings of EngineProcessorTime"
        );
        let throttled = "{check: EngineProcessorTime, verdict: Warn, reason: EngineThrottled, \
            subject: pool pod team/a, message: it waits, since: '2026-01-01T00:00:00Z'}";
        assert_eq!(
            result(&format!("laterFindings: [{throttled}]")),
            "TransportDegraded: node n1: check EngineProcessorTime failed on pool pod team/a: it waits"
        );
    }

    #[test]
    fn only_a_scheduled_pod_with_a_closed_gate_that_reads_the_annotation_waits() {
        assert_eq!(waits_for(&waiting()), Some("n1"));
        assert_eq!(waits_for(&pod("nodeName: n1,", false, "")), None);
        assert_eq!(waits_for(&pod("", false, PENDING)), None);
        let passed = "mooncake.io/preflight: 'AsExpected: node n1'";
        let open = pod("nodeName: n1,", true, passed);
        assert_eq!(waits_for(&open), None);
        assert_eq!(holds(&open), None);
        assert_eq!(holds(&waiting()), Some("PreflightPending: x"));
    }
}
