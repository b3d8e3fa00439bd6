//! The workers that are expected to take the least time.
//!
//! # When to use it
//! As the default for real traffic. It weighs queues, measured rates, what each worker has cached and how
//! much KV memory is free; it sends a request to one worker when little of the prompt has to be computed, and
//! to a prefill and a decode worker otherwise. It needs truthful figures: where the fleet reports none, it
//! falls back to assumed rates and behaves like a least-loaded policy. What a conversation leaves behind is kept
//! while its next turn is expected soon enough.

mod cost;
mod lease;

use sluice_policy_sdk::pick::{self, Least, Pairs};
use sluice_policy_sdk::{
    Ability, Facts, Lease, Policy, Prefilled, Renewal, Retention, Role, Row, TurnEnd, Verdict, Worker,
    export, settings,
};

use cost::{ALL, BLOCK, Costs};

settings! {
    /// What the cost model assumes, and where its lines are.
    pub struct Settings {
        /// Prefill rate assumed for a worker whose rate was not measured yet, in tokens per second.
        assumed_prefill_tokens_per_s: u32 = 8_000, 1..=10_000_000;
        /// Decode step assumed for a worker whose step was not measured yet, in milliseconds.
        assumed_decode_step_ms: u32 = 20, 1..=10_000;
        /// A worker that can prefill and decode serves a request alone when at most this many tokens are
        /// uncached there: computing them takes less time than handing KV blocks over, and disturbs the
        /// decoding of others for less than a step. The same line as vLLM draws between computing and fetching.
        unified_below_tokens: u32 = 64, 0..=1_000_000;
        /// Always choose the decode worker after the prefill.
        late_binding: bool = false;
        /// Choose the decode worker after the prefill when the best one has at least this many requests
        /// waiting: queues will look different by then.
        late_at_waiting: u32 = 4, 1..=1_000_000;
        /// Have KV pushed to the decode worker while the prompt is still prefilled, where both workers can: the
        /// first token does not wait for the transfer, and the decode worker's KV blocks are taken for as long
        /// as the prefill runs. Not where the decode worker is chosen after the prefill.
        push: bool = false;
        /// The longest that a decode worker keeps KV blocks after a turn, in milliseconds: how long it does where
        /// nothing is known of the gaps between turns. 0 keeps none.
        retain_ttl_ms: u32 = 480_000, 0..=86_400_000;
        /// What a turn that comes back to its KV blocks is worth: so many milliseconds of keeping a turn's, where a
        /// quarter of the holder's memory is free. With less of it free, it is worth less.
        retain_patience_ms: u32 = 480_000, 0..=86_400_000;
        /// Where the holder can renew, blocks that are kept for longer than two of these are asked about at each,
        /// in milliseconds.
        heartbeat_ms: u32 = 5_000, 500..=3_600_000;
    }
}

/// Least expected time.
#[derive(Debug)]
pub struct Adaptive {
    settings: Settings,
}

/// The best workers seen so far.
struct Best<'a> {
    pairs: Pairs<'a>,
    /// To serve the request alone; not kept up once there is a pair.
    alone: Least<'a>,
    /// As `alone`, where little is uncached.
    near: Least<'a>,
}

impl<'a> Best<'a> {
    /// One pass over the table.
    fn of(facts: &'a Facts, costs: &Costs) -> Self {
        let nobody = Least::new(facts.seed);
        let mut best = Self { pairs: Pairs::new(facts.seed), alone: nobody, near: nobody };
        for from in (0..facts.workers.id.len()).step_by(BLOCK) {
            let to_beat = best.pairs.of_one_group();
            let worth = to_beat.and_then(|pair| costs.worth(&facts.workers, from, &pair));
            let mut left = worth.unwrap_or(ALL);
            while left != 0 {
                let row = from + left.trailing_zeros() as usize;
                left &= left - 1;
                let worker = facts.worker(row as Row);
                if let Some(worker) = worker.filter(|worker| worker.takes_work()) {
                    best.offer(worker, costs, to_beat.is_some());
                }
            }
        }
        best
    }

    fn offer(&mut self, worker: Worker<'a>, costs: &Costs, is_paired: bool) {
        match worker.role() {
            Some(Role::Prefill) => self.pairs.offer_prefill(worker, costs.prefill_ms(worker)),
            Some(Role::Decode) => self.pairs.offer_decode(worker, costs.decode_ms(worker)),
            _ => {}
        }
        let is_near = costs.is_near(worker);
        if (is_near || !is_paired) && worker.serves_alone() {
            let ms = costs.alone_ms(worker);
            self.alone.offer(worker, ms);
            if is_near {
                self.near.offer(worker, ms);
            }
        }
    }
}

impl Adaptive {
    fn moved(&self, prefill: Worker<'_>, decode: Worker<'_>) -> Verdict {
        let pushes = self.settings.push && prefill.can(Ability::Push) && decode.can(Ability::Push);
        let verdict = if pushes { Verdict::push } else { Verdict::pull };
        verdict(prefill.row(), decode.row())
    }
}

impl Policy for Adaptive {
    fn settings_schema() -> String {
        Settings::schema()
    }

    fn configure(settings: &str) -> Result<Self, String> {
        Settings::parse(settings).map(|settings| Self { settings })
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let best = Best::of(facts, &Costs::of(facts, &self.settings));
        let Some(pair) = best.pairs.least() else {
            return match best.alone.worker() {
                Some(worker) => Verdict::unified(worker.row()).because("no pair to split it over"),
                // Nobody can serve. The host knows why, and words that for the client; a policy would guess.
                None => Verdict::UseDefault,
            };
        };
        // The worker of a popular prefix must not get every request that begins with it.
        if let Some(worker) =
            best.near.worker().filter(|_| best.near.cost() <= pair.prefill_cost + pair.decode_cost)
        {
            Verdict::unified(worker.row()).because("little is uncached there")
        } else if self.settings.late_binding {
            Verdict::pull_late(pair.prefill.row()).because("decode worker chosen after the prefill")
        } else if pair.decode.waiting() >= self.settings.late_at_waiting {
            Verdict::pull_late(pair.prefill.row()).because("decode queues are deep")
        } else {
            self.moved(pair.prefill, pair.decode).because("least expected time")
        }
    }

    fn bind_decode(&self, facts: &Facts, prefilled: &Prefilled) -> Option<Row> {
        let (prefill, costs) = (facts.worker(prefilled.prefill)?, Costs::of(facts, &self.settings).by_pull());
        pick::least(facts.seed, facts.decodes_for(prefill), |worker| costs.decode_ms(worker)).map(Worker::row)
    }

    fn retain(&self, turn: &TurnEnd) -> Retention {
        lease::retain(turn, &self.settings)
    }

    fn heartbeat(&self, lease: &Lease) -> Renewal {
        lease::heartbeat(lease, &self.settings)
    }
}

export!(Adaptive);

#[cfg(test)]
mod tests;
