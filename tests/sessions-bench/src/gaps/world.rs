//! One decode engine and its conversations, in virtual time: the host's own leases and sessions, and a keeper.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sluice_core::facts::{FleetColumns, SessionFacts};
use sluice_core::lease::{Due, Lease};
use sluice_core::session::{PromptMark, Session, TurnRecord};
use sluice_core::verdict::{Renewal, Retention};

use super::BLOCK_TOKENS;
use super::behaviour::Conversation;
use super::keeper::{Keeper, Memory, Question};

/// How long a turn runs, in milliseconds.
const TURN_MS: u64 = 3_000;
/// What has less left is not read any more, in milliseconds: the host's margin.
const READ_MARGIN_MS: u64 = 1_000;
/// The part of the engine's blocks that kept turns may have, as in the host.
const KEPT_PART: u64 = 2;

/// Fewer turns have fewer than two gaps between them: too few to have a spread.
const TURNS_FOR_OWN_GAPS: u32 = 3;

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Turns with one before them.
    pub later_turns: u64,
    /// Those that found it kept.
    pub hits: u64,
    /// Blocks times how long they were held for idle conversations.
    pub held_block_seconds: f64,
    /// Kept turns that went for want of room.
    pub crowded: u64,
    /// How often the keeper was asked.
    pub asked: u64,
}

impl Outcome {
    /// Of turns with one before them.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.later_turns.max(1) as f64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Starts { conversation: usize },
    Ends { conversation: usize },
    IsDue { conversation: usize, number: u64 },
}

struct Held {
    number: u64,
    blocks: u64,
    tokens: u32,
    since_ms: u64,
    lease: Lease,
}

/// What is known of one conversation.
#[derive(Default)]
struct Talk {
    turns: usize,
    session: Option<Session>,
    started_ms: u64,
}

struct World<'a> {
    conversations: &'a [Conversation],
    keeper: &'a Keeper,
    /// All blocks of the engine, where they are bounded.
    blocks: Option<u64>,
    events: BTreeSet<(u64, Event)>,
    talks: Vec<Talk>,
    /// The gaps of all conversations as if they were one, for those that have none of their own yet.
    workload: Option<Session>,
    held: HashMap<usize, Held>,
    by_number: BTreeMap<u64, usize>,
    held_blocks: u64,
    running_blocks: u64,
    outcome: Outcome,
}

/// Lets all conversations go by. `blocks` bounds the engine's memory: of what is kept the oldest goes first.
pub fn simulate(conversations: &[Conversation], keeper: &Keeper, blocks: Option<u64>) -> Outcome {
    let first =
        |(conversation, talk): (usize, &Conversation)| (talk.starts_ms, Event::Starts { conversation });
    let mut world = World {
        conversations,
        keeper,
        blocks,
        events: conversations.iter().enumerate().map(first).collect(),
        talks: conversations.iter().map(|_| Talk::default()).collect(),
        workload: None,
        held: HashMap::new(),
        by_number: BTreeMap::new(),
        held_blocks: 0,
        running_blocks: 0,
        outcome: Outcome::default(),
    };
    while let Some((now_ms, event)) = world.events.pop_first() {
        match event {
            Event::Starts { conversation } => world.starts(conversation, now_ms),
            Event::Ends { conversation } => world.ends(conversation, now_ms),
            Event::IsDue { conversation, number } => world.is_due(conversation, number, now_ms),
        }
    }
    world.outcome
}

