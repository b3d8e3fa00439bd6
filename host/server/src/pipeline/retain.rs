//! Step 7, what becomes of a turn's KV: its decode engine holds it, and the policy says whether, and for how long.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use sluice_core::default_policy;
use sluice_core::facts::{Finish, RequestFacts, TurnEnd};
use sluice_core::history::chain::Chain;
use sluice_core::history::guard::{self, Held, Refusal};
use sluice_core::history::scope::ConversationKey;
use sluice_core::kept::deadlines;
use sluice_core::lease::Lease;
use sluice_core::verdict::{Keep, Retention};

use super::pinned::{EnginesHold, Lost, UNLESS_COUNTED_DOWN_MS};
use super::told::{Ids, Told};
use super::turn::Turn;
use crate::app::App;
use crate::clock::millis;
use crate::config::PoolMode;
use crate::fleet::{Pool, Worker};
use crate::handle::back::BackHandle;
use crate::kept::{Blocks, EngineTurn, HeldTokens, Hosted, KeptFate, KeptTurn, Place, TurnHold, Unreleased};
use crate::off_loop;
use crate::release::EndedTurn;
use crate::sessions::TurnsInFlight;
use crate::sessions::ends;
use crate::telemetry::labels::Fallback;

/// The part of a decode worker's KV that kept turns may have: what runs needs room, too.
const KEPT_PART_OF_A_HOLDER: u64 = 2;

/// What the answer counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnCounts {
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub finish: Finish,
    /// Whether a stop string of the client ended it.
    pub by_stop_text: bool,
}

/// What is written down at a turn's end, which its proof may come after.
struct Keeping {
    app: Arc<App>,
    key: Option<ConversationKey>,
    chain: Option<Arc<Chain>>,
    in_flight: Option<Arc<TurnsInFlight>>,
}

impl Keeping {
    fn keep(self, turn: KeptTurn) {
        let Self { app, key, chain, in_flight } = self;
        let Some(key) = key else { return };
        let (holder, blocks) = (turn.holder.clone(), turn.blocks.clone());
        app.kept.keep(&*app, key.clone(), turn, chain.as_deref());
        // As may whoever ends the conversation.
        if let Some(turns) = in_flight {
            ends::settle(&app, &key, &turns);
        }
        // Whoever ends what a worker keeps, since it drains or has lost its engine, may have looked just before.
        if holder.seen().draining_since.is_some() {
            app.kept.end_all_of(&*app, holder.id, KeptFate::Drained);
        }
        if blocks.are_lost(&holder) {
            app.kept.end_lost(&*app);
        }
    }

    /// Nothing can be proven of it after all.
    fn refused(&self, hold: &EnginesHold, why: &'static str) {
        if let Some(turn) = hold.turn() {
            self.app.kept.missed(&turn.pool.config.name, why);
        }
        self.went_on();
    }

    fn went_on(&self) {
        if let Some(key) = &self.key {
            self.app.kept.went_on(&*self.app, key, self.chain.as_deref());
        }
    }
}

/// What prefill told that it read, whose KV decode was given.
struct PrefillRead {
    app: Arc<App>,
    pool: Arc<Pool>,
    prefill: Arc<Worker>,
    decode: Arc<Worker>,
    /// A JSON list.
    ids: Bytes,
}

impl PrefillRead {
    /// Whether it computed of the tokens that decode says it holds. Each renders the prompt by itself, and a template may say what day
    /// it is.
    fn agrees_with(&self, decode: Option<&[u32]>) -> Result<(), &'static str> {
        let prefill =
            serde_json::from_slice::<Vec<u32>>(&self.ids).map_err(|_| Refusal::NoTokenIds.name())?;
        if Some(&prefill[..]) == decode {
            return Ok(());
        }
        self.pool.metrics.fallback(Fallback::DecodeReadOtherwise);
        let (pool, prefill, decode) = (&self.pool.config.name, &self.prefill.name, &self.decode.name);
        self.app.telemetry.warn_once(&format!("decode read otherwise {pool} {decode}"), || {
            format!(
                "worker {decode:?} of pool {pool:?} read a prompt otherwise than {prefill:?}, whose KV it was given: its answer may not \
                 be the prompt's, and its turn is not kept. Cure: one version and one chat template for all engines of a pool"
            )
        });
        Err("read-otherwise")
    }
}

