//! The claim by which an injected pod of a cluster on RDMA gets a device of its node. Pure.

use crds::cluster::Transport;
use crds::{MooncakeCluster, Reason, names};
use k8s_openapi::api::core::v1::{
    Container, Pod, PodResourceClaim, PodSpec, ResourceClaim as Claimed,
};
use serde_json::json;

use super::patch::Builder;
use super::request::{InjectionRequest, annotation};
use super::skipped::Skipped;
use crate::cache::{Caches, Claimable};
use crate::cluster::transport::of_stock_pods;

/// The claim's name in the pod.
const NAME: &str = "mooncake-hca";

/// Where it is known whether pods can claim devices.
pub trait Devices: Send + Sync + 'static {
    fn claimable(&self) -> Claimable;
}

impl Devices for Caches {
    fn claimable(&self) -> Claimable {
        self.devices.claimable()
    }
}

/// The RDMA device that a pod gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The cluster does not use RDMA, or the pod has its own claim.
    None,
    /// A device, by the template of this name.
    By(String),
    /// Nothing, though the cluster uses RDMA.
    Refused(Skipped),
}

/// Decides for a pod that is created in `namespace` and may use the cluster. Until it is known whether
/// pods can claim devices, the spec of the cluster decides.
pub(super) fn of(
    pod: &Pod,
    spec: &PodSpec,
    namespace: &str,
    request: &InjectionRequest,
    cluster: Option<&MooncakeCluster>,
    claimable: &Claimable,
) -> Claim {
    let uses_rdma = cluster.map(of_stock_pods) == Some(Transport::Rdma);
    let refused = annotation(pod, names::ANNOTATION_CLAIM_DEVICES) == Some("false");
    let template = names::claim_template(&request.cluster);
    let here = namespace == request.namespace;
    if !uses_rdma || refused || claims_itself(spec, &template, here) {
        return Claim::None;
    }
    let why = match claimable {
        _ if !here => format!(
            "ResourceClaimTemplate `{template}` is in namespace `{}`, and a pod can use none but those of \
             its own: make one in `{namespace}` and name it in the pod",
            request.namespace
        ),
        Claimable::No(why) => why.clone(),
        Claimable::Unknown | Claimable::Yes => return Claim::By(template),
    };
    Claim::Refused(Skipped::new(Reason::DeviceClaimMissing, why))
}

/// Whether the pod uses our name for something else, or our template by another name. A claim of ours, which
/// an earlier call has added, is neither.
fn claims_itself(spec: &PodSpec, template: &str, here: bool) -> bool {
    let is_ours = |claim: &PodResourceClaim| {
        here && claim.resource_claim_template_name.as_deref() == Some(template)
    };
    let mut claims = spec.resource_claims.iter().flatten();
    if let Some(named) = claims.clone().find(|claim| claim.name == NAME) {
        return !is_ours(named);
    }
    let init = spec.init_containers.iter().flatten();
    let mut containers = init.chain(&spec.containers);
    claims.any(is_ours) || containers.any(is_given)
}

fn is_given(container: &Container) -> bool {
    let resources = container.resources.iter();
    let mut claims = resources.flat_map(|resources| resources.claims.iter().flatten());
    claims.any(|claim| claim.name == NAME)
}

/// Adds the claim to the pod.
pub(super) fn add(patch: &mut Builder, spec: &PodSpec, template: &str) {
    let mut claims = spec.resource_claims.iter().flatten();
    if claims.any(|claim| claim.name == NAME) {
        return;
    }
    let claim = PodResourceClaim {
        name: NAME.to_owned(),
        resource_claim_template_name: Some(template.to_owned()),
        resource_claim_name: None,
    };
    let list = ["spec", "resourceClaims"];
    patch.append(&list, spec.resource_claims.is_some(), &[claim]);
}

/// Gives a container what the pod claims, beside what it claims itself.
pub(super) fn give(patch: &mut Builder, list: &str, index: &str, container: &Container) {
    if is_given(container) {
        return;
    }
    let claim = Claimed {
        name: NAME.to_owned(),
        request: None,
    };
    let path = ["spec", list, index, "resources"];
    match &container.resources {
        None => patch.put(&path, json!({ "claims": [claim] })),
        Some(resources) => {
            let path = [path.as_slice(), &["claims"]].concat();
            patch.append(&path, resources.claims.is_some(), &[claim]);
        }
    }
}
