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
    /// Those that decide.
    policies: BTreeMap<String, Arc<Policy>>,
    /// All there are, those put aside among them.
    known: BTreeMap<String, Succession<Policy>>,
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

impl Generation {
    /// The one before the first: no policy yet.
    pub(crate) fn nothing(default: String) -> Self {
        let (policies, known) = (BTreeMap::new(), BTreeMap::new());
        Self { number: 0, default, policies, known, bindings: Arc::default() }
    }

    /// The one after this, when these are the versions of the files and these the bindings.
    pub(crate) fn then(&self, newest: BTreeMap<String, Arc<Policy>>, bindings: Arc<[Binding]>) -> Self {
        let follow = |(name, policy): (String, Arc<Policy>)| {
            let succession = match self.known.get(&name) {
                Some(before) => before.then(policy),
                None => Succession::first(policy),
            };
            (name, succession)
        };
        let known: BTreeMap<_, _> = newest.into_iter().map(follow).collect();
        let deciding = |(name, succession): (&String, &Succession<Policy>)| {
            succession.deciding().map(|policy| (name.clone(), Arc::clone(policy)))
        };
        Self {
            number: self.number + 1,
            default: self.default.clone(),
            policies: known.iter().filter_map(deciding).collect(),
            known,
            bindings,
        }
    }

    /// The one after this, when nothing changed but which versions failed too often.
    pub(crate) fn judged_anew(&self) -> Self {
        let newest = |(name, succession): (&String, &Succession<Policy>)| {
            (name.clone(), Arc::clone(succession.newest()))
        };
        self.then(self.known.iter().map(newest).collect(), Arc::clone(&self.bindings))
    }

    /// Whether there is a version of this name, put aside or not.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    pub(crate) fn by_name(&self) -> &BTreeMap<String, Arc<Policy>> {
        &self.policies
    }

    /// Versions that are kept to take over.
    pub(crate) fn in_reserve(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.known.values().filter_map(Succession::in_reserve)
    }

    /// The policy of this name, which is its file's name without `.wasm`. While the file's version is put aside, it is
    /// the last good one; `None` then means the built-in default.
    pub fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        self.policies.get(name)
    }

    /// The version of the file of this name, if another decides in its place because it failed too often.
    pub fn put_aside(&self, name: &str) -> Option<&Arc<Policy>> {
        let newest = self.known.get(name)?.newest();
        self.policies.get(name).is_none_or(|deciding| !Arc::ptr_eq(deciding, newest)).then_some(newest)
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
        self.policies.keys().map(String::as_str)
    }

    /// Policies that decide, in the order of their names.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }
}
