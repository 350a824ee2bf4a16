//! The decision about one pod: how it is changed, or why it is left as it is.

use std::collections::BTreeSet;

use crds::policy::HostPorts;
use crds::{MooncakeCluster, Reason, names};
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::{Container, LocalObjectReference, Pod, PodSpec};
use serde_json::json;

use super::claim::{self, Claim};
use super::configuration::{self, File};
use super::patch::{Builder, Table};
use super::request::{InjectionRequest, annotation};
use super::selection::Selection;
use super::skipped::Skipped;
use super::target::Target;
use super::{environment, pod_resources, sidecar, transport, volume};
use crate::args::RdmaClass;
use crate::cache::Claimable;
use crate::pod::GATE_CONTAINER;

/// The decision about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The pod is injected; no operation at all when it was already.
    Patch {
        patch: Vec<PatchOperation>,
        /// Why it gets no RDMA device, where its cluster requires RDMA.
        unclaimed: Option<Skipped>,
    },
    /// The pod requests no injection, or cannot get it. The patch adds the cause as an annotation
    /// and takes away labels that only injection gives.
    Skip {
        /// `None` for a pod that requests no injection.
        skipped: Option<Skipped>,
        patch: Vec<PatchOperation>,
    },
}

impl Decision {
    /// Does not inject the pod, for a reason outside it.
    pub fn skip(pod: &Pod, skipped: Skipped) -> Self {
        let cause = skipped.to_string();
        Self::Skip {
            skipped: Some(skipped),
            patch: leave(pod, Some(&cause)),
        }
    }
}

/// What is known about the cluster and the namespace of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InjectionContext {
    pub claimable: Claimable,
    /// Ports of the node's own network, where the pod is in it.
    pub host_ports: Option<HostPorts>,
    /// Class of the packets of stock engines with RDMA.
    pub rdma_class: RdmaClass,
}

/// Decides about a pod that is created in `namespace`. `cluster` is the one that the pod's
/// [`InjectionRequest`] names, if it exists; `gate_image` is the sidecar's.
pub fn inject(
    pod: &Pod,
    namespace: &str,
    cluster: Option<&MooncakeCluster>,
    surroundings: &InjectionContext,
    gate_image: &str,
) -> Decision {
    let request = match InjectionRequest::of(pod, namespace) {
        Ok(Some(request)) => request,
        Ok(None) => {
            return Decision::Skip {
                skipped: None,
                patch: leave(pod, None),
            };
        }
        Err(error) => return Decision::skip(pod, error.into()),
    };
    let Some(spec) = &pod.spec else {
        let skipped = Skipped::new(Reason::NotInjected, "the pod has no spec");
        return Decision::skip(pod, skipped);
    };
    if let Some(skipped) = obstacle(pod, spec, namespace, &request, cluster) {
        return Decision::skip(pod, skipped);
    }
    let selection = match Selection::of(pod, spec) {
        Ok(selection) => selection,
        Err(skipped) => return Decision::skip(pod, skipped),
    };
    let transport = match transport::of(pod, spec, namespace, &request, cluster) {
        Ok(transport) => transport,
        Err(skipped) => return Decision::skip(pod, skipped),
    };
    let InjectionContext {
        claimable,
        host_ports,
        rdma_class,
    } = surroundings;
    let claim = claim::of(pod, spec, namespace, &request, transport, claimable);
    let target = Target {
        host_ports: *host_ports,
        rdma_class: *rdma_class,
        ..Target::new(&request, cluster, transport)
    };
    Decision::Patch {
        patch: changes(pod, spec, &selection, &target, &claim, gate_image),
        unclaimed: match claim {
            Claim::Refused(why) => Some(why),
            Claim::None | Claim::By(_) => None,
        },
    }
}

