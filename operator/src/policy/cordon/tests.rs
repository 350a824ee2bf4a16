//! Which nodes are cordoned.

use crds::node::UnhealthyDevice;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn rule(max_nodes: u32) -> UnhealthyDevicesRule {
    UnhealthyDevicesRule {
        cordon_when: CordonWhen::AllUnhealthy,
        after_seconds: 300,
        max_nodes,
        repair: Some(Repair::Reboot),
    }
}

/// A node of two devices; `unhealthy` of them are unhealthy for an hour.
fn node(name: &str, unhealthy: u32, rule: UnhealthyDevicesRule) -> Candidate {
    let named = (0..unhealthy).map(|device| UnhealthyDevice {
        name: format!("mlx5_{device}"),
        reason: Reason::MkeyExhausted.into(),
    });
    Candidate {
        node: name.to_owned(),
        rule: Some(("p".to_owned(), rule)),
        devices: Some(DeviceHealth {
            known: 2,
            unhealthy,
            memlock: None,
            unhealthy_devices: named.collect(),
        }),
        unhealthy_for: HOUR,
        ..Candidate::default()
    }
}

/// Returns the node as it is after the operator cordoned it.
fn ours(candidate: Candidate) -> Candidate {
    Candidate {
        unschedulable: true,
        cordoned: true,
        requested: Some("Reboot: mlx5_0 MkeyExhausted".to_owned()),
        ..candidate
    }
}

/// Healthy nodes, so that fewer than half are unhealthy.
fn others(rule: UnhealthyDevicesRule) -> Vec<Candidate> {
    let names = ["w1", "w2", "w3", "w4"];
    names.map(|name| node(name, 0, rule)).to_vec()
}

fn planned(candidates: Vec<Candidate>) -> CordonPlan {
    let first = candidates[0].rule.as_ref();
    let rule = first.map_or_else(|| rule(1), |(_, rule)| *rule);
    let candidates = [others(rule), candidates].concat();
    plan(&candidates, None, Timestamp::from_second(3600).unwrap())
}

fn steps(candidates: Vec<Candidate>) -> Vec<(String, Step)> {
    planned(candidates).steps
}

fn cordoned(plan: &CordonPlan) -> Vec<&str> {
    let steps = plan.steps.iter();
    steps
        .filter(|(_, step)| matches!(step, Step::Cordon { .. }))
        .map(|(node, _)| node.as_str())
        .collect()
}

fn condition(plan: &CordonPlan) -> String {
    let it = &plan.conditions["p"];
    format!("{} {}: {}", it.state.as_str(), it.reason, it.message)
}

#[test]
fn a_node_whose_devices_are_all_unhealthy_is_cordoned_with_cause_and_repair() {
    let plan = planned(vec![node("n1", 2, rule(1)), node("n2", 1, rule(1))]);
    let cordon = Step::Cordon {
        why: "MkeyExhausted since 1970-01-01T00:00:00Z: mlx5_0, mlx5_1".to_owned(),
        repair: Some("Reboot: mlx5_0 MkeyExhausted, mlx5_1 MkeyExhausted".to_owned()),
    };
    assert_eq!(plan.steps, [("n1".to_owned(), cordon)]);
    assert_eq!(
        condition(&plan),
        "True AsExpected: 1 of at most 1 nodes are cordoned"
    );
    let any = UnhealthyDevicesRule {
        cordon_when: CordonWhen::AnyUnhealthy,
        repair: None,
        ..rule(2)
    };
    let plan = planned(vec![node("n2", 1, any), node("n3", 0, any)]);
    assert_eq!(cordoned(&plan), ["n2"]);
    assert!(matches!(plan.steps[0].1, Step::Cordon { repair: None, .. }));
}

#[test]
fn no_node_is_cordoned_before_its_delay_and_the_recheck_time_is_returned() {
    let early = |node: Candidate, seconds| Candidate {
        unhealthy_for: Duration::from_secs(seconds),
        ..node
    };
    let plan = planned(vec![
        early(node("n1", 2, rule(2)), 10),
        early(node("n2", 2, rule(2)), 299),
    ]);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.recheck, Some(Duration::from_secs(1)));
    let plan = planned(vec![early(node("n2", 2, rule(2)), 300)]);
    assert_eq!(cordoned(&plan), ["n2"]);
    assert_eq!(plan.recheck, None);
}

#[test]
fn at_most_max_nodes_are_cordoned_and_the_longest_unhealthy_first() {
    let longer = Candidate {
        unhealthy_for: HOUR * 2,
        ..node("n9", 2, rule(1))
    };
    let plan = planned(vec![node("n1", 2, rule(1)), longer.clone()]);
    assert_eq!(cordoned(&plan), ["n9"]);
    assert_eq!(
        condition(&plan),
        "False CordonLimitReached: not cordoned: n1; 1 of at most 1 nodes are cordoned"
    );
    let plan = planned(vec![node("n1", 2, rule(1)), ours(longer)]);
    assert_eq!(plan.steps, [], "cordoned nodes count");
    assert!(condition(&plan).starts_with("False CordonLimitReached: not cordoned: n1;"));
}

