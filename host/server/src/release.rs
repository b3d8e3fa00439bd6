//! Ending a hold early: a worker is told to free KV blocks that nobody will fetch, be they a prefill worker's for decode, or
//! a turn's that a decode worker keeps for the next one's prefill.
//!
//! vLLM has no request for it, but an engine of the other side that refuses a request before admission tells the holder named in
//! its handle that the blocks are done with (seen on 0.32.0). So the handle is sent once, to such a worker, in a
//! request for a model that no engine serves. Where that cannot be done the blocks stay until their time is over; both
//! are counted.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::{HeaderMap, Method, StatusCode};
use sluice_core::facts::Role;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::app::App;
use crate::clock::millis;
use crate::fleet::{Pool, Worker};
use crate::held::{Blocks, Way};
use crate::kept::{EngineTurn, HeldTokens, KeptTurn, Place, Unreleased};
use crate::pipeline::REQUEST_ID_HEADER;
use crate::request::Endpoint;
use crate::restarting::restarting;
use crate::telemetry::labels::HandleFate;
use crate::upstream::UpstreamError;

/// Holds that wait to be ended. Past it their leases end them; a burst of leaving clients is within it.
const WAITING_AT_MOST: usize = 4_096;

/// Holds that are being ended at one time: they must not crowd out requests.
const AT_ONCE: usize = 16;

/// How long holds are still ended after the last request, when the host stops.
const ENDED_WITHIN: Duration = Duration::from_secs(2);

/// How long an engine may take to refuse.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// Decode workers asked until one is reached: the first may have died with the leg that the handle was for.
const WORKERS_ASKED_AT_MOST: usize = 3;

/// A model that no engine serves.
const NO_MODEL: &str = "sluice-ends-a-hold";

/// A hold to be ended.
pub enum ToEnd {
    /// Of a prefill worker.
    Prefilled(Arc<Blocks>),
    /// Of a decode worker.
    Turn(Box<EndedTurn>),
}

/// A turn that a decode engine keeps by itself and nobody wants.
pub struct EndedTurn {
    /// Where it is.
    pub place: Place,
    /// The pool that it is of.
    pub pool: Arc<Pool>,
    /// Whose engine holds it.
    pub holder: Arc<Worker>,
    /// Counts it as kept by its holder until it is ended.
    pub counted: Arc<HeldTokens>,
}

impl EndedTurn {
    /// One that was kept.
    pub fn of(turn: &KeptTurn, engine: &EngineTurn) -> Self {
        let (pool, holder) = (turn.pool.clone(), turn.holder.clone());
        Self { place: engine.place.clone(), pool, holder, counted: turn.counted.clone() }
    }

    /// Nobody can have its engine let go of it: it counts with its worker until the engine's own time is over.
    pub fn stays(&self, app: &App, why: Unreleased) {
        app.kept.unreleased(&self.pool, why);
        self.counted.stay_at(&self.place);
    }
}

/// Has an engine let go of a turn that nobody wants. Never waits.
pub fn let_go(app: &App, turn: EndedTurn) {
    match app.releases.room() {
        Ok(room) => room.send(ToEnd::Turn(Box::new(turn))),
        Err(why) => turn.stays(app, why),
    }
}

/// Where holds to end are put.
#[derive(Debug, Clone)]
pub struct Releases(mpsc::Sender<ToEnd>);

/// Where they are taken from.
pub type Waiting = mpsc::Receiver<ToEnd>;

/// A bounded queue.
pub fn queue() -> (Releases, Waiting) {
    let (sender, receiver) = mpsc::channel(WAITING_AT_MOST);
    (Releases(sender), receiver)
}

impl Releases {
    /// Asks for a hold's end. Never waits.
    pub fn send(&self, blocks: Arc<Blocks>) {
        if self.0.try_send(ToEnd::Prefilled(blocks.clone())).is_err() {
            blocks.met(HandleFate::Unreleased);
        }
    }

    /// Room for one, if there is some now.
    fn room(&self) -> Result<mpsc::Permit<'_, ToEnd>, Unreleased> {
        self.0.try_reserve().map_err(|error| match error {
            TrySendError::Full(()) => Unreleased::QueueFull,
            TrySendError::Closed(()) => Unreleased::Stopped,
        })
    }

    /// Asks for the ends of many turns, as room comes for them. Those that are left when nobody ends any more, or this is
    /// dropped, stay in the list.
    pub async fn end_all(&self, turns: &mut Vec<EndedTurn>) {
        while !turns.is_empty()
            && let Ok(room) = self.0.reserve().await
            && let Some(turn) = turns.pop()
        {
            room.send(ToEnd::Turn(Box::new(turn)));
        }
    }
}

