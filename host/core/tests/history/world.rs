//! One schedule: clients, a host and engines, a step at a time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use sluice_core::history::guard::{self, Cut, Held, Prompt};
use sluice_core::history::scope::Scope;
use sluice_core::history::tokens::Sequence;
use sluice_core::kept::found::Found;
use sluice_core::kept::saved::SavedAt;
use sluice_core::verdict::Keep;

use crate::engines::{Answer, Engine, HELD_FOR_MS, Read, SKEW_AT_MOST};
use crate::flaw::{Broken, Flaw, Rule};
use crate::host::{Host, Kept, Place, Told, Unfit};
use crate::random::Random;
use crate::talk::{self, Message};

const WORKERS: u64 = 2;
const STEPS: usize = 60;
const TURNS_AT_MOST: usize = 4;
const MESSAGES_AT_MOST: usize = 8;

/// Between host and engine, at most.
const WAY_MS: u64 = 20;

/// How often what came about.
pub type Seen = BTreeMap<&'static str, u64>;

struct Client {
    scope: usize,
    name: Option<&'static str>,
    messages: Vec<Message>,
}

struct Turn {
    client: usize,
    scope: usize,
    messages: Vec<Message>,
    prompt: Vec<u32>,
    place: Place,
    phase: Phase,
    /// Of a host's process that is gone.
    is_orphan: bool,
}

/// What comes next of a turn.
enum Phase {
    /// By a handle of this name.
    Take(Found, u64),
    Send(Kept, Cut),
    Read(Read, u64),
    Decode,
    Answered {
        told: Option<Told>,
        at_ms: u64,
        answer: Message,
    },
}

pub struct World {
    seed: u64,
    random: Random,
    now_ms: u64,
    block_tokens: NonZeroU32,
    by_proofs: bool,
    pace_ms: u64,
    jumps_percent: u64,
    scopes: Vec<Arc<Scope>>,
    engines: Vec<Engine>,
    host: Host,
    clients: Vec<Client>,
    turns: Vec<Turn>,
    handles: u64,
    /// Given out before the host's process began.
    handles_before: u64,
    seen: Seen,
}

/// Plays a seed's schedule.
pub fn play(seed: u64, flaw: Option<Flaw>, seen: &mut Seen) -> Result<(), Broken> {
    let mut world = World::new(seed, flaw);
    for _ in 0..STEPS {
        world.step()?;
    }
    let counts = [std::mem::take(&mut world.seen), std::mem::take(&mut world.host.ends)];
    counts.into_iter().flatten().for_each(|(what, count)| *seen.entry(what).or_default() += count);
    Ok(())
}

