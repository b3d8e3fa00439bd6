//! Step 7: what is done when an answer ends, however it ends.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::default_policy;
use sluice_core::facts::{Facts, Finish, RequestFacts, Row, SessionFacts, TurnEnd};
use sluice_core::failure::Failure;
use sluice_core::history::Digest;
use sluice_core::history::chain::Chain;
use sluice_core::history::scope::ConversationKey;
use sluice_core::lease::Lease;
use sluice_core::measure::transfer_overhead_ms;
use sluice_core::session::{PromptMark, Session, TurnRecord};
use sluice_core::verdict::{Keep, Retention, TransferMode};
use sluice_transfer::node::NodeHandle;
use sluice_transfer::protocol::Peer;

use super::attempt::Attempt;
use super::decide::Decision;
use crate::app::App;
use crate::clock::millis;
use crate::fleet::{Booking, HandleGuard, Leg, Pool, Worker};
use crate::kept::{HeldTokens, KeptFate, KeptTurn, TurnHold};
use crate::record::Record;
use crate::sessions::{EndedTurn, ends};
use crate::telemetry::labels::{Fallback, Label, Outcome, Phase};
use crate::telemetry::trail::Trail;
use crate::tenants::TokenUse;
use crate::usage::PrefillUsage;

/// Answers shorter than this say little about a decode step: the first token's cost weighs too much.
const TOKENS_TO_MEASURE_A_STEP: u32 = 4;

/// The part of a decode worker's KV that kept turns may have: what runs needs room, too.
const KEPT_PART_OF_A_HOLDER: u64 = 2;

