//! Who runs now, who waits, and who is turned away when there is no room left.
//!
//! So many requests run at a time. Past that they wait, in a queue of so many; a place that becomes free goes to the
//! waiting tenant that has the fewest running for its weight, and there to the most urgent request, the oldest of
//! those. Places are what is shared out, not turns: a tenant whose answers take minutes cannot fill the host bit by
//! bit while others get every second turn. Tenants that have equally few take turns by weight (virtual time), which
//! also holds where weights ask for less than one place.
//!
//! The caller says when: nothing here reads a clock.

mod drain;
#[cfg(test)]
mod tests;

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::time::Duration;

pub use drain::DrainRate;

/// The largest weight: virtual time counts in `1 / weight`.
pub const WEIGHT_AT_MOST: u32 = 1_000;

/// Virtual time of one turn of a tenant of weight 1.
const TURN: u64 = 1 << 32;

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Requests that run at a time.
    pub running_at_most: usize,
    /// Requests that wait.
    pub waiting_at_most: usize,
}

/// What one tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Its part of the places, against the others' weights; 1 to [`WEIGHT_AT_MOST`].
    pub weight: u32,
    /// Requests it may have at a time, waiting ones included.
    pub in_flight_at_most: Option<usize>,
}

/// A waiting request's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    tenant: usize,
    rank: Rank,
}

/// The most urgent first, the oldest of those first.
type Rank = (Reverse<i32>, u64);

/// What becomes of a request that comes. `W` is whatever the caller needs to reach one that waits.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<W> {
    /// It runs at once.
    Runs,
    /// It waits; if the queue was full, another one was shed for it.
    Waits {
        /// To leave the queue with.
        ticket: Ticket,
        /// The request that lost its place in the queue.
        shed: Option<W>,
    },
    /// The queue is full, and this request is the first to be shed.
    Full,
    /// Its tenant has as many requests as it may.
    TenantFull,
}

/// What a tenant has now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Requests.
    pub running: usize,
    /// Requests.
    pub waiting: usize,
}

#[derive(Debug)]
struct Tenant<W> {
    share: Share,
    running: usize,
    waiting: BTreeMap<Rank, W>,
    /// Virtual time of its next turn.
    turn: u64,
    drain: DrainRate,
}

/// All places and the queue. A waiting request means that every place is taken.
#[derive(Debug)]
pub struct Admission<W> {
    room: Room,
    tenants: Vec<Tenant<W>>,
    running: usize,
    waiting: usize,
    arrivals: u64,
    /// Virtual time of the turn taken last: who comes back from idling starts here, without credit.
    now_turn: u64,
    drain: DrainRate,
}

impl<W> Admission<W> {
    /// An empty host. Tenants are known by their position.
    pub fn new(room: Room, shares: impl IntoIterator<Item = Share>) -> Self {
        let tenant = |share: Share| Tenant {
            share: Share { weight: share.weight.clamp(1, WEIGHT_AT_MOST), ..share },
            running: 0,
            waiting: BTreeMap::new(),
            turn: 0,
            drain: DrainRate::default(),
        };
        Self {
            room,
            tenants: shares.into_iter().map(tenant).collect(),
            running: 0,
            waiting: 0,
            arrivals: 0,
            now_turn: 0,
            drain: DrainRate::default(),
        }
    }

    /// A request comes. `waiter` is called only if it has to wait. Every `Runs`, and every waiting request that
    /// [`Self::leave`] returns, must be followed by one [`Self::leave`].
    pub fn enter(&mut self, tenant: usize, urgency: i32, waiter: impl FnOnce() -> W) -> Entry<W> {
        let Some(asking) = self.tenants.get_mut(tenant) else { return Entry::TenantFull };
        let has = asking.running + asking.waiting.len();
        if asking.share.in_flight_at_most.is_some_and(|limit| has >= limit) {
            return Entry::TenantFull;
        }
        if self.running < self.room.running_at_most {
            self.running += 1;
            asking.running += 1;
            return Entry::Runs;
        }
        if self.room.waiting_at_most == 0 {
            return Entry::Full;
        }
        let rank = (Reverse(urgency), self.arrivals);
        let shed = if self.waiting < self.room.waiting_at_most {
            None
        } else {
            match self.shed_for(tenant, rank) {
                Some(shed) => Some(shed),
                None => return Entry::Full,
            }
        };
        self.arrivals += 1;
        self.waiting += 1;
        let asking = &mut self.tenants[tenant];
        if asking.waiting.is_empty() {
            asking.turn = asking.turn.max(self.now_turn);
        }
        asking.waiting.insert(rank, waiter());
        Entry::Waits { ticket: Ticket { tenant, rank }, shed }
    }

