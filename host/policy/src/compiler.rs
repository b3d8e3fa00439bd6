//! Has components compiled, and nobody wait for one that takes long: the policies that changed with it, or after it,
//! are not to be held up by the largest file of the folder.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::clock;
use crate::compile_process::{self, NotCompiled};
use crate::load::guarded;
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
/// How long a file whose compiler was ended waits for the next one; doubled each time.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The longest such wait.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(300);
/// Stack of a compiling thread, bytes: as a main thread has, since the compiler was made for those.
const STACK_BYTES: usize = 8 * 1024 * 1024;

/// A file's code, and how long the compiler took.
pub(crate) type Timed = (Component, Duration);

#[derive(Debug)]
struct Compiling {
    /// The look that asked for it last.
    asked: u64,
    result: Receiver<Result<Timed, Refusal>>,
    thread: JoinHandle<()>,
    /// Says that nobody asks for it any more.
    stop: Arc<AtomicBool>,
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A file whose compiler was ended by others.
#[derive(Debug)]
struct Ended {
    asked: u64,
    times: u32,
    again_at: Duration,
    detail: String,
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
    /// Looks at the folder so far.
    looks: AtomicU64,
    /// What is left of this look's [`COMPILE_WAIT`].
    patience: Mutex<Duration>,
    /// Those that nobody waits for any more, by the digest of the file that is compiled.
    slow: Mutex<BTreeMap<String, Compiling>>,
    /// Those whose compiler was ended by others, by the same digest; of this look's files alone.
    ended: Mutex<BTreeMap<String, Ended>>,
}

impl Compiler {
    /// `program` compiles, called as [`compile_process::COMPILE_COMMAND`]; without one this process does.
    pub(crate) fn new(program: Option<PathBuf>, observer: Arc<dyn Observer>) -> Self {
        Self {
            place: Place { program, observer, trouble: Arc::default() },
            hurried: AtomicBool::default(),
            looks: AtomicU64::default(),
            ended: Mutex::default(),
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
        self.looks.fetch_add(1, Ordering::Relaxed);
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = COMPILE_WAIT;
    }

    /// A look at the folder has asked for all that it wants: what it did not ask for is of files that are gone or changed,
    /// and what compiles them is ended.
    pub(crate) fn looked(&self) {
        let look = self.looks.load(Ordering::Relaxed);
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        slow.retain(|_, compiling| compiling.asked == look);
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.retain(|_, ended| ended.asked == look);
    }

    /// From now on no look waits longer than [`COMPILE_WAIT`].
    pub(crate) fn hurry(&self) {
        self.hurried.store(true, Ordering::Relaxed);
    }

    /// What became of a file that an earlier look stopped waiting for; `None` when it is not being compiled.
    pub(crate) fn resume(&self, digest: &str) -> Option<Result<Timed, Refusal>> {
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let mut compiling = slow.remove(digest)?;
        compiling.asked = self.looks.load(Ordering::Relaxed);
        // Only the first look waits: later ones are for what else changed.
        let result = wait_for(compiling, digest, Duration::ZERO, &mut slow);
        drop(slow);
        Some(self.noted(digest, result))
    }

    /// Compiles a file that is not being compiled yet. `component` makes of it what is compiled: asked for only when there
    /// is room to begin.
    pub(crate) fn compile(
        &self,
        digest: &str,
        engine: &Engine,
        component: impl FnOnce() -> Result<Vec<u8>, Refusal>,
    ) -> Result<Timed, Refusal> {
        self.may_begin(digest)?;
        if !self.hurried.load(Ordering::Relaxed) {
            let wanted = AtomicBool::new(false);
            let result = self.place.compiled(engine, &component()?, true, &wanted);
            return self.noted(digest, result);
        }
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_room() {
            return Err(Refusal::StillCompiling);
        }
        let bytes = component()?;
        let began = clock::monotonic();
        let result = self.compile_within(*patience, digest, engine, bytes);
        *patience = patience.saturating_sub(clock::monotonic().saturating_sub(began));
        self.noted(digest, result)
    }

    /// Not while a file whose compiler was ended has to wait.
    fn may_begin(&self, digest: &str) -> Result<(), Refusal> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ended) = ended.get_mut(digest) else { return Ok(()) };
        ended.asked = self.looks.load(Ordering::Relaxed);
        if clock::monotonic() >= ended.again_at {
            return Ok(());
        }
        Err(Refusal::CompilerEnded { detail: ended.detail.clone() })
    }

