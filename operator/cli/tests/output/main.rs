//! Output of `kubectl mooncake` for the objects in `fixtures`, compared with `golden`: text, coloured text and
//! JSON. `UPDATE=1 cargo test -p mooncake-cli --test output` rewrites the files.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

mod binary;
mod bundle;
mod drain;
mod fixtures;
mod keys;
mod masters;
mod preflight;
mod script;
mod segment;
mod sizing;
mod why;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crds::condition::merge;
use crds::{ConditionType, NewCondition, Reason};
use fixtures::{DEGRADED, HEALTHY, INVENTORY, not_installed, of_tenant, snapshot};
use jiff::Timestamp;
use mooncake_cli::doctor::{Severity, doctor};
use mooncake_cli::node::node;
use mooncake_cli::run::RELEASE;
use mooncake_cli::status::status;
use mooncake_cli::{Report, Snapshot, webhook};

pub(crate) fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

pub(crate) fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/output/golden")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, found).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} differs from the output. Run with UPDATE=1 and read the diff:\n{found}",
        path.display()
    );
}

fn doctor_report(snapshot: &Snapshot) -> Report {
    Report::Doctor(doctor(snapshot, RELEASE, now()))
}

/// The text with the exit status as its last line.
pub(crate) fn plain(report: &Report) -> String {
    let code = report.exit_code();
    format!("{}exit status {code}\n", report.text(false, now()))
}

#[test]
fn healthy_installation_has_no_findings() {
    let snapshot = snapshot(HEALTHY);
    let report = doctor_report(&snapshot);
    assert_eq!(report.exit_code(), 0);
    check("healthy.doctor.txt", &plain(&report));
    check(
        "healthy.status.txt",
        &plain(&Report::Status(status(&snapshot))),
    );
}

#[test]
fn findings_are_deduplicated_and_sorted_by_severity() {
    let snapshot = snapshot(DEGRADED);
    let found = doctor(&snapshot, RELEASE, now());
    assert!(found.findings.is_sorted_by_key(|finding| finding.severity));
    let of_n2 = |reason: &str| {
        let findings = found.findings.iter();
        let of_node = findings.filter(|finding| finding.node.as_deref() == Some("n2"));
        of_node
            .filter(|finding| finding.reason.as_str() == reason)
            .count()
    };
    // The agent's pod, the MooncakeNode and the pool pod have the same cause.
    assert_eq!(of_n2("AgentNotReady"), 1);
    let report = Report::Doctor(found);
    assert_eq!(report.exit_code(), 1);
    check("degraded.doctor.txt", &plain(&report));
    check("degraded.doctor.json", &report.json().unwrap());
    check("degraded.doctor.coloured", &report.text(true, now()));
    let clusters = Report::Status(status(&snapshot));
    check("degraded.status.txt", &plain(&clusters));
    check("degraded.status.json", &clusters.json().unwrap());
    check("degraded.status.coloured", &clusters.text(true, now()));
}

#[test]
fn a_metadata_service_that_fails_is_a_finding_of_its_cluster_and_ends_with_its_condition() {
    let with = |reason: Reason, message: &str| {
        let mut snapshot = snapshot(HEALTHY);
        let status = snapshot.clusters[0].status.as_mut().unwrap();
        let kind = ConditionType::MetadataReady;
        let new = NewCondition::new(kind, reason == Reason::AsExpected, reason, message);
        status.conditions = merge(&status.conditions, &[new], None, now());
        doctor(&snapshot, RELEASE, now()).findings
    };
    let cause = "1 of 2 pool pods cannot use it: n2: pool pod kv-pool-default-n2: MetadataUnreachable: refused";
    let found = with(Reason::MetadataUnreachable, cause);
    let [finding] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(finding.reason, Reason::MetadataUnreachable);
    assert_eq!(finding.subject.as_deref(), Some("MetadataReady"));
    assert_eq!(finding.object.kind, "MooncakeCluster");
    assert_eq!(finding.message, cause);
    assert!(!finding.remedy.is_empty());
    assert!(with(Reason::AsExpected, "2 pool pods use it").is_empty());
}

#[test]
fn a_stopped_rollout_is_an_error_and_a_pause_a_warning() {
    let with = |kind: ConditionType, reason: Reason| {
        let mut snapshot = snapshot(HEALTHY);
        let status = snapshot.clusters[0].status.as_mut().unwrap();
        let new = NewCondition::new(kind, true, reason, "n1: it does not serve");
        status.conditions = merge(&status.conditions, &[new], None, now());
        let found = doctor(&snapshot, RELEASE, now()).findings;
        let [finding] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(finding.reason, reason);
        assert_eq!(finding.subject.as_deref(), Some(kind.as_str()));
        finding.severity
    };
    let stopped = with(ConditionType::Stalled, Reason::RolloutStopped);
    assert_eq!(stopped, Severity::Error);
    let paused = with(ConditionType::Paused, Reason::Paused);
    assert_eq!(paused, Severity::Warning);
}

