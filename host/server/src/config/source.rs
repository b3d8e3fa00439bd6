//! Places in the text of a configuration file.

use std::ops::Range;

use sluice_core::unfit_chars::is_unfit;

use super::limits::MAX_SHOWN_CHARS;

/// The text of a file, with its lines found once.
pub(super) struct Source<'t> {
    text: &'t str,
    /// Offset in bytes at which each line starts.
    starts: Vec<usize>,
}

/// A stretch of one line, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Counted from 1.
    pub line: usize,
    /// Characters before the stretch, as far as shown.
    pub indent_chars: usize,
    /// Characters of the stretch, at least 1.
    pub width_chars: usize,
    /// The line, or the part of a long line around the stretch: no control characters, no credentials, no keys.
    pub shown: String,
    /// Where the stretch starts in the file, in bytes.
    pub offset_bytes: usize,
}

impl<'t> Source<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// The line that holds an offset, counted from 1.
    pub(super) fn line(&self, offset_bytes: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset_bytes).max(1)
    }

    /// Where a span starts; a span over several lines is shown on its first.
    pub(super) fn place(&self, span: Range<usize>) -> Place {
        let line = self.line(span.start);
        let start = self.starts[line - 1];
        let end = self.starts.get(line).map_or(self.text.len(), |next| next - 1);
        let text = self.text.get(start..end).unwrap_or_default().trim_end_matches('\r');
        let chars_before =
            |offset: usize| text.char_indices().take_while(|(at, _)| start + at < offset).count();
        let from = chars_before(span.start);
        let width_chars = chars_before(span.end).saturating_sub(from).max(1);

        let shown = displayable(text);
        let skipped =
            if shown.len() <= MAX_SHOWN_CHARS { 0 } else { from.saturating_sub(MAX_SHOWN_CHARS / 2) };
        let shown: String = shown[skipped.min(shown.len())..].iter().take(MAX_SHOWN_CHARS).collect();
        let indent_chars = from - skipped;
        let width_chars = width_chars.min(MAX_SHOWN_CHARS.saturating_sub(indent_chars)).max(1);
        Place { line, indent_chars, width_chars, shown, offset_bytes: span.start }
    }
}

/// The line's characters, one for one: a terminal shows none of them as a command, and credentials are
/// starred out, because messages end up in logs.
fn displayable(line: &str) -> Vec<char> {
    let mut shown: Vec<char> = line
        .chars()
        .map(|char| match char {
            '\t' => ' ',
            char if is_unfit(char) => char::REPLACEMENT_CHARACTER,
            char => char,
        })
        .collect();
    if let Some(start) = keys_start(line) {
        let after = shown.iter_mut().skip(start).filter(|char| char.is_alphanumeric());
        after.for_each(|char| *char = '*');
    }
    if let Some(end) = shown.iter().rposition(|char| *char == '@') {
        let start = credentials_start(&shown[..end]);
        shown[start..end].fill('*');
    }
    shown
}

/// Where credentials that end a text may start: after its first quote and a scheme. A password may hold
/// quotes and slashes, so hiding too much is the safe side.
fn credentials_start(before_at: &[char]) -> usize {
    let is_quote = |char: &char| *char == '"' || *char == '\'';
    let string = before_at.iter().position(is_quote).map_or(0, |quote| quote + 1);
    let scheme = before_at[string..].iter().take_while(|char| char.is_ascii_alphabetic()).count();
    let slashes = string + scheme;
    if before_at[slashes..].starts_with(&[':', '/', '/']) { slashes + 3 } else { string }
}

/// Where the API keys of a line start, in characters: somebody may have written a key where its digest belongs.
/// Lists go over several lines, each an item in quotes.
fn keys_start(line: &str) -> Option<usize> {
    let is_set = |after: &str| after.trim_start_matches(['"', '\'', ' ', '\t']).starts_with('=');
    let trimmed = line.trim_start();
    let start = match trimmed.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let is_key = trimmed[1..].split_once(quote).is_some_and(|(_, after)| is_set(after));
            (!is_key).then_some(0)
        }
        _ => None,
    };
    let after_word =
        || line.match_indices("keys").map(|(at, word)| at + word.len()).find(|at| is_set(&line[*at..]));
    start.or_else(after_word).map(|bytes| line[..bytes].chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_or_turns_the_text_is_not_shown() {
        let shown: String = displayable("a\tb = '\u{1b}[31m\u{202e}\u{2028}'").iter().collect();
        assert_eq!(shown, "a b = '\u{fffd}[31m\u{fffd}\u{fffd}'");
    }
}
