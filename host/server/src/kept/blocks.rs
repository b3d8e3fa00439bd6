//! What leads to the blocks of a kept turn: a hold of this host's node, or an engine's own handle.

use std::sync::Arc;

use sluice_core::history::guard::Held;
use sluice_engine_sdk::wire::TransferId;
use sluice_transfer::protocol::Peer;

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
    /// Past it the blocks may be another request's, by the clock that does not step.
    pub usable_until_ms: u64,
}

impl Blocks {
    /// Whether they went with the engine that held them.
    pub fn are_lost(&self, holder: &Worker) -> bool {
        match self {
            Self::Hosted(hosted) => holder.life() != Some(hosted.life),
            Self::Engine(engine) => holder.seen().incarnation > engine.place.incarnation,
        }
    }
}
