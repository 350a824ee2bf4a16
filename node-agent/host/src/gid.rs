//! GIDs: the scope of each address, and which GID peers use. Pure.

use std::net::Ipv6Addr;

use crds::inventory::{GidProtocol, GidScope, LinkLayer, NoGid};
use serde::{Deserialize, Serialize};

/// One entry of a port's GID table that is not empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    pub index: u16,
    pub address: Ipv6Addr,
    /// Absent where the kernel does not report it.
    pub protocol: Option<GidProtocol>,
    /// The network interface whose address it is.
    pub interface: Option<String>,
}

impl Gid {
    /// Scope of the address.
    pub fn scope(&self) -> GidScope {
        scope(self.address)
    }
}

/// Scope of an address.
pub fn scope(address: Ipv6Addr) -> GidScope {
    if let Some(v4) = address.to_ipv4_mapped() {
        return if v4.is_link_local() {
            GidScope::LinkLocal
        } else if v4.is_loopback() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()
        {
            GidScope::Unusable
        } else {
            GidScope::IPv4
        };
    }
    if address.is_unicast_link_local() {
        GidScope::LinkLocal
    } else if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
        GidScope::Unusable
    } else {
        GidScope::IPv6
    }
}

/// Parses the kernel's type of a GID, which is the same for InfiniBand and RoCE version 1.
pub(super) fn protocol(word: &str, layer: Option<LinkLayer>) -> Option<GidProtocol> {
    match (word, layer?) {
        ("RoCE v2", LinkLayer::Ethernet) => Some(GidProtocol::RoCEv2),
        ("IB/RoCE v1", LinkLayer::Ethernet) => Some(GidProtocol::RoCEv1),
        ("IB/RoCE v1", LinkLayer::InfiniBand) => Some(GidProtocol::InfiniBand),
        _ => None,
    }
}

/// Chooses the GID that peers use; returns its index. On Ethernet it is a routable one: first of the port's own
/// interfaces (`own`) rather than of one stacked on them, such as a VXLAN with the same address, then IPv4.
///
/// # Errors
/// The table is empty or could not be read, or has only link-local or RoCE version 1 GIDs; or the link layer is not
/// supported.
pub fn choose(gids: &[Gid], layer: Option<LinkLayer>, own: &[String]) -> Result<u16, NoGid> {
    match layer {
        None => return Err(NoGid::Unread),
        Some(LinkLayer::Other) => return Err(NoGid::OtherLinkLayer),
        // InfiniBand routes by LID; the prefix of the default subnet looks link-local.
        Some(LinkLayer::InfiniBand) => {
            return gids.first().map(|gid| gid.index).ok_or(NoGid::Empty);
        }
        Some(LinkLayer::Ethernet) => {}
    }
    if gids.is_empty() {
        return Err(NoGid::Empty);
    }
    let routable: Vec<&Gid> = gids
        .iter()
        .filter(|gid| matches!(gid.scope(), GidScope::IPv4 | GidScope::IPv6))
        .collect();
    if routable.is_empty() {
        return Err(NoGid::OnlyLinkLocal);
    }
    let stacked = |gid: &Gid| {
        gid.interface
            .as_ref()
            .is_some_and(|interface| !own.contains(interface))
    };
    routable
        .iter()
        .filter(|gid| gid.protocol == Some(GidProtocol::RoCEv2))
        .min_by_key(|gid| (stacked(gid), gid.scope() != GidScope::IPv4, gid.index))
        .map(|gid| gid.index)
        .ok_or_else(|| {
            if routable.iter().all(|gid| gid.protocol.is_none()) {
                NoGid::Unread
            } else {
                NoGid::OnlyRoCEv1
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use GidProtocol::{RoCEv1, RoCEv2};

    fn gid(index: u16, address: &str, protocol: GidProtocol, interface: &str) -> Gid {
        Gid {
            index,
            address: address.parse().unwrap(),
            protocol: Some(protocol),
            interface: Some(interface.to_owned()),
        }
    }

    fn chosen(gids: &[Gid]) -> Result<u16, NoGid> {
        choose(gids, Some(LinkLayer::Ethernet), &["bond0".to_owned()])
    }

    #[test]
    fn each_scope_is_recognised() {
        for (address, expected) in [
            ("::", GidScope::Unusable),
            ("::1", GidScope::Unusable),
            ("ff02::1", GidScope::Unusable),
            ("::ffff:127.0.0.1", GidScope::Unusable),
            ("::ffff:0.0.0.0", GidScope::Unusable),
            ("::ffff:224.0.0.1", GidScope::Unusable),
            ("fe80::ac0:ebff:feda:1cfb", GidScope::LinkLocal),
            ("::ffff:169.254.3.7", GidScope::LinkLocal),
            ("::ffff:200.0.209.6", GidScope::IPv4),
            ("::ffff:10.0.0.1", GidScope::IPv4),
            ("fd93:16d3:59b6::1", GidScope::IPv6),
            ("2001:db8::1", GidScope::IPv6),
        ] {
            assert_eq!(scope(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn a_routable_address_of_version_2_is_chosen_before_link_local_and_version_1() {
        let table = [
            gid(0, "fe80::ac0:ebff:feda:1cfb", RoCEv1, "bond0"),
            gid(1, "fe80::ac0:ebff:feda:1cfb", RoCEv2, "bond0"),
            gid(2, "::ffff:200.0.209.6", RoCEv1, "bond0"),
            gid(3, "::ffff:200.0.209.6", RoCEv2, "bond0"),
        ];
        assert_eq!(chosen(&table), Ok(3));
        assert_eq!(chosen(&table[..3]), Err(NoGid::OnlyRoCEv1));
        assert_eq!(chosen(&table[..2]), Err(NoGid::OnlyLinkLocal));
        assert_eq!(chosen(&[]), Err(NoGid::Empty));
    }

    #[test]
    fn an_address_of_the_port_comes_before_one_stacked_on_it_and_ipv4_before_ipv6() {
        let table = [
            gid(1, "2001:db8::1", RoCEv2, "bond0"),
            gid(3, "::ffff:30.153.10.175", RoCEv2, "b3.vxlan.30100"),
            gid(5, "::ffff:30.153.10.175", RoCEv2, "bond0"),
        ];
        assert_eq!(chosen(&table), Ok(5));
        assert_eq!(chosen(&table[..2]), Ok(1));
        assert_eq!(chosen(&table[1..2]), Ok(3));
    }

    #[test]
    fn infiniband_uses_its_first_gid_and_other_link_layers_none() {
        let table = [gid(0, "fe80::5aa2:e103:2a:bd8", RoCEv1, "ibp26s0")];
        let choose = |layer| choose(&table, layer, &[]);
        assert_eq!(choose(Some(LinkLayer::InfiniBand)), Ok(0));
        assert_eq!(choose(Some(LinkLayer::Other)), Err(NoGid::OtherLinkLayer));
        assert_eq!(choose(None), Err(NoGid::Unread));
    }
}
