//! The KV transfer core: moves KV blocks between the memory of engines.
//!
//! [`protocol`] decides, [`layout`] says which bytes, [`memory`] owns them, [`fabric`] copies, [`exchange`]
//! is the thread that does as was decided. Engines attach by the [`link`]; a [`node`] is all of it.

pub mod exchange;
pub mod fabric;
pub mod layout;
pub mod link;
pub mod memory;
pub mod node;
pub mod protocol;
