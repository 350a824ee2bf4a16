//! The injected pods of a node, whose containers its agent may inspect. The agent does not watch pods: it
//! knows those that its MooncakeNode lists.

use std::collections::BTreeMap;

use crds::MooncakeCluster;
use crds::cluster::{Transport, TransportPolicy};
use crds::node::{INJECTED_LIMIT, InjectedPod};
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::cache::{Caches, requested_cluster};
use crate::cluster::injection::problem;
use crate::cluster::validate::validate;
use crate::pod::{injected_transport, is_over};

/// The injected pods that are bound to the node, sorted by UID.
pub fn of_node(caches: &Caches, node: &str) -> Vec<InjectedPod> {
    let labelled = caches.labelled_on.of(&node.to_owned());
    let pods = labelled.iter().filter_map(|pod| {
        let requested = requested_cluster(pod)?;
        let named = ObjectRef::<DeserializeGuard<MooncakeCluster>>::new(&requested.name);
        let cluster = caches.clusters.get(&named.within(&requested.namespace))?;
        entry(pod, cluster.0.as_ref().ok()?)
    });
    shared(pods.collect())
}

/// At most [`INJECTED_LIMIT`] pods, sorted by UID. Namespaces share the places: a tenant with many pods leaves some to others.
fn shared(mut pods: Vec<InjectedPod>) -> Vec<InjectedPod> {
    pods.sort_by(|one, other| one.pod_uid.cmp(&other.pod_uid));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    // Stable: the first of each namespace, then the second of each.
    pods.sort_by_cached_key(|pod| {
        let count = counts.entry(pod.namespace.clone()).or_default();
        *count += 1;
        *count
    });
    pods.truncate(INJECTED_LIMIT);
    pods.sort_by(|one, other| one.pod_uid.cmp(&other.pod_uid));
    pods
}

/// None for a pod that is not injected or has ended.
fn entry(pod: &Pod, cluster: &MooncakeCluster) -> Option<InjectedPod> {
    let valid = validate(cluster).ok()?;
    let leaving = pod.meta().deletion_timestamp.is_some();
    if leaving || is_over(pod) || problem(&valid, pod).is_some() {
        return None;
    }
    Some(InjectedPod {
        pod_uid: pod.uid()?,
        namespace: pod.namespace()?,
        pod_name: pod.name_any(),
        cluster_namespace: valid.namespace,
        cluster: valid.name,
        version: valid.master.version.to_owned(),
        rdma: match injected_transport(pod) {
            Transport::Tcp => TransportPolicy::Forbid,
            Transport::Rdma => valid.transports.rdma,
        },
        host_network: pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn pod(labels: &str, rest: &str) -> Pod {
        serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: a, namespace: team, uid: u1, labels: {{mooncake.io/inject: kv{labels}}}}}, {rest}}}"
        ))
        .unwrap()
    }

    #[test]
    fn an_injected_pod_is_listed_with_its_clusters_version_until_it_ends() {
        let cluster = fixture::cluster("{transports: {rdma: Forbid}}");
        let access = ", mooncake.io/access: kv";
        let named = entry(&pod(access, "status: {phase: Pending}"), &cluster).unwrap();
        assert_eq!(
            (named.pod_uid.as_str(), named.cluster.as_str()),
            ("u1", "kv")
        );
        assert_eq!(named.version, "0.3.13");
        assert_eq!(named.rdma, TransportPolicy::Forbid);
        for other in [
            pod("", "status: {phase: Running}"),
            pod(access, "status: {phase: Succeeded}"),
        ] {
            assert_eq!(entry(&other, &cluster), None, "{other:?}");
        }
    }

    #[test]
    fn many_pods_of_one_namespace_leave_places_to_others() {
        let cluster = fixture::cluster("{}");
        let one = pod(", mooncake.io/access: kv", "status: {phase: Running}");
        let one = entry(&one, &cluster).unwrap();
        let of = |namespace: &str, pod_uid: String| InjectedPod {
            namespace: namespace.to_owned(),
            pod_uid,
            ..one.clone()
        };
        let mut pods: Vec<InjectedPod> = (0..2 * INJECTED_LIMIT)
            .map(|number| of("crowd", format!("a{number:03}")))
            .collect();
        pods.extend(["z1", "z2"].map(|uid| of("team", uid.to_owned())));
        let listed = shared(pods);
        assert_eq!(listed.len(), INJECTED_LIMIT);
        assert!(listed.is_sorted_by(|one, other| one.pod_uid < other.pod_uid));
        let of_team = listed.iter().filter(|pod| pod.namespace == "team");
        assert_eq!(of_team.count(), 2);
    }

    #[test]
    fn a_pod_that_was_injected_with_tcp_needs_no_rdma() {
        let rdma = |arguments: &str, cluster: &str| {
            let gate = format!("{{name: mooncake-gate, args: [hold{arguments}]}}");
            let spec = format!("spec: {{containers: [], initContainers: [{gate}]}}");
            let pod = pod(", mooncake.io/access: kv", &spec);
            entry(&pod, &fixture::cluster(cluster)).unwrap().rdma
        };
        let require = "{transports: {rdma: Require}}";
        assert_eq!(rdma("", "{}"), TransportPolicy::Forbid);
        assert_eq!(rdma("", require), TransportPolicy::Forbid);
        assert_eq!(rdma(", --transport=rdma", "{}"), TransportPolicy::Prefer);
        assert_eq!(
            rdma(", --transport=rdma", require),
            TransportPolicy::Require
        );
    }
}
