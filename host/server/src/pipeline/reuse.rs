//! Step 2, what is kept for this request: of its conversation's turns the one that it goes on from, and how much of that is its
//! prompt's. It is taken for one prefill leg, or found taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_core::facts::Row;
use sluice_core::history::guard::{Prompt, Refusal};
use sluice_core::history::tokens::Sequence;
use sluice_core::kept::Turn;
use sluice_core::kept::found::{self, Found};

use super::attempt::Attempt;
use super::call::Call;
use super::tokenize;
use crate::app::App;
use crate::clock::millis;
use crate::config::PoolMode;
use crate::fleet::Worker;
use crate::http::segments::Taken;
use crate::kept::{Blocks, Holders, KeptFate, KeptTurn, Unreleased};
use crate::off_loop;
use crate::prompt_ids::{Agreement, PromptIds};
use crate::release::EndedTurn;
use crate::telemetry::labels::{Fallback, Label};

/// Looks for what is kept of the conversation.
pub(super) async fn find(call: &mut Call<'_>) {
    let Some(key) = call.reuse_key.clone() else { return };
    let now_ms = millis(call.app.clock.elapsed());
    match call.pool.config.mode {
        PoolMode::HostManaged => {
            let turns = call.app.kept.of(&key);
            match refused(call) {
                None => call.found = found::of_history(&turns, call.chain.as_deref(), now_ms),
                Some(why) if !turns.is_empty() => call.app.kept.missed(&call.pool.config.name, why),
                Some(_) => {}
            }
        }
        PoolMode::Bidirectional => {
            let turns = call.app.kept.of(&key);
            if turns.is_empty() || call.pool.reuse_is_off() {
                return;
            }
            match of_engines(call, turns).await {
                Ok(found) => call.found = Some(found),
                Err(why) => call.app.kept.missed(&call.pool.config.name, why),
            }
        }
        PoolMode::Unified | PoolMode::Pull => {}
    }
}

