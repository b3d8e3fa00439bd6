//! Slabs, links and fabrics with a real process at the other end.

mod link;
mod slabs;
