//! The transport of a pod's store: that of its cluster, or TCP, which the pools serve also beside RDMA. Pure.

use crds::cluster::{Transport, TransportPolicy};
use crds::{MooncakeCluster, Reason, names};
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::claim;
use super::request::{InjectionRequest, annotation};
use super::skipped::Skipped;
use crate::cluster::transport::{of_stock_pods, required};

/// The one transport that a stock engine installs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockTransport {
    Tcp,
    Rdma,
}

impl StockTransport {
    /// The word that stock engines know it by.
    pub fn protocol(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// Decides for a pod that is created in `namespace` and may use the cluster. In a cluster on RDMA, TCP is for pods that request it,
/// and for those of other namespaces, which are given no device, unless they have their own or the cluster requires RDMA.
///
/// # Errors
/// The pod requests another transport than TCP, or TCP where the cluster forbids it.
pub fn of(
    pod: &Pod,
    spec: &PodSpec,
    namespace: &str,
    request: &InjectionRequest,
    cluster: Option<&MooncakeCluster>,
) -> Result<StockTransport, Skipped> {
    let policies = cluster.map(|cluster| cluster.spec.transports_in_force());
    let forbidden = policies
        .as_ref()
        .is_some_and(|policies| policies.tcp == TransportPolicy::Forbid);
    let requests_tcp = match annotation(pod, names::ANNOTATION_TRANSPORT) {
        None => false,
        Some("tcp") if !forbidden => true,
        Some("tcp") => {
            return Err(refused(
                "requests TCP, which spec.transports.tcp of the MooncakeCluster forbids: remove the annotation, and claim an RDMA device",
            ));
        }
        Some(other) => {
            return Err(refused(&format!(
                "has the value `{other}`: the only one is `tcp`, and without the annotation the pod gets the transport of its MooncakeCluster"
            )));
        }
    };
    if cluster.map(of_stock_pods) != Some(Transport::Rdma) {
        return Ok(StockTransport::Tcp);
    }
    let is_required = policies.as_ref().and_then(required).is_some();
    let has_device = is_required
        || namespace == request.namespace
        || claim::has_own(pod, spec, namespace, request);
    Ok(if requests_tcp || !has_device {
        StockTransport::Tcp
    } else {
        StockTransport::Rdma
    })
}

fn refused(why: &str) -> Skipped {
    let name = names::ANNOTATION_TRANSPORT;
    Skipped::new(Reason::NotInjected, format!("annotation {name} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// The transport of a pod with these annotations and this spec, in a cluster on RDMA of namespace `team`.
    fn given(
        namespace: &str,
        annotations: &str,
        spec: &str,
        cluster: &str,
    ) -> Result<StockTransport, String> {
        let pod: Pod = serde_yaml_ng::from_str(&format!(
            "{{metadata: {{labels: {{mooncake.io/inject: kv}}, annotations: {{mooncake.io/cluster-namespace: team, \
             {annotations}}}}}, spec: {{containers: [], {spec}}}}}"
        ))
        .unwrap();
        let mut cluster = fixture::cluster(cluster);
        cluster.status = serde_yaml_ng::from_str("{transport: Rdma}").unwrap();
        let request = InjectionRequest::of(&pod, namespace).unwrap().unwrap();
        let spec = pod.spec.as_ref().unwrap();
        of(&pod, spec, namespace, &request, Some(&cluster)).map_err(|skipped| skipped.to_string())
    }

    #[test]
    fn a_pod_has_the_transport_of_its_cluster_unless_it_requests_tcp_or_can_be_given_no_device() {
        use StockTransport::{Rdma, Tcp};
        let tcp = "mooncake.io/transport: tcp";
        let require = "{transports: {rdma: Require}}";
        let own = "resourceClaims: [{name: mooncake-hca, resourceClaimTemplateName: mine}]";
        for (namespace, annotations, spec, cluster, expected) in [
            ("team", "", "", "{}", Rdma),
            ("team", tcp, "", "{}", Tcp),
            ("team", tcp, "", require, Tcp),
            ("other", "", "", "{}", Tcp),
            ("other", "", own, "{}", Rdma),
            (
                "other",
                "mooncake.io/claim-devices: 'false'",
                "",
                "{}",
                Rdma,
            ),
            ("other", tcp, own, "{}", Tcp),
            ("other", "", "", require, Rdma),
            ("team", "", "", "{transports: {rdma: Forbid}}", Tcp),
            ("team", tcp, "", "{transports: {rdma: Forbid}}", Tcp),
        ] {
            let found = given(namespace, annotations, spec, cluster);
            assert_eq!(
                found,
                Ok(expected),
                "{namespace} {annotations} {spec} {cluster}"
            );
        }
    }

    #[test]
    fn a_transport_that_a_pod_cannot_have_is_an_error() {
        let forbid = "{transports: {tcp: Forbid}}";
        let error = given("team", "mooncake.io/transport: tcp", "", forbid).unwrap_err();
        assert!(error.contains("spec.transports.tcp of the MooncakeCluster forbids"));
        let error = given("team", "mooncake.io/transport: rdma", "", "{}").unwrap_err();
        assert!(error.contains("has the value `rdma`: the only one is `tcp`"));
    }
}
