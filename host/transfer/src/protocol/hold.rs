//! Blocks kept for a consumer: taken when a prefill begins, let go exactly once.

use std::collections::BTreeMap;

use super::event::NewHold;
use super::limits::{MAX_BLOCKS, MAX_WAIT_MS, READER_GRACE_MS};
use super::names::HoldEnd;
use super::names::Rank;
use super::names::Rect;
use super::region::{Region, TooFragmented};

/// A hold. See the table in [`super`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    spec: NewHold,
    ready: BTreeMap<Rank, Region>,
    phase: HoldPhase,
    due_ms: u64,
}

/// Where a hold is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldPhase {
    /// Its blocks are being computed.
    Filling,
    /// All are computed; the lease runs.
    Held,
    /// It has ended; the blocks go once nothing moves from them and no reader's grace runs.
    Leaving(HoldEnd),
}

/// A lease that was not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenewRefused {
    /// It is over, or was never there.
    #[error("no such hold (any more): compute the blocks again")]
    Over,
    /// It ends when it ends.
    #[error("this hold has a fixed time: it can be released, not renewed")]
    Fixed,
    /// It asks for a time that is none.
    #[error(
        "no lease of {for_ms} ms: it must be longer than its margin, {margin_ms} ms, and at most {MAX_WAIT_MS} ms"
    )]
    Time {
        /// Asked for.
        for_ms: u64,
        /// With less than this left, no reader begins.
        margin_ms: u64,
    },
}

impl Hold {
    /// A hold whose blocks are about to be computed; `None` if it makes no sense.
    #[must_use]
    pub fn new(spec: NewHold, now_ms: u64) -> Option<Self> {
        let sound = spec.grid.is_valid()
            && !spec.blocks.is_empty()
            && spec.blocks.len() <= MAX_BLOCKS
            && !spec.ranks.is_empty()
            && spec.fill_ms <= MAX_WAIT_MS
            && (1..=MAX_WAIT_MS).contains(&spec.ttl_ms)
            && spec.margin_ms < spec.ttl_ms;
        let ready = spec.ranks.iter().map(|rank| (*rank, Region::default())).collect();
        // Only of times within bounds.
        let filling = |spec: NewHold| {
            let due_ms = now_ms + spec.fill_ms;
            Self { spec, ready, phase: HoldPhase::Filling, due_ms }
        };
        sound.then(|| filling(spec))
    }

    /// What it is of.
    #[must_use]
    pub fn spec(&self) -> &NewHold {
        &self.spec
    }

    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> HoldPhase {
        self.phase
    }

    /// How it ended, once it has.
    #[must_use]
    pub fn end(&self) -> Option<HoldEnd> {
        match self.phase {
            HoldPhase::Leaving(end) => Some(end),
            HoldPhase::Filling | HoldPhase::Held => None,
        }
    }

    /// When it wants to be looked at again.
    #[must_use]
    pub fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// What a rank has computed; `None` for a rank of another process.
    #[must_use]
    pub fn ready(&self, rank: Rank) -> Option<&Region> {
        self.ready.get(&rank)
    }

    /// How long a reader may count on it.
    #[must_use]
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        match self.phase {
            HoldPhase::Filling => self.spec.ttl_ms - self.spec.margin_ms,
            HoldPhase::Held => self.due_ms.saturating_sub(now_ms).saturating_sub(self.spec.margin_ms),
            HoldPhase::Leaving(_) => 0,
        }
    }

    /// A rank has computed a part. What lies outside the grid, or comes after the end, is not taken.
    ///
    /// # Errors
    /// If progress came in too many pieces.
    pub fn computed(&mut self, rank: Rank, rect: Rect) -> Result<(), TooFragmented> {
        if self.phase != HoldPhase::Filling || !rect.fits(self.spec.grid) {
            return Ok(());
        }
        match self.ready.get_mut(&rank) {
            Some(region) => region.insert(rect).map(drop),
            None => Ok(()),
        }
    }

    /// The prefill is over: all is ready, and the lease begins.
    pub fn filled(&mut self, now_ms: u64) {
        if self.phase != HoldPhase::Filling {
            return;
        }
        for region in self.ready.values_mut() {
            let mut whole = Region::default();
            // One rectangle is never too many.
            if whole.insert(self.spec.grid.whole()).is_ok() {
                *region = whole;
            }
        }
        self.phase = HoldPhase::Held;
        self.due_ms = now_ms + self.spec.ttl_ms;
    }

    /// A heartbeat: the lease ends so long from now (the hold's own time, if none is named), be that later or sooner
    /// than it would have. One that comes when the time is over is refused, whether or not the end was noticed yet.
    /// While the prefill goes on there is no lease to renew, and nothing changes.
    ///
    /// # Errors
    /// If the hold is over or of a fixed time, or the time named is no lease.
    pub fn renew(&mut self, for_ms: Option<u64>, now_ms: u64) -> Result<u64, RenewRefused> {
        if self.end().is_some() || self.due_ms <= now_ms {
            return Err(RenewRefused::Over);
        }
        let (held, margin_ms) = (self.phase == HoldPhase::Held, self.spec.margin_ms);
        if held && !self.spec.renewable {
            return Err(RenewRefused::Fixed);
        }
        let for_ms = for_ms.unwrap_or(self.spec.ttl_ms);
        if for_ms <= margin_ms || for_ms > MAX_WAIT_MS {
            return Err(RenewRefused::Time { for_ms, margin_ms });
        }
        if held {
            self.due_ms = now_ms + for_ms;
        }
        Ok(self.left_ms(now_ms))
    }

    /// Ends it. Only the first end counts: `false` if it had ended before.
    ///
    /// An expired hold leaves its readers a grace; one that was released or lost does not, since its blocks are
    /// wanted, or gone, at once. Readers are then refused their confirmation.
    pub fn finish(&mut self, end: HoldEnd, now_ms: u64) -> bool {
        if self.end().is_some() {
            return false;
        }
        self.phase = HoldPhase::Leaving(end);
        self.due_ms = if end == HoldEnd::Expired { now_ms + READER_GRACE_MS } else { now_ms };
        true
    }

    /// Whether its blocks may go: it has ended, nothing moves from them by our own hand, and no reader has grace.
    #[must_use]
    pub fn may_free(&self, now_ms: u64, pinned: bool, readers: bool) -> bool {
        self.end().is_some() && !pinned && (!readers || self.due_ms <= now_ms)
    }
}
