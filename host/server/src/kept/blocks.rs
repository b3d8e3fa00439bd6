//! What leads to the blocks of a kept turn: a hold of this host's node, or an engine's own handle.

use std::sync::Arc;

use sluice_core::health::State;
use sluice_core::history::guard::Held;
use sluice_engine_sdk::wire::TransferId;
use sluice_transfer::protocol::Peer;

use crate::config::DECLINED_BEFORE_END_MS;
use crate::fleet::Worker;
use crate::fleet::worker::Seen;
use crate::handle::back::BackHandle;
use crate::request::Endpoint;

/// What leads to the blocks.
#[derive(Clone)]
pub enum Blocks {
    /// This host moves them.
    Hosted(Hosted),
    /// Engines move them.
    Engine(Arc<EngineTurn>),
}

/// A hold that this host's node knows.
#[derive(Clone)]
pub struct Hosted {
    /// The hold's name.
    pub transfer: TransferId,
    /// The engine's name on the link.
    pub engine: String,
    /// Which life of the engine holds it: with that it is gone.
    pub life: Peer,
}

/// A turn that an engine keeps by itself.
pub struct EngineTurn {
    /// Where it is.
    pub place: Place,
    /// Which tokens it is proven to be of.
    pub held: Held,
}

/// Where an engine keeps a turn by itself. Its own time for it cannot be changed.
#[derive(Clone)]
pub struct Place {
    /// As it told.
    pub handle: BackHandle,
    /// Which of its lives the holder was in.
    pub incarnation: u32,
    /// When the engine's process started, as it said then.
    pub started_s: Option<f64>,
    /// Where its request came in.
    pub endpoint: Endpoint,
    /// Past it nobody may begin to read the blocks, by the clock that does not step.
    pub usable_until_ms: u64,
}

impl Place {
    /// Whether the engine that keeps it is there.
    pub fn is_held_by(&self, holder: &Seen) -> bool {
        holder.health.state == State::Up && !self.is_lost_with(holder) && holder.incarnation == self.incarnation
            // Not known to be another is not enough: one that does not say any more when it started may be.
            && (self.started_s.is_none() || holder.started_s == self.started_s)
    }

    /// Whether the engine that kept it is gone.
    fn is_lost_with(&self, holder: &Seen) -> bool {
        let is_another = holder.started_s.zip(self.started_s).is_some_and(|(now, then)| now != then);
        is_another || holder.incarnation > self.incarnation
    }

    /// When the engine's own time for the blocks is over, less the margins of who counts it here: past it they may be another
    /// request's, whoever is reading them.
    pub fn ends_ms(&self) -> u64 {
        self.usable_until_ms.saturating_add(DECLINED_BEFORE_END_MS)
    }
}

impl Blocks {
    /// Whether they went with the engine that held them.
    pub fn are_lost(&self, holder: &Worker) -> bool {
        match self {
            Self::Hosted(hosted) => holder.life() != Some(hosted.life),
            Self::Engine(engine) => engine.place.is_lost_with(&holder.seen()),
        }
    }
}
