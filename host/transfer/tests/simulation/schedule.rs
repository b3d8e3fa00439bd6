//! What a seed means: a setting, and a list of steps that is the same however the world goes.

use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{Direction, Grid, Verb};

use crate::memory::LAYERS;
use crate::random::Random;

/// What a step does. Its two numbers pick among what there is to do it to; with nothing there it does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Engines: a hold is taken, or computed a little further, or filled.
    Produce,
    /// A consumer begins to receive, or tries again.
    Receive,
    /// A consumer has used what it got and frees it.
    Retire,
    /// An engine gives a free block to another request.
    Bystander,
    Cancel,
    Release,
    Renew,
    Expect,
    /// Network.
    Deliver,
    Duplicate,
    Drop,
    /// Hardware: an operation moves some words, or ends.
    Move,
    FailOp,
    /// It will never be heard of again, though it goes on.
    MuteOp,
    /// It stands still for a while, whatever becomes of its poster.
    HoldUp,
    /// An endpoint that is to be closed is.
    Close,
    /// Processes.
    Tick,
    Advance,
    Crash,
    Restart,
    Stop,
    Continue,
    /// Somebody's connection is reported lost, rightly or not.
    Lose,
    /// An engine dies, its host process does not.
    EngineGone,
    /// An engine takes back the blocks of a hold that is only read from, and says so late or never.
    Steal,
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub kind: Kind,
    pub a: u16,
    pub b: u16,
}

/// One transfer that the schedule may bring about.
#[derive(Clone, Debug)]
pub struct JobSpec {
    pub verb: Verb,
    pub direction: Direction,
    pub grid: Grid,
    pub producers: Vec<usize>,
    pub consumer: usize,
    pub source_tp: usize,
    pub sink_tp: usize,
    pub staged: bool,
    pub renewable: bool,
    pub ttl_ms: u64,
    pub first_byte_ms: u64,
    pub whole_ms: u64,
}

#[derive(Clone, Debug)]
pub struct Setting {
    pub seed: u64,
    pub faults: bool,
    /// Processes copy by their own instructions; when one is gone, so are its writes.
    pub same_host: bool,
    /// Whether dead processes are ever reported.
    pub deaths_told: bool,
    /// Whether what was meant for a dead process reaches the next one of its engine.
    pub misrouted: bool,
    pub limits: Limits,
    pub jobs: Vec<JobSpec>,
}

const WORK: [(Kind, u32); 10] = [
    (Kind::Produce, 16),
    (Kind::Receive, 8),
    (Kind::Retire, 3),
    (Kind::Bystander, 4),
    (Kind::Expect, 1),
    (Kind::Deliver, 28),
    (Kind::Move, 26),
    (Kind::Close, 6),
    (Kind::Tick, 6),
    (Kind::Advance, 6),
];

/// Faults by class. Each seed has some of the classes: with all at once, little of anything gets far.
const FAULTS: [&[(Kind, u32)]; 7] = [
    &[(Kind::Duplicate, 7)],
    &[(Kind::Drop, 4)],
    &[(Kind::FailOp, 2), (Kind::MuteOp, 3)],
    &[(Kind::HoldUp, 6)],
    &[(Kind::Crash, 2), (Kind::Restart, 3), (Kind::EngineGone, 1)],
    &[(Kind::Stop, 2), (Kind::Continue, 3)],
    &[(Kind::Cancel, 3), (Kind::Release, 1), (Kind::Renew, 3), (Kind::Lose, 2), (Kind::Steal, 1)],
];

const FAULT_CLASS_PERCENT: u64 = 55;
const LONG_WAITS_PERCENT: u64 = 60;
const STEPS: std::ops::Range<usize> = 40..220;

pub fn generate(seed: u64, faults: bool) -> (Setting, Vec<Step>) {
    let mut random = Random::new(seed);
    let setting = setting(seed, faults, &mut random);
    let mut weights = WORK.to_vec();
    let mut step_ms = 20;
    if faults {
        for class in FAULTS {
            if random.chance(FAULT_CLASS_PERCENT) {
                weights.extend(class);
            }
        }
        if random.chance(LONG_WAITS_PERCENT) {
            step_ms = 4_000;
        }
    }
    let total: u32 = weights.iter().map(|(_, weight)| weight).sum();
    let count = STEPS.start + random.below(STEPS.len());
    let steps = (0..count).map(|_| {
        let mut left = random.below(total as usize) as u32;
        let chosen = weights.iter().find(|(_, weight)| {
            let hit = left < *weight;
            left = left.saturating_sub(*weight);
            hit
        });
        let kind = chosen.map_or(Kind::Deliver, |(kind, _)| *kind);
        let b = if kind == Kind::Advance { random.below(step_ms) as u16 } else { random.next() as u16 };
        Step { kind, a: random.next() as u16, b }
    });
    (setting, steps.collect())
}

fn setting(seed: u64, faults: bool, random: &mut Random) -> Setting {
    let jobs = (0..1 + random.below(3)).map(|_| job(faults, random)).collect();
    let limits = if faults && random.chance(15) {
        Limits { holds: 2, sources: 2, sinks: 2, closed: 3 }
    } else {
        Limits { holds: 6, sources: 6, sinks: 6, closed: 24 }
    };
    Setting {
        seed,
        faults,
        same_host: random.chance(30),
        deaths_told: random.chance(70),
        misrouted: random.chance(30),
        limits,
        jobs,
    }
}

fn job(faults: bool, random: &mut Random) -> JobSpec {
    let forth = random.chance(65);
    let producers: &[usize] = match (forth, random.below(3)) {
        (false, _) => &[0],
        (true, 0) => &[1],
        (true, 1) => &[2],
        (true, _) => &[1, 2],
    };
    let source_tp = if producers.len() == 2 { random.pick(&[2, 4]) } else { random.pick(&[1, 2, 4]) };
    let verb = random.pick(&[Verb::Read, Verb::Write]);
    let long = if faults { 1 } else { 100 };
    JobSpec {
        verb,
        direction: if forth { Direction::PrefillToDecode } else { Direction::DecodeToPrefill },
        grid: Grid { positions: 1 + random.below(3) as u32, layers: 1 + random.below(LAYERS) as u16 },
        producers: producers.to_vec(),
        consumer: if forth { 0 } else { 1 + random.below(2) },
        source_tp,
        sink_tp: random.pick(&[1, 2, 4]),
        staged: verb == Verb::Write && random.chance(30),
        renewable: random.chance(50),
        ttl_ms: random.pick(&[500, 2_500, 5_000]) * long,
        first_byte_ms: random.pick(&[400, 1_500, 6_000]) * long,
        whole_ms: random.pick(&[1_500, 6_000]) * long,
    }
}
