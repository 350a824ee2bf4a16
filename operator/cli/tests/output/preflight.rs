//! `preflight`: each obstacle has a finding with object and remedy, and a cluster without obstacles has none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crds::MooncakeNodePolicy;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use mooncake_cli::Report;
use mooncake_cli::args::PreflightArgs;
use mooncake_cli::doctor::Severity;
use mooncake_cli::preflight::{
    Attempt, Check, Dra, Facts, INSTALLED, OLDEST_KUBERNETES, Permission, Plan, preflight,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{check, plain};

const NODES: &str = include_str!("fixtures/preflight-nodes.yaml");
/// The CRD of release 0.1.0.
const OLD_CRD: &str =
    include_str!("../../../../crds/tests/recordings/v0.1.0/crds/mooncakeclusters.yaml");

fn documents<T: DeserializeOwned>(text: &str) -> Vec<T> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    documents
        .map(|document| T::deserialize(document).unwrap())
        .collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The plan of files with these contents.
fn plan(values: &[&str], manifest: &str) -> Plan {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: String, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let values = values.iter().enumerate();
    let args = PreflightArgs {
        release: "mooncake".to_owned(),
        installed: false,
        values: values
            .map(|(number, text)| file(format!("values-{number}.yaml"), text))
            .collect(),
        filename: vec![file("manifest.yaml".to_owned(), manifest)],
    };
    Plan::read(None, &args).unwrap()
}

/// What a cluster without obstacles has.
fn clear() -> Facts {
    let (major, minor) = OLDEST_KUBERNETES;
    let nodes: Vec<Node> = documents(NODES);
    Facts {
        kubernetes: Some(format!("v{major}.{minor}.4")),
        groups: Dra {
            claims: Some(vec!["v1".to_owned(), "v1beta2".to_owned()]),
            compute_domains: Some(vec!["v1beta1".to_owned()]),
        },
        definitions: Some(vec![MooncakeNodePolicy::crd()]),
        denied: Some(Vec::new()),
        namespace_labels: Some(BTreeMap::new()),
        agent_pod: Attempt::Admitted,
        operators: Some(Vec::new()),
        webhooks: Some(Vec::new()),
        nodes: Some(nodes.into_iter().take(1).collect()),
        ..Facts::default()
    }
}

const CLUSTER: &str = "
apiVersion: mooncake.io/v1alpha1
kind: MooncakeCluster
metadata: {name: kv, namespace: team}
spec:
  pools:
    - {name: hot, size: 32Gi, pageSize: 2Mi, nodeSelector: {gpu: h100}}
";

fn report(facts: &Facts, plan: &Plan) -> Report {
    Report::Preflight(preflight(facts, plan))
}

#[test]
fn a_cluster_that_meets_the_requirements_has_no_findings() {
    let report = report(&clear(), &plan(&[], CLUSTER));
    check("clear.preflight.txt", &plain(&report));
    assert_eq!(report.exit_code(), 0);
}

fn annotated(kind: &str, namespace: &str, fields: &serde_json::Value) -> serde_json::Value {
    let mut object = json!({
        "kind": kind,
        "metadata": {
            "name": "mooncake-injection", "namespace": namespace,
            "labels": {"app.kubernetes.io/instance": "kv-store"},
            "annotations": {
                "meta.helm.sh/release-name": "kv-store", "meta.helm.sh/release-namespace": "infra",
            },
        },
    });
    for (name, field) in fields.as_object().unwrap() {
        object[name] = field.clone();
    }
    object
}

/// A CRD with another Helm release as its owner and a field that this release does not know.
fn later_definition() -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(MooncakeNodePolicy::crd()).unwrap();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["quota"] = json!({"type": "string"});
    crd["metadata"]["annotations"] =
        annotated("", "", &json!({}))["metadata"]["annotations"].clone();
    serde_json::from_value(crd).unwrap()
}

