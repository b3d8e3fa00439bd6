//! The generation in force, and the two that replace it: a look at the folder, and a policy that is put aside.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sluice_core::workload::Binding;

use crate::generation::Generation;
use crate::observer::Observer;
use crate::policy::Policy;
use crate::superseded::Superseded;

/// What decides now.
pub(crate) struct InForce {
    current: ArcSwap<Generation>,
    /// Held while the next generation is made from the one in force, which takes microseconds: a request may wait for
    /// it when it puts a policy aside. Never held while a file is read or compiled.
    swapping: Mutex<Superseded>,
    observer: Arc<dyn Observer>,
}

impl InForce {
    pub(crate) fn new(nothing: Generation, observer: Arc<dyn Observer>) -> Self {
        Self { current: ArcSwap::from_pointee(nothing), swapping: Mutex::default(), observer }
    }

    pub(crate) fn load(&self) -> Arc<Generation> {
        self.current.load_full()
    }

    /// Puts these versions and bindings in force, but those versions that are put aside. Answers with the generation's
    /// number; the observer is for the caller to tell.
    pub(crate) fn swap(&self, newest: BTreeMap<String, Arc<Policy>>, bindings: Arc<[Binding]>) -> u64 {
        let mut superseded = self.swapping.lock().unwrap_or_else(PoisonError::into_inner);
        self.replace(|old| old.then(newest, bindings), &mut superseded).number
    }

    /// Has the last good version decide in this one's place, or else the built-in default. The observer is told once of
    /// each version that is put aside, though a look at the folder may have left it out already, or a newer one decide.
    pub(crate) fn put_aside(&self, policy: &Policy) {
        let name = policy.name();
        let mut superseded = self.swapping.lock().unwrap_or_else(PoisonError::into_inner);
        let decides = |other: &Arc<Policy>| std::ptr::eq(Arc::as_ptr(other), policy);
        let replaces = self.load().policy(name).is_some_and(decides);
        if replaces {
            self.replace(Generation::judged_anew, &mut superseded);
        }
        drop(superseded);
        let generation = self.load();
        if let Some(why) = policy.put_aside() {
            self.observer.put_aside(policy, why, generation.policy(name).map(Arc::as_ref));
        }
        if replaces {
            self.observer.swapped(&generation);
        }
    }

    fn replace(
        &self,
        next: impl FnOnce(&Generation) -> Generation,
        superseded: &mut Superseded,
    ) -> Arc<Generation> {
        let old = self.load();
        let generation = Arc::new(next(&old));
        // Before it decides: a last good version that comes back keeps instances again.
        generation.policies().for_each(|policy| policy.resume());
        self.current.store(Arc::clone(&generation));
        superseded.swap(&old, &generation);
        generation
    }
}
