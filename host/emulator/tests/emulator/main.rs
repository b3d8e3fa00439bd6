//! Emulators over real loopback sockets, against the oracle and against what a real vLLM sent.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod answers;
mod bidirectional;
mod client;
mod failures;
mod golden;
mod holds;
mod hosted;
mod pull;
