//! How long a decode worker keeps a turn's KV blocks: while the next turn is expected soon enough to be worth them.
//!
//! # The model
//! - Some conversations go on, some do not: of those that had n turns, n in n + 1 have another (the rule of succession).
//! - Gaps between turns are log-logistic, with the mean and spread that the host tells of the session or its workload:
//!   many short ones, a long tail, and a share that is still away after any time in closed form. The longer a
//!   conversation was idle, the less likely it comes back at all.
//! - A kept turn that comes back saves its prefill, less its fetching. It costs its blocks for as long as it is kept.
//!   Both grow with its tokens, so what remains is a price in time: `retain_patience_ms` of keeping for one turn that
//!   comes back. The holder's free memory makes the price: the less of it, the less patience.
//!
//! Of all times to stop, the one is chosen that gains most. A worse price never makes it later.

use sluice_policy_sdk::{Ability, Facts, Finish, Lease, Renewal, Retention, Session, TurnEnd, Worker};

use crate::Settings;
use crate::cost::{fetching_ms, measured_or};

/// Fewer tokens than that are not fetched but computed: the threshold of the verdicts.
const FETCHED_FROM_TOKENS: u32 = 64;
/// While so much of a holder's memory is free, nobody waits for a block.
const ROOMY_SHARE: f64 = 0.25;
/// Of its patience a full holder keeps this much: a turn that is seconds away would take the same blocks again.
const PATIENCE_WHEN_FULL: f64 = 1.0 / 32.0;
/// Of turns that end in tool calls, so many are followed by another: the client has the result to tell.
const RETURNS_AFTER_TOOLS: f64 = 0.95;
/// A tool takes about this long at most on the average, in milliseconds; longer gaps of such a session are its human's.
const TOOL_GAP_MS: f64 = 20_000.0;
/// Mean gaps below this are the client's own loop, in milliseconds: its next one may be a little slower.
const GAP_MS_MIN: f64 = 250.0;
/// Spread over mean, within which gaps are believed: few are more regular, a few of them often seem to be; beyond it, a
/// tail is as long as one can plan with.
const VARIATION: (f64, f64) = (1.0, 5.0);
/// A hold is not read any more so long before it ends, in milliseconds: the host's margin.
const READ_MARGIN_MS: f64 = 1_000.0;
/// Times to stop that are compared: the first, in milliseconds, then each step this much longer than the last.
const FIRST_STEP_MS: f64 = 250.0;
const STEP_GROWTH: f64 = 1.25;

/// What becomes of a turn's blocks.
pub fn retain(turn: &TurnEnd, settings: &Settings) -> Retention {
    let TurnEnd { facts, held_tokens, finish, .. } = turn;
    let cap_ms = settings.retain_ttl_ms;
    if cap_ms == 0 || *held_tokens < FETCHED_FROM_TOKENS {
        return Retention::Release;
    }
    let holder = facts.worker(turn.decode);
    let Some(gaps) =
        facts.session.as_ref().and_then(|session| Gaps::after(session.turn.saturating_add(1), session))
    else {
        return Retention::keep_ms(cap_ms);
    };
    let is_tool = *finish == Finish::ToolCalls;
    let gaps = if is_tool { gaps.after_tools() } else { gaps };
    let patience_ms = patience_ms(facts, holder, *held_tokens, settings);
    match gaps.worth_ms(0.0, cap_ms, patience_ms) {
        0 => Retention::Release,
        // Whoever asks later is not told of the tools.
        for_ms if is_tool || for_ms <= lease_ms(settings) || !renewable(holder) => Retention::keep_ms(for_ms),
        _ => Retention::lease_ms(lease_ms(settings), settings.heartbeat_ms),
    }
}

/// Whether a kept turn's blocks stay kept.
pub fn heartbeat(lease: &Lease, settings: &Settings) -> Renewal {
    let (facts, cap_ms) = (&lease.facts, settings.retain_ttl_ms);
    let left_ms = cap_ms.saturating_sub(lease.idle_ms);
    let for_ms = match facts.session.as_ref().and_then(|session| Gaps::after(session.turn, session)) {
        Some(gaps) => {
            let holder = facts.worker(lease.holder);
            let patience_ms = patience_ms(facts, holder, lease.held_tokens, settings);
            gaps.worth_ms(lease.idle_ms.into(), left_ms, patience_ms)
        }
        None => left_ms,
    };
    // Its interval is that of the day it was made: what is left now is left at each heartbeat.
    let until_next_ms = lease_ms(settings).max(lease.expires_in_ms.saturating_mul(2));
    match for_ms.min(until_next_ms) {
        0 => Renewal::Release,
        for_ms => Renewal::Renew(for_ms),
    }
}

