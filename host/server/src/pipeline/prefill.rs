//! The prefill leg: the prompt's KV blocks are made, and a handle to them comes back.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use sluice_core::facts::Row;
use sluice_core::load::Share;
use sluice_core::verdict::TransferMode;
use sluice_engine_sdk::leg;

use super::answer;
use super::asks;
use super::attempt::{Attempt, Failed};
use super::call::Call;
use super::deadline::Deadline;
use super::dispatch::{self, Resend};
use super::refusal::refusal;
use super::reuse::{Back, Read};
use super::unfetched::{self, Offered};
use crate::config::HOLD_MARGIN_MS;
use crate::fleet::{Booking, Leg, Worker};
use crate::handle::{self, Handle, HandleError};
use crate::held::{Blocks, Held, Way};
use crate::http::error::Blame;
use crate::http::members::Members;
use crate::node::hand_over::HandOver;
use crate::prompt_ids;
use crate::telemetry::labels::{Fallback, HandleFate, Label, Outcome, Phase};
use crate::usage::PrefillUsage;

/// A prompt that is prefilled.
pub(super) struct Prefilled {
    pub by: Arc<Worker>,
    /// `None` when the worker moved nothing: decode then computes the prompt again.
    pub held: Option<Held>,
    /// How its KV was to move.
    pub mode: TransferMode,
    pub prompt_tokens: Option<u32>,
    /// For the client's usage; `None` where nothing is moved.
    pub said: Option<PrefillUsage>,
    pub took: Duration,
    /// When the answer's head came, by our clock.
    pub answered: Duration,
    /// Ids of the prompt as the worker read it, as a JSON list, if it was asked for them.
    pub read: Option<Bytes>,
}

/// The end of a prefill leg.
pub(super) struct Done {
    pub by: Arc<Worker>,
    /// What the worker keeps for decode, if it does.
    pub kept: Option<Kept>,
    pub prompt_tokens: Option<u32>,
    pub said: Option<PrefillUsage>,
    pub took: Duration,
    pub answered: Duration,
    pub read: Option<Bytes>,
    /// To be dropped once what is kept is counted: a draining worker is never taken for idle in between.
    pub booking: Booking,
}

/// What a worker says that it keeps.
pub(super) enum Kept {
    /// Blocks for who shows this.
    Handle(Handle),
    /// Blocks for a hand-over of this host.
    Blocks(leg::Held),
}

impl Kept {
    fn tokens(&self) -> Option<u32> {
        match self {
            Self::Handle(handle) => handle.tokens,
            Self::Blocks(held) => Some(held.tokens),
        }
    }

    /// Tokens that the worker did not compute. Those that came from a kept turn are as cached to the client as those
    /// that lay there already, and vLLM counts what came from elsewhere so, too.
    fn cached_tokens(&self) -> Option<u32> {
        match self {
            Self::Handle(handle) => handle.cached_tokens,
            Self::Blocks(held) => Some(held.cached_tokens.saturating_add(held.received_tokens)),
        }
    }
}

/// Prefills on the worker of this row. `promised` is what this host is to hand over, where it does.
pub(super) async fn run(
    attempt: &Attempt<'_, '_>,
    row: Row,
    promised: Option<Held>,
    back: Option<Back>,
) -> Result<Prefilled, Failed> {
    let mode = promised.as_ref().map_or(TransferMode::Pull, |held| held.blocks().mode());
    let asked = promised.as_ref().and_then(|held| held.blocks().hand_over());
    let prefill = attempt.worker(row)?;
    let offered = back.as_ref().and_then(|back| Offered::of(back, &prefill));
    let done = match leg(attempt, row, asked, back).await {
        Ok(done) => done,
        Err(failed) => {
            promised.into_iter().for_each(Held::void);
            return Err(match offered {
                Some(offered) => offered.failed(failed, attempt.call),
                None => failed,
            });
        }
    };
    let lease_ends = lease_ends(attempt.call, done.answered);
    let held = match (done.kept, promised) {
        (Some(Kept::Handle(handle)), _) => {
            let blocks = blocks(attempt.call, &done.by, Way::Handle(handle));
            blocks.lease_began(lease_ends);
            Some(Held::new(blocks, &attempt.call.app.releases))
        }
        (Some(Kept::Blocks(_)), Some(held)) => {
            held.blocks().lease_began(lease_ends);
            Some(held)
        }
        (_, promised) => {
            promised.into_iter().for_each(Held::void);
            None
        }
    };
    let Done { by, prompt_tokens, said, took, answered, read, booking, .. } = done;
    drop(booking);
    Ok(Prefilled { by, held, mode, prompt_tokens, said, took, answered, read })
}

/// Blocks that this worker keeps, or is to keep; they are counted from now on.
pub(super) fn blocks(call: &Call<'_>, holder: &Arc<Worker>, way: Way) -> Blocks {
    Blocks {
        way,
        lease_ends: OnceLock::new(),
        pool: call.pool.clone(),
        holder: holder.clone(),
        incarnation: holder.seen().incarnation,
        endpoint: call.request.endpoint,
        kept: Arc::new(holder.hold_handle(&call.app.clock, call.pool.config.kv_lease_ms)),
    }
}

/// When blocks of a prefill that answered then are of use no more.
pub(super) fn lease_ends(call: &Call<'_>, answered: Duration) -> Duration {
    answered + usable_for(call.pool.config.kv_lease_ms, call.app.config.server.connect_timeout_ms)
}

