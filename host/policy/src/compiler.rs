//! Has components compiled, and nobody wait for one that takes long: the policies that changed with it, or after it,
//! are not to be held up by the largest file of the folder.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::clock;
use crate::compile_process::{self, NotCompiled};
use crate::load_error::Refusal;
use crate::observer::Observer;
use crate::shown::shown;
use crate::trusted_code::{self, TrustedCode};

/// How long a look at the folder waits for its files to be compiled, all together: the swap comes after it. A Rust
/// policy takes a tenth of a second; a JavaScript engine of 10 MB half a minute, which goes on beside later looks.
pub const COMPILE_WAIT: Duration = Duration::from_secs(5);
/// Files that are compiled at a time, beside the one that is waited for: each takes a core, and up to some hundred MB.
/// Once that one turns out slow too, further files wait until one of them is done.
pub const SLOW_COMPILES_MAX: usize = 2;
/// Compiled files kept until the look that asks for them again.
const RESULTS_MAX: usize = 4;
/// Stack of a compiling thread, bytes: as a main thread has, since the compiler was made for those.
const STACK_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug)]
struct Compiling {
    /// Counts up: the higher, the later it was asked for.
    asked: u64,
    result: Receiver<Result<Component, Refusal>>,
    thread: JoinHandle<()>,
}

/// Where compiling happens.
#[derive(Clone)]
struct Place {
    /// The program that compiles, in a process of its own; `None` compiles in this one.
    program: Option<PathBuf>,
    observer: Arc<dyn Observer>,
    /// Why the last one was compiled in this process although there is a program for it.
    trouble: Arc<Mutex<Option<String>>>,
}

/// The compiler, and what it is at.
pub(crate) struct Compiler {
    place: Place,
    /// Whether somebody else waits meanwhile.
    hurried: AtomicBool,
    /// What is left of this look's [`COMPILE_WAIT`].
    patience: Mutex<Duration>,
    /// Those that nobody waits for any more, by the digest of the file that is compiled.
    slow: Mutex<BTreeMap<String, Compiling>>,
}

impl Compiler {
    /// `program` compiles, called as [`compile_process::COMPILE_COMMAND`]; without one this process does.
    pub(crate) fn new(program: Option<PathBuf>, observer: Arc<dyn Observer>) -> Self {
        Self {
            place: Place { program, observer, trouble: Arc::default() },
            hurried: AtomicBool::default(),
            patience: Mutex::default(),
            slow: Mutex::default(),
        }
    }

    /// Compiles in this process.
    pub(crate) fn inside() -> Self {
        Self::new(None, Arc::new(()))
    }

    /// Why the last policy was compiled in this process although it should not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.place.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A look at the folder begins.
    pub(crate) fn look(&self) {
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = COMPILE_WAIT;
    }

    /// From now on no look waits longer than [`COMPILE_WAIT`].
    pub(crate) fn hurry(&self) {
        self.hurried.store(true, Ordering::Relaxed);
    }

    /// What became of a file that an earlier look stopped waiting for; `None` when it is not being compiled.
    pub(crate) fn resume(&self, digest: &str) -> Option<Result<Component, Refusal>> {
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let compiling = slow.remove(digest)?;
        // Only the first look waits: later ones are for what else changed.
        Some(wait_for(compiling, digest, Duration::ZERO, &mut slow))
    }

    /// Compiles a file that is not being compiled yet. `component` makes of it what is compiled: asked for only when there
    /// is room to begin.
    pub(crate) fn compile(
        &self,
        digest: &str,
        engine: &Engine,
        component: impl FnOnce() -> Result<Vec<u8>, Refusal>,
    ) -> Result<Component, Refusal> {
        if !self.hurried.load(Ordering::Relaxed) {
            return self.place.compiled(engine, &component()?);
        }
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_room() {
            return Err(Refusal::StillCompiling);
        }
        let bytes = component()?;
        let began = clock::monotonic();
        let result = self.compile_within(*patience, digest, engine, bytes);
        *patience = patience.saturating_sub(clock::monotonic().saturating_sub(began));
        result
    }

    /// Whether one more may be compiled now.
    fn has_room(&self) -> bool {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        slow.values().filter(|compiling| !compiling.thread.is_finished()).count() <= SLOW_COMPILES_MAX
    }

    fn compile_within(
        &self,
        wait: Duration,
        digest: &str,
        engine: &Engine,
        bytes: Vec<u8>,
    ) -> Result<Component, Refusal> {
        let compiling = spawn(self.place.clone(), engine.clone(), bytes)?;
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        wait_for(compiling, digest, wait, &mut slow)
    }
}

/// What is not done in time is left among the slow ones.
fn wait_for(
    compiling: Compiling,
    digest: &str,
    wait: Duration,
    slow: &mut BTreeMap<String, Compiling>,
) -> Result<Component, Refusal> {
    match compiling.result.recv_timeout(wait) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            forget_one_too_many(slow);
            let looks = slow.values().map(|compiling| compiling.asked).max().unwrap_or(0);
            slow.insert(digest.to_owned(), Compiling { asked: looks + 1, ..compiling });
            Err(Refusal::StillCompiling)
        }
        // It panicked, which is the caller's to make a refusal of.
        Err(RecvTimeoutError::Disconnected) => match compiling.thread.join() {
            Ok(()) => Err(Refusal::StillCompiling),
            Err(panic) => resume_unwind(panic),
        },
    }
}

