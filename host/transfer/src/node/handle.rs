//! What the host asks of its node, from any thread.

use std::sync::{Arc, PoisonError, RwLock};

use sluice_engine_sdk::wire::{Attempt, EngineId, TransferId};

use super::engines::{AttachedEngine, Engines};
use super::holds::{HeldBlocks, Holds, Word};
use crate::exchange::{Answer, Figures, Handle, NotTaken, Outcome};
use crate::protocol::Peer;

/// A way to a node. Nothing here waits.
#[derive(Debug, Clone)]
pub struct NodeHandle {
    pub(super) exchange: Handle,
    pub(super) engines: Arc<RwLock<Engines>>,
    pub(super) holds: Arc<Holds>,
}

impl NodeHandle {
    /// The engine of this name, if it is attached with all its ranks.
    #[must_use]
    pub fn engine(&self, name: &str) -> Option<AttachedEngine> {
        self.attached(EngineId::of_name(name))
    }

    /// Whether the engine of this name is attached with all its ranks.
    #[must_use]
    pub fn is_attached(&self, name: &str) -> bool {
        let engines = self.engines.read().unwrap_or_else(PoisonError::into_inner);
        engines.attached(EngineId::of_name(name)).is_some()
    }

    /// All that are attached.
    #[must_use]
    pub fn engines(&self) -> Vec<AttachedEngine> {
        self.engines.read().unwrap_or_else(PoisonError::into_inner).all().cloned().collect()
    }

    /// A hold that has begun and not ended.
    #[must_use]
    pub fn hold(&self, id: TransferId) -> Option<HeldBlocks> {
        self.holds.get(id)
    }

    /// Holds that have begun and not ended.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.holds.counts().0
    }

    /// Holds that were kept without proofs, since there was no room for them: no later prompt could have them.
    #[must_use]
    pub fn holds_without_proofs(&self) -> u64 {
        self.holds.counts().1
    }

    /// A heartbeat: the hold lasts for its own time anew, or for `for_ms`; how long, in milliseconds, a reader may count
    /// on it now. `None` if it is over.
    pub fn renew(
        &self,
        id: TransferId,
        for_ms: Option<u64>,
    ) -> Result<Option<Answer<Outcome<u64>>>, NotTaken> {
        let Some(held) = self.holds.get(id) else { return Ok(None) };
        self.exchange.renew(held.holder, id, for_ms).map(Some)
    }

    /// Nobody will read a hold: it ends now, or as soon as its engine has named it. One that is over stays so.
    ///
    /// # Errors
    /// If the exchange is behind, or has stopped: the hold then ends with its lease.
    pub fn release(&self, id: TransferId) -> Result<(), NotTaken> {
        match self.holds.word(id, Word::Release) {
            Some(holder) => self.exchange.release(holder, id),
            None => Ok(()),
        }
    }

    /// A hold is to last `for_ms` from now, or from when its engine has filled it.
    ///
    /// # Errors
    /// As [`NodeHandle::release`].
    pub fn keep(&self, id: TransferId, for_ms: u64) -> Result<(), NotTaken> {
        match self.holds.word(id, Word::Keep { for_ms }) {
            Some(holder) => self.exchange.renew(holder, id, Some(for_ms)).map(drop),
            None => Ok(()),
        }
    }

    /// The engine of this name, a consumer, is to get no more of an attempt.
    ///
    /// # Errors
    /// As [`NodeHandle::release`].
    pub fn cancel(&self, consumer: &str, attempt: Attempt) -> Result<(), NotTaken> {
        match self.engine(consumer) {
            Some(engine) => self.exchange.cancel(engine.peer, attempt),
            None => Ok(()),
        }
    }

    /// The prefill has answered, so the first byte must come soon to the engine of this name.
    ///
    /// # Errors
    /// As [`NodeHandle::release`].
    pub fn expect(&self, consumer: &str, attempt: Attempt, within_ms: u64) -> Result<(), NotTaken> {
        match self.engine(consumer) {
            Some(engine) => self.exchange.expect(engine.peer, attempt, within_ms),
            None => Ok(()),
        }
    }

    /// What an engine is to the exchange, if it is attached.
    pub(super) fn peer(&self, engine: EngineId) -> Option<Peer> {
        let engines = self.engines.read().unwrap_or_else(PoisonError::into_inner);
        engines.attached(engine).map(|engine| engine.peer)
    }

    /// What went where so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.exchange.figures()
    }

    fn attached(&self, engine: EngineId) -> Option<AttachedEngine> {
        self.engines.read().unwrap_or_else(PoisonError::into_inner).attached(engine).cloned()
    }
}
