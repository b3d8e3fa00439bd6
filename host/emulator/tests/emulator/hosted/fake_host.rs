//! A host that moves bytes between attached engines as simply as can be, and does wrong where a test says so.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_engine_sdk::wire::{
    Attempt, BlockRef, EngineId, HoldEnd, NewHold, NewReceive, Reason, Refused, Subject, ToEngine, ToHost,
    TransferId, Verb,
};
use sluice_transfer::link::{Attached, LinkEvent, LinkListener, Settings};
use tokio::sync::watch;

use crate::client::DEADLINE;

/// What it does wrong, or holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conduct {
    #[default]
    Right,
    /// Says that all has come, and copies nothing.
    SkipsCopies,
    /// Begins no receive, and answers none.
    Stalls,
    /// Fails each receive, and frees its blocks at once.
    Fails,
    /// Fails each receive, writes into its blocks, and frees nothing.
    FailsAndWrites,
    /// Begins no receive, and says so.
    Refuses,
}

#[derive(Debug)]
pub struct Held {
    session: u64,
    pub hold: NewHold,
    ready_tokens: u32,
    /// How often a part was told to be ready.
    pub parts: usize,
    pub is_filled: bool,
}

#[derive(Debug, Clone)]
struct Receiving {
    session: u64,
    receive: NewReceive,
    is_cut: bool,
    /// Copied, and waiting for the holder's word on it.
    is_copied: bool,
    is_confirmed: Option<bool>,
}

/// What it has of engines, and was told by them.
#[derive(Debug, Default)]
pub struct State {
    pub conduct: Conduct,
    engines: HashMap<u64, Box<Attached>>,
    /// Slabs of engines that were detached, kept mapped until a test lets go.
    kept: Vec<Attached>,
    pub holds: BTreeMap<TransferId, Held>,
    receives: Vec<Receiving>,
    /// Blocks that were not freed.
    withheld: Vec<(u64, Vec<BlockRef>)>,
    pub aborted: Vec<Attempt>,
    pub released: Vec<TransferId>,
    /// Released before they were made: links of two engines are read in any order.
    early: HashSet<TransferId>,
    pub confirmed: usize,
}

pub struct FakeHost {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    /// Changes with each event.
    events: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

/// A socket in a folder of its own.
pub struct Place {
    pub socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { socket: folder.path().join("kv.sock"), _folder: folder }
    }
}

impl FakeHost {
    pub fn start(place: &Place) -> Self {
        let listener = LinkListener::bind(&place.socket, Settings::default()).unwrap();
        let (state, stop): (Arc<Mutex<State>>, Arc<AtomicBool>) = Default::default();
        let (shared, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let (count, events) = watch::channel(0);
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                let event = listener.next_event(Duration::from_millis(2)).unwrap();
                let mut state = shared.lock().unwrap();
                if let Some(event) = event {
                    state.happened(event);
                }
                state.work();
                count.send_modify(|events| *events += 1);
            }
        };
        let thread = std::thread::Builder::new().spawn(run).unwrap();
        Self { state, stop, events, thread: Some(thread) }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Waits until it was told what is wanted.
    pub async fn until<T>(&self, mut wanted: impl FnMut(&State) -> Option<T>) -> T {
        let mut events = self.events.clone();
        let waiting = async {
            loop {
                if let Some(seen) = wanted(&self.state()) {
                    return seen;
                }
                events.changed().await.unwrap();
            }
        };
        tokio::time::timeout(DEADLINE, waiting).await.expect("the host was never told")
    }

