//! Connections kept between requests, apart for each data thread: one that goes back to the thread it came from is
//! woken there, by that thread's own event loop.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::link::Link;
use crate::config::WorkerUrl;
use crate::threads;

/// Idle connections kept per worker and thread. Beyond it, a burst's connections are closed when they fall idle.
const IDLE_CONNECTIONS_PER_WORKER: usize = 256;

/// Idle connections kept in all, over workers and threads: each takes a descriptor that the process must be allowed.
pub const IDLE_CONNECTIONS_AT_MOST: usize = 1_024;

/// How long an idle connection is kept. uvicorn, vLLM's server, closes after 5 s: closing first keeps requests
/// off connections that are about to go.
const IDLE_CONNECTION_KEPT: Duration = Duration::from_millis(3_000);

/// Where a connection leads. One over TLS never serves a worker that is reached without, nor the other way round.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub tls: bool,
    pub authority: Box<str>,
}

impl Peer {
    pub fn of(worker: &WorkerUrl) -> Self {
        Self { tls: worker.tls, authority: worker.authority.as_str().into() }
    }
}

type Links = HashMap<Box<str>, VecDeque<Parked>>;

#[derive(Debug, Default)]
struct Shelf {
    plain: Links,
    tls: Links,
}

impl Shelf {
    fn links(&mut self, tls: bool) -> &mut Links {
        if tls { &mut self.tls } else { &mut self.plain }
    }

    fn retain(&mut self, keeps: impl Fn(&Parked) -> bool) {
        for links in self.plain.values_mut().chain(self.tls.values_mut()) {
            links.retain(&keeps);
        }
    }
}

#[derive(Debug)]
struct Parked {
    link: Box<Link>,
    since: Instant,
    _counted: Counted,
}

/// One of all idle connections.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn one_of(kept: &Arc<AtomicUsize>) -> Option<Self> {
        let counted = Self(kept.clone());
        let before = kept.fetch_add(1, Ordering::Relaxed);
        (before < IDLE_CONNECTIONS_AT_MOST).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All idle connections, by thread and worker.
#[derive(Debug)]
pub(super) struct Idle {
    shelves: Box<[Mutex<Shelf>]>,
    kept: Arc<AtomicUsize>,
}

impl Idle {
    /// For so many data threads. All other threads share one more place.
    pub fn new(threads: usize) -> Self {
        Self { shelves: (0..=threads).map(|_| Mutex::default()).collect(), kept: Arc::default() }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        let last = self.shelves.len() - 1;
        let place = threads::data_thread().map_or(last, |number| number.min(last));
        // A panic while the lock was held leaves connections that are merely kept or lost.
        self.shelves[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to this worker that was used last: the least likely to have been closed.
    pub fn take(&self, worker: &WorkerUrl) -> Option<Box<Link>> {
        let parked = self.shelf().links(worker.tls).get_mut(worker.authority.as_str())?.pop_back()?;
        (parked.since.elapsed() < IDLE_CONNECTION_KEPT).then_some(parked.link)
    }

    /// Keeps a connection for the next request, if there is room.
    pub fn keep(&self, peer: &Peer, link: Box<Link>) {
        let Some(counted) = Counted::one_of(&self.kept) else { return };
        let mut shelf = self.shelf();
        let links = shelf.links(peer.tls);
        if !links.contains_key(&peer.authority) {
            links.insert(peer.authority.clone(), VecDeque::new());
        }
        if let Some(links) = links.get_mut(&peer.authority)
            && links.len() < IDLE_CONNECTIONS_PER_WORKER
        {
            links.push_back(Parked { link, since: Instant::now(), _counted: counted });
        }
    }

    /// Closes those that were idle for too long, and with them what engines closed from their side.
    pub fn sweep(&self) {
        self.retain(|parked| parked.since.elapsed() < IDLE_CONNECTION_KEPT);
    }

    /// Closes all, for their descriptors. Whether there was one.
    pub fn clear(&self) -> bool {
        let had_some = self.kept.load(Ordering::Relaxed) > 0;
        self.retain(|_| false);
        had_some
    }

    fn retain(&self, keeps: impl Fn(&Parked) -> bool) {
        for shelf in &self.shelves {
            shelf.lock().unwrap_or_else(PoisonError::into_inner).retain(&keeps);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::tls::MaybeTls;

    /// Connections to a listener that nobody accepts from.
    pub async fn links<const N: usize>() -> (TcpListener, [Box<Link>; N]) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut links = Vec::new();
        for _ in 0..N {
            let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
            links.push(Link::over(MaybeTls::Plain(stream)).await.expect("no words are needed"));
        }
        (listener, links.try_into().expect("as many"))
    }

    pub fn url(text: &str) -> WorkerUrl {
        WorkerUrl::parse(text).expect("a url")
    }

    #[tokio::test]
    async fn a_connection_serves_its_own_scheme_alone() {
        let idle = Idle::new(1);
        let (_listener, [link]) = links().await;
        let (plain, tls) = (url("http://127.0.0.1:8000"), url("https://127.0.0.1:8000"));
        idle.keep(&Peer::of(&plain), link);
        assert!(idle.take(&tls).is_none());
        assert!(idle.take(&plain).is_some());
    }

    #[tokio::test]
    async fn all_idle_connections_together_are_bounded() {
        let idle = Idle::new(1);
        let (_listener, [first, second, third]) = links().await;
        // All places but one are taken.
        idle.kept.fetch_add(IDLE_CONNECTIONS_AT_MOST - 1, Ordering::Relaxed);
        let [one, other] = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"].map(url);
        idle.keep(&Peer::of(&one), first);
        idle.keep(&Peer::of(&other), second);
        assert!(idle.take(&other).is_none());
        assert!(idle.take(&one).is_some());
        idle.keep(&Peer::of(&other), third);
        assert!(idle.take(&other).is_some(), "its place was given back");
        assert_eq!(idle.kept.load(Ordering::Relaxed), IDLE_CONNECTIONS_AT_MOST - 1);
    }
}
