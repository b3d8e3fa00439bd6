//! Why a policy file is refused: what, where, and what to do. Each sentence holds its cause, so none is a `source`:
//! a printed chain would say it twice.

use std::path::PathBuf;

use thiserror::Error;

use crate::component_file::HOOKS;
use crate::expansion::INSTANCES_MAX;
use crate::fault::Fault;
use crate::limits::{FILE_BYTES_MAX, NAME_BYTES_MAX, POLICIES_MAX, SETTINGS_BYTES_MAX};
use crate::shown::{shown, shown_path};

/// A file that does not become a policy.
#[derive(Debug, Clone, Error)]
#[error("{}: {reason}", shown_path(file))]
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
    /// Anybody on the machine could put another policy in its place.
    #[error("may be written by everybody (mode {mode:o}); run `chmod o-w` on it")]
    WorldWritable {
        /// Its permission bits.
        mode: u32,
    },
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
    /// Its settings would be the file that binds workloads.
    #[error(
        "is called `bindings` or `builtin`: bindings.toml binds workloads to policies, and `builtin` is the host's own policy; \
         give it another name"
    )]
    ReservedName,
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
    #[error(
        "exports `{}`, and this host calls `{HOOKS}`; build it with the SDK of this host's version",
        shown(found)
    )]
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
        "needs {needed_bytes} bytes of memory to start, the limit is {limit_bytes}; raise `policy.memory_mb`"
    )]
    MemoryTooLarge {
        /// What it declares.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: usize,
    },
    /// Components within it that instantiate one another too often.
    #[error(
        "makes more than {INSTANCES_MAX} instances of the modules and components within it, or of some that come from \
         outside; a policy is one component with a few modules"
    )]
    TooManyInstances,
    /// More than may be compiled beside requests.
    #[error(
        "has {found} {what}, more than the {limit} allowed, since compiling it would take too long; \
         build it with optimization, and split what is large"
    )]
    TooMuchCode {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: u64,
        /// How much there may be.
        limit: u64,
    },
    /// The compiler is at it, while others go on.
    #[error("takes long to compile; it is taken once that is done")]
    StillCompiling,
    /// Its compiler came to an end that was not the file's doing; it is compiled again later.
    #[error("its compiler ended early: {detail}; it is started again in a while")]
    CompilerEnded {
        /// How.
        detail: String,
    },
    /// Whatever else the encoder, compiler or linker has against it.
    #[error("could not be {step}: {detail}")]
    NotUsable {
        /// `made a component`, `compiled` or `linked`.
        step: &'static str,
        /// In the tool's words.
        detail: String,
    },
    /// The tools that read and compile files failed on it, which no file should bring about.
    #[error("made the loader fail: {detail}; build it again, and report it if that does not help")]
    LoaderFailed {
        /// The panic's message.
        detail: String,
    },
    /// It says too much of itself.
    #[error("describes itself with a `{part}` of {bytes} bytes that cannot be shown; it must be {wanted}")]
    Description {
        /// `name`, `version` or `about`.
        part: &'static str,
        /// Its length.
        bytes: usize,
        /// What fits.
        wanted: String,
    },
    /// Making an instance takes too long.
    #[error(
        "takes {took_ms:.1} ms of CPU to start and configure; it must stay under {limit_ms:.1} ms, a part of \
         `policy.cpu_budget_ms`, because an instance may have to be made while a request waits"
    )]
    SlowSetUp {
        /// What it took.
        took_ms: f64,
        /// What it may take.
        limit_ms: f64,
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
    /// The settings are not what the policy's schema says.
    #[error("{}`{key}` {what}; it takes {takes}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
    SettingsMisfit {
        /// Line, from 1; `None` when it is a key that is missing at the top.
        line: Option<usize>,
        /// Where.
        key: String,
        /// What is wrong.
        what: String,
        /// What would be right.
        takes: String,
    },
    /// The schema cannot be used.
    #[error("states a settings schema that this host cannot use: {detail}")]
    BadSchema {
        /// What is wrong.
        detail: String,
    },
    /// The settings are too long.
    #[error("has {bytes} bytes, more than the {SETTINGS_BYTES_MAX} allowed for settings")]
    SettingsTooLarge {
        /// Its size.
        bytes: u64,
    },
    /// Settings without a policy.
    #[error(
        "holds settings of a policy that is not there: no .wasm file has its name; give both the same name, or take it away"
    )]
    SettingsOnly,
    /// It could not be started, described or configured.
    #[error("cannot be set up: {0}")]
    SetUp(Fault),
    /// The policy does not want these settings.
    #[error("the policy refuses its settings: {message}")]
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
            Self::WorldWritable { .. } => "world-writable",
            Self::TooLarge { .. } => "too-large",
            Self::TooManyPolicies => "too-many-policies",
            Self::BadName => "bad-name",
            Self::ReservedName => "reserved-name",
            Self::NotWasm { .. } => "not-wasm",
            Self::Truncated { .. } => "truncated",
            Self::Invalid { .. } => "invalid",
            Self::NoWorld => "no-world",
            Self::NoHooks { .. } => "no-hooks",
            Self::WrongVersion { .. } => "wrong-version",
            Self::Imports { .. } => "imports",
            Self::MemoryTooLarge { .. } => "memory-too-large",
            Self::TooManyInstances => "too-many-instances",
            Self::TooMuchCode { .. } => "too-much-code",
            Self::StillCompiling => "still-compiling",
            Self::CompilerEnded { .. } => "compiler-ended",
            Self::NotUsable { .. } => "not-usable",
            Self::LoaderFailed { .. } => "loader-failed",
            Self::Description { .. } => "description",
            Self::SlowSetUp { .. } => "slow-set-up",
            Self::SettingsSyntax { .. } => "settings-syntax",
            Self::SettingsValue { .. } => "settings-value",
            Self::SettingsMisfit { .. } => "settings-misfit",
            Self::BadSchema { .. } => "bad-schema",
            Self::SettingsTooLarge { .. } => "settings-too-large",
            Self::SettingsOnly => "settings-only",
            Self::SetUp(_) => "set-up",
            Self::ConfigureRefused { .. } => "configure-refused",
            Self::Trial { .. } => "trial",
        }
    }

    /// What tells this content from another that is refused for the same reason, where no more than its first bytes were
    /// read.
    pub(crate) fn told_by_head(&self) -> Option<String> {
        match self {
            Self::NotWasm { begins } => Some(begins.clone()),
            _ => None,
        }
    }

    /// Whether the same bytes may be taken at another moment.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreadable(_)
            | Self::WorldWritable { .. }
            | Self::StillCompiling
            | Self::CompilerEnded { .. } => true,
            Self::SetUp(fault) | Self::Trial { fault, .. } => fault.is_transient(),
            _ => false,
        }
    }
}

