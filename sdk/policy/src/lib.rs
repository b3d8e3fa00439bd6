//! Write routing policies for Sluice, the router for disaggregated LLM inference.
//!
//! Disaggregated inference computes a prompt on a *prefill* worker and the answer on a *decode* worker; the KV
//! blocks move between them. A policy decides, request by request, who does what. It is one WASM file in the
//! host's folder of policies, and decides from the moment it lies there.
//!
//! A policy is a type that implements [`Policy`], exported with [`export!`] from a crate of type `cdylib`
//! built for `wasm32-unknown-unknown`. `sluice policy new NAME` makes such a crate, `sluice policy build` its
//! file, and `sluice policy check FILE` says what the host would say of it.
//!
//! # A whole policy
//!
//! ```
//! use sluice_policy_sdk::{
//!     Facts, Finish, Lease, Policy, Prefilled, Renewal, Retention, Row, TurnEnd, Verdict, Worker, export, pick,
//!     settings,
//! };
//!
//! settings! {
//!     /// What `NAME.toml` beside `NAME.wasm` may hold.
//!     pub struct Settings {
//!         /// How many running requests one waiting request counts as.
//!         waiting_weight: u32 = 4, 0..=1_000;
//!         /// How long KV blocks stay after a turn that another will follow, in milliseconds.
//!         retain_ttl_ms: u32 = 60_000, 1..=3_600_000;
//!     }
//! }
//!
//! pub struct Quietest {
//!     settings: Settings,
//! }
//!
//! impl Quietest {
//!     fn load(&self, worker: Worker<'_>) -> f32 {
//!         worker.running() as f32 + self.settings.waiting_weight as f32 * worker.waiting() as f32
//!     }
//! }
//!
//! impl Policy for Quietest {
//!     fn settings_schema() -> String {
//!         Settings::schema()
//!     }
//!
//!     fn configure(settings: &str) -> Result<Self, String> {
//!         Ok(Self { settings: Settings::parse(settings)? })
//!     }
//!
//!     // Once a request, before anything is sent.
//!     fn route(&self, facts: &Facts) -> Verdict {
//!         let load = |worker: Worker<'_>| self.load(worker);
//!         // Short prompts are not worth moving.
//!         if facts.request.prompt_tokens > 256
//!             && let Some((prefill, _)) = pick::pair(facts, load, load)
//!         {
//!             return Verdict::pull_late(prefill.row()).because("long prompt");
//!         }
//!         match pick::least(facts.seed, facts.alone(), load) {
//!             Some(worker) => Verdict::unified(worker.row()).because("least loaded"),
//!             None => Verdict::UseDefault,
//!         }
//!     }
//!
//!     // After the prefill, because `route` left the decode worker open.
//!     fn bind_decode(&self, facts: &Facts, prefilled: &Prefilled) -> Option<Row> {
//!         let prefill = facts.worker(prefilled.prefill)?;
//!         pick::least(facts.seed, facts.decodes_for(prefill), |worker| self.load(worker)).map(Worker::row)
//!     }
//!
//!     // When the answer has ended: what becomes of its KV blocks.
//!     fn retain(&self, turn: &TurnEnd) -> Retention {
//!         match turn.finish {
//!             Finish::ToolCalls => Retention::lease_ms(self.settings.retain_ttl_ms, 1_000),
//!             _ => Retention::Release,
//!         }
//!     }
//!
//!     // Each second of that lease.
//!     fn heartbeat(&self, lease: &Lease) -> Renewal {
//!         let is_full = lease.facts.worker(lease.holder).is_none_or(|worker| worker.kv_blocks_free() < 100);
//!         if is_full { Renewal::Release } else { Renewal::UseDefault }
//!     }
//! }
//!
//! export!(Quietest);
//!
//! // In a `#[cfg(test)]` module of a real crate:
//! use sluice_policy_sdk::testing::{FactsBuilder, assert_routes, decode, prefill, try_policy, unified};
//!
//! let quietest = Quietest::configure(r#"{"waiting_weight": 2}"#).expect("valid settings");
//! let pair = FactsBuilder::new().worker(prefill(1)).worker(decode(2));
//! let mixed = FactsBuilder::new().worker(unified(1)).worker(prefill(2)).worker(decode(3));
//! assert_routes(&quietest, [
//!     ("long prompts are split", pair.prompt_tokens(4_000), Verdict::pull_late(0).because("long prompt")),
//!     ("short ones are not", mixed.prompt_tokens(16), Verdict::unified(0).because("least loaded")),
//! ]);
//! assert_eq!(try_policy::<Quietest>("{}"), Ok(()));
//! ```
//!
//! # What the host asks
//!
//! | hook | when | `UseDefault` or `None` |
//! |---|---|---|
//! | [`configure`](Policy::configure) | on load, and when the settings file changes | must be written |
//! | [`route`](Policy::route) | once an attempt of a request | the host's built-in policy decides |
//! | [`bind_decode`](Policy::bind_decode) | after the prefill, where `route` answered [`Verdict::pull_late`] | as above |
//! | [`retain`](Policy::retain) | after the last token | the KV blocks are freed |
//! | [`heartbeat`](Policy::heartbeat) | at each interval of a lease | the lease ends |
//!
//! Each hook is called with [`Facts`]: the [`Request`], its [`Session`] if the conversation is known, and one row
//! for each [`Worker`]. Answers name workers by [`Row`], which holds for this call alone; a worker's
//! [`id`](Worker::id) stays.
//!
//! # What a policy must be
//!
//! - **Pure**: its answers depend on its settings and its arguments alone. The host asks again on a fresh instance,
//!   before the policy may decide and now and then afterwards; another answer is a fault. There is no clock, no
//!   randomness and no file to reach: use [`Facts::now_ms`], [`Facts::seed`] (the same for all of a
//!   conversation) and [`Facts::sequence`] (one more with each decision).
//! - **Right**: rows exist, have the role, can do it, and take new work. [`Facts::prefills`],
//!   [`Facts::decodes_for`], [`Facts::alone`] and [`pick::pair`] list only such.
//! - **Quick**: a call has 5 ms of CPU time and 16 MiB of memory unless the host's operator says otherwise; it should
//!   take microseconds.
//!
//! A fault costs the client nothing: the built-in policy decides instead, and the operator is told. A panic is a
//! fault.
//!
//! # The rest
//!
//! - [`pick`]: choose by least cost, by pairs, by weight, by turn or by seed; ties are even and stable.
//! - [`settings!`](settings!): settings declared once: struct, defaults, checks and JSON Schema.
//! - [`testing`]: facts, cases, and what the host demands, natively and in milliseconds.
//!
//! [`Facts::now_ms`]: Facts#structfield.now_ms
//! [`Facts::seed`]: Facts#structfield.seed
//! [`Facts::sequence`]: Facts#structfield.sequence

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
