//! Checks that the YAML in this directory, its copy in the chart and docs/reasons.md equal the types. `UPDATE=1 cargo test -p
//! mooncake-crds --test golden` rewrites them.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use mooncake_crds::policy::CordonWhen;
use mooncake_crds::skew::UNKNOWN_WORDS;
use mooncake_crds::{
    CheckId, FixId, MooncakeCluster, MooncakeInventory, MooncakeNode, MooncakeNodePolicy, Reason,
};
use serde_json::Value;

fn definitions() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("mooncakeclusters.yaml", MooncakeCluster::crd()),
        ("mooncakenodes.yaml", MooncakeNode::crd()),
        ("mooncakeinventories.yaml", MooncakeInventory::crd()),
        ("mooncakenodepolicies.yaml", MooncakeNodePolicy::crd()),
    ]
}

fn crate_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn assert_golden(path: &Path, wanted: &str) {
    if std::env::var_os("UPDATE").is_some() {
        let folder = path.parent().expect("a golden file lies in a folder");
        fs::create_dir_all(folder).expect("the folder can be made");
        fs::write(path, wanted).expect("the golden file can be written");
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} differs from the types; run with UPDATE=1",
        path.display()
    );
}

/// The keep policy makes Helm leave the CRDs, and so every user's objects, at uninstall.
fn chart_copy(yaml: &str) -> String {
    yaml.replacen(
        "metadata:\n",
        "metadata:\n  annotations:\n    helm.sh/resource-policy: keep\n",
        1,
    )
}

#[test]
fn the_yaml_equals_the_types() {
    for (file, crd) in definitions() {
        let yaml = serde_yaml_ng::to_string(&crd).unwrap();
        assert_golden(&crate_directory().join(file), &yaml);
        let chart = crate_directory()
            .join("../charts/mooncake/templates/crds")
            .join(file);
        assert_golden(&chart, &chart_copy(&yaml));
    }
}

#[test]
fn every_field_is_documented() {
    fn walk(path: &str, schema: &Value, missing: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if property["description"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
            {
                missing.push(path.clone());
            }
            walk(&path, property, missing);
            walk(&format!("{path}[]"), &property["items"], missing);
        }
    }
    for (file, crd) in definitions() {
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
        let mut missing = Vec::new();
        for part in ["spec", "status"] {
            walk(
                part,
                &schema["openAPIV3Schema"]["properties"][part],
                &mut missing,
            );
        }
        assert!(missing.is_empty(), "{file}: no description at {missing:?}");
    }
}

#[test]
fn an_empty_spec_gives_one_pool_of_a_gibibyte() {
    let cluster: MooncakeCluster = serde_yaml_ng::from_str(
        "apiVersion: mooncake.io/v1alpha1\nkind: MooncakeCluster\nmetadata: {name: demo}\nspec: {}",
    )
    .unwrap();
    assert_eq!(cluster.spec.pools.len(), 1);
    assert_eq!(cluster.spec.pools[0].size.0, 1 << 30);
    assert!(cluster.spec.pools[0].tolerations.is_empty());
}

#[test]
fn the_reasons_page_equals_the_reasons() {
    let wanted = reasons_page();
    assert_golden(&crate_directory().join("../docs/reasons.md"), &wanted);
}

#[test]
fn the_page_of_version_skew_equals_the_table() {
    let wanted = skew_page();
    assert_golden(&crate_directory().join("../docs/version-skew.md"), &wanted);
}

fn skew_page() -> String {
    let mut page = String::from(SKEW_PAGE);
    for row in UNKNOWN_WORDS {
        page += &format!("| `{}` | {} | {} |\n", row.field, row.reader, row.effect);
    }
    page += "\n## Renamed words\nOne row per word that release 0.1.0 writes and knows under another name.\n\n\
             | this release | release 0.1.0 |\n|---|---|\n";
    let reasons = Reason::FORMER
        .iter()
        .map(|(former, now)| (now.as_str(), *former));
    let checks = CheckId::FORMER
        .iter()
        .map(|(former, now)| (now.as_str(), *former));
    for (now, former) in reasons.chain(checks) {
        page += &format!("| `{now}` | `{former}` |\n");
    }
    page
}

