//! The status of each policy, from all policies and the labels of all nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::condition::merge;
use crds::text::first_names;
use crds::{ConditionType, MooncakeNodePolicy, MooncakeNodePolicyStatus, NewCondition, Reason};
use jiff::Timestamp;
use kube::ResourceExt;

use super::choice;

/// Most names in a message.
pub(super) const MAX_NAMES: usize = 3;

/// Counts for one policy over all nodes.
#[derive(Debug, Default)]
struct Tally {
    selected: u32,
    holds: u32,
    /// Nodes with conflicting policies of the same priority, and one example.
    disputed: u32,
    example: Option<String>,
    rivals: BTreeSet<String>,
    /// Policies that apply there instead.
    instead: BTreeSet<String>,
}

/// The new status of each policy, merged into its current one. `kept`: by node, the policy that cannot be decoded
/// and whose last rules apply there. `cordons`: by policy name, the condition about the nodes that it cordoned.
pub fn statuses<'a>(
    policies: &'a [MooncakeNodePolicy],
    nodes: &BTreeMap<String, &BTreeMap<String, String>>,
    kept: &BTreeMap<String, String>,
    cordons: &BTreeMap<String, NewCondition>,
    now: Timestamp,
) -> Vec<(&'a MooncakeNodePolicy, MooncakeNodePolicyStatus)> {
    let all: Vec<&MooncakeNodePolicy> = policies.iter().collect();
    let mut tallies: Vec<Tally> = policies.iter().map(|_| Tally::default()).collect();
    for (node, labels) in nodes {
        if let Some(undecodable) = kept.get(node) {
            for (policy, tally) in policies.iter().zip(&mut tallies) {
                if choice::selects(policy, labels) {
                    tally.selected += 1;
                    tally.instead.insert(undecodable.clone());
                }
            }
            continue;
        }
        let Some(choice) = choice::of(&all, labels) else {
            continue;
        };
        for (policy, tally) in policies.iter().zip(&mut tallies) {
            if choice::selects(policy, labels) {
                tally.note(policy, node, &choice);
            }
        }
    }
    let statuses = policies.iter().zip(tallies).map(|(policy, tally)| {
        let current = policy
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        let generation = policy.metadata.generation;
        let cordons = cordons.get(&policy.name_any()).cloned();
        let findings: Vec<NewCondition> = [tally.finding()].into_iter().chain(cordons).collect();
        let status = MooncakeNodePolicyStatus {
            observed_generation: generation,
            selected: tally.selected,
            holds: tally.holds,
            conditions: merge(current, &findings, generation, now),
        };
        (policy, status)
    });
    statuses.collect()
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

    fn finding(&self) -> NewCondition {
        let kind = ConditionType::Accepted;
        let Self {
            selected, holds, ..
        } = self;
        let instead = match self.instead.len() {
            0 => String::new(),
            _ => format!(
                "; {} applies to the others",
                first_names(&self.instead, MAX_NAMES)
            ),
        };
        if let Some(example) = &self.example {
            let message = format!(
                "conflicts with {}, which has the same priority, on {} of {selected} nodes, e.g. \
                 {example}; this policy applies to {holds}{instead}",
                first_names(&self.rivals, MAX_NAMES),
                self.disputed,
            );
            return NewCondition::new(kind, false, Reason::PolicyConflict, message);
        }
        let message = match selected {
            0 => "no node matches the nodeSelector".to_owned(),
            _ => format!("applies to {holds} of {selected} selected nodes{instead}"),
        };
        NewCondition::new(kind, true, Reason::AsExpected, message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::tests::policy;
    use super::*;

    fn computed(policies: &[MooncakeNodePolicy], second: i64) -> Vec<MooncakeNodePolicyStatus> {
        computed_with(policies, &BTreeMap::new(), second)
    }

    fn computed_with(
        policies: &[MooncakeNodePolicy],
        kept: &BTreeMap<String, String>,
        second: i64,
    ) -> Vec<MooncakeNodePolicyStatus> {
        let gpu = BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]);
        let plain = BTreeMap::new();
        let nodes = [("n1", &gpu), ("n2", &gpu), ("n3", &plain)];
        let nodes = nodes.map(|(name, labels)| (name.to_owned(), labels));
        let now = Timestamp::from_second(second).unwrap();
        let nodes = BTreeMap::from(nodes);
        let statuses = statuses(policies, &nodes, kept, &BTreeMap::new(), now);
        statuses.into_iter().map(|(_, status)| status).collect()
    }

    fn message(status: &MooncakeNodePolicyStatus) -> String {
        let [statuses] = status.conditions.as_slice() else {
            panic!("{status:?}")
        };
        assert_eq!(statuses.observed_generation, Some(3));
        format!(
            "{} {}: {}",
            statuses.status, statuses.reason, statuses.message
        )
    }

    #[test]
    fn status_counts_nodes_and_names_the_policies_of_the_others() {
        let policies = [
            policy("all", 1, "{}"),
            policy("gpu", 2, "{nodeSelector: {gpu: 'yes'}, priority: 1}"),
            policy("typo", 2, "{nodeSelector: {gqu: 'yes'}}"),
        ];
        let statuses = computed(&policies, 1);
        assert_eq!((statuses[0].selected, statuses[0].holds), (3, 1));
        assert_eq!(
            statuses.iter().map(message).collect::<Vec<_>>(),
            [
                "True AsExpected: applies to 1 of 3 selected nodes; gpu applies to the others",
                "True AsExpected: applies to 2 of 2 selected nodes",
                "True AsExpected: no node matches the nodeSelector",
            ]
        );
    }

    #[test]
    fn a_node_with_the_last_rules_of_another_policy_is_selected_and_not_counted_as_held() {
        let policies = [policy("all", 1, "{}")];
        let kept = BTreeMap::from([("n1".to_owned(), "gpu".to_owned())]);
        let statuses = computed_with(&policies, &kept, 1);
        assert_eq!(
            message(&statuses[0]),
            "True AsExpected: applies to 2 of 3 selected nodes; gpu applies to the others"
        );
    }

    #[test]
    fn both_conflicting_policies_name_the_other_and_the_one_that_applies() {
        let policies = [
            policy("old", 1, "{checks: [{id: RdmaCm, action: Warn}]}"),
            policy("new", 2, "{nodeSelector: {gpu: 'yes'}}"),
        ];
        let statuses = computed(&policies, 1);
        assert_eq!(
            statuses.iter().map(message).collect::<Vec<_>>(),
            [
                "False PolicyConflict: conflicts with new, which has the same priority, on 2 of 3 \
                 nodes, e.g. n1; this policy applies to 3",
                "False PolicyConflict: conflicts with old, which has the same priority, on 2 of 2 \
                 nodes, e.g. n1; this policy applies to 0; old applies to the others",
            ]
        );
    }

    #[test]
    fn unchanged_nodes_and_policies_give_an_equal_status() {
        let mut policies = [policy("old", 1, "{}"), policy("new", 2, "{priority: 7}")];
        let first = computed(&policies, 1);
        for (policy, status) in policies.iter_mut().zip(&first) {
            policy.status = Some(status.clone());
        }
        assert_eq!(computed(&policies, 99), first);
    }
}
