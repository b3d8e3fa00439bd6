//! A model of an inference engine: tokens, paged KV cache, continuous batching, time.
//!
//! No IO, no clock, no randomness: time comes in as an argument and goes out as a duration, so that the same model
//! serves an emulator in real time and a simulator in virtual time.
//!
//! The KV bytes are made up, but they behave as real ones do where it matters: each token's entry depends on all
//! tokens before it, and the next token depends on every byte of every entry. A block that was not copied, or copied
//! wrong, gives another answer; [`oracle`] says which answer is right without ever touching a cache.

#![forbid(unsafe_code)]

pub mod chat;
pub mod engine;
pub mod free_list;
pub mod histogram;
pub mod holds;
pub mod model;
pub mod oracle;
pub mod pool;
pub mod slab;
pub mod time;
pub mod tokens;

pub use engine::{Engine, EngineConfig};
pub use model::{Model, Sampling};
pub use time::TimeModel;
pub use tokens::{Token, words};
