//! What the checks of containers have in common: which containers there are, what each is called, and which
//! devices it has.

use crds::CheckId;
use crds::node::InjectedPod;

use super::{Owner, World};
use crate::host::container::Container;
use crate::host::hca::Hca;

/// Checks of which each word is about a container of an injected pod.
const CHECKS: [CheckId; 7] = [
    CheckId::PodByHand,
    CheckId::PodEngine,
    CheckId::PodHcas,
    CheckId::PodHostPorts,
    CheckId::PodHugepages,
    CheckId::PodMemlock,
    CheckId::PodPorts,
];

/// The containers of the pods that are injected here.
pub(super) fn containers<'a>(
    world: &World<'a>,
) -> impl Iterator<Item = (&'a InjectedPod, &'a Container)> {
    let (injected, containers) = (world.injected, world.containers);
    containers.iter().filter_map(|container| {
        let of = |pod: &&InjectedPod| pod.pod_uid == container.pod_uid;
        Some((injected.iter().find(of)?, container))
    })
}

/// E.g. `pod team/engine-0 container main`.
pub(super) fn subject(pod: &InjectedPod, container: &Container) -> String {
    let pod = name(pod);
    match container.name.as_str() {
        "" => pod,
        container => format!("{pod} container {container}"),
    }
}

/// True where the container has the device file of that device.
pub(super) fn has(container: &Container, hca: &Hca) -> bool {
    hca.device_file.as_ref().is_some_and(|file| {
        let mut files = container.device_files.iter();
        files.any(|own| (own.major, own.minor) == (file.major, file.minor))
    })
}

/// The first `most` of them in words, and how many more there are.
pub(super) fn list(names: impl Iterator<Item = String>, most: usize) -> String {
    let names: Vec<String> = names.collect();
    let first = names[..names.len().min(most)].join(", ");
    match names.len().saturating_sub(most) {
        0 if names.is_empty() => "none".to_owned(),
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Of the pod alone.
pub(super) fn name(pod: &InjectedPod) -> String {
    format!("pod {}/{}", pod.namespace, pod.pod_name)
}

/// UID of the pod that a check's word is about.
pub(crate) fn of<'a>(
    injected: &'a [InjectedPod],
    owners: &'a [Owner],
    check: CheckId,
    subject: &str,
) -> Option<&'a str> {
    if check == CheckId::PodDevices {
        let owner = owners.iter().find(|owner| owner.subject() == subject)?;
        return Some(&owner.pod_uid);
    }
    let mut pods = injected.iter().filter(|_| CHECKS.contains(&check));
    let pod = pods.find(|pod| {
        let rest = subject.strip_prefix(&name(pod));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })?;
    Some(&pod.pod_uid)
}