const SKEW_PAGE: &str = "# Version skew

Operator, agents, pool pods, gates, kubectl-mooncake and CRDs of two adjacent releases are made to work together, in both directions. With release 0.1.0 this is tested on recorded objects and records, on an API server with its CRDs, and in `make soak` with images of both releases side by side under load. This page is generated from \
`crds/src/skew.rs` and the lists of words.

## Words between components
Reasons, checks, fixes and states that a component writes are open strings: the CRDs accept every word of at most 63 characters, and a reader keeps a word \
that it does not know. A list entry that a reader cannot read does not hide the others. Fields that users write stay closed lists.

Release 0.1.0 had closed lists. It cannot read an object with a word that it does not know, and a rollback may start it at any time with the objects that this \
release wrote. Therefore this release writes only words of release 0.1.0 into these fields, and for a new word the nearest word of release 0.1.0. Findings of a check that release 0.1.0 lacks are not in the list. People read the new \
words in conditions, Events, logs, metrics and kubectl-mooncake. Both names are read. The next release writes the new words.

If the installed CRD is older than the agent, the API server rejects fields that it does not declare. The agent then writes its status without them, and \
repeats no write that is rejected.

Pool pods keep one sealed record for the next agent. It stays as release 0.1.0 reads it: what this release adds is in fields that release 0.1.0 ignores, \
and is missing after an agent of release 0.1.0 has written the record.

Before a rollback to release 0.1.0: use the names of release 0.1.0 in `spec.checks` of MooncakeNodePolicies and in `spec.preflight.checks` of \
MooncakeClusters, and `sickDevices` instead of `unhealthyDevices`. Release 0.1.0 ignores objects of users with names that it does not know. \
Release 0.1.0 serves no pool over RDMA: where `status.transport` is `Rdma`, set `spec.transports.rdma` to `Forbid` and create the injected pods again.

A MooncakeCluster with fields of a later release is read without them. Release 0.1.0 does not reconcile such a MooncakeCluster; with the CRDs of release 0.1.0, \
which a rollback of the chart installs, the API server removes the fields.

## A MooncakeNodePolicy that the operator cannot read
A later release stored it, or it has values that only a later CRD allows. The watch of the other policies continues, and:

* Its nodes keep the rules in `MooncakeNode.spec.policy`, also after a restart of the operator. A node without rules gets those of the policies that can be read, \
and so does an injected hostNetwork pod its `hostPorts`.
* No node is cordoned or uncordoned by any policy: the unreadable one may have the higher priority. `UnhealthyNodesCordoned` of the others names the nodes that wait.
* Its condition `Accepted` is `False` with the reason `InvalidSpec` and the field. The same is an Event, `mooncake_operator_undecodable_objects_total` counts it, and \
`kubectl mooncake doctor` reports an error.
* It takes effect with the next change that the operator can read, or with an operator of the release that wrote it.

If the agent cannot read a field of `MooncakeNode.spec.policy` outside of a list, it keeps the last rules that it has read since its start, and pool pods are served \
as before. Without such rules, checks are enforced and no fix is applied.

## What a reader does with a word that it does not know
The default is the safe side: not ready, not allowed, keep the last.

| field | reader | effect |
|---|---|---|
";

fn reasons_page() -> String {
    let mut page = String::from(
        "# Reasons\n\nAll causes that this project reports. Conditions, Events, metrics and logs use the same names. \
         This page is generated from `crds/src/reason.rs`.\n\n| Reason | owner | meaning | remedy |\n|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        page += &format!(
            "| <a id=\"{}\"></a>`{reason}` | {:?} | {} | {} |\n",
            reason.as_str().to_ascii_lowercase(),
            reason.owner(),
            reason.about(),
            reason.remedy(),
        );
    }
    page
}

/// Returns the links of a page as text and target, without code marks.
fn links(page: &str) -> Vec<(&str, &str)> {
    let parts = page.split("](").zip(page.split("](").skip(1));
    parts
        .filter_map(|(before, after)| {
            let (_, words) = before.rsplit_once('[')?;
            let (target, _) = after.split_once(')')?;
            Some((words.trim_matches('`'), target))
        })
        .collect()
}

