//! Why a pod was injected or not, is held, or uses TCP: each cause with the words that name it.

use std::collections::BTreeMap;

use crds::{MooncakeCluster, Reason};
use k8s_openapi::api::core::v1::{Event, Pod};
use mooncake_operator::cli::unseen::{Cause, Unseen, What};
use mooncake_operator::cli::why::{Fate, Subject, Why, why};
use mooncake_operator::cli::{Answer, Picture};

use crate::fixtures::{DEGRADED, HEALTHY, picture, pod};
use crate::{check, plain};

/// A pod of the picture, with everything that an administrator sees.
fn subject(picture: &Picture, pod: Pod) -> Subject {
    let namespace = pod.metadata.namespace.clone().unwrap();
    let labels = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), namespace)]);
    Subject {
        pod,
        cluster: Some(picture.clusters[0].clone()),
        labels: Some(labels),
        webhooks: picture.webhooks.clone(),
        events: Vec::new(),
        unseen: Vec::new(),
    }
}

fn unseen(name: &str) -> (Picture, Pod) {
    let healthy = picture(HEALTHY);
    let pod = pod(&picture(DEGRADED), name);
    (healthy, pod)
}

fn with_spec(cluster: &MooncakeCluster, spec: &str) -> MooncakeCluster {
    let mut cluster = cluster.clone();
    cluster.spec = serde_yaml_ng::from_str(spec).unwrap();
    cluster
}

fn expect(found: &Why, fate: Fate, reason: Option<Reason>, words: &str) {
    assert_eq!((found.fate, found.reason), (fate, reason), "{found:?}");
    assert!(found.message.contains(words), "{}", found.message);
}

#[test]
fn an_injected_pod_says_where_its_transport_comes_from() {
    let healthy = picture(HEALTHY);
    let found = why(&subject(&healthy, pod(&healthy, "decode-0")));
    expect(&found, Fate::Injected, None, "answered from inside the pod");
    let used = found.transport.as_ref().unwrap();
    assert!(used.message.starts_with("tcp: a stock engine has one"));
    let answer = Answer::Why(Box::new(found));
    check("injected.why.txt", &plain(&answer));
    check("injected.why.json", &answer.json().unwrap());
}

#[test]
fn tcp_is_explained_by_the_policy_that_asks_for_it() {
    let healthy = picture(HEALTHY);
    let mut subject = subject(&healthy, pod(&healthy, "decode-0"));
    for (spec, words) in [
        ("{transports: {tcp: Require}}", "tcp is Require"),
        ("{transports: {rdma: Forbid}}", "rdma is Forbid"),
    ] {
        subject.cluster = Some(with_spec(&healthy.clusters[0], spec));
        let message = why(&subject).transport.unwrap().message;
        assert!(message.contains(words), "{message}");
    }
    subject.pod.spec.as_mut().unwrap().containers[0].env =
        Some(vec![env("MOONCAKE_PROTOCOL", "rdma")]);
    let message = why(&subject).transport.unwrap().message;
    assert!(
        message.contains("sglang has another of its own"),
        "{message}"
    );
}

fn env(name: &str, value: &str) -> k8s_openapi::api::core::v1::EnvVar {
    serde_json::from_value(serde_json::json!({"name": name, "value": value})).unwrap()
}

#[test]
fn a_pod_without_the_label_is_told_how_to_ask() {
    let healthy = picture(HEALTHY);
    let mut plain_pod = pod(&healthy, "decode-0");
    plain_pod.metadata.labels = None;
    let found = why(&subject(&healthy, plain_pod));
    expect(&found, Fate::NotAsked, None, "no label mooncake.io/inject");
    assert!(
        found
            .remedy
            .unwrap()
            .contains("mooncake.io/inject: CLUSTER")
    );
}

#[test]
fn a_pod_that_the_webhook_did_not_see_is_told_why_it_was_not_called() {
    let (healthy, pod) = unseen("unseen");
    let mut subject = subject(&healthy, pod);
    let found = why(&subject);
    let reason = Some(Reason::NotInjected);
    expect(
        &found,
        Fate::NotInjected,
        reason,
        "before the webhook was there",
    );
    assert!(found.remedy.as_ref().unwrap().starts_with("Recreate"));
    check("unseen.why.txt", &plain(&Answer::Why(Box::new(found))));

    let quiet = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), "quiet".to_owned())]);
    subject.labels = Some(quiet);
    expect(
        &why(&subject),
        Fate::NotInjected,
        reason,
        "namespaceSelector",
    );

    subject.webhooks.clear();
    let reason = Some(Reason::WebhookMissing);
    expect(
        &why(&subject),
        Fate::NotInjected,
        reason,
        "inject.mooncake.io",
    );
}

