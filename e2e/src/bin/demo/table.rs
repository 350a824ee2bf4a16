//! The table that the demo prints at its end.

use crate::agent_bytes::AgentBytes;
use crate::pods::Figures;

const MB: f64 = 1e6;

/// One pod's work on a node.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) node: String,
    pub(crate) figures: Figures,
}

/// The rows of the pods, then those of the agents.
pub(crate) fn table(rows: &[Row], moved: &AgentBytes) -> String {
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
    text += &format!("\n{:<28}{:>22}{:>10}\n", "agent", "bytes received", "sent");
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

#[expect(clippy::cast_precision_loss, reason = "printed without decimals")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / MB
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_bytes::Moved;

    #[test]
    fn the_table_lists_pods_and_agents() {
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
        let text = table(&[row], &AgentBytes::from([("n2".to_owned(), moved)]));
        assert_eq!(
            text,
            "stock pod                       keys         bytes      MB/s\n\
             writer on n1                    1024    1073741824       537\n\
             \n\
             agent                               bytes received      sent\n\
             of n2                                       512 MB      0 MB\n"
        );
    }
}
