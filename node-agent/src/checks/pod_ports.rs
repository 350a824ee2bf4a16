//! `PodPorts`: a pod connects from the ports of its own network namespace; the node's say nothing of them.

use std::collections::BTreeSet;

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World, ephemeral_ports, pod, time_wait};

pub(super) const CHECK: Check = Check {
    id: CheckId::PodPorts,
    reasons: &[Reason::EphemeralPortsBusy, Reason::EphemeralPortsLow],
    // A burst is no news.
    patience: Patience::LONG,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let mut told = BTreeSet::new();
    // Containers of a pod share it.
    let pods = pod::containers(world).filter(|(of, _)| told.insert(&of.pod_uid));
    let say = |(of, container): (_, &crate::host::container::Container)| {
        let network = container.network.as_ref()?;
        let subject = pod::name(of);
        let range = network.local_ports;
        if let Some(words) = ephemeral_ports::few(range) {
            return Some(Said::warn(subject, Reason::EphemeralPortsLow, words));
        }
        let busy = time_wait::busy(&network.sockets, range, network.time_wait_reuse);
        Some(match busy {
            Some(words) => Said::warn(subject, Reason::EphemeralPortsBusy, words),
            None => Said::pass(subject),
        })
    };
    pods.filter_map(say).collect()
}
