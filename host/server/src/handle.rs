//! The handle a prefill worker returns: where its KV blocks are, for the decode worker to fetch.
//!
//! A decode worker that keeps its turn returns one of the same members: see [`back`].

pub mod back;

use serde::Deserialize;

use crate::http::members::Members;

/// The largest handle forwarded, in bytes: block ids of a 2 M token prompt at 16 tokens a block, with room.
const HANDLE_BYTES_AT_MOST: usize = 2 * 1024 * 1024;

/// `kv_transfer_params` of a prefill leg that is to give a handle.
pub const ASKED: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false}"#;

/// A checked handle. It is forwarded unchanged and used once: it has no `Clone`, and dispatch consumes it.
#[derive(Debug)]
pub struct Handle {
    json: Box<str>,
    /// Prompt tokens the holder has.
    pub tokens: Option<u32>,
    /// Of them, tokens the prefill worker had cached.
    pub cached_tokens: Option<u32>,
}

/// Why an answer's handle cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The prefill worker moved nothing: no such member, or `null`.
    #[error("the prefill answer has no kv_transfer_params: is the engine started with a KV connector?")]
    Absent,
    /// The engine keeps nothing for this host.
    #[error("the prefill answer says of no KV blocks that are held: is the engine attached to this host?")]
    NotHeld,
    /// A decode engine given this would hang or exit, so it is not forwarded.
    #[error("the prefill answer's kv_transfer_params are unusable: {0}")]
    Unusable(String),
}

/// What a handle must name, whoever holds the blocks.
#[derive(Deserialize)]
struct Fields {
    do_remote_prefill: bool,
    #[serde(default)]
    do_remote_decode: bool,
    remote_engine_id: String,
    remote_request_id: String,
    remote_host: String,
    remote_port: u16,
    remote_block_ids: Vec<Vec<u64>>,
    #[serde(default)]
    remote_num_tokens: Option<u32>,
    #[serde(default)]
    remote_prefill_cached_tokens: Option<u32>,
    /// By the holder's own clock.
    #[serde(default)]
    remote_blocks_expiry_time: Option<f64>,
}

impl Handle {
    /// Takes the handle out of a prefill worker's answer. Every member whose absence is known to hang or end a
    /// vLLM 0.32 decode engine is checked for.
    pub fn from_answer(members: &Members<'_>) -> Result<Self, HandleError> {
        let json = members.get("kv_transfer_params").ok_or(HandleError::Absent)?.get();
        let fields = Fields::read(json, For::Decode).map_err(HandleError::Unusable)?;
        Ok(Self {
            json: json.into(),
            tokens: fields.remote_num_tokens,
            cached_tokens: fields.remote_prefill_cached_tokens,
        })
    }

    /// The JSON to forward, for one dispatch: [`crate::held`] sees to that.
    pub fn json(&self) -> &str {
        &self.json
    }
}

/// Whose turn it is to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Decode,
    Prefill,
}

impl Fields {
    /// Reads a handle and checks all whose absence is known to hang or end a vLLM 0.32 engine.
    fn read(json: &str, whom: For) -> Result<Self, String> {
        if json.len() > HANDLE_BYTES_AT_MOST {
            return Err(format!("{} bytes long", json.len()));
        }
        let fields: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let said =
            ("do_remote_prefill", fields.do_remote_prefill, "do_remote_decode", fields.do_remote_decode);
        let (wanted, is_wanted, other, is_other) = match whom {
            For::Decode => said,
            For::Prefill => (said.2, said.3, said.0, said.1),
        };
        if !is_wanted {
            return Err(format!("{wanted} is false"));
        }
        for (name, value) in [
            ("remote_engine_id", &fields.remote_engine_id),
            ("remote_request_id", &fields.remote_request_id),
            ("remote_host", &fields.remote_host),
        ] {
            if value.is_empty() {
                return Err(format!("{name} is empty"));
            }
        }
        if is_other {
            return Err(format!("{other} is true"));
        }
        if !fields.remote_host.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("remote_host is no host".to_owned());
        }
        if fields.remote_port == 0 || fields.remote_block_ids.is_empty() {
            return Err("remote_port is 0 or remote_block_ids is empty".to_owned());
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":58,"transfer_mode":"pull","remote_prefill_cached_tokens":32}"#;

    fn handle(json: &str) -> Result<Handle, HandleError> {
        let body = format!(r#"{{"id":"x","kv_transfer_params":{json}}}"#);
        Handle::from_answer(&Members::parse(body.as_bytes()).expect("valid"))
    }

    #[test]
    fn a_good_handle_is_forwarded_unchanged() {
        let handle = handle(GOOD).expect("good");
        assert_eq!((handle.tokens, handle.cached_tokens), (Some(58), Some(32)));
        assert_eq!(handle.json(), GOOD);
    }

    #[test]
    fn what_kills_or_hangs_an_engine_is_refused() {
        assert_eq!(handle("null").err(), Some(HandleError::Absent));
        let good: serde_json::Value = serde_json::from_str(GOOD).expect("valid");
        for name in [
            "do_remote_prefill",
            "remote_engine_id",
            "remote_request_id",
            "remote_host",
            "remote_port",
            "remote_block_ids",
        ] {
            for bad in [
                None,
                Some(serde_json::Value::Null),
                Some("".into()),
                Some(0.into()),
                Some(serde_json::json!([])),
            ] {
                let mut broken = good.clone();
                match &bad {
                    None => drop(broken.as_object_mut().expect("object").remove(name)),
                    Some(value) => broken[name] = value.clone(),
                }
                assert!(
                    matches!(handle(&broken.to_string()), Err(HandleError::Unusable(_))),
                    "{name} = {bad:?}"
                );
            }
        }
        assert!(matches!(handle(r#"{"do_remote_prefill":true}"#), Err(HandleError::Unusable(_))));
        assert!(matches!(handle("[1]"), Err(HandleError::Unusable(_))));
        for (name, bad) in
            [("do_remote_decode", true.into()), ("remote_host", serde_json::Value::from("a\r\nb"))]
        {
            let mut broken = good.clone();
            broken[name] = bad;
            assert!(matches!(handle(&broken.to_string()), Err(HandleError::Unusable(_))), "{name}");
        }
    }
}