/// A prefill leg to the worker of this row, asked for a handle or to keep blocks for a hand-over. It fetches what a decode engine
/// keeps of the prompt, if there is something.
pub(super) async fn leg(
    attempt: &Attempt<'_, '_>,
    row: Row,
    hand_over: Option<&HandOver>,
    back: Option<Back>,
) -> Result<Done, Failed> {
    let (call, facts) = (attempt.call, &attempt.facts);
    let worker = attempt.worker(row)?;
    let cached_tokens = attempt.cached_tokens(row);
    let share = Share::prefill(facts.request.prompt_tokens, cached_tokens, facts.block_tokens);
    let booking = Booking::new(worker.clone(), share);
    let mut leg = Leg::prefill(&call.pool, &worker, back.as_ref().map(|back| back.taken.clone()));
    let deadline = Deadline::prefill(call);
    let dispatched = call.app.clock.elapsed();
    // Said once: by the time of its answer the pool may reuse nothing more, and what was asked is told all the same.
    let asks_ids = back.is_some() || asks::prompt_ids(call);
    let (body, resend) = match (hand_over, &back) {
        (Some(hand_over), _) => (call.request.prefill_body(&hand_over.prefill_params()), Resend::Once),
        (None, Some(back)) => {
            let body = call.request.prefill_body_asking(&back.params, asks_ids);
            (body.marked(back.taken.clone()), Resend::Never)
        }
        (None, None) => (call.request.prefill_body_asking(handle::ASKED, asks_ids), Resend::Once),
    };
    let how = (resend, attempt.number);
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
    call.trail.note(|story, now| story.prefill_over(Outcome::Ok.name(), now));
    let took = answered.saturating_sub(dispatched);
    attempt.decision.metrics.phase(Phase::Prefill, took);
    let told = told(&members);
    let read = asks_ids.then(|| prompt_ids::read_by(&bytes)).flatten();
    let mut kept = take_kept(call, &worker, &members, hand_over);
    if let Some(back) = back {
        match back.read(read.as_deref()) {
            Read::AsProven => {
                let said = PrefillUsage::of(kept.as_ref().and_then(Kept::cached_tokens), &members);
                unfetched::tell(call, &worker, &back, said.cached_tokens);
            }
            read => read_otherwise(call, &worker, read, kept.take()),
        }
        back.came(kept.as_ref().and_then(Kept::cached_tokens));
    }
    let said = kept.as_ref().map(|kept| PrefillUsage::of(kept.cached_tokens(), &members));
    let prompt_tokens = kept.as_ref().and_then(Kept::tokens).or(told);
    let computed = prompt_tokens.unwrap_or(facts.request.prompt_tokens);
    let cached_tokens = kept.as_ref().and_then(Kept::cached_tokens).unwrap_or(cached_tokens);
    worker.seen().prefilled(computed.saturating_sub(cached_tokens), dispatched, answered);
    Ok(Done { by: worker, kept, prompt_tokens, said, took, answered, read, booking })
}

/// It is not known that a prefill engine has read a prompt as `/tokenize` did. Decode computes the prompt, what prefill keeps is given
/// back, and no kept turn of the pool is used any more. One that has certainly read otherwise has computed on KV of other tokens,
/// and may have cached that under a name that other prompts have: it gets no more work.
fn read_otherwise(call: &Call<'_>, worker: &Arc<Worker>, read: Read, kept: Option<Kept>) {
    let pool = &call.pool;
    pool.turn_reuse_off();
    pool.metrics.fallback(Fallback::ReadOtherwise);
    if read == Read::Otherwise {
        pool.drain(worker);
    }
    if let Some(Kept::Handle(handle)) = kept {
        // Dropped, it is given back.
        drop(Held::new(blocks(call, worker, Way::Handle(handle)), &call.app.releases));
    }
    call.app.telemetry.warn_once(&format!("read otherwise {} {read:?}", pool.config.name), || {
        let (worker, pool) = (&worker.name, &pool.config.name);
        match read {
            Read::Otherwise => format!(
                "worker {worker:?} of pool {pool:?} read a prompt otherwise than /tokenize did: it may have cached KV of other tokens, and is \
                 drained; kept turns of this pool are not used any more. Cure: see whether its prefill workers all run one \
                 version with one chat template; start this one anew, then undrain it; then start this host anew"
            ),
            _ => format!(
                "worker {worker:?} of pool {pool:?} does not tell the token ids of a prompt (return_token_ids), so that what it fetched is \
                 not known to be right: kept turns of this pool are not used any more. Cure: a version of vLLM that tells them; \
                 then start this host anew"
            ),
        }
    });
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

/// What a prefill answer says is kept; without it the transfer does not happen, which is counted and said.
fn take_kept(
    call: &Call<'_>,
    worker: &Worker,
    members: &Members<'_>,
    hand_over: Option<&HandOver>,
) -> Option<Kept> {
    let pool = &call.pool;
    let kept = match hand_over {
        None => Handle::from_answer(members).map(Kept::Handle),
        Some(hand_over) => hand_over.answer(members).map(Kept::Blocks),
    };
    let error = match kept {
        Ok(kept) => return Some(kept),
        Err(error) => error,
    };
    let what = match error {
        HandleError::Absent | HandleError::NotHeld => HandleFate::Absent,
        HandleError::Unusable(_) => HandleFate::Unusable,
    };
    pool.metrics.transfer(hand_over.map_or(TransferMode::Pull, HandOver::mode), what);
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
