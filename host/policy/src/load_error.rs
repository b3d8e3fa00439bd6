//! Why a policy file is refused: what, where, and what to do. Each sentence holds its cause, so none is a `source`:
//! a printed chain would say it twice.

use std::path::PathBuf;

use thiserror::Error;

use crate::component_file::HOOKS;
use crate::fault::Fault;
use crate::limits::{FILE_BYTES_MAX, NAME_BYTES_MAX, POLICIES_MAX, SETTINGS_BYTES_MAX};

/// A file that does not become a policy.
#[derive(Debug, Clone, Error)]
#[error("{}: {reason}", file.display())]
pub struct LoadError {
    /// The file at fault: the policy's, or its settings'.
    pub file: PathBuf,
    /// Why.
    pub reason: Refusal,
}

/// Why a file does not become a policy.
#[derive(Debug, Clone, Error)]
pub enum Refusal {
    /// The file system says no.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Larger than any policy should be.
    #[error(
        "has {bytes} bytes, more than the {FILE_BYTES_MAX} allowed; build it with `--profile wasm` and strip it"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// The folder holds more policies than are taken.
    #[error("is one policy too many: a folder holds at most {POLICIES_MAX}; remove those not in use")]
    TooManyPolicies,
    /// The file's name cannot be a policy's name.
    #[error(
        "has a name that no policy may have: use letters, digits, `-`, `_` and `.`, at most {NAME_BYTES_MAX} of them"
    )]
    BadName,
    /// Not WASM at all.
    #[error(
        "is no WASM: it begins with {begins}; drop the built .wasm file, not its source or its text form"
    )]
    NotWasm {
        /// What the first bytes look like.
        begins: String,
    },
    /// WASM that ends too early.
    #[error(
        "ends too early, after {bytes} bytes; if it is still being copied it is read again when it changes"
    )]
    Truncated {
        /// Bytes there are.
        bytes: usize,
    },
    /// WASM that breaks the rules of WASM.
    #[error("is not valid WASM, at byte {offset}: {detail}; build it again")]
    Invalid {
        /// Where.
        offset: u64,
        /// The rule.
        detail: String,
    },
    /// A core module that says nothing of our world.
    #[error(
        "is a WASM module that does not say which world it is for; build it against the Sluice policy SDK \
         with `sluice_policy_sdk::export!`"
    )]
    NoWorld,
    /// A component without our hooks.
    #[error("does not export `{HOOKS}`; it exports {}", found_names(found))]
    NoHooks {
        /// What it exports.
        found: Vec<String>,
    },
    /// Hooks of another version.
    #[error("exports `{found}`, and this host calls `{HOOKS}`; build it with the SDK of this host's version")]
    WrongVersion {
        /// What it exports.
        found: String,
    },
    /// Functions, or anything else that is not a type, from outside.
    #[error(
        "imports {}; a policy is a pure function and may import nothing: no clock, no randomness, no files",
        found_names(imports)
    )]
    Imports {
        /// What it imports.
        imports: Vec<String>,
    },
    /// A memory that starts beyond the limit.
    #[error(
        "needs {needed_bytes} bytes of memory to start, the limit is {limit_bytes}; raise `memory_bytes`"
    )]
    MemoryTooLarge {
        /// What it declares.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: usize,
    },
    /// Whatever else the encoder, compiler or linker has against it.
    #[error("could not be {step}: {detail}")]
    NotUsable {
        /// `made a component`, `compiled` or `linked`.
        step: &'static str,
        /// In the tool's words.
        detail: String,
    },
    /// The settings are no TOML.
    #[error("line {line}: {detail}")]
    SettingsSyntax {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// The settings hold a value that JSON has no word for.
    #[error("`{key}` is {value}, which cannot be passed on as JSON; write a finite number")]
    SettingsValue {
        /// Where.
        key: String,
        /// What it is.
        value: String,
    },
    /// The settings are too long.
    #[error("has {bytes} bytes, more than the {SETTINGS_BYTES_MAX} allowed for settings")]
    SettingsTooLarge {
        /// Its size.
        bytes: u64,
    },
    /// It could not be started, described or configured.
    #[error("cannot be set up: {0}")]
    SetUp(Fault),
    /// The policy does not want these settings.
    #[error("refuses its settings: {message}")]
    ConfigureRefused {
        /// In the policy's words.
        message: String,
    },
    /// A wrong answer on built-in facts.
    #[error("failed the trial case `{case}`: {fault}")]
    Trial {
        /// Which case.
        case: &'static str,
        /// What happened.
        fault: Fault,
    },
}

impl Refusal {
    /// A short name for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::TooLarge { .. } => "too-large",
            Self::TooManyPolicies => "too-many-policies",
            Self::BadName => "bad-name",
            Self::NotWasm { .. } => "not-wasm",
            Self::Truncated { .. } => "truncated",
            Self::Invalid { .. } => "invalid",
            Self::NoWorld => "no-world",
            Self::NoHooks { .. } => "no-hooks",
            Self::WrongVersion { .. } => "wrong-version",
            Self::Imports { .. } => "imports",
            Self::MemoryTooLarge { .. } => "memory-too-large",
            Self::NotUsable { .. } => "not-usable",
            Self::SettingsSyntax { .. } => "settings-syntax",
            Self::SettingsValue { .. } => "settings-value",
            Self::SettingsTooLarge { .. } => "settings-too-large",
            Self::SetUp(_) => "set-up",
            Self::ConfigureRefused { .. } => "configure-refused",
            Self::Trial { .. } => "trial",
        }
    }

    /// Whether the same bytes may be taken at another moment.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreadable(_) => true,
            Self::SetUp(fault) | Self::Trial { fault, .. } => fault.is_transient(),
            _ => false,
        }
    }
}

/// Why the folder cannot be used at all.
#[derive(Debug, Clone, Error)]
pub enum OpenError {
    /// It is not there, or not ours to read.
    #[error("policy folder {}: {detail}; create it, or name another one in `[policy] folder`", folder.display())]
    Folder {
        /// As configured.
        folder: PathBuf,
        /// What the file system says.
        detail: String,
    },
    /// Anybody on the machine could decide for us.
    #[error("policy folder {} may be written by everybody (mode {mode:o}); run `chmod o-w {}`", folder.display(), folder.display())]
    WorldWritable {
        /// As configured.
        folder: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The WASM runtime does not start on this machine.
    #[error("the WASM runtime does not start: {detail}")]
    Runtime {
        /// In its words.
        detail: String,
    },
    /// The folder cannot be watched.
    #[error("policy folder {} cannot be watched: {detail}", folder.display())]
    Watch {
        /// As configured.
        folder: PathBuf,
        /// In the system's words.
        detail: String,
    },
}

fn found_names(names: &[String]) -> String {
    /// Enough to recognise what it is.
    const SHOWN_MAX: usize = 5;
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let shown: Vec<_> = names.iter().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(SHOWN_MAX);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}
