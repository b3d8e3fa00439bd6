//! The way back: decode keeps the probe's turn, and a second prefill leg is to fetch it.
//!
//! It goes as next turns of clients do: the handle is cut to what is proven of a prompt that goes on from prompt and answer. It
//! has a salt of its own, so that no cache of the prefill engine can have what it asks for. Nothing of it is decoded, so what
//! prefill holds of it is given back, and what decode keeps too if it was not fetched.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::json;
use sluice_core::history::guard::{Cut, Held, Prompt, Told};
use sluice_core::history::tokens::Sequence;
use sluice_core::kv_proof::{Back, BackDoubt, NotFetched, Offered, Verdict, judge_back};
use tokio::time::{Instant, sleep, timeout};

use super::{COUNTED_WITHIN, LEG_WITHIN, LOOK_EVERY, Pair, Prober, Proof, engine_words, waited_ms};
use crate::config::{Pool, PoolMode, WorkerUrl};
use crate::fleet::scrape::EngineMetrics;
use crate::handle::Handle;
use crate::handle::back::BackHandle;
use crate::http::members::Members;
use crate::http::token_ids::{Found, Value};
use crate::ids::RequestId;
use crate::release::refused_body;
use crate::request::Endpoint;
use crate::usage::PrefillUsage;

/// The next turn of the probe.
struct Next {
    /// Of the prefill leg.
    params: String,
    /// Of its prompt.
    ids: Vec<u32>,
    /// Which part of it decode is proven to have.
    cut: Cut,
}

