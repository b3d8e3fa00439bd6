//! The engine's one owner: it waits out what the model says, has KV moved, and hands tokens out.

mod host;
mod pull;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use sluice_sim::Engine;
use sluice_sim::engine::{Emitted, Finish, SequenceId};
use sluice_sim::time::Link;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::client::{Command, Delivery, Order, Source};
use crate::clock::Clock;
use crate::config::EmulatorConfig;
use crate::hosted::Hosted;
use crate::probe::Snapshot;
use crate::report::{KvLink, Report, Transfers};
use pull::Moved;

/// A step that ended late by less than this, because timers are coarse, does not delay the next one.
const TIMER_SLACK: Duration = Duration::from_millis(3);

/// A sequence's way back to its request.
struct Sink {
    choice: u32,
    deliver: mpsc::Sender<Delivery>,
    source: Option<Source>,
}

pub(crate) struct Driver {
    engine: Engine,
    config: EmulatorConfig,
    clock: Clock,
    commands: mpsc::UnboundedReceiver<Command>,
    watched: Watched,
    /// Where the host of this node moves KV.
    hosted: Option<Hosted>,
    sinks: HashMap<SequenceId, Sink>,
    /// Reads and releases under way: at most one a sequence or connection.
    moving: JoinSet<Moved>,
    link: Link,
    transfers: Transfers,
    softened_failures: u64,
}

/// What others see change.
pub(crate) struct Watched {
    pub snapshots: watch::Sender<Snapshot>,
    pub links: watch::Sender<KvLink>,
}

/// Why the driver ended: the emulator stops, or the engine died.
pub(crate) type Ended = Result<(), String>;

impl Driver {
    pub fn new(
        engine: Engine,
        config: EmulatorConfig,
        clock: Clock,
        commands: mpsc::UnboundedReceiver<Command>,
        watched: Watched,
        hosted: Option<Hosted>,
    ) -> Self {
        Self {
            engine,
            config,
            clock,
            commands,
            watched,
            hosted,
            sinks: HashMap::new(),
            moving: JoinSet::new(),
            link: Link::default(),
            transfers: Transfers::default(),
            softened_failures: 0,
        }
    }

    /// Runs until nobody can send commands any more, or one kills the engine.
    pub async fn run(mut self) -> Ended {
        let mut step_ended: Option<Duration> = None;
        loop {
            self.engine.expire_holds(self.clock.now());
            self.with_host(Hosted::expire);
            for load in self.engine.admit() {
                self.load(load);
            }
            self.follow();
            self.publish();
            let now = self.clock.now();
            match self.engine.begin_step() {
                Some(duration) => {
                    let begun =
                        step_ended.filter(|ended| now.saturating_sub(*ended) < TIMER_SLACK).unwrap_or(now);
                    let end = begun.saturating_add(duration);
                    if self.serve_until(end).await? {
                        return Ok(());
                    }
                    step_ended = Some(end.max(begun));
                    self.follow();
                    for emitted in self.engine.finish_step(self.clock.now()) {
                        self.deliver(emitted);
                    }
                    // Even where nothing takes time, clients get a turn after each step.
                    tokio::task::yield_now().await;
                }
                None => {
                    step_ended = None;
                    self.publish();
                    if self.serve_one().await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Serves commands while a step takes its time. True at the end of all.
    async fn serve_until(&mut self, end: Duration) -> Result<bool, String> {
        let end = self.clock.instant(end);
        loop {
            tokio::select! {
                command = self.commands.recv() => {
                    let Some(command) = command else { return Ok(true) };
                    self.obey(command)?;
                    self.publish();
                }
                Some(moved) = self.moving.join_next() => self.moved(moved.ok()),
                news = host::news(&mut self.hosted) => {
                    self.happened(news);
                    self.publish();
                }
                () = sleep_until(end) => return Ok(false),
            }
        }
    }

    /// Waits for anything to do. True at the end of all.
    async fn serve_one(&mut self) -> Result<bool, String> {
        let expiries = [self.engine.next_expiry(), self.hosted.as_ref().and_then(Hosted::next_expiry)];
        let expiry = expiries.into_iter().flatten().min().map(|at| self.clock.instant(at));
        tokio::select! {
            command = self.commands.recv() => {
                let Some(command) = command else { return Ok(true) };
                self.obey(command)?;
            }
            Some(moved) = self.moving.join_next() => self.moved(moved.ok()),
            news = host::news(&mut self.hosted) => self.happened(news),
            () = sleep_until(expiry.unwrap_or_else(|| self.clock.instant(Duration::MAX))), if expiry.is_some() => {}
        }
        Ok(false)
    }

    fn obey(&mut self, command: Command) -> Ended {
        // An asker that left does not miss its answer.
        match command {
            Command::Submit(order) => self.submit(*order),
            Command::Abort(sequence) => self.abort(sequence),
            Command::ReadBlocks { blocks, reply } => {
                let _ = reply.send(self.read(&blocks));
            }
            Command::ReleaseHold { name, reply } => {
                let _ = reply.send(self.engine.release_hold(&name));
            }
            Command::ReleaseRemote(remote) => self.release_remote(remote),
            Command::CountSoftened => self.softened_failures += 1,
            Command::Report(reply) => {
                let _ = reply.send(Report {
                    occupancy: self.engine.occupancy(),
                    counts: self.engine.counts().clone(),
                    transfers: self.transfers.clone(),
                    kv_link: self.kv_link(),
                    softened_failures: self.softened_failures,
                });
            }
            Command::FlipByte { block, offset, reply } => {
                let _ = reply.send(self.engine.flip_bit(block, offset));
            }
            Command::Die(why) => return Err(why),
        }
        Ok(())
    }

    fn submit(&mut self, order: Order) {
        let Order { id, submission, mut source, deliver } = order;
        if let Some(Source::Host(wanted)) = source.take_if(|source| matches!(source, Source::Host(_))) {
            self.with_host(|hosted, _| hosted.submit(id, *wanted, &submission.prompt));
        }
        self.sinks.insert(id, Sink { choice: submission.choice, deliver, source });
        self.engine.submit(id, submission, self.clock.now());
    }

    fn abort(&mut self, sequence: SequenceId) {
        let Some(sink) = self.sinks.remove(&sequence) else { return };
        self.engine.abort(sequence, Finish::Abort);
        self.with_host(|hosted, place| hosted.aborted(sequence, place));
        // Never admitted, so its blocks were never read: tell the holder that nobody will.
        if let Some(Source::Known(remote)) = sink.source {
            self.release_remote(remote);
        }
    }

    fn deliver(&mut self, emitted: Emitted) {
        let Emitted { sequence, token, cached_tokens, finished } = emitted;
        let finished = finished.map(|finished| self.end(sequence, finished));
        let Some(sink) = self.sinks.get(&sequence) else { return };
        let over = finished.is_some();
        let delivery = Delivery::Token { choice: sink.choice, token, cached_tokens, finished };
        // There is room for every token; a request that left sends an abort.
        let _ = sink.deliver.try_send(delivery);
        if over {
            self.sinks.remove(&sequence);
        }
    }

    fn publish(&self) {
        let now = self.engine.occupancy();
        self.watched.snapshots.send_if_modified(|last| std::mem::replace(last, now) != now);
        let link = self.kv_link();
        self.watched.links.send_if_modified(|last| std::mem::replace(last, link) != link);
    }

    fn kv_link(&self) -> KvLink {
        self.hosted.as_ref().map(Hosted::figures).unwrap_or_default()
    }
}
