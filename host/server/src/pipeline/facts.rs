//! Step 3: one picture of the request and of the fleet, for whoever decides.

use sluice_core::facts::{Facts, FleetColumns, RequestFacts, Role, Row, ability};
use sluice_core::hash;

use super::call::Call;
use crate::fleet::Table;

/// Bytes of the prompt that seed a request without a conversation. Requests that begin alike then break ties
/// alike, which is what prefix caches like; hashing whole prompts would cost more than it tells.
const SEED_PROMPT_BYTES: usize = 1_024;

/// Name of the workload while none can be configured.
const WORKLOAD: &str = "default";

/// Facts of one attempt.
pub(super) fn gather(call: &Call<'_>, table: &Table, attempt: u32) -> Facts {
    let text = call.request.prompt_text();
    let pool = &call.pool;
    let estimate = |bytes: usize| pool.estimate_tokens(bytes);
    let block_tokens = pool.config.block_tokens;
    let (prompt_tokens, cached_tokens, session) = match &call.session {
        None => (estimate(text.len()), vec![0; table.fleet.len()], None),
        Some(session) => (
            session.prompt_tokens(text, estimate),
            session.cached_tokens(&table.fleet, text, block_tokens),
            Some(session.facts(&table.fleet, call.arrived_wall_ms)),
        ),
    };
    Facts {
        now_ms: call.arrived_wall_ms,
        seed: seed(call, text),
        sequence: call.sequence,
        block_tokens,
        kv_bytes_per_token: pool.config.kv_bytes_per_token,
        request: RequestFacts {
            model: call.request.model.clone(),
            tenant: call.tenant.clone(),
            workload: WORKLOAD.to_owned(),
            prompt_tokens,
            prompt_tokens_exact: false,
            max_output_tokens: call.request.max_output_tokens,
            streams: call.request.streams,
            priority: 0,
            ttft_target_ms: None,
            tpot_target_ms: None,
            attempt,
            labels: call.labels.clone(),
        },
        session,
        fleet: table.fleet.clone(),
        load: table.load(),
        cached_tokens,
        extra: Vec::new(),
    }
}

/// The conversation's hash, or the prompt's beginning's: the same on every host and every attempt.
fn seed(call: &Call<'_>, text: &[u8]) -> u64 {
    match &call.session_key {
        Some(key) => hash::bytes(hash::bytes(0, key.tenant.as_bytes()), key.conversation.as_bytes()),
        None => hash::bytes(1, &text[..text.len().min(SEED_PROMPT_BYTES)]),
    }
}

/// Rows that can serve a whole request.
pub(super) fn rows_that_serve_alone(fleet: &FleetColumns) -> Vec<Row> {
    (0..)
        .zip(fleet.role.iter().zip(&fleet.abilities))
        .filter(|(_, (role, abilities))| match Role::from_wire(**role) {
            Some(Role::Unified) => true,
            Some(Role::Decode) => **abilities & ability::CAN_PREFILL != 0,
            Some(Role::Prefill) | None => false,
        })
        .map(|(row, _)| row)
        .collect()
}
