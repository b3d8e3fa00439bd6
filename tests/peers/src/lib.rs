//! Routers side by side: a mock engine that costs next to nothing, a load generator that checks every answer, peers
//! started as their own documentation says, and what each costs per request.
//!
//! Everything runs on one machine in one run, in turns, so that ratios mean something; absolute figures are this
//! machine's.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

pub mod canned;
pub mod cases;
pub mod descriptors;
pub mod engine;
pub mod load;
pub mod nginx;
pub mod peer;
pub mod report;
pub mod rounds;
pub mod streams;
pub mod vllm_router;
