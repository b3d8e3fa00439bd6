//! Sluice's decisions as pure functions on plain data.
//!
//! Nothing here reads a clock, draws a random number, or does IO: whoever calls passes the time and the
//! figures in, so that the same input gives the same answer in production, in replay and in tests.
//!
//! - [`facts`]: what a policy sees of one request and of the fleet; [`table`]: cutting and aligning its rows.
//! - [`verdict`]: what a policy answers; [`plan`]: the check that an answer can be executed.
//! - [`default_policy`]: the decision in force when no policy decides.
//! - [`load`]: what a request weighs on its workers; [`measure`]: smoothed figures; [`health`]: who is up.
//! - [`kv_proof`]: whether KV really moves between workers, from what a probe showed.
//! - [`failure`]: what can go wrong, and whether to try again; [`breaker`], [`retry_budget`]: how often.
//! - [`admission`]: who runs, waits and is shed; [`token_bucket`]: tokens per minute.
//! - [`unfit_chars`]: what text of others may not bring into a line of ours.
//! - [`history`]: which conversation a request continues, and what held KV is proven to be of its prompt.
//! - [`kept`]: turns whose KV engines keep for the next one; [`lease`]: for how long.
//! - [`session`]: what is remembered between the turns of a conversation.
#![forbid(unsafe_code)]

pub mod admission;
pub mod breaker;
pub mod default_policy;
pub mod facts;
pub mod failure;
pub mod hash;
pub mod health;
pub mod history;
pub mod kept;
pub mod kv_proof;
pub mod lease;
pub mod load;
pub mod measure;
pub mod plan;
pub mod retry_budget;
pub mod session;
pub mod table;
pub mod testing;
pub mod token_bucket;
pub mod unfit_chars;
pub mod verdict;
pub mod workload;
