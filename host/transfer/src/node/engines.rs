//! Engines as their ranks come and go.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sluice_engine_sdk::wire::{EngineId, KvLayout, Rank, Role};

use crate::link::{Attached, EngineSender};
use crate::memory::Slab;
use crate::protocol::Peer;

/// An engine that is attached with all its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedEngine {
    /// The name that the router knows it by.
    pub name: String,
    /// This life of it, as far as the node is concerned.
    pub peer: Peer,
    /// What it does.
    pub role: Role,
    /// What it serves.
    pub model: String,
    /// How its KV lies.
    pub layout: KvLayout,
    /// The processes of its ranks, in order; 0 from another PID namespace.
    pub pids: Vec<u32>,
    /// Bytes of all its slabs.
    pub slab_bytes: u64,
}

/// Whose a session is.
#[derive(Debug, Clone)]
pub(super) struct Speaker {
    pub name: String,
    pub rank: Rank,
    /// The way to this rank.
    pub sender: EngineSender,
    /// What the engine is to the exchange, once all ranks are there.
    pub whole: Option<Whole>,
}

/// What the exchange knows an engine by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole {
    pub peer: Peer,
    pub layers: u32,
    pub ranks: u32,
}

/// What an attach leads to.
pub(super) enum Coming {
    /// Other ranks are missing.
    Awaited,
    /// This rank does not fit the others.
    Misfit(String),
    /// All are there: to be given to the exchange.
    Whole { attached: AttachedEngine, slabs: Vec<Arc<Slab>>, senders: Vec<EngineSender> },
}

/// What a detach leads to.
#[derive(Debug)]
pub(super) struct Going {
    pub peer: Peer,
    pub name: String,
    /// The other ranks: without the one that is gone they are no engine.
    pub left: Vec<EngineSender>,
}

#[derive(Debug, Default)]
pub(super) struct Engines {
    sessions: HashMap<u64, (EngineId, Rank)>,
    engines: BTreeMap<EngineId, Entry>,
    lives: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    role: Role,
    model: String,
    layout: KvLayout,
    ranks: BTreeMap<Rank, Member>,
    attached: Option<AttachedEngine>,
}

#[derive(Debug)]
struct Member {
    session: u64,
    pid: u32,
    sender: EngineSender,
    /// Until the exchange has it. A member without one belongs to a life that is over.
    slab: Option<Arc<Slab>>,
}

impl Engines {
    pub fn come(&mut self, rank: Attached) -> Coming {
        let layout = *rank.geometry.layout();
        let entry = self.engines.entry(rank.engine).or_insert_with(|| Entry {
            name: rank.name.clone(),
            role: rank.role,
            model: rank.model.clone(),
            layout,
            ranks: BTreeMap::new(),
            attached: None,
        });
        if entry.ranks.values().all(|member| member.slab.is_none()) {
            // The first of a new life says what the engine is.
            (entry.role, entry.model, entry.layout) = (rank.role, rank.model.clone(), layout);
        }
        if let Some(differs) = entry.difference(&rank, &layout) {
            let (name, rank) = (&entry.name, rank.rank.0);
            return Coming::Misfit(format!(
                "rank {rank} of engine {name:?} declares another {differs} than its other ranks: start all ranks alike"
            ));
        }
        self.sessions.insert(rank.session, (rank.engine, rank.rank));
        let Attached { session, pid, sender, slab, engine, rank, .. } = rank;
        let replaced = entry.ranks.insert(rank, Member { session, pid, sender, slab: Some(slab) });
        if let Some(replaced) = replaced {
            self.sessions.remove(&replaced.session);
        }
        let there = entry.ranks.values().filter(|member| member.slab.is_some()).count();
        if there < entry.layout.tp_size as usize {
            return Coming::Awaited;
        }
        self.lives += 1;
        entry.whole(Peer { engine, incarnation: self.lives })
    }

    /// The exchange has not taken an engine in.
    pub fn not_taken(&mut self, engine: EngineId) {
        if let Some(entry) = self.engines.get_mut(&engine) {
            entry.attached = None;
        }
    }

    /// A session is over.
    pub fn go(&mut self, session: u64) -> Option<Going> {
        let (engine, rank) = self.sessions.remove(&session)?;
        let entry = self.engines.get_mut(&engine)?;
        entry.ranks.remove(&rank);
        let attached = entry.attached.take();
        let going = attached.map(|attached| Going {
            peer: attached.peer,
            name: attached.name,
            left: entry.ranks.values().map(|member| member.sender.clone()).collect(),
        });
        if entry.ranks.is_empty() {
            self.engines.remove(&engine);
        }
        going
    }

    pub fn speaker(&self, session: u64) -> Option<Speaker> {
        let (engine, rank) = *self.sessions.get(&session)?;
        let entry = self.engines.get(&engine)?;
        let whole = entry.attached.as_ref().map(|attached| Whole {
            peer: attached.peer,
            layers: entry.layout.layers,
            ranks: entry.layout.tp_size,
        });
        let sender = entry.ranks.get(&rank)?.sender.clone();
        Some(Speaker { name: entry.name.clone(), rank, sender, whole })
    }

    pub fn attached(&self, engine: EngineId) -> Option<&AttachedEngine> {
        self.engines.get(&engine)?.attached.as_ref()
    }

    pub fn all(&self) -> impl Iterator<Item = &AttachedEngine> {
        self.engines.values().filter_map(|entry| entry.attached.as_ref())
    }
}

impl Entry {
    fn difference(&self, rank: &Attached, layout: &KvLayout) -> Option<&'static str> {
        if self.layout != *layout {
            return Some("KV layout");
        }
        if self.model != rank.model {
            return Some("model");
        }
        (self.role != rank.role).then_some("role")
    }

    fn whole(&mut self, peer: Peer) -> Coming {
        // Those of a life that is over go: they only have not been heard of any more.
        self.ranks.retain(|_, member| member.slab.is_some());
        let slabs: Vec<_> = self.ranks.values_mut().filter_map(|member| member.slab.take()).collect();
        let attached = AttachedEngine {
            name: self.name.clone(),
            peer,
            role: self.role,
            model: self.model.clone(),
            layout: self.layout,
            pids: self.ranks.values().map(|member| member.pid).collect(),
            slab_bytes: slabs.iter().map(|slab| slab.bytes()).sum(),
        };
        self.attached = Some(attached.clone());
        Coming::Whole { attached, slabs, senders: self.ranks.values().map(|m| m.sender.clone()).collect() }
    }
}
