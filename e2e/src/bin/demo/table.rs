//! The last thing that the demo prints.

use crate::pods::Figures;
use crate::served::Served;

const MB: f64 = 1e6;

/// What the pods did, on which node.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) node: String,
    pub(crate) figures: Figures,
}

/// Pods above, agents below.
pub(crate) fn table(rows: &[Row], served: &Served) -> String {
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
    for (node, moved) in served {
        text += &format!(
            "{:<28}{:>19.0} MB{:>7.0} MB\n",
            format!("of {node}"),
            megabytes(moved.written),
            megabytes(moved.read)
        );
    }
    text
}

#[expect(
    clippy::cast_precision_loss,
    reason = "shown to people, without decimals"
)]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / MB
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::Moved;

    #[test]
    fn the_table_says_who_moved_what() {
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
        let text = table(&[row], &Served::from([("n2".to_owned(), moved)]));
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
