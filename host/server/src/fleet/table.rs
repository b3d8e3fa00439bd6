//! The worker table of a pool: columns for policies, the workers behind the rows for the host.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::facts::{FleetColumns, LoadColumns, Role, Row, ability};
use sluice_core::health::State;
use sluice_core::load::{Scraped, load_now};
use sluice_core::table::{mark_against, select_fleet};

use super::attachment::Layouts;
use super::worker::Worker;
use crate::clock::millis;

/// The workers that take work, as of one publication. Immutable and shared.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// What policies see between publications.
    pub fleet: Arc<FleetColumns>,
    /// Same rows.
    pub workers: Vec<Arc<Worker>>,
    /// Whether workers are in it whose breakers are open, since without them nobody would have their role.
    pub breakers_ignored: bool,
    /// Tokens of a position of a transfer that this host makes: divides the block sizes of all attached engines.
    pub position_tokens: Option<u32>,
    /// KV bytes of a token, as attached engines declare them.
    pub kv_bytes_per_token: Option<u32>,
    /// Whether each one's engine caches prefixes, or does not say.
    pub caches: Vec<bool>,
    scraped: Vec<Scraped>,
}

/// How good a worker of its role one is: the table has the best there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Choice {
    /// Nothing speaks against it.
    Good,
    /// This host is to move its KV, and its engine is not attached: it computes what would have been brought.
    Unattached,
    /// It fails again and again.
    BreakerOpen,
}

impl Choice {
    fn of(worker: &Worker, now_ms: u64) -> Self {
        let seen = worker.seen();
        if !seen.breaker.passes(now_ms) {
            Self::BreakerOpen
        } else if worker.needs_attachment() && seen.attachment.engine().is_none() {
            Self::Unattached
        } else {
            Self::Good
        }
    }
}

/// Gives workers without a fresh figure (0) the mean of their peers' of the same role. One that was slow when last
/// seen, and got no work since, is then tried again rather than shunned for good.
fn fill_from_peers(column: &mut [f32], role: &[u8]) {
    let measured: Vec<_> =
        role.iter().copied().zip(column.iter().copied()).filter(|(_, value)| *value > 0.0).collect();
    for (value, role) in column.iter_mut().zip(role).filter(|(value, _)| **value == 0.0) {
        let peers = measured.iter().filter(|(other, _)| other == role).map(|(_, value)| value);
        let (sum, count) = peers.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
        if count > 0 {
            *value = sum / count as f32;
        }
    }
}

impl Table {
    /// The table of those workers that are up, as of `now`.
    pub fn of(workers: &[Arc<Worker>], now: Duration) -> Self {
        let mut fleet = FleetColumns::default();
        let mut table = Self::default();
        let now_ms = millis(now);
        let is_up = |worker: &Worker| {
            let seen = worker.seen();
            // One that serves another model answers each request with 404.
            seen.health.state == State::Up && seen.serves_model
        };
        let up = || workers.iter().filter(|worker| is_up(worker));
        let best = Role::ALL.map(|role| {
            let open = up().filter(|worker| worker.role == role && worker.takes_work());
            open.map(|worker| Choice::of(worker, now_ms)).min()
        });
        let mut layouts = Vec::new();
        for worker in up() {
            let choice = Choice::of(worker, now_ms);
            if best[worker.role as usize].is_some_and(|best| choice > best) {
                continue;
            }
            table.breakers_ignored |= choice == Choice::BreakerOpen;
            let seen = worker.seen().clone();
            layouts.push(seen.attachment.engine().map(|engine| engine.layout));
            fleet.id.push(worker.id);
            fleet.role.push(worker.role as u8);
            let draining = if seen.draining_since.is_some() { ability::DRAINING } else { 0 };
            fleet.abilities.push(worker.abilities | draining);
            fleet.zone.push(worker.zone);
            fleet.kv_blocks_total.push(seen.scraped.kv_blocks_total);
            fleet.prefill_tokens_per_s.push(seen.prefill_rate.fresh(now) * 1_000.0);
            fleet.decode_step_ms.push(seen.decode_step.fresh(now));
            fleet.link_mb_per_s.push(seen.link_mb_per_s.value());
            fleet.pull_overhead_ms.push(seen.pull_overhead_ms.value());
            fleet.push_overhead_ms.push(seen.push_overhead_ms.value());
            fleet.failure_rate.push(seen.failures.value());
            table.workers.push(worker.clone());
            table.caches.push(seen.caches_prefixes);
            table.scraped.push(seen.scraped);
        }
        fill_from_peers(&mut fleet.prefill_tokens_per_s, &fleet.role);
        fill_from_peers(&mut fleet.decode_step_ms, &fleet.role);
        // Where the host moves no KV, a pool's engines have one layout: they were started with one line of its
        // configuration.
        let layouts = Layouts::of(&layouts);
        fleet.group = layouts.groups;
        (table.position_tokens, table.kv_bytes_per_token) =
            (layouts.position_tokens, layouts.bytes_per_token);
        table.fleet = Arc::new(fleet);
        table
    }

