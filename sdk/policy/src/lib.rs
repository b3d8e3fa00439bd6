//! Write routing policies for Sluice.
//!
//! A policy is a type that implements [`Policy`], exported with [`export!`] from a crate of type `cdylib`
//! built for `wasm32-unknown-unknown`. The host calls it once per request with [`Facts`] (the request, its
//! session, the workers) and acts on its [`Verdict`].
//!
//! ```
//! use sluice_policy_sdk::{Facts, Policy, Verdict, export, pick};
//!
//! struct FewestRequests;
//!
//! impl Policy for FewestRequests {
//!     fn configure(_settings: &str) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//!
//!     fn route(&self, facts: &Facts) -> Verdict {
//!         match pick::least(facts.seed, facts.alone(), |worker| worker.running() as f32) {
//!             Some(worker) => Verdict::unified(worker.row()).because("fewest requests"),
//!             None => Verdict::UseDefault,
//!         }
//!     }
//! }
//!
//! export!(FewestRequests);
//! ```
//!
//! A policy must be a pure function of its settings and its arguments: the host checks that by asking again on
//! a fresh instance. There is no clock, no randomness and no file to reach: [`Facts::now_ms`],
//! [`Facts::seed`] and [`Facts::sequence`] are what to use instead.
//!
//! - [`Worker`]: one row of the worker table; [`Facts`] lists them by what they can do.
//! - [`pick`]: choose a worker by cost, by turn or by seed.
//! - [`settings!`]: settings declared once: struct, defaults, checks and JSON Schema.
//! - [`testing`]: build facts for native unit tests.

#[doc(hidden)]
pub mod bindings;
#[doc(hidden)]
pub mod export;
mod json;
pub mod pick;
mod policy;
pub mod settings;
pub mod testing;
mod verdict;
mod workers;

pub use bindings::sluice::policy::types::{
    DecodeChoice, Description, Disaggregated, ExtraColumn, Facts, Finish, Keep, Lease, Placement, Prefilled,
    Rejection, Renewal, Request, Retention, Route, Row, Session, TransferMode, TurnEnd, Verdict, Workers,
};
pub use policy::Policy;
pub use workers::{Ability, Role, Worker};
