//! An agent that is there, away for a moment, gone, and back.

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

fn silent() -> Observed {
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
    let mut findings = findings(&node(&["True"]), &[], None);
    findings.push(Finding::new(
        ConditionType::PoolsServing,
        true,
        Reason::AsExpected,
        "1 of 1 pool pods served",
    ));
    stand(&[], &findings)
}

fn stand(old: &[Condition], findings: &[Finding]) -> Vec<Condition> {
    merge(old, findings, Some(1), Timestamp::UNIX_EPOCH)
}

fn told(findings: &[Finding]) -> Vec<(&'static str, State, Reason)> {
    findings
        .iter()
        .map(|finding| (finding.kind.as_str(), finding.state, finding.reason))
        .collect()
}

#[test]
fn an_agent_is_alive_only_on_a_ready_node_with_a_ready_pod() {
    let reason = |observed: &Observed| findings(observed, &[], None)[0].reason;
    assert_eq!(reason(&node(&[])), Reason::AgentMissing);
    assert_eq!(reason(&node(&["False"])), Reason::AgentNotReady);
    assert_eq!(reason(&node(&["False", "True"])), Reason::AsExpected);
    let dead = findings(&silent(), &[], None);
    assert_eq!(dead[0].reason, Reason::NodeNotReady);
    assert!(dead[0].message.contains("kubelet stopped posting"));
}

#[test]
fn an_agent_that_is_away_for_a_moment_changes_no_word() {
    let good = good();
    for agents in [&[][..], &["False"]] {
        let now = findings(&node(agents), &good, Some(MOMENT));
        assert_eq!(now.len(), 1, "what the agent said stays its own: {now:?}");
        assert_eq!(
            (now[0].state, now[0].message.as_str()),
            (State::True, "agent pod agent-x is ready")
        );
    }
}

#[test]
fn an_agent_that_is_gone_leaves_nothing_but_doubt() {
    let gone = findings(&node(&[]), &good(), Some(AWAY));
    assert_eq!(
        told(&gone),
        [
            ("AgentAlive", State::False, Reason::AgentMissing),
            ("PoolsServing", State::Unknown, Reason::AgentMissing),
        ]
    );
    assert!(gone[1].message.contains("n1"));
}

#[test]
fn nobody_waits_for_the_agent_of_a_node_that_is_not_ready_or_that_never_had_one() {
    let lost = findings(&silent(), &good(), None);
    assert_eq!(lost[1].state, State::Unknown);
    let never = findings(&node(&["False"]), &[], Some(MOMENT));
    assert_eq!(
        told(&never),
        [("AgentAlive", State::False, Reason::AgentNotReady)]
    );
}

#[test]
fn doubt_stays_until_the_agent_has_spoken_itself() {
    let old = good();
    let gone = stand(&old, &findings(&node(&[]), &old, Some(AWAY)));
    let back = findings(&node(&["True"]), &gone, None);
    assert_eq!(
        told(&back),
        [
            ("AgentAlive", State::True, Reason::AsExpected),
            ("PoolsServing", State::Unknown, Reason::AgentMissing),
        ]
    );
    let mut spoke = stand(&gone, &back);
    spoke[1].status = "True".to_owned();
    assert_eq!(findings(&node(&["True"]), &spoke, None).len(), 1);
}

#[test]
fn what_an_agent_that_is_gone_said_of_its_node_is_in_doubt_as_well() {
    let mut old = good();
    let healthy = Finding::new(
        ConditionType::NodeHealthy,
        false,
        Reason::PortNotActive,
        "down",
    );
    old.extend(stand(&[], &[healthy]));
    let gone = findings(&node(&[]), &old, Some(AWAY));
    let expected = [
        ("AgentAlive", State::False, Reason::AgentMissing),
        ("NodeHealthy", State::Unknown, Reason::AgentMissing),
        ("PoolsServing", State::Unknown, Reason::AgentMissing),
    ];
    assert_eq!(told(&gone), expected);
    let stands = stand(&old, &gone);
    let again = findings(&node(&[]), &stands, Some(AWAY));
    assert_eq!(told(&again), expected, "nothing is written twice");
    assert_eq!(findings(&node(&["True"]), &old, None).len(), 1);
}
