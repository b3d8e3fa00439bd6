//! A host as it would use the history: its tables, its clock, what it writes down. Flaws are put in here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_core::history::Digest;
use sluice_core::history::branches::{Best, Branches, Ended, Epoch, Hold, Holder, usable_until_ms};
use sluice_core::history::chain::Chain;
use sluice_core::history::guard::{Held, Prompt, Refusal};
use sluice_core::history::lines::Lines;
use sluice_core::history::saved::{Saved, SavedAt, restore};
use sluice_core::history::scope::{Conversation, ConversationKey, Scope};

use crate::engines::HELD_FOR_MS;
use crate::flaw::Flaw;
use crate::talk::Message;

/// For the answer's way and the read's, 20 ms each, and for clocks that are wrong by 10 ms in the time held.
const MARGIN_MS: u64 = 60;
const LINES_AT_MOST: usize = 4;

#[derive(Debug)]
pub struct Host {
    flaw: Option<Flaw>,
    born_ms: u64,
    lines: Lines,
    table: BTreeMap<ConversationKey, Branches<u64>>,
    next_epoch: u64,
    engines: Vec<Arc<str>>,
    saved: Option<(u64, Saved<u64>)>,
    /// Handles that are in the table, and what became of the others.
    live: BTreeSet<u64>,
    pub ends: BTreeMap<&'static str, u64>,
    pub ended_twice: bool,
}

/// Where a request belongs.
#[derive(Debug)]
pub struct Place {
    pub from: Option<ConversationKey>,
    pub to: ConversationKey,
    line: Option<(Digest, Chain)>,
}

impl Host {
    pub fn new(flaw: Option<Flaw>, engines: Vec<Arc<str>>) -> Self {
        Self {
            flaw,
            born_ms: 0,
            lines: Lines::new(LINES_AT_MOST),
            table: BTreeMap::new(),
            next_epoch: 0,
            engines,
            saved: None,
            live: BTreeSet::new(),
            ends: BTreeMap::new(),
            ended_twice: false,
        }
    }

