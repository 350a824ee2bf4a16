//! The webhook as the API server knows it: whether it is called at all, and for which pods. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};

/// Name of the webhook that injects, in the chart's MutatingWebhookConfiguration.
pub const NAME: &str = "inject.mooncake.io";
/// Static pods' copies in the API server: the kubelet has started them already.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The webhook, and whether the operator has made it trusted.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub configuration: &'a str,
    webhook: &'a MutatingWebhook,
}

/// Looks for it.
pub fn find(configurations: &[MutatingWebhookConfiguration]) -> Option<Found<'_>> {
    configurations.iter().find_map(|configuration| {
        let webhook = configuration
            .webhooks
            .iter()
            .flatten()
            .find(|webhook| webhook.name == NAME)?;
        Some(Found {
            configuration: configuration.metadata.name.as_deref().unwrap_or_default(),
            webhook,
        })
    })
}

impl Found<'_> {
    /// False where no API server would trust what answers.
    pub fn is_trusted(&self) -> bool {
        let bundle = self.webhook.client_config.ca_bundle.as_ref();
        bundle.is_some_and(|bundle| !bundle.0.is_empty())
    }

    /// Why it is not called for a pod that is made in a namespace with these labels; `None` where it is.
    /// Labels that could not be read are taken for fitting.
    pub fn passes_by(
        &self,
        pod: &Pod,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<String> {
        if pod.annotations().contains_key(MIRROR) {
            return Some("it is a static pod, which the kubelet starts by itself".to_owned());
        }
        let selects = |selector: &Option<LabelSelector>, labels: &BTreeMap<String, String>| {
            let Some(selector) = selector.clone() else {
                return true;
            };
            Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels))
        };
        if let Some(labels) = labels
            && !selects(&self.webhook.namespace_selector, labels)
        {
            return Some(format!(
                "the namespaceSelector of MutatingWebhookConfiguration {} leaves namespace \
                 {namespace} out (kube-system, the release's own, injection.excludedNamespaces of the chart)",
                self.configuration
            ));
        }
        (!selects(&self.webhook.object_selector, pod.labels())).then(|| {
            format!(
                "the objectSelector of MutatingWebhookConfiguration {} does not select its labels",
                self.configuration
            )
        })
    }
}
