//! How long a leg is waited for. A leg that is late is given up while the request still has time for another.

use std::time::Duration;

use sluice_core::failure::Failure;
use tokio::time::Instant;

use super::call::Call;
use super::origin::Origin;
use crate::config::Pool;

/// A token slower than this is as good as none: whole answers, whose first byte comes with their last, are given up
/// when even at this pace they should be there. Five tokens a second is slower than people read.
pub(crate) const SLOWEST_TOKEN: Duration = Duration::from_millis(200);

/// When a leg is given up, and by which limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub at: Instant,
    /// As people set it.
    key: &'static str,
    limit_ms: u128,
    /// What passing it is.
    pub failure: Failure,
}

impl Deadline {
    /// Prefill legs: until their answer.
    pub(super) fn prefill(call: &Call<'_>) -> Self {
        let limit = Duration::from_millis(call.pool.config.prefill_timeout_ms);
        Self::within(call, limit, "prefill_timeout_ms")
    }

    /// Decode legs whose prompt was prefilled elsewhere: until a stream's first event, or until a whole answer.
    pub(super) fn decode(call: &Call<'_>) -> Self {
        let limit = Duration::from_millis(call.pool.config.decode_first_byte_ms);
        Self::within(call, limit.saturating_add(answer_time(call)), "decode_first_byte_ms")
    }

    /// Decode legs that are asked for a whole answer, whatever their client asked for.
    pub(super) fn whole_decode(call: &Call<'_>) -> Self {
        let limit = Duration::from_millis(call.pool.config.decode_first_byte_ms);
        Self::within(call, limit.saturating_add(whole_answer_time(call)), "decode_first_byte_ms")
    }

    /// Decode legs that are sent with the prefill.
    pub(super) fn both(call: &Call<'_>) -> Self {
        let Pool { prefill_timeout_ms, decode_first_byte_ms, .. } = call.pool.config;
        let limit = Duration::from_millis(prefill_timeout_ms.saturating_add(decode_first_byte_ms));
        Self::within(
            call,
            limit.saturating_add(answer_time(call)),
            "prefill_timeout_ms and decode_first_byte_ms",
        )
    }

    /// Legs that prefill and decode.
    pub(super) fn unified(call: &Call<'_>) -> Self {
        let limit = Duration::from_millis(call.pool.config.prefill_timeout_ms);
        Self::within(call, limit.saturating_add(answer_time(call)), "prefill_timeout_ms")
    }

    /// Legs of requests to other paths: until a stream's first words, or, with the time that what follows them may
    /// take, until a whole answer.
    pub fn passed(origin: &Origin<'_>, answer_time: Duration) -> Self {
        let limit = Duration::from_millis(origin.pool.config.prefill_timeout_ms);
        Self::of(origin, limit.saturating_add(answer_time), "prefill_timeout_ms")
    }

    fn within(call: &Call<'_>, limit: Duration, key: &'static str) -> Self {
        Self::of(&call.origin(), limit, key)
    }

    fn of(call: &Origin<'_>, limit: Duration, key: &'static str) -> Self {
        let at = Instant::now().checked_add(limit).unwrap_or(call.deadline);
        if at < call.deadline {
            return Self { at, key, limit_ms: limit.as_millis(), failure: Failure::Late };
        }
        let limit_ms = u128::from(call.app.config.server.request_timeout_ms);
        Self { at: call.deadline, key: "server.request_timeout_ms", limit_ms, failure: Failure::OutOfTime }
    }

    /// For messages.
    pub fn words(&self) -> String {
        format!("within {} ms ({})", self.limit_ms, self.key)
    }
}

/// What a whole answer may take after its first token; a stream's events are waited for one by one.
fn answer_time(call: &Call<'_>) -> Duration {
    if call.request.streams { Duration::ZERO } else { whole_answer_time(call) }
}

fn whole_answer_time(call: &Call<'_>) -> Duration {
    // Without a limit of the client's own, an answer may be as long as the model goes on.
    let asked = call.request.output_limit.map(|limit| limit.tokens);
    let most = asked.or(call.pool.config.max_model_len);
    most.map_or(Duration::MAX, |tokens| SLOWEST_TOKEN.saturating_mul(tokens))
}
