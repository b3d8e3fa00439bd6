//! Bars of characters, for figures that say more side by side.

use std::fmt::Write;

/// Columns of the longest bar.
const WIDTH: f64 = 48.0;

/// A line for each figure: its label, a bar that is as long as it is large, and the figure.
pub fn bars(rows: &[(String, f64)], unit: &str) -> String {
    let widest = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let most = rows.iter().map(|(_, figure)| *figure).fold(f64::MIN_POSITIVE, f64::max);
    rows.iter().fold(String::new(), |mut out, (label, figure)| {
        let length = (WIDTH * figure / most).round().max(0.0) as usize;
        let _ = writeln!(out, "{label:<widest$}  {} {figure:.1} {unit}", "#".repeat(length));
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_figures_are_large() {
        let rows = [("pull".to_owned(), 96.0), ("push, kept".to_owned(), 4.0), ("none".to_owned(), 0.0)];
        let expected =
            format!("pull        {} 96.0 ms\npush, kept  ## 4.0 ms\nnone         0.0 ms\n", "#".repeat(48));
        assert_eq!(bars(&rows, "ms"), expected);
        assert_eq!(bars(&[], "ms"), "");
    }
}
