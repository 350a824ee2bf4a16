//! Objects of release 0.1.0, as its own code wrote them, are read for ever; what this release writes is what release 0.1.0
//! and its CRDs accept; and no word, field or list entry of another release makes an object unreadable.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use kube::CustomResourceExt;
use mooncake_crds::check::Verdict;
use mooncake_crds::cluster::Transport;
use mooncake_crds::inventory::{
    Distance, FabricState, Function, GidProtocol, GidScope, LinkLayer, NoGid, PathState, PortState,
    RegistrationMethod,
};
use mooncake_crds::node::PoolState;
use mooncake_crds::skew::UNKNOWN_WORDS;
use mooncake_crds::word::WORD_PATTERN;
use mooncake_crds::{
    CheckId, FixId, MooncakeCluster, MooncakeInventory, MooncakeNode, MooncakeNodePolicy,
    MooncakeNodeStatus, Reason, Vocabulary,
};
use serde_json::{Value, json};

fn recorded(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/recordings/v0.1.0")
        .join(file);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_yaml_ng::from_str(&text).unwrap()
}

fn reread<T: serde::Serialize + serde::de::DeserializeOwned>(value: Value) -> Value {
    let object: T = serde_json::from_value(value).unwrap();
    serde_json::to_value(object).unwrap()
}

#[test]
fn recorded_objects_are_read_and_written_as_release_0_1_0_wrote_them() {
    for file in ["mooncakenode.yaml", "mooncakenode-every-reason.yaml"] {
        let object = recorded(file);
        assert_eq!(reread::<MooncakeNode>(object.clone()), object, "{file}");
    }
    let object = recorded("mooncakeinventory.yaml");
    assert_eq!(reread::<MooncakeInventory>(object.clone()), object);
    let object = recorded("mooncakecluster.yaml");
    let cluster: MooncakeCluster = serde_json::from_value(object.clone()).unwrap();
    let checks = cluster.spec.preflight.checks.len();
    assert_eq!(
        checks,
        object["spec"]["preflight"]["checks"]
            .as_array()
            .unwrap()
            .len()
    );
    assert_eq!(
        serde_json::to_value(&cluster.status).unwrap(),
        object["status"]
    );
    let object = recorded("mooncakenodepolicy.yaml");
    let policy: MooncakeNodePolicy = serde_json::from_value(object).unwrap();
    assert_eq!(policy.spec.checks.len(), same_checks().len());
    assert!(policy.spec.unhealthy_devices.is_some());
}

#[test]
fn every_recorded_word_is_known() {
    let node: MooncakeNode = serde_json::from_value(recorded("mooncakenode.yaml")).unwrap();
    let every: MooncakeNode =
        serde_json::from_value(recorded("mooncakenode-every-reason.yaml")).unwrap();
    let status = node.status.unwrap();
    let reasons: BTreeSet<_> = every
        .status
        .unwrap()
        .findings
        .iter()
        .filter_map(|f| f.reason.known())
        .collect();
    // Later ones are written as the nearest word that 0.1.0 knows.
    let mut same = BTreeSet::from_iter(Reason::ALL.iter().copied());
    same.retain(|reason| reason.is_in_0_1_0());
    assert_eq!(reasons, same);
    let checks: BTreeSet<_> = status
        .findings
        .iter()
        .filter_map(|f| f.check.known())
        .collect();
    assert_eq!(checks, same_checks());
    let fixes: BTreeSet<_> = status.fixes.iter().filter_map(|f| f.id.known()).collect();
    assert_eq!(fixes.len(), FixId::ALL.len());
    assert_eq!(node.spec.policy.unwrap().checks.len(), same_checks().len());
}

/// The checks of release 0.1.0. Later ones are written as the nearest word that it knows.
fn same_checks() -> BTreeSet<CheckId> {
    let all = CheckId::ALL.iter().copied();
    all.filter(|check| check.is_in_0_1_0()).collect()
}

/// Calls `visit` for each string whose schema is that of a word, with its place.
fn words(schema: &Value, place: String, visit: &mut impl FnMut(&str, &Value)) {
    if schema["pattern"] == WORD_PATTERN || schema["enum"].is_array() {
        visit(&place, schema);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        words(property, format!("{place}.{name}"), visit);
    }
    if schema["items"].is_object() {
        words(&schema["items"], format!("{place}[]"), visit);
    }
}

fn schemas(crds: &[Value]) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for crd in crds {
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        let schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        found.insert(kind, schema);
    }
    found
}

fn current() -> BTreeMap<String, Value> {
    let all = [
        MooncakeCluster::crd(),
        MooncakeNode::crd(),
        MooncakeInventory::crd(),
        MooncakeNodePolicy::crd(),
    ];
    schemas(&all.map(|crd| serde_json::to_value(crd).unwrap()))
}

