//! One step of the exchange: commands, completions, deadlines, messages, posts, closings, farewells.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::command::Command;
use super::endpoints::{Endpoints, HostFabric};
use super::engine::Engine;
use super::events::Detached;
use super::jobs::{Jobs, Over};
use super::limits::{CLOSE_AGAIN_MS, MAX_COMMANDS_PER_STEP, MAX_DELIVERIES_PER_STEP, MAX_REST_MS};
use super::metrics::Flow;
use super::waiting::Waiting;
use crate::fabric::{Completion, Failure};
use crate::layout::{ByteCopy, Plan};
use crate::protocol::limits::Limits;
use crate::protocol::{Action, Event, Outcome, Peer};

/// The engines of one host, their machines, and what moves between them. One thread owns it; see
/// [`super::Running`]. Whoever wants to see each step calls [`Exchange::step`] instead.
#[derive(Debug)]
pub struct Exchange {
    pub(super) fabric: Arc<dyn HostFabric>,
    pub(super) shared: Arc<Shared>,
    pub(super) limits: Limits,
    pub(super) engines: BTreeMap<Peer, Engine>,
    pub(super) endpoints: Endpoints,
    pub(super) jobs: Jobs,
    /// For the machines, in order. What is no message is bounded by the operations and endpoints there are.
    pub(super) inbox: VecDeque<(Peer, Event)>,
    /// Receives of engines, until the endpoint that is in their way is closed.
    pub(super) waiting: Vec<Waiting>,
    /// Engines whose events found no room.
    pub(super) deaf: Vec<Peer>,
    pub(super) plan: Plan,
    /// Memory of ended posts, to be used again.
    pub(super) spare: Vec<Vec<ByteCopy>>,
    /// The fabric has no room until some post ends.
    pub(super) full: bool,
    /// The moment of this step.
    pub(super) now_ms: u64,
    /// Since when flows have had operations under way.
    pub(super) moving: BTreeMap<Flow, u64>,
    completions: Vec<Completion>,
    commands: Vec<Command>,
    pub(super) actions: Vec<Action>,
}

/// What is left after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// How long nothing is to be done, unless a command or a completion comes; 0 if something is.
    pub rest_ms: u64,
    /// Whether it was told to stop, and all engines have left.
    pub stopped: bool,
}

