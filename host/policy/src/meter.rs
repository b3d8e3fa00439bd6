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

/// Time and memory of one instance.
#[derive(Debug)]
pub(crate) struct Meter {
    memory_bytes: usize,
    table_elements: usize,
    budget: Budget,
    /// CPU and clock at this call's first tick. An ordinary call ends before it and pays for no clock reading;
    /// the price is that up to one tick of its time is not counted.
    first_tick: Option<(Duration, Duration)>,
}

impl Meter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes,
            table_elements: limits.table_elements,
            budget: limits.setup(),
            first_tick: None,
        }
    }

    /// Begins a new call.
    pub(crate) fn begin(&mut self, budget: Budget) {
        self.budget = budget;
        self.first_tick = None;
    }

    /// Whether the call may go on until the next tick. `cpu` is the calling thread's.
    pub(crate) fn tick(&mut self, cpu: Duration, clock: Duration) -> Result<(), OverTime> {
        let (first_cpu, first_clock) = *self.first_tick.get_or_insert((cpu, clock));
        if cpu.saturating_sub(first_cpu) >= self.budget.cpu {
            Err(OverTime::Cpu(self.budget.cpu))
        } else if clock.saturating_sub(first_clock) >= self.budget.wall {
            Err(OverTime::Wall(self.budget.wall))
        } else {
            Ok(())
        }
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        // An error ends the call. Answering "no" would leave it to the guest, whose allocator aborts anyway,
        // and the reason would be lost.
        if desired > self.memory_bytes {
            Err(OverSize::Memory { asked_bytes: desired }.into())
        } else {
            Ok(true)
        }
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

    /// Ticks at (CPU, clock) in ms after the first, on a thread that had used time before.
    fn last_tick(ticks: &[(u64, u64)]) -> Result<(), OverTime> {
        let mut meter = Meter::new(&Limits::default());
        meter.begin(Budget { cpu: ms(5), wall: ms(100) });
        ticks.iter().map(|(cpu, clock)| meter.tick(ms(7_000 + cpu), ms(900_000 + clock))).last().unwrap()
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
            assert_eq!(last_tick(ticks), expected, "{ticks:?}");
        }
    }

    #[test]
    fn each_call_has_its_own_budget() {
        let mut meter = Meter::new(&Limits::default());
        let budget = Budget { cpu: ms(5), wall: ms(100) };
        for call in 0..3 {
            meter.begin(budget);
            assert_eq!(meter.tick(ms(call * 4), ms(call * 4)), Ok(()));
            assert_eq!(meter.tick(ms(call * 4 + 4), ms(call * 4 + 4)), Ok(()));
        }
    }
}
