//! Who decides under one name: the newest version, or the last good one while the newest is put aside.
//!
//! Pure, and generic in the policy so that it can be tested without compiling any.

use std::sync::Arc;

/// What may have been put aside.
pub(crate) trait Judged {
    fn is_put_aside(&self) -> bool;
}

/// The versions under one name.
#[derive(Debug)]
pub(crate) struct Succession<P> {
    newest: Arc<P>,
    /// Decided before the newest, and was not put aside then.
    last_good: Option<Arc<P>>,
}

impl<P> Clone for Succession<P> {
    fn clone(&self) -> Self {
        Self { newest: Arc::clone(&self.newest), last_good: self.last_good.clone() }
    }
}

impl<P: Judged> Succession<P> {
    /// The first version under a name.
    pub(crate) fn first(newest: Arc<P>) -> Self {
        Self { newest, last_good: None }
    }

    /// After this one, when `newest` is the version of the file.
    pub(crate) fn then(&self, newest: Arc<P>) -> Self {
        let last_good = if Arc::ptr_eq(&newest, &self.newest) {
            self.last_good.clone().filter(|good| !good.is_put_aside())
        } else {
            self.deciding().cloned()
        };
        Self { newest, last_good }
    }

    pub(crate) fn newest(&self) -> &Arc<P> {
        &self.newest
    }

    /// Kept to take over: it must stay usable.
    pub(crate) fn in_reserve(&self) -> Option<&Arc<P>> {
        self.last_good.as_ref()
    }

    /// `None` means the built-in default.
    pub(crate) fn deciding(&self) -> Option<&Arc<P>> {
        let good = |policy: &&Arc<P>| !policy.is_put_aside();
        Some(&self.newest).filter(good).or_else(|| self.last_good.as_ref().filter(good))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug)]
    struct Version {
        number: usize,
        aside: AtomicBool,
    }

    impl Judged for Version {
        fn is_put_aside(&self) -> bool {
            self.aside.load(Ordering::Relaxed)
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// A new file.
        Drop,
        /// Another name's file changed.
        Same,
        /// The one that decides fails too often.
        Aside,
    }
    use Step::{Aside, Drop, Same};

    /// After version 0 and these steps: who decides, and who is in reserve.
    fn after(steps: &[Step]) -> (Option<usize>, Option<usize>) {
        let version = |number| Arc::new(Version { number, aside: AtomicBool::new(false) });
        let mut line = Succession::first(version(0));
        let mut dropped = 0;
        for step in steps {
            match step {
                Drop => {
                    dropped += 1;
                    line = line.then(version(dropped));
                }
                Same => line = line.then(Arc::clone(line.newest())),
                Aside => {
                    if let Some(deciding) = line.deciding() {
                        deciding.aside.store(true, Ordering::Relaxed);
                    }
                    line = line.then(Arc::clone(line.newest()));
                }
            }
        }
        let number = |policy: Option<&Arc<Version>>| policy.map(|policy| policy.number);
        (number(line.deciding()), number(line.in_reserve()))
    }

    #[test]
    fn the_last_good_one_takes_over() {
        for (steps, expected) in [
            (&[][..], (Some(0), None)),
            (&[Aside], (None, None)),
            (&[Drop], (Some(1), Some(0))),
            (&[Drop, Same, Same], (Some(1), Some(0))),
            (&[Drop, Aside], (Some(0), Some(0))),
            (&[Drop, Aside, Same], (Some(0), Some(0))),
            (&[Drop, Aside, Aside], (None, None)),
            // The one that decided before, not the file before.
            (&[Drop, Aside, Drop], (Some(2), Some(0))),
            (&[Drop, Aside, Drop, Aside], (Some(0), Some(0))),
            (&[Aside, Drop], (Some(1), None)),
            (&[Aside, Drop, Aside], (None, None)),
            (&[Drop, Drop, Aside], (Some(1), Some(1))),
            (&[Drop, Drop, Aside, Aside], (None, None)),
        ] {
            assert_eq!(after(steps), expected, "{steps:?}");
        }
    }

    proptest! {
        /// A version that was put aside never decides again, and a fresh one always does.
        #[test]
        fn who_was_put_aside_stays_so(steps in prop::collection::vec(prop::sample::select(vec![Drop, Same, Aside]), 0..40)) {
            let mut aside = std::collections::BTreeSet::new();
            for end in 0..steps.len() {
                let (deciding, reserve) = after(&steps[..end]);
                prop_assert!(deciding.is_none_or(|number| !aside.contains(&number)));
                prop_assert!(reserve.is_none_or(|number| !aside.contains(&number)));
                match steps[end] {
                    Aside => aside.extend(deciding),
                    Drop => prop_assert!(after(&steps[..=end]).0.is_some_and(|number| !aside.contains(&number))),
                    Same => prop_assert_eq!(after(&steps[..=end]).0, deciding),
                }
            }
        }
    }
}
