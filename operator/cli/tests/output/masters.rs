//! `doctor`: findings of what built-in masters report, and masters that do not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::MooncakeCluster;
use crds::cluster::MasterType;
use k8s_openapi::api::core::v1::{Pod, PodIP};
use kube::{Client, Config, ResourceExt};
use mooncake_cli::Snapshot;
use mooncake_cli::doctor::{Severity, doctor};
use mooncake_cli::masters::{Outcome, Reading, Report as MasterReport, exchange, read};
use mooncake_cli::read_error::Cause;
use mooncake_cli::run::RELEASE;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixtures::{HEALTHY, snapshot};
use crate::keys::Master;
use crate::{check, doctor_report, now, plain};

/// The metrics of a master, as it writes them, without what `doctor` does not read.
fn metrics(figures: &[(&str, u64)]) -> String {
    let mut text =
        String::from("# HELP total_get_nums_ Lookups of replicas.\n# TYPE total_get_nums_ gauge\n");
    text += "segment_allocated_bytes{segment=\"kv.default.n1.0\"} 9\n";
    for (name, value) in figures {
        text += &format!("{name} {value}\n");
    }
    text + "# EOF\n"
}

const FIGURES: [(&str, u64); 14] = [
    ("total_get_nums_", 4000),
    ("valid_get_nums_", 0),
    ("master_key_count", 12),
    ("master_total_capacity_bytes", 128 << 30),
    ("master_allocated_bytes", 127 << 30),
    ("master_put_start_alloc_failures_total", 3),
    ("master_evicted_key_count", 90),
    ("mooncake_ledger_missing_tombstones_total", 7),
    ("mooncake_ledger_late_segments", 1),
    ("mooncake_ledger_absent_owners", 2),
    ("mooncake_ledger_unrecorded_objects", 30),
    (
        "mooncake_tenant_quota_reject_total{tenant_id=\"team a\",reason=\"quota_exceeded\"}",
        5,
    ),
    (
        "mooncake_tenant_quota_reject_total{tenant_id=\"b\",reason=\"quota_exceeded\"}",
        0,
    ),
    (
        "mooncake_tenant_quota_reject_total{tenant_id=\"\",reason=\"not_registered\"}",
        6,
    ),
];

fn ledgers() -> Value {
    let ledger = |name: &str, endpoint: &str, state: &str, unrecorded: u64| json!({"name": name, "endpoint": endpoint, "state": state, "unrecorded": unrecorded});
    json!({
        "success": true,
        "segments": [
            ledger("kv.default.n1.0", "10.0.1.5:12001", "LATE", 0),
            ledger("kv.default.n1.1", "10.0.1.5:12001", "LATE", 0),
            ledger("kv.default.n2.0", "10.0.2.9:12001", "LOADED", 10),
            ledger("kv.default.n2.1", "10.0.2.9:12001", "NONE", 20),
            ledger("a client", "10.0.7.7:17000", "NONE", 0),
        ],
        "absent": ["kv.default.gpu.n4.0", "kv.other.n1.0"],
    })
}

async fn report(figures: &[(&str, u64)], ledgers: Option<Value>) -> MasterReport {
    let mut answers = vec![("/metrics", metrics(figures))];
    answers.extend(ledgers.map(|ledgers| ("/ledgers", ledgers.to_string())));
    exchange(Master::with(&answers).serve()).await.unwrap()
}

/// The healthy objects with a built-in master, pool pods with addresses, and what the master reports.
fn with(outcome: Option<Outcome>) -> Snapshot {
    let mut snapshot = snapshot(HEALTHY);
    snapshot.clusters[0].spec.master.kind = Some(MasterType::BuiltIn);
    for pod in &mut snapshot.pods {
        let address = match pod.name_any().as_str() {
            "kv-pool-default-n1" => "10.0.1.5",
            "kv-pool-default-n2" => "10.0.2.9",
            _ => continue,
        };
        let ip = address.to_owned();
        let status = Arc::make_mut(pod).status.get_or_insert_default();
        status.pod_ips = Some(vec![PodIP { ip }]);
    }
    snapshot.built_in.extend(outcome.map(|outcome| Reading {
        namespace: "team".to_owned(),
        cluster: "kv".to_owned(),
        outcome,
    }));
    snapshot
}

fn answered(report: MasterReport) -> Option<Outcome> {
    Some(Outcome::Answered {
        pod: "kv-master-1".to_owned(),
        node: Some("n1".to_owned()),
        report,
    })
}

#[tokio::test]
async fn a_master_without_problems_has_no_findings() {
    // A cache that is full evicts.
    let figures = [
        ("total_get_nums_", 4000),
        ("valid_get_nums_", 1),
        ("master_evicted_key_count", 90),
    ];
    let ledgers = json!({"success": true, "absent": [], "segments": [
        {"name": "kv.default.n1.0", "endpoint": "10.0.1.5:12001", "state": "LOADED", "unrecorded": 0},
        {"name": "kv.default.n2.0", "endpoint": "10.0.2.9:12001", "state": "OF_THE_NEXT_RELEASE", "unrecorded": 0},
    ]});
    let snapshot = with(answered(report(&figures, Some(ledgers)).await));
    check("healthy.doctor.txt", &plain(&doctor_report(&snapshot)));
}