/// The task that ends holds.
#[derive(Debug)]
pub struct Releasing {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Releasing {
    /// Starts it.
    pub fn start(app: Arc<App>, waiting: Waiting) -> Self {
        let telemetry = app.telemetry.clone();
        let waiting = Arc::new(Mutex::new(waiting));
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(restarting("release", telemetry, move || {
            let (app, waiting, stopped) = (app.clone(), waiting.clone(), stopped.clone());
            // One that starts anew goes on where the one before it failed.
            async move { run(&mut *waiting.lock().await, stopped, |to_end| end(app.clone(), to_end)).await }
        }));
        Self { tasks, stop }
    }

    /// Ends the holds that wait and these turns, within a time: their requests are over, and nobody else will free their blocks
    /// before the lease ends.
    pub async fn finish(mut self, app: &App, mut turns: Vec<EndedTurn>) {
        let ended = async {
            app.releases.end_all(&mut turns).await;
            let _ = self.stop.send(true);
            while self.tasks.join_next().await.is_some() {}
        };
        if timeout(ENDED_WITHIN, ended).await.is_err() {
            turns.iter().for_each(|turn| turn.stays(app, Unreleased::Stopped));
            tracing::warn!(
                never_told = turns.len(),
                "KV blocks that nobody will fetch stay until their leases end: not all could be given back within {} s",
                ENDED_WITHIN.as_secs()
            );
        }
    }
}

/// Ends holds until the queue's other side is gone, or it is told to stop and the queue is empty.
async fn run<T, F>(waiting: &mut mpsc::Receiver<T>, mut stopped: watch::Receiver<bool>, end: impl Fn(T) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut ending = JoinSet::new();
    let mut stop = pin!(async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    });
    let mut stops = false;
    loop {
        let taken = tokio::select! {
            biased;
            () = &mut stop, if !stops => {
                // What is in it can still be taken.
                waiting.close();
                stops = true;
                continue;
            }
            Some(ended) = ending.join_next() => {
                told(ended);
                continue;
            }
            taken = waiting.recv(), if ending.len() < AT_ONCE => taken,
        };
        let Some(taken) = taken else { break };
        ending.spawn(end(taken));
    }
    while let Some(ended) = ending.join_next().await {
        told(ended);
    }
}

/// A defect in ending one hold must not end the others, nor go unseen.
fn told(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!("a hold's blocks stay until their lease ends: ending it failed: {error}");
    }
}

async fn end(app: Arc<App>, to_end: ToEnd) {
    match to_end {
        ToEnd::Prefilled(blocks) => end_prefilled(&app, &blocks).await,
        ToEnd::Turn(turn) => end_turn(&app, *turn).await,
    }
}

async fn end_prefilled(app: &App, blocks: &Blocks) {
    // What this host moves itself is given back without an engine's help.
    let Way::Handle(handle) = &blocks.way else { return };
    let asked = Asked {
        pool: &blocks.pool,
        holder: &blocks.holder,
        endpoint: blocks.endpoint,
        role: Role::Decode,
        handle: handle.json(),
    };
    let over = app.clock.elapsed() >= blocks.good_until();
    let fate = match asked.refused(app, over).await {
        Ok(()) => {
            blocks.kept.over();
            HandleFate::Released
        }
        Err(why) => {
            asked.tell_unreleased(app, &why);
            HandleFate::Unreleased
        }
    };
    blocks.met(fate);
}

async fn end_turn(app: &App, turn: EndedTurn) {
    let place = &turn.place;
    if turn.holder.seen().incarnation != place.incarnation {
        // It went with its engine.
        return;
    }
    let handle = place.handle.to_end();
    let asked = Asked {
        pool: &turn.pool,
        holder: &turn.holder,
        endpoint: place.endpoint,
        role: Role::Prefill,
        handle: &handle,
    };
    // It can be let go after it could be used.
    let over = millis(app.clock.elapsed()) >= place.ends_ms();
    if let Err(why) = asked.refused(app, over).await {
        asked.tell_unreleased(app, &why);
        turn.stays(app, Unreleased::Untold);
    }
}

