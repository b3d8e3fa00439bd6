//! What people are told of each policy.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_core::workload::Binding;

use crate::change::Change;
use crate::generation::Generation;
use crate::history::EarlierVersion;
use crate::policy::Policy;
use crate::settings_schema::SettingStatus;
use crate::standing::PutAside;

/// Whether a policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyState {
    /// It decides where it is bound. If `refusal` is set, a newer file was refused and this is the last good version.
    Loaded,
    /// Its file was refused and there is no older version.
    Refused,
    /// Its file is gone, but it is bound, so its last good version goes on deciding. It may be put aside as well.
    RemovedButBound,
    /// It failed too often: its last good version decides, or else the built-in default.
    PutAside,
    /// It is bound, but there never was such a file: the built-in default decides.
    Missing,
    /// There are settings of that name and no policy.
    SettingsOnly,
}

impl PolicyState {
    /// The name used in tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Refused => "refused",
            Self::RemovedButBound => "removed-but-bound",
            Self::PutAside => "put-aside",
            Self::Missing => "missing",
            Self::SettingsOnly => "settings-only",
        }
    }
}

/// Where compiled code came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeFrom {
    /// The compiler.
    Compiled,
    /// The cache of compiled policies.
    Cached,
}

/// The cache of compiled policies, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheStatus {
    /// Where it lies.
    pub folder: String,
    /// Policies whose code was there.
    pub hits: u64,
    /// Policies whose code was not there.
    pub misses: u64,
    /// Times that something lay there which was not to be trusted or not whole.
    pub refused: u64,
    /// Times that the file system did not let it work.
    pub failed: u64,
    /// What was last refused or failed.
    pub last_trouble: Option<String>,
}

/// Why the newest file of a policy is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusalStatus {
    /// Short name of the reason.
    pub kind: &'static str,
    /// The sentence for people, with the file.
    pub message: String,
}

/// That a policy failed too often, and who decides instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PutAsideStatus {
    /// The sentence for people.
    pub message: String,
    /// Why and when.
    #[serde(flatten)]
    pub why: PutAside,
    /// The last good version; `None` means the built-in default.
    pub instead: Option<DecidesInstead>,
}

/// The version that took over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DecidesInstead {
    /// The version that it states.
    pub version: String,
    /// SHA-256 of its file, hexadecimal.
    pub digest: String,
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
    /// SHA-256 of the settings in force, hexadecimal; `None` when there is no `NAME.toml`.
    pub settings_digest: Option<String>,
    /// Size of the file in force.
    pub bytes: Option<u64>,
    /// How long it took to compile, or to take from the cache.
    pub compile_ms: Option<u64>,
    /// Whether its code was compiled when it was loaded, or was in the cache.
    pub code: Option<CodeFrom>,
    /// The generation that this version came with.
    pub generation_since: Option<u64>,
    /// What this version changed against the one before it.
    pub changed: Option<Change>,
    /// The file.
    pub file: String,
    /// When the file was last changed, ms since the Unix epoch.
    pub file_modified_ms: Option<u64>,
    /// Why the newest file is not in force.
    pub refusal: Option<RefusalStatus>,
    /// Why the version in the file does not decide although it was loaded.
    pub put_aside: Option<PutAsideStatus>,
    /// Calls of this version.
    pub calls: u64,
    /// Faults of this version by kind; kinds that never happened are left out.
    pub faults: BTreeMap<&'static str, u64>,
}

impl PolicyStatus {
    /// With what the policy did up to now, while this generation decides.
    pub(crate) fn as_of_now(&mut self, policy: &Policy, generation: &Generation) {
        (self.calls, self.faults) = (policy.calls(), policy.faults());
        let Some(why) = policy.put_aside() else { return };
        let instead = generation.policy(&self.name).filter(|deciding| deciding.put_aside().is_none());
        // That its file is gone too is the fact of the two that somebody has to mend.
        if self.state == PolicyState::Loaded {
            self.state = PolicyState::PutAside;
        }
        self.put_aside = Some(PutAsideStatus {
            message: why.to_string(),
            why: why.clone(),
            instead: instead.map(|deciding| DecidesInstead {
                version: deciding.version().to_owned(),
                digest: deciding.digest().to_owned(),
            }),
        });
    }
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
    /// The line of each in the file that they were taken from.
    pub lines: Vec<usize>,
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
