//! The policy host: one folder of policies, and the generation that decides now.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::cache::ComponentCache;
use crate::engine::PolicyEngine;
use crate::folder::{self, Contents, Found};
use crate::generation::Generation;
use crate::limits::{Limits, POLICIES_MAX};
use crate::load::load;
use crate::load_error::{LoadError, OpenError, Refusal};
use crate::observer::Observer;
use crate::policy::Policy;
use crate::records::{Record, Records};
use crate::status::{CacheStatus, PolicyState, PolicyStatus, RefusalStatus, ReloadOutcome};
use crate::superseded::Superseded;
use crate::watch::{self, Watcher};

/// Most readings of the folder for one generation. Files that change while others are read are read again, so that files
/// swapped together come into force together; a folder that never rests is not waited for.
const READINGS_MAX: usize = 3;

/// What a policy host is told.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Folder with `NAME.wasm` and, if a policy has settings, `NAME.toml`.
    pub folder: PathBuf,
    /// Name of the policy that decides where nothing else is bound.
    pub default: String,
    /// What each policy may use.
    pub limits: Limits,
    /// Where compiled policies are kept for the next start, in a folder that is this user's alone and made if it is
    /// not there; `None` compiles them at each start.
    pub cache_folder: Option<PathBuf>,
}

/// Holds the policies of one folder.
pub struct PolicyHost {
    config: HostConfig,
    engine: Arc<PolicyEngine>,
    observer: Arc<dyn Observer>,
    current: ArcSwap<Generation>,
    /// What people are told, as of the last look at the folder; for calls and faults it asks the policies.
    told: ArcSwap<Vec<Told>>,
    /// Held for as long as one look at the folder takes; never by a request.
    records: Mutex<State>,
}

struct State {
    records: Records<Policy>,
    superseded: Superseded,
    /// So that the same trouble with the folder is told once.
    folder_error: Option<String>,
}

/// What reading one policy's files came to.
enum FileRead {
    /// In force already, or refused for good.
    Known,
    /// To be loaded.
    New(Contents),
    /// Not even read.
    Refused(LoadError),
}

fn read(found: &Found, index: usize, records: &mut Records<Policy>) -> FileRead {
    if index >= POLICIES_MAX {
        return FileRead::Refused(LoadError { file: found.file.clone(), reason: Refusal::TooManyPolicies });
    }
    match folder::read(found) {
        Err(error) => FileRead::Refused(error),
        Ok(contents) if records.see(found, &contents.key) => FileRead::New(contents),
        Ok(_) => FileRead::Known,
    }
}

struct Told {
    status: PolicyStatus,
    policy: Option<Arc<Policy>>,
}

impl PolicyHost {
    /// Loads all policies of the folder. A bad file refuses itself; a bad folder refuses the start.
    pub fn open(config: HostConfig, observer: Arc<dyn Observer>) -> Result<Arc<Self>, OpenError> {
        folder::scan(&config.folder)?;
        let mut engine = PolicyEngine::new(&config.limits)
            .map_err(|error| OpenError::Runtime { detail: format!("{error:#}") })?;
        engine.cache = config
            .cache_folder
            .clone()
            .map(|folder| ComponentCache::new(folder, &engine.engine, &config.limits, Arc::clone(&observer)));
        let records = Records::new(config.default.clone());
        let nothing = Generation::new(0, config.default.clone(), records.policies());
        let host = Self {
            engine: Arc::new(engine),
            observer,
            current: ArcSwap::from_pointee(nothing),
            told: ArcSwap::default(),
            records: Mutex::new(State { records, superseded: Superseded::default(), folder_error: None }),
            config,
        };
        host.reload();
        Ok(Arc::new(host))
    }

    /// Follows the folder until the watcher is dropped.
    pub fn watch(self: &Arc<Self>) -> Result<Watcher, OpenError> {
        Watcher::start(Arc::clone(self), &self.config.folder, watch::POLL)
    }

    /// The policies in force. Take it once for a request.
    pub fn generation(&self) -> Arc<Generation> {
        self.current.load_full()
    }

    /// All policies, in the order of their names.
    pub fn status(&self) -> Vec<PolicyStatus> {
        let now = |told: &Told| {
            let (calls, faults) = told
                .policy
                .as_ref()
                .map_or_else(Default::default, |policy| (policy.calls(), policy.faults()));
            PolicyStatus { calls, faults, ..told.status.clone() }
        };
        self.told.load().iter().map(now).collect()
    }

    /// The cache of compiled policies, if there is one.
    pub fn cache_status(&self) -> Option<CacheStatus> {
        self.engine.cache.as_ref().map(ComponentCache::status)
    }

