//! Slabs and fabrics with a real process at the other end.

mod copies;
mod slabs;
