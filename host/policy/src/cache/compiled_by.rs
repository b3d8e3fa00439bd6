//! What compiled code depends on beside the policy's file.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};
use wasmtime::Engine;

use crate::limits::Limits;

/// Raised with every change of what is checked or made between a policy's file and the compiler: a cached policy
/// is not checked and made again.
const STEPS: u32 = 1;

/// Hexadecimal digest of it all.
pub(super) fn digest(engine: &Engine, limits: &Limits) -> String {
    let mut all = Whole256(Sha256::new());
    (STEPS, env!("CARGO_PKG_VERSION"), crate::HOOKS).hash(&mut all);
    // A file that needs more at its start is refused before it is compiled.
    limits.memory_bytes.hash(&mut all);
    // The engine's whole version (a mended compiler must not run what the broken one made), the compiler's flags, what
    // the CPU can do, and every setting that code is made for.
    engine.precompile_compatibility_hash().hash(&mut all);
    crate::folder::hex(&all.0.finalize())
}

/// A hasher that keeps all 256 bits: the standard one's 64 would do for accidents, and are not promised to stay the
/// same from one compiler to the next.
struct Whole256(Sha256);

impl Hasher for Whole256 {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not asked for.
    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::Compiler;
    use crate::engine::PolicyEngine;

    #[test]
    fn engines_alike_share_and_others_do_not() {
        let small = || Limits { instances_total: 2, ..Limits::default() };
        let by =
            |limits: &Limits| digest(&PolicyEngine::new(limits, Compiler::inside()).unwrap().engine, limits);
        assert_eq!(by(&small()), by(&small()));
        assert_eq!(by(&small()), by(&Limits { cpu_budget_ms: 77, ..small() }));
        assert_ne!(by(&small()), by(&Limits { memory_bytes: 1 << 20, ..small() }));
        let limits = small();
        let other = Engine::new(wasmtime::Config::new().epoch_interruption(false)).unwrap();
        assert_ne!(by(&limits), digest(&other, &limits));
    }
}
