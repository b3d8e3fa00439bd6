//! A fabric without threads, whose posts fail as they are told to: for tests of what stands above it.
//!
//! Its time is the number of polls, so a test that is run again goes the same way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::endpoint::{Checked, Endpoint};
use super::{
    CloseError, Completion, Fabric, Failure, MAX_PEERS, OpenError, PeerCounters, PeerId, Post, PostError,
};
use super::{Refused, Verb};
use crate::layout::ByteCopy;
use crate::memory::Stores;

/// Posts that are under way or not polled.
const MAX_POSTS: usize = 1_024;

/// What becomes of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It lands and ends with the next poll.
    None,
    /// It lands and ends with a poll so many later.
    Delayed {
        /// Polls.
        polls: u64,
    },
    /// The next poll tells of an error, and nothing landed.
    Failed,
    /// The next poll tells of an error, and the first half of its copies landed.
    FailedHalfway,
    /// The next poll tells of an error, and so many polls later all of it lands, unless the peer is closed first.
    LandsLate {
        /// Polls.
        polls: u64,
    },
    /// It lands with the next poll, and nobody is told.
    CompletionLost,
}

type Faults = dyn FnMut(&Post) -> Fault + Send;

/// An in-process fabric.
pub struct LocalFabric {
    state: Mutex<State>,
}

struct State {
    faults: Box<Faults>,
    peers: HashMap<PeerId, (Endpoint, Arc<PeerCounters>)>,
    underway: Vec<Underway>,
    ended: VecDeque<Completion>,
    polls: u64,
}

struct Underway {
    post: Post,
    memory: Checked,
    counters: Arc<PeerCounters>,
    fault: Fault,
    lands_at: u64,
    told: bool,
}

impl std::fmt::Debug for LocalFabric {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("LocalFabric").field("posts", &self.posts()).finish()
    }
}

impl LocalFabric {
    /// `faults` is asked for each post that is taken.
    pub fn new(faults: impl FnMut(&Post) -> Fault + Send + 'static) -> Self {
        let (peers, underway, ended) = (HashMap::new(), Vec::new(), VecDeque::new());
        Self { state: Mutex::new(State { faults: Box::new(faults), peers, underway, ended, polls: 0 }) }
    }

    /// Lets posts reach these slabs.
    pub fn open_peer(&self, peer: PeerId, endpoint: Endpoint) -> Result<(), OpenError> {
        let mut state = self.lock();
        if state.peers.contains_key(&peer) {
            return Err(OpenError::Open(peer));
        }
        if state.peers.len() == MAX_PEERS {
            return Err(OpenError::TooMany);
        }
        state.peers.insert(peer, (endpoint, Arc::default()));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fabric for LocalFabric {
    fn post(&self, post: Post) -> Result<(), Refused> {
        let mut state = self.lock();
        let taken = state.peers.get(&post.peer).ok_or(PostError::NotOpen).and_then(|(endpoint, counters)| {
            if state.underway.len() + state.ended.len() >= MAX_POSTS {
                counters.of(post.verb).refused_full();
                return Err(PostError::Full { posts: MAX_POSTS });
            }
            Ok((endpoint.check(&post)?, Arc::clone(counters)))
        });
        let (memory, counters) = match taken {
            Ok(taken) => taken,
            Err(cause) => return Err(Refused { post, cause }),
        };
        counters.of(post.verb).taken(post.runs_before, post.copies.len());
        let fault = (state.faults)(&post);
        let lands_at = state.polls + 1 + fault.extra_polls();
        state.underway.push(Underway { post, memory, counters, fault, lands_at, told: false });
        Ok(())
    }

    /// Time goes on by one poll; there is nothing to wait for.
    fn poll(&self, into: &mut Vec<Completion>, _wait: Duration) -> usize {
        let mut state = self.lock();
        state.polls += 1;
        let now = state.polls;
        let State { underway, ended, .. } = &mut *state;
        underway.retain_mut(|one| one.go_on(now, ended));
        let count = ended.len();
        into.extend(ended.drain(..));
        count
    }

    fn wake(&self) {}

    fn close_peer(&self, peer: PeerId, _wait: Duration) -> Result<(), CloseError> {
        let mut state = self.lock();
        state.peers.remove(&peer).ok_or(CloseError::NotOpen(peer))?;
        let State { underway, ended, .. } = &mut *state;
        for mut one in underway.extract_if(.., |one| one.post.peer == peer) {
            one.tell(Err(Failure::PeerClosed), ended);
        }
        Ok(())
    }

    fn counters(&self, peer: PeerId) -> Option<Arc<PeerCounters>> {
        self.lock().peers.get(&peer).map(|(_, counters)| Arc::clone(counters))
    }

    fn posts(&self) -> usize {
        let state = self.lock();
        state.underway.len() + state.ended.len()
    }
}

impl Fault {
    fn extra_polls(self) -> u64 {
        match self {
            Self::Delayed { polls } | Self::LandsLate { polls } => polls,
            Self::None | Self::Failed | Self::FailedHalfway | Self::CompletionLost => 0,
        }
    }
}

impl Underway {
    /// What a poll makes of it; `true` while something of it may still happen.
    fn go_on(&mut self, now: u64, ended: &mut VecDeque<Completion>) -> bool {
        let due = now >= self.lands_at;
        let all = self.post.copies.len();
        match self.fault {
            Fault::None | Fault::Delayed { .. } if !due => return true,
            Fault::None | Fault::Delayed { .. } => {
                self.land(all);
                self.tell(Ok(()), ended);
            }
            Fault::Failed => self.tell(Err(Failure::Fabric("as the test asked")), ended),
            Fault::FailedHalfway => {
                self.land(all / 2);
                self.tell(Err(Failure::Fabric("halfway, as the test asked")), ended);
            }
            Fault::LandsLate { .. } => {
                self.tell(Err(Failure::Fabric("it lands late, as the test asked")), ended);
                if due {
                    self.land(all);
                }
                return !due;
            }
            Fault::CompletionLost if due => {
                self.land(all);
                self.lands_at = u64::MAX;
                return true;
            }
            Fault::CompletionLost => return true,
        }
        false
    }

    fn land(&self, copies: usize) {
        let in_place = |copy: &ByteCopy| self.memory.source.copy_to(&self.memory.sink, *copy, Stores::CACHED);
        let landed = self.post.copies.iter().take(copies).try_for_each(in_place);
        debug_assert_eq!(landed, Ok(()), "a post is checked before it is taken");
    }

    fn tell(&mut self, result: Result<(), Failure>, ended: &mut VecDeque<Completion>) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let (peer, ticket, verb): (_, _, Verb) = (self.post.peer, self.post.ticket, self.post.verb);
        self.counters.of(verb).ended(self.memory.bytes, result.is_ok());
        ended.push_back(Completion { peer, ticket, verb, result, copies: self.post.copies.clone() });
    }
}
