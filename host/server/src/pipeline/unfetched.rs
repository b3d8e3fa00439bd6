//! Kept turns that a prefill engine was offered and did not fetch: who is to blame, and what is said of it.

use std::sync::Arc;

use sluice_core::failure::Failure;
use sluice_core::kv_proof::least_tokens;

use super::attempt::Failed;
use super::call::Call;
use super::reuse::Back;
use crate::fleet::Worker;
use crate::http::error::{ApiError, Blame};
use crate::http::segments::Taken;
use crate::telemetry::labels::Fallback;

/// A turn on its way to a prefill engine, for when the leg fails.
pub(super) struct Offered {
    taken: Taken,
    prefill: Arc<Worker>,
    holder: Arc<Worker>,
}

impl Offered {
    pub fn of(back: &Back, prefill: &Arc<Worker>) -> Option<Self> {
        Some(Self { taken: back.taken.clone(), prefill: prefill.clone(), holder: back.holder()?.clone() })
    }

    /// The failure as it is told where the leg may have failed for the turn's sake. That speaks against neither worker: the next
    /// attempt asks for nothing kept, and so shows whether prefill works.
    pub fn failed(self, failed: Failed, call: &Call<'_>) -> Failed {
        if !self.taken.is_set() || !failed.failure.may_be_the_holders() {
            return failed;
        }
        let (prefill, holder, config) = (&self.prefill.name, &self.holder.name, &call.pool.config);
        let pool = &config.name;
        if failed.failure == Failure::Late {
            call.app.telemetry.warn_once(&format!("turn hangs {pool} {prefill} {holder}"), || {
                format!(
                    "worker {prefill:?} of pool {pool:?} gave no answer when it was to fetch a turn that {holder:?} keeps; its prompt \
                     is computed. Cure: start it with kv_connector_extra_config {{\"bidirectional_kv_xfer\": true}}, without \
                     which vLLM waits for KV that it never asks for, and let it reach the side channel of {holder:?}"
                )
            });
        } else {
            call.app.telemetry.warn_once(&format!("turn unread {pool} {prefill} {holder}"), || {
                format!(
                    "worker {prefill:?} of pool {pool:?} failed when it was to fetch a turn that {holder:?} keeps; its prompt is \
                     computed. {holder:?} may let go of turns earlier than decoder_ttl_ms = {} says. Cure: set decoder_ttl_ms to \
                     its decoder_kv_blocks_ttl, which is in seconds; if it is that already, read the log of {prefill:?}",
                    config.decoder_ttl_ms
                )
            });
        }
        let message =
            format!("{}; it was to fetch a kept turn from decode worker {holder:?}", failed.error.message);
        let error = ApiError { blame: Blame::Transfer, message, ..failed.error };
        Failed { failure: Failure::TurnUnread, worker: None, error }
    }
}

/// Counts and says it where prefill computed what it could have fetched, as far as its answer tells.
pub(super) fn tell(call: &Call<'_>, prefill: &Worker, back: &Back, cached_tokens: Option<u32>) {
    let config = &call.pool.config;
    let (offered, Some(cached)) = (back.tokens(), cached_tokens) else { return };
    // The rest of the last block may be computed.
    if cached >= least_tokens(offered, config.block_tokens) {
        return;
    }
    call.pool.metrics.fallback(Fallback::TurnNotFetched);
    let (pool, prefill) = (&config.name, &prefill.name);
    call.app.telemetry.warn_once(&format!("turn not fetched {pool} {prefill}"), || {
        format!(
            "worker {prefill:?} of pool {pool:?} computed a prompt of which it could have fetched {offered} tokens: it has {cached}. \
             Cure: start it with kv_connector_extra_config {{\"bidirectional_kv_xfer\": true, \
             \"kv_recompute_threshold\": 0}}: what is less than its threshold it computes"
        )
    });
}
