//! A host as the server is one: its tables, its clock, what it writes down. Flaws are put in here.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::history::Digest;
use sluice_core::history::chain::Chain;
use sluice_core::history::guard::{Held, Prompt, Refusal};
use sluice_core::history::lines::Lines;
use sluice_core::history::scope::{Conversation, ConversationKey, Scope};
use sluice_core::kept::deadlines::{self, Next};
use sluice_core::kept::found::{Found, of_tokens};
use sluice_core::kept::saved::{Left, Returned, SavedAt, returned};
use sluice_core::kept::table::Table;
use sluice_core::kept::{Ended, Turn};
use sluice_core::lease::Lease;
use sluice_core::verdict::Keep;

use crate::engines::HELD_FOR_MS;
use crate::flaw::Flaw;
use crate::talk::Message;

/// For the answer's way and the read's, 20 ms each, and for clocks that are wrong by 10 ms in the time held.
const MARGIN_MS: u64 = 60;

/// What a lease must have left, for somebody to begin to read.
const LEASE_MARGIN_MS: u64 = 10;
const LINES_AT_MOST: usize = 4;
const TURNS_AT_MOST: usize = 8;

/// What the process's clock says at its start.
const CLOCK_BEGINS_MS: u64 = 7;

/// What an engine told of a turn that it holds.
#[derive(Debug, Clone)]
pub struct Told {
    pub handle: u64,
    pub held: Rc<Held>,
    pub worker: u64,
    pub engine: Arc<str>,
}

/// A turn that is kept.
#[derive(Debug, Clone)]
pub struct Kept {
    pub told: Told,
    lease: Lease,
    mark: Digest,
    usable_until_ms: u64,
}

impl Turn for Kept {
    fn holder(&self) -> u64 {
        self.told.worker
    }

    fn tokens(&self) -> u32 {
        self.told.held.sequence().tokens()
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn lease_mut(&mut self) -> &mut Lease {
        &mut self.lease
    }

    fn mark(&self) -> Option<Digest> {
        Some(self.mark)
    }

    fn held(&self) -> Option<&Held> {
        Some(&self.told.held)
    }

    fn usable_until_ms(&self) -> u64 {
        self.usable_until_ms
    }
}

#[derive(Debug)]
struct Saved {
    at: SavedAt,
    at_ms: u64,
    lines: Vec<(Digest, Vec<Digest>)>,
    turns: Vec<(ConversationKey, Kept, Left)>,
}

#[derive(Debug)]
pub struct Host {
    flaw: Option<Flaw>,
    born_ms: u64,
    lines: Lines,
    kept: Table<Kept>,
    engines: Vec<Arc<str>>,
    saved: Option<Saved>,
    /// Tokens of handles that are in the table.
    live: BTreeMap<u64, u32>,
    /// What became of the others of this process.
    over: BTreeMap<u64, &'static str>,
    pub ends: BTreeMap<&'static str, u64>,
    ended_twice: bool,
}

/// Where a request belongs.
#[derive(Debug)]
pub struct Place {
    pub from: Option<ConversationKey>,
    pub to: ConversationKey,
    chain: Chain,
}

/// A turn was taken, and is not to be sent.
pub enum Unfit {
    Late,
    Lost,
}

impl Host {
    pub fn new(flaw: Option<Flaw>, engines: Vec<Arc<str>>) -> Self {
        Self {
            flaw,
            born_ms: 0,
            lines: Lines::new(LINES_AT_MOST),
            kept: Table::bounded(TURNS_AT_MOST),
            engines,
            saved: None,
            live: BTreeMap::new(),
            over: BTreeMap::new(),
            ends: BTreeMap::new(),
            ended_twice: false,
        }
    }

    /// This process's clock.
    fn clock(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.born_ms) + CLOCK_BEGINS_MS
    }

    pub fn place(&self, scope: &Arc<Scope>, name: Option<&str>, messages: &[Message]) -> Place {
        let mut scope = scope.clone();
        if self.flaw == Some(Flaw::CrossTenant) {
            Arc::make_mut(&mut scope).tenant.clear();
        }
        let chain = Chain::of_messages(&scope, messages.iter().map(|message| message.json.as_bytes()));
        let chain = chain.expect("a history");
        if let Some(name) = name {
            let key = ConversationKey::named(&scope, name);
            return Place { from: Some(key.clone()), to: key, chain };
        }
        let found = self.lines.find(&chain);
        let key = |line| ConversationKey::derived(&scope, line);
        Place { from: found.from.map(key), to: key(found.to), chain }
    }

