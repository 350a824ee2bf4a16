//! The table that the demo prints at its end.

use crate::agent_bytes::AgentBytes;
use crate::device_packets::DevicePackets;
use crate::pods::Figures;

const MB: f64 = 1e6;

/// One pod's work on a node.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) node: String,
    pub(crate) figures: Figures,
}

/// What has counted the bytes of the pods: agents over TCP, devices over RDMA.
pub(crate) enum Traffic {
    Agents(AgentBytes),
    Devices(DevicePackets),
}

/// The rows of the pods, then those of what has counted their bytes.
pub(crate) fn table(rows: &[Row], traffic: &Traffic) -> String {
    let mut text = format!(
        "{:<28}{:>8}{:>14}{:>10}\n",
        "stock pod", "keys", "bytes", "MB/s"
    );
    for Row {
        what,
        node,
        figures,
    } in rows
    {
        let name = format!("{what} on {node}");
        text += &format!(
            "{name:<28}{:>8}{:>14}{:>10.0}\n",
            figures.keys,
            figures.bytes,
            megabytes(figures.bytes) / figures.seconds
        );
    }
    match traffic {
        Traffic::Agents(moved) => text += &agents(moved),
        Traffic::Devices(moved) => text += &devices(moved),
    }
    text
}

fn agents(moved: &AgentBytes) -> String {
    let mut text = format!("\n{:<28}{:>22}{:>10}\n", "agent", "bytes received", "sent");
    for (node, moved) in moved {
        text += &format!(
            "{:<28}{:>19.0} MB{:>7.0} MB\n",
            format!("of {node}"),
            megabytes(moved.written),
            megabytes(moved.read)
        );
    }
    text
}

fn devices(moved: &DevicePackets) -> String {
    let (device, received) = ("RDMA device", "packets received");
    let mut text = format!("\n{device:<28}{received:>22}{:>10}\n", "sent");
    for (node, moved) in moved {
        let name = format!("rxe0 of {node}");
        text += &format!("{name:<28}{:>22}{:>10}\n", moved.received, moved.sent);
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "printed without decimals")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / MB
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_bytes::Moved;
    use crate::device_packets::Packets;

    #[test]
    fn the_table_lists_pods_and_what_counted_their_bytes() {
        let figures = Figures {
            keys: 1024,
            bytes: 1 << 30,
            seconds: 2.0,
        };
        let row = Row {
            what: "writer",
            node: "n1".to_owned(),
            figures,
        };
        let moved = Moved {
            written: 512_000_000,
            read: 0,
        };
        let agents = Traffic::Agents(AgentBytes::from([("n2".to_owned(), moved)]));
        let rows = [row];
        let pods = "stock pod                       keys         bytes      MB/s\n\
                    writer on n1                    1024    1073741824       537\n\n";
        assert_eq!(
            table(&rows, &agents),
            format!(
                "{pods}agent                               bytes received      sent\n\
                 of n2                                       512 MB      0 MB\n"
            )
        );
        let (received, sent) = (270_000, 12);
        let packets = Packets { received, sent };
        let devices = Traffic::Devices(DevicePackets::from([("n3".to_owned(), packets)]));
        assert_eq!(
            table(&rows, &devices),
            format!(
                "{pods}RDMA device                       packets received      sent\n\
                 rxe0 of n3                                  270000        12\n"
            )
        );
    }
}