impl World<'_> {
    fn starts(&mut self, conversation: usize, now_ms: u64) {
        let tokens = self.turn(conversation).tokens;
        let held = self.take(conversation, now_ms);
        let is_hit = held.is_some_and(|held| held.lease.left_ms(now_ms) > READ_MARGIN_MS);
        let talk = &mut self.talks[conversation];
        if talk.turns > 0 {
            self.outcome.later_turns += 1;
            self.outcome.hits += u64::from(is_hit);
        }
        talk.started_ms = now_ms;
        self.running_blocks += blocks_of(tokens);
        self.events.insert((now_ms + TURN_MS, Event::Ends { conversation }));
    }

    fn ends(&mut self, conversation: usize, now_ms: u64) {
        let turn = *self.turn(conversation);
        self.running_blocks -= blocks_of(turn.tokens);
        self.remember(conversation, now_ms);
        // Its gaps are those up to this turn, its turns those before it.
        let session = self.facts(conversation, now_ms);
        let session =
            session.map(|session| SessionFacts { turn: self.talks[conversation].turns as u32, ..session });
        let question = Question { session, memory: self.memory(), tokens: turn.tokens };
        self.outcome.asked += 1;
        if let Retention::Keep(keep) = self.keeper.retain(&question, turn.finish) {
            self.keep(conversation, turn.tokens, Lease::new(keep, now_ms), now_ms);
        }
        let talk = &mut self.talks[conversation];
        talk.turns += 1;
        if let Some(next) = self.conversations[conversation].turns.get(talk.turns) {
            self.events.insert((now_ms + next.gap_ms, Event::Starts { conversation }));
        }
    }

    fn is_due(&mut self, conversation: usize, number: u64, now_ms: u64) {
        let Some(held) = self.held.get(&conversation).filter(|held| held.number == number) else { return };
        let (mut lease, tokens) = (held.lease, held.tokens);
        match lease.due(now_ms) {
            Due::Nothing => {}
            Due::Over => return self.let_go(conversation, now_ms),
            Due::Grant(for_ms) => lease.granted(for_ms, now_ms),
            Due::Ask => {
                let (session, memory) = (self.facts(conversation, now_ms), self.memory());
                let (idle_ms, left_ms) = (lease.idle_ms(now_ms) as u32, lease.left_ms(now_ms) as u32);
                let question = Question { session, memory, tokens };
                self.outcome.asked += 1;
                match self.keeper.heartbeat(&question, idle_ms, lease.renewals(), left_ms) {
                    Renewal::Renew(for_ms) => lease.renewed(for_ms, now_ms),
                    Renewal::Release | Renewal::UseDefault => return self.let_go(conversation, now_ms),
                }
                lease.granted(lease.grant_ms(now_ms), now_ms);
            }
        }
        self.events.insert((lease.due_at_ms(), Event::IsDue { conversation, number }));
        self.held.entry(conversation).and_modify(|held| held.lease = lease);
    }

    fn keep(&mut self, conversation: usize, tokens: u32, lease: Lease, now_ms: u64) {
        let blocks = blocks_of(tokens);
        let room = self.blocks.map_or(u64::MAX, |all| all / KEPT_PART);
        if blocks > room {
            return;
        }
        while self.held_blocks + blocks > room {
            let Some((_, oldest)) = self.by_number.first_key_value() else { break };
            let oldest = *oldest;
            self.let_go(oldest, now_ms);
            self.outcome.crowded += 1;
        }
        let number = self.by_number.last_key_value().map_or(0, |(number, _)| number + 1);
        self.events.insert((lease.due_at_ms(), Event::IsDue { conversation, number }));
        self.by_number.insert(number, conversation);
        self.held_blocks += blocks;
        self.held.insert(conversation, Held { number, blocks, tokens, since_ms: now_ms, lease });
    }

    fn take(&mut self, conversation: usize, now_ms: u64) -> Option<Held> {
        let held = self.held.remove(&conversation)?;
        self.by_number.remove(&held.number);
        self.held_blocks -= held.blocks;
        self.outcome.held_block_seconds += held.blocks as f64 * (now_ms - held.since_ms) as f64 / 1_000.0;
        Some(held)
    }

    fn let_go(&mut self, conversation: usize, now_ms: u64) {
        self.take(conversation, now_ms);
    }

    fn remember(&mut self, conversation: usize, now_ms: u64) {
        let talk = &mut self.talks[conversation];
        let turn = |started_at_ms| TurnRecord {
            decode: 0,
            prefill: 0,
            prompt: PromptMark::default(),
            prompt_tokens: 0,
            output_tokens: 0,
            started_at_ms,
            ended_at_ms: now_ms,
        };
        if let Some(before) = &talk.session {
            let gap_ms = talk.started_ms - before.ended_at_ms;
            let since_ms = self.workload.as_ref().map_or(0, |workload| workload.ended_at_ms);
            self.workload = Some(Session::after(self.workload.as_ref(), &turn(since_ms + gap_ms)));
        }
        talk.session = Some(Session::after(talk.session.as_ref(), &turn(talk.started_ms)));
    }

    /// The gaps of the workload stand in where a conversation has too few of its own.
    fn facts(&self, conversation: usize, now_ms: u64) -> Option<SessionFacts> {
        let facts = |session: &Session| session.facts(&FleetColumns::default(), now_ms, None);
        let workload = self.workload.as_ref().map(|workload| SessionFacts {
            turn: 0,
            last_gap_ms: 0,
            ..facts(workload)
        });
        let own = self.talks[conversation].session.as_ref().map(facts);
        match (own, workload) {
            (Some(own), Some(workload)) if own.turn < TURNS_FOR_OWN_GAPS => {
                Some(SessionFacts { turn: own.turn, last_gap_ms: own.last_gap_ms, ..workload })
            }
            (own, workload) => own.or(workload),
        }
    }

    fn memory(&self) -> Option<Memory> {
        let (total, held) = (self.blocks?, self.held_blocks);
        let free = total.saturating_sub(held + self.running_blocks);
        Some(Memory { total, held, free })
    }

    fn turn(&self, conversation: usize) -> &super::behaviour::Turn {
        &self.conversations[conversation].turns[self.talks[conversation].turns]
    }
}

fn blocks_of(tokens: u32) -> u64 {
    tokens.div_ceil(BLOCK_TOKENS).into()
}
