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
//! - No call of a policy runs beyond its CPU budget and its bound by the clock, give or take a tick of 2 ms. An
//!   instance that has to be made for it, and the second run that tries its purity, count in.
//! - Compiled code is taken from the cache only if this user alone can have put it there and it is whole (`cache`), or
//!   from a compiler that this process started (`compile_process`); the one unsafe call of this crate takes it
//!   (`trusted_code`).
//! - A version that failed in more than 1% of its last 1,000 calls decides for no new request until its file changes.
//! - What was superseded keeps no instance, and answers no more once [`LIVE_GENERATIONS_MAX`] swaps are past.

mod bindings;
mod cache;
mod change;
mod clock;
mod code_bounds;
mod compile_process;
mod compiler;
mod component_file;
mod conduct;
mod convert;
mod description;
mod engine;
mod expansion;
mod fault;
mod folder;
mod generation;
mod history;
mod host;
mod in_force;
mod instance;
mod limits;
mod lines;
mod listing;
mod load;
mod load_error;
mod meter;
mod observer;
mod policy;
mod re_run;
mod reading;
mod records;
mod settings;
mod settings_schema;
mod shown;
mod stages;
mod standing;
mod status;
mod succession;
mod superseded;
mod trial;
mod trial_facts;
mod trusted_code;
mod warm;
mod watch;
mod workload_file;
mod world;

pub use cache::{CACHE_USES, CacheUse};
pub use change::Change;
pub use compile_process::{COMPILE_COMMAND, serve_compilation};
pub use component_file::HOOKS;
pub use conduct::{CALLS_WATCHED, FAULTS_MIN, FAULTS_PER_THOUSAND_MAX};
pub use description::{ABOUT_BYTES_MAX, STATED_BYTES_MAX};
pub use fault::{FAULT_KINDS, Fault, Hook};
pub use folder::{check_folder, settings_beside};
pub use generation::{Bound, Generation, Named};
pub use history::EarlierVersion;
pub use host::{HostConfig, PolicyHost};
pub use limits::{LIVE_GENERATIONS_MAX, Limits};
pub use load::{CheckError, Checked, check_file};
pub use load_error::{LoadError, OpenError, Refusal};
pub use observer::Observer;
pub use policy::Policy;
pub use settings_schema::SettingStatus;
#[doc(hidden)]
pub use stages::{Compiled, Stages};
pub use standing::{Failing, PutAside};
pub use status::{
    BindingsStatus, CacheStatus, CodeFrom, DecidesInstead, PolicyDetail, PolicyState, PolicyStatus,
    PutAsideStatus, RefusalStatus, ReloadOutcome,
};
pub use trial::{TrialAnswer, TrialFacts, TrialRow};
pub use watch::Watcher;
pub use workload_file::{BINDINGS, BindingsError, WORKLOADS_MAX, read_bindings};
