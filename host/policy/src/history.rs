//! Which versions a policy had before: for people who ask when something changed.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::change::Change;
use crate::policy::Policy;

/// Earlier versions remembered of each policy: a day of work on one.
const EARLIER_MAX: usize = 8;

/// A version that a newer one replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EarlierVersion {
    /// As it stated.
    pub version: String,
    /// SHA-256 of its file, hexadecimal. The same as the next one's where only settings changed.
    pub digest: String,
    /// SHA-256 of its settings' file, hexadecimal; `None` when there was none.
    pub settings_digest: Option<String>,
    /// What it changed against the version before it.
    pub changed: Change,
    /// The generation that it came with.
    pub since_generation: u64,
    /// The generation that replaced it.
    pub until_generation: u64,
}

/// A version in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    version: String,
    digest: String,
    settings_digest: Option<String>,
    changed: Change,
    since_generation: u64,
}

impl Version {
    /// A version that came with this generation.
    pub(crate) fn of(policy: &Policy, changed: Change, since_generation: u64) -> Self {
        Self {
            version: policy.version().to_owned(),
            digest: policy.digest().to_owned(),
            settings_digest: policy.settings_digest().map(str::to_owned),
            changed,
            since_generation,
        }
    }

    fn until(self, until_generation: u64) -> EarlierVersion {
        let Self { version, digest, settings_digest, changed, since_generation } = self;
        EarlierVersion { version, digest, settings_digest, changed, since_generation, until_generation }
    }
}

/// All policies' versions. Those of policies that are gone are forgotten, so the folder's bound is this one's too.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<String, Versions>);

#[derive(Debug, Default)]
struct Versions {
    now: Option<Version>,
    /// Newest first.
    earlier: VecDeque<EarlierVersion>,
}

impl History {
    /// A version comes into force.
    pub(crate) fn loaded(&mut self, name: &str, version: Version) {
        let versions = self.0.entry(name.to_owned()).or_default();
        let until = version.since_generation;
        if let Some(before) = versions.now.replace(version) {
            versions.earlier.push_front(before.until(until));
            versions.earlier.truncate(EARLIER_MAX);
        }
    }

    /// What the version in force changed.
    pub(crate) fn change(&self, name: &str) -> Option<Change> {
        Some(self.0.get(name)?.now.as_ref()?.changed)
    }

    /// A policy is gone.
    pub(crate) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Newest first.
    pub(crate) fn earlier(&self, name: &str) -> Vec<EarlierVersion> {
        self.0.get(name).map(|versions| versions.earlier.iter().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_earlier_versions_are_remembered() {
        let mut history = History::default();
        assert_eq!(history.earlier("a"), []);
        let count = EARLIER_MAX as u64 + 3;
        for generation in 1..=count {
            let version = Version {
                version: format!("0.{generation}"),
                digest: "d".to_owned(),
                settings_digest: None,
                changed: if generation == count - 1 { Change::Settings } else { Change::Code },
                since_generation: generation,
            };
            history.loaded("a", version);
        }
        let earlier = history.earlier("a");
        assert_eq!(earlier.len(), EARLIER_MAX);
        assert_eq!(earlier[0].version, format!("0.{}", count - 1));
        assert_eq!((earlier[0].since_generation, earlier[0].until_generation), (count - 1, count));
        assert_eq!((earlier[0].changed, earlier[1].changed), (Change::Settings, Change::Code));
        assert_eq!(history.change("a"), Some(Change::Code));
        history.forget("a");
        assert_eq!(history.earlier("a"), []);
    }
}
