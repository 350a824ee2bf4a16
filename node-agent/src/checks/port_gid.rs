//! `PortGid`: without a GID that peers can reach, no queue pair gets past RTR.

use crds::inventory::{NoGid, PortState};
use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::PortGid,
    reasons: &[Reason::NoRoutableGid, Reason::HostUnreadable],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let facts = world.facts;
    let ports = rails::ports(facts).filter(|(_, port)| {
        port.state == Some(PortState::Active)
            && rails::speaks_rdma(port)
            && !rails::is_aside(facts, port)
    });
    let say = |(hca, port): (_, &crate::host::hca::Port)| {
        let subject = rails::name(hca, port);
        let words = match port.chosen {
            Ok(_) => return Said::pass(subject),
            Err(NoGid::Unread) => {
                let words = "its GID table cannot be read in full";
                return Said::unknown(subject, Reason::HostUnreadable, words);
            }
            Err(NoGid::Empty) => "its GID table is all zero",
            Err(NoGid::OnlyLinkLocal) => "all of its GIDs are link-local",
            Err(NoGid::OnlyRoCEv1) => "all of its GIDs that could be reached are of RoCE version 1",
            Err(NoGid::OtherLinkLayer) => "its link layer has no GIDs of ours",
        };
        Said::fail(subject, Reason::NoRoutableGid, words)
    };
    ports.map(say).collect()
}
