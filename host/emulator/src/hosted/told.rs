//! What the host's words, and its coming and going, mean for the books.

use sluice_engine_sdk::wire::{Attempt, BlockRef, HoldEnd, Subject, ToEngine, ToHost, Tokens};

use super::books::{Books, HoldState, LAYERS, Receiving};
use super::effects::{Came, Effects, ReceiveEnd};

impl Books {
    /// The host said something.
    pub fn told(&mut self, message: ToEngine, now_ms: u64) -> Effects {
        let mut effects = Effects::default();
        match message {
            ToEngine::Refused { subject, why } => return self.not_begun(subject, &why.to_string()),
            ToEngine::Completed { attempt } => return self.completed(attempt, now_ms),
            ToEngine::Failed { attempt, reason } => {
                if let Some(receiving) = self.receives.remove(&attempt) {
                    compute(receiving, Came::NotOwn, &reason.to_string(), &mut effects);
                }
            }
            ToEngine::Freed { blocks } => effects.release = self.named.given_back(&blocks),
            ToEngine::HoldEnded { id, end } => {
                let ended = self.holds.remove(&id);
                // One that its consumer has, or does not want, was kept as its answer says.
                if !matches!(end, HoldEnd::Delivered | HoldEnd::Released)
                    && let Some(hold) = ended
                {
                    self.will_not_be_had(hold.sequence);
                }
            }
            ToEngine::Confirm { attempt, number, blocks } => {
                let held = self.named.holds_all(&blocks);
                effects.say.push(ToHost::Confirmed { attempt, number, held });
            }
            ToEngine::Cut { attempt, end_token } => {
                if let Some(Receiving { wanted, .. }) = self.receives.get_mut(&attempt) {
                    wanted.end = end_token.clamp(wanted.first, wanted.end);
                }
            }
            // Completion is what counts; blocks in quarantine are named until they are free; the router renews leases.
            ToEngine::Arrived { .. } | ToEngine::Quarantined { .. } | ToEngine::LeaseLeft { .. } => {}
        }
        effects
    }

    /// A hold or receive was refused, or never reached the host: its blocks are the engine's own.
    pub fn not_begun(&mut self, subject: Subject, why: &str) -> Effects {
        let mut effects = Effects::default();
        let blocks: Vec<BlockRef> = match subject {
            Subject::Hold(id) => {
                let Some(hold) = self.holds.remove(&id) else { return effects };
                self.will_not_be_had(hold.sequence);
                hold.blocks
            }
            Subject::Receive(attempt) => {
                let Some(receiving) = self.receives.remove(&attempt) else { return effects };
                let blocks = receiving.blocks.clone();
                compute(receiving, Came::Nothing, why, &mut effects);
                blocks
            }
        };
        effects.release = self.named.given_back(&blocks);
        effects
    }

    /// A host is attached, and no other has anything of this engine mapped.
    pub fn attached(&mut self) -> Effects {
        let mut effects = self.detached("another host is attached");
        self.is_attached = true;
        effects.release = self.named.reclaim();
        effects
    }

    /// The host is gone, or the way to it; it may still copy.
    pub fn detached(&mut self, why: &str) -> Effects {
        let mut effects = Effects::default();
        self.is_attached = false;
        for receiving in std::mem::take(&mut self.receives).into_values() {
            compute(receiving, Came::NotOwn, why, &mut effects);
        }
        for hold in std::mem::take(&mut self.holds).into_values() {
            self.will_not_be_had(hold.sequence);
        }
        self.named.strand();
        effects
    }

    /// The host that was detached is no more.
    pub fn host_gone(&mut self) -> Effects {
        Effects { release: self.named.reclaim(), ..Effects::default() }
    }

    fn completed(&mut self, attempt: Attempt, now_ms: u64) -> Effects {
        let mut effects = Effects::default();
        let Some(receiving) = self.receives.remove(&attempt) else { return effects };
        effects.release = self.named.given_back(&receiving.blocks);
        let Some(sequence) = receiving.sequence else { return effects };
        let Tokens { first, end } = receiving.wanted;
        effects.came.push((sequence, Came::Tokens(end)));
        let whole = receiving.extent.cells(receiving.wanted, LAYERS.into());
        let tokens = whole.map_or(0, |cells| receiving.extent.tokens(cells).len() as u32);
        effects.ended.push(ReceiveEnd::Came { tokens, took_ms: now_ms.saturating_sub(receiving.said_ms) });
        if let Some(leg) = self.legs.get_mut(&sequence) {
            leg.received_tokens = end - first;
        }
        effects
    }

    fn will_not_be_had(&mut self, sequence: sluice_sim::engine::SequenceId) {
        if let Some((_, state)) = self.legs.get_mut(&sequence).and_then(|leg| leg.hold.as_mut()) {
            *state = HoldState::Over;
        }
    }
}

/// What does not come is computed, if anybody waits for it.
fn compute(receiving: Receiving, came: Came, why: &str, effects: &mut Effects) {
    if let Some(sequence) = receiving.sequence {
        effects.came.push((sequence, came));
        effects.ended.push(ReceiveEnd::Failed(why.to_owned()));
    }
}
