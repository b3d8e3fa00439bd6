//! A process: an owner of transfers, the engine's memory, and endpoints.

use std::collections::{BTreeMap, VecDeque};

use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{EngineId, Event, Key, Peer, Transfers};

use crate::memory::Memory;
use crate::random::mix;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Running,
    /// As by SIGSTOP: its hardware goes on.
    Stopped,
    Dead,
}

#[derive(Debug)]
pub struct Node {
    pub peer: Peer,
    pub life: Life,
    pub engine_gone: bool,
    pub owner: Transfers,
    pub memory: Memory,
    pub endpoints: BTreeMap<Peer, Key>,
    pub inbox: VecDeque<Event>,
}

impl Node {
    pub fn new(number: usize, incarnation: u64, limits: Limits) -> Self {
        Self {
            peer: Peer { engine: EngineId(number as u128), incarnation },
            life: Life::Running,
            engine_gone: false,
            owner: Transfers::new(limits),
            memory: Memory::new(mix(number as u64 * 1000 + incarnation)),
            endpoints: BTreeMap::new(),
            inbox: VecDeque::new(),
        }
    }

    /// Whether its engine takes and makes work.
    pub fn works(&self) -> bool {
        self.life == Life::Running && !self.engine_gone
    }

    /// Whether it is this life of the process, alive.
    pub fn is_alive_as(&self, peer: Peer) -> bool {
        self.peer == peer && self.life != Life::Dead
    }
}
