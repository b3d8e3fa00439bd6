//! Push with a decode worker that is bound: both legs run at once. Decode says at once where it wants the KV, and this
//! host copies it there while prefill computes it, so that most of the transfer is over when prefill is.
//!
//! Either leg that fails ends the other, by closing its connection, and the attempt with it.

use std::pin::pin;
use std::time::Duration;

use hyper::Response;
use sluice_core::facts::Row;
use sluice_core::verdict::TransferMode;
use tokio::time::{timeout, timeout_at};

use crate::fleet::Leg;
use crate::held::{Held, Spent};
use crate::http::body::ResponseBody;
use crate::http::error::Blame;
use crate::pipeline::answer::{self, Began};
use crate::pipeline::attempt::{Attempt, Failed};
use crate::pipeline::call::Call;
use crate::pipeline::deadline::Deadline;
use crate::pipeline::decode_leg::{self, Begun, Bound};
use crate::pipeline::dispatch;
use crate::pipeline::prefill::{self, Done, Prefilled};
use crate::pipeline::pull::gone_error;
use crate::record::Record;
use crate::request::Asks;
use crate::usage::PrefillUsage;

/// How long an answer that has begun is kept from its client for what the prefill says of cached tokens. Its token is
/// made a step before decode's first one, so its answer is here or about to come.
const PREFILL_WAITED_FOR: Duration = Duration::from_millis(20);

/// Prefills and decodes at once.
pub(super) async fn run(
    attempt: Attempt<'_, '_>,
    prefill: Row,
    decode: Row,
    promised: Held,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let call = attempt.call;
    let mut to = Bound::to(&attempt, prefill, decode)?;
    let holder = promised.blocks().holder.clone();
    let dispatched = call.app.clock.elapsed();
    let spent = promised.spend(to.leg.worker(), dispatched).map_err(|gone| gone_error(gone, &holder.name))?;
    match both(&attempt, prefill, &mut to, &spent).await {
        Ok((prefilled, began)) => {
            // Without what the prefill keeps there is nothing to hand over.
            let (spent, void) =
                if prefilled.said.is_some() { (Some(spent), None) } else { (None, Some(spent)) };
            void.into_iter().for_each(Spent::void);
            let begun = Begun { began, spent, dispatched };
            decode_leg::pass_on(attempt, prefilled, to, begun, record).await
        }
        Err(Broken::Prefill(failed)) => {
            spent.void();
            Err(failed)
        }
        Err(Broken::Decode(failed)) => Err(decode_leg::came_to_nothing(failed, Some(spent), &holder)),
    }
}

/// Which leg came to nothing.
enum Broken {
    Prefill(Failed),
    Decode(Failed),
}

/// Runs both legs until decode's answer has begun and the prefill is over. From the prefill's end on, decode has the time
/// that it has where it is sent then. Where decode begins first it has what it needs: the prefill's word is waited for a
/// little, for what it tells of itself, and no client waits for more.
async fn both(
    attempt: &Attempt<'_, '_>,
    row: Row,
    to: &mut Bound,
    spent: &Spent,
) -> Result<(Prefilled, Began), Broken> {
    let call = attempt.call;
    let late = {
        let mut prefill = pin!(prefill::leg(attempt, row, spent.blocks().hand_over(), None));
        let mut decode = pin!(decode(attempt, &mut to.leg, spent));
        tokio::select! {
            biased;
            done = &mut prefill => {
                let prefilled = over(call, done.map_err(Broken::Prefill)?, spent);
                let deadline = Deadline::decode(call);
                match timeout_at(deadline.at, decode).await {
                    Ok(began) => return began.map(|began| (prefilled, began)).map_err(Broken::Decode),
                    Err(_) => deadline,
                }
            }
            began = &mut decode => {
                let began = began.map_err(Broken::Decode)?;
                let prefilled = match timeout(PREFILL_WAITED_FOR, prefill).await {
                    Ok(Ok(done)) => over(call, done, spent),
                    Ok(Err(_)) | Err(_) => unheard(call, spent),
                };
                return Ok((prefilled, began));
            }
        }
    };
    Err(Broken::Decode(dispatch::late(&mut to.leg, Blame::Decode, &late)))
}

/// The decode leg, until its answer has begun.
async fn decode(attempt: &Attempt<'_, '_>, leg: &mut Leg, spent: &Spent) -> Result<Began, Failed> {
    let deadline = Deadline::both(attempt.call);
    let response =
        decode_leg::dispatched_to(attempt, leg, Some(spent), (Asks::default(), None), deadline).await?;
    answer::begin(attempt.call, leg, response, &deadline).await
}

/// Decode was faster than the prefill's answer.
fn unheard(call: &Call<'_>, spent: &Spent) -> Prefilled {
    Prefilled {
        by: spent.blocks().holder.clone(),
        held: None,
        mode: TransferMode::Push,
        prompt_tokens: None,
        // Nobody said what was cached, and what decode says of it is wrong.
        said: Some(PrefillUsage { cached_tokens: None }),
        took: Duration::ZERO,
        answered: call.app.clock.elapsed(),
        read: None,
    }
}

/// The prefill is over: what decode waits for comes soon, or never.
fn over(call: &Call<'_>, done: Done, spent: &Spent) -> Prefilled {
    let Done { by, kept, prompt_tokens, said, took, answered, read, booking } = done;
    if kept.is_some() {
        spent.blocks().lease_began(prefill::lease_ends(call, answered));
        spent.prefilled();
    } else {
        spent.will_not_come();
    }
    drop(booking);
    Prefilled { by, held: None, mode: TransferMode::Push, prompt_tokens, said, took, answered, read }
}
