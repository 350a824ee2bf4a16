//! The namespace of the release and what another installation left: operators, webhooks, owners of objects.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::{Attempt, Check, Facts, Finding, Plan};
use crate::doctor::Severity;
use crate::webhook;

/// Pod Security level that a namespace enforces.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Set by Helm on each object of a release.
const RELEASE: &str = "meta.helm.sh/release-name";
const NAMESPACE: &str = "meta.helm.sh/release-namespace";

pub(super) fn findings(facts: &Facts, plan: &Plan) -> Vec<Finding> {
    if plan.installed {
        return Vec::new();
    }
    let mut found: Vec<Finding> = pod_security(facts, plan).into_iter().collect();
    found.extend(operators(facts, plan));
    found.extend(webhooks(facts, plan));
    found
}

/// `release NAME of namespace NAMESPACE` if Helm installed the object as part of another release.
pub(super) fn foreign_release(meta: &ObjectMeta, plan: &Plan) -> Option<String> {
    let annotations = meta.annotations.as_ref()?;
    let (release, namespace) = (annotations.get(RELEASE)?, annotations.get(NAMESPACE)?);
    let same = (release, namespace) == (&plan.release, &plan.namespace);
    (!same).then(|| format!("release {release} of namespace {namespace}"))
}

/// The label of the namespace, or what the API server answers to a pod like an agent's.
fn pod_security(facts: &Facts, plan: &Plan) -> Option<Finding> {
    let namespace = &plan.namespace;
    let object = format!("Namespace {namespace}");
    let label = facts.namespace_labels.as_ref()?.get(ENFORCE);
    if let Some(level) = label.filter(|level| *level != "privileged") {
        return Some(Finding::new(
            Severity::Error,
            Check::PodSecurity,
            object,
            format!(
                "enforces the Pod Security level `{level}`; the agents are privileged and use hostPID and hostPath"
            ),
            format!("Run: kubectl label --overwrite namespace {namespace} {ENFORCE}=privileged"),
        ));
    }
    let Attempt::Rejected(message) = &facts.agent_pod else {
        return None;
    };
    Some(Finding::new(
        Severity::Error,
        Check::PodSecurity,
        object,
        format!(
            "the API server rejects a privileged pod with hostPID and the priority class of the agents: {message}"
        ),
        "Allow the agents' privileges in the namespace, or choose another priority class (docs/install.md, \"Pod Security\" and \"GKE\").",
    ))
}

/// A second operator would write the same MooncakeClusters.
fn operators(facts: &Facts, plan: &Plan) -> Vec<Finding> {
    const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
    let operators = facts.operators.iter().flatten();
    let others = operators.filter(|operator| {
        let instance = operator.labels().get(LABEL_INSTANCE);
        operator.namespace().as_ref() != Some(&plan.namespace)
            || instance.is_some_and(|instance| *instance != plan.release)
    });
    let finding = |name: String| {
        Finding::new(
            Severity::Error,
            Check::OtherInstallation,
            format!("Deployment {name}"),
            "is the operator of another installation: both would write the same objects",
            "Uninstall it first, or upgrade it: --release and -n name the planned release.",
        )
    };
    others
        .map(|operator| {
            let namespace = operator.namespace().unwrap_or_default();
            finding(format!("{namespace}/{}", operator.name_any()))
        })
        .collect()
}

/// A webhook that another installation left answers no request, or injects other images.
fn webhooks(facts: &Facts, plan: &Plan) -> Vec<Finding> {
    let configurations = facts.webhooks.iter().flatten();
    let ours = configurations.filter(|configuration| {
        let mut webhooks = configuration.webhooks.iter().flatten();
        webhooks.any(|webhook| webhook.name == webhook::NAME)
    });
    let service = |configuration: &MutatingWebhookConfiguration| {
        let mut webhooks = configuration.webhooks.iter().flatten();
        let webhook = webhooks.find(|webhook| webhook.name == webhook::NAME)?;
        let service = webhook.client_config.service.as_ref()?;
        Some((service.namespace.clone(), service.name.clone()))
    };
    let others = ours.filter_map(|configuration| {
        let owner = match foreign_release(&configuration.metadata, plan) {
            Some(owner) => format!("belongs to Helm {owner}"),
            None => {
                let (namespace, name) = service(configuration)?;
                (namespace != plan.namespace)
                    .then(|| format!("calls Service {namespace}/{name}"))?
            }
        };
        Some(Finding::new(
            Severity::Error,
            Check::OtherInstallation,
            format!("MutatingWebhookConfiguration {}", configuration.name_any()),
            format!("injects pods and {owner}: pods would be injected twice, or by an operator that is gone"),
            "Uninstall the other installation, or delete the configuration.",
        ))
    });
    others.collect()
}