    /// A running request of this tenant ended. Whoever gets its place is returned, with its tenant.
    pub fn leave(&mut self, tenant: usize, now: Duration) -> Option<(usize, W)> {
        let leaving = self.tenants.get_mut(tenant)?;
        let has = leaving.running + leaving.waiting.len();
        let tenant_was_full = leaving.share.in_flight_at_most.is_some_and(|limit| has >= limit);
        leaving.drain.left(tenant_was_full, now);
        leaving.running = leaving.running.saturating_sub(1);
        self.drain.left(self.running >= self.room.running_at_most, now);
        self.running = self.running.saturating_sub(1);
        if self.waiting == 0 {
            return None;
        }
        let next = self.next_tenant()?;
        let chosen = &mut self.tenants[next];
        let (_, waiter) = chosen.waiting.pop_first()?;
        self.now_turn = self.now_turn.max(chosen.turn);
        chosen.turn += TURN / u64::from(chosen.share.weight);
        chosen.running += 1;
        self.waiting -= 1;
        self.running += 1;
        Some((next, waiter))
    }

    /// A waiting request gives up. False if it does not wait any more: it was given a place, or shed.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some(tenant) = self.tenants.get_mut(ticket.tenant) else { return false };
        let waited = tenant.waiting.remove(&ticket.rank).is_some();
        self.waiting -= usize::from(waited);
        waited
    }

    /// What a tenant has.
    pub fn held(&self, tenant: usize) -> Held {
        self.tenants
            .get(tenant)
            .map_or(Held::default(), |tenant| Held { running: tenant.running, waiting: tenant.waiting.len() })
    }

    /// What each tenant has, in their order.
    pub fn held_by_each(&self) -> impl Iterator<Item = Held> + '_ {
        (0..self.tenants.len()).map(|tenant| self.held(tenant))
    }

    /// What all tenants have together.
    pub fn held_by_all(&self) -> Held {
        Held { running: self.running, waiting: self.waiting }
    }

    /// How long a request that comes now would most likely wait; `None` while nothing was measured.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.drain.time_for(self.waiting + 1, now)
    }

    /// How long until a tenant that has as much as it may will most likely have room for one more.
    pub fn tenant_wait(&self, tenant: usize, now: Duration) -> Option<Duration> {
        self.tenants.get(tenant)?.drain.time_for(1, now)
    }

    /// The waiting tenant that has the fewest running for its weight; of several, the one whose turn is next.
    fn next_tenant(&self) -> Option<usize> {
        let waiting = self.tenants.iter().enumerate().filter(|(_, tenant)| !tenant.waiting.is_empty());
        let order = |one: &Tenant<W>, other: &Tenant<W>| {
            per_weight((one.running, one.share), (other.running, other.share)).then(one.turn.cmp(&other.turn))
        };
        waiting.min_by(|(_, one), (_, other)| order(one, other)).map(|(position, _)| position)
    }

    /// Takes out of the full queue what goes first, if that is not the request that comes: of the tenant with the most
    /// requests for its weight, running, waiting and coming, the newest of the least urgent.
    fn shed_for(&mut self, comer: usize, rank: Rank) -> Option<W> {
        let has = |position: usize, tenant: &Tenant<W>| {
            (tenant.running + tenant.waiting.len() + usize::from(position == comer), tenant.share)
        };
        let mut most = (comer, has(comer, self.tenants.get(comer)?));
        for (position, tenant) in self.tenants.iter().enumerate() {
            let theirs = has(position, tenant);
            // The comer's own tenant loses a tie: nobody is shed for one who is no worse off.
            if !tenant.waiting.is_empty() && per_weight(theirs, most.1) == Ordering::Greater {
                most = (position, theirs);
            }
        }
        let loser = &mut self.tenants[most.0];
        if most.0 == comer && loser.waiting.last_key_value().is_none_or(|(last, _)| *last < rank) {
            return None;
        }
        let (_, shed) = loser.waiting.pop_last()?;
        self.waiting -= 1;
        Some(shed)
    }
}

/// Compares requests per weight, without a division.
fn per_weight(one: (usize, Share), other: (usize, Share)) -> Ordering {
    let cross = |count: usize, share: Share| count as u128 * u128::from(share.weight);
    cross(one.0, other.1).cmp(&cross(other.0, one.1))
}
