//! The status that follows from reports.

use super::*;
use crate::checks::Trouble;
use crate::checks::steady::Told;
use crds::cluster::{NumaPolicy, PageSize};
use crds::inventory::{NoGid, PortState};
use crds::node::{HcaLine, PoolAssignment, SICK_LIMIT, SickDevice};
use crds::{CheckCounts, CheckId, Verdict};

fn assignment(index: usize) -> PoolAssignment {
    PoolAssignment {
        pod_uid: format!("uid-{index}"),
        pod_name: format!("c-pool-default-{index}"),
        namespace: "ns".to_owned(),
        cluster: "c".to_owned(),
        cluster_uid: "cu".to_owned(),
        pool: "default".to_owned(),
        size: ByteSize(1 << 30),
        page_size: PageSize::Base,
        numa_policy: NumaPolicy::Spread,
        drain_seconds: 5,
        master: None,
        allow_host_network: false,
        addresses: Vec::new(),
    }
}

fn report(index: usize, state: PoolState, reason: Reason) -> PoolReport {
    PoolReport {
        pod_uid: format!("uid-{index}"),
        namespace: "ns".to_owned(),
        pod_name: format!("c-pool-default-{index}"),
        state,
        reason,
        message: "m".repeat(600),
        endpoint: "198.18.0.1:12001".to_owned(),
        master_pod_uid: "master".to_owned(),
        data_epoch: 1,
        segments: vec!["c.default.n1.0".to_owned(); 64],
        mounted: Some(ByteSize(1 << 30)),
        page_size_obtained: Some(ByteSize(4096)),
    }
}