fn obstructed() -> Facts {
    let definitions = vec![
        serde_yaml_ng::from_str(OLD_CRD).unwrap(),
        later_definition(),
    ];
    let webhook = annotated(
        "MutatingWebhookConfiguration",
        "",
        &json!({"webhooks": [{
            "name": "inject.mooncake.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"namespace": "infra", "name": "kv-store-operator"}},
        }]}),
    );
    let denied = Permission {
        verb: "create",
        group: "apiextensions.k8s.io",
        resource: "customresourcedefinitions",
        namespace: None,
    };
    let restricted = BTreeMap::from([(
        "pod-security.kubernetes.io/enforce".to_owned(),
        "restricted".to_owned(),
    )]);
    Facts {
        kubernetes: Some("v1.34.1-gke.1000".to_owned()),
        groups: Dra {
            claims: Some(vec!["v1beta1".to_owned()]),
            compute_domains: Some(Vec::new()),
        },
        definitions: Some(definitions),
        denied: Some(vec![denied]),
        namespace_labels: Some(restricted),
        operators: Some(vec![
            serde_json::from_value(annotated("Deployment", "infra", &json!({}))).unwrap(),
        ]),
        webhooks: Some(vec![serde_json::from_value(webhook).unwrap()]),
        nodes: Some(documents(NODES)),
        ..clear()
    }
}

const OBSTRUCTED: &str = "
apiVersion: mooncake.io/v1alpha1
kind: MooncakeCluster
metadata: {name: kv, namespace: team}
spec:
  transports: {rdma: Require, tcp: Forbid}
  mnnvl: {reference: {name: domain}}
  pools:
    - {name: hot, size: 32Gi, pageSize: 2Mi, nodeSelector: {gpu: h100}}
    - {name: cold, size: 1Gi, nodeSelector: {gpu: b300}}
    - {name: arm, size: 1Gi, nodeSelector: {gpu: gb200}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: mooncake.io/v1alpha1
kind: MooncakeNodePolicy
metadata: {name: nowhere}
spec: {nodeSelector: {gpu: b300}}
";

#[test]
fn each_obstacle_has_a_finding_with_object_and_remedy() {
    let plan = plan(&["agent: {nodeSelector: {gpu: h100}}"], OBSTRUCTED);
    let report = report(&obstructed(), &plan);
    check("obstructed.preflight.txt", &plain(&report));
    check("obstructed.preflight.json", &report.json().unwrap());
    let Report::Preflight(found) = report else {
        panic!()
    };
    assert!(found.findings.iter().all(|one| !one.remedy.is_empty()));
    let checks: BTreeSet<Check> = found.findings.iter().map(|found| found.check).collect();
    assert_eq!(checks.len(), 9, "{checks:?}");
}

#[test]
fn nodes_that_the_agent_does_not_select_are_not_judged_and_an_unmatched_selector_is_an_error() {
    let mut facts = clear();
    facts.nodes = Some(documents(NODES));
    let of = |values: &[&str]| preflight(&facts, &plan(values, "")).findings;
    // Old kernel and kubelet of one node, architecture of another.
    assert_eq!(of(&[]).len(), 3, "{:?}", of(&[]));
    let arm = of(&[]).into_iter().find(|of| of.object == "Nodes arm-1");
    let remedy = arm.map(|arm| arm.remedy).unwrap_or_default();
    for place in [
        "agent.nodeSelector",
        "operator.nodeSelector",
        "of the pools",
    ] {
        assert!(remedy.contains(place), "{remedy}");
    }
    let amd64 = "agent: {nodeSelector: {gpu: h100}}";
    assert_eq!(of(&[amd64]).len(), 2, "{:?}", of(&[amd64]));
    // A later file adds a key.
    let none = of(&[amd64, "agent: {nodeSelector: {rack: '7'}}"]);
    assert_eq!(none.len(), 1, "{none:?}");
    assert!(none[0].message.contains("matches none of 3 Linux nodes"));
}

#[test]
fn a_pool_on_nodes_without_agents_is_an_error_also_without_a_selector() {
    let mut facts = clear();
    let mut nodes: Vec<Node> = documents(NODES);
    let taints = json!([{"key": "gpu", "value": "gb200", "effect": "NoSchedule"}]);
    nodes.retain(|node| node.metadata.name.as_deref() != Some("gpu-2"));
    facts.nodes = Some(nodes);
    let found = |facts: &Facts, pool: &str| {
        let manifest = format!(
            "{{apiVersion: mooncake.io/v1alpha1, kind: MooncakeCluster, metadata: {{name: kv}}, \
             spec: {{pools: [{{name: a{pool}}}]}}}}"
        );
        let found = preflight(
            facts,
            &plan(&["agent: {nodeSelector: {gpu: h100}}"], &manifest),
        );
        let found = found.findings.into_iter();
        found
            .map(|found| (found.object, found.remedy))
            .collect::<Vec<_>>()
    };
    let remedy = "Extend agent.nodeSelector of the chart, or narrow nodeSelector of the pool.";
    let unserved = vec![("Nodes arm-1".to_owned(), remedy.to_owned())];
    assert_eq!(found(&facts, ""), unserved);
    assert_eq!(found(&facts, ", nodeSelector: {gpu: h100}"), []);
    // Which nodes an affinity selects is not known here.
    assert_eq!(
        found(&facts, ", podTemplate: {affinity: {nodeAffinity: {}}}"),
        []
    );
    for node in facts.nodes.iter_mut().flatten() {
        if node.metadata.name.as_deref() == Some("arm-1") {
            let taints = serde_json::from_value(taints.clone()).unwrap();
            node.spec.get_or_insert_default().taints = taints;
        }
    }
    assert_eq!(found(&facts, ""), []);
    assert_eq!(
        found(&facts, ", tolerations: [{operator: Exists}]"),
        unserved
    );
}

#[test]
fn memory_of_pools_of_an_earlier_installation_is_not_free() {
    let mut facts = clear();
    assert_eq!(preflight(&facts, &plan(&[], CLUSTER)).findings, []);
    let node = json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeNode", "metadata": {"name": "gpu-1"},
        "spec": {"nodeUid": "u", "bootId": "b", "pools": [{
            "podUid": "p", "podName": "p", "namespace": "other", "cluster": "c", "clusterUid": "cu",
            "pool": "default", "size": "40Gi", "pageSize": "2Mi", "numaPolicy": "Spread", "drainSeconds": 5,
        }]},
    });
    facts.mooncake_nodes = vec![serde_json::from_value(node).unwrap()];
    let found = preflight(&facts, &plan(&[], CLUSTER)).findings;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .message
            .contains("gpu-1 has 24Gi beside other pools"),
        "{found:?}"
    );
    // Its own pools do not take room from it.
    for pool in &mut facts.mooncake_nodes[0].spec.pools {
        (pool.namespace, pool.cluster) = ("team".to_owned(), "kv".to_owned());
    }
    assert_eq!(preflight(&facts, &plan(&[], CLUSTER)).findings, []);
}

