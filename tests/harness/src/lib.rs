//! Starts real `sluice` processes on ports that the system chooses, drives them as clients do, and checks every answer
//! against the oracle of the engine model.
//!
//! Nothing here reaches into a process: what the harness sees is what a user sees. It belongs to tests, benches and
//! demos, so it reads the real clock.

#![forbid(unsafe_code)]

pub mod artifacts;
pub mod ask;
pub mod budget;
pub mod client;
pub mod collector;
pub mod decision;
pub mod emulator;
pub mod error;
pub mod fleet;
pub mod gate;
pub mod host;
pub mod host_plan;
pub mod metrics;
pub mod mock_engine;
mod odd_connections;
pub mod policy_file;
pub mod process;
pub mod process_tree;
pub mod progress;
pub mod quantiles;
pub mod table;
pub mod wait;
pub mod workload;

pub use ask::{Ask, Endpoint, Expected, Reply};
pub use client::{Answer, Client, EventStream};
pub use collector::{Collector, Exported};
pub use decision::Decision;
pub use emulator::{Emulator, EmulatorPlan};
pub use error::HarnessError;
pub use fleet::{Fleet, FleetPlan};
pub use gate::{Answers, Gate};
pub use host::{Host, ListedPolicy, Policies};
pub use host_plan::{HostPlan, Mode, WorkerPlan};
pub use metrics::Metrics;
pub use mock_engine::{Canned, MockEngine, Recorded};
pub use policy_file::PolicyFile;
pub use process_tree::ProcessTree;
pub use wait::until;