fn obstacle(
    pod: &Pod,
    spec: &PodSpec,
    namespace: &str,
    request: &InjectionRequest,
    cluster: Option<&MooncakeCluster>,
) -> Option<Skipped> {
    let InjectionRequest {
        cluster: name,
        namespace: owner,
    } = request;
    let access = cluster.map(|c| &c.spec.access);
    let allowed = owner == namespace
        || access.is_some_and(|a| a.allowed_namespaces.iter().any(|n| n == namespace));
    if !allowed {
        // The same message whether the cluster exists or not, so that it is not disclosed.
        return Some(Skipped::new(
            Reason::NamespaceNotAllowed,
            format!(
                "no MooncakeCluster `{name}` in namespace `{owner}` lists namespace `{namespace}` in spec.access.allowedNamespaces"
            ),
        ));
    }
    if is_host_network(spec) && !access.is_some_and(|a| a.allow_host_network) {
        return Some(Skipped::new(
            Reason::HostNetworkNotAllowed,
            format!(
                "the pod uses the host network and MooncakeCluster `{owner}/{name}` does not set spec.access.allowHostNetwork"
            ),
        ));
    }
    let metadata = cluster.map(|cluster| &cluster.spec.metadata);
    if let Some(secret) = metadata.and_then(|metadata| metadata.secret_name.as_ref()) {
        return Some(Skipped::new(
            Reason::NotInjected,
            format!(
                "MooncakeCluster `{owner}/{name}` uses an etcd with TLS (spec.metadata.secretName `{secret}`), which stock engines do not support: use a MooncakeCluster whose metadata type is P2P, HTTP, or Etcd without a Secret"
            ),
        ));
    }
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        let why = "the pod is for Windows, where neither the sidecar nor Mooncake runs";
        return Some(Skipped::new(Reason::NotInjected, why));
    }
    if let Some(name) = taken(pod, spec) {
        return Some(Skipped::new(
            Reason::NotInjected,
            format!(
                "the pod's own `{name}` has a name that is reserved for the sidecar: choose another"
            ),
        ));
    }
    None
}

fn changes(
    pod: &Pod,
    spec: &PodSpec,
    selection: &Selection<'_>,
    target: &Target,
    claim: &Claim,
    gate_image: &str,
) -> Vec<PatchOperation> {
    let mut patch = Builder::default();
    let mut files = BTreeSet::new();
    let init = spec.init_containers.iter().flatten();
    for (list, containers) in [
        ("initContainers", init.collect::<Vec<_>>()),
        ("containers", spec.containers.iter().collect()),
    ] {
        for (index, container) in containers.into_iter().enumerate() {
            if !selection.has(container) {
                continue;
            }
            let index = index.to_string();
            files.extend(configure(&mut patch, list, &index, container, target));
            if let Claim::By(_) = claim {
                claim::give(&mut patch, list, &index, container);
            }
        }
    }
    if let Claim::By(template) = claim {
        claim::add(&mut patch, spec, template);
    }
    add_volumes(&mut patch, spec, target);
    add_gate(&mut patch, spec, target, gate_image, &files);
    add_pull_secrets(&mut patch, spec, target);
    if is_host_network(spec) && spec.dns_policy.as_deref() == Some("ClusterFirst") {
        // On the host's network ClusterFirst means the node's resolver, which knows no Service.
        patch.replace(&["spec", "dnsPolicy"], json!("ClusterFirstWithHostNet"));
    }
    mark(&mut patch, pod, spec, target, claim);
    patch.finish()
}

/// Variables, file and mount of one container; returns the file that it was pointed at.
fn configure(
    patch: &mut Builder,
    list: &str,
    index: &str,
    container: &Container,
    target: &Target,
) -> Option<File> {
    let file = configuration::file(container, target);
    let missing = environment::missing(container, target, file.as_ref());
    patch.append(
        &["spec", list, index, "env"],
        container.env.is_some(),
        &missing,
    );
    let mounts = container.volume_mounts.iter().flatten();
    if file.is_some() && !mounts.into_iter().any(|m| m.name == volume::NAME) {
        patch.append(
            &["spec", list, index, "volumeMounts"],
            container.volume_mounts.is_some(),
            &[sidecar::files_mount()],
        );
    }
    file
}

fn add_volumes(patch: &mut Builder, spec: &PodSpec, target: &Target) {
    let present = |name: &str| spec.volumes.iter().flatten().any(|v| v.name == name);
    let missing: Vec<_> = sidecar::volumes(target)
        .into_iter()
        .filter(|volume| !present(&volume.name))
        .collect();
    patch.append(&["spec", "volumes"], spec.volumes.is_some(), &missing);
}