#[test]
fn objects_that_a_tenant_cannot_read_are_listed_and_are_no_errors() {
    let healthy = doctor_report(&of_tenant(snapshot(HEALTHY)));
    assert_eq!(healthy.exit_code(), 2);
    check("forbidden.doctor.txt", &plain(&healthy));
    let Report::Doctor(degraded) = doctor_report(&of_tenant(snapshot(DEGRADED))) else {
        panic!();
    };
    let fails = degraded
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error);
    let fails: Vec<&str> = fails.map(|finding| finding.reason.as_str()).collect();
    // Findings of the tenant's namespace remain.
    for reason in ["PoolPodPending", "NotInjected", "GateTimedOut"] {
        assert!(fails.contains(&reason), "{fails:?}");
    }
    assert_eq!(degraded.exit_code(), 1);
}

#[test]
fn missing_crds_are_the_only_finding_of_an_api_server_without_mooncake() {
    let report = doctor_report(&not_installed());
    assert_eq!(report.exit_code(), 2);
    check("empty.doctor.txt", &plain(&report));
    let clusters = Report::Status(status(&not_installed()));
    check("empty.status.txt", &plain(&clusters));
}

#[test]
fn each_missing_part_of_the_control_plane_has_a_finding() {
    let report = doctor_report(&Snapshot::default());
    assert_eq!(report.exit_code(), 1);
    check("bare.doctor.txt", &plain(&report));
}

#[test]
fn text_limits_findings_of_one_reason_and_json_has_all() {
    let mut snapshot = snapshot(DEGRADED);
    let left_out = fixtures::pod(&snapshot, "unseen");
    for number in 0..30 {
        let mut pod = left_out.clone();
        pod.metadata.name = Some(format!("unseen-{number:02}"));
        snapshot.labelled.push(pod.into());
    }
    let report = doctor_report(&snapshot);
    let text = report.text(false, now());
    assert!(
        text.contains("more NotInjected. Use -o json for all."),
        "{text}"
    );
    assert!(!text.contains("unseen-29"));
    assert!(report.json().unwrap().contains("unseen-29"));
}

#[test]
fn a_transport_that_is_not_the_preferred_one_or_fails_between_nodes_is_a_warning() {
    for reason in ["TransportDegraded", "MtuMismatch"] {
        let mut snapshot = snapshot(HEALTHY);
        let status = snapshot.clusters[0].status.as_mut().unwrap();
        let mut conditions = status.conditions.iter_mut();
        let transports = conditions.find(|c| c.type_ == "TransportsReady").unwrap();
        transports.reason = reason.to_owned();
        transports.message = "RDMA is not proved on n2".to_owned();
        let found = doctor(&snapshot, RELEASE, now()).findings;
        let [found] = found.as_slice() else {
            panic!("{reason}: {found:?}")
        };
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.reason.as_str(), reason);
        assert_eq!(found.subject.as_deref(), Some("TransportsReady"));
        assert!(found.message.contains("n2"), "{}", found.message);
    }
}

/// An algorithm that is quadratic in the nodes takes minutes here.
#[test]
fn five_thousand_failed_nodes_are_evaluated_within_seconds() {
    let mut snapshot = snapshot(DEGRADED);
    let dead = fixtures::node(&snapshot, "n2").clone();
    let named = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.name.clone().unwrap();
    let mut pods = snapshot.pods.iter();
    let pod = pods.find(|pod| named(pod).ends_with("n2")).unwrap().clone();
    for number in 0..5000 {
        let name = format!("m{number}");
        let mut node = dead.clone();
        node.metadata.name = Some(name.clone());
        snapshot.nodes.push(node);
        let mut pod = pod.as_ref().clone();
        pod.metadata.name = Some(format!("kv-pool-default-{name}"));
        pod.spec.as_mut().unwrap().node_name = Some(name);
        snapshot.pods.push(pod.into());
    }
    let started = Instant::now();
    let found = doctor(&snapshot, RELEASE, now());
    let of_nodes = found.findings.iter();
    let of_nodes = of_nodes.filter(|finding| finding.object.kind == "MooncakeNode");
    assert!(of_nodes.count() >= 5000);
    let text = Report::Doctor(found).text(false, now());
    let took = started.elapsed();
    println!("{} nodes in {took:?}", snapshot.nodes.len());
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(text.lines().count() < 200, "too long to read");
}

#[test]
fn node_output_has_findings_pools_and_hardware() {
    let inventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    for (name, text) in [("healthy", HEALTHY), ("degraded", DEGRADED)] {
        let snapshot = snapshot(text);
        let found = node(
            "n1",
            Some(fixtures::node(&snapshot, "n1")),
            Some(&inventory),
            Vec::new(),
        );
        let report = Report::Node(Box::new(found));
        check(&format!("{name}.node.txt"), &plain(&report));
        check(&format!("{name}.node.json"), &report.json().unwrap());
    }
}

#[test]
fn inventory_of_an_earlier_node_is_ignored() {
    let mut inventory: crds::MooncakeInventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    inventory.spec.node_uid = "another".to_owned();
    let snapshot = snapshot(HEALTHY);
    let found = node(
        "n1",
        Some(fixtures::node(&snapshot, "n1")),
        Some(&inventory),
        Vec::new(),
    );
    assert_eq!(found.inventory, None);
}

#[test]
fn webhook_name_is_the_one_in_the_chart() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../charts/mooncake/templates/admission/injection.yaml");
    let text = fs::read_to_string(chart).unwrap();
    assert!(text.contains(&format!("- name: {}\n", webhook::NAME)));
}
