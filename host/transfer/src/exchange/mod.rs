//! Where the engines of one host exchange KV: their machines, the messages between them, their operations.
//!
//! [`protocol`](crate::protocol) decides. Here is its shell: one thread, none of a runtime's, which owns the machines
//! of every attached engine, carries their messages in memory, makes [`Post`](crate::protocol::Post)s into plans and
//! posts those to a [`Fabric`](crate::fabric::Fabric), ticks by an injected clock, and closes endpoints.
//!
//! [`Handle`] puts commands into one bounded queue; what follows comes by the bounded [`Events`] of each engine. A
//! full queue is the caller's error; an engine that leaves its events unread is detached.
//!
//! What the shell owes the machines, beside obeying them:
//! - An operation that failed may still land. It is over when the endpoint between the two is closed, not before.
//! - An endpoint that is opened again has another key, and what was meant for the one before is not posted by it.
//! - A slab is let go of when no endpoint reaches it any more.
#![forbid(unsafe_code)]

mod acting;
mod answer;
mod command;
mod endpoints;
#[cfg(test)]
mod endpoints_cases;
mod engine;
mod events;

mod handle;
mod jobs;
#[cfg(test)]
mod jobs_cases;
pub mod limits;
mod metrics;
mod obeying;
mod posting;
mod queue;
mod running;
mod stepping;
mod waiting;
mod work;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use answer::{Answer, Stopped};
pub use command::{AttachError, CommandError, Hold, NotTaken, Outcome, Receive, Said};
pub use endpoints::HostFabric;
pub use engine::Books;
pub use events::{Deaf, Detached, Ears, Events};

pub use handle::{Attached, Handle};
pub use metrics::{Departed, Figures, Flow, FlowFigures};
pub use running::{Clock, Running, StartError, StopError};
pub use stepping::{Exchange, Rest};

/// What handles and the thread have in common.
#[derive(Debug, Default)]
struct Shared {
    queue: queue::Queue,
    figures: Mutex<Figures>,
}

impl Shared {
    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
