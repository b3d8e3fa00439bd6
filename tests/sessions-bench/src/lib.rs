//! What sessions cost and save.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

pub mod gaps;
pub mod plot;
