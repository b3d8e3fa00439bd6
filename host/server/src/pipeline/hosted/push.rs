//! Push with a decode worker that is bound: both legs run at once. Decode says at once where it wants the KV, and this
//! host copies it there while prefill computes it, so that most of the transfer is over when prefill is.
//!
//! Either leg that fails ends the other, by closing its connection, and the attempt with it.

use std::pin::pin;

use hyper::Response;
use sluice_core::facts::Row;
use sluice_core::verdict::TransferMode;
use tokio::time::timeout_at;

use crate::held::{Held, Spent};
use crate::http::body::ResponseBody;
use crate::http::error::Blame;
use crate::pipeline::attempt::{Attempt, Failed};
use crate::pipeline::call::Call;
use crate::pipeline::deadline::Deadline;
use crate::pipeline::decode_leg::{self, Bound, Sent};
use crate::pipeline::dispatch;
use crate::pipeline::prefill::{self, Done, Prefilled};
use crate::pipeline::pull::gone_error;
use crate::record::Record;
use crate::upstream::UpstreamBody;

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
        Ok((prefilled, response)) => {
            let deadline = Deadline::decode(call);
            // Without what the prefill keeps there is nothing to hand over.
            let (spent, void) =
                if prefilled.said.is_some() { (Some(spent), None) } else { (None, Some(spent)) };
            void.into_iter().for_each(Spent::void);
            let sent = Sent { response, spent, dispatched, deadline };
            decode_leg::answer(attempt, prefilled, to, sent, record).await
        }
        Err(Broken::Prefill(failed)) => {
            spent.void();
            Err(failed)
        }
        Err(Broken::Decode(failed)) if failed.failure.is_refusal() => {
            spent.refused();
            Err(failed)
        }
        Err(Broken::Decode(failed)) => Err(decode_leg::with_blocks_left(failed, Some(spent), &holder)),
    }
}

/// Which leg came to nothing.
enum Broken {
    Prefill(Failed),
    Decode(Failed),
}

/// Runs both legs until the prefill is over and decode's answer has begun. From the prefill's end on, decode has the time
/// that it has where it is sent then.
async fn both(
    attempt: &Attempt<'_, '_>,
    row: Row,
    to: &mut Bound,
    spent: &Spent,
) -> Result<(Prefilled, Response<UpstreamBody>), Broken> {
    let call = attempt.call;
    let (prefilled, deadline, answered) = {
        let mut prefill = pin!(prefill::leg(attempt, row, spent.blocks().hand_over()));
        let decode = decode_leg::dispatched_to(attempt, &mut to.leg, Some(spent), Deadline::both(call));
        let mut decode = pin!(decode);
        let mut early = None;
        let done = loop {
            tokio::select! {
                biased;
                done = &mut prefill => break done.map_err(Broken::Prefill)?,
                // Streams begin before their first words are known.
                sent = &mut decode, if early.is_none() => early = Some(sent.map_err(Broken::Decode)?),
            }
        };
        let prefilled = over(call, done, spent);
        let deadline = Deadline::decode(call);
        let answered = match early {
            Some(response) => Ok(Ok(response)),
            None => timeout_at(deadline.at, decode).await,
        };
        (prefilled, deadline, answered)
    };
    match answered {
        Ok(Ok(response)) => Ok((prefilled, response)),
        Ok(Err(failed)) => Err(Broken::Decode(failed)),
        Err(_) => Err(Broken::Decode(dispatch::late(&mut to.leg, Blame::Decode, &deadline))),
    }
}

/// The prefill is over: what decode waits for comes soon, or never.
fn over(call: &Call<'_>, done: Done, spent: &Spent) -> Prefilled {
    let Done { by, kept, prompt_tokens, said, took, answered, booking } = done;
    if kept.is_some() {
        spent.blocks().lease_began(prefill::lease_ends(call, answered));
        spent.prefilled();
    } else {
        spent.will_not_come();
    }
    drop(booking);
    Prefilled { by, held: None, mode: TransferMode::Push, prompt_tokens, said, took, answered }
}
