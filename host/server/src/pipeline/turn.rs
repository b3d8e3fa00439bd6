//! Step 7: what is done when an answer ends, however it ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_core::facts::{Facts, Finish, Row, SessionFacts};
use sluice_core::failure::Failure;
use sluice_core::history::chain::Chain;
use sluice_core::history::scope::ConversationKey;
use sluice_core::measure::transfer_overhead_ms;
use sluice_core::session::{PromptMark, Session, TurnRecord};
use sluice_core::verdict::TransferMode;

use super::asks;
use super::attempt::Attempt;
use super::decide::Decision;
use super::pinned::Pinned;
use super::retain::TurnCounts;
use super::told::{Telling, Told};
use crate::app::App;
use crate::clock::millis;
use crate::config::PoolMode;
use crate::fleet::{Booking, HandleGuard, Leg, Pool, Worker};
use crate::kept::TurnHold;
use crate::made_stream::StreamOptions;
use crate::record::Record;
use crate::request::{Asks, ClientRequest, Endpoint};
use crate::sessions::{EndedTurn, TurnsInFlight, ends};
use crate::telemetry::labels::{Label, Outcome, Phase};
use crate::telemetry::trail::Trail;
use crate::tenants::TokenUse;
use crate::usage::PrefillUsage;

/// Answers shorter than this say little about a decode step: the first token's cost weighs too much.
const TOKENS_TO_MEASURE_A_STEP: u32 = 4;

/// A turn whose decode leg was dispatched. Dropping it unfinished is a cancel: load goes, nothing is remembered.
pub(super) struct Turn {
    pub app: Arc<App>,
    pub pool: Arc<Pool>,
    pub decision: Decision,
    pub facts: Box<Facts>,
    pub decode: Row,
    pub prefill: Arc<Worker>,
    pub booking: Booking,
    pub leg: Leg,
    /// Collects what its answer tells beside its words, where its leg was asked to tell.
    pub telling: Option<Telling>,
    /// Of a client that gets a stream where its leg gives a whole answer.
    pub makes_stream: Option<(Endpoint, StreamOptions)>,
    /// Decode leg, by our clock.
    pub dispatched: Duration,
    /// Of a prompt that was prefilled elsewhere.
    brought: Option<Brought>,
    /// Of a prefill worker's blocks, until they are read.
    kept: Option<Arc<HandleGuard>>,
    /// As the prefill worker counted them.
    prompt_tokens: Option<u32>,
    pub(super) session_key: Option<ConversationKey>,
    /// Digests of its request's history, where its pool keeps turns.
    pub(super) chain: Option<Arc<Chain>>,
    /// Of its conversation, this one among them.
    pub(super) in_flight: Option<Arc<TurnsInFlight>>,
    /// Whether its client says that nothing comes after it.
    ends_session: bool,
    /// The conversation that it went on from, which ends with it.
    trunk: Option<ConversationKey>,
    /// Of this turn, until it is known what becomes of it.
    pub(super) hold: Option<TurnHold>,
    /// Whether its answer tells of what its engine keeps, if that keeps anything.
    pub(super) tells_of_kept: bool,
    /// Whether the engine may have ended it at words of the client's, of which it keeps nothing.
    pub(super) has_stop_words: bool,
    /// Ids of the prompt as prefill read it, as a JSON list, if it told.
    pub(super) prefill_read: Option<Bytes>,
    /// Where its decode engine keeps it by itself when it is over.
    pub(super) pinned: Option<Pinned>,
    /// Which of its lives the decode engine was in when the leg was sent.
    incarnation: u32,
    /// Where its request came in.
    endpoint: Endpoint,
    mark: PromptMark,
    prompt_bytes: usize,
    tokens: Arc<TokenUse>,
    arrived: Duration,
    first_token: Option<Duration>,
    generated: u32,
    trail: Trail,
}

/// How a prompt that was prefilled elsewhere came to decode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brought {
    pub mode: TransferMode,
    /// From when decode waited for nothing but KV, by our clock.
    pub since: Duration,
    /// What the prefill engine said; `None` where nothing was moved.
    pub said: Option<PrefillUsage>,
}

/// What the answer told at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AnswerEnd {
    pub prompt_tokens: Option<u32>,
    pub output_tokens: Option<u32>,
    pub finish: Option<Finish>,
    /// Whether it ended with one of the client's stop strings.
    pub by_stop_text: bool,
}

