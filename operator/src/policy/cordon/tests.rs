//! Who is cordoned, and who is not.

use crds::node::SickDevice;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn asked(max_nodes: u32) -> SickDevices {
    SickDevices {
        cordon_when: CordonWhen::AllAreSick,
        after_seconds: 300,
        max_nodes,
        repair: Some(Repair::Reboot),
    }
}

/// A node of two devices, so many of them sick for an hour.
fn node(name: &str, sick: u32, asked: SickDevices) -> Patient {
    let named = (0..sick).map(|device| SickDevice {
        name: format!("mlx5_{device}"),
        reason: Reason::MkeyExhausted,
    });
    Patient {
        node: name.to_owned(),
        rule: Some(("p".to_owned(), asked)),
        devices: Some(DeviceHealth {
            known: 2,
            sick,
            memlock: None,
            named: named.collect(),
        }),
        ailing: HOUR,
        ..Patient::default()
    }
}

/// As it stands when it was cordoned by us.
fn ours(patient: Patient) -> Patient {
    Patient {
        unschedulable: true,
        cordoned: true,
        requested: Some("Reboot: mlx5_0 MkeyExhausted".to_owned()),
        ..patient
    }
}

/// Nodes that are well, so that the sick are few.
fn others(asked: SickDevices) -> Vec<Patient> {
    let names = ["w1", "w2", "w3", "w4"];
    names.map(|name| node(name, 0, asked)).to_vec()
}

fn planned(patients: Vec<Patient>) -> Plan {
    let rule = patients[0].rule.as_ref();
    let asked = rule.map_or_else(|| asked(1), |(_, asked)| *asked);
    let patients = [others(asked), patients].concat();
    plan(&patients, Timestamp::from_second(3600).unwrap())
}

fn steps(patients: Vec<Patient>) -> Vec<(String, Step)> {
    planned(patients).steps
}

fn cordoned(plan: &Plan) -> Vec<&str> {
    let steps = plan.steps.iter();
    steps
        .filter(|(_, step)| matches!(step, Step::Cordon { .. }))
        .map(|(node, _)| node.as_str())
        .collect()
}

fn said(plan: &Plan) -> String {
    let said = &plan.said["p"];
    format!("{} {}: {}", said.state.as_str(), said.reason, said.message)
}

#[test]
fn s12_a_node_is_cordoned_with_why_and_what_is_to_be_done_when_all_its_devices_are_sick() {
    let plan = planned(vec![node("n1", 2, asked(1)), node("n2", 1, asked(1))]);
    let cordon = Step::Cordon {
        why: "MkeyExhausted since 1970-01-01T00:00:00Z: mlx5_0, mlx5_1".to_owned(),
        repair: Some("Reboot: mlx5_0 MkeyExhausted, mlx5_1 MkeyExhausted".to_owned()),
    };
    assert_eq!(plan.steps, [("n1".to_owned(), cordon)]);
    assert_eq!(
        said(&plan),
        "True AsExpected: 1 of at most 1 nodes are cordoned"
    );
    let any = SickDevices {
        cordon_when: CordonWhen::AnyIsSick,
        repair: None,
        ..asked(2)
    };
    let plan = planned(vec![node("n2", 1, any), node("n3", 0, any)]);
    assert_eq!(cordoned(&plan), ["n2"]);
    assert!(matches!(plan.steps[0].1, Step::Cordon { repair: None, .. }));
}

#[test]
fn nobody_is_cordoned_before_its_time_and_it_is_said_when_to_look_again() {
    let early = |node: Patient, seconds| Patient {
        ailing: Duration::from_secs(seconds),
        ..node
    };
    let plan = planned(vec![
        early(node("n1", 2, asked(2)), 10),
        early(node("n2", 2, asked(2)), 299),
    ]);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.again, Some(Duration::from_secs(1)));
    let plan = planned(vec![early(node("n2", 2, asked(2)), 300)]);
    assert_eq!(cordoned(&plan), ["n2"]);
    assert_eq!(plan.again, None);
}

#[test]
fn no_more_are_cordoned_than_the_policy_allows_and_the_longest_sick_comes_first() {
    let longer = Patient {
        ailing: HOUR * 2,
        ..node("n9", 2, asked(1))
    };
    let plan = planned(vec![node("n1", 2, asked(1)), longer.clone()]);
    assert_eq!(cordoned(&plan), ["n9"]);
    assert_eq!(
        said(&plan),
        "False CordonBudgetSpent: not cordoned: n1; 1 of at most 1 nodes are cordoned"
    );
    let plan = planned(vec![node("n1", 2, asked(1)), ours(longer)]);
    assert_eq!(plan.steps, [], "who is cordoned counts");
    assert!(said(&plan).starts_with("False CordonBudgetSpent: not cordoned: n1;"));
}

