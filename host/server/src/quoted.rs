//! Clients' and operators' words within messages of ours: in quotes, escaped, and cut.

/// Longest name repeated to who wrote it, in characters.
const CHARS_SHOWN: usize = 64;

/// A text in quotes, with dots behind them where it was cut. (A precision does not cut what `{:?}` writes.)
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(CHARS_SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_by_characters() {
        let whole = "\u{e9}".repeat(CHARS_SHOWN);
        for (text, expected) in [
            ("", "\"\"".to_owned()),
            ("a\"\n", "\"a\\\"\\n\"".to_owned()),
            (whole.as_str(), format!("\"{whole}\"")),
            (&format!("{whole}x"), format!("\"{whole}\"...")),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
