//! Step 7, what becomes of a turn's KV: its decode engine holds it, and the policy says whether, and for how long.

use std::num::NonZeroU32;
use std::sync::Arc;

use sluice_core::default_policy;
use sluice_core::facts::{Finish, RequestFacts, TurnEnd};
use sluice_core::history::guard::{self, Held, Refusal};
use sluice_core::kept::deadlines;
use sluice_core::lease::Lease;
use sluice_core::verdict::{Keep, Retention};

use super::told::Told;
use super::turn::Turn;
use crate::clock::millis;
use crate::config::{DECLINED_BEFORE_END_MS, HOLD_MARGIN_MS, PoolMode};
use crate::fleet::Worker;
use crate::handle::back::BackHandle;
use crate::kept::{Blocks, EngineTurn, HeldTokens, Hosted, KeptFate, KeptTurn, Place, TurnHold};
use crate::release::EndedTurn;
use crate::telemetry::labels::Fallback;

/// The part of a decode worker's KV that kept turns may have: what runs needs room, too.
const KEPT_PART_OF_A_HOLDER: u64 = 2;

/// Kept turns are counted down when they end; one that never was would be forgotten at once.
const UNLESS_COUNTED_DOWN_MS: u64 = 0;

/// A turn that its decode engine holds.
enum HeldTurn {
    /// This host's node knows it. Dropped, it ends.
    Hosted(TurnHold),
    /// The engine alone knows it. Dropped, it stays for the engine's own time.
    Engine(BackHandle),
}

/// What the answer counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnCounts {
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub finish: Finish,
}

impl Turn {
    /// Asks the policy what becomes of the turn's KV, where its decode worker holds it.
    pub(super) fn retain(&mut self, counts: TurnCounts, told: Option<&Told>) {
        if !self.pool.config.mode.keeps_turns() {
            return;
        }
        let app = self.app.clone();
        let kept = match self.held_turn(told) {
            Some(HeldTurn::Hosted(hold)) => self.keep_hosted(hold, counts),
            Some(HeldTurn::Engine(handle)) => self.keep_engines(handle, counts, told),
            None => None,
        };
        let Some(key) = self.session_key.clone() else { return };
        let Some(turn) = kept else {
            return app.kept.went_on(&*app, &key, self.chain.as_deref());
        };
        let (holder, blocks) = (turn.holder.clone(), turn.blocks.clone());
        app.kept.keep(&*app, key, turn, self.chain.as_deref());
        // Whoever ends what a worker keeps, since it drains or has lost its engine, may have looked just before.
        if holder.seen().draining_since.is_some() {
            app.kept.end_all_of(&*app, holder.id, KeptFate::Drained);
        }
        if blocks.are_lost(&holder) {
            app.kept.end_lost(&*app);
        }
    }

    fn held_turn(&mut self, told: Option<&Told>) -> Option<HeldTurn> {
        if self.pool.config.mode == PoolMode::HostManaged {
            return self.hold.take().map(HeldTurn::Hosted);
        }
        if !self.is_pinned {
            // An engine keeps only turns whose KV it fetched.
            return None;
        }
        let Some(params) = told.and_then(|told| told.params.as_deref()) else {
            if self.tells_of_kept {
                self.tell_not_kept();
            } else {
                self.tell_untold("it told of no kv_transfer_params");
            }
            return None;
        };
        match BackHandle::read(params) {
            Ok(handle) => Some(HeldTurn::Engine(handle)),
            Err(why) => {
                self.tell_untold(&why);
                None
            }
        }
    }

    /// The answer would have told of it. Of one that ended at the client's own stop words engines keep nothing, however they
    /// were started.
    fn tell_not_kept(&self) {
        self.pool.metrics.fallback(Fallback::TurnNotKept);
        if self.has_stop_words {
            return;
        }
        let (pool, holder) = (&self.pool.config.name, &self.booking.worker().name);
        self.app.telemetry.warn_once(&format!("not kept {pool} {holder}"), || {
            format!(
                "worker {holder:?} of pool {pool:?} told of no kept turn in an answer that would: it runs without \
                 bidirectional_kv_xfer, so that next turns are computed from their beginning. Cure: start it with \
                 kv_connector_extra_config {{\"bidirectional_kv_xfer\": true}}"
            )
        });
    }

