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
use super::turn::Turn;
use crate::fleet::{Booking, Leg, Worker};
use crate::held::{Gone, Held, Spent};
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame};
use crate::record::Record;
use crate::telemetry::labels::{Fallback, HandleFate, Retry};
use crate::telemetry::pool_metrics::PoolMetrics;
use crate::upstream::UpstreamBody;

/// Decode workers bound to one prefilled prompt, the first included: after the second that cannot be reached, what is
/// known of the fleet is too old.
const BINDINGS_AT_MOST: usize = 3;

/// Prefills on one worker and decodes on another.
pub(super) async fn run(
    mut attempt: Attempt<'_, '_>,
    plan: Disaggregated,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let call = attempt.call;
    // Early binding books decode now, so that requests decided meanwhile see it.
    let early = match plan.decode {
        DecodeChoice::Now(row) => Some(Bound::to(&attempt, plan.prefill, row)?),
        DecodeChoice::AfterPrefill => None,
    };
    let watch = BlocksLeft::watch(call);
    let prefilled = prefill::run(&attempt, plan.prefill).await;
    watch.over();
    let mut prefilled = prefilled?;
    // One that is gone by now would cost the prompt's prefill.
    let mut bound = early.filter(Bound::takes_work);
    let mut bindings = 0;
    loop {
        bindings += 1;
        let mut to = match bound.take() {
            Some(bound) => bound,
            None => bind_late(&mut attempt, plan.prefill, &prefilled)?,
        };
        let spent = spend(call, prefilled.held.take())?;
        let (failed, held) = match send(&attempt, &mut to, spent, &prefilled.by).await {
            Ok(sent) => return answer(attempt, prefilled, to, sent, record).await,
            Err(not_sent) => not_sent,
        };
        if held.is_none() || bindings == BINDINGS_AT_MOST || !call.pool.may_retry() {
            return Err(failed);
        }
        // Its blocks wait for another decode worker.
        call.pool.metrics.retry(Retry::After(failed.failure));
        prefilled.held = held;
    }
}

/// A decode worker that is to have this request.
struct Bound {
    row: Row,
    booking: Booking,
    leg: Leg,
}

impl Bound {
    fn to(attempt: &Attempt<'_, '_>, prefill: Row, row: Row) -> Result<Self, Failed> {
        let booking = attempt.book_decode(row)?;
        let leg = Leg::decode(&attempt.call.pool, booking.worker(), &*attempt.worker(prefill)?);
        Ok(Self { row, booking, leg })
    }

    fn takes_work(&self) -> bool {
        self.leg.worker().takes_work()
    }
}

/// A decode leg whose answer has begun.
struct Sent {
    response: Response<UpstreamBody>,
    spent: Option<Spent>,
    dispatched: Duration,
    deadline: Deadline,
}

/// Sends the decode leg. One that reached nobody leaves its handle in hand.
async fn send(
    attempt: &Attempt<'_, '_>,
    to: &mut Bound,
    spent: Option<Spent>,
    holder: &Worker,
) -> Result<Sent, (Failed, Option<Held>)> {
    let call = attempt.call;
    to.leg.sent(spent.is_some());
    let resend = if spent.is_some() { Resend::Never } else { Resend::Once };
    let mut body = call.request.body(spent.as_ref().map(Spent::json));
    if let Some(spent) = &spent {
        body = body.marked(spent.taken());
    }
    let (dispatched, deadline) = (call.app.clock.elapsed(), Deadline::decode(call));
    let how = (resend, attempt.number);
    let failed = match dispatch::send(call, &mut to.leg, Blame::Decode, body, how, deadline).await {
        Ok(response) => return Ok(Sent { response, spent, dispatched, deadline }),
        Err(failed) => failed,
    };
    Err(match spent {
        Some(spent) if spent.has_left() => (with_blocks_left(failed, Some(spent), holder), None),
        // Given back, not bound again: this host cannot open a connection.
        _ if failed.failure == Failure::HostShort => (failed, None),
        spent => (failed, spent.and_then(Spent::never_left)),
    })
}

async fn answer(
    attempt: Attempt<'_, '_>,
    prefilled: Prefilled,
    Bound { row, booking, leg }: Bound,
    Sent { response, spent, dispatched, deadline }: Sent,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let (call, holder) = (attempt.call, prefilled.by.clone());
    let turn = Turn::start(attempt, row, booking, leg, dispatched)
        .prefilled_by(prefilled.by, prefilled.prompt_tokens, prefilled.said)
        .reads(spent.as_ref().map(Spent::kept));
    match answer::relay(call, turn, response, &deadline, record).await {
        // One that refused the request has told the holder.
        Err(failed) if !failed.failure.is_refusal() => Err(with_blocks_left(failed, spent, &holder)),
        answered => {
            if let Some(spent) = spent {
                spent.arrived();
            }
            answered
        }
    }
}

/// A decode leg failed whose engine may be reading the blocks right now, so that nobody may tell the holder to give
/// them away: they stay for their lease.
fn with_blocks_left(failed: Failed, spent: Option<Spent>, holder: &Worker) -> Failed {
    let Some(spent) = spent else { return failed };
    spent.is_stranded();
    if failed.failure != Failure::Late {
        return failed;
    }
    let message =
        format!("{}; it was to fetch KV blocks from prefill worker {:?}", failed.error.message, holder.name);
    Failed { error: ApiError { blame: Blame::Transfer, message, ..failed.error }, ..failed }
}

/// Counts a request whose client left while a prefill worker was making KV blocks for it: it may keep them.
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
) -> Result<Bound, Failed> {
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
            let bound = Bound::to(attempt, prefill_row, row)?;
            let decision = &attempt.decision;
            let (decode, source) = (bound.leg.worker(), decision.source);
            call.app.decisions.decode_bound(decision.ticket, decode, source, decision.fault);
            return Ok(bound);
        }
        if call.pool.pairs.open() == 0 {
            break;
        }
        call.pool.metrics.fallback(Fallback::PairBreakerIgnored);
    }
    let message = format!("no decode worker of pool {:?} is up any more", call.pool.config.name);
    Err(Failed { failure: Failure::NoDecodeWorker, worker: None, error: ApiError::no_worker_up(message) })
}

/// Takes the handle for the decode leg. One that may name another request's blocks is not spent but prefilled again.
fn spend(call: &Call<'_>, held: Option<Held>) -> Result<Option<Spent>, Failed> {
    let Some(held) = held else { return Ok(None) };
    let holder = held.blocks().holder.name.clone();
    held.spend(call.app.clock.elapsed()).map(Some).map_err(|gone| {
        let (code, what) = match gone {
            Gone::Expired => ("handle_expired", "expired before decode began"),
            Gone::WithHolder => ("holder_gone", "went with it: it is down, or has started anew"),
        };
        let message = format!("the KV blocks on prefill worker {holder:?} {what}");
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Transfer, code, message);
        Failed { failure: Failure::HandleExpired, worker: None, error }
    })
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
