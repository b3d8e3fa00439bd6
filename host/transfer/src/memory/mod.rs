//! KV memory, and who may use which block of it.
