//! The stages of a load, one at a time: for benches that ask what each takes.

use crate::compiler::Compiler;
use crate::engine::PolicyEngine;
use crate::fault::Fault;
use crate::folder::Contents;
use crate::instance::{Instance, Template};
use crate::limits::Limits;
use crate::load;
use crate::load_error::{OpenError, Refusal};
use crate::meter::Timer;

/// A runtime without a folder.
pub struct Stages {
    engine: PolicyEngine,
    limits: Limits,
}

impl std::fmt::Debug for Stages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stages").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A compiled policy.
pub struct Compiled(Template);

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

impl Stages {
    /// Starts the runtime.
    ///
    /// # Errors
    /// Where the runtime cannot reserve what the limits ask for.
    pub fn new(limits: Limits) -> Result<Self, OpenError> {
        let engine = PolicyEngine::new(&limits, Compiler::inside())
            .map_err(|error| OpenError::Runtime { detail: format!("{error:#}") })?;
        Ok(Self { engine, limits })
    }

    /// From a file's bytes to compiled code.
    ///
    /// # Errors
    /// What a host would say of the file.
    pub fn compile(&self, wasm: &[u8]) -> Result<Compiled, Refusal> {
        let component = load::compile(&Contents::new(wasm.to_vec(), None), &self.engine, &self.limits)?;
        load::template(&component).map(Compiled)
    }

    /// An instance, not configured yet, and dropped at once.
    ///
    /// # Errors
    /// What went wrong in the guest's start.
    pub fn instantiate(&self, compiled: &Compiled) -> Result<(), Fault> {
        Instance::start(&compiled.0, self.timer(), &self.limits).map(drop)
    }

    /// An instance that could answer, dropped at once.
    ///
    /// # Errors
    /// What went wrong in the guest's start, or in `configure`.
    pub fn set_up(&self, compiled: &Compiled, settings: &str) -> Result<(), Fault> {
        let mut instance = Instance::start(&compiled.0, self.timer(), &self.limits)?;
        // A refusal takes as long as consent: the caller knows its settings.
        instance.configure(settings, self.timer(), &self.limits).map(drop)
    }

    fn timer(&self) -> Timer {
        Timer::from_first_tick(self.limits.setup())
    }
}