    /// The engine may hold the turn for its own time, and nobody can use it or let it go.
    fn tell_untold(&self, why: &str) {
        self.pool.metrics.fallback(Fallback::TurnUntold);
        let (pool, holder) = (&self.pool.config.name, &self.booking.worker().name);
        self.app.telemetry.warn_once(&format!("untold {pool} {holder}"), || {
            format!(
                "worker {holder:?} of pool {pool:?} may keep a turn's KV that no later turn can have: {why}. It stays until \
                 decoder_kv_blocks_ttl is over. Cure: vLLM 0.33, which tells of it in streams as well, or streams = \"made\" \
                 for the pool"
            )
        });
    }

    fn keep_hosted(&mut self, mut hold: TurnHold, counts: TurnCounts) -> Option<KeptTurn> {
        let node = self.app.node.clone()?;
        self.session_key.as_ref()?;
        let transfer = hold.wanted().transfer;
        let counted = guard::tokens_held(counts.prompt_tokens as usize, counts.output_tokens as usize);
        // Its engine knows, and has most likely said so by now.
        let tokens = node.hold(transfer).map_or(counted as u32, |held| held.extent.end_token);
        let (keep, request) = self.retention(tokens, counts)?;
        let holder = self.booking.worker().clone();
        let life = holder.life()?;
        let layout = holder.attached_engine()?.layout;
        self.has_room_for(tokens, u64::from(layout.blocks) * u64::from(layout.block_tokens))?;
        let now_ms = millis(self.app.clock.elapsed());
        let lease = Lease::new(keep, now_ms);
        if !hold.keep(lease.grant_ms(now_ms)) {
            return None;
        }
        let engine = holder.engine.clone().unwrap_or_default();
        Some(self.kept_turn(Blocks::Hosted(Hosted { transfer, engine, life }), tokens, lease, request))
    }

    /// What is not kept is let go: the engine would keep it for its own time.
    fn keep_engines(
        &mut self,
        handle: BackHandle,
        counts: TurnCounts,
        told: Option<&Told>,
    ) -> Option<KeptTurn> {
        let answered_ms = millis(self.app.clock.elapsed());
        let ttl_ms = self.pool.config.decoder_ttl_ms;
        let margin_ms = fetched_before_end_ms(self.app.config.server.connect_timeout_ms);
        let place = Place {
            handle,
            incarnation: self.incarnation,
            started_s: self.engine_started_s,
            endpoint: self.endpoint,
            usable_until_ms: deadlines::usable_until_ms(answered_ms, ttl_ms, margin_ms),
        };
        if let Some((held, lease, request)) = self.lease_of_engines(&place, counts, told) {
            let tokens = place.handle.tokens;
            let blocks = Blocks::Engine(Arc::new(EngineTurn { place, held }));
            return Some(self.kept_turn(blocks, tokens, lease, request));
        }
        let (pool, holder) = (self.pool.clone(), self.booking.worker().clone());
        let is_taken = self.app.releases.end(EndedTurn { place, pool, holder, counted: None });
        let fate = if is_taken { KeptFate::NotKept } else { KeptFate::Unreleased };
        self.app.kept.count_in(&self.pool, fate);
        None
    }

    /// On which lease an engine's turn is kept, and what is proven of it.
    fn lease_of_engines(
        &mut self,
        place: &Place,
        counts: TurnCounts,
        told: Option<&Told>,
    ) -> Option<(Held, Lease, RequestFacts)> {
        if self.session_key.is_none() || self.pool.reuse_is_off() {
            return None;
        }
        if !self.read_alike(told) {
            return None;
        }
        let block_tokens = NonZeroU32::new(self.pool.config.block_tokens)?;
        let held = Held::of_turn(&guard::Told {
            prompt_ids: told.and_then(|told| told.prompt_ids.as_deref()),
            output_ids: told.and_then(|told| told.output_ids.as_deref()),
            tokens: place.handle.tokens,
            blocks_of_groups: &place.handle.blocks_of_groups,
            block_tokens,
            has_media: self.chain.as_ref().is_none_or(|chain| chain.has_media()),
        });
        let held = match held {
            Ok(held) => held.into_proofs(block_tokens),
            Err(refusal) => {
                self.app.kept.missed(&self.pool.config.name, refusal.name());
                return None;
            }
        };
        let (keep, request) = self.retention(place.handle.tokens, counts)?;
        let blocks = self.booking.worker().seen().scraped.kv_blocks_total;
        self.has_room_for(place.handle.tokens, u64::from(blocks) * u64::from(block_tokens.get()))?;
        let now_ms = millis(self.app.clock.elapsed());
        let lease = deadlines::lease_within(keep, place.usable_until_ms, now_ms)?;
        Some((held, lease, request))
    }

