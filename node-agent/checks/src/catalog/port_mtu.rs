//! `PortMtu`: all RoCE rails have the same path MTU. Ends with different MTUs fail with errors that do not name the MTU.
//! On InfiniBand the subnet manager sets it.

use crds::inventory::{LinkLayer, PortState};
use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};
use host::hca::Port;
use host::interface::path_mtu;

pub(crate) const CHECK: Check = Check::new(
    CheckId::PortMtu,
    &[Reason::MtuTooLow, Reason::MtuMismatch],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let facts = &input.snapshot.facts;
    let rails: Vec<_> = rails::ports(facts)
        .filter(|(_, port)| {
            port.link_layer == Some(LinkLayer::Ethernet)
                && port.state == Some(PortState::Active)
                && !rails::is_management(facts, port)
        })
        .filter_map(|(hca, port)| Some((rails::port_name(hca, port), smallest(port)?)))
        .collect();
    let most = rails
        .iter()
        .filter_map(|(_, (_, mtu))| path_mtu(*mtu))
        .max();
    let observe = |(subject, (interface, mtu)): (String, (&str, u32))| match path_mtu(mtu) {
        None => {
            let message = format!("the MTU of {interface} is {mtu}; the smallest packet needs 352");
            Observation::fail(subject, Reason::MtuTooLow, message)
        }
        Some(room) if Some(room) < most => {
            let message = format!(
                "the MTU of {interface} is {mtu} (path MTU {room}); other rails have path MTU {}",
                most.unwrap_or(room)
            );
            Observation::warn(subject, Reason::MtuMismatch, message)
        }
        Some(_) => Observation::pass(subject),
    };
    rails.into_iter().map(observe).collect()
}

/// The interface with the smallest MTU.
fn smallest(port: &Port) -> Option<(&str, u32)> {
    let own = port.interfaces.iter().filter(|known| !known.stacked);
    own.filter_map(|known| Some((known.name.as_str(), known.mtu?)))
        .min_by_key(|(_, mtu)| *mtu)
}