/// Beside the pod's own. Those of its ServiceAccount are in the pod already: the API server adds them before it calls
/// webhooks.
fn add_pull_secrets(patch: &mut Builder, spec: &PodSpec, target: &Target) {
    let present = |name: &String| {
        let mut present = spec.image_pull_secrets.iter().flatten();
        present.any(|secret| secret.name == *name)
    };
    let missing = target.pull_secrets.iter().filter(|name| !present(name));
    let missing: Vec<_> = missing
        .map(|name| LocalObjectReference { name: name.clone() })
        .collect();
    let list = ["spec", "imagePullSecrets"];
    patch.append(&list, spec.image_pull_secrets.is_some(), &missing);
}

/// First of the init containers, so that every other of the user's starts behind it. One that is
/// there keeps its place and its image, which another webhook may have rewritten.
fn add_gate(
    patch: &mut Builder,
    spec: &PodSpec,
    target: &Target,
    image: &str,
    files: &BTreeSet<File>,
) {
    let Some((index, present)) = gate(spec) else {
        let container = sidecar::container(target, image, files);
        let list = ["spec", "initContainers"];
        patch.prepend(&list, spec.init_containers.is_some(), &container);
        pod_resources::add_gate(patch, spec);
        return;
    };
    let arguments = sidecar::arguments(target, files);
    if present.args.as_ref() != Some(&arguments) {
        let index = index.to_string();
        patch.replace(
            &["spec", "initContainers", &index, "args"],
            json!(arguments),
        );
    }
}

fn mark(patch: &mut Builder, pod: &Pod, spec: &PodSpec, target: &Target, claim: &Claim) {
    let cluster = Some(target.cluster.as_str());
    let (access, host_access) = if is_host_network(spec) {
        (None, cluster)
    } else {
        (cluster, None)
    };
    patch.set(
        Table::Labels,
        pod.metadata.labels.as_ref(),
        &[
            (names::LABEL_ACCESS, access),
            (names::LABEL_HOST_ACCESS, host_access),
        ],
    );
    let injected = format!("{}/{}", target.namespace, target.cluster);
    let unclaimed = match claim {
        Claim::Refused(why) => Some(why.to_string()),
        Claim::None | Claim::By(_) => None,
    };
    let preflight = target.preflight.then(|| {
        let reason = Reason::PreflightPending;
        format!("{reason}: {}", reason.about())
    });
    patch.set(
        Table::Annotations,
        pod.metadata.annotations.as_ref(),
        &[
            (names::ANNOTATION_INJECTED, Some(&injected)),
            (names::ANNOTATION_SKIPPED, None),
            (names::ANNOTATION_CLAIM_SKIPPED, unclaimed.as_deref()),
            // The operator replaces it once the pod has a node.
            (names::ANNOTATION_PREFLIGHT, preflight.as_deref()),
        ],
    );
}

fn leave(pod: &Pod, why: Option<&str>) -> Vec<PatchOperation> {
    let mut patch = Builder::default();
    patch.set(
        Table::Labels,
        pod.metadata.labels.as_ref(),
        &[
            (names::LABEL_ACCESS, None),
            (names::LABEL_HOST_ACCESS, None),
        ],
    );
    patch.set(
        Table::Annotations,
        pod.metadata.annotations.as_ref(),
        &[
            (names::ANNOTATION_INJECTED, None),
            (names::ANNOTATION_SKIPPED, why),
            (names::ANNOTATION_CLAIM_SKIPPED, None),
            (names::ANNOTATION_PREFLIGHT, None),
        ],
    );
    patch.finish()
}

fn is_host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true)
}

/// A container or volume of the user's that has a name of ours.
fn taken<'a>(pod: &Pod, spec: &'a PodSpec) -> Option<&'a str> {
    let is_gate = |container: &&Container| container.name == GATE_CONTAINER;
    if let Some(container) = spec.containers.iter().find(is_gate) {
        return Some(&container.name);
    }
    if annotation(pod, names::ANNOTATION_INJECTED).is_some() {
        return None;
    }
    let volume = spec.volumes.iter().flatten();
    gate(spec)
        .map(|(_, container)| container.name.as_str())
        .or_else(|| {
            volume
                .map(|volume| volume.name.as_str())
                .find(|name| sidecar::VOLUMES.contains(name))
        })
}

/// The existing gate container of the pod, and its index.
fn gate(spec: &PodSpec) -> Option<(usize, &Container)> {
    let mut init = spec.init_containers.iter().flatten().enumerate();
    init.find(|(_, container)| container.name == GATE_CONTAINER)
}
