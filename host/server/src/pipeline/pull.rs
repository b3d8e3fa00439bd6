//! Step 6, two workers, pull: prefill first; then decode, which fetches the KV blocks that the handle names.
//!
//! A handle is used once and never after its deadline: past it the prefill worker may have given the blocks to
//! another request, and a read would answer with that one's text.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Response, StatusCode};
use serde::Deserialize;
use sluice_core::facts::{Facts, Prefilled, Row};
use sluice_core::load::Share;
use sluice_core::verdict::{DecodeChoice, Disaggregated};

use super::call::Call;
use super::decide::Decision;
use super::dispatch::{self, Resend};
use super::turn::{Record, Turn};
use super::{Failed, answer};
use crate::config::HOLD_MARGIN_MS;
use crate::fleet::{Booking, HandleGuard, Table, Worker};
use crate::handle::{Handle, HandleError};
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame};
use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::telemetry::labels::{Fallback, HandleFate, Label, Phase, Retry};
use crate::telemetry::pool_metrics::PoolMetrics;

/// The end of a prefill leg.
struct Prefill {
    /// `None` when the worker moved nothing: decode then computes the prompt again.
    handle: Option<Handle>,
    /// The worker keeps blocks for it until decode has read them.
    kept: Option<HandleGuard>,
    prompt_tokens: Option<u32>,
    took: Duration,
    /// By our clock; past it the handle is stale.
    good_until: Duration,
}

/// Prefills on one worker and decodes on another.
pub(super) async fn run(
    call: &Call<'_>,
    table: &Arc<Table>,
    facts: Facts,
    decision: Decision,
    plan: Disaggregated,
    attempt: u32,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    // Until decode's answer, a client that leaves may leave KV blocks behind on the prefill worker.
    let watch = BlocksLeft::watch(call);
    let outcome = both_legs(call, table, facts, decision, plan, attempt, record).await;
    watch.over();
    outcome
}

async fn both_legs(
    call: &Call<'_>,
    table: &Arc<Table>,
    facts: Facts,
    mut decision: Decision,
    plan: Disaggregated,
    attempt: u32,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let prefill_worker = super::worker_at(table, plan.prefill)?;
    // Early binding books decode now, so that requests decided meanwhile see it.
    let early = match plan.decode {
        DecodeChoice::Now(row) => Some((row, book_decode(table, &facts, row)?)),
        DecodeChoice::AfterPrefill => None,
    };
    let prefill = prefill(call, &facts, &decision, plan.prefill, &prefill_worker, attempt).await?;
    let (row, booking) = match early {
        Some(bound) => bound,
        None => bind_late(call, table, &facts, &mut decision, plan.prefill, &prefill)?,
    };
    let worker = booking.worker().clone();
    let had_handle = prefill.handle.is_some();
    let resend = if had_handle { Resend::Never } else { Resend::Once };
    let body = decode_body(call, &prefill_worker, prefill.handle, prefill.good_until)?;
    let turn = Turn::start(call, facts, decision, row, booking)
        .prefilled_by(prefill_worker, prefill.prompt_tokens, had_handle)
        .reads(prefill.kept);
    let answered = match dispatch::send(call, &worker, Blame::Decode, body, resend, attempt).await {
        Ok(response) => answer::relay(call, turn, response, record).await,
        Err(failed) => Err(failed),
    };
    // The decode worker may never have read the blocks: the prefill worker then keeps them for their lease.
    answered.inspect_err(|failed| strand(call, had_handle && matches!(failed, Failed::Retry { .. })))
}

/// Counts a request that was given up while a prefill worker had, or was to have, KV blocks for it.
struct BlocksLeft {
    metrics: Arc<PoolMetrics>,
    over: bool,
}

impl BlocksLeft {
    fn watch(call: &Call<'_>) -> Self {
        Self { metrics: call.pool.metrics.clone(), over: false }
    }

    fn over(mut self) {
        self.over = true;
    }
}

impl Drop for BlocksLeft {
    fn drop(&mut self) {
        if !self.over {
            self.metrics.transfer(HandleFate::Abandoned);
        }
    }
}

async fn prefill(
    call: &Call<'_>,
    facts: &Facts,
    decision: &Decision,
    row: Row,
    worker: &Arc<Worker>,
    attempt: u32,
) -> Result<Prefill, Failed> {
    let cached = facts.cached_tokens.get(row as usize).copied().unwrap_or(0);
    let share = Share::prefill(facts.request.prompt_tokens, cached, facts.block_tokens);
    let booking = Booking::new(worker.clone(), share);
    let dispatched = call.app.clock.elapsed();
    let response =
        dispatch::send(call, worker, Blame::Prefill, call.request.prefill_body(), Resend::Once, attempt)
            .await?;
    // The lease began when the engine was done, a little before its answer's head came: the margin covers that.
    let answered = call.app.clock.elapsed();
    let (head, body) = response.into_parts();
    let bytes = dispatch::read(call, worker, Blame::Prefill, body).await?;
    if !head.status.is_success() {
        return Err(dispatch::refusal(worker, Blame::Prefill, &head, &bytes));
    }
    let members =
        answer::members(&bytes).map_err(|what| dispatch::no_answer(worker, Blame::Prefill, what))?;
    worker.seen().failures.observe(0.0, 1.0);
    let handle = take_handle(call, worker, &members);
    let lease_ms = call.pool.config.kv_lease_ms;
    // Before the booking goes: a draining worker is never taken for idle in between.
    let kept = handle.as_ref().map(|_| worker.hold_handle(&call.app.clock, lease_ms));
    drop(booking);
    let took = answered.saturating_sub(dispatched);
    decision.metrics.phase(Phase::Prefill, took);
    let usage = members.read::<Usage>("usage").ok().flatten();
    let prompt_tokens =
        handle.as_ref().and_then(|handle| handle.tokens).or(usage.as_ref().map(|usage| usage.prompt_tokens));
    if let Some(tokens) = prompt_tokens {
        let cached = handle.as_ref().and_then(|handle| handle.cached_tokens).unwrap_or(cached);
        worker.seen().prefilled(tokens.saturating_sub(cached), dispatched, answered);
    }
    let good_until = answered + usable_for(lease_ms, call.app.config.server.connect_timeout_ms);
    Ok(Prefill { handle, kept, prompt_tokens, took, good_until })
}

