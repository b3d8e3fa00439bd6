//! An engine, its books, and a host that writes wherever it may.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_engine_sdk::leg::{HoldWanted, ReceiveWanted, VERSION, Wanted};
use sluice_engine_sdk::wire::{
    Attempt, BlockRef, Direction, Epoch, HoldEnd, NewReceive, Reason, Refused, Subject, ToEngine, ToHost,
    TransferId, Verb,
};
use sluice_sim::engine::{Emitted, Finish, SequenceId, Submission};
use sluice_sim::model::Digest;
use sluice_sim::slab::KvMemory;
use sluice_sim::tokens::{Token, tokenize, words};
use sluice_sim::{Engine, EngineConfig, Model, TimeModel};

use super::events::Event;
use crate::hosted::books::Books;
use crate::hosted::effects::Effects;
use crate::hosted::{leg, references};

const BLOCK_TOKENS: usize = 4;
const ENTRY_BYTES: usize = 64;
const BLOCK_BYTES: usize = BLOCK_TOKENS * ENTRY_BYTES;
const BLOCKS: usize = 25;

#[derive(Debug, Clone)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl KvMemory for Memory {
    fn len_bytes(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.lock().unwrap().read(offset, into);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.0.lock().unwrap().write(offset, from);
    }
}

/// What the host has of the engine, under the name of what it has it for.
#[derive(Debug)]
struct Had {
    subject: Subject,
    blocks: Vec<BlockRef>,
    receive: Option<NewReceive>,
    is_over: bool,
}

pub struct World {
    pub engine: Engine,
    memory: Memory,
    pub books: Books,
    is_deaf: bool,
    host: Vec<Had>,
    /// What a host that is detached had, and may still write to.
    former: Vec<Had>,
    prompts: HashMap<TransferId, Vec<Token>>,
    pub asked: BTreeMap<SequenceId, (Vec<Token>, usize)>,
    pub got: HashMap<SequenceId, Vec<Token>>,
    pub held: usize,
    pub confirms: usize,
}

impl World {
    pub fn new() -> Self {
        let config = EngineConfig {
            block_tokens: BLOCK_TOKENS,
            blocks: BLOCKS,
            max_sequences: 4,
            max_step_tokens: 8,
            max_model_tokens: 64,
            time: TimeModel { time_scale: 0.0, ..TimeModel::default() },
            ..EngineConfig::default()
        };
        let memory = Memory(Arc::new(Mutex::new(vec![0; BLOCKS * BLOCK_BYTES])));
        Self {
            engine: Engine::in_memory(config, Box::new(memory.clone())).unwrap(),
            memory,
            books: Books::new(BLOCK_TOKENS),
            is_deaf: false,
            host: Vec::new(),
            former: Vec::new(),
            prompts: HashMap::new(),
            asked: BTreeMap::new(),
            got: HashMap::new(),
            held: 0,
            confirms: 0,
        }
    }

    fn apply(&mut self, mut effects: Effects) {
        effects.on(&mut self.engine);
        for message in std::mem::take(&mut effects.say) {
            assert!(self.books.is_attached, "{message:?} is for nobody");
            let had = match &message {
                ToHost::Hold { hold } => Some((Subject::Hold(hold.id), hold.blocks.clone(), None)),
                ToHost::Receive { receive } => {
                    let blocks = receive.blocks.clone();
                    Some((Subject::Receive(receive.attempt), blocks, Some(receive.clone())))
                }
                ToHost::Confirmed { held, .. } => {
                    assert!(held, "the host has these blocks");
                    self.confirms += 1;
                    None
                }
                _ => None,
            };
            let Some((subject, blocks, receive)) = had else { continue };
            if self.is_deaf {
                let effects = self.books.not_begun(subject, "deaf");
                self.apply(effects);
            } else {
                self.host.push(Had { subject, blocks, receive, is_over: false });
            }
        }
    }

    fn told(&mut self, message: ToEngine) {
        let effects = self.books.told(message, 0);
        self.apply(effects);
    }

