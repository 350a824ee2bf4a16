//! `PodHostPorts`: engines in the node's network listen on the ports that the policy names. A firewall may block others.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation, pod};
use host::container::rdma_settings::{FIRST_RPC_PORT, LAST_RPC_PORT, RdmaSettings};

/// The range of a stock engine without valid settings.
const DEFAULT: (u16, u16) = (15_000, 17_000);

/// A stock engine ignores a range that begins or ends in here, whatever range the kernel uses.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

pub(crate) const CHECK: Check = Check::new(CheckId::PodHostPorts, &[Reason::HostPortMismatch], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let policy = input.spec.policy.as_ref();
    let Some(ports) = policy.and_then(|policy| policy.host_ports) else {
        return Vec::new();
    };
    let on_node = pod::containers(input)
        .filter(|(of, container)| of.host_network && container.wheel.is_some());
    on_node
        .map(|(of, container)| {
            let subject = pod::subject(of, container);
            let (first, last) = port_range(&container.rdma_settings);
            if first >= ports.first && last <= ports.last {
                return Observation::pass(subject);
            }
            let message = format!(
                "its engine listens on two ports from {first} to {last}; the node's range is {} to {}: set {}={} {}={}",
                ports.first, ports.last, FIRST_RPC_PORT[0], ports.first, LAST_RPC_PORT[0], ports.last
            );
            Observation::warn(subject, Reason::HostPortMismatch, message)
        })
        .collect()
}

/// The range in which the engine chooses its ports.
fn port_range(rdma_settings: &RdmaSettings) -> (u16, u16) {
    let end = |value: &Option<String>, stock: u16| match value {
        Some(value) => value.parse().ok(),
        None => Some(stock),
    };
    let (first, last) = &rdma_settings.rpc_ports;
    let range = end(first, DEFAULT.0).zip(end(last, DEFAULT.1));
    let valid = |port: u16| port >= 1024 && !EPHEMERAL.contains(&port);
    range
        .filter(|(first, last)| valid(*first) && valid(*last) && first <= last)
        .unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_ignores_an_invalid_port_range() {
        let of = |first: Option<&str>, last: Option<&str>| {
            port_range(&RdmaSettings {
                rpc_ports: (first.map(str::to_owned), last.map(str::to_owned)),
                ..RdmaSettings::default()
            })
        };
        assert_eq!(of(None, None), DEFAULT);
        assert_eq!(of(Some("20000"), Some("20100")), (20_000, 20_100));
        assert_eq!(of(Some("16000"), None), (16_000, 17_000));
        for invalid in [
            (Some("x"), Some("20100")),
            (Some("80"), Some("20100")),
            (Some("20000"), Some("40000")),
            (Some("20100"), Some("20000")),
            (Some("20000"), None),
        ] {
            assert_eq!(of(invalid.0, invalid.1), DEFAULT, "{invalid:?}");
        }
    }
}