impl Turn {
    /// The decode leg was dispatched, then.
    pub fn start(
        attempt: Attempt<'_, '_>,
        decode: Row,
        booking: Booking,
        leg: Leg,
        dispatched: Duration,
    ) -> Self {
        let Attempt { call, facts, decision, turn_hold, .. } = attempt;
        let incarnation = leg.worker().seen().incarnation;
        Self {
            app: call.app.clone(),
            pool: call.pool.clone(),
            decision,
            facts,
            decode,
            prefill: booking.worker().clone(),
            brought: None,
            kept: None,
            prompt_tokens: None,
            booking,
            dispatched,
            mark: call.mark,
            session_key: call.session_key.clone(),
            chain: call.chain.clone(),
            in_flight: call.in_flight.clone(),
            ends_session: call.ends_session,
            trunk: call.reuse_key.clone().filter(|_| call.ends_session),
            hold: turn_hold,
            tells_of_kept: false,
            has_stop_words: call.request.has_stop_words(),
            pinned: None,
            incarnation,
            prefill_read: None,
            endpoint: call.request.endpoint,
            leg,
            telling: None,
            makes_stream: None,
            prompt_bytes: call.request.prompt_text().len(),
            tokens: call.tokens.clone(),
            arrived: call.arrived,
            first_token: None,
            generated: 0,
            trail: call.trail.clone(),
        }
    }

    /// The prompt was prefilled elsewhere.
    pub fn prefilled_by(self, prefill: Arc<Worker>, prompt_tokens: Option<u32>, brought: Brought) -> Self {
        Self { prefill, prompt_tokens, brought: Some(brought), ..self }
    }

    /// Its leg was asked for this beyond what the client asked.
    pub fn asked(self, asks: Asks, request: &ClientRequest<'_>) -> Self {
        // What an engine keeps by itself has to be let go, too, where no later turn can use it.
        let params = self.pinned.as_ref().map(Pinned::told);
        let tells = asks.token_ids || params.is_some();
        let telling = tells.then(|| Telling::of(&self.pool, request, asks, params));
        let makes_stream = asks.unstreamed.then(|| (request.endpoint, StreamOptions::of(request)));
        let is_whole = asks.unstreamed || !request.streams;
        let tells_of_kept = is_whole || asks::tells_in_streams(self.booking.worker());
        Self { telling, makes_stream, tells_of_kept, ..self }
    }

    /// Prefill told that it read these ids, a JSON list.
    pub fn prefill_read(self, prefill_read: Option<Bytes>) -> Self {
        Self { prefill_read, ..self }
    }

    /// What the prefill engine said, if decode was given its KV.
    pub fn prefilled(&self) -> Option<PrefillUsage> {
        self.brought.and_then(|brought| brought.said)
    }

    /// Decode reads the blocks of this handle.
    pub fn reads(self, kept: Option<Arc<HandleGuard>>) -> Self {
        let is_pinned = kept.is_some() && self.pool.config.mode == PoolMode::Bidirectional;
        let pinned = is_pinned.then(|| {
            let (app, pool, holder) = (self.app.clone(), self.pool.clone(), self.booking.worker().clone());
            Pinned::new(app, pool, holder, (self.incarnation, self.endpoint), self.dispatched)
        });
        Self { kept, pinned, ..self }
    }

    /// Its engine had no more to say at this moment, or was done soon before it.
    pub fn ended_after(&mut self, now: Duration) {
        if let Some(pinned) = &mut self.pinned {
            pinned.ended_after(now);
        }
    }

    /// The first event of a stream is on its way.
    pub fn first_token(&mut self) {
        self.blocks_read();
        let now = self.app.clock.elapsed();
        self.first_token = Some(now);
        self.trail.note(|story, now| story.first_token = Some(now));
        self.booking.prefilled();
        self.leg.first_byte();
        self.phase(Phase::FirstToken, now.saturating_sub(self.arrived));
        let took = now.saturating_sub(self.dispatched);
        self.phase(Phase::DecodeFirstByte, took);
        let mut seen = self.booking.worker().seen();
        if let Some(Brought { mode, since, said }) = self.brought {
            let took = now.saturating_sub(since);
            let took_ms = took.as_secs_f64() * 1_000.0;
            let tokens = f64::from(self.prompt_tokens.unwrap_or(self.facts.request.prompt_tokens));
            let bytes = tokens * f64::from(self.facts.kv_bytes_per_token);
            let (step_ms, link) = (seen.decode_step.last(), seen.link_mb_per_s.value());
            if said.is_some() {
                let step = Duration::try_from_secs_f64(f64::from(step_ms) / 1_000.0).unwrap_or_default();
                self.decision.metrics.phase(Phase::Transfer, took.saturating_sub(step));
            }
            let overhead_ms = transfer_overhead_ms(took_ms, step_ms, bytes, link);
            match mode {
                TransferMode::Pull => seen.pull_overhead_ms.observe(overhead_ms, 1.0),
                TransferMode::Push => seen.push_overhead_ms.observe(overhead_ms, 1.0),
            }
        } else {
            let cached = self.facts.cached_tokens.get(self.decode as usize).copied().unwrap_or(0);
            seen.prefilled(self.facts.request.prompt_tokens.saturating_sub(cached), self.dispatched, now);
        }
    }

    /// More events of a stream, each about one token.
    pub fn generated(&mut self, events: u32) {
        self.generated += events;
        self.tokens.generated(events);
        self.booking.generated(events);
    }

