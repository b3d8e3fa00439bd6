//! The policy host: one folder of policies, and the generation that decides now.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::engine::PolicyEngine;
use crate::folder::{self, Found};
use crate::generation::Generation;
use crate::in_force::InForce;
use crate::limits::{Limits, POLICIES_MAX};
use crate::load::load;
use crate::load_error::{LoadError, OpenError, Refusal};
use crate::observer::Observer;
use crate::policy::Policy;
use crate::records::{Record, Records};
use crate::status::{PolicyState, PolicyStatus, RefusalStatus, ReloadOutcome};
use crate::watch::Watcher;

/// What a policy host is told.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Folder with `NAME.wasm` and, if a policy has settings, `NAME.toml`.
    pub folder: PathBuf,
    /// Name of the policy that decides where nothing else is bound.
    pub default: String,
    /// What each policy may use.
    pub limits: Limits,
}

/// Holds the policies of one folder.
pub struct PolicyHost {
    config: HostConfig,
    engine: Arc<PolicyEngine>,
    observer: Arc<dyn Observer>,
    in_force: Arc<InForce>,
    /// What people are told, as of the last look at the folder; for calls and faults it asks the policies.
    told: ArcSwap<Vec<Told>>,
    /// Held for as long as one look at the folder takes; never by a request.
    records: Mutex<State>,
}

struct State {
    records: Records<Policy>,
    /// So that the same trouble with the folder is told once.
    folder_error: Option<String>,
}

struct Told {
    status: PolicyStatus,
    policy: Option<Arc<Policy>>,
}

impl PolicyHost {
    /// Loads all policies of the folder. A bad file refuses itself; a bad folder refuses the start.
    pub fn open(config: HostConfig, observer: Arc<dyn Observer>) -> Result<Arc<Self>, OpenError> {
        folder::scan(&config.folder)?;
        let engine = PolicyEngine::new(&config.limits)
            .map_err(|error| OpenError::Runtime { detail: format!("{error:#}") })?;
        let records = Records::new(config.default.clone());
        let nothing = Generation::nothing(config.default.clone());
        let host = Self {
            engine: Arc::new(engine),
            in_force: Arc::new(InForce::new(nothing, Arc::clone(&observer))),
            observer,
            told: ArcSwap::default(),
            records: Mutex::new(State { records, folder_error: None }),
            config,
        };
        host.reload();
        // At the start nothing decides that could be kept from changing: the set begins whole.
        host.engine.compiler.hurry();
        Ok(Arc::new(host))
    }

    /// Follows the folder until the watcher is dropped.
    pub fn watch(self: &Arc<Self>) -> Result<Watcher, OpenError> {
        Watcher::start(Arc::clone(self), self.config.folder.clone())
    }

    /// The policies in force. Take it once for a request.
    pub fn generation(&self) -> Arc<Generation> {
        self.in_force.load()
    }

    /// All policies, in the order of their names.
    pub fn status(&self) -> Vec<PolicyStatus> {
        let generation = self.generation();
        let now = |told: &Told| {
            let mut status = told.status.clone();
            if let Some(policy) = &told.policy {
                status.as_of_now(policy, &generation);
            }
            status
        };
        self.told.load().iter().map(now).collect()
    }

    /// Looks at the folder now. All that changed comes into force at once, as one generation.
    pub fn reload(&self) -> ReloadOutcome {
        let mut state = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = match folder::scan(&self.config.folder) {
            Ok(found) => found,
            Err(error) => return self.folder_refused(&mut state, &error),
        };
        // The one that decides comes first: neither the bound on their number nor another's compiling keeps it waiting.
        found.sort_by_key(|found| found.name != self.config.default);
        state.folder_error = None;
        let before = self.generation();
        let mut outcome = ReloadOutcome::default();
        for (index, found) in found.iter().enumerate() {
            self.look_at(found, index, &mut state.records, &mut outcome);
        }
        let mut set_changed = !outcome.loaded.is_empty() || before.number == 0;
        for removed in state.records.keep_only(&found) {
            set_changed |= before.knows(&removed.name) && !removed.kept;
            self.observer.removed(&removed.name, removed.kept);
            outcome.removed.push(removed.name);
        }
        if set_changed {
            let number = self.in_force.swap(state.records.policies());
            state.records.swapped(number);
        }
        self.told.store(Arc::new(self.tell(&state.records)));
        outcome.swapped = set_changed;
        outcome.generation = self.generation().number;
        outcome
    }

