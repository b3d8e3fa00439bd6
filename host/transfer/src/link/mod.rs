//! The host's end of the KV link: engines of this node attach by a unix socket and give their KV memory.
//!
//! A [`LinkListener`] takes engines in, checks who they are and that their memory can be mapped for good, and turns
//! what they say into [`LinkEvent`]s. It decides nothing about transfers. The messages are
//! [`sluice_engine_sdk::wire`]'s, so that both ends cannot disagree.
//!
//! Threads: one accepts, and each engine has one that reads and one that writes. All waits have deadlines, all queues
//! bounds; an engine that breaks either is cut off, which is an event like its death.

mod accepting;
mod admission;
mod checks;
mod event;
mod handshake;
mod listener;
mod place;
mod registry;
mod settings;

pub use event::{Attached, EngineSender, LinkEvent, SendError};
pub use listener::LinkListener;
pub use place::{BindError, check_place};
pub use settings::{MAX_ENGINES, MAX_HANDSHAKES, Settings};
pub use sluice_engine_sdk::LinkEnd;
pub use sluice_engine_sdk::wire;
