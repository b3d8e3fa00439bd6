//! One seed, many seeds, and the shortest schedule that still fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::coverage::Coverage;
use crate::flaw::Flaw;
use crate::schedule::{Setting, Step, generate};
use crate::world::{Violation, World};

/// How a seed is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// With faults; everything must end.
    Wild,
    /// Without; everything must be completed.
    Calm,
}

fn played(setting: &Setting, steps: &[Step], weather: Weather, flaw: Option<Flaw>, traced: bool) -> World {
    let mut world = World::new(setting.clone(), flaw, traced);
    world.play(steps);
    if world.violation.is_none() {
        match weather {
            Weather::Wild => world.settle(),
            Weather::Calm => world.finish(),
        }
    }
    world
}

/// Lines of a trace that are printed: its end, where something did not hold.
const MAX_TRACE_LINES: usize = 300;

/// A schedule that fails, as short as it could be made.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub violation: Violation,
    pub steps: Vec<Step>,
    pub all_steps: usize,
    pub trace: Vec<String>,
}

impl Failure {
    /// What a person needs to look into it.
    pub fn report(&self, weather: Weather) -> String {
        let steps: Vec<String> =
            self.steps.iter().map(|s| format!("{:?}({}, {})", s.kind, s.a, s.b)).collect();
        format!(
            "{} does not hold: {}\nseed {} ({weather:?}), {} of {} steps left:\n  {}\n{}\nto run it again: SLUICE_SIM_SEED={} \
             cargo test -p sluice-transfer --test simulation",
            self.violation.rule,
            self.violation.what,
            self.seed,
            self.steps.len(),
            self.all_steps,
            steps.join(" "),
            self.trace[self.trace.len().saturating_sub(MAX_TRACE_LINES)..].join("\n"),
            self.seed,
        )
    }
}

/// Plays one seed. `Err` is the failure, shrunk.
pub fn run_seed(seed: u64, weather: Weather, flaw: Option<Flaw>) -> Result<Coverage, Box<Failure>> {
    let (setting, steps) = generate(seed, weather == Weather::Wild);
    let world = played(&setting, &steps, weather, flaw, false);
    let Some(violation) = world.violation else { return Ok(world.coverage) };
    let all_steps = steps.len();
    let steps = shrunk(steps, |fewer| {
        played(&setting, fewer, weather, flaw, false).violation.is_some_and(|v| v.rule == violation.rule)
    });
    let last = played(&setting, &steps, weather, flaw, true);
    let violation = last.violation.unwrap_or(violation);
    Err(Box::new(Failure { seed, violation, steps, all_steps, trace: last.trace.unwrap_or_default() }))
}

/// Leaves out steps, in ever smaller runs, as long as it still fails.
fn shrunk(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut run = steps.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut left_out = false;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + run).min(steps.len()));
            if fails(&fewer) {
                steps = fewer;
                left_out = true;
            } else {
                at += run;
            }
        }
        if run == 1 && !left_out {
            return steps;
        }
        run = run.div_ceil(2).min(steps.len().max(1));
    }
}

/// Plays seeds from `first` on, on all cores, until one fails.
pub fn run_many(
    first: u64,
    count: u64,
    weather: Weather,
    flaw: Option<Flaw>,
) -> Result<Coverage, Box<Failure>> {
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let work = || -> Result<Coverage, Box<Failure>> {
        let mut own = Coverage::default();
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                break;
            }
            own.merge(run_seed(seed, weather, flaw).inspect_err(|_| failed.store(true, Ordering::Relaxed))?);
        }
        Ok(own)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let all: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("a schedule that panicked, see above"))
            .collect()
    });
    all.into_iter().try_fold(Coverage::default(), |mut sum, own| {
        sum.merge(own?);
        Ok(sum)
    })
}