impl World {
    fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        let mut random = Random::new(seed);
        let scope = |tenant: &str, adapter: Option<&str>, salt: Option<&str>| {
            Arc::new(Scope {
                tenant: tenant.to_owned(),
                model: "m".to_owned(),
                adapter: adapter.map(str::to_owned),
                salt: salt.map(str::to_owned),
                endpoint: Cow::Borrowed("/v1/chat/completions"),
            })
        };
        let scopes = vec![
            scope("a", None, None),
            scope("b", None, None),
            scope("a", Some("l"), None),
            scope("a", None, Some("s")),
        ];
        let skew = |random: &mut Random| random.below(2 * SKEW_AT_MOST + 1) as i64 - SKEW_AT_MOST as i64;
        let engines: Vec<_> = (0..WORKERS).map(|worker| Engine::new(worker, skew(&mut random))).collect();
        let ids = engines.iter().map(|engine| engine.id.clone()).collect();
        let block_tokens = NonZeroU32::MIN.saturating_add(random.below(4) as u32);
        let by_proofs = random.chance(50);
        // In slow schedules turns expire, in fast ones they crowd.
        let is_fast = random.chance(40);
        let (pace_ms, jumps_percent) = if is_fast { (15, 2) } else { (150, 30) };
        let opening = |random: &mut Random| vec![Message::any(10, random), Message::any(11, random)];
        let openings = [opening(&mut random), opening(&mut random)];
        let client = |random: &mut Random| Client {
            // Most are of one scope, or few would meet.
            scope: random.index(scopes.len()) * usize::from(random.chance(40)),
            name: [None, None, Some("c"), Some("d")][random.index(4)],
            messages: openings[random.index(2)].clone(),
        };
        let clients = (0..4).map(|_| client(&mut random)).collect();
        Self {
            seed,
            random,
            now_ms: 1_000,
            block_tokens,
            by_proofs,
            pace_ms,
            jumps_percent,
            scopes,
            engines,
            host: Host::new(flaw, ids),
            clients,
            turns: Vec::new(),
            handles: 0,
            handles_before: 0,
            seen: Seen::new(),
        }
    }

    fn step(&mut self) -> Result<(), Broken> {
        match self.random.below(100) {
            0..20 if self.turns.len() < TURNS_AT_MOST => self.ask(),
            0..78 if !self.turns.is_empty() => self.go_on()?,
            0..92 => self.time_passes(),
            92 => self.restart_an_engine(),
            93 => self.tell_of_engines(),
            94 | 95 => self.look(),
            96 => self.end_something(),
            97 => self.host.save(SavedAt::Running, self.now_ms),
            98 => self.end_host(false),
            _ => self.end_host(true),
        }
        if self.host.adds_up() {
            Ok(())
        } else {
            Err(self.broken(Rule::EndsOnce, "a turn ended twice or never, or too many are kept".to_owned()))
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn broken(&self, rule: Rule, what: String) -> Broken {
        Broken { seed: self.seed, rule, what }
    }

    /// A client asks: on, again, with an old message edited, or with what another client said.
    fn ask(&mut self) {
        let at = self.random.index(self.clients.len());
        match self.random.below(10) {
            0 => {
                let other = self.random.index(self.clients.len());
                self.clients[at].messages = self.clients[other].messages.clone();
            }
            1 | 2 => {
                let messages = &mut self.clients[at].messages;
                let edited = self.random.index(messages.len());
                messages[edited] = messages[edited].edited(&mut self.random);
                let last = (edited..messages.len()).find(|at| messages[*at].is_of_user());
                messages.truncate(last.map_or(messages.len(), |last| last + 1));
                self.saw("history edited");
            }
            _ => {}
        }
        let Client { scope, name, messages } = &self.clients[at];
        let (scope, messages) = (*scope, messages.clone());
        let place = self.host.place(&self.scopes[scope], *name, &messages);
        let ids = talk::prompt(&messages);
        let prompt = Prompt { sequence: Sequence::of_ids(&ids), has_media: false };
        let forks = place.from.as_ref().is_some_and(|from| *from != place.to);
        // A policy may want it computed.
        let is_wanted = !self.random.chance(20);
        let phase = match self.host.find(&place, &prompt, self.now_ms) {
            Ok(_) if !is_wanted => Phase::Decode,
            Ok((found, handle)) => {
                self.saw(if forks { "a fork found something" } else { "something was found" });
                Phase::Take(found, handle)
            }
            Err(refusal) => {
                self.saw(refusal.name());
                Phase::Decode
            }
        };
        self.turns.push(Turn { client: at, scope, messages, prompt: ids, place, phase, is_orphan: false });
    }

    fn go_on(&mut self) -> Result<(), Broken> {
        let at = self.random.index(self.turns.len());
        let mut turn = self.turns.swap_remove(at);
        let way_ms = self.random.below(WAY_MS + 1);
        turn.phase = match std::mem::replace(&mut turn.phase, Phase::Decode) {
            Phase::Take(found, handle) => self.take(&turn, &found, handle),
            Phase::Send(kept, cut) => self.send(&turn, kept, cut, way_ms),
            Phase::Read(read, worker) => {
                self.read(&read, worker, &turn.prompt)?;
                if turn.is_orphan {
                    return Ok(());
                }
                Phase::Decode
            }
            Phase::Decode => self.decode(&turn, way_ms),
            Phase::Answered { told, at_ms, answer } => {
                self.end_turn(turn, told, at_ms, answer);
                return Ok(());
            }
        };
        self.turns.push(turn);
        Ok(())
    }

    fn take(&mut self, turn: &Turn, found: &Found, handle: u64) -> Phase {
        if let Some(kept) = self.host.take(&turn.place, found.number) {
            return Phase::Send(kept, found.cut.expect("it is proven"));
        }
        self.saw(match self.host.fate(handle) {
            Some("taken") => "a race was lost",
            Some("expired") => "expired before it was taken",
            _ => "ended before it was taken",
        });
        Phase::Decode
    }

    fn send(&mut self, turn: &Turn, kept: Kept, cut: Cut, way_ms: u64) -> Phase {
        match self.host.may_send(&kept, self.now_ms) {
            Ok(()) => {
                let Told { handle, worker, engine, .. } = kept.told;
                let (scope, arrives_ms) = (turn.scope, self.now_ms + way_ms);
                let (tokens, blocks) = (cut.tokens(), cut.blocks());
                return Phase::Read(Read { handle, engine, scope, tokens, blocks, arrives_ms }, worker);
            }
            Err(Unfit::Late) => self.saw("expired before it was sent"),
            Err(Unfit::Lost) => self.saw("lost before it was sent"),
        }
        Phase::Decode
    }

    fn read(&mut self, read: &Read, worker: u64, prompt: &[u32]) -> Result<(), Broken> {
        self.now_ms = self.now_ms.max(read.arrives_ms);
        match self.engines[worker as usize].read(read, prompt, self.block_tokens.get()) {
            Answer::Served { of_tokens } => {
                self.saw(if read.tokens < of_tokens { "a part was served" } else { "all was served" });
                if read.handle <= self.handles_before {
                    self.saw("what was held before a restart was served");
                }
            }
            Answer::Refused => self.saw("the engine was gone"),
            Answer::Wrong(rule) => return Err(self.broken(rule, format!("{read:?} for {prompt:?}"))),
        }
        Ok(())
    }

    fn decode(&mut self, turn: &Turn, way_ms: u64) -> Phase {
        let (ids, mut answer) = talk::answer(&mut self.random);
        if self.random.chance(15) {
            answer = answer.edited(&mut self.random);
            self.saw("an answer edited");
        }
        let worker = self.random.below(WORKERS);
        let engine = &mut self.engines[worker as usize];
        self.handles += 1;
        let tokens = turn.prompt.len() + ids.len() - 1;
        let held = Held::of_turn(&guard::Told {
            prompt_ids: Some(&turn.prompt),
            output_ids: Some(&ids),
            tokens: tokens as u32,
            blocks_of_groups: &[tokens.div_ceil(self.block_tokens.get() as usize)],
            block_tokens: self.block_tokens,
            has_media: false,
        });
        let held = held.expect("can be proven");
        let held = if self.by_proofs { held.into_proofs(self.block_tokens) } else { held };
        let all = turn.prompt.iter().chain(&ids).copied().take(tokens).collect();
        engine.hold(self.handles, all, turn.scope, self.now_ms);
        let told = Told { handle: self.handles, held: held.into(), worker, engine: engine.id.clone() };
        let told = self.random.chance(90).then_some(told);
        Phase::Answered { told, at_ms: self.now_ms + way_ms, answer }
    }

    fn end_turn(&mut self, turn: Turn, told: Option<Told>, at_ms: u64, answer: Message) {
        self.now_ms = self.now_ms.max(at_ms);
        // Its policy may want it kept for longer than its engine does.
        let ttl_ms = 200 + self.random.below(HELD_FOR_MS * 2) as u32;
        let heartbeat_ms = self.random.chance(50).then(|| 50 + self.random.below(100) as u32);
        let kept = told.map(|told| (told, Keep { ttl_ms, heartbeat_ms }));
        self.host.end_turn(&turn.place, kept, at_ms, self.now_ms);
        // Asking again is to say nothing new.
        if self.random.chance(40) {
            return;
        }
        let mut messages = turn.messages;
        messages
            .extend([answer, Message::any(if self.random.chance(20) { 13 } else { 11 }, &mut self.random)]);
        messages.truncate(MESSAGES_AT_MOST);
        self.clients[turn.client].messages = messages;
    }

    /// A little, or until about when some turn expires.
    fn time_passes(&mut self) {
        let which = self.random.index(8);
        let jumps = self.random.chance(self.jumps_percent);
        let to_ms = match self.host.a_deadline_ms(which).filter(|_| jumps) {
            Some(at_ms) => (at_ms + self.random.below(60)).saturating_sub(30),
            None => self.now_ms + self.random.below(self.pace_ms),
        };
        self.now_ms = self.now_ms.max(to_ms);
    }

    fn restart_an_engine(&mut self) {
        let worker = self.random.below(WORKERS);
        self.engines[worker as usize].restart(worker);
    }

    fn tell_of_engines(&mut self) {
        let engines = self.engines.iter().map(|engine| engine.id.clone()).collect();
        self.host.engines_are(engines);
    }

    fn look(&mut self) {
        let random = &mut self.random;
        self.host.look(self.now_ms, || random.chance(80).then(|| 50 + random.below(HELD_FOR_MS * 2) as u32));
    }

    /// A conversation by its client, or a turn since its holder needs the room.
    fn end_something(&mut self) {
        if self.random.chance(50) {
            return self.host.make_room(self.random.below(WORKERS));
        }
        let Client { scope, name, messages } = &self.clients[self.random.index(self.clients.len())];
        let place = self.host.place(&self.scopes[*scope], *name, messages);
        self.host.end_conversation(&place);
    }

    /// The host's process ends, orderly or not. What was sent arrives all the same.
    fn end_host(&mut self, orderly: bool) {
        if orderly {
            self.host.save(SavedAt::End, self.now_ms);
        }
        self.turns.retain(|turn| matches!(turn.phase, Phase::Read(..)));
        self.turns.iter_mut().for_each(|turn| turn.is_orphan = true);
        self.now_ms += self.random.below(100);
        let ids = self.engines.iter().map(|engine| engine.id.clone()).collect();
        self.host.reborn(self.now_ms, ids);
        self.handles_before = self.handles;
    }
}
