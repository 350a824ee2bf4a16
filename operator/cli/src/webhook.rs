//! The injection webhook as the API server knows it: whether it is called, and for which pods. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};

/// Name of the webhook in the chart's MutatingWebhookConfiguration.
pub const NAME: &str = "inject.mooncake.io";
/// Annotation of the API server's copies of static pods.
const STATIC_POD: &str = "kubernetes.io/config.mirror";

/// The webhook and the name of its configuration.
pub struct InjectionWebhook<'a> {
    pub configuration: &'a str,
    webhook: &'a MutatingWebhook,
}

/// Finds the injection webhook.
pub fn find(configurations: &[MutatingWebhookConfiguration]) -> Option<InjectionWebhook<'_>> {
    configurations.iter().find_map(|configuration| {
        let mut webhooks = configuration.webhooks.iter().flatten();
        Some(InjectionWebhook {
            configuration: configuration.metadata.name.as_deref().unwrap_or_default(),
            webhook: webhooks.find(|webhook| webhook.name == NAME)?,
        })
    })
}

impl InjectionWebhook<'_> {
    /// True when the API server has a certificate authority by which to trust the webhook.
    pub fn is_trusted(&self) -> bool {
        let bundle = self.webhook.client_config.ca_bundle.as_ref();
        bundle.is_some_and(|bundle| !bundle.0.is_empty())
    }

    /// Why the API server does not call the webhook for a pod in a namespace with these labels; `None` when
    /// it does. Labels that could not be read are assumed to match.
    pub fn exclusion(
        &self,
        pod: &Pod,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<String> {
        if pod.annotations().contains_key(STATIC_POD) {
            return Some("the kubelet starts static pods without admission".to_owned());
        }
        let selects = |selector: &Option<LabelSelector>, labels: &BTreeMap<String, String>| {
            selector.clone().is_none_or(|selector| {
                Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels))
            })
        };
        let of = format!("of MutatingWebhookConfiguration {}", self.configuration);
        let matches = |labels| selects(&self.webhook.namespace_selector, labels);
        if !labels.is_none_or(matches) {
            return Some(format!(
                "the namespaceSelector {of} excludes namespace {namespace} (kube-system, the namespace of \
                 the release, and injection.excludedNamespaces of the chart)"
            ));
        }
        (!selects(&self.webhook.object_selector, pod.labels()))
            .then(|| format!("the objectSelector {of} does not match the pod's labels"))
    }
}
