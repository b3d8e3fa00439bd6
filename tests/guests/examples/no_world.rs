//! A core module that exports a function of its own and nothing of the policy world.
#![allow(unsafe_code, reason = "an exported symbol must not be mangled")]

/// Not what the host asks for.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> u32 {
    42
}
