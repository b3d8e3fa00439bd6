//! Heartbeats of engines for what they hold themselves, and how long each makes a lease.

use sluice_transfer::protocol::{HoldEnd, HoldPhase, TransferId};

use crate::world::World;

impl World {
    /// A holder renews for a time of its own. What it asks for holds from now on; what is refused changes nothing.
    pub fn renew_for(&mut self, at: usize, id: TransferId, for_ms: u64) {
        if !self.nodes[at].works() {
            return;
        }
        let now_ms = self.now_ms;
        let before = self.nodes[at].owner.clone();
        let renewed = self.nodes[at].owner.renew(id, Some(for_ms), now_ms);
        self.log(|| format!("node {at}: {id:?} is renewed for {for_ms} ms: {renewed:?}"));
        let node = &self.nodes[at];
        let held = before.holds().get(&id).filter(|hold| hold.phase() == HoldPhase::Held);
        let right = match (renewed, held) {
            (Ok(left_ms), Some(hold)) => {
                left_ms + hold.spec().margin_ms == for_ms
                    && (hold.spec().renewable && hold.due_ms() > now_ms)
                    && node.owner.holds().get(&id).is_some_and(|hold| hold.due_ms() == now_ms + for_ms)
            }
            _ => node.owner == before,
        };
        if !right {
            self.violate("T3", format!("node {at}: {id:?} renewed for {for_ms} ms: {renewed:?}"));
        }
        if renewed.is_err() {
            self.coverage.note("renewal for a time refused");
        } else if held.is_some() {
            self.coverage.note("renewed for a time");
            let fate = self.holds.get_mut(&(id, self.nodes[at].peer));
            fate.into_iter().for_each(|fate| fate.until_ms = Some(now_ms + for_ms));
        }
    }

    /// A heartbeat from elsewhere was answered: from now on the lease is of the hold's own time.
    pub fn lease_told(&mut self, at: usize, id: TransferId, left_ms: u64) {
        let node = &self.nodes[at];
        let margin_ms = node.owner.holds().get(&id).map_or(0, |hold| hold.spec().margin_ms);
        let fate = self.holds.get_mut(&(id, node.peer));
        if let Some(until_ms) = fate.and_then(|fate| fate.until_ms.as_mut()) {
            *until_ms = self.now_ms + left_ms + margin_ms;
        }
    }

    /// T3: no hold expires before the time that its last heartbeat named.
    pub fn check_lease_over(&mut self, at: usize, id: TransferId, end: HoldEnd) {
        let until_ms = self.holds.get(&(id, self.nodes[at].peer)).and_then(|hold| hold.until_ms);
        if end == HoldEnd::Expired && until_ms.is_some_and(|until_ms| self.now_ms < until_ms) {
            self.violate("T3", format!("node {at}: {id:?} expired before {until_ms:?} ms"));
        }
    }
}