/// Why nothing kept can be proven to be of this prompt, whatever it is: tokens are proven, and two images have the same.
fn refused(call: &Call<'_>) -> Option<&'static str> {
    match &call.chain {
        None => Some("no-history"),
        Some(chain) => chain.has_media().then(|| Refusal::Media.name()),
    }
}

/// Of turns that engines keep by themselves, the one that is proven to be of this prompt's tokens.
async fn of_engines(call: &mut Call<'_>, turns: Vec<(u64, KeptTurn)>) -> Result<Found, &'static str> {
    if let Some(why) = refused(call) {
        return Err(why);
    }
    let ids = tokenize::prompt_ids(call).await.map_err(|why| why.result().name())?;
    call.prompt_ids = Some(ids.clone());
    let app = call.app.clone();
    let compared = off_loop::run(size_of_val::<[u32]>(ids.ids()), move || {
        let prompt = Prompt { sequence: Sequence::of_ids(ids.ids()), has_media: false };
        found::of_tokens(&turns, &prompt, millis(app.clock.elapsed()))
    });
    let found = compared.await.map_err(|_| "host-short")?.map_err(|refusal| refusal.name())?;
    Ok(found)
}

/// Takes what was found, for one leg. `None` if there is nothing, or somebody else was first.
pub(super) fn take(call: &Call<'_>) -> Option<KeptTurn> {
    let (key, found) = (call.reuse_key.as_ref()?, call.found?);
    if call.found_taken.swap(true, Ordering::Relaxed) {
        // By an attempt before this one.
        return None;
    }
    let turn = call.app.kept.take(key, found.number);
    if turn.is_none() {
        call.app.kept.missed(&call.pool.config.name, Refusal::Gone.name());
    }
    turn
}

/// How an engine has read a prompt of which it fetched a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// What it fetched is of these tokens.
    AsProven,
    /// It does not say. What is not known is not used.
    Untold,
    /// It has computed on KV of other tokens, and may have cached that.
    Otherwise,
}

/// A turn that an engine keeps by itself, on its way to a prefill engine, which fetches it. Dropped before anything of the leg has
/// left, it is let go; dropped after that it is not known whether it is being fetched, and it stays for its engine's own time: to
/// free blocks that somebody reads would give that one another request's.
pub(super) struct Back {
    app: Arc<App>,
    turn: Option<KeptTurn>,
    /// Offered: proven to be of the prompt.
    tokens: u32,
    /// The prompt's, by which that is proven.
    ids: PromptIds,
    /// `kv_transfer_params` of the leg, which must ask for token ids.
    pub params: String,
    /// To mark the leg's body with.
    pub taken: Taken,
}

impl Back {
    /// Takes what was found for the prefill worker of this row. `None`, and it is over, where it is of no use any more, or saves
    /// less than is worth fetching.
    pub fn of(attempt: &Attempt<'_, '_>, prefill: Row, threshold_tokens: u32) -> Option<Self> {
        let call = attempt.call;
        if call.pool.config.mode != PoolMode::Bidirectional {
            return None;
        }
        let (cut, ids) = (call.found?.cut?, call.prompt_ids.clone()?);
        let turn = take(call)?;
        let end = |turn: KeptTurn, fate: KeptFate| {
            call.app.kept.end(&**call.app, turn, fate);
            None
        };
        let Blocks::Engine(engine) = turn.blocks.clone() else { return end(turn, KeptFate::Released) };
        if !engine.place.is_held_by(&turn.holder.seen()) {
            return end(turn, KeptFate::Lost);
        }
        if !turn.is_usable(millis(call.app.clock.elapsed())) {
            return end(turn, KeptFate::Expired);
        }
        let hangs = attempt
            .table
            .workers
            .get(prefill as usize)
            .is_some_and(|worker| call.pool.kv().hangs_on(&worker.name, &turn.holder.name));
        if hangs {
            call.pool.metrics.fallback(Fallback::TurnNotFetched);
            return end(turn, KeptFate::Withheld);
        }
        let saves = cut.tokens().saturating_sub(attempt.cached_tokens(prefill));
        if saves < threshold_tokens {
            return end(turn, KeptFate::Withheld);
        }
        let Some(params) = engine.place.handle.for_prefill(&cut) else {
            return end(turn, KeptFate::Withheld);
        };
        // Less than a block at its end is never moved.
        if cut.tokens().saturating_add(call.pool.config.block_tokens) <= turn.tokens {
            call.app.kept.missed(&call.pool.config.name, "cut");
        }
        call.app.kept.count(&turn, KeptFate::Taken);
        let (app, tokens) = (call.app.clone(), cut.tokens());
        Some(Self { app, turn: Some(turn), tokens, ids, params, taken: Taken::default() })
    }

    /// Tokens that are offered.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Who keeps them.
    pub fn holder(&self) -> Option<&Arc<Worker>> {
        self.turn.as_ref().map(|turn| &turn.holder)
    }

    /// How the prefill engine has read the prompt, by the ids that it tells.
    pub fn read(&self, read: Option<&[u8]>) -> Read {
        match self.ids.agree_with(read) {
            Agreement::Same => Read::AsProven,
            Agreement::Differ { from } if from >= self.tokens as usize => Read::AsProven,
            Agreement::Differ { .. } => Read::Otherwise,
            Agreement::Untold => Read::Untold,
        }
    }

    /// Prefill has answered, so it has fetched what it wanted, and its holder has freed the blocks. `cached_tokens`: of the prompt,
    /// not computed there, if it says so. Of these it may have had some itself: only its engine knows.
    pub fn came(mut self, cached_tokens: Option<u32>) {
        if let Some(turn) = self.turn.take() {
            let tokens = cached_tokens.map_or(self.tokens, |cached| cached.min(self.tokens));
            self.app.kept.reused(&turn.pool.config.name, tokens);
        }
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        match &turn.blocks {
            Blocks::Engine(engine) if self.taken.is_set() => {
                EndedTurn::of(&turn, engine).stays(&self.app, Unreleased::MayBeRead);
            }
            // Counted as taken: that was its end here.
            _ => self.app.release(&turn),
        }
    }
}
