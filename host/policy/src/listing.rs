//! What people are told of all policies, as of one look at the folder.

use std::sync::Arc;

use sluice_core::workload::Binding;

use crate::folder::{BUILTIN, Files, SettingsOnly};
use crate::generation::Generation;
use crate::history::{EarlierVersion, History};
use crate::host::HostConfig;
use crate::load_error::LoadError;
use crate::policy::Policy;
use crate::records::{Record, Records};
use crate::status::{PolicyState, PolicyStatus, RefusalStatus};

/// One policy; for calls and faults it asks the policy itself.
pub(crate) struct Told {
    pub(crate) status: PolicyStatus,
    pub(crate) policy: Option<Arc<Policy>>,
    pub(crate) earlier: Vec<EarlierVersion>,
}

impl Told {
    /// With what the policy did up to now, while this generation decides.
    pub(crate) fn now(&self, generation: &Generation) -> PolicyStatus {
        let mut status = self.status.clone();
        if let Some(policy) = &self.policy {
            status.as_of_now(policy, generation);
        }
        status
    }

    fn without_policy(status: PolicyStatus) -> Self {
        Self { status, policy: None, earlier: Vec::new() }
    }
}

/// All there is to tell, in the order of the names.
pub(crate) fn tell(
    config: &HostConfig,
    records: &Records<Policy>,
    bindings: &[Binding],
    history: &History,
    settings_only: &[SettingsOnly],
) -> Vec<Told> {
    let blank = |name: &str, state, file| blank(name, *name == config.default, state, file);
    let mut told: Vec<_> = records
        .iter()
        .map(|(name, record)| one(blank(name, state_of(record), shown(&record.file)), record, history))
        .collect();
    for only in settings_only {
        // Of one that is bound it is told that it is missing, which is worse; the built-in one never is.
        let is_bound = only.name != BUILTIN && records.bound().any(|bound| bound == only.name);
        if is_bound || told.iter().any(|told| told.status.name == only.name) {
            continue;
        }
        let mut status = blank(&only.name, PolicyState::SettingsOnly, shown(&only.file));
        status.refusal = Some(refusal_of(&only.refusal()));
        told.push(Told::without_policy(status));
    }
    for name in records.bound().filter(|name| !name.is_empty()) {
        if !told.iter().any(|told| told.status.name == *name) {
            let file = shown(&config.folder.join(format!("{name}.wasm")));
            told.push(Told::without_policy(blank(name, PolicyState::Missing, file)));
        }
    }
    told.sort_by(|a, b| a.status.name.cmp(&b.status.name));
    for told in &mut told {
        let bound = bindings.iter().filter(|binding| binding.policy == told.status.name);
        told.status.workloads = bound.map(|binding| binding.workload.clone()).collect();
    }
    told
}

/// Settings without a policy that were not told of before.
pub(crate) fn new_settings_only(before: &[Told], now: &[Told], found: &Files) -> Vec<(String, LoadError)> {
    let is_told = |told: &[Told], name: &str| {
        told.iter().any(|told| told.status.name == name && told.status.state == PolicyState::SettingsOnly)
    };
    let new = |only: &&SettingsOnly| is_told(now, &only.name) && !is_told(before, &only.name);
    found.settings_only.iter().filter(new).map(|only| (only.name.clone(), only.refusal())).collect()
}

fn shown(file: &std::path::Path) -> String {
    file.display().to_string()
}

fn state_of(record: &Record<Policy>) -> PolicyState {
    match &record.in_force {
        None => PolicyState::Refused,
        Some(_) if record.kept => PolicyState::RemovedButBound,
        Some(_) => PolicyState::Loaded,
    }
}

fn refusal_of(error: &LoadError) -> RefusalStatus {
    RefusalStatus { kind: error.reason.kind(), message: error.to_string() }
}

fn one(mut status: PolicyStatus, record: &Record<Policy>, history: &History) -> Told {
    status.file_modified_ms = record.modified_ms;
    status.refusal = record.refused.as_ref().map(|refused| refusal_of(&refused.error));
    if let Some(in_force) = &record.in_force {
        let policy = &in_force.policy;
        status.module = Some(policy.description().name.clone());
        status.version = Some(policy.version().to_owned());
        status.about = Some(policy.description().about.clone());
        status.digest = Some(policy.digest().to_owned());
        status.settings_digest = policy.settings_digest().map(str::to_owned);
        status.bytes = Some(policy.bytes());
        status.compile_ms = Some(policy.compile_ms());
        status.code = Some(policy.code());
        status.generation_since = in_force.since_generation;
        status.changed = history.change(&status.name);
    }
    let policy = record.in_force.as_ref().map(|in_force| Arc::clone(&in_force.policy));
    let earlier = history.earlier(&status.name);
    Told { status, policy, earlier }
}

fn blank(name: &str, is_default: bool, state: PolicyState, file: String) -> PolicyStatus {
    PolicyStatus {
        name: name.to_owned(),
        state,
        is_default,
        workloads: Vec::new(),
        module: None,
        version: None,
        about: None,
        digest: None,
        settings_digest: None,
        bytes: None,
        compile_ms: None,
        code: None,
        generation_since: None,
        changed: None,
        file,
        file_modified_ms: None,
        refusal: None,
        put_aside: None,
        calls: 0,
        faults: Default::default(),
    }
}
