//! `Memlock`: registering memory with an RDMA device locks it, once for each device. Root's
//! `IPC_LOCK` lifts the limit, that of anybody else does nothing.

use crds::inventory::Limit;
use crds::{ByteSize, CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};

/// Memory that a pod registers at least with each device.
pub(super) const LEAST: u64 = 1 << 30;

pub(super) const CHECK: Check = Check {
    id: CheckId::Memlock,
    reasons: &[Reason::MemlockTooLow],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let kernel = &world.facts.kernel;
    let devices = rails::devices(world.facts).count();
    // What this very container was given, others are given too; the first process of the node tells
    // less, as systemd gives its services another limit.
    let own = kernel
        .own_memlock
        .as_ref()
        .map(|limit| ("containers", limit));
    let first = || kernel.memlock.as_ref().map(|limit| ("processes", limit));
    let Some((who, limit)) = own.or_else(first).filter(|_| devices > 0) else {
        return Vec::new();
    };
    let need = LEAST.saturating_mul(devices as u64);
    match most(limit) {
        Some(have) if have < need => {
            let words = format!(
                "{who} may lock {}; {} registered with each of {devices} devices take {}",
                ByteSize(have),
                ByteSize(LEAST),
                ByteSize(need)
            );
            vec![Said::warn(who, Reason::MemlockTooLow, words)]
        }
        _ => vec![Said::pass(who)],
    }
}

/// In bytes; none where there is no limit.
pub(super) fn most(limit: &Limit) -> Option<u64> {
    limit.soft.parse().ok()
}
