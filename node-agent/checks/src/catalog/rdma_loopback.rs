//! `RdmaLoopback`: what is written over each active port to itself arrives and is read back unchanged. An active port only
//! proves a link.

use crds::inventory::PortState;
use crds::{CheckId, Reason};
use rdma_probe::Stage;

use super::memory_key::describe;
use crate::rails;

use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check = Check::new(
    CheckId::RdmaLoopback,
    &[Reason::LoopbackFailed, Reason::VerbsProbeFailed],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let active = rails::ports(&input.snapshot.facts).filter(|(_, port)| {
        // Results of an earlier probe do not apply to a port that is down.
        port.state == Some(PortState::Active)
    });
    let observations = active.filter_map(|(hca, port)| {
        let loops = &input.snapshot.hca_reports.get(&hca.name)?.loops;
        let tried = loops.iter().find(|tried| tried.port == port.number)?;
        let subject = rails::port_name(hca, port);
        Some(match &tried.failed {
            None => Observation::pass(subject),
            Some(failed) if failed.stage == Stage::Memory => {
                Observation::unknown(subject, Reason::VerbsProbeFailed, describe(failed))
            }
            Some(failed) => {
                let gid = tried.gid.map(|gid| format!(" with GID index {gid}"));
                let gid = gid.unwrap_or_default();
                let message = format!("the loopback{gid} failed: {}", describe(failed));
                Observation::fail(subject, Reason::LoopbackFailed, message)
            }
        })
    });
    observations.collect()
}
