//! What must hold for any bytes that come from clients and engines. Each target takes an input and panics where a promise
//! is broken; who makes the inputs up is another matter: libFuzzer, guided by coverage (`make fuzz`), or [`mutate`], a
//! seeded mutator that runs in every test.
#![forbid(unsafe_code)]

pub mod client_json;
pub mod mutate;
pub mod sse;
pub mod strict;
pub mod upstream_json;
