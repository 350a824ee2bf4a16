//! Which of several policies holds on a node. Pure.
//!
//! ```text
//! selects the node --> highest priority --> the oldest, by name where two are as old
//! ```

use std::collections::BTreeMap;

use crds::MooncakeNodePolicy;
use crds::policy::{
    CheckRule, FixRule, HostPorts, HugepagesRule, PolicyInForce, ProbeRates, SickDevices,
};
use kube::ResourceExt;

/// The policies that come into question for a node: all of the highest priority that is there, the one
/// that holds first.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<'a> {
    first: &'a MooncakeNodePolicy,
    others: Vec<&'a MooncakeNodePolicy>,
}

impl<'a> Choice<'a> {
    /// The one that holds.
    pub fn holds(&self) -> &'a MooncakeNodePolicy {
        self.first
    }

    /// Those that ask something else than `policy` does and have its priority; none where it is out of
    /// the question itself.
    pub fn rivals(&self, policy: &MooncakeNodePolicy) -> Vec<&'a MooncakeNodePolicy> {
        let all = || [self.first].into_iter().chain(self.others.iter().copied());
        if !all().any(|other| other.metadata.uid == policy.metadata.uid) {
            return Vec::new();
        }
        let asked = asked(policy);
        all().filter(|other| self::asked(other) != asked).collect()
    }
}

/// The policies for a node with these labels; none where nobody selects it.
pub fn of<'a>(
    policies: &[&'a MooncakeNodePolicy],
    labels: &BTreeMap<String, String>,
) -> Option<Choice<'a>> {
    let selecting = || policies.iter().filter(|policy| selects(policy, labels));
    let highest = selecting().map(|policy| policy.spec.priority).max()?;
    let mut all: Vec<&MooncakeNodePolicy> = selecting()
        .filter(|policy| policy.spec.priority == highest)
        .copied()
        .collect();
    all.sort_by_key(|policy| {
        let made = policy.creation_timestamp().map(|time| time.0);
        (made, policy.name_any())
    });
    let mut all = all.into_iter();
    Some(Choice {
        first: all.next()?,
        others: all.collect(),
    })
}

/// True where a node with these labels is meant. A policy that is being deleted means none.
pub fn selects(policy: &MooncakeNodePolicy, labels: &BTreeMap<String, String>) -> bool {
    let leaving = policy.metadata.deletion_timestamp.is_some();
    let mut wanted = policy.spec.node_selector.iter();
    !leaving && wanted.all(|(key, value)| labels.get(key) == Some(value))
}

/// As a node is told of it.
pub fn in_force(policy: &MooncakeNodePolicy) -> PolicyInForce {
    let Asked {
        checks,
        fixes,
        hugepages,
        probes,
        host_ports,
        // What becomes of the node itself is the operator's.
        sick_devices: _,
    } = asked(policy);
    PolicyInForce {
        name: policy.name_any(),
        checks,
        fixes,
        hugepages,
        probes,
        host_ports,
    }
}

#[derive(PartialEq)]
struct Asked {
    checks: Vec<CheckRule>,
    fixes: Vec<FixRule>,
    hugepages: Vec<HugepagesRule>,
    sick_devices: Option<SickDevices>,
    probes: Option<ProbeRates>,
    host_ports: Option<HostPorts>,
}

