//! The status that is computed from reports.

use std::collections::BTreeMap;

use crds::node::DeviceHealth;

use super::*;
use crate::publish::report::Pool;
use checks::Finding;
use checks::debounce::Health;
use checks::debounce::ReportedFinding;
use crds::check::FINDINGS_LIMIT;
use crds::cluster::{NumaPolicy, PageSize};
use crds::inventory::{NoGid, PortState};
use crds::node::{HcaLine, PoolAssignment, UNHEALTHY_DEVICES_LIMIT, UnhealthyDevice};
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
        metadata: None,
        transport: None,
        allow_host_network: false,
        addresses: Vec::new(),
    }
}

fn report(index: usize, state: PoolState, reason: Reason) -> PoolReport {
    PoolReport {
        pod_uid: format!("uid-{index}"),
        namespace: "ns".to_owned(),
        pod_name: format!("c-pool-default-{index}"),
        state: state.into(),
        reason: reason.into(),
        message: "m".repeat(600),
        endpoint: "198.18.0.1:12001".to_owned(),
        master_pod_uid: "master".to_owned(),
        data_epoch: 1,
        segments: vec!["c.default.n1.0".to_owned(); 64],
        mounted: Some(ByteSize(1 << 30)),
        page_size_obtained: Some(ByteSize(4096)),
        metadata_failure: None,
        transport: None,
    }
}

