//! `PodPorts`: enough ports for outgoing connections in the network namespace of each injected pod.

use std::collections::BTreeSet;

use crds::{CheckId, Reason};

use super::{ephemeral_ports, time_wait};
use crate::debounce::Delays;
use crate::{Check, CheckInput, Observation, pod};

// A burst is no finding.
pub(crate) const CHECK: Check = Check::new(
    CheckId::PodPorts,
    &[Reason::EphemeralPortsBusy, Reason::EphemeralPortsLow],
    run,
)
.with_delays(Delays::LONG);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let mut seen = BTreeSet::new();
    // The containers of a pod share one namespace.
    let pods = pod::containers(input).filter(|(of, _)| seen.insert(&of.pod_uid));
    let observe = |(of, container): (_, &host::container::Container)| {
        let network = container.network.as_ref()?;
        let subject = pod::name(of);
        let range = network.local_ports;
        if let Some(message) = ephemeral_ports::too_few(range) {
            return Some(Observation::warn(
                subject,
                Reason::EphemeralPortsLow,
                message,
            ));
        }
        let busy = time_wait::busy(&network.sockets, range, network.time_wait_reuse);
        Some(match busy {
            Some(message) => Observation::warn(subject, Reason::EphemeralPortsBusy, message),
            None => Observation::pass(subject),
        })
    };
    pods.filter_map(observe).collect()
}