#[test]
fn a_pod_that_was_skipped_is_told_whether_it_would_be_again() {
    let (healthy, pod) = unseen("left-out");
    let found = why(&subject(&healthy, pod));
    let words = "what stood in its way then does not any more";
    expect(&found, Fate::NotInjected, Some(Reason::NotInjected), words);
    assert!(found.message.contains("could not be read within 2 s"));

    let (healthy, pod) = unseen("stranger");
    let mut subject = subject(&healthy, pod);
    let reason = Some(Reason::NamespaceNotAllowed);
    let words = "lists namespace `other` in spec.access.allowedNamespaces";
    expect(&why(&subject), Fate::NotInjected, reason, words);
    let spec = "{access: {allowedNamespaces: [other]}}";
    subject.cluster = Some(with_spec(&healthy.clusters[0], spec));
    let reason = Some(Reason::NotInjected);
    expect(
        &why(&subject),
        Fate::NotInjected,
        reason,
        "the webhook did not see it",
    );
}

#[test]
fn a_held_pod_repeats_what_its_gate_waits_for() {
    let (healthy, pod) = unseen("held-long");
    let mut subject = subject(&healthy, pod);
    let reason = Some(Reason::GateWaiting);
    expect(
        &why(&subject),
        Fate::Held,
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
    subject.events = vec![
        event(
            "2026-01-01T00:59:00Z",
            "PeerUnreachable: n2 at 10.0.2.5:12001: refused",
        ),
        event("2026-01-01T00:51:00Z", "MasterUnreachable: no answer"),
    ];
    let found = why(&subject);
    let reason = Some(Reason::PeerUnreachable);
    expect(
        &found,
        Fate::Held,
        reason,
        "its gate waits: n2 at 10.0.2.5:12001",
    );
    check("held.why.txt", &plain(&Answer::Why(Box::new(found))));

    subject.cluster = None;
    let reason = Some(Reason::ClusterMissing);
    expect(
        &why(&subject),
        Fate::Held,
        reason,
        "no MooncakeCluster team/kv",
    );
}

#[test]
fn a_pod_whose_gate_gave_up_says_what_was_missing() {
    let (healthy, pod) = unseen("let-go");
    let found = why(&subject(&healthy, pod));
    let reason = Some(Reason::GateTimedOut);
    expect(
        &found,
        Fate::TimedOut,
        reason,
        "10.0.2.5:12001: Connection refused",
    );
}

#[test]
fn a_pod_that_takes_part_is_told_what_was_found_in_its_containers() {
    let healthy = picture(HEALTHY);
    let mut engine = pod(&healthy, "decode-0");
    let said = serde_json::json!({
        "type": "mooncake.io/ContainersFit", "status": "False", "reason": "EngineVersionSkew",
        "message": format!(
            "container main: it has mooncake_transfer_engine 0.3.11; the master speaks 0.3.13. {}",
            Reason::EngineVersionSkew.remedy()
        ),
    });
    let status = engine.status.as_mut().unwrap();
    let conditions = status.conditions.get_or_insert_default();
    conditions.push(serde_json::from_value(said).unwrap());
    let found = why(&subject(&healthy, engine));
    let reason = Some(Reason::EngineVersionSkew);
    expect(
        &found,
        Fate::Injected,
        reason,
        "0.3.11; the master speaks 0.3.13",
    );
    assert!(!found.message.contains("Use one"), "{}", found.message);
    assert_eq!(
        found.remedy.as_deref(),
        Some(Reason::EngineVersionSkew.remedy())
    );
    let evidence = found.evidence.iter();
    let says = |what: &str| evidence.clone().any(|found| found.what.ends_with(what));
    assert!(says("mooncake.io/ContainersFit"), "{:?}", found.evidence);
}

#[test]
fn a_tenant_is_told_what_the_answer_lacks() {
    let (healthy, pod) = unseen("unseen");
    let mut subject = subject(&healthy, pod);
    subject.labels = None;
    subject.webhooks.clear();
    for what in [What::Namespaces, What::Webhooks] {
        let words = "is forbidden".to_owned();
        subject
            .unseen
            .push(Unseen::new(what, "team", Cause::Forbidden, words));
    }
    let found = why(&subject);
    let reason = Some(Reason::NotInjected);
    expect(
        &found,
        Fate::NotInjected,
        reason,
        "the webhook did not see it",
    );
    let answer = Answer::Why(Box::new(found));
    assert_eq!(answer.exit_code(), 2);
    assert!(plain(&answer).contains("Could not look at mutatingwebhookconfigurations"));

    // Of a pod that takes part nothing is missing.
    subject.pod = crate::fixtures::pod(&healthy, "decode-0");
    let found = why(&subject);
    assert_eq!((found.fate, found.unseen.len()), (Fate::Injected, 0));
}
