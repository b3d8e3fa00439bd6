//! The decision in force when no policy decides: no policy bound, `use-default`, or a fault.
//!
//! Deliberately plain: prefill and decode apart where the pool has both, each on the least loaded worker,
//! early binding, pull. It never holds KV for idle sessions.

use crate::facts::{Facts, FleetColumns, LoadColumns, Role, Row, ability};
use crate::verdict::{DecodeChoice, Disaggregated, Placement, Renewal, Retention, Route, TransferMode};

/// Fetch held KV only if it saves at least this many tokens (vLLM's own default for `kv_recompute_threshold`).
pub const KV_RECOMPUTE_THRESHOLD_TOKENS: u32 = 64;

/// Share of failed legs above which a worker counts as failing.
const FAILING: f32 = 0.5;

/// Where the request runs, or `None` when no worker of the table can serve it.
pub fn route(facts: &Facts) -> Option<Route> {
    disaggregated(facts).or_else(|| alone(facts)).map(|placement| Route {
        placement,
        reason: Some("built-in default".to_owned()),
        hints: Vec::new(),
    })
}

fn disaggregated(facts: &Facts) -> Option<Placement> {
    let eligible = |row: &Row| !facts.can(*row, ability::DRAINING);
    let pairs_up = |prefill: &Row| {
        facts
            .rows(Role::Decode)
            .any(|decode| eligible(&decode) && group(facts, decode) == group(facts, *prefill))
    };
    let prefill = facts.rows(Role::Prefill).filter(eligible).filter(pairs_up).min_by_key(|row| {
        (
            is_failing(&facts.fleet, *row),
            prefill_work_tokens(facts, *row),
            tie(&facts.fleet, facts.seed, *row),
        )
    })?;
    let decode = least_loaded_decode(facts, prefill)?;
    Some(Placement::Disaggregated(Disaggregated {
        prefill,
        decode: DecodeChoice::Now(decode),
        transfer: TransferMode::Pull,
        kv_recompute_threshold_tokens: KV_RECOMPUTE_THRESHOLD_TOKENS,
    }))
}

fn alone(facts: &Facts) -> Option<Placement> {
    (0..facts.fleet.len() as Row)
        .filter(|row| facts.serves_alone(*row) && !facts.can(*row, ability::DRAINING))
        .min_by_key(|row| {
            (
                is_failing(&facts.fleet, *row),
                requests(&facts.load, *row),
                prefill_work_tokens(facts, *row),
                tie(&facts.fleet, facts.seed, *row),
            )
        })
        .map(Placement::Unified)
}

/// The decode worker for a finished prefill, or `None` when none of its group is left.
pub fn bind_decode(facts: &Facts, prefill: Row) -> Option<Row> {
    least_loaded_decode(facts, prefill)
}

/// What is kept of a turn's KV: nothing, since a hold costs decode memory that only a policy should spend.
pub fn retain() -> Retention {
    Retention::Release
}

/// What becomes of a hold whose heartbeat is due and whose policy does not say.
pub fn heartbeat() -> Renewal {
    Renewal::Release
}

fn least_loaded_decode(facts: &Facts, prefill: Row) -> Option<Row> {
    let rows = facts.rows(Role::Decode).filter(|row| group(facts, *row) == group(facts, prefill));
    fewest_requests(&facts.fleet, &facts.load, facts.seed, rows)
}

/// The worker with the fewest requests among `rows`, less those that drain. One that fails is the last choice;
/// ties fall by `seed`.
pub fn fewest_requests(
    fleet: &FleetColumns,
    load: &LoadColumns,
    seed: u64,
    rows: impl Iterator<Item = Row>,
) -> Option<Row> {
    let drains = |row: &Row| {
        fleet.abilities.get(*row as usize).is_some_and(|abilities| abilities & ability::DRAINING != 0)
    };
    rows.filter(|row| !drains(row))
        .min_by_key(|row| (is_failing(fleet, *row), requests(load, *row), tie(fleet, seed, *row)))
}

/// A worker that fails fast always looks idle: it is chosen only when there is no other.
fn is_failing(fleet: &FleetColumns, row: Row) -> bool {
    fleet.failure_rate.get(row as usize).is_some_and(|rate| *rate > FAILING)
}