#[test]
fn when_more_than_half_are_unhealthy_no_further_node_is_cordoned_and_cordoned_ones_stay() {
    let many = rule(100);
    let mut candidates = others(many)[..2].to_vec();
    candidates.push(ours(node("n1", 2, many)));
    candidates.push(node("n2", 2, many));
    let now = Timestamp::UNIX_EPOCH;
    let decided = plan(&candidates, None, now);
    assert_eq!(cordoned(&decided), ["n2"], "half is not more than half");
    candidates.push(node("n3", 2, many));
    let decided = plan(&candidates, None, now);
    assert_eq!(decided.steps, []);
    assert_eq!(
        condition(&decided),
        "False MostNodesUnhealthy: not cordoned: n2, n3; 3 of 5 nodes have unhealthy RDMA devices, and 1 of at most \
         100 nodes are cordoned"
    );
    // Nodes without known devices do not change the share.
    let silent = Candidate {
        devices: None,
        ..node("n4", 0, many)
    };
    candidates.extend(std::iter::repeat_n(silent, 10));
    assert_eq!(plan(&candidates, None, now).steps, []);
}

#[test]
fn while_rules_are_unknown_no_node_changes_and_the_condition_names_those_that_wait() {
    let hold = Hold {
        reason: Reason::InvalidSpec,
        message: "MooncakeNodePolicy q cannot be read".to_owned(),
    };
    let healthy = ours(node("n1", 0, rule(1)));
    let mut candidates = others(rule(1));
    candidates.extend([healthy, node("n2", 2, rule(1))]);
    let now = Timestamp::UNIX_EPOCH;
    assert_eq!(plan(&candidates, None, now).steps.len(), 2);
    let held = plan(&candidates, Some(&hold), now);
    assert_eq!(held.steps, []);
    assert_eq!(
        condition(&held),
        "False InvalidSpec: not cordoned: n2; MooncakeNodePolicy q cannot be read"
    );
}

#[test]
fn a_cordoned_node_is_uncordoned_when_it_is_healthy_or_no_policy_has_a_rule() {
    let release = |name: &str| vec![(name.to_owned(), Step::Uncordon)];
    assert_eq!(steps(vec![ours(node("n1", 1, rule(1)))]), release("n1"));
    let unruled = Candidate {
        rule: None,
        ..ours(node("n1", 2, rule(1)))
    };
    assert_eq!(steps(vec![unruled]), release("n1"));
    assert_eq!(steps(vec![ours(node("n1", 2, rule(1)))]), []);
    let silent = Candidate {
        devices: None,
        ..ours(node("n1", 2, rule(1)))
    };
    assert_eq!(steps(vec![silent.clone()]), [], "unknown");
    let reloading = Candidate {
        devices: Some(DeviceHealth::default()),
        ..silent
    };
    assert_eq!(steps(vec![reloading]), [], "its driver reloads");
}

#[test]
fn a_manually_cordoned_or_uncordoned_node_is_not_touched() {
    let theirs = |unhealthy| Candidate {
        unschedulable: true,
        ..node("n1", unhealthy, rule(1))
    };
    assert_eq!(steps(vec![theirs(2)]), []);
    assert_eq!(steps(vec![theirs(0)]), []);
    let unruled = Candidate {
        rule: None,
        ..theirs(2)
    };
    assert_eq!(steps(vec![unruled]), []);
    let back = |unhealthy| Candidate {
        unschedulable: false,
        requested: None,
        ..ours(node("n1", unhealthy, rule(1)))
    };
    assert_eq!(steps(vec![back(2)]), [], "cordoned again");
    assert_eq!(
        steps(vec![back(0)]),
        [("n1".to_owned(), Step::Uncordon)],
        "the annotation is removed when it is healthy"
    );
    let plan = planned(vec![back(2), node("n2", 2, rule(1))]);
    assert_eq!(
        cordoned(&plan),
        ["n2"],
        "it does not count against maxNodes"
    );
}

#[test]
fn a_repair_is_requested_once_and_follows_the_policy() {
    let with = |requested: Option<&str>, repair| {
        let rule = UnhealthyDevicesRule { repair, ..rule(1) };
        let candidate = Candidate {
            requested: requested.map(str::to_owned),
            ..ours(node("n1", 2, rule))
        };
        steps(vec![candidate])
            .into_iter()
            .map(|(_, step)| step)
            .next()
    };
    let standing = Some("Reboot: mlx5_0 MkeyExhausted");
    assert_eq!(with(standing, Some(Repair::Reboot)), None);
    assert_eq!(
        with(None, Some(Repair::Reboot)),
        None,
        "a repair tool has removed it"
    );
    assert_eq!(with(standing, None), Some(Step::SetRepair(None)));
    let other = "DriverReload: mlx5_0 MkeyExhausted, mlx5_1 MkeyExhausted".to_owned();
    assert_eq!(
        with(standing, Some(Repair::DriverReload)),
        Some(Step::SetRepair(Some(other)))
    );
    let back = Candidate {
        unschedulable: false,
        ..ours(node("n1", 2, rule(1)))
    };
    let withdrawn = vec![("n1".to_owned(), Step::SetRepair(None))];
    assert_eq!(steps(vec![back]), withdrawn, "manually uncordoned");
}
