//! A node with engines at the other ends of its links, in this process and in others.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod anything;
mod deaths;
mod engine;
mod exchanging;
#[path = "../exchange/kv.rs"]
#[allow(dead_code, reason = "it is shared")]
mod kv;
mod proofs;
mod ranks;
mod world;
