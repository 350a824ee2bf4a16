//! What the demo puts into a cluster, how it recognises it again, and how it removes it.

use crate::error::Error;
use crate::progress::Progress;
use crate::target::Target;
use mooncake_e2e::product::{self, Image};
use serde_json::Value;
use std::io::Write;
use std::time::Duration;

/// Where the demo's cluster and pods live.
pub(crate) const NAMESPACE: &str = "mooncake-demo";
/// Lets the demo read the agents' metrics.
pub(crate) const READER_BINDING: &str = "mooncake-demo-metrics-reader";
/// On both namespaces: `up` made them, so `down` may remove them.
const LABEL: &str = "mooncake.io/made-by=demo";
/// On the release's namespace: the agents are privileged.
const PRIVILEGED: &str = "pod-security.kubernetes.io/enforce=privileged";
/// On the release's namespace: the CRDs were not there before, so `down` removes them too.
const CRDS_ARE_OURS: &str = "mooncake.io/demo-brought-crds";
const CRDS: [&str; 4] = [
    "mooncakeclusters.mooncake.io",
    "mooncakenodes.mooncake.io",
    "mooncakeinventories.mooncake.io",
    "mooncakenodepolicies.mooncake.io",
];

/// Says what will be made in a user's cluster, and asks.
#[expect(clippy::print_stdout, reason = "a question to the user")]
pub(crate) fn ask(target: &Target, images: &[Image], registry: Option<&str>) -> Result<(), Error> {
    let (system, release) = (product::NAMESPACE, product::RELEASE);
    println!(
        "In {}, this will make:
  namespace {system}: Helm release {release}
    2 operator pods, one privileged agent pod on every node, a webhook for labelled pods,
    {} CRDs, 2 ValidatingAdmissionPolicies, a PriorityClass, ClusterRoles
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
    print!("`make demo-down` removes it again. Go on? [y/N] ");
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

/// Makes both namespaces; one that is there and not ours ends the demo before anything is changed.
pub(crate) fn claim(target: &Target) -> Result<(), Error> {
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

/// Removes what [`claim`] and the rest of `up` made, users before what serves them.
pub(crate) fn remove(target: &Target, progress: &mut Progress) -> Result<(), Error> {
    if exists(target, &["namespace", NAMESPACE])? && is_ours(target, NAMESPACE)? {
        progress.say(&format!("removing namespace {NAMESPACE}"));
        delete(target, &["namespace", NAMESPACE])?;
        delete(target, &["clusterrolebinding", READER_BINDING])?;
    }
    let system = product::NAMESPACE;
    if !exists(target, &["namespace", system])? || !is_ours(target, system)? {
        progress.say(&format!(
            "no namespace {system} of the demo's: nothing more to remove"
        ));
        return Ok(());
    }
    progress.say(&format!("removing Helm release {}", product::RELEASE));
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
        progress.say("removing the CRDs");
        for crd in CRDS {
            delete(target, &["crd", crd])?;
        }
    }
    progress.say(&format!("removing namespace {system}"));
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
    let (label, value) = LABEL.split_once('=').expect("it is written so above");
    Ok(answer["metadata"]["labels"][label] == value)
}

/// An object or a list of them.
pub(crate) fn get(target: &Target, what: &[&str]) -> Result<Value, Error> {
    let answer = target
        .kubectl
        .command(["get", "-o", "json"])
        .args(what)
        .output()?;
    serde_json::from_str(&answer).map_err(|source| Error::Answer {
        what: "kubectl's answer",
        source,
    })
}
