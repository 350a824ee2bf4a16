//! An agent that is ready, briefly absent, gone, and back.

use std::sync::Arc;

use crds::condition::merge;
use jiff::Timestamp;

use super::*;
use crate::node::observe::Ready;

const MOMENT: Duration = Duration::from_secs(3);

fn node(agents: &[&str]) -> Observed {
    let agent = |ready: &&str| {
        let text = format!(
            "{{metadata: {{name: agent-x}}, status: {{conditions: [{{type: Ready, status: '{ready}'}}]}}}}"
        );
        Arc::new(serde_yaml_ng::from_str::<Pod>(&text).unwrap())
    };
    Observed {
        name: "n1".to_owned(),
        ready: Some(Ready {
            holds: true,
            silent: false,
            message: String::new(),
        }),
        agents: agents.iter().map(agent).collect(),
        ..Observed::default()
    }
}

fn unresponsive() -> Observed {
    Observed {
        ready: Some(Ready {
            holds: false,
            silent: true,
            message: "kubelet stopped posting".to_owned(),
        }),
        ..node(&["True"])
    }
}

/// The conditions of a node whose agent serves.
fn good() -> Vec<Condition> {
    let mut findings = findings(&node(&["True"]), &[], Duration::ZERO);
    findings.push(NewCondition::new(
        ConditionType::PoolsServing,
        true,
        Reason::AsExpected,
        "1 of 1 pool pods served",
    ));
    merged(&[], &findings)
}

fn merged(old: &[Condition], findings: &[NewCondition]) -> Vec<Condition> {
    merge(old, findings, Some(1), Timestamp::UNIX_EPOCH)
}

fn summary(findings: &[NewCondition]) -> Vec<(&'static str, ConditionStatus, Reason)> {
    findings
        .iter()
        .map(|finding| (finding.kind.as_str(), finding.state, finding.reason))
        .collect()
}

#[test]
fn an_agent_is_alive_only_on_a_ready_node_with_a_ready_pod() {
    let reason = |observed: &Observed| findings(observed, &[], START_LIMIT)[0].reason;
    assert_eq!(reason(&node(&[])), Reason::AgentMissing);
    assert_eq!(reason(&node(&["False"])), Reason::AgentNotReady);
    assert_eq!(reason(&node(&["False", "True"])), Reason::AsExpected);
    let dead = findings(&unresponsive(), &[], Duration::ZERO);
    assert_eq!(dead[0].reason, Reason::NodeNotReady);
    assert!(dead[0].message.contains("kubelet stopped posting"));
}

#[test]
fn a_brief_absence_of_the_agent_changes_no_condition() {
    let good = good();
    for agents in [&[][..], &["False"]] {
        let now = findings(&node(agents), &good, MOMENT);
        assert_eq!(now.len(), 1, "the agent's conditions stay: {now:?}");
        assert_eq!(
            (now[0].state, now[0].message.as_str()),
            (ConditionStatus::True, "agent pod agent-x is ready")
        );
    }
}

#[test]
fn conditions_of_an_absent_agent_are_unknown() {
    let gone = findings(&node(&[]), &good(), ABSENCE_LIMIT);
    assert_eq!(
        summary(&gone),
        [
            ("AgentAlive", ConditionStatus::False, Reason::AgentMissing),
            (
                "PoolsServing",
                ConditionStatus::Unknown,
                Reason::AgentMissing
            ),
        ]
    );
    assert!(gone[1].message.contains("n1"));
}

#[test]
fn absence_is_not_tolerated_on_a_node_that_is_not_ready() {
    let lost = findings(&unresponsive(), &good(), Duration::ZERO);
    assert_eq!(lost[1].state, ConditionStatus::Unknown);
}

#[test]
fn a_first_agent_is_starting_and_not_missing_until_its_limit() {
    let starting = [("AgentAlive", ConditionStatus::Unknown, Reason::Progressing)];
    for agents in [&[][..], &["False"]] {
        let node = node(agents);
        let first = findings(&node, &[], MOMENT);
        assert_eq!(summary(&first), starting);
        let current = merged(&[], &first);
        let again = findings(&node, &current, ABSENCE_LIMIT);
        assert_eq!(summary(&again), starting, "an image is pulled");
        let late = findings(&node, &current, START_LIMIT);
        assert_eq!(late[0].state, ConditionStatus::False);
        let standing = merged(&current, &late);
        assert_eq!(findings(&node, &standing, MOMENT)[0].state, late[0].state);
    }
}

#[test]
fn conditions_stay_unknown_until_the_agent_reports() {
    let old = good();
    let gone = merged(&old, &findings(&node(&[]), &old, ABSENCE_LIMIT));
    let back = findings(&node(&["True"]), &gone, Duration::ZERO);
    assert_eq!(
        summary(&back),
        [
            ("AgentAlive", ConditionStatus::True, Reason::AsExpected),
            (
                "PoolsServing",
                ConditionStatus::Unknown,
                Reason::AgentMissing
            ),
        ]
    );
    let mut reported = merged(&gone, &back);
    reported[1].status = "True".to_owned();
    assert_eq!(
        findings(&node(&["True"]), &reported, Duration::ZERO).len(),
        1
    );
}

#[test]
fn node_health_of_an_absent_agent_is_unknown() {
    let mut old = good();
    let healthy = NewCondition::new(
        ConditionType::NodeHealthy,
        false,
        Reason::PortNotActive,
        "down",
    );
    old.extend(merged(&[], &[healthy]));
    let gone = findings(&node(&[]), &old, ABSENCE_LIMIT);
    let expected = [
        ("AgentAlive", ConditionStatus::False, Reason::AgentMissing),
        (
            "NodeHealthy",
            ConditionStatus::Unknown,
            Reason::AgentMissing,
        ),
        (
            "PoolsServing",
            ConditionStatus::Unknown,
            Reason::AgentMissing,
        ),
    ];
    assert_eq!(summary(&gone), expected);
    let current = merged(&old, &gone);
    let again = findings(&node(&[]), &current, ABSENCE_LIMIT);
    assert_eq!(summary(&again), expected, "nothing is written twice");
    assert_eq!(findings(&node(&["True"]), &old, Duration::ZERO).len(), 1);
}