impl Prober<'_> {
    /// Tries the way back where there is one, and leaves nothing of the probe's turn. `moved`: whether decode is known to have
    /// fetched the prompt, without which it keeps nothing.
    pub(super) async fn way_back(
        &self,
        pair: &Pair<'_>,
        answer: &[u8],
        moved: bool,
        id: RequestId,
        proof: &mut Proof,
    ) {
        let tries = pair.tries_back && pair.pool.mode == PoolMode::Bidirectional;
        let members = Members::parse(answer).unwrap_or_default();
        let Some(told) = members.get("kv_transfer_params") else {
            proof.back = (tries && moved).then_some(Back::NotFetched(NotFetched::NotKept));
            return;
        };
        let turn = match BackHandle::read(told.get()) {
            Ok(turn) => turn,
            Err(what) => {
                proof.turn_left = Some(what.clone());
                proof.back = tries.then_some(Back::NotFetched(NotFetched::Unusable { what }));
                return;
            }
        };
        if tries {
            proof.back = Some(match next(pair.pool, &turn, answer) {
                Ok(next) => self.offer(pair, &next, id, proof).await,
                Err(what) => Back::NotFetched(NotFetched::Unusable { what }),
            });
        }
        // What was fetched is let go by its holder. Should prefill still read the rest, what it gets is under a salt that no other
        // request has.
        if proof.back.as_ref().is_none_or(|back| back.verdict() != Verdict::Moved) {
            proof.turn_left = self.end(pair.prefill, &turn.to_end(), id).await.err();
        }
    }

    /// The second prefill leg.
    async fn offer(&self, pair: &Pair<'_>, next: &Next, id: RequestId, proof: &mut Proof) -> Back {
        let unreachable = |error| Back::Unproven(BackDoubt::Unreachable { error });
        let before = match self.metrics(pair.prefill).await {
            Ok(before) => before,
            Err(error) => return unreachable(error),
        };
        let started = self.clock.elapsed();
        let body = body(pair.pool, next, id);
        let text = match timeout(LEG_WITHIN, self.post(pair.prefill, "/v1/completions", body, id)).await {
            Ok(Ok((status, text))) if status.is_success() => text,
            Ok(Ok((status, text))) => {
                let (status, message) = (status.as_u16(), engine_words(&text));
                return Back::NotFetched(NotFetched::Failed { status, message });
            }
            Ok(Err(error)) => return unreachable(error),
            Err(_) => {
                let waited_ms = waited_ms();
                return if self.waits_for_blocks_alone(pair.prefill).await {
                    Back::NotFetched(NotFetched::Silent { waited_ms })
                } else {
                    Back::Unproven(BackDoubt::NoAnswer { waited_ms })
                };
            }
        };
        let took_ms = self.since(started);
        let Ok(members) = Members::parse(&text) else { return Back::Unproven(BackDoubt::NoSense) };
        if members.get("choices").is_none() {
            return Back::Unproven(BackDoubt::NoSense);
        }
        let handle = Handle::from_answer(&members).ok();
        let told_tokens =
            PrefillUsage::of(handle.as_ref().and_then(|it| it.cached_tokens), &members).cached_tokens;
        if let Some(handle) = handle {
            proof.blocks_left |= self.end(pair.decode, handle.json(), id).await.is_err();
        }
        let offered = Offered {
            tokens: next.cut.tokens(),
            block_tokens: pair.pool.block_tokens,
            took_ms,
            told_tokens,
            before: before.counters(),
            after: before.counters(),
        };
        self.counted(pair.prefill, offered).await.unwrap_or_else(unreachable)
    }

    /// What the prefill engine counted of it.
    async fn counted(&self, prefill: &WorkerUrl, offered: Offered) -> Result<Back, String> {
        let deadline = Instant::now() + COUNTED_WITHIN;
        loop {
            let after = self.metrics(prefill).await.map(|metrics: EngineMetrics| metrics.counters())?;
            let back = judge_back(&Offered { after, ..offered });
            if back.verdict() == Verdict::Moved || Instant::now() >= deadline {
                return Ok(back);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Has the holder named in these `kv_transfer_params` let go of the blocks, by way of a worker of the other side.
    async fn end(&self, worker: &WorkerUrl, params: &str, id: RequestId) -> Result<(), String> {
        let body = refused_body(Endpoint::Completions, params);
        let late = || format!("it did not answer within {} ms", Duration::as_millis(&LEG_WITHIN));
        let asked = timeout(LEG_WITHIN, self.post(worker, "/v1/completions", body, id)).await;
        let (status, _): (StatusCode, Bytes) = asked.map_err(|_| late())??;
        if status == StatusCode::NOT_FOUND {
            return Ok(());
        }
        Err(format!("{worker} answered {status} to a model nobody serves, not 404"))
    }
}

/// Cuts what decode told of to a prompt that goes on from it; why that cannot be done.
fn next(pool: &Pool, turn: &BackHandle, answer: &[u8]) -> Result<Next, String> {
    let found = Found::read(answer).ok();
    let list = |value: &Value<'_>| serde_json::from_slice::<Vec<u32>>(value.text()?).ok();
    let prompt_ids = found.as_ref().and_then(|found| list(&found.prompt_ids));
    let output_ids = found.as_ref().and_then(|found| list(&found.output_ids));
    let block_tokens = NonZeroU32::new(pool.block_tokens).ok_or("block_tokens is 0")?;
    let held = Held::of_turn(&Told {
        prompt_ids: prompt_ids.as_deref(),
        output_ids: output_ids.as_deref(),
        tokens: turn.tokens,
        blocks_of_groups: &turn.blocks_of_groups,
        block_tokens,
        has_media: false,
    });
    let held = held.map_err(|refusal| refusal.to_string())?.into_proofs(block_tokens);
    let ids: Vec<u32> = prompt_ids.into_iter().chain(output_ids).flatten().collect();
    let prompt = Prompt { sequence: Sequence::of_ids(&ids), has_media: false };
    let cut = held.cut_for(&prompt).map_err(|refusal| refusal.to_string())?;
    let params = turn.for_prefill(&cut).ok_or("its block ids are not those of its tokens")?;
    Ok(Next { params, ids, cut })
}

fn body(pool: &Pool, next: &Next, id: RequestId) -> Vec<u8> {
    let body = json!({
        "model": pool.model, "prompt": next.ids, "max_tokens": 1, "temperature": 0, "stream": false,
        "cache_salt": format!("{}-back", id.probe()),
    })
    .to_string();
    Members::parse(body.as_bytes()).unwrap_or_default().write(&[], &[("kv_transfer_params", &next.params)])
}
