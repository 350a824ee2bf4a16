//! `PodMemlock`: what one container may really lock, beside what containers of the node are given.

use crds::{ByteSize, CheckId, Reason};

use super::memlock::{LEAST, most};
use super::steady::Patience;
use super::{Check, Said, World, pod, pod_hcas};

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
        let need = LEAST.saturating_mul(devices as u64);
        let have = container.memlock.as_ref().and_then(most);
        Some(match have.filter(|have| *have < need) {
            None => Said::pass(subject),
            Some(have) => {
                let words = format!(
                    "its process may lock {}; {} registered with each of its {devices} RDMA devices \
                     take {}",
                    ByteSize(have),
                    ByteSize(LEAST),
                    ByteSize(need)
                );
                Said::warn(subject, Reason::MemlockTooLow, words)
            }
        })
    };
    pod::containers(world).filter_map(say).collect()
}