    /// What a request goes on from, and what its engine calls that.
    pub fn find(&self, place: &Place, prompt: &Prompt, now_ms: u64) -> Result<(Found, u64), Refusal> {
        let turns = place.from.as_ref().map(|key| self.kept.of(key)).unwrap_or_default();
        let mut found = of_tokens(&turns, prompt, self.clock(now_ms))?;
        if let (Some(Flaw::BranchMixUp), Some((newest, _))) = (self.flaw, turns.last()) {
            found.number = *newest;
        }
        let handle = turns.iter().find(|(number, _)| *number == found.number);
        Ok((found, handle.expect("one of these").1.told.handle))
    }

    pub fn take(&mut self, place: &Place, number: u64) -> Option<Kept> {
        let key = place.from.as_ref()?;
        if self.flaw == Some(Flaw::DoubleTake) {
            return self.kept.of(key).into_iter().find(|(other, _)| *other == number).map(|(_, turn)| turn);
        }
        let mut taken = self.kept.take(key, number);
        if taken.is_none() && self.flaw == Some(Flaw::TakesAnother) {
            taken = self.kept.of(key).last().and_then(|(other, _)| self.kept.take(key, *other));
        }
        self.all_over(taken.clone(), "taken");
        taken
    }

    /// What became of a turn that is not there any more.
    pub fn fate(&self, handle: u64) -> Option<&'static str> {
        self.over.get(&handle).copied()
    }

    /// Whether a turn that was taken may be sent now.
    pub fn may_send(&self, turn: &Kept, now_ms: u64) -> Result<(), Unfit> {
        if self.is_lost(turn) {
            return Err(Unfit::Lost);
        }
        let is_usable = self.flaw == Some(Flaw::NotAskedAgain) || turn.is_usable(self.clock(now_ms));
        is_usable.then_some(()).ok_or(Unfit::Late)
    }

    fn is_lost(&self, turn: &Kept) -> bool {
        self.engines[turn.told.worker as usize] != turn.told.engine
    }

    /// A turn ended, and its policy wants it kept, or not.
    pub fn end_turn(&mut self, place: &Place, kept: Option<(Told, Keep)>, answered_ms: u64, now_ms: u64) {
        if let Conversation::Derived(line) = place.to.conversation {
            self.lines.marked(line, place.chain.mark());
        }
        let kept = kept.and_then(|(told, keep)| self.kept_turn(told, keep, place, answered_ms, now_ms));
        match kept {
            Some(turn) => self.keep(place.to.clone(), turn, Some(&place.chain)),
            None => {
                let over = self.kept.went_on(&place.to, Some(&place.chain));
                self.all_over(over, "gone on from");
            }
        }
        self.end_lost();
    }

    fn kept_turn(
        &self,
        told: Told,
        keep: Keep,
        place: &Place,
        answered_ms: u64,
        now_ms: u64,
    ) -> Option<Kept> {
        let margin_ms = if self.flaw == Some(Flaw::NoMargin) { 0 } else { MARGIN_MS };
        let usable_until_ms = match self.flaw {
            Some(Flaw::LeaseTrusted) => u64::MAX,
            _ => deadlines::usable_until_ms(self.clock(answered_ms), HELD_FOR_MS, margin_ms),
        };
        let lease = deadlines::lease_within(keep, usable_until_ms, self.clock(now_ms))?;
        Some(Kept { told, lease, mark: place.chain.mark(), usable_until_ms })
    }

    fn keep(&mut self, key: ConversationKey, turn: Kept, chain: Option<&Chain>) {
        self.live.insert(turn.told.handle, turn.tokens());
        let ended = self.kept.put(key, turn, chain);
        ended.into_iter().for_each(|(turn, why)| self.all_over([turn], name(why)));
    }

    /// The client ends its conversation.
    pub fn end_conversation(&mut self, place: &Place) {
        if let Conversation::Derived(line) = place.to.conversation {
            self.lines.forget(line);
        }
        let over = self.kept.take_of(&place.to, |_| true);
        self.all_over(over, "dropped");
    }

    /// A worker's memory is short.
    pub fn make_room(&mut self, worker: u64) {
        let over = self.kept.take_first_to_end(worker);
        self.all_over(over, "made room");
    }

    pub fn engines_are(&mut self, engines: Vec<Arc<str>>) {
        self.engines = engines;
        self.end_lost();
    }

    fn end_lost(&mut self) {
        let engines = &self.engines;
        let over = self.kept.take_all(|turn| engines[turn.told.worker as usize] != turn.told.engine);
        self.all_over(over, "lost");
    }

    /// Looks after all that is due, as the server's wheel does. Policies answer as they are told.
    pub fn look(&mut self, now_ms: u64, mut wanted_ms: impl FnMut() -> Option<u32>) {
        let now_ms = self.clock(now_ms);
        while let Some(due) = self.kept.due(now_ms) {
            let mut lease = due.turn.lease;
            let mut next = deadlines::next(&lease, now_ms, LEASE_MARGIN_MS);
            if next == Next::Ask {
                let usable_until_ms = due.turn.usable_until_ms;
                next = deadlines::answered(&mut lease, wanted_ms(), usable_until_ms, now_ms, LEASE_MARGIN_MS);
            }
            match next {
                Next::GoesOn | Next::Ask => panic!("nothing was due: {due:?}"),
                Next::End(why) => {
                    let over = self.kept.take(&due.key, due.number);
                    self.all_over(over, name(why));
                }
                Next::HoldOn(for_ms) => {
                    *self.ends.entry("renewed").or_default() += 1;
                    lease.granted(for_ms, now_ms);
                    self.kept.goes_on(&due.key, due.number, lease);
                }
            }
        }
    }

    /// When some turn may be read no more, as the world's clock has it.
    pub fn a_deadline_ms(&self, which: usize) -> Option<u64> {
        let all = self.kept.all();
        let (_, turn) = all.get(which % all.len().max(1))?;
        let at_ms = turn.usable_until_ms.min(turn.lease.ends_at_ms());
        Some(at_ms.saturating_sub(CLOCK_BEGINS_MS) + self.born_ms)
    }

    pub fn save(&mut self, at: SavedAt, now_ms: u64) {
        let clock_ms = self.clock(now_ms);
        let left = |(key, turn): (ConversationKey, Kept)| {
            let left = Left::of(&turn, clock_ms);
            (key, turn, left)
        };
        let turns = self.kept.all().into_iter().map(left).collect();
        self.saved = Some(Saved { at, at_ms: now_ms, lines: self.lines.save(), turns });
    }

    /// The process ended, and another one is there, which knows what was written last, and which engines are there.
    pub fn reborn(&mut self, now_ms: u64, engines: Vec<Arc<str>>) {
        let (saved, ends) = (self.saved.take(), std::mem::take(&mut self.ends));
        *self = Self { born_ms: now_ms, ends, ..Self::new(self.flaw, engines) };
        let Some(Saved { at, at_ms, lines, turns }) = saved else { return };
        self.lines = Lines::restore(LINES_AT_MOST, &lines);
        let at = if self.flaw == Some(Flaw::OldDataTrusted) { SavedAt::End } else { at };
        let clock_ms = self.clock(now_ms);
        for (key, turn, left) in turns {
            let became = match returned(at, left, now_ms - at_ms) {
                Returned::GoesOn(left) => {
                    let lease = left.lease(turn.lease.heartbeat_ms(), clock_ms);
                    let usable_until_ms = left.usable_until_ms(clock_ms);
                    self.keep(key, Kept { lease, usable_until_ms, ..turn }, None);
                    "restored"
                }
                Returned::Uncertain(_) => "uncertain",
                Returned::Expired => "expired meanwhile",
            };
            *self.ends.entry(became).or_default() += 1;
        }
        self.end_lost();
    }

    /// Whether what is in the table is what did not end, and not too much.
    pub fn adds_up(&self) -> bool {
        let tokens = self.live.values().map(|tokens| u64::from(*tokens)).sum();
        !self.ended_twice && self.live.len() <= TURNS_AT_MOST && self.kept.size() == (self.live.len(), tokens)
    }

    fn all_over(&mut self, over: impl IntoIterator<Item = Kept>, why: &'static str) {
        for turn in over {
            *self.ends.entry(why).or_default() += 1;
            self.ended_twice |= self.live.remove(&turn.told.handle).is_none();
            self.over.insert(turn.told.handle, why);
        }
    }
}

fn name(why: Ended) -> &'static str {
    match why {
        Ended::Expired => "expired",
        Ended::Released => "released",
        Ended::Superseded => "superseded",
        Ended::Crowded => "crowded",
    }
}