fn spec(count: usize) -> MooncakeNodeSpec {
    MooncakeNodeSpec {
        domains: Vec::new(),
        injected: Vec::new(),
        probes: Vec::new(),
        probers: Vec::new(),
        policy: None,
        room: None,
        gpu_driver_upgrade: false,
        node_uid: "node".to_owned(),
        boot_id: "boot".to_owned(),
        pools: (0..count).map(assignment).collect(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// What stood there before, with these conditions.
fn stood(conditions: &[Condition]) -> MooncakeNodeStatus {
    MooncakeNodeStatus {
        conditions: conditions.to_vec(),
        ..MooncakeNodeStatus::default()
    }
}

fn noted(reports: &[PoolReport]) -> Noted {
    Noted {
        reports: reports.to_vec(),
        ..Noted::default()
    }
}

/// So many ports that are down since a second.
fn sick(ports: usize, since: i64) -> Noted {
    let told = (0..ports).map(|port| Told {
        check: CheckId::PortActive,
        subject: format!("mlx5_bond_{port} port 1"),
        trouble: Trouble {
            verdict: Verdict::Fail,
            reason: Reason::PortNotActive,
            words: "w".repeat(400),
        },
        since: at(since),
        flaps: false,
    });
    Noted {
        health: Some(Health {
            counts: CheckCounts {
                failed: u32::from(ports > 0),
                passed: 11,
                ..CheckCounts::default()
            },
            told: told.collect(),
        }),
        ..Noted::default()
    }
}

/// So many devices, all of them sick.
fn devices(count: u32) -> DeviceHealth {
    let named = (0..count).take(SICK_LIMIT).map(|device| SickDevice {
        name: format!("mlx5_bond_{device}"),
        reason: Reason::RegistrationFailed,
    });
    DeviceHealth {
        known: count,
        sick: count,
        memlock: Some(ByteSize(8 << 20)),
        named: named.collect(),
    }
}

#[test]
fn a_node_that_has_lost_its_devices_says_nothing_of_them() {
    let noted = |count| Noted {
        devices: Some(devices(count)),
        ..Noted::default()
    };
    let before = compose(&spec(0), "boot", noted(1), &stood(&[]), &[], at(1));
    assert!(before.devices.is_some());
    let lost = compose(&spec(0), "boot", noted(0), &before, &[], at(2));
    assert_eq!(lost.devices, None);
}

#[test]
fn a_status_keeps_its_bound_with_as_many_pods_as_a_spec_may_list() {
    let spec = spec(20);
    let reports: Vec<_> = (0..20)
        .map(|i| report(i, PoolState::Serving, Reason::AsExpected))
        .collect();
    let line = HcaLine {
        name: "mlx5_bond_10".to_owned(),
        port: 1,
        state: Some(PortState::Initializing),
        rate_mbps: Some(400_000),
        gid: None,
        no_gid: Some(NoGid::OtherLinkLayer),
    };
    let noted = Noted {
        hcas: Some((vec![line; 16], Some(112))),
        devices: Some(devices(128)),
        reports,
        ..sick(40, 1)
    };
    let status = compose(&spec, "boot", noted, &stood(&[]), &[], at(1));
    assert!(serde_json::to_vec(&status).unwrap().len() <= STATUS_LIMIT);
    assert_eq!(status.pools.len(), 20);
    assert_eq!(status.devices.unwrap().named.len(), SICK_LIMIT);
    assert_eq!(status.findings.len(), 8, "the worst are left");
    assert_eq!(status.capacity, Some(ByteSize(20 << 30)));
    // Every port has a line or is counted.
    let omitted = status.hcas_omitted.unwrap();
    assert_eq!(status.hcas.len() as u64 + u64::from(omitted), 128);
}

#[test]
fn nothing_changed_gives_an_equal_status_whatever_the_time() {
    let reports = [report(0, PoolState::Serving, Reason::AsExpected)];
    let noted = |since| Noted {
        reports: reports.to_vec(),
        ..sick(2, since)
    };
    let first = compose(&spec(1), "boot", noted(1), &stood(&[]), &[], at(1));
    // Another agent sees it for the first time later.
    let again = compose(&spec(1), "boot", noted(90), &first, &[], at(99));
    assert_eq!(first, again);
    assert_eq!(first.findings[0].since.0, at(1));
    let rebooted = compose(&spec(1), "next", noted(90), &first, &[], at(99));
    assert_eq!(rebooted.findings[0].since.0, at(90));
}

#[test]
fn an_agent_that_has_just_started_lets_stand_what_stood_until_it_has_looked() {
    let line = HcaLine {
        name: "mlx5_0".to_owned(),
        port: 1,
        state: Some(PortState::Active),
        rate_mbps: Some(400_000),
        gid: Some(3),
        no_gid: None,
    };
    let looked = Noted {
        hcas: Some((vec![line], None)),
        devices: Some(devices(1)),
        ..sick(2, 1)
    };
    let first = compose(&spec(0), "boot", looked, &stood(&[]), &[], at(1));
    let started = |boot: &str| {
        let nothing = Noted::default();
        compose(&spec(0), boot, nothing, &first, &[], at(9))
    };
    assert_eq!(started("boot"), first);
    let rebooted = started("next");
    assert!(rebooted.findings.is_empty() && rebooted.hcas.is_empty());
    assert_eq!(
        (&first.devices, rebooted.devices),
        (&Some(devices(1)), None)
    );
    let healthy = condition::find(&rebooted.conditions, ConditionType::NodeHealthy);
    assert_eq!((healthy, rebooted.checks), (None, None));
}

#[test]
fn the_condition_names_the_pod_that_is_not_served() {
    let reports = [
        report(0, PoolState::Serving, Reason::AsExpected),
        report(1, PoolState::Refused, Reason::DescriptorNotSealed),
    ];
    let status = compose(&spec(2), "boot", noted(&reports), &stood(&[]), &[], at(1));
    let serving = condition::find(&status.conditions, ConditionType::PoolsServing).unwrap();
    assert_eq!(serving.status, "False");
    assert_eq!(serving.reason, "DescriptorNotSealed");
    assert!(serving.message.starts_with("ns/c-pool-default-1"));
}

#[test]
fn a_listed_pod_without_a_report_is_not_served() {
    let status = compose(&spec(1), "boot", noted(&[]), &stood(&[]), &[], at(1));
    assert!(!condition::is_true(
        &status.conditions,
        ConditionType::PoolsServing
    ));
    let none = compose(&spec(0), "boot", noted(&[]), &stood(&[]), &[], at(1));
    assert!(condition::is_true(
        &none.conditions,
        ConditionType::PoolsServing
    ));
}

fn stands(alive: &str, serving: &str) -> Vec<Condition> {
    let findings = [ConditionType::AgentAlive, ConditionType::PoolsServing]
        .map(|kind| Finding::new(kind, true, Reason::AgentMissing, "no agent pod"));
    let mut stands = condition::merge(&[], &findings, Some(1), at(1));
    for condition in &mut stands {
        let alone = condition.type_ == ConditionType::AgentAlive.as_str();
        condition.status = if alone { alive } else { serving }.to_owned();
    }
    stands
}

#[test]
fn an_agent_that_is_not_believed_leaves_the_doubt_and_speaks_again_when_it_is() {
    let reports = [report(0, PoolState::Serving, Reason::AsExpected)];
    let say = |stands: &[Condition]| {
        let noted = noted(&reports);
        let status = compose(
            &spec(1),
            "boot",
            noted,
            &stood(stands),
            &doubt(stands),
            at(9),
        );
        let said = holds(&status, stands);
        (status.conditions[0].status.clone(), said)
    };
    assert_eq!(
        say(&stands("False", "Unknown")),
        ("Unknown".to_owned(), true)
    );
    assert_eq!(say(&stands("True", "Unknown")), ("True".to_owned(), false));
    let status = compose(&spec(1), "boot", noted(&reports), &stood(&[]), &[], at(1));
    assert_eq!(say(&status.conditions), ("True".to_owned(), true));
}

#[test]
fn the_condition_is_of_the_worst_finding_and_only_a_failure_makes_it_false() {
    let healthy = |noted: Noted| {
        let status = compose(&spec(0), "boot", noted, &stood(&[]), &[], at(1));
        let said = condition::find(&status.conditions, ConditionType::NodeHealthy).cloned();
        said.map(|said| (said.status, said.reason, said.message))
    };
    assert_eq!(healthy(Noted::default()), None, "before the first look");
    let (status, reason, message) = healthy(sick(0, 1)).unwrap();
    assert_eq!(
        (&*status, &*reason, &*message),
        ("True", "AsExpected", "11 checks passed")
    );
    let (status, reason, message) = healthy(sick(2, 1)).unwrap();
    assert_eq!((&*status, &*reason), ("False", "PortNotActive"));
    assert!(message.starts_with("mlx5_bond_0 port 1: www"), "{message}");
    assert!(message.ends_with("; of 12 checks 1 fail"), "{message}");
    let mut warned = sick(1, 1);
    let told = &mut warned.health.as_mut().unwrap().told[0];
    told.trouble.verdict = Verdict::Warn;
    let (status, reason, _) = healthy(warned).unwrap();
    assert_eq!((&*status, &*reason), ("True", "PortNotActive"));
}

#[test]
fn a_doubt_about_one_verdict_leaves_the_other() {
    let mut stands = stands("False", "Unknown");
    let findings = [Finding::new(
        ConditionType::NodeHealthy,
        true,
        Reason::AsExpected,
        "11",
    )];
    stands.extend(condition::merge(&[], &findings, None, at(1)));
    let of = |stands: &[Condition]| {
        let status = compose(
            &spec(0),
            "boot",
            sick(1, 1),
            &stood(stands),
            &doubt(stands),
            at(9),
        );
        let said = status
            .conditions
            .iter()
            .map(|said| (said.type_.clone(), said.status.clone()));
        said.collect::<Vec<_>>()
    };
    let [healthy, serving] = OWN.map(|kind| kind.as_str().to_owned());
    let unknown = "Unknown".to_owned();
    let expected = [
        (healthy.clone(), "False".to_owned()),
        (serving.clone(), unknown.clone()),
    ];
    assert_eq!(of(&stands), expected);
    for said in &mut stands {
        if said.type_ == healthy {
            said.status.clone_from(&unknown);
        }
    }
    assert_eq!(
        of(&stands),
        [(healthy, unknown.clone()), (serving, unknown)]
    );
}
