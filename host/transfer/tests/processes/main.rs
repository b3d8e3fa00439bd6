//! Slabs, links and fabrics with a real process at the other end.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod copies;
mod link;
mod sequences;
mod slabs;
