//! The worker table, read by row instead of by column.

use crate::{Facts, Row, Workers};

/// What a worker is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Prefills and decodes.
    Unified,
    /// Prefills, and hands its KV blocks to a decode worker.
    Prefill,
    /// Decodes from KV blocks that a prefill worker made.
    Decode,
}

impl Role {
    /// The number in the `role` column.
    pub const fn number(self) -> u8 {
        match self {
            Self::Unified => 0,
            Self::Prefill => 1,
            Self::Decode => 2,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Unified),
            1 => Some(Self::Prefill),
            2 => Some(Self::Decode),
            _ => None,
        }
    }
}

/// One thing a worker can do, or one thing to know of it: a bit of the `abilities` column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Ability {
    /// Takes part in pull transfers.
    Pull = 1,
    /// Takes part in push transfers.
    Push = 2,
    /// Gives KV blocks back to prefill workers.
    GivesBack = 4,
    /// Takes no new work; in the table only as the holder of a session.
    Draining = 8,
    /// A decode worker that can also prefill, so that it can serve a request alone.
    CanPrefill = 16,
    /// Its holds can be renewed.
    HoldsRenewable = 32,
    /// Its holds can be released early.
    HoldsReleasable = 64,
    /// [`Worker::cached_tokens`] comes from KV events.
    CacheFromEvents = 128,
    /// [`Worker::cached_tokens`] is a prediction.
    CachePredicted = 256,
    /// Its load figures are stale.
    Stale = 512,
}

impl Ability {
    /// The bit in the `abilities` column.
    pub const fn bit(self) -> u16 {
        self as u16
    }
}

/// One worker: a view of one row of the table, cheap to copy.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    table: &'a Workers,
    row: Row,
}

/// Reads one column. A short column reads as zero instead of a trap: the host keeps all columns at one length.
macro_rules! column {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $($(#[$doc])*
        pub fn $name(self) -> $type {
            self.table.$name.get(self.row as usize).copied().unwrap_or_default()
        })*
    };
}

impl<'a> Worker<'a> {
    /// The row: what verdicts name a worker by, in this call only.
    pub fn row(self) -> Row {
        self.row
    }

    /// What it is for; `None` for a role that this SDK does not know.
    pub fn role(self) -> Option<Role> {
        self.table.role.get(self.row as usize).and_then(|number| Role::from_number(*number))
    }

    /// Whether it has an ability.
    pub fn can(self, ability: Ability) -> bool {
        self.abilities() & ability.bit() != 0
    }

    /// Whether it takes new work.
    pub fn takes_work(self) -> bool {
        !self.can(Ability::Draining)
    }

    /// Whether it can serve a request alone.
    pub fn serves_alone(self) -> bool {
        match self.role() {
            Some(Role::Unified) => true,
            Some(Role::Decode) => self.can(Ability::CanPrefill),
            _ => false,
        }
    }

    /// Whether KV blocks can go between the two: they share a layout group.
    pub fn pairs_with(self, other: Worker<'_>) -> bool {
        self.group() == other.group()
    }

    /// Prompt tokens that it would have to compute itself.
    pub fn uncached_tokens(self, prompt_tokens: u32) -> u32 {
        prompt_tokens.saturating_sub(self.cached_tokens())
    }

    column! {
        /// Stable across calls and restarts.
        id: u64;
        /// All [`Ability`] bits.
        abilities: u16;
        /// KV layout group.
        group: u16;
        /// Where it runs.
        zone: u16;
        /// Requests running.
        running: u32;
        /// Requests waiting.
        waiting: u32;
        /// Admitted, not yet prefilled.
        prefill_backlog_tokens: u32;
        /// Context of the sequences now decoding.
        decode_context_tokens: u32;
        /// Generated so far by the sequences now decoding.
        decode_output_tokens: u32;
        /// KV blocks it has.
        kv_blocks_total: u32;
        /// KV blocks neither in use nor booked.
        kv_blocks_free: u32;
        /// KV blocks kept for idle sessions.
        kv_blocks_held: u32;
        /// Leading tokens of this request's prompt believed resident.
        cached_tokens: u32;
        /// Measured, smoothed; 0 while nothing was measured.
        prefill_tokens_per_s: f32;
        /// Measured, smoothed; 0 while nothing was measured.
        decode_step_ms: f32;
        /// Measured, smoothed; 0 while nothing was measured.
        link_mb_per_s: f32;
        /// From prefill end to decode start beyond the bytes' own time, when the decode worker reads.
        pull_overhead_ms: f32;
        /// As [`pull_overhead_ms`](Self::pull_overhead_ms), when the prefill worker writes.
        push_overhead_ms: f32;
        /// 0..1, smoothed.
        failure_rate: f32;
    }
}

impl std::fmt::Debug for Worker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("row", &self.row)
            .field("id", &self.id())
            .field("role", &self.role())
            .finish_non_exhaustive()
    }
}

