//! round-robin
