//! The KV socket: how emulators read each other's blocks.
//!
//! It stands in for NIXL and is nobody else's protocol. A reader connects, names the engine it expects, reads blocks by
//! number and says when it is done, whereupon the holder frees them. As with one-sided reads over a real fabric, the
//! holder does not check whether the blocks still belong to the reader: a late read gets whatever is in them now.
//!
//! A frame is a length (u32, little endian, of what follows), a kind (u8) and a body:
//!
//! | kind | from | body |
//! |---|---|---|
//! | 1 hello | reader | block size in bytes (u32), engine id (UTF-8) |
//! | 2 read | reader | block numbers (u32 each) |
//! | 3 done | reader | name of the hold (UTF-8) |
//! | 129 welcome | holder | empty |
//! | 130 refused | holder | why (UTF-8); the holder closes |
//! | 131 blocks | holder | bytes of the blocks asked for, end to end |
//! | 132 released | holder | 1 when the hold was freed by this, 0 when it was unknown or over (u8) |

mod frame;
mod reader;
mod server;

pub use frame::{BadFrame, Frame, MAX_BLOCK_BYTES, MAX_FRAME_BYTES};
pub use reader::ReadError;
pub(crate) use reader::{read_blocks, release};
pub(crate) use server::{Identity, serve};
