//! Parts of pod specs, for the pods of a cluster and for the gate of injected pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, ObjectFieldSelector,
    PodSecurityContext, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// User and group `nonroot` of distroless images. The images of the project have no other user.
const NONROOT: i64 = 65532;

/// A variable with a literal value.
pub(crate) fn env(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    }
}

/// A variable that the kubelet fills from a field of the pod.
pub(crate) fn env_from_field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(field(path)),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

/// A field of the pod.
pub(crate) fn field(path: &str) -> ObjectFieldSelector {
    ObjectFieldSelector {
        api_version: Some("v1".to_owned()),
        field_path: path.to_owned(),
    }
}

/// A TCP port of a container.
pub(crate) fn port(name: &str, port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// A volume on the node's disk that ends with the pod.
pub(crate) fn empty_dir(name: &str, limit: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Quantity(limit.to_owned())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// A small volume in memory that ends with the pod. The cluster-autoscaler does not remove a node with a pod that has a volume on
/// its disk.
pub(crate) fn memory_dir(name: &str, limit: &str) -> Volume {
    let mut volume = empty_dir(name, limit);
    volume.empty_dir.get_or_insert_default().medium = Some("Memory".to_owned());
    volume
}

/// The mount of a volume.
pub(crate) fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// Amounts of resources by their names.
pub(crate) fn amounts<const N: usize>(amounts: [(&str, &str); N]) -> BTreeMap<String, Quantity> {
    let amounts = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    BTreeMap::from(amounts)
}

/// Requests without limits.
pub(crate) fn requests(cpu: &str, memory: &str) -> ResourceRequirements {
    ResourceRequirements {
        requests: Some(amounts([("cpu", cpu), ("memory", memory)])),
        ..ResourceRequirements::default()
    }
}

/// The pod's part of Pod Security "restricted".
pub(crate) fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(NONROOT),
        run_as_group: Some(NONROOT),
        fs_group: Some(NONROOT),
        seccomp_profile: Some(runtime_default()),
        ..PodSecurityContext::default()
    }
}

/// The container's part of Pod Security "restricted" in a pod with [`pod_security`], and a read-only root.
pub(crate) fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: None,
            drop: Some(vec!["ALL".to_owned()]),
        }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}

/// Pod Security "restricted" for a container in a pod of any security context.
pub(crate) fn own_container_security() -> SecurityContext {
    SecurityContext {
        privileged: Some(false),
        run_as_user: Some(NONROOT),
        run_as_group: Some(NONROOT),
        seccomp_profile: Some(runtime_default()),
        ..container_security()
    }
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}
