//! Worker tables: cutting one down to some rows, and lining a fresh one up with rows handed out earlier.

use crate::facts::{FleetColumns, LoadColumns, Row, ability};

fn pick<T: Copy>(rows: &[Row]) -> impl Fn(&Vec<T>) -> Vec<T> + '_ {
    move |column| rows.iter().filter_map(|row| column.get(*row as usize).copied()).collect()
}

/// The same table with these rows alone, in this order.
pub fn select_fleet(fleet: &FleetColumns, rows: &[Row]) -> FleetColumns {
    FleetColumns {
        id: pick(rows)(&fleet.id),
        role: pick(rows)(&fleet.role),
        abilities: pick(rows)(&fleet.abilities),
        group: pick(rows)(&fleet.group),
        zone: pick(rows)(&fleet.zone),
        kv_blocks_total: pick(rows)(&fleet.kv_blocks_total),
        prefill_tokens_per_s: pick(rows)(&fleet.prefill_tokens_per_s),
        decode_step_ms: pick(rows)(&fleet.decode_step_ms),
        link_mb_per_s: pick(rows)(&fleet.link_mb_per_s),
        pull_overhead_ms: pick(rows)(&fleet.pull_overhead_ms),
        push_overhead_ms: pick(rows)(&fleet.push_overhead_ms),
        failure_rate: pick(rows)(&fleet.failure_rate),
    }
}

/// The same loads for these rows alone, in this order.
pub fn select_load(load: &LoadColumns, rows: &[Row]) -> LoadColumns {
    LoadColumns {
        running: pick(rows)(&load.running),
        waiting: pick(rows)(&load.waiting),
        prefill_backlog_tokens: pick(rows)(&load.prefill_backlog_tokens),
        decode_context_tokens: pick(rows)(&load.decode_context_tokens),
        decode_output_tokens: pick(rows)(&load.decode_output_tokens),
        kv_blocks_free: pick(rows)(&load.kv_blocks_free),
        kv_blocks_held: pick(rows)(&load.kv_blocks_held),
    }
}

/// Rows for another attempt: without the workers that failed this request, unless that would leave nobody of
/// their role. A worker that failed once may still be the only one there is.
pub fn rows_without(fleet: &FleetColumns, failed: &[u64]) -> Vec<Row> {
    let has_failed = |row: usize| failed.contains(&fleet.id[row]);
    let replaceable =
        |row: usize| (0..fleet.len()).any(|other| fleet.role[other] == fleet.role[row] && !has_failed(other));
    (0..fleet.len()).filter(|row| !has_failed(*row) || !replaceable(*row)).map(|row| row as Row).collect()
}

/// Marks the rows of `fleet` whose workers are gone: they keep their place, so that rows handed out before stay
/// true, but take no work. `present` says of an id whether it still serves.
pub fn mark_absent(fleet: &mut FleetColumns, present: impl Fn(u64) -> bool) {
    for (id, abilities) in fleet.id.iter().zip(fleet.abilities.iter_mut()) {
        if !present(*id) {
            *abilities |= ability::DRAINING | ability::STALE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{decode, prefill, table, unified};

    #[test]
    fn rows_are_cut_and_ordered() {
        let mut facts = table(&[prefill(), decode(), unified()]);
        facts.load.running = vec![1, 2, 3];
        let fleet = select_fleet(&facts.fleet, &[2, 0]);
        assert_eq!((fleet.id, fleet.role), (vec![102, 100], vec![0, 1]));
        assert_eq!(select_load(&facts.load, &[2, 0]).running, [3, 1]);
    }

    #[test]
    fn failed_workers_are_left_out_while_others_of_their_role_remain() {
        let fleet = table(&[prefill(), prefill(), decode(), unified()]).fleet;
        for (failed, rows) in [
            (&[][..], &[0, 1, 2, 3][..]),
            (&[100], &[1, 2, 3]),
            (&[100, 101], &[0, 1, 2, 3]),
            (&[102], &[0, 1, 2, 3]),
            (&[101, 103, 999], &[0, 2, 3]),
        ] {
            assert_eq!(rows_without(&fleet, failed), rows, "{failed:?}");
        }
    }

    #[test]
    fn absent_workers_keep_their_place() {
        let mut fleet = (*table(&[prefill(), decode()]).fleet).clone();
        mark_absent(&mut fleet, |id| id != 101);
        assert_eq!(fleet.len(), 2);
        assert_eq!(fleet.abilities[0] & ability::DRAINING, 0);
        assert_eq!(fleet.abilities[1] & ability::DRAINING, ability::DRAINING);
    }
}
