//! The claim by which an injected pod on RDMA gets a device of its node. Pure.

use crds::{Reason, names};
use k8s_openapi::api::core::v1::{
    Container, Pod, PodResourceClaim, PodSpec, ResourceClaim as Claimed,
};
use serde_json::json;

use super::patch::Builder;
use super::request::{InjectionRequest, annotation};
use super::skipped::Skipped;
use super::transport::StockTransport;
use crate::cache::{Caches, Claimable};

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
    /// The pod does not use RDMA, or has its own claim.
    None,
    /// A device, by the template of this name.
    By(String),
    /// Nothing, though the pod uses RDMA.
    Refused(Skipped),
}

/// Decides for a pod that is created in `namespace` and may use the cluster. Until it is known whether
/// pods can claim devices, the spec of the cluster decides.
pub(super) fn of(
    pod: &Pod,
    spec: &PodSpec,
    namespace: &str,
    request: &InjectionRequest,
    transport: StockTransport,
    claimable: &Claimable,
) -> Claim {
    if transport == StockTransport::Tcp || has_own(pod, spec, namespace, request) {
        return Claim::None;
    }
    let template = names::claim_template(&request.cluster);
    let why = match claimable {
        _ if namespace != request.namespace => format!(
            "ResourceClaimTemplate `{template}` is in namespace `{}`, and a pod can use none but those of \
             its own: make one in `{namespace}` and name it in the pod",
            request.namespace
        ),
        Claimable::No(why) => why.clone(),
        Claimable::Unknown | Claimable::Yes => return Claim::By(template),
    };
    Claim::Refused(Skipped::new(Reason::DeviceClaimMissing, why))
}

/// Whether the pod is to have no claim of ours, because it has one of its own.
pub(super) fn has_own(
    pod: &Pod,
    spec: &PodSpec,
    namespace: &str,
    request: &InjectionRequest,
) -> bool {
    let template = names::claim_template(&request.cluster);
    annotation(pod, names::ANNOTATION_CLAIM_DEVICES) == Some("false")
        || claims_itself(spec, &template, namespace == request.namespace)
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
