//! `PortGid`: each active port has a GID that peers can reach. Otherwise no queue pair reaches RTR.

use crds::inventory::{NoGid, PortState};
use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};
use host::Facts;
use host::hca::{Hca, Port};

pub(crate) const CHECK: Check = Check::new(
    CheckId::PortGid,
    &[Reason::NoRoutableGid, Reason::HostUnreadable],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observe = |(hca, port): (&Hca, &Port)| {
        let subject = rails::port_name(hca, port);
        let message = match port.chosen {
            Ok(_) => return Observation::pass(subject),
            Err(NoGid::Unread) => {
                let message = "its GID table cannot be read in full";
                return Observation::unknown(subject, Reason::HostUnreadable, message);
            }
            Err(NoGid::Empty) => "all GIDs in its table are zero",
            Err(NoGid::OnlyLinkLocal) => "all its GIDs are link-local",
            Err(NoGid::OnlyRoCEv1) => "all its routable GIDs are RoCE version 1",
            Err(NoGid::OtherLinkLayer) => "GIDs of its link layer are not supported",
        };
        let message = format!("{message}{}", without_ipv6(port));
        Observation::fail(subject, Reason::NoRoutableGid, message)
    };
    active(&input.snapshot.facts).map(observe).collect()
}

fn active(facts: &Facts) -> impl Iterator<Item = (&Hca, &Port)> {
    rails::ports(facts).filter(|(_, port)| {
        port.state == Some(PortState::Active)
            && rails::supports_rdma(port)
            && !rails::is_management(facts, port)
    })
}

/// RoCE ports without a GID that peers can reach.
pub fn without(facts: &Facts) -> impl Iterator<Item = (&Hca, &Port)> {
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
        false => format!("; IPv6 is disabled on {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Host;

    #[test]
    fn a_port_without_a_gid_is_reported_with_the_interface_on_which_ipv6_is_disabled() {
        let text = include_str!("../../../host/machines/roce-bond.txt");
        let text = format!("{text}\n[proc/sys/net/ipv6/conf/bond2]\ndisable_ipv6 = 1\n");
        let facts = Host::parse(&text).unwrap().snapshot().facts;
        let without: Vec<_> = without(&facts).collect();
        let [(hca, port)] = without.as_slice() else {
            panic!("{without:?}")
        };
        assert_eq!(hca.name, "mlx5_bond_2");
        assert_eq!(without_ipv6(port), "; IPv6 is disabled on bond2");
    }
}
