//! What leads to the blocks of a kept turn: a hold of this host's node, or an engine's own handle.

use std::sync::Arc;

use sluice_core::history::guard::Held;
use sluice_engine_sdk::wire::TransferId;
use sluice_transfer::protocol::Peer;

use crate::config::DECLINED_BEFORE_END_MS;
use crate::fleet::Worker;
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
    /// Where its request came in.
    pub endpoint: Endpoint,
    /// Past it nobody may begin to read the blocks, by the clock that does not step.
    pub usable_until_ms: u64,
}

impl Place {
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
            Self::Engine(engine) => holder.seen().incarnation > engine.place.incarnation,
        }
    }

    /// From when on nobody may begin to read them, whatever their lease says.
    pub fn usable_until_ms(&self) -> u64 {
        match self {
            Self::Hosted(_) => u64::MAX,
            Self::Engine(engine) => engine.place.usable_until_ms,
        }
    }
}
