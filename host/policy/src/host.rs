//! The policy host: one folder of policies, and the generation that decides now.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::cache::ComponentCache;
use crate::change::Change;
use crate::compiler::Compiler;
use crate::engine::PolicyEngine;
use crate::folder::{self, Contents, Files, Found};
use crate::generation::Generation;
use crate::history::{History, Version};
use crate::in_force::InForce;
use crate::limits::Limits;
use crate::listing::{self, Told};
use crate::load::{Loaded, load};
use crate::load_error::{LoadError, OpenError};
use crate::observer::Observer;
use crate::policy::Policy;
use crate::reading::{self, FileRead, Scope};
use crate::records::Records;
use crate::status::{BindingsStatus, CacheStatus, PolicyDetail, PolicyStatus, ReloadOutcome};
use crate::watch::{self, Watcher};
use crate::workload_file::{self, Bindings};

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
    /// The program that compiles, in a process of its own and called as [`COMPILE_COMMAND`](crate::COMPILE_COMMAND):
    /// mostly the one that runs, as it was when it started. `None` compiles in this process, beside the requests.
    pub compiler: Option<PathBuf>,
}

/// Holds the policies of one folder.
pub struct PolicyHost {
    config: HostConfig,
    engine: Arc<PolicyEngine>,
    observer: Arc<dyn Observer>,
    in_force: Arc<InForce>,
    /// What people are told, as of the last look at the folder; for calls and faults it asks the policies.
    told: ArcSwap<Vec<Told>>,
    /// The same of the bindings: why newer ones are refused, and where those in force stand.
    bindings_told: ArcSwap<(Option<String>, Vec<usize>)>,
    /// The same of the folder itself.
    folder_told: ArcSwap<Option<String>>,
    /// Held for as long as one look at the folder takes; never by a request.
    records: Mutex<State>,
}

struct State {
    records: Records<Policy>,
    bindings: Bindings,
    history: History,
}

/// What came of the files that are new.
#[derive(Default)]
struct New {
    loaded: Vec<(String, Change)>,
    /// Those that are news.
    refused: Vec<(String, LoadError)>,
}

impl PolicyHost {
    /// Loads all policies of the folder. A bad file refuses itself; a bad folder refuses the start.
    pub fn open(config: HostConfig, observer: Arc<dyn Observer>) -> Result<Arc<Self>, OpenError> {
        folder::scan(&config.folder)?;
        let compiler = Compiler::new(config.compiler.clone(), Arc::clone(&observer));
        let mut engine = PolicyEngine::new(&config.limits, compiler)
            .map_err(|error| OpenError::Runtime { detail: format!("{error:#}") })?;
        engine.cache = config
            .cache_folder
            .clone()
            .map(|folder| ComponentCache::new(folder, &engine.engine, &config.limits, Arc::clone(&observer)));
        let records = Records::new(config.default.clone());
        let nothing = Generation::nothing(config.default.clone());
        let host = Self {
            engine: Arc::new(engine),
            in_force: Arc::new(InForce::new(nothing, Arc::clone(&observer))),
            observer,
            told: ArcSwap::default(),
            bindings_told: ArcSwap::default(),
            folder_told: ArcSwap::default(),
            records: Mutex::new(State {
                records,
                bindings: Bindings::default(),
                history: History::default(),
            }),
            config,
        };
        host.reload();
        // At the start nothing decides that could be kept from changing: the set begins whole.
        host.engine.compiler.hurry();
        Ok(Arc::new(host))
    }

    /// Follows the folder until the watcher is dropped.
    pub fn watch(self: &Arc<Self>) -> Result<Watcher, OpenError> {
        Watcher::start(Arc::clone(self), &self.config.folder, watch::POLL)
    }

    /// The policies in force. Take it once for a request.
    pub fn generation(&self) -> Arc<Generation> {
        self.in_force.load()
    }

    /// All policies, in the order of their names.
    pub fn status(&self) -> Vec<PolicyStatus> {
        let generation = self.generation();
        self.told.load().iter().map(|told| told.now(&generation)).collect()
    }

