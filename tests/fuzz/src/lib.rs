//! What must hold for any bytes that come from clients, engines (their KV links too), and the policy folder. Each target takes an input and panics where a promise
//! is broken; who makes the inputs up is another matter: libFuzzer, guided by coverage (`make fuzz`), or [`mutate`], a
//! seeded mutator that runs in every test.
#![forbid(unsafe_code)]

pub mod client_json;
pub mod link_wire;
pub mod mutate;
mod policy_host;
pub mod settings;
pub mod sse;
pub mod strict;
pub mod upstream_json;
pub mod verdicts;
pub mod wasm;

/// Takes an input, panics where a promise is broken, and says whether the input was more than garbage.
pub type Target = fn(&[u8]) -> bool;

/// All targets by name.
pub const TARGETS: [(&str, Target); 7] = [
    ("client_json", client_json::check),
    ("upstream_json", upstream_json::check),
    ("sse", sse::check),
    ("wasm", wasm::check),
    ("settings", settings::check),
    ("verdicts", verdicts::check),
    ("link_wire", link_wire::check),
];
