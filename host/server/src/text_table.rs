//! Tables for terminals: columns aligned, nothing cut, and nothing in a cell that a terminal would obey.

use std::fmt;

use sluice_core::unfit_chars::is_unfit;

/// Rows under headings.
#[derive(Debug)]
pub struct TextTable<const N: usize> {
    headings: [String; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<N> {
    /// A table with these headings.
    pub fn new(headings: &[&str; N]) -> Self {
        Self { headings: headings.map(str::to_owned), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| one_line(&cell)));
    }
}

/// A text of unknown origin on one line, without characters that act instead of showing.
pub fn one_line(text: &str) -> String {
    text.chars().map(|letter| if is_unfit(letter) { '?' } else { letter }).collect()
}

impl<const N: usize> fmt::Display for TextTable<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = std::iter::once(&self.headings).chain(&self.rows);
            cells.map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for (line, row) in std::iter::once(&self.headings).chain(&self.rows).enumerate() {
            if line > 0 {
                writeln!(formatter)?;
            }
            let text: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            write!(formatter, "{}", text.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(&["a", "long heading"]);
        table.row(["wide cell".to_owned(), "1".to_owned()]);
        assert_eq!(table.to_string(), "a          long heading\nwide cell  1");
        table.row(["esc\u{1b}[2J\nforged\u{202e}".to_owned(), String::new()]);
        assert!(table.to_string().ends_with("esc?[2J?forged?"), "{table}");
    }
}
