//! Who decides how long turns are kept: a fixed time, or the policy `adaptive`, linked natively.

use adaptive::Adaptive;
use sluice_core::facts::{Finish, SessionFacts};
use sluice_core::verdict::{Keep, Renewal, Retention};
use sluice_policy_sdk::testing::{FactsBuilder, WorkerSpec, decode, prefill};
use sluice_policy_sdk::{self as sdk, Ability, Policy};

use super::BLOCK_TOKENS;

/// The decode worker's row in the facts.
const HOLDER: u32 = 1;

/// Who decides.
pub enum Keeper {
    /// All turns for so long, in milliseconds.
    Fixed(u32),
    /// The policy.
    Adaptive(Adaptive),
}

/// What is asked about: a turn at its end, or one that is kept.
#[derive(Debug, Clone)]
pub struct Question {
    /// As the store has it.
    pub session: Option<SessionFacts>,
    /// The holder's memory; none where it has no bound.
    pub memory: Option<Memory>,
    /// Of the turn.
    pub tokens: u32,
}

/// KV blocks of the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All.
    pub total: u64,
    /// Of kept turns.
    pub held: u64,
    /// Neither in use nor held.
    pub free: u64,
}

impl Keeper {
    /// The policy with these settings, JSON.
    pub fn adaptive(settings: &str) -> anyhow::Result<Self> {
        Adaptive::configure(settings).map(Self::Adaptive).map_err(anyhow::Error::msg)
    }

    /// What becomes of a turn.
    pub fn retain(&self, question: &Question, finish: Finish) -> Retention {
        let policy = match self {
            Self::Fixed(ttl_ms) => {
                return Retention::Keep(Keep { ttl_ms: *ttl_ms, heartbeat_ms: None });
            }
            Self::Adaptive(policy) => policy,
        };
        let finish = match finish {
            Finish::Stop => sdk::Finish::Stop,
            Finish::Length => sdk::Finish::Length,
            Finish::ToolCalls => sdk::Finish::ToolCalls,
            Finish::Other => sdk::Finish::Other,
        };
        let (facts, held_tokens) = (question.facts(), question.tokens);
        match policy.retain(&sdk::TurnEnd { facts, decode: HOLDER, held_tokens, output_tokens: 100, finish })
        {
            sdk::Retention::Keep(keep) => {
                Retention::Keep(Keep { ttl_ms: keep.ttl_ms, heartbeat_ms: keep.heartbeat_ms })
            }
            sdk::Retention::Release => Retention::Release,
            sdk::Retention::UseDefault => Retention::UseDefault,
        }
    }

    /// Whether it stays kept.
    pub fn heartbeat(&self, question: &Question, idle_ms: u32, renewals: u32, left_ms: u32) -> Renewal {
        let Self::Adaptive(policy) = self else { return Renewal::Release };
        let lease = sdk::Lease {
            facts: question.facts(),
            holder: HOLDER,
            held_tokens: question.tokens,
            idle_ms,
            renewals,
            expires_in_ms: left_ms,
        };
        match policy.heartbeat(&lease) {
            sdk::Renewal::Renew(for_ms) => Renewal::Renew(for_ms),
            sdk::Renewal::Release => Renewal::Release,
            sdk::Renewal::UseDefault => Renewal::UseDefault,
        }
    }
}

impl Question {
    fn facts(&self) -> sdk::Facts {
        let holder = match self.memory {
            // Nothing is known of its memory.
            None => WorkerSpec { kv_blocks_total: 0, kv_blocks_free: 0, ..decode(2) },
            Some(Memory { total, held, free }) => WorkerSpec {
                kv_blocks_total: total as u32,
                kv_blocks_held: held as u32,
                kv_blocks_free: free as u32,
                ..decode(2)
            },
        };
        let facts = FactsBuilder::new().worker(prefill(1)).worker(holder.able(Ability::HoldsRenewable));
        let facts = match &self.session {
            None => facts,
            Some(known) => facts.session(|session| {
                session.turn = known.turn;
                session.last_gap_ms = known.last_gap_ms;
                session.mean_gap_ms = known.mean_gap_ms;
                session.gap_spread_ms = known.gap_spread_ms;
            }),
        };
        let mut facts = facts.build();
        facts.block_tokens = BLOCK_TOKENS;
        facts
    }
}
