//! The decode leg of a split request: bound, sent, and its answer passed on.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use sluice_core::facts::Row;
use sluice_core::failure::Failure;

use super::answer::{self, Began};
use super::asks;
use super::attempt::{Attempt, Failed};
use super::deadline::Deadline;
use super::dispatch::{self, Resend};
use super::prefill::Prefilled;
use super::turn::{Brought, Turn};
use crate::fleet::{Booking, Leg, Worker};
use crate::held::{Held, Spent};
use crate::http::body::ResponseBody;
use crate::http::error::{ApiError, Blame};
use crate::prompt_ids::in_params;
use crate::record::Record;
use crate::request::Asks;
use crate::upstream::UpstreamBody;

/// A decode worker that is to have this request.
pub(super) struct Bound {
    pub row: Row,
    pub booking: Booking,
    pub leg: Leg,
    /// Beyond what the client asks; set when it is sent.
    pub asks: Asks,
    /// Ids that prefill read, as a JSON list, for an engine that takes them: it cannot read the prompt otherwise then.
    pub ids: Option<Bytes>,
}

impl Bound {
    pub fn to(attempt: &Attempt<'_, '_>, prefill: Row, row: Row) -> Result<Self, Failed> {
        let booking = attempt.book_decode(row)?;
        let leg = Leg::decode(&attempt.call.pool, booking.worker(), &*attempt.worker(prefill)?);
        Ok(Self { row, booking, leg, asks: Asks::default(), ids: None })
    }

    pub fn takes_work(&self) -> bool {
        self.leg.worker().takes_work()
    }
}

/// A decode leg whose answer has begun.
pub(super) struct Sent {
    pub response: Response<UpstreamBody>,
    pub spent: Option<Spent>,
    /// By our clock.
    pub dispatched: Duration,
    /// Of the answer's first words.
    pub deadline: Deadline,
}

/// Sends a decode leg, with what leads to its KV if there is something, and waits for its answer's head.
pub(super) async fn dispatched_to(
    attempt: &Attempt<'_, '_>,
    leg: &mut Leg,
    spent: Option<&Spent>,
    (asks, ids): (Asks, Option<&Bytes>),
    deadline: Deadline,
) -> Result<Response<UpstreamBody>, Failed> {
    let call = attempt.call;
    leg.sent(spent.is_some());
    let resend = if spent.is_some() { Resend::Never } else { Resend::Once };
    let params = match spent {
        Some(spent) => Some(match ids {
            Some(ids) => in_params(&spent.json(), ids).into(),
            None => spent.json(),
        }),
        // It computes the prompt, and may keep its turn all the same.
        None => attempt.keeping_params(leg.worker()).map(Cow::from),
    };
    let mut body = call.request.body_asking(params.as_deref(), asks);
    if let Some(spent) = spent {
        body = body.marked(spent.taken());
    }
    dispatch::send(call, leg, Blame::Decode, body, (resend, attempt.number), deadline).await
}

/// Sends the decode leg of a prompt that is prefilled. One that reached nobody leaves its handle in hand.
pub(super) async fn send(
    attempt: &Attempt<'_, '_>,
    to: &mut Bound,
    spent: Option<Spent>,
    prefilled: &Prefilled,
) -> Result<Sent, (Failed, Option<Held>)> {
    let (call, holder) = (attempt.call, &prefilled.by);
    // An engine that is given no KV keeps none.
    to.asks = spent.as_ref().map(|_| asks::of(call, to.leg.worker())).unwrap_or_default();
    let has_media = call.chain.as_ref().is_none_or(|chain| chain.has_media());
    to.ids = prefilled.read.clone().filter(|_| asks::takes_ids(to.leg.worker()) && !has_media);
    let deadline = if to.asks.unstreamed { Deadline::whole_decode(call) } else { Deadline::decode(call) };
    let dispatched = call.app.clock.elapsed();
    let failed =
        match dispatched_to(attempt, &mut to.leg, spent.as_ref(), (to.asks, to.ids.as_ref()), deadline).await
        {
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

/// Passes the answer of a decode leg on.
pub(super) async fn answer(
    attempt: Attempt<'_, '_>,
    prefilled: Prefilled,
    mut to: Bound,
    Sent { response, spent, dispatched, deadline }: Sent,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    match answer::begin(attempt.call, &mut to.leg, response, &deadline).await {
        Ok(began) => pass_on(attempt, prefilled, to, Begun { began, spent, dispatched }, record).await,
        Err(failed) => Err(came_to_nothing(failed, spent, &prefilled.by)),
    }
}

/// A decode leg whose answer has begun well.
pub(super) struct Begun {
    pub began: Began,
    pub spent: Option<Spent>,
    /// By our clock.
    pub dispatched: Duration,
}

/// Passes on what has begun.
pub(super) async fn pass_on(
    attempt: Attempt<'_, '_>,
    prefilled: Prefilled,
    Bound { row, booking, leg, asks, .. }: Bound,
    Begun { began, spent, dispatched }: Begun,
    record: &mut Record,
) -> Result<Response<ResponseBody>, Failed> {
    let (call, holder) = (attempt.call, prefilled.by.clone());
    let brought =
        Brought { mode: prefilled.mode, since: dispatched.max(prefilled.answered), said: prefilled.said };
    let turn = Turn::start(attempt, row, booking, leg, dispatched)
        .prefilled_by(prefilled.by, prefilled.prompt_tokens, brought)
        .reads(spent.as_ref().map(Spent::kept))
        .prefill_read(prefilled.read)
        .asked(asks, call.request);
    let answered = answer::pass_on(call, turn, began, record).await;
    match (answered, spent) {
        (Ok(response), spent) => {
            spent.into_iter().for_each(Spent::arrived);
            Ok(response)
        }
        (Err(failed), spent) => Err(came_to_nothing(failed, spent, &holder)),
    }
}

/// What becomes of the blocks of a decode leg that failed.
pub(super) fn came_to_nothing(failed: Failed, spent: Option<Spent>, holder: &Worker) -> Failed {
    if failed.failure.is_refusal() {
        spent.into_iter().for_each(Spent::refused);
        return failed;
    }
    with_blocks_left(failed, spent, holder)
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