/// How long a handle may wait for its dispatch: the lease, less a margin for clocks and queues, less the time that
/// the decode worker's connection may take after the check.
fn usable_for(kv_lease_ms: u64, connect_timeout_ms: u64) -> Duration {
    Duration::from_millis(kv_lease_ms.saturating_sub(HOLD_MARGIN_MS).saturating_sub(connect_timeout_ms))
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u32,
}

/// The handle of a prefill answer; without one the transfer does not happen, which is counted and said.
fn take_handle(call: &Call<'_>, worker: &Worker, members: &Members<'_>) -> Option<Handle> {
    let telemetry = &call.app.telemetry;
    let pool = &call.pool.config.name;
    let error = match Handle::from_answer(members) {
        Ok(handle) => return Some(handle),
        Err(error) => error,
    };
    let what = match error {
        HandleError::Absent => HandleFate::Absent,
        HandleError::Unusable(_) => HandleFate::Unusable,
    };
    call.pool.metrics.transfer(what);
    call.pool.metrics.fallback(Fallback::TransferMissing);
    telemetry.warn_once(&format!("handle {pool} {} {}", worker.name, what.name()), || {
        format!(
            "no KV moves from worker {:?} of pool {pool:?}, decode computes prompts again: {error}",
            worker.name
        )
    });
    None
}

fn book_decode(table: &Table, facts: &Facts, row: Row) -> Result<Booking, Failed> {
    let worker = super::worker_at(table, row)?;
    let request = &facts.request;
    Ok(Booking::new(
        worker,
        Share::decode(request.prompt_tokens, request.max_output_tokens, facts.block_tokens),
    ))
}

/// Late binding: fresh loads, the same rows.
fn bind_late(
    call: &Call<'_>,
    table: &Arc<Table>,
    facts: &Facts,
    decision: &mut Decision,
    prefill_row: Row,
    prefill: &Prefill,
) -> Result<(Row, Booking), Failed> {
    let now = call.app.clock.elapsed();
    let table = table.marked_against(&call.pool.table());
    let mut facts = Facts {
        fleet: table.fleet.clone(),
        load: table.load(),
        now_ms: call.app.clock.wall_ms(),
        ..facts.clone()
    };
    if let Some(tokens) = prefill.prompt_tokens {
        facts.request.prompt_tokens = tokens;
        facts.request.prompt_tokens_exact = true;
    }
    let prefilled = Prefilled {
        prefill: prefill_row,
        tokens: facts.request.prompt_tokens,
        took_ms: millis(prefill.took),
        handle_expires_in_ms: millis(prefill.good_until.saturating_sub(now)),
    };
    let row = super::decide::bind_decode(call, decision, &facts, &prefilled).ok_or_else(|| {
        strand(call, prefill.handle.is_some());
        let message = format!("no decode worker of pool {:?} is up any more", call.pool.config.name);
        Failed::Retry { reason: Retry::NoDecodeWorker, worker: None, error: ApiError::no_worker_up(message) }
    })?;
    Ok((row, book_decode(&table, &facts, row)?))
}

/// The decode leg's body. Spends the handle; a stale one is not spent but prefilled again.
fn decode_body(
    call: &Call<'_>,
    prefill_worker: &Worker,
    handle: Option<Handle>,
    good_until: Duration,
) -> Result<Segments, Failed> {
    let Some(handle) = handle else { return Ok(call.request.body(None)) };
    if call.app.clock.elapsed() >= good_until {
        call.pool.metrics.transfer(HandleFate::Expired);
        let message =
            format!("the KV blocks on prefill worker {:?} expired before decode began", prefill_worker.name);
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Host, "handle_expired", message);
        return Err(Failed::Retry { reason: Retry::HandleExpired, worker: None, error });
    }
    call.pool.metrics.transfer(HandleFate::Dispatched);
    Ok(call.request.body(Some(&handle.into_json())))
}

/// A handle that no decode worker will take: its blocks stay on the prefill worker until their lease ends.
fn strand(call: &Call<'_>, had_handle: bool) {
    if had_handle {
        call.pool.metrics.transfer(HandleFate::Stranded);
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
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
