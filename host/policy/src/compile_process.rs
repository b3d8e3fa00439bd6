//! Compiles in a process of its own, at low priority.
//!
//! Not on a low thread of the host: threads of one process share the lock of its address space, which a compiler takes
//! at each page that it touches and requests take at each new instance. A low thread that is put off while it holds that
//! lock puts off requests as well, for as long as the machine is busy (0.4 s were seen). And what a file does to the
//! compiler - memory without end, time without end, a crash - it does to a process that can be ended.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getppid, pidfd_open, set_parent_process_death_signal,
    setpriority_process, setrlimit,
};

use crate::clock;
use crate::engine;
use crate::limits::FILE_BYTES_MAX;
use crate::load_error::Refusal;
use crate::shown::shown;

/// What the program is called with to compile; then its niceness, and the process that asks.
pub const COMPILE_COMMAND: &str = "compile-policy";
/// Of a compiler beside requests: a tenth of a core where all cores are busy. Lower, and a busy machine never takes a
/// new policy.
const NICENESS: i32 = 10;
/// CPU time of one compilation, seconds: a JavaScript engine of 10 MB takes half a minute.
const CPU_MAX_S: u64 = 120;
/// One compilation by the clock: one that is stopped, or gets no CPU, must not keep the others waiting for ever.
const WALL_MAX: Duration = Duration::from_secs(600);
/// How soon an order to stop is seen. Asked only while something is compiled.
const STOP_WITHIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Address space of one compiler, bytes: that engine takes some hundred MB, and allocators reserve more than they use.
const ADDRESS_SPACE_MAX_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Longest component, bytes: a module's file and what makes a component of it.
const COMPONENT_BYTES_MAX: u64 = 2 * FILE_BYTES_MAX;
/// Longest compiled code, bytes: some ten times the largest file's.
const CODE_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Longest message of a compiler that is kept, bytes.
const MESSAGE_BYTES_MAX: u64 = 4 * 1024;
/// Exit code of a compiler that refuses the file, with the reason on standard error.
const REFUSED: u8 = 1;
/// Exit code of one that could not do its work, for no reason of the file's.
const UNABLE: u8 = 75;
/// Exit code of a process whose main thread panicked.
const PANICKED: i32 = 101;

/// Why there is no code.
#[derive(Debug)]
pub(crate) enum NotCompiled {
    /// The file's doing.
    Refused(Refusal),
    /// Somebody else's: another time it may go well.
    Ended(String),
    /// The process could not be had, or is none that compiles.
    NoProcess(String),
}

/// Compiled code, as a process of this program's gave it.
#[derive(Debug)]
pub(crate) struct Artefact(pub(crate) Vec<u8>);

/// A child that does not outlive whoever waits for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing to do for one that has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has `program` compile a component, and waits for it, or until told to `stop`. In no `hurry` it gives way to requests.
pub(crate) fn compile(
    program: &Path,
    component: &[u8],
    in_hurry: bool,
    stop: &AtomicBool,
) -> Result<Artefact, NotCompiled> {
    let at_fault = |what: &'static str| {
        move |error: std::io::Error| {
            NotCompiled::NoProcess(format!("{} {COMPILE_COMMAND}: {what}: {error}", program.display()))
        }
    };
    // Files in memory, not pipes: nobody waits for a reader.
    let files = || -> std::io::Result<[File; 3]> {
        let mut given = memory_file("component")?;
        given.write_all(component)?;
        given.seek(SeekFrom::Start(0))?;
        Ok([given, memory_file("code")?, memory_file("message")?])
    };
    let [given, code, message] = files().map_err(at_fault("no memory for its files"))?;
    let lend =
        |file: &File| file.try_clone().map(Stdio::from).map_err(at_fault("no descriptor for its files"));
    let child = Command::new(program)
        .arg0("sluice")
        .arg(COMPILE_COMMAND)
        .arg(if in_hurry { 0 } else { NICENESS }.to_string())
        .arg(std::process::id().to_string())
        .stdin(Stdio::from(given))
        .stdout(lend(&code)?)
        .stderr(lend(&message)?)
        // What a terminal tells the host is not for it: the host says when it ends.
        .process_group(0)
        .spawn()
        .map_err(at_fault("cannot be started"))?;
    let mut child = Running(child);
    let ended = wait(&child.0, stop).map_err(at_fault("cannot be waited for"))?;
    if !ended {
        let why = if stop.load(Ordering::Relaxed) {
            "nobody wants its code any more".to_owned()
        } else {
            format!("it took more than {} s by the clock", WALL_MAX.as_secs())
        };
        return Err(NotCompiled::Ended(why));
    }
    let status = child.0.wait().map_err(at_fault("cannot be waited for"))?;
    let code = read_up_to(code, CODE_BYTES_MAX + 1).map_err(at_fault("its code cannot be read"))?;
    let message = read_up_to(message, MESSAGE_BYTES_MAX).map_err(at_fault("its message cannot be read"))?;
    outcome(status, code, String::from_utf8_lossy(&message).trim())
}

