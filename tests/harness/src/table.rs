//! Aligned text tables.

use std::fmt;

/// Rows under heads. Figures stand right, words left.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these heads.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// One more row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &'_ Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let is_figure = |text: &str| {
            text.is_empty() || text.starts_with(|first: char| first.is_ascii_digit() || first == '-')
        };
        let width = |column| self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
        let right = |column| self.rows.iter().skip(1).all(|row| is_figure(&cell(row, column)));
        let layout: Vec<_> = (0..columns).map(|column| (width(column), right(column))).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<_> = layout
                .iter()
                .enumerate()
                .map(|(column, (width, right))| {
                    let text = cell(row, column);
                    if *right { format!("{text:>width$}") } else { format!("{text:<width$}") }
                })
                .collect();
            writeln!(out, "{}", cells.join("  ").trim_end())?;
            if index == 0 {
                let rules: Vec<_> = layout.iter().map(|(width, _)| "-".repeat(*width)).collect();
                writeln!(out, "{}", rules.join("  "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_right_words_left() {
        let mut table = Table::new(&["policy", "ms"]);
        table.row(["a".to_owned(), "5".to_owned()]);
        table.row(["longer-name".to_owned(), "120".to_owned()]);
        assert_eq!(
            table.to_string(),
            "policy        ms\n-----------  ---\na              5\nlonger-name  120\n"
        );
    }
}
