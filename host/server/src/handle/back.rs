//! The handle of a turn that a decode worker keeps: where its KV blocks are, for the next turn's prefill to fetch.
//!
//! Engines go by what it says and compare nothing. So it is sent once, cut to what is proven to be of the next prompt's
//! tokens: the count and the block ids both, since a prefill engine that has a part itself takes as many ids from the
//! list's end as it lacks.

use std::fmt::Write;
use std::sync::Arc;

use sluice_core::history::guard::Cut;

use super::{Fields, For};
use crate::http::members::Members;

/// A checked handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackHandle {
    json: Arc<str>,
    /// The engine's own id, another after a restart.
    pub engine: Arc<str>,
    /// Tokens held.
    pub tokens: u32,
    /// Block ids in each KV group.
    pub blocks_of_groups: Vec<usize>,
    /// Whether it says when the holder's own time for the blocks is over. vLLM always does, and a prefill engine that is not told
    /// would read them after that, too.
    pub says_its_end: bool,
}

impl BackHandle {
    /// Reads a decode answer's `kv_transfer_params`; what is wrong with it otherwise.
    ///
    /// # Errors
    /// Where an engine that was given it would fail, hang or answer for other tokens.
    pub fn read(json: &str) -> Result<Self, String> {
        let fields = Fields::read(json, For::Prefill)?;
        let tokens = fields.remote_num_tokens.filter(|tokens| *tokens > 0);
        Ok(Self {
            json: json.into(),
            engine: fields.remote_engine_id.into(),
            tokens: tokens.ok_or("remote_num_tokens is not said")?,
            blocks_of_groups: fields.remote_block_ids.iter().map(Vec::len).collect(),
            says_its_end: fields.remote_blocks_expiry_time.is_some(),
        })
    }

    /// As the engine wrote it.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// `kv_transfer_params` of a prefill leg that is to fetch the proven part. `None` where the blocks are not those that the
    /// part was cut from.
    pub fn for_prefill(&self, cut: &Cut) -> Option<String> {
        let fields = Fields::read(&self.json, For::Prefill).ok()?;
        let [ids] = &fields.remote_block_ids[..] else { return None };
        let mut blocks = String::from("[[");
        for (place, id) in cut.ids(ids)?.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let _ = write!(blocks, "{comma}{id}");
        }
        blocks.push_str("]]");
        let tokens = cut.tokens().to_string();
        Some(self.with(&[("remote_num_tokens", &tokens), ("remote_block_ids", &blocks)]))
    }

    /// `kv_transfer_params` of a request that an engine of the other side refuses, upon which it tells the holder to free the
    /// blocks.
    pub fn to_end(&self) -> String {
        self.with(&[("do_remote_prefill", "true"), ("do_remote_decode", "false")])
    }

    fn with(&self, set: &[(&str, &str)]) -> String {
        let members = Members::parse(self.json.as_bytes()).unwrap_or_default();
        String::from_utf8(members.write(&[], set)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use serde_json::{Value, json};
    use sluice_core::history::guard::{Held, Prompt};
    use sluice_core::history::tokens::Sequence;

    use super::*;

    const GOOD: &str = r#"{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[9,36,37,38]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":5700,"tp_size":1,"remote_num_tokens":60,"remote_blocks_expiry_time":3220.9,"transfer_mode":"pull"}"#;

    fn cut(tokens: usize) -> Cut {
        let ids: Vec<u32> = (0..60).collect();
        let held = Held::of_sequence(Sequence::of_ids(&ids), NonZeroU32::new(16).expect("not 0"));
        let mut prompt = ids[..tokens].to_vec();
        prompt.extend([1_000; 9]);
        held.cut_for(&Prompt { sequence: Sequence::of_ids(&prompt), has_media: false }).expect("a part")
    }

    #[test]
    fn count_and_ids_are_cut_together() {
        let handle = BackHandle::read(GOOD).expect("good");
        assert_eq!((handle.tokens, &handle.blocks_of_groups[..], &*handle.engine), (60, &[4][..], "e"));
        let without_end = GOOD.replace(r#""remote_blocks_expiry_time":3220.9,"#, "");
        let endless = BackHandle::read(&without_end).expect("good to be let go by");
        assert_eq!((handle.says_its_end, endless.says_its_end), (true, false));
        for (proven, tokens, blocks) in
            [(60, 60, json!([[9, 36, 37, 38]])), (33, 33, json!([[9, 36, 37]])), (32, 32, json!([[9, 36]]))]
        {
            let sent: Value =
                serde_json::from_str(&handle.for_prefill(&cut(proven)).expect("cut")).expect("JSON");
            let mut expected: Value = serde_json::from_str(GOOD).expect("JSON");
            expected["remote_num_tokens"] = tokens.into();
            expected["remote_block_ids"] = blocks;
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn what_is_to_end_names_the_same_blocks_the_other_way() {
        let sent: Value =
            serde_json::from_str(&BackHandle::read(GOOD).expect("good").to_end()).expect("JSON");
        let mut expected: Value = serde_json::from_str(GOOD).expect("JSON");
        expected["do_remote_prefill"] = true.into();
        expected["do_remote_decode"] = false.into();
        assert_eq!(sent, expected);
    }

    #[test]
    fn several_groups_are_never_cut() {
        let several = GOOD.replace("[[9,36,37,38]]", "[[9,36,37,38],[0,0]]");
        let handle = BackHandle::read(&several).expect("it can be ended");
        assert_eq!((handle.blocks_of_groups.len(), handle.for_prefill(&cut(60))), (2, None));
        let short = BackHandle::read(&GOOD.replace("[[9,36,37,38]]", "[[9]]")).expect("it can be ended");
        assert_eq!(short.for_prefill(&cut(60)), None);
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        let good: Value = serde_json::from_str(GOOD).expect("JSON");
        for (name, bad) in [
            ("do_remote_decode", json!(false)),
            ("do_remote_prefill", json!(true)),
            ("remote_num_tokens", json!(0)),
            ("remote_num_tokens", Value::Null),
            ("remote_engine_id", json!("")),
            ("remote_host", json!("a b")),
            ("remote_port", json!(0)),
            ("remote_block_ids", json!([])),
            ("remote_block_ids", json!([[-1]])),
        ] {
            let mut broken = good.clone();
            broken[name] = bad.clone();
            assert!(BackHandle::read(&broken.to_string()).is_err(), "{name} = {bad}");
        }
        assert!(BackHandle::read("null").is_err());
    }
}
