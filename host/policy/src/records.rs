//! What is known of each policy's file: the version in force, and why a newer one is not.
//!
//! Pure bookkeeping, generic in the policy so that it can be tested without compiling any.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use crate::folder::Found;
use crate::load_error::{LoadError, Refusal};

/// The version that decides.
#[derive(Debug)]
pub(crate) struct InForce<P> {
    pub(crate) policy: Arc<P>,
    /// Of the files it was made from.
    pub(crate) key: String,
    /// Once it is part of one.
    pub(crate) since_generation: Option<u64>,
}

/// The newest files, when they did not become a policy.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    /// `None` when the files could not even be read.
    key: Option<String>,
    pub(crate) error: LoadError,
}

impl Refused {
    fn is_transient(&self) -> bool {
        self.error.reason.is_transient()
    }
}

/// One policy.
#[derive(Debug)]
pub(crate) struct Record<P> {
    pub(crate) file: PathBuf,
    pub(crate) modified_ms: Option<u64>,
    pub(crate) in_force: Option<InForce<P>>,
    pub(crate) refused: Option<Refused>,
    /// The file is gone, and the policy is kept because it is bound.
    pub(crate) kept: bool,
}

/// A file that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) name: String,
    /// It goes on deciding.
    pub(crate) kept: bool,
}

/// All policies by name.
#[derive(Debug)]
pub(crate) struct Records<P> {
    default: String,
    /// Names that workloads are bound to, beside the default.
    bound: BTreeSet<String>,
    by_name: BTreeMap<String, Record<P>>,
}

impl<P> Records<P> {
    pub(crate) fn new(default: String) -> Self {
        Self { default, bound: BTreeSet::new(), by_name: BTreeMap::new() }
    }

    /// Workloads are bound to these policies from now on.
    pub(crate) fn bind(&mut self, names: impl Iterator<Item = String>) {
        self.bound = names.collect();
    }

    /// The policies that decide for somebody, whether or not they are there: the default first.
    pub(crate) fn bound(&self) -> impl Iterator<Item = &str> {
        let others = self.bound.iter().filter(|name| **name != self.default);
        std::iter::once(&self.default).chain(others).map(String::as_str)
    }

    /// How soon a policy's file is to be looked at: the default's first, then those that are bound.
    pub(crate) fn rank(&self, name: &str) -> usize {
        self.bound().position(|bound| bound == name).unwrap_or(usize::MAX)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Record<P>)> {
        self.by_name.iter().map(|(name, record)| (name.as_str(), record))
    }

    /// The policies that decide.
    pub(crate) fn policies(&self) -> BTreeMap<String, Arc<P>> {
        let in_force = |(name, record): (&String, &Record<P>)| {
            record.in_force.as_ref().map(|in_force| (name.clone(), Arc::clone(&in_force.policy)))
        };
        self.by_name.iter().filter_map(in_force).collect()
    }

    /// Whether some refused file may be taken at another moment although it does not change.
    pub(crate) fn wants_retry(&self) -> bool {
        self.by_name.values().any(|record| record.refused.as_ref().is_some_and(Refused::is_transient))
    }

    /// Whether nothing becomes of a policy's files until they change.
    pub(crate) fn is_settled(&self, name: &str) -> bool {
        let record = self.by_name.get(name);
        record.is_some_and(|record| !record.refused.as_ref().is_some_and(Refused::is_transient))
    }

    /// Notes that the files are there. Says whether they are to be loaded: they are neither in force nor
    /// refused for good.
    pub(crate) fn see(&mut self, found: &Found, key: &str) -> bool {
        let record = self.touch(found);
        if record.in_force.as_ref().is_some_and(|in_force| in_force.key == key) {
            record.refused = None;
            return false;
        }
        let settled = |refused: &Refused| refused.key.as_deref() == Some(key) && !refused.is_transient();
        !record.refused.as_ref().is_some_and(settled)
    }

    /// The files became a policy.
    pub(crate) fn accept(&mut self, found: &Found, key: String, policy: Arc<P>) {
        let record = self.touch(found);
        record.in_force = Some(InForce { policy, key, since_generation: None });
        record.refused = None;
    }

    /// The policies that came since the last one are part of this generation.
    pub(crate) fn swapped(&mut self, generation: u64) {
        for in_force in self.by_name.values_mut().filter_map(|record| record.in_force.as_mut()) {
            in_force.since_generation.get_or_insert(generation);
        }
    }

    /// The files did not become a policy. Says whether that is news: more pieces of a slow copy are not.
    pub(crate) fn refuse(&mut self, found: &Found, key: Option<String>, error: LoadError) -> bool {
        let record = self.touch(found);
        let known = |refused: &Refused| {
            let still_arriving = matches!(error.reason, Refusal::Truncated { .. });
            let same_kind = refused.error.reason.kind() == error.reason.kind();
            same_kind && (refused.key == key || still_arriving)
        };
        let news = !record.refused.as_ref().is_some_and(known);
        record.refused = Some(Refused { key, error });
        news
    }

    /// The newest version that passed.
    pub(crate) fn in_force(&self, name: &str) -> Option<&Arc<P>> {
        Some(&self.by_name.get(name)?.in_force.as_ref()?.policy)
    }

    /// Whether an older version goes on deciding.
    pub(crate) fn is_in_force(&self, name: &str) -> bool {
        self.in_force(name).is_some()
    }

