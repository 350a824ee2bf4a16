//! The namespaces, CRDs and Helm release that the demo creates in a cluster, recognizes by labels, and removes.

use crate::error::Error;
use crate::progress::Progress;
use crate::target::Target;
use mooncake_e2e::product::{self, Image};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// Namespace of the demo's cluster and pods.
pub(crate) const NAMESPACE: &str = "mooncake-demo";
/// Allows the demo to read the agents' metrics.
pub(crate) const READER_BINDING: &str = "mooncake-demo-metrics-reader";
/// Label of both namespaces: `up` created them, so `down` may remove them.
const LABEL: &str = "mooncake.io/made-by=demo";
/// Label of the release's namespace: the agents are privileged.
const PRIVILEGED: &str = "pod-security.kubernetes.io/enforce=privileged";
/// Annotation of the release's namespace: `up` created the CRDs, so `down` removes them too.
const CRDS_ARE_OURS: &str = "mooncake.io/demo-brought-crds";
const CRDS: [&str; 4] = [
    "mooncakeclusters.mooncake.io",
    "mooncakenodes.mooncake.io",
    "mooncakeinventories.mooncake.io",
    "mooncakenodepolicies.mooncake.io",
];

/// Those of which users create objects. The others have one object per node, of the operator and the agents.
const OF_USERS: [&str; 2] = [CRDS[0], CRDS[3]];

/// Prints what will be created in the user's cluster and reads a confirmation.
#[expect(clippy::print_stdout, reason = "a question to the user")]
pub(crate) fn confirm(
    target: &Target,
    images: &[Image],
    registry: Option<&str>,
) -> Result<(), Error> {
    let (system, release) = (product::NAMESPACE, product::RELEASE);
    println!(
        "This will create in {}:
  namespace {system}: Helm release {release}
    2 operator pods, one privileged agent pod on every node, a webhook for labelled pods,
    {} CRDs, ValidatingAdmissionPolicies, two PriorityClasses, ClusterRoles
  namespace {NAMESPACE}: a MooncakeCluster with 1Gi on every schedulable node, and two pods",
        target.name,
        CRDS.len(),
    );
    for image in images {
        match registry {
            Some(registry) => println!(
                "  image {} (pushed)",
                image.reference.replacen("localhost", registry, 1)
            ),
            None => println!("  image {} (the nodes must have it)", image.reference),
        }
    }
    print!("`make demo-down` removes it. Continue? [y/N] ");
    std::io::stdout().flush().map_err(Error::Prompt)?;
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(Error::Prompt)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Error::Declined),
    }
}

/// Creates both namespaces. Fails before any change if one exists that the demo has not created.
pub(crate) fn create_namespaces(target: &Target) -> Result<(), Error> {
    for namespace in [product::NAMESPACE, NAMESPACE] {
        if exists(target, &["namespace", namespace])? && !is_ours(target, namespace)? {
            return Err(Error::NotOurs(namespace));
        }
    }
    let brings = !exists(target, &["crd", CRDS[0]])?;
    for namespace in [product::NAMESPACE, NAMESPACE] {
        if exists(target, &["namespace", namespace])? {
            continue;
        }
        target
            .kubectl
            .command(["create", "-f", "-"])
            .input(manifest(namespace, brings).to_string())
            .done()?;
    }
    Ok(())
}