    fn submit(&mut self, at: usize, event: Event) {
        let Event::Submit { prompt, tokens, max_tokens, hold, receive, shows } = event else { return };
        let (sequence, transfer) = (SequenceId(at as u64), TransferId(at as u128));
        let prompt = tokenize(&words(prompt, tokens));
        let receive = receive.then(|| ReceiveWanted {
            transfer,
            epoch: 0,
            source: "other".into(),
            verb: Verb::Read,
            direction: if shows { Direction::DecodeToPrefill } else { Direction::PrefillToDecode },
            tokens: None,
            position_tokens: 2,
            threshold_tokens: 3,
            first_byte_ms: 1,
            whole_ms: 1,
        });
        let hold = hold.map(|of| HoldWanted {
            // Of another transfer than it receives.
            transfer: TransferId(transfer.0 + 10_000),
            of,
            position_tokens: 2,
            fill_ms: 1,
            ttl_ms: 1,
            margin_ms: 0,
            renewable: false,
        });
        let wanted = Wanted { version: VERSION, hold, receive };
        let mut submission = Submission { prompt: prompt.clone(), max_tokens, ..Submission::default() };
        leg::shape(&mut submission, &wanted);
        self.prompts.insert(transfer, prompt.clone());
        self.asked.insert(sequence, (prompt.clone(), max_tokens));
        self.books.submit(sequence, wanted, prompt);
        self.engine.submit(sequence, submission, Duration::ZERO);
    }

    fn follow(&mut self) {
        for sequence in self.books.filling() {
            let effects = match self.engine.progress(sequence) {
                Some(progress) => {
                    let blocks = || references(&self.engine, progress.blocks);
                    self.books.progress(sequence, progress.computed, blocks)
                }
                None => self.books.not_running(sequence),
            };
            self.apply(effects);
        }
    }

    fn step(&mut self) -> bool {
        for load in self.engine.admit() {
            let blocks = references(&self.engine, &load.blocks);
            let effects = self.books.load(load.sequence, blocks, load.first_token as u32, 0);
            self.apply(effects);
        }
        self.follow();
        let is_busy = self.engine.begin_step().is_some();
        self.scribble();
        self.follow();
        for Emitted { sequence, token, finished, .. } in self.engine.finish_step(Duration::ZERO) {
            self.got.entry(sequence).or_default().push(token);
            let Some(finished) = finished else { continue };
            let kept = finished.kept;
            let turn =
                kept.as_ref().map(|kept| (references(&self.engine, &kept.blocks), kept.tokens.as_slice()));
            let (held, effects) = self.books.finished(sequence, turn);
            self.held += usize::from(held.is_some());
            self.apply(effects);
            if let Some(kept) = kept {
                self.engine.release(&kept.blocks);
            }
        }
        is_busy
    }

    /// Writes garbage wherever a host may write.
    fn scribble(&mut self) {
        for had in self.host.iter().chain(&self.former).filter(|had| had.receive.is_some()) {
            for block in &had.blocks {
                self.memory.write(block.index as usize * BLOCK_BYTES, &[0xAB; BLOCK_BYTES]);
            }
        }
    }

