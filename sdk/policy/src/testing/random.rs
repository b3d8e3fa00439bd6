//! Facts of all kinds, drawn from a seed: what a policy must survive, not what is likely.

use crate::pick::mix;
use crate::testing::{FactsBuilder, WorkerSpec, decode, prefill, unified};
use crate::{Ability, Facts, Session};

/// Most workers of a drawn fleet, unless [`RandomFacts::workers`] says how many.
const WORKERS_MAX: u64 = 12;

/// An endless series of facts; the same seed gives the same series.
///
/// Among them are empty fleets, pools that are split and pools that are not, mixed ones, two KV layout groups,
/// draining and full workers, ones that were never measured, figures that are not numbers, long prompts, and
/// sessions whose workers left.
///
/// ```
/// use sluice_policy_sdk::testing::RandomFacts;
///
/// let seeds = |facts: RandomFacts| facts.take(10).map(|facts| facts.seed).collect::<Vec<_>>();
/// assert_eq!(seeds(RandomFacts::new(7)), seeds(RandomFacts::new(7)));
/// assert!(RandomFacts::new(7).workers(64).take(10).all(|facts| facts.workers().len() == 64));
/// ```
#[derive(Debug, Clone)]
pub struct RandomFacts {
    dice: Dice,
    workers: Option<u64>,
}

impl RandomFacts {
    /// The series of this seed.
    pub fn new(seed: u64) -> Self {
        Self { dice: Dice { seed, drawn: 0 }, workers: None }
    }

    /// From now on, fleets of exactly so many workers.
    #[must_use]
    pub fn workers(mut self, count: u64) -> Self {
        self.workers = Some(count);
        self
    }
}

impl Iterator for RandomFacts {
    type Item = Facts;

    fn next(&mut self) -> Option<Facts> {
        let dice = &mut self.dice;
        let count = match self.workers {
            Some(count) => count,
            None => dice.below(WORKERS_MAX + 1),
        };
        let pool = dice.one_of([Pool::Split, Pool::Split, Pool::Unified, Pool::Mixed]);
        let groups = dice.one_of([1, 1, 2]);
        let mut facts = FactsBuilder::new()
            .seed(dice.number())
            .sequence(dice.one_of([0, 1, 1_000_000, u64::MAX]))
            .prompt_tokens(dice.size(100_000))
            .max_output_tokens(dice.size(4_000));
        for id in 1..=count {
            facts = facts.worker(worker(dice, id, pool, groups));
        }
        facts = facts.request(|request| {
            request.attempt = dice.one_of([0, 0, 1, 3]);
            request.priority = dice.one_of([0, 0, -10, 10]);
            request.streams = dice.one_in(2);
            request.prompt_tokens_exact = dice.one_in(2);
            request.ttft_target_ms = dice.one_in(4).then_some(500);
            request.tpot_target_ms = dice.one_in(4).then_some(30);
            if dice.one_in(3) {
                request.labels.push(("x-class".to_owned(), "batch".to_owned()));
            }
        });
        if dice.one_in(2) {
            facts = facts.session(|session| fill_session(session, dice, count));
        }
        Some(facts.build())
    }
}

#[derive(Clone, Copy)]
enum Pool {
    Split,
    Unified,
    Mixed,
}

fn worker(dice: &mut Dice, id: u64, pool: Pool, groups: u64) -> WorkerSpec {
    let mut worker = match pool {
        Pool::Unified => unified(id),
        Pool::Split => dice.one_of([prefill, decode])(id),
        Pool::Mixed => dice.one_of([prefill, decode, unified])(id),
    };
    if dice.one_in(3) {
        worker = worker.able(Ability::CanPrefill);
    }
    if dice.one_in(8) {
        worker = worker.able(Ability::Draining);
    }
    worker.group = dice.below(groups) as u16;
    // A third of all workers is idle, so that there are ties.
    if dice.one_in(3) {
        return worker;
    }
    worker.running = dice.size(64);
    worker.waiting = dice.size(16);
    worker.prefill_backlog_tokens = dice.size(50_000);
    worker.decode_context_tokens = dice.size(200_000);
    worker.decode_output_tokens = dice.size(10_000);
    worker.kv_blocks_free = dice.size(10_000);
    worker.cached_tokens = dice.size(20_000);
    worker.prefill_tokens_per_s = dice.one_of([9_000.0, 2_000.0, 0.0, f32::NAN]);
    worker.decode_step_ms = dice.one_of([18.0, 40.0, 0.0, f32::NAN]);
    worker.link_mb_per_s = dice.one_of([3_000.0, 100.0, 0.0]);
    worker.pull_overhead_ms = dice.one_of([4.0, 0.5, 0.0]);
    worker.failure_rate = dice.one_of([0.0, 0.0, 0.01, 0.9, 1.0]);
    worker
}

/// Its rows may be of any role, and may have left the table.
fn fill_session(session: &mut Session, dice: &mut Dice, workers: u64) {
    let mut row = || dice.below(workers + 2) as u32;
    (session.holder, session.last_prefill) = (Some(row()), Some(row()));
    session.turn = dice.size(20);
    session.held_tokens = dice.size(20_000);
    session.held_expires_in_ms = dice.size(480_000);
    session.last_gap_ms = dice.size(60_000);
    session.mean_gap_ms = dice.one_of([0.0, 5_000.0]);
    session.gap_spread_ms = dice.one_of([0.0, 2_500.0]);
}

/// Numbers drawn one after the other from a seed.
#[derive(Debug, Clone)]
struct Dice {
    seed: u64,
    drawn: u64,
}

impl Dice {
    fn number(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.seed, self.drawn)
    }

    /// From 0 to `end` - 1; the bias of the remainder is nothing for numbers so small.
    fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn one_of<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.below(N as u64) as usize]
    }

    /// Mostly up to `usual`, sometimes nothing, and now and then all there can be.
    fn size(&mut self, usual: u32) -> u32 {
        match self.below(16) {
            0..=2 => 0,
            3 => u32::MAX,
            _ => self.below(u64::from(usual) + 1) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Role, Worker};

    /// A property that holds for all of them says little if none of a kind was among them.
    #[test]
    fn all_kinds_are_among_them() {
        let facts: Vec<_> = RandomFacts::new(1).take(500).collect();
        let some = |what: &str, is: &dyn Fn(&Facts) -> bool| {
            let count = facts.iter().filter(|facts| is(facts)).count();
            assert!((10..=490).contains(&count), "{what}: {count} of 500");
        };
        let any = |is: fn(Worker<'_>) -> bool| move |facts: &Facts| facts.workers().any(is);
        some("empty", &|facts| facts.workers().len() == 0);
        some("pairs", &|facts| facts.paired_prefills().next().is_some());
        some("alone", &|facts| facts.alone().next().is_some());
        some("unified", &any(|worker| worker.role() == Some(Role::Unified)));
        some("draining", &any(|worker| !worker.takes_work()));
        some("two groups", &any(|worker| worker.group() == 1));
        some("full", &any(|worker| worker.kv_blocks_free() == 0));
        some("unmeasured", &any(|worker| worker.decode_step_ms() == 0.0));
        some("no number", &any(|worker| worker.prefill_tokens_per_s().is_nan()));
        some("session", &|facts| facts.session.is_some());
        some("holder that left", &|facts| facts.session.is_some() && facts.holder().is_none());
        some("labels", &|facts| !facts.request.labels.is_empty());
    }
}
