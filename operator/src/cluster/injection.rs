//! Whether pods with the label `mooncake.io/inject` were injected, and if not, why.

use std::sync::Arc;

use crds::text::first_clauses;
use crds::{ConditionType, NewCondition, Reason, names};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};

use crate::cluster::validate::Valid;
use crate::pod::is_over;

/// Most pods in a message.
const MAX_PODS: usize = 5;

/// The condition PodsInjected.
pub fn finding(cluster: &Valid, labelled: &[Arc<Pod>]) -> NewCondition {
    let kind = ConditionType::PodsInjected;
    let alive: Vec<&Arc<Pod>> = labelled
        .iter()
        .filter(|pod| pod.meta().deletion_timestamp.is_none() && !is_over(pod))
        .collect();
    // Anyone may name the cluster in a pod: what such pods lack is no problem of the cluster.
    let (strangers, alive): (Vec<_>, Vec<_>) =
        alive.into_iter().partition(|pod| is_stranger(cluster, pod));
    let strangers = match strangers.is_empty() {
        true => "",
        false => {
            "; pods of namespaces that spec.access.allowedNamespaces does not list request the cluster too"
        }
    };
    let left: Vec<(Reason, String)> = alive
        .iter()
        .filter_map(|pod| {
            let (reason, message) = problem(cluster, pod)?;
            let namespace = pod.namespace().unwrap_or_default();
            Some((
                reason,
                format!("pod {namespace}/{}: {message}", pod.name_any()),
            ))
        })
        .collect();
    let Some((reason, _)) = left.first() else {
        let message = format!("all {} labelled pods are injected{strangers}", alive.len());
        return NewCondition::new(kind, true, Reason::AsExpected, message);
    };
    let mut message = first_clauses(left.iter().map(|(_, message)| message), MAX_PODS);
    message.push_str(&format!("{strangers}. Remedy: {}", reason.remedy()));
    NewCondition::new(kind, false, *reason, message)
}

/// True for a pod of a namespace that was never allowed: only the webhook gives a pod access.
fn is_stranger(cluster: &Valid, pod: &Pod) -> bool {
    let allowed = cluster.admits(&pod.namespace().unwrap_or_default());
    !allowed && !has_access(cluster, pod)
}

fn has_access(cluster: &Valid, pod: &Pod) -> bool {
    let has = |label: &str| pod.labels().get(label) == Some(&cluster.name);
    has(names::LABEL_ACCESS) || has(names::LABEL_HOST_ACCESS)
}

/// Why a labelled pod cannot use the cluster; `None` if it can.
pub fn problem(cluster: &Valid, pod: &Pod) -> Option<(Reason, String)> {
    let namespace = pod.namespace().unwrap_or_default();
    if !cluster.admits(&namespace) {
        let message = format!("namespace {namespace} is not in spec.access.allowedNamespaces");
        return Some((Reason::NamespaceNotAllowed, message));
    }
    let host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    if host && !cluster.allow_host_network {
        let message = "it uses the host network".to_owned();
        return Some((Reason::HostNetworkNotAllowed, message));
    }
    if has_access(cluster, pod) {
        let message = "it was injected before the MooncakeCluster existed, whose etcd with TLS stock engines do not support"
            .to_owned();
        let usable = cluster.metadata_secret().is_none();
        return (!usable).then_some((Reason::NotInjected, message));
    }
    let message = pod
        .annotations()
        .get(names::ANNOTATION_SKIPPED)
        .map_or_else(
            || "the webhook was not called for it".to_owned(),
            |why| format!("the webhook skipped it: {why}"),
        );
    Some((Reason::NotInjected, message))
}

#[cfg(test)]
mod tests {
    use crds::ConditionStatus;

    use super::*;
    use crate::fixture;

    fn labelled(text: &str) -> Arc<Pod> {
        let mut pod: Pod = serde_yaml_ng::from_str(text).unwrap();
        pod.labels_mut()
            .insert(names::LABEL_INJECT.to_owned(), "kv".to_owned());
        Arc::new(pod)
    }

    #[test]
    fn a_pod_that_was_injected_before_its_cluster_has_an_etcd_with_tls_is_named() {
        let pod =
            labelled("{metadata: {name: a, namespace: team, labels: {mooncake.io/access: kv}}}");
        assert_eq!(problem(&fixture::valid("{}"), &pod), None);
        let tls = "{metadata: {type: Etcd, endpoints: ['etcd.infra.svc:2379'], secretName: a}}";
        let (reason, message) = problem(&fixture::valid(tls), &pod).unwrap();
        assert_eq!(reason, Reason::NotInjected);
        assert!(
            message.contains("before the MooncakeCluster existed"),
            "{message}"
        );
    }

    #[test]
    fn a_labelled_pod_without_access_is_named_with_the_webhooks_reason() {
        let cluster = fixture::valid("{}");
        let skipped = labelled(
            "{metadata: {name: a, namespace: team, annotations: \
             {mooncake.io/injection-skipped: 'HostNetworkNotAllowed: it uses it'}}}",
        );
        let unseen = labelled("{metadata: {name: b, namespace: team}}");
        let found = finding(&cluster, &[skipped, unseen]);
        assert_eq!(found.reason, Reason::NotInjected);
        assert!(found.message.contains("team/a: the webhook skipped it"));
        assert!(found.message.contains("team/b: the webhook was not called"));
    }

    #[test]
    fn an_injected_pod_of_an_allowed_namespace_is_no_problem() {
        let pod =
            labelled("{metadata: {name: a, namespace: other, labels: {mooncake.io/access: kv}}}");
        let allowed = fixture::valid("{access: {allowedNamespaces: [other]}}");
        let found = finding(&allowed, std::slice::from_ref(&pod));
        assert_eq!(found.reason, Reason::AsExpected);
        // The namespace was allowed before.
        let found = finding(&fixture::valid("{}"), &[pod]);
        assert_eq!(found.reason, Reason::NamespaceNotAllowed);
    }

    #[test]
    fn pods_of_other_tenants_do_not_change_the_condition() {
        let cluster = fixture::valid("{}");
        let stranger =
            |name: u8| labelled(&format!("{{metadata: {{name: b{name}, namespace: aaa}}}}"));
        let mut pods: Vec<Arc<Pod>> = (0..9).map(stranger).collect();
        let found = finding(&cluster, &pods);
        assert_eq!(
            (found.state, found.reason),
            (ConditionStatus::True, Reason::AsExpected)
        );
        assert!(
            found
                .message
                .starts_with("all 0 labelled pods are injected; pods of namespaces"),
            "{}",
            found.message
        );
        pods.push(labelled("{metadata: {name: b, namespace: team}}"));
        let found = finding(&cluster, &pods);
        assert_eq!(found.reason, Reason::NotInjected);
        assert!(
            found.message.starts_with("pod team/b: "),
            "{}",
            found.message
        );
        assert!(!found.message.contains("aaa"), "{}", found.message);
    }
}