    pub fn conduct(&self, conduct: Conduct) {
        self.state().conduct = conduct;
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl State {
    fn happened(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Attached(attached) => drop(self.engines.insert(attached.session, attached)),
            LinkEvent::Detached { session, .. } => {
                self.kept.extend(self.engines.remove(&session).map(|attached| *attached));
                self.receives.retain(|receiving| receiving.session != session);
                self.holds.retain(|_, held| held.session != session);
            }
            LinkEvent::Said { session, message } => self.said(session, message),
            // An engine is not let in again while its slab is kept. It may have been let go of since this was said.
            LinkEvent::Refused { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn said(&mut self, session: u64, message: ToHost) {
        match message {
            ToHost::Hold { hold } => {
                let held = Held { session, hold, ready_tokens: 0, parts: 0, is_filled: false };
                let id = held.hold.id;
                assert!(self.holds.insert(id, held).is_none());
                if self.early.remove(&id) {
                    self.end_hold(id, HoldEnd::Released);
                }
            }
            ToHost::Ready { id, rect } => {
                let Some(held) = self.holds.get_mut(&id) else { return };
                let tokens = held.hold.extent.tokens(rect);
                assert_eq!(tokens.start, held.ready_tokens, "parts come in order");
                (held.ready_tokens, held.parts) = (tokens.end, held.parts + 1);
            }
            ToHost::Filled { id } => {
                let Some(held) = self.holds.get_mut(&id) else { return };
                (held.ready_tokens, held.is_filled) = (held.hold.extent.end_token, true);
            }
            ToHost::Release { id } => {
                self.released.push(id);
                if !self.holds.contains_key(&id) {
                    self.early.insert(id);
                }
                self.end_hold(id, HoldEnd::Released);
            }
            ToHost::Receive { receive } => {
                let (is_cut, is_copied, is_confirmed) = (false, false, None);
                self.receives.push(Receiving { session, receive, is_cut, is_copied, is_confirmed });
            }
            ToHost::Abort { attempt, reason } => {
                self.aborted.push(attempt);
                let Some(at) = self.receives.iter().position(|one| one.receive.attempt == attempt) else {
                    return;
                };
                let receiving = self.receives.remove(at);
                self.tell(session, ToEngine::Failed { attempt, reason });
                self.tell(session, ToEngine::Freed { blocks: receiving.receive.blocks });
            }
            ToHost::Confirmed { attempt, held, .. } => {
                self.confirmed += 1;
                for one in self.receives.iter_mut().filter(|one| one.receive.attempt == attempt) {
                    one.is_confirmed = Some(held);
                }
            }
            ToHost::Renew { .. } => {}
        }
    }

    fn tell(&self, session: u64, message: ToEngine) {
        if let Some(engine) = self.engines.get(&session) {
            // One that is going hears nothing more.
            let _ = engine.sender.send(message);
        }
    }

    fn end_hold(&mut self, id: TransferId, end: HoldEnd) {
        let Some(held) = self.holds.remove(&id) else { return };
        self.tell(held.session, ToEngine::HoldEnded { id, end });
        self.tell(held.session, ToEngine::Freed { blocks: held.hold.blocks });
    }

    fn work(&mut self) {
        for mut receiving in std::mem::take(&mut self.receives) {
            if !self.is_over(&mut receiving) {
                self.receives.push(receiving);
            }
        }
    }

    /// Does what can be done for a receive now.
    fn is_over(&mut self, receiving: &mut Receiving) -> bool {
        let (session, attempt) = (receiving.session, receiving.receive.attempt);
        let blocks = receiving.receive.blocks.clone();
        match self.conduct {
            Conduct::Stalls => return false,
            Conduct::Refuses => {
                let (subject, why) = (Subject::Receive(attempt), Refused::Full);
                self.tell(session, ToEngine::Refused { subject, why });
                return true;
            }
            Conduct::Fails | Conduct::FailsAndWrites => {
                self.tell(session, ToEngine::Failed { attempt, reason: Reason::Fabric });
                if self.conduct == Conduct::Fails {
                    self.tell(session, ToEngine::Freed { blocks });
                } else {
                    self.spoil(session, &blocks);
                    self.withheld.push((session, blocks));
                }
                return true;
            }
            Conduct::Right | Conduct::SkipsCopies => {}
        }
        self.moves(receiving)
    }

    fn moves(&mut self, receiving: &mut Receiving) -> bool {
        let (session, attempt) = (receiving.session, receiving.receive.attempt);
        let Some(held) = self.holds.get(&attempt.id) else { return false };
        let Some(source) = self.engines.get(&held.session) else { return false };
        assert_eq!(source.engine, receiving.receive.source, "the leg names its holder");
        assert_eq!(source.engine, EngineId::of_name(&source.name));
        assert_eq!(held.hold.extent, receiving.receive.extent, "both count the same tokens");
        if !receiving.receive.proofs.is_empty() && !std::mem::replace(&mut receiving.is_cut, true) {
            let equal = held.hold.proofs.iter().zip(&receiving.receive.proofs).take_while(|(a, b)| a == b);
            let tokens = equal.count() as u32 * held.hold.extent.position_tokens;
            let wanted = &mut receiving.receive.wanted;
            if tokens <= wanted.first {
                let (subject, why) = (Subject::Receive(attempt), Refused::Unproven);
                self.tell(session, ToEngine::Refused { subject, why });
                return true;
            }
            if tokens < wanted.end {
                wanted.end = tokens;
                self.tell(session, ToEngine::Cut { attempt, end_token: tokens });
            }
        }
        let is_there = match receiving.receive.verb {
            Verb::Read => held.is_filled,
            Verb::Write => held.ready_tokens >= receiving.receive.wanted.end,
        };
        if !is_there {
            return false;
        }
        if !std::mem::replace(&mut receiving.is_copied, true) {
            if self.conduct != Conduct::SkipsCopies {
                self.copy(held, receiving);
            }
            let blocks = held.hold.blocks.clone();
            self.tell(held.session, ToEngine::Confirm { attempt, number: 1, blocks });
        }
        if receiving.is_confirmed != Some(true) {
            return false;
        }
        self.tell(session, ToEngine::Completed { attempt });
        self.end_hold(attempt.id, HoldEnd::Delivered);
        true
    }

    /// Copies whole positions, token by token.
    fn copy(&self, held: &Held, receiving: &Receiving) {
        let receive = &receiving.receive;
        let (source, sink) = (&self.engines[&held.session], &self.engines[&receiving.session]);
        let cells = receive.extent.cells(receive.wanted, 1).unwrap();
        for token in receive.extent.tokens(cells) {
            let (from, bytes) = place(source, &held.hold.blocks, token - held.hold.first_token);
            let (to, _) = place(sink, &receive.blocks, token - receive.first_token);
            let mut entry = vec![0; bytes];
            source.slab.read(from, &mut entry).unwrap();
            sink.slab.write(to, &entry).unwrap();
        }
    }

    fn spoil(&self, session: u64, blocks: &[BlockRef]) {
        let engine = &self.engines[&session];
        for token in 0..blocks.len() as u32 * engine.geometry.layout().block_tokens {
            let (at, bytes) = place(engine, blocks, token);
            engine.slab.write(at, &vec![0xAB; bytes]).unwrap();
        }
    }

    /// Writes into blocks that were not freed, as it may.
    pub fn spoil_withheld(&self) {
        self.withheld.iter().for_each(|(session, blocks)| self.spoil(*session, blocks));
    }

    /// Gives back what it had kept.
    pub fn free_withheld(&mut self) {
        for (session, blocks) in std::mem::take(&mut self.withheld) {
            self.tell(session, ToEngine::Freed { blocks });
        }
    }

    /// Cuts an engine off, and keeps its slab mapped.
    pub fn detach(&mut self, name: &str) {
        let engine = self.engines.values().find(|engine| engine.name == name).unwrap();
        engine.sender.detach("a test says so");
    }

    /// Lets go of the slabs of engines that were detached.
    pub fn let_go(&mut self) {
        self.kept.clear();
    }

    pub fn names(&self) -> Vec<String> {
        self.engines.values().map(|engine| engine.name.clone()).collect()
    }
}

/// Where a token's entry is, counted from the first of the blocks, and how long it is.
fn place(engine: &Attached, blocks: &[BlockRef], token: u32) -> (u64, usize) {
    let layout = engine.geometry.layout();
    let block = blocks[(token / layout.block_tokens) as usize].index;
    let slot = u64::from(block) * u64::from(layout.block_tokens) + u64::from(token % layout.block_tokens);
    (slot * u64::from(layout.head_dim), layout.head_dim as usize)
}
