//! One hand-over of KV that this host is to make for a request: what its legs are told of it, and what the node is.

use std::time::Duration;

use sluice_core::verdict::TransferMode;
use sluice_engine_sdk::leg::{self, HoldOf, HoldWanted, Params, ReceiveWanted, Wanted};
use sluice_engine_sdk::wire::{Attempt, Direction, Epoch, TransferId, Verb};
use sluice_transfer::node::NodeHandle;
use sluice_transfer::protocol::limits::MAX_WAIT_MS;

use crate::config::{HOLD_MARGIN_MS, Pool};
use crate::handle::HandleError;
use crate::http::members::Members;
use crate::kept::Reuse;

/// The part of a decode leg's time to its first token in which KV must begin to come: copying begins at once, so
/// what takes longer most likely never comes, and the engine has the rest to compute the prompt itself.
const FIRST_BYTE_PART: u64 = 4;

/// The part in which all of it must have come.
const WHOLE_PART: u64 = 2;

/// A hand-over. What becomes of it is its owner's to say: see [`crate::held`].
pub struct HandOver {
    node: NodeHandle,
    id: TransferId,
    source: String,
    mode: TransferMode,
    waits: Waits,
    hold: HoldWanted,
    threshold_tokens: u32,
    /// What decode is to keep of the turn.
    turn: Option<HoldWanted>,
    /// What prefill is to get of the turn before, and within which time it answers.
    reuse: Option<(Reuse, Duration)>,
}

