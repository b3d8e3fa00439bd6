//! Step 6, two workers, pull: prefill first; then decode, which fetches the KV blocks that the handle names.
//!
//! A handle is used once and never after its deadline: past it the prefill worker may have given the blocks to
//! another request, and a read would answer with that one's text.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Response, StatusCode};
use sluice_core::facts::{self, Facts, Row};
use sluice_core::failure::Failure;
use sluice_core::verdict::{DecodeChoice, Disaggregated};

use super::answer;
use super::attempt::{Attempt, Failed};
use super::call::Call;
use super::deadline::Deadline;
use super::dispatch::{self, Resend};
use super::prefill::{self, Prefilled};
use super::turn::{Record, Turn};
use crate::fleet::{Booking, Leg, Worker};
use crate::held::{Held, Spent};
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame};
use crate::telemetry::labels::{Fallback, HandleFate};
use crate::telemetry::pool_metrics::PoolMetrics;

/// Prefills on one worker and decodes on another.
pub(super) async fn run(
    attempt: Attempt<'_, '_>,
    plan: Disaggregated,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    // Until decode's answer, a client that leaves may leave KV blocks behind on the prefill worker.
    let watch = BlocksLeft::watch(attempt.call);
    let outcome = both_legs(attempt, plan, record).await;
    watch.over();
    outcome
}

async fn both_legs(
    mut attempt: Attempt<'_, '_>,
    plan: Disaggregated,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    // Early binding books decode now, so that requests decided meanwhile see it.
    let early = match plan.decode {
        DecodeChoice::Now(row) => Some((row, attempt.book_decode(row)?)),
        DecodeChoice::AfterPrefill => None,
    };
    let mut prefilled = prefill::run(&attempt, plan.prefill).await?;
    let (row, booking) = match early {
        Some(bound) => bound,
        None => bind_late(&mut attempt, plan.prefill, &prefilled)?,
    };
    let spent = spend(attempt.call, prefilled.held.take())?;
    decode(attempt, prefilled, spent, (row, booking), record).await
}

async fn decode(
    attempt: Attempt<'_, '_>,
    prefilled: Prefilled,
    spent: Option<Spent>,
    (row, booking): (Row, Booking),
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let call = attempt.call;
    let from = spent.as_ref().map(|_| &*prefilled.by);
    let leg = Leg::decode(&call.pool, booking.worker(), from);
    let resend = if spent.is_some() { Resend::Never } else { Resend::Once };
    let mut body = call.request.body(spent.as_ref().map(Spent::json));
    if let Some(spent) = &spent {
        body = body.marked(spent.taken());
    }
    let (deadline, how) = (Deadline::decode(call), (resend, attempt.number));
    let holder = prefilled.by.clone();
    let mut turn = Turn::start(attempt, row, booking, leg)
        .prefilled_by(prefilled.by, prefilled.prompt_tokens, prefilled.said)
        .reads(spent.as_ref().map(Spent::kept));
    let sent = match dispatch::send(call, &mut turn.leg, Blame::Decode, body, how, deadline).await {
        Ok(sent) => sent,
        Err(failed) => {
            return Err(match spent {
                Some(spent) => with_blocks_left(call, failed, &spent, &holder),
                None => failed,
            });
        }
    };
    let answered = answer::relay(call, turn, sent, &deadline, record).await;
    // The decode worker may never have read the blocks: the prefill worker then keeps them for their lease. One that
    // refused the request has told the holder.
    answered.map_err(|failed| match spent {
        Some(spent) if failed.failure != Failure::Refused => with_blocks_left(call, failed, &spent, &holder),
        _ => failed,
    })
}

/// A decode leg with a handle failed. One that never left this host is still good for ending the hold; of any other
/// the engine may be reading the blocks right now, so that nobody may tell the holder to give them away.
fn with_blocks_left(call: &Call<'_>, failed: Failed, spent: &Spent, holder: &Worker) -> Failed {
    if !spent.has_left() {
        return failed;
    }
    call.pool.metrics.transfer(HandleFate::Stranded);
    if failed.failure != Failure::Late {
        return failed;
    }
    let message =
        format!("{}; it was to fetch KV blocks from prefill worker {:?}", failed.error.message, holder.name);
    Failed { error: ApiError { blame: Blame::Transfer, message, ..failed.error }, ..failed }
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

/// Late binding: fresh loads, the same rows.
fn bind_late(
    attempt: &mut Attempt<'_, '_>,
    prefill_row: Row,
    prefilled: &Prefilled,
) -> Result<(Row, Booking), Failed> {
    let call = attempt.call;
    let (now, now_ms) = (call.app.clock.elapsed(), call.pool.now_ms());
    let fresh = call.pool.table();
    let gets_on = |decode: u64| call.pool.pairs.passes((prefilled.by.id, decode), now_ms);
    for usable in [&gets_on as &dyn Fn(u64) -> bool, &|_| true] {
        let table = attempt.table.marked_against(&fresh, usable);
        let mut facts = Facts {
            fleet: table.fleet.clone(),
            load: table.load(),
            now_ms: call.app.clock.wall_ms(),
            ..(*attempt.facts).clone()
        };
        if let Some(tokens) = prefilled.prompt_tokens {
            facts.request.prompt_tokens = tokens;
            facts.request.prompt_tokens_exact = true;
        }
        let good_until = prefilled.held.as_ref().map_or(now, |held| held.blocks().good_until);
        let told = facts::Prefilled {
            prefill: prefill_row,
            tokens: facts.request.prompt_tokens,
            took_ms: millis(prefilled.took),
            handle_expires_in_ms: millis(good_until.saturating_sub(now)),
        };
        if let Some(row) = super::decide::bind_decode(call, &mut attempt.decision, &facts, &told) {
            return Ok((row, attempt.book_decode(row)?));
        }
        if call.pool.pairs.open() == 0 {
            break;
        }
        call.pool.metrics.fallback(Fallback::PairBreakerIgnored);
    }
    let message = format!("no decode worker of pool {:?} is up any more", call.pool.config.name);
    Err(Failed { failure: Failure::NoDecodeWorker, worker: None, error: ApiError::no_worker_up(message) })
}

/// Takes the handle for the decode leg. A stale one is not spent but prefilled again.
fn spend(call: &Call<'_>, held: Option<Held>) -> Result<Option<Spent>, Failed> {
    let Some(held) = held else { return Ok(None) };
    let holder = held.blocks().holder.name.clone();
    let Some(spent) = held.spend(call.app.clock.elapsed()) else {
        let message = format!("the KV blocks on prefill worker {holder:?} expired before decode began");
        let error =
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Transfer, "handle_expired", message);
        return Err(Failed { failure: Failure::HandleExpired, worker: None, error });
    };
    Ok(Some(spent))
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