    /// Whether a refused file may be taken although it does not change.
    pub(crate) fn wants_retry(&self) -> bool {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).records.wants_retry()
    }

    /// The folder's trouble is not the policies': all stay in force. It may be in the middle of being replaced.
    fn folder_refused(&self, state: &mut State, error: &OpenError) -> ReloadOutcome {
        let message = error.to_string();
        if state.folder_error.as_ref() != Some(&message) {
            self.observer.folder_refused(error);
            state.folder_error = Some(message.clone());
        }
        let generation = self.generation().number;
        ReloadOutcome {
            generation,
            folder_error: Some(format!("{message}; {}", error.cure())),
            ..ReloadOutcome::default()
        }
    }

    fn look_at(
        &self,
        found: &Found,
        index: usize,
        records: &mut Records<Policy>,
        outcome: &mut ReloadOutcome,
    ) {
        let contents = if index < POLICIES_MAX {
            folder::read(found)
        } else {
            Err(LoadError { file: found.file.clone(), reason: Refusal::TooManyPolicies })
        };
        let (key, result) = match contents {
            Err(error) => (None, Err(error)),
            Ok(contents) if !records.see(found, &contents.key) => return,
            Ok(contents) => {
                let loaded = load(found, &contents, &self.engine, &self.config.limits, &self.observer);
                (Some(contents.key), loaded)
            }
        };
        match result {
            Ok(loaded) => {
                self.observer.loaded(&loaded.policy);
                loaded.policy.answer_to(Arc::downgrade(&self.in_force));
                records.accept(found, key.unwrap_or_default(), Arc::new(loaded.policy));
                outcome.loaded.push(found.name.clone());
            }
            Err(error) => {
                let message = error.to_string();
                if records.refuse(found, key, error.clone()) {
                    self.observer.refused(&found.name, &error, records.is_in_force(&found.name));
                    outcome.refused.push((found.name.clone(), message));
                }
            }
        }
    }

    fn tell(&self, records: &Records<Policy>) -> Vec<Told> {
        let mut told: Vec<_> = records.iter().map(|(name, record)| self.tell_one(name, record)).collect();
        let default = &self.config.default;
        if !default.is_empty() && !told.iter().any(|told| told.status.name == *default) {
            let file = self.config.folder.join(format!("{default}.wasm"));
            let status = blank(default, true, PolicyState::Missing, file.display().to_string());
            told.push(Told { status, policy: None });
            told.sort_by(|a, b| a.status.name.cmp(&b.status.name));
        }
        told
    }

    fn tell_one(&self, name: &str, record: &Record<Policy>) -> Told {
        let state = match &record.in_force {
            None => PolicyState::Refused,
            Some(_) if record.kept => PolicyState::RemovedButBound,
            Some(_) => PolicyState::Loaded,
        };
        let mut status = blank(name, name == self.config.default, state, record.file.display().to_string());
        status.file_modified_ms = record.modified_ms;
        status.refusal = record.refused.as_ref().map(|refused| RefusalStatus {
            kind: refused.error.reason.kind(),
            message: refused.error.to_string(),
        });
        if let Some(in_force) = &record.in_force {
            let policy = &in_force.policy;
            status.module = Some(policy.description().name.clone());
            status.version = Some(policy.version().to_owned());
            status.about = Some(policy.description().about.clone());
            status.digest = Some(policy.digest().to_owned());
            status.bytes = Some(policy.bytes());
            status.compile_ms = Some(policy.compile_ms());
            status.generation_since = in_force.since_generation;
        }
        Told { status, policy: record.in_force.as_ref().map(|in_force| Arc::clone(&in_force.policy)) }
    }
}

fn blank(name: &str, is_default: bool, state: PolicyState, file: String) -> PolicyStatus {
    PolicyStatus {
        name: name.to_owned(),
        state,
        is_default,
        module: None,
        version: None,
        about: None,
        digest: None,
        bytes: None,
        compile_ms: None,
        generation_since: None,
        file,
        file_modified_ms: None,
        refusal: None,
        put_aside: None,
        calls: 0,
        faults: Default::default(),
    }
}
