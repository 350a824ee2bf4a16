//! The namespaces, CRDs and Helm release that the demo creates in a cluster, recognizes by labels, and removes.

use crate::error::Error;
use crate::progress::Progress;
use crate::target::Target;
use mooncake_e2e::product::{self, Image};
use serde_json::Value;
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
    {} CRDs, ValidatingAdmissionPolicies, a PriorityClass, ClusterRoles
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
        let on = |verb: &str, word: &str| target.kubectl.run([verb, "namespace", namespace, word]);
        target.kubectl.run(["create", "namespace", namespace])?;
        on("label", LABEL)?;
        if namespace == product::NAMESPACE {
            on("label", PRIVILEGED)?;
            if brings {
                on("annotate", &format!("{CRDS_ARE_OURS}=true"))?;
            }
        }
    }
    Ok(())
}

/// Removes everything that `up` created, the pods first.
pub(crate) fn remove(target: &Target, progress: &mut Progress) -> Result<(), Error> {
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
        delete(target, &["clusterrolebinding", READER_BINDING])?;
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
        progress.report("removing the CRDs");
        for crd in CRDS {
            delete(target, &["crd", crd])?;
        }
    }
    progress.report(&format!("removing namespace {system}"));
    delete(target, &["namespace", system])
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

fn exists(target: &Target, what: &[&str]) -> Result<bool, Error> {
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
