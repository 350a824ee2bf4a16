//! `Memlock`: containers may lock as much memory as they register. Registered memory is locked once per RDMA device.
//! `IPC_LOCK` lifts the limit of root alone.

use crds::inventory::Limit;
use crds::{ByteSize, CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};

/// Assumed least memory that a pod registers with each device.
pub(crate) const LEAST: u64 = 1 << 30;

pub(crate) const CHECK: Check = Check::new(CheckId::Memlock, &[Reason::MemlockTooLow], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let kernel = &input.snapshot.facts.kernel;
    let devices = rails::devices(&input.snapshot.facts).count();
    // The agent's container has the limit of all containers. PID 1 is a fallback: systemd gives services another limit.
    let own = kernel
        .own_memlock
        .as_ref()
        .map(|limit| ("containers", limit));
    let first = || kernel.memlock.as_ref().map(|limit| ("processes", limit));
    let Some((who, limit)) = own.or_else(first).filter(|_| devices > 0) else {
        return Vec::new();
    };
    let need = LEAST.saturating_mul(devices as u64);
    match bytes(limit) {
        Some(have) if have < need => {
            let message = format!(
                "{who} may lock {}; registering {} with each of {devices} devices locks {}",
                ByteSize(have),
                ByteSize(LEAST),
                ByteSize(need)
            );
            vec![Observation::warn(who, Reason::MemlockTooLow, message)]
        }
        _ => vec![Observation::pass(who)],
    }
}

/// The limit in bytes; none where it is unlimited.
pub(crate) fn bytes(limit: &Limit) -> Option<u64> {
    limit.soft.parse().ok()
}
