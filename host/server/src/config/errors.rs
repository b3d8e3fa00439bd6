//! What is wrong with a configuration, where, and what to do about it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use thiserror::Error;

use super::limits::{MAX_CONFIG_BYTES, MAX_MESSAGE_CHARS, MAX_PROBLEMS_SHOWN};
use super::source::{Place, Source};

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is missing, or may not be read.
    #[error(
        "{}: cannot be read: {source}\n  cure: give the path of a configuration file that this user may read",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// More bytes than any configuration has.
    #[error(
        "{}: is larger than {MAX_CONFIG_BYTES} bytes\n  cure: give the path of the configuration file",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Not text.
    #[error("{}: is not UTF-8 text (byte {offset_bytes})\n  cure: save it as UTF-8", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first byte that is not.
        offset_bytes: usize,
    },
    /// Text, but not TOML; what follows the first such problem says little, so it is alone.
    #[error("{}", Shown { path, problem })]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The first problem.
        problem: Box<Problem>,
    },
    /// TOML, but not a configuration.
    #[error("{}", AllShown { path, problems })]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All problems found, at least one, in the order of the file.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// What the process exits with: 2, as for a wrong command line.
    pub fn exit_code(&self) -> u8 {
        2
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, as a sentence without its full stop.
    pub what: String,
    /// What to do about it.
    pub cure: String,
    /// Where; `None` when it concerns the file as a whole.
    pub place: Option<Place>,
}

/// The problems found so far, in whatever order.
pub(super) struct Problems<'t> {
    pub(super) source: &'t Source<'t>,
    found: Vec<Problem>,
}

impl<'t> Problems<'t> {
    pub(super) fn new(source: &'t Source<'t>) -> Self {
        Self { source, found: Vec::new() }
    }

    /// Notes a problem at a place.
    pub(super) fn at(&mut self, span: Range<usize>, what: impl Into<String>, cure: impl Into<String>) {
        let place = Some(self.source.place(span));
        self.found.push(Problem { what: shortened(what.into()), cure: shortened(cure.into()), place });
    }

    /// Notes a problem of the file as a whole.
    pub(super) fn of_file(&mut self, what: impl Into<String>, cure: impl Into<String>) {
        self.found.push(Problem { what: what.into(), cure: cure.into(), place: None });
    }

    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// All problems, in the order of the file.
    pub(super) fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|problem| problem.place.as_ref().map(|place| place.offset_bytes));
        self.found
    }
}

/// Messages repeat what was written, which may be long.
fn shortened(message: String) -> String {
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message,
    }
}

/// The problem that the TOML parser met.
pub(super) fn syntax_problem(source: &Source<'_>, fault: &toml::de::Error) -> Problem {
    Problem {
        what: format!("this is not TOML: {}", fault.message()),
        cure: "a line is a [table], a [[table]] or key = value; text stands in double quotes; \
               a table and a key stand once"
            .to_owned(),
        place: fault.span().map(|span| source.place(span)),
    }
}

/// A problem with the file it is in.
struct Shown<'p> {
    path: &'p PathBuf,
    problem: &'p Problem,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { what, cure, place } = self.problem;
        let path = self.path.display();
        match place {
            None => writeln!(f, "{path}: {what}")?,
            Some(Place { line, indent_chars, width_chars, shown, .. }) => {
                let gutter = line.to_string().len();
                let carets = "^".repeat(*width_chars);
                writeln!(f, "{path}:{line}: {what}")?;
                writeln!(f, "  {line} | {shown}")?;
                writeln!(f, "  {:gutter$} | {:indent_chars$}{carets}", "", "")?;
            }
        }
        write!(f, "  cure: {cure}")
    }
}

/// Problems with the file they are in.
struct AllShown<'p> {
    path: &'p PathBuf,
    problems: &'p [Problem],
}

impl fmt::Display for AllShown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().take(MAX_PROBLEMS_SHOWN).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            Shown { path: self.path, problem }.fmt(f)?;
        }
        match self.problems.len().saturating_sub(MAX_PROBLEMS_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more problems", self.path.display()),
        }
    }
}