#[test]
fn where_more_than_half_are_sick_no_further_one_is_cordoned_and_who_is_stays_so() {
    let many = asked(100);
    let mut patients = others(many)[..2].to_vec();
    patients.push(ours(node("n1", 2, many)));
    patients.push(node("n2", 2, many));
    let now = Timestamp::UNIX_EPOCH;
    let decided = plan(&patients, now);
    assert_eq!(cordoned(&decided), ["n2"], "half is not more than half");
    patients.push(node("n3", 2, many));
    let decided = plan(&patients, now);
    assert_eq!(decided.steps, []);
    assert_eq!(
        said(&decided),
        "False MostNodesSick: not cordoned: n2, n3; 3 of 5 nodes have sick RDMA devices, and 1 of at most \
         100 nodes are cordoned"
    );
    // Nodes without devices, and those that say nothing, make the sick no fewer.
    let silent = Patient {
        devices: None,
        ..node("n4", 0, many)
    };
    patients.extend(std::iter::repeat_n(silent, 10));
    assert_eq!(plan(&patients, now).steps, []);
}

#[test]
fn a_node_of_ours_is_given_back_when_it_is_well_or_no_policy_asks() {
    let release = |name: &str| vec![(name.to_owned(), Step::Release)];
    assert_eq!(steps(vec![ours(node("n1", 1, asked(1)))]), release("n1"));
    let unruled = Patient {
        rule: None,
        ..ours(node("n1", 2, asked(1)))
    };
    assert_eq!(steps(vec![unruled]), release("n1"));
    assert_eq!(steps(vec![ours(node("n1", 2, asked(1)))]), []);
    let silent = Patient {
        devices: None,
        ..ours(node("n1", 2, asked(1)))
    };
    assert_eq!(steps(vec![silent.clone()]), [], "nobody knows");
    let reloading = Patient {
        devices: Some(DeviceHealth::default()),
        ..silent
    };
    assert_eq!(steps(vec![reloading]), [], "its driver is away");
}

#[test]
fn what_a_person_has_cordoned_or_taken_back_is_theirs() {
    let theirs = |sick| Patient {
        unschedulable: true,
        ..node("n1", sick, asked(1))
    };
    assert_eq!(steps(vec![theirs(2)]), []);
    assert_eq!(steps(vec![theirs(0)]), []);
    let unruled = Patient {
        rule: None,
        ..theirs(2)
    };
    assert_eq!(steps(vec![unruled]), []);
    let back = |sick| Patient {
        unschedulable: false,
        requested: None,
        ..ours(node("n1", sick, asked(1)))
    };
    assert_eq!(steps(vec![back(2)]), [], "cordoned again");
    assert_eq!(
        steps(vec![back(0)]),
        [("n1".to_owned(), Step::Release)],
        "the mark of an end that has come stays"
    );
    let plan = planned(vec![back(2), node("n2", 2, asked(1))]);
    assert_eq!(cordoned(&plan), ["n2"], "it takes no room");
}

#[test]
fn a_repair_is_asked_for_once_and_follows_the_policy() {
    let with = |requested: Option<&str>, repair| {
        let asked = SickDevices { repair, ..asked(1) };
        let patient = Patient {
            requested: requested.map(str::to_owned),
            ..ours(node("n1", 2, asked))
        };
        steps(vec![patient])
            .into_iter()
            .map(|(_, step)| step)
            .next()
    };
    let standing = Some("Reboot: mlx5_0 MkeyExhausted");
    assert_eq!(with(standing, Some(Repair::Reboot)), None);
    assert_eq!(
        with(None, Some(Repair::Reboot)),
        None,
        "a tool has heard it"
    );
    assert_eq!(with(standing, None), Some(Step::Request(None)));
    let other = "DriverReload: mlx5_0 MkeyExhausted, mlx5_1 MkeyExhausted".to_owned();
    assert_eq!(
        with(standing, Some(Repair::DriverReload)),
        Some(Step::Request(Some(other)))
    );
    let back = Patient {
        unschedulable: false,
        ..ours(node("n1", 2, asked(1)))
    };
    let withdrawn = vec![("n1".to_owned(), Step::Request(None))];
    assert_eq!(steps(vec![back]), withdrawn, "a person has taken it back");
}
