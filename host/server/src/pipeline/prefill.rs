//! The prefill leg: the prompt's KV blocks are made, and a handle to them comes back.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sluice_core::facts::Row;
use sluice_core::load::Share;

use super::answer;
use super::attempt::{Attempt, Failed};
use super::call::Call;
use super::deadline::Deadline;
use super::dispatch::{self, Resend};
use super::refusal::refusal;
use crate::config::HOLD_MARGIN_MS;
use crate::fleet::{Booking, Leg, Worker};
use crate::handle::{Handle, HandleError};
use crate::held::{Blocks, Held};
use crate::http::error::Blame;
use crate::http::members::Members;
use crate::telemetry::labels::{Fallback, HandleFate, Label, Outcome, Phase};
use crate::usage::PrefillUsage;

/// The end of a prefill leg.
pub(super) struct Prefilled {
    pub by: Arc<Worker>,
    /// `None` when the worker moved nothing: decode then computes the prompt again.
    pub held: Option<Held>,
    pub prompt_tokens: Option<u32>,
    /// For the client's usage; `None` without a handle.
    pub said: Option<PrefillUsage>,
    pub took: Duration,
}

/// Prefills on the worker of this row.
pub(super) async fn run(attempt: &Attempt<'_, '_>, row: Row) -> Result<Prefilled, Failed> {
    let (call, facts) = (attempt.call, &attempt.facts);
    let worker = attempt.worker(row)?;
    let cached_tokens = attempt.cached_tokens(row);
    let share = Share::prefill(facts.request.prompt_tokens, cached_tokens, facts.block_tokens);
    let booking = Booking::new(worker.clone(), share);
    let mut leg = Leg::prefill(&call.pool, &worker);
    let deadline = Deadline::prefill(call);
    let dispatched = call.app.clock.elapsed();
    let (body, how) = (call.request.prefill_body(), (Resend::Once, attempt.number));
    let response = dispatch::send(call, &mut leg, Blame::Prefill, body, how, deadline).await?;
    // The lease began when the engine was done, a little before its answer's head came: the margin covers that.
    let answered = call.app.clock.elapsed();
    let (head, body) = response.into_parts();
    let bytes = dispatch::read(&mut leg, Blame::Prefill, body, &deadline).await?;
    if !head.status.is_success() {
        return Err(refusal(&mut leg, Blame::Prefill, &head, &bytes));
    }
    let (members, _) = answer::members(&bytes)
        .map_err(|(failure, what)| dispatch::no_answer(&mut leg, Blame::Prefill, failure, what))?;
    leg.went_well();
    call.trail.note(|story, now| story.leg_over(Outcome::Ok.name(), now));
    let took = answered.saturating_sub(dispatched);
    attempt.decision.metrics.phase(Phase::Prefill, took);
    let told = told(&members);
    let handle = take_handle(call, &worker, &members);
    let said = handle.as_ref().map(|handle| PrefillUsage::of(handle.cached_tokens, &members));
    let prompt_tokens = handle.as_ref().and_then(|handle| handle.tokens).or(told);
    let computed = prompt_tokens.unwrap_or(facts.request.prompt_tokens);
    let cached_tokens = handle.as_ref().and_then(|handle| handle.cached_tokens).unwrap_or(cached_tokens);
    worker.seen().prefilled(computed.saturating_sub(cached_tokens), dispatched, answered);
    let lease_ms = call.pool.config.kv_lease_ms;
    let usable = usable_for(lease_ms, call.app.config.server.connect_timeout_ms);
    let held = handle.map(|handle| {
        let (pool, holder, endpoint) = (call.pool.clone(), worker.clone(), call.request.endpoint);
        let kept = Arc::new(worker.hold_handle(&call.app.clock, lease_ms));
        let (good_until, incarnation) = (answered + usable, holder.seen().incarnation);
        let blocks = Blocks { handle, good_until, pool, holder, incarnation, endpoint, kept };
        Held::new(blocks, &call.app.releases)
    });
    // Only now, with the handle counted: a draining worker is never taken for idle in between.
    drop(booking);
    Ok(Prefilled { by: worker, held, prompt_tokens, said, took })
}

/// How long after the prefill's answer its handle may be sent: decode must reach the holder within the lease, and a
/// new connection to decode takes its time first.
fn usable_for(kv_lease_ms: u64, connect_timeout_ms: u64) -> Duration {
    Duration::from_millis(kv_lease_ms.saturating_sub(connect_timeout_ms.saturating_add(HOLD_MARGIN_MS)))
}

/// Prompt tokens as the engine counted them.
fn told(members: &Members<'_>) -> Option<u32> {
    #[derive(Deserialize)]
    struct Usage {
        prompt_tokens: u32,
    }
    members.read::<Usage>("usage").ok().flatten().map(|usage| usage.prompt_tokens)
}

/// The handle of a prefill answer; without one the transfer does not happen, which is counted and said.
fn take_handle(call: &Call<'_>, worker: &Worker, members: &Members<'_>) -> Option<Handle> {
    let pool = &call.pool;
    let error = match Handle::from_answer(members) {
        Ok(handle) => return Some(handle),
        Err(error) => error,
    };
    let what = match error {
        HandleError::Absent => HandleFate::Absent,
        HandleError::Unusable(_) => HandleFate::Unusable,
    };
    pool.metrics.transfer(what);
    pool.metrics.fallback(Fallback::TransferMissing);
    let key = format!("handle {} {} {}", pool.config.name, worker.name, what.name());
    call.app.telemetry.warn_once(&key, || {
        format!(
            "no KV moves from worker {:?} of pool {:?}, decode computes prompts again: {error}",
            worker.name, pool.config.name
        )
    });
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_stale_before_its_lease_ends() {
        for (kv_lease_ms, connect_timeout_ms, usable_ms) in
            [(30_000, 2_000, 27_000), (3_500, 2_000, 500), (2_000, 2_000, 0), (0, 60_000, 0)]
        {
            let usable = usable_for(kv_lease_ms, connect_timeout_ms);
            assert_eq!(usable, Duration::from_millis(usable_ms));
            // Even a dispatch at the last moment, on a connection that took all its time, is within the lease.
            let last_use_ms = usable_ms + connect_timeout_ms + HOLD_MARGIN_MS;
            assert!(usable_ms == 0 || last_use_ms <= kv_lease_ms);
        }
    }
}
