//! The status of each policy, from all policies and the labels of all nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::condition::merge;
use crds::{ConditionType, Finding, MooncakeNodePolicy, MooncakeNodePolicyStatus, Reason};
use jiff::Timestamp;
use kube::ResourceExt;

use super::choice;

/// Rivals that are named.
const NAMED: usize = 3;

/// What is known of one policy after all nodes.
#[derive(Debug, Default)]
struct Tally {
    selected: u32,
    holds: u32,
    /// Nodes for which others ask something else, and one of them.
    disputed: u32,
    example: Option<String>,
    rivals: BTreeSet<String>,
    /// Who holds there instead.
    instead: BTreeSet<String>,
}

/// What is to stand in each policy's status, over what stands there. `cordons`: what is said of the nodes
/// that a policy, by name, has cordoned.
pub fn statuses<'a>(
    policies: &'a [MooncakeNodePolicy],
    nodes: &BTreeMap<String, &BTreeMap<String, String>>,
    cordons: &BTreeMap<String, Finding>,
    now: Timestamp,
) -> Vec<(&'a MooncakeNodePolicy, MooncakeNodePolicyStatus)> {
    let all: Vec<&MooncakeNodePolicy> = policies.iter().collect();
    let mut tallies: Vec<Tally> = policies.iter().map(|_| Tally::default()).collect();
    for (node, labels) in nodes {
        let Some(choice) = choice::of(&all, labels) else {
            continue;
        };
        for (policy, tally) in policies.iter().zip(&mut tallies) {
            if choice::selects(policy, labels) {
                tally.note(policy, node, &choice);
            }
        }
    }
    let said = policies.iter().zip(tallies).map(|(policy, tally)| {
        let stands = policy
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        let generation = policy.metadata.generation;
        let cordons = cordons.get(&policy.name_any()).cloned();
        let findings: Vec<Finding> = [tally.finding()].into_iter().chain(cordons).collect();
        let status = MooncakeNodePolicyStatus {
            observed_generation: generation,
            selected: tally.selected,
            holds: tally.holds,
            conditions: merge(stands, &findings, generation, now),
        };
        (policy, status)
    });
    said.collect()
}

impl Tally {
    fn note(&mut self, policy: &MooncakeNodePolicy, node: &str, choice: &choice::Choice<'_>) {
        self.selected += 1;
        if choice.holds().metadata.uid == policy.metadata.uid {
            self.holds += 1;
        } else {
            self.instead.insert(choice.holds().name_any());
        }
        let rivals = choice.rivals(policy);
        if !rivals.is_empty() {
            self.disputed += 1;
            self.example.get_or_insert_with(|| node.to_owned());
            self.rivals
                .extend(rivals.into_iter().map(ResourceExt::name_any));
        }
    }

    fn finding(&self) -> Finding {
        let kind = ConditionType::Accepted;
        let Self {
            selected, holds, ..
        } = self;
        let instead = match self.instead.len() {
            0 => String::new(),
            _ => format!("; on the others {} holds", some(&self.instead)),
        };
        if let Some(example) = &self.example {
            let words = format!(
                "{} asks something else with the same priority for {} of {selected} nodes, e.g. \
                 {example}; this one holds on {holds}{instead}",
                some(&self.rivals),
                self.disputed,
            );
            return Finding::new(kind, false, Reason::PolicyConflict, words);
        }
        let words = match selected {
            0 => "no node has these labels".to_owned(),
            _ => format!("holds on {holds} of {selected} nodes that it selects{instead}"),
        };
        Finding::new(kind, true, Reason::AsExpected, words)
    }
}

pub(super) fn some(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::tests::policy;
    use super::*;

    fn told(policies: &[MooncakeNodePolicy], second: i64) -> Vec<MooncakeNodePolicyStatus> {
        let gpu = BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]);
        let plain = BTreeMap::new();
        let nodes = [("n1", &gpu), ("n2", &gpu), ("n3", &plain)];
        let nodes = nodes.map(|(name, labels)| (name.to_owned(), labels));
        let now = Timestamp::from_second(second).unwrap();
        let said = statuses(policies, &BTreeMap::from(nodes), &BTreeMap::new(), now);
        said.into_iter().map(|(_, status)| status).collect()
    }

    fn words(status: &MooncakeNodePolicyStatus) -> String {
        let [said] = status.conditions.as_slice() else {
            panic!("{status:?}")
        };
        assert_eq!(said.observed_generation, Some(3));
        format!("{} {}: {}", said.status, said.reason, said.message)
    }

    #[test]
    fn each_says_on_how_many_nodes_it_holds_and_who_holds_on_the_others() {
        let policies = [
            policy("all", 1, "{}"),
            policy("gpu", 2, "{nodeSelector: {gpu: 'yes'}, priority: 1}"),
            policy("typo", 2, "{nodeSelector: {gqu: 'yes'}}"),
        ];
        let said = told(&policies, 1);
        assert_eq!((said[0].selected, said[0].holds), (3, 1));
        assert_eq!(
            said.iter().map(words).collect::<Vec<_>>(),
            [
                "True AsExpected: holds on 1 of 3 nodes that it selects; on the others gpu holds",
                "True AsExpected: holds on 2 of 2 nodes that it selects",
                "True AsExpected: no node has these labels",
            ]
        );
    }

    #[test]
    fn a_conflict_is_told_by_both_with_the_others_name_and_who_holds() {
        let policies = [
            policy("old", 1, "{checks: [{id: RdmaCm, action: Warn}]}"),
            policy("new", 2, "{nodeSelector: {gpu: 'yes'}}"),
        ];
        let said = told(&policies, 1);
        assert_eq!(
            said.iter().map(words).collect::<Vec<_>>(),
            [
                "False PolicyConflict: new asks something else with the same priority for 2 of 3 \
                 nodes, e.g. n1; this one holds on 3",
                "False PolicyConflict: old asks something else with the same priority for 2 of 2 \
                 nodes, e.g. n1; this one holds on 0; on the others old holds",
            ]
        );
    }

    #[test]
    fn an_unchanged_world_gives_an_equal_status() {
        let mut policies = [policy("old", 1, "{}"), policy("new", 2, "{priority: 7}")];
        let first = told(&policies, 1);
        for (policy, status) in policies.iter_mut().zip(&first) {
            policy.status = Some(status.clone());
        }
        assert_eq!(told(&policies, 99), first);
    }
}
