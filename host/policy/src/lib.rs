//! Sluice's policy host: loads, checks, calls and swaps WASM policies.
//!
//! A policy is a pure function in a `.wasm` file. The host reads a folder of them ([`PolicyHost::open`]),
//! tries each one before it may decide, and puts the whole set in force at once as a [`Generation`]. When files
//! change ([`PolicyHost::watch`]), the next generation is built beside the requests being served, and swapped in.
//!
//! Invariants:
//! - A request takes one generation and keeps it; a generation never changes.
//! - A file that fails any check leaves the older version of its policy in force.
//! - An instance that faulted is never called again.
//! - No call of a policy runs beyond its CPU budget and its bound by the clock, give or take a tick of 1 ms. An
//!   instance that has to be made for it, and the second run that tries its purity, count in.
//! - What was superseded keeps no instance, and answers no more once [`LIVE_GENERATIONS_MAX`] swaps are past.
#![forbid(unsafe_code)]

mod bindings;
mod clock;
mod component_file;
mod convert;
mod description;
mod engine;
mod expansion;
mod fault;
mod folder;
mod generation;
mod host;
mod instance;
mod limits;
mod load;
mod load_error;
mod meter;
mod observer;
mod policy;
mod records;
mod settings;
mod shown;
mod status;
mod superseded;
mod trial;
mod trial_facts;
mod warm;
mod watch;
mod world;

pub use component_file::HOOKS;
pub use description::{ABOUT_BYTES_MAX, STATED_BYTES_MAX};
pub use fault::{FAULT_KINDS, Fault, Hook};
pub use folder::{check_folder, settings_beside};
pub use generation::Generation;
pub use host::{HostConfig, PolicyHost};
pub use limits::{LIVE_GENERATIONS_MAX, Limits};
pub use load::{CheckError, Checked, check_file};
pub use load_error::{LoadError, OpenError, Refusal};
pub use observer::Observer;
pub use policy::Policy;
pub use status::{PolicyState, PolicyStatus, RefusalStatus, ReloadOutcome};
pub use trial::{TrialAnswer, TrialRow};
pub use watch::Watcher;
