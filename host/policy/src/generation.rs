//! The set of policies that decides for the requests of one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::policy::Policy;

/// All policies in force at one moment. A request takes one and keeps it for its whole life.
#[derive(Debug)]
pub struct Generation {
    /// Counts up from 1 with each swap.
    pub number: u64,
    default: String,
    policies: BTreeMap<String, Arc<Policy>>,
}

impl Generation {
    pub(crate) fn new(number: u64, default: String, policies: BTreeMap<String, Arc<Policy>>) -> Self {
        Self { number, default, policies }
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
