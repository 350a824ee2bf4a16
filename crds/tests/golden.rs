//! The YAML in this folder and the chart's copy equal the types. `UPDATE=1 cargo test -p
//! mooncake-crds --test golden` rewrites both.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
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

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn check(path: &Path, wanted: &str) {
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
        check(&here().join(file), &yaml);
        let chart = here().join("../charts/mooncake/templates/crds").join(file);
        check(&chart, &chart_copy(&yaml));
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
fn every_reason_has_a_page_in_the_docs() {
    let wanted = reasons_page();
    check(&here().join("../docs/reasons.md"), &wanted);
}

fn reasons_page() -> String {
    let mut page = String::from(
        "# Reasons\n\nEvery cause that this project names. The same word stands in conditions, Events, metrics \
         and logs. This page is written from `crds/src/reason.rs`.\n\n| Reason | who can act | what it means | what to do |\n|---|---|---|---|\n",
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

/// Links of a page as their words and targets; code has its marks taken off.
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

/// Places of a page that can be linked to: what is marked, and headings.
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

#[test]
fn whatever_the_page_for_who_comes_from_mooncakes_own_guide_names_is_there() {
    let docs = here().join("../docs");
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
        // One word is not shown and another one linked.
        let own = ["reasons.md", "checks.md"].contains(&file) && !place.is_empty();
        assert!(
            !own || words.to_lowercase() == place,
            "{words} leads to {target}"
        );
    }
    for check in CheckId::ALL.iter().filter(|check| !check.rows().is_empty()) {
        let named = links.iter().any(|(words, _)| *words == check.as_str());
        assert!(
            named,
            "{check} is for one of the guide's failures and not on the page"
        );
    }
    let fixes = page.split("fix `").skip(1);
    for fix in fixes.filter_map(|rest| rest.split_once('`')) {
        let known = FixId::ALL.iter().any(|known| known.as_str() == fix.0);
        assert!(known, "there is no fix {}", fix.0);
    }
}
