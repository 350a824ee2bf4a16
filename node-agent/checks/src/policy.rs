//! Applies a node's policy to its findings. Pure. Policy comes after debouncing, so that a change of policy
//! takes effect at once and no finding loses its time.

use crds::CheckId;
use crds::Verdict;
use crds::policy::{CheckAction, PolicyInForce};

use super::CheckRun;
use super::debounce::Health;

/// Removes the findings of ignored checks, and makes those of checks with `Warn` warnings. Without a policy nothing changes.
pub fn apply_policy(health: Health, runs: &[CheckRun], policy: Option<&PolicyInForce>) -> Health {
    let Some(policy) = policy else { return health };
    let ignored = |check: CheckId| policy.action(check) == CheckAction::Ignore;
    let mut findings = health.findings;
    findings.retain(|reported| !ignored(reported.check));
    for reported in &mut findings {
        if policy.action(reported.check) == CheckAction::Warn {
            reported.finding.verdict = Verdict::Warn;
        }
    }
    let mut left = runs.to_vec();
    left.retain(|run| !ignored(run.check));
    let mut health = Health::new(&left, findings);
    health.counts.ignored = u32::try_from(runs.len() - left.len()).unwrap_or(u32::MAX);
    health
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crds::Reason;
    use crds::policy::CheckRule;
    use jiff::Timestamp;

    use super::*;
    use crate::Observation;
    use crate::debounce::{Debounce, Delays, Moment};

    fn runs() -> Vec<CheckRun> {
        let run = |check, observations| CheckRun {
            check,
            delays: Delays::SHORT,
            observations,
            panicked: false,
        };
        let port = |port| Observation::fail(port, Reason::PortNotActive, "it is down");
        let mapped = Observation::warn("node", Reason::MapCountTooLow, "few");
        vec![
            run(CheckId::MapCount, vec![mapped]),
            run(
                CheckId::PortActive,
                vec![port("a port 1"), port("b port 1")],
            ),
            run(CheckId::RdmaCm, Vec::new()),
            run(CheckId::TimeWait, vec![Observation::pass("node")]),
        ]
    }

    fn governed(rules: &[(CheckId, CheckAction)]) -> Health {
        let now = Moment {
            up: Duration::ZERO,
            wall: Timestamp::UNIX_EPOCH,
        };
        let health = Debounce::default().update(&runs(), now);
        let policy = PolicyInForce {
            name: "p".to_owned(),
            checks: rules
                .iter()
                .map(|(id, action)| CheckRule {
                    id: *id,
                    action: *action,
                })
                .collect(),
            ..PolicyInForce::default()
        };
        apply_policy(health, &runs(), Some(&policy))
    }

    fn counts(health: &Health) -> [u32; 5] {
        let counts = health.counts;
        assert_eq!(counts.unknown, 0);
        [
            counts.failed,
            counts.warned,
            counts.passed,
            counts.not_applicable,
            counts.ignored,
        ]
    }

    #[test]
    fn an_ignored_check_has_no_findings_and_is_counted_as_ignored() {
        use CheckAction::{Enforce, Ignore};
        let health = governed(&[
            (CheckId::PortActive, Ignore),
            (CheckId::RdmaCm, Ignore),
            (CheckId::MapCount, Enforce),
        ]);
        assert_eq!(counts(&health), [0, 1, 1, 0, 2]);
        let checks: Vec<_> = health.findings.iter().map(|of| of.check).collect();
        assert_eq!(checks, [CheckId::MapCount]);
    }

    #[test]
    fn findings_of_a_check_that_may_only_warn_are_sorted_among_the_warnings() {
        let health = governed(&[(CheckId::PortActive, CheckAction::Warn)]);
        assert_eq!(counts(&health), [0, 2, 1, 1, 0]);
        let findings: Vec<_> = health
            .findings
            .iter()
            .map(|of| (of.check, of.subject.as_str(), of.finding.verdict))
            .collect();
        assert_eq!(
            findings,
            [
                (CheckId::MapCount, "node", Verdict::Warn),
                (CheckId::PortActive, "a port 1", Verdict::Warn),
                (CheckId::PortActive, "b port 1", Verdict::Warn),
            ]
        );
    }

    #[test]
    fn a_check_without_a_rule_is_enforced() {
        let health = governed(&[]);
        assert_eq!(counts(&health), [1, 1, 1, 1, 0]);
        assert_eq!(health.findings[0].finding.verdict, Verdict::Fail);
    }
}
