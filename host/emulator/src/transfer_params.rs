//! `kv_transfer_params`: what a client asks for with them, and what an answer carries.

use serde::Serialize;
use serde_json::{Map, Value};
use sluice_engine_sdk::leg::{Held, Params, Wanted};
use sluice_sim::tokens::Token;

/// Where another engine keeps the KV of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RemoteKv {
    pub engine_id: String,
    /// The name of the hold.
    pub request_id: String,
    pub host: String,
    pub port: u16,
    pub blocks: Vec<u32>,
    /// Leading tokens of the prompt that the blocks hold.
    pub tokens: Option<usize>,
    /// End of the hold on the machine's clock, seconds.
    pub expires_at_s: Option<f64>,
    /// What the prefill engine found cached; `usage` tells it on.
    pub prefill_cached_tokens: Option<usize>,
}

/// What a request wants of the connector.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Intent {
    /// Nothing.
    Plain,
    /// Compute the prompt and keep its KV for a reader; `reuse` what a decode engine still has of it.
    Prefill { reuse: Option<RemoteKv> },
    /// Read the prompt's KV and go on from there.
    Decode(RemoteKv),
    /// What the host of this node is told.
    Hosted(Box<Wanted>),
    /// What makes a real engine exit.
    Dies(&'static str),
    /// What a real engine never answers.
    Hangs(&'static str),
    /// Neither seen nor sensible.
    Malformed(&'static str),
}

impl Intent {
    /// Reads the parameters of a request. An engine that is not `bidirectional` waits in vain for as many offered tokens as
    /// `threshold` or more: vLLM takes them into account, and never asks for them.
    pub fn read(params: &Map<String, Value>, bidirectional: bool, threshold: usize) -> Self {
        if flag(params, "do_remote_prefill") {
            return match params.get("remote_block_ids") {
                None | Some(Value::Null) => Self::Dies("do_remote_prefill without remote_block_ids"),
                Some(_) => remote(params).map_or_else(Self::from, Self::Decode),
            };
        }
        if flag(params, "do_remote_decode") {
            let offered = params.get("remote_block_ids").is_some_and(|blocks| !blocks.is_null());
            if !offered {
                return Self::Prefill { reuse: None };
            }
            return match remote(params) {
                Ok(reuse) if bidirectional => Self::Prefill { reuse: Some(reuse) },
                Ok(reuse) if reuse.tokens.is_some_and(|tokens| tokens >= threshold.max(1)) => {
                    Self::Hangs("an offer without bidirectional")
                }
                Err(incomplete) if bidirectional => incomplete.into(),
                _ => Self::Prefill { reuse: None },
            };
        }
        Self::Plain
    }

    /// The hold that is to be ended should the request be refused.
    pub fn handle(&self) -> Option<&RemoteKv> {
        match self {
            Self::Decode(remote) | Self::Prefill { reuse: Some(remote) } => Some(remote),
            _ => None,
        }
    }
}

/// A pre-tokenised prompt, as vLLM 0.33 takes it.
pub(crate) fn prompt_token_ids(params: &Map<String, Value>) -> Option<Vec<Token>> {
    let ids = params.get("prompt_token_ids")?.as_array()?;
    ids.iter().map(|id| id.as_u64().and_then(|id| Token::try_from(id).ok())).collect()
}

enum Incomplete {
    Missing(&'static str),
    Wrong(&'static str),
}

impl From<Incomplete> for Intent {
    fn from(incomplete: Incomplete) -> Self {
        match incomplete {
            Incomplete::Missing(what) => Self::Hangs(what),
            Incomplete::Wrong(what) => Self::Malformed(what),
        }
    }
}

fn flag(params: &Map<String, Value>, name: &str) -> bool {
    params.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn remote(params: &Map<String, Value>) -> Result<RemoteKv, Incomplete> {
    let text = |name: &'static str| match params.get(name) {
        None | Some(Value::Null) => Err(Incomplete::Missing(name)),
        Some(value) => value.as_str().map(str::to_owned).ok_or(Incomplete::Wrong(name)),
    };
    let number = |name: &str| params.get(name).and_then(Value::as_u64).map(|number| number as usize);
    let port = match params.get("remote_port") {
        None | Some(Value::Null) => Err(Incomplete::Missing("remote_port")),
        Some(port) => {
            port.as_u64().and_then(|port| u16::try_from(port).ok()).ok_or(Incomplete::Wrong("remote_port"))
        }
    }?;
    // One list per KV group; this model has one group.
    let blocks = params.get("remote_block_ids").and_then(|groups| groups.get(0)).and_then(Value::as_array);
    let blocks = blocks.and_then(|blocks| {
        blocks.iter().map(|block| block.as_u64().and_then(|block| u32::try_from(block).ok())).collect()
    });
    Ok(RemoteKv {
        engine_id: text("remote_engine_id")?,
        request_id: text("remote_request_id")?,
        host: text("remote_host")?,
        port,
        blocks: blocks.ok_or(Incomplete::Wrong("remote_block_ids"))?,
        tokens: number("remote_num_tokens"),
        expires_at_s: params.get("remote_blocks_expiry_time").and_then(Value::as_f64),
        prefill_cached_tokens: number("remote_prefill_cached_tokens"),
    })
}

/// What an answer carries.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Offer {
    Pull(PullOffer),
    Host(Params<Held>),
}

/// Where KV is to be read; the order of members is vLLM's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PullOffer {
    pub do_remote_prefill: bool,
    pub do_remote_decode: bool,
    pub remote_block_ids: [Vec<u32>; 1],
    pub remote_engine_id: String,
    pub remote_request_id: String,
    pub remote_host: String,
    pub remote_port: u16,
    pub tp_size: u32,
    pub dcp_size: u32,
    pub pp_size: u32,
    pub remote_num_tokens: usize,
    pub remote_blocks_expiry_time: Option<f64>,
    pub transfer_mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_prefill_cached_tokens: Option<usize>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn whole() -> Value {
        json!({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1, 2]],
            "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 5600,
            "tp_size": 1, "remote_num_tokens": 58, "remote_blocks_expiry_time": null,
            "remote_prefill_cached_tokens": 32})
    }

    fn changed(changes: Value) -> Map<String, Value> {
        let mut params = whole().as_object().unwrap().clone();
        params.extend(changes.as_object().unwrap().clone());
        params
    }

    #[test]
    fn intents() {
        let remote = RemoteKv {
            engine_id: "e".into(),
            request_id: "r".into(),
            host: "127.0.0.1".into(),
            port: 5600,
            blocks: vec![1, 2],
            tokens: Some(58),
            expires_at_s: None,
            prefill_cached_tokens: Some(32),
        };
        let back = json!({"do_remote_prefill": false, "do_remote_decode": true});
        let nothing = json!({"do_remote_prefill": false});
        let mut longer = back.clone();
        longer["remote_num_tokens"] = json!(64);
        let unsaid = json!({"do_remote_prefill": false, "do_remote_decode": true, "remote_host": null});
        for (changes, bidirectional, expect) in [
            (json!({}), false, Intent::Decode(remote.clone())),
            (nothing, true, Intent::Plain),
            (back.clone(), true, Intent::Prefill { reuse: Some(remote) }),
            (back, false, Intent::Prefill { reuse: None }),
            (longer, false, Intent::Hangs("an offer without bidirectional")),
            (unsaid, false, Intent::Prefill { reuse: None }),
            (
                json!({"remote_block_ids": null}),
                false,
                Intent::Dies("do_remote_prefill without remote_block_ids"),
            ),
            (json!({"remote_host": null}), false, Intent::Hangs("remote_host")),
            (json!({"remote_engine_id": null}), false, Intent::Hangs("remote_engine_id")),
            (json!({"remote_port": 70_000}), false, Intent::Malformed("remote_port")),
            (json!({"remote_block_ids": [[-1]]}), false, Intent::Malformed("remote_block_ids")),
            (json!({"remote_block_ids": []}), false, Intent::Malformed("remote_block_ids")),
        ] {
            assert_eq!(Intent::read(&changed(changes.clone()), bidirectional, 64), expect, "{changes}");
        }
        let bare = json!({"do_remote_decode": true});
        assert_eq!(Intent::read(bare.as_object().unwrap(), true, 64), Intent::Prefill { reuse: None });
    }
}
