//! The WASM runtime: its settings, and the clock tick that ends endless guests.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::cache::ComponentCache;
use crate::compiler::Compiler;
use crate::limits::Limits;

/// How often running guests are asked how much time they used. One wake-up a tick is what it costs.
const TICK: Duration = Duration::from_millis(2);
/// Core instances that one component may hold. Ours hold a few; a JavaScript engine with its libraries holds 13.
const CORE_INSTANCES_PER_COMPONENT_MAX: u32 = 32;
/// Tables that one component may hold.
const TABLES_PER_COMPONENT_MAX: u32 = 8;
/// Memories that one component may hold. Ours hold one; components of other languages hold small ones beside it. The
/// memory limit counts them together.
const MEMORIES_PER_COMPONENT_MAX: u32 = 4;
/// Memories that there is room for, however few the instances: the two of a trial. A component with several takes the
/// room of as many instances, since each reserves address space.
const MEMORIES_MIN: u32 = 2 * MEMORIES_PER_COMPONENT_MAX;

/// The runtime and its ticking thread. Whoever holds policies holds it too, so that a deadline never stops ticking.
pub(crate) struct PolicyEngine {
    pub(crate) engine: Engine,
    /// `None` compiles every file anew.
    pub(crate) cache: Option<ComponentCache>,
    pub(crate) compiler: Compiler,
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl PolicyEngine {
    pub(crate) fn new(limits: &Limits, compiler: Compiler) -> wasmtime::Result<Self> {
        let engine = Engine::new(&config(limits))?;
        let (stop, stopped) = channel();
        let ticked = engine.clone();
        let ticker = std::thread::Builder::new()
            .name("policy-ticker".to_owned())
            .spawn(move || tick_until(&stopped, &ticked))?;
        Ok(Self { engine, cache: None, compiler, stop: Some(stop), ticker: Some(ticker) })
    }
}

impl Drop for PolicyEngine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(ticker) = self.ticker.take() {
            // It only fails if the ticker panicked, and then there is nothing left to stop.
            let _ = ticker.join();
        }
    }
}

fn tick_until(stopped: &Receiver<()>, engine: &Engine) {
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
        engine.increment_epoch();
    }
}

fn config(limits: &Limits) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(limits.instances_total)
        .total_core_instances(limits.instances_total.saturating_mul(CORE_INSTANCES_PER_COMPONENT_MAX))
        .total_memories(limits.instances_total.max(MEMORIES_MIN))
        .total_tables(limits.instances_total.saturating_mul(TABLES_PER_COMPONENT_MAX))
        .max_core_instances_per_component(CORE_INSTANCES_PER_COMPONENT_MAX)
        .max_tables_per_component(TABLES_PER_COMPONENT_MAX)
        .max_tables_per_module(TABLES_PER_COMPONENT_MAX)
        .max_memories_per_component(MEMORIES_PER_COMPONENT_MAX)
        .max_memories_per_module(1)
        .max_memory_size(limits.memory_bytes)
        .table_elements(limits.table_elements);

    let mut config = code_config();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .max_wasm_stack(limits.stack_bytes)
        // Release policies carry no names, so a backtrace would cost time and say nothing.
        .wasm_backtrace_max_frames(None);
    config
}

/// An engine that only compiles, for a [`PolicyEngine`]: it has no room for instances.
pub(crate) fn compiling() -> wasmtime::Result<Engine> {
    Engine::new(&code_config())
}

/// All that decides what compiled code looks like.
fn code_config() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        // The same wasm must give the same answer on every machine: NaN bits and relaxed SIMD would differ.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .wasm_memory64(false)
        // Compiling happens beside requests that are being served: one thread, not all cores.
        .parallel_compilation(false)
        // Calls are synchronous; the machinery for concurrent ones would only cost each call.
        .concurrency_support(false);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_engine_compiles_the_other_runs() {
        let hash = |engine: &Engine| {
            let mut hasher = std::collections::hash_map::DefaultHasher::new();
            std::hash::Hash::hash(&engine.precompile_compatibility_hash(), &mut hasher);
            std::hash::Hasher::finish(&hasher)
        };
        for memory_bytes in [1 << 16, 16 << 20, 1 << 30] {
            let limits = Limits { instances_total: 2, memory_bytes, ..Limits::default() };
            let running = PolicyEngine::new(&limits, Compiler::inside()).unwrap();
            assert_eq!(hash(&compiling().unwrap()), hash(&running.engine), "{memory_bytes}");
        }
    }
}
