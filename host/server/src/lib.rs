//! The Sluice host process: an OpenAI-compatible data plane whose routing is decided by WASM policies.
//!
//! Start at [`commands`] for what the program does, at [`pipeline`] for the life of a request.

pub mod admin_policies;
pub mod admin_token;
pub mod admin_workers;
pub mod admission;
pub mod app;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod decisions;
pub mod doctor;
pub mod extra_args;
pub mod fleet;
pub mod handle;
pub mod held;
pub mod http;
pub mod identity;
pub mod ids;
pub mod kv_probe;
pub mod last_call;
pub mod listen;
pub mod models;
pub mod off_loop;
pub mod output_limit;
pub mod passthrough;
pub mod pipeline;
pub mod policy_cache;
pub mod policy_events;
pub(crate) mod record;
pub mod release;
pub mod request;
pub mod restarting;
pub mod routes;
pub mod sessions;
pub mod splitting;
pub mod stall;
pub mod telemetry;
pub mod tenants;
pub mod text_table;
pub mod threads;
pub mod tls;
pub mod upstream;
pub mod usage;