/// Fields that a component writes: everything but the specs of the users' kinds.
fn component_writes(place: &str) -> bool {
    !place.starts_with("MooncakeCluster.spec") && !place.starts_with("MooncakeNodePolicy.spec")
}

#[test]
fn every_field_that_a_component_writes_is_open_and_has_a_row_in_the_table() {
    let mut open = BTreeSet::new();
    for (kind, schema) in current() {
        words(&schema, kind, &mut |place, schema| {
            if component_writes(place) {
                assert!(schema["enum"].is_null(), "{place} is closed");
                assert_eq!(schema["maxLength"], json!(63), "{place}");
                open.insert(place.to_owned());
            } else {
                assert!(
                    schema["enum"].is_array(),
                    "{place}: a user writes it, so it is closed"
                );
            }
        });
    }
    let rows: BTreeSet<_> = UNKNOWN_WORDS
        .iter()
        .map(|row| row.field.to_owned())
        .collect();
    assert_eq!(open, rows);
    assert_eq!(rows.len(), UNKNOWN_WORDS.len());
}

fn written<T: Vocabulary>() -> Vec<&'static str> {
    T::WORDS.iter().map(|word| word.written()).collect()
}

/// The words that components of this release write into a field.
fn written_into(place: &str) -> Option<Vec<&'static str>> {
    let (parent, name) = place.rsplit_once('.')?;
    Some(match name {
        "reason" => written::<Reason>(),
        "check" => written::<CheckId>(),
        "verdict" => written::<Verdict>(),
        "transport" => written::<Transport>(),
        "noGid" => written::<NoGid>(),
        "linkLayer" => written::<LinkLayer>(),
        "function" => written::<Function>(),
        "protocol" => written::<GidProtocol>(),
        "scope" => written::<GidScope>(),
        "distance" => written::<Distance>(),
        "way" => written::<RegistrationMethod>(),
        "id" if parent.ends_with("checks[]") => written::<CheckId>(),
        "id" => written::<FixId>(),
        "state" if parent.ends_with("pools[]") => written::<PoolState>(),
        "state" if parent.ends_with("fabric") => written::<FabricState>(),
        "state" if parent.ends_with("rdma[]") => written::<PathState>(),
        "state" => written::<PortState>(),
        // Copies of what users write. A new value of theirs needs a rule of its own here.
        "pageSize" => vec!["4Ki", "2Mi", "1Gi"],
        "numaPolicy" => vec!["Spread", "Any"],
        "rdma" => vec!["Require", "Prefer", "Forbid"],
        "action" => vec!["Enforce", "Warn", "Ignore"],
        "mode" => vec!["DryRun", "Apply"],
        _ => return None,
    })
}

/// Open fields that release 0.1.0 does not have, so that it reads no word of them.
const LATER_FIELDS: [&str; 8] = [
    "MooncakeNode.spec.pools[].metadata.type",
    "MooncakeNode.spec.pools[].transport",
    "MooncakeNode.status.pools[].transport",
    "MooncakeNode.status.hcas[].notProved",
    "MooncakeNode.status.laterFindings[].check",
    "MooncakeNode.status.laterFindings[].verdict",
    "MooncakeNode.status.laterFindings[].reason",
    "MooncakeCluster.status.masterType",
];

#[test]
fn every_written_word_is_one_that_release_0_1_0_knows() {
    let files = ["clusters", "inventories", "nodepolicies", "nodes"];
    let crds = files.map(|name| recorded(&format!("crds/mooncake{name}.yaml")));
    let mut fields = 0;
    for (kind, schema) in schemas(&crds) {
        words(&schema, kind, &mut |place, schema| {
            if !component_writes(place) {
                return;
            }
            fields += 1;
            let known: BTreeSet<_> = schema["enum"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            let words = written_into(place).unwrap_or_else(|| panic!("no rule for {place}"));
            for word in words {
                assert!(
                    known.contains(word),
                    "{place}: release 0.1.0 does not know {word}; write the nearest word that it knows (`nearest` in the list)"
                );
            }
        });
    }
    for field in LATER_FIELDS {
        assert!(
            UNKNOWN_WORDS.iter().any(|row| row.field == field),
            "{field}"
        );
    }
    assert_eq!(
        fields,
        UNKNOWN_WORDS.len() - LATER_FIELDS.len(),
        "a new open field needs no word of release 0.1.0; list it in LATER_FIELDS"
    );
}

/// Replaces every word, and adds an unknown field to each object and an entry of another type to each list of objects.
fn of_another_release(value: &mut Value, schema: &Value) {
    if schema["pattern"] == WORD_PATTERN {
        *value = json!("OfTheNextRelease");
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                of_another_release(value, &schema["properties"][name]);
            }
            if schema["properties"].is_object() {
                fields.insert("ofTheNextRelease".to_owned(), json!({"a": [1]}));
            }
        }
        Value::Array(entries) => {
            for entry in entries.iter_mut() {
                of_another_release(entry, &schema["items"]);
            }
            let conditions = schema["x-kubernetes-list-map-keys"] == json!(["type"]);
            if schema["items"]["properties"].is_object() && !conditions {
                entries.push(json!("an entry of the next release"));
            }
        }
        _ => {}
    }
}

