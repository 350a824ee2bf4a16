//! `PortGid`: without a GID that peers can reach, no queue pair gets past RTR.

use crds::inventory::{NoGid, PortState};
use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::Facts;
use crate::host::hca::{Hca, Port};

pub(super) const CHECK: Check = Check {
    id: CheckId::PortGid,
    reasons: &[Reason::NoRoutableGid, Reason::HostUnreadable],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let say = |(hca, port): (&Hca, &Port)| {
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
        let words = format!("{words}{}", without_ipv6(port));
        Said::fail(subject, Reason::NoRoutableGid, words)
    };
    active(world.facts).map(say).collect()
}

fn active(facts: &Facts) -> impl Iterator<Item = (&Hca, &Port)> {
    rails::ports(facts).filter(|(_, port)| {
        port.state == Some(PortState::Active)
            && rails::speaks_rdma(port)
            && !rails::is_aside(facts, port)
    })
}

/// Ports of RoCE that are known to have no GID that peers can reach.
pub(crate) fn without(facts: &Facts) -> impl Iterator<Item = (&Hca, &Port)> {
    let known = |gid| {
        matches!(
            gid,
            Err(NoGid::Empty | NoGid::OnlyLinkLocal | NoGid::OnlyRoCEv1)
        )
    };
    active(facts).filter(move |(_, port)| known(port.chosen))
}

fn without_ipv6(port: &Port) -> String {
    let off = port
        .interfaces
        .iter()
        .filter(|interface| interface.ipv6 == Some(false));
    let names: Vec<&str> = off.map(|interface| interface.name.as_str()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(", and IPv6 is off on {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::host::recording::Recording;

    #[test]
    fn a_port_without_a_gid_is_told_with_the_interface_on_which_ipv6_is_off() {
        let text = include_str!("../../tests/machines/roce-bond.txt");
        let text = format!("{text}\n[proc/sys/net/ipv6/conf/bond2]\ndisable_ipv6 = 1\n");
        let facts = Host::recorded(Recording::parse(&text).unwrap()).facts();
        let without: Vec<_> = without(&facts).collect();
        let [(hca, port)] = without.as_slice() else {
            panic!("{without:?}")
        };
        assert_eq!(hca.name, "mlx5_bond_2");
        assert_eq!(without_ipv6(port), ", and IPv6 is off on bond2");
    }
}
