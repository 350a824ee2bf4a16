//! `kubectl mooncake` over recorded objects: what it prints stands in `golden`, plain, coloured and as
//! JSON. `UPDATE=1 cargo test -p mooncake-operator --test cli` rewrites it.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

mod binary;
mod fixtures;
mod script;
mod sizing;
mod why;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fixtures::{DEGRADED, HEALTHY, INVENTORY, for_a_tenant, not_installed, picture};
use jiff::Timestamp;
use mooncake_operator::cli::doctor::{Severity, doctor};
use mooncake_operator::cli::node::node;
use mooncake_operator::cli::run::RELEASE;
use mooncake_operator::cli::status::status;
use mooncake_operator::cli::{Answer, Picture, webhook};

pub(crate) fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

pub(crate) fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cli/golden")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, found).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} differs from what is printed; run with UPDATE=1 and read the diff:\n{found}",
        path.display()
    );
}

fn doctors(picture: &Picture) -> Answer {
    Answer::Doctor(doctor(picture, RELEASE, now()))
}

/// The text, and the exit status in its last line.
pub(crate) fn plain(answer: &Answer) -> String {
    let code = answer.exit_code();
    format!("{}exit status {code}\n", answer.text(false, now()))
}

#[test]
fn a_healthy_installation_alarms_nobody() {
    let picture = picture(HEALTHY);
    let answer = doctors(&picture);
    assert_eq!(answer.exit_code(), 0);
    check("healthy.doctor.txt", &plain(&answer));
    check(
        "healthy.status.txt",
        &plain(&Answer::Status(status(&picture))),
    );
}

#[test]
fn everything_that_is_wrong_is_told_once_and_worst_first() {
    let picture = picture(DEGRADED);
    let found = doctor(&picture, RELEASE, now());
    assert!(found.findings.is_sorted_by_key(|trouble| trouble.severity));
    let of_n2 = |reason: &str| {
        let findings = found.findings.iter();
        let of_node = findings.filter(|trouble| trouble.node.as_deref() == Some("n2"));
        of_node
            .filter(|trouble| trouble.reason.as_str() == reason)
            .count()
    };
    // The agent's pod, the MooncakeNode and the pool pod all say it.
    assert_eq!(of_n2("AgentNotReady"), 1);
    let answer = Answer::Doctor(found);
    assert_eq!(answer.exit_code(), 1);
    check("degraded.doctor.txt", &plain(&answer));
    check("degraded.doctor.json", &answer.json().unwrap());
    check("degraded.doctor.coloured", &answer.text(true, now()));
    let clusters = Answer::Status(status(&picture));
    check("degraded.status.txt", &plain(&clusters));
    check("degraded.status.json", &clusters.json().unwrap());
    check("degraded.status.coloured", &clusters.text(true, now()));
}

#[test]
fn what_a_tenant_may_not_see_is_named_and_is_no_failure() {
    let healthy = doctors(&for_a_tenant(picture(HEALTHY)));
    assert_eq!(healthy.exit_code(), 2);
    check("forbidden.doctor.txt", &plain(&healthy));
    let Answer::Doctor(degraded) = doctors(&for_a_tenant(picture(DEGRADED))) else {
        panic!();
    };
    let fails = degraded
        .findings
        .iter()
        .filter(|trouble| trouble.severity == Severity::Fails);
    let fails: Vec<&str> = fails.map(|trouble| trouble.reason.as_str()).collect();
    // What stands in the tenant's own namespace is told all the same.
    for reason in ["PoolPodPending", "NotInjected", "GateTimedOut"] {
        assert!(fails.contains(&reason), "{fails:?}");
    }
    assert_eq!(degraded.exit_code(), 1);
}

#[test]
fn an_api_server_without_mooncake_is_told_as_that_alone() {
    let answer = doctors(&not_installed());
    assert_eq!(answer.exit_code(), 2);
    check("empty.doctor.txt", &plain(&answer));
    let clusters = Answer::Status(status(&not_installed()));
    check("empty.status.txt", &plain(&clusters));
}

#[test]
fn an_installation_whose_parts_are_gone_is_told_part_by_part() {
    let answer = doctors(&Picture::default());
    assert_eq!(answer.exit_code(), 1);
    check("bare.doctor.txt", &plain(&answer));
}

#[test]
fn many_findings_of_one_kind_are_cut_for_people_and_whole_for_programs() {
    let mut picture = picture(DEGRADED);
    let left_out = fixtures::pod(&picture, "unseen");
    for number in 0..30 {
        let mut pod = left_out.clone();
        pod.metadata.name = Some(format!("unseen-{number:02}"));
        picture.labelled.push(pod.into());
    }
    let answer = doctors(&picture);
    let text = answer.text(false, now());
    assert!(
        text.contains("more of NotInjected; -o json has them"),
        "{text}"
    );
    assert!(!text.contains("unseen-29"));
    assert!(answer.json().unwrap().contains("unseen-29"));
}

/// What is quadratic in the nodes takes minutes here.
#[test]
fn five_thousand_dead_nodes_are_judged_in_seconds() {
    let mut picture = picture(DEGRADED);
    let dead = picture.node("n2").unwrap().clone();
    let named = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.name.clone().unwrap();
    let mut pods = picture.pods.iter();
    let pod = pods.find(|pod| named(pod).ends_with("n2")).unwrap().clone();
    for number in 0..5000 {
        let name = format!("m{number}");
        let mut node = dead.clone();
        node.metadata.name = Some(name.clone());
        picture.nodes.push(node);
        let mut pod = pod.as_ref().clone();
        pod.metadata.name = Some(format!("kv-pool-default-{name}"));
        pod.spec.as_mut().unwrap().node_name = Some(name);
        picture.pods.push(pod.into());
    }
    let started = Instant::now();
    let found = doctor(&picture, RELEASE, now());
    let of_nodes = found.findings.iter();
    let of_nodes = of_nodes.filter(|trouble| trouble.object.kind == "MooncakeNode");
    assert!(of_nodes.count() >= 5000);
    let text = Answer::Doctor(found).text(false, now());
    let took = started.elapsed();
    println!("{} nodes in {took:?}", picture.nodes.len());
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(text.lines().count() < 200, "a person reads it");
}

#[test]
fn a_node_is_shown_with_its_pools_hardware_and_findings() {
    let inventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    for (name, text) in [("healthy", HEALTHY), ("degraded", DEGRADED)] {
        let picture = picture(text);
        let found = node("n1", picture.node("n1"), Some(&inventory), Vec::new());
        let answer = Answer::Node(Box::new(found));
        check(&format!("{name}.node.txt"), &plain(&answer));
        check(&format!("{name}.node.json"), &answer.json().unwrap());
    }
}

#[test]
fn an_inventory_of_another_life_of_the_node_is_not_shown() {
    let mut inventory: crds::MooncakeInventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    inventory.spec.node_uid = "another".to_owned();
    let picture = picture(HEALTHY);
    let found = node("n1", picture.node("n1"), Some(&inventory), Vec::new());
    assert_eq!(found.inventory, None);
}

#[test]
fn the_webhook_is_looked_for_by_the_name_that_the_chart_gives_it() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts/mooncake/templates/admission/injection.yaml");
    let text = fs::read_to_string(chart).unwrap();
    assert!(text.contains(&format!("- name: {}\n", webhook::NAME)));
}
