//! `PortMtu`: two ends with packets of different sizes fail in ways that name no MTU. On InfiniBand the
//! subnet manager sees to it.

use crds::inventory::{LinkLayer, PortState};
use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::hca::Port;
use crate::host::interface::path_mtu;

pub(super) const CHECK: Check = Check {
    id: CheckId::PortMtu,
    reasons: &[Reason::MtuTooLow, Reason::MtuMismatch],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let facts = world.facts;
    let rails: Vec<_> = rails::ports(facts)
        .filter(|(_, port)| {
            port.link_layer == Some(LinkLayer::Ethernet)
                && port.state == Some(PortState::Active)
                && !rails::is_aside(facts, port)
        })
        .filter_map(|(hca, port)| Some((rails::name(hca, port), smallest(port)?)))
        .collect();
    let most = rails
        .iter()
        .filter_map(|(_, (_, mtu))| path_mtu(*mtu))
        .max();
    let say = |(subject, (interface, mtu)): (String, (&str, u32))| match path_mtu(mtu) {
        None => {
            let words =
                format!("the MTU of {interface} is {mtu}, and the smallest packet takes 352");
            Said::fail(subject, Reason::MtuTooLow, words)
        }
        Some(room) if Some(room) < most => {
            let words = format!(
                "the MTU of {interface} is {mtu}, room for {room} bytes; other rails have room for {}",
                most.unwrap_or(room)
            );
            Said::warn(subject, Reason::MtuMismatch, words)
        }
        Some(_) => Said::pass(subject),
    };
    rails.into_iter().map(say).collect()
}

/// The interface with the least MTU, which decides.
fn smallest(port: &Port) -> Option<(&str, u32)> {
    let own = port.interfaces.iter().filter(|known| !known.stacked);
    own.filter_map(|known| Some((known.name.as_str(), known.mtu?)))
        .min_by_key(|(_, mtu)| *mtu)
}