    /// Load at this moment: bookings joined with the last scrape.
    pub fn load(&self) -> LoadColumns {
        let mut columns = LoadColumns::default();
        for (worker, scraped) in self.workers.iter().zip(&self.scraped) {
            let booked = worker.booked();
            let load = load_now(scraped, booked.requests, booked.kv_blocks);
            columns.running.push(load.running);
            columns.waiting.push(load.waiting);
            columns.prefill_backlog_tokens.push(booked.prefill_tokens);
            columns.decode_context_tokens.push(booked.context_tokens);
            columns.decode_output_tokens.push(booked.output_tokens);
            columns.kv_blocks_free.push(load.kv_blocks_free);
            let held_blocks = worker.held_tokens().div_ceil(u64::from(worker.block_tokens.max(1)));
            columns.kv_blocks_held.push(u32::try_from(held_blocks).unwrap_or(u32::MAX));
        }
        columns
    }

    /// These rows alone, in this order.
    pub fn select(&self, rows: &[Row]) -> Self {
        Self {
            fleet: Arc::new(select_fleet(&self.fleet, rows)),
            workers: rows.iter().filter_map(|row| self.workers.get(*row as usize).cloned()).collect(),
            breakers_ignored: self.breakers_ignored,
            position_tokens: self.position_tokens,
            kv_bytes_per_token: self.kv_bytes_per_token,
            caches: rows.iter().filter_map(|row| self.caches.get(*row as usize).copied()).collect(),
            scraped: rows.iter().filter_map(|row| self.scraped.get(*row as usize).copied()).collect(),
        }
    }

    /// This table's rows, with workers marked that `now` no longer has, that drain by now, or that this request must
    /// not use: rows handed out earlier in a request's life stay true while the fleet changes.
    pub fn marked_against(&self, now: &Self, usable: impl Fn(u64) -> bool) -> Self {
        let mut fleet = (*self.fleet).clone();
        mark_against(&mut fleet, &now.fleet, usable);
        Self { fleet: Arc::new(fleet), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sluice_core::health::{Health, Report};

    use super::*;
    use crate::config;
    use crate::fleet::Attachment;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn unmeasured_workers_count_as_their_peers() {
        let mut steps = [10.0, 0.0, 20.0, 0.0, 0.0];
        fill_from_peers(&mut steps, &[2, 2, 2, 1, 0]);
        assert_eq!(steps, [10.0, 15.0, 20.0, 0.0, 0.0]);
    }

    const POOL: &str = "
        [[pool]]
        name = 'main'
        model = 'm'
        mode = 'MODE'
        worker = [
            { name = 'p0', role = 'prefill', url = 'http://h:1' },
            { name = 'p1', role = 'prefill', url = 'http://h:2' },
            { name = 'd0', role = 'decode', url = 'http://h:3' },
            { name = 'd1', role = 'decode', url = 'http://h:4' },
            { name = 'u0', role = 'unified', url = 'http://h:5' },
        ]";

    fn workers(mode: &str) -> Vec<Arc<Worker>> {
        let config = config::parse(Path::new("sluice.toml"), &POOL.replace("MODE", mode)).expect("valid");
        let (pool, metrics) = (&config.pools[0], Metrics::default());
        let workers = pool.workers.iter().map(|worker| Arc::new(Worker::new(pool, worker, &metrics)));
        workers.inspect(|worker| worker.seen().health = Health::default().after(Report::ProbeOk)).collect()
    }

    fn names(workers: &[Arc<Worker>]) -> (Vec<String>, bool) {
        let table = Table::of(workers, Duration::from_secs(1));
        (table.workers.iter().map(|worker| worker.name.clone()).collect(), table.breakers_ignored)
    }

    #[test]
    fn a_table_has_the_best_of_each_role() {
        use crate::fleet::attachment::tests::attached;
        let attach =
            |worker: &Arc<Worker>| worker.seen().attachment = Attachment::Attached(attached().into());
        let fail = |worker: &Arc<Worker>| {
            let mut seen = worker.seen();
            (0..sluice_core::breaker::WORKER_FAILURES_TO_OPEN).for_each(|_| _ = seen.breaker.failed(1_000));
        };
        let drain = |worker: &Arc<Worker>| worker.seen().draining_since = Some(Duration::ZERO);
        // Nobody is attached: all are used, and none for being alone.
        let all = workers("host-managed");
        assert_eq!(names(&all), (["p0", "p1", "d0", "d1", "u0"].map(str::to_owned).to_vec(), false));
        attach(&all[1]);
        attach(&all[2]);
        assert_eq!(names(&all), (["p1", "d0", "u0"].map(str::to_owned).to_vec(), false));
        // One that computes is better than one that fails, and one that fails than none.
        fail(&all[2]);
        assert_eq!(names(&all), (["p1", "d1", "u0"].map(str::to_owned).to_vec(), false));
        fail(&all[3]);
        assert_eq!(names(&all), (["p1", "d0", "d1", "u0"].map(str::to_owned).to_vec(), true));
        // One that drains stands for nobody.
        drain(&all[1]);
        assert_eq!(names(&all).0, ["p0", "p1", "d0", "d1", "u0"].map(str::to_owned));
        // Where engines move KV, nobody attaches.
        assert_eq!(names(&workers("pull")).0.len(), 5);
    }
}
