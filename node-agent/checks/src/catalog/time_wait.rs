//! `TimeWait`: closed connections do not hold most of the ports. Each holds its port for a minute.

use crds::{CheckId, Reason};

use super::ephemeral_ports::count;
use crate::debounce::Delays;
use crate::{Check, CheckInput, NODE, Observation};
use host::interface::Sockets;

/// `tcp_tw_reuse` for all connections; 2 is for loopback only.
const REUSED: u8 = 1;

// A burst is no finding.
pub(crate) const CHECK: Check =
    Check::new(CheckId::TimeWait, &[Reason::EphemeralPortsBusy], run).with_delays(Delays::LONG);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let kernel = &input.snapshot.facts.kernel;
    let Some((sockets, range)) = input
        .snapshot
        .facts
        .sockets
        .as_ref()
        .zip(kernel.local_ports)
    else {
        return Vec::new();
    };
    vec![match busy(sockets, range, kernel.time_wait_reuse) {
        None => Observation::pass(NODE),
        Some(message) => Observation::warn(NODE, Reason::EphemeralPortsBusy, message),
    }]
}

/// Message where closed connections hold most of a range.
pub(crate) fn busy(sockets: &Sockets, range: (u16, u16), reuse: Option<u8>) -> Option<String> {
    let ports = count(range);
    // A port may be held once per remote address, so this is not yet the limit.
    let busy = sockets.time_wait > u64::from(ports / 2);
    (busy && reuse != Some(REUSED)).then(|| {
        format!("more closed connections (TIME_WAIT) than half of the {ports} ephemeral ports")
    })
}
