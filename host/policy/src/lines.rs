//! From a place in a text to its line.

use std::iter::once;

/// Where the lines of a text begin. Made once: who asks for many places must not look through the text for each.
#[derive(Debug)]
pub(crate) struct Lines {
    starts: Vec<usize>,
}

impl Lines {
    /// Of a text, which need not be UTF-8.
    pub(crate) fn of(text: impl AsRef<[u8]>) -> Self {
        let ends = text.as_ref().iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        Self { starts: once(0).chain(ends.map(|(at, _)| at + 1)).collect() }
    }

    /// The line of a byte, from 1. What lies beyond the end is on the last line.
    pub(crate) fn line(&self, at_bytes: usize) -> usize {
        self.starts.partition_point(|start| *start <= at_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_on_its_line() {
        for (text, lines) in [
            ("", &[1, 1][..]),
            ("ab", &[1, 1, 1]),
            // A line's end is on it.
            ("a\nb\n", &[1, 1, 2, 2, 3, 3]),
            ("\n\r\n", &[1, 2, 2, 3]),
        ] {
            let found = Lines::of(text);
            let each: Vec<_> = (0..lines.len()).map(|at| found.line(at)).collect();
            assert_eq!(each, lines, "{text:?}");
        }
    }
}
