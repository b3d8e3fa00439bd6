//! What happened to one request, as plain data: spans, the access log and the decision header are made from it.

use std::time::Duration;

use super::labels::{Label, Leg, Outcome, Source};
use super::sampling::Trace;
use super::traceparent::TraceParent;
use crate::config;
use crate::http::error::ApiError;

/// From when to when, by the clock that does not step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// When it began.
    pub from: Duration,
    /// When it ended.
    pub to: Duration,
}

/// One request.
#[derive(Debug, Default)]
pub struct Story {
    /// Our id.
    pub request: String,
    /// The client's id, cleaned.
    pub client_request: Option<String>,
    /// Path.
    pub endpoint: &'static str,
    /// The pool's name; empty while none is found.
    pub pool: String,
    /// The model as configured; empty while none is found.
    pub model: String,
    /// Who asks: a name or a digest, never a key.
    pub tenant: String,
    /// When it came, by the clock that does not step.
    pub began: Duration,
    /// The same by the wall clock, nanoseconds since the Unix epoch.
    pub began_unix_ns: u64,
    /// The wait for a place.
    pub queued: Option<Stretch>,
    /// In order.
    pub attempts: Vec<Attempt>,
    /// When the first event of the answer's stream went out.
    pub first_token: Option<Duration>,
    /// As engines counted them, or estimated.
    pub prompt_tokens: Option<u32>,
    /// As engines counted them, or counted by events.
    pub output_tokens: Option<u32>,
    /// What the client was told instead of an answer.
    pub error: Option<Told>,
    /// Where its spans belong, if they are wanted.
    pub trace: Option<Trace>,
    /// The client's `tracestate`.
    pub trace_state: String,
}

/// One attempt.
#[derive(Debug)]
pub struct Attempt {
    /// When its facts were asked for.
    pub began: Duration,
    /// When it was decided.
    pub decided: Option<Duration>,
    /// What was decided.
    pub decision: Option<Decided>,
    /// In order: prefill and decode, or the one that does it all.
    pub legs: Vec<LegStory>,
    /// Why it failed.
    pub failed: Option<&'static str>,
}

/// What was decided, by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// The request's workload.
    pub workload: String,
    /// The name it is bound by.
    pub policy: String,
    /// The name it gives itself.
    pub module: String,
    /// As it says.
    pub version: String,
    /// Of the policy set.
    pub generation: u64,
    /// Who decided.
    pub source: Source,
    /// `unified`, `disaggregated` or `rejected`.
    pub placement: &'static str,
    /// In the policy's words.
    pub reason: String,
}

/// One request to one worker.
#[derive(Debug)]
pub struct LegStory {
    /// Which.
    pub leg: Leg,
    /// To whom.
    pub worker: String,
    /// When it was dispatched.
    pub began: Duration,
    /// When it ended.
    pub ended: Option<Duration>,
    /// `ok`, or how it failed.
    pub outcome: Option<&'static str>,
    /// Whether it was sent twice, since an idle connection broke.
    pub resent: bool,
}

impl LegStory {
    fn over(&mut self, outcome: &'static str, now: Duration) {
        self.ended = Some(now);
        self.outcome = Some(outcome);
    }
}

/// An error as the client was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// HTTP status.
    pub status: u16,
    /// Ours.
    pub code: &'static str,
}

/// How a story ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// As counted.
    pub outcome: Outcome,
    /// When.
    pub at: Duration,
}

/// Spans per attempt: its decision and two legs.
const SPANS_PER_ATTEMPT: u64 = 3;

/// Spans before those of the attempts: the wait for a place. The request's own has a number of its own.
const SPANS_BEFORE_ATTEMPTS: u64 = 1;

impl Story {
    /// It is known who asks.
    pub fn asked_by(&mut self, tenant: &str) {
        tenant.clone_into(&mut self.tenant);
    }

    /// It is known who asks for what.
    pub fn found(&mut self, pool: &config::Pool, tenant: &str) {
        self.pool.clone_from(&pool.name);
        self.model.clone_from(&pool.model);
        tenant.clone_into(&mut self.tenant);
    }

    /// Another attempt begins.
    pub fn attempt(&mut self, now: Duration) {
        let (decided, decision, failed) = (None, None, None);
        self.attempts.push(Attempt { began: now, decided, decision, legs: Vec::new(), failed });
    }

