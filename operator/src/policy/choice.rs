//! Selects the policy that applies to a node. Pure.
//!
//! ```text
//! selects the node --> highest priority --> the oldest, then by name
//! ```

use std::collections::BTreeMap;

use crds::MooncakeNodePolicy;
use crds::policy::{
    CheckRule, FixRule, HostPorts, HugepagesRule, PolicyInForce, ProbeRates, UnhealthyDevicesRule,
};
use kube::ResourceExt;

/// The policies of highest priority that select a node; the one that applies comes first.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<'a> {
    first: &'a MooncakeNodePolicy,
    others: Vec<&'a MooncakeNodePolicy>,
}

impl<'a> Choice<'a> {
    /// The policy that applies.
    pub fn holds(&self) -> &'a MooncakeNodePolicy {
        self.first
    }

    /// The policies with other rules than `policy` and the same priority; none if `policy` is not among
    /// the candidates.
    pub fn rivals(&self, policy: &MooncakeNodePolicy) -> Vec<&'a MooncakeNodePolicy> {
        let all = || [self.first].into_iter().chain(self.others.iter().copied());
        if !all().any(|other| other.metadata.uid == policy.metadata.uid) {
            return Vec::new();
        }
        let rules = rules(policy);
        all().filter(|other| self::rules(other) != rules).collect()
    }
}

/// The policies for a node with these labels; none if no policy selects it.
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

/// True if `policy` selects a node with these labels. A policy that is being deleted selects none.
pub fn selects(policy: &MooncakeNodePolicy, labels: &BTreeMap<String, String>) -> bool {
    let leaving = policy.metadata.deletion_timestamp.is_some();
    let mut selector = policy.spec.node_selector.iter();
    !leaving && selector.all(|(key, value)| labels.get(key) == Some(value))
}

/// The part of the policy that goes into MooncakeNode.spec.
pub fn in_force(policy: &MooncakeNodePolicy) -> PolicyInForce {
    let Rules {
        checks,
        fixes,
        hugepages,
        probes,
        host_ports,
        rdma_devices,
        // The operator alone acts on it.
        unhealthy_devices: _,
    } = rules(policy);
    PolicyInForce {
        name: policy.name_any(),
        checks,
        fixes,
        hugepages,
        probes,
        host_ports,
        rdma_devices,
    }
}

#[derive(PartialEq)]
struct Rules {
    checks: Vec<CheckRule>,
    fixes: Vec<FixRule>,
    hugepages: Vec<HugepagesRule>,
    unhealthy_devices: Option<UnhealthyDevicesRule>,
    probes: Option<ProbeRates>,
    host_ports: Option<HostPorts>,
    rdma_devices: Vec<String>,
}

/// The rules, sorted: their order has no meaning.
fn rules(policy: &MooncakeNodePolicy) -> Rules {
    let spec = &policy.spec;
    let (mut checks, mut fixes) = (spec.checks.clone(), spec.fixes.clone());
    checks.sort_unstable();
    // A user may list a check under both of its names. The stricter rule is the first.
    checks.dedup_by_key(|rule| rule.id);
    fixes.sort_unstable();
    let mut hugepages = spec.hugepages.clone();
    hugepages.sort_by_key(|rule| rule.page_size.bytes());
    let mut rdma_devices = spec.rdma_devices.clone();
    rdma_devices.sort_unstable();
    Rules {
        checks,
        fixes,
        hugepages,
        unhealthy_devices: spec.unhealthy_devices,
        probes: spec.probes,
        host_ports: spec.host_ports,
        rdma_devices,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A policy created in that second.
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

    fn applied(policies: &[MooncakeNodePolicy], on: &[(&str, &str)]) -> Option<String> {
        let policies: Vec<_> = policies.iter().collect();
        of(&policies, &labels(on)).map(|choice| choice.holds().name_any())
    }

    #[test]
    fn the_highest_priority_that_selects_the_node_applies() {
        let policies = [
            policy("all", 1, "{}"),
            policy("gpu", 2, "{nodeSelector: {gpu: h100}, priority: 10}"),
            policy(
                "rack",
                3,
                "{nodeSelector: {gpu: h100, rack: '7'}, priority: 5}",
            ),
        ];
        assert_eq!(applied(&policies, &[]).as_deref(), Some("all"));
        let on = [("gpu", "h100"), ("rack", "7")];
        assert_eq!(applied(&policies, &on).as_deref(), Some("gpu"));
        assert_eq!(
            applied(&policies, &[("gpu", "b200")]).as_deref(),
            Some("all")
        );
        assert_eq!(applied(&policies[1..], &[]), None);
    }

    #[test]
    fn of_equal_priorities_the_oldest_applies_and_each_knows_its_rivals() {
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
        assert_eq!(rivals(0), ["z", "fix", "more"], "a has the same rules");
        assert_eq!(rivals(2), ["fix", "more", "a", "b"], "the oldest first");
        assert_eq!(rivals(3), <[&str; 0]>::default(), "lower priority");
        assert_eq!(applied(&policies[..2], &[]).as_deref(), Some("a"));
    }

    #[test]
    fn probe_rates_reach_the_node_and_count_as_a_conflict() {
        let policies = [
            policy("seldom", 1, "{probes: {peerSeconds: 60}}"),
            policy("default", 2, "{}"),
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
    fn the_selected_devices_reach_the_node_in_one_sequence_and_count_as_a_conflict() {
        let policies = [
            policy("rails", 1, "{rdmaDevices: [mlx5_*, ^mlx5_8]}"),
            policy("same", 2, "{rdmaDevices: [^mlx5_8, mlx5_*]}"),
            policy("default", 3, "{}"),
        ];
        let devices = |of: usize| in_force(&policies[of]).rdma_devices;
        assert_eq!(devices(0), ["^mlx5_8", "mlx5_*"]);
        assert_eq!((devices(1), devices(2)), (devices(0), Vec::new()));
        let all: Vec<_> = policies.iter().collect();
        let rivals = of(&all, &BTreeMap::new()).unwrap().rivals(&policies[0]);
        assert_eq!(rivals, [&policies[2]]);
    }

    #[test]
    fn a_policy_that_is_being_deleted_selects_nothing() {
        let mut leaving = policy("p", 1, "{}");
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        assert_eq!(applied(&[leaving], &[]), None);
    }
}
