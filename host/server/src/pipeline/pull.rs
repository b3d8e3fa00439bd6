//! Step 6, two workers, one after the other: prefill first; then decode, which fetches the KV blocks that the handle
//! names, or has them brought by this host.
//!
//! A handle is used once and never after its deadline: past it the prefill worker may have given the blocks to
//! another request, and a read would answer with that one's text.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Response, StatusCode};
use sluice_core::facts::{self, Facts, Row};
use sluice_core::failure::Failure;
use sluice_core::verdict::{DecodeChoice, Disaggregated, TransferMode};

use super::attempt::{Attempt, Failed};
use super::call::Call;
use super::decode_leg::{self, Bound};
use super::hosted;
use super::prefill::{self, Prefilled};
use super::reuse::Back;
use crate::fleet::Worker;
use crate::held::{Gone, Held, Spent};
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame};
use crate::record::Record;
use crate::telemetry::labels::{Fallback, HandleFate, Retry};
use crate::telemetry::pool_metrics::PoolMetrics;

/// Decode workers bound to one prefilled prompt, the first included: after the second that cannot be reached, what is
/// known of the fleet is too old.
const BINDINGS_AT_MOST: usize = 3;

/// Prefills on one worker and decodes on another. `promised` is what this host is to hand over, where it does.
pub(super) async fn run(
    mut attempt: Attempt<'_, '_>,
    plan: Disaggregated,
    promised: Option<Held>,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let call = attempt.call;
    // Early binding books decode now, so that requests decided meanwhile see it.
    let early = match plan.decode {
        DecodeChoice::Now(row) => Some(Bound::to(&attempt, plan.prefill, row)?),
        DecodeChoice::AfterPrefill => None,
    };
    let watch = BlocksLeft::watch(call, promised.as_ref());
    let back = Back::of(&attempt, plan.prefill, plan.kv_recompute_threshold_tokens);
    let prefilled = prefill::run(&attempt, plan.prefill, promised, back).await;
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
        let held = prefilled.held.take().filter(|held| hosted::reaches(call, held, to.leg.worker()));
        let spent = spend(call, held, to.leg.worker())?;
        let (failed, held) = match decode_leg::send(&attempt, &mut to, spent, &prefilled).await {
            Ok(sent) => return decode_leg::answer(attempt, prefilled, to, sent, record).await,
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

/// Counts a request whose client left while a prefill worker was making KV blocks for it: it may keep them. What this
/// host is to hand over is given back, and counted so.
struct BlocksLeft {
    metrics: Arc<PoolMetrics>,
    over: bool,
}

impl BlocksLeft {
    fn watch(call: &Call<'_>, promised: Option<&Held>) -> Self {
        Self { metrics: call.pool.metrics.clone(), over: promised.is_some() }
    }

    fn over(mut self) {
        self.over = true;
    }
}

impl Drop for BlocksLeft {
    fn drop(&mut self) {
        if !self.over {
            self.metrics.transfer(TransferMode::Pull, HandleFate::Abandoned);
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
        let good_until = prefilled.held.as_ref().map_or(now, |held| held.blocks().good_until());
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
    Err(attempt.nobody_decodes())
}

/// Takes the handle for the decode leg. One that may name another request's blocks is not spent but prefilled again.
fn spend(call: &Call<'_>, held: Option<Held>, consumer: &Arc<Worker>) -> Result<Option<Spent>, Failed> {
    let Some(held) = held else { return Ok(None) };
    let holder = held.blocks().holder.name.clone();
    held.spend(consumer, call.app.clock.elapsed()).map(Some).map_err(|gone| gone_error(gone, &holder))
}

/// Why the attempt ends with its blocks.
pub(super) fn gone_error(gone: Gone, holder: &str) -> Failed {
    let (code, what) = match gone {
        Gone::Expired => ("handle_expired", "expired before decode began"),
        Gone::WithHolder => ("holder_gone", "went with it: it is down, or has started anew"),
    };
    let message = format!("the KV blocks on prefill worker {holder:?} {what}");
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Blame::Transfer, code, message);
    Failed { failure: Failure::HandleExpired, worker: None, error }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
