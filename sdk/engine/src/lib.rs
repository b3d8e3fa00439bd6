//! Attach an inference engine to the Sluice host of its node, so that the host moves its KV blocks.
//!
//! The engine puts its KV blocks into a [`Slab`], memory that the host maps too, and tells the host what lies there.
//! The host moves blocks between engines, by push or pull as the router decides for each request, and tells the
//! engine what has come. All it takes is one unix socket: no network library, no async runtime, no memory to
//! register.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use sluice_engine_sdk::wire::{
//!     BlockRef, Element, Extent, HeadOrder, KvLayout, NewHold, Order, Planes, Rank, Rect, Role, ToEngine, TransferId,
//! };
//! use sluice_engine_sdk::{Engine, EngineLink, Event, Settings, Slab, incarnation_now};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layout = KvLayout {
//!     blocks: 4_096,
//!     block_tokens: 16,
//!     layers: 32,
//!     planes: Planes::KeyValue,
//!     kv_heads: 8,
//!     head_dim: 128,
//!     element: Element::Bf16,
//!     tp_size: 1,
//!     order: Order::BlockLayerPlane,
//!     head_order: HeadOrder::TokensOutermost,
//! };
//! let slab = Arc::new(Slab::create(layout.rank_bytes().ok_or("a layout beyond all memory")?)?);
//! let engine = Engine {
//!     name: "prefill-0".to_owned(),
//!     incarnation: incarnation_now(),
//!     rank: Rank(0),
//!     role: Role::Prefill,
//!     model: "llama-3.1-8b".to_owned(),
//!     layout,
//! };
//! let (link, mut session) =
//!     EngineLink::attach("/run/sluice/kv.sock", engine, Arc::clone(&slab), Settings::default())?;
//!
//! // A prefill of 30 tokens in two blocks. The router named the transfer when it sent the request: see `leg`.
//! let id = TransferId(7);
//! let blocks = vec![BlockRef { index: 10, generation: 1 }, BlockRef { index: 11, generation: 1 }];
//! let extent = Extent { first_token: 0, end_token: 30, position_tokens: 16 };
//! let whole = extent.grid(layout.layers).ok_or("no tokens")?.whole();
//! session.hold(NewHold {
//!     id, extent, blocks, first_token: 0, proofs: Vec::new(),
//!     fill_ms: 60_000, ttl_ms: 30_000, renewable: true, margin_ms: 2_000,
//! })?;
//! for layer in 0..32 {
//!     // ... compute the layer into the slab, then say so: transfers begin while the prefill goes on.
//!     session.ready(id, Rect { first_layer: layer, end_layer: layer + 1, ..whole })?;
//! }
//! session.filled(id)?;
//!
//! // Every turn of the engine's loop.
//! while let Some(event) = link.poll_event(Duration::ZERO)? {
//!     match event {
//!         Event::Host(ToEngine::Freed { blocks }) => { /* may be used again, under a new generation */ }
//!         Event::Host(ToEngine::Confirm { attempt, number, blocks }) => {
//!             let held = true; // whether all of `blocks` are still in the generations that it names
//!             session.confirmed(attempt, number, held)?;
//!         }
//!         Event::Host(ToEngine::Completed { attempt }) => { /* decode from the blocks of this attempt */ }
//!         Event::Host(ToEngine::Failed { attempt, reason }) => { /* compute the prompt instead */ }
//!         Event::Host(_) => {}
//!         // The engine goes on: what was to come is computed here. Blocks stay as they are for now.
//!         Event::Detached { .. } | Event::Waiting(_) => {}
//!         Event::HostGone { .. } => { /* all blocks are the engine's own */ }
//!         Event::Attached(next) => session = next, // they are now, at the latest
//!         Event::GaveUp(error) => return Err(error.into()),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **Whose a block is.** The engine allocates blocks and counts their generations: one more each time a block is
//! handed out. A block that was named in a hold or a receive is not reused before [`wire::ToEngine::Freed`] names it
//! (or [`wire::ToEngine::Completed`] makes it the engine's own): somebody elsewhere may still be reading or writing
//! it, however long ago the request ended. [`Event::Detached`] says what becomes of blocks when the host is gone.
//!
//! **When the host dies** the engine is told by [`Event::Detached`] and goes on. The link tries to attach again for as
//! long as it lives; a [`Session`] speaks to one life of the host only.
//!
//! **Ranks.** Each tensor-parallel rank has a slab and a link of its own, under the engine's one id.

pub mod leg;
pub mod link;
pub mod slab;
#[doc(hidden)]
pub mod transport;
pub mod wire;

pub use link::{
    AttachError, Engine, EngineLink, Event, LinkClosed, SendError, Session, Settings, incarnation_now,
};
pub use slab::{Slab, SlabError};
pub use transport::LinkEnd;