impl Exchange {
    pub(super) fn with(shared: Arc<Shared>, fabric: Arc<dyn HostFabric>, limits: Limits) -> Self {
        Self {
            fabric,
            shared,
            limits,
            engines: BTreeMap::new(),
            endpoints: Endpoints::default(),
            jobs: Jobs::default(),
            inbox: VecDeque::new(),
            waiting: Vec::new(),
            deaf: Vec::new(),
            plan: Plan::default(),
            spare: Vec::new(),
            full: false,
            now_ms: 0,
            moving: BTreeMap::new(),
            completions: Vec::new(),
            commands: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Does what is to be done now, and waits for nothing.
    pub fn step(&mut self, now_ms: u64) -> Rest {
        self.now_ms = now_ms;
        let stopping = self.obey(now_ms);
        if stopping {
            self.engines.keys().copied().collect::<Vec<_>>().into_iter().for_each(|peer| {
                self.detach(peer, Detached::Stopped);
            });
        }
        self.collect();
        self.tick(now_ms);
        self.deliver(now_ms);
        self.post();
        self.close();
        self.receive_again(now_ms);
        self.deliver(now_ms);
        std::mem::take(&mut self.deaf).into_iter().for_each(|peer| self.detach(peer, Detached::Deaf));
        self.say_farewell();
        self.publish();
        Rest { rest_ms: self.rest_ms(now_ms), stopped: stopping && self.engines.is_empty() }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.shared.queue.is_stopping()
    }

    /// Waits until something ends in the fabric, somebody wakes it, or the time is over: `true` if it was the time.
    pub(super) fn rest(&mut self, rest_ms: u64) -> bool {
        self.fabric.poll(&mut self.completions, Duration::from_millis(rest_ms)) == 0
    }

    fn rest_ms(&self, now_ms: u64) -> u64 {
        let waiting = self.shared.queue.counts().0 > 0;
        let posts = self.jobs.have_turns() && !(self.full && self.jobs.under_way() > 0);
        if waiting || posts || !self.inbox.is_empty() || !self.completions.is_empty() {
            return 0;
        }
        let due_ms = self.engines.values().filter_map(|engine| engine.transfers.next_due_ms()).min();
        let rest_ms = due_ms.map_or(MAX_REST_MS, |due_ms| due_ms.saturating_sub(now_ms));
        rest_ms.min(if self.endpoints.are_closing() { CLOSE_AGAIN_MS } else { MAX_REST_MS })
    }

    fn obey(&mut self, now_ms: u64) -> bool {
        let mut commands = std::mem::take(&mut self.commands);
        let stopping = self.shared.queue.take(MAX_COMMANDS_PER_STEP, &mut commands);
        commands.drain(..).for_each(|command| self.command(command, now_ms));
        self.commands = commands;
        stopping
    }

    /// What has ended in the fabric.
    fn collect(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.fabric.poll(&mut completions, Duration::ZERO);
        self.full &= completions.is_empty() && self.jobs.under_way() > 0;
        for Completion { ticket, result, copies, .. } in completions.drain(..) {
            match result {
                Err(Failure::Fabric(_)) => {
                    // It may still land. Only its endpoint's end says that it does not.
                    if let Some(flow) = self.jobs.lingers(ticket) {
                        self.endpoints.close(flow.source, flow.sink);
                    }
                }
                Ok(()) | Err(Failure::PeerClosed) => self.part_ended(ticket, result.is_ok()),
            }
            self.keep(copies);
        }
        self.completions = completions;
    }

    fn tick(&mut self, now_ms: u64) {
        let due = |engine: &Engine| engine.transfers.next_due_ms().is_some_and(|due_ms| due_ms <= now_ms);
        let due = self.engines.iter().filter(|(_, engine)| due(engine)).map(|(peer, _)| (*peer, Event::Tick));
        self.inbox.extend(due);
    }

    fn deliver(&mut self, now_ms: u64) {
        for _ in 0..MAX_DELIVERIES_PER_STEP {
            let Some((peer, event)) = self.inbox.pop_front() else { break };
            self.handle(peer, event, now_ms);
        }
    }

    /// Closes endpoints, and says what that ends: operations first, since their ends are proven by it.
    fn close(&mut self) {
        for endpoint in self.endpoints.go_on_closing(&*self.fabric) {
            self.jobs.closed(endpoint.key).into_iter().for_each(|over| self.over(&over));
            let (low, high) = endpoint.sides;
            for (peer, other) in [(low, high), (high, low)] {
                self.inbox.push_back((peer, Event::EndpointClosed { peer: other, key: endpoint.key }));
            }
            self.full = false;
            self.shared.figures().endpoints_closed += 1;
        }
    }

    /// Lets engines go that nothing can touch any more.
    fn say_farewell(&mut self) {
        if !self.inbox.is_empty() {
            return;
        }
        let endpoints = &self.endpoints;
        let quiet = |peer: &Peer, engine: &mut Engine| engine.leaving.is_some() && !endpoints.has(*peer);
        for (peer, engine) in self.engines.extract_if(.., quiet) {
            let why = engine.leaving.unwrap_or(Detached::Gone);
            self.shared.figures().left(peer, why);
            self.shared.queue.left(peer);
            // The slabs go first: whoever is told may unmap them.
            drop(engine.slabs);
            engine.teller.ears.end(why);
        }
    }

    pub(super) fn over(&mut self, over: &Over) {
        let Over { id: (poster, op), outcome, flow } = *over;
        let mut figures = self.shared.figures();
        let figures = figures.flow(flow);
        figures.queued -= 1;
        if figures.queued == 0
            && let Some(since_ms) = self.moving.remove(&flow)
        {
            figures.moving_ms += self.now_ms.saturating_sub(since_ms);
        }
        match outcome {
            Outcome::Done => figures.operations += 1,
            Outcome::Failed => figures.failed += 1,
        }
        self.inbox.push_back((poster, Event::Posted { op, outcome }));
    }

    fn publish(&self) {
        let mut figures = self.shared.figures();
        figures.engines = self.engines.len();
        figures.endpoints = self.endpoints.count();
        figures.posts = self.jobs.under_way();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Commands that nobody will obey say so to whoever waits for them.
        self.shared.queue.close();
    }
}