/// Why the folder cannot be used at all. The sentence says what is wrong; [`OpenError::cure`] what to do.
#[derive(Debug, Clone, Error)]
pub enum OpenError {
    /// It is not there, or not ours to read.
    #[error("policy folder {}: {detail}", shown_path(folder))]
    Folder {
        /// As configured.
        folder: PathBuf,
        /// What the file system says.
        detail: String,
    },
    /// Anybody on the machine could decide for us.
    #[error("policy folder {} may be written by everybody (mode {mode:o})", shown_path(folder))]
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
    #[error("policy folder {} cannot be watched: {detail}", shown_path(folder))]
    Watch {
        /// As configured.
        folder: PathBuf,
        /// In the system's words.
        detail: String,
    },
}

impl OpenError {
    /// What to do about it: a clause that follows the sentence.
    pub fn cure(&self) -> String {
        match self {
            Self::Folder { .. } => "create it, or name another one in `[policy] folder`".to_owned(),
            Self::WorldWritable { folder, .. } => format!("run `chmod o-w {}`", shown_path(folder)),
            Self::Runtime { .. } => {
                "each policy instance reserves 4 GiB of address space: raise `ulimit -v`, or the container's limit"
                    .to_owned()
            }
            Self::Watch { .. } => {
                "raise the system's limit of file watches, `sysctl fs.inotify.max_user_watches` and \
                 `fs.inotify.max_user_instances`"
                    .to_owned()
            }
        }
    }
}

fn found_names(names: &[String]) -> String {
    /// Enough to recognise what it is.
    const SHOWN_MAX: usize = 5;
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let shown: Vec<_> = names.iter().take(SHOWN_MAX).map(|name| format!("`{}`", shown(name))).collect();
    let more = names.len().saturating_sub(SHOWN_MAX);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_and_what_to_do_are_told_apart() {
        let folder = PathBuf::from("/etc/policies");
        let detail = || "no such file".to_owned();
        for (error, wrong, cure) in [
            (OpenError::Folder { folder: folder.clone(), detail: detail() }, "no such file", "create it"),
            (
                OpenError::WorldWritable { folder: folder.clone(), mode: 0o777 },
                "mode 777",
                "`chmod o-w /etc/policies`",
            ),
            (OpenError::Runtime { detail: detail() }, "no such file", "ulimit"),
            (OpenError::Watch { folder, detail: detail() }, "no such file", "inotify"),
        ] {
            let sentence = error.to_string();
            assert!(sentence.ends_with(wrong) || sentence.contains(wrong), "{sentence}");
            assert!(error.cure().contains(cure), "{}", error.cure());
            assert!(!sentence.contains(&error.cure()) && !sentence.contains(';'), "{sentence}");
        }
    }

    #[test]
    fn cures_name_the_keys_of_the_configuration() {
        let refusal = Refusal::MemoryTooLarge { needed_bytes: 1 << 30, limit_bytes: 1 << 24 };
        assert!(refusal.to_string().contains("raise `policy.memory_mb`"), "{refusal}");
    }

    #[test]
    fn text_from_files_stays_short_and_on_one_line() {
        let long = "x\n".repeat(50_000);
        for refusal in [
            Refusal::NoHooks { found: vec![long.clone(); 9] },
            Refusal::Imports { imports: vec![long.clone(); 9] },
            Refusal::WrongVersion { found: long },
        ] {
            let sentence = refusal.to_string();
            assert!(sentence.len() < 4_096 && !sentence.contains('\n'), "{} bytes", sentence.len());
        }
        let error = LoadError { file: PathBuf::from("a\nb.wasm"), reason: Refusal::BadName };
        assert!(error.to_string().starts_with("a\\nb.wasm: "), "{error}");
    }
}