fn group(facts: &Facts, row: Row) -> Option<u16> {
    facts.fleet.group.get(row as usize).copied()
}

fn requests(load: &LoadColumns, row: Row) -> u64 {
    let at = |column: &[u32]| u64::from(column.get(row as usize).copied().unwrap_or(0));
    at(&load.running) + at(&load.waiting)
}

fn prefill_work_tokens(facts: &Facts, row: Row) -> u64 {
    let at = |column: &[u32]| u64::from(column.get(row as usize).copied().unwrap_or(0));
    let uncached = u64::from(facts.request.prompt_tokens).saturating_sub(at(&facts.cached_tokens));
    at(&facts.load.prefill_backlog_tokens) + uncached
}

/// Breaks ties evenly over conversations, and always the same way for one conversation.
fn tie(fleet: &FleetColumns, seed: u64, row: Row) -> u64 {
    let id = fleet.id.get(row as usize).copied().unwrap_or(0);
    crate::hash::mix(seed ^ crate::hash::mix(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{decode, prefill, table, unified};

    #[test]
    fn picks_the_least_loaded_pair() {
        let mut facts = table(&[prefill(), prefill(), decode(), decode()]);
        facts.request.prompt_tokens = 100;
        facts.load.prefill_backlog_tokens = vec![5_000, 10, 0, 0];
        facts.load.running = vec![0, 9, 7, 3];
        let Some(Route { placement: Placement::Disaggregated(chosen), .. }) = route(&facts) else {
            panic!("a pool with both roles is disaggregated");
        };
        assert_eq!((chosen.prefill, chosen.decode), (1, DecodeChoice::Now(3)));
    }

    #[test]
    fn a_cached_prefix_outweighs_a_small_backlog() {
        let mut facts = table(&[prefill(), prefill(), decode()]);
        facts.request.prompt_tokens = 4_000;
        facts.load.prefill_backlog_tokens = vec![500, 0, 0];
        facts.cached_tokens = vec![3_900, 0, 0];
        let Some(Route { placement: Placement::Disaggregated(chosen), .. }) = route(&facts) else {
            panic!("disaggregated");
        };
        assert_eq!(chosen.prefill, 0);
    }

    #[test]
    fn a_worker_that_fails_is_the_last_choice() {
        let mut facts = table(&[prefill(), prefill(), decode(), decode()]);
        facts.load.prefill_backlog_tokens = vec![0, 9_000, 0, 0];
        facts.load.running = vec![0, 5, 0, 5];
        std::sync::Arc::make_mut(&mut facts.fleet).failure_rate = vec![0.9, 0.0, 0.9, 0.1];
        let Some(Route { placement: Placement::Disaggregated(chosen), .. }) = route(&facts) else {
            panic!("disaggregated");
        };
        assert_eq!((chosen.prefill, chosen.decode), (1, DecodeChoice::Now(3)));
    }

    #[test]
    fn a_pair_shares_its_group() {
        let mut facts = table(&[prefill(), prefill(), decode()]);
        std::sync::Arc::make_mut(&mut facts.fleet).group = vec![1, 2, 2];
        let Some(Route { placement: Placement::Disaggregated(chosen), .. }) = route(&facts) else {
            panic!("disaggregated");
        };
        assert_eq!(chosen.prefill, 1);
    }

    #[test]
    fn serves_alone_when_there_is_no_pair_and_refuses_when_nobody_can() {
        let facts = table(&[unified(), unified()]);
        assert!(matches!(route(&facts), Some(Route { placement: Placement::Unified(_), .. })));
        assert_eq!(route(&table(&[prefill()])), None);
        assert_eq!(route(&table(&[decode()])), None);
        assert_eq!(route(&table(&[])), None);
    }

    #[test]
    fn ties_are_spread_over_conversations_and_stable_for_one() {
        let mut facts = table(&[unified(), unified(), unified(), unified()]);
        let mut counts = [0_u32; 4];
        for seed in 0..4_000 {
            facts.seed = seed;
            let Some(Route { placement: Placement::Unified(row), .. }) = route(&facts) else {
                panic!("unified")
            };
            assert_eq!(route(&facts).map(|route| route.placement), Some(Placement::Unified(row)));
            counts[row as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }
}
