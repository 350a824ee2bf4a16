//! `why`: each cause with its state, reason and message.

use std::collections::BTreeMap;

use crds::{MooncakeCluster, Reason};
use k8s_openapi::api::core::v1::{Event, Pod};
use mooncake_cli::read_error::{Cause, ReadError, Resources};
use mooncake_cli::why::{Inputs, State, Why, why};
use mooncake_cli::{Report, Snapshot};

use crate::fixtures::{DEGRADED, HEALTHY, pod, snapshot};
use crate::{check, plain};

/// The inputs of an administrator.
fn inputs(snapshot: &Snapshot, pod: Pod) -> Inputs {
    let namespace = pod.metadata.namespace.clone().unwrap();
    let labels = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), namespace)]);
    Inputs {
        pod,
        cluster: Some(snapshot.clusters[0].clone()),
        namespace_labels: Some(labels),
        webhooks: snapshot.webhooks.clone(),
        events: Vec::new(),
        read_errors: Vec::new(),
    }
}

fn degraded(name: &str) -> (Snapshot, Pod) {
    let healthy = snapshot(HEALTHY);
    let pod = pod(&snapshot(DEGRADED), name);
    (healthy, pod)
}

fn with_spec(cluster: &MooncakeCluster, spec: &str) -> MooncakeCluster {
    let mut cluster = cluster.clone();
    cluster.spec = serde_yaml_ng::from_str(spec).unwrap();
    cluster
}

fn expect(found: &Why, state: State, reason: Option<Reason>, words: &str) {
    assert_eq!((found.state, found.reason), (state, reason), "{found:?}");
    assert!(found.message.contains(words), "{}", found.message);
}

#[test]
fn injected_pod_has_the_cause_of_its_transport() {
    let healthy = snapshot(HEALTHY);
    let found = why(&inputs(&healthy, pod(&healthy, "decode-0")));
    expect(&found, State::Injected, None, "respond to the pod");
    let used = found.transport.as_ref().unwrap();
    assert!(
        used.message
            .starts_with("tcp: stock pods use TCP: no storing node")
    );
    let report = Report::Why(Box::new(found));
    check("injected.why.txt", &plain(&report));
    check("injected.why.json", &report.json().unwrap());
}

#[test]
fn tcp_is_explained_by_the_transport_policy() {
    let healthy = snapshot(HEALTHY);
    let mut inputs = inputs(&healthy, pod(&healthy, "decode-0"));
    for (spec, words) in [
        ("{transports: {tcp: Require}}", "tcp is Require"),
        ("{transports: {rdma: Forbid}}", "rdma is Forbid"),
    ] {
        inputs.cluster = Some(with_spec(&healthy.clusters[0], spec));
        let message = why(&inputs).transport.unwrap().message;
        assert!(message.contains(words), "{message}");
    }
    let annotation = ("mooncake.io/transport".to_owned(), "tcp".to_owned());
    let annotations = inputs.pod.metadata.annotations.as_mut().unwrap();
    annotations.extend([annotation]);
    let require = "{transports: {rdma: Require}}";
    inputs.cluster = Some(with_spec(&healthy.clusters[0], require));
    let message = why(&inputs).transport.unwrap().message;
    assert!(
        message.contains("the pod requests it by the annotation"),
        "{message}"
    );
    inputs.pod.spec.as_mut().unwrap().containers[0].env =
        Some(vec![env("MOONCAKE_PROTOCOL", "rdma")]);
    let message = why(&inputs).transport.unwrap().message;
    assert!(message.contains("sglang has another value"), "{message}");
}

fn env(name: &str, value: &str) -> k8s_openapi::api::core::v1::EnvVar {
    serde_json::from_value(serde_json::json!({"name": name, "value": value})).unwrap()
}

#[test]
fn pod_without_the_label_has_the_label_as_remedy() {
    let healthy = snapshot(HEALTHY);
    let mut plain_pod = pod(&healthy, "decode-0");
    plain_pod.metadata.labels = None;
    let found = why(&inputs(&healthy, plain_pod));
    expect(
        &found,
        State::NotRequested,
        None,
        "no label mooncake.io/inject",
    );
    assert!(
        found
            .remedy
            .unwrap()
            .contains("mooncake.io/inject: CLUSTER")
    );
}

#[test]
fn pod_without_a_webhook_call_has_its_cause() {
    let (healthy, pod) = degraded("unseen");
    let mut inputs = inputs(&healthy, pod);
    let found = why(&inputs);
    let reason = Some(Reason::NotInjected);
    expect(
        &found,
        State::NotInjected,
        reason,
        "created before the webhook",
    );
    assert!(found.remedy.as_ref().unwrap().starts_with("Recreate"));
    check("unseen.why.txt", &plain(&Report::Why(Box::new(found))));

    let quiet = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), "quiet".to_owned())]);
    inputs.namespace_labels = Some(quiet);
    expect(
        &why(&inputs),
        State::NotInjected,
        reason,
        "namespaceSelector",
    );

    inputs.webhooks.clear();
    let reason = Some(Reason::WebhookMissing);
    expect(
        &why(&inputs),
        State::NotInjected,
        reason,
        "inject.mooncake.io",
    );
}