fn spec(count: usize) -> MooncakeNodeSpec {
    MooncakeNodeSpec {
        domains: Vec::new(),
        injected: Vec::new(),
        probes: Vec::new(),
        probers: Vec::new(),
        policy: None,
        headroom: None,
        gpu_driver_upgrade: false,
        node_uid: "node".to_owned(),
        boot_id: "boot".to_owned(),
        pools: (0..count).map(assignment).collect(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A published status with these conditions.
fn published(conditions: &[Condition]) -> MooncakeNodeStatus {
    MooncakeNodeStatus {
        conditions: conditions.to_vec(),
        ..MooncakeNodeStatus::default()
    }
}

fn pools(reports: &[PoolReport]) -> BTreeMap<String, Pool> {
    let pool = |report: &PoolReport| Pool {
        report: report.clone(),
        cluster: String::new(),
        traffic: None,
    };
    let pools = reports
        .iter()
        .map(|report| (report.pod_uid.clone(), pool(report)));
    pools.collect()
}

fn with_pools(reports: &[PoolReport]) -> Report {
    Report {
        pools: pools(reports),
        ..Report::default()
    }
}

/// A report of this many ports that are down since that second.
fn ports_down(ports: usize, since: i64) -> Report {
    let findings = (0..ports).map(|port| ReportedFinding {
        check: CheckId::PortActive,
        subject: format!("mlx5_bond_{port} port 1"),
        finding: Finding {
            verdict: Verdict::Fail,
            reason: Reason::PortNotActive,
            message: "w".repeat(400),
        },
        since: at(since),
        flapping: false,
    });
    Report {
        health: Some(Health {
            counts: CheckCounts {
                failed: u32::from(ports > 0),
                passed: 11,
                ..CheckCounts::default()
            },
            findings: findings.collect(),
        }),
        hcas: Some((Vec::new(), None)),
        ..Report::default()
    }
}

fn throttled(pod: &str) -> ReportedFinding {
    ReportedFinding {
        check: CheckId::EngineProcessorTime,
        subject: format!("pool pod team/{pod}"),
        finding: Finding {
            verdict: Verdict::Warn,
            reason: Reason::EngineThrottled,
            message: "w".repeat(400),
        },
        since: at(1),
        flapping: false,
    }
}

#[test]
fn findings_of_pods_hide_no_check_and_no_finding_of_the_node() {
    let of = |check, subject: String| ReportedFinding {
        check,
        subject,
        ..throttled("a")
    };
    let mut report = ports_down(0, 1);
    let health = report.health.as_mut().unwrap();
    // Sorted by check and subject, as health has them.
    let pods = (0..FINDINGS_LIMIT).map(|pod| of(CheckId::PodEngine, format!("pod team/{pod:02}")));
    health.findings.extend(pods);
    health
        .findings
        .push(of(CheckId::PodPorts, "pod team/z".to_owned()));
    for device in ["mlx5_0", "mlx5_1"] {
        health
            .findings
            .push(of(CheckId::QpHeadroom, device.to_owned()));
    }
    let status = compose(&spec(0), "boot", &report, &published(&[]), &[], at(1));
    assert_eq!(status.findings.len(), FINDINGS_LIMIT);
    let subjects = status.findings.iter().map(|found| found.subject.as_str());
    let first: Vec<_> = subjects.take(5).collect();
    assert_eq!(
        first,
        [
            "pod team/00",
            "pod team/z",
            "mlx5_0",
            "mlx5_1",
            "pod team/01"
        ]
    );
}

#[test]
fn a_finding_of_a_check_that_release_0_1_0_lacks_is_in_a_list_of_its_own() {
    let mut report = ports_down(1, 1);
    let health = report.health.as_mut().unwrap();
    let before = health.counts;
    for pod in ["a", "b"] {
        health.findings.push(throttled(pod));
    }
    // Each check counts once.
    health.counts.warned += 1;
    let status = compose(&spec(0), "boot", &report, &published(&[]), &[], at(1));
    assert_eq!(status.checks, Some(before));
    assert_eq!(status.findings.len(), 1);
    assert_eq!(status.findings[0].check, CheckId::PortActive);
    let later = status.later_findings.clone().unwrap();
    let subjects: Vec<_> = later.iter().map(|found| found.subject.as_str()).collect();
    assert_eq!(subjects, ["pool pod team/a", "pool pod team/b"]);
    assert_eq!(later[0].check, CheckId::EngineProcessorTime);

    let silent = compose(&spec(0), "boot", &Report::default(), &status, &[], at(2));
    assert_eq!(silent.later_findings.as_ref(), Some(&later));
    let mut well = report.clone();
    well.health.as_mut().unwrap().findings.truncate(1);
    let well = compose(&spec(0), "boot", &well, &status, &[], at(3));
    assert_eq!(well.later_findings, Some(Vec::new()));

    let health = report.health.as_mut().unwrap();
    health.findings.remove(0);
    let condition = findings::condition(health);
    assert_eq!(condition.reason, Reason::EngineThrottled);
}

/// This many devices, all unhealthy.
fn devices(count: u32) -> DeviceHealth {
    let named = (0..count)
        .take(UNHEALTHY_DEVICES_LIMIT)
        .map(|device| UnhealthyDevice {
            name: format!("mlx5_bond_{device}"),
            reason: Reason::RegistrationFailed.into(),
        });
    DeviceHealth {
        known: count,
        unhealthy: count,
        memlock: Some(ByteSize(8 << 20)),
        unhealthy_devices: named.collect(),
    }
}

#[test]
fn a_node_without_devices_has_no_device_health() {
    let report = |count| Report {
        devices: Some(devices(count)),
        ..Report::default()
    };
    let before = compose(&spec(0), "boot", &report(1), &published(&[]), &[], at(1));
    assert!(before.devices.is_some());
    let lost = compose(&spec(0), "boot", &report(0), &before, &[], at(2));
    assert_eq!(lost.devices, None);
}

#[test]
fn a_status_with_the_maximum_of_pods_stays_within_its_limit() {
    let spec = spec(20);
    let reports: Vec<_> = (0..20)
        .map(|i| report(i, PoolState::Serving, Reason::AsExpected))
        .collect();
    let line = HcaLine {
        name: "mlx5_bond_10".to_owned(),
        port: 1,
        state: Some(PortState::Initializing.into()),
        rate_mbps: Some(400_000),
        gid: Some(1000),
        gid_address: Some("fd00:1111:2222:3333:4444:5555:6666:7777".to_owned()),
        lid: Some(u16::MAX),
        path_mtu: Some(4096),
        no_gid: Some(NoGid::OtherLinkLayer.into()),
        proved: false,
        not_proved: Some(Reason::VerbsProbeFailed.into()),
        excluded: true,
    };
    let mut ports_down = ports_down(40, 1);
    let health = ports_down.health.as_mut().unwrap();
    for pod in 0..20 {
        health.findings.push(throttled(&"w".repeat(120 + pod)));
    }
    let full = Report {
        hcas: Some((vec![line; 16], Some(112))),
        devices: Some(devices(128)),
        pools: pools(&reports),
        ..ports_down
    };
    let status = compose(&spec, "boot", &full, &published(&[]), &[], at(1));
    assert!(serde_json::to_vec(&status).unwrap().len() <= STATUS_LIMIT);
    assert_eq!(status.pools.len(), 20);
    assert_eq!(
        status.devices.unwrap().unhealthy_devices.len(),
        UNHEALTHY_DEVICES_LIMIT
    );
    assert_eq!(status.findings.len(), 6, "the worst remain");
    assert_eq!(status.later_findings.unwrap().len(), 1, "one of each check");
    assert_eq!(status.capacity, Some(ByteSize(20 << 30)));
    // Every port has a line or is counted.
    let omitted = status.hcas_omitted.unwrap();
    assert_eq!(status.hcas.len() as u64 + u64::from(omitted), 128);
}

#[test]
fn an_unchanged_report_gives_an_equal_status_at_any_time() {
    let reports = [report(0, PoolState::Serving, Reason::AsExpected)];
    let report = |since| Report {
        pools: pools(&reports),
        ..ports_down(2, since)
    };
    let first = compose(&spec(1), "boot", &report(1), &published(&[]), &[], at(1));
    // A new agent observes it for the first time later.
    let again = compose(&spec(1), "boot", &report(90), &first, &[], at(99));
    assert_eq!(first, again);
    assert_eq!(first.findings[0].since.0, at(1));
    let rebooted = compose(&spec(1), "next", &report(90), &first, &[], at(99));
    assert_eq!(rebooted.findings[0].since.0, at(90));
}

#[test]
fn a_new_agent_keeps_the_published_values_until_it_has_its_own() {
    let line = HcaLine {
        name: "mlx5_0".to_owned(),
        port: 1,
        state: Some(PortState::Active.into()),
        rate_mbps: Some(400_000),
        gid: Some(3),
        gid_address: Some("::ffff:10.0.0.1".to_owned()),
        lid: None,
        path_mtu: Some(4096),
        no_gid: None,
        proved: true,
        not_proved: None,
        excluded: false,
    };
    let complete = Report {
        hcas: Some((vec![line], None)),
        devices: Some(devices(1)),
        ..ports_down(2, 1)
    };
    let first = compose(&spec(0), "boot", &complete, &published(&[]), &[], at(1));
    let started = |boot: &str| {
        let nothing = Report::default();
        compose(&spec(0), boot, &nothing, &first, &[], at(9))
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
fn a_node_that_was_not_read_since_its_boot_has_no_counts_of_checks() {
    let mut unread = Report {
        hcas: None,
        ..ports_down(0, 1)
    };
    let health = unread.health.as_mut().unwrap();
    health.findings.push(ReportedFinding {
        check: CheckId::HostReadable,
        subject: "node".to_owned(),
        finding: Finding {
            verdict: Verdict::Fail,
            reason: Reason::HostUnreadable,
            message: "unread".to_owned(),
        },
        since: at(1),
        flapping: false,
    });
    let last = compose(
        &spec(0),
        "boot",
        &ports_down(1, 1),
        &published(&[]),
        &[],
        at(1),
    );
    assert!(last.checks.is_some());
    let rebooted = compose(&spec(0), "next", &unread, &last, &[], at(9));
    assert_eq!((rebooted.checks, rebooted.findings.len()), (None, 1));
    let healthy = condition::find(&rebooted.conditions, ConditionType::NodeHealthy);
    assert_eq!(healthy.unwrap().reason, Reason::HostUnreadable.as_str());
    let restarted = compose(&spec(0), "boot", &unread, &last, &[], at(9));
    assert_eq!(restarted.checks, last.checks, "of its predecessor");
}

#[test]
fn the_condition_names_the_pod_that_is_not_served() {
    let reports = [
        report(0, PoolState::Serving, Reason::AsExpected),
        report(1, PoolState::Refused, Reason::DescriptorNotSealed),
    ];
    let status = compose(
        &spec(2),
        "boot",
        &with_pools(&reports),
        &published(&[]),
        &[],
        at(1),
    );
    let serving = condition::find(&status.conditions, ConditionType::PoolsServing).unwrap();
    assert_eq!(serving.status, "False");
    assert_eq!(serving.reason, "DescriptorNotSealed");
    assert!(serving.message.starts_with("ns/c-pool-default-1"));
}

#[test]
fn a_listed_pod_without_a_report_is_not_served() {
    let status = compose(
        &spec(1),
        "boot",
        &with_pools(&[]),
        &published(&[]),
        &[],
        at(1),
    );
    assert!(!condition::is_true(
        &status.conditions,
        ConditionType::PoolsServing
    ));
    let none = compose(
        &spec(0),
        "boot",
        &with_pools(&[]),
        &published(&[]),
        &[],
        at(1),
    );
    assert!(condition::is_true(
        &none.conditions,
        ConditionType::PoolsServing
    ));
}

fn conditions(alive: &str, serving: &str) -> Vec<Condition> {
    let findings = [ConditionType::AgentAlive, ConditionType::PoolsServing]
        .map(|kind| NewCondition::new(kind, true, Reason::AgentMissing, "no agent pod"));
    let mut conditions = condition::merge(&[], &findings, Some(1), at(1));
    for condition in &mut conditions {
        let is_alive = condition.type_ == ConditionType::AgentAlive.as_str();
        condition.status = if is_alive { alive } else { serving }.to_owned();
    }
    conditions
}

#[test]
fn conditions_that_the_operator_set_to_unknown_stay_until_the_agent_is_alive() {
    let reports = [report(0, PoolState::Serving, Reason::AsExpected)];
    let next = |before: &[Condition]| {
        let report = with_pools(&reports);
        let status = compose(
            &spec(1),
            "boot",
            &report,
            &published(before),
            &set_by_operator(before),
            at(9),
        );
        let unchanged = is_published(&status, before);
        (status.conditions[0].status.clone(), unchanged)
    };
    assert_eq!(
        next(&conditions("False", "Unknown")),
        ("Unknown".to_owned(), true)
    );
    assert_eq!(
        next(&conditions("True", "Unknown")),
        ("True".to_owned(), false)
    );
    let status = compose(
        &spec(1),
        "boot",
        &with_pools(&reports),
        &published(&[]),
        &[],
        at(1),
    );
    assert_eq!(next(&status.conditions), ("True".to_owned(), true));
}

#[test]
fn the_condition_shows_the_worst_finding_and_only_a_failure_makes_it_false() {
    let healthy = |report: Report| {
        let status = compose(&spec(0), "boot", &report, &published(&[]), &[], at(1));
        let healthy = condition::find(&status.conditions, ConditionType::NodeHealthy).cloned();
        healthy.map(|healthy| (healthy.status, healthy.reason, healthy.message))
    };
    assert_eq!(
        healthy(Report::default()),
        None,
        "before the first run of the checks"
    );
    let (status, reason, message) = healthy(ports_down(0, 1)).unwrap();
    assert_eq!(
        (&*status, &*reason, &*message),
        ("True", "AsExpected", "11 checks passed")
    );
    let (status, reason, message) = healthy(ports_down(2, 1)).unwrap();
    assert_eq!((&*status, &*reason), ("False", "PortNotActive"));
    assert!(message.starts_with("mlx5_bond_0 port 1: www"), "{message}");
    assert!(message.ends_with("; of 12 checks 1 fail"), "{message}");
    let mut warned = ports_down(1, 1);
    let finding = &mut warned.health.as_mut().unwrap().findings[0];
    finding.finding.verdict = Verdict::Warn;
    let (status, reason, _) = healthy(warned).unwrap();
    assert_eq!((&*status, &*reason), ("True", "PortNotActive"));
}

#[test]
fn one_condition_set_to_unknown_leaves_the_other() {
    let mut before = conditions("False", "Unknown");
    let findings = [NewCondition::new(
        ConditionType::NodeHealthy,
        true,
        Reason::AsExpected,
        "11",
    )];
    before.extend(condition::merge(&[], &findings, None, at(1)));
    let next = |before: &[Condition]| {
        let status = compose(
            &spec(0),
            "boot",
            &ports_down(1, 1),
            &published(before),
            &set_by_operator(before),
            at(9),
        );
        let conditions = status
            .conditions
            .iter()
            .map(|condition| (condition.type_.clone(), condition.status.clone()));
        conditions.collect::<Vec<_>>()
    };
    let [healthy, serving] = OWN.map(|kind| kind.as_str().to_owned());
    let unknown = "Unknown".to_owned();
    let expected = [
        (healthy.clone(), "False".to_owned()),
        (serving.clone(), unknown.clone()),
    ];
    assert_eq!(next(&before), expected);
    for condition in &mut before {
        if condition.type_ == healthy {
            condition.status.clone_from(&unknown);
        }
    }
    assert_eq!(
        next(&before),
        [(healthy, unknown.clone()), (serving, unknown)]
    );
}
