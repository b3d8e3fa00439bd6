//! Text that comes from files and guests, made fit for a log line: bounded, on one line.

use std::path::Path;

use sluice_core::unfit_chars::is_unfit;

/// Longest piece of somebody else's text in a sentence of ours, bytes.
pub(crate) const SHOWN_BYTES_MAX: usize = 512;

/// The text without control characters, cut if it is long.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(SHOWN_BYTES_MAX));
    for character in text.chars() {
        if shown.len() >= SHOWN_BYTES_MAX {
            shown.push_str("...");
            break;
        }
        if is_unfit(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The path as people write it. It is not cut: the system bounds it, and people have to find the file.
pub(crate) fn shown_path(path: &Path) -> String {
    let escaped = |character: char| is_unfit(character).then(|| character.escape_default().to_string());
    path.to_string_lossy()
        .chars()
        .map(|character| escaped(character).unwrap_or_else(|| character.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_on_one_line_and_is_cut() {
        assert_eq!(shown("plain, \u{e9}"), "plain, \u{e9}");
        assert_eq!(shown("\u{202e}gnp"), "\\u{202e}gnp");
        assert_eq!(shown("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        let long = shown(&"\u{e9}".repeat(100_000));
        assert!(long.len() <= SHOWN_BYTES_MAX + 5 && long.ends_with("\u{e9}..."), "{} bytes", long.len());
    }

    #[test]
    fn paths_stay_on_one_line() {
        assert_eq!(shown_path(Path::new("/a b/c\nd.wasm")), "/a b/c\\nd.wasm");
    }
}