    /// All there is to tell of one policy.
    pub fn detail(&self, name: &str) -> Option<PolicyDetail> {
        let told = self.told.load();
        let told = told.iter().find(|told| told.status.name == name)?;
        let generation = self.generation();
        let bindings = generation.bindings().iter().filter(|binding| binding.policy == name);
        Some(PolicyDetail {
            status: told.now(&generation),
            settings: told.policy.as_ref().map(|policy| policy.settings()).unwrap_or_default(),
            instances: told.policy.as_ref().map_or(0, |policy| policy.instances()),
            bindings: bindings.cloned().collect(),
            earlier: told.earlier.clone(),
        })
    }

    /// Which workloads are bound to which policies.
    pub fn bindings(&self) -> BindingsStatus {
        let told = self.bindings_told.load();
        let (refusal, lines) = (told.0.clone(), told.1.clone());
        BindingsStatus {
            file: workload_file::file_in(&self.config.folder).display().to_string(),
            in_force: self.generation().bindings().to_vec(),
            lines,
            refusal,
        }
    }

    /// The cache of compiled policies, if there is one.
    pub fn cache_status(&self) -> Option<CacheStatus> {
        self.engine.cache.as_ref().map(ComponentCache::status)
    }

    /// Why the last policy was compiled in this process, if it should have been in one of its own.
    pub fn compiler_trouble(&self) -> Option<String> {
        self.engine.compiler.trouble()
    }

    /// Why the folder cannot be used, if it cannot: then everything stays as it is. The sentence for people.
    pub fn folder_refusal(&self) -> Option<String> {
        (**self.folder_told.load()).clone()
    }

    /// Looks at the folder now. All that changed comes into force at once, as one generation.
    pub fn reload(&self) -> ReloadOutcome {
        self.look(Scope::All)
    }

    /// Looks again at what may be taken although nothing changed.
    pub(crate) fn retry(&self) {
        self.look(Scope::Transient);
    }

    fn look(&self, scope: Scope) -> ReloadOutcome {
        let mut state = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = folder::fingerprint(&self.config.folder);
        let mut found = match folder::scan(&self.config.folder) {
            Ok(found) => found,
            Err(error) => return self.folder_refused(&error),
        };
        self.folder_told.store(Arc::default());
        let mut outcome = ReloadOutcome::default();
        let (read, rebound) = self.read_until_still(scope, &mut found, seen, &mut state);
        let New { loaded, mut refused } = self.load_new(&found.policies, read, &mut state.records);
        let removed = state.records.keep_only(&found.policies);
        let gone = || removed.iter().filter(|removed| !removed.kept);
        gone().for_each(|removed| state.history.forget(&removed.name));
        let set_changed = {
            let before = self.generation();
            let is_first = before.number == 0;
            let loses_one = gone().any(|removed| before.knows(&removed.name));
            !loaded.is_empty() || rebound || is_first || loses_one
        };
        if set_changed {
            self.swap(&mut state, &loaded);
        }
        outcome.loaded.extend(loaded.into_iter().map(|(name, _)| name));
        let told = Arc::new(self.tell(&state, &found));
        refused.extend(listing::new_settings_only(&self.told.swap(Arc::clone(&told)), &told, &found));
        let refusal = state.bindings.refused().map(ToString::to_string);
        self.bindings_told.store(Arc::new((refusal, state.bindings.lines().to_vec())));
        // Not before: whoever is told, and looks, sees what it was told.
        for (name, error) in refused {
            self.observer.refused(&name, &error, state.records.is_in_force(&name));
            outcome.refused.push((name, error.to_string()));
        }
        for removed in removed {
            self.observer.removed(&removed.name, removed.kept);
            outcome.removed.push(removed.name);
        }
        if set_changed {
            self.observer.swapped(&self.generation());
        }
        if let Some(cache) = &self.engine.cache {
            cache.write_down();
        }
        outcome.swapped = set_changed;
        outcome.generation = self.generation().number;
        outcome
    }

    /// Puts what was read in force, as one generation.
    fn swap(&self, state: &mut State, loaded: &[(String, Change)]) {
        let bindings = Arc::clone(state.bindings.in_force());
        let number = self.in_force.swap(state.records.policies(), bindings);
        state.records.swapped(number);
        for (name, change) in loaded {
            if let Some(policy) = state.records.in_force(name) {
                state.history.loaded(name, Version::of(policy, *change, number));
            }
        }
    }

