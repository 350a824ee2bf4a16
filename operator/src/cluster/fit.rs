//! What the agent of a pod's node found in the pod's containers, as the pod is told of it. Pure.

use crds::check::CheckFinding;
use crds::{MooncakeNode, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::cluster::mirror::{Word, condition};
use crate::cluster::verdict::heard;

/// Pod condition that says what in the pod's containers does not fit the cluster or the node.
pub const FIT: &str = "mooncake.io/ContainersFit";

/// Findings that a message tells of at most.
const TOLD: usize = 3;

/// Nothing where nothing was ever found. While the agent is not believed, what was said stands.
pub fn word(pod: &Pod, report: Option<&MooncakeNode>) -> Option<Word> {
    let stands = condition(pod, FIT);
    let word = |holds, reason: &str, message| Word {
        kind: FIT,
        holds,
        reason: reason.to_owned(),
        message,
    };
    let Ok(report) = heard(report) else {
        let stands = stands?;
        let reason = stands.reason.clone().unwrap_or_default();
        let message = stands.message.clone().unwrap_or_default();
        return Some(word(stands.status == "True", &reason, message));
    };
    let found = found(pod, report);
    let Some(worst) = found.first() else {
        let message = "what was found in its containers is no more".to_owned();
        return stands.map(|_| word(true, Reason::AsExpected.as_str(), message));
    };
    let mut message = found
        .iter()
        .take(TOLD)
        .map(|finding| told(pod, finding))
        .collect::<Vec<_>>()
        .join(" ");
    if found.len() > TOLD {
        message.push_str(&format!(" And {} more.", found.len() - TOLD));
    }
    Some(word(false, worst.reason.as_str(), message))
}

/// Worst first, as the agent lists them.
fn found<'a>(pod: &Pod, report: &'a MooncakeNode) -> Vec<&'a CheckFinding> {
    let uid = pod.uid();
    let findings = report.status.iter().flat_map(|status| &status.findings);
    findings
        .filter(|finding| finding.pod_uid.is_some() && finding.pod_uid == uid)
        .collect()
}

/// The pod knows its own name.
fn told(pod: &Pod, finding: &CheckFinding) -> String {
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

    fn report(alive: &str, findings: &str) -> MooncakeNode {
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
    const STOOD: &str = "{type: mooncake.io/ContainersFit, status: 'False', \
        reason: EngineVersionSkew, message: 'container main: it has 0.3.11'}";

    #[test]
    fn a_pod_is_told_what_was_found_in_it_and_that_it_is_no_more() {
        let said = word(&pod(""), Some(&report("True", SKEW))).unwrap();
        assert_eq!(
            (said.holds, said.reason.as_str()),
            (false, "EngineVersionSkew")
        );
        assert_eq!(said.message, "container main: it has 0.3.11");
        let said = word(&pod(STOOD), Some(&report("True", OTHER))).unwrap();
        assert_eq!((said.holds, said.reason.as_str()), (true, "AsExpected"));
    }

    #[test]
    fn a_pod_in_which_nothing_was_ever_found_is_told_nothing() {
        assert_eq!(word(&pod(""), Some(&report("True", OTHER))), None);
        assert_eq!(word(&pod(""), None), None);
    }

    #[test]
    fn what_was_said_stands_while_the_agent_is_not_believed() {
        for doubted in [None, Some(report("False", "")), Some(report("Unknown", ""))] {
            let said = word(&pod(STOOD), doubted.as_ref()).unwrap();
            assert!(!said.holds);
            assert_eq!(said.message, "container main: it has 0.3.11");
        }
    }
}
