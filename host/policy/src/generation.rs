//! The set of policies that decides for the requests of one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::workload::{self, Asked, Binding, DEFAULT_WORKLOAD};

use crate::policy::Policy;
use crate::succession::Succession;

/// All policies in force at one moment. A request takes one and keeps it for its whole life.
#[derive(Debug)]
pub struct Generation {
    /// Counts up from 1 with each swap.
    pub number: u64,
    default: String,
    /// All there are, those put aside among them.
    known: BTreeMap<String, Entry>,
    bindings: Arc<[Binding]>,
}

/// Where a request belongs, and who decides for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound<'a> {
    /// Name of the workload.
    pub workload: &'a str,
    /// Name of the policy, whether or not it is there.
    pub policy: &'a str,
    /// What the time to first token should be.
    pub ttft_target_ms: Option<u32>,
    /// What the time per output token should be.
    pub tpot_target_ms: Option<u32>,
}

/// Who stands under one name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Named<'a> {
    /// Who decides; `None` means the built-in default.
    pub deciding: Option<&'a Arc<Policy>>,
    /// The version of the file, if another decides in its place because it failed too often.
    pub put_aside: Option<&'a Arc<Policy>>,
}

/// The versions of one name, and which of them decided when the generation was made.
#[derive(Debug)]
struct Entry {
    succession: Succession<Policy>,
    deciding: Option<Arc<Policy>>,
}

impl Generation {
    /// The one before the first: no policy yet.
    pub(crate) fn nothing(default: String) -> Self {
        Self { number: 0, default, known: BTreeMap::new(), bindings: Arc::default() }
    }

    /// The one after this, when these are the versions of the files and these the bindings.
    pub(crate) fn then(&self, newest: BTreeMap<String, Arc<Policy>>, bindings: Arc<[Binding]>) -> Self {
        let follow = |(name, policy): (String, Arc<Policy>)| {
            let succession = match self.known.get(&name) {
                Some(before) => before.succession.then(policy),
                None => Succession::first(policy),
            };
            (name, Entry { deciding: succession.deciding().cloned(), succession })
        };
        let known = newest.into_iter().map(follow).collect();
        Self { number: self.number + 1, default: self.default.clone(), known, bindings }
    }

    /// The one after this, when nothing changed but which versions failed too often.
    pub(crate) fn judged_anew(&self) -> Self {
        let newest = |(name, entry): (&String, &Entry)| (name.clone(), Arc::clone(entry.succession.newest()));
        self.then(self.known.iter().map(newest).collect(), Arc::clone(&self.bindings))
    }

    /// Whether there is a version of this name, put aside or not.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Versions that are kept to take over.
    pub(crate) fn in_reserve(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.known.values().filter_map(|entry| entry.succession.in_reserve())
    }

    /// Who stands under this name: [`Self::policy`] and [`Self::put_aside`] in one.
    pub fn named(&self, name: &str) -> Named<'_> {
        let Some(Entry { succession, deciding }) = self.known.get(name) else { return Named::default() };
        let (newest, deciding) = (succession.newest(), deciding.as_ref());
        let decides_itself = deciding.is_some_and(|deciding| Arc::ptr_eq(deciding, newest));
        Named { deciding, put_aside: (!decides_itself).then_some(newest) }
    }

    /// The policy of this name, which is its file's name without `.wasm`. While the file's version is put aside, it is
    /// the last good one; `None` then means the built-in default.
    pub fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        self.named(name).deciding
    }

    /// The version of the file of this name, if another decides in its place because it failed too often.
    pub fn put_aside(&self, name: &str) -> Option<&Arc<Policy>> {
        self.named(name).put_aside
    }

    /// The policy that decides where no binding names another; `None` means the built-in default.
    pub fn default_policy(&self) -> Option<&Arc<Policy>> {
        self.policy(&self.default)
    }

    /// What the bindings are, in the order in which they are tried.
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// The place of the first binding that matches a request; `header_is` says whether a header has a value.
    pub fn binding(&self, asked: &Asked<'_>, header_is: impl Fn(&str, &str) -> bool) -> Option<usize> {
        workload::first(&self.bindings, asked, header_is)
    }

    /// Who decides for the requests of a binding, or of none.
    pub fn bound(&self, binding: Option<usize>) -> Bound<'_> {
        match binding.and_then(|place| self.bindings.get(place)) {
            Some(binding) => Bound {
                workload: &binding.workload,
                policy: &binding.policy,
                ttft_target_ms: binding.ttft_target_ms,
                tpot_target_ms: binding.tpot_target_ms,
            },
            None => Bound {
                workload: DEFAULT_WORKLOAD,
                policy: &self.default,
                ttft_target_ms: None,
                tpot_target_ms: None,
            },
        }
    }

    /// The configured name of the default policy, whether or not it is there.
    pub fn default_name(&self) -> &str {
        &self.default
    }

    /// Names of those that decide, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.policies().map(|policy| policy.name())
    }

    /// Policies that decide, in the order of their names.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.known.values().filter_map(|entry| entry.deciding.as_ref())
    }
}
