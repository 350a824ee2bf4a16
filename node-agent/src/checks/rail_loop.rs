//! `RailLoop`: that a port is active says that it has a link. That its device carries data is known when it
//! has: a write to itself over that port, compared.

use crds::inventory::PortState;
use crds::{CheckId, Reason};
use verbs::Stage;

use super::memory_key::told;
use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::RailLoop,
    reasons: &[Reason::LoopbackFailed, Reason::VerbsUntried],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let active = rails::ports(world.facts).filter(|(_, port)| {
        // What it did when it was active says nothing now.
        port.state == Some(PortState::Active)
    });
    let said = active.filter_map(|(hca, port)| {
        let loops = &hca.verbs.as_ref()?.loops;
        let tried = loops.iter().find(|tried| tried.port == port.number)?;
        let subject = rails::name(hca, port);
        Some(match &tried.failed {
            None => Said::pass(subject),
            Some(failed) if failed.stage == Stage::Memory => {
                Said::unknown(subject, Reason::VerbsUntried, told(failed))
            }
            Some(failed) => {
                let words = format!("a write to itself does not arrive: {}", told(failed));
                Said::fail(subject, Reason::LoopbackFailed, words)
            }
        })
    });
    said.collect()
}