#[test]
fn skipped_pod_has_the_present_decision_of_the_webhook() {
    let (healthy, pod) = degraded("left-out");
    let found = why(&inputs(&healthy, pod));
    let words = "the cause no longer exists";
    expect(&found, State::NotInjected, Some(Reason::NotInjected), words);
    assert!(found.message.contains("could not be read within 2 s"));

    let (healthy, pod) = degraded("stranger");
    let mut inputs = inputs(&healthy, pod);
    let reason = Some(Reason::NamespaceNotAllowed);
    let words = "lists namespace `other` in spec.access.allowedNamespaces";
    expect(&why(&inputs), State::NotInjected, reason, words);
    let spec = "{access: {allowedNamespaces: [other]}}";
    inputs.cluster = Some(with_spec(&healthy.clusters[0], spec));
    let reason = Some(Reason::NotInjected);
    expect(
        &why(&inputs),
        State::NotInjected,
        reason,
        "the webhook was not called for it",
    );
}

#[test]
fn waiting_pod_has_the_cause_of_its_gate() {
    let (healthy, pod) = degraded("held-long");
    let mut inputs = inputs(&healthy, pod);
    let reason = Some(Reason::GateWaiting);
    expect(
        &why(&inputs),
        State::Waiting,
        reason,
        "no event of its startup probe",
    );

    let event = |time: &str, words: &str| -> Event {
        serde_json::from_value(serde_json::json!({
            "metadata": {}, "involvedObject": {}, "lastTimestamp": time,
            "message": format!("Startup probe failed: GateWaiting: {words}"),
        }))
        .unwrap()
    };
    inputs.events = vec![
        event(
            "2026-01-01T00:59:00Z",
            "PeerUnreachable: n2 at 10.0.2.5:12001: refused",
        ),
        event("2026-01-01T00:51:00Z", "MasterUnreachable: no report"),
    ];
    let found = why(&inputs);
    let reason = Some(Reason::PeerUnreachable);
    expect(
        &found,
        State::Waiting,
        reason,
        "its gate waits: n2 at 10.0.2.5:12001",
    );
    check("held.why.txt", &plain(&Report::Why(Box::new(found))));

    inputs.cluster = None;
    let reason = Some(Reason::ClusterMissing);
    expect(
        &why(&inputs),
        State::Waiting,
        reason,
        "MooncakeCluster team/kv does not exist",
    );
}

#[test]
fn pod_with_a_timed_out_gate_has_the_missing_peer() {
    let (healthy, pod) = degraded("let-go");
    let found = why(&inputs(&healthy, pod));
    let reason = Some(Reason::GateTimedOut);
    expect(
        &found,
        State::TimedOut,
        reason,
        "10.0.2.5:12001: Connection refused",
    );
}

#[test]
fn injected_pod_has_the_findings_of_its_containers() {
    let healthy = snapshot(HEALTHY);
    let mut engine = pod(&healthy, "decode-0");
    let condition = serde_json::json!({
        "type": "mooncake.io/ContainersFit", "status": "False", "reason": "EngineVersionSkew",
        "message": format!(
            "container main: it has mooncake_transfer_engine 0.3.11; the master speaks 0.3.13. {}",
            Reason::EngineVersionSkew.remedy()
        ),
    });
    let status = engine.status.as_mut().unwrap();
    let conditions = status.conditions.get_or_insert_default();
    conditions.push(serde_json::from_value(condition).unwrap());
    let found = why(&inputs(&healthy, engine));
    let reason = Some(Reason::EngineVersionSkew);
    expect(
        &found,
        State::Injected,
        reason,
        "0.3.11; the master speaks 0.3.13",
    );
    assert!(!found.message.contains("Use one"), "{}", found.message);
    assert_eq!(found.remedy, Some(Reason::EngineVersionSkew.remedy()));
    let evidence = found.evidence.iter();
    let has = |what: &str| evidence.clone().any(|found| found.source.ends_with(what));
    assert!(has("mooncake.io/ContainersFit"), "{:?}", found.evidence);
}

#[test]
fn read_errors_are_listed_only_when_they_matter() {
    let (healthy, pod) = degraded("unseen");
    let mut inputs = inputs(&healthy, pod);
    inputs.namespace_labels = None;
    inputs.webhooks.clear();
    for what in [Resources::NAMESPACES, Resources::WEBHOOKS] {
        let message = "is forbidden".to_owned();
        inputs
            .read_errors
            .push(ReadError::new(what, "team", Cause::Forbidden, message));
    }
    let found = why(&inputs);
    let reason = Some(Reason::NotInjected);
    expect(
        &found,
        State::NotInjected,
        reason,
        "the webhook was not called for it",
    );
    let report = Report::Why(Box::new(found));
    assert_eq!(report.exit_code(), 2);
    assert!(plain(&report).contains("Cannot read mutatingwebhookconfigurations"));

    // An injected pod does not need them.
    inputs.pod = crate::fixtures::pod(&healthy, "decode-0");
    let found = why(&inputs);
    assert_eq!((found.state, found.read_errors.len()), (State::Injected, 0));
}
