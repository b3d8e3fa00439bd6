//! A progress bar on standard error, and nothing where that is no terminal.

use std::io::{IsTerminal, Write};

/// Characters of the bar itself.
const WIDTH: usize = 30;

/// Work that is counted.
#[derive(Debug)]
pub struct Progress {
    total: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    /// Nothing of `total` is done.
    pub fn new(total: usize) -> Self {
        Self { total, done: 0, shown: std::io::stderr().is_terminal() }
    }

    /// One more is done.
    pub fn step(&mut self, note: &str) {
        self.done += 1;
        if self.shown {
            let filled = WIDTH * self.done / self.total.max(1);
            let bar = format!("{}{}", "#".repeat(filled.min(WIDTH)), ".".repeat(WIDTH - filled.min(WIDTH)));
            let _ = write!(std::io::stderr(), "\r\x1b[2K[{bar}] {}/{} {note}", self.done, self.total);
        }
    }

    /// Takes the bar away, so that a line can be printed.
    pub fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
