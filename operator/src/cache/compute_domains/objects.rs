//! Plain values read from the objects of the NVIDIA driver and the claims for it. Objects that cannot be
//! decoded are left out.

use crds::names;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Resource, ResourceExt};
use serde_json::Value;

use crate::pod::{is_over, is_ready};

/// API group of the driver's kinds.
pub const GROUP: &str = "resource.nvidia.com";
/// The supported version.
pub const VERSION: &str = "v1beta1";
/// Name of the driver in claims and slices.
pub const DRIVER: &str = "compute-domain.nvidia.com";
/// On nodes, daemon pods, cliques and templates: UID of the domain.
pub const LABEL_DOMAIN: &str = "resource.nvidia.com/computeDomain";
/// On daemon pods: the node's clique; empty where its GPUs are in no NVLink fabric.
pub const LABEL_CLIQUE: &str = "resource.nvidia.com/computeDomain.cliqueID";

/// The driver's kinds.
pub fn compute_domains() -> ApiResource {
    kind("ComputeDomain", "computedomains")
}

pub fn compute_domain_cliques() -> ApiResource {
    kind("ComputeDomainClique", "computedomaincliques")
}

fn kind(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

/// A ComputeDomain, without its global status, which is Ready without members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Name of the ResourceClaimTemplate that the driver creates for it.
    pub template: String,
    pub leaving: bool,
    /// The MooncakeCluster that it was created for.
    pub made_for: Option<MadeFor>,
    /// `status.nodes`. With the driver's default feature gates up to 2 s old, or older if its controller
    /// is down: used only without cliques, and never alone.
    pub listed: Vec<Member>,
}

/// Annotation of a domain that the operator created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeFor {
    pub cluster: String,
    pub cluster_uid: String,
}

/// One node in a clique. Index, address and order change in normal operation and identify nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: String,
    pub clique: String,
    pub ready: bool,
}

/// A ComputeDomainClique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clique {
    pub domain: String,
    /// Namespace of the driver.
    pub namespace: String,
    pub members: Vec<Member>,
}

/// An IMEX daemon pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    pub domain: String,
    pub node: String,
    pub namespace: String,
    pub pod: String,
    /// `None`: not reported yet. Empty: no NVLink fabric.
    pub clique: Option<String>,
    pub running: bool,
    pub ready: bool,
    pub leaving: bool,
}

/// A claim for a channel of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub domain: String,
    pub namespace: String,
    pub name: String,
    /// Where its channel is; `None`: not allocated.
    pub node: Option<String>,
    pub holders: Vec<Holder>,
    pub leaving: bool,
}

/// A pod that a claim is reserved for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    pub uid: String,
}

/// A ResourceClaimTemplate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub namespace: String,
    pub name: String,
    pub domain: Option<String>,
    pub leaving: bool,
}

/// What the driver's kubelet plugin offers on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub node: String,
    pub channel: bool,
    /// Without it the host manages IMEX.
    pub daemon: bool,
}

fn text(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer)?.as_str().map(str::to_owned)
}

fn members(list: Option<&Value>, node: &str) -> Vec<Member> {
    let field = |entry: &Value, name: &str| entry.get(name)?.as_str().map(str::to_owned);
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            Some(Member {
                node: field(entry, node)?,
                clique: field(entry, "cliqueID")?,
                ready: field(entry, "status").as_deref() == Some("Ready"),
            })
        })
        .collect()
}

impl Domain {
    pub fn read(object: &DynamicObject) -> Option<Self> {
        let labels = object.labels();
        let made_for = || {
            Some(MadeFor {
                cluster: labels.get(names::LABEL_CLUSTER)?.clone(),
                cluster_uid: object
                    .annotations()
                    .get(names::ANNOTATION_CLUSTER_UID)?
                    .clone(),
            })
        };
        Some(Self {
            namespace: object.namespace()?,
            name: object.name_any(),
            uid: object.uid()?,
            template: text(&object.data, "/spec/channel/resourceClaimTemplate/name")?,
            leaving: object.metadata.deletion_timestamp.is_some(),
            made_for: made_for(),
            listed: members(object.data.pointer("/status/nodes"), "name"),
        })
    }
}