/// A namespace with all its marks: one that was created without them would not be recognized after an interruption.
fn manifest(namespace: &str, brings_crds: bool) -> Value {
    let mut metadata = json!({"name": namespace, "labels": {}});
    let mut label = |text: &str| {
        let (label, value) = text.split_once('=').expect("a label has a value");
        metadata["labels"][label] = value.into();
    };
    label(LABEL);
    if namespace == product::NAMESPACE {
        label(PRIVILEGED);
        if brings_crds {
            metadata["annotations"] = json!({CRDS_ARE_OURS: "true"});
        }
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

/// Removes everything that `up` created, the pods first.
pub(crate) fn remove(target: &Target, progress: &mut Progress) -> Result<(), Error> {
    // First, because no namespace shows afterwards that it is left.
    delete(target, &["clusterrolebinding", READER_BINDING])?;
    if exists(target, &["namespace", NAMESPACE])? && is_ours(target, NAMESPACE)? {
        progress.report(&format!("removing namespace {NAMESPACE}"));
        let confirmed = format!("{}=true", crds::names::ANNOTATION_CONFIRM_DELETION);
        let annotate = [
            "annotate",
            "namespace",
            NAMESPACE,
            "--overwrite",
            &confirmed,
        ];
        target.kubectl.run(annotate)?;
        delete(target, &["namespace", NAMESPACE])?;
    }
    let system = product::NAMESPACE;
    if !exists(target, &["namespace", system])? || !is_ours(target, system)? {
        progress.report(&format!(
            "the demo has no namespace {system}: nothing more to remove"
        ));
        return Ok(());
    }
    progress.report(&format!("removing Helm release {}", product::RELEASE));
    target
        .helm()
        .args(["uninstall", product::RELEASE, "--namespace", system])
        .args(["--ignore-not-found", "--wait", "--timeout=120s"])
        .done()?;
    let annotation = CRDS_ARE_OURS.replace('.', "\\.");
    let brought = target.kubectl.run([
        "get",
        "namespace",
        system,
        "-o",
        &format!("jsonpath={{.metadata.annotations.{annotation}}}"),
    ])?;
    if brought == "true" {
        remove_crds(target, progress)?;
    }
    progress.report(&format!("removing namespace {system}"));
    delete(target, &["namespace", system])
}

/// Removes the CRDs, unless there are objects of others: these would go with their pods and keys.
fn remove_crds(target: &Target, progress: &mut Progress) -> Result<(), Error> {
    let mut kept = Vec::new();
    for crd in OF_USERS {
        if exists(target, &["crd", crd])? {
            kept.extend(others(&get(target, &[crd, "--all-namespaces"])?));
        }
    }
    if !kept.is_empty() {
        progress.report(&format!(
            "keeping the CRDs, because these objects are not the demo's: {}. After their deletion: kubectl delete crd {}",
            kept.join(", "),
            CRDS.join(" ")
        ));
        return Ok(());
    }
    progress.report("removing the CRDs");
    CRDS.iter()
        .try_for_each(|crd| delete(target, &["crd", crd]))
}

/// The objects of a list that are outside the demo's namespace.
fn others(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|object| {
            let metadata = &object["metadata"];
            let namespace = metadata["namespace"].as_str();
            let (kind, name) = (object["kind"].as_str()?, metadata["name"].as_str()?);
            match namespace {
                Some(NAMESPACE) => None,
                Some(namespace) => Some(format!("{kind} {namespace}/{name}")),
                None => Some(format!("{kind} {name}")),
            }
        })
        .collect()
}

fn delete(target: &Target, what: &[&str]) -> Result<(), Error> {
    target
        .kubectl
        .command(["delete", "--ignore-not-found", "--timeout=120s"])
        .args(what)
        .deadline(Duration::from_secs(130))
        .done()?;
    Ok(())
}

pub(crate) fn exists(target: &Target, what: &[&str]) -> Result<bool, Error> {
    let answer = target
        .kubectl
        .command(["get", "--ignore-not-found", "-o", "name"])
        .args(what)
        .output()?;
    Ok(!answer.is_empty())
}

fn is_ours(target: &Target, namespace: &str) -> Result<bool, Error> {
    let answer = get(target, &["namespace", namespace])?;
    let (label, value) = LABEL.split_once('=').expect("a label has a value");
    Ok(answer["metadata"]["labels"][label] == value)
}

/// Reads an object or a list as JSON.
pub(crate) fn get(target: &Target, what: &[&str]) -> Result<Value, Error> {
    let answer = target
        .kubectl
        .command(["get", "-o", "json"])
        .args(what)
        .output()?;
    serde_json::from_str(&answer).map_err(|source| Error::Answer {
        what: "the output of kubectl",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_outside_the_demos_namespace_are_named() {
        let object = |namespace: Option<&str>, name: &str| json!({"kind": "MooncakeCluster", "metadata": {"name": name, "namespace": namespace}});
        let list = json!({"items": [
            object(Some(NAMESPACE), "demo"),
            object(Some("team"), "kv"),
            object(None, "all"),
        ]});
        assert_eq!(
            others(&list),
            ["MooncakeCluster team/kv", "MooncakeCluster all"]
        );
        assert!(others(&json!({"items": []})).is_empty());
    }

    #[test]
    fn a_namespace_is_created_with_everything_by_which_it_is_recognized() {
        let own = manifest(NAMESPACE, true);
        assert_eq!(
            own["metadata"]["labels"],
            json!({"mooncake.io/made-by": "demo"})
        );
        assert!(own["metadata"]["annotations"].is_null());
        let release = manifest(product::NAMESPACE, true);
        assert_eq!(release["metadata"]["annotations"][CRDS_ARE_OURS], "true");
        let privileged = &release["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
        assert_eq!(privileged, "privileged");
        let without = manifest(product::NAMESPACE, false);
        assert!(without["metadata"]["annotations"].is_null());
    }
}