    /// This process's clock.
    pub fn clock(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.born_ms) + 7
    }

    pub fn place(&self, scope: &Arc<Scope>, name: Option<&str>, messages: &[Message]) -> Place {
        let mut scope = scope.clone();
        if self.flaw == Some(Flaw::CrossTenant) {
            Arc::make_mut(&mut scope).tenant.clear();
        }
        if let Some(name) = name {
            let key = ConversationKey::named(&scope, name);
            return Place { from: Some(key.clone()), to: key, line: None };
        }
        let chain = Chain::of_messages(&scope, messages.iter().map(|message| message.json.as_bytes()));
        let chain = chain.expect("a history");
        let found = self.lines.find(&chain);
        let key = |line| ConversationKey::derived(&scope, line);
        Place { from: found.from.map(key), to: key(found.to), line: Some((found.to, chain)) }
    }

    pub fn best(&self, place: &Place, prompt: &Prompt, now_ms: u64) -> Result<Best, Refusal> {
        let branches = place.from.as_ref().and_then(|key| self.table.get(key)).ok_or(Refusal::NothingHeld)?;
        let mut best = branches.best(prompt, self.clock(now_ms))?;
        if self.flaw == Some(Flaw::BranchMixUp) {
            best.epoch = branches.holds().iter().map(|hold| hold.epoch).max().unwrap_or(best.epoch);
        }
        Ok(best)
    }

    pub fn take(&mut self, place: &Place, epoch: Epoch, now_ms: u64) -> Result<Hold<u64>, Refusal> {
        let now_ms = self.clock(now_ms);
        let key = place.from.as_ref().ok_or(Refusal::Gone)?;
        let branches = self.table.get_mut(key).ok_or(Refusal::Gone)?;
        if self.flaw == Some(Flaw::DoubleTake) {
            let hold = branches.holds().iter().find(|hold| hold.epoch == epoch).ok_or(Refusal::Gone)?;
            return if hold.is_usable(now_ms) { Ok(hold.clone()) } else { Err(Refusal::Expired) };
        }
        let hold = branches.take(epoch, now_ms)?;
        if branches.is_empty() {
            self.table.remove(key);
        }
        self.ended([(hold.clone(), "taken")]);
        Ok(hold)
    }

    /// Whether a hold that was taken may be sent now.
    pub fn may_send(&self, hold: &Hold<u64>, now_ms: u64) -> bool {
        self.flaw == Some(Flaw::NotAskedAgain) || hold.is_usable(self.clock(now_ms))
    }

    pub fn end_turn(&mut self, place: &Place, now_ms: u64) {
        let Some((line, chain)) = &place.line else { return };
        if let Some(gone) = self.lines.turn_ended(*line, chain) {
            self.end_all(|key, branches| match key.conversation == Conversation::Derived(gone) {
                true => branches.drop_of(None),
                false => Vec::new(),
            });
        }
        self.sweep(now_ms);
    }

    /// A turn's KV is held by an engine, if that is the one that is there now.
    pub fn keep(
        &mut self,
        place: &Place,
        handle: u64,
        held: Held,
        holder: Holder,
        answered_ms: u64,
        now_ms: u64,
    ) {
        if self.engines[holder.worker as usize] != holder.engine {
            return;
        }
        let now_ms = self.clock(now_ms);
        let margin_ms = if self.flaw == Some(Flaw::NoMargin) { 0 } else { MARGIN_MS };
        let usable_until_ms = usable_until_ms(self.clock(answered_ms), HELD_FOR_MS, margin_ms);
        if usable_until_ms <= now_ms {
            return;
        }
        let branches = self.table.entry(place.to.clone()).or_default();
        let mut epoch = Epoch(self.next_epoch);
        if self.flaw == Some(Flaw::EpochsRestart) {
            epoch = branches.holds().iter().map(|hold| Epoch(hold.epoch.0 + 1)).max().unwrap_or(Epoch(0));
        }
        self.next_epoch += 1;
        self.live.insert(handle);
        let ended = branches.put(Hold { handle, held, holder, usable_until_ms, epoch }, now_ms);
        self.ended(ended.into_iter().map(|(hold, why)| (hold, name(why))));
    }

    pub fn engine_is(&mut self, worker: u64, engine: &Arc<str>) {
        self.engines[worker as usize] = engine.clone();
        self.end_all(|_, branches| branches.engine_is(worker, engine));
    }

    pub fn sweep(&mut self, now_ms: u64) {
        let now_ms = self.clock(now_ms);
        self.end_all(|_, branches| branches.expire(now_ms));
    }

    /// When some hold expires, as the world's clock has it.
    pub fn an_expiry_ms(&self, which: usize) -> Option<u64> {
        let of = |branches: &Branches<u64>| branches.next_expiry_ms();
        let at_ms = self.table.values().filter_map(of).nth(which % self.table.len().max(1))?;
        Some(at_ms.saturating_sub(7) + self.born_ms)
    }

    pub fn save(&mut self, at: SavedAt, now_ms: u64) {
        let saved = Saved::of(at, &self.lines, &self.table, Epoch(self.next_epoch), self.clock(now_ms));
        self.saved = Some((now_ms, saved));
    }

    /// The process ended, and another one is there, which knows what was written last, and which engines are there.
    pub fn reborn(&mut self, now_ms: u64, engines: Vec<Arc<str>>) {
        let saved = self.saved.take();
        self.table.clear();
        (self.born_ms, self.next_epoch, self.engines) = (now_ms, 0, engines);
        self.lines = Lines::new(LINES_AT_MOST);
        self.live.clear();
        let Some((saved_ms, mut saved)) = saved else { return };
        if self.flaw == Some(Flaw::OldDataTrusted) {
            saved.at = SavedAt::End;
        }
        let clock_ms = self.clock(now_ms);
        let restored = restore(saved, LINES_AT_MOST, clock_ms, now_ms - saved_ms + 3);
        (self.lines, self.next_epoch) = (restored.lines, restored.next_epoch.0);
        for (_, _, why) in restored.ended {
            *self.ends.entry(name(why)).or_default() += 1;
        }
        for (key, hold) in restored.holds {
            *self.ends.entry("restored").or_default() += 1;
            self.live.insert(hold.handle);
            let ended = self.table.entry(key).or_default().put(hold, clock_ms);
            self.ended(ended.into_iter().map(|(hold, why)| (hold, name(why))));
        }
        for (worker, engine) in self.engines.clone().iter().enumerate() {
            self.engine_is(worker as u64, engine);
        }
    }

    /// Whether what is in the table is what did not end.
    pub fn adds_up(&self) -> bool {
        let held = self.table.values().flat_map(|branches| branches.holds().iter().map(|hold| hold.handle));
        held.collect::<BTreeSet<_>>() == self.live && !self.ended_twice
    }

    fn end_all(
        &mut self,
        mut end: impl FnMut(&ConversationKey, &mut Branches<u64>) -> Vec<(Hold<u64>, Ended)>,
    ) {
        let mut ended = Vec::new();
        self.table.retain(|key, branches| {
            ended.extend(end(key, branches));
            !branches.is_empty()
        });
        self.ended(ended.into_iter().map(|(hold, why)| (hold, name(why))));
    }

    fn ended(&mut self, ended: impl IntoIterator<Item = (Hold<u64>, &'static str)>) {
        for (hold, why) in ended {
            *self.ends.entry(why).or_default() += 1;
            self.ended_twice |= !self.live.remove(&hold.handle);
        }
    }
}

fn name(why: Ended) -> &'static str {
    match why {
        Ended::Expired => "expired",
        Ended::Superseded => "superseded",
        Ended::Crowded => "crowded",
        Ended::Lost => "lost",
        Ended::Dropped => "dropped",
        Ended::Uncertain => "uncertain",
    }
}