/// As long as two heartbeats: one may come late.
fn lease_ms(settings: &Settings) -> u32 {
    settings.heartbeat_ms.saturating_mul(2)
}

fn renewable(holder: Option<Worker<'_>>) -> bool {
    holder.is_some_and(|holder| holder.can(Ability::HoldsRenewable))
}

/// How long one may keep blocks for a turn that comes back, in milliseconds.
fn patience_ms(facts: &Facts, holder: Option<Worker<'_>>, tokens: u32, settings: &Settings) -> f64 {
    let room = holder.map_or(1.0, |holder| match holder.kv_blocks_total() {
        0 => 1.0,
        total => f64::from(holder.kv_blocks_free()) / f64::from(total) / ROOMY_SHARE,
    });
    let fastest = facts.prefills().map(Worker::prefill_tokens_per_s).fold(0.0, f32::max);
    let rate = f64::from(measured_or(fastest, settings.assumed_prefill_tokens_per_s as f32));
    let computing_ms = f64::from(tokens) * 1_000.0 / rate;
    let bytes = tokens as f32 * facts.kv_bytes_per_token as f32;
    let fetching_ms =
        holder.map_or(0.0, |holder| f64::from(fetching_ms(holder, holder.pull_overhead_ms(), bytes)));
    let saved = (1.0 - fetching_ms / computing_ms).max(0.0);
    f64::from(settings.retain_patience_ms) * saved * room.clamp(PATIENCE_WHEN_FULL, 1.0)
}

/// When the next turn comes, if it comes.
#[derive(Debug, Clone, Copy)]
struct Gaps {
    mean_ms: f64,
    variation: f64,
    /// The share of such conversations that go on.
    returns: f64,
}

impl Gaps {
    /// Of a conversation of which so many turns ended; `None` where nothing is known.
    fn after(turns: u32, session: &Session) -> Option<Self> {
        let (turns, mean_ms) = (f64::from(turns), f64::from(session.mean_gap_ms));
        if !(mean_ms > 0.0 && mean_ms.is_finite()) {
            return None;
        }
        // Not a number counts as regular: `max` takes the other side.
        let variation = (f64::from(session.gap_spread_ms) / mean_ms).max(VARIATION.0).min(VARIATION.1);
        Some(Self { mean_ms: mean_ms.max(GAP_MS_MIN), variation, returns: turns / (turns + 1.0) })
    }

    /// The same after a turn that calls tools.
    fn after_tools(self) -> Self {
        let returns = self.returns.max(RETURNS_AFTER_TOOLS);
        Self { mean_ms: self.mean_ms.min(TOOL_GAP_MS), returns, ..self }
    }

    /// For how long from now keeping pays most, in milliseconds, at most `longest_ms`; 0 where it does not pay.
    fn worth_ms(self, idle_ms: f64, longest_ms: u32, patience_ms: f64) -> u32 {
        let longest_ms = f64::from(longest_ms);
        let away_now = self.away(idle_ms);
        let (mut at_ms, mut step_ms, mut away, mut kept_ms) = (0.0, FIRST_STEP_MS, 1.0, 0.0);
        let (mut most, mut best_ms) = (0.0, 0.0);
        while at_ms < longest_ms {
            let next_ms = f64::min(at_ms + step_ms, longest_ms);
            let away_then = self.away(idle_ms + next_ms) / away_now;
            // Blocks of those that came back meanwhile were kept half of the step.
            kept_ms += (next_ms - at_ms) * (away + away_then) / 2.0;
            let gain = patience_ms * (1.0 - away_then) - kept_ms;
            if gain > most {
                (most, best_ms) = (gain, next_ms + READ_MARGIN_MS);
            }
            (at_ms, step_ms, away) = (next_ms, step_ms * STEP_GROWTH, away_then);
        }
        best_ms.min(longest_ms) as u32
    }

    /// The share of conversations that are still away after so long, those that never come back included.
    fn away(self, idle_ms: f64) -> f64 {
        let log_spread = (1.0 + self.variation.powi(2)).ln().sqrt();
        let shape = std::f64::consts::PI / (3.0_f64.sqrt() * log_spread);
        let median_ms = self.mean_ms / (1.0 + self.variation.powi(2)).sqrt();
        1.0 - self.returns + self.returns / (1.0 + (idle_ms / median_ms).powf(shape))
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