/// Results that nobody fetches are of files that were replaced meanwhile: the one asked for longest ago goes.
fn forget_one_too_many(slow: &mut BTreeMap<String, Compiling>) {
    let finished = slow.iter().filter(|(_, compiling)| compiling.thread.is_finished());
    if finished.clone().count() >= RESULTS_MAX
        && let Some(oldest) =
            finished.min_by_key(|(_, compiling)| compiling.asked).map(|(digest, _)| digest.clone())
    {
        slow.remove(&oldest);
    }
}

impl Place {
    fn note(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn compiled(&self, engine: &Engine, bytes: &[u8]) -> Result<Component, Refusal> {
        if let Some(program) = &self.program {
            let loaded = compile_process::compile(program, bytes).and_then(|artefact| {
                let code = TrustedCode::vouched_for(&artefact.0);
                trusted_code::component(code, engine).map_err(|error| {
                    NotCompiled::NoProcess(format!("{}: gave no code: {error:#}", program.display()))
                })
            });
            match loaded {
                Ok(component) => {
                    self.note(None);
                    return Ok(component);
                }
                Err(NotCompiled::Refused(refusal)) => return Err(refusal),
                Err(NotCompiled::NoProcess(why)) => {
                    let why = shown(&why);
                    self.observer.compiled_inside(&why);
                    self.note(Some(why));
                }
            }
        }
        Component::from_binary(engine, bytes)
            .map_err(|error| Refusal::NotUsable { step: "compiled", detail: shown(&format!("{error:#}")) })
    }
}

fn spawn(place: Place, engine: Engine, bytes: Vec<u8>) -> Result<Compiling, Refusal> {
    let (send, result) = channel();
    let thread = Builder::new()
        .name("policy-compiler".to_owned())
        .stack_size(STACK_BYTES)
        // Nobody to send it to: the host has ended.
        .spawn(move || drop(send.send(place.compiled(&engine, &bytes))))
        .map_err(|error| Refusal::Unreadable(format!("no thread to compile it on: {error}")))?;
    Ok(Compiling { asked: 0, result, thread })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(tag: u32) -> Vec<u8> {
        wat::parse_str(format!("(component (core module (func (drop (i32.const {tag})))))")).unwrap()
    }

    /// One look, which waits for nothing; `begun` counts what is begun.
    fn look(compiler: &Compiler, engine: &Engine, tag: u32, begun: &mut u32) -> Result<Component, Refusal> {
        compiler.hurry();
        let digest = tag.to_string();
        compiler.resume(&digest).unwrap_or_else(|| {
            compiler.compile(&digest, engine, || {
                *begun += 1;
                Ok(bytes(tag))
            })
        })
    }

    /// Looks again until it is there. Gives how often it was begun.
    fn looked_for(compiler: &Compiler, engine: &Engine, tag: u32) -> u32 {
        let mut begun = 0;
        while let Err(refusal) = look(compiler, engine, tag, &mut begun) {
            assert!(matches!(refusal, Refusal::StillCompiling) && refusal.is_transient(), "{refusal}");
            std::thread::yield_now();
        }
        begun
    }

    #[test]
    fn what_takes_long_is_begun_once_and_taken_at_a_later_look() {
        let (compiler, engine) = (Compiler::inside(), Engine::default());
        assert_eq!(looked_for(&compiler, &engine, 1), 1);
        assert!(compiler.slow.lock().unwrap().is_empty(), "it is taken once");
    }

    #[test]
    fn only_so_many_are_compiled_at_a_time_and_the_forgotten_make_room() {
        let (compiler, engine) = (Compiler::inside(), Engine::default());
        for tag in 0..16 {
            // Asked for once; its file is gone at the next look.
            let _ = look(&compiler, &engine, tag, &mut 0);
            let slow = compiler.slow.lock().unwrap();
            let running = slow.values().filter(|compiling| !compiling.thread.is_finished()).count();
            assert!(running <= SLOW_COMPILES_MAX + 1 && slow.len() <= SLOW_COMPILES_MAX + 1 + RESULTS_MAX);
        }
        looked_for(&compiler, &engine, 7);
    }

    #[test]
    fn a_look_has_one_patience_for_all_its_files() {
        let (compiler, engine) = (Compiler::inside(), Engine::default());
        compiler.hurry();
        compiler.look();
        compiler.compile("2", &engine, || Ok(bytes(2))).expect("seconds are enough");
        assert!(*compiler.patience.lock().unwrap() < COMPILE_WAIT);
    }

    #[test]
    fn what_cannot_be_compiled_says_so_wherever_it_is() {
        for hurried in [false, true] {
            let (compiler, engine) = (Compiler::inside(), Engine::default());
            compiler.look();
            if hurried {
                compiler.hurry();
            }
            let refusal = compiler.compile("text", &engine, || Ok(b"no wasm".to_vec())).unwrap_err();
            assert!(matches!(refusal, Refusal::NotUsable { step: "compiled", .. }), "{refusal}");
        }
    }
}
