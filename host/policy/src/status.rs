//! What people are told of each policy.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_core::workload::Binding;

use crate::history::EarlierVersion;
use crate::settings_schema::SettingStatus;

/// Whether a policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyState {
    /// It decides where it is bound. If `refusal` is set, a newer file was refused and this is the last good version.
    Loaded,
    /// Its file was refused and there is no older version.
    Refused,
    /// Its file is gone, but it is bound, so its last good version goes on deciding.
    RemovedButBound,
    /// It is bound, but there never was such a file: the built-in default decides.
    Missing,
}

impl PolicyState {
    /// The name used in tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Refused => "refused",
            Self::RemovedButBound => "removed-but-bound",
            Self::Missing => "missing",
        }
    }
}

/// Why the newest file of a policy is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusalStatus {
    /// Short name of the reason.
    pub kind: &'static str,
    /// The sentence for people, with the file.
    pub message: String,
}

/// One policy, for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyStatus {
    /// File name without `.wasm`.
    pub name: String,
    /// Whether it decides.
    pub state: PolicyState,
    /// Whether it is the default.
    pub is_default: bool,
    /// Workloads that are bound to it, beside those that the default decides for.
    pub workloads: Vec<String>,
    /// The name that it gives itself.
    pub module: Option<String>,
    /// What it says of itself.
    pub version: Option<String>,
    /// What it says of itself.
    pub about: Option<String>,
    /// SHA-256 of the file in force, hexadecimal.
    pub digest: Option<String>,
    /// Size of the file in force.
    pub bytes: Option<u64>,
    /// How long it took to compile.
    pub compile_ms: Option<u64>,
    /// The generation that this version came with.
    pub generation_since: Option<u64>,
    /// The file.
    pub file: String,
    /// When the file was last changed, ms since the Unix epoch.
    pub file_modified_ms: Option<u64>,
    /// Why the newest file is not in force.
    pub refusal: Option<RefusalStatus>,
    /// Calls of this version.
    pub calls: u64,
    /// Faults of this version by kind; kinds that never happened are left out.
    pub faults: BTreeMap<&'static str, u64>,
}

/// One policy, in full.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyDetail {
    /// As it is listed.
    #[serde(flatten)]
    pub status: PolicyStatus,
    /// Its settings in force, in the order of their keys.
    pub settings: Vec<SettingStatus>,
    /// Instances that there are at this moment, idle and busy.
    pub instances: u32,
    /// The bindings that name it.
    pub bindings: Vec<Binding>,
    /// Versions that it had before, newest first.
    pub earlier: Vec<EarlierVersion>,
}

/// What binds workloads to policies, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BindingsStatus {
    /// The file.
    pub file: String,
    /// Those in force, in the order in which they are tried.
    pub in_force: Vec<Binding>,
    /// Why the newest file is not in force: the sentence for people.
    pub refusal: Option<String>,
}

/// What one look at the folder changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReloadOutcome {
    /// The generation in force now.
    pub generation: u64,
    /// Whether it is a new one.
    pub swapped: bool,
    /// Policies that came new or in a new version.
    pub loaded: Vec<String>,
    /// Policies whose new file was refused at this look, and the sentence for people.
    pub refused: Vec<(String, String)>,
    /// Policies whose file is gone.
    pub removed: Vec<String>,
    /// Why the folder could not be read; then nothing changed.
    pub folder_error: Option<String>,
}
