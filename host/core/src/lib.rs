//! Sluice's decisions as pure functions on plain data.
//!
//! Nothing here reads a clock, draws a random number, or does IO: whoever calls passes the time and the
//! figures in, so that the same input gives the same answer in production, in replay and in tests.
//!
//! - [`facts`]: what a policy sees of one request and of the fleet.
//! - [`verdict`]: what a policy answers, and [`plan`]: the check that turns an answer into something to execute.
//! - [`default_policy`]: the decision in force when no policy decides.
//! - [`load`]: what a request weighs on the workers it is sent to, and [`measure`]: smoothed figures.
//! - [`session`]: what is remembered between the turns of a conversation.
#![forbid(unsafe_code)]

pub mod facts;
pub mod verdict;