/// What is to be handed over, and how.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Names the transfer; never used before.
    pub id: TransferId,
    /// The engine that prefills.
    pub source: &'a str,
    /// Who moves the bytes. Push begins with the prefill, so that decode waits for that as well; pull when it is over.
    pub mode: TransferMode,
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
    fn of(pool: &Pool, mode: TransferMode) -> Self {
        let prefill_ms = match mode {
            TransferMode::Push => pool.prefill_timeout_ms,
            TransferMode::Pull => 0,
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
        let Terms { id, source, mode, position_tokens, threshold_tokens } = *terms;
        Self {
            node: node.clone(),
            id,
            source: source.to_owned(),
            mode,
            waits: Waits::of(pool, mode),
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
            turn: None,
            reuse: None,
        }
    }

    /// Decode keeps its turn, too.
    pub fn keeping(self, turn: Option<HoldWanted>) -> Self {
        Self { turn, ..self }
    }

    /// Prefill gets a kept turn first.
    pub fn reusing(self, reuse: Option<Reuse>, pool: &Pool) -> Self {
        let within = Duration::from_millis(pool.prefill_timeout_ms);
        Self { reuse: reuse.map(|reuse| (reuse, within)), ..self }
    }

    /// How the bytes move.
    pub fn mode(&self) -> TransferMode {
        self.mode
    }

    /// `kv_transfer_params` of the prefill leg.
    pub fn prefill_params(&self) -> String {
        let receive = self.reuse.as_ref().map(|(reuse, within)| reuse.wanted(*within));
        params(Wanted { version: leg::VERSION, hold: Some(self.hold.clone()), receive })
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
        params(Wanted { version: leg::VERSION, hold: self.turn.clone(), receive: Some(receive) })
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
        if let Some((reuse, _)) = &self.reuse {
            reuse.came(held.received_tokens);
        }
        Ok(held)
    }

    /// Whether blocks are held that no engine has asked for.
    pub fn is_ignored(&self) -> bool {
        self.node.hold(self.id).is_some_and(|held| held.is_filled && !held.is_asked_for)
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

/// `kv_transfer_params` of the one leg of a request that is not split: its turn is to be kept.
pub fn keeping_params(turn: &HoldWanted) -> String {
    params(Wanted { version: leg::VERSION, hold: Some(turn.clone()), receive: None })
}

fn params(wanted: Wanted) -> String {
    // Numbers and texts alone: this cannot fail.
    serde_json::to_string(&Params { sluice: wanted }).unwrap_or_else(|_| "null".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use sluice_transfer::link;
    use sluice_transfer::node::{Node, NodeSettings};

    use super::*;
    use crate::config;

    const POOL: &str = "
        [[pool]]
        name = 'main'
        model = 'm'
        mode = 'host-managed'
        prefill_timeout_ms = 60_000
        decode_first_byte_ms = 4_000
        worker = [
            { name = 'p', role = 'prefill', url = 'http://h:1' },
            { name = 'd', role = 'decode', url = 'http://h:2' },
        ]";

    fn pool() -> Pool {
        let mut config = config::parse(Path::new("sluice.toml"), POOL).expect("valid");
        config.pools.remove(0)
    }

    fn with_hand_over(mode: TransferMode, check: impl FnOnce(&HandOver)) {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = NodeSettings {
            socket: folder.path().join("kv.sock"),
            link: link::Settings::default(),
            limits: sluice_transfer::protocol::limits::Limits::default(),
            shm: sluice_transfer::fabric::ShmSettings::default(),
        };
        let node = Node::start(settings, Arc::new(|| 0), Arc::new(|_| {})).expect("a node");
        let terms =
            Terms { id: TransferId(42), source: "p", mode, position_tokens: 16, threshold_tokens: 64 };
        check(&HandOver::new(node.handle(), &pool(), &terms));
        node.stop().expect("nothing to copy");
    }

    #[test]
    fn legs_are_told_of_one_transfer() {
        with_hand_over(TransferMode::Push, |hand_over| {
            let read = |json: &str| serde_json::from_str::<Params<Wanted>>(json).expect("a leg").sluice;
            let prefill = read(&hand_over.prefill_params());
            let hold = prefill.hold.expect("a hold");
            assert_eq!((hold.transfer, hold.of, prefill.receive), (TransferId(42), HoldOf::Prompt, None));
            assert_eq!((hold.fill_ms, hold.ttl_ms, hold.position_tokens), (60_000, 30_000, 16));
            let decode = read(&hand_over.decode_params(2));
            let receive = decode.receive.expect("a receive");
            assert_eq!((receive.transfer, receive.epoch, receive.verb), (TransferId(42), 2, Verb::Write));
            assert_eq!((receive.source.as_str(), receive.tokens, decode.hold), ("p", None, None));
            assert_eq!((receive.first_byte_ms, receive.whole_ms), (61_000, 62_000));
        });
    }

    #[test]
    fn an_answer_must_be_of_this_transfer() {
        with_hand_over(TransferMode::Pull, |hand_over| {
            let answer = |params: &str| {
                let body = format!(r#"{{"id":"x","kv_transfer_params":{params}}}"#);
                hand_over.answer(&Members::parse(body.as_bytes()).expect("valid")).map(|held| held.tokens)
            };
            let held = |version: u32, id: &str| {
                format!(
                    r#"{{"sluice":{{"version":{version},"transfer":"{id}","tokens":9,"cached_tokens":0,"received_tokens":0}}}}"#
                )
            };
            let ours = "0000000000000000000000000000002a";
            assert_eq!(answer(&held(1, ours)), Ok(9));
            assert_eq!(answer("null"), Err(HandleError::NotHeld));
            for unusable in
                [held(2, ours), held(1, &ours.replace('a', "b")), "{}".to_owned(), "[1]".to_owned()]
            {
                assert!(matches!(answer(&unusable), Err(HandleError::Unusable(_))), "{unusable}");
            }
        });
    }

    #[test]
    fn decode_has_time_to_compute_what_does_not_come() {
        let mut pool = pool();
        let waits =
            |first_byte_ms, whole_ms, after_prefill_ms| Waits { first_byte_ms, whole_ms, after_prefill_ms };
        assert_eq!(Waits::of(&pool, TransferMode::Pull), waits(1_000, 2_000, 1_000));
        assert_eq!(Waits::of(&pool, TransferMode::Push), waits(61_000, 62_000, 1_000));
        pool.decode_first_byte_ms = 3_600_000;
        assert_eq!(Waits::of(&pool, TransferMode::Push), waits(MAX_WAIT_MS, MAX_WAIT_MS, MAX_WAIT_MS));
        pool.decode_first_byte_ms = 1;
        assert_eq!(Waits::of(&pool, TransferMode::Pull), waits(1, 1, 1));
    }
}