impl Facts {
    /// All workers of the table, also a draining holder.
    pub fn workers(&self) -> impl DoubleEndedIterator<Item = Worker<'_>> + ExactSizeIterator + Clone {
        let table = &self.workers;
        let rows = u32::try_from(table.id.len()).unwrap_or(u32::MAX);
        (0..rows).map(move |row| Worker { table, row })
    }

    /// The worker of a row; `None` when the table has no such row.
    pub fn worker(&self, row: Row) -> Option<Worker<'_>> {
        ((row as usize) < self.workers.id.len()).then_some(Worker { table: &self.workers, row })
    }

    /// Workers of one role that take new work.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = Worker<'_>> + Clone {
        let wanted = role.number();
        self.where_columns(move |role, _| role == wanted)
    }

    /// Prefill workers that take new work.
    pub fn prefills(&self) -> impl Iterator<Item = Worker<'_>> + Clone {
        self.of_role(Role::Prefill)
    }

    /// Decode workers that take new work.
    pub fn decodes(&self) -> impl Iterator<Item = Worker<'_>> + Clone {
        self.of_role(Role::Decode)
    }

    /// Unified workers that take new work.
    pub fn unified(&self) -> impl Iterator<Item = Worker<'_>> + Clone {
        self.of_role(Role::Unified)
    }

    /// Workers that take new work and can serve a request alone: unified ones, and decode workers that can
    /// prefill.
    pub fn alone(&self) -> impl Iterator<Item = Worker<'_>> + Clone {
        let (unified, decode) = (Role::Unified.number(), Role::Decode.number());
        self.where_columns(move |role, abilities| {
            role == unified || (role == decode && abilities & Ability::CanPrefill.bit() != 0)
        })
    }

    /// Workers that take new work, by role and abilities. Walks the two columns side by side instead of looking
    /// up row by row: large tables are scanned several times a decision.
    fn where_columns(
        &self,
        wanted: impl Fn(u8, u16) -> bool + Clone,
    ) -> impl Iterator<Item = Worker<'_>> + Clone {
        let table = &self.workers;
        let columns = table.role.iter().zip(&table.abilities).zip(0..);
        columns
            .filter(move |((role, abilities), _)| {
                wanted(**role, **abilities) && *abilities & Ability::Draining.bit() == 0
            })
            .map(move |(_, row)| Worker { table, row })
    }

    /// Decode workers that can take KV blocks from this prefill worker.
    pub fn decodes_for<'a>(&'a self, prefill: Worker<'a>) -> impl Iterator<Item = Worker<'a>> + Clone {
        self.decodes().filter(move |decode| decode.pairs_with(prefill))
    }

    /// Prefill workers that some decode worker can take KV blocks from.
    pub fn paired_prefills(&self) -> impl Iterator<Item = Worker<'_>> + Clone {
        // Few fleets have more than one or two groups, so that a list is faster than a set.
        let mut groups: Vec<u16> = Vec::new();
        self.decodes().for_each(|decode| {
            if !groups.contains(&decode.group()) {
                groups.push(decode.group());
            }
        });
        self.prefills().filter(move |prefill| groups.contains(&prefill.group()))
    }

    /// The decode worker of the session's last turn, if it is still in the table.
    pub fn holder(&self) -> Option<Worker<'_>> {
        self.session.as_ref().and_then(|session| session.holder).and_then(|row| self.worker(row))
    }

    /// The prefill worker of the session's last turn, if it is still in the table.
    pub fn last_prefill(&self) -> Option<Worker<'_>> {
        self.session.as_ref().and_then(|session| session.last_prefill).and_then(|row| self.worker(row))
    }

    /// KV blocks that hold so many tokens.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FactsBuilder, WorkerSpec, decode, prefill, unified};

    fn ids<'a>(workers: impl Iterator<Item = Worker<'a>>) -> Vec<u64> {
        workers.map(Worker::id).collect()
    }

    #[test]
    fn lists_by_what_workers_can_do() {
        let draining = Ability::Draining.bit();
        let facts = FactsBuilder::new()
            .worker(prefill(1))
            .worker(WorkerSpec { group: 9, ..prefill(2) })
            .worker(decode(3))
            .worker(WorkerSpec { abilities: Ability::CanPrefill.bit(), ..decode(4) })
            .worker(unified(5))
            .worker(WorkerSpec { abilities: draining, ..decode(6) })
            .build();
        assert_eq!(ids(facts.workers()), [1, 2, 3, 4, 5, 6]);
        assert_eq!(ids(facts.prefills()), [1, 2]);
        assert_eq!(ids(facts.paired_prefills()), [1]);
        assert_eq!(ids(facts.decodes()), [3, 4]);
        assert_eq!(ids(facts.unified()), [5]);
        assert_eq!(ids(facts.alone()), [4, 5]);
        let other_group = facts.worker(1).expect("row 1");
        assert_eq!(ids(facts.decodes_for(other_group)), [0_u64; 0]);
    }

    #[test]
    fn unknown_roles_and_rows_are_nobody() {
        let mut facts = FactsBuilder::new().worker(unified(1)).build();
        facts.workers.role[0] = 7;
        assert_eq!(facts.worker(0).expect("row 0").role(), None);
        assert_eq!(facts.alone().count(), 0);
        assert!(facts.worker(1).is_none());
    }

    #[test]
    fn session_rows_that_left_the_table_are_none() {
        let facts = FactsBuilder::new().worker(decode(1)).session(|s| s.holder = Some(5)).build();
        assert!(facts.holder().is_none());
        let facts = FactsBuilder::new().worker(decode(1)).session(|s| s.holder = Some(0)).build();
        assert_eq!(facts.holder().map(Worker::id), Some(1));
    }

    #[test]
    fn blocks_round_up() {
        let facts = FactsBuilder::new().build();
        assert_eq!([0, 1, 16, 17].map(|tokens| facts.blocks_for(tokens)), [0, 1, 1, 2]);
    }
}
