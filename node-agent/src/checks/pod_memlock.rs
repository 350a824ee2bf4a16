//! `PodMemlock`: what one container may really lock, beside what containers of the node are given; and what
//! its engine registers, where its variables and flags say it.

use crds::stock::Memory;
use crds::{ByteSize, CheckId, Reason};

use super::memlock::{LEAST, most};
use super::steady::Patience;
use super::{Check, Said, World, pod, pod_hcas};
use crate::host::container::Container;

pub(super) const CHECK: Check = Check {
    id: CheckId::PodMemlock,
    reasons: &[Reason::MemlockTooLow],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let say = |(of, container)| {
        let devices = pod_hcas::count(world.facts, container);
        if devices == 0 {
            return None;
        }
        let subject = pod::subject(of, container);
        let (each, what) = registered(container);
        let need = each.saturating_mul(devices as u64);
        let have = container.memlock.as_ref().and_then(most);
        Some(match have.filter(|have| *have < need) {
            None => Said::pass(subject),
            Some(have) => {
                let words = format!(
                    "its process may lock {}; {} registered with each of its {devices} RDMA devices take {} \
                     ({what})",
                    ByteSize(have),
                    ByteSize(each),
                    ByteSize(need)
                );
                Said::warn(subject, Reason::MemlockTooLow, words)
            }
        })
    };
    pod::containers(world).filter_map(say).collect()
}

/// Bytes with each device, and how that is known. An engine that makes no memory of its own registers its
/// user's, of which nothing is known.
fn registered(container: &Container) -> (u64, &'static str) {
    let memory = container.demand.and_then(|demand| demand.memory);
    match memory.map(|memory| (memory.bytes(), memory)) {
        Some((bytes, Memory { hicache: 0, .. })) if bytes > 0 => (bytes, "its segment and buffer"),
        Some((bytes, _)) if bytes > 0 => (bytes, "its segment, buffer and HiCache"),
        _ => (LEAST, "assumed: what it registers is not known"),
    }
}
