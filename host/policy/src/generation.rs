//! The set of policies that decides for the requests of one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::workload::{self, Asked, Binding, DEFAULT_WORKLOAD};

use crate::policy::Policy;

/// All policies in force at one moment. A request takes one and keeps it for its whole life.
#[derive(Debug)]
pub struct Generation {
    /// Counts up from 1 with each swap.
    pub number: u64,
    default: String,
    policies: BTreeMap<String, Arc<Policy>>,
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
    pub(crate) fn new(
        number: u64,
        default: String,
        policies: BTreeMap<String, Arc<Policy>>,
        bindings: Arc<[Binding]>,
    ) -> Self {
        Self { number, default, policies, bindings }
    }

    pub(crate) fn by_name(&self) -> &BTreeMap<String, Arc<Policy>> {
        &self.policies
    }

    /// The policy of this name, which is its file's name without `.wasm`.
    pub fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        self.policies.get(name)
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

    /// Names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.policies.keys().map(String::as_str)
    }

    /// Policies, in the order of their names.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }
}