impl Clique {
    pub fn read(object: &DynamicObject) -> Option<Self> {
        Some(Self {
            domain: object.labels().get(LABEL_DOMAIN)?.clone(),
            namespace: object.namespace()?,
            members: members(object.data.get("daemons"), "nodeName"),
        })
    }
}

impl Daemon {
    /// `None` for a pod that only has the label: the driver's DaemonSet is named by the domain's UID.
    pub fn read(pod: &Pod) -> Option<Self> {
        let labels = pod.labels();
        let domain = labels.get(LABEL_DOMAIN)?.clone();
        let set = format!("computedomain-daemon-{domain}");
        let made = pod.meta().owner_references.iter().flatten();
        if !made
            .into_iter()
            .any(|owner| owner.kind == "DaemonSet" && owner.name == set)
        {
            return None;
        }
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        Some(Self {
            node: pod.spec.as_ref()?.node_name.clone()?,
            namespace: pod.namespace()?,
            pod: pod.name_any(),
            clique: labels.get(LABEL_CLIQUE).cloned(),
            running: phase == Some("Running"),
            ready: is_ready(pod),
            leaving: pod.meta().deletion_timestamp.is_some() || is_over(pod),
            domain,
        })
    }
}

/// The domain that a claim for a channel names; `None` for every other claim.
pub fn channel_of(claim: &ResourceClaim) -> Option<String> {
    let configs = claim.spec.devices.as_ref()?.config.iter().flatten();
    configs
        .filter_map(|config| config.opaque.as_ref())
        .filter(|opaque| opaque.driver == DRIVER)
        .find_map(|opaque| {
            let parameters = &opaque.parameters.0;
            let channel = text(parameters, "/kind")? == "ComputeDomainChannelConfig";
            text(parameters, "/domainID").filter(|_| channel)
        })
}

impl Claim {
    pub fn read(claim: &ResourceClaim) -> Option<Self> {
        let status = claim.status.as_ref();
        let results = status.and_then(|status| {
            status
                .allocation
                .as_ref()?
                .devices
                .as_ref()?
                .results
                .as_ref()
        });
        let holders = status.and_then(|status| status.reserved_for.as_ref());
        Some(Self {
            domain: channel_of(claim)?,
            namespace: claim.namespace()?,
            name: claim.name_any(),
            node: results
                .into_iter()
                .flatten()
                .find(|result| result.driver == DRIVER)
                .map(|result| result.pool.clone()),
            holders: holders
                .into_iter()
                .flatten()
                .filter(|holder| holder.resource == "pods")
                .map(|holder| Holder {
                    name: holder.name.clone(),
                    uid: holder.uid.clone(),
                })
                .collect(),
            leaving: claim.meta().deletion_timestamp.is_some(),
        })
    }

    /// The claim and its pods, for users of namespace `to`; claims of other namespaces stay anonymous.
    pub fn describe(&self, to: &str) -> String {
        if self.namespace != to {
            return "a claim of another namespace".to_owned();
        }
        let pods: Vec<&str> = self.holders.iter().map(|pod| pod.name.as_str()).collect();
        let (namespace, name) = (&self.namespace, &self.name);
        if pods.is_empty() {
            format!("claim {namespace}/{name}")
        } else {
            format!("claim {namespace}/{name} of pod {}", pods.join(", "))
        }
    }
}

impl Template {
    pub fn read(template: &ResourceClaimTemplate) -> Option<Self> {
        Some(Self {
            namespace: template.namespace()?,
            name: template.name_any(),
            domain: template.labels().get(LABEL_DOMAIN).cloned(),
            leaving: template.meta().deletion_timestamp.is_some(),
        })
    }
}

impl Offer {
    pub fn read(slice: &ResourceSlice) -> Option<Self> {
        if slice.spec.driver != DRIVER {
            return None;
        }
        let of = |kind: &str| {
            let prefix = format!("{kind}-");
            let devices = slice.spec.devices.iter().flatten();
            devices
                .into_iter()
                .any(|device| device.name.starts_with(&prefix))
        };
        Some(Self {
            node: slice.spec.node_name.clone()?,
            channel: of("channel"),
            daemon: of("daemon"),
        })
    }
}
