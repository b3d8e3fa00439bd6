//! The KV transfer core: moves KV blocks between the memory of engines.
//!
//! [`protocol`] decides, [`layout`] says which bytes, [`memory`] owns them, [`fabric`] copies, [`exchange`]
//! is the thread that does as was decided.

pub mod exchange;
pub mod fabric;
pub mod layout;
pub mod memory;
pub mod protocol;
