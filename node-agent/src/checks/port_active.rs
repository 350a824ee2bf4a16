//! `PortActive`: a port that is not ACTIVE carries nothing. A port that never had a link may just have
//! no cable, and one that was switched off was so by somebody: both are said, neither is a failure.

use crds::inventory::{Function, LinkLayer, PortState};
use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::hca::{Hca, Port};

/// Counts how often the link was lost since the driver was loaded.
const LOST: &str = "link_downed";

pub(super) const CHECK: Check = Check {
    id: CheckId::PortActive,
    reasons: &[Reason::PortNotActive, Reason::HostUnreadable],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let ports = rails::ports(world.facts);
    ports.map(|(hca, port)| say(hca, port)).collect()
}

fn say(hca: &Hca, port: &Port) -> Said {
    let subject = rails::name(hca, port);
    let reason = Reason::PortNotActive;
    let physical = port.physical_state.as_deref().unwrap_or("not told");
    match port.state {
        Some(PortState::Active) => Said::pass(subject),
        Some(PortState::Down) => down(hca, port, subject, physical),
        Some(PortState::Initializing | PortState::Armed)
            if port.link_layer == Some(LinkLayer::InfiniBand) =>
        {
            let words = "it has a link, and the subnet manager has not configured it";
            Said::fail(subject, reason, words)
        }
        Some(PortState::Initializing | PortState::Armed) => {
            let words = format!("it has a link (physical state {physical}) and is not ready yet");
            Said::fail(subject, reason, words)
        }
        Some(PortState::ActiveDefer) => {
            let words = format!("it loses its link again and again (physical state {physical})");
            Said::warn(subject, reason, words)
        }
        Some(PortState::Other) => Said::unknown(subject, reason, "it is in a state of no list"),
        None => Said::unknown(subject, Reason::HostUnreadable, "its state cannot be read"),
    }
}

fn down(hca: &Hca, port: &Port, subject: String, physical: &str) -> Said {
    let reason = Reason::PortNotActive;
    if physical == "Disabled" {
        let interfaces = port.interfaces.iter().filter(|known| !known.stacked);
        let interfaces: Vec<&str> = interfaces.map(|known| known.name.as_str()).collect();
        let of = match interfaces.is_empty() {
            true => String::new(),
            false => format!(" with its interface {}", interfaces.join(", ")),
        };
        return Said::warn(subject, reason, format!("it is switched off{of}"));
    }
    let hint = match hca.function {
        Some(Function::Virtual) => "; a virtual function has the link state that its card gives it",
        _ => "",
    };
    if port.counters.get(LOST).is_some_and(|lost| *lost > 0) {
        let words = format!("it has lost its link (physical state {physical}){hint}");
        return Said::fail(subject, reason, words);
    }
    let words = format!("it has no link, and had none yet (physical state {physical}){hint}");
    Said::warn(subject, reason, words)
}
