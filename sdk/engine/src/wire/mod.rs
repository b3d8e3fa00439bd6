//! The link's messages as bytes. Pure: no socket, no memory, no clock.
//!
//! All numbers are little-endian; there is no padding and nothing is optional. Each side begins with [`MAGIC`], and
//! everything after it is frames: `u32` bytes to come, `u8` kind, the members of that kind in the order in which they
//! are declared here. A list is a `u32` count and its items, a text a `u16` count of bytes and UTF-8, a choice its
//! code as `u8`.
//!
//! ```text
//! engine                                       host
//!   | MAGIC, hello, the slab's descriptor  ->    |     the descriptor comes with the first bytes
//!   |    <-  MAGIC, welcome (or refusal)         |
//!   | frames of kinds 16 to 63             ->    |     what the engine says (`ToHost`)
//!   |    <-  frames of kinds 64 to 127           |     what the host says (`ToEngine`)
//!   | <-     ping, pong, goodbye           ->    |     either, at any time
//! ```
//!
//! **What a later version may do.** A side names the oldest and the newest version that it speaks; the host takes the
//! newest that both do, and from then on nothing is sent that this version does not have. So a new version may add
//! kinds, codes, and members at the end of a kind; it never gives a number another meaning or takes one back. What is
//! unknown is an error, never skipped: a message that the other side does not know was promised not to come. Hello,
//! welcome and refusal come before there is an agreed version: they may grow at their end only, and what follows the
//! known members there is skipped. A protocol for which that is not enough has another [`MAGIC`].

mod bytes;
mod frame;
mod hello;
mod layout;
mod names;
mod proof;
mod reason;
#[cfg(test)]
mod tests;
mod to_engine;
mod to_host;

pub use bytes::{DecodeError, EncodeError};
pub use frame::{Frame, FrameBuffer, FrameError, Message, encode};
pub use hello::{
    Answer, HELLO_AT_MOST_BYTES, Hello, Preamble, Refusal, RefusalCode, Role, VERSIONS, Versions, Welcome,
    read_answer, read_hello, write_answer, write_hello,
};
pub use layout::{Element, HeadOrder, KvLayout, Order, Planes};
pub use names::{
    Attempt, BlockRef, Direction, EngineId, Epoch, Extent, Grid, Rank, Rect, Tokens, TransferId, Verb,
};
pub use proof::{Proof, proofs};
pub use reason::{HoldEnd, Reason, Refused};
pub use to_engine::{Subject, ToEngine};
pub use to_host::{NewHold, NewReceive, ToHost};

/// What both sides send first.
pub const MAGIC: [u8; 8] = *b"sluiceKL";

/// Blocks of one transfer: 16,384 blocks of 16 tokens are a prompt of 256k tokens.
pub const MAX_BLOCKS: usize = 16_384;

/// Layers of one transfer. The largest models have about 130.
pub const MAX_LAYERS: u16 = 512;

/// Bytes of one frame, its count excluded: a hold of [`MAX_BLOCKS`] blocks and their proofs, with room for the rest.
pub const MAX_FRAME_BYTES: usize = MAX_BLOCKS * (12 + 16) + 4_096;

/// Bytes of one text: a sentence that says what, where and what to do; or the name of a model.
pub const MAX_TEXT_BYTES: usize = 512;