#[tokio::test]
async fn a_cache_that_was_just_started_may_have_no_hit() {
    let reasons = async |lookups| {
        let figures = [("total_get_nums_", lookups), ("valid_get_nums_", 0)];
        let report = report(&figures, Some(json!({"segments": [], "absent": []}))).await;
        let found = doctor(&with(answered(report)), RELEASE, now()).findings;
        let reasons = found.iter().map(|finding| finding.reason.as_str());
        reasons.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(reasons(99).await, "");
    assert_eq!(reasons(100).await, "NoCacheHits");
}

#[tokio::test]
async fn hits_ledgers_tombstones_and_space_have_findings_with_pool_pod_and_node() {
    let snapshot = with(answered(report(&FIGURES, Some(ledgers())).await));
    let report = doctor_report(&snapshot);
    check("master.doctor.txt", &plain(&report));
    check("master.doctor.json", &report.json().unwrap());
}

#[tokio::test]
async fn a_figure_that_is_no_count_is_an_error() {
    let answers = [("/metrics", "master_key_count 1.5\n".to_owned())];
    let error = exchange(Master::with(&answers).serve()).await.unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("\"master_key_count 1.5\" is not a count"),
        "{message}"
    );
}

#[tokio::test]
async fn a_master_of_an_earlier_build_names_no_pool_pods() {
    let snapshot = with(answered(report(&FIGURES, None).await));
    check("totals.doctor.txt", &plain(&doctor_report(&snapshot)));
}

fn client(address: std::net::SocketAddr) -> Client {
    let url = format!("http://{address}").parse().unwrap();
    Client::try_from(Config::new(url)).unwrap()
}

/// The cluster and its master pods, of which one more is a standby.
fn masters() -> (Vec<MooncakeCluster>, Vec<Arc<Pod>>) {
    let Snapshot {
        clusters, mut pods, ..
    } = with(None);
    let master = pods
        .iter()
        .find(|pod| pod.name_any() == "kv-master-1")
        .unwrap();
    let mut other = master.as_ref().clone();
    other.metadata.name = Some("kv-master-2".to_owned());
    other.spec.as_mut().unwrap().node_name = Some("n2".to_owned());
    pods.push(Arc::new(other));
    (clusters, pods)
}

#[tokio::test]
async fn a_master_that_does_not_answer_is_a_finding_within_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(listener.local_addr().unwrap());
    // Accepts and never answers.
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    let (clusters, pods) = masters();
    let deadline = Duration::from_millis(500);
    let begun = Instant::now();
    let read = read(&client, &clusters, &pods, deadline);
    let read = tokio::time::timeout(Duration::from_secs(60), read).await;
    let (readings, errors) = read.expect("the deadline holds");
    assert!(begun.elapsed() >= deadline);
    assert!(errors.is_empty(), "{errors:?}");
    let [reading] = readings.as_slice() else {
        panic!("{readings:?}");
    };
    let snapshot = with(Some(reading.outcome.clone()));
    let report = doctor_report(&snapshot);
    assert_eq!(report.exit_code(), 1);
    check("silent.doctor.txt", &plain(&report));
}

#[tokio::test]
async fn masters_that_may_not_be_read_are_a_read_error_and_those_that_are_not_ready_are_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(listener.local_addr().unwrap());
    let refusal = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "pods \"kv-master-1\" is forbidden: User \"tenant\" cannot create resource \"pods/portforward\"",
    })
    .to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _count = stream.read(&mut request).await;
            let answer = format!(
                "HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{refusal}",
                refusal.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let (clusters, mut pods) = masters();
    let deadline = Duration::from_secs(30);
    let (readings, errors) = read(&client, &clusters, &pods, deadline).await;
    assert!(readings.is_empty(), "{readings:?}");
    let [error] = errors.as_slice() else {
        panic!("{errors:?}");
    };
    assert_eq!(error.cause, Cause::Forbidden);
    assert_eq!(error.scope, "namespace team");
    assert!(error.message.contains("pods/portforward"), "{error}");
    let mut snapshot = with(None);
    snapshot.read_errors.extend(errors);
    let found = doctor(&snapshot, RELEASE, now());
    assert_eq!(found.exit_code(), 2);
    assert!(
        found
            .findings
            .iter()
            .all(|finding| finding.severity != Severity::Error)
    );

    // The condition of the cluster is the finding then.
    for pod in &mut pods {
        let status = Arc::make_mut(pod).status.as_mut().unwrap();
        status.conditions = None;
    }
    let (readings, errors) = read(&client, &clusters, &pods, deadline).await;
    assert!(readings.is_empty() && errors.is_empty());
}