    /// Index into what the host has and what is (not) over.
    fn pick(&self, which: usize, wanted: impl Fn(&Had) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.host.len()).filter(|at| wanted(&self.host[*at])).collect();
        (!fitting.is_empty()).then(|| fitting[which % fitting.len()])
    }

    fn complete(&mut self, which: usize, cut: Option<u32>) {
        let open = |had: &Had| had.receive.is_some() && !had.is_over;
        let Some(receive) = self.pick(which, open).and_then(|at| self.host.remove(at).receive) else {
            return;
        };
        let attempt = receive.attempt;
        let mut end = receive.wanted.end;
        if let Some(cut) = cut.filter(|_| !receive.proofs.is_empty()) {
            end = cut.clamp(receive.wanted.first, end);
            self.told(ToEngine::Cut { attempt, end_token: end });
        }
        let entries = entries(&self.prompts[&attempt.id]);
        let first = receive.wanted.first as usize;
        for (token, entry) in entries.iter().enumerate().take(end as usize).skip(first) {
            let within = token - receive.first_token as usize;
            let block = receive.blocks[within / BLOCK_TOKENS].index as usize;
            let offset = block * BLOCK_BYTES + within % BLOCK_TOKENS * ENTRY_BYTES;
            self.memory.write(offset, entry);
        }
        self.told(ToEngine::Completed { attempt });
    }

    fn fail(&mut self, which: usize) {
        let open = |had: &Had| had.receive.is_some() && !had.is_over;
        let Some(at) = self.pick(which, open) else { return };
        self.host[at].is_over = true;
        if let Subject::Receive(attempt) = self.host[at].subject {
            self.told(ToEngine::Failed { attempt, reason: Reason::PeerLost });
        }
    }

    fn end_hold(&mut self, which: usize) {
        let Some(at) = self.pick(which, |had| had.receive.is_none() && !had.is_over) else { return };
        self.host[at].is_over = true;
        let end = [HoldEnd::Delivered, HoldEnd::Released, HoldEnd::Expired][which % 3];
        if let Subject::Hold(id) = self.host[at].subject {
            self.told(ToEngine::HoldEnded { id, end });
        }
    }

    pub fn happen(&mut self, at: usize, event: Event) {
        match event {
            Event::Submit { .. } => self.submit(at, event),
            Event::Abort(which) => {
                let alive: Vec<_> = self.books.legs.keys().copied().collect();
                let Some(sequence) = alive.get(which % alive.len().max(1)) else { return };
                assert!(self.engine.abort(*sequence, Finish::Abort));
                self.asked.remove(sequence);
                let effects = self.books.aborted(*sequence);
                self.apply(effects);
            }
            Event::Step => drop(self.step()),
            Event::Refuse(which) => {
                let Some(at) = self.pick(which, |had| !had.is_over) else { return };
                let subject = self.host.remove(at).subject;
                self.told(ToEngine::Refused { subject, why: Refused::Full });
            }
            Event::Complete { which, cut } => self.complete(which, cut),
            Event::Fail(which) => self.fail(which),
            Event::EndHold(which) => self.end_hold(which),
            Event::Free(which) => {
                let Some(at) = self.pick(which, |had| had.is_over) else { return };
                let blocks = self.host.remove(at).blocks;
                self.told(ToEngine::Freed { blocks });
            }
            Event::Confirm(which) => {
                let Some(at) = self.pick(which, |_| true) else { return };
                let (blocks, attempt) =
                    (self.host[at].blocks.clone(), Attempt { id: TransferId(0), epoch: Epoch(0) });
                self.told(ToEngine::Confirm { attempt, number: 0, blocks });
            }
            Event::Expire => {
                let effects = self.books.expire(u64::MAX);
                self.apply(effects);
            }
            Event::Deafen(is_deaf) => self.is_deaf = is_deaf,
            Event::Detach => {
                let effects = self.books.detached("gone");
                self.former.append(&mut self.host);
                self.apply(effects);
            }
            Event::Gone => {
                // Said of a host that is detached, and so of all that it had.
                self.former.clear();
                let effects = self.books.host_gone();
                self.apply(effects);
            }
            Event::Attach => {
                self.former.clear();
                self.host.clear();
                let effects = self.books.attached();
                self.apply(effects);
            }
        }
    }

    pub fn check(&self) {
        for block in self.host.iter().chain(&self.former).flat_map(|had| &had.blocks) {
            assert_eq!(
                self.engine.generation(block.index),
                Some(block.generation),
                "{block:?} is in another use"
            );
        }
        let named: usize = self.host.iter().chain(&self.former).map(|had| had.blocks.len()).sum();
        assert_eq!(self.books.named.len(), named);
    }

    /// The host gives everything back, and goes on doing so, until the engine has nothing left to do.
    pub fn end(&mut self) {
        self.is_deaf = false;
        self.happen(0, Event::Gone);
        for _ in 0..10_000 {
            let is_busy = self.step();
            while self.host.iter().any(|had| !had.is_over) {
                self.fail(0);
                self.end_hold(0);
            }
            while !self.host.is_empty() {
                self.happen(0, Event::Free(0));
            }
            self.check();
            let occupancy = self.engine.occupancy();
            if !is_busy && occupancy.waiting + occupancy.loading + occupancy.running == 0 {
                return;
            }
        }
        panic!("the engine never ends: {:?}", self.engine.occupancy());
    }
}

/// The KV of a prompt, as any engine computes it.
fn entries(prompt: &[Token]) -> Vec<Vec<u8>> {
    let (model, mut before) = (Model::default(), 0);
    let entry = |(position, token): (usize, &Token)| {
        let mut entry = vec![0; ENTRY_BYTES];
        model.write_entry(*token, position, before, &mut entry);
        before = Digest::of(&entry);
        entry
    };
    prompt.iter().enumerate().map(entry).collect()
}