/// Release 0.1.0 has closed lists where this release has patterns, and fewer fields.
#[test]
fn a_definition_of_an_older_release_is_replaced_and_a_later_word_is_newer() {
    let mut facts = clear();
    facts.definitions = Some(vec![serde_yaml_ng::from_str(OLD_CRD).unwrap()]);
    let found = preflight(&facts, &plan(&[], "")).findings;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(
        found[0]
            .message
            .contains("of an older release: it lacks spec."),
        "{found:?}"
    );

    let mut crd = serde_json::to_value(MooncakeNodePolicy::crd()).unwrap();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let fixes = &mut schema["properties"]["spec"]["properties"]["fixes"]["items"]["properties"];
    let words = fixes["id"]["enum"].as_array_mut().unwrap();
    words.push(json!("RebootTheNode"));
    facts.definitions = Some(vec![serde_json::from_value(crd).unwrap()]);
    let found = preflight(&facts, &plan(&[], "")).findings;
    assert_eq!(found[0].severity, Severity::Error);
    assert!(
        found[0]
            .message
            .contains("it has spec.fixes[].id=RebootTheNode,"),
        "{found:?}"
    );
}

#[test]
fn a_rejected_dry_run_is_reported_with_the_words_of_the_api_server() {
    let facts = Facts {
        agent_pod: Attempt::Rejected("insufficient quota to match these scopes".to_owned()),
        ..clear()
    };
    let found = preflight(&facts, &plan(&[], "")).findings;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.contains("insufficient quota"));
}

#[test]
fn the_oldest_kubernetes_and_the_installed_kinds_are_those_of_the_chart() {
    let (major, minor) = OLDEST_KUBERNETES;
    let chart = fs::read_to_string(repository().join("charts/mooncake/Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("kubeVersion: \">={major}.{minor}.0-0\"")));
    let installed = fs::read_to_string(repository().join("charts/install.yaml")).unwrap();
    let kinds: BTreeSet<&str> = installed
        .lines()
        .filter_map(|line| line.strip_prefix("kind: "))
        .collect();
    let ours: BTreeSet<&str> = INSTALLED.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(ours, kinds);
}

#[test]
fn a_wrong_file_is_named_and_no_server_is_contacted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.yaml");
    let run = |text: &str| {
        fs::write(&path, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"))
            .args(["preflight", "-f"])
            .arg(&path)
            .env_clear()
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = run(&CLUSTER.replace("2Mi", "3Mi"));
    assert!(
        error.contains("kv.yaml") && error.contains("3Mi"),
        "{error}"
    );
    assert!(run("{").contains("kv.yaml"));
}