/// Returns the link targets of a page: anchors and headings.
fn places(page: &str) -> Vec<String> {
    let marked = page.split("<a id=\"").skip(1);
    let marked = marked.filter_map(|rest| rest.split_once('"'));
    let heading = |line: &str| {
        let words = line.strip_prefix('#')?.trim_start_matches('#').trim();
        let spoken = |sign: &char| sign.is_alphanumeric() || " -_".contains(*sign);
        let words: String = words.to_lowercase().chars().filter(spoken).collect();
        Some(words.replace(' ', "-"))
    };
    marked
        .map(|(place, _)| place.to_owned())
        .chain(page.lines().filter_map(heading))
        .collect()
}

/// Checks without a counterpart in Mooncake's troubleshooting guide.
const NOT_IN_THE_GUIDE: &[CheckId] = &[
    CheckId::Clock,
    CheckId::ContainerRuntime,
    CheckId::Fixes,
    CheckId::HostReadable,
    CheckId::PciLink,
    CheckId::PodEngine,
    CheckId::PodHostPorts,
    CheckId::RdmaNamespaces,
];

#[test]
fn names_of_release_0_1_0_are_accepted() {
    for (former, reason) in Reason::FORMER {
        let read: Reason = serde_json::from_value(Value::from(*former)).unwrap();
        assert_eq!(read, *reason, "{former}");
    }
    for (former, check) in CheckId::FORMER {
        let read: CheckId = serde_json::from_value(Value::from(*former)).unwrap();
        assert_eq!(read, *check, "{former}");
    }
    let policy: MooncakeNodePolicy = serde_yaml_ng::from_str(
        "apiVersion: mooncake.io/v1alpha1\nkind: MooncakeNodePolicy\nmetadata: {name: a}\nspec: \
         {sickDevices: {cordonWhen: AllAreSick}, checks: [{id: PodByHand, action: Warn}]}",
    )
    .unwrap();
    let rule = policy
        .spec
        .unhealthy_devices
        .expect("the former field is read");
    assert_eq!(rule.cordon_when, CordonWhen::AllUnhealthy);
    assert_eq!(policy.spec.checks[0].id, CheckId::PodRdmaSettings);
}

#[test]
fn everything_that_the_troubleshooting_page_names_exists() {
    let docs = crate_directory().join("../docs");
    let read = |name: &str| fs::read_to_string(docs.join(name)).unwrap_or_default();
    let page = read("troubleshooting.md");
    let links = links(&page);
    assert!(links.len() > 80, "only {} links are read", links.len());
    for (words, target) in &links {
        let (file, place) = target.split_once('#').unwrap_or((target, ""));
        let linked = read(file);
        assert!(
            !linked.is_empty() && (place.is_empty() || places(&linked).contains(&place.to_owned())),
            "{words} leads to {target}, which is not there"
        );
        // The link text equals the name of its target.
        let own = ["reasons.md", "checks.md"].contains(&file) && !place.is_empty();
        assert!(
            !own || words.to_lowercase() == place,
            "{words} leads to {target}"
        );
    }
    for check in CheckId::ALL {
        let named = links.iter().any(|(words, _)| *words == check.as_str());
        assert!(
            named || NOT_IN_THE_GUIDE.contains(check),
            "{check} is not on the page"
        );
    }
    let fixes = page.split("fix `").skip(1);
    for fix in fixes.filter_map(|rest| rest.split_once('`')) {
        let known = FixId::ALL.iter().any(|known| known.as_str() == fix.0);
        assert!(known, "there is no fix {}", fix.0);
    }
}

/// The API server stores null in a nullable field instead of its default, and null is not a value of its type.
#[test]
fn no_field_with_a_default_is_nullable() {
    fn walk(path: &str, schema: &Value, nullable: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if property["nullable"] == true && !property["default"].is_null() {
                nullable.push(path.clone());
            }
            walk(&path, property, nullable);
            walk(&format!("{path}[]"), &property["items"], nullable);
        }
    }
    let mut nullable = Vec::new();
    for (file, crd) in definitions() {
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
        walk(file, &schema["openAPIV3Schema"], &mut nullable);
    }
    assert!(nullable.is_empty(), "{nullable:?}");
}