    /// A phase of this request took this long.
    pub fn phase(&self, phase: Phase, spent: Duration) {
        self.decision.metrics.phase(phase, spent);
    }

    /// Decode has begun to answer, so it has what the handle names.
    fn blocks_read(&mut self) {
        if let Some(kept) = self.kept.take() {
            kept.over();
        }
    }

    /// The answer is whole. `told`: beside its words, where its leg was asked to tell.
    pub fn finish(mut self, end: AnswerEnd, told: Option<Told>, record: &mut Record) {
        self.blocks_read();
        record.ok();
        self.leg.went_well();
        let output_tokens = end.output_tokens.unwrap_or(self.generated);
        let prompt_tokens = end.prompt_tokens.or(self.prompt_tokens);
        self.measure_step(output_tokens);
        if let Some(tokens) = prompt_tokens {
            self.pool.observe_prompt(self.prompt_bytes, tokens);
        }
        // A stream whose client did not ask for usage tells no count: the estimate stands in.
        let prompt_tokens = prompt_tokens.unwrap_or(self.facts.request.prompt_tokens);
        self.trail.note(|story, now| {
            story.prompt_tokens = Some(prompt_tokens);
            story.output_tokens = Some(output_tokens);
            story.leg_over(Outcome::Ok.name(), now);
        });
        self.tokens.counted(prompt_tokens, output_tokens);
        if let Some(ids) = told.as_ref().and_then(|told| told.ids) {
            self.pool.metrics.token_ids(ids);
        }
        match self.session_key.take() {
            Some(key) if self.ends_session => {
                ends::drop_one(&self.app, &key);
                if let Some(trunk) = self.trunk.take().filter(|trunk| *trunk != key) {
                    ends::drop_one(&self.app, &trunk);
                }
            }
            // Somebody ended it meanwhile: it is not begun anew.
            Some(_) if self.in_flight.as_ref().is_some_and(|turns| turns.are_over()) => {}
            Some(key) => {
                self.remember(&key, prompt_tokens, output_tokens);
                self.session_key = Some(key);
            }
            None => {}
        }
        let finish = end.finish.unwrap_or(Finish::Other);
        let counts = TurnCounts { prompt_tokens, output_tokens, finish, by_stop_text: end.by_stop_text };
        self.retain(counts, told);
        if let (Some(key), Some(turns)) = (&self.session_key, &self.in_flight) {
            ends::settle(&self.app, key, turns);
        }
    }

    /// The answer broke after its first byte: told in the stream, never tried again.
    pub fn break_off(mut self, failure: Failure, why: &str, record: &mut Record) {
        record.broke();
        self.leg.failed(failure, why);
        self.trail.note(|story, now| story.attempt_failed(failure.name(), now));
    }

    /// A stream's steps are timed from its first token; a whole answer's from its dispatch, which for a
    /// unified worker includes the prefill and says nothing.
    fn measure_step(&self, output_tokens: u32) {
        if output_tokens < TOKENS_TO_MEASURE_A_STEP {
            return;
        }
        let now = self.app.clock.elapsed();
        let (since, steps) = match (self.first_token, self.brought) {
            (Some(first), _) => (first, output_tokens - 1),
            (None, Some(brought)) => (brought.since, output_tokens),
            (None, None) => return,
        };
        let took = now.saturating_sub(since);
        if self.first_token.is_some() {
            self.phase(Phase::PerToken, took / steps);
        }
        let took_ms = took.as_secs_f64() * 1_000.0;
        self.booking.worker().seen().decode_step.observe(took_ms, f64::from(steps), now);
    }

    /// Writes the session, and has the policy told of it as it is now: the gap before this turn counts.
    fn remember(&mut self, key: &ConversationKey, prompt_tokens: u32, output_tokens: u32) {
        let now_ms = millis(self.app.clock.elapsed());
        let turn = TurnRecord {
            decode: self.booking.worker().id,
            prefill: self.prefill.id,
            prompt: self.mark,
            prompt_tokens,
            output_tokens,
            started_at_ms: millis(self.arrived),
            ended_at_ms: now_ms,
        };
        let workload = &self.facts.request.workload;
        let ended = EndedTurn {
            key: key.clone(),
            mark: self.chain.as_ref().map(|chain| chain.mark()),
            workload,
            turn,
        };
        let app = &self.app;
        let session = app.sessions.end_turn(ended, now_ms, &mut |key, why| ends::evicted(app, key, why));
        self.facts.session = Some(self.session_facts(&session));
    }

    /// Of a session that this turn is the last of: turns are counted before it.
    fn session_facts(&self, session: &Session) -> SessionFacts {
        let workload = self.app.sessions.gaps(&self.facts.request.workload);
        let facts = session.kept_facts(&self.facts.fleet, &workload, None);
        SessionFacts { turn: facts.turn.saturating_sub(1), ..facts }
    }
}