    /// It is decided.
    pub fn decided(&mut self, decision: Decided, now: Duration) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.decided = Some(now);
            attempt.decision = Some(decision);
        }
    }

    /// A late hook failed, and the default decided in its place.
    pub fn decided_by(&mut self, source: Source) {
        if let Some(decision) = self.attempts.last_mut().and_then(|attempt| attempt.decision.as_mut()) {
            decision.source = source;
        }
    }

    /// A leg is dispatched. Returns the place that the worker's spans belong under.
    pub fn leg(&mut self, leg: Leg, worker: &str, now: Duration) -> Option<TraceParent> {
        let attempts = self.attempts.len();
        let attempt = self.attempts.last_mut()?;
        let number = attempt.legs.len();
        let (worker, ended, outcome, resent) = (worker.to_owned(), None, None, false);
        attempt.legs.push(LegStory { leg, worker, began: now, ended, outcome, resent });
        self.trace.map(|trace| trace.child(leg_number(attempts - 1, number)))
    }

    /// The leg of this kind that is under way was sent once more.
    pub fn leg_resent(&mut self, kind: Leg) {
        if let Some(leg) = self.open_legs().find(|leg| leg.leg == kind) {
            leg.resent = true;
        }
    }

    /// The prefill is over. Decode may be under way beside it.
    pub fn prefill_over(&mut self, outcome: &'static str, now: Duration) {
        if let Some(leg) = self.open_legs().find(|leg| leg.leg == Leg::Prefill) {
            leg.over(outcome, now);
        }
    }

    /// Whatever leg is under way is over.
    pub fn leg_over(&mut self, outcome: &'static str, now: Duration) {
        self.open_legs().for_each(|leg| leg.over(outcome, now));
    }

    /// The attempt under way failed, and with it its legs.
    pub fn attempt_failed(&mut self, why: &'static str, now: Duration) {
        self.leg_over(why, now);
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.failed.is_none()) {
            attempt.failed = Some(why);
        }
    }

    /// The client is told an error.
    pub fn told(&mut self, error: &ApiError, now: Duration) {
        self.error = Some(Told { status: error.status.as_u16(), code: error.code });
        self.attempt_failed(error.code, now);
    }

    /// The request is over: whatever is still under way is over with it.
    pub fn end(&mut self, ended: Ended) {
        let outcome = self.error.map_or(ended.outcome.name(), |told| told.code);
        self.leg_over(outcome, ended.at);
    }

    /// The status that the client got, if it got one.
    pub fn status(&self, outcome: Outcome) -> Option<u16> {
        let answered = outcome == Outcome::Ok || self.first_token.is_some();
        self.error.map(|told| told.status).or(answered.then_some(200))
    }

    /// Attempts that came to a leg.
    pub fn tries(&self) -> usize {
        self.attempts.iter().filter(|attempt| !attempt.legs.is_empty()).count()
    }

    /// Which workers failed and how, attempt by attempt: `prefill-0:connect,prefill-1:late`. `None` if none did.
    pub fn failures(&self) -> Option<String> {
        let failed = |attempt: &Attempt| Some(format!("{}:{}", attempt.legs.last()?.worker, attempt.failed?));
        let failed: Vec<_> = self.attempts.iter().filter_map(failed).collect();
        (!failed.is_empty()).then(|| failed.join(","))
    }

    /// What was decided last.
    pub fn decision(&self) -> Option<&Decided> {
        self.last_decided()?.decision.as_ref()
    }

    /// The last attempt that came to a decision, or else that passed a request on: one after it found nobody.
    fn last_decided(&self) -> Option<&Attempt> {
        let decided = self.attempts.iter().rfind(|attempt| attempt.decision.is_some());
        decided.or_else(|| self.attempts.last())
    }

    /// Who prefilled last; the worker that does it all, when one does.
    pub fn prefill(&self) -> Option<&str> {
        Some(self.last_decided()?.legs.first()?.worker.as_str())
    }

    /// Who decoded last.
    pub fn decode(&self) -> Option<&str> {
        let leg = self.last_decided()?.legs.last()?;
        (leg.leg != Leg::Prefill).then_some(leg.worker.as_str())
    }

    /// A moment by the wall clock, nanoseconds since the Unix epoch.
    pub fn unix_ns(&self, at: Duration) -> u64 {
        let since = u64::try_from(at.saturating_sub(self.began).as_nanos()).unwrap_or(u64::MAX);
        self.began_unix_ns.saturating_add(since)
    }

    fn open_legs(&mut self) -> impl Iterator<Item = &mut LegStory> {
        let legs = self.attempts.last_mut().into_iter().flat_map(|attempt| &mut attempt.legs);
        legs.filter(|leg| leg.ended.is_none())
    }
}

/// Number of the span of an attempt's decision; attempts count from 0.
pub fn decide_number(attempt: usize) -> u64 {
    SPANS_BEFORE_ATTEMPTS + attempt as u64 * SPANS_PER_ATTEMPT
}

/// Number of the span of an attempt's leg; both count from 0.
pub fn leg_number(attempt: usize, leg: usize) -> u64 {
    decide_number(attempt) + 1 + leg as u64
}

/// Number of the span of the wait for a place.
pub const QUEUE_NUMBER: u64 = 0;
