//! Renders lines and tables as terminal text. Control characters are replaced, because whoever can write a
//! pod controls parts of the text.

use std::fmt::Display;

/// Colour or weight of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Style {
    Plain,
    Bold,
    Good,
    Warning,
    Bad,
    Dim,
}

impl Style {
    /// Parameter of the ANSI escape sequence.
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
            Self::Dim => "2",
        }
    }

    /// Style of a condition's status.
    pub fn of_status(status: &str) -> Self {
        match status {
            "True" => Self::Good,
            "False" => Self::Bad,
            _ => Self::Warning,
        }
    }
}

/// One line of text and its style.
#[derive(Debug, PartialEq)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn new(text: impl Display, style: Style) -> Self {
        let text = text.to_string();
        Self {
            text: text.trim().replace(char::is_control, " "),
            style,
        }
    }

    /// The value, or an empty cell.
    pub fn optional(value: Option<impl Display>) -> Self {
        value.map_or_else(|| Self::from(""), Self::from)
    }
}

impl<T: Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Style::Plain)
    }
}

/// A vector of [`Cell`]s from anything that converts into one.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::renderer::Cell::from($cell)),*] };
}
pub(crate) use cells;

/// Collects the output.
#[derive(Debug, Default)]
pub struct Renderer {
    pub colour: bool,
    pub text: String,
}

impl Renderer {
    /// Writes the non-empty cells of one line with a space between them.
    pub fn line(&mut self, cells: Vec<Cell>) {
        self.indented(0, cells);
    }

    /// Writes a line of cells, indented by `depth` spaces.
    pub fn indented(&mut self, depth: usize, cells: Vec<Cell>) {
        let cells = cells.iter().filter(|cell| !cell.text.is_empty());
        let words: Vec<String> = cells.map(|cell| self.paint(cell, 0)).collect();
        self.text += &format!("{}{}\n", " ".repeat(depth), words.join(" "));
    }

    /// Writes an empty line, except at the top.
    pub fn blank_line(&mut self) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
    }

    /// Writes an empty line and a table without its empty columns; nothing without rows.
    pub fn table(&mut self, head: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) {
        let rows: Vec<Vec<Cell>> = rows.into_iter().collect();
        if rows.is_empty() {
            return;
        }
        self.blank_line();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.chars().count()).max()
        };
        let columns: Vec<(usize, usize)> = (0..head.len())
            .filter_map(|column| Some((column, width(column).filter(|width| *width > 0)?)))
            .map(|(column, width)| (column, width.max(head[column].len()) + 2))
            .collect();
        let head: Vec<Cell> = head
            .iter()
            .map(|name| Cell::new(name, Style::Bold))
            .collect();
        for row in [&head].into_iter().chain(&rows) {
            let cells = columns
                .iter()
                .filter_map(|(column, width)| Some(self.paint(row.get(*column)?, *width)));
            let line = cells.collect::<String>();
            self.text += line.trim_end();
            self.text.push('\n');
        }
    }

    /// Writes what to do and where it is documented.
    pub fn remedy(&mut self, remedy: &str, docs: &str) {
        let docs = match docs {
            "" => String::new(),
            docs => format!("({docs})"),
        };
        self.indented(2, cells!["Remedy:", remedy, Cell::new(docs, Style::Dim)]);
    }

    /// The cell in its style, padded with unstyled spaces.
    fn paint(&self, Cell { text, style }: &Cell, width: usize) -> String {
        let padding = " ".repeat(width.saturating_sub(text.chars().count()));
        match style.code() {
            code if self.colour && !code.is_empty() && !text.is_empty() => {
                format!("\u{1b}[{code}m{text}\u{1b}[0m{padding}")
            }
            _ => format!("{text}{padding}"),
        }
    }
}

/// A size with two decimals in its largest binary unit.
pub(crate) fn size_text(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift > 0 {
            let hundredths = (u128::from(bytes) * 100) >> shift;
            return format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_and_two_decimals() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            ((1 << 20) - 1, "1023.99 KiB"),
            (5 << 30, "5.00 GiB"),
            (u64::MAX, "16777215.99 TiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn colour_keeps_the_columns_and_empty_columns_are_left_out() {
        for (colour, text) in [
            (false, "NAME    READY\nkv      True\nlonger  False\n"),
            (
                true,
                "\u{1b}[1mNAME\u{1b}[0m    \u{1b}[1mREADY\u{1b}[0m\n\
                 kv      \u{1b}[32mTrue\u{1b}[0m\nlonger  \u{1b}[31mFalse\u{1b}[0m\n",
            ),
        ] {
            let rows = [
                cells!["kv", "", Cell::new("True", Style::Good)],
                cells!["longer", "", Cell::new("False", Style::Bad)],
            ];
            let mut out = Renderer {
                colour,
                ..Renderer::default()
            };
            out.table(&["NAME", "NOTHING", "READY"], rows);
            assert_eq!(out.text, text);
        }
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut out = Renderer::default();
        out.line(cells!["a\u{1b}[2Jb\nc\u{7}d"]);
        assert_eq!(out.text, "a [2Jb c d\n");
    }
}
