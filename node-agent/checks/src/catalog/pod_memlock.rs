//! `PodMemlock`: each container with RDMA devices may lock what its engine registers, as its variables and flags set it.

use crds::stock::Memory;
use crds::{ByteSize, CheckId, Reason};

use super::memlock::{LEAST, bytes};
use super::pod_hcas;

use crate::{Check, CheckInput, Observation, pod};
use host::container::Container;

pub(crate) const CHECK: Check = Check::new(CheckId::PodMemlock, &[Reason::MemlockTooLow], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observe = |(of, container)| {
        let devices = pod_hcas::count(&input.snapshot.facts, container);
        if devices == 0 {
            return None;
        }
        let subject = pod::subject(of, container);
        let (each, what) = registered(container);
        let need = each.saturating_mul(devices as u64);
        let have = container.memlock.as_ref().and_then(bytes);
        Some(match have.filter(|have| *have < need) {
            None => Observation::pass(subject),
            Some(have) => {
                let message = format!(
                    "its process may lock {}; registering {} with each of its {devices} RDMA devices locks {} \
                     ({what})",
                    ByteSize(have),
                    ByteSize(each),
                    ByteSize(need)
                );
                Observation::warn(subject, Reason::MemlockTooLow, message)
            }
        })
    };
    pod::containers(input).filter_map(observe).collect()
}

/// Bytes that the engine registers with each device, and what they are. An engine without memory of its own registers
/// the memory of its user, whose size is not known.
fn registered(container: &Container) -> (u64, &'static str) {
    let memory = container.demand.and_then(|demand| demand.memory);
    match memory.map(|memory| (memory.bytes(), memory)) {
        Some((bytes, Memory { hicache: 0, .. })) if bytes > 0 => (bytes, "its segment and buffer"),
        Some((bytes, _)) if bytes > 0 => (bytes, "its segment, buffer and HiCache"),
        _ => (LEAST, "assumed: the registered size is not known"),
    }
}
