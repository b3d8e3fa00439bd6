//! The exchange from outside: engines with real slabs, stepped by hand over a fabric that fails as it is told, and
//! with its thread over copy threads.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod asked;
mod bounds;
mod deaths;
mod engine;
mod kv;
mod moves;
mod ordered;
mod world;