    /// Drops the policies whose files are gone, except the last good versions of those that are bound.
    pub(crate) fn keep_only(&mut self, found: &[Found]) -> Vec<Removed> {
        let mut removed = Vec::new();
        let (default, bound) = (&self.default, &self.bound);
        self.by_name.retain(|name, record| {
            if found.iter().any(|found| found.name == *name) {
                return true;
            }
            let kept = (name == default || bound.contains(name)) && record.in_force.is_some();
            // One that was kept and is bound no more is news again.
            if !(record.kept && kept) {
                removed.push(Removed { name: name.clone(), kept });
            }
            record.kept = kept;
            record.refused = None;
            kept
        });
        removed
    }

    fn touch(&mut self, found: &Found) -> &mut Record<P> {
        let record = self.by_name.entry(found.name.clone()).or_insert_with(|| Record {
            file: found.file.clone(),
            modified_ms: None,
            in_force: None,
            refused: None,
            kept: false,
        });
        record.file.clone_from(&found.file);
        record.modified_ms = found.modified_ms;
        record.kept = false;
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> Found {
        let file = PathBuf::from(format!("{name}.wasm"));
        Found { name: name.to_owned(), settings_file: file.with_extension("toml"), file, modified_ms: None }
    }

    fn error(reason: Refusal) -> LoadError {
        LoadError { file: PathBuf::from("a.wasm"), reason }
    }

    fn with_a_in_force() -> Records<&'static str> {
        let mut records = Records::new("a".to_owned());
        assert!(records.see(&found("a"), "key 1"));
        records.accept(&found("a"), "key 1".to_owned(), Arc::new("a 1"));
        records.swapped(1);
        records
    }

    #[test]
    fn the_same_files_are_not_loaded_again() {
        let mut records = with_a_in_force();
        assert!(!records.see(&found("a"), "key 1"));
        assert!(records.see(&found("a"), "key 2"));
        assert!(records.see(&found("b"), "key 1"));
    }

    #[test]
    fn each_keeps_the_generation_that_it_came_with() {
        let mut records = with_a_in_force();
        records.accept(&found("b"), "key 1".to_owned(), Arc::new("b 1"));
        records.swapped(5);
        records.swapped(6);
        let since =
            |record: &Record<_>| record.in_force.as_ref().and_then(|in_force| in_force.since_generation);
        assert_eq!(records.iter().map(|(_, record)| since(record)).collect::<Vec<_>>(), [Some(1), Some(5)]);
    }

    #[test]
    fn a_refusal_leaves_the_old_one_and_is_news_once() {
        let mut records = with_a_in_force();
        let key = || Some("key 2".to_owned());
        assert!(records.refuse(&found("a"), key(), error(Refusal::NoWorld)));
        assert!(!records.refuse(&found("a"), key(), error(Refusal::NoWorld)));
        assert!(!records.see(&found("a"), "key 2"), "refused for good");
        assert!(records.refuse(&found("a"), Some("key 3".to_owned()), error(Refusal::NoWorld)));
        assert_eq!(*records.policies()["a"], "a 1");
        // The old file is put back: nothing to load, nothing to complain of.
        assert!(!records.see(&found("a"), "key 1"));
        assert!(records.iter().all(|(_, record)| record.refused.is_none()));
    }

    #[test]
    fn what_may_change_by_itself_is_tried_again() {
        let mut records = with_a_in_force();
        let unreadable = || error(Refusal::Unreadable("permission denied".to_owned()));
        assert!(!records.wants_retry());
        assert!(records.refuse(&found("a"), None, unreadable()));
        assert!(records.wants_retry());
        assert!(!records.refuse(&found("a"), None, unreadable()), "no news");
    }

    #[test]
    fn a_slow_copy_is_news_once() {
        let mut records = with_a_in_force();
        let mut piece = |bytes: usize| {
            records.refuse(&found("a"), Some(format!("{bytes}")), error(Refusal::Truncated { bytes }))
        };
        assert_eq!([0, 100, 200].map(&mut piece), [true, false, false]);
        assert!(records.refuse(&found("a"), Some("201".to_owned()), error(Refusal::NoWorld)));
    }

    #[test]
    fn removing_spares_the_default() {
        let mut records = with_a_in_force();
        records.accept(&found("b"), "key".to_owned(), Arc::new("b 1"));
        let removed = records.keep_only(&[]);
        let expected =
            [("a", true), ("b", false)].map(|(name, kept)| Removed { name: name.to_owned(), kept });
        assert_eq!(removed, expected);
        assert_eq!(records.policies().keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(records.keep_only(&[]), [], "told once");
        // It comes back as it was.
        assert!(!records.see(&found("a"), "key 1"));
        assert!(records.iter().all(|(_, record)| !record.kept));
    }

    /// What a workload is bound to stays until the workload is bound to another.
    #[test]
    fn removing_spares_what_is_bound_until_it_is_rebound() {
        let mut records = with_a_in_force();
        records.accept(&found("b"), "key".to_owned(), Arc::new("b 1"));
        records.bind(["b".to_owned(), "a".to_owned()].into_iter());
        assert_eq!(records.bound().collect::<Vec<_>>(), ["a", "b"]);
        let removed = |kept| [Removed { name: "b".to_owned(), kept }];
        assert_eq!(records.keep_only(&[found("a")]), removed(true));
        assert_eq!(records.keep_only(&[found("a")]), [], "told once");
        records.bind(std::iter::empty());
        assert_eq!(records.keep_only(&[found("a")]), removed(false));
        assert_eq!(records.policies().keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn a_refused_file_that_goes_is_forgotten() {
        let mut records = Records::<()>::new("a".to_owned());
        records.refuse(&found("a"), Some("key".to_owned()), error(Refusal::NoWorld));
        assert_eq!(records.keep_only(&[]), [Removed { name: "a".to_owned(), kept: false }]);
        assert_eq!(records.iter().count(), 0);
    }
}
