//! The transfer core of one node: the engines that attach by the KV [`link`](crate::link), exchanging KV by an
//! [`exchange`](crate::exchange).
//!
//! ```text
//! link threads, one a rank ──commands──> kv-exchange ──> copy threads
//!      ^      (engines of several ranks, proofs)     │
//!      └───────── Ears: what engines are told ───────┘
//! the host: NodeHandle (who is attached, which holds there are; renew, release, cancel)
//! ```
//!
//! What is decided here is what only the node can know: an engine is attached once all its ranks are; it is gone with
//! the first of them; of a kept turn a later prompt gets as much as both engines' proofs show to be equal.
#![forbid(unsafe_code)]

mod ears;
mod engines;
mod event;
mod handle;
mod hearing;
mod holds;
mod running;

pub use engines::AttachedEngine;
pub use event::NodeEvent;
pub use handle::NodeHandle;
pub use holds::{HeldBlocks, MAX_EARLY_REPORTS, MAX_PROOFS};
pub use running::{Node, NodeError, NodeSettings};