/// What it asks, in an order that means nothing.
fn asked(policy: &MooncakeNodePolicy) -> Asked {
    let spec = &policy.spec;
    let (mut checks, mut fixes) = (spec.checks.clone(), spec.fixes.clone());
    checks.sort_unstable();
    fixes.sort_unstable();
    let mut hugepages = spec.hugepages.clone();
    hugepages.sort_by_key(|rule| rule.page_size.bytes());
    Asked {
        checks,
        fixes,
        hugepages,
        sick_devices: spec.sick_devices,
        probes: spec.probes,
        host_ports: spec.host_ports,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Made in the second that is told.
    pub(in crate::policy) fn policy(name: &str, second: u8, spec: &str) -> MooncakeNodePolicy {
        let text = format!(
            "{{apiVersion: mooncake.io/v1alpha1, kind: MooncakeNodePolicy, spec: {spec}, metadata: \
             {{name: {name}, uid: uid-{name}, generation: 3, \
             creationTimestamp: '2026-01-01T00:00:{second:02}Z'}}}}"
        );
        serde_yaml_ng::from_str(&text).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn holding(policies: &[MooncakeNodePolicy], on: &[(&str, &str)]) -> Option<String> {
        let policies: Vec<_> = policies.iter().collect();
        of(&policies, &labels(on)).map(|choice| choice.holds().name_any())
    }

    #[test]
    fn the_highest_priority_that_selects_the_node_holds() {
        let policies = [
            policy("all", 1, "{}"),
            policy("gpu", 2, "{nodeSelector: {gpu: h100}, priority: 10}"),
            policy(
                "rack",
                3,
                "{nodeSelector: {gpu: h100, rack: '7'}, priority: 5}",
            ),
        ];
        assert_eq!(holding(&policies, &[]).as_deref(), Some("all"));
        let on = [("gpu", "h100"), ("rack", "7")];
        assert_eq!(holding(&policies, &on).as_deref(), Some("gpu"));
        assert_eq!(
            holding(&policies, &[("gpu", "b200")]).as_deref(),
            Some("all")
        );
        assert_eq!(holding(&policies[1..], &[]), None);
    }

    #[test]
    fn of_equal_priorities_the_oldest_holds_and_each_knows_who_asks_something_else() {
        let warn = "{checks: [{id: MapCount, action: Warn}, {id: RdmaCm, action: Ignore}]}";
        let same = "{checks: [{id: RdmaCm, action: Ignore}, {id: MapCount, action: Warn}]}";
        let policies = [
            policy("b", 9, warn),
            policy("a", 9, same),
            policy("z", 2, "{checks: [{id: MapCount, action: Ignore}]}"),
            policy("low", 1, "{priority: -1}"),
            policy("fix", 3, "{fixes: [{id: MaxMapCount, mode: DryRun}]}"),
            policy(
                "more",
                4,
                "{fixes: [{id: MaxMapCount, mode: DryRun}], hugepages: [{pageSize: 2Mi, perNumaNode: 4Gi}]}",
            ),
        ];
        let all: Vec<_> = policies.iter().collect();
        let choice = of(&all, &BTreeMap::new()).unwrap();
        assert_eq!(choice.holds().name_any(), "z");
        let rivals = |of: usize| -> Vec<String> {
            let rivals = choice.rivals(&policies[of]);
            rivals.iter().map(|policy| policy.name_any()).collect()
        };
        assert_eq!(rivals(0), ["z", "fix", "more"], "a asks the same");
        assert_eq!(rivals(2), ["fix", "more", "a", "b"], "the oldest first");
        assert_eq!(
            rivals(3),
            <[&str; 0]>::default(),
            "it is out of the question"
        );
        assert_eq!(holding(&policies[..2], &[]).as_deref(), Some("a"));
    }

    #[test]
    fn a_node_hears_how_often_to_try_and_rivals_differ_in_that_as_well() {
        let policies = [
            policy("seldom", 1, "{probes: {peerSeconds: 60}}"),
            policy("never-said", 2, "{}"),
        ];
        let probes = |of: usize| in_force(&policies[of]).probes;
        let seldom = ProbeRates {
            peer_seconds: 60,
            device_seconds: 8,
        };
        assert_eq!((probes(0), probes(1)), (Some(seldom), None));
        let all: Vec<_> = policies.iter().collect();
        let choice = of(&all, &BTreeMap::new()).unwrap();
        assert_eq!(choice.rivals(&policies[0]).len(), 1);
    }

    #[test]
    fn a_policy_that_is_being_deleted_selects_nothing() {
        let mut leaving = policy("p", 1, "{}");
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        assert_eq!(holding(&[leaving], &[]), None);
    }
}
