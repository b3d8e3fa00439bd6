//! How the rest of the emulator talks to the engine's one owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_engine_sdk::leg::{self, Wanted};
use sluice_sim::engine::{Finish, Held, SequenceId, Submission};
use sluice_sim::tokens::Token;
use tokio::sync::{mpsc, oneshot};

use crate::report::Report;
use crate::transfer_params::RemoteKv;

/// Where a sequence's KV is to come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// An engine that can be asked.
    Known(RemoteKv),
    /// One that can't: the sequence waits until its client leaves.
    Unknown,
    /// The host of this node brings it, and has what is to be kept.
    Host(Box<Wanted>),
}

/// What a request gets back.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Delivery {
    Token { choice: u32, token: Token, cached_tokens: usize, finished: Option<End> },
    Failed,
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct End {
    pub reason: Finish,
    pub kept: Option<Kept>,
}

/// KV that is kept beyond the answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kept {
    /// Here, for an engine that reads it.
    ForReader(Held),
    /// Where the host knows it.
    ForHost(leg::Held),
}

/// One sequence to run.
#[derive(Debug)]
pub(crate) struct Order {
    pub id: SequenceId,
    pub submission: Submission,
    pub source: Option<Source>,
    pub deliver: mpsc::Sender<Delivery>,
}

#[derive(Debug)]
pub(crate) enum Command {
    Submit(Box<Order>),
    Abort(SequenceId),
    /// Bytes of blocks, end to end; `None` when there is no such block.
    ReadBlocks {
        blocks: Vec<u32>,
        reply: oneshot::Sender<Option<Vec<u8>>>,
    },
    ReleaseHold {
        name: String,
        reply: oneshot::Sender<bool>,
    },
    /// End a hold at another engine.
    ReleaseRemote(RemoteKv),
    CountSoftened,
    Report(oneshot::Sender<Report>),
    FlipByte {
        block: u32,
        offset: usize,
        reply: oneshot::Sender<bool>,
    },
    /// Exit, as a real engine would.
    Die(String),
}

/// The engine's owner has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

/// Sends commands to the engine's owner. The queue has no bound of its own: every command but `Abort` comes from an
/// open connection that waits for its answer, and those are bounded; a sequence is aborted at most once.
#[derive(Debug, Clone)]
pub(crate) struct EngineClient {
    commands: mpsc::UnboundedSender<Command>,
    next_id: Arc<AtomicU64>,
}

impl EngineClient {
    pub fn new(commands: mpsc::UnboundedSender<Command>) -> Self {
        Self { commands, next_id: Arc::default() }
    }

    /// Sends a command that has no answer.
    pub fn send(&self, command: Command) -> Result<(), Gone> {
        self.commands.send(command).map_err(|_| Gone)
    }

    /// Sends a command and waits for its answer.
    pub async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Gone> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| Gone)
    }

    /// Starts the sequences of one request.
    pub fn run(&self, submissions: Vec<Submission>, mut source: Option<Source>) -> Result<Running, Gone> {
        // Room for every token and the failure of each sequence: the engine never waits for a slow client.
        let room = submissions.iter().map(|submission| submission.max_tokens + 1).sum();
        let (deliver, deliveries) = mpsc::channel(room);
        let mut ticket = Ticket { client: self.clone(), sequences: Vec::new() };
        for submission in submissions {
            let id = SequenceId(self.next_id.fetch_add(1, Ordering::Relaxed));
            let order = Order { id, submission, source: source.take(), deliver: deliver.clone() };
            self.send(Command::Submit(Box::new(order)))?;
            ticket.sequences.push(id);
        }
        Ok(Running { deliveries, ticket })
    }
}

/// A request in the engine.
#[derive(Debug)]
pub(crate) struct Running {
    pub deliveries: mpsc::Receiver<Delivery>,
    pub ticket: Ticket,
}

/// Aborts its sequences when dropped: this is how a client that leaves frees its blocks.
#[derive(Debug)]
pub(crate) struct Ticket {
    client: EngineClient,
    sequences: Vec<SequenceId>,
}

impl Ticket {
    /// All sequences have ended: nothing is left to abort.
    pub fn served(&mut self) {
        self.sequences.clear();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        for sequence in self.sequences.drain(..) {
            // An engine that is gone has no blocks to free.
            let _ = self.client.send(Command::Abort(sequence));
        }
    }
}
