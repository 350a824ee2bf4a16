//! Shared by the checks of containers: the containers of injected pods, their names and their devices.

use std::fmt::Display;

use crds::CheckId;
use crds::node::InjectedPod;
use crds::text::first_names;

use super::CheckInput;
use host::container::Container;
use host::hca::Hca;
use host::snapshot::AffectedPod;

/// Checks whose subjects are containers of injected pods.
const CHECKS: [CheckId; 7] = [
    CheckId::PodRdmaSettings,
    CheckId::PodEngine,
    CheckId::PodHcas,
    CheckId::PodHostPorts,
    CheckId::PodHugepages,
    CheckId::PodMemlock,
    CheckId::PodPorts,
];

/// The containers of injected pods, each with its pod.
pub(super) fn containers<'a>(
    input: &CheckInput<'a>,
) -> impl Iterator<Item = (&'a InjectedPod, &'a Container)> {
    let injected = &input.spec.injected;
    let containers = input.snapshot.containers.iter().flatten();
    containers.filter_map(|container| {
        let mut pods = injected.iter();
        let pod = pods.find(|pod| pod.pod_uid == container.pod_uid)?;
        Some((pod, container))
    })
}

/// Subject of a finding about a container, e.g. `pod team/engine-0 container main`.
pub(super) fn subject(pod: &InjectedPod, container: &Container) -> String {
    let pod = name(pod);
    match container.name.as_str() {
        "" => pod,
        container => format!("{pod} container {container}"),
    }
}

/// True where the container has the device file of that device.
pub(super) fn can_open(container: &Container, hca: &Hca) -> bool {
    hca.device_file.as_ref().is_some_and(|file| {
        let mut files = container.device_files.iter();
        files.any(|own| (own.major, own.minor) == (file.major, file.minor))
    })
}

/// Joins the first `max` names and counts the others; `none` if there is no name.
pub(super) fn first_names_or_none<T: Display>(
    names: impl IntoIterator<Item = T>,
    max: usize,
) -> String {
    match first_names(names, max) {
        names if names.is_empty() => "none".to_owned(),
        names => names,
    }
}

/// Subject of a finding about a pod, e.g. `pod team/engine-0`.
pub(super) fn name(pod: &InjectedPod) -> String {
    format!("pod {}/{}", pod.namespace, pod.pod_name)
}

/// UID of the pod that is the subject of a finding.
pub fn uid_of_subject<'a>(
    injected_pods: &'a [InjectedPod],
    affected_pods: &'a [AffectedPod],
    check: CheckId,
    subject: &str,
) -> Option<&'a str> {
    if check == CheckId::PodDevices {
        let mut pods = affected_pods.iter();
        return Some(&pods.find(|pod| pod.subject() == subject)?.pod_uid);
    }
    let mut pods = injected_pods.iter().filter(|_| CHECKS.contains(&check));
    let pod = pods.find(|pod| {
        let rest = subject.strip_prefix(&name(pod));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })?;
    Some(&pod.pod_uid)
}
