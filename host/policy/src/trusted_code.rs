//! The one place where compiled code becomes code that runs.
//!
//! Machine code cannot be checked as WASM can: loading it is running it. So whose it is is all there is to go by.

use wasmtime::Engine;
use wasmtime::component::Component;

/// Compiled code that only this user's own processes can have made, byte for byte: read whole from an entry of the
/// private cache folder, or from the pipe of a compiler that this process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrustedCode<'a>(&'a [u8]);

impl<'a> TrustedCode<'a> {
    /// Only where the type's promise is kept: by `cache::entry`, and by `compile_process`.
    pub(crate) fn vouched_for(code: &'a [u8]) -> Self {
        Self(code)
    }

    #[cfg(test)]
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// # Errors
/// Where the code was made for another engine, which its head tells.
#[allow(unsafe_code, reason = "compiled code cannot be checked, only trusted; here and nowhere else")]
pub(crate) fn component(code: TrustedCode<'_>, engine: &Engine) -> wasmtime::Result<Component> {
    // SAFETY: the bytes must be what `Component::serialize` or `Engine::precompile_component` gave, for an engine like
    // this one. `TrustedCode` says that they come from a process of this user's: from a file that, by what was opened
    // and not by a path, only this user can have written, in a folder that is closed to all others, whole by a digest
    // over its name, which holds a digest of all the engine's settings; or from the standard output of this same
    // program, whose head the engine compares with its own settings. They are in memory of ours: nobody changes them
    // after that check, as could happen to a mapped file.
    unsafe { Component::deserialize(engine, code.0) }
}
