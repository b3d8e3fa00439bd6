//! What a decode leg is asked beyond what its client asks: what the next turn of the conversation needs to use this one.

use super::call::Call;
use crate::config::{PoolMode, StreamsBy};
use crate::fleet::{Worker, streams};
use crate::request::Asks;
use crate::telemetry::labels::Fallback;

/// What a leg to this worker is asked. Nothing where no later turn could make use of it.
pub(super) fn of(call: &Call<'_>, worker: &Worker) -> Asks {
    // What the engine makes of the client's own word would tell whether there are ids, and for whom.
    if !may_be_kept_by_engines(call) || call.request.wants_token_ids().is_none() {
        return Asks::default();
    }
    if !call.request.streams || tells_in_streams(worker) {
        return Asks { token_ids: true, unstreamed: false };
    }
    match call.pool.config.streams {
        StreamsBy::Host => Asks { token_ids: true, unstreamed: true },
        StreamsBy::Engine => {
            call.pool.metrics.fallback(Fallback::StreamTellsNothing);
            Asks::default()
        }
    }
}

/// Whether prefill legs of this request are asked what they read: what decode says that it holds is what prefill computed, only if
/// both read the same.
pub(super) fn prompt_ids(call: &Call<'_>) -> bool {
    may_be_kept_by_engines(call) && !call.pool.reuse_is_off()
}

/// Whether a later turn could make use of this one, which its decode engine keeps by itself.
fn may_be_kept_by_engines(call: &Call<'_>) -> bool {
    let keeps = call.pool.config.mode == PoolMode::Bidirectional;
    keeps && call.chain.is_some() && call.request.unsplittable.is_none()
}

/// Whether this worker's streams say what its engine keeps of their turns.
pub(super) fn tells_in_streams(worker: &Worker) -> bool {
    worker.seen().version.as_deref().is_some_and(streams::tell_of_kept_kv)
}

/// Whether a leg to this worker may carry the prompt's token ids, so that it is not tokenised again, and perhaps otherwise. From the
/// same version on as streams tell of what is kept.
pub(super) fn takes_ids(worker: &Worker) -> bool {
    tells_in_streams(worker)
}