fn memory_file(name: &str) -> std::io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

fn read_up_to(mut file: File, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Until it ends. False when it has not, and is not waited for any more.
fn wait(child: &Child, stop: &AtomicBool) -> std::io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("its number is none"))?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let began = clock::monotonic();
    while !stop.load(Ordering::Relaxed) && clock::monotonic().saturating_sub(began) < WALL_MAX {
        let mut ready = [PollFd::new(&process, PollFlags::IN)];
        match poll(&mut ready, Some(&STOP_WITHIN)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

fn too_long() -> String {
    format!("its code is longer than {} MiB", CODE_BYTES_MAX >> 20)
}

fn outcome(status: ExitStatus, code: Vec<u8>, message: &str) -> Result<Artefact, NotCompiled> {
    let refused = |detail: String| {
        NotCompiled::Refused(Refusal::NotUsable { step: "compiled", detail: shown(detail.trim()) })
    };
    if let Some(signal) = status.signal() {
        return Err(match Signal::from_named_raw(signal) {
            Some(Signal::XCPU) => refused(format!("it took more than {CPU_MAX_S} s of CPU time")),
            Some(Signal::XFSZ) => refused(too_long()),
            // What a compiler does to itself, out of memory or of stack.
            Some(Signal::ABORT | Signal::SEGV | Signal::BUS | Signal::ILL | Signal::FPE) => refused(format!(
                "the compiler ended by signal {signal}; it may use {} GiB of address space. {message}",
                ADDRESS_SPACE_MAX_BYTES >> 30
            )),
            _ => NotCompiled::Ended(format!("somebody ended the compiler by signal {signal}")),
        });
    }
    match status.code() {
        // Where the bound on what it writes could not be set.
        Some(0) if code.len() as u64 > CODE_BYTES_MAX => Err(refused(too_long())),
        Some(0) if !code.is_empty() => Ok(Artefact(code)),
        Some(code) if code == i32::from(REFUSED) && !message.is_empty() => Err(refused(message.to_owned())),
        Some(code) if code == i32::from(UNABLE) => Err(NotCompiled::Ended(shown(message))),
        Some(PANICKED) => Err(NotCompiled::Refused(Refusal::LoaderFailed { detail: shown(message) })),
        _ => Err(NotCompiled::NoProcess(format!("is no compiler: {status}. {}", shown(message)))),
    }
}

/// The other side: reads a component from standard input, writes its code to standard output. `parent` is the process
/// that asked. Gives the exit code.
pub fn serve_compilation(niceness: i32, parent: u32) -> u8 {
    confine(niceness);
    // It ended before it could be said that this process ends with it.
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(parent) {
        return UNABLE;
    }
    let (exit, why) = match compiled() {
        Ok(()) => return 0,
        Err(Undone::Refused(why)) => (REFUSED, why),
        Err(Undone::Unable(why)) => (UNABLE, why),
    };
    // Nobody reads it: then nobody asked.
    let _ = writeln!(std::io::stderr(), "{why}");
    exit
}

enum Undone {
    /// The file's doing.
    Refused(String),
    /// Not the file's.
    Unable(String),
}

fn compiled() -> Result<(), Undone> {
    let unable = |what: &'static str| move |error: std::io::Error| Undone::Unable(format!("{what}: {error}"));
    let mut component = Vec::new();
    let read = std::io::stdin().lock().take(COMPONENT_BYTES_MAX + 1).read_to_end(&mut component);
    read.map_err(unable("the component cannot be read from standard input"))?;
    if component.len() as u64 > COMPONENT_BYTES_MAX {
        return Err(Undone::Refused(format!("it is longer than {COMPONENT_BYTES_MAX} bytes")));
    }
    let engine = engine::compiling().map_err(|error| Undone::Unable(format!("{error:#}")))?;
    let code =
        engine.precompile_component(&component).map_err(|error| Undone::Refused(format!("{error:#}")))?;
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(&code).and_then(|()| stdout.flush());
    written.map_err(unable("its code cannot be written to standard output"))
}

/// Each is a precaution: where a sandbox refuses one, compiling goes on without it.
fn confine(niceness: i32) {
    // A host that is killed takes its compilers with it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = setpriority_process(None, niceness);
    // Where memory runs out, this process goes and not the host.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // The signal comes at the first bound, which a process may outlive, not at the second.
    let bound = |at: u64, beyond: u64| Rlimit { current: Some(at), maximum: Some(at + beyond) };
    let _ = setrlimit(Resource::Cpu, bound(CPU_MAX_S, 1));
    let _ = setrlimit(Resource::As, bound(ADDRESS_SPACE_MAX_BYTES, 0));
    let _ = setrlimit(Resource::Fsize, bound(CODE_BYTES_MAX, 0));
    // A crash is told by its signal; its memory is of no use to anybody.
    let _ = setrlimit(Resource::Core, bound(0, 0));
}
