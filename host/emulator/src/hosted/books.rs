//! What is agreed with the host: which sequence holds or receives what. Pure; time comes in as milliseconds.
//!
//! Whatever the host says, in whatever order, and whatever becomes of requests: a block that was named to it is kept out
//! of use until it is given back, and each naming is given back once.

use std::collections::{BTreeMap, HashMap};

use sluice_engine_sdk::leg::{self, HoldOf, HoldWanted, ReceiveWanted, Wanted};
use sluice_engine_sdk::wire::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, NewHold, NewReceive, Proof, Reason, Rect, ToHost,
    Tokens, TransferId, proofs,
};
use sluice_sim::engine::SequenceId;
use sluice_sim::tokens::Token;

use super::effects::{Came, Effects, ReceiveEnd};
use super::leg::end_token;
use super::named::Named;

/// One layer: an entry stands for all of a model's.
pub(super) const LAYERS: u16 = 1;
/// What this engine waits beyond the time that the host was given, in milliseconds: the host's own word is better.
const GRACE_MS: u64 = 2_000;

/// What is agreed.
#[derive(Debug)]
pub(super) struct Books {
    block_tokens: usize,
    pub(super) is_attached: bool,
    pub(super) named: Named,
    pub(super) legs: HashMap<SequenceId, Leg>,
    /// Those that were said and have not ended.
    pub(super) holds: BTreeMap<TransferId, OpenHold>,
    /// Those that were said and have not ended.
    pub(super) receives: BTreeMap<Attempt, Receiving>,
}

/// A request on its way through the engine.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) hold: Option<(HoldWanted, HoldState)>,
    /// Until it is said, or not worth it.
    receive: Option<ReceiveWanted>,
    prompt: Vec<Token>,
    cached_tokens: u32,
    pub(super) received_tokens: u32,
}

/// What became of a wish to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldState {
    /// Not said yet.
    Wanted,
    /// Said; so many positions are told to be ready.
    Filling(u32),
    /// All is ready.
    Filled,
    /// It was not made, or nobody will have it.
    Over,
}

/// A hold that was said.
#[derive(Debug)]
pub(super) struct OpenHold {
    pub(super) blocks: Vec<BlockRef>,
    pub(super) sequence: SequenceId,
}

/// A receive that was said.
#[derive(Debug)]
pub(super) struct Receiving {
    /// Who waits; nobody any more once it was given up.
    pub(super) sequence: Option<SequenceId>,
    pub(super) blocks: Vec<BlockRef>,
    pub(super) extent: Extent,
    pub(super) wanted: Tokens,
    pub(super) said_ms: u64,
    expires_ms: u64,
}

impl Books {
    /// Empty ones, of an engine with such blocks.
    pub fn new(block_tokens: usize) -> Self {
        Self {
            block_tokens,
            is_attached: false,
            named: Named::default(),
            legs: HashMap::new(),
            holds: BTreeMap::new(),
            receives: BTreeMap::new(),
        }
    }

    /// A request comes in.
    pub fn submit(&mut self, sequence: SequenceId, wanted: Wanted, prompt: Vec<Token>) {
        let hold = wanted.hold.map(|hold| (hold, HoldState::Wanted));
        let (cached_tokens, received_tokens) = (0, 0);
        let leg = Leg { hold, receive: wanted.receive, prompt, cached_tokens, received_tokens };
        self.legs.insert(sequence, leg);
    }

    /// A sequence is admitted and has blocks, the first of which begins with `first_token`, for what is to come. There
    /// are none, and it is in the batch already, if that is too little.
    pub fn load(
        &mut self,
        sequence: SequenceId,
        blocks: Vec<BlockRef>,
        first_token: u32,
        now_ms: u64,
    ) -> Effects {
        let mut effects = Effects::default();
        let Some(leg) = self.legs.get_mut(&sequence) else { return effects };
        let Some(receive) = leg.receive.take() else { return effects };
        if blocks.is_empty() {
            self.tell(&mut effects, ToHost::Release { id: receive.transfer });
            return effects;
        }
        let (prompt, held) = (leg.prompt.len(), receive.tokens.unwrap_or(leg.prompt.len() as u32));
        let end = end_token(&receive, leg.hold.as_ref().map(|(hold, _)| hold), prompt);
        let wanted = Tokens { first: first_token, end };
        let extent = Extent { first_token: 0, end_token: held, position_tokens: receive.position_tokens };
        let attempt = Attempt { id: receive.transfer, epoch: Epoch(receive.epoch) };
        let from_decode = receive.direction == Direction::DecodeToPrefill;
        let shown = proofs(if from_decode { &leg.prompt } else { &[] }, receive.position_tokens);
        let is_proven = !from_decode || !shown.is_empty();
        if let Some(why) = self.why_not(attempt, extent, wanted, is_proven) {
            if !is_proven {
                self.tell(&mut effects, ToHost::Release { id: receive.transfer });
            }
            effects.came.push((sequence, Came::Nothing));
            effects.ended.push(ReceiveEnd::Failed(why.to_owned()));
            return effects;
        }
        let receive = NewReceive {
            attempt,
            source: EngineId::of_name(&receive.source),
            verb: receive.verb,
            direction: receive.direction,
            extent,
            wanted,
            blocks: blocks.clone(),
            first_token,
            proofs: shown,
            first_byte_ms: receive.first_byte_ms,
            whole_ms: receive.whole_ms,
        };
        effects.retain = self.named.name(&blocks);
        let expires_ms = now_ms.saturating_add(receive.whole_ms).saturating_add(GRACE_MS);
        let sequence = Some(sequence);
        let receiving = Receiving { sequence, blocks, extent, wanted, said_ms: now_ms, expires_ms };
        self.receives.insert(attempt, receiving);
        effects.say.push(ToHost::Receive { receive });
        effects
    }

