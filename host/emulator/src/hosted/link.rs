//! The thread that attaches to the host, whenever there is one, and hands on what it says.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_engine_sdk::{Engine, EngineLink, Event, Session, Settings, Slab, incarnation_now};
use tokio::sync::mpsc;

/// Events that wait for the driver: it takes them between any two tokens, so a few are the rule.
const MAX_WAITING_EVENTS: usize = 1_024;
/// How long one wait for an event is, in milliseconds: an emulator that stops waits for it.
const POLL_MS: u64 = 20;
/// How long one row of tries to attach is, and one try of it, in milliseconds: an emulator that stops waits for it.
const ATTACH_MS: u64 = 200;
/// Between two rows, and after a refusal that may be lifted, in milliseconds.
const PAUSE_MS: u64 = 500;
/// For room to say something, in milliseconds: the engine stands still meanwhile.
const SEND_MS: u64 = 5;

/// Something that the driver is told.
#[derive(Debug)]
pub(super) enum News {
    /// For the first time, or after the link had been given up.
    Attached(Session),
    /// It is not, and why: said again only when the reason changes.
    NotAttached(String),
    /// The link's own.
    Event(Event),
}

/// The thread. Dropping it says goodbye to the host.
#[derive(Debug)]
pub(super) struct LinkThread {
    news: mpsc::Receiver<News>,
    /// Dropped to stop it.
    stop: Option<std_mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Attaching {
    socket: PathBuf,
    engine: Engine,
    slab: Arc<Slab>,
    news: mpsc::Sender<News>,
    stop: std_mpsc::Receiver<()>,
}

impl LinkThread {
    /// Starts it.
    pub fn start(socket: PathBuf, engine: Engine, slab: Arc<Slab>) -> std::io::Result<Self> {
        let (sender, news) = mpsc::channel(MAX_WAITING_EVENTS);
        let (stop, stopped) = std_mpsc::channel();
        let attaching = Attaching { socket, engine, slab, news: sender, stop: stopped };
        let thread = std::thread::Builder::new().name("kv-link".to_owned()).spawn(move || attaching.run())?;
        Ok(Self { news, stop: Some(stop), thread: Some(thread) })
    }

    /// What happened next. Never ends while this lives.
    pub async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            // It ends early only by a panic, which was told; the engine goes on alone.
            None => std::future::pending().await,
        }
    }
}

impl Drop for LinkThread {
    fn drop(&mut self) {
        // A thread that waits for room in the queue goes on.
        self.news.close();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was told by the panic hook; there is nothing to undo.
            let _ = thread.join();
        }
    }
}

/// Nobody is there any more to be told.
struct Stopped;

impl Attaching {
    fn run(mut self) {
        let mut last = String::new();
        while self.attach_and_serve(&mut last).is_ok() {
            let paused = self.stop.recv_timeout(Duration::from_millis(PAUSE_MS));
            if !matches!(paused, Err(std_mpsc::RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    fn attach_and_serve(&mut self, last: &mut String) -> Result<(), Stopped> {
        // Every try of every row has an incarnation of its own, for the clock goes on between them.
        let engine = Engine { incarnation: incarnation_now(), ..self.engine.clone() };
        let settings =
            Settings { attach_ms: ATTACH_MS, try_ms: ATTACH_MS, send_ms: SEND_MS, ..Settings::default() };
        let attached = EngineLink::attach(&self.socket, engine, Arc::clone(&self.slab), settings);
        let (link, session) = match attached {
            Ok(attached) => attached,
            Err(error) => {
                let why = error.to_string();
                if *last != why {
                    last.clone_from(&why);
                    self.tell(News::NotAttached(why))?;
                }
                return Ok(());
            }
        };
        last.clear();
        self.tell(News::Attached(session))?;
        loop {
            match link.poll_event(Duration::from_millis(POLL_MS)) {
                Ok(Some(event)) => self.tell(News::Event(event))?,
                Ok(None) if self.news.is_closed() => return Err(Stopped),
                Ok(None) => {}
                Err(_) => return Ok(()),
            }
        }
    }

    fn tell(&self, news: News) -> Result<(), Stopped> {
        self.news.blocking_send(news).map_err(|_| Stopped)
    }
}
