//! The bounds of running guest code: time and memory. Each bound that is hit is an error of its own type.

use std::time::Duration;

use thiserror::Error;
use wasmtime::ResourceLimiter;

use crate::limits::{Budget, Limits};

/// Guest code ran out of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum OverTime {
    #[error("the CPU budget is spent")]
    Cpu(Duration),
    #[error("the wall bound has passed")]
    Wall(Duration),
}

/// Guest code asked for more than it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum OverSize {
    #[error("memory of {asked_bytes} bytes")]
    Memory { asked_bytes: usize },
    #[error("table of {asked} elements")]
    Table { asked: usize },
}

/// Time that guest code has. One decision has one, however many pieces of guest code it runs, all on one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timer {
    budget: Budget,
    /// The thread's CPU time and the clock from which it counts.
    began: Option<(Duration, Duration)>,
}

impl Timer {
    /// Counts from the first tick. An ordinary call ends before it and pays for no clock reading; the price is
    /// that up to one tick of its time is not counted.
    pub(crate) fn from_first_tick(budget: Budget) -> Self {
        Self { budget, began: None }
    }

    /// Counts from an earlier moment.
    pub(crate) fn begun(budget: Budget, (cpu, clock): (Duration, Duration)) -> Self {
        Self { budget, began: Some((cpu, clock)) }
    }

    /// Counts from now on, unless it does already.
    pub(crate) fn begin(&mut self, cpu: Duration, clock: Duration) {
        self.began.get_or_insert((cpu, clock));
    }

    /// Whether there is time until the next tick. `cpu` is the calling thread's.
    pub(crate) fn tick(&mut self, cpu: Duration, clock: Duration) -> Result<(), OverTime> {
        self.begin(cpu, clock);
        if self.cpu_used(cpu) >= self.budget.cpu {
            Err(OverTime::Cpu(self.budget.cpu))
        } else if self.clock_used(clock) >= self.budget.wall {
            Err(OverTime::Wall(self.budget.wall))
        } else {
            Ok(())
        }
    }

    /// Whether all that was done so far fits in once more, and `set_up_cpu` beside it.
    pub(crate) fn fits_again(&self, set_up_cpu: Duration, cpu: Duration, clock: Duration) -> bool {
        let cpu_needed = self.cpu_used(cpu).saturating_mul(2).saturating_add(set_up_cpu);
        let clock_needed = self.clock_used(clock).saturating_mul(2).saturating_add(set_up_cpu);
        cpu_needed < self.budget.cpu && clock_needed < self.budget.wall
    }

    fn cpu_used(&self, cpu: Duration) -> Duration {
        self.began.map_or(Duration::ZERO, |(began, _)| cpu.saturating_sub(began))
    }

    fn clock_used(&self, clock: Duration) -> Duration {
        self.began.map_or(Duration::ZERO, |(_, began)| clock.saturating_sub(began))
    }
}

/// Time and memory of one instance.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The limit of all memories together.
    memory_bytes: usize,
    /// What they have.
    memory_bytes_now: usize,
    table_elements: usize,
    /// Of what runs now.
    pub(crate) timer: Timer,
}

impl Meter {
    pub(crate) fn new(limits: &Limits, timer: Timer) -> Self {
        Self {
            memory_bytes: limits.memory_bytes,
            memory_bytes_now: 0,
            table_elements: limits.table_elements,
            timer,
        }
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let asked_bytes = self.memory_bytes_now.saturating_sub(current).saturating_add(desired);
        // An error ends the call. Answering "no" would leave it to the guest, whose allocator aborts anyway,
        // and the reason would be lost.
        if asked_bytes > self.memory_bytes {
            return Err(OverSize::Memory { asked_bytes }.into());
        }
        // Beyond what the memory itself allows is "no" in any case, and must not be counted.
        let grows = maximum.is_none_or(|maximum| desired <= maximum);
        if grows {
            self.memory_bytes_now = asked_bytes;
        }
        Ok(grows)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > self.table_elements { Err(OverSize::Table { asked: desired }.into()) } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const BUDGET: Budget = Budget { cpu: Duration::from_millis(5), wall: Duration::from_millis(100) };

    /// Ticks at (CPU, clock) in ms after the first, on a thread that had used time before.
    fn last_tick(mut timer: Timer, ticks: &[(u64, u64)]) -> Result<(), OverTime> {
        ticks.iter().map(|(cpu, clock)| timer.tick(ms(7_000 + cpu), ms(900_000 + clock))).last().unwrap()
    }

    #[test]
    fn memories_are_counted_together() {
        let limits = Limits { memory_bytes: 100, ..Limits::default() };
        let mut meter = Meter::new(&limits, Timer::from_first_tick(BUDGET));
        let mut grow = |current, desired, maximum| {
            meter.memory_growing(current, desired, maximum).map_err(|error| *error.downcast_ref().unwrap())
        };
        assert_eq!(grow(0, 60, None), Ok(true));
        assert_eq!(grow(0, 30, Some(40)), Ok(true), "a second memory");
        assert_eq!(grow(30, 40, Some(39)), Ok(false), "its own bound");
        assert_eq!(grow(30, 40, Some(40)), Ok(true), "what was refused is not counted");
        assert_eq!(grow(60, 61, None), Err(OverSize::Memory { asked_bytes: 101 }));
        assert_eq!(grow(60, usize::MAX, None), Err(OverSize::Memory { asked_bytes: usize::MAX }));
    }

    #[test]
    fn time_counts_from_the_first_tick() {
        for (ticks, expected) in [
            (&[(0, 0)][..], Ok(())),
            (&[(0, 0), (4, 4)], Ok(())),
            (&[(0, 0), (5, 5)], Err(OverTime::Cpu(ms(5)))),
            // A throttled thread: the clock runs on, its CPU time does not.
            (&[(0, 0), (1, 99)], Ok(())),
            (&[(0, 0), (1, 100)], Err(OverTime::Wall(ms(100)))),
        ] {
            assert_eq!(last_tick(Timer::from_first_tick(BUDGET), ticks), expected, "{ticks:?}");
        }
    }

    #[test]
    fn a_timer_that_began_is_shared_by_all_that_runs() {
        let mut timer = Timer::from_first_tick(BUDGET);
        timer.begin(ms(7_000), ms(900_000));
        // Each piece of guest code gets a copy, and begins anew to be asked for its time.
        for (ticks, expected) in [
            (&[(2, 2)][..], Ok(())),
            (&[(4, 4)], Ok(())),
            (&[(5, 5)], Err(OverTime::Cpu(ms(5)))),
            (&[(1, 100)], Err(OverTime::Wall(ms(100)))),
        ] {
            assert_eq!(last_tick(timer, ticks), expected, "{ticks:?}");
        }
        timer.begin(ms(8_000), ms(990_000));
        assert_eq!(last_tick(timer, &[(5, 5)]), Err(OverTime::Cpu(ms(5))), "it does not begin twice");
    }

    #[test]
    fn a_second_run_needs_as_much_again_and_an_instance() {
        let mut timer = Timer::from_first_tick(BUDGET);
        timer.begin(ms(7_000), ms(900_000));
        for (cpu, clock, set_up, fits) in [
            (0, 0, 1, true),
            (1, 1, 2, true),
            (2, 2, 0, true),
            (2, 2, 1, false),
            (0, 49, 1, true),
            (0, 50, 0, false),
            (6, 6, 0, false),
        ] {
            let found = timer.fits_again(ms(set_up), ms(7_000 + cpu), ms(900_000 + clock));
            assert_eq!(found, fits, "{cpu} ms of CPU, {clock} ms, set up in {set_up} ms");
        }
    }
}
