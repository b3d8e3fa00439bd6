//! The fabric of one host: both sides' slabs are mapped in this process, and threads of its own copy.

#[cfg(test)]
mod closing;
mod jobs;
#[cfg(test)]
mod jobs_model;
mod settings;
mod slices;
#[cfg(test)]
mod slices_model;
mod worker;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::jobs::{Ended, Job, Jobs, Slice};
pub use self::settings::{ShmSettings, StartError};
use super::endpoint::{Checked, Endpoint};
use super::{
    CloseError, Completion, Fabric, MAX_PEERS, OpenError, PeerCounters, PeerId, Post, PostError, Refused,
};
use crate::memory::{OutOfRange, Stores};

/// The fabric. Its threads end when it is dropped, each after the piece it is at.
#[derive(Debug)]
pub struct ShmFabric {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    settings: ShmSettings,
}

/// What callers and copy threads have in common.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is work.
    work: Condvar,
    /// A post has ended.
    ended: Condvar,
    /// The last piece of a peer that is being closed was copied.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: Jobs,
    peers: HashMap<PeerId, Peer>,
    ended: VecDeque<Completion>,
    /// Callers that wait for a peer's copies to end.
    closing: usize,
    stopping: bool,
    /// The next poll, or the one that waits, shall wait no longer.
    woken: bool,
}

#[derive(Debug)]
struct Peer {
    endpoint: Arc<Endpoint>,
    counters: Arc<PeerCounters>,
    closing: bool,
}

impl ShmFabric {
    /// Starts the copy threads.
    pub fn start(settings: ShmSettings) -> Result<Self, StartError> {
        settings.check()?;
        let mut fabric = Self { shared: Arc::default(), threads: Vec::new(), settings };
        for number in 0..settings.threads {
            let shared = Arc::clone(&fabric.shared);
            let thread = std::thread::Builder::new().name(format!("kv-copy-{number}"));
            let started = thread.spawn(move || worker::run(&shared));
            fabric.threads.push(started.map_err(|cause| StartError::Thread { number, cause })?);
        }
        Ok(fabric)
    }

    /// Lets posts reach these slabs.
    pub fn open_peer(&self, peer: PeerId, endpoint: Endpoint) -> Result<(), OpenError> {
        let mut state = self.shared.lock();
        if state.peers.contains_key(&peer) {
            return Err(OpenError::Open(peer));
        }
        if state.peers.len() == MAX_PEERS {
            return Err(OpenError::TooMany);
        }
        state
            .peers
            .insert(peer, Peer { endpoint: Arc::new(endpoint), counters: Arc::default(), closing: false });
        Ok(())
    }

    /// The names of its copy threads, for status.
    pub fn thread_names(&self) -> impl Iterator<Item = &str> {
        self.threads.iter().filter_map(|thread| thread.thread().name())
    }

    /// The slabs that the post may touch, if it could be taken now.
    fn endpoint(&self, post: &Post) -> Result<Arc<Endpoint>, PostError> {
        let state = self.shared.lock();
        self.room(&state, post).map(|peer| Arc::clone(&peer.endpoint))
    }

    fn room<'a>(&self, state: &'a State, post: &Post) -> Result<&'a Peer, PostError> {
        let peer = state.peers.get(&post.peer).filter(|peer| !peer.closing).ok_or(PostError::NotOpen)?;
        if state.posts() >= self.settings.max_posts {
            peer.counters.of(post.verb).refused_full();
            return Err(PostError::Full { posts: self.settings.max_posts });
        }
        Ok(peer)
    }

    fn take(&self, post: Post, endpoint: &Arc<Endpoint>, memory: Checked) -> Result<(), Refused> {
        let mut state = self.shared.lock();
        // It was checked without the lock: the peer may be another by now.
        let same = |peer: &&Peer| Arc::ptr_eq(&peer.endpoint, endpoint);
        let counters = match self.room(&state, &post).map(|peer| Some(peer).filter(same)) {
            Ok(Some(peer)) => Arc::clone(&peer.counters),
            Ok(None) => return Err(Refused { post, cause: PostError::NotOpen }),
            Err(cause) => return Err(Refused { post, cause }),
        };
        counters.of(post.verb).taken(post.runs_before, post.copies.len());
        let streamed = memory.bytes >= self.settings.streamed_from_bytes;
        let stores = if streamed { Stores::streaming() } else { Stores::CACHED };
        let ended = state.jobs.add(Job::new(post, memory, stores, counters));
        self.shared.tell(&mut state, ended);
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Fabric for ShmFabric {
    fn post(&self, post: Post) -> Result<(), Refused> {
        let checked = self.endpoint(&post).and_then(|endpoint| {
            let memory = endpoint.check(&post)?;
            Ok((endpoint, memory))
        });
        match checked {
            Ok((endpoint, memory)) => self.take(post, &endpoint, memory),
            Err(cause) => Err(Refused { post, cause }),
        }
    }

    fn poll(&self, into: &mut Vec<Completion>, wait: Duration) -> usize {
        let state = self.shared.lock();
        let idle = |state: &mut State| state.ended.is_empty() && !state.woken;
        let waited = self.shared.ended.wait_timeout_while(state, wait, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.woken = false;
        let count = state.ended.len();
        into.extend(state.ended.drain(..));
        count
    }

    fn wake(&self) {
        self.shared.lock().woken = true;
        self.shared.ended.notify_one();
    }

    fn close_peer(&self, peer: PeerId, wait: Duration) -> Result<(), CloseError> {
        let mut state = self.shared.lock();
        state.peers.get_mut(&peer).ok_or(CloseError::NotOpen(peer))?.closing = true;
        let ended = state.jobs.cut_short(peer);
        self.shared.tell(&mut state, ended);
        state.closing += 1;
        let waited = self.shared.idle.wait_timeout_while(state, wait, |state| state.jobs.copying(peer) > 0);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.closing -= 1;
        match state.jobs.copying(peer) {
            0 => {
                // Another caller may have closed it meanwhile, and opened it anew.
                if state.peers.get(&peer).is_some_and(|peer| peer.closing) {
                    state.peers.remove(&peer);
                }
                Ok(())
            }
            copying => Err(CloseError::Copying { peer, copying }),
        }
    }

    fn counters(&self, peer: PeerId) -> Option<Arc<PeerCounters>> {
        self.shared.lock().peers.get(&peer).map(|peer| Arc::clone(&peer.counters))
    }

    fn posts(&self) -> usize {
        self.shared.lock().posts()
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A copy thread that panicked has said so; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

impl State {
    fn posts(&self) -> usize {
        self.jobs.len() + self.ended.len()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, state: &mut State, slice: Slice, copied: Result<(), OutOfRange>) {
        let ended = state.jobs.give_back(slice, copied);
        self.tell(state, ended);
        // Whoever closes a peer looks for itself whether this was the last.
        if state.closing > 0 {
            self.idle.notify_all();
        }
    }

    fn tell(&self, state: &mut State, ended: impl IntoIterator<Item = Ended>) {
        for Ended { completion, bytes, counters } in ended {
            counters.of(completion.verb).ended(bytes, completion.result.is_ok());
            state.ended.push_back(completion);
            self.ended.notify_one();
        }
    }
}
