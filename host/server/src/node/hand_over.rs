//! One hand-over of KV that this host is to make for a request: what its legs are told of it, and what the node is.

use sluice_core::verdict::TransferMode;
use sluice_engine_sdk::leg::{self, HoldOf, HoldWanted, Params, ReceiveWanted, Wanted};
use sluice_engine_sdk::wire::{Attempt, Direction, Epoch, TransferId, Verb};
use sluice_transfer::node::NodeHandle;
use sluice_transfer::protocol::limits::MAX_WAIT_MS;

use crate::config::{HOLD_MARGIN_MS, Pool};
use crate::handle::HandleError;
use crate::http::members::Members;

/// The part of a decode leg's time to its first token in which KV must begin to come: copying begins at once, so
/// what takes longer most likely never comes, and the engine has the rest to compute the prompt itself.
const FIRST_BYTE_PART: u64 = 4;

/// The part in which all of it must have come.
const WHOLE_PART: u64 = 2;

/// A hand-over. What becomes of it is its owner's to say: see [`crate::held`].
#[derive(Debug)]
pub struct HandOver {
    node: NodeHandle,
    id: TransferId,
    source: String,
    mode: TransferMode,
    waits: Waits,
    hold: HoldWanted,
    threshold_tokens: u32,
}

/// When a hand-over begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// With the prefill: decode waits for it as well.
    WithPrefill,
    /// Once the prefill has answered.
    AfterPrefill,
}

/// What is to be handed over, and how.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Names the transfer; never used before.
    pub id: TransferId,
    /// The engine that prefills.
    pub source: &'a str,
    /// Who moves the bytes.
    pub mode: TransferMode,
    /// When.
    pub begins: Begins,
    /// Tokens of a position: divides the block sizes of both engines.
    pub position_tokens: u32,
    /// With fewer tokens to come decode computes them.
    pub threshold_tokens: u32,
}

/// How long decode's engine waits for KV, in milliseconds from its word to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waits {
    first_byte_ms: u64,
    whole_ms: u64,
    /// For the first byte once the prefill has answered.
    after_prefill_ms: u64,
}

impl Waits {
    fn of(pool: &Pool, begins: Begins) -> Self {
        let prefill_ms = match begins {
            Begins::WithPrefill => pool.prefill_timeout_ms,
            Begins::AfterPrefill => 0,
        };
        let within = |part: u64| (prefill_ms + pool.decode_first_byte_ms / part).clamp(1, MAX_WAIT_MS);
        Self {
            first_byte_ms: within(FIRST_BYTE_PART),
            whole_ms: within(WHOLE_PART),
            after_prefill_ms: (pool.decode_first_byte_ms / FIRST_BYTE_PART).clamp(1, MAX_WAIT_MS),
        }
    }
}

impl HandOver {
    /// A hand-over on these terms. Nothing has happened yet.
    pub fn new(node: &NodeHandle, pool: &Pool, terms: &Terms<'_>) -> Self {
        let Terms { id, source, mode, begins, position_tokens, threshold_tokens } = *terms;
        Self {
            node: node.clone(),
            id,
            source: source.to_owned(),
            mode,
            waits: Waits::of(pool, begins),
            hold: HoldWanted {
                transfer: id,
                of: HoldOf::Prompt,
                position_tokens,
                fill_ms: pool.prefill_timeout_ms.min(MAX_WAIT_MS),
                ttl_ms: pool.kv_lease_ms.min(MAX_WAIT_MS),
                margin_ms: HOLD_MARGIN_MS,
                renewable: false,
            },
            threshold_tokens,
        }
    }

    /// How the bytes move.
    pub fn mode(&self) -> TransferMode {
        self.mode
    }

    /// `kv_transfer_params` of the prefill leg.
    pub fn prefill_params(&self) -> String {
        params(Wanted { version: leg::VERSION, hold: Some(self.hold.clone()), receive: None })
    }

    /// `kv_transfer_params` of a decode leg: the hand-over's attempt of this number, from 1 on.
    pub fn decode_params(&self, epoch: u32) -> String {
        let receive = ReceiveWanted {
            transfer: self.id,
            epoch,
            source: self.source.clone(),
            verb: match self.mode {
                TransferMode::Pull => Verb::Read,
                TransferMode::Push => Verb::Write,
            },
            direction: Direction::PrefillToDecode,
            tokens: None,
            position_tokens: self.hold.position_tokens,
            threshold_tokens: self.threshold_tokens,
            first_byte_ms: self.waits.first_byte_ms,
            whole_ms: self.waits.whole_ms,
        };
        params(Wanted { version: leg::VERSION, hold: None, receive: Some(receive) })
    }

    /// What a prefill's answer says of the blocks it keeps.
    pub fn answer(&self, members: &Members<'_>) -> Result<leg::Held, HandleError> {
        let json = members.get("kv_transfer_params").ok_or(HandleError::NotHeld)?.get();
        let unusable = HandleError::Unusable;
        let Params { sluice: held } =
            serde_json::from_str::<Params<leg::Held>>(json).map_err(|error| unusable(error.to_string()))?;
        if held.version != leg::VERSION {
            return Err(unusable(format!("of version {}, not {}", held.version, leg::VERSION)));
        }
        if held.transfer != self.id {
            return Err(unusable("of another transfer".to_owned()));
        }
        Ok(held)
    }

    /// Nobody will read the blocks. Whether the node takes it; else they stay until their lease ends.
    pub fn release(&self) -> bool {
        self.node.release(self.id).is_ok()
    }

    /// This engine is to get no more of the attempt of this number. Where the node cannot take it, the attempt's own
    /// deadline ends it.
    pub fn cancel(&self, consumer: &str, epoch: u32) -> bool {
        self.node.cancel(consumer, self.attempt(epoch)).is_ok()
    }

    /// The prefill has answered: the first byte must come soon. Where the node cannot take it, it comes by the first
    /// deadline.
    pub fn expect(&self, consumer: &str, epoch: u32) -> bool {
        self.node.expect(consumer, self.attempt(epoch), self.waits.after_prefill_ms).is_ok()
    }

    fn attempt(&self, epoch: u32) -> Attempt {
        Attempt { id: self.id, epoch: Epoch(epoch) }
    }
}

fn params(wanted: Wanted) -> String {
    // Numbers and texts alone: this cannot fail.
    serde_json::to_string(&Params { sluice: wanted }).unwrap_or_else(|_| "null".to_owned())
}
