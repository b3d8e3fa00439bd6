//! The engine's one owner: it waits out what the model says, moves KV, and hands tokens out.

use std::collections::HashMap;
use std::time::Duration;

use sluice_sim::Engine;
use sluice_sim::engine::{Emitted, Finish, Load, Loaded, SequenceId};
use sluice_sim::time::Link;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::client::{Command, Delivery, Order, Source};
use crate::clock::Clock;
use crate::config::{EmulatorConfig, LoadFailure};
use crate::kv::{self, MAX_BLOCK_BYTES, ReadError};
use crate::probe::Snapshot;
use crate::report::{Report, Transfers};
use crate::transfer_params::RemoteKv;

/// How long vLLM waits for an engine that does not answer.
const HANDSHAKE_LIMIT_MS: f64 = 5_000.0;
/// A step that ended late by less than this, because timers are coarse, does not delay the next one.
const TIMER_SLACK: Duration = Duration::from_millis(3);

/// A sequence's way back to its request.
struct Sink {
    choice: u32,
    deliver: mpsc::Sender<Delivery>,
    source: Option<Source>,
}

/// What became of work on the KV socket.
enum Moved {
    Read { sequence: SequenceId, began: Duration, result: Result<Vec<u8>, ReadError> },
    Released(Result<bool, ReadError>),
}

pub(crate) struct Driver {
    engine: Engine,
    config: EmulatorConfig,
    clock: Clock,
    commands: mpsc::UnboundedReceiver<Command>,
    snapshots: watch::Sender<Snapshot>,
    sinks: HashMap<SequenceId, Sink>,
    /// Reads and releases under way: at most one a sequence or connection.
    moving: JoinSet<Moved>,
    link: Link,
    transfers: Transfers,
    softened_failures: u64,
}

/// Why the driver ended: the emulator stops, or the engine died.
pub(crate) type Ended = Result<(), String>;

impl Driver {
    pub fn new(
        engine: Engine,
        config: EmulatorConfig,
        clock: Clock,
        commands: mpsc::UnboundedReceiver<Command>,
        snapshots: watch::Sender<Snapshot>,
    ) -> Self {
        Self {
            engine,
            config,
            clock,
            commands,
            snapshots,
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
            for load in self.engine.admit() {
                self.fetch(load);
            }
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
                () = sleep_until(end) => return Ok(false),
            }
        }
    }

    /// Waits for anything to do. True at the end of all.
    async fn serve_one(&mut self) -> Result<bool, String> {
        let expiry = self.engine.next_expiry().map(|at| self.clock.instant(at));
        tokio::select! {
            command = self.commands.recv() => {
                let Some(command) = command else { return Ok(true) };
                self.obey(command)?;
            }
            Some(moved) = self.moving.join_next() => self.moved(moved.ok()),
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
        let Order { id, submission, source, deliver } = order;
        self.sinks.insert(id, Sink { choice: submission.choice, deliver, source });
        self.engine.submit(id, submission, self.clock.now());
    }

    fn abort(&mut self, sequence: SequenceId) {
        let Some(sink) = self.sinks.remove(&sequence) else { return };
        self.engine.abort(sequence, Finish::Abort);
        // Never admitted, so its blocks were never read: tell the holder that nobody will.
        if let Some(Source::Known(remote)) = sink.source {
            self.release_remote(remote);
        }
    }

    fn read(&mut self, blocks: &[u32]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for block in blocks {
            bytes.extend(self.engine.read_block(*block)?);
            if bytes.len() > MAX_BLOCK_BYTES {
                return None;
            }
        }
        self.transfers.served_bytes += bytes.len() as u64;
        Some(bytes)
    }

    fn block_bytes(&self) -> usize {
        self.config.block_tokens * self.config.kv_bytes_per_token
    }

    fn handshake_limit(&self) -> Duration {
        self.config.time.scaled_ms(HANDSHAKE_LIMIT_MS)
    }

    fn release_remote(&mut self, remote: RemoteKv) {
        let (block_bytes, limit) = (self.block_bytes(), self.handshake_limit());
        self.moving.spawn(async move { Moved::Released(kv::release(&remote, block_bytes, limit).await) });
    }

    /// Starts to fetch what an admitted sequence wants.
    fn fetch(&mut self, load: Load) {
        let source = self.sinks.get_mut(&load.sequence).and_then(|sink| sink.source.take());
        let Some(Source::Known(remote)) = source else {
            // vLLM waits for ever when it was not told where to read.
            return;
        };
        if load.blocks.is_empty() {
            return self.release_remote(remote);
        }
        let began = self.clock.now();
        if remote.expires_at_s.is_some_and(|end| end <= self.clock.machine_s(began)) {
            // The holder has let go. With the policy `recompute` vLLM never comes back from this.
            if self.config.load_failure == LoadFailure::Fail {
                self.failed(load.sequence, "the hold has expired");
            }
            return;
        }
        // Both lists end at the same token; what is cached here need not be read.
        let Some(skip) = remote.blocks.len().checked_sub(load.blocks.len()) else {
            return self.failed(load.sequence, "fewer remote blocks than the prompt needs");
        };
        let block_bytes = self.block_bytes();
        let takes = self.config.time.transfer(load.blocks.len() * block_bytes);
        let not_before = self.clock.instant(self.link.book(began, takes));
        let limit = self.handshake_limit();
        self.moving.spawn(async move {
            let result =
                kv::read_blocks(&remote, &remote.blocks[skip..], block_bytes, limit, not_before).await;
            Moved::Read { sequence: load.sequence, began, result }
        });
    }

    fn moved(&mut self, moved: Option<Moved>) {
        match moved {
            Some(Moved::Read { sequence, began, result: Ok(bytes) }) => {
                self.transfers.read_bytes.observe(bytes.len() as f64);
                self.transfers.read_s.observe(self.clock.now().saturating_sub(began).as_secs_f64());
                let content = match self.config.faults.skip_kv_copy {
                    true => Loaded::AsTheyAre,
                    false => Loaded::Bytes(&bytes),
                };
                self.engine.loaded(sequence, content);
            }
            Some(Moved::Read { sequence, result: Err(error), .. }) => {
                self.failed(sequence, &error.to_string())
            }
            Some(Moved::Released(Ok(freed))) => self.transfers.released_early += u64::from(freed),
            Some(Moved::Released(Err(error))) => tracing::warn!(%error, "the holder could not be told"),
            // A task ends without a result only when the emulator is being dropped.
            None => {}
        }
    }

    fn failed(&mut self, sequence: SequenceId, why: &str) {
        tracing::warn!(why, "KV could not be fetched");
        self.transfers.failed += 1;
        match self.config.load_failure {
            LoadFailure::Recompute => {
                self.engine.loaded(sequence, Loaded::Nothing);
            }
            LoadFailure::Fail => {
                self.engine.abort(sequence, Finish::Error);
                if let Some(sink) = self.sinks.remove(&sequence) {
                    let _ = sink.deliver.try_send(Delivery::Failed);
                }
            }
        }
    }

    fn deliver(&mut self, emitted: Emitted) {
        let Emitted { sequence, token, cached_tokens, finished } = emitted;
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
        self.snapshots.send_if_modified(|last| std::mem::replace(last, now) != now);
    }
}