    /// Looks at the folder now. All that changed comes into force at once, as one generation.
    pub fn reload(&self) -> ReloadOutcome {
        let mut state = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = folder::fingerprint(&self.config.folder);
        let mut found = match self.scan() {
            Ok(found) => found,
            Err(error) => return self.folder_refused(&mut state, &error),
        };
        state.folder_error = None;
        let number = self.current.load().number + 1;
        let mut outcome = ReloadOutcome::default();
        let read = self.read_until_still(&mut found, seen, &mut state.records);
        let refused = self.load_new(&found, read, number, &mut state.records, &mut outcome);
        let mut set_changed = !outcome.loaded.is_empty() || number == 1;
        let removed = state.records.keep_only(&found);
        let in_force = self.current.load();
        set_changed |= removed.iter().any(|gone| !gone.kept && in_force.policy(&gone.name).is_some());
        drop(in_force);
        if set_changed {
            let policies = state.records.policies();
            let generation = Arc::new(Generation::new(number, self.config.default.clone(), policies));
            let old = self.current.swap(Arc::clone(&generation));
            state.superseded.swap(old.by_name(), generation.by_name());
        }
        self.told.store(Arc::new(self.tell(&state.records)));
        // Not before: whoever is told, and looks, sees what it was told.
        for (name, error) in refused {
            self.observer.refused(&name, &error, state.records.is_in_force(&name));
            outcome.refused.push((name, error.to_string()));
        }
        for gone in removed {
            self.observer.removed(&gone.name, gone.kept);
            outcome.removed.push(gone.name);
        }
        if set_changed {
            self.observer.swapped(&self.current.load());
        }
        if let Some(cache) = &self.engine.cache {
            cache.write_down();
        }
        outcome.swapped = set_changed;
        outcome.generation = self.current.load().number;
        outcome
    }

    fn scan(&self) -> Result<Vec<Found>, OpenError> {
        let mut found = folder::scan(&self.config.folder)?;
        // The one that decides comes first: neither the bound on their number nor another's compiling keeps it waiting.
        found.sort_by_key(|found| found.name != self.config.default);
        Ok(found)
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
        let generation = self.current.load().number;
        ReloadOutcome {
            generation,
            folder_error: Some(format!("{message}; {}", error.cure())),
            ..ReloadOutcome::default()
        }
    }

    /// Reads all files, and again if they changed meanwhile: in moments, before any is compiled. `found` is what was there
    /// at the last reading.
    fn read_until_still(
        &self,
        found: &mut Vec<Found>,
        mut seen: Option<Vec<folder::Fingerprint>>,
        records: &mut Records<Policy>,
    ) -> Vec<FileRead> {
        let mut readings_left = READINGS_MAX;
        loop {
            let read = found.iter().enumerate().map(|(index, found)| read(found, index, records)).collect();
            readings_left -= 1;
            let now = folder::fingerprint(&self.config.folder);
            if readings_left == 0 || now == seen {
                return read;
            }
            seen = now;
            // Gone since: what was there decides, and the next look says what became of the folder.
            let Ok(again) = self.scan() else { return read };
            *found = again;
        }
    }

    /// Loads what is new. Gives the refusals that are news.
    fn load_new(
        &self,
        found: &[Found],
        read: Vec<FileRead>,
        number: u64,
        records: &mut Records<Policy>,
        outcome: &mut ReloadOutcome,
    ) -> Vec<(String, LoadError)> {
        let mut news = Vec::new();
        for (found, read) in found.iter().zip(read) {
            let (key, result) = match read {
                FileRead::Known => continue,
                FileRead::Refused(error) => (None, Err(error)),
                FileRead::New(contents) => {
                    let loaded = load(found, &contents, &self.engine, &self.config.limits, &self.observer);
                    (Some(contents.key), loaded)
                }
            };
            match result {
                Ok(loaded) => {
                    self.observer.loaded(&loaded.policy);
                    records.accept(found, key.unwrap_or_default(), Arc::new(loaded.policy), number);
                    outcome.loaded.push(found.name.clone());
                }
                Err(error) => {
                    if records.refuse(found, key, error.clone()) {
                        news.push((found.name.clone(), error));
                    }
                }
            }
        }
        news
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
            status.code = Some(policy.code());
            status.generation_since = Some(in_force.since_generation);
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
        code: None,
        generation_since: None,
        file,
        file_modified_ms: None,
        refusal: None,
        calls: 0,
        faults: Default::default(),
    }
}
