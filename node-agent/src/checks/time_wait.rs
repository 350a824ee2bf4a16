//! `TimeWait`: connections that have ended hold their ports for a minute; who opens many runs out.

use crds::{CheckId, Reason};

use super::ephemeral_ports::count;
use super::steady::Patience;
use super::{Check, NODE, Said, World};
use crate::host::interface::Sockets;

/// `tcp_tw_reuse` for all connections; 2 is for those to the node itself alone.
const REUSED: u8 = 1;

pub(super) const CHECK: Check = Check {
    id: CheckId::TimeWait,
    reasons: &[Reason::EphemeralPortsBusy],
    // A burst is no news.
    patience: Patience::LONG,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let kernel = &world.facts.kernel;
    let Some((sockets, range)) = world.facts.sockets.as_ref().zip(kernel.local_ports) else {
        return Vec::new();
    };
    vec![match busy(sockets, range, kernel.time_wait_reuse) {
        None => Said::pass(NODE),
        Some(words) => Said::warn(NODE, Reason::EphemeralPortsBusy, words),
    }]
}

/// What to say where ended connections hold most of a range.
pub(super) fn busy(sockets: &Sockets, range: (u16, u16), reuse: Option<u8>) -> Option<String> {
    let ports = count(range);
    // A port may be held once for each address that was connected to, so that this is no end yet.
    let busy = sockets.time_wait > u64::from(ports / 2);
    (busy && reuse != Some(REUSED)).then(|| {
        format!("ended connections (TIME_WAIT) are more than half as many as the {ports} ports")
    })
}
