//! Step 3: one picture of the request and of the fleet, for whoever decides.

use std::sync::atomic::Ordering;

use sluice_core::facts::{Facts, RequestFacts};
use sluice_core::hash;
use sluice_core::history::scope::Conversation;

use super::call::{Call, prompt_tokens};
use crate::clock::millis;
use crate::fleet::Table;

/// Bytes of the prompt that seed a request without a conversation. Requests that begin alike then break ties
/// alike, which is what prefix caches like; hashing whole prompts would cost more than it tells.
const SEED_PROMPT_BYTES: usize = 1_024;

/// Facts of one attempt.
pub(super) fn gather(call: &Call<'_>, table: &Table, attempt: u32) -> Facts {
    let bound = call.bound();
    let text = call.request.prompt_text();
    let pool = &call.pool;
    let block_tokens = pool.config.block_tokens;
    let continued = call.session.as_ref().filter(|_| call.continues_session);
    let prompt_tokens = match &call.prompt_ids {
        Some(ids) => u32::try_from(ids.ids().len()).unwrap_or(u32::MAX),
        None => prompt_tokens(pool, text.len(), continued),
    };
    let cached_tokens = match continued {
        Some(session) => {
            let mut cached = session.cached_tokens(&table.fleet, block_tokens);
            cached
                .iter_mut()
                .zip(&table.caches)
                .filter(|(_, caches)| !**caches)
                .for_each(|(tokens, _)| *tokens = 0);
            cached
        }
        None => vec![0; table.fleet.len()],
    };
    Facts {
        now_ms: call.app.clock.wall_ms(),
        seed: seed(call, text),
        sequence: call.sequence,
        block_tokens,
        kv_bytes_per_token: pool.kv_bytes_per_token(table),
        request: RequestFacts {
            model: call.request.model.clone(),
            tenant: call.tenant.clone(),
            workload: bound.workload.to_owned(),
            prompt_tokens,
            prompt_tokens_exact: call.prompt_ids.is_some(),
            max_output_tokens: call.request.max_output_tokens,
            streams: call.request.streams,
            priority: call.priority,
            ttft_target_ms: bound.ttft_target_ms,
            tpot_target_ms: bound.tpot_target_ms,
            attempt,
            labels: call.labels.clone(),
        },
        session: call
            .session
            .as_ref()
            .map(|session| session.facts(&table.fleet, millis(call.arrived), held(call))),
        fleet: table.fleet.clone(),
        load: table.load(),
        cached_tokens,
        extra: Vec::new(),
    }
}

/// Who holds a part of the prompt for it, how many tokens, and for how much longer.
fn held(call: &Call<'_>) -> Option<(u64, u32, u64)> {
    // By an attempt before this one.
    let is_taken = call.found_taken.load(Ordering::Relaxed);
    call.found.filter(|_| !is_taken).map(|found| (found.holder, found.tokens, found.left_ms))
}

/// The conversation's hash, or the prompt's beginning's: the same on every host and every attempt.
fn seed(call: &Call<'_>, text: &[u8]) -> u64 {
    match &call.session_key {
        Some(key) => match &key.conversation {
            Conversation::Named(name) => {
                hash::bytes(hash::bytes(0, key.scope.tenant.as_bytes()), name.as_bytes())
            }
            // What all its turns have in common, whichever of them this host has seen.
            Conversation::Derived(line) => {
                let opening = call.chain.as_ref().map_or(*line, |chain| chain.opening());
                hash::bytes(2, &opening.0)
            }
        },
        None => hash::bytes(1, &text[..text.len().min(SEED_PROMPT_BYTES)]),
    }
}
