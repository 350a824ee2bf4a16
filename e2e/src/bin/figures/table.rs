//! The table that is printed at the end.

use std::fmt;

const WHAT: usize = 52;
const CELL: usize = 12;

/// Rows in the order of measurement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table(Vec<(String, Vec<String>)>);

impl Table {
    /// A heading.
    pub(crate) fn title(&mut self, what: impl Into<String>, columns: &[&str]) {
        self.0.push((String::new(), Vec::new()));
        self.row(what, columns.iter().map(|column| (*column).to_owned()));
    }

    pub(crate) fn row(
        &mut self,
        what: impl Into<String>,
        cells: impl IntoIterator<Item = impl Into<String>>,
    ) {
        let cells = cells.into_iter().map(Into::into).collect();
        self.0.push((what.into(), cells));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, cells) in &self.0 {
            let cells: String = cells.iter().map(|cell| format!(" {cell:>CELL$}")).collect();
            writeln!(f, "{}", format!("{what:<WHAT$}{cells}").trim_end())?;
        }
        Ok(())
    }
}

/// MiB with one decimal.
pub(crate) fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

/// Converts a count; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "printed rounded")]
pub(crate) fn number(amount: u64) -> f64 {
    amount as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_aligned_with_their_columns() {
        let mut table = Table::default();
        table.title("MB/s", &["ours", "stock"]);
        table.row("put", ["10", "9"]);
        let lines: Vec<_> = table.to_string().lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "");
        assert_eq!(
            lines[1].find("ours").map(|at| at + 4),
            lines[2].find("10").map(|at| at + 2)
        );
        assert_eq!(lines[1].len(), lines[2].len());
    }
}
