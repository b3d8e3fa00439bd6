//! Step 6, one worker: it prefills and decodes.

use hyper::Response;
use sluice_core::facts::Row;
use sluice_core::load::Share;

use super::answer;
use super::attempt::{Attempt, Failed};
use super::deadline::Deadline;
use super::dispatch::{self, Resend};
use super::hosted;
use super::turn::Turn;
use crate::fleet::{Booking, Leg};
use crate::http::body::ResponseBody;
use crate::http::error::Blame;
use crate::record::Record;

/// Sends the whole request to one worker.
pub(super) async fn run(
    mut attempt: Attempt<'_, '_>,
    row: Row,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let call = attempt.call;
    let worker = attempt.worker(row)?;
    let request = &attempt.facts.request;
    let cached_tokens = attempt.cached_tokens(row);
    let share = Share::unified(
        request.prompt_tokens,
        cached_tokens,
        request.max_output_tokens,
        attempt.facts.block_tokens,
    );
    let booking = Booking::new(worker.clone(), share);
    let deadline = Deadline::unified(call);
    let (leg, number) = (Leg::unified(&call.pool, &worker), attempt.number);
    attempt.turn_hold = attempt.turn_hold.take().or_else(|| hosted::turn_hold(&attempt));
    let kept = attempt.keeping_params(&worker);
    let mut turn = Turn::start(attempt, row, booking, leg, call.app.clock.elapsed());
    let body = call.request.body(kept.as_deref());
    let sent =
        dispatch::send(call, &mut turn.leg, Blame::Decode, body, (Resend::Once, number), deadline).await?;
    answer::relay(call, turn, sent, &deadline, record).await
}
