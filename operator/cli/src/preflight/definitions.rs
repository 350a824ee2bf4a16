//! The installed CRDs beside those of this release: older, newer, or of another Helm release.

use std::collections::{BTreeMap, BTreeSet};

use crds::text::first_names;
use crds::{MooncakeCluster, MooncakeInventory, MooncakeNode, MooncakeNodePolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResourceExt, ResourceExt};
use serde_json::Value;

use super::installation::foreign_release;
use super::{Check, Facts, Finding, MAX_NAMES, Plan};
use crate::doctor::Severity;

const CHECK: Check = Check::CustomResourceDefinitions;

pub(super) fn findings(facts: &Facts, plan: &Plan) -> Vec<Finding> {
    let installed = facts.definitions.iter().flatten();
    let ours = own();
    let mut found: Vec<Finding> = installed
        .clone()
        .filter_map(|installed| {
            let own = ours
                .iter()
                .find(|own| own.name_any() == installed.name_any());
            compared(installed, own?)
        })
        .collect();
    let owners: BTreeSet<String> = installed
        .clone()
        .filter_map(|installed| foreign_release(&installed.metadata, plan))
        .collect();
    let names: Vec<&str> = installed
        .filter(|installed| foreign_release(&installed.metadata, plan).is_some())
        .filter_map(|installed| installed.metadata.name.as_deref())
        .collect();
    if let Some(owner) = owners.first().filter(|_| !plan.installed) {
        found.push(Finding::new(
            Severity::Error,
            CHECK,
            format!(
                "CustomResourceDefinition {}",
                first_names(&names, MAX_NAMES)
            ),
            format!(
                "belongs to Helm {owner}; helm install fails with `invalid ownership metadata`"
            ),
            "Uninstall that release, then install with --take-ownership (docs/install.md).",
        ));
    }
    found
}

/// The definitions of this release.
pub(super) fn own() -> [CustomResourceDefinition; 4] {
    [
        MooncakeCluster::crd(),
        MooncakeNode::crd(),
        MooncakeInventory::crd(),
        MooncakeNodePolicy::crd(),
    ]
}

/// A finding if the installed definition has fields or words that this release does not know. One with fewer is older, and
/// the chart replaces it.
fn compared(
    installed: &CustomResourceDefinition,
    own: &CustomResourceDefinition,
) -> Option<Finding> {
    let (there, here) = (Schema::of(installed), Schema::of(own));
    let (newer, older) = (there.beyond(&here), here.beyond(&there));
    let (newer, older): (Vec<&str>, Vec<&str>) = (
        newer.iter().map(String::as_str).collect(),
        older.iter().map(String::as_str).collect(),
    );
    let object = format!("CustomResourceDefinition {}", installed.name_any());
    match (newer.as_slice(), older.as_slice()) {
        ([], []) => None,
        ([], older) => Some(Finding::new(
            Severity::Warning,
            CHECK,
            object,
            format!(
                "is of an older release: it lacks {}",
                first_names(older, MAX_NAMES)
            ),
            "Nothing to do with Helm: the chart replaces it. Without Helm, apply charts/install.yaml of this release first.",
        )),
        (newer, _) => Some(Finding::new(
            Severity::Error,
            CHECK,
            object,
            format!(
                "is of a newer release: it has {}, which this release ({}) does not know",
                first_names(newer, MAX_NAMES),
                env!("CARGO_PKG_VERSION")
            ),
            "Install the newer release, or read docs/version-skew.md before you go back.",
        )),
    }
}

/// The fields of a definition.
#[derive(Default)]
struct Schema {
    /// As `spec.pools[].size`.
    fields: BTreeSet<String>,
    /// The allowed words of a field with a closed list.
    words: BTreeMap<String, BTreeSet<String>>,
}

impl Schema {
    fn of(definition: &CustomResourceDefinition) -> Self {
        let mut found = Self::default();
        for version in &definition.spec.versions {
            let schema = serde_json::to_value(&version.schema).unwrap_or_default();
            found.walk("", &schema["openAPIV3Schema"]);
        }
        // The API server adds these to the definition.
        for added in ["apiVersion", "kind", "metadata"] {
            found.fields.remove(added);
        }
        found
    }

    fn walk(&mut self, path: &str, schema: &Value) {
        if let Some(words) = schema["enum"].as_array() {
            let words = words.iter().filter_map(Value::as_str);
            let words = words.map(str::to_owned).collect();
            self.words.insert(path.to_owned(), words);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            self.walk(&path, field);
            self.fields.insert(path);
        }
        if schema["items"].is_object() {
            self.walk(&format!("{path}[]"), &schema["items"]);
        }
    }

    /// What `other` lacks. Words count where both have a closed list: release 0.2.0 opened some.
    fn beyond(&self, other: &Self) -> Vec<String> {
        let fields = self.fields.difference(&other.fields).cloned();
        let words = self.words.iter().flat_map(|(path, words)| {
            let there = other.words.get(path);
            let missing = there.map(|there| words.difference(there));
            let missing = missing.into_iter().flatten();
            missing.map(move |word| format!("{path}={word}"))
        });
        fields.chain(words).collect()
    }
}
