//! The injected pods of a node, which its agent may look into. An agent reads no pods: it knows of those
//! that stand in its MooncakeNode.

use crds::MooncakeCluster;
use crds::node::{INJECTED_LIMIT, InjectedPod};
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::cache::{Caches, wanted_cluster};
use crate::cluster::injected::trouble;
use crate::cluster::observe::is_over;
use crate::cluster::validate::validate;

/// Those that are bound to the node, in an order that does not move.
pub fn of_node(caches: &Caches, node: &str) -> Vec<InjectedPod> {
    let labelled = caches.labelled_on.of(&node.to_owned());
    let pods = labelled.iter().filter_map(|pod| {
        let wanted = wanted_cluster(pod)?;
        let named = ObjectRef::<DeserializeGuard<MooncakeCluster>>::new(&wanted.name);
        let cluster = caches.clusters.get(&named.within(&wanted.namespace))?;
        entry(pod, cluster.0.as_ref().ok()?)
    });
    let mut pods: Vec<InjectedPod> = pods.collect();
    pods.sort_by(|one, other| one.pod_uid.cmp(&other.pod_uid));
    pods.truncate(INJECTED_LIMIT);
    pods
}

/// None for a pod that does not take part, or no longer.
fn entry(pod: &Pod, cluster: &MooncakeCluster) -> Option<InjectedPod> {
    let valid = validate(cluster).ok()?;
    let leaving = pod.meta().deletion_timestamp.is_some();
    if leaving || is_over(pod) || trouble(&valid, pod).is_some() {
        return None;
    }
    Some(InjectedPod {
        pod_uid: pod.uid()?,
        namespace: pod.namespace()?,
        pod_name: pod.name_any(),
        cluster_namespace: valid.namespace,
        cluster: valid.name,
        version: valid.master.version.to_owned(),
        rdma: valid.transports.rdma,
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
    fn a_pod_is_named_with_what_its_cluster_speaks_for_as_long_as_it_takes_part() {
        let cluster = fixture::cluster("{transports: {rdma: Forbid}}");
        let access = ", mooncake.io/access: kv";
        let named = entry(&pod(access, "status: {phase: Pending}"), &cluster).unwrap();
        assert_eq!(
            (named.pod_uid.as_str(), named.cluster.as_str()),
            ("u1", "kv")
        );
        assert_eq!(named.version, "0.3.13");
        assert_eq!(named.rdma, crds::cluster::TransportPolicy::Forbid);
        for other in [
            pod("", "status: {phase: Running}"),
            pod(access, "status: {phase: Succeeded}"),
        ] {
            assert_eq!(entry(&other, &cluster), None, "{other:?}");
        }
    }
}
