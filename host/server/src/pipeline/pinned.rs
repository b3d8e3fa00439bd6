//! A turn that its decode engine keeps by itself when it is over, until it is known what becomes of it here. Dropped before that,
//! as when its client leaves after the engine's last words, it is let go: nobody else knows of it.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::kept::deadlines;

use super::told::ToldParams;
use crate::app::App;
use crate::clock::millis;
use crate::config::{DECLINED_BEFORE_END_MS, HOLD_MARGIN_MS};
use crate::fleet::{Pool, Worker};
use crate::handle::back::BackHandle;
use crate::kept::{HeldTokens, NotKept, Place, Unreleased};
use crate::release::{self, EndedTurn};
use crate::request::Endpoint;

/// Holds are counted down when they end, or stay until a time; one that neither was would be forgotten at once.
pub(super) const UNLESS_COUNTED_DOWN_MS: u64 = 0;

/// A turn that its engine keeps when it is over.
pub(super) struct Pinned {
    app: Arc<App>,
    pool: Arc<Pool>,
    holder: Arc<Worker>,
    /// Which of its lives the holder was in when the leg was sent.
    incarnation: u32,
    /// When its process started, as it says.
    started_s: Option<f64>,
    /// Where its request came in.
    endpoint: Endpoint,
    /// The engine's handle, as soon as it came.
    told: ToldParams,
    /// Its engine's own time for it began after that, by our clock.
    ended_after: Duration,
    is_settled: bool,
}

/// Why nobody can use a pinned turn, nor let it go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lost {
    /// The answer told of no handle.
    Untold,
    /// Of one that leads nowhere.
    Unusable(String),
}

impl Pinned {
    /// Of a leg that was dispatched to this worker then.
    pub fn new(
        app: Arc<App>,
        pool: Arc<Pool>,
        holder: Arc<Worker>,
        (incarnation, endpoint): (u32, Endpoint),
        dispatched: Duration,
    ) -> Self {
        let (told, started_s) = (ToldParams::default(), holder.seen().started_s);
        let ended_after = dispatched;
        Self { app, pool, holder, incarnation, started_s, endpoint, told, ended_after, is_settled: false }
    }

    /// Where its handle is put.
    pub fn told(&self) -> ToldParams {
        self.told.clone()
    }

    /// Whether its engine may have told of its handle in what was not looked at yet.
    pub fn waits_for_handle(&self) -> bool {
        self.told.get().is_none()
    }

    /// Its engine had no more to say at this moment. Its own time for the turn began later, if the handle had not come before: how
    /// much later the answer was read is its client's doing, and says nothing.
    pub fn ended_after(&mut self, now: Duration) {
        if self.waits_for_handle() {
            self.ended_after = now;
        }
    }

    /// The engine's hold. Why there is none that anybody could use or end.
    pub fn hold(mut self) -> Result<EnginesHold, Lost> {
        self.is_settled = true;
        self.take(NotKept::Unwanted)
    }

    fn take(&self, unless_kept: NotKept) -> Result<EnginesHold, Lost> {
        let handle = self.told.get().ok_or(Lost::Untold)?;
        let handle = BackHandle::read(handle).map_err(Lost::Unusable)?;
        let tokens = handle.tokens;
        let ttl_ms = self.pool.config.decoder_ttl_ms;
        let margin_ms = fetched_before_end_ms(self.app.config.server.connect_timeout_ms);
        let place = Place {
            handle,
            incarnation: self.incarnation,
            endpoint: self.endpoint,
            started_s: self.started_s,
            usable_until_ms: deadlines::usable_until_ms(millis(self.ended_after), ttl_ms, margin_ms),
        };
        let (pool, holder) = (self.pool.clone(), self.holder.clone());
        let guard = holder.hold_handle(&self.app.clock, UNLESS_COUNTED_DOWN_MS);
        let counted = Arc::new(HeldTokens::new(&holder, tokens, guard));
        let turn = EndedTurn { place, pool, holder, counted };
        Ok(EnginesHold { app: self.app.clone(), turn: Some(turn), unless_kept })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        match self.take(NotKept::CutOff) {
            Ok(hold) => drop(hold),
            // An engine whose client leaves before the end keeps nothing.
            Err(Lost::Untold) => {}
            Err(Lost::Unusable(_)) => self.app.kept.unreleased(&self.pool, Unreleased::Unusable),
        }
    }
}

/// A turn that its engine holds, counted with its worker. Dropped, it is let go, and counted as not kept.
pub(super) struct EnginesHold {
    app: Arc<App>,
    turn: Option<EndedTurn>,
    unless_kept: NotKept,
}

impl EnginesHold {
    /// Where it is, and whose; there until it is kept.
    pub fn turn(&self) -> Option<&EndedTurn> {
        self.turn.as_ref()
    }

    /// It is kept: whoever keeps it lets it go.
    pub fn keep(mut self) -> Option<EndedTurn> {
        self.turn.take()
    }
}

impl Drop for EnginesHold {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.app.kept.not_kept(&turn.pool, self.unless_kept);
            release::let_go(&self.app, turn);
        }
    }
}

/// How long before a turn's blocks may go it is asked for at the latest, in milliseconds: its holder's own clock began to run a little
/// before, the one who fetches them has to be reached, and does not fetch at the last moment.
fn fetched_before_end_ms(connect_timeout_ms: u64) -> u64 {
    connect_timeout_ms.saturating_add(HOLD_MARGIN_MS + DECLINED_BEFORE_END_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_asked_for_only_while_its_reader_still_fetches_it() {
        for (decoder_ttl_ms, connect_timeout_ms, usable_ms) in
            [(480_000, 2_000, 472_000), (9_000, 2_000, 1_000), (8_000, 2_000, 0), (2_000, 60_000, 0)]
        {
            let margin_ms = fetched_before_end_ms(connect_timeout_ms);
            let usable = deadlines::usable_until_ms(0, decoder_ttl_ms, margin_ms);
            assert_eq!(usable, usable_ms);
            let fetched_ms = usable + connect_timeout_ms + HOLD_MARGIN_MS;
            assert!(usable == 0 || fetched_ms + DECLINED_BEFORE_END_MS <= decoder_ttl_ms);
        }
    }
}
