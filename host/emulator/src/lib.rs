//! An engine emulator: it speaks vLLM's wire, but it is no vLLM and runs no model.
//!
//! Behind the HTTP API stands the engine model of `sluice-sim`: a paged KV cache, continuous batching, stated speeds.
//! KV really moves between emulators, over a socket of our own that stands in for NIXL ([`kv`]) or by the host of the node
//! ([`EmulatorConfig::kv_link`]), and the next token is computed from the KV bytes present. So a router that hands over the wrong blocks, or none, gets wrong answers,
//! as it would from a real engine. What kills or hangs a real engine kills or hangs this one too, unless
//! [`EmulatorConfig::soft_failures`] is set.

#![forbid(unsafe_code)]

mod args;
mod client;
mod clock;
mod config;
mod driver;
mod hosted;
mod http;
pub mod kv;
mod listener;
mod metrics;
mod probe;
mod report;
mod run;
mod transfer_params;

pub use args::EmulateArgs;
pub use config::{Connector, EmulatorConfig, Faults, InvalidConfig, LoadFailure, Role, Wire};
pub use probe::{Probe, Snapshot};
pub use report::{KvLink, Report, Transfers};
pub use run::{Died, Emulator, RunError, StartError, run_until, start};
