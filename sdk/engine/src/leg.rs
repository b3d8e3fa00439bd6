//! What the router tells an engine with a request, where the host moves KV, and what the engine answers.
//!
//! Each leg of a request carries `kv_transfer_params` with one member, `sluice`: a [`Wanted`] in requests, a [`Held`] in
//! the answer of a prefill leg. Names and numbers that a later router adds may be skipped; a `version` that is not
//! known may not.
//!
//! ```json
//! {"kv_transfer_params": {"sluice": {"version": 1,
//!   "hold": {"transfer": "0000…07", "of": "prompt", "position_tokens": 16, "fill_ms": 60000, "ttl_ms": 30000,
//!            "margin_ms": 1000, "renewable": false}}}}
//! ```

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire::{Direction, TransferId, Verb};

/// The version of these that is spoken.
pub const VERSION: u32 = 1;

/// The value of `kv_transfer_params`, of a request or an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params<T> {
    /// Ours.
    pub sluice: T,
}

/// What a leg is to do about KV beside computing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// [`VERSION`].
    pub version: u32,
    /// Keep KV for a consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldWanted>,
    /// Have KV brought instead of computing it. If it does not come, it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<ReceiveWanted>,
}

/// KV that is to be kept: see [`crate::wire::NewHold`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldWanted {
    /// The transfer's name.
    #[serde(with = "id")]
    pub transfer: TransferId,
    /// Of what, and so from when.
    pub of: HoldOf,
    /// Tokens of a position: progress and proofs are told in these. Divides the block sizes of all engines that were
    /// attached when it was decided; one whose blocks it does not divide keeps nothing.
    pub position_tokens: u32,
    /// How long the prefill may take, in milliseconds.
    pub fill_ms: u64,
    /// How long the blocks are kept once it is over, in milliseconds.
    pub ttl_ms: u64,
    /// With less than this left, no reader begins, in milliseconds.
    pub margin_ms: u64,
    /// Whether a heartbeat begins the time anew.
    pub renewable: bool,
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldOf {
    /// The prompt's tokens: the hold is made when their blocks are allocated, and filled as they are computed.
    Prompt,
    /// The tokens of prompt and answer, but for the last one, which has no KV: made when the answer is whole, with
    /// proofs. Not made of an answer that failed or was cancelled.
    Turn,
}

/// KV that is to come: see [`crate::wire::NewReceive`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveWanted {
    /// The transfer's name.
    #[serde(with = "id")]
    pub transfer: TransferId,
    /// Which attempt at it.
    pub epoch: u32,
    /// The name of the engine that holds it.
    pub source: String,
    /// Who moves the bytes.
    #[serde(with = "verb")]
    pub verb: Verb,
    /// Which way. From decode to prefill the engine sends its tokens' proofs, since the prompt may not continue what is
    /// held.
    #[serde(with = "direction")]
    pub direction: Direction,
    /// Tokens that the holder keeps, from the sequence's first one on; without it, all of this prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// Tokens of a position of the holder's. An engine whose blocks these do not divide computes.
    pub position_tokens: u32,
    /// With fewer tokens to come than this, after the engine's own cache, they are computed and the hold released.
    pub threshold_tokens: u32,
    /// How long the first byte may take, in milliseconds.
    pub first_byte_ms: u64,
    /// How long all may take, in milliseconds.
    pub whole_ms: u64,
}

/// What became of a prefill leg's KV. Missing from the answer of an engine that keeps nothing: it is not attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// [`VERSION`].
    pub version: u32,
    /// The transfer's name.
    #[serde(with = "id")]
    pub transfer: TransferId,
    /// Tokens of the prompt that are kept.
    pub tokens: u32,
    /// Of them, tokens that the engine's own cache had.
    pub cached_tokens: u32,
    /// Of them, tokens that were brought from another engine.
    pub received_tokens: u32,
}

/// A transfer's name as text: 32 hexadecimal digits.
mod id {
    use serde::de::Error;

    use super::{Deserialize, Deserializer, Serializer, TransferId};

    pub fn serialize<S: Serializer>(id: &TransferId, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&format_args!("{:032x}", id.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TransferId, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_one.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        id.map(TransferId).ok_or_else(|| D::Error::custom("a transfer is named by 32 hexadecimal digits"))
    }
}

/// Two words for two choices.
macro_rules! words {
    ($module:ident, $type:ident: $($word:literal => $variant:ident),*) => {
        mod $module {
            use serde::de::Error;

            use super::{$type, Deserialize, Deserializer, Serializer};

            pub fn serialize<S: Serializer>(choice: &$type, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str(match choice { $($type::$variant => $word),* })
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                match std::borrow::Cow::<str>::deserialize(from)?.as_ref() {
                    $($word => Ok($type::$variant),)*
                    word => Err(D::Error::unknown_variant(word, &[$($word),*])),
                }
            }
        }
    };
}

words!(verb, Verb: "pull" => Read, "push" => Write);
words!(direction, Direction: "prefill-to-decode" => PrefillToDecode, "decode-to-prefill" => DecodeToPrefill);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted() -> Value {
        json!({"sluice": {"version": 1,
            "hold": {"transfer": "0000000000000000000000000000002a", "of": "prompt", "position_tokens": 16,
                "fill_ms": 60_000, "ttl_ms": 30_000, "margin_ms": 1_000, "renewable": false},
            "receive": {"transfer": "ffffffffffffffffffffffffffffffff", "epoch": 1, "source": "decode-0",
                "verb": "pull", "direction": "decode-to-prefill", "tokens": 99, "position_tokens": 16,
                "threshold_tokens": 64, "first_byte_ms": 1_000, "whole_ms": 5_000}}})
    }

    #[test]
    fn a_leg_is_read_as_it_is_written() {
        let read: Params<Wanted> = serde_json::from_value(wanted()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), wanted());
        let (hold, receive) = (read.sluice.hold.unwrap(), read.sluice.receive.unwrap());
        assert_eq!((hold.transfer, hold.of), (TransferId(42), HoldOf::Prompt));
        assert_eq!((receive.transfer, receive.verb), (TransferId(u128::MAX), Verb::Read));
        assert_eq!(receive.direction, Direction::DecodeToPrefill);
        let bare: Params<Wanted> = serde_json::from_str(r#"{"sluice":{"version":1,"later":[1]}}"#).unwrap();
        assert_eq!(bare.sluice, Wanted { version: 1, hold: None, receive: None });
    }

    #[test]
    fn what_is_no_leg_is_refused_by_name() {
        for (at, bad, part) in [
            ("/sluice/hold/transfer", json!("2a"), "32 hexadecimal"),
            ("/sluice/hold/transfer", json!("+000000000000000000000000000002a"), "32 hexadecimal"),
            ("/sluice/hold/of", json!("all"), "unknown variant"),
            ("/sluice/receive/verb", json!("shove"), "pull"),
            ("/sluice/receive/direction", json!(""), "prefill-to-decode"),
            ("/sluice/receive/epoch", json!(-1), "invalid value"),
        ] {
            let mut value = wanted();
            *value.pointer_mut(at).unwrap() = bad;
            let error = serde_json::from_value::<Params<Wanted>>(value).unwrap_err().to_string();
            assert!(error.contains(part), "{at}: {error}");
        }
    }
}