/// What a turn is kept on.
struct Grant {
    lease: Lease,
    request: RequestFacts,
}

impl Turn {
    /// Asks the policy what becomes of the turn's KV, where its decode worker holds it.
    pub(super) fn retain(&mut self, counts: TurnCounts, told: Option<Told>) {
        let keeping = Keeping {
            app: self.app.clone(),
            key: self.session_key.clone(),
            chain: self.chain.clone(),
            in_flight: self.in_flight.clone(),
        };
        match self.pool.config.mode {
            PoolMode::HostManaged => match self.hold.take().and_then(|hold| self.keep_hosted(hold, counts)) {
                Some(turn) => keeping.keep(turn),
                None => keeping.went_on(),
            },
            PoolMode::Bidirectional => {
                let hold = self.engines_hold(counts);
                let granted = hold.and_then(|hold| self.grant_of_engines(hold, counts, told.as_ref()));
                match granted {
                    Some((hold, grant)) => self.keep_engines(keeping, hold, grant, told),
                    None => keeping.went_on(),
                }
            }
            PoolMode::Unified | PoolMode::Pull => {}
        }
    }

    /// Where its engine holds it.
    fn engines_hold(&mut self, counts: TurnCounts) -> Option<EnginesHold> {
        // An engine keeps only turns whose KV it fetched.
        let why = match self.pinned.take()?.hold() {
            Ok(hold) => return Some(hold),
            // vLLM finds stop strings outside of its engine, and has that abort the request: nothing of it is kept.
            Err(Lost::Untold) if counts.by_stop_text => {
                self.app.kept.missed(&self.pool.config.name, "stopped-by-text");
                return None;
            }
            Err(Lost::Untold) if self.tells_of_kept => {
                self.tell_not_kept();
                return None;
            }
            Err(Lost::Untold) => "it told of no kv_transfer_params".to_owned(),
            Err(Lost::Unusable(why)) => {
                self.app.kept.unreleased(&self.pool, Unreleased::Unusable);
                why
            }
        };
        self.tell_untold(&why);
        None
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
        let guard = holder.hold_handle(&self.app.clock, UNLESS_COUNTED_DOWN_MS);
        let counted = Arc::new(HeldTokens::new(&holder, tokens, guard));
        self.has_room_for(tokens, u64::from(layout.blocks) * u64::from(layout.block_tokens))?;
        let now_ms = millis(self.app.clock.elapsed());
        let lease = Lease::new(keep, now_ms);
        if !hold.keep(lease.grant_ms(now_ms)) {
            return None;
        }
        let engine = holder.engine.clone().unwrap_or_default();
        let turn = self.kept_turn(tokens, Grant { lease, request }, counted);
        Some(turn(Blocks::Hosted(Hosted { transfer, engine, life })))
    }

    /// What is not kept is let go: the engine would keep it for its own time. Proving what is takes long for a long turn, and is
    /// done aside: a next turn that comes before it is done finds nothing.
    fn keep_engines(&mut self, keeping: Keeping, hold: EnginesHold, grant: Grant, told: Option<Told>) {
        let block_tokens = NonZeroU32::new(self.pool.config.block_tokens);
        let read = self.what_prefill_read();
        let (Some(EndedTurn { place, counted, .. }), Some(block_tokens), Some(read)) =
            (hold.turn(), block_tokens, read)
        else {
            return;
        };
        let (tokens, blocks_of_groups) = (place.handle.tokens, place.handle.blocks_of_groups.clone());
        let Told { prompt_ids, output_ids, .. } = told.unwrap_or_default();
        let kept_turn = self.kept_turn(tokens, grant, counted.clone());
        let work = move || {
            let prompt_ids = prompt_ids.and_then(Ids::read);
            if let Err(why) = read.agrees_with(prompt_ids.as_deref()) {
                return keeping.refused(&hold, why);
            }
            let proven = Held::of_turn(&guard::Told {
                prompt_ids: prompt_ids.as_deref(),
                output_ids: output_ids.as_deref(),
                tokens,
                blocks_of_groups: &blocks_of_groups,
                block_tokens,
                has_media: false,
            });
            let held = match proven {
                Ok(held) => held.into_proofs(block_tokens),
                Err(refusal) => return keeping.refused(&hold, refusal.name()),
            };
            if let Some(EndedTurn { place, .. }) = hold.keep() {
                keeping.keep(kept_turn(Blocks::Engine(Arc::new(EngineTurn { place, held }))));
            }
        };
        off_loop::aside(tokens as usize * size_of::<u32>(), work);
    }

