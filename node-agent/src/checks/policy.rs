//! What is told of a node by the policy that holds there. Pure. It comes after what is steady, so that
//! a policy that comes or goes is seen at once and no finding loses its time.

use crds::CheckId;
use crds::Verdict;
use crds::policy::{CheckAction, PolicyInForce};

use super::Judged;
use super::steady::Health;

/// Without a policy all of it is told.
pub fn govern(health: Health, round: &[Judged], policy: Option<&PolicyInForce>) -> Health {
    let Some(policy) = policy else { return health };
    let ignored = |check: CheckId| policy.action(check) == CheckAction::Ignore;
    let mut told = health.told;
    told.retain(|told| !ignored(told.check));
    for told in &mut told {
        if policy.action(told.check) == CheckAction::Warn {
            told.trouble.verdict = Verdict::Warn;
        }
    }
    let left: Vec<Judged> = round
        .iter()
        .filter(|judged| !ignored(judged.check))
        .cloned()
        .collect();
    let mut governed = Health::of(&left, told);
    governed.counts.ignored = u32::try_from(round.len() - left.len()).unwrap_or(u32::MAX);
    governed
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crds::Reason;
    use crds::policy::CheckRule;
    use jiff::Timestamp;

    use super::*;
    use crate::checks::Said;
    use crate::checks::steady::{Moment, Patience, Steady};

    fn round() -> Vec<Judged> {
        let judged = |check, said| Judged {
            check,
            patience: Patience::SHORT,
            said,
            broken: false,
        };
        let port = |port| Said::fail(port, Reason::PortNotActive, "it is down");
        let mapped = Said::warn("node", Reason::MapCountTooLow, "few");
        vec![
            judged(CheckId::MapCount, vec![mapped]),
            judged(
                CheckId::PortActive,
                vec![port("a port 1"), port("b port 1")],
            ),
            judged(CheckId::RdmaCm, Vec::new()),
            judged(CheckId::TimeWait, vec![Said::pass("node")]),
        ]
    }

    fn governed(rules: &[(CheckId, CheckAction)]) -> Health {
        let now = Moment {
            up: Duration::ZERO,
            wall: Timestamp::UNIX_EPOCH,
        };
        let health = Steady::default().note(&round(), now);
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
        govern(health, &round(), Some(&policy))
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
    fn what_is_ignored_is_neither_told_nor_counted_as_found_and_is_counted_as_ignored() {
        use CheckAction::{Enforce, Ignore};
        let health = governed(&[
            (CheckId::PortActive, Ignore),
            (CheckId::RdmaCm, Ignore),
            (CheckId::MapCount, Enforce),
        ]);
        assert_eq!(counts(&health), [0, 1, 1, 0, 2]);
        let told: Vec<_> = health.told.iter().map(|told| told.check).collect();
        assert_eq!(told, [CheckId::MapCount]);
    }

    #[test]
    fn what_is_to_warn_is_never_worse_and_stands_in_its_place() {
        let health = governed(&[(CheckId::PortActive, CheckAction::Warn)]);
        assert_eq!(counts(&health), [0, 2, 1, 1, 0]);
        let told: Vec<_> = health
            .told
            .iter()
            .map(|told| (told.check, told.subject.as_str(), told.trouble.verdict))
            .collect();
        assert_eq!(
            told,
            [
                (CheckId::MapCount, "node", Verdict::Warn),
                (CheckId::PortActive, "a port 1", Verdict::Warn),
                (CheckId::PortActive, "b port 1", Verdict::Warn),
            ]
        );
    }

    #[test]
    fn what_no_rule_names_is_told_as_it_is() {
        let health = governed(&[]);
        assert_eq!(counts(&health), [1, 1, 1, 1, 0]);
        assert_eq!(health.told[0].trouble.verdict, Verdict::Fail);
    }
}
