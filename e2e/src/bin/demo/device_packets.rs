//! Packets that the RDMA device of each node has moved, from the counters of the device: the target of a one-sided
//! operation has no other trace of it.

use crate::error::Error;
use crate::pods::Figures;
use crate::target::Target;
use std::collections::BTreeMap;
use std::time::Duration;

/// The Soft-RoCE device of a virtual machine node.
const COUNTERS: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
/// Payload of a packet on Soft-RoCE at most, in bytes.
const MTU: u64 = 4096;
const DEADLINE: Duration = Duration::from_secs(120);

/// Packets since the start of the device, or between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Packets {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// By node.
pub(crate) type DevicePackets = BTreeMap<String, Packets>;

/// Reads the counters of the nodes.
pub(crate) fn read(target: &Target, nodes: &[String]) -> Result<DevicePackets, Error> {
    let command = ["rcvd_pkts", "sent_pkts"].map(|name| format!("{COUNTERS}/{name}"));
    let [received, sent] = command;
    let command = ["cat".to_owned(), received, sent];
    nodes
        .iter()
        .map(|node| {
            let text = target.run_on(node, &command, DEADLINE)?;
            let packets = parse(&text).ok_or_else(|| Error::Counters {
                node: node.clone(),
                text,
            })?;
            Ok((node.clone(), packets))
        })
        .collect()
}

/// The two numbers, one in each line.
fn parse(text: &str) -> Option<Packets> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let packets = Packets {
        received: numbers.next()?.ok()?,
        sent: numbers.next()?.ok()?,
    };
    numbers.next().is_none().then_some(packets)
}

/// Packets between two readings.
pub(crate) fn added(before: &DevicePackets, after: &DevicePackets) -> DevicePackets {
    let between = |(node, now): (&String, &Packets)| {
        let then = before.get(node).copied().unwrap_or_default();
        let packets = Packets {
            received: now.received.saturating_sub(then.received),
            sent: now.sent.saturating_sub(then.sent),
        };
        (node.clone(), packets)
    };
    after.iter().map(between).collect()
}

/// Fails if the devices together have moved fewer packets than what the pods have put and got needs.
///
/// # Errors
/// [`Error::NotOverRdma`]
pub(crate) fn check(moved: &DevicePackets, pods: &[Figures]) -> Result<(), Error> {
    let needed = pods.iter().map(|pod| pod.bytes.div_ceil(MTU)).sum();
    let total = |of: fn(&Packets) -> u64| moved.values().map(of).sum();
    let received: u64 = total(|packets| packets.received);
    let sent: u64 = total(|packets| packets.sent);
    if received >= needed && sent >= needed {
        return Ok(());
    }
    Err(Error::NotOverRdma {
        received,
        sent,
        needed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_two_numbers() {
        let (received, sent) = (7, 9);
        assert_eq!(parse("7\n9\n"), Some(Packets { received, sent }));
        for wrong in ["7\n", "7\n9\n1\n", "cat: no such file"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn fewer_packets_than_the_payload_needs_are_not_a_transfer_over_rdma() {
        let packets = |received: u64, sent: u64| {
            let of = |received, sent| Packets { received, sent };
            let before = DevicePackets::from([("n3".to_owned(), of(5, 5))]);
            let half = of(5 + received, 5 + sent);
            let after = DevicePackets::from([("n3".to_owned(), half), ("n4".to_owned(), of(2, 2))]);
            added(&before, &after)
        };
        let pod = Figures {
            keys: 1,
            bytes: 2 * MTU + 1,
            seconds: 1.0,
        };
        assert!(check(&packets(4, 4), &[pod, pod]).is_ok());
        let failed = check(&packets(4, 3), &[pod, pod]).unwrap_err();
        assert!(failed.to_string().contains("sent 5"), "{failed}");
        assert!(check(&packets(0, 9), &[pod, pod]).is_err());
    }
}
