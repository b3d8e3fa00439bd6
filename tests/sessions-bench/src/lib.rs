//! What sessions cost and save.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

pub mod gaps;
pub mod given_back;
pub mod hold_ends;
pub mod plot;
pub mod store;