    /// Why a receive cannot be asked for.
    fn why_not(
        &self,
        attempt: Attempt,
        extent: Extent,
        wanted: Tokens,
        is_proven: bool,
    ) -> Option<&'static str> {
        if !self.is_attached {
            return Some("no host is attached");
        }
        if self.receives.contains_key(&attempt) {
            return Some("this transfer is under way already");
        }
        if extent.cells(wanted, LAYERS.into()).is_none() {
            return Some("a transfer cannot be so long");
        }
        // Where nothing is shown to be proven, anything comes.
        (!is_proven).then_some("a prompt of less than a position proves nothing")
    }

    /// Sequences whose hold of the prompt is wanted, or filling.
    pub fn filling(&self) -> Vec<SequenceId> {
        let fills = |leg: &Leg| {
            leg.hold.as_ref().is_some_and(|(hold, state)| {
                hold.of == HoldOf::Prompt && matches!(state, HoldState::Wanted | HoldState::Filling(_))
            })
        };
        self.legs.iter().filter(|(_, leg)| fills(leg)).map(|(sequence, _)| *sequence).collect()
    }

    /// Such a sequence is in the batch, with so many leading tokens computed or brought, in blocks that are asked for if
    /// they are needed. Its hold is made now and not while it receives: what does not come is computed in other blocks.
    pub fn progress(
        &mut self,
        sequence: SequenceId,
        computed: usize,
        blocks: impl FnOnce() -> Vec<BlockRef>,
    ) -> Effects {
        let mut effects = Effects::default();
        let Some(leg) = self.legs.get_mut(&sequence) else { return effects };
        let Some((wanted, state)) = &mut leg.hold else { return effects };
        let prompt = leg.prompt.len();
        let (extent, position_tokens) = (extent(wanted, prompt), wanted.position_tokens);
        let is_new = *state == HoldState::Wanted;
        let may_be = self.is_attached && !(is_new && self.holds.contains_key(&wanted.transfer));
        let Some(grid) = extent.grid(LAYERS.into()).filter(|_| may_be) else {
            *state = HoldState::Over;
            return effects;
        };
        if is_new {
            leg.cached_tokens = (computed as u32).saturating_sub(leg.received_tokens);
            let mut blocks = blocks();
            blocks.truncate(prompt.div_ceil(self.block_tokens));
            effects.retain = self.named.name(&blocks);
            effects.say.push(ToHost::Hold { hold: new_hold(wanted, extent, blocks.clone(), Vec::new()) });
            self.holds.insert(wanted.transfer, OpenHold { blocks, sequence });
            *state = HoldState::Filling(0);
        }
        let HoldState::Filling(told) = *state else { return effects };
        let is_whole = computed >= prompt;
        let ready = if is_whole { grid.positions } else { computed as u32 / position_tokens };
        if ready > told {
            let rect = Rect { first: told, end: ready, ..grid.whole() };
            effects.say.push(ToHost::Ready { id: wanted.transfer, rect });
            *state = HoldState::Filling(ready);
        }
        if is_whole {
            effects.say.push(ToHost::Filled { id: wanted.transfer });
            *state = HoldState::Filled;
        }
        effects
    }

    /// Such a sequence is not in the batch. If its hold was said, it was thrown out, and other blocks will be computed.
    pub fn not_running(&mut self, sequence: SequenceId) -> Effects {
        let mut effects = Effects::default();
        let Some(Leg { hold: Some((wanted, state)), .. }) = self.legs.get_mut(&sequence) else {
            return effects;
        };
        if matches!(state, HoldState::Filling(_)) {
            *state = HoldState::Over;
            let id = wanted.transfer;
            self.tell(&mut effects, ToHost::Release { id });
        }
        effects
    }

    /// An answer is whole. The blocks of its tokens were handed over if a hold of the turn is wanted, and the caller's own
    /// reference is the caller's to give back.
    pub fn finished(
        &mut self,
        sequence: SequenceId,
        turn: Option<(Vec<BlockRef>, &[Token])>,
    ) -> (Option<leg::Held>, Effects) {
        let mut effects = Effects::default();
        let Some(leg) = self.legs.remove(&sequence) else { return (None, effects) };
        let Some((wanted, state)) = leg.hold else { return (None, effects) };
        let id = wanted.transfer;
        match (wanted.of, state, turn) {
            (HoldOf::Prompt, HoldState::Filled, _) => {
                let held = leg::Held {
                    version: leg::VERSION,
                    transfer: id,
                    tokens: leg.prompt.len() as u32,
                    cached_tokens: leg.cached_tokens,
                    received_tokens: leg.received_tokens,
                };
                return (Some(held), effects);
            }
            (HoldOf::Prompt, HoldState::Filling(_), _) => self.tell(&mut effects, ToHost::Release { id }),
            (HoldOf::Turn, HoldState::Wanted, Some((blocks, tokens))) if self.is_attached => {
                let extent = extent(&wanted, tokens.len());
                if extent.grid(LAYERS.into()).is_some() && !self.holds.contains_key(&id) {
                    let proofs = proofs(tokens, wanted.position_tokens);
                    effects.retain = self.named.name(&blocks);
                    let hold = new_hold(&wanted, extent, blocks.clone(), proofs);
                    self.holds.insert(id, OpenHold { blocks, sequence });
                    effects.say.extend([ToHost::Hold { hold }, ToHost::Filled { id }]);
                }
            }
            _ => {}
        }
        (None, effects)
    }

    /// A client has left, or its answer failed: nobody waits for what was to come, nor for what was to be held.
    pub fn aborted(&mut self, sequence: SequenceId) -> Effects {
        let mut effects = Effects::default();
        let Some(leg) = self.legs.remove(&sequence) else { return effects };
        if let Some((hold, HoldState::Filling(_) | HoldState::Filled)) = &leg.hold {
            self.tell(&mut effects, ToHost::Release { id: hold.transfer });
        }
        // Not asked for yet: its holder need not wait.
        if let Some(receive) = leg.receive {
            self.tell(&mut effects, ToHost::Release { id: receive.transfer });
        }
        for (attempt, receiving) in &mut self.receives {
            if receiving.sequence == Some(sequence) {
                receiving.sequence = None;
                effects.say.push(ToHost::Abort { attempt: *attempt, reason: Reason::Cancelled });
            }
        }
        effects
    }

    /// Gives up what the host has not ended in its time.
    pub fn expire(&mut self, now_ms: u64) -> Effects {
        let mut effects = Effects::default();
        for (attempt, receiving) in &mut self.receives {
            if receiving.expires_ms <= now_ms
                && let Some(sequence) = receiving.sequence.take()
            {
                effects.say.push(ToHost::Abort { attempt: *attempt, reason: Reason::Cancelled });
                effects.came.push((sequence, Came::NotOwn));
                effects.ended.push(ReceiveEnd::Failed("the host did not end it in its time".to_owned()));
            }
        }
        effects
    }

    /// When [`Self::expire`] has work next.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        let waited_for = self.receives.values().filter(|receiving| receiving.sequence.is_some());
        waited_for.map(|receiving| receiving.expires_ms).min()
    }

    /// Where no host is attached there is nobody to tell, and nothing that waits.
    fn tell(&self, effects: &mut Effects, message: ToHost) {
        if self.is_attached {
            effects.say.push(message);
        }
    }
}

fn extent(wanted: &HoldWanted, tokens: usize) -> Extent {
    Extent { first_token: 0, end_token: tokens as u32, position_tokens: wanted.position_tokens }
}

fn new_hold(wanted: &HoldWanted, extent: Extent, blocks: Vec<BlockRef>, proofs: Vec<Proof>) -> NewHold {
    NewHold {
        id: wanted.transfer,
        extent,
        blocks,
        first_token: 0,
        proofs,
        fill_ms: wanted.fill_ms,
        ttl_ms: wanted.ttl_ms,
        renewable: wanted.renewable,
        margin_ms: wanted.margin_ms,
    }
}