/// Kept turns are counted down when they end; one that never was would be forgotten at once.
const UNLESS_COUNTED_DOWN_MS: u64 = 0;

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
    /// Decode leg, by our clock.
    pub dispatched: Duration,
    /// Of a prompt that was prefilled elsewhere.
    brought: Option<Brought>,
    /// Of a prefill worker's blocks, until they are read.
    kept: Option<Arc<HandleGuard>>,
    /// As the prefill worker counted them.
    prompt_tokens: Option<u32>,
    session_key: Option<ConversationKey>,
    /// What its conversation is found again by, if its client names none.
    history_mark: Option<Digest>,
    /// Whether its client says that nothing comes after it.
    ends_session: bool,
    /// Of this turn, until it is known what becomes of it.
    hold: Option<TurnHold>,
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
            history_mark: call.chain.as_ref().map(Chain::mark),
            ends_session: call.ends_session,
            hold: turn_hold,
            leg,
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

    /// What the prefill engine said, if decode was given its KV.
    pub fn prefilled(&self) -> Option<PrefillUsage> {
        self.brought.and_then(|brought| brought.said)
    }

    /// Decode reads the blocks of this handle.
    pub fn reads(self, kept: Option<Arc<HandleGuard>>) -> Self {
        Self { kept, ..self }
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

    /// The answer is whole.
    pub fn finish(mut self, end: AnswerEnd, record: &mut Record) {
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
        if let Some(key) = self.session_key.take() {
            match self.ends_session {
                true => drop(ends::drop_one(&self.app, &key)),
                false => {
                    self.remember(&key, prompt_tokens, output_tokens);
                    self.retain(key, prompt_tokens, output_tokens, end.finish.unwrap_or(Finish::Other));
                }
            }
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

    /// Asks the policy what becomes of the turn's KV, where its decode worker holds it.
    fn retain(&mut self, key: ConversationKey, prompt_tokens: u32, output_tokens: u32, finish: Finish) {
        let Some(node) = self.app.node.clone() else { return };
        let counted = prompt_tokens.saturating_add(output_tokens).saturating_sub(1);
        let kept = self.hold.take().and_then(|mut hold| {
            // Its engine knows, and has most likely said so by now.
            let tokens = node.hold(hold.wanted().transfer).map_or(counted, |held| held.extent.end_token);
            let (keep, request) = self.retention(tokens, output_tokens, finish)?;
            let lease = self.keep(&node, &mut hold, keep, tokens)?;
            Some((hold.wanted().transfer, tokens, lease, request))
        });
        let app = &self.app;
        let Some((transfer, tokens, (life, lease), request)) = kept else {
            return app.kept.end_of(&node, &key, KeptFate::Superseded);
        };
        let holder = self.booking.worker();
        let handle = holder.hold_handle(&app.clock, UNLESS_COUNTED_DOWN_MS);
        let turn = KeptTurn {
            transfer,
            life,
            holder: holder.clone(),
            engine: holder.engine.clone().unwrap_or_default(),
            tokens,
            lease,
            policy: self.decision.metrics.name().to_owned(),
            pool: self.pool.clone(),
            request,
            seed: self.facts.seed,
            counted: Arc::new(HeldTokens::new(holder, tokens, handle)),
        };
        app.kept.keep(&node, key, turn);
        // Whoever ends what a worker keeps, since it drains or has lost its engine, may have looked just before.
        if holder.seen().draining_since.is_some() {
            app.kept.end_all_of(&node, holder.id, KeptFate::Drained);
        }
        if holder.life() != Some(life) {
            app.kept.end_lost(&node);
        }
    }

    /// What the policy says of it, with the request as it was told; `None`: not to be kept.
    fn retention(
        &mut self,
        held_tokens: u32,
        output_tokens: u32,
        finish: Finish,
    ) -> Option<(Keep, RequestFacts)> {
        let policy = self.decision.loaded.clone()?;
        let facts = std::mem::take(&mut *self.facts);
        let end = TurnEnd { facts, decode: self.decode, held_tokens, output_tokens, finish };
        let answer = policy.retain(&end);
        *self.facts = end.facts;
        let retention = match answer {
            Ok(Retention::UseDefault) => default_policy::retain(),
            Ok(retention) => retention,
            Err(_) => {
                self.pool.metrics.fallback(Fallback::RetainFault);
                default_policy::retain()
            }
        };
        match retention {
            Retention::Keep(keep) => Some((keep, self.facts.request.clone())),
            Retention::Release | Retention::UseDefault => None,
        }
    }

    /// Has it kept, if its holder has room for it and takes part in transfers: in which life, and on which lease.
    fn keep(&self, node: &NodeHandle, hold: &mut TurnHold, keep: Keep, tokens: u32) -> Option<(Peer, Lease)> {
        let holder = self.booking.worker();
        let life = holder.life()?;
        let (layout, held) = (holder.attached_engine()?.layout, holder.held_tokens());
        let room = u64::from(layout.blocks) * u64::from(layout.block_tokens) / KEPT_PART_OF_A_HOLDER;
        if !holder.takes_work() {
            // As was ordered, or it is down.
            return None;
        }
        if u64::from(tokens) > room {
            self.pool.metrics.fallback(Fallback::KeptTurnsFull);
            return None;
        }
        let above = (held + u64::from(tokens)).saturating_sub(room);
        self.app.kept.make_room(node, holder.id, above);
        let now_ms = millis(self.app.clock.elapsed());
        let lease = Lease::new(keep, now_ms);
        hold.keep(lease.grant_ms(now_ms)).then_some((life, lease))
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
        let ended = EndedTurn { key: key.clone(), mark: self.history_mark, workload, turn };
        let session = self.app.sessions.end_turn(ended, now_ms);
        self.facts.session = Some(self.session_facts(&session));
    }

    /// Of a session that this turn is the last of: turns are counted before it.
    fn session_facts(&self, session: &Session) -> SessionFacts {
        let workload = self.app.sessions.gaps(&self.facts.request.workload);
        let facts = session.kept_facts(&self.facts.fleet, &workload, None);
        SessionFacts { turn: facts.turn.saturating_sub(1), ..facts }
    }
}
