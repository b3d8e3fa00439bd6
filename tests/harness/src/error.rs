//! What keeps the harness from going on.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// A failure of the set-up or of an exchange, never of an assertion.
#[derive(Debug, Error)]
pub enum HarnessError {
    /// The binary under test is not built.
    #[error(
        "there is no sluice binary: looked at {}; run `make build`, or name one in SLUICE_BIN",
        listed(looked_at)
    )]
    NoBinary {
        /// Where it was expected.
        looked_at: Vec<PathBuf>,
    },
    /// A policy or guest is not built.
    #[error(
        "there is no {name}.wasm: looked at {}; run `make policies`, or name its folder in SLUICE_WASM_DIR",
        listed(looked_at)
    )]
    NoWasm {
        /// Which.
        name: String,
        /// Where it was expected.
        looked_at: Vec<PathBuf>,
    },
    /// Files or processes.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A process did not come up.
    #[error("{title} did not start: {why}; its log:\n{log}")]
    NotStarted {
        /// Which process.
        title: String,
        /// What was seen instead of its first line.
        why: String,
        /// What it wrote.
        log: String,
    },
    /// An exchange broke.
    #[error("{what}: {cause}")]
    Http {
        /// Method and address.
        what: String,
        /// Causes, outermost first.
        cause: String,
    },
    /// An answer has not the form it should have.
    #[error("{what} answered something else than expected: {found}")]
    Unexpected {
        /// What was asked.
        what: String,
        /// What came.
        found: String,
    },
    /// A condition did not come about.
    #[error("waited {} ms in vain for {what}", within.as_millis())]
    Late {
        /// The condition.
        what: String,
        /// How long was waited.
        within: Duration,
    },
}

impl HarnessError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
