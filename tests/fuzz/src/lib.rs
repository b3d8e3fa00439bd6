//! What must hold for any bytes that come from clients and engines. Each target takes an input and panics where a promise
//! is broken; who makes the inputs up is another matter: libFuzzer, guided by coverage (`make fuzz`), or [`mutate`], a
//! seeded mutator that runs in every test.
#![forbid(unsafe_code)]

pub mod client_json;
pub mod mutate;
pub mod sse;
pub mod strict;
pub mod upstream_json;

/// Takes an input, panics where a promise is broken, and says whether the input was more than garbage.
pub type Target = fn(&[u8]) -> bool;

/// All targets by name.
pub const TARGETS: [(&str, Target); 3] =
    [("client_json", client_json::check), ("upstream_json", upstream_json::check), ("sse", sse::check)];