    /// Whether a refused file may be taken although it does not change.
    pub(crate) fn wants_retry(&self) -> bool {
        let state = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        state.records.wants_retry() || state.bindings.wants_retry()
    }

    /// Takes new bindings, if there are some that can be used. Says whether others are in force.
    fn look_at_bindings(&self, state: &mut State) -> bool {
        let looked = state.bindings.look(&self.config.folder);
        if let Some(error) = looked.refused {
            self.observer.bindings_refused(&error);
        }
        state.records.bind(state.bindings.in_force().iter().map(|binding| binding.policy.clone()));
        looked.changed
    }

    /// The folder's trouble is not the policies': all stay in force. It may be in the middle of being replaced.
    fn folder_refused(&self, error: &OpenError) -> ReloadOutcome {
        let told = format!("{error}; {}", error.cure());
        let before = self.folder_told.swap(Arc::new(Some(told.clone())));
        if before.as_ref().as_ref() != Some(&told) {
            self.observer.folder_refused(error);
        }
        let generation = self.generation().number;
        ReloadOutcome { generation, folder_error: Some(told), ..ReloadOutcome::default() }
    }

    /// Reads all files, and again if they changed meanwhile: in moments, before any is compiled. `found` is what was there
    /// at the last reading.
    fn read_until_still(
        &self,
        mut scope: Scope,
        found: &mut Files,
        mut seen: Option<Vec<folder::Fingerprint>>,
        state: &mut State,
    ) -> (Vec<FileRead>, bool) {
        let (mut readings_left, mut rebound) = (READINGS_MAX, false);
        loop {
            rebound |= self.look_at_bindings(state);
            // Those that decide come first: neither the bound on their number nor another's compiling keeps them waiting.
            found.policies.sort_by_key(|found| state.records.rank(&found.name));
            let read = reading::files(scope, &found.policies, &mut state.records);
            readings_left -= 1;
            let now = folder::fingerprint(&self.config.folder);
            if readings_left == 0 || now == seen {
                return (read, rebound);
            }
            seen = now;
            // Gone since: what was there decides, and the next look says what became of the folder.
            let Ok(again) = folder::scan(&self.config.folder) else { return (read, rebound) };
            (*found, scope) = (again, Scope::All);
        }
    }

    fn load(&self, found: &Found, contents: &Contents) -> (Option<String>, Result<Loaded, LoadError>) {
        let loaded = load(found, contents, &self.engine, &self.config.limits, &self.observer);
        (Some(contents.key.clone()), loaded)
    }

    /// Loads what is new.
    fn load_new(&self, found: &[Found], read: Vec<FileRead>, records: &mut Records<Policy>) -> New {
        let mut new = New::default();
        self.engine.compiler.look();
        for (found, read) in found.iter().zip(read) {
            if records.rank(&found.name) == usize::MAX {
                // Who decides is waited for at the start, however long compiling takes; nobody else is.
                self.engine.compiler.hurry();
            }
            let (key, result) = match read {
                FileRead::Known => continue,
                FileRead::Refused(error) => (error.reason.told_by_head(), Err(error)),
                FileRead::New(contents) => self.load(found, &contents),
                FileRead::NewAndLarge => match folder::read(found) {
                    Ok(contents) => self.load(found, &contents),
                    Err(error) => (None, Err(error)),
                },
            };
            match result {
                Ok(loaded) => {
                    let before = records.in_force(&found.name).map(|policy| policy.source());
                    let change = Change::between(before, loaded.policy.source());
                    self.observer.loaded(&loaded.policy, change);
                    loaded.policy.answer_to(Arc::downgrade(&self.in_force));
                    records.accept(found, key.unwrap_or_default(), Arc::new(loaded.policy));
                    new.loaded.push((found.name.clone(), change));
                }
                Err(error) => {
                    if records.refuse(found, key, error.clone()) {
                        new.refused.push((found.name.clone(), error));
                    }
                }
            }
        }
        self.engine.compiler.looked();
        new
    }

    fn tell(&self, state: &State, found: &Files) -> Vec<Told> {
        let State { records, bindings, history } = state;
        listing::tell(&self.config, records, bindings.in_force(), history, &found.settings_only)
    }
}
