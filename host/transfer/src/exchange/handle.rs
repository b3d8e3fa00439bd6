//! What the host and its links call, from any thread.

use std::sync::Arc;

use sluice_engine_sdk::wire::Refused;

use super::Shared;
use super::answer::{Answer, answer};
use super::command::{Asker, AttachError, Command, Hold, NotTaken, Outcome, Receive, Said, Told};
use super::endpoints::HostFabric;
use super::engine::{Attaching, Books};
use super::events::{Detached, Ears, Events, Teller, events};
use super::limits::MAX_ENGINE_EVENTS;
use super::metrics::Figures;
use super::stepping::Exchange;
use crate::layout::KvLayout;
use crate::memory::Slab;
use crate::protocol::limits::Limits;
use crate::protocol::{Attempt, Generations, Peer, Rank, Rect, TransferId};

/// A way to an exchange. Nothing here waits.
#[derive(Debug, Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    fabric: Arc<dyn HostFabric>,
}

/// An engine that is attached until its events end.
#[derive(Debug)]
pub struct Attached {
    /// Which life of which engine.
    pub peer: Peer,
    /// What it is told.
    pub events: Events,
}

impl Exchange {
    /// An exchange without engines and without a thread, and a way to it. `limits` are those of each engine. Nobody
    /// else may post to the fabric or poll it.
    #[must_use]
    pub fn new(fabric: Arc<dyn HostFabric>, limits: Limits) -> (Self, Handle) {
        let shared = Arc::new(Shared::default());
        let handle = Handle { shared: Arc::clone(&shared), fabric: Arc::clone(&fabric) };
        (Self::with(shared, fabric, limits), handle)
    }
}

impl Handle {
    /// Attaches a life of an engine: its declared layout, a slab for each rank, and its books, which are asked
    /// whether blocks are still what was offered. An earlier life of the same engine is detached.
    ///
    /// # Errors
    /// If it makes no sense, or there is no room.
    pub fn attach(
        &self,
        peer: Peer,
        layout: KvLayout,
        slabs: Vec<Arc<Slab>>,
        books: Arc<dyn Generations + Send + Sync>,
    ) -> Result<Attached, AttachError> {
        let (queued, events) = events(MAX_ENGINE_EVENTS);
        self.attach_to(peer, layout, slabs, Books::Here(books), Box::new(queued))?;
        Ok(Attached { peer, events })
    }

    /// As [`Handle::attach`], with ears of its own: they are told that it ended if this is an error, too.
    ///
    /// # Errors
    /// If it makes no sense, or there is no room.
    pub fn attach_to(
        &self,
        peer: Peer,
        layout: KvLayout,
        slabs: Vec<Arc<Slab>>,
        books: Books,
        ears: Box<dyn Ears>,
    ) -> Result<(), AttachError> {
        let attaching = Attaching::new(peer, layout, slabs, books, Teller { ears, is_taken: false })?;
        self.shared.queue.put_attach(peer, Command::Attach(Box::new(attaching)))?;
        self.fabric.wake();
        Ok(())
    }

    /// What an engine says by itself: whether it can be is told to its ears.
    pub fn said(&self, peer: Peer, said: Said) -> Result<(), NotTaken> {
        self.put(match said {
            Said::Hold(hold) => Command::Hold(peer, hold, Asker::Engine),
            Said::Receive(receive) => Command::Receive(peer, receive, Asker::Engine),
            Said::Confirmed { attempt, number, held } => {
                Command::Told(peer, Told::Confirmed { attempt, number, held })
            }
            Said::Lease { holder, id, lease } => Command::Told(holder, Told::Lease { from: peer, id, lease }),
        })
    }

    /// The engine has died or gone: its holds are lost, what it consumed has failed. Its events end with
    /// [`Detached`] when nothing touches its memory any more.
    pub fn detach(&self, peer: Peer) -> Result<(), NotTaken> {
        self.shared.queue.put_in_any_case(Command::Detach(peer, Detached::Gone))?;
        self.fabric.wake();
        Ok(())
    }

    /// Takes a hold of `peer`: its blocks are about to be computed.
    pub fn hold(&self, peer: Peer, hold: Hold) -> Result<Answer<Outcome<()>>, NotTaken> {
        let (reply, answer) = answer();
        self.put(Command::Hold(peer, hold, Asker::Caller(reply)))?;
        Ok(answer)
    }

    /// Begins to receive into blocks of `peer`.
    pub fn receive(&self, peer: Peer, receive: Receive) -> Result<Answer<Outcome<()>>, NotTaken> {
        let (reply, answer) = answer();
        self.put(Command::Receive(peer, receive, Asker::Caller(reply)))?;
        Ok(answer)
    }

    /// A heartbeat for a hold of `peer`, this time for `for_ms` if that is named: how long, in milliseconds, a reader may
    /// count on it now.
    pub fn renew(
        &self,
        peer: Peer,
        id: TransferId,
        for_ms: Option<u64>,
    ) -> Result<Answer<Outcome<u64>>, NotTaken> {
        let (reply, answer) = answer();
        self.put(Command::Renew(peer, id, for_ms, reply))?;
        Ok(answer)
    }

    /// A rank of `peer` has computed a part of a hold.
    pub fn ready(&self, peer: Peer, id: TransferId, rank: Rank, rect: Rect) -> Result<(), NotTaken> {
        self.put(Command::Told(peer, Told::Ready { id, rank, rect }))
    }

    /// All of a hold of `peer` is computed, on all ranks. Its lease begins.
    pub fn filled(&self, peer: Peer, id: TransferId) -> Result<(), NotTaken> {
        self.put(Command::Told(peer, Told::Filled(id)))
    }

    /// Nobody will want a hold of `peer`.
    pub fn release(&self, peer: Peer, id: TransferId) -> Result<(), NotTaken> {
        self.put(Command::Told(peer, Told::Release(id)))
    }

    /// `peer`, the consumer, wants no more of an attempt.
    pub fn cancel(&self, peer: Peer, attempt: Attempt) -> Result<(), NotTaken> {
        self.put(Command::Told(peer, Told::Cancel(attempt)))
    }

    /// The prefill has answered, so the first byte must come to `peer` soon.
    pub fn expect(&self, peer: Peer, attempt: Attempt, within_ms: u64) -> Result<(), NotTaken> {
        self.put(Command::Told(peer, Told::Expect { attempt, within_ms }))
    }

    /// A hold or a receive of an engine was refused before it came here.
    pub fn count_refused(&self, why: Refused) {
        *self.shared.figures().refused.entry(why).or_default() += 1;
    }

    /// What went where so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let (commands_waiting, commands_refused) = self.shared.queue.counts();
        Figures { commands_waiting, commands_refused, ..self.shared.figures().clone() }
    }

    pub(super) fn stop(&self) {
        self.shared.queue.stop();
        self.fabric.wake();
    }

    fn put(&self, command: Command) -> Result<(), NotTaken> {
        self.shared.queue.put(command)?;
        self.fabric.wake();
        Ok(())
    }
}
