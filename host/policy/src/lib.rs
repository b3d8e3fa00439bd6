//! Sluice's policy host: loads, checks, calls and swaps WASM policies