#[cfg(test)]
mod tests {
    use sluice_sim::TimeModel;
    use sluice_sim::engine::{HoldRequest, Submission};
    use tokio::time::Instant;

    use super::*;
    use crate::client::EngineClient;
    use crate::probe::Probe;

    /// A driver without sockets, in paused time: what it waits for passes at once and is counted exactly.
    fn driven(config: EmulatorConfig) -> (Probe, JoinSet<Ended>) {
        let engine = Engine::new(config.engine().unwrap()).unwrap();
        let (sender, commands) = mpsc::unbounded_channel();
        let (changes, snapshots) = watch::channel(engine.occupancy());
        let mut tasks = JoinSet::new();
        tasks.spawn(Driver::new(engine, config, Clock::start(), commands, changes).run());
        (Probe { client: EngineClient::new(sender), snapshots }, tasks)
    }

    fn timed() -> EmulatorConfig {
        let time = TimeModel {
            prefill_tokens_per_s: 1_000.0,
            decode_step_base_ms: 8.0,
            decode_step_per_sequence_ms: 1.0,
            ..TimeModel::default()
        };
        EmulatorConfig { time, max_step_tokens: 500, ..EmulatorConfig::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_when_the_model_says() {
        let (probe, _tasks) = driven(timed());
        let start = Instant::now();
        let prompt = vec![300; 1_200];
        let submission = Submission { prompt, max_tokens: 4, ignore_end: true, ..Submission::default() };
        let mut running = probe.client.run(vec![submission], None).unwrap();
        let mut at_ms = Vec::new();
        while let Some(Delivery::Token { finished, .. }) = running.deliveries.recv().await {
            at_ms.push(start.elapsed().as_millis());
            if finished.is_some() {
                break;
            }
        }
        assert_eq!(at_ms, [1_200, 1_209, 1_218, 1_227]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_ends_with_its_lease() {
        let (mut probe, _tasks) = driven(timed());
        let hold = HoldRequest { name: "p".into(), lease: Duration::from_secs(30), when_stopped: false };
        let prompt = vec![300; 100];
        let submission = Submission { prompt, max_tokens: 1, hold: Some(hold), ..Submission::default() };
        let _running = probe.client.run(vec![submission], None).unwrap();
        assert_eq!(probe.until(|engine| engine.holds == 1).await.unwrap().held_blocks, 7);
        let held = Instant::now();
        assert_eq!(probe.until(|engine| engine.holds == 0).await.unwrap().blocks.used, 0);
        assert_eq!(held.elapsed().as_secs(), 30);
    }
}
