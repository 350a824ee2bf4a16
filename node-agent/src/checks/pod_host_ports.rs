//! `PodHostPorts`: who shares the node's network listens where a firewall between the nodes may let nobody in.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World, pod};
use crate::host::container::by_hand::{ByHand, FIRST_RPC_PORT, LAST_RPC_PORT};

/// What a stock engine takes where nothing says another, or what is said is of no use to it.
const STOCK: (u16, u16) = (15_000, 17_000);

/// A range with an end in here it ignores, whatever the kernel's own range is.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

pub(super) const CHECK: Check = Check {
    id: CheckId::PodHostPorts,
    reasons: &[Reason::HostPortsDiffer],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let Some(ports) = world.host_ports else {
        return Vec::new();
    };
    let on_node = pod::containers(world)
        .filter(|(of, container)| of.host_network && container.wheel.is_some());
    on_node
        .map(|(of, container)| {
            let subject = pod::subject(of, container);
            let (first, last) = listens(&container.by_hand);
            if first >= ports.first && last <= ports.last {
                return Said::pass(subject);
            }
            let words = format!(
                "its engine listens on two ports from {first} to {last}, and the node has {} to {} for that: {}={} {}={}",
                ports.first, ports.last, FIRST_RPC_PORT[0], ports.first, LAST_RPC_PORT[0], ports.last
            );
            Said::warn(subject, Reason::HostPortsDiffer, words)
        })
        .collect()
}

/// From which ports the engine takes its own.
fn listens(by_hand: &ByHand) -> (u16, u16) {
    let end = |value: &Option<String>, stock: u16| match value {
        Some(value) => value.parse().ok(),
        None => Some(stock),
    };
    let (first, last) = &by_hand.rpc_ports;
    let range = end(first, STOCK.0).zip(end(last, STOCK.1));
    let of_use = |port: u16| port >= 1024 && !EPHEMERAL.contains(&port);
    range
        .filter(|(first, last)| of_use(*first) && of_use(*last) && first <= last)
        .unwrap_or(STOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_listens_where_it_is_told_to_unless_that_is_of_no_use_to_it() {
        let of = |first: Option<&str>, last: Option<&str>| {
            listens(&ByHand {
                rpc_ports: (first.map(str::to_owned), last.map(str::to_owned)),
                ..ByHand::default()
            })
        };
        assert_eq!(of(None, None), STOCK);
        assert_eq!(of(Some("20000"), Some("20100")), (20_000, 20_100));
        assert_eq!(of(Some("16000"), None), (16_000, 17_000));
        for useless in [
            (Some("x"), Some("20100")),
            (Some("80"), Some("20100")),
            (Some("20000"), Some("40000")),
            (Some("20100"), Some("20000")),
            (Some("20000"), None),
        ] {
            assert_eq!(of(useless.0, useless.1), STOCK, "{useless:?}");
        }
    }
}