/// Blocks whose holder is to be told, by whoever could have fetched them.
struct Asked<'a> {
    pool: &'a Pool,
    holder: &'a Worker,
    endpoint: Endpoint,
    /// Of those who could.
    role: Role,
    /// For them to refuse.
    handle: &'a str,
}

impl Asked<'_> {
    /// Asks workers in turn until one refuses. Only one that was not reached gives way to the next: any other has the
    /// handle.
    async fn refused(&self, app: &App, is_over: bool) -> Result<(), String> {
        let (pool, holder) = (self.pool, self.holder);
        if is_over {
            return Err(format!("the lease on {:?} was over first", holder.name));
        }
        let table = pool.table();
        let pair = |worker: &Worker| match self.role {
            Role::Prefill => (worker.id, holder.id),
            Role::Decode | Role::Unified => (holder.id, worker.id),
        };
        let gets_on = |worker: &&Arc<Worker>| pool.pairs.passes(pair(worker), pool.now_ms());
        let others = table.workers.iter().filter(|worker| worker.role == self.role).filter(gets_on);
        let mut unreached = format!("no {} worker is up to tell it", self.role.name());
        for other in others.take(WORKERS_ASKED_AT_MOST) {
            let sent = app.upstream.send(
                Method::POST,
                &other.url,
                self.endpoint.path(),
                refused_body(self.endpoint, self.handle),
                headers(app, pool),
            );
            return match timeout(REFUSED_WITHIN, sent).await {
                Ok(Ok(response)) if response.status() == StatusCode::NOT_FOUND => Ok(()),
                Ok(Ok(response)) => {
                    let status = response.status();
                    Err(format!("{:?} answered {status} to a model nobody serves, not 404", other.name))
                }
                Ok(Err(error @ UpstreamError::Connect { .. })) => {
                    unreached = error.to_string();
                    continue;
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => {
                    Err(format!("{:?} did not answer within {} ms", other.name, REFUSED_WITHIN.as_millis()))
                }
            };
        }
        Err(unreached)
    }

    fn tell_unreleased(&self, app: &App, why: &str) {
        let (name, role) = (&self.pool.config.name, self.holder.role.name());
        app.telemetry.warn_once(&format!("release {role} {name}"), || {
            format!(
                "KV blocks on {role} workers of pool {name:?} that nobody will fetch stay until their time is over: {why}"
            )
        });
    }
}

/// A request that is refused before admission, upon which the holder named in its handle frees its blocks.
pub fn refused_body(endpoint: Endpoint, handle: &str) -> String {
    let prompt = match endpoint {
        Endpoint::Chat => r#""messages":[{"role":"user","content":"x"}]"#,
        Endpoint::Completions => r#""prompt":"x""#,
    };
    format!(r#"{{"model":"{NO_MODEL}",{prompt},"max_tokens":1,"kv_transfer_params":{handle}}}"#)
}

fn headers(app: &App, pool: &Pool) -> HeaderMap {
    let mut headers = pool.own_headers();
    if let Ok(id) = format!("sluice-release-{}", app.ids.next()).try_into() {
        headers.insert(REQUEST_ID_HEADER, id);
    }
    headers
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_waits_when_the_host_stops_is_still_ended() {
        let (sender, mut waiting) = mpsc::channel(WAITING_AT_MOST);
        let (stop, stopped) = watch::channel(false);
        let count = 3 * AT_ONCE;
        for number in 0..count {
            sender.try_send(number).expect("room");
        }
        stop.send(true).expect("it listens");
        let (ended, at_once, most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let counts = Arc::new((ended, at_once, most));
        let counted = counts.clone();
        run(&mut waiting, stopped, move |number| {
            let counts = counted.clone();
            async move {
                let (ended, at_once, most) = &*counts;
                most.fetch_max(at_once.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
                at_once.fetch_sub(1, Ordering::Relaxed);
                assert!(number != 5, "one that fails stops no other");
                ended.fetch_add(1, Ordering::Relaxed);
            }
        })
        .await;
        assert_eq!(counts.0.load(Ordering::Relaxed), count - 1);
        assert_eq!(counts.2.load(Ordering::Relaxed), AT_ONCE);
        assert!(sender.try_send(0).is_err(), "nothing more is taken");
    }
}
