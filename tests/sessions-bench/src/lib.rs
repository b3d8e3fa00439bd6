//! What sessions cost and save.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a bench takes the time of its own work")]

pub mod gaps;
pub mod given_back;
pub mod hold_ends;
pub mod killed;
pub mod plot;
pub mod store;
