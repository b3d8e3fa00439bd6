//! Which versions a policy had before: for people who ask when something changed.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

/// Earlier versions remembered of each policy: a day of work on one.
const EARLIER_MAX: usize = 8;

/// A version that a newer one replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EarlierVersion {
    /// As it stated.
    pub version: String,
    /// SHA-256 of its file, hexadecimal. The same as the next one's where only settings changed.
    pub digest: String,
    /// The generation that it came with.
    pub since_generation: u64,
    /// The generation that replaced it.
    pub until_generation: u64,
}

/// All policies' versions. Those of policies that are gone are forgotten, so the folder's bound is this one's too.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<String, Versions>);

#[derive(Debug, Default)]
struct Versions {
    /// In force: version, digest, since when.
    now: Option<(String, String, u64)>,
    /// Newest first.
    earlier: VecDeque<EarlierVersion>,
}

impl History {
    /// A version comes into force with a generation.
    pub(crate) fn loaded(&mut self, name: &str, version: &str, digest: &str, generation: u64) {
        let versions = self.0.entry(name.to_owned()).or_default();
        if let Some((version, digest, since_generation)) = versions.now.take() {
            let until_generation = generation;
            versions.earlier.push_front(EarlierVersion {
                version,
                digest,
                since_generation,
                until_generation,
            });
            versions.earlier.truncate(EARLIER_MAX);
        }
        versions.now = Some((version.to_owned(), digest.to_owned(), generation));
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
            history.loaded("a", &format!("0.{generation}"), "d", generation);
        }
        let earlier = history.earlier("a");
        assert_eq!(earlier.len(), EARLIER_MAX);
        assert_eq!(earlier[0].version, format!("0.{}", count - 1));
        assert_eq!((earlier[0].since_generation, earlier[0].until_generation), (count - 1, count));
        history.forget("a");
        assert_eq!(history.earlier("a"), []);
    }
}