    fn noted(&self, digest: &str, result: Result<Timed, Refusal>) -> Result<Timed, Refusal> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let detail = match &result {
            Err(Refusal::CompilerEnded { detail }) => detail.clone(),
            // Its next compiler is at work, and may be ended as the last one was.
            Err(Refusal::StillCompiling) => {
                if let Some(ended) = ended.get_mut(digest) {
                    ended.asked = self.looks.load(Ordering::Relaxed);
                }
                return result;
            }
            _ => {
                ended.remove(digest);
                return result;
            }
        };
        let times = ended.get(digest).map_or(0, |ended| ended.times);
        let after =
            AGAIN_AFTER.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(AGAIN_AFTER_MAX);
        let asked = self.looks.load(Ordering::Relaxed);
        let again_at = clock::monotonic() + after;
        ended.insert(digest.to_owned(), Ended { asked, times: times.saturating_add(1), again_at, detail });
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
    ) -> Result<Timed, Refusal> {
        let mut compiling = spawn(self.place.clone(), engine.clone(), bytes)?;
        compiling.asked = self.looks.load(Ordering::Relaxed);
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
) -> Result<Timed, Refusal> {
    match compiling.result.recv_timeout(wait) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            forget_one_too_many(slow);
            slow.insert(digest.to_owned(), compiling);
            Err(Refusal::StillCompiling)
        }
        // It sends whatever comes of it, a panic too.
        Err(RecvTimeoutError::Disconnected) => Err(Refusal::StillCompiling),
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

    fn compiled(
        &self,
        engine: &Engine,
        bytes: &[u8],
        in_hurry: bool,
        stop: &AtomicBool,
    ) -> Result<Timed, Refusal> {
        let began = clock::monotonic();
        let timed = |component| (component, clock::monotonic().saturating_sub(began));
        if let Some(program) = &self.program {
            match compile_process::compile(program, bytes, in_hurry, stop) {
                Ok(artefact) => {
                    self.note(None);
                    let code = TrustedCode::vouched_for(&artefact.0);
                    return trusted_code::component(code, engine).map(timed).map_err(|error| {
                        let detail = shown(&format!("{} gave what is no code: {error:#}", program.display()));
                        Refusal::LoaderFailed { detail }
                    });
                }
                Err(NotCompiled::Refused(refusal)) => return Err(refusal),
                Err(NotCompiled::Ended(detail)) => {
                    return Err(Refusal::CompilerEnded { detail: shown(&detail) });
                }
                Err(NotCompiled::NoProcess(why)) => {
                    let why = shown(&why);
                    self.observer.compiled_inside(&why);
                    self.note(Some(why));
                }
            }
        }
        Component::from_binary(engine, bytes)
            .map(timed)
            .map_err(|error| Refusal::NotUsable { step: "compiled", detail: shown(&format!("{error:#}")) })
    }
}

fn spawn(place: Place, engine: Engine, bytes: Vec<u8>) -> Result<Compiling, Refusal> {
    let (send, result) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = Builder::new()
        .name("policy-compiler".to_owned())
        .stack_size(STACK_BYTES)
        // Nobody to send it to: the host has ended.
        .spawn(move || drop(send.send(guarded(|| place.compiled(&engine, &bytes, false, &stopped)))))
        .map_err(|error| Refusal::Unreadable(format!("no thread to compile it on: {error}")))?;
    Ok(Compiling { asked: 0, result, thread, stop })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(tag: u32) -> Vec<u8> {
        wat::parse_str(format!("(component (core module (func (drop (i32.const {tag})))))")).unwrap()
    }

    /// One look, which waits for nothing; `begun` counts what is begun.
    fn look(compiler: &Compiler, engine: &Engine, tag: u32, begun: &mut u32) -> Result<Timed, Refusal> {
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
    fn a_file_whose_compilers_are_ended_waits_longer_each_time() {
        let compiler = Compiler::inside();
        let ends = || Err(Refusal::CompilerEnded { detail: "killed".to_owned() });
        for times in 1..4 {
            compiler.look();
            // Seen to be slow first, as whatever the system kills for its memory is.
            assert!(compiler.noted("1", Err(Refusal::StillCompiling)).is_err());
            compiler.looked();
            compiler.look();
            assert!(compiler.noted("1", ends()).is_err());
            compiler.looked();
            assert_eq!(compiler.ended.lock().unwrap()["1"].times, times);
            assert!(matches!(compiler.may_begin("1"), Err(Refusal::CompilerEnded { .. })));
        }
        assert!(compiler.noted("1", Err(Refusal::NoWorld)).is_err());
        assert!(compiler.may_begin("1").is_ok(), "it was compiled, whatever came of it");
    }

    #[test]
    fn what_no_look_asks_for_any_more_is_ended() {
        let program = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sleeps.sh");
        let (compiler, engine) = (Compiler::new(Some(program), Arc::new(())), Engine::default());
        let mut begun = 0;
        for _ in 0..3 {
            compiler.look();
            assert!(matches!(look(&compiler, &engine, 1, &mut begun), Err(Refusal::StillCompiling)));
            compiler.looked();
        }
        assert_eq!(
            (begun, compiler.slow.lock().unwrap().len()),
            (1, 1),
            "one compiler for all looks that ask"
        );
        compiler.look();
        compiler.looked();
        // The thread that waits for the process holds the other one.
        while Arc::strong_count(&compiler.place.trouble) > 1 {
            std::thread::yield_now();
        }
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