/// Adds an unknown field to each object that has declared fields.
fn with_fields_of_the_next_release(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                with_fields_of_the_next_release(value, &schema["properties"][name]);
            }
            if schema["properties"].is_object() {
                fields.insert("ofTheNextRelease".to_owned(), json!({"a": [1]}));
            }
        }
        Value::Array(entries) => {
            for entry in entries.iter_mut() {
                with_fields_of_the_next_release(entry, &schema["items"]);
            }
        }
        _ => {}
    }
}

#[test]
fn no_word_field_or_entry_of_another_release_makes_an_object_unreadable() {
    let schemas = current();
    let change = |file: &str, kind: &str, part: &str| {
        let mut object = recorded(file);
        let schema = &schemas[kind]["properties"][part];
        of_another_release(&mut object[part], schema);
        object
    };
    let object = change("mooncakenode.yaml", "MooncakeNode", "status");
    let read = reread::<MooncakeNode>(object.clone());
    let status: MooncakeNode = serde_json::from_value(object).unwrap();
    let status = status.status.unwrap();
    let before: MooncakeNode = serde_json::from_value(recorded("mooncakenode.yaml")).unwrap();
    let before = before.status.unwrap();
    assert_eq!(status.findings.len(), before.findings.len());
    assert_eq!(status.pools.len(), before.pools.len());
    assert_eq!(status.fixes.len(), before.fixes.len());
    assert_eq!(status.hcas.len(), before.hcas.len());
    assert!(
        status
            .findings
            .iter()
            .all(|found| found.check.known().is_none())
    );
    assert_eq!(status.findings[0].verdict.severity(), Verdict::Fail);
    for field in ["check", "verdict", "reason"] {
        assert_eq!(
            read["status"]["findings"][0][field],
            json!("OfTheNextRelease")
        );
    }
    let object = change("mooncakenode.yaml", "MooncakeNode", "spec");
    let read: MooncakeNode = serde_json::from_value(object).unwrap();
    // A copy of a user's rule with an unknown word is no rule; a membership stays one.
    assert_eq!(read.spec.domains.len(), 2);
    assert!(read.spec.domains[0].member);
    let policy = read.spec.policy.unwrap();
    assert!(policy.checks.is_empty() && policy.fixes.is_empty());
    assert!(policy.probes.is_some() && policy.host_ports.is_some());
    let object = change("mooncakeinventory.yaml", "MooncakeInventory", "status");
    let read: MooncakeInventory = serde_json::from_value(object).unwrap();
    assert_eq!(read.status.unwrap().hcas.len(), 2);
    let object = change("mooncakecluster.yaml", "MooncakeCluster", "status");
    let read: MooncakeCluster = serde_json::from_value(object).unwrap();
    assert!(read.status.unwrap().transport.unwrap().known().is_none());
    // A field that only the next operator obeys must not keep this one from the rest of the spec.
    let mut object = recorded("mooncakecluster.yaml");
    let before: MooncakeCluster = serde_json::from_value(object.clone()).unwrap();
    let schema = &schemas["MooncakeCluster"]["properties"]["spec"];
    with_fields_of_the_next_release(&mut object["spec"], schema);
    let read: MooncakeCluster = serde_json::from_value(object).unwrap();
    assert_eq!(read.spec, before.spec);
}

#[test]
fn findings_of_later_checks_keep_their_names_in_a_list_of_their_own() {
    let written = json!({
        "check": "EngineProcessorTime", "verdict": "Warn", "reason": "EngineThrottled", "subject": "pool pod team/a",
        "message": "it waits", "podUid": "u", "since": "2026-01-01T00:00:00Z",
    });
    let status = json!({ "laterFindings": [written] });
    let status: MooncakeNodeStatus = serde_json::from_value(status).unwrap();
    let found: Vec<_> = status.all_findings().collect();
    assert!(found.len() == 1 && found[0].check == CheckId::EngineProcessorTime);
    let again = serde_json::to_value(&status).unwrap();
    assert_eq!(again["laterFindings"], json!([written]));
    let silent: MooncakeNodeStatus = serde_json::from_value(json!({})).unwrap();
    assert_eq!(silent.later_findings, None);
    assert!(serde_json::to_value(&silent).unwrap()["laterFindings"].is_null());
}