    /// Whether prefill computed of the tokens that decode says it holds. Each renders the prompt by itself, and a template may say what
    /// day it is.
    fn read_alike(&self, told: Option<&Told>) -> bool {
        let pool = &self.pool.config.name;
        let read =
            self.prefill_read.as_deref().and_then(|list| serde_json::from_slice::<Vec<u32>>(list).ok());
        let (Some(prefill), Some(decode)) = (read, told.and_then(|told| told.prompt_ids.as_deref())) else {
            self.app.kept.missed(pool, Refusal::NoTokenIds.name());
            return false;
        };
        if prefill == decode {
            return true;
        }
        self.pool.metrics.fallback(Fallback::DecodeReadOtherwise);
        let (prefill, decode) = (&self.prefill.name, &self.booking.worker().name);
        self.app.telemetry.warn_once(&format!("decode read otherwise {pool} {decode}"), || {
            format!(
                "worker {decode:?} of pool {pool:?} read a prompt otherwise than {prefill:?}, whose KV it was given: its answer may not \
                 be the prompt's, and its turn is not kept. Cure: one version and one chat template for all engines of a pool"
            )
        });
        false
    }

    fn kept_turn(&self, blocks: Blocks, tokens: u32, lease: Lease, request: RequestFacts) -> KeptTurn {
        let holder = self.booking.worker();
        let handle = holder.hold_handle(&self.app.clock, UNLESS_COUNTED_DOWN_MS);
        KeptTurn {
            blocks,
            holder: holder.clone(),
            tokens,
            lease,
            mark: self.chain.as_ref().map(|chain| chain.mark()),
            policy: self.decision.metrics.name().into(),
            pool: self.pool.clone(),
            request: Arc::new(request),
            seed: self.facts.seed,
            counted: Arc::new(HeldTokens::new(holder, tokens, handle)),
        }
    }

    /// What the policy says of it, with the request as it was told; `None`: not to be kept.
    fn retention(&mut self, held_tokens: u32, counts: TurnCounts) -> Option<(Keep, RequestFacts)> {
        let policy = self.decision.loaded.clone()?;
        let facts = std::mem::take(&mut *self.facts);
        let TurnCounts { output_tokens, finish, .. } = counts;
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

    /// Makes room on its holder, one of so many tokens in all, if there can be any. Not where that one takes no work, as was ordered
    /// or since it is down.
    fn has_room_for(&self, tokens: u32, of_tokens: u64) -> Option<()> {
        let holder: &Worker = self.booking.worker();
        if !holder.takes_work() {
            return None;
        }
        let room = of_tokens / KEPT_PART_OF_A_HOLDER;
        if u64::from(tokens) > room {
            self.pool.metrics.fallback(Fallback::KeptTurnsFull);
            return None;
        }
        let above = (holder.held_tokens() + u64::from(tokens)).saturating_sub(room);
        self.app.kept.make_room(&*self.app, holder.id, above);
        Some(())
    }
}

/// How long before a turn's blocks may go it is asked for at the latest, in milliseconds: its holder's own clock began to run a little
/// before, the one who fetches them has to be reached, and does not fetch at the last moment.
fn fetched_before_end_ms(connect_timeout_ms: u64) -> u64 {
    connect_timeout_ms.saturating_add(HOLD_MARGIN_MS + DECLINED_BEFORE_END_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_asked_for_only_while_its_reader_still_fetches_it() {
        for (decoder_ttl_ms, connect_timeout_ms, usable_ms) in
            [(480_000, 2_000, 472_000), (9_000, 2_000, 1_000), (8_000, 2_000, 0), (2_000, 60_000, 0)]
        {
            let margin_ms = fetched_before_end_ms(connect_timeout_ms);
            let usable = deadlines::usable_until_ms(0, decoder_ttl_ms, margin_ms);
            assert_eq!(usable, usable_ms);
            let fetched_ms = usable + connect_timeout_ms + HOLD_MARGIN_MS;
            assert!(usable == 0 || fetched_ms + DECLINED_BEFORE_END_MS <= decoder_ttl_ms);
        }
    }
}