    /// On what an engine's turn is kept; whatever costs little is looked at first. `None`, and it is let go.
    fn grant_of_engines(
        &mut self,
        hold: EnginesHold,
        counts: TurnCounts,
        told: Option<&Told>,
    ) -> Option<(EnginesHold, Grant)> {
        if self.session_key.is_none() || self.pool.reuse_is_off() {
            return None;
        }
        let block_tokens = NonZeroU32::new(self.pool.config.block_tokens)?;
        let Place { handle, usable_until_ms, .. } = hold.turn()?.place.clone();
        if let Err(why) = self.can_be_proven(&handle, block_tokens, told) {
            self.app.kept.missed(&self.pool.config.name, why);
            return None;
        }
        let (keep, request) = self.retention(handle.tokens, counts)?;
        let blocks = self.booking.worker().seen().scraped.kv_blocks_total;
        self.has_room_for(handle.tokens, u64::from(blocks) * u64::from(block_tokens.get()))?;
        let lease = deadlines::lease_within(keep, usable_until_ms, millis(self.app.clock.elapsed()))?;
        Some((hold, Grant { lease, request }))
    }

    /// Why a turn cannot be used again, by all that is seen at once.
    fn can_be_proven(
        &self,
        handle: &BackHandle,
        block_tokens: NonZeroU32,
        told: Option<&Told>,
    ) -> Result<(), &'static str> {
        // Its history is none, or too long.
        let chain = self.chain.as_ref().ok_or("no-history")?;
        if !handle.says_its_end {
            return Err("no-expiry-time");
        }
        if self.prefill_read.is_none() {
            return Err(Refusal::NoTokenIds.name());
        }
        let counts = guard::Counts {
            prompt_ids: told.and_then(|told| told.prompt_ids.as_ref()).map(Ids::count),
            output_ids: told.and_then(|told| told.output_ids.as_ref()).map(Vec::len),
            tokens: handle.tokens,
            blocks_of_groups: &handle.blocks_of_groups,
            block_tokens,
            has_media: chain.has_media(),
        };
        counts.check().map_err(|refusal| refusal.name())
    }

    fn what_prefill_read(&self) -> Option<PrefillRead> {
        let (app, pool) = (self.app.clone(), self.pool.clone());
        let (prefill, decode) = (self.prefill.clone(), self.booking.worker().clone());
        Some(PrefillRead { app, pool, prefill, decode, ids: self.prefill_read.clone()? })
    }

    /// A turn that is kept, once its blocks are known.
    fn kept_turn(
        &self,
        tokens: u32,
        Grant { lease, request }: Grant,
        counted: Arc<HeldTokens>,
    ) -> impl FnOnce(Blocks) -> KeptTurn + Send + use<> {
        let (holder, pool) = (self.booking.worker().clone(), self.pool.clone());
        let mark = self.chain.as_ref().map(|chain| chain.mark());
        let (policy, seed) = (self.decision.metrics.name().into(), self.facts.seed);
        let request = Arc::new(request);
        move |blocks| KeptTurn { blocks, holder, tokens, lease, mark, policy, pool, request, seed, counted }
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

    /// Makes room on its holder, one of so many tokens in all, if there can be any, for what is counted there already. Not where
    /// that one takes no work, as was ordered or since it is down.
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
        let above = holder.held_tokens().saturating_sub(room);
        self.app.kept.make_room(&*self.app, holder.id, above);
        Some(())
    }
}
