//! Worker tables: cutting one down to some rows, and lining a fresh one up with rows handed out earlier.

use crate::facts::{FleetColumns, Row, ability};

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

/// Rows for another attempt: without the workers that failed this request if the others can serve it; else
/// without those that another of their role can stand in for. A worker that failed once may be the only one.
pub fn rows_without(fleet: &FleetColumns, failed: &[u64]) -> Vec<Row> {
    let has_failed = |row: &Row| failed.contains(&fleet.id[*row as usize]);
    let others: Vec<Row> = fleet.rows().filter(|row| !has_failed(row)).collect();
    if fleet.can_serve(&others) {
        return others;
    }
    let stands_in =
        |other: &Row, row: &Row| fleet.takes_work(*other) && fleet.role(*other) == fleet.role(*row);
    let stood_in_for = |row: &Row| others.iter().any(|other| stands_in(other, row));
    fleet.rows().filter(|row| !has_failed(row) || !stood_in_for(row)).collect()
}

/// Marks the rows of `fleet` whose workers are gone or drain by now, or are not `usable`: they keep their place, so that
/// rows handed out before stay true, but take no work.
pub fn mark_against(fleet: &mut FleetColumns, now: &FleetColumns, usable: impl Fn(u64) -> bool) {
    for (id, abilities) in fleet.id.iter().zip(fleet.abilities.iter_mut()) {
        let found = now.id.iter().zip(&now.abilities).find(|(other, _)| *other == id && usable(**other));
        match found {
            Some((_, abilities_now)) => *abilities |= abilities_now & ability::DRAINING,
            None => *abilities |= ability::DRAINING | ability::STALE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Role;
    use crate::testing::{decode, prefill, table, unified};

    #[test]
    fn rows_are_cut_and_ordered() {
        let facts = table(&[prefill(), decode(), unified()]);
        let fleet = select_fleet(&facts.fleet, &[2, 0]);
        assert_eq!((fleet.id, fleet.role), (vec![102, 100], vec![0, 1]));
    }

    #[test]
    fn failed_workers_are_left_out_while_others_can_take_their_part() {
        let able = (Role::Decode, ability::CAN_PREFILL);
        for (workers, failed, rows) in [
            (&[prefill(), prefill(), decode(), decode()][..], &[][..], &[0, 1, 2, 3][..]),
            (&[prefill(), prefill(), decode(), decode()], &[100], &[1, 2, 3]),
            (&[prefill(), prefill(), decode(), decode()], &[101, 103, 999], &[0, 2]),
            // The only one of its role stays.
            (&[prefill(), decode(), decode()], &[100], &[0, 1, 2]),
            (&[prefill(), prefill(), decode()], &[100, 101], &[0, 1, 2]),
            (&[prefill(), decode(), decode()], &[100, 101], &[0, 2]),
            // Unless somebody serves alone.
            (&[prefill(), able], &[100], &[1]),
            (&[prefill(), able], &[101], &[0, 1]),
            (&[unified(), unified()], &[100], &[1]),
        ] {
            assert_eq!(rows_without(&table(workers).fleet, failed), rows, "{workers:?} {failed:?}");
        }
    }

    #[test]
    fn absent_and_draining_workers_keep_their_place() {
        let mut fleet = (*table(&[prefill(), decode(), decode(), decode()]).fleet).clone();
        let mut now = select_fleet(&fleet, &[2, 0, 3]);
        now.abilities[0] |= ability::DRAINING;
        mark_against(&mut fleet, &now, |id| id != 103);
        assert_eq!(fleet.id, [100, 101, 102, 103]);
        let marked: Vec<_> =
            fleet.rows().map(|row| (fleet.takes_work(row), fleet.can(row, ability::STALE))).collect();
        assert_eq!(marked, [(true, false), (false, true), (false, false), (false, true)]);
    }

    #[test]
    fn draining_workers_serve_nothing_new() {
        let able = (Role::Decode, ability::CAN_PREFILL);
        for (workers, draining, serves) in [
            (&[prefill(), decode()][..], &[][..], true),
            (&[prefill(), decode()], &[1], false),
            (&[prefill(), decode(), decode()], &[1], true),
            (&[prefill(), prefill(), decode()], &[0, 1], false),
            (&[prefill(), able], &[0], true),
            (&[prefill(), able], &[1], false),
            (&[unified()], &[0], false),
        ] {
            let mut fleet = (*table(workers).fleet).clone();
            for row in draining {
                fleet.abilities[*row] |= ability::DRAINING;
            }
            assert_eq!(
                fleet.can_serve(&fleet.rows().collect::<Vec<_>>()),
                serves,
                "{workers:?} {draining:?}"
            );
        }
        // A worker that failed stays while those of its role that did not are draining.
        let mut fleet = (*table(&[prefill(), decode(), decode()]).fleet).clone();
        fleet.abilities[2] |= ability::DRAINING;
        assert_eq!(rows_without(&fleet, &[101]), [0, 1, 2]);
    }
}
