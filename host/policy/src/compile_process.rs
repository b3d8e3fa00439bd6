//! Compiles in a process of its own, at low priority.
//!
//! Not on a low thread of the host: threads of one process share the lock of its address space, which a compiler takes
//! at each page that it touches and requests take at each new instance. A low thread that is put off while it holds that
//! lock puts off requests as well, for as long as the machine is busy (0.4 s were seen). And what a file does to the
//! compiler - memory without end, time without end, a crash - it does to a process that can be ended.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use crate::engine;
use crate::limits::FILE_BYTES_MAX;
use crate::load_error::Refusal;
use crate::shown::shown;

/// What the program is called with to compile.
pub const COMPILE_COMMAND: &str = "compile-policy";
/// Of a compiler: others go first, wherever something else wants to run.
const NICENESS: i32 = 19;
/// CPU time of one compilation, seconds: a JavaScript engine of 10 MB takes half a minute.
const CPU_MAX_S: u64 = 300;
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
/// Exit code of a process whose main thread panicked.
const PANICKED: i32 = 101;

/// Why there is no code.
#[derive(Debug)]
pub(crate) enum NotCompiled {
    /// The file's doing.
    Refused(Refusal),
    /// The process could not be had, or is none that compiles.
    NoProcess(String),
}

/// Compiled code, as a process of this program's gave it.
#[derive(Debug)]
pub(crate) struct Artefact(pub(crate) Vec<u8>);

/// Has `program` compile a component, and waits for it.
pub(crate) fn compile(program: &Path, component: &[u8]) -> Result<Artefact, NotCompiled> {
    let at_fault = |what: &str, error: std::io::Error| {
        NotCompiled::NoProcess(format!("{} {COMPILE_COMMAND}: {what}: {error}", program.display()))
    };
    let mut child = Command::new(program)
        .arg(COMPILE_COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| at_fault("cannot be started", error))?;
    let read = converse(&mut child, component);
    if read.is_err() {
        // Whatever it is at, nobody wants it any more. It may have ended by itself, which is what is told then.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| at_fault("cannot be waited for", error))?;
    let (code, message) = read.map_err(|error| at_fault("cannot be talked to", error))?;
    outcome(status, code, message.trim())
}

/// All three pipes at a time: whatever it does first, neither side waits for the other.
fn converse(child: &mut Child, component: &[u8]) -> std::io::Result<(Vec<u8>, String)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // A process that does not want it all says by its exit what is wrong.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(component)));
        let message = scope.spawn(move || read_up_to(stderr, MESSAGE_BYTES_MAX));
        let code = read_up_to(stdout, CODE_BYTES_MAX)?;
        let message = message.join().unwrap_or_else(|_| Ok(Vec::new()))?;
        Ok((code, String::from_utf8_lossy(&message).into_owned()))
    })
}

/// The beginning; the rest is read too, and forgotten.
fn read_up_to(pipe: Option<impl Read>, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.by_ref().take(bytes_max).read_to_end(&mut kept)?;
        std::io::copy(&mut pipe, &mut std::io::sink())?;
    }
    Ok(kept)
}

fn outcome(status: ExitStatus, code: Vec<u8>, message: &str) -> Result<Artefact, NotCompiled> {
    use std::os::unix::process::ExitStatusExt;
    let refused =
        |detail: &str| NotCompiled::Refused(Refusal::NotUsable { step: "compiled", detail: shown(detail) });
    if let Some(signal) = status.signal() {
        let why = if signal == Signal::XCPU.as_raw() {
            format!("it took more than {CPU_MAX_S} s of CPU time")
        } else {
            let gib = ADDRESS_SPACE_MAX_BYTES >> 30;
            format!(
                "the compiler was ended by signal {signal}; it may use {gib} GiB of address space. {message}"
            )
        };
        return Err(refused(why.trim()));
    }
    match status.code() {
        Some(0) if !code.is_empty() => Ok(Artefact(code)),
        Some(refusing) if refusing == i32::from(REFUSED) && !message.is_empty() => Err(refused(message)),
        Some(PANICKED) => Err(NotCompiled::Refused(Refusal::LoaderFailed { detail: shown(message) })),
        _ => Err(NotCompiled::NoProcess(format!("is no compiler: {status}. {}", shown(message)))),
    }
}

/// The other side: reads a component from standard input, writes its code to standard output. Gives the exit code.
pub fn serve_compilation() -> u8 {
    match compiled() {
        Ok(()) => 0,
        Err(why) => {
            // Nobody reads it: then nobody asked.
            let _ = writeln!(std::io::stderr(), "{why}");
            REFUSED
        }
    }
}

fn compiled() -> Result<(), String> {
    confine();
    let mut component = Vec::new();
    let read = std::io::stdin().lock().take(COMPONENT_BYTES_MAX + 1).read_to_end(&mut component);
    read.map_err(|error| format!("the component cannot be read from standard input: {error}"))?;
    if component.len() as u64 > COMPONENT_BYTES_MAX {
        return Err(format!("it is longer than {COMPONENT_BYTES_MAX} bytes"));
    }
    let engine = engine::compiling().map_err(|error| format!("{error:#}"))?;
    let code = engine.precompile_component(&component).map_err(|error| format!("{error:#}"))?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&code).and_then(|()| stdout.flush()).map_err(|error| format!("{error}"))
}

/// Each is a precaution: where a sandbox refuses one, compiling goes on without it.
fn confine() {
    let _ = rustix::process::setpriority_process(None, NICENESS);
    // A host that is killed takes its compilers with it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let both = |limit: u64| Rlimit { current: Some(limit), maximum: Some(limit) };
    let _ = setrlimit(Resource::Cpu, both(CPU_MAX_S));
    let _ = setrlimit(Resource::As, both(ADDRESS_SPACE_MAX_BYTES));
    // A crash is told by its signal; its memory is of no use to anybody.
    let _ = setrlimit(Resource::Core, both(0));
}
