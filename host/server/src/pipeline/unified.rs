//! Step 6, one worker: it prefills and decodes.

use hyper::Response;
use sluice_core::facts::{Facts, Row};
use sluice_core::load::Share;

use super::Failed;
use super::answer;
use super::call::Call;
use super::decide::Decision;
use super::dispatch::{self, Resend};
use super::turn::{Record, Turn};
use crate::fleet::{Booking, Table};
use crate::http::body::ResponseBody;
use crate::http::error::Blame;

/// Sends the whole request to one worker.
pub(super) async fn run(
    call: &Call<'_>,
    table: &Table,
    facts: Facts,
    decision: Decision,
    row: Row,
    attempt: u32,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let worker = super::worker_at(table, row)?;
    let cached = facts.cached_tokens.get(row as usize).copied().unwrap_or(0);
    let request = &facts.request;
    let share = Share::unified(request.prompt_tokens, cached, request.max_output_tokens, facts.block_tokens);
    let booking = Booking::new(worker.clone(), share);
    let turn = Turn::start(call, facts, decision, row, booking);
    let response =
        dispatch::send(call, &worker, Blame::Decode, call.request.body(None), Resend::Once, attempt).await?;
    answer::relay(call, turn, response, record).await
}
