//! The instances of one policy: idle ones to take, and how many there may be.
//!
//! Generic in the instance so that it can be tested without WASM.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Instances of one policy.
#[derive(Debug)]
pub(crate) struct Warm<I> {
    idle: Mutex<Idle<I>>,
    /// Told when an instance came back or a place became free, if somebody waits.
    freed: Condvar,
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
    /// Calls that wait for an instance.
    waiting: u32,
}

/// An instance taken out. Dropping it drops the instance and frees its place.
#[derive(Debug)]
pub(crate) struct Leased<'a, I> {
    pub(crate) instance: I,
    place: Place<'a, I>,
}

/// The right to be one of the instances.
#[derive(Debug)]
pub(crate) struct Place<'a, I> {
    warm: &'a Warm<I>,
    /// An idle instance keeps its place.
    kept: bool,
}

/// What a call can go on with.
#[derive(Debug)]
pub(crate) enum Free<'a, I> {
    /// An instance that was busy.
    Instance(Leased<'a, I>),
    /// Room to make one.
    Place(Place<'a, I>),
}

impl<I> Warm<I> {
    /// `idle` are ready; no more than `idle_max` stay so, and no more than `count_max` are made.
    pub(crate) fn new(idle: Vec<I>, idle_max: usize, count_max: u32) -> Self {
        let count = AtomicU32::new(u32::try_from(idle.len()).unwrap_or(u32::MAX));
        let idle = Mutex::new(Idle { stack: idle, retired: false, waiting: 0 });
        Self { idle, freed: Condvar::new(), count, count_max, idle_max }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Option<Leased<'_, I>> {
        let instance = self.lock().stack.pop()?;
        Some(self.leased(instance))
    }

    /// A place for one more; `None` when there are as many as there may be.
    pub(crate) fn place(&self) -> Option<Place<'_, I>> {
        let more = |count: u32| (count < self.count_max).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place { warm: self, kept: false })
    }

    /// As `take` and `place`, and waits for one or the other.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Free<'_, I>> {
        let mut place = None;
        let nothing = |idle: &mut Idle<I>| {
            if idle.stack.is_empty() {
                place = self.place();
                return place.is_none();
            }
            false
        };
        let mut idle = self.lock();
        idle.waiting += 1;
        let (mut idle, _) =
            self.freed.wait_timeout_while(idle, at_most, nothing).unwrap_or_else(PoisonError::into_inner);
        idle.waiting -= 1;
        match place {
            Some(place) => Some(Free::Place(place)),
            None => idle.stack.pop().map(|instance| Free::Instance(self.leased(instance))),
        }
    }

    /// Only for an instance that answered well.
    pub(crate) fn put_back(&self, leased: Leased<'_, I>) {
        let mut idle = self.lock();
        // Whoever waits takes it at once, however few stay idle otherwise.
        if idle.retired || (idle.stack.len() >= self.idle_max && idle.waiting == 0) {
            // Dropping an instance takes its time; others should not wait for it.
            drop(idle);
            drop(leased);
            return;
        }
        let Leased { instance, mut place } = leased;
        place.kept = true;
        idle.stack.push(instance);
        let is_awaited = idle.waiting > 0;
        drop(idle);
        if is_awaited {
            self.freed.notify_one();
        }
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

    /// Instances are kept again.
    pub(crate) fn resume(&self) {
        self.lock().retired = false;
    }

    fn leased(&self, instance: I) -> Leased<'_, I> {
        Leased { instance, place: Place { warm: self, kept: false } }
    }

    fn drop_all(&self, stack: Vec<I>) {
        let dropped = u32::try_from(stack.len()).unwrap_or(u32::MAX);
        drop(stack);
        self.give_up(dropped);
    }

    /// So many places are free.
    fn give_up(&self, places: u32) {
        self.count.fetch_sub(places, Ordering::Relaxed);
        // The lock: who is about to wait has either seen the new count, or is told.
        if self.lock().waiting > 0 {
            self.freed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle<I>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a, I> Place<'a, I> {
    pub(crate) fn filled(self, instance: I) -> Leased<'a, I> {
        Leased { instance, place: self }
    }
}

impl<I> Drop for Place<'_, I> {
    fn drop(&mut self) {
        if !self.kept {
            self.warm.give_up(1);
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

    #[test]
    fn a_policy_that_decides_again_keeps_instances_again() {
        let warm = Warm::new(vec![1], 2, 8);
        warm.retire();
        warm.resume();
        warm.put_back(warm.place().unwrap().filled(2));
        assert_eq!((warm.count(), warm.take().unwrap().instance), (1, 2));
    }

    /// Far beyond what any machine needs; no test waits for it to pass.
    const LONG: Duration = Duration::from_secs(60);

    /// What a call gets that waits while the only instance is taken, once `free` did something with that.
    fn got_while(free: impl Fn(&Warm<i32>, Leased<'_, i32>)) -> (Option<i32>, u32) {
        let warm = Warm::new(vec![1], 1, 1);
        let busy = warm.take().unwrap();
        assert!(warm.wait(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| match warm.wait(LONG) {
                Some(Free::Instance(leased)) => (Some(leased.instance), warm.count()),
                Some(Free::Place(_)) => (None, warm.count()),
                None => panic!("nothing became free"),
            });
            while warm.lock().waiting == 0 {
                std::thread::yield_now();
            }
            free(&warm, busy);
            waits.join().unwrap()
        })
    }

    #[test]
    fn who_waits_gets_the_instance_that_comes_back() {
        assert_eq!(got_while(|warm, busy| warm.put_back(busy)), (Some(1), 1));
    }

    #[test]
    fn who_waits_gets_the_place_of_an_instance_that_is_dropped() {
        assert_eq!(got_while(|_, busy| drop(busy)), (None, 1));
        let retired = |warm: &Warm<i32>, busy: Leased<'_, i32>| {
            warm.retire();
            warm.put_back(busy);
        };
        assert_eq!(got_while(retired), (None, 1));
    }

    #[test]
    fn nobody_is_left_waiting() {
        const THREADS: usize = 8;
        const CALLS: usize = 500;
        let warm = Warm::new(vec![0], 1, 2);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let warm = &warm;
                scope.spawn(move || {
                    for call in 0..CALLS {
                        let leased = match warm.wait(LONG).expect("one of two becomes free") {
                            Free::Instance(leased) => leased,
                            Free::Place(place) => place.filled(call),
                        };
                        assert!(warm.count() <= 2);
                        // Some fault.
                        if (call + thread).is_multiple_of(7) { drop(leased) } else { warm.put_back(leased) }
                    }
                });
            }
        });
        assert!(warm.count() <= 2);
        assert_eq!(warm.lock().waiting, 0);
    }
}
