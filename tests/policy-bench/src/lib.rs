//! What a policy costs the host.
//!
//! Everything goes through the host's own front door: a folder, a generation, a call. What is native in the
//! comparisons is the same policy's code, linked into the bench.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a bench takes the time of its own threads")]

pub mod both;
pub mod calls;
pub mod fleet;
pub mod load;
pub mod ring;
pub mod rounds;
pub mod swaps;
pub mod us;
