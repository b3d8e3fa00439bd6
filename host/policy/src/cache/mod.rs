//! Compiled policies, kept from one start of the host to the next.
//!
//! Loading compiled code is running it: there is no check of machine code as there is of WASM. So an entry is
//! taken only from a folder that is this user's alone, from a file that only this user can have written, and only
//! if it is whole and was stored under its name, which says what was compiled (the digest of the policy's file) and
//! by what (the engine's version and settings, and what this host does between file and compiler).
//!
//! No trouble with the cache keeps a policy from being loaded: it is compiled instead, and the trouble is told.

mod compiled_by;
mod entry;
mod private_folder;
mod room;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::clock;
use crate::limits::Limits;
use crate::observer::Observer;
use crate::shown::shown_path;
use crate::status::CacheStatus;
use crate::trusted_code;
use private_folder::{PrivateFolder, Trouble};
use room::Lying;

/// Largest entry, bytes: a few times the largest policy file.
const ENTRY_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Entries end in this.
const EXTENSION: &str = ".cwasm";
/// Files that are still being written begin with this.
const STAGED: &str = ".new-";

/// What came of asking the cache, or of giving something to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheUse {
    /// The code was there.
    Hit,
    /// It was not, and is compiled.
    Miss,
    /// What lies there is not to be trusted or not whole; the policy is compiled instead.
    Refused {
        /// The sentence for people.
        why: String,
    },
    /// The file system does not let the cache work; the policy is compiled instead.
    Failed {
        /// The sentence for people.
        why: String,
    },
}

/// Names of all of them, in the order of [`CacheUse::index`].
pub const CACHE_USES: [&str; 4] = ["hit", "miss", "refused", "failed"];

impl CacheUse {
    /// Place in [`CACHE_USES`].
    pub fn index(&self) -> usize {
        match self {
            Self::Hit => 0,
            Self::Miss => 1,
            Self::Refused { .. } => 2,
            Self::Failed { .. } => 3,
        }
    }

    /// A short name for counting.
    pub fn name(&self) -> &'static str {
        CACHE_USES[self.index()]
    }
}

/// The cache of one host.
pub(crate) struct ComponentCache {
    folder: PathBuf,
    /// Hexadecimal digest of all that decides what compiled code looks like, but for the policy's file.
    compiled_by: String,
    observer: Arc<dyn Observer>,
    counts: [AtomicU64; CACHE_USES.len()],
    last_trouble: Mutex<Option<String>>,
    /// What passed its trial and is yet to be written.
    pending: Mutex<Vec<(String, Component)>>,
}

impl ComponentCache {
    pub(crate) fn new(
        folder: PathBuf,
        engine: &Engine,
        limits: &Limits,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            folder,
            compiled_by: compiled_by::digest(engine, limits),
            observer,
            counts: Default::default(),
            last_trouble: Mutex::default(),
            pending: Mutex::default(),
        }
    }

    /// The compiled code of the policy file with this digest, which is told; or why it is to be compiled, for the caller to
    /// tell when it is.
    pub(crate) fn find(&self, digest: &str, engine: &Engine) -> Result<Component, CacheUse> {
        let name = self.entry_name(digest);
        let found = PrivateFolder::open(&self.folder)
            .map_err(|trouble| (self.folder.clone(), trouble))
            .and_then(|folder| {
                let at_fault = |trouble| (self.folder.join(&name), trouble);
                let bytes = folder.read(&name, ENTRY_BYTES_MAX).map_err(at_fault)?;
                component(&name, &bytes, engine).map_err(at_fault)
            });
        match found {
            Ok(component) => {
                self.tell(CacheUse::Hit);
                Ok(component)
            }
            Err((path, trouble)) => Err(used(&path, trouble)),
        }
    }

    /// Notes code to be written at the next [`ComponentCache::write_down`].
    pub(crate) fn keep(&self, digest: &str, component: &Component) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.push((self.entry_name(digest), component.clone()));
    }

    /// Writes what was noted, and removes what is one too many. Called once what was loaded is in force: no swap waits
    /// for a disk.
    pub(crate) fn write_down(&self) {
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        if pending.is_empty() {
            return;
        }
        let folder = match PrivateFolder::make(&self.folder) {
            Ok(folder) => folder,
            Err(trouble) => return self.tell(used(&self.folder, trouble)),
        };
        // Each on its own: one that cannot be written does not keep out the others.
        for (name, component) in &pending {
            if let Err(trouble) = write(&folder, name, component) {
                self.tell(used(&self.folder.join(name), trouble));
            }
        }
        if let Err(trouble) = self.make_room(&folder) {
            self.tell(used(&self.folder, trouble));
        }
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let count = |index: usize| self.counts[index].load(Ordering::Relaxed);
        CacheStatus {
            folder: self.folder.display().to_string(),
            hits: count(0),
            misses: count(1),
            refused: count(2),
            failed: count(3),
            last_trouble: self.last_trouble.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn entry_name(&self, digest: &str) -> String {
        format!("{}-{digest}{EXTENSION}", self.compiled_by)
    }

    fn make_room(&self, folder: &PrivateFolder) -> Result<(), Trouble> {
        // What is not ours by its name is left alone: it may be somebody's who named the wrong folder.
        let lying = folder
            .list()?
            .into_iter()
            .filter(|file| file.name.ends_with(EXTENSION) || file.name.starts_with(STAGED))
            .map(|file| Lying {
                ours: file.name.starts_with(&self.compiled_by),
                name: file.name,
                bytes: file.bytes,
                used_s: file.modified_s,
            })
            .collect();
        room::to_remove(lying, clock::epoch_s()).iter().try_for_each(|name| match folder.remove(name) {
            // Another host that shares the folder was faster.
            Ok(()) | Err(Trouble::Missing) => Ok(()),
            failed => failed,
        })
    }

    pub(crate) fn tell(&self, used: CacheUse) {
        self.counts[used.index()].fetch_add(1, Ordering::Relaxed);
        if let CacheUse::Refused { why } | CacheUse::Failed { why } = &used {
            *self.last_trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
        }
        self.observer.cache(&used);
    }
}

fn used(path: &Path, trouble: Trouble) -> CacheUse {
    let sentence = |detail| format!("{} {detail}", shown_path(path));
    match trouble {
        Trouble::Missing => CacheUse::Miss,
        Trouble::Refused(detail) => CacheUse::Refused { why: sentence(detail) },
        Trouble::Failed(detail) => CacheUse::Failed { why: format!("{}: {detail}", shown_path(path)) },
    }
}

fn write(folder: &PrivateFolder, name: &str, component: &Component) -> Result<(), Trouble> {
    let code = component.serialize().map_err(|error| Trouble::Failed(format!("{error:#}")))?;
    if code.len() as u64 > ENTRY_BYTES_MAX - entry::HEADER_BYTES as u64 {
        // It would be refused when it is read.
        return Ok(());
    }
    let staged = format!("{STAGED}{}-{}", std::process::id(), clock::monotonic().as_nanos());
    folder.write(name, &staged, &[&entry::header(name, &code), &code])
}

fn component(name: &str, bytes: &[u8], engine: &Engine) -> Result<Component, Trouble> {
    let whole = entry::open(name, bytes)
        .ok_or_else(|| Trouble::Refused("is not what was stored there".to_owned()))?;
    trusted_code::component(whole, engine)
        .map_err(|error| Trouble::Refused(format!("is not this engine's: {error:#}")))
}
