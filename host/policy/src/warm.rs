//! The instances of one policy: idle ones to take, and how many there may be.
//!
//! Generic in the instance so that it can be tested without WASM.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Instances of one policy.
#[derive(Debug)]
pub(crate) struct Warm<I> {
    idle: Mutex<Idle<I>>,
    /// Idle and busy.
    count: AtomicU32,
    count_max: u32,
    idle_max: usize,
}

#[derive(Debug)]
struct Idle<I> {
    /// The last one used is the next one taken: its memory is the warmest.
    stack: Vec<I>,
    /// What comes back is dropped: a newer version decides, and the room belongs to it.
    retired: bool,
}

/// An instance taken out. Dropping it drops the instance and frees its place.
#[derive(Debug)]
pub(crate) struct Leased<'a, I> {
    pub(crate) instance: I,
    place: Place<'a>,
}

/// The right to be one of the instances.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    count: &'a AtomicU32,
    /// An idle instance keeps its place.
    kept: bool,
}

impl<I> Warm<I> {
    /// `idle` are ready; no more than `idle_max` stay so, and no more than `count_max` are made.
    pub(crate) fn new(idle: Vec<I>, idle_max: usize, count_max: u32) -> Self {
        let count = AtomicU32::new(u32::try_from(idle.len()).unwrap_or(u32::MAX));
        Self { idle: Mutex::new(Idle { stack: idle, retired: false }), count, count_max, idle_max }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Option<Leased<'_, I>> {
        let instance = self.lock().stack.pop()?;
        Some(Leased { instance, place: Place { count: &self.count, kept: false } })
    }

    /// A place for one more; `None` when there are as many as there may be.
    pub(crate) fn place(&self) -> Option<Place<'_>> {
        let more = |count: u32| (count < self.count_max).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place { count: &self.count, kept: false })
    }

    /// Only for an instance that answered well.
    pub(crate) fn put_back(&self, leased: Leased<'_, I>) {
        let mut idle = self.lock();
        if idle.retired || idle.stack.len() >= self.idle_max {
            // Dropping an instance takes its time; others should not wait for it.
            drop(idle);
            drop(leased);
            return;
        }
        let Leased { instance, mut place } = leased;
        place.kept = true;
        idle.stack.push(instance);
    }

    /// Drops those that are idle; the next calls get fresh ones.
    pub(crate) fn clear(&self) {
        let stack = std::mem::take(&mut self.lock().stack);
        self.drop_all(stack);
    }

    /// As `clear`, and from now on none is kept.
    pub(crate) fn retire(&self) {
        let stack = {
            let mut idle = self.lock();
            idle.retired = true;
            std::mem::take(&mut idle.stack)
        };
        self.drop_all(stack);
    }

    fn drop_all(&self, stack: Vec<I>) {
        let dropped = u32::try_from(stack.len()).unwrap_or(u32::MAX);
        drop(stack);
        self.count.fetch_sub(dropped, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Idle<I>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Place<'a> {
    pub(crate) fn filled<I>(self, instance: I) -> Leased<'a, I> {
        Leased { instance, place: self }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_used_is_taken_first() {
        let warm = Warm::new(vec!["a", "b"], 2, 3);
        let leased = warm.take().unwrap();
        assert_eq!(leased.instance, "b");
        warm.put_back(leased);
        assert_eq!(warm.take().unwrap().instance, "b");
        assert_eq!(warm.count(), 1, "what is not put back is gone");
    }

    #[test]
    fn there_are_never_more_than_allowed() {
        let warm = Warm::new(vec![1], 8, 2);
        let taken = warm.take().unwrap();
        let made = warm.place().unwrap().filled(2);
        assert!(warm.place().is_none());
        drop(made);
        assert!(warm.place().is_some());
        warm.put_back(taken);
        assert_eq!(warm.count(), 1);
    }

    #[test]
    fn no_more_stay_idle_than_are_wanted() {
        let warm = Warm::new(Vec::new(), 2, 8);
        let made: Vec<_> = (0..5).map(|number| warm.place().unwrap().filled(number)).collect();
        assert_eq!(warm.count(), 5);
        made.into_iter().for_each(|leased| warm.put_back(leased));
        assert_eq!(warm.count(), 2);
    }

    #[test]
    fn cleared_ones_are_gone_and_new_ones_stay() {
        let warm = Warm::new(vec![1, 2], 2, 8);
        warm.clear();
        assert_eq!((warm.count(), warm.take().is_none()), (0, true));
        warm.put_back(warm.place().unwrap().filled(3));
        assert_eq!(warm.count(), 1);
    }

    #[test]
    fn a_retired_policy_keeps_none_not_even_those_that_come_back() {
        let warm = Warm::new(vec![1, 2], 2, 8);
        let busy = warm.take().unwrap();
        warm.retire();
        assert_eq!(warm.count(), 1);
        warm.put_back(busy);
        warm.put_back(warm.place().unwrap().filled(3));
        assert_eq!((warm.count(), warm.take().is_none()), (0, true));
    }
}
