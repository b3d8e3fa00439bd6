//! What a transfer and a hold go through, as pure state machines.
#![forbid(unsafe_code)]

mod closed;
mod deadlines;
mod event;
mod hold;
pub mod limits;
mod message;
mod names;
mod owner;
mod region;
mod sink;
mod source;
pub mod wire;

pub use deadlines::Deadlines;
pub use event::{Action, Event, Feed, Generations, NewHold, NewSink, Outcome, Place, Post};
pub use hold::{Hold, HoldPhase, RenewRefused};
pub use message::{Body, End, HoldEnd, Lease, Message, Reason, Registration};
pub use names::{Attempt, BlockRef, Direction, EngineId, Epoch, Key, Link, Op, Peer, Rank, TransferId, Verb};
pub use owner::{Refused, Transfers};
pub use region::{Grid, Rect, Region, TooFragmented};
pub use sink::{Sink, SinkPhase};
pub use source::{Source, SourcePhase};
