//! What the exchange tells an engine, to its link.

use std::sync::Arc;

use sluice_engine_sdk::wire::{Subject, ToEngine};

use super::holds::Holds;
use crate::exchange::{Deaf, Detached, Ears};
use crate::link::EngineSender;
use crate::protocol::Peer;

/// Of one engine, whose first rank hears for all: blocks are the same on each.
pub(super) struct LinkEars {
    pub peer: Peer,
    pub senders: Vec<EngineSender>,
    pub holds: Arc<Holds>,
}

impl Ears for LinkEars {
    fn tell(&self, event: ToEngine) -> Result<(), Deaf> {
        match &event {
            ToEngine::HoldEnded { id, .. } | ToEngine::Refused { subject: Subject::Hold(id), .. } => {
                self.holds.end(self.peer, *id);
            }
            _ => {}
        }
        let first = self.senders.first().ok_or(Deaf)?;
        first.send(event).map_err(|_| Deaf)
    }

    fn end(&self, why: Detached) {
        self.holds.end_all(self.peer);
        let text = why.to_string();
        self.senders.iter().for_each(|sender| sender.detach(&text));
    }
}
