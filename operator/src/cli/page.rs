//! Text for people: tables and blocks, in colour where the terminal has it. What objects say is shown
//! without control characters: some of it is written by whoever may write a pod.

/// How a word is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Head,
    Good,
    Doubt,
    Bad,
    Faint,
}

impl Tone {
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Head => Some("1"),
            Self::Good => Some("32"),
            Self::Doubt => Some("33"),
            Self::Bad => Some("31"),
            Self::Faint => Some("2"),
        }
    }
}

/// A word with its tone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: clean(&text.into()),
            tone,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// One line without what a terminal would obey.
fn clean(text: &str) -> String {
    let words = text.trim().chars();
    words
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// What is shown, line by line.
#[derive(Clone, Debug)]
pub struct Page {
    colour: bool,
    text: String,
}

impl Page {
    pub fn new(colour: bool) -> Self {
        Self {
            colour,
            text: String::new(),
        }
    }

    pub fn into_text(self) -> String {
        self.text
    }

    /// Words of one line, a space between them.
    pub fn line(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.indented(0, cells);
    }

    /// The same, set in by so many spaces.
    pub fn indented(&mut self, depth: usize, cells: impl IntoIterator<Item = Cell>) {
        let words: Vec<String> = cells
            .into_iter()
            .filter(|cell| !cell.text.is_empty())
            .map(|cell| self.paint(&cell, 0))
            .collect();
        self.text.push_str(&" ".repeat(depth));
        self.text.push_str(&words.join(" "));
        self.text.push('\n');
    }

    /// An empty line, but none at the top.
    pub fn gap(&mut self) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
    }

    /// Columns as wide as their widest word; columns in which nothing stands are left out.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<Cell>]) {
        let used: Vec<usize> = (0..head.len())
            .filter(|column| {
                rows.iter()
                    .any(|row| row.get(*column).is_some_and(|cell| !cell.text.is_empty()))
            })
            .collect();
        let head: Vec<Cell> = head
            .iter()
            .map(|word| Cell::new(*word, Tone::Head))
            .collect();
        let widths: Vec<usize> = used
            .iter()
            .map(|column| {
                let cells = rows
                    .iter()
                    .chain([&head])
                    .filter_map(|row| row.get(*column));
                cells
                    .map(|cell| cell.text.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in [&head].into_iter().chain(rows) {
            let mut line = String::new();
            for (place, (column, width)) in used.iter().zip(&widths).enumerate() {
                let Some(cell) = row.get(*column) else {
                    continue;
                };
                let last = place + 1 == used.len();
                line.push_str(&self.paint(cell, if last { 0 } else { width + 2 }));
            }
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }

    /// Coloured, and filled up with spaces that are not.
    fn paint(&self, cell: &Cell, width: usize) -> String {
        let Cell { text, tone } = cell;
        let fill = " ".repeat(width.saturating_sub(text.chars().count()));
        match tone.code().filter(|_| self.colour && !text.is_empty()) {
            Some(code) => format!("\u{1b}[{code}m{text}\u{1b}[0m{fill}"),
            None => format!("{text}{fill}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_moves_no_column_and_an_empty_one_is_left_out() {
        let rows = [
            vec![Cell::from("kv"), "".into(), Cell::new("True", Tone::Good)],
            vec!["longer".into(), "".into(), Cell::new("False", Tone::Bad)],
        ];
        let head = ["NAME", "NOTHING", "READY"];
        let mut plain = Page::new(false);
        plain.table(&head, &rows);
        assert_eq!(
            plain.into_text(),
            "NAME    READY\nkv      True\nlonger  False\n"
        );
        let mut coloured = Page::new(true);
        coloured.table(&head, &rows);
        assert_eq!(
            coloured.into_text(),
            "\u{1b}[1mNAME\u{1b}[0m    \u{1b}[1mREADY\u{1b}[0m\n\
             kv      \u{1b}[32mTrue\u{1b}[0m\nlonger  \u{1b}[31mFalse\u{1b}[0m\n"
        );
    }

    #[test]
    fn what_a_pod_says_commands_no_terminal() {
        let mut page = Page::new(false);
        page.line([Cell::from("a\u{1b}[2Jb\nc\u{7}d")]);
        assert_eq!(page.into_text(), "a [2Jb c d\n");
    }
}
