//! `PortActive`: each port is ACTIVE. A port that never had a link may have no cable, and a disabled port was disabled on
//! purpose: both are warnings.

use crds::inventory::{Function, LinkLayer, PortState};
use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};
use host::hca::{Hca, Port};

/// Counter of lost links since the driver was loaded.
const LOST: &str = "link_downed";

pub(crate) const CHECK: Check = Check::new(
    CheckId::PortActive,
    &[Reason::PortNotActive, Reason::HostUnreadable],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let ports = rails::ports(&input.snapshot.facts);
    ports.map(|(hca, port)| observe(hca, port)).collect()
}

fn observe(hca: &Hca, port: &Port) -> Observation {
    let subject = rails::port_name(hca, port);
    let reason = Reason::PortNotActive;
    let physical = port.physical_state.as_deref().unwrap_or("unknown");
    match port.state {
        Some(PortState::Active) => Observation::pass(subject),
        Some(PortState::Down) => down(hca, port, subject, physical),
        Some(PortState::Initializing | PortState::Armed)
            if port.link_layer == Some(LinkLayer::InfiniBand) =>
        {
            let message = "it has a link, but the subnet manager has not configured it";
            Observation::fail(subject, reason, message)
        }
        Some(PortState::Initializing | PortState::Armed) => {
            let message = format!("it has a link (physical state {physical}) but is not ready");
            Observation::fail(subject, reason, message)
        }
        Some(PortState::ActiveDefer) => {
            let message = format!("it loses its link repeatedly (physical state {physical})");
            Observation::warn(subject, reason, message)
        }
        Some(PortState::Other) => {
            Observation::unknown(subject, reason, "the agent does not know its state")
        }
        None => Observation::unknown(subject, Reason::HostUnreadable, "its state cannot be read"),
    }
}

fn down(hca: &Hca, port: &Port, subject: String, physical: &str) -> Observation {
    let reason = Reason::PortNotActive;
    if physical == "Disabled" {
        let interfaces = port.interfaces.iter().filter(|known| !known.stacked);
        let interfaces: Vec<&str> = interfaces.map(|known| known.name.as_str()).collect();
        let of = match interfaces.is_empty() {
            true => String::new(),
            false => format!(" with its interface {}", interfaces.join(", ")),
        };
        return Observation::warn(subject, reason, format!("it is disabled{of}"));
    }
    let hint = match hca.function {
        Some(Function::Virtual) => "; the host sets the link state of a virtual function",
        _ => "",
    };
    if port.counters.get(LOST).is_some_and(|lost| *lost > 0) {
        let message = format!("it has lost its link (physical state {physical}){hint}");
        return Observation::fail(subject, reason, message);
    }
    let message = format!("it never had a link (physical state {physical}){hint}");
    Observation::warn(subject, reason, message)
}
